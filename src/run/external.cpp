// SPDX-License-Identifier: Apache-2.0
// Requests to a candidate's process, and its answers.
#include "run/external.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/json.hpp"
#include "base/text.hpp"
#include "operator/operator.hpp"
#include "run/stage.hpp"
#include "tensor/safetensors.hpp"

namespace checkop {
namespace {

using nlohmann::json;

constexpr int kProtocol = 1;
/// Alignment of candidates' buffers in all contexts but those of the alignment axis.
constexpr uintptr_t kAlignment = 256;

std::string one_line(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

/// JSON has no infinity and no NaN, so these become strings.
json number(double value) { return std::isfinite(value) ? json(value) : json(fmt::format("{}", value)); }

/// The device that the process names; without one, the CPU.
DeviceInfo read_device(const JsonValue& answer) {
  DeviceInfo device;
  device.kind = "cpu";
  const auto said = answer.find("device");
  if (!said) return device;
  said->allow_keys({"kind", "index", "name", "arch", "multiprocessors", "memory_bytes", "driver", "runtime"});
  constexpr int64_t kMost = 1 << 20;
  const auto text = [&](const char* key) { return said->has(key) ? said->at(key).string() : ""; };
  const auto count = [&](const char* key) {
    return said->has(key) ? static_cast<int>(said->at(key).integer(0, kMost)) : 0;
  };
  device.kind = said->at("kind").one_of("kind of device", {"cpu", "cuda"});
  device.index = count("index");
  device.name = text("name");
  device.arch = count("arch");
  if (device.arch > 0) device.arch_key = fmt::format("sm{}", device.arch);
  device.multiprocessors = count("multiprocessors");
  if (said->has("memory_bytes")) device.memory_bytes = static_cast<uint64_t>(said->at("memory_bytes").integer(0));
  device.driver = text("driver");
  device.runtime = text("runtime");
  return device;
}

/// The digest that the process gives of its functions, which a command need not name; without one, the command's.
std::string digest_of(const JsonValue& answer, const std::string& command) {
  const auto said = answer.find("digest");
  if (!said) return command_digest(command);
  std::string digest = said->string();
  constexpr size_t kDigits = 16;
  if (digest.size() != kDigits || digest.find_first_not_of("0123456789abcdef") != std::string::npos)
    said->fail("16 hex digits");
  return digest;
}

const Operator& require_operator(const JsonValue& name) {
  if (const Operator* op = find_operator(name.string())) return *op;
  std::vector<std::string> known;
  for (const Operator* op : operators()) known.emplace_back(op->name);
  const std::string nearest = did_you_mean(name.string(), known);
  throw InputError(name.where(), fmt::format("unknown operator '{}'", name.string()),
                   nearest.empty() ? "see 'check_operator list', or give it a case with --inputs and --gold" : nearest);
}

void require_wanted_device(const std::string& where, const std::string& wanted, const DeviceInfo& device) {
  const std::string is = device.kind == "cpu" ? "cpu" : fmt::format("cuda:{}", device.index);
  if (wanted == "auto" || wanted == is) return;
  throw InputError(where, fmt::format("computes on '{}', and '{}' was asked for", is, wanted),
                   "choose another --device, or have it heed the one in the first request");
}

/// Why a tensor can't be passed as a file; "" if it can.
std::string why_not_portable(const checkop_tensor& tensor) {
  int64_t stride = 1;
  for (int32_t i = tensor.rank; i-- > 0; stride *= tensor.shape[i]) {
    if (tensor.shape[i] > 1 && tensor.strides[i] != stride) return "a file has no strides: rows can't lie apart";
  }
  if (reinterpret_cast<uintptr_t>(tensor.data) % kAlignment != 0) return "a file has no alignment of memory";
  return "";
}

/// Reads the process's outputs into the call's outputs. Returns what is wrong with them; "" if nothing is.
std::string take_outputs(const std::string& path, const Pass& pass, const checkop_call& call) {
  try {
    const SafetensorsReader file(path, "write the outputs to the file that the request names");
    for (int32_t i = 0; i < call.n_outputs; ++i) {
      const checkop_tensor& output = call.outputs[i];
      if (output.data == nullptr) continue;
      const std::string name(pass.outputs[static_cast<size_t>(i)].tensor.name);
      const SafetensorsEntry* entry = file.find(name);
      if (entry == nullptr) return fmt::format("it wrote no output '{}'", name);
      const Shape shape(output.shape, output.shape + output.rank);
      const DType dtype = static_cast<DType>(output.dtype);
      if (entry->dtype != dtype || entry->shape != shape) {
        return fmt::format("its output '{}' is {} {}, expected {} {}", name, info(entry->dtype).name,
                           to_string(entry->shape), info(dtype).name, to_string(shape));
      }
      file.read(*entry, static_cast<std::byte*>(output.data));
    }
    return "";
  } catch (const InputError& e) {
    return fmt::format("its outputs can't be read: {}", e.what());
  }
}

void tell(const checkop_call& call, const std::string& message) {
  if (call.message_bytes == 0) return;
  const size_t n = std::min(message.size(), call.message_bytes - 1);
  std::memcpy(call.message, message.data(), n);
  call.message[n] = '\0';
}

/// The files of one request. Removed after it, so that no later request can find them.
struct RequestFiles {
  std::string inputs, outputs;
  ~RequestFiles() {
    unlink(inputs.c_str());
    unlink(outputs.c_str());
  }
};

json describe_outputs(const Pass& pass, const checkop_call& call) {
  json outputs = json::array();
  for (int32_t i = 0; i < call.n_outputs; ++i) {
    const checkop_tensor& output = call.outputs[i];
    if (output.data == nullptr) continue;
    outputs.push_back({{"name", pass.outputs[static_cast<size_t>(i)].tensor.name},
                       {"dtype", info(static_cast<DType>(output.dtype)).safetensors},
                       {"shape", Shape(output.shape, output.shape + output.rank)}});
  }
  return outputs;
}

/// If the operator's forward pass is unknown, the outputs whose upstream gradients are inputs.
json names_of_forward_outputs(const Operator& op) {
  json names = json::array();
  if (op.passes.front().name != "forward") {
    for (const TensorSpec& spec : op.passes.front().inputs) {
      if (spec.name.starts_with("grad_")) names.push_back(spec.name.substr(5));
    }
    return names;
  }
  for (const OutputSpec& spec : op.passes.front().outputs) names.push_back(spec.tensor.name);
  return names;
}

void write_inputs(const std::string& path, const Pass& pass, const checkop_call& call) {
  std::vector<SafetensorsEntry> entries;
  for (int32_t i = 0; i < call.n_inputs; ++i) {
    const checkop_tensor& input = call.inputs[i];
    if (input.data == nullptr) continue;
    entries.push_back({std::string(pass.inputs[static_cast<size_t>(i)].name), static_cast<DType>(input.dtype),
                       Shape(input.shape, input.shape + input.rank)});
  }
  SafetensorsWriter file(path, entries, {});
  size_t next = 0;
  for (int32_t i = 0; i < call.n_inputs; ++i) {
    if (call.inputs[i].data == nullptr) continue;
    const SafetensorsEntry& entry = entries[next++];
    file.write(entry.name, 0, call.inputs[i].data,
               static_cast<size_t>(element_count(entry.shape)) * info(entry.dtype).bytes);
  }
}

}  // namespace

/// `entry` must be the first member: a call's `kernel` points to it.
struct External::Kernel {
  checkop_kernel entry;
  External* owner;
  const Operator* op;
  const Pass* pass;
};

std::string ExternalCommand::flag() const {
  if (!given.empty()) return given;
  return command.empty() ? fmt::format("--exec-fd {}", descriptor) : fmt::format("--exec '{}'", command);
}

External::External(const ExternalCommand& command, int socket) : folder_(command.folder) {
  const std::string where = command.flag();
  if (!command.command.empty()) {
    process_ = std::make_unique<LineProcess>(command.command, stderr_file(command));
  } else if (LineSocket::is_socket(socket)) {
    process_ = std::make_unique<LineSocket>(socket);
    outlives_us_ = true;
    // Ids that no earlier worker used, whose requests the other end may still be answering.
    requests_ = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
  } else {
    throw InputError(where, "is no socket that this process inherited", "pass one on, or use --exec COMMAND");
  }
  std::string line;
  try {
    line =
        ask(requests_, one_line({{"hello", {{"protocol", kProtocol}, {"device", command.device}, {"id", requests_}}}}));
  } catch (const ProcessEnded& e) {
    throw InputError(where, e.what(), "it should answer the first line with what it can do");
  }
  const JsonValue answer = JsonValue::parse(line, where);
  if (const auto lacking = answer.find("no_device"))
    throw EnvironmentError(fmt::format("{}: {}", where, lacking->string()));
  if (const auto error = answer.find("error")) throw InputError(where, error->string());
  answer.allow_keys({"protocol", "device", "kernels", "digest", "id"});
  answer.at("protocol").integer(kProtocol, kProtocol);
  device_ = read_device(answer);
  require_wanted_device(where, command.device, device_);
  const int32_t kind = device_.kind == "cuda" ? CHECKOP_CUDA : CHECKOP_CPU;
  const std::string path = command.command.empty() ? where : command.command;
  const std::string digest = digest_of(answer, path);
  for (const JsonValue& item : answer.at("kernels").items()) {
    item.allow_keys({"op", "pass", "recipes"});
    const JsonValue name = item.at("op");
    const Operator& op = require_operator(name);
    std::vector<std::string> passes;
    for (const Pass& pass : op.passes) passes.emplace_back(pass.name);
    const Pass& pass = *find_pass(op, item.at("pass").one_of("pass", passes));
    const auto same = [&](const Candidate& each) { return each.op == op.name && each.pass == pass.name; };
    if (std::any_of(candidates_.begin(), candidates_.end(), same)) item.fail("each operator and pass once");
    auto kernel = std::make_unique<Kernel>();
    *kernel = {{sizeof(checkop_kernel), command.name.c_str(), op.name.data(), pass.name.data(), kind, 0, 0, nullptr,
                &External::launch},
               this,
               &op,
               &pass};
    std::vector<std::string> recipes;
    if (const auto declared = item.find("recipes")) {
      for (const JsonValue& recipe : declared->items()) recipes.push_back(recipe.string());
      require_recipes(declared->where(), op, recipes);
    }
    candidates_.push_back(
        {command.name, std::string(op.name), std::string(pass.name), path, digest, &kernel->entry, std::move(recipes)});
    kernels_.push_back(std::move(kernel));
  }
  if (candidates_.empty()) throw InputError(where, "reports no kernels", "name operators in its first answer");
}

External::~External() = default;

std::unique_ptr<Device> External::open_device() const {
  return device_.kind == "cuda" ? open_cpu_device(device_) : open_cpu_device();
}

checkop_status External::launch(const checkop_call* call) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(call->kernel);
  return kernel.owner->run(kernel, *call);
}

/// The answer to the request with this id. A socket may hold the late answers to a worker that was killed while it
/// waited; those have other ids.
std::string External::ask(int64_t id, const std::string& request) {
  const auto is_late = [&](const std::string& line) {
    const json answer = json::parse(line, nullptr, /*allow_exceptions=*/false);
    return answer.is_object() && answer.contains("id") && answer["id"].is_number_integer() && answer["id"] != id;
  };
  std::string line = process_->request(request);
  while (outlives_us_ && is_late(line)) line = process_->next_line();
  return line;
}

checkop_status External::run(const Kernel& kernel, const checkop_call& call) {
  if (call.world_size > 1) {
    tell(call, "a command of --exec is one process and has no ranks; use --world-size 1");
    return CHECKOP_UNSUPPORTED;
  }
  for (const auto& [tensors, n] : {std::pair{call.inputs, call.n_inputs}, {call.outputs, call.n_outputs}}) {
    for (int32_t i = 0; i < n; ++i) {
      const std::string why = tensors[i].data == nullptr ? "" : why_not_portable(tensors[i]);
      if (why.empty()) continue;
      tell(call, why);
      return CHECKOP_UNSUPPORTED;
    }
  }
  const int64_t id = ++requests_;
  const RequestFiles files{fmt::format("{}/inputs-{}.safetensors", folder_, id),
                           fmt::format("{}/outputs-{}.safetensors", folder_, id)};
  try {
    write_inputs(files.inputs, *kernel.pass, call);
  } catch (const InputError& e) {
    throw Stopped{RunStatus::no_device, fmt::format("the inputs can't be handed over: {}", e.what())};
  }
  json attrs = json::object();
  for (int32_t i = 0; i < call.n_attrs; ++i) attrs[call.attrs[i].name] = number(call.attrs[i].value);
  const json request{{"id", id},
                     {"op", kernel.op->name},
                     {"pass", kernel.pass->name},
                     {"attrs", attrs},
                     {"inputs", files.inputs},
                     {"outputs", files.outputs},
                     {"want", describe_outputs(*kernel.pass, call)},
                     {"forward_outputs", names_of_forward_outputs(*kernel.op)}};
  try {
    const std::string line = ask(id, one_line({{"run", request}}));
    std::string status, message;
    try {
      const JsonValue answer = JsonValue::parse(line, "its answer");
      answer.allow_keys({"id", "status", "message"});
      answer.at("id").integer(id, id);
      status = answer.at("status").one_of("status", {"ok", "unsupported", "failed"});
      if (answer.has("message")) message = answer.at("message").string();
    } catch (const InputError& e) {
      process_->give_up(fmt::format("{}: '{}'", e.what(), line.substr(0, 200)));
    }
    if (status == "ok") {
      if (const std::string wrong = take_outputs(files.outputs, *kernel.pass, call); !wrong.empty()) {
        status = "failed";
        message = wrong;
      }
    }
    tell(call, message);
    return status == "ok" ? CHECKOP_OK : status == "failed" ? CHECKOP_FAILED : CHECKOP_UNSUPPORTED;
  } catch (const ProcessEnded& e) {
    throw Stopped{RunStatus::crashed, e.what()};
  }
}

std::string command_digest(const std::string& command) {
  std::string all = command;
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    std::erase_if(word, [](char c) { return c == '\'' || c == '"'; });
    std::error_code ignored;
    if (std::filesystem::is_regular_file(word, ignored) && access(word.c_str(), R_OK) == 0)
      all += "\n" + file_digest(word);
  }
  return fnv1a_hex(all);
}

std::string stderr_file(const ExternalCommand& command) { return command.folder + "/stderr"; }

}  // namespace checkop
