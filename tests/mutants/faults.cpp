// SPDX-License-Identifier: Apache-2.0
// Faults of results and behaviour: the gold, then one thing done wrong. Nothing here knows an operator by name, except
// where arithmetic faults set up the model.
#include "faults.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

namespace checkop::test {
namespace {

size_t size(int64_t n) { return static_cast<size_t>(n); }

/// One call and its right answer.
struct Site {
  const Operator& op;
  const Pass& pass;
  const checkop_call& call;
  Values values;

  bool has(size_t output) const { return call.outputs[output].data != nullptr; }
  DType dtype(size_t output) const { return static_cast<DType>(call.outputs[output].dtype); }
  std::byte* data(size_t output) const { return static_cast<std::byte*>(call.outputs[output].data); }
  MatrixView view(size_t output) const {
    const checkop_tensor& t = call.outputs[output];
    return matrix_view(op, pass.outputs[output].tensor, Shape(t.shape, t.shape + t.rank));
  }
  void store_all() const {
    for (size_t i = 0; i < values.size(); ++i)
      if (has(i)) store(call.outputs[i], values[i]);
  }
};

Model model_with(Fault fault, const Operator& op) {
  Model model;
  const bool sums_exponentials =
      op.name != "matmul" && op.name != "det_gemm" && op.name != "lm_head" && op.name != "rms_norm";
  if (fault == Fault::dropped_last_tile) {
    if (sums_exponentials) model.skip_vocab = op.name.ends_with("attention") ? 8 : 128;
    if (!sums_exponentials) model.skip_terms = op.name == "rms_norm" ? 128 : 32;
  }
  if (fault == Fault::last_k_dropped || fault == Fault::last_token_lost) model.skip_terms = 1;
  if (fault == Fault::wrong_label) model.label_shift = 1;
  if (fault == Fault::softmax_term_dropped) model.softmax_scale = 0;
  if (fault == Fault::softmax_sign_flipped) model.softmax_scale = -1;
  model.special = fault;
  model.bf16_accumulator = fault == Fault::bf16_accumulator;
  model.ignore_mask = fault == Fault::mask_ignored;
  if (fault == Fault::ignored_row_counted || fault == Fault::ignored_gradient_kept) model.left_out = LeftOut::counted;
  if (fault == Fault::ignored_as_id_zero) model.left_out = LeftOut::as_id_zero;
  if (fault == Fault::ignored_row_multiplied) model.left_out = LeftOut::multiplied;
  if (fault == Fault::ignored_row_reaches_weight) model.left_out = LeftOut::reaches_weight;
  model.add_mask_values = fault == Fault::mask_values_added;
  model.keep_ones_alone = fault == Fault::ones_alone_kept;
  model.place_shift = fault == Fault::counted_with_own_row ? 1 : 0;
  model.restart_count = fault == Fault::counted_per_sequence;
  model.ignore_causal_offset = fault == Fault::causal_offset_ignored;
  model.causal_shift = fault == Fault::own_key_unseen ? -1 : 0;
  model.new_keys_first = fault == Fault::new_keys_first;
  model.skip_new_keys = fault == Fault::new_keys_skipped;
  model.bf16_exp = fault == Fault::exp_rounded_to_bf16;
  model.tf32_factors = fault == Fault::tf32_factors;
  return model;
}

/// Exchanges the halves of every row of `width` values.
void swap_halves(std::vector<double>& values, int64_t width) {
  for (auto row = values.begin(); row != values.end(); row += width)
    std::swap_ranges(row, row + width / 2, row + width / 2);
}
void swap_halves(Tensor& t) {
  std::vector<double> values(size(t.count()));
  info(t.dtype).decode(t.bytes.data(), values.data(), values.size());
  swap_halves(values, t.shape.back());
  info(t.dtype).encode(values.data(), t.bytes.data(), values.size());
}

/// Masks the last kept key of every batch entry, in a mask made for it if there is none.
void drop_last_key(int64_t batch, int64_t kv_seq, Tensor& mask) {
  if (mask.name.empty()) {
    mask = Tensor("key_padding_mask", DType::u8, {batch, kv_seq});
    for (int64_t i = 0; i < mask.count(); ++i) mask.set(i, 1);
  }
  for (int64_t b = 0; b < batch; ++b) {
    int64_t last = kv_seq - 1;
    while (last > 0 && mask.at(b * kv_seq + last) == 0) --last;
    mask.set(b * kv_seq + last, 0);
  }
}

/// Moves the heads of every batch entry, dimension 1, on by one.
void rotate_heads(Tensor& t) {
  const int64_t heads = t.shape[1];
  const auto head_bytes = static_cast<std::ptrdiff_t>(t.bytes.size()) / (t.shape[0] * heads);
  for (int64_t b = 0; b < t.shape[0]; ++b) {
    std::byte* first = t.bytes.data() + b * heads * head_bytes;
    std::rotate(first, first + head_bytes, first + heads * head_bytes);
  }
}

/// The gold of a question that was misunderstood.
Values misunderstood(Fault fault, const Pass& pass, const checkop_call& call) {
  return gold_values(pass, call, [&](std::vector<Tensor>& inputs, std::vector<double>& attrs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensor& input = inputs[i];
      const bool positions = pass.inputs[i].fill == Fill::positions;
      if (fault == Fault::turned_the_other_way && !positions) swap_halves(input);
      for (int64_t e = 0; fault == Fault::shifted_positions && positions && e < input.count(); ++e)
        input.set(e, input.at(e) + 1);
    }
    if (fault == Fault::wrong_base) attrs[0] = 10000;
    if (fault == Fault::causal_mask_ignored) attrs[0] = 0;
    if (fault == Fault::scale_ignored) attrs[1] = 1;
    int64_t kv_seq = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool keys = pass.inputs[i].name.starts_with('k') && pass.inputs[i].fill == Fill::normal;
      if (keys) kv_seq += inputs[i].shape[2];
      if (fault == Fault::next_group_read && keys) rotate_heads(inputs[i]);
      if (fault == Fault::last_key_dropped && pass.inputs[i].fill == Fill::mask) {
        drop_last_key(inputs[0].shape[0], kv_seq, inputs[i]);  // keys come before their mask
      }
    }
  });
}

bool is_arithmetic(Fault fault) { return fault <= Fault::tf32_factors; }

// --- faults of results: values are changed before they are stored
// -----------------------------------------------------

/// The last row that differs from the one before it: rows of zeros may follow.
void last_row_keeps_previous(Site& s) {
  const MatrixView view = s.view(0);
  for (int64_t r = view.rows - 1; r > 0; --r) {
    double* row = &s.values[0][size(r * view.columns)];
    if (std::equal(row, row + view.columns, row - view.columns)) continue;
    std::copy_n(row - view.columns, view.columns, row);
    return;
  }
}

void take_mean_everywhere(std::vector<double>& values) {
  double sum = 0;
  for (double x : values) sum += x;
  std::fill(values.begin(), values.end(), sum / static_cast<double>(std::max<size_t>(values.size(), 1)));
}

/// The element of middle size: the largest would be too easy to find, and a tiny one may double within its bound.
void double_one(std::vector<double>& values) {
  std::vector<size_t> order;  // without the zeros of masked rows
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != 0) order.push_back(i);
  if (order.empty()) return;  // some rows alone: all of them left out
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2);
  std::nth_element(order.begin(), middle, order.end(),
                   [&](size_t a, size_t b) { return std::abs(values[a]) < std::abs(values[b]); });
  values[*middle] *= 2;
}

/// The last column of every row stays 0: a loop over whole vectors without its end.
void drop_tail(Site& s) {
  const MatrixView view = s.view(0);
  for (int64_t last = view.columns - 1; last < view.rows * view.columns; last += view.columns)
    s.values[0][size(last)] = 0;
}

void transpose_first_block(Site& s) {
  constexpr int64_t kBlock = 8;
  for (size_t i = 0; i < s.values.size(); ++i) {
    const MatrixView view = s.view(i);
    if (!s.has(i) || view.rows < kBlock || view.columns < kBlock) continue;
    for (int64_t r = 0; r < kBlock; ++r)
      for (int64_t c = r + 1; c < kBlock; ++c)
        std::swap(s.values[i][size(r * view.columns + c)], s.values[i][size(c * view.columns + r)]);
  }
}

// --- faults of bits: what was stored is changed ----------------------------------------------------------------------

/// Moves a stored element by `steps` representable numbers away from zero.
void move_away(std::byte* element, DType dtype, int steps) {
  const size_t bytes = info(dtype).bytes;
  uint64_t bits = 0;
  std::memcpy(&bits, element, bytes);  // little-endian, as everywhere in the checker
  bits += static_cast<uint64_t>(static_cast<int64_t>(steps));
  std::memcpy(element, &bits, bytes);
}

double stored_value(const std::byte* element, DType dtype) {
  double value = 0;
  info(dtype).decode(element, &value, 1);
  return value;
}

void truncate_all(const Site& s) {
  for (size_t i = 0; i < s.values.size(); ++i) {
    const size_t bytes = info(s.dtype(i)).bytes;
    for (size_t e = 0; s.has(i) && e < s.values[i].size(); ++e) {
      std::byte* element = s.data(i) + e * bytes;
      if (std::abs(stored_value(element, s.dtype(i))) > std::abs(s.values[i][e])) move_away(element, s.dtype(i), -1);
    }
  }
}

/// Rounds the element of output 0 that lies closest to the middle between two numbers the other way: other bits, yet as
/// accurate, so that only a comparison of bits can tell. Looks at the first `count` elements.
void round_a_tie_the_other_way(const Site& s, int64_t count) {
  const DType dtype = s.dtype(0);
  const size_t bytes = info(dtype).bytes;
  double closest = -1;
  size_t found = 0;
  for (size_t e = 0; e < size(count); ++e) {
    const double value = s.values[0][e], stored = stored_value(s.data(0) + e * bytes, dtype);
    const double off = std::abs(value - stored) / half_ulp(dtype, value);
    if (stored != 0 && off > closest) closest = off, found = e;
  }
  std::byte* element = s.data(0) + found * bytes;
  const bool rounded_up = std::abs(stored_value(element, dtype)) > std::abs(s.values[0][found]);
  move_away(element, dtype, rounded_up ? -1 : 1);
}

// --- faults of behaviour
// ----------------------------------------------------------------------------------------------

void store_all_but_middle_row(Site& s) {
  const MatrixView view = s.view(0);
  const size_t bytes = info(s.dtype(0)).bytes;
  for (int64_t r = 0; r < view.rows; ++r)
    if (r != view.rows / 2)
      info(s.dtype(0))
          .encode(&s.values[0][size(r * view.columns)], s.data(0) + size(r * view.columns) * bytes, size(view.columns));
  for (size_t i = 1; i < s.values.size(); ++i)
    if (s.has(i)) store(s.call.outputs[i], s.values[i]);
}

void store_all_but_zero_rows(Site& s) {
  const int64_t width = s.call.outputs[0].shape[s.call.outputs[0].rank - 1];
  const DTypeInfo& type = info(s.dtype(0));
  for (size_t at = 0; at < s.values[0].size(); at += size(width)) {
    const double* row = &s.values[0][at];
    if (std::all_of(row, row + width, [](double x) { return x == 0; })) continue;
    type.encode(row, s.data(0) + at * type.bytes, size(width));
  }
  for (size_t i = 1; i < s.values.size(); ++i) store(s.call.outputs[i], s.values[i]);
}

void write_behind_end(const Site& s) {
  const size_t bytes = info(s.dtype(0)).bytes;
  std::memset(s.data(0) + s.values[0].size() * bytes, 0x3f, bytes);
}

/// The first input of floating-point numbers: other ids might be out of range, which a second run would refuse.
const checkop_tensor& first_float_input(const Site& s) {
  int32_t i = 0;
  while (i + 1 < s.call.n_inputs && !info(static_cast<DType>(s.call.inputs[i].dtype)).is_float) ++i;
  return s.call.inputs[i];
}

void overwrite_input(const Site& s) {
  const checkop_tensor& input = first_float_input(s);
  std::memset(input.data, 0x3f, info(static_cast<DType>(input.dtype)).bytes);
}

/// The second run puts back what the first one changed.
void toggle_input(const Site& s) { static_cast<unsigned char*>(first_float_input(s).data)[0] ^= 1u; }

bool is_odd_call() {
  static std::atomic<unsigned> calls{0};
  return (calls++ & 1u) != 0;
}

}  // namespace

void answer_with_fault(Fault fault, const Operator& op, const Pass& pass, const checkop_call& call) {
  Site s{op, pass, call, {}};
  s.values = is_arithmetic(fault) ? model_with(fault, op).evaluate(op, pass, call) : gold_values(pass, call);
  switch (fault) {
    case Fault::none:
    case Fault::dropped_last_tile:
    case Fault::last_k_dropped:
    case Fault::last_token_lost:
    case Fault::wrong_label:
    case Fault::softmax_term_dropped:
    case Fault::softmax_sign_flipped:
    case Fault::bf16_accumulator:
    case Fault::mask_ignored:
    case Fault::ignored_row_counted:
    case Fault::ignored_gradient_kept:
    case Fault::ignored_as_id_zero:
    case Fault::ignored_row_multiplied:
    case Fault::ignored_row_reaches_weight:
    case Fault::mask_values_added:
    case Fault::ones_alone_kept:
    case Fault::counted_with_own_row:
    case Fault::counted_per_sequence:
    case Fault::causal_offset_ignored:
    case Fault::own_key_unseen:
    case Fault::new_keys_first:
    case Fault::new_keys_skipped:
    case Fault::weight_plus_one:
    case Fault::mean_subtracted:
    case Fault::projection_dropped:
    case Fault::exponent_sign:
    case Fault::sigmoid_alone:
    case Fault::derivative_short:
    case Fault::gate_and_up_swapped:
    case Fault::neighbours_id:
    case Fault::duplicates_overwrite:
    case Fault::misaligned_rows:
    case Fault::sample_variance:
    case Fault::mean_over_all_tokens:
    case Fault::kl_reversed:
    case Fault::bias_left_out:
    case Fault::masked_keys_multiplied:
    case Fault::exp_rounded_to_bf16:
    case Fault::tf32_factors:
      return s.store_all();
    case Fault::gradient_scaled:
      for (auto& values : s.values)
        for (double& x : values) x *= 0.995;
      return s.store_all();
    case Fault::stale_row:
      last_row_keeps_previous(s);
      return s.store_all();
    case Fault::nan:
      s.values[0].back() = std::numeric_limits<double>::quiet_NaN();
      return s.store_all();
    case Fault::tail_not_computed:
      drop_tail(s);
      return s.store_all();
    case Fault::zeros:
      for (auto& values : s.values) std::fill(values.begin(), values.end(), 0.0);
      return s.store_all();
    case Fault::constant_output:
      for (auto& values : s.values) take_mean_everywhere(values);
      return s.store_all();
    case Fault::wrong_base:
    case Fault::shifted_positions:
    case Fault::causal_mask_ignored:
    case Fault::scale_ignored:
    case Fault::last_key_dropped:
    case Fault::next_group_read:
      s.values = misunderstood(fault, pass, call);
      return s.store_all();
    case Fault::turned_the_other_way:  // with the halves exchanged before and after, sines change their sign
      s.values = misunderstood(fault, pass, call);
      swap_halves(s.values[0], call.outputs[0].shape[call.outputs[0].rank - 1]);
      return s.store_all();
    case Fault::one_element_doubled:
      double_one(s.values[0]);
      return s.store_all();
    case Fault::transposed_block:
      transpose_first_block(s);
      return s.store_all();
    case Fault::truncation:
      s.store_all();
      return truncate_all(s);
    case Fault::unwritten_row:
      return store_all_but_middle_row(s);
    case Fault::unwritten_zeros:
      return store_all_but_zero_rows(s);
    case Fault::out_of_bounds_write:
      s.store_all();
      return write_behind_end(s);
    case Fault::input_overwritten:
      s.store_all();
      return overwrite_input(s);
    case Fault::input_toggled:
      s.store_all();
      return toggle_input(s);
    case Fault::nondeterministic:
      s.store_all();
      if (is_odd_call()) round_a_tie_the_other_way(s, s.view(0).rows * s.view(0).columns);
      return;
    case Fault::batch_dependent:
      s.store_all();
      if (s.view(0).rows == 1) round_a_tie_the_other_way(s, s.view(0).columns);
      return;
  }
}

}  // namespace checkop::test
