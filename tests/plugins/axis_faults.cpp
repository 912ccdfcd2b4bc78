// SPDX-License-Identifier: Apache-2.0
// Correct products of float matrices. The bits of each but says_its_variant depend on one thing that they must not
// depend on.
#include <algorithm>
#include <cmath>
#include <vector>

#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

/// One launch of matmul/forward; there may be gaps between rows of `a`.
struct Product {
  explicit Product(const checkop_call* call) : a(call->inputs[0]), b(call->inputs[1]), c(call->outputs[0]) {
    k = b.shape[0], n = b.shape[1], m = rows(c);
    pitch = a.strides[1], c_pitch = c.strides[1];
  }

  const float* row(int64_t i) const { return static_cast<const float*>(a.data) + i * pitch; }
  float factor(int64_t l, int64_t j) const { return static_cast<const float*>(b.data)[l * n + j]; }
  float& at(int64_t i, int64_t j) const { return static_cast<float*>(c.data)[i * c_pitch + j]; }

  /// a[i,:] b[:,j], summed in order or in two halves.
  float dot(int64_t i, int64_t j, bool split) const {
    const auto sum = [&](int64_t begin, int64_t end) {
      float total = 0;
      for (int64_t l = begin; l < end; ++l) total += row(i)[l] * factor(l, j);
      return total;
    };
    return split ? sum(0, k / 2) + sum(k / 2, k) : sum(0, k);
  }

  template <class Split>
  checkop_status run(const Split& split) const {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) at(i, j) = dot(i, j, split(i));
    }
    return CHECKOP_OK;
  }

  checkop_tensor a, b, c;
  int64_t k, n, m, pitch, c_pitch;
};

/// A launch that accepts only contiguous tensors.
template <checkop_status (*launch)(const checkop_call*)>
checkop_status of_contiguous(const checkop_call* call) {
  if (!checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
  return launch(call);
}

checkop_status batch_dependent_tile(const checkop_call* call) {
  const Product p(call);
  return p.run([&](int64_t) { return p.m < 16; });
}

/// Not a fault: two variants with the same bits.
checkop_status says_its_variant(const checkop_call* call) {
  const Product p(call);
  say(call, p.m < 27 ? "few" : "many");
  return p.run([](int64_t) { return false; });
}

checkop_status position_dependent_order(const checkop_call* call) {
  return Product(call).run([](int64_t i) { return i % 16 >= 8; });
}

/// Scales the rows of a tile by the largest of all their elements.
checkop_status neighbour_leak(const checkop_call* call) {
  constexpr int64_t kTile = 4;
  const Product p(call);
  for (int64_t i = 0; i < p.m; ++i) {
    float largest = 0;
    for (int64_t t = i / kTile * kTile; t < std::min(p.m, (i / kTile + 1) * kTile); ++t) {
      for (int64_t l = 0; l < p.k; ++l) largest = std::fmax(largest, std::fabs(p.row(t)[l]));
    }
    if (!(largest > 0 && largest < INFINITY)) largest = 1;
    for (int64_t j = 0; j < p.n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < p.k; ++l) sum += p.row(i)[l] / largest * p.factor(l, j);
      p.at(i, j) = sum * largest;
    }
  }
  return CHECKOP_OK;
}

/// Multiplies the padding between rows by 0 and adds it.
checkop_status padding_leak(const checkop_call* call) {
  const Product p(call);
  const bool only_rows_lie_apart = p.a.strides[2] == 1 && p.a.strides[0] == p.a.shape[1] * p.pitch && p.pitch >= p.k;
  if (!only_rows_lie_apart || !checkop_is_contiguous(&p.b) || p.c.strides[2] != 1) return CHECKOP_UNSUPPORTED;
  for (int64_t i = 0; i < p.m; ++i) {
    float extra = 0;
    for (int64_t l = p.k; l < p.pitch; ++l) extra += p.row(i)[l] * 0;
    for (int64_t j = 0; j < p.n; ++j) p.at(i, j) = p.dot(i, j, false) + extra;
  }
  return CHECKOP_OK;
}

checkop_status chunk_dependent_split(const checkop_call* call) {
  const Product p(call);
  return p.run([&](int64_t) { return p.m % 16 == 0; });
}

checkop_status alignment_dependent_path(const checkop_call* call) {
  const Product p(call);
  return p.run([&](int64_t) { return reinterpret_cast<uintptr_t>(p.a.data) % 16 != 0; });
}

checkop_status stale_workspace(const checkop_call* call) {
  const bool split = *static_cast<const unsigned char*>(call->workspace) != 0xff;
  *static_cast<unsigned char*>(call->workspace) = 1;
  return Product(call).run([&](int64_t) { return split; });
}

/// Simulates two threads that occasionally race for one element.
checkop_status race(const checkop_call* call) {
  static int launches = 0;
  const bool lost = ++launches % 7 == 0;
  const Product p(call);
  return p.run([&](int64_t i) { return lost && i == p.m / 2; });
}

checkop_status uninitialised_read(const checkop_call* call) {
  const Product p(call);
  const bool split = std::fpclassify(p.at(0, 0)) == FP_ZERO;
  return p.run([&](int64_t) { return split; });
}

checkop_status first_call_differs(const checkop_call* call) {
  static bool first = true;
  const bool split = first;
  first = false;
  return Product(call).run([&](int64_t) { return split; });
}

size_t one_byte(const checkop_call*) { return 1; }

constexpr checkop_kernel kKernels[] = {
    kernel("batch_dependent_tile", of_contiguous<batch_dependent_tile>),
    kernel("position_dependent_order", of_contiguous<position_dependent_order>),
    kernel("neighbour_leak", of_contiguous<neighbour_leak>),
    kernel("padding_leak", padding_leak),
    kernel("chunk_dependent_split", of_contiguous<chunk_dependent_split>),
    kernel("alignment_dependent_path", of_contiguous<alignment_dependent_path>),
    kernel("stale_workspace", of_contiguous<stale_workspace>, one_byte),
    kernel("race", of_contiguous<race>),
    kernel("uninitialised_read", of_contiguous<uninitialised_read>),
    kernel("first_call_differs", of_contiguous<first_call_differs>),
    kernel("says_its_variant", of_contiguous<says_its_variant>),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
