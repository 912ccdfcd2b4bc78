// SPDX-License-Identifier: Apache-2.0
// Reads cases/captured.safetensors. Its metadata name the tensor behind each input: "rms_norm/x" is "1.mlp_norm.x".
#include "case/captured.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "base/paths.hpp"
#include "case/planting.hpp"
#include "tensor/safetensors.hpp"

namespace checkop {
namespace {

const SafetensorsReader& file() {
  static const SafetensorsReader reader(find_shipped("cases/captured.safetensors"));
  return reader;
}

/// The captured tensor of an input; nullptr for none.
const Tensor* find_tensor(const Operator& op, const TensorSpec& spec) {
  const auto& behind = file().metadata();
  const auto source = behind.find(fmt::format("{}/{}", op.name, spec.name));
  if (source == behind.end()) return nullptr;
  static std::mutex guard;
  static std::map<std::string, Tensor> tensors;
  const std::lock_guard lock(guard);
  const auto [found, is_new] = tensors.try_emplace(source->second);
  if (is_new) found->second = file().read(file().at(source->second));
  return &found->second;
}

/// `shape` with the row dimensions of a per-row tensor merged into one, so that a row does not depend on how the batch
/// is shaped.
Shape extents(const Operator& op, const TensorSpec& spec, const Shape& shape) {
  if (!is_per_row(op, spec)) return shape;
  const auto n = static_cast<std::ptrdiff_t>(split_dims(op.row_dims).size());
  Shape merged{element_count({shape.begin(), shape.begin() + n})};
  merged.insert(merged.end(), shape.begin() + n, shape.end());
  return merged;
}

}  // namespace

bool is_captured(const Operator& op) {
  const std::string prefix = fmt::format("{}/", op.name);
  const auto first = file().metadata().lower_bound(prefix);
  return first != file().metadata().end() && first->first.starts_with(prefix);
}

void fill_captured(const Case& c, const TensorSpec& spec, unsigned threads, Tensor& tensor) {
  const Tensor* const captured = find_tensor(*c.op, spec);
  if (captured == nullptr || tensor.count() == 0) return;
  const Shape from = extents(*c.op, spec, captured->shape), to = extents(*c.op, spec, tensor.shape);
  if (from.size() != to.size())
    // lint: allow message, the file is a part of this program
    throw InputError(fmt::format("{}: tensor '{}'", file().path(), captured->name),
                     fmt::format("has {} dimensions, '{}' of {} has {}", from.size(), spec.name, c.op->name, to.size()),
                     "make the file with scripts/captured.py");
  const int64_t ids = spec.fill == Fill::ids ? fan_in_of(c, spec) : 0, columns = to.empty() ? 1 : to.back();
  parallel_for(threads, tensor.count() / columns, [&](int64_t line) {
    int64_t rest = line, source_line = 0, stride = 1;
    for (size_t i = to.size(); i-- > 1;) {
      const size_t dim = i - 1;
      source_line += rest % to[dim] % from[dim] * stride;
      rest /= to[dim];
      stride *= from[dim];
    }
    const int64_t width = from.empty() ? 1 : from.back();
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t source = source_line * width + j % width;
      if (ids == 0) {
        tensor.set(line * columns + j, captured->at(source));
      } else {
        const int64_t id = static_cast<int64_t>(captured->at(source)) % ids;
        const size_t bytes = info(tensor.dtype).bytes;
        encode_int(tensor.dtype, &id, tensor.bytes.data() + static_cast<size_t>(line * columns + j) * bytes, 1);
      }
    }
  });
}

}  // namespace checkop
