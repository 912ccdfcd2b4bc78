// SPDX-License-Identifier: Apache-2.0
// Plans the contexts of a case. In this order: the case that a context launches, its cost and what it compares;
// contexts in pieces; the planner, axis by axis.
#include "run/invariance/contexts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/random.hpp"
#include "base/text.hpp"
#include "case/rank_parts.hpp"
#include "case/sampling.hpp"

namespace checkop {

std::string_view describe(Disturbance disturbance) {
  constexpr std::array<std::string_view, 5> kTexts{"copies of one of them", "zeros", "the largest finite numbers",
                                                   "NaN", "infinities"};
  return kTexts[static_cast<size_t>(disturbance)];
}

std::string rows_text(int64_t n) { return fmt::format("{} row{}", n, n == 1 ? "" : "s"); }

Context first_rows(int64_t n) {
  Context context;
  context.axis = Axis::batch, context.what = fmt::format("the first {}", rows_text(n));
  for (int64_t row = 0; row < n; ++row) context.rows.push_back(row);
  return context;
}

Case context_case(const Case& c, const Context& context) {
  const auto names = split_dims(c.op->row_dims);
  Case arranged = c;
  if (context.ranks > 0) {
    arranged.dims.find(kWorldSize)->second = context.ranks;
    arranged.part_bounds.clear();
  }
  if (names.empty()) return arranged;
  for (const std::string_view name : names) arranged.dims.find(name)->second = 1;
  arranged.dims.find(names.front())->second = context.outer;
  arranged.dims.find(names.back())->second = std::ssize(context.rows) / context.outer;
  return arranged;
}

double cost_of(const Case& c, const DeviceInfo& device, const Context& context) {
  const double small = device.kind == "cpu" ? kSmallBytes : kSmallGpuBytes;
  const auto bytes = [](const Case& launched) {
    return std::max(static_cast<double>(tensor_bytes(launched)), gold_work(launched) / kProductsPerByte);
  };
  double launched = 0;
  if (context.piece_rows == 0) launched = bytes(context_case(c, context));
  for (const Context& piece : pieces_of(context)) launched += bytes(context_case(c, piece));
  return launched / std::max(small, bytes(c));
}

bool is_asked_of(const Case& c, const TensorSpec& output, Axis axis) {
  return !is_of_rows(axis) || is_per_row(*c.op, output) || (axis == Axis::chunks && is_carried(c, output));
}

int64_t rows_that_count(const Context& context) {
  const bool counts_first = !is_of_rows(context.axis);
  const auto counts = [&](int64_t row) { return row > 0 || (row == 0 && counts_first); };
  return std::count_if(context.rows.begin(), context.rows.end(), counts);
}

int64_t compared_elements(const Case& c, const TensorSpec& output, const Context& context) {
  if (!is_present(c, output) || (context.piece_rows > 0 && !is_carried(c, output))) return 0;
  const int64_t times = std::max(1, context.launches - 1);
  if (!is_per_row(*c.op, output))  // x transposed has a column for each row of the launch
    return context.sums ? times * element_count(shape_of(context_case(c, context), output)) : 0;
  return times * matrix_view(*c.op, output, shape_of(c, output)).columns * rows_that_count(context);
}

std::vector<Context> pieces_of(const Context& context) {
  std::vector<Context> pieces;
  const int64_t n = std::ssize(context.rows);
  for (int64_t begin = 0; context.piece_rows > 0 && begin < n; begin += context.piece_rows) {
    const int64_t end = std::min(n, begin + context.piece_rows);
    Context& piece = pieces.emplace_back();
    piece.axis = context.axis;
    piece.what = fmt::format("{}, rows [{}, {})", context.what, begin, end);
    piece.rows.assign(context.rows.begin() + begin, context.rows.begin() + end);
  }
  return pieces;
}

namespace {

/// One context for each entry of `rows` that gives more than one piece: the batch in pieces of that many rows, rounded
/// up to a multiple of kCarryRows. The first one covers its axis. Empty for a case without carried sums.
std::vector<Context> carried_pieces(const Case& c, const std::vector<int64_t>& rows) {
  const auto outputs = c.pass->outputs;
  std::vector<Context> contexts;
  if (std::none_of(outputs.begin(), outputs.end(), [&](const OutputSpec& o) { return is_carried(c, o.tensor); }))
    return contexts;
  for (const int64_t wanted : rows) {
    const int64_t each = std::max<int64_t>(1, (wanted + kCarryRows - 1) / kCarryRows) * kCarryRows;
    const auto is_there = [each](const Context& context) { return context.piece_rows == each; };
    if (each >= row_count(c) || std::any_of(contexts.begin(), contexts.end(), is_there)) continue;
    Context context = first_rows(row_count(c));
    context.axis = Axis::chunks, context.what = fmt::format("{} at a time, sums carried on", rows_text(each));
    context.sums = true, context.covers = contexts.empty(), context.piece_rows = each;
    contexts.push_back(std::move(context));
  }
  return contexts;
}

/// Heights of tiles and pages that kernels commonly use.
constexpr int64_t kTile = 16, kLargeTile = 128, kPage = 256;
/// Number of rows for contexts that need not have all: several of the largest tiles.
constexpr int64_t kFocus = 2 * kLargeTile, kQuickFocus = 64;

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> rows(static_cast<size_t>(end - begin));
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

class Planner {
 public:
  Planner(const Case& c, const DeviceInfo& device, const AxisPlan& plan)
      : c_(c), device_(device), plan_(plan), n_(row_count(c)), row_dims_(split_dims(c.op->row_dims)) {
    outer_ = row_dims_.size() < 2 ? 1 : c.dims.find(row_dims_.front())->second;
    focus_ = std::min(n_, plan.all ? kFocus : kQuickFocus);
  }

  std::vector<Context> take() {
    if (n_ == 0) return {};
    other_ranks();
    rearranged();
    if (plan_.all) {
      launches();
      if (!row_dims_.empty()) all_of_rows();
    } else {
      if (!row_dims_.empty() && n_ > 1) few_of_rows();
      if (plan_.layouts) few_layouts();
    }
    return within_budget();
  }

 private:
  void add(Context context) {
    if (plan_.axes.has(context.axis)) lists_[context.axis].push_back(std::move(context));
  }

  Context full(Axis axis, std::string what) const {
    Context context = of(axis, std::move(what), range(0, n_));
    context.outer = outer_, context.sums = true;
    return context;
  }

  Context of(Axis axis, std::string what, std::vector<int64_t> rows) const {
    Context context;
    context.axis = axis, context.what = std::move(what), context.rows = std::move(rows);
    return context;
  }

  /// A context on rows [0, focus). If that is the whole case, it is compared with the full batch; otherwise with its
  /// twin, a plain launch of the same rows.
  Context focused(Axis axis, std::string what) const {
    if (focus_ == n_) return full(axis, std::move(what));
    Context context = of(axis, std::move(what), range(0, focus_));
    context.twin = {0, focus_}, context.sums = true;
    return context;
  }

  /// Adds the context on a few rows, if these are fewer than all, and on the whole case.
  template <class Edit>
  void add_focused_and_full(Axis axis, const std::string& what, const Edit& edit) {
    for (const bool small : {true, false}) {
      if (small && focus_ == n_) continue;
      Context context = small ? focused(axis, fmt::format("{}, {}", what, rows_text(focus_))) : full(axis, what);
      edit(context);
      add(std::move(context));
    }
  }

  void other_ranks() {
    const int64_t own = world_size(c_), most = std::min(canonical_segments(c_), most_ranks(device_));
    for (const int64_t ranks : plan_.all ? std::vector<int64_t>{1, 2, 3, 4, 8} : std::vector<int64_t>{1}) {
      if (!compares_ranks(c_) || ranks == own || ranks > most) continue;
      Context context = full(Axis::ranks, fmt::format("{} rank{} in place of {}", ranks, ranks == 1 ? "" : "s", own));
      context.ranks = ranks;
      add(std::move(context));
    }
  }

  /// The operator's rearrangements; without `all`, the first one of each axis.
  void rearranged() {
    std::set<Axis> begun;
    for (const Rearrangement& each : c_.op->rearrangements) {
      const Axis axis = parse_axis(each.axis).value();
      const int64_t extent = c_.dims.find(split_dims(each.dims).front())->second;
      const bool compares = std::any_of(c_.pass->outputs.begin(), c_.pass->outputs.end(),
                                        [&](const OutputSpec& output) { return is_rearranged(each, output.tensor); });
      if (!compares || extent < each.least || (!begun.insert(axis).second && !plan_.all)) continue;
      Context context = full(axis, std::string(each.what));
      context.rearrangement = &each;
      add(std::move(context));
    }
  }

  void launches() {
    repetition();
    add(full(Axis::first_call, "the same launch again"));
    add_focused_and_full(Axis::outputs, "outputs of zeros", [](Context& x) { x.outputs_before = 2; });
    add_focused_and_full(Axis::outputs, "outputs of another NaN", [](Context& x) { x.outputs_before = 1; });
    add_focused_and_full(Axis::workspace, "a workspace of 0x5a, 4096 bytes larger than asked for",
                         [](Context& x) { x.workspace_before = 0x5a, x.workspace_extra = 4096; });
    add_focused_and_full(Axis::workspace, "a workspace of zeros", [](Context& x) { x.workspace_before = 0; });
    for (const size_t offset : {2, 4, 8, 16, 256}) {
      if (offset < info(c_.dtype).bytes) continue;
      add_focused_and_full(Axis::alignment,
                           offset == 256 ? "tensors at an odd multiple of 256 bytes"
                                         : fmt::format("tensors {} bytes past a 256-byte boundary", offset),
                           [&](Context& x) { x.offset = offset; });
    }
    layouts();
    for (const int percent : {50, 75}) {
      add_focused_and_full(Axis::contention, fmt::format("other work on {} % of the multiprocessors", percent),
                           [&](Context& x) {
                             x.mode = {LaunchMode::Kind::contended, percent};
                           });
    }
    add_focused_and_full(Axis::graph, "the second of two replays of a graph",
                         [](Context& x) { x.mode.kind = LaunchMode::Kind::replayed; });
    add(full(Axis::after_shapes, "the same launch after those of other shapes"));
  }

  /// On a few rows only: a kernel that misreads an arrangement does so in every launch.
  void layouts() {
    for (const Arrangement arrangement : kArrangements) {
      Context context = focused(Axis::layout, std::string(describe(arrangement)));
      context.arrangement = arrangement;
      // Rows are expanded along one of two row dimensions, so that not all of them are equal.
      if (arrangement == Arrangement::expanded_rows && context.outer == 1 && row_dims_.size() > 1 && focus_ % 2 == 0)
        context.outer = 2;
      if (is_expanded(arrangement)) context.twin = {0, focus_};
      if (changes_inputs(context_case(c_, context), arrangement)) add(std::move(context));
    }
  }

  /// The cost in launches of the whole case: of a launch, its twin, and the copies of inputs, which are made and
  /// checked on the host.
  double cost_of_layout(const Context& context) const {
    constexpr double kCopyingPerLaunch = 4;
    const Case launched = context_case(c_, context);
    double moved = 0;
    for (const TensorSpec& spec : launched.pass->inputs) {
      if (!is_present(launched, spec)) continue;
      const Placement placement = placement_of(launched, spec, {0, 0, context.arrangement});
      if (placement != placement_of(launched, spec, {}))
        moved += static_cast<double>(element_count(placement.shape)) * static_cast<double>(info(placement.dtype).bytes);
    }
    const double small = device_.kind == "cpu" ? kSmallBytes : kSmallGpuBytes;
    return cost_of(c_, device_, context) * (context.has_twin() ? 2 : 1) +
           kCopyingPerLaunch * moved / std::max(small, static_cast<double>(tensor_bytes(c_)));
  }

  /// Drops contexts beyond kMostForLayouts, so that the cases of an operator share the arrangements.
  void few_layouts() {
    layouts();
    std::vector<Context>& list = lists_[Axis::layout];
    if (list.empty()) return;
    const uint64_t turn = fnv1a(case_name(c_) + std::string(c_.pass->name)) % list.size();
    std::rotate(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(turn), list.end());
    double cost = 0;
    std::erase_if(list, [&](const Context& context) {
      const double more = cost_of_layout(context);
      if (cost > 0 && cost + more > kMostForLayouts) return true;
      cost += more;
      return false;
    });
  }

  /// Several launches, each compared with the first one of its context.
  void repetition() {
    constexpr double kShare = 3;
    constexpr int64_t kPart = 16;
    const double each = cost_of(c_, device_, full(Axis::repetition, ""));
    const bool splits = focus_ < n_ && each * plan_.runs > kShare;
    const int in_full = splits ? std::clamp(static_cast<int>(kShare / each), 2, plan_.runs) : plan_.runs;
    Context all = full(Axis::repetition, fmt::format("{} launches", in_full));
    all.launches = in_full;
    add(std::move(all));
    if (plan_.runs - in_full < 2) return;
    const int64_t rows = std::clamp<int64_t>(n_ / kPart, 1, focus_);
    const int launches = plan_.runs - in_full;
    Context few = of(Axis::repetition, fmt::format("{} launches of {}", launches, rows_text(rows)), range(0, rows));
    few.launches = launches, few.sums = true;
    add(std::move(few));
  }

  void few_of_rows() {
    add(of(Axis::batch, "the last row alone", {n_ - 1}));
    if (n_ >= 4) add(first_rows(n_ / 2));
    reversed(focused(Axis::position, ""));
    disturbed(focused(Axis::neighbours, ""), 1, Disturbance::nan);
    for (Context& pieces : carried_pieces(c_, {n_ / 2})) add(std::move(pieces));
  }

  void all_of_rows() {
    batch();
    position();
    neighbours();
    padding();
    row_stride();
    chunks();
    grouping();
  }

  void batch() {
    if (n_ > 1) add(of(Axis::batch, "the last row alone", {n_ - 1}));
    if (n_ > 2) add(of(Axis::batch, fmt::format("row {} alone", n_ / 2), {n_ / 2}));
    for (const int64_t m : sizes()) {
      Context context = first_rows(m);
      context.covers = m == n_ - 1;
      add(std::move(context));
    }
    for (const int64_t m : {1, 2, 4, 8, 16}) at_other_places(m);
  }

  /// A few rows have too few elements to show a change that occurs only in such small batches. So this launches more
  /// such batches, taken from different places.
  void at_other_places(int64_t m) {
    constexpr int64_t kElements = 4096, kMostPlaces = 64;
    int64_t columns = kElements;
    for (const OutputSpec& output : c_.pass->outputs) {
      if (!is_present(c_, output.tensor) || !is_per_row(*c_.op, output.tensor)) continue;
      columns = std::min(columns, matrix_view(*c_.op, output.tensor, shape_of(c_, output.tensor)).columns);
    }
    const int64_t places = std::min({kMostPlaces / m, kElements / std::max<int64_t>(1, columns * m), n_ / m - 1});
    for (int64_t i = 1; i <= places; ++i) {
      const int64_t begin = (n_ - m) * i / (places + 1);
      add(of(Axis::batch, fmt::format("rows [{}, {}) alone", begin, begin + m), range(begin, begin + m)));
    }
  }

  /// Batch sizes, starting with those at which kernels most often change their algorithm.
  std::vector<int64_t> sizes() const {
    std::vector<int64_t> wanted{2, 16, 64, 128, 17, 3, 8, 32, 65, 129, 4, 9, 5, 6, 7, 15, 31, 33, 63, 96, 127};
    add_wave_edges(wanted);
    for (const int64_t m : {256, 512, 1024, 2048, 4096, 8192}) wanted.insert(wanted.end(), {m, m + 1, m - 1});
    wanted.insert(wanted.end(), {192, 191, 193, 384, 768, n_ - 1, n_ / 2});
    std::vector<int64_t> sizes;
    for (const int64_t m : wanted) {
      if (m > 1 && m < n_ && std::find(sizes.begin(), sizes.end(), m) == sizes.end()) sizes.push_back(m);
    }
    return sizes;
  }

  /// Batch sizes at which the tiles of the first output fill the SMs once, twice and four times.
  void add_wave_edges(std::vector<int64_t>& wanted) const {
    const OutputSpec& output = c_.pass->outputs.front();
    if (device_.kind == "cpu" || device_.multiprocessors < 1 || !is_per_row(*c_.op, output.tensor)) return;
    const int64_t columns = matrix_view(*c_.op, output.tensor, shape_of(c_, output.tensor)).columns;
    const int64_t tiles_of_a_row = (columns + kLargeTile - 1) / kLargeTile;
    for (const int64_t waves : {1, 2, 4}) {
      const int64_t high = std::max<int64_t>(1, waves * device_.multiprocessors / tiles_of_a_row);
      for (const int64_t height : {kLargeTile, kLargeTile / 2}) {
        wanted.insert(wanted.end(), {high * height, high * height + 1, (high + 1) * height});
      }
    }
  }

  void reversed(Context context) {
    std::reverse(context.rows.begin(), context.rows.end());
    context.sums = false;
    context.what = fmt::format("{} in reverse", rows_text(std::ssize(context.rows)));
    add(std::move(context));
  }

  void position() {
    if (n_ < 2) return;
    reversed(full(Axis::position, ""));
    for (const int64_t by : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 31, 32, 63, 64, 127, 128}) {
      if (by >= focus_) break;
      Context context = focused(Axis::position, fmt::format("{} moved by {}", rows_text(focus_), by));
      std::rotate(context.rows.begin(), context.rows.begin() + by, context.rows.end());
      context.sums = false;
      add(std::move(context));
    }
    Context shuffled = full(Axis::position, "rows in a random order");
    const Stream stream = Stream::derive(c_.seed, c_.op->name, "positions");
    for (int64_t i = n_ - 1; i > 0; --i) {
      const auto at = static_cast<size_t>(stream.below(static_cast<uint64_t>(i), static_cast<uint64_t>(i) + 1));
      std::swap(shuffled.rows[static_cast<size_t>(i)], shuffled.rows[at]);
    }
    shuffled.sums = false;
    add(std::move(shuffled));
  }

  /// Replaces every second row, from `first` on, to disturb the others.
  void disturbed(Context context, int64_t first, Disturbance disturbance) {
    for (size_t i = static_cast<size_t>(first); i < context.rows.size(); i += 2) context.rows[i] = ~context.rows[i];
    context.sums = false, context.disturbance = disturbance;
    context.what = fmt::format("{} rows hold {}", first == 0 ? "even" : "odd", describe(disturbance));
    add(std::move(context));
  }

  void neighbours() {
    using enum Disturbance;
    if (n_ < 2) return;
    for (const int64_t first : {1, 0}) {
      Context all = full(Axis::neighbours, "");
      all.covers = true;
      disturbed(std::move(all), first, nan);
    }
    for (const Disturbance each : {huge, zeros, infinity, nan}) {
      for (const int64_t first : {0, 1}) disturbed(focused(Axis::neighbours, ""), first, each);
    }
    for (const int64_t kept : {focus_ / 2, focus_ - 1}) {
      Context copies = focused(Axis::neighbours, fmt::format("all rows hold copies of row {}", kept));
      for (int64_t i = 0; i < focus_; ++i) {
        if (i != kept) copies.rows[static_cast<size_t>(i)] = ~kept;
      }
      copies.sums = false;
      add(std::move(copies));
    }
  }

  /// The batch, and its first rows, followed by other rows up to a multiple of a tile's height.
  void padding() {
    using enum Disturbance;
    padded(n_, 1, nan);
    if (focus_ < n_) padded(focus_, 1, nan);
    padded(focus_, 64, zeros), padded(focus_, 8, nan), padded(focus_, 128, huge);
  }

  void padded(int64_t rows, int64_t multiple, Disturbance disturbance) {
    const int64_t more = multiple - rows % multiple;
    Context context =
        of(Axis::padding, fmt::format("{} of {} behind {}", rows_text(more), describe(disturbance), rows_text(rows)),
           range(0, rows));
    for (int64_t i = 0; i < more; ++i) context.rows.push_back(~(i % rows));
    context.disturbance = disturbance;
    add(std::move(context));
  }

  void row_stride() {
    for (const auto& [elements, zeros] : {std::pair{int64_t{8}, false}, {1, false}, {16, true}}) {
      const std::string what = fmt::format("{} element{} of {} behind each row", elements, elements == 1 ? "" : "s",
                                           zeros ? "zeros" : "NaN");
      // A kernel that refuses this layout does so before any work, so the whole batch comes first.
      for (const bool all : {true, false}) {
        if (!all && focus_ == n_) continue;
        Context context = all ? full(Axis::row_stride, what)
                              : focused(Axis::row_stride, fmt::format("{}, {}", what, rows_text(focus_)));
        context.row_padding = elements, context.zeros_between = zeros;
        add(std::move(context));
      }
    }
  }

  void chunks() {
    const auto chunk = [&](int64_t begin, int64_t end, bool covers = false) {
      if (begin >= end || end - begin == n_) return;
      Context context = of(Axis::chunks, fmt::format("rows [{}, {}) as a chunk", begin, end), range(begin, end));
      context.covers = covers;
      add(std::move(context));
    };
    if (n_ >= 3) chunk(0, n_ / 3, true), chunk(n_ / 3, n_, true);
    for (const int64_t cut : {kTile, kTile + 1, kTile - 1, int64_t{1}, kLargeTile, kLargeTile + 1, kLargeTile - 1,
                              kPage, kPage + 1, kPage - 1, n_ - 1}) {
      if (cut < 1 || cut >= n_) continue;
      chunk(std::max<int64_t>(0, cut - kFocus), cut), chunk(cut, std::min(n_, cut + kFocus + 1));
    }
    for (Context& pieces : carried_pieces(c_, {n_ / 3, kTile, 2 * kTile, kLargeTile, kPage})) add(std::move(pieces));
  }

  void grouping() {
    if (row_dims_.size() < 2) return;
    if (outer_ > 1 && outer_ < n_) {
      Context transposed = full(Axis::grouping, fmt::format("{} and {} exchanged", row_dims_[0], row_dims_[1]));
      transposed.sums = false, transposed.outer = n_ / outer_;
      for (int64_t i = 0; i < n_; ++i) {
        transposed.rows[static_cast<size_t>(i)] = i % outer_ * (n_ / outer_) + i / outer_;
      }
      add(std::move(transposed));
    }
    if (n_ < 2) return;
    for (const int64_t rows : {n_, focus_}) {
      for (const bool along_first : {true, false}) {
        const int64_t outer = along_first ? rows : 1;
        if (rows == n_ && outer == outer_) continue;
        Context context = rows == n_ ? full(Axis::grouping, "") : focused(Axis::grouping, "");
        context.what = fmt::format("{} along {}", rows_text(rows), row_dims_[along_first ? 0 : 1]);
        context.outer = outer, context.sums = false;
        add(std::move(context));
      }
      if (focus_ == n_) break;
    }
  }

  /// First one context of each axis and those that cover the rows, then cheap ones, then the rest, taking turns between
  /// axes.
  int priority_of(Axis axis, size_t place, const Context& context) const {
    constexpr double kLittle = 0.25;
    if (axis == Axis::repetition) return 0;
    return place == 0 || context.covers ? 1 : cost_of(c_, device_, context) <= kLittle ? 2 : 3;
  }

  std::vector<Context> within_budget() {
    struct Entry {
      int priority;
      size_t place;
      Axis axis;
      Context* context;
    };
    std::vector<Entry> entries;
    for (auto& [axis, list] : lists_) {
      for (size_t i = 0; i < list.size(); ++i) entries.push_back({priority_of(axis, i, list[i]), i, axis, &list[i]});
    }
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.priority, a.place) < std::tie(b.priority, b.place);
    });
    std::set<std::pair<int64_t, int64_t>> twins;
    double cost = 2;
    std::erase_if(entries, [&](const Entry& entry) {
      const Context& context = *entry.context;
      double more = context.launches * cost_of(c_, device_, context);
      const bool new_twin = context.has_twin() && !twins.contains(context.twin);
      if (new_twin) more += cost_of(c_, device_, of(entry.axis, "", range(context.twin.first, context.twin.second)));
      if (entry.priority > 1 && cost + more > kMostLaunches) return true;
      cost += more;
      if (new_twin) twins.insert(context.twin);
      return false;
    });
    // In the order of axes, except that after_shapes comes last: it needs launches of other shapes before it.
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      const bool a_last = a.axis == Axis::after_shapes, b_last = b.axis == Axis::after_shapes;
      return std::tie(a_last, a.axis, a.place) < std::tie(b_last, b.axis, b.place);
    });
    std::vector<Context> contexts;
    for (const Entry& entry : entries) contexts.push_back(std::move(*entry.context));
    return contexts;
  }

  const Case& c_;
  const DeviceInfo& device_;
  const AxisPlan& plan_;
  int64_t n_, outer_ = 1, focus_ = 0;
  std::vector<std::string_view> row_dims_;
  std::map<Axis, std::vector<Context>> lists_;
};

}  // namespace

std::vector<Context> plan_contexts(const Case& c, const DeviceInfo& device, const AxisPlan& plan) {
  return Planner(c, device, plan).take();
}

std::vector<Context> contexts_of(const Case& c, const DeviceInfo& device, const RunChecks& checks) {
  AxisPlan plan = checks.plan;
  const AxisSet asked = plan.axes;
  plan.axes = AxisSet();
  if (checks.determinism) plan.axes = plan.axes | of_launches(asked);
  const auto outputs = c.pass->outputs;
  const bool any_rows = std::any_of(outputs.begin(), outputs.end(),
                                    [&](const OutputSpec& spec) { return is_per_row(*c.op, spec.tensor); });
  for (const Axis axis : all_axes()) {
    if (checks.invariance && is_of_invariance(axis) && asked.has(axis) && (any_rows || is_of_rearrangements(axis)))
      plan.axes.insert(axis);
  }
  return plan_contexts(c, device, plan);
}

}  // namespace checkop
