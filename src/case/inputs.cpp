// SPDX-License-Identifier: Apache-2.0
// Fills input tensors from counter-based random numbers. The bits come from integers and FP64 + - * / sqrt alone, with
// one final rounding, so every machine, thread count and dtype sees the same underlying data.
//
// Modes:
//   random    by Fill
//   constant  floating inputs are constant_value + 0.01 * their position in the pass; ids are token_value modulo the
//             extent
//   integer   floating inputs, weights included, are integers in [-4, 4]. A dot product of K terms is at most 16 K, so
//             an FP32 accumulator is exact in any order up to K = 2^20.
//   peaked    see plant_targets
//   extreme   see plant_extremes
//   wide      as random, with each floating element times its own 2^-n, n random in [0, 12]: sums that round more often
// Upstream gradients are ones with GradMode::ones; otherwise integers in mode integer, normals in all other modes.
#include "case/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/parallel.hpp"

namespace checkop {
namespace {

/// Elements per task.
constexpr int64_t kChunk = 64 * kDrawBuffer;
constexpr int64_t kRowsOfATask = 16;
constexpr int kLargestInteger = 4;
constexpr double kPeakedFraction = 0.7;
constexpr uint64_t kWidest = 12;

/// Fills a tensor through draw(first, buffer, n), which sets buffer[i] to element first + i, and rounds once.
template <typename Draw>
void fill(Tensor& tensor, unsigned threads, const Draw& draw) {
  const DTypeInfo& type = info(tensor.dtype);
  std::byte* const to = tensor.bytes.data();
  parallel_for(threads, (tensor.count() + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk, end = std::min(begin + kChunk, tensor.count());
    double buffer[kDrawBuffer + 1];
    for (int64_t first = begin; first < end; first += kDrawBuffer) {
      const int64_t n = std::min(kDrawBuffer, end - first);
      draw(first, buffer, n);
      type.encode(buffer, to + static_cast<size_t>(first) * type.bytes, static_cast<size_t>(n));
    }
  });
}

void fill_constant(Tensor& tensor, double value, unsigned threads) {
  fill(tensor, threads, [value](int64_t, double* out, int64_t n) { std::fill_n(out, n, value); });
}

/// Planted ids: both ends of the vocabulary, then both sides of common tile widths. -1 stands for V - 1.
constexpr int64_t kEdgeIds[] = {-1, 0, 127, 128, 255, 256, 1023, 1024, 4095, 4096};

/// Plants kEdgeIds in the first rows, for any number of rows. Where an edge id is beyond V, the random id stays.
void fill_ids(const Case& c, const Stream& stream, int64_t extent, Tensor& ids) {
  const size_t size = info(ids.dtype).bytes;
  const int64_t constant = (c.token_value % extent + extent) % extent;
  for (int64_t r = 0; r < ids.count(); ++r) {
    auto id = static_cast<int64_t>(stream.below(static_cast<uint64_t>(r), static_cast<uint64_t>(extent)));
    if (r < std::ssize(kEdgeIds) && kEdgeIds[r] < extent) id = kEdgeIds[r] < 0 ? extent - 1 : kEdgeIds[r];
    if (c.input_mode == InputMode::constant) id = constant;
    encode_int(ids.dtype, &id, ids.bytes.data() + static_cast<size_t>(r) * size, 1);
  }
}

/// Element 0 always keeps, so that a mask of one element masks nothing. In mode constant every element keeps.
void fill_mask(const Case& c, const Stream& stream, Tensor& mask) {
  for (int64_t i = 0; i < mask.count(); ++i) {
    const double drawn = stream.uniform(static_cast<uint64_t>(i));
    mask.set(i, i == 0 || c.input_mode == InputMode::constant ? 1 : drawn < 0.25 ? 0 : drawn < 0.3 ? 2 : 1);
  }
}

void fill_positions(Tensor& positions) {
  for (int64_t i = 0; i < positions.count(); ++i) positions.set(i, static_cast<double>(i % positions.shape.back()));
}

int64_t extent_of(const Case& c, const TensorSpec& spec) {
  const auto found = c.dims.find(spec.fan_in);
  if (found == c.dims.end() || found->second < 1) {
    throw InputError(std::string(spec.name), "dimension '" + std::string(spec.fan_in) + "' has no extent ≥ 1");
  }
  return found->second;
}

void fill_tensor(const Case& c, const TensorSpec& spec, size_t position, unsigned threads, Tensor& tensor) {
  const bool upstream = spec.fill == Fill::upstream;
  const Stream stream = Stream::derive(upstream ? c.grad_seed : c.seed, c.op->name, spec.name);
  if (spec.fill == Fill::ids) return fill_ids(c, stream, extent_of(c, spec), tensor);
  if (spec.fill == Fill::mask) return fill_mask(c, stream, tensor);
  if (spec.fill == Fill::positions) return fill_positions(tensor);
  if (upstream && c.grad_mode == GradMode::ones) return fill_constant(tensor, 1.0, threads);
  if (!upstream && c.input_mode == InputMode::constant) {
    return fill_constant(tensor, c.constant_value + 0.01 * static_cast<double>(position), threads);
  }
  if (c.input_mode == InputMode::integer) {
    return fill(tensor, threads,
                [&](int64_t first, double* out, int64_t n) { stream.integers(first, out, n, kLargestInteger); });
  }
  const Stream exponents = Stream::derive(c.seed, c.op->name, std::string(spec.name) + " wide");
  const double scale = spec.fill == Fill::weight ? 1.0 / std::sqrt(static_cast<double>(extent_of(c, spec))) : 1.0;
  fill(tensor, threads, [&](int64_t first, double* out, int64_t n) {
    stream.normals(first, out, n);
    for (int64_t i = 0; i < n; ++i) out[i] *= scale;
    if (c.input_mode != InputMode::wide) return;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = std::ldexp(out[i], -static_cast<int>(exponents.below(static_cast<uint64_t>(first + i), kWidest + 1)));
    }
  });
}

/// Index of the first present input that satisfies `wanted`, or nullopt.
template <typename Wanted>
std::optional<size_t> find_input(const Case& c, const Wanted& wanted) {
  for (size_t i = 0; i < c.pass->inputs.size(); ++i) {
    if (is_present(c, c.pass->inputs[i]) && wanted(c.pass->inputs[i])) return i;
  }
  return std::nullopt;
}

/// Sets row `row` of `hidden` to n + alpha * w / |w|, where n is its standard normals and w is the stored weight row of
/// its target. alpha is chosen so that the row's product with w is `target`. Sums run from the first column to the
/// last.
void align_hidden(const Stream& stream, int64_t row, const Tensor& weight, int64_t id, double target, Tensor& hidden) {
  const auto columns = static_cast<size_t>(weight.shape.back());
  const size_t weight_row_bytes = columns * info(weight.dtype).bytes, row_bytes = columns * info(hidden.dtype).bytes;
  std::vector<double> w(columns), h(columns);
  info(weight.dtype).decode(weight.bytes.data() + static_cast<size_t>(id) * weight_row_bytes, w.data(), columns);
  double square = 0.0, product = 0.0;
  for (size_t i = 0; i < columns; ++i) {
    h[i] = stream.normal(static_cast<uint64_t>(row) * columns + i);
    square += w[i] * w[i];
    product += h[i] * w[i];
  }
  if (square == 0.0) return;
  for (size_t i = 0; i < columns; ++i) h[i] += (target - product) / square * w[i];
  info(hidden.dtype).encode(h.data(), hidden.bytes.data() + static_cast<size_t>(row) * row_bytes, columns);
}

/// Mode peaked: in about 70 % of the rows the target's probability becomes about 0.9.
/// The other V - 1 logits are near N(0, s), and their exponentials sum to about (V - 1) exp(s / 2). So a target logit
/// of A + s / 2 with A = log(9 (V - 1)) has odds of nine to one. If logits are an input (s = 1), the target's logit is
/// set. If logits are hidden * weight^T + bias, the hidden row is turned towards the target's weight row
/// (align_hidden). Then s = 1 + A^2 / H, because the alignment changes the other logits too, plus 1 for a bias, whose
/// value at the target is subtracted. This holds for H well above A^2. Passes with neither kind of inputs stay random.
void plant_targets(const Case& c, unsigned threads, std::vector<Tensor>& tensors) {
  const auto specs = c.pass->inputs;
  const auto ids_at = find_input(c, [](const TensorSpec& spec) { return spec.fill == Fill::ids; });
  if (!ids_at) return;
  const TensorSpec& ids_spec = specs[*ids_at];
  const int64_t vocab = extent_of(c, ids_spec);
  if (vocab < 2) return;
  const auto starts_with_ids = [&](const TensorSpec& spec, std::string_view last) {
    return spec.dims == std::string(ids_spec.dims) + " " + std::string(last);
  };
  const auto logits_at = find_input(
      c, [&](const TensorSpec& spec) { return spec.fill == Fill::logits && starts_with_ids(spec, ids_spec.fan_in); });
  const auto weight_at = find_input(c, [&](const TensorSpec& spec) {
    return spec.fill == Fill::weight && spec.dims == std::string(ids_spec.fan_in) + " " + std::string(spec.fan_in);
  });
  const auto hidden_at = find_input(c, [&](const TensorSpec& spec) {
    return weight_at && spec.fill == Fill::normal && starts_with_ids(spec, specs[*weight_at].fan_in);
  });
  const auto bias_at =
      find_input(c, [&](const TensorSpec& spec) { return spec.fill == Fill::normal && spec.dims == ids_spec.fan_in; });
  if (!logits_at && !(weight_at && hidden_at)) return;

  const Stream chosen = Stream::derive(c.seed, c.op->name, std::string(ids_spec.name) + " peaked");
  const Stream normals = Stream::derive(c.seed, c.op->name, specs[logits_at ? *logits_at : *hidden_at].name);
  const double level = natural_log(9.0 * static_cast<double>(vocab - 1));
  const Tensor& ids = tensors[*ids_at];
  const size_t id_bytes = info(ids.dtype).bytes;
  parallel_for(threads, (ids.count() + kRowsOfATask - 1) / kRowsOfATask, [&](int64_t task) {
    const int64_t end = std::min((task + 1) * kRowsOfATask, ids.count());
    for (int64_t row = task * kRowsOfATask; row < end; ++row) {
      if (!(chosen.uniform(static_cast<uint64_t>(row)) < kPeakedFraction)) continue;
      int64_t id;
      decode_int(ids.dtype, ids.bytes.data() + static_cast<size_t>(row) * id_bytes, &id, 1);
      if (logits_at) {
        tensors[*logits_at].set(row * vocab + id, level + 0.5);
        continue;
      }
      const double spread = 1.0 + level * level / static_cast<double>(tensors[*weight_at].shape.back());
      const double target = level + 0.5 * spread + (bias_at ? 0.5 - tensors[*bias_at].at(id) : 0.0);
      align_hidden(normals, row, tensors[*weight_at], id, target, tensors[*hidden_at]);
    }
  });
}

/// Mode extreme: logits as trained and broken models have them, in six kinds that alternate by row:
///   10^4 added; 10^4 subtracted; all equal; -inf in about half of the columns (the same columns in every tensor, never
///   the target's); the first column by far the largest; the last column by far the largest.
void plant_extremes(const Case& c, unsigned threads, std::vector<Tensor>& tensors) {
  constexpr double kOffset = 1e4, kFarAbove = 80;
  const auto ids_at = find_input(c, [](const TensorSpec& spec) { return spec.fill == Fill::ids; });
  const Stream dropped = Stream::derive(c.seed, c.op->name, "extreme");
  for (size_t i = 0; ids_at && i < tensors.size(); ++i) {
    if (tensors[i].name.empty() || c.pass->inputs[i].fill != Fill::logits) continue;
    Tensor& logits = tensors[i];
    const auto columns = static_cast<size_t>(logits.shape.back());
    parallel_for(threads, tensors[*ids_at].count(), [&](int64_t row) {
      std::vector<double> z(columns);
      decode_row(logits, row, z);
      const auto target = static_cast<size_t>(tensors[*ids_at].at(row));
      const auto first = static_cast<uint64_t>(row) * columns;
      for (size_t v = 0; v < columns; ++v) {
        if (row % 6 == 0) z[v] += kOffset;
        if (row % 6 == 1) z[v] -= kOffset;
        if (row % 6 == 2) z[v] = z[0];
        if (row % 6 == 3 && v != target && dropped.uniform(first + v) < 0.5) z[v] = -INFINITY;
      }
      if (row % 6 == 4) z.front() = kFarAbove;
      if (row % 6 == 5) z.back() = kFarAbove;
      const DTypeInfo& type = info(logits.dtype);
      type.encode(z.data(), logits.bytes.data() + static_cast<size_t>(first) * type.bytes, columns);
    });
  }
}

}  // namespace

std::vector<Tensor> make_inputs(const Case& c, unsigned threads, LeftOut left_out) {
  validate(c);
  std::vector<Tensor> tensors;
  for (const TensorSpec& spec : c.pass->inputs) {
    const bool present = is_present(c, spec);
    tensors.push_back(present ? Tensor(std::string(spec.name), dtype_of(c, spec), shape_of(c, spec)) : Tensor());
    if (present) fill_tensor(c, spec, tensors.size() - 1, threads, tensors.back());
  }
  if (c.input_mode == InputMode::peaked) plant_targets(c, threads, tensors);
  if (c.input_mode == InputMode::extreme) plant_extremes(c, threads, tensors);
  if (c.op->refine != nullptr) {
    const auto stream = [&](std::string_view name) { return Stream::derive(c.seed, c.op->name, name); };
    c.op->refine({tensors, c.attrs, [&](std::string_view name, uint64_t i) { return stream(name).normal(i); },
                  [&](std::string_view name, uint64_t i) { return stream(name).uniform(i); }, threads,
                  c.input_mode == InputMode::constant ? 0 : c.ignored_every, c.ignored_run, left_out,
                  [&](std::string_view dim) { return c.dims.find(dim)->second; }, c.input_mode});
  }
  return tensors;
}

std::vector<Tensor> make_outputs(const Case& c) {
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : c.pass->outputs) {
    if (is_present(c, spec.tensor)) {
      outputs.emplace_back(std::string(spec.tensor.name), dtype_of(c, spec.tensor), shape_of(c, spec.tensor));
    } else {
      outputs.emplace_back();
    }
  }
  return outputs;
}

}  // namespace checkop
