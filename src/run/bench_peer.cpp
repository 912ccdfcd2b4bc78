// SPDX-License-Identifier: Apache-2.0
// Starts processes that time implementations of their own, asks them about cases, and reads their answers.
#include "run/bench_peer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/external_process.hpp"
#include "base/json.hpp"

namespace checkop {
namespace {

using nlohmann::json;

json described(const Case& c) {
  json dims = json::object(), attrs = json::object(), inputs = json::array(), outputs = json::array();
  for (const std::string_view dim : dims_of(*c.op)) dims[std::string(dim)] = extent_of(c, dim);
  for (size_t i = 0; i < c.attrs.size(); ++i) attrs[std::string(c.op->attrs[i].name)] = json_number(c.attrs[i]);
  for (const TensorSpec& input : c.pass->inputs)
    if (is_present(c, input)) inputs.push_back(input.name);
  for (const OutputSpec& output : c.pass->outputs)
    if (is_present(c, output.tensor)) outputs.push_back(output.tensor.name);
  return {{"op", c.op->name}, {"pass", c.pass->name}, {"dtype", info(c.dtype).name}, {"dims", dims},
          {"attrs", attrs},   {"inputs", inputs},     {"outputs", outputs}};
}

/// What a process says of one of its implementations.
struct Said {
  RunStatus status = RunStatus::ok;
  std::string message;
  std::vector<double> ms;
  double peak_bytes = 0;
};

Said read_said(const JsonValue& answer, const std::string& name) {
  answer.allow_keys({"name", "status", "message", "ms", "peak_bytes"});
  answer.at("name").one_of("name", {name});
  Said said;
  const auto status = answer.find("status");
  if (status && status->one_of("status", {"ok", "unsupported", "failed"}) != "ok") {
    said.status = status->string() == "failed" ? RunStatus::failed : RunStatus::unsupported;
    said.message = answer.at("message").sentence();
    return said;
  }
  for (const JsonValue& ms : answer.at("ms").items()) said.ms.push_back(ms.number(1e-6));
  if (said.ms.empty()) answer.at("ms").fail("at least one time");
  if (const auto peak = answer.find("peak_bytes")) said.peak_bytes = peak->number(0);
  return said;
}

}  // namespace

/// One of the commands.
class BenchPeers::Peer {
 public:
  Peer(const std::string& command, const std::string& device, std::chrono::seconds limit)
      : command_(command), device_(device), limit_(limit) {
    start();
  }

  const std::vector<std::string>& names() const { return names_; }

  std::vector<Said> time(const Case& c, const std::string& timing, int count, double ms) {
    try {
      if (!process_) start();
      return ask(c, timing, count, ms);
    } catch (const std::runtime_error& e) {  // it ended, or could not be started again
      process_.reset();
      return std::vector<Said>(names_.size(), Said{RunStatus::crashed, e.what(), {}, 0});
    }
  }

 private:
  void start();
  std::vector<Said> ask(const Case& c, const std::string& timing, int count, double ms);

  std::string command_, device_;
  std::chrono::seconds limit_;
  TempFolder folder_;  ///< of its standard error
  std::optional<LineProcess> process_;
  std::vector<std::string> names_;
  int64_t requests_ = 0;
};

void BenchPeers::Peer::start() {
  const std::string where = fmt::format("--peer '{}'", command_);
  try {
    process_.emplace(command_, folder_.path() + "/stderr");
    process_->limit_answers(limit_);
    const json hello{{"protocol", 1}, {"device", device_}};
    const JsonValue answer =
        JsonValue::parse(process_->request(json_line({{"hello", hello}})), where + ": its first answer");
    if (const auto lacking = answer.find("no_device"))
      throw EnvironmentError(fmt::format("{}: {}", where, lacking->string()));
    if (const auto error = answer.find("error")) throw InputError(where, error->string());
    answer.allow_keys({"protocol", "names"});
    answer.at("protocol").integer(1, 1);
    std::vector<std::string> names;
    for (const JsonValue& name : answer.at("names").items()) names.push_back(name.sentence());
    if (names.empty()) answer.at("names").fail("at least one name");
    if (!names_.empty() && names != names_) answer.at("names").fail("the names of its first start");
    names_ = names;
  } catch (const ProcessEnded& e) {
    throw InputError(where, e.what(), "it should answer the first line with the names of what it times");
  }
}

std::vector<Said> BenchPeers::Peer::ask(const Case& c, const std::string& timing, int count, double ms) {
  const int64_t id = ++requests_;
  json request = described(c);
  request.update({{"id", id}, {"timing", timing}, {"count", count}, {"ms", ms}});
  const std::string line = process_->request(json_line({{"time", request}}));
  try {
    const JsonValue answer = JsonValue::parse(line, "its answer");
    answer.allow_keys({"id", "times"});
    answer.at("id").integer(id, id);
    const std::vector<JsonValue> times = answer.at("times").items();
    if (times.size() != names_.size()) answer.at("times").fail("one entry for each name of its first answer");
    std::vector<Said> all;
    for (size_t i = 0; i < times.size(); ++i) all.push_back(read_said(times[i], names_[i]));
    return all;
  } catch (const InputError& e) {
    process_->give_up(fmt::format("{}: '{}'", e.what(), line.substr(0, 200)));
  }
}

BenchPeers::BenchPeers(const std::vector<std::string>& commands, const std::string& device,
                       std::chrono::seconds limit) {
  if (!commands.empty()) signal(SIGPIPE, SIG_IGN);  // a process may end before it has read a request
  for (const std::string& command : commands) {
    peers_.push_back(std::make_unique<Peer>(command, device, limit));
    for (const std::string& name : peers_.back()->names()) {
      if (std::find(names_.begin(), names_.end(), name) != names_.end())
        throw InputError("--peer", fmt::format("two implementations are called '{}'", name), "rename one of them");
      names_.push_back(name);
    }
  }
}

BenchPeers::~BenchPeers() = default;

void BenchPeers::take(const Case& c, const BenchPlan& plan, Half half, std::vector<BenchRun>& runs) {
  const auto of_half = [&](int count) { return half == Half::first ? (count + 1) / 2 : count / 2; };
  const auto take_kind = [&](const std::string& timing, int count, double ms, std::vector<double> BenchRun::*samples) {
    const bool is_first = half == Half::first && (!plan.burst || timing == "burst");
    size_t first = 0;
    for (const std::unique_ptr<Peer>& peer : peers_) {
      for (const Said& said : peer->time(c, timing, count, ms)) {
        BenchRun& run = runs[first++];
        if (!is_first && run.status != RunStatus::ok) continue;
        run.status = said.status;
        run.message = said.message;
        run.workspace_bytes = std::max(run.workspace_bytes, said.peak_bytes);
        (run.*samples).insert((run.*samples).end(), said.ms.begin(), said.ms.end());
      }
    }
  };
  if (plan.burst) take_kind("burst", of_half(plan.repeats), 0, &BenchRun::burst_ms);
  const int rounds = of_half(kSustainedRounds);
  if (plan.sustained)
    take_kind("sustained", rounds, plan.sustained_ms * rounds / kSustainedRounds, &BenchRun::sustained_ms);
}

}  // namespace checkop
