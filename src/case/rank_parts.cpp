// SPDX-License-Identifier: Apache-2.0
// Computes and validates the bounds of the ranks' tensor-parallel parts.
#include "case/rank_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace checkop {
namespace {

int64_t total_of(const Case& c) { return extent_of(c, c.op->parallel_dim); }

/// Throws InputError unless canonical_segments is 0 or leaves at least one segment to every rank.
void validate_segments(const Case& c) {
  for (size_t i = 0; i < c.attrs.size(); ++i) {
    const double segments = c.attrs[i];
    if (c.op->attrs[i].name != kCanonicalSegments || segments == 0) continue;
    const auto least = static_cast<double>(world_size(c)), most = static_cast<double>(total_of(c));
    if (!(segments >= least && segments <= most) || segments != std::floor(segments)) {
      throw InputError("--canonical-segments",
                       fmt::format("expected 0 or an integer from {} to {}, got {}", least, most, segments),
                       fmt::format("at least one segment a rank, at most one a column of {}", c.op->parallel_dim));
    }
  }
}

void validate_bounds(const Case& c) {
  const int64_t total = total_of(c), ranks = world_size(c);
  const std::vector<int64_t>& bounds = c.part_bounds;
  const std::string given = fmt::to_string(fmt::join(bounds, ","));
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw InputError("--shard-bounds", what, hint);
  };
  if (std::ssize(bounds) != ranks + 1) {
    refuse(fmt::format("{} has {} bounds, {} ranks have {}", given, bounds.size(), ranks, ranks + 1),
           "give where each part begins and where the last one ends");
  }
  if (bounds.front() != 0 || bounds.back() != total) {
    refuse(fmt::format("{} goes from {} to {}, {} from 0 to {}", given, bounds.front(), bounds.back(),
                       c.op->parallel_dim, total),
           fmt::format("begin with 0 and end with {}", total));
  }
  for (size_t r = 0; r + 1 < bounds.size(); ++r) {
    if (bounds[r] < bounds[r + 1]) continue;
    refuse(fmt::format("{}: rank {} would be empty", given, r), "make the bounds strictly increasing");
  }
  if (canonical_segments(c) == 0) return;
  const std::vector<int64_t> segments = even_bounds(total, canonical_segments(c));
  for (const int64_t bound : bounds) {
    if (!std::binary_search(segments.begin(), segments.end(), bound))
      refuse(fmt::format("{}: no canonical segment begins at {}", given, bound),
             fmt::format("choose among {}", fmt::join(segments, ",")));
  }
}

bool is_divided_dim(const Case& c, std::string_view dim) {
  return is_tensor_parallel(c) && (dim == c.op->parallel_dim || !dim_over_ranks(dim).empty());
}

}  // namespace

bool is_tensor_parallel(const Case& c) { return !c.op->parallel_dim.empty(); }

bool is_divided(const Case& c, const TensorSpec& spec) {
  const auto dims = split_dims(spec.dims);
  return std::any_of(dims.begin(), dims.end(), [&](std::string_view dim) { return is_divided_dim(c, dim); });
}

int64_t world_size(const Case& c) { return is_tensor_parallel(c) ? extent_of(c, kWorldSize) : 1; }

std::vector<int64_t> even_bounds(int64_t total, int64_t parts) {
  std::vector<int64_t> bounds{0};
  for (int64_t i = 0; i < parts; ++i) bounds.push_back(bounds.back() + total / parts + (i < total % parts ? 1 : 0));
  return bounds;
}

int64_t canonical_segments(const Case& c) {
  for (size_t i = 0; i < c.attrs.size(); ++i) {
    if (c.op->attrs[i].name == kCanonicalSegments) return static_cast<int64_t>(c.attrs[i]);
    if (c.op->attrs[i].name == kLeafOrder && is_tensor_parallel(c)) return c.attrs[i] < 0 ? 0 : total_of(c);
  }
  return 0;
}

bool compares_ranks(const Case& c) {
  constexpr int64_t kEnough = 4;
  return canonical_segments(c) > 0 && world_size(c) >= kEnough;
}

std::vector<int64_t> part_bounds(const Case& c) {
  if (!is_tensor_parallel(c) || !c.part_bounds.empty()) return c.part_bounds;
  const int64_t ranks = world_size(c), segments = canonical_segments(c);
  if (segments == 0) return even_bounds(total_of(c), ranks);
  const std::vector<int64_t> canonical = even_bounds(total_of(c), segments);
  std::vector<int64_t> bounds;
  for (int64_t r = 0; r <= ranks; ++r) bounds.push_back(canonical[static_cast<size_t>(r * segments / ranks)]);
  return bounds;
}

Case rank_case(const Case& c, int64_t rank) {
  const std::vector<int64_t> bounds = part_bounds(c);
  const auto r = static_cast<size_t>(rank);
  Case part = c;
  part.dims.find(c.op->parallel_dim)->second = bounds[r + 1] - bounds[r];
  const auto divide = [&](const TensorSpec& spec) {
    for (const std::string_view dim : split_dims(spec.dims)) {
      if (dim_over_ranks(dim).empty()) continue;
      const std::vector<int64_t> own = even_bounds(extent_of(c, dim), world_size(c));
      part.dims[std::string(dim)] = own[r + 1] - own[r];
    }
  };
  for (const TensorSpec& spec : c.pass->inputs) divide(spec);
  for (const OutputSpec& spec : c.pass->outputs) divide(spec.tensor);
  return part;
}

PartView part_view(const Case& c, const TensorSpec& spec) {
  PartView view{1, 1, 1};
  bool behind = false;
  for (const std::string_view dim : split_dims(spec.dims)) {
    const bool is_it = is_divided_dim(c, dim);
    if (is_it) view.bounds = dim == c.op->parallel_dim ? part_bounds(c) : even_bounds(extent_of(c, dim), world_size(c));
    (is_it ? view.extent : behind || !is_divided(c, spec) ? view.inner : view.outer) *= extent_of(c, dim);
    behind |= is_it;
  }
  return view;
}

void validate_parts(const Case& c) {
  if (!is_tensor_parallel(c)) return;
  const int64_t ranks = world_size(c), total = total_of(c);
  if (ranks > kMostRanks)
    throw InputError("--world-size", fmt::format("expected at most {} ranks, got {}", kMostRanks, ranks), "give fewer");
  if (ranks > total) {
    throw InputError("--world-size",
                     fmt::format("{} ranks share {}={}: one would have nothing", ranks, c.op->parallel_dim, total),
                     fmt::format("give at most {}", total));
  }
  validate_segments(c);
  if (!c.part_bounds.empty()) validate_bounds(c);
}

}  // namespace checkop
