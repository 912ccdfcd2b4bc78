// SPDX-License-Identifier: Apache-2.0
// Chooses the rows for the gold: first the rows where kernels tend to fail, then random ones.
#include "case/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/random.hpp"

namespace checkop {
namespace {

constexpr int64_t kTiles[] = {256, 128, 64, 16};

/// Collects rows in [0, total): `most` of them, of which random ones are a quarter at least.
class Chosen {
 public:
  Chosen(int64_t total, int64_t most) : total_(total), most_(most) {}

  void add(int64_t row) {
    if (std::ssize(rows_) < most_ - most_ / 4 && row >= 0 && row < total_) rows_.insert(row);
  }
  void add_pair(int64_t edge) { add(edge - 1), add(edge); }
  /// Adds some of `rows`, evenly spread: at most a quarter of `most`.
  void add_some(const std::vector<int64_t>& rows) {
    const int64_t quarter = std::max<int64_t>(1, most_ / 4), n = std::min(quarter, std::ssize(rows));
    for (int64_t i = 0; i < n; ++i) add(rows[static_cast<size_t>(i * std::ssize(rows) / n)]);
  }
  RowSet fill_up(const Stream& random) {
    for (uint64_t i = 0; std::ssize(rows_) < most_; ++i)
      rows_.insert(static_cast<int64_t>(random.below(i, static_cast<uint64_t>(total_))));
    return {false, {rows_.begin(), rows_.end()}};
  }

 private:
  int64_t total_, most_;
  std::set<int64_t> rows_;
};

void add_tile_edges(int64_t total, Chosen& chosen) {
  for (const int64_t tile : kTiles) chosen.add_pair(tile), chosen.add_pair((total - 1) / tile * tile);
  for (int64_t edge = 2; edge < total; edge *= 2) chosen.add_pair(edge);
}

bool selects_nothing(const Case& c, const TensorSpec& spec, int64_t id) {
  const auto extent = c.dims.find(spec.fan_in);
  if (id < 0 || (extent != c.dims.end() && id >= extent->second)) return true;
  for (size_t i = 0; i < c.attrs.size(); ++i) {
    if (c.op->attrs[i].name == "ignore_index" && static_cast<double>(id) == c.attrs[i]) return true;
  }
  return false;
}

/// Rows on both sides of a change between masked and not masked, or ignored and not ignored. `spec` is an input with
/// one element per row of an output.
std::vector<int64_t> edges_of_kind(const Case& c, const TensorSpec& spec, const Tensor& tensor) {
  std::vector<int64_t> edges;
  bool before = false;
  for (int64_t r = 0; r < tensor.count(); ++r) {
    const double value = tensor.at(r);
    const bool masked = spec.fill == Fill::mask ? value == 0 : selects_nothing(c, spec, static_cast<int64_t>(value));
    if (r > 0 && masked != before) edges.push_back(r - 1), edges.push_back(r);
    before = masked;
  }
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

RowSet choose(const Case& c, const std::vector<Tensor>& inputs, const OutputSpec& output, const std::string& key,
              int64_t total, int64_t most, uint64_t seed) {
  Chosen chosen(total, most);
  chosen.add(0), chosen.add(total - 1);
  const std::string_view first_dim = split_dims(output.tensor.dims).front();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = c.pass->inputs[i];
    if (inputs[i].name.empty() || (spec.fill != Fill::mask && spec.fill != Fill::ids)) continue;
    if (inputs[i].count() == total && output.tensor.dims.starts_with(spec.dims)) {
      chosen.add_some(edges_of_kind(c, spec, inputs[i]));
    } else if (spec.fill == Fill::ids && spec.fan_in == first_dim) {
      std::vector<int64_t> selected;
      for (int64_t r = 0; r < inputs[i].count(); ++r) selected.push_back(static_cast<int64_t>(inputs[i].at(r)));
      chosen.add_some(selected);
    }
  }
  add_tile_edges(total, chosen);
  return chosen.fill_up(Stream::derive(seed, c.op->name, "gold rows of " + key));
}

}  // namespace

double gold_work(const Case& c) {
  std::set<std::string_view> names;
  const auto take = [&](const TensorSpec& spec) {
    if (!is_present(c, spec)) return;
    for (const std::string_view dim : names_in(spec.dims)) names.insert(dim);
  };
  for (const TensorSpec& spec : c.pass->inputs) take(spec);
  for (const OutputSpec& spec : c.pass->outputs) take(spec.tensor);
  double work = 1;
  // A dimension with a usual size does not count: no product has both head_dim and v_dim.
  for (const std::string_view name : names)
    if (usual_size_of(name).empty()) work *= static_cast<double>(extent_of(c, name));
  return work;
}

std::string row_group(const Case& c, const TensorSpec& spec) {
  if (!is_per_row(*c.op, spec)) return spec.dims.empty() ? "" : std::string(split_dims(spec.dims).front());
  const bool is_single = spec.dims == c.op->row_dims;  // see judged_view()
  const std::string_view of_rows = is_single ? spec.dims : spec.dims.substr(0, spec.dims.rfind(' '));
  // No dimension name contains "+".
  return of_rows == c.op->row_dims ? "+rows" : fmt::format("+{}", of_rows);
}

std::vector<RowSet> rows_of(const Case& c, const OutputSpec& output, const std::vector<int64_t>& rows) {
  std::vector<RowSet> sets;
  for (const OutputSpec& spec : c.pass->outputs) {
    RowSet& set = sets.emplace_back();
    if (!spec.sampled) continue;
    set.all = false;
    if (output.sampled && row_group(c, spec.tensor) == row_group(c, output.tensor)) set.chosen = rows;
  }
  return sets;
}

int64_t entries_of(const Case& c, const OutputSpec& spec) {
  int64_t entries = 1;
  for (const std::string_view dim : split_dims(spec.sampled_whole)) entries *= extent_of(c, dim);
  return entries;
}

namespace {

/// The rows of the last entry of `spec.sampled_whole` and of a random one; all if there are no others. `total`: rows of
/// the output.
RowSet choose_entries(const Case& c, const OutputSpec& spec, const std::string& key, int64_t total, uint64_t seed) {
  const int64_t entries = entries_of(c, spec);
  if (entries <= kSampledEntries) return {};
  const Stream stream = Stream::derive(seed, c.op->name, "gold rows of " + key);
  RowSet set{false};
  const int64_t rows = total / entries;
  for (const int64_t entry : {static_cast<int64_t>(stream.below(0, static_cast<uint64_t>(entries - 1))), entries - 1})
    for (int64_t row = entry * rows; row < (entry + 1) * rows; ++row) set.chosen.push_back(row);
  return set;
}

}  // namespace

std::vector<RowSet> sample_rows(const Case& c, const std::vector<Tensor>& inputs, int64_t rows,
                                std::optional<uint64_t> seed) {
  std::vector<RowSet> sets(c.pass->outputs.size());
  std::map<std::string, RowSet> known;
  for (size_t i = 0; i < sets.size() && rows > 0; ++i) {
    const OutputSpec& spec = c.pass->outputs[i];
    if (!spec.sampled || !is_present(c, spec.tensor)) continue;
    const int64_t total = judged_view(*c.op, spec.tensor, shape_of(c, spec.tensor)).rows;
    const bool is_whole = !spec.sampled_whole.empty();
    if (!is_whole && total <= rows) continue;
    const std::string key = row_group(c, spec.tensor);
    const auto [place, is_new] = known.try_emplace(key);
    if (is_new)
      place->second = is_whole ? choose_entries(c, spec, key, total, seed.value_or(c.seed))
                               : choose(c, inputs, spec, key, total, rows, seed.value_or(c.seed));
    sets[i] = place->second;
  }
  return sets;
}

}  // namespace checkop
