// SPDX-License-Identifier: Apache-2.0
// Starts the process, tells it where the memory of each call lies, and believes no more of its answers than "done".
#include "run/plugin_host.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/host_memory.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "operator/operator.hpp"
#include "plugin_host/calls.hpp"
#include "plugin_host/wire.hpp"
#include "run/stage.hpp"

namespace checkop {
namespace {

using host::Answer;
using host::Gate;
using host::Harm;
using host::Packer;
using host::Request;
using host::Timer;
using host::Unpacker;

/// Longest answer in bytes: the table of very many kernels; and of what ranks exchange.
constexpr uint64_t kLongestAnswer = uint64_t{64} << 20, kLongestExchange = uint64_t{1} << 34;
/// Longest text that is shown.
constexpr size_t kLongestText = 4096;

std::string program() {
  return (std::filesystem::path(shipped_kernels()).parent_path() / "host" / "plugin_host").string();
}

std::pair<Descriptor, Descriptor> socket_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    // lint: allow message, it takes a process without free descriptors
    throw EnvironmentError(fmt::format("plugin process: socketpair: {}", std::strerror(errno)));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::string shown(std::string_view text) { return in_one_line(text.substr(0, kLongestText)); }

/// This process's environment, without the libraries that a tool such as compute-sanitizer loads into every program:
/// they need descriptors and sockets, which the process of plugins does not have.
std::vector<char*> environment_of_host() {
  std::vector<char*> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("LD_PRELOAD=")) kept.push_back(*variable);
  }
  kept.push_back(nullptr);
  return kept;
}

/// Runs in the child: becomes the program, which inherits its ends of both sockets, standard input, and `output` for
/// what it prints.
int become(const char* path, char* const* environment, int socket, int control, int output) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) dup2(output, stream);
  const int aside = fcntl(control, F_DUPFD, host::kControl + 1);
  if (socket == host::kOwner) {
    fcntl(socket, F_SETFD, 0);
  } else {
    dup2(socket, host::kOwner);
  }
  dup2(aside, host::kControl);
  close_range(host::kControl + 1, ~0u, 0);
  const char* const arguments[] = {path, nullptr};
  syscall(SYS_execve, path, arguments, environment);  // tools replace execve() to add themselves to LD_PRELOAD again
  return 127;
}

}  // namespace

/// The process runs while one of these lives.
class PluginHost::Running {
 public:
  explicit Running(PluginHost& host) : host_(host) {
    if (host_.use_ != Use::times) return;
    const std::lock_guard lock(host_.running_mutex_);
    if (host_.running_++ == 0) host_.child_.resume();
  }
  ~Running() {
    if (host_.use_ != Use::times) return;
    const std::lock_guard lock(host_.running_mutex_);
    if (--host_.running_ == 0) host_.child_.pause();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  PluginHost& host_;
};

/// `entry` must be the first member: a call's `kernel` points to it.
struct PluginHost::Kernel {
  checkop_kernel entry;
  PluginHost* owner;
  uint64_t plugin, number;
  const Pass* pass = nullptr;
  std::array<std::optional<std::string>, 4> texts;  ///< that entry points to
};

PluginHost::PluginHost(const std::vector<std::string>& paths, const std::string& folder, Device& device,
                       std::shared_ptr<SharedMemory> shared, Use use, std::shared_ptr<PluginHost> empty)
    : paths_(paths),
      folder_(folder),
      device_(device),
      shared_(std::move(shared)),
      memory_bytes_(device.info().memory_bytes),
      gpu_(device.info().kind == "cuda" ? device.info().index : host::kNoGpu),
      use_(use),
      empty_(std::move(empty)) {
  for (const std::string& path : paths) require_plugin_file(path);
  start();
  bytes_at_start_ = memory();
  shared_->before_large_block(this, [this] { drop_freed(); });
}

/// Starts the process, in place of the one there was.
void PluginHost::start() {
  const std::string path = program();
  if (access(path.c_str(), X_OK) != 0)
    // lint: allow message, it takes an incomplete installation
    throw EnvironmentError(fmt::format("{}: the program for plugins' processes is missing; install it again", path));
  auto [ours, theirs] = socket_pair();
  auto [our_control, their_control] = socket_pair();
  const int socket = theirs.get(), control = their_control.get();
  const std::vector<char*> environment = environment_of_host();
  child_ = ChildProcess();
  output_ = std::make_unique<OutputRelay>();
  const int output = output_->writer();
  child_ = ChildProcess([&] { return become(path.c_str(), environment.data(), socket, control, output); },
                        ChildProcess::Group::shared, ChildProcess::Body::becomes_program);
  theirs = Descriptor();
  their_control = Descriptor();
  output_->close_writer();
  lanes_.clear();
  lanes_.push_back(std::move(ours));
  control_ = std::move(our_control);
  stopped_.reset();
  mapped_.clear();

  Packer request;
  request.put(Request::enter).put(uint64_t{paths_.size()});
  for (const std::string& each : paths_) request.text(each);
  request.put(gpu_).text(folder_);
  try {
    const std::string entered = ask(nullptr, request.bytes(), {});
    Unpacker first(entered);
    const auto kind = first.get<Answer>();
    // Said before any plugin is loaded. Afterwards a plugin could say so.
    if (kind == Answer::no_device) throw EnvironmentError(shown(first.text()));
    if (kind != Answer::bytes) read_table(entered);  // which says why not
    if (use_ == Use::times) make_gate();
    read_table(ask(nullptr, Packer().put(Request::load).bytes(), {}));
  } catch (const Stopped& stopped) {
    if (paths_.size() > 1) {  // names the one that does it alone
      for (const std::string& each : paths_) PluginHost(std::vector{each}, folder_, device_, shared_, use_, empty_);
    }
    throw InputError(fmt::format("{}", fmt::join(paths_, ", ")), stopped.message, "it crashes while it is loaded");
  }
}

std::optional<std::string> PluginHost::end() {
  const std::lock_guard lock(mutex_);
  if (!stopped_ && child_.is_alive()) return {};
  return why_it_ended().message;
}

PluginHost::~PluginHost() { shared_->forget_user(this); }

void PluginHost::limit_memory(uint64_t bytes, bool from_start) {
  allowed_bytes_ = bytes;
  if (child_.is_started()) limit_process_memory(child_.id(), from_start ? bytes_at_start_ : memory(), bytes);
}

void PluginHost::read_table(const std::string& message) {
  Unpacker unpacker(message);
  const auto kind = unpacker.get<Answer>();
  if (kind == Answer::refused) throw InputError("", shown(unpacker.text()));
  if (kind != Answer::table || unpacker.count() != paths_.size()) throw WireError("no table of plugins");
  if (!kernels_.empty()) return;  // of an earlier process
  std::vector<std::vector<Candidate>> plugins;
  for (uint64_t plugin = 0; plugin < paths_.size(); ++plugin) {
    PluginTable table{paths_[plugin], {}};
    const uint64_t n = unpacker.count();
    for (uint64_t number = 0; number < n; ++number) {
      auto kernel = std::make_unique<Kernel>();
      kernel->owner = this;
      kernel->plugin = plugin;
      kernel->number = number;
      for (std::optional<std::string>& text : kernel->texts) {
        const bool is_there = unpacker.get<bool>();
        const std::string_view value = unpacker.text();
        if (is_there) text = std::string(value);
      }
      const auto pointer = [&](size_t i) { return kernel->texts[i] ? kernel->texts[i]->c_str() : nullptr; };
      const auto device = unpacker.get<int32_t>(), min_arch = unpacker.get<int32_t>();
      const auto max_arch = unpacker.get<int32_t>();
      const bool has_workspace = unpacker.get<bool>(), has_launch = unpacker.get<bool>();
      kernel->entry = {sizeof(checkop_kernel),
                       pointer(0),
                       pointer(1),
                       pointer(2),
                       device,
                       min_arch,
                       max_arch,
                       has_workspace ? &PluginHost::workspace_bytes : nullptr,
                       has_launch ? &PluginHost::launch : nullptr,
                       pointer(3)};
      table.kernels.push_back(&kernel->entry);
      kernels_.push_back(std::move(kernel));
    }
    plugins.push_back(candidates_of(table));
  }
  candidates_ = join_candidates(std::move(plugins));
  for (const std::unique_ptr<Kernel>& kernel : kernels_)
    kernel->pass = find_pass(*find_operator(kernel->entry.op), kernel->entry.pass);
}

/// A connection that nobody uses.
Descriptor PluginHost::take_lane() {
  const std::lock_guard lock(mutex_);
  if (!lanes_.empty()) {
    Descriptor lane = std::move(lanes_.back());
    lanes_.pop_back();
    return lane;
  }
  auto [ours, theirs] = socket_pair();
  control(Packer().put(Request::lane).bytes(), {theirs.get()});
  return std::move(ours);
}

/// Sends a request that concerns no call of a kernel. Call it with the mutex held.
void PluginHost::control(const std::string& request, const std::vector<int>& descriptors) {
  const Running running(*this);
  std::string answer;
  std::vector<Descriptor> none;
  if (!host::send(control_.get(), request, descriptors) || !host::receive(control_.get(), answer, none, kLongestText))
    throw Stopped(why_it_ended());
}

/// Why the process ended, the same for all ranks. Call it with the mutex held, after a connection has ended.
const Stopped& PluginHost::why_it_ended() {
  if (stopped_) return *stopped_;
  stopped_ = Stopped{RunStatus::crashed, bury(child_, allowed_bytes_)};
  std::string last;
  std::vector<Descriptor> none;
  try {
    if (!host::receive(control_.get(), last, none, kLongestText)) return *stopped_;
    Unpacker unpacker(last);
    if (unpacker.get<Answer>() != Answer::wrote_input) return *stopped_;
    const auto window = unpacker.get<uint64_t>(), offset = unpacker.get<uint64_t>();
    if (const auto found = mapped_.find(window); found != mapped_.end() && !found->second.name.empty())
      stopped_ = stopped_by_write(found->second, static_cast<int64_t>(offset));
  } catch (const WireError&) {  // the process sent a malformed message
  }
  return *stopped_;
}

/// The result if the process ended by a store to a read-only input, or beside it, at `offset` in the input's window.
Stopped PluginHost::stopped_by_write(const Window& input, int64_t offset) {
  const int64_t distance = offset - input.offset;
  if (distance < 0) {
    const std::string what = fmt::format("input '{}': written before its start, at -{} bytes", input.name, -distance);
    return {RunStatus::failed, what, "", what};
  }
  if (distance >= input.bytes) {
    const std::string what =
        fmt::format("input '{}': written behind its end, at +{} bytes", input.name, distance - input.bytes);
    return {RunStatus::failed, what, "", what};
  }
  const std::string what = fmt::format("{}: written to, first at index {}", input.name, distance / input.width);
  return {RunStatus::failed, what, what};
}

void PluginHost::stop_after_end() {
  const std::lock_guard lock(mutex_);
  throw Stopped(why_it_ended());
}

/// The answer to a request, after all exchanges between ranks. Throws Stopped where the process ends.
std::string PluginHost::ask(const checkop_call* call, const std::string& request, const std::vector<int>& descriptors) {
  const Running running(*this);
  Descriptor lane = take_lane();
  std::string answer;
  std::vector<Descriptor> none;
  if (!host::send(lane.get(), request, descriptors)) stop_after_end();
  const bool may_exchange = call != nullptr && call->host_comm != nullptr;
  for (;;) {
    if (!host::receive(lane.get(), answer, none, may_exchange ? kLongestExchange : kLongestAnswer)) stop_after_end();
    none.clear();
    Unpacker unpacker(answer);
    if (unpacker.get<Answer>() != Answer::gather || !may_exchange) break;
    const std::string_view bytes = unpacker.text();
    checkop_host_comm* const comm = call->host_comm;
    std::string all(bytes.size() * static_cast<size_t>(comm->world_size), '\0');
    const int failed = comm->all_gather(comm, bytes.data(), all.data(), bytes.size());
    Packer reply;
    reply.text(failed != 0 ? comm->error(comm) : "");
    if (failed == 0) reply.text(all);
    if (!host::send(lane.get(), reply.bytes())) stop_after_end();
  }
  if (use_ != Use::times) output_->settle();
  const std::lock_guard lock(mutex_);
  lanes_.push_back(std::move(lane));
  return answer;
}

/// Has the process unmap the windows of freed blocks.
void PluginHost::drop_freed() {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  const std::vector<uint64_t> gone = take_gone();
  if (gone.empty()) return;
  Packer request;
  request.put(Request::drop).put(uint64_t{gone.size()});
  for (const uint64_t number : gone) request.put(number);
  try {
    control(request.bytes(), {});
  } catch (const Stopped&) {  // its own next request reports the end; another request is only short of memory
  }
}

/// Takes the numbers of the mapped windows whose blocks were freed.
std::vector<uint64_t> PluginHost::take_gone() {
  std::vector<uint64_t> gone;
  if (std::exchange(frees_, shared_->frees()) == shared_->frees()) return gone;
  std::erase_if(mapped_, [&](const auto& entry) {
    const auto& [number, window] = entry;
    if (shared_->has(window.begin, number)) return false;
    gone.push_back(number);
    return true;
  });
  return gone;
}

/// The input whose data `pointer` is.
PluginHost::Window PluginHost::describe(const Kernel& kernel, const checkop_call& call, const void* pointer,
                                        const SharedMemory::Block& block) {
  for (int32_t i = 0; i < call.n_inputs; ++i) {
    const checkop_tensor& input = call.inputs[i];
    if (input.data != pointer) continue;
    const auto width = static_cast<int64_t>(info(static_cast<DType>(input.dtype)).bytes);
    int64_t elements = 1;  // up to the last one, by its strides
    for (int32_t d = 0; d < input.rank; ++d) elements += (input.shape[d] - 1) * input.strides[d];
    for (int32_t d = 0; d < input.rank; ++d) elements = input.shape[d] == 0 ? 0 : elements;
    return {block.begin, std::string(kernel.pass->inputs[static_cast<size_t>(i)].name),
            static_cast<const std::byte*>(pointer) - block.begin, elements * width, width};
  }
  return {block.begin};
}

/// A descriptor of an arena, for the process.
Descriptor PluginHost::open_arena(int64_t id) {
  try {
    return shared_->arena(id).open();
  } catch (const DeviceError& e) {
    throw Stopped{RunStatus::no_device, fmt::format("memory can't be handed over: {}", e.what())};
  }
}

/// The request to run a kernel on calls, and the memory that it needs.
std::string PluginHost::pack(Request what, const Kernel& kernel, const Turns& turns, std::vector<Descriptor>& memory) {
  const std::lock_guard lock(mutex_);
  Packer windows;
  uint64_t n_windows = 0;
  std::map<int64_t, uint64_t> arenas;  // position in `memory` by id
  const checkop_call* current = nullptr;
  const auto place = [&](const void* pointer) -> host::Place {
    if (pointer == nullptr) return {};
    const SharedMemory::Block& block = shared_->block_at(pointer);
    if (const auto [window, added] = mapped_.emplace(block.number, Window{block.begin}); added) {
      if (block.access == Access::read) window->second = describe(kernel, *current, pointer, block);
      const auto [position, is_new] = arenas.emplace(block.arena, memory.size());
      if (is_new) memory.push_back(open_arena(block.arena));
      windows.put(
          host::Window{block.number, block.offset, block.bytes, block.access == Access::write || may_write_inputs_});
      windows.put(position->second);
      ++n_windows;
    }
    return {block.number, static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - block.begin)};
  };
  const std::vector<uint64_t> gone = take_gone();
  Packer packed_calls;
  for (const checkop_call* call : turns.calls) host::pack_call(packed_calls, *(current = call), place);
  Packer request;
  request.put(what).put(uint64_t{gone.size()});
  for (const uint64_t number : gone) request.put(number);
  request.put(n_windows).append(windows).put(kernel.plugin).put(kernel.number).put(device_.mode_elsewhere());
  request.put(static_cast<uint64_t>(turns.count)).put(turns.timer).put(turns.cover_us);
  request.put(uint64_t{turns.calls.size()}).append(packed_calls);
  return request.bytes();
}

/// Calls `body`. If it can't read an answer, ends the process, whose further answers would mean nothing.
template <class Body>
auto PluginHost::refusing_malformed_answers(const Body& body) {
  try {
    return body();
  } catch (const WireError& e) {
    child_.kill();
    throw Stopped{RunStatus::crashed, fmt::format("its answer can't be read: {}", e.what())};
  }
}

namespace {

std::vector<int> descriptors_of(const std::vector<Descriptor>& memory) {
  std::vector<int> numbers;
  for (const Descriptor& each : memory) numbers.push_back(each.get());
  return numbers;
}

}  // namespace

/// Runs a function of a kernel. Throws what the function threw, or Stopped.
std::string PluginHost::call(Request what, const checkop_call& call, Answer wanted) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(call.kernel);
  return refusing_malformed_answers([&] {
    std::vector<Descriptor> memory;
    const std::string request = pack(what, kernel, {{&call}, 1}, memory);
    return checked(what, call, wanted, ask(&call, request, descriptors_of(memory)));
  });
}

/// The answer, if it is of the wanted kind. Otherwise throws what the function threw, or Stopped.
std::string PluginHost::checked(Request what, const checkop_call& call, Answer wanted, std::string answer) {
  Unpacker unpacker(answer);
  const auto kind = unpacker.get<Answer>();
  if (kind == Answer::no_memory) throw std::bad_alloc();
  if (kind == Answer::threw) throw std::runtime_error(shown(unpacker.text()));
  if (kind == Answer::threw_other) throw 0;
  if (kind == Answer::no_mode) throw LaunchModeUnsupported(shown(unpacker.text()));
  if (kind == Answer::device_error) {
    const auto harm = unpacker.get<Harm>();
    const std::string text = shown(unpacker.text());
    if (harm == Harm::lost) throw why_lost(what, call, text);
    if (harm == Harm::no_memory) throw OutOfMemory(text);
    throw DeviceError(text, /*sticky=*/false);
  }
  if (kind != wanted) throw WireError("no such answer was expected");
  return answer;
}

/// The result after a kernel's access to memory cost the process its device, which does not say where the access was.
/// Repeats the call in a process that may write to inputs: if an input changes, the access was a write to it or beside
/// it.
Stopped PluginHost::why_lost(Request what, const checkop_call& call, const std::string& error) {
  Stopped lost{RunStatus::crashed, error};
  if (may_write_inputs_) return lost;
  const auto& kernel = *reinterpret_cast<const Kernel*>(call.kernel);
  std::vector<uint64_t> before;
  const auto fingerprint = [&](int32_t i) {
    const SharedMemory::Block& block = shared_->block_at(call.inputs[i].data);
    return device_.fingerprint(block.begin, block.bytes);
  };
  for (int32_t i = 0; i < call.n_inputs; ++i) before.push_back(call.inputs[i].data == nullptr ? 0 : fingerprint(i));
  may_write_inputs_ = true;
  try {
    start();
    this->call(what, call, Answer::done);
  } catch (...) {
    return lost;
  }
  for (int32_t i = 0; i < call.n_inputs; ++i) {
    if (call.inputs[i].data == nullptr || fingerprint(i) == before[static_cast<size_t>(i)]) continue;
    const std::string name(kernel.pass->inputs[static_cast<size_t>(i)].name);
    const std::string text = fmt::format("{}: written to, or what lies beside it", name);
    return {RunStatus::failed, text, text};
  }
  return lost;
}

/// The status in an answer to a launch, whose message becomes that of the call.
int PluginHost::status_of(const std::string& answer, const checkop_call& call) {
  Unpacker unpacker(answer);
  unpacker.get<Answer>();
  const auto status = unpacker.get<int>();
  const std::string_view message = unpacker.text();
  if (call.message_bytes > 0) {
    const size_t n = std::min(message.size(), call.message_bytes);  // one more byte is there than a kernel is told
    std::memcpy(call.message, in_one_line(message).data(), n);
    call.message[n] = '\0';
  }
  return status;
}

checkop_status PluginHost::launch(const checkop_call* call) {
  PluginHost& owner = *reinterpret_cast<const Kernel*>(call->kernel)->owner;
  return owner.refusing_malformed_answers(
      [&] { return static_cast<checkop_status>(status_of(owner.call(Request::launch, *call, Answer::done), *call)); });
}

// --- times ---

namespace {

uint64_t number_that_nobody_knows() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

PluginHost* PluginHost::of(const checkop_kernel& kernel) {
  return kernel.launch == &PluginHost::launch ? reinterpret_cast<const Kernel&>(kernel).owner : nullptr;
}

/// Waits until done() is true, as closely as a busy machine lets it. Throws Stopped where the process ends.
template <class Done>
void PluginHost::wait_until(const Done& done) {
  constexpr int kLooks = 64;
  constexpr std::chrono::milliseconds kSpin{2};  // from then on it sleeps: the candidate may use all processors
  constexpr timespec kLookAgain{0, 20'000'000};
  const auto start = Clock::now();
  auto seen_alive = start;
  for (int i = 1; !done(); ++i) {
    if (i % kLooks != 0) continue;
    const auto now = Clock::now();
    if (now - start < kSpin) {
      std::this_thread::yield();
    } else {
      const auto* const end = reinterpret_cast<const uint32_t*>(&gate_->end);
      const auto seen = static_cast<uint32_t>(gate_->end.load(std::memory_order_acquire));
      if (!done()) syscall(SYS_futex, end, FUTEX_WAIT, seen, &kLookAgain, nullptr, 0);
    }
    if (now - seen_alive < std::chrono::milliseconds(1)) continue;
    seen_alive = now;
    if (!child_.is_alive() && !done()) stop_after_end();
  }
}

/// Has the process wait at the gate and run a request of Request::turns. `answer` gets its answer, if it sends one.
PluginHost::Timed PluginHost::take_turns(const std::string& request, const std::vector<int>& descriptors, Timer timer,
                                         const std::function<void()>& prepare, std::string& answer) {
  constexpr std::chrono::seconds kIdleLimit{2};  // for what a launch left running beside the streams that it waited for
  std::vector<Descriptor> none;
  answer.clear();
  std::optional<Running> running(*this);
  Descriptor lane = take_lane();
  const auto listen = [&] {
    if (!host::receive(lane.get(), answer, none, kLongestAnswer)) stop_after_end();
  };
  const auto give_back = [&] {
    const std::lock_guard lock(mutex_);
    lanes_.push_back(std::move(lane));
  };
  if (!host::send(lane.get(), request, descriptors)) stop_after_end();
  listen();
  if (Unpacker(answer).get<Answer>() != Answer::ready) {
    give_back();
    return {};
  }
  answer.clear();
  const bool is_whole = timer == Timer::whole || timer == Timer::recorded;
  const auto begin_of_all = Clock::now();
  if (!is_whole) running.reset();
  prepare();
  device_.synchronize("what comes before launches that are timed");
  const auto cpu_ms = [&]() -> std::optional<double> {  // which says nothing about work on a GPU
    const auto time = device_.info().kind == "cpu" ? child_.cpu_time() : std::nullopt;
    return time ? std::optional(std::chrono::duration<double, std::milli>(*time).count()) : std::nullopt;
  };
  const auto pass_ms = [&](uint64_t number) {
    const auto begin = Clock::now();
    gate_->begin.store(number, std::memory_order_release);
    wait_until([&] { return gate_->end.load(std::memory_order_acquire) == number; });
    return ms_since(begin);
  };
  const uint64_t beats = gate_->beats, dry = number_that_nobody_knows() & ~uint64_t{1};
  const uint64_t number = number_that_nobody_knows() | 1;
  const auto woken = Clock::now();
  const std::optional<double> cpu_woken = cpu_ms();
  if (!running) {
    running.emplace(*this);
    wait_until([&] { return gate_->beats.load(std::memory_order_relaxed) != beats; });
    pass_ms(dry);
  }
  const auto looked = Clock::now();
  const std::optional<double> cpu_before = cpu_ms();
  const double seen_ms = pass_ms(number);
  const std::optional<double> cpu_after = cpu_ms();
  const double beside_ms = ms_since(looked) - seen_ms;
  if (!is_whole) running.reset();
  const bool is_alone = device_.wait_until_alone(kIdleLimit);
  const double all_ms = ms_since(begin_of_all);
  double unseen_ms = ms_since(woken) - seen_ms;
  if (const std::optional<double> cpu = cpu_ms(); cpu && cpu_woken && cpu_before && cpu_after) {
    // A process that waits for a processor does nothing. What it did beside the pass that is timed counts as unseen.
    // The system adds processor time to a running process by ticks: what it shows in the pass can be work before it,
    // but for what all processors can do meanwhile.
    const double most_ms = (seen_ms + beside_ms) * std::max(1u, std::thread::hardware_concurrency());
    const double in_pass_ms = std::min(*cpu_after - *cpu_before, most_ms);
    unseen_ms = std::min(unseen_ms, *cpu - *cpu_woken - in_pass_ms + beside_ms);
  }
  running.reset();
  if (!is_alone) stop_at_work();
  if (gate_->is_answered != 0) {
    running.emplace(*this);
    listen();
  }
  give_back();
  if (is_whole) return {CHECKOP_OK, all_ms};
  if (timer == Timer::claimed) return {CHECKOP_OK, static_cast<double>(gate_->claimed_ns) / 1e6};
  return {CHECKOP_OK, seen_ms, unseen_ms};
}

/// Ends the process, since its work on the device would disturb others.
void PluginHost::stop_at_work() {
  const std::lock_guard lock(mutex_);
  child_.kill();
  stopped_ = Stopped{RunStatus::failed, "its work on the device goes on after it said that all is done"};
  throw Stopped(*stopped_);
}

/// Makes the page through which this process begins timed launches and sees their end.
void PluginHost::make_gate() {
  page_ = std::make_unique<Bytes>(sizeof(Gate));
  gate_ = new (page_->data()) Gate{};
  ask(nullptr, Packer().put(Request::gate).bytes(), {page_->fd()});
}

PluginHost::Timed PluginHost::time_empty(Timer timer, const std::function<void()>& prepare) {
  PluginHost& empty = *empty_;
  return empty.refusing_malformed_answers([&] {
    Packer request;
    constexpr uint64_t kNone = 0;  // windows to let go, to map; plugin, kernel
    request.put(Request::turns).put(kNone).put(kNone).put(kNone).put(kNone).put(device_.mode_elsewhere());
    request.put(kNone).put(timer).put(double{0}).put(kNone);  // launches, how, cover, calls
    std::string answer;
    const Timed timed = empty.take_turns(request.bytes(), {}, timer, prepare, answer);
    if (!answer.empty()) throw WireError("no answer was expected");
    return timed;
  });
}

PluginHost::Timed PluginHost::time(const Turns& turns, const std::function<void()>& prepare) {
  const checkop_call& first = *turns.calls.front();
  const auto& kernel = *reinterpret_cast<const Kernel*>(first.kernel);
  return refusing_malformed_answers([&]() -> Timed {
    std::vector<Descriptor> memory;
    const std::string request = pack(Request::turns, kernel, turns, memory);
    std::string answer;
    Timed timed = take_turns(request, descriptors_of(memory), turns.timer, prepare, answer);
    if (answer.empty()) return timed;
    timed.status = status_of(checked(Request::launch, first, Answer::done, std::move(answer)), first);
    if (timed.status == CHECKOP_OK) throw WireError("there is an answer only where a launch is not ok");
    return timed;
  });
}

size_t PluginHost::workspace_bytes(const checkop_call* call) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(call->kernel);
  PluginHost& owner = *kernel.owner;
  const std::string answer = owner.call(Request::workspace, *call, Answer::bytes);
  if (answer.size() != sizeof(Answer) + sizeof(uint64_t)) throw Stopped{RunStatus::crashed, "its answer can't be read"};
  Unpacker unpacker(answer);
  unpacker.get<Answer>();
  const auto bytes = unpacker.get<uint64_t>();
  // A request for more than the machine has is reported where it is allocated.
  if (owner.allowed_bytes_ > 0 && bytes > owner.allowed_bytes_ && bytes <= owner.memory_bytes_)
    throw Stopped{RunStatus::no_memory, fmt::format("could not be prepared: a workspace of {}", format_bytes(bytes))};
  return bytes;
}

namespace {

/// The one of `list` with the name, operator and pass of `candidate`.
const Candidate& same_candidate(const std::vector<Candidate>& list, const Candidate& candidate) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Candidate& each) {
    return std::tie(each.name, each.op, each.pass) == std::tie(candidate.name, candidate.op, candidate.pass);
  });
  if (found != list.end()) return *found;
  throw InputError(
      candidate.path,
      fmt::format("does not bring {}/{} '{}' when it is loaded again", candidate.op, candidate.pass, candidate.name),
      "let it register the same kernels each time");
}

}  // namespace

PluginHosts::PluginHosts(const std::vector<std::string>& paths, const std::string& folder, Device& device,
                         const std::vector<std::string>& timed) {
  using Use = PluginHost::Use;
  if (timed.empty()) {
    const auto shared = device.share_blocks(Sharing::one_process);
    hosts_.push_back(std::make_unique<PluginHost>(paths, folder, device, shared, Use::checks));
    candidates_ = hosts_.front()->candidates();
    return;
  }
  const auto shared = device.share_blocks(Sharing::several_processes);
  const auto empty = std::make_shared<PluginHost>(std::vector<std::string>(), "", device, shared, Use::times);
  std::vector<std::vector<Candidate>> plugins;
  for (const std::string& path : paths) {
    const auto start = [&]() -> const std::vector<Candidate>& {
      std::string own = folder;
      if (!folder.empty()) std::filesystem::create_directory(own += fmt::format("/{}", hosts_.size()));
      hosts_.push_back(std::make_unique<PluginHost>(std::vector{path}, own, device, shared, Use::times, empty));
      return hosts_.back()->candidates();
    };
    std::vector<Candidate>& candidates = plugins.emplace_back(start());
    bool is_first = true;
    for (const std::string& name : timed) {
      const auto is_named = [&](const Candidate& candidate) { return candidate.name == name; };
      if (std::none_of(candidates.begin(), candidates.end(), is_named) || std::exchange(is_first, false)) continue;
      const std::vector<Candidate>& again = start();
      for (Candidate& candidate : candidates) {
        if (is_named(candidate)) candidate = same_candidate(again, candidate);
      }
    }
  }
  candidates_ = join_candidates(std::move(plugins));
}

std::optional<std::string> PluginHosts::end() {
  for (const auto& host : hosts_)
    if (auto end = host->end()) return end;
  return {};
}

void PluginHosts::limit_memory(uint64_t bytes, bool from_start) {
  for (const auto& host : hosts_) host->limit_memory(bytes, from_start);
}

}  // namespace checkop
