// SPDX-License-Identifier: Apache-2.0
// The JSON of cases and results.
#include "worker/wire.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace checkop {
namespace {

using nlohmann::json;

json encode_bits(const BitDifference& bits) {
  return {bits.compared, bits.different, bits.first_index, bits.a_bits, bits.b_bits};
}

BitDifference decode_bits(const json& json) {
  return {json.at(0).get<int64_t>(), json.at(1).get<int64_t>(), json.at(2).get<int64_t>(), json.at(3).get<uint64_t>(),
          json.at(4).get<uint64_t>()};
}

/// Fills a tensor with the bytes from `used` on.
void take(std::string_view bytes, size_t& used, Tensor& tensor) {
  const size_t needed = tensor.bytes.size();
  if (needed == 0) return;
  if (bytes.size() - used < needed) throw WireError("bytes of tensor '" + tensor.name + "' are missing");
  std::memcpy(tensor.bytes.data(), bytes.data() + used, needed);
  used += needed;
}

}  // namespace

RunStatus decode_status(const json& json) {
  const int status = json.get<int>();
  if (status < 0 || status > static_cast<int>(RunStatus::no_memory)) throw WireError("an answer with no known status");
  return static_cast<RunStatus>(status);
}

json encode(const Case& c) {
  json attrs = json::array();
  for (const double attr : c.attrs) attrs.push_back(std::bit_cast<uint64_t>(attr));  // JSON has no infinity or NaN
  return {{"op", c.op->name},
          {"pass", c.pass->name},
          {"dtype", static_cast<int>(c.dtype)},
          {"dims", c.dims},
          {"attrs", attrs},
          {"optionals", c.optionals},
          {"input_mode", static_cast<int>(c.input_mode)},
          {"constant_value", std::bit_cast<uint64_t>(c.constant_value)},
          {"token_value", c.token_value},
          {"ignored_every", c.ignored_every},
          {"ignored_run", c.ignored_run},
          {"shard_bounds", c.part_bounds},
          {"grad_mode", static_cast<int>(c.grad_mode)},
          {"seed", c.seed},
          {"grad_seed", c.grad_seed}};
}

Case decode_case(const json& json) {
  Case c;
  c.op = find_operator(json.at("op").get<std::string>());
  if (c.op != nullptr) c.pass = find_pass(*c.op, json.at("pass").get<std::string>());
  if (c.pass == nullptr) throw WireError("a case of an unknown operator or pass: " + dump(json));
  c.dtype = static_cast<DType>(json.at("dtype").get<int>());
  for (const auto& [name, extent] : json.at("dims").items()) c.dims[name] = extent.get<int64_t>();
  for (const auto& attr : json.at("attrs")) c.attrs.push_back(std::bit_cast<double>(attr.get<uint64_t>()));
  for (const auto& name : json.at("optionals")) c.optionals.insert(name.get<std::string>());
  c.input_mode = static_cast<InputMode>(json.at("input_mode").get<int>());
  c.constant_value = std::bit_cast<double>(json.at("constant_value").get<uint64_t>());
  c.token_value = json.at("token_value").get<int64_t>();
  c.ignored_every = json.at("ignored_every").get<int64_t>();
  c.ignored_run = json.at("ignored_run").get<int64_t>();
  c.part_bounds = json.at("shard_bounds").get<std::vector<int64_t>>();
  c.grad_mode = static_cast<GradMode>(json.at("grad_mode").get<int>());
  c.seed = json.at("seed").get<uint64_t>();
  c.grad_seed = json.at("grad_seed").get<uint64_t>();
  return c;
}

json encode(const RunChecks& checks) {
  return {checks.determinism,      checks.invariance,         checks.memory,  checks.plan.all,    checks.plan.runs,
          checks.plan.axes.bits(), checks.rank_limit.count(), checks.outputs, checks.plan.layouts};
}

RunChecks decode_checks(const json& json) {
  return {json.at(0).get<bool>(),
          json.at(1).get<bool>(),
          json.at(2).get<bool>(),
          {json.at(3).get<bool>(), json.at(4).get<int>(), AxisSet::from_bits(json.at(5).get<uint32_t>()),
           json.at(8).get<bool>()},
          std::chrono::milliseconds(json.at(6).get<int64_t>()),
          json.at(7).get<bool>()};
}

json encode(const RankRun& rank) { return {rank.rank, rank.device, rank.host, rank.process, rank.ms, rank.message}; }

RankRun decode_rank(const json& json) {
  return {json.at(0).get<int32_t>(), json.at(1).get<std::string>(), json.at(2).get<std::string>(),
          json.at(3).get<int64_t>(), json.at(4).get<double>(),      json.at(5).get<std::string>()};
}

json encode(const RunResult& result) {
  json contexts = json::array();
  for (const ContextRun& context : result.contexts) {
    contexts.push_back(
        {static_cast<int>(context.axis), context.what, context.supported, context.message, context.rows});
  }
  json outputs = json::array();
  for (const OutputRun& output : result.outputs) {
    json bits = json::array();
    for (const ContextBits& context : output.contexts) {
      bits.push_back({encode_bits(context.bits), context.row_zero_different});
    }
    outputs.push_back({{"unwritten", output.unwritten},
                       {"first_unwritten", output.first_unwritten},
                       {"repeat", encode_bits(output.repeat)},
                       {"contexts", bits},
                       {"smallest_rows", output.smallest_rows}});
  }
  json ranks = json::array();
  for (const RankRun& rank : result.ranks) ranks.push_back(encode(rank));
  return {{"status", static_cast<int>(result.status)},
          {"message", result.message},
          {"outputs", outputs},
          {"contexts", contexts},
          {"guard_violations", result.guard_violations},
          {"modified_inputs", result.modified_inputs},
          {"unobserved", result.unobserved},
          {"rank_differences", result.rank_differences},
          {"ranks", ranks},
          {"rank_gone", result.rank_gone},
          {"device_lost", result.device_lost},
          {"transfer_ms", result.transfer_ms},
          {"run_ms", result.run_ms}};
}

RunResult decode_result(const json& json) {
  RunResult result;
  result.status = decode_status(json.at("status"));
  result.message = json.at("message").get<std::string>();
  for (const auto& item : json.at("outputs")) {
    OutputRun output;
    output.unwritten = item.at("unwritten").get<int64_t>();
    output.first_unwritten = item.at("first_unwritten").get<int64_t>();
    output.repeat = decode_bits(item.at("repeat"));
    for (const auto& context : item.at("contexts")) {
      output.contexts.push_back({decode_bits(context.at(0)), context.at(1).get<int64_t>()});
    }
    output.smallest_rows = item.at("smallest_rows").get<int64_t>();
    result.outputs.push_back(std::move(output));
  }
  for (const auto& item : json.at("contexts")) {
    const int axis = item.at(0).get<int>();
    if (axis < 0 || axis >= kAxes) throw WireError("a context of no known axis");
    result.contexts.push_back({static_cast<Axis>(axis), item.at(1).get<std::string>(), item.at(2).get<bool>(),
                               item.at(3).get<std::string>(), item.at(4).get<int64_t>()});
  }
  for (const auto& item : json.at("ranks")) result.ranks.push_back(decode_rank(item));
  result.rank_gone = json.at("rank_gone").get<std::string>();
  result.guard_violations = json.at("guard_violations").get<std::vector<std::string>>();
  result.modified_inputs = json.at("modified_inputs").get<std::vector<std::string>>();
  result.unobserved = json.at("unobserved").get<std::string>();
  result.rank_differences = json.at("rank_differences").get<std::vector<std::string>>();
  result.device_lost = json.at("device_lost").get<bool>();
  result.transfer_ms = json.at("transfer_ms").get<double>();
  result.run_ms = json.at("run_ms").get<double>();
  return result;
}

json encode(const BenchPlan& plan) { return {plan.repeats, plan.burst, plan.sustained, plan.sustained_ms}; }

BenchPlan decode_plan(const json& json) {
  return {json.at(0).get<int>(), json.at(1).get<bool>(), json.at(2).get<bool>(), json.at(3).get<double>()};
}

json encode(const BenchResult& result) {
  json runs = json::array();
  for (const BenchRun& run : result.runs) {
    json ranks = json::array();
    for (const BenchRank& rank : run.ranks)
      ranks.push_back({rank.device, rank.workspace_bytes, rank.burst_ms, rank.sustained_ms});
    runs.push_back({{"status", static_cast<int>(run.status)},
                    {"message", run.message},
                    {"burst_ms", run.burst_ms},
                    {"sustained_ms", run.sustained_ms},
                    {"workspace_bytes", run.workspace_bytes},
                    {"overruled", run.overruled},
                    {"ranks", ranks},
                    {"seen", encode(run.seen)},
                    {"kept", run.kept}});
  }
  return {{"status", static_cast<int>(result.status)},
          {"message", result.message},
          {"runs", runs},
          {"copy_gbps", result.copy_gbps},
          {"device_lost", result.device_lost}};
}

BenchResult decode_bench(const json& json) {
  BenchResult result;
  result.status = decode_status(json.at("status"));
  result.message = json.at("message").get<std::string>();
  for (const auto& item : json.at("runs")) {
    BenchRun run;
    run.status = decode_status(item.at("status"));
    run.message = item.at("message").get<std::string>();
    run.burst_ms = item.at("burst_ms").get<std::vector<double>>();
    run.sustained_ms = item.at("sustained_ms").get<std::vector<double>>();
    run.workspace_bytes = item.at("workspace_bytes").get<double>();
    run.overruled = item.at("overruled").get<int64_t>();
    for (const auto& rank : item.at("ranks")) {
      run.ranks.push_back({rank.at(0).get<std::string>(), rank.at(1).get<double>(),
                           rank.at(2).get<std::vector<double>>(), rank.at(3).get<std::vector<double>>()});
    }
    run.seen = decode_result(item.at("seen"));
    run.kept = item.at("kept").get<std::vector<int64_t>>();
    result.runs.push_back(std::move(run));
  }
  result.copy_gbps = json.at("copy_gbps").get<double>();
  result.device_lost = json.at("device_lost").get<bool>();
  return result;
}

json encode(const DeviceInfo& info) {
  return {{"kind", info.kind},
          {"index", info.index},
          {"name", info.name},
          {"arch_key", info.arch_key},
          {"arch", info.arch},
          {"multiprocessors", info.multiprocessors},
          {"memory_bytes", info.memory_bytes},
          {"free_bytes", info.free_bytes},
          {"driver", info.driver},
          {"runtime", info.runtime},
          {"most_ranks", info.most_ranks},
          {"ranks_limit", info.ranks_limit},
          {"transport", info.transport}};
}

DeviceInfo decode_device(const json& json) {
  DeviceInfo info;
  info.kind = json.at("kind").get<std::string>();
  info.index = json.at("index").get<int>();
  info.name = json.at("name").get<std::string>();
  info.arch_key = json.at("arch_key").get<std::string>();
  info.arch = json.at("arch").get<int>();
  info.multiprocessors = json.at("multiprocessors").get<int>();
  info.memory_bytes = json.at("memory_bytes").get<uint64_t>();
  info.free_bytes = json.at("free_bytes").get<uint64_t>();
  info.driver = json.at("driver").get<std::string>();
  info.runtime = json.at("runtime").get<std::string>();
  info.most_ranks = json.at("most_ranks").get<int64_t>();
  info.ranks_limit = json.at("ranks_limit").get<std::string>();
  info.transport = json.at("transport").get<std::string>();
  return info;
}

void share_most(std::vector<Tensor>& outputs) {
  size_t beside = 0;
  for (Tensor& output : outputs) {
    if (output.bytes.fd() >= 0) continue;
    if (beside + output.bytes.size() > kMostBytesBeside) {
      output.bytes.share();
    } else {
      beside += output.bytes.size();
    }
  }
}

json encode(const std::vector<Tensor>& tensors, Role role, TensorMemory& memory) {
  json list = json::array();
  for (const Tensor& tensor : tensors) {
    list.push_back({{"name", tensor.name}, {"dtype", static_cast<int>(tensor.dtype)}, {"shape", tensor.shape}});
    if (tensor.bytes.size() == 0) continue;  // no rows: no memory
    const Bytes* bytes = &tensor.bytes;
    if (role == Role::input && bytes->fd() < 0 && memory.bytes.size() + bytes->size() > kMostBytesBeside) {
      bytes = &memory.copies.emplace_back(bytes->size());
      std::memcpy(memory.copies.back().data(), tensor.bytes.data(), tensor.bytes.size());
      bytes->forbid_writes_by_others();
    }
    const bool is_shared = bytes->fd() >= 0;
    list.back()["shared"] = is_shared;
    if (is_shared) {
      memory.descriptors.push_back(bytes->fd());
    } else if (role == Role::input) {
      memory.bytes.append(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    }
  }
  return list;
}

std::vector<Tensor> decode_tensors(const json& json, Role role, ArrivedMemory& memory) {
  std::vector<Tensor> tensors;
  for (const auto& item : json) {
    Tensor tensor;
    tensor.name = item.at("name").get<std::string>();
    const int dtype = item.at("dtype").get<int>();
    if (dtype < 0 || dtype >= std::ssize(kDTypes)) throw WireError("a tensor of no known dtype");
    tensor.dtype = static_cast<DType>(dtype);
    tensor.shape = item.at("shape").get<Shape>();
    const size_t bytes = static_cast<size_t>(tensor.count()) * info(tensor.dtype).bytes;
    if (!tensor.name.empty() && bytes > 0) {
      if (item.at("shared").get<bool>()) {
        std::vector<Descriptor>& descriptors = memory.message.descriptors;
        if (memory.descriptors >= descriptors.size()) throw WireError("no descriptor for tensor '" + tensor.name + "'");
        tensor.bytes = Bytes::map(descriptors[memory.descriptors++].release(), bytes, role == Role::output);
      } else {
        tensor.bytes = Bytes::of_own(bytes);
        if (role == Role::input) take(memory.message.bytes, memory.bytes, tensor);
      }
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string own_bytes(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes.fd() < 0) bytes.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return bytes;
}

void take_own_bytes(std::string_view bytes, std::vector<Tensor>& tensors) {
  size_t used = 0;
  for (Tensor& tensor : tensors) {
    if (tensor.bytes.fd() < 0) take(bytes, used, tensor);
  }
  if (used != bytes.size()) throw WireError("more bytes arrived than its tensors have");
}

}  // namespace checkop
