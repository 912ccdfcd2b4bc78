// SPDX-License-Identifier: Apache-2.0
// Models of operators in which rows are moved about: pack, and attention over a cache.
#include <algorithm>

#include "faults.hpp"

namespace checkop::test {
namespace {

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values(static_cast<size_t>(t.count()));
  info(t.dtype).decode(t.bytes.data(), values.data(), values.size());
  return values;
}

/// Rows of `width` from one array to another.
void copy_rows(const std::vector<double>& from, int64_t first, int64_t n, int64_t width, std::vector<double>& to,
               int64_t place) {
  std::copy_n(from.begin() + first * width, n * width, to.begin() + place * width);
}

/// For every head the rows of `a`, then those of `b`.
Tensor joined(const Tensor& a, const Tensor& b, std::string_view name) {
  const int64_t heads = a.shape[0] * a.shape[1], n_a = a.shape[2], n_b = b.shape[2], width = a.shape[3];
  const std::vector<double> from_a = values_of(a), from_b = values_of(b);
  std::vector<double> all(from_a.size() + from_b.size());
  for (int64_t head = 0; head < heads; ++head) {
    copy_rows(from_a, head * n_a, n_a, width, all, head * (n_a + n_b));
    copy_rows(from_b, head * n_b, n_b, width, all, head * (n_a + n_b) + n_a);
  }
  Tensor tensor(std::string(name), DType::f64, {a.shape[0], a.shape[1], n_a + n_b, width});
  info(DType::f64).encode(all.data(), tensor.bytes.data(), all.size());
  return tensor;
}

/// Of every head's `seq` rows those from `first` on, `n` of them.
std::vector<double> part_of(const std::vector<double>& all, int64_t seq, int64_t first, int64_t n, int64_t width) {
  const int64_t heads = static_cast<int64_t>(all.size()) / (seq * width);
  std::vector<double> part(static_cast<size_t>(heads * n * width));
  for (int64_t head = 0; head < heads; ++head) copy_rows(all, head * seq + first, n, width, part, head * n);
  return part;
}

checkop_tensor view_of(Tensor& t) {
  return {t.bytes.data(), static_cast<int32_t>(t.dtype), static_cast<int32_t>(t.shape.size()), t.shape.data(), nullptr};
}

}  // namespace

/// Row after row, each to the next place or from it.
Values pack_model(const Model& model, const std::vector<Tensor>& inputs, bool forward) {
  const std::vector<double> source = values_of(inputs[forward ? 0 : 1]);
  const Tensor& mask = inputs[forward ? 1 : 0];
  const int64_t rows = mask.count(), seq = mask.shape.back(), width = static_cast<int64_t>(source.size()) / rows;
  std::vector<double> out(source.size()), ends{0};
  int64_t place = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const auto value = static_cast<int64_t>(mask.at(r));
    const bool keeps = model.ignore_mask || (model.keep_ones_alone ? value == 1 : value != 0);
    if (model.restart_count && r % seq == 0) place = 0;
    if (keeps) {
      const int64_t at = std::min(place + model.place_shift, rows - 1);
      copy_rows(source, forward ? r : at, 1, width, out, forward ? at : r);
      place += model.add_mask_values ? value : 1;
    }
    if (r % seq == seq - 1) ends.push_back(static_cast<double>(place));
  }
  if (forward) return {out, ends};
  return {out};
}

Values kv_cache_model(const Model& model, const Pass& pass, const checkop_call& call) {
  std::vector<Tensor> in = inputs_of(pass, call);
  const int64_t n_cached = in[1].shape[2], n_new = in[3].shape[2], width = in[1].shape[3], seq = n_cached + n_new;
  const size_t front = model.new_keys_first ? 3 : 1, back = model.new_keys_first ? 1 : 3;
  Tensor k = joined(in[front], in[back], "k"), v = joined(in[front + 1], in[back + 1], "v");
  Tensor& mask = in[5];
  if (model.skip_new_keys) {
    if (mask.name.empty()) {
      mask = Tensor("key_padding_mask", DType::u8, {k.shape[0], seq});
      for (int64_t i = 0; i < mask.count(); ++i) mask.set(i, 1);
    }
    for (int64_t i = 0; i < mask.count(); ++i) {
      if (i % seq >= n_cached) mask.set(i, 0);
    }
  }
  std::vector<checkop_tensor> inputs{view_of(in[0]), view_of(k), view_of(v),
                                     mask.name.empty() ? checkop_tensor{} : view_of(mask)};
  const bool forward = pass.name == "forward";
  if (!forward) inputs.push_back(view_of(in[6]));
  checkop_call whole = call;
  whole.inputs = inputs.data();
  whole.n_inputs = static_cast<int32_t>(inputs.size());
  const Operator& attention = *find_operator("attention");
  Values got = model.evaluate(attention, *find_pass(attention, pass.name), whole);
  if (forward) return got;
  const int64_t cached_at = model.new_keys_first ? n_new : 0, new_at = model.new_keys_first ? 0 : n_cached;
  return {got[0], part_of(got[1], seq, cached_at, n_cached, width), part_of(got[2], seq, cached_at, n_cached, width),
          part_of(got[1], seq, new_at, n_new, width), part_of(got[2], seq, new_at, n_new, width)};
}

}  // namespace checkop::test
