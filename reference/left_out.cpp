// SPDX-License-Identifier: Apache-2.0
// Reads and plants the ids of rows that are left out.
#include "left_out.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "policy.hpp"
#include "softmax.hpp"

namespace checkop {

void validate_ignore_index(const CaseSizes& sizes) {
  constexpr double kLargest = 0x1p53;  // attributes are doubles, which hold every integer up to this
  const double index = sizes.attrs[0];
  if (!(std::abs(index) <= kLargest) || index != std::floor(index)) {
    throw InputError("--ignore-index", fmt::format("expected an integer, got {}", index), "-100 is usual");
  }
}

std::vector<int64_t> read_ids_to_use(const GoldArgs& args, const Tensor& ids, int64_t vocab) {
  const auto ignored = static_cast<int64_t>(args.attrs[0]);
  std::vector<int64_t> values = read_ids(ids, vocab, ignored);
  std::replace(values.begin(), values.end(), ignored, kLeftOut);
  return values;
}

std::vector<char> rows_to_use(const Tensor& ids, std::span<const double> attrs) {
  std::vector<char> used(static_cast<size_t>(ids.count()));
  for (size_t r = 0; r < used.size(); ++r) used[r] = ids.at(static_cast<int64_t>(r)) != attrs[0];
  return used;
}

double bytes_left_out(const Tensor& per_row, const std::vector<char>& used) {
  if (used.empty()) return 0;
  const auto idle = static_cast<double>(std::count(used.begin(), used.end(), 0));
  return static_cast<double>(per_row.bytes.size()) * idle / static_cast<double>(used.size());
}

void emit_unused(const GoldArgs& args, int index, const std::vector<char>& used, double value) {
  const Shape& shape = args.output_shapes[static_cast<size_t>(index)];
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
  const int64_t rows = std::ssize(used), columns = elements / std::max<int64_t>(1, rows);
  const std::vector<double> zeros(static_cast<size_t>(columns)), values(zeros.size(), value);
  args.for_rows(index, rows, [&](int64_t row) {
    if (used[static_cast<size_t>(row)] == 0)
      args.sink({index, row, 1, columns, values.data(), zeros.data(), zeros.data()});
  });
}

void model_unused(const ModelArgs& args, int index, const std::vector<char>& used, int64_t columns) {
  const std::vector<float> zeros(static_cast<size_t>(columns));
  for (int64_t row = 0; row < std::ssize(used); ++row)
    if (used[static_cast<size_t>(row)] == 0 && args.rows(index).has(row)) args.sink(index, row, zeros.data());
}

void emit_rest(const GoldArgs& args, int index, int64_t end, double value) {
  std::vector<char> used(static_cast<size_t>(args.output_shapes[static_cast<size_t>(index)][0]));
  std::fill_n(used.begin(), end, 1);
  emit_unused(args, index, used, value);
}

void plant_payload(const FillArgs& args, Tensor& tensor, int64_t columns, int64_t row, uint64_t kind, double largest) {
  if (kind % 2 != 0) return;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> content(static_cast<size_t>(columns), kind % 4 == 0 ? nan : INFINITY);
  for (size_t i = 1; kind % 4 != 0 && i < content.size(); i += 2) content[i] = -INFINITY;
  for (size_t i = 0; args.left_out == LeftOut::finite && i < content.size(); ++i) {
    const double size = std::ldexp(largest, -static_cast<int>(i / 2 % 4));
    content[i] = (i + kind / 2) % 2 == 0 ? size : -size;
  }
  const size_t row_bytes = content.size() * info(tensor.dtype).bytes;
  info(tensor.dtype).encode(content.data(), tensor.bytes.data() + static_cast<size_t>(row) * row_bytes, content.size());
}

uint64_t payload_kind(const FillArgs& args, uint64_t i) {
  return static_cast<uint64_t>(4 * args.uniform("payloads", i));
}

void plant_ignored_rows(const FillArgs& args, std::string_view ids, std::string_view features) {
  if (args.ignored_every == 0) return;
  Tensor &of_ids = *args.find(ids), &of_features = *args.find(features);
  const int64_t rows = of_ids.count(), every = args.ignored_every;
  const int64_t runs = rows / args.ignored_run + (rows % args.ignored_run != 0);
  for (int64_t block = 0; block * every < runs; ++block) {
    const double drawn = args.uniform("ignored rows", static_cast<uint64_t>(block));
    const auto offset = static_cast<int64_t>(drawn * static_cast<double>(every));
    const int64_t run = block * every + (block == 0 ? every - 1 : std::min(offset, every - 1));
    if (run >= runs) continue;
    const int64_t first = run * args.ignored_run, last = first + std::min(args.ignored_run, rows - first);
    for (int64_t row = first; row < last; ++row) {
      of_ids.set(row, args.attrs[0]);
      plant_payload(args, of_features, of_features.shape.back(), row, static_cast<uint64_t>(block + row - first));
    }
  }
}

void plant_masked_rows(const FillArgs& args, std::string_view mask, std::string_view features) {
  const Tensor* const of_mask = args.find(mask);
  if (of_mask == nullptr) return;
  Tensor& of_features = *args.find(features);
  const std::vector<char> active = read_mask(*of_mask);
  for (int64_t row = 0; row < std::ssize(active); ++row) {
    if (active[static_cast<size_t>(row)] != 0) continue;
    plant_payload(args, of_features, of_features.shape.back(), row, payload_kind(args, static_cast<uint64_t>(row)));
  }
}

}  // namespace checkop
