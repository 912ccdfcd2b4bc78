// SPDX-License-Identifier: Apache-2.0
// Tensors cut into parts and put together again; launches of all ranks.
#include "rank_group.hpp"

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

#include "host_comm.hpp"
#include "shards.hpp"

namespace checkop {
namespace {

/// What the threads of one launch share. They hold it, and with it the ranks' buffers: one that never returns must not
/// find them gone.
struct Launched {
  Launched(std::vector<std::shared_ptr<Stage>> of, std::chrono::milliseconds limit)
      : ranks(std::move(of)), comm(static_cast<int32_t>(ranks.size()), limit), answers(ranks.size()) {}

  std::vector<std::shared_ptr<Stage>> ranks;
  HostComm comm;
  std::mutex mutex;
  std::condition_variable returned;
  std::vector<std::optional<Answer>> answers;

  /// With the mutex held.
  int64_t count() const {
    return std::count_if(answers.begin(), answers.end(), [](const auto& answer) { return answer.has_value(); });
  }

  void run(size_t rank) {
    checkop_host_comm* const own = comm.of(static_cast<int32_t>(rank));
    Answer answer = ranks[rank]->ask(own, own);
    comm.leave(static_cast<int32_t>(rank));
    const std::lock_guard lock(mutex);
    answers[rank] = std::move(answer);
    returned.notify_all();
  }
};

/// "rank 1", "ranks 0, 2".
std::string ranks_text(const std::vector<size_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// Every rank's words: once where all say the same.
std::string words_of(const std::vector<std::optional<Answer>>& answers) {
  std::map<std::string, std::vector<size_t>> said;
  std::vector<std::string> order;
  for (size_t r = 0; r < answers.size(); ++r) {
    const auto& answer = answers[r];
    const std::string words = !answer ? "did not return" : answer->stopped ? answer->stopped->message : answer->message;
    if (said[words].empty()) order.push_back(words);
    said[words].push_back(r);
  }
  if (order.size() == 1) return order.front();
  std::vector<std::string> parts;
  for (const std::string& words : order)
    parts.push_back(fmt::format("{}: {}", ranks_text(said[words]), words.empty() ? "ok" : words));
  return fmt::to_string(fmt::join(parts, "; "));
}

Answer answer_of(const std::vector<std::optional<Answer>>& answers) {
  const std::string words = words_of(answers);
  std::optional<RunStatus> status;
  bool all = true;
  for (const auto& answer : answers) {
    if (!answer) return {Stopped{RunStatus::timeout, words}, ""};
    if (!answer->stopped) {
      all = false;
    } else if (!status || *status == RunStatus::unsupported) {
      status = answer->stopped->status;
    }
  }
  if (!status) return {{}, words};
  // A kernel is supported by all ranks or by none.
  if (*status == RunStatus::unsupported && !all) status = RunStatus::failed;
  return {Stopped{*status, words}, ""};
}

/// Runs of the last dimension that lie apart, or the whole as one.
struct Runs {
  int64_t count, elements, padding;
};

Runs runs_of(const Stage& stage, const TensorSpec& spec) {
  const Shape shape = shape_of(stage.stage_case(), spec);
  const int64_t padding = stage.padding_of(spec), count = element_count(shape);
  if (padding == 0 || count == 0) return {1, count, 0};
  return {count / shape.back(), shape.back(), padding};
}

/// Calls body(element of the whole's buffer, element of the rank's, elements) for what a rank holds of a sharded
/// tensor, and pad(likewise) for what lies behind its runs.
template <class Body, class Pad>
void for_each_piece(const Stage& whole, const Stage& rank, const TensorSpec& spec, const Body& body, const Pad& pad) {
  const ShardView view = shard_view(whole.stage_case(), spec);
  const Place& place = *rank.place();
  const int64_t padding = runs_of(whole, spec).padding, own = (place.end - place.begin) * view.inner;
  for (int64_t o = 0; o < view.outer; ++o) {
    const int64_t there = o * (view.extent * view.inner + padding), here = o * (own + padding);
    body(there + place.begin * view.inner, here, own);
    if (padding > 0) pad(there + view.extent * view.inner, here + own, padding);
  }
}

std::vector<std::byte> content_of(GuardedBuffer& buffer) {
  std::vector<std::byte> bytes(buffer.bytes());
  buffer.download(bytes.data());
  return bytes;
}

}  // namespace

RankGroup::RankGroup(Device& device, const checkop_kernel& kernel, const Stage& whole) {
  const Case& c = whole.stage_case();
  const std::vector<int64_t> bounds = shard_bounds(c);
  const int64_t n = world_size(c);
  if (n > 1 && device.info().kind != "cpu") {
    throw Stopped{RunStatus::unsupported,
                  fmt::format("{} ranks are run on the CPU only; use --world-size 1 or --device cpu", n)};
  }
  for (int64_t r = 0; r < n; ++r) {
    const auto at = static_cast<size_t>(r);
    const std::string suffix = n == 1 ? whole.suffix() : fmt::format(" on rank {}{}", r, whole.suffix());
    const Place place{static_cast<int32_t>(r), static_cast<int32_t>(n), bounds[at], bounds[at + 1], bounds.back()};
    auto rank = std::make_shared<Stage>(device, kernel, rank_case(c, r), suffix, whole.layout(), place);
    for (size_t i = 0; i < whole.inputs.size(); ++i) {
      rank->inputs.push_back(rank->make_buffer("input", c.pass->inputs[i]));
      if (rank->inputs[i]) rank->inputs[i]->upload(part_of(whole, i, *rank).data());
    }
    rank->make_outputs_and_workspace();
    ranks_.push_back(std::move(rank));
  }
}

std::vector<std::byte> RankGroup::part_of(const Stage& whole, size_t i, const Stage& rank) const {
  const TensorSpec& spec = whole.stage_case().pass->inputs[i];
  std::vector<std::byte> all = content_of(*whole.inputs[i]);
  if (!is_sharded(whole.stage_case(), spec)) return all;
  const size_t width = info(rank.inputs[i]->dtype()).bytes;
  std::vector<std::byte> part(rank.inputs[i]->bytes());
  const auto copy = [&](int64_t from, int64_t to, int64_t n) {
    std::copy_n(all.data() + static_cast<size_t>(from) * width, static_cast<size_t>(n) * width,
                part.data() + static_cast<size_t>(to) * width);
  };
  for_each_piece(whole, rank, spec, copy, copy);
  return part;
}

void RankGroup::make_workspace(size_t extra) {
  for (const auto& rank : ranks_) rank->make_workspace(extra);
}

void RankGroup::poison(const Found& found) {
  for (const auto& rank : ranks_) rank->poison(found);
}

Answer RankGroup::launch(std::chrono::milliseconds limit) {
  const auto launched = std::make_shared<Launched>(ranks_, limit);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) threads.emplace_back([launched, r] { launched->run(r); });
  std::unique_lock lock(launched->mutex);
  const auto n = std::ssize(ranks_);
  launched->returned.wait(lock, [&] { return launched->count() > 0; });
  const bool all = launched->returned.wait_for(lock, limit, [&] { return launched->count() == n; });
  const std::vector<std::optional<Answer>> answers = launched->answers;
  lock.unlock();
  for (std::thread& thread : threads) all ? thread.join() : thread.detach();
  return answer_of(answers);
}

void RankGroup::gather(Stage& whole, std::vector<std::string>& differences) {
  for (size_t i = 0; i < whole.outputs.size(); ++i) {
    if (!whole.outputs[i]) continue;
    if (is_sharded(whole.stage_case(), whole.stage_case().pass->outputs[i].tensor)) {
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
  std::vector<std::byte> all = content_of(*whole.outputs[i]);  // what lies between rows stays as it was found
  const std::vector<std::byte> found = all;
  for (const auto& rank : ranks_) {
    const std::vector<std::byte> part = content_of(*rank->outputs[i]);
    const auto copy = [&](int64_t to, int64_t from, int64_t n) {
      std::copy_n(part.data() + static_cast<size_t>(from) * width, static_cast<size_t>(n) * width,
                  all.data() + static_cast<size_t>(to) * width);
    };
    const auto copy_changed = [&](int64_t to, int64_t from, int64_t n) {
      for (int64_t e = 0; e < n; ++e)
        if (load_bits(dtype, part.data(), from + e) != load_bits(dtype, found.data(), to + e))
          copy(to + e, from + e, 1);
    };
    for_each_piece(whole, *rank, spec, copy, copy_changed);
  }
  whole.outputs[i]->upload(all.data());
}

void RankGroup::gather_copies(Stage& whole, size_t i, std::vector<std::string>& differences) {
  const std::vector<std::byte> first = content_of(*ranks_.front()->outputs[i]);
  whole.outputs[i]->upload(first.data());
  const std::string prefix = fmt::format("{}: ", whole.stage_case().pass->outputs[i].tensor.name);
  const auto told = [&](const std::string& sentence) { return sentence.starts_with(prefix); };
  if (std::any_of(differences.begin(), differences.end(), told)) return;
  for (size_t r = 1; r < ranks_.size(); ++r) {
    const BitDifference bits = ranks_[r]->outputs[i]->difference_from(first.data());
    if (bits.different == 0) continue;
    differences.push_back(fmt::format(
        "{}rank {} is the first that does not have the bits of rank 0: {} of {} elements, "
        "first at index {}: {:#x}, on rank 0 {:#x}{}",
        prefix, r, bits.different, bits.compared, bits.first_index, bits.b_bits, bits.a_bits, whole.suffix()));
    return;
  }
}

void RankGroup::check_guards(std::vector<std::string>& violations) {
  for (const auto& rank : ranks_) rank->check_guards(violations);
}

void RankGroup::check_inputs(const Stage& whole, std::vector<std::string>& modified) const {
  for (const auto& rank : ranks_) {
    for (size_t i = 0; i < rank->inputs.size(); ++i) {
      if (!rank->inputs[i] || rank->inputs[i]->as_uploaded()) continue;
      const std::string prefix =
          fmt::format("{} of rank {}: ", whole.stage_case().pass->inputs[i].name, rank->place()->rank);
      const auto told = [&](const std::string& sentence) { return sentence.starts_with(prefix); };
      if (std::any_of(modified.begin(), modified.end(), told)) continue;
      const BitDifference bits = rank->inputs[i]->difference_from(part_of(whole, i, *rank).data());
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

}  // namespace checkop
