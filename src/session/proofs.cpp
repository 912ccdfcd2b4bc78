// SPDX-License-Identifier: Apache-2.0
// One proof for every pass and dtype of a run.
#include "session/proofs.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/child_process.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/parallel.hpp"
#include "case/rank_parts.hpp"
#include "worker/wire.hpp"
#include "worker/worker.hpp"

namespace checkop {

struct Proofs::Batch {
  std::vector<std::vector<const Case*>> groups;  ///< each: cases of one pass and dtype, with or without other ranks
};

namespace {

using nlohmann::json;

std::string key_of(const Case& c) { return fmt::format("{}/{}/{}", c.op->name, c.pass->name, case_name(c)); }

using Entries = std::vector<std::pair<std::string, Proofs::Entry>>;

bool is_in(const std::set<std::string>& keys, const Case* c) { return keys.contains(key_of(*c)); }

/// The proofs for the `wanted` cases of `batch`.
Entries prove(const Proofs::Batch& batch, const std::set<std::string>& wanted, unsigned threads, bool on_gpu) {
  // Some at a time, since parts of each keep one thread busy.
  const unsigned of_each = std::min(threads, 2u), at_once = std::max(1u, threads / of_each);
  std::vector<Proof> proofs(batch.groups.size());
  parallel_for(at_once, std::ssize(proofs), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    proofs[at] = find_proof(batch.groups[at], of_each, on_gpu);
  });
  Entries entries;
  std::vector<size_t> others;
  for (size_t g = 0; g < proofs.size(); ++g) {
    for (size_t i = 0; i < batch.groups[g].size(); ++i) {
      const Case* const c = batch.groups[g][i];
      if (!is_in(wanted, c)) continue;
      if (i != proofs[g].index) others.push_back(entries.size());
      entries.push_back({key_of(*c), {*c, {}}});
      if (i == proofs[g].index) entries.back().second = {proofs[g].c, proofs[g].sensitivity};
    }
  }
  parallel_for(at_once, std::ssize(others), [&](int64_t i) {
    Proofs::Entry& entry = entries[others[static_cast<size_t>(i)]].second;
    entry.sensitivity = own_sensitivity_of(entry.c, of_each);
  });
  return entries;
}

json encode(const Entries& entries) {
  json all = json::array();
  for (const auto& [key, entry] : entries) {
    json shown = json::array();
    for (const Sensitivity& each : entry.sensitivity)
      shown.push_back({static_cast<int>(each.state), each.why, each.elements, each.changed});
    all.push_back({key, encode(entry.c), shown});
  }
  return all;
}

Entries decode(const json& all) {
  Entries entries;
  for (const json& each : all) {
    Proofs::Entry entry{decode_case(each.at(1)), {}};
    for (const json& shown : each.at(2)) {
      entry.sensitivity.push_back({static_cast<Sensitivity::State>(shown.at(0).get<int>()),
                                   shown.at(1).get<std::string>(), shown.at(2).get<int64_t>(),
                                   shown.at(3).get<int64_t>()});
    }
    entries.emplace_back(each.at(0).get<std::string>(), std::move(entry));
  }
  return entries;
}

}  // namespace

/// A child process that proves one batch after the other, and sends what it finds of each.
class Proofs::Process {
 public:
  Process(const std::vector<Batch>& batches, const std::set<std::string>& wanted, unsigned threads, bool on_gpu) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    socket_ = Descriptor(ends[0]);
    Descriptor childs_end(ends[1]);
    const auto prove_all = [&] {
      for (const Batch& batch : batches)
        send_message(childs_end.get(), encode(prove(batch, wanted, threads, on_gpu)), {}, Clock::now() + kDay);
      return 0;
    };
    try {
      child_ = ChildProcess(prove_all);
    } catch (const EnvironmentError&) {  // this process works the proofs out
    }
  }

  /// The entries of the next batch; nullopt if the process has ended.
  std::optional<Entries> take() {
    if (!child_.is_started()) return {};
    const auto is_alive = [this] {
      stop_if_interrupted();
      return child_.is_alive();
    };
    try {
      Message message;
      if (receive_message(socket_.get(), message, Clock::now() + kDay, is_alive) != Received::message) return {};
      return decode(json::parse(message.body));
    } catch (const WireError&) {
      return {};
    } catch (const json::exception&) {
      return {};
    }
  }

 private:
  static constexpr std::chrono::hours kDay{24};

  Descriptor socket_;
  ChildProcess child_;
};

struct Proofs::Source {
  std::vector<Batch> batches;
  std::set<std::string> wanted;  ///< keys of cases
  bool on_gpu = true;            ///< all checks are: the same case is a proof for every candidate
  unsigned threads = 1;
  size_t next = 0;  ///< of batches, the first whose entries are not known
  std::optional<Process> process;
  std::map<std::string, Entry> entries;

  void take_next() {
    std::optional<Entries> found;
    if (process) found = process->take();
    if (!found) {
      process.reset();
      found = prove(batches[next], wanted, threads, on_gpu);
    }
    for (auto& [key, entry] : *found) entries[key] = std::move(entry);
    ++next;
  }
};

Proofs::Proofs() = default;
Proofs::Proofs(Proofs&&) noexcept = default;
Proofs& Proofs::operator=(Proofs&&) noexcept = default;
Proofs::~Proofs() = default;

Proofs::Proofs(const std::vector<Check>& checks, const OwnInputs& own_inputs, unsigned threads)
    : source_(std::make_unique<Source>()) {
  source_->threads = threads;
  // Other numbers of ranks are launched for some cases only: those have a proof of their own.
  std::map<std::tuple<const Pass*, DType, bool>, std::pair<size_t, size_t>> groups;  // batch, group
  std::map<const Operator*, size_t> batches;
  std::set<std::string> known, here;
  for (const Check& check : checks) {
    if (check.here) here.insert(key_of(check.c));
  }
  for (const Check& check : checks) {
    const Case& c = check.c;
    source_->on_gpu &= check.candidate.device != "cpu";
    if (!check.candidate.has_kernel || !known.insert(key_of(c)).second) continue;
    const bool is_here = here.contains(key_of(c));
    if (!own_inputs.origins(c).empty()) {
      if (is_here)
        source_->entries[key_of(c)] = {c, sensitivity_of(c, own_inputs.make(c, threads), threads, kThoroughWork)};
      continue;
    }
    const size_t batch = batches.try_emplace(c.op, source_->batches.size()).first->second;
    if (batch == source_->batches.size()) source_->batches.emplace_back();
    auto& of_op = source_->batches[batch].groups;
    const size_t group =
        groups.try_emplace({c.pass, c.dtype, compares_ranks(c)}, batch, of_op.size()).first->second.second;
    if (group == of_op.size()) of_op.emplace_back();
    of_op[group].push_back(&c);
    if (is_here) source_->wanted.insert(key_of(c));
  }
  for (Batch& batch : source_->batches) {
    std::erase_if(batch.groups, [&](const std::vector<const Case*>& cases) {
      return std::none_of(cases.begin(), cases.end(), [&](const Case* c) { return is_in(source_->wanted, c); });
    });
  }
  std::erase_if(source_->batches, [](const Batch& batch) { return batch.groups.empty(); });
  if (Isolation::is_on() && !source_->batches.empty())
    source_->process.emplace(source_->batches, source_->wanted, threads, source_->on_gpu);
}

const Proofs::Entry* Proofs::find(const Case& c) const {
  if (!source_) return nullptr;
  const std::string key = key_of(c);
  while (source_->wanted.contains(key) && !source_->entries.contains(key)) source_->take_next();
  const auto found = source_->entries.find(key);
  return found == source_->entries.end() ? nullptr : &found->second;
}

void count_compared(const Case& c, const std::vector<Context>& contexts, const RunResult& run,
                    std::vector<Sensitivity>& sensitivity) {
  std::map<Axis, std::set<int64_t>> rows;
  for (size_t k = 0; k < contexts.size() && k < run.contexts.size(); ++k) {
    if (!is_of_rows(contexts[k].axis) || contexts[k].piece_rows > 0 || !run.contexts[k].supported) continue;
    for (const int64_t row : contexts[k].rows) {
      if (row > 0) rows[contexts[k].axis].insert(row);
    }
  }
  int64_t fewest = rows.empty() ? 0 : std::numeric_limits<int64_t>::max();
  for (const auto& [axis, of_axis] : rows) fewest = std::min<int64_t>(fewest, std::ssize(of_axis));
  for (size_t i = 0; i < sensitivity.size(); ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (sensitivity[i].state == Sensitivity::State::not_applicable) continue;
    sensitivity[i].compared = fewest * matrix_view(*c.op, spec, shape_of(c, spec)).columns;
  }
}

}  // namespace checkop
