// SPDX-License-Identifier: Apache-2.0
// logp as kernels compute it.
#include <array>

#include "common.hpp"

namespace checkop {
namespace {

using namespace emulation;

/// What becomes of ignored rows.
constexpr FaultSpec kIgnoredRowCounted{"ignored_row_counted",
                                       "an ignored row is computed, with an id that matches no column", "nonfinite"};
constexpr FaultSpec kIgnoredAsIdZero{"ignored_as_id_zero",
                                     "an ignored row is computed, its id clamped into the vocabulary", "nonfinite"};
constexpr FaultSpec kIgnoredRowMultiplied{"ignored_row_multiplied", "an ignored row is computed, then multiplied by 0",
                                          "nonfinite"};

/// The row's id as a kernel takes it; kSkipped: the row is left as it is, -1: an id that matches no column.
constexpr int64_t kSkipped = -2;
int64_t id_of(const Arithmetic& arithmetic, int64_t id, int64_t ignore_index, int64_t vocab) {
  if (id != ignore_index) return label(arithmetic, id, vocab);
  if (arithmetic.has(kIgnoredRowCounted.name)) return -1;
  const bool computed = arithmetic.has(kIgnoredAsIdZero.name) || arithmetic.has(kIgnoredRowMultiplied.name);
  return computed ? 0 : kSkipped;
}

template <class Row>
void for_each_row(const EmulationArgs& args, const Row& row) {
  const Matrix z = matrix(args, 0);
  const std::vector<int64_t> ids = args.integers(1);
  const auto ignore_index = static_cast<int64_t>(args.attrs[0]);
  args.parallel_for(z.rows(), [&](int64_t r) {
    const int64_t given = ids[static_cast<size_t>(r)];
    const int64_t id = id_of(args.arithmetic, given, ignore_index, z.columns);
    const bool to_zero = given == ignore_index && args.arithmetic.has(kIgnoredRowMultiplied.name);
    if (id != kSkipped) row(z, r, id, to_zero ? 0.0F : 1.0F);
  });
}

void forward(const EmulationArgs& args) {
  for_each_row(args, [&](const Matrix& z, int64_t r, int64_t id, float scale) {
    const SoftmaxRow row = softmax_row(args.arithmetic, z.row(r), z.columns);
    args.out(0)[static_cast<size_t>(r)] = scale * (id < 0 ? row.logp(0) : row.logp(z.row(r)[id]));
  });
}

void backward(const EmulationArgs& args) {
  const std::vector<float> g = args.floats(2);
  for_each_row(args, [&](const Matrix& z, int64_t r, int64_t id, float scale) {
    logp_gradient_row(args.arithmetic, z.row(r), z.columns, id, scale * g[static_cast<size_t>(r)],
                      &args.out(0)[static_cast<size_t>(r * z.columns)]);
  });
}

constexpr std::array kForwardFaults{
    faults::kLastTileSkipped, faults::kBf16Accumulator, faults::kBf16Partials, faults::kPartialLost,
    faults::kBf16Exponential, kPaddedColumnCounted,     kWrongLabel,           kIgnoredRowCounted,
    kIgnoredAsIdZero,         kIgnoredRowMultiplied};
constexpr std::array kBackwardFaults{
    faults::kLastTileSkipped, faults::kBf16Accumulator, faults::kBf16Partials, faults::kPartialLost,
    faults::kBf16Exponential, kPaddedColumnCounted,     kWrongLabel,           kSoftmaxTermDropped,
    kSoftmaxSignFlipped,      kIgnoredRowCounted,       kIgnoredAsIdZero,      kIgnoredRowMultiplied};

}  // namespace

extern const Emulation kLogpForward, kLogpBackward;
const Emulation kLogpForward{forward, kForwardFaults};
const Emulation kLogpBackward{backward, kBackwardFaults};

}  // namespace checkop
