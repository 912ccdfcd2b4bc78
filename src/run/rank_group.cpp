// SPDX-License-Identifier: Apache-2.0
// Divides tensors into tensor-parallel parts, joins them, and launches all ranks.
#include "run/rank_group.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "case/rank_parts.hpp"
#include "device/host_comm.hpp"

namespace checkop {
namespace {

/// Time limits for ranks: to notice that one failed, to give up, and to learn how one died.
constexpr std::chrono::seconds kSeeLimit{2}, kGiveUpLimit{5}, kExplainLimit{15};

/// State shared by the threads of one launch. The threads own it and with it the ranks' buffers, since a thread that
/// never returns may still use them.
struct Launched {
  Launched(std::vector<std::shared_ptr<Rank>> of, std::chrono::milliseconds limit)
      : ranks(std::move(of)), comm(static_cast<int32_t>(ranks.size()), limit), answers(ranks.size()) {}

  std::vector<std::shared_ptr<Rank>> ranks;
  HostComm comm;
  RankLaunch launch;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<RankLaunchStatus>> answers;
  int64_t dying = 0;  ///< ranks that died and are in explain()

  /// Number of answers; call with the mutex held.
  int64_t count() const {
    return std::count_if(answers.begin(), answers.end(), [](const auto& answer) { return answer.has_value(); });
  }

  void run(size_t rank) {
    RankLaunchStatus answer = ranks[rank]->launch(launch, comm.of(static_cast<int32_t>(rank)));
    if (answer.status.stopped) launch.is_broken = true;
    comm.leave(static_cast<int32_t>(rank), answer.status.stopped.has_value());
    std::unique_lock lock(mutex);
    if (answer.has_died) {
      ++dying;
      changed.notify_all();
      lock.unlock();
      ranks[rank]->explain(answer);
      lock.lock();
      --dying;
    }
    answers[rank] = std::move(answer);
    changed.notify_all();
  }
};

/// "rank 1", "ranks 0, 2".
std::string ranks_text(const std::vector<size_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string words_of(const std::optional<RankLaunchStatus>& answer) {
  if (!answer) return "did not return";
  return answer->status.stopped ? answer->status.stopped->message : answer->status.message;
}

/// The messages of all ranks; only one if all are equal.
std::string words_of(const std::vector<std::optional<RankLaunchStatus>>& answers) {
  std::map<std::string, std::vector<size_t>> said;
  std::vector<std::string> order;
  for (size_t r = 0; r < answers.size(); ++r) {
    const std::string words = words_of(answers[r]);
    if (said[words].empty()) order.push_back(words);
    said[words].push_back(r);
  }
  if (order.size() == 1) return order.front();
  std::vector<std::string> parts;
  for (const std::string& words : order)
    parts.push_back(fmt::format("{}: {}", ranks_text(said[words]), words.empty() ? "ok" : words));
  return fmt::to_string(fmt::join(parts, "; "));
}

LaunchStatus answer_of(const std::vector<std::optional<RankLaunchStatus>>& answers, bool plain) {
  const std::string words = words_of(answers);
  std::vector<RunStatus> stopped;
  bool all = true;
  for (const auto& answer : answers) {
    if (!answer) return {Stopped{RunStatus::timeout, words}, ""};
    if (!answer->status.stopped) {
      all = false;
    } else if (!answer->is_broken_off) {
      stopped.push_back(answer->status.stopped->status);
    }
  }
  if (stopped.empty()) return {{}, words};
  // A crash, timeout or lost device of one rank is worse than what the other ranks report.
  for (const RunStatus status : {RunStatus::crashed, RunStatus::timeout, RunStatus::no_device})
    if (std::find(stopped.begin(), stopped.end(), status) != stopped.end()) return {Stopped{status, words}, ""};
  for (const auto& answer : answers) {
    const auto& why = answer->status.stopped;
    if (!why || answer->is_broken_off || why->status == RunStatus::unsupported) continue;
    if (!why->modified_input.empty() || !why->guard_violation.empty()) return {*why, ""};  // of all: one process
  }
  for (const RunStatus status : stopped)
    if (status != RunStatus::unsupported) return {Stopped{status, words}, ""};
  // All ranks or none must support a plain launch; other launch modes may be supported by some ranks only.
  return {Stopped{all || !plain ? RunStatus::unsupported : RunStatus::failed, words}, ""};
}

/// A tensor as `count` runs of `elements` elements with `padding` behind each; a tensor without padding is one run.
struct Runs {
  int64_t count, elements, padding;
};

Runs runs_of(const Stage& stage, const TensorSpec& spec) {
  const Shape shape = shape_of(stage.stage_case(), spec);
  const int64_t padding = stage.padding_of(spec), count = element_count(shape);
  if (padding == 0 || count == 0) return {1, count, 0};
  return {count / shape.back(), shape.back(), padding};
}

/// For each piece of a divided tensor that a rank holds, calls body(offset in the whole's buffer, offset in the rank's
/// buffer, length), in elements; then pad() with the same arguments for the padding behind it. In the order of the
/// rank's buffer.
template <class Body, class Pad>
void for_each_piece(const Stage& whole, const RankPart& place, const TensorSpec& spec, const Body& body,
                    const Pad& pad) {
  const PartView view = part_view(whole.stage_case(), spec);
  const auto rank = static_cast<size_t>(place.rank);
  const int64_t begin = view.bounds[rank], end = view.bounds[rank + 1];
  const int64_t padding = runs_of(whole, spec).padding, own = (end - begin) * view.inner;
  for (int64_t o = 0; o < view.outer; ++o) {
    const int64_t there = o * (view.extent * view.inner + padding), here = o * (own + padding);
    body(there + begin * view.inner, here, own);
    if (padding > 0) pad(there + view.extent * view.inner, here + own, padding);
  }
}

}  // namespace

RankGroup::RankGroup(Device& device, const checkop_kernel& kernel, const Stage& whole) : device_(device) {
  const Case& c = whole.stage_case();
  const std::vector<int64_t> bounds = part_bounds(c);
  const int64_t n = world_size(c);
  if (std::string why = why_too_many_ranks(c, device.info()); !why.empty())
    throw Stopped{RunStatus::unsupported, std::move(why)};
  for (int64_t r = 0; r < n; ++r) {
    const auto at = static_cast<size_t>(r);
    const std::string suffix = n == 1 ? whole.suffix() : fmt::format(" on rank {}{}", r, whole.suffix());
    const RankPart place{static_cast<int32_t>(r), static_cast<int32_t>(n), bounds[at], bounds[at + 1], bounds.back()};
    std::shared_ptr<Rank> rank;
    if (r > 0 && device.processes() != nullptr) {
      rank = device.processes()->make_rank(kernel, rank_case(c, r), suffix, whole.layout(), place);
    } else {
      rank = std::make_shared<LocalRank>(device_of(place.rank), kernel, rank_case(c, r), suffix, whole.layout(), place);
    }
    for (size_t i = 0; i < whole.inputs.size(); ++i)
      if (whole.inputs[i]) rank->upload(i, part_of(whole, i, place));
    rank->prepare();
    ranks_.push_back(std::move(rank));
    places_.push_back(place);
  }
}

Device& RankGroup::device_of(int32_t rank) {
  try {
    return device_.of_rank(rank);
  } catch (const EnvironmentError& e) {
    throw Stopped{RunStatus::no_device, e.what()};
  }
}

std::vector<std::byte> RankGroup::part_of(const Stage& whole, size_t i, const RankPart& place) {
  std::vector<std::byte> part = contiguous_part_of(whole, i, place);
  if (whole.layout().inputs == Arrangement::contiguous) return part;
  const Case c = rank_case(whole.stage_case(), place.rank);
  return arrange(placement_of(c, c.pass->inputs[i], whole.layout()), whole.inputs[i]->dtype(), part.data());
}

std::vector<std::byte> RankGroup::contiguous_part_of(const Stage& whole, size_t i, const RankPart& place) {
  const TensorSpec& spec = whole.stage_case().pass->inputs[i];
  std::vector<std::byte> all = whole.inputs[i]->content();
  if (!is_divided(whole.stage_case(), spec)) return all;
  const size_t width = info(whole.inputs[i]->dtype()).bytes;
  std::vector<std::byte> part;
  const auto append = [&](int64_t from, int64_t, int64_t n) {
    const std::byte* const begin = all.data() + static_cast<size_t>(from) * width;
    part.insert(part.end(), begin, begin + static_cast<size_t>(n) * width);
  };
  for_each_piece(whole, place, spec, append, append);
  return part;
}

void RankGroup::make_workspace(size_t extra) {
  for (const auto& rank : ranks_) rank->make_workspace(extra);
}

void RankGroup::poison(const InitialState& initial) {
  for (const auto& rank : ranks_) rank->poison(initial);
}

LaunchStatus RankGroup::launch(std::chrono::milliseconds limit, const LaunchMode& mode, const RankTiming& timing) {
  const auto launched = std::make_shared<Launched>(ranks_, limit);
  const auto n = std::ssize(ranks_);
  launched->launch.mode = mode;
  launched->launch.timing = timing;
  launched->launch.limit = limit;
  try {
    if (n > 1) launched->launch.comm_id = device_.comm_id(static_cast<int32_t>(n));
  } catch (const EnvironmentError& e) {
    return {Stopped{RunStatus::no_device, e.what()}, ""};
  }
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) threads.emplace_back([launched, r] { launched->run(r); });
  std::unique_lock lock(launched->mutex);
  const auto all_returned = [&] { return launched->count() == n; };
  launched->changed.wait(lock, [&] { return launched->count() + launched->dying > 0; });
  bool all = launched->changed.wait_for(lock, limit, all_returned);
  if (!all && launched->dying > 0) all = launched->changed.wait_for(lock, kExplainLimit, all_returned);
  const std::vector<std::optional<RankLaunchStatus>> answers = launched->answers;
  if (!all) launched->launch.is_broken = true;
  if (launched->launch.is_broken) {
    // A candidate that polls its communicator must not find it destroyed.
    launched->comm.break_off("a rank did not return");
    if (!launched->launch.comm_id.empty()) all = launched->changed.wait_for(lock, kSeeLimit, all_returned);
    lock.unlock();
    for (const auto& rank : ranks_) rank->give_up();
    lock.lock();
    if (!all && !launched->launch.comm_id.empty()) all = launched->changed.wait_for(lock, kGiveUpLimit, all_returned);
  }
  lock.unlock();
  for (std::thread& thread : threads) all ? thread.join() : thread.detach();
  note_runs(answers);
  return answer_of(answers, mode.kind == LaunchMode::Kind::plain);
}

void RankGroup::note_runs(const std::vector<std::optional<RankLaunchStatus>>& answers) {
  runs_.clear();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    RankRun run = ranks_[r]->describe();
    run.ms = answers[r] ? answers[r]->ms : 0;
    run.message = words_of(answers[r]);
    runs_.push_back(std::move(run));
  }
}

void RankGroup::gather(Stage& whole, std::vector<std::string>& differences) {
  for (size_t i = 0; i < whole.outputs.size(); ++i) {
    if (!whole.outputs[i]) continue;
    if (is_divided(whole.stage_case(), whole.stage_case().pass->outputs[i].tensor)) {
      gather_parts(whole, i);
    } else {
      gather_copies(whole, i, differences);
    }
  }
}

void RankGroup::gather_parts(Stage& whole, size_t i) {
  const TensorSpec& spec = whole.stage_case().pass->outputs[i].tensor;
  const DType dtype = whole.outputs[i]->dtype();
  const size_t width = info(dtype).bytes;
  std::vector<std::byte> all = whole.outputs[i]->content();  // keeps the padding between rows
  const std::vector<std::byte> found = all;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const std::vector<std::byte> part = ranks_[r]->output(i);
    const auto copy = [&](int64_t to, int64_t from, int64_t n) {
      std::copy_n(part.data() + static_cast<size_t>(from) * width, static_cast<size_t>(n) * width,
                  all.data() + static_cast<size_t>(to) * width);
    };
    const auto copy_changed = [&](int64_t to, int64_t from, int64_t n) {
      for (int64_t e = 0; e < n; ++e)
        if (load_bits(dtype, part.data(), from + e) != load_bits(dtype, found.data(), to + e))
          copy(to + e, from + e, 1);
    };
    for_each_piece(whole, places_[r], spec, copy, copy_changed);
  }
  whole.outputs[i]->upload(all.data());
}

void RankGroup::gather_copies(Stage& whole, size_t i, std::vector<std::string>& differences) {
  const std::vector<std::byte> first = ranks_.front()->output(i);
  whole.outputs[i]->upload(first.data());
  const std::string prefix = fmt::format("{}: ", whole.stage_case().pass->outputs[i].tensor.name);
  const auto told = [&](const std::string& sentence) { return sentence.starts_with(prefix); };
  if (std::any_of(differences.begin(), differences.end(), told)) return;
  for (size_t r = 1; r < ranks_.size(); ++r) {
    const std::vector<std::byte> own = ranks_[r]->output(i);
    const GuardedBuffer& output = *whole.outputs[i];
    const BitDifference bits = compare_bits(output.dtype(), first.data(), own.data(), output.count());
    if (bits.different == 0) continue;
    differences.push_back(fmt::format(
        "{}rank {} is the first that differs from rank 0: {} of {} elements, "
        "first at index {}: {:#x}, on rank 0 {:#x}{}",
        prefix, r, bits.different, bits.compared, bits.first_index, bits.b_bits, bits.a_bits, whole.suffix()));
    return;
  }
}

void RankGroup::check_guards(std::vector<std::string>& violations) {
  for (const auto& rank : ranks_) rank->check_guards(violations);
}

void RankGroup::check_inputs(const Stage& whole, std::vector<std::string>& modified) const {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (size_t i = 0; i < whole.inputs.size(); ++i) {
      if (!whole.inputs[i] || ranks_[r]->input_as_uploaded(i)) continue;
      const std::string prefix = fmt::format("{} of rank {}: ", whole.stage_case().pass->inputs[i].name, r);
      const auto told = [&](const std::string& sentence) { return sentence.starts_with(prefix); };
      if (std::any_of(modified.begin(), modified.end(), told)) continue;
      const std::vector<std::byte> given = part_of(whole, i, places_[r]), found = ranks_[r]->input(i);
      const Case c = rank_case(whole.stage_case(), places_[r].rank);
      const DType dtype = placement_of(c, c.pass->inputs[i], whole.layout()).dtype;
      const auto count = static_cast<int64_t>(given.size() / info(dtype).bytes);
      const BitDifference bits = compare_bits(dtype, given.data(), found.data(), count);
      if (bits.different == 0) continue;
      modified.push_back(fmt::format("{}{} element{} changed, first at index {}", prefix, bits.different,
                                     bits.different == 1 ? "" : "s", bits.first_index));
    }
  }
}

size_t RankGroup::workspace_bytes() const {
  size_t bytes = 0;
  for (const auto& rank : ranks_) bytes += rank->workspace_bytes();
  return bytes;
}

std::string why_too_many_ranks(const Case& c, const DeviceInfo& device) {
  const int64_t n = world_size(c);
  if (n <= most_ranks(device)) return "";
  return fmt::format("{} ranks need {} {}; use --world-size {}{}", n, n, device.ranks_limit, device.most_ranks,
                     device.kind == "cpu" ? "" : " or --device cpu");
}

}  // namespace checkop
