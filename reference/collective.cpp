// SPDX-License-Identifier: Apache-2.0
// Gold, data and other messages of the operators that move messages between ranks.
#include "collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace checkop {
namespace {

constexpr int64_t kBlock = 4096;  // elements at a time

/// Calls body(first, n, leaves) for blocks of elements; leaves[l][i] is element first + i of leaf l.
template <class Args, class Body>
void for_blocks(const Args& args, const Tensor& x, const Body& body) {
  const int64_t leaves = x.shape.front(), numel = x.shape.back();
  args.parallel_for((numel + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t first = block * kBlock, n = std::min(kBlock, numel - first);
    const DTypeInfo& type = info(x.dtype);
    std::vector<std::vector<double>> values(static_cast<size_t>(leaves), std::vector<double>(static_cast<size_t>(n)));
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      type.decode(x.bytes.data() + static_cast<size_t>(leaf * numel + first) * type.bytes,
                  values[static_cast<size_t>(leaf)].data(), static_cast<size_t>(n));
    }
    body(first, n, values);
  });
}

/// `value` as a tensor of this dtype stores it.
double stored(const DTypeInfo& type, double value) {
  std::array<std::byte, sizeof(double)> bytes;
  type.encode(&value, bytes.data(), 1);
  type.decode(bytes.data(), &value, 1);
  return value;
}

/// The sums of all elements, with additions that round to T.
template <class T>
std::vector<double> ordered_sums(LeafOrder order, const std::vector<std::vector<double>>& leaves) {
  std::vector<double> sums(leaves.front().size());
  std::vector<T> column(leaves.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    for (size_t leaf = 0; leaf < leaves.size(); ++leaf) column[leaf] = static_cast<T>(leaves[leaf][i]);
    sums[i] = static_cast<double>(sum_of_leaves(order, column));
  }
  return sums;
}

}  // namespace

LeafOrder leaf_order(std::span<const double> attrs) { return static_cast<LeafOrder>(attrs.front()); }

void gold_of_leaf_sum(const GoldArgs& args) {
  const Tensor& x = args.in(0);
  const LeafOrder order = leaf_order(args.attrs);
  const DTypeInfo& type = info(x.dtype);
  const bool rounds = order == LeafOrder::any && args.recipes.has(recipe::kSumsByRank);
  const auto hops = static_cast<double>(std::max<int64_t>(x.shape.front() - 2, 0));
  for_blocks(args, x, [&](int64_t first, int64_t n, const std::vector<std::vector<double>>& leaves) {
    std::vector<double> value, size(leaves.front().size()), spread(size), deviation(size);
    if (order == LeafOrder::any || x.dtype == DType::f64) {
      value = ordered_sums<double>(order, leaves);
    } else {
      value = ordered_sums<float>(order, leaves);
      for (double& sum : value) sum = stored(type, sum);
    }
    for (size_t leaf = 0; leaves.size() > 1 && order == LeafOrder::any && leaf < leaves.size(); ++leaf)
      for (size_t i = 0; i < size.size(); ++i) size[i] += std::abs(leaves[leaf][i]);
    for (size_t i = 0; rounds && i < value.size(); ++i) {
      const double most = args.recipes.size(size[i]);
      const Spread of_hops = args.recipes.of_terms(0, hops * most * most, hops * most);
      spread[i] = of_hops.most, deviation[i] = of_hops.deviation;
    }
    const std::vector<double> none(value.size());
    args.sink({0, first, n, 1, value.data(), size.data(), none.data(), rounds ? spread.data() : nullptr,
               rounds ? deviation.data() : nullptr});
  });
}

void gold_of_copy(const GoldArgs& args) {
  const Tensor& x = args.in(0);
  const DTypeInfo& type = info(x.dtype);
  args.parallel_for((x.count() + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t first = block * kBlock, n = std::min(kBlock, x.count() - first);
    std::vector<double> value(static_cast<size_t>(n));
    type.decode(x.bytes.data() + static_cast<size_t>(first) * type.bytes, value.data(), value.size());
    const std::vector<double> none(value.size());
    args.sink({0, first, n, 1, value.data(), none.data(), none.data()});
  });
}

void validate_collective(const CaseSizes& sizes) {
  const double order = sizes.attrs.front();
  if (order == -1 || order == 0 || order == 1) return;
  throw InputError("--order", fmt::format("expected -1, 0 or 1, got {}", order),
                   "0 adds from the first leaf to the last, 1 in a tree, -1 in any order");
}

namespace {

void refine_leaves_of(const FillArgs& args, std::string_view name) {
  Tensor* const x = args.find(name);
  if (x == nullptr || x->shape.size() != 2 || args.mode != InputMode::random) return;
  const int64_t leaves = x->shape.front(), numel = x->shape.back();
  const DTypeInfo& type = info(x->dtype);
  for (int64_t i = 0; i < numel; ++i) {
    double others = 0;
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      const int64_t at = leaf * numel + i;
      if (i % 16 == 15) {
        x->set(at, -0.0);
      } else if (i % 4 == 1) {
        // The largest leaf is another one for every element.
        const int64_t place = (leaf + i / 4) % leaves;
        x->set(at, std::ldexp(x->at(at), 12 - static_cast<int>(leaves > 1 ? 24 * place / (leaves - 1) : 0)));
        if (leaf + 1 == leaves && leaves > 2 && i % 8 == 5) {
          const int64_t largest = (leaves - i / 4 % leaves) % leaves, next = (largest + 1) % leaves;
          x->set(next * numel + i, -x->at(largest * numel + i));
        }
      } else if (i % 4 == 2 && leaves > 1) {
        if (leaf + 1 == leaves) x->set(at, -stored(type, others));
        others += x->at(at);
      }
    }
  }
}

}  // namespace

void refine_leaves(const FillArgs& args) { refine_leaves_of(args, "x"); }

void refine_gradients(const FillArgs& args) {
  const Tensor* const grad = args.find("grad_y");
  bool is_ones = true;  // as --grad-mode asks for
  for (int64_t i = 0; grad != nullptr && is_ones && i < grad->count(); ++i) is_ones = grad->at(i) == 1;
  if (!is_ones) refine_leaves_of(args, "grad_y");
}

namespace {

/// The elements from[i] of a message are a message of their own; `rows`: which elements of the case these are, or -1
/// for those that only fill it.
std::optional<Rearranged> with_elements(const RearrangeArgs& args, const std::vector<int64_t>& from,
                                        const std::vector<int64_t>& rows) {
  const Tensor& x = args.in(0);
  const int64_t numel = x.shape.back(), messages = numel == 0 ? 0 : x.count() / numel;
  const size_t width = info(x.dtype).bytes;
  Rearranged other;
  Shape shape = x.shape;
  shape.back() = std::ssize(from);
  Tensor& moved = other.inputs.emplace_back(x.name, x.dtype, shape);
  for (int64_t m = 0; m < messages; ++m) {
    for (size_t i = 0; i < from.size(); ++i) {
      std::memcpy(moved.bytes.data() + (static_cast<size_t>(m) * from.size() + i) * width,
                  x.bytes.data() + static_cast<size_t>(m * numel + from[i]) * width, width);
    }
  }
  other.dims = {{std::string(kMessage), shape.back()}};
  for (const std::string_view dim : split_dims(kMessageDims)) other.rows.emplace(dim, rows);
  return other;
}

/// The message between elements that fill a longer one: copies of its own.
std::optional<Rearranged> lengthened(const RearrangeArgs& args, int64_t before, int64_t behind) {
  constexpr int64_t kMostBytes = int64_t{1} << 28;
  const Tensor& x = args.in(0);
  const int64_t numel = x.shape.back(), messages = numel == 0 ? 0 : x.count() / numel;
  const auto width = static_cast<int64_t>(info(x.dtype).bytes);
  if (messages == 0 || (numel + before + behind) * messages * width > kMostBytes) return {};
  std::vector<int64_t> from, rows;
  for (int64_t i = -before; i < numel + behind; ++i) {
    const bool is_own = i >= 0 && i < numel;
    from.push_back(is_own ? i : (i + before) % numel);
    rows.push_back(is_own ? i : -1);
  }
  return with_elements(args, from, rows);
}

std::optional<Rearranged> with_run(const RearrangeArgs& args, int64_t begin, int64_t end) {
  if (begin >= end) return {};
  std::vector<int64_t> run(static_cast<size_t>(end - begin));
  std::iota(run.begin(), run.end(), begin);
  return with_elements(args, run, run);
}

}  // namespace

std::optional<Rearranged> longer_on_both_sides(const RearrangeArgs& args) { return lengthened(args, 1031, 15361); }
std::optional<Rearranged> longer_by_a_mebi(const RearrangeArgs& args) { return lengthened(args, 0, 1 << 20); }
std::optional<Rearranged> behind_17_elements(const RearrangeArgs& args) { return lengthened(args, 17, 0); }
std::optional<Rearranged> first_third(const RearrangeArgs& args) {
  return with_run(args, 0, args.in(0).shape.back() / 3);
}
std::optional<Rearranged> second_half(const RearrangeArgs& args) {
  const int64_t numel = args.in(0).shape.back();
  return with_run(args, numel / 2 / 2 * 2 + 1, numel);  // from an odd element on
}
std::optional<Rearranged> last_element(const RearrangeArgs& args) {
  return with_run(args, args.in(0).shape.back() - 1, args.in(0).shape.back());
}

std::optional<Rearranged> moved_by_one(const RearrangeArgs& args) {
  std::vector<int64_t> from(static_cast<size_t>(args.in(0).shape.back()));
  std::iota(from.begin(), from.end(), 0);
  std::rotate(from.begin(), from.end() - 1, from.end());
  return with_elements(args, from, from);
}

std::optional<Rearranged> in_reverse(const RearrangeArgs& args) {
  std::vector<int64_t> from(static_cast<size_t>(args.in(0).shape.back()));
  std::iota(from.rbegin(), from.rend(), 0);
  return with_elements(args, from, from);
}

}  // namespace checkop
