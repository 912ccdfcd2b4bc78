// SPDX-License-Identifier: Apache-2.0
// Copies of tensors in other orders.
#include "rearranged.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace checkop {

std::vector<int64_t> integers_of(const Tensor& tensor) {
  std::vector<int64_t> values(static_cast<size_t>(tensor.count()));
  decode_int(tensor.dtype, tensor.bytes.data(), values.data(), values.size());
  return values;
}

Tensor of_integers(const Tensor& from, Shape shape, const std::vector<int64_t>& values) {
  Tensor tensor{from.name, from.dtype, std::move(shape)};
  encode_int(tensor.dtype, values.data(), tensor.bytes.data(), values.size());
  return tensor;
}

Tensor with_blocks(const Tensor& tensor, Shape shape, const std::vector<int64_t>& from, size_t bytes) {
  Tensor moved{tensor.name, tensor.dtype, std::move(shape)};
  for (size_t i = 0; i < from.size(); ++i)
    std::memcpy(moved.bytes.data() + i * bytes, tensor.bytes.data() + static_cast<size_t>(from[i]) * bytes, bytes);
  return moved;
}

Tensor with_rows(const Tensor& tensor, const std::vector<int64_t>& from) {
  Shape shape = tensor.shape;
  const auto rows = static_cast<size_t>(std::max<int64_t>(1, shape.front()));
  shape.front() = std::ssize(from);
  return with_blocks(tensor, shape, from, tensor.bytes.size() / rows);
}

int64_t others_of(const SequenceBounds& bounds) {
  for (int64_t s = 0; s + 1 < std::ssize(bounds); s += 2)
    if (length_of(bounds, s) > 0) return 1;
  return 0;
}

Packing repack(const SequenceBounds& bounds, int64_t tokens, Documents change, int64_t others) {
  Packing packing;
  const int64_t n = std::ssize(bounds) - 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t s = change == Documents::reversed ? n - 1 - i : i;
    const bool is_other = change != Documents::reversed && s % 2 == others;
    if (is_other && change == Documents::removed) continue;
    const int64_t first = bounds[static_cast<size_t>(s)], length = length_of(bounds, s);
    for (int64_t t = 0; t < (is_other && change == Documents::longer ? 2 * length : length); ++t) {
      packing.from.push_back(first + (is_other && change == Documents::replaced ? length - 1 - t : t % length));
      packing.rows.push_back(is_other ? -1 : packing.from.back());
    }
    packing.bounds.push_back(std::ssize(packing.from));
  }
  for (int64_t t = bounds.back(); t < tokens; ++t) packing.from.push_back(t), packing.rows.push_back(t);
  return packing;
}

bool is_changed(const Packing& packing, const SequenceBounds& bounds) {
  for (size_t i = 0; i < packing.from.size(); ++i)
    if (packing.from[i] != static_cast<int64_t>(i)) return true;
  return packing.bounds != bounds;
}

std::optional<Rearranged> as_micro_batch(const RearrangeArgs& args, int64_t first, int64_t n) {
  std::vector<int64_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), first);
  bool has_denom = false;
  Rearranged other;
  other.inputs.resize(args.inputs.size());
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    if (args.inputs[i] == nullptr) continue;
    const TensorSpec& spec = args.pass.inputs[i];
    has_denom |= spec.name == "denom";
    if (const auto dims = split_dims(spec.dims); !dims.empty() && dims.front() == "batch")
      other.inputs[i] = with_rows(*args.inputs[i], rows);
  }
  if (!has_denom) return {};
  other.dims = {{"batch", n}};
  other.rows = {{"batch", std::move(rows)}};
  return other;
}

namespace {

int64_t batch_of(const RearrangeArgs& args) { return args.in(0).shape.front(); }

std::optional<Rearranged> first_half_of_batch(const RearrangeArgs& args) {
  return as_micro_batch(args, 0, batch_of(args) / 2);
}
std::optional<Rearranged> second_half_of_batch(const RearrangeArgs& args) {
  const int64_t first = batch_of(args) / 2;
  return as_micro_batch(args, first, batch_of(args) - first);
}
std::optional<Rearranged> last_entry(const RearrangeArgs& args) { return as_micro_batch(args, batch_of(args) - 1, 1); }

}  // namespace

const std::array<Rearrangement, 3> kMicroBatches{
    Rearrangement{"micro_batch", "the first half of the batch, with the same denom", "batch", 2, first_half_of_batch},
    Rearrangement{"micro_batch", "the second half of the batch, with the same denom", "batch", 2, second_half_of_batch},
    Rearrangement{"micro_batch", "the last entry of the batch alone, with the same denom", "batch", 2, last_entry},
};

}  // namespace checkop
