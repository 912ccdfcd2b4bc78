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
//   extreme   see plant_extreme_logits and plant_extreme_products; of codes, single ones are NaN
//   captured  see captured.hpp; what the file lacks is random
//   wide      as random, with each floating element times its own 2^-n, n random in [0, 12], so that sums round more
//   often
// Upstream gradients are ones with GradMode::ones; otherwise integers in mode integer, normals in all other modes, and
// 0 in every eighth row. Inputs that the forward pass saves are its gold, rounded, in every mode. Only they depend
// on the machine's math library.
#include "case/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "case/captured.hpp"
#include "case/planting.hpp"

namespace checkop {
namespace {

/// Elements per task.
constexpr int64_t kChunk = 64 * kDrawBuffer;
constexpr int kLargestInteger = 4;
constexpr uint64_t kWidest = 12;
constexpr double kSmallRow = 0x1p-10;  ///< what the elements of small rows are multiplied by

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

/// How the last dimension of a mask is kept; the kinds alternate by batch entry.
enum class MaskKind : uint8_t {
  scattered,  ///< 0 in about a quarter of the elements; the mask's element 0 keeps, so that one element masks nothing
  left_padding,   ///< 0 in the first three quarters
  all_padding,    ///< 0 everywhere
  right_padding,  ///< 0 in the last three quarters
  count
};

/// Sets 0 where the mask drops an element. In mode constant and with ignored_every = 0 it keeps every element, with
/// ignored_every = 1 none.
void fill_mask(const Case& c, const Stream& stream, Tensor& mask) {
  const int64_t last = mask.shape.back();
  for (int64_t i = 0; i < mask.count(); ++i) {
    const auto kind = static_cast<MaskKind>(i / last % static_cast<int64_t>(MaskKind::count));
    const double drawn = stream.uniform(static_cast<uint64_t>(i));
    const double of_kept = i % 2 == 0 ? 1 : 2;  // both mean that it stays
    double keeps = drawn < 0.25 && i > 0 ? 0 : drawn < 0.3 ? 2 : 1;
    if (kind == MaskKind::left_padding) keeps = i % last < last * 3 / 4 ? 0 : of_kept;
    if (kind == MaskKind::all_padding) keeps = 0;
    if (kind == MaskKind::right_padding) keeps = i % last < (last + 3) / 4 ? of_kept : 0;
    if (c.input_mode == InputMode::constant || c.ignored_every == 0) keeps = 1;
    mask.set(i, c.ignored_every == 1 ? 0 : keeps);
  }
}

/// Sets every eighth row of an upstream gradient to 0: the gradient of a token that a loss leaves out.
void plant_zero_rows(const Case& c, const TensorSpec& spec, Tensor& gradient) {
  constexpr int64_t kEvery = 8, kFirst = 6;
  if (gradient.shape.empty()) return;
  const int64_t columns = spec.dims == c.op->row_dims ? 1 : gradient.shape.back();
  const size_t bytes = static_cast<size_t>(columns) * info(gradient.dtype).bytes;
  for (int64_t row = kFirst; row * columns < gradient.count(); row += kEvery)
    std::fill_n(gradient.bytes.data() + static_cast<size_t>(row) * bytes, bytes, std::byte{0});
}

void fill_positions(Tensor& positions) {
  for (int64_t i = 0; i < positions.count(); ++i) positions.set(i, static_cast<double>(i % positions.shape.back()));
}

void fill_tensor(const Case& c, const TensorSpec& spec, size_t position, unsigned threads, Tensor& tensor) {
  const bool upstream = spec.fill == Fill::upstream;
  const Stream stream = Stream::derive(upstream ? c.grad_seed : c.seed, c.op->name, spec.name);
  switch (spec.fill) {
    case Fill::ids:
      return fill_ids(c, stream, fan_in_of(c, spec), tensor);
    case Fill::mask:
      return fill_mask(c, stream, tensor);
    case Fill::positions:
      return fill_positions(tensor);
    case Fill::saved:
      return;  // fill_saved, once the others are there
    case Fill::normal:
    case Fill::rows:
    case Fill::weight:
    case Fill::logits:
    case Fill::scores:
    case Fill::codes:
    case Fill::query:
    case Fill::key:
    case Fill::upstream:
      break;  // normals, below
  }
  if (upstream && c.grad_mode == GradMode::ones) return fill_constant(tensor, 1.0, threads);
  if (!upstream && c.input_mode == InputMode::constant) {
    return fill_constant(tensor, c.constant_value + 0.01 * static_cast<double>(position), threads);
  }
  if (c.input_mode == InputMode::integer) {
    return fill(tensor, threads,
                [&](int64_t first, double* out, int64_t n) { stream.integers(first, out, n, kLargestInteger); });
  }
  const Stream exponents = Stream::derive(c.seed, c.op->name, std::string(spec.name) + " wide");
  const double scale = spec.fill == Fill::weight ? 1.0 / std::sqrt(static_cast<double>(fan_in_of(c, spec))) : 1.0;
  const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  fill(tensor, threads, [&](int64_t first, double* out, int64_t n) {
    stream.normals(first, out, n);
    if (scale != 1) {
      for (int64_t i = 0; i < n; ++i) out[i] *= scale;
    }
    // Row by row: a division for each element would take longer than its number.
    for (int64_t row = first / columns; spec.fill == Fill::rows && row * columns < first + n; ++row) {
      if (row % 4 != 3) continue;
      const int64_t end = std::min((row + 1) * columns - first, n);
      for (int64_t i = std::max<int64_t>(row * columns - first, 0); i < end; ++i) out[i] *= kSmallRow;
    }
    if (c.input_mode != InputMode::wide) return;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = std::ldexp(out[i], -static_cast<int>(exponents.below(static_cast<uint64_t>(first + i), kWidest + 1)));
    }
  });
}

}  // namespace

std::vector<Tensor> make_inputs(const Case& c, unsigned threads, LeftOut left_out,
                                const std::function<void(std::vector<Tensor>&)>& give) {
  validate(c);
  std::vector<Tensor> tensors;
  for (const TensorSpec& spec : c.pass->inputs) {
    const bool present = is_present(c, spec);
    tensors.push_back(present ? Tensor(std::string(spec.name), dtype_of(c, spec), shape_of(c, spec)) : Tensor());
    if (!present) continue;
    fill_tensor(c, spec, tensors.size() - 1, threads, tensors.back());
    if (spec.fill == Fill::upstream && c.grad_mode == GradMode::random) plant_zero_rows(c, spec, tensors.back());
  }
  if (give) give(tensors);
  if (c.input_mode == InputMode::peaked) plant_targets(c, threads, tensors);
  if (c.input_mode == InputMode::extreme) {
    plant_extreme_logits(c, threads, tensors);
    plant_extreme_products(c, tensors);
  }
  if (c.op->refine != nullptr) {
    const auto stream = [&](std::string_view name) { return Stream::derive(c.seed, c.op->name, name); };
    c.op->refine({tensors, c.attrs, [&](std::string_view name, uint64_t i) { return stream(name).normal(i); },
                  [&](std::string_view name, uint64_t i) { return stream(name).uniform(i); }, threads,
                  c.input_mode == InputMode::constant ? 0 : c.ignored_every, c.ignored_run, left_out,
                  [&](std::string_view dim) { return c.dims.find(dim)->second; }, c.input_mode});
  }
  for (size_t i = 0; c.input_mode == InputMode::captured && i < tensors.size(); ++i) {
    const TensorSpec& spec = c.pass->inputs[i];
    if (spec.fill == Fill::saved) continue;
    const bool is_ones = spec.fill == Fill::upstream && c.grad_mode == GradMode::ones;
    if (!tensors[i].name.empty() && !is_ones) fill_captured(c, spec, threads, tensors[i]);
  }
  if (give) give(tensors);
  fill_saved(c, threads, tensors);
  return tensors;
}

void fill_saved(const Case& c, unsigned threads, std::vector<Tensor>& inputs) {
  const auto find = [&](std::string_view name) -> Tensor* {
    const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const Tensor& t) { return t.name == name; });
    return found == inputs.end() ? nullptr : &*found;
  };
  const auto saved_as = [&](std::string_view name) -> Tensor* {
    const auto is_it = [&](const TensorSpec& spec) { return spec.fill == Fill::saved && spec.name == name; };
    return std::any_of(c.pass->inputs.begin(), c.pass->inputs.end(), is_it) ? find(name) : nullptr;
  };
  if (std::none_of(c.pass->inputs.begin(), c.pass->inputs.end(),
                   [&](const TensorSpec& spec) { return saved_as(spec.name) != nullptr; }))
    return;
  Case forward = c;
  forward.pass = find_pass(*c.op, "forward");
  std::vector<Tensor*> saved;  // in the order of its outputs
  std::vector<Shape> shapes;
  for (const OutputSpec& output : forward.pass->outputs) {
    saved.push_back(saved_as(output.tensor.name));
    shapes.push_back(is_present(forward, output.tensor) ? shape_of(forward, output.tensor) : Shape());
  }
  std::vector<const Tensor*> given;
  for (const TensorSpec& spec : forward.pass->inputs) given.push_back(find(spec.name));
  const auto store = [&](const GoldRows& rows) {
    Tensor* const to = saved[static_cast<size_t>(rows.output)];
    if (to == nullptr) return;
    const DTypeInfo& type = info(to->dtype);
    type.encode(rows.value, to->bytes.data() + static_cast<size_t>(rows.first_row * rows.columns) * type.bytes,
                static_cast<size_t>(rows.n_rows * rows.columns));
  };
  GoldArgs args{given, c.attrs, threads, store, shapes};
  args.values_only = true;
  forward.pass->gold(args);
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
