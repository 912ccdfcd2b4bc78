// SPDX-License-Identifier: Apache-2.0
// Requests to a candidate's process, and its answers.
#include "run/external.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/host_memory.hpp"
#include "base/json.hpp"
#include "base/paths.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "operator/operator.hpp"
#include "run/stage.hpp"
#include "tensor/safetensors.hpp"

namespace checkop {
namespace {

using nlohmann::json;

constexpr int kProtocol = 2;
/// Alignment of candidates' buffers in all contexts but those of the alignment axis.
constexpr uintptr_t kAlignment = 256;

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
  uint64_t value = 0;
  const char* const end = digest.data() + digest.size();
  const auto [read, error] = std::from_chars(digest.data(), end, value, 16);
  if (error != std::errc() || read != end || fmt::format("{:016x}", value) != digest) said->fail("16 hex digits");
  return digest;
}

const Operator& require_operator(const JsonValue& name) {
  if (const Operator* op = find_operator(name.string())) return *op;
  std::vector<std::string> known;
  for (const Operator* op : operators()) known.emplace_back(op->name);
  const std::string nearest = did_you_mean(name.string(), known);
  throw InputError(
      name.where(), fmt::format("unknown operator '{}'", name.string()),
      nearest.empty()
          ? "see 'check_operator list'; an operator of your own is named with --op, beside --inputs and --gold"
          : nearest);
}

void require_wanted_device(const std::string& where, const std::string& wanted, const DeviceInfo& device) {
  const std::string is = device.kind == "cpu" ? "cpu" : fmt::format("cuda:{}", device.index);
  if (wanted == "auto" || wanted == is) return;
  throw InputError(where, fmt::format("computes on '{}', and '{}' was asked for", is, wanted),
                   "choose another --device, or have it heed the one in the first request");
}

/// Why a tensor can't be passed as a file; "" if it can.
std::string why_not_portable(const checkop_tensor& tensor) {
  if (!checkop_is_contiguous(&tensor)) return "a file has no strides";
  if (reinterpret_cast<uintptr_t>(tensor.data) % kAlignment != 0) return "a file has no alignment of memory";
  return "";
}

/// Reads the process's outputs into the call's outputs. Returns what is wrong with them; "" if nothing is.
std::string take_outputs(const std::string& path, const Pass& pass, const checkop_call& call) {
  try {
    // A link could lead to what the process itself can't read.
    const SafetensorsReader file(path, "write the outputs to the file that the request names",
                                 SafetensorsReader::Links::refused);
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
  std::memcpy(call.message, in_one_line(message).data(), n);
  call.message[n] = '\0';
}

/// The files of one request; no names if it has none. Removed after it, so that no later request can find them.
struct RequestFiles {
  std::string inputs, outputs;
  ~RequestFiles() {
    for (const std::string& each : {inputs, outputs}) {
      if (!each.empty()) unlink(each.c_str());
    }
  }
};

/// Where the tensors of a call lie in arenas.
json describe_tensors(const Pass& pass, const checkop_call& call, const SharedMemory& shared) {
  json tensors = json::array();
  const auto add = [&](const checkop_tensor& tensor, std::string_view name, const char* role) {
    if (tensor.data == nullptr) return;
    const SharedMemory::Place place = shared.find(static_cast<const std::byte*>(tensor.data)).value();
    tensors.push_back({{"name", name},
                       {"role", role},
                       {"dtype", info(static_cast<DType>(tensor.dtype)).safetensors},
                       {"shape", Shape(tensor.shape, tensor.shape + tensor.rank)},
                       {"strides", Shape(tensor.strides, tensor.strides + tensor.rank)},
                       {"arena", place.arena},
                       {"offset", place.offset}});
  };
  for (int32_t i = 0; i < call.n_inputs; ++i) add(call.inputs[i], pass.inputs[static_cast<size_t>(i)].name, "input");
  for (int32_t i = 0; i < call.n_outputs; ++i)
    add(call.outputs[i], pass.outputs[static_cast<size_t>(i)].tensor.name, "output");
  return tensors;
}

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

/// Whether the call has a tensor of this name.
bool has_tensor(const Pass& pass, const checkop_call& call, std::string_view name) {
  for (int32_t i = 0; i < call.n_inputs; ++i)
    if (call.inputs[i].data != nullptr && pass.inputs[static_cast<size_t>(i)].name == name) return true;
  for (int32_t i = 0; i < call.n_outputs; ++i)
    if (call.outputs[i].data != nullptr && pass.outputs[static_cast<size_t>(i)].tensor.name == name) return true;
  return false;
}

/// The outputs of the forward pass in a case like this one, which has an optional one if it has its gradient. If the
/// operator has no forward pass here, the outputs whose upstream gradients are inputs.
json names_of_forward_outputs(const Operator& op, const Pass& pass, const checkop_call& call) {
  json names = json::array();
  if (op.passes.front().name != "forward") {
    for (const TensorSpec& spec : op.passes.front().inputs) {
      if (spec.name.starts_with("grad_")) names.push_back(spec.name.substr(5));
    }
    return names;
  }
  for (const OutputSpec& output : op.passes.front().outputs) {
    const TensorSpec& spec = output.tensor;
    if (!spec.optional || has_tensor(pass, call, spec.follows.empty() ? spec.name : spec.follows) ||
        has_tensor(pass, call, fmt::format("grad_{}", spec.name)))
      names.push_back(spec.name);
  }
  return names;
}

/// Whether an output is optional for a kernel, which may be right without it. What belongs to an input, as a gradient
/// does, is not: a kernel that takes the input computes it.
bool may_lack(const Pass& pass, const TensorSpec& spec) {
  return spec.optional && std::none_of(pass.inputs.begin(), pass.inputs.end(), [&](const TensorSpec& input) {
           return spec.follows == input.name || spec.name == fmt::format("d{}", input.name);
         });
}

/// The optional ones of the outputs that a request names: those that it asks for, and `forward_outputs`.
json names_of_optional_outputs(const Operator& op, const Pass& pass, const checkop_call& call,
                               const json& forward_outputs) {
  json names = json::array();
  for (int32_t i = 0; i < call.n_outputs; ++i) {
    const TensorSpec& spec = pass.outputs[static_cast<size_t>(i)].tensor;
    if (call.outputs[i].data != nullptr && may_lack(pass, spec)) names.push_back(spec.name);
  }
  const Pass& forward = op.passes.front();
  if (&pass == &forward) return names;
  for (const OutputSpec& output : forward.outputs) {
    const bool is_named =
        std::find(forward_outputs.begin(), forward_outputs.end(), output.tensor.name) != forward_outputs.end();
    if (is_named && may_lack(forward, output.tensor)) names.push_back(output.tensor.name);
  }
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

/// The transports that this build has, the best first.
std::vector<std::string> transports() {
  if (built_with_cuda()) return {"cuda_vmm", "memfd", "files"};
  return {"memfd", "files"};
}

/// The index of the GPU with this UUID. Throws EnvironmentError if there is none.
int find_cuda_device(const std::string& uuid) {
  for (int index = 0; index < cuda_device_count(); ++index) {
    if (!uuid.empty() && cuda_uuid(index) == uuid) return index;
  }
  // lint: allow message, it takes a GPU
  throw EnvironmentError("the process computes on a GPU that check_operator does not see");
}

}  // namespace

/// `entry` must be the first member: a call's `kernel` points to it.
struct External::Kernel {
  checkop_kernel entry;
  External* owner;
  const Operator* op;
  const Pass* pass;
  bool takes_strides, takes_any_ids;
};

namespace {

std::vector<std::string> names_of_outputs(const Pass& pass) {
  std::vector<std::string> names;
  for (const OutputSpec& spec : pass.outputs) names.emplace_back(spec.tensor.name);
  return names;
}

/// Caches of kernel compilers. The process gets new, empty folders for them, unless the user names some.
constexpr const char* kCaches[] = {"TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH", "TORCH_EXTENSIONS_DIR",
                                   "TORCHINDUCTOR_CACHE_DIR"};

bool may_use_gpu(const ExternalCommand& command) {
  return command.device != "cpu" && (command.device != "auto" || access("/dev/nvidiactl", F_OK) == 0);
}

/// The process reads what the user may read and writes to a folder of its own.
Confinement confinement_of(const ExternalCommand& command, const std::string& own_folder) {
  Confinement confinement;
  SandboxRules& rules = confinement.rules;
  rules.processes = SandboxRules::Processes::in_group;
  rules.reads_all = true;
  rules.hidden = command.hidden;
  rules.writable = {own_folder};
  rules.untouchable = {getpid(), getppid()};
  rules.uses_cuda = may_use_gpu(command);
  confinement.variables.push_back("TMPDIR=" + own_folder);
  for (const std::string name : kCaches) {
    if (const std::string given = environment_variable(name.c_str()); !given.empty()) {
      std::error_code ignored;
      std::filesystem::create_directories(given, ignored);
      rules.writable.push_back(given);
    } else {
      confinement.variables.push_back(fmt::format("{}={}/{}", name, own_folder, name));
    }
  }
  return confinement;
}

}  // namespace

bool can_be_confined(const ExternalCommand& command) {
  if (command.command.empty()) return false;
  // The CUDA driver writes the names of its threads. The sandbox allows that only to the process that entered it, so
  // the command must replace its shell.
  return !may_use_gpu(command) || replaces_shell(command.command);
}

std::string ExternalCommand::flag() const {
  if (!given.empty()) return given;
  return command.empty() ? fmt::format("--exec-fd {}", descriptor) : fmt::format("--exec '{}'", command);
}

External::External(const ExternalCommand& command, int socket)
    : folder_(command.folder), own_folder_(command.folder + "/own") {
  const std::string where = command.flag();
  if (!command.command.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(own_folder_, ignored);  // what an earlier process left
    mkdir(own_folder_.c_str(), 0700);
    std::optional<Confinement> confinement;
    if (command.is_confined) confinement = confinement_of(command, own_folder_);
    auto process = std::make_unique<LineProcess>(command.command, stderr_file(command), confinement);
    // The CUDA driver maps more memory than there is, so a process that may use a GPU has no limit.
    if (command.is_confined && !may_use_gpu(command)) confined_ = process->id();
    process_ = std::move(process);
  } else if (LineSocket::is_socket(socket)) {
    process_ = std::make_unique<LineSocket>(socket);
    outlives_us_ = true;
    // Ids that no earlier worker used, whose requests the other end may still be answering.
    requests_ = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
  } else {
    throw InputError(where, "is no socket that this process inherited", "pass one on, or use --exec COMMAND");
  }
  const json hello{{"protocol", 1},  // what copies of an older serving.py look for
                   {"protocols", {1, kProtocol}},
                   {"device", command.device},
                   {"transports", transports()},
                   {"id", requests_}};
  try {
    read_hello(command, JsonValue::parse(ask({{"hello", hello}}, "id", requests_), where + ": its first answer"));
  } catch (const ProcessEnded& e) {
    throw InputError(where, e.what(), "it should answer the first line with what it can do");
  }
}

External::~External() = default;

uint64_t External::memory() const { return confined_ == 0 ? 0 : process_memory(confined_); }

void External::limit_memory(uint64_t has, uint64_t bytes) {
  if (confined_ != 0) limit_process_memory(confined_, has, bytes);
}

void External::read_hello(const ExternalCommand& command, const JsonValue& answer) {
  const std::string where = command.flag();
  if (const auto lacking = answer.find("no_device"))
    throw EnvironmentError(fmt::format("{}: {}", where, lacking->string()));
  if (const auto error = answer.find("error")) throw InputError(where, error->string());
  protocol_ = static_cast<int>(answer.at("protocol").integer(1, kProtocol));
  if (protocol_ == 1) answer.allow_keys({"protocol", "device", "kernels", "digest", "id"});
  const DeviceInfo device = read_device(answer);
  require_wanted_device(where, command.device, device);
  const int32_t kind = device.kind == "cuda" ? CHECKOP_CUDA : CHECKOP_CPU;
  const std::string path = command.command.empty() ? where : command.command;
  const std::string digest = digest_of(answer, path);
  for (const JsonValue& item : answer.at("kernels").items()) {
    if (protocol_ == 1) item.allow_keys({"op", "pass", "recipes"});
    const JsonValue name = item.at("op");
    const Operator& op = require_operator(name);
    std::vector<std::string> passes;
    for (const Pass& pass : op.passes) passes.emplace_back(pass.name);
    const Pass& pass = *find_pass(op, item.at("pass").one_of("pass", passes));
    const auto same = [&](const Candidate& each) { return each.op == op.name && each.pass == pass.name; };
    if (std::any_of(candidates_.begin(), candidates_.end(), same)) item.fail("each operator and pass once");
    const auto says = [&](const char* key) {
      const auto said = item.find(key);
      return said && said->boolean();
    };
    auto kernel = std::make_unique<Kernel>();
    *kernel = {{sizeof(checkop_kernel), command.name.c_str(), op.name.data(), pass.name.data(), kind, 0, 0, nullptr,
                &External::launch},
               this,
               &op,
               &pass,
               says("strides"),
               says("any_ids")};
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
  open_memory(device, answer);
}

/// Opens the device whose memory the process will map, by the first transport that both sides have.
void External::open_memory(const DeviceInfo& said, const JsonValue& answer) {
  std::vector<std::string> refusals;
  if (protocol_ == 1) refusals.push_back("the process speaks protocol 1");
  if (const auto why = answer.find("why")) refusals.push_back(why->string());
  bool is_open = false;
  for (const std::string transport : {"cuda_vmm", "memfd"})
    is_open = is_open || open_transport(transport, said, answer, refusals);
  if (!is_open) device_ = said.kind == "cuda" ? open_cpu_device(said) : open_cpu_device();
  const std::string transport = is_open ? shared_->transport() : "files";
  device_->note_transport(refusals.empty() ? transport : fmt::format("{}; {}", transport, fmt::join(refusals, "; ")));
}

/// Whether `transport` works; if both sides should have it and it does not, adds why to `refusals`.
bool External::open_transport(const std::string& transport, const DeviceInfo& said, const JsonValue& answer,
                              std::vector<std::string>& refusals) {
  const auto offers = [&](const JsonValue& each) { return each.string() == transport; };
  const auto offered = protocol_ > 1 ? answer.at("transports").items() : std::vector<JsonValue>();
  if (std::none_of(offered.begin(), offered.end(), offers)) return false;
  try {
    if (transport == "memfd") {
      device_ = said.kind == "cuda" ? open_cpu_device(said) : open_cpu_device();
    } else {
      device_ = open_cuda_device(find_cuda_device(answer.at("gpu_uuid").string()));
    }
    const auto read_only = answer.find("read_only_inputs");
    shared_ = device_->share_memory(read_only && read_only->boolean());
    std::byte* const probe = device_->allocate_shared(1, "a first arena", Access::write);
    const std::string refusal = share(shared_->find(probe).value().arena);
    device_->free(probe);
    if (refusal.empty()) return true;
    refusals.push_back(fmt::format("no {}: {}", transport, refusal));
  } catch (const EnvironmentError& e) {
    refusals.push_back(fmt::format("no {}: {}", transport, e.what()));
  } catch (const DeviceError& e) {
    refusals.push_back(fmt::format("no {}: {}", transport, e.what()));
  }
  shared_.reset();
  device_.reset();
  return false;
}

/// The answer to a request, which repeats the request's `key`. A socket may hold late answers to an earlier worker that
/// was killed while it waited. These have other ids, or name arenas before this worker has any.
std::string External::ask(const json& request, const std::string& key, int64_t value,
                          const std::vector<int>& descriptors) {
  const auto is_late = [&](const std::string& line) {
    const json answer = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto has_other = [&](const char* name) {
      return answer.contains(name) && answer[name].is_number_integer() && (key != name || answer[name] != value);
    };
    return answer.is_object() && (has_other("id") || has_other("arena"));
  };
  std::string line = process_->request(json_line(request), descriptors);
  while (outlives_us_ && is_late(line)) line = process_->next_line();
  return line;
}

/// An answer to a launch or about an arena. Throws ProcessEnded if it is none.
JsonValue External::parsed(const std::string& line) {
  try {
    return JsonValue::parse(line, "its answer");
  } catch (const InputError& e) {
    process_->give_up(fmt::format("{}: '{}'", e.what(), line.substr(0, 200)));
  }
}

/// Has the process map an arena. Returns why it does not; "" if it has.
std::string External::share(int64_t id) {
  const Arena& arena = shared_->arena(id);
  const Descriptor descriptor = arena.open();
  const json request{{"id", id},
                     {"bytes", arena.bytes()},
                     {"access", arena.is_read_only() ? "r" : "rw"},
                     {"transport", shared_->transport()}};
  const JsonValue answer = parsed(ask({{"arena", request}}, "arena", id, {descriptor.get()}));
  try {
    answer.at("arena").integer(id, id);
    if (answer.at("status").one_of("status", {"mapped", "refused"}) == "mapped") {
      mapped_.insert(id);
      return "";
    }
    return answer.at("message").string();
  } catch (const InputError& e) {
    process_->give_up(fmt::format("{}: '{}'", e.what(), json_line(answer.raw()).substr(0, 200)));
  }
}

/// Tells the process to map the arenas of a call's tensors, and to unmap arenas that no longer exist. Returns why it
/// can't; "" if it could.
std::string External::share_arenas(const checkop_call& call) {
  for (const int64_t id : shared_->take_gone()) {
    if (mapped_.erase(id) > 0) ask({{"drop", {{"arena", id}}}}, "arena", id);
  }
  for (const auto& [tensors, n] : {std::pair{call.inputs, call.n_inputs}, {call.outputs, call.n_outputs}}) {
    for (int32_t i = 0; i < n; ++i) {
      if (tensors[i].data == nullptr) continue;
      const int64_t id = shared_->find(static_cast<const std::byte*>(tensors[i].data)).value().arena;
      if (mapped_.contains(id)) continue;
      if (std::string refusal = share(id); !refusal.empty()) return refusal;
    }
  }
  return "";
}

std::string External::take_unobserved() {
  const std::set<std::string> returned = std::exchange(returned_, {});
  if (!shared_) return "tensors go through files";
  return returned.empty() ? "" : fmt::format("the function returns {}", fmt::join(returned, ", "));
}

checkop_status External::launch(const checkop_call* call) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(call->kernel);
  return kernel.owner->run(kernel, *call);
}

/// Why the process can't get the tensors of a call; "" if it can.
std::string External::why_not_handed_over(const Kernel& kernel, const checkop_call& call) const {
  for (const auto& [tensors, n] : {std::pair{call.inputs, call.n_inputs}, {call.outputs, call.n_outputs}}) {
    for (int32_t i = 0; i < n; ++i) {
      if (tensors[i].data == nullptr) continue;
      if (!shared_) {
        if (std::string why = why_not_portable(tensors[i]); !why.empty()) return why;
      } else if (!kernel.takes_strides && !checkop_is_contiguous(&tensors[i])) {
        return "it does not say that it follows strides (serve(..., strides=True))";
      }
    }
  }
  for (int32_t i = 0; i < call.n_inputs; ++i) {
    const TensorSpec& spec = kernel.pass->inputs[static_cast<size_t>(i)];
    const checkop_tensor& input = call.inputs[i];
    if (input.data == nullptr || !spec.dtype || input.dtype == static_cast<int32_t>(*spec.dtype)) continue;
    if (!kernel.takes_any_ids)
      return fmt::format("it does not say that it takes '{}' as int32 and as int64 (serve(..., any_ids=True))",
                         spec.name);
  }
  return "";
}

checkop_status External::run(const Kernel& kernel, const checkop_call& call) {
  if (call.world_size > 1) {
    tell(call, "a command of --exec is one process and has no ranks; use --world-size 1");
    return CHECKOP_UNSUPPORTED;
  }
  if (const std::string why = why_not_handed_over(kernel, call); !why.empty()) {
    tell(call, why);
    return CHECKOP_UNSUPPORTED;
  }
  const int64_t id = ++requests_;
  json attrs = json::object(), changed = json::array();
  for (int32_t i = 0; i < call.n_attrs; ++i) {
    attrs[call.attrs[i].name] = json_number(call.attrs[i].value);
    if (call.attrs[i].value != kernel.op->attrs[static_cast<size_t>(i)].fallback) changed.push_back(call.attrs[i].name);
  }
  const json forward_outputs = names_of_forward_outputs(*kernel.op, *kernel.pass, call);
  json request{
      {"id", id},
      {"op", kernel.op->name},
      {"pass", kernel.pass->name},
      {"attrs", attrs},
      {"changed_attrs", changed},
      {"forward_outputs", forward_outputs},
      {"optional_outputs", names_of_optional_outputs(*kernel.op, *kernel.pass, call, forward_outputs)},
  };
  RequestFiles files;
  try {
    if (shared_) {
      if (const std::string refusal = share_arenas(call); !refusal.empty()) {
        tell(call, fmt::format("its process can't map memory: {}", refusal));
        return CHECKOP_FAILED;
      }
      request["tensors"] = describe_tensors(*kernel.pass, call, *shared_);
    } else {
      files.inputs = fmt::format("{}/inputs-{}.safetensors", folder_, id);
      files.outputs = fmt::format("{}/outputs-{}.safetensors", own_folder_, id);
      write_inputs(files.inputs, *kernel.pass, call);
      request["inputs"] = files.inputs, request["outputs"] = files.outputs;
      request["want"] = describe_outputs(*kernel.pass, call);
    }
    const JsonValue answer = parsed(ask({{"run", request}}, "id", id));
    std::string status, message;
    try {
      if (protocol_ == 1) answer.allow_keys({"id", "status", "message"});
      answer.at("id").integer(id, id);
      status = answer.at("status").one_of("status", {"ok", "unsupported", "failed"});
      if (answer.has("message")) message = answer.at("message").string();
      if (const auto returned = answer.find("returned")) {
        for (const JsonValue& name : returned->items())
          returned_.insert(name.one_of("output", names_of_outputs(*kernel.pass)));
      }
    } catch (const InputError& e) {
      process_->give_up(fmt::format("{}: '{}'", e.what(), json_line(answer.raw()).substr(0, 200)));
    }
    if (status == "ok" && !shared_) {
      if (const std::string wrong = take_outputs(files.outputs, *kernel.pass, call); !wrong.empty()) {
        status = "failed";
        message = wrong;
      }
    }
    tell(call, message);
    return status == "ok" ? CHECKOP_OK : status == "failed" ? CHECKOP_FAILED : CHECKOP_UNSUPPORTED;
  } catch (const ProcessEnded& e) {
    throw Stopped{RunStatus::crashed, e.what()};
  } catch (const InputError& e) {
    // lint: allow message, the machine has no more descriptors or memory
    throw Stopped{RunStatus::no_device, fmt::format("the inputs can't be handed over: {}", e.what())};
  } catch (const DeviceError& e) {
    // lint: allow message, a fault of the GPU
    throw Stopped{RunStatus::no_device, fmt::format("memory can't be handed over: {}", e.what())};
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
  return Sha256().update(all).hex();
}

std::string stderr_file(const ExternalCommand& command) { return command.folder + "/stderr"; }

}  // namespace checkop
