// SPDX-License-Identifier: Apache-2.0
// The process that plugins are loaded into. It has nothing of the process that started it but a socket and mapped
// memory, and judges nothing.
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/elf_libraries.hpp"
#include "base/error.hpp"
#include "base/sandbox.hpp"
#include "device/guest.hpp"
#include "device/plugin_table.hpp"
#include "plugin_host/calls.hpp"
#include "plugin_host/windows.hpp"
#include "plugin_host/wire.hpp"

namespace checkop::host {
namespace {

/// A connection to the owner. One kernel runs in each at a time.
struct Lane {
  checkop_host_comm comm;  ///< must be the first member: the ABI's functions cast its address to Lane
  int socket;
  std::string error;  ///< of the latest exchange
};

Windows windows;
std::unique_ptr<GuestDevice> gpu;  // none: kernels run on the CPU
std::vector<std::string> paths;    // of plugins
std::vector<PluginTable> plugins;
Gate* gate = nullptr;

template <class T>
Packer answer(Answer kind, const T& value) {
  return Packer().put(kind).put(value);
}

Packer answer(Answer kind, const std::string& text) { return Packer().put(kind).text(text); }

/// Tells the owner which input was written to. The process ends either way, as it would without this handler.
void note_write_to_input(int number, siginfo_t* info, void*) {
  if (info->si_code <= 0) {  // sent by someone: there is no access that would be repeated
    raise(number);
    return;
  }
  if (const auto hit = windows.read_only_at(info->si_addr)) {
    struct [[gnu::packed]] {
      uint64_t length;
      Answer kind;
      uint64_t number, offset;
    } const message{sizeof message - sizeof message.length, Answer::wrote_input, hit->number, hit->offset};
    if (write(kControl, &message, sizeof message) < 0) _exit(1);
  }
  // The access is repeated, and now ends the process.
}

void watch_inputs() {
  struct sigaction action {};
  action.sa_sigaction = note_write_to_input;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND);
  sigaction(SIGSEGV, &action, nullptr);
}

/// An exchange with other ranks: the owner has their ends.
int all_gather(checkop_host_comm* comm, const void* bytes_to_send, void* received, size_t bytes) {
  Lane& lane = *reinterpret_cast<Lane*>(comm);
  Packer request;
  request.put(Answer::gather).text({static_cast<const char*>(bytes_to_send), bytes});
  std::string message;
  std::vector<Descriptor> none;
  if (!send(lane.socket, request.bytes()) || !receive(lane.socket, message, none, kAnyLength)) _exit(1);
  Unpacker unpacker(message);
  lane.error = unpacker.text();
  if (!lane.error.empty()) return 1;
  const std::string_view all = unpacker.text();
  if (!all.empty()) std::memcpy(received, all.data(), all.size());
  return 0;
}

int barrier(checkop_host_comm* comm) { return all_gather(comm, nullptr, nullptr, 0); }
const char* error_of(checkop_host_comm* comm) { return reinterpret_cast<Lane*>(comm)->error.c_str(); }

/// Calls a function of the plugin.
template <class Body>
std::optional<Packer> guarded(const Body& body) {
  try {
    return body();
  } catch (const WireError&) {  // of our own protocol, not of the plugin
    throw;
  } catch (const LaunchModeUnsupported& e) {
    return answer(Answer::no_mode, std::string(e.what()));
  } catch (const OutOfMemory& e) {
    return answer(Answer::device_error, Harm::no_memory).text(e.what());
  } catch (const DeviceError& e) {
    return answer(Answer::device_error, e.sticky() ? Harm::lost : Harm::none).text(e.what());
  } catch (const std::bad_alloc&) {
    return Packer().put(Answer::no_memory);
  } catch (const std::exception& e) {
    return answer(Answer::threw, std::string(e.what()));
  } catch (...) {
    return Packer().put(Answer::threw_other);
  }
}

void drop_windows(Unpacker& unpacker) {
  std::vector<uint64_t> numbers;
  for (auto n = unpacker.get<uint64_t>(); n > 0; --n) numbers.push_back(unpacker.get<uint64_t>());
  if (!numbers.empty()) windows.drop(numbers);
}

void map_windows(Unpacker& unpacker, const std::vector<Descriptor>& descriptors) {
  std::vector<Windows::Source> sources;
  for (auto n = unpacker.get<uint64_t>(); n > 0; --n) {
    const auto window = unpacker.get<Window>();
    sources.push_back({window, descriptors.at(unpacker.get<uint64_t>()).get()});
  }
  windows.map(sources);
}

/// Throws `error` again, with the kernel's message added to its own.
template <class Error>
[[noreturn]] void fail(const Error& error, const std::string& said, const auto&... more) {
  throw Error(said.empty() ? error.what() : std::string(error.what()) + " (" + said + ")", more...);
}

/// Launches of a kernel.
struct Launches {
  const checkop_kernel* kernel;
  const std::vector<std::unique_ptr<Call>>& calls;
  uint64_t count;
  int status = CHECKOP_OK;  ///< int, because a candidate may return a value that is no checkop_status
  std::exception_ptr thrown = {};
  size_t latest = 0;  ///< of `calls`

  /// Launches on the calls in turns, until one is not ok. Does not throw, for a device that may be recording.
  bool run() {
    for (uint64_t i = 0; i < count && status == CHECKOP_OK && !thrown; ++i) {
      latest = i % calls.size();
      try {
        status = static_cast<int>(kernel->launch(calls[latest]->get()));
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    return is_ok();
  }
  bool is_ok() const { return !thrown && status == CHECKOP_OK; }
  std::string message() const { return calls.empty() ? "" : calls[latest]->message(); }
  /// Calls body(), which runs all launches. Adds the kernel's message to what the device throws.
  template <class Body>
  void on_gpu(const Body& body) {
    try {
      body();
    } catch (const LaunchModeUnsupported& e) {
      fail(e, message());
    } catch (const OutOfMemory& e) {
      fail(e, message());
    } catch (const DeviceError& e) {
      fail(e, message(), e.sticky());
    }
  }
  Packer answer() const {
    if (thrown) std::rethrow_exception(thrown);
    return Packer().put(Answer::done).put(status).text(message());
  }
};

/// Waits until the owner replaces `before` at the gate. Returns the new number.
uint64_t wait_at_gate(uint64_t before) {
  constexpr int kSpins = 256;
  for (int i = 1;; ++i) {
    if (const uint64_t number = gate->begin.load(std::memory_order_acquire); number != before) return number;
    gate->beats.fetch_add(1, std::memory_order_relaxed);
    if (i % kSpins == 0) std::this_thread::yield();
  }
}

/// Runs launches on the GPU and waits for their work.
void run_on_gpu(Launches& launches, Timer timer, double cover_us) {
  switch (timer) {
    case Timer::plain:
    case Timer::whole:
      return gpu->run("timing", {}, [&] { return launches.run(); });
    case Timer::claimed:
      gate->claimed_ns = gpu->time_ns("timing", cover_us, [&] { launches.run(); });
      return;
    case Timer::recorded:
      return gpu->replay("timing");
  }
}

/// Whether all launches could be recorded. Their results here do not count: they run once more.
bool can_record(Launches launches) {
  return gpu->record([&] { return launches.run(); });
}

/// Runs launches that are timed, on a GPU behind `cover_us` in which it waits. Returns an answer unless all are ok.
std::optional<Packer> take_turns(Launches launches, Timer timer, double cover_us, int socket) {
  if (gpu) gpu->release_cache();
  if (timer == Timer::recorded && !(gpu && can_record(launches))) timer = Timer::whole;
  const uint64_t count = std::exchange(launches.count, 0);
  uint64_t number = gate->begin;
  if (!send(socket, Packer().put(Answer::ready).bytes())) _exit(1);
  for (;;) {
    number = wait_at_gate(number);
    const bool is_real = !is_dry(number);
    if (is_real) launches.count = count;
    const std::optional<Packer> problem = guarded([&]() -> std::optional<Packer> {
      if (gpu) {
        const Timer how = !is_real && timer == Timer::recorded ? Timer::plain : timer;
        launches.on_gpu([&] { run_on_gpu(launches, how, is_real ? cover_us : 0); });
      } else {
        launches.run();
      }
      if (launches.is_ok()) return {};
      return launches.answer();
    });
    gate->is_answered = problem.has_value();
    gate->end.store(number, std::memory_order_release);
    syscall(SYS_futex, &gate->end, FUTEX_WAKE, 1, nullptr, nullptr, 0);  // an owner that waits long sleeps
    if (is_real) return problem;
  }
}

std::optional<Packer> call_kernel(Request request, Unpacker& unpacker, Lane& lane,
                                  std::vector<Descriptor>& descriptors) {
  if (gpu) gpu->make_current();
  drop_windows(unpacker);
  map_windows(unpacker, descriptors);
  descriptors.clear();
  const auto plugin = unpacker.get<uint64_t>(), number = unpacker.get<uint64_t>();
  const auto mode = unpacker.get<LaunchMode>();
  const auto count = unpacker.get<uint64_t>();
  const auto timer = unpacker.get<Timer>();
  const auto cover_us = unpacker.get<double>();
  std::vector<std::unique_ptr<Call>> calls(unpacker.count());
  const checkop_kernel* const kernel = calls.empty() ? nullptr : plugins.at(plugin).kernels.at(number);
  for (std::unique_ptr<Call>& call : calls) {
    call = std::make_unique<Call>(unpacker, *kernel, windows, &lane.comm, gpu ? gpu->stream() : nullptr);
    lane.comm.rank = call->get()->rank;
    lane.comm.world_size = call->get()->world_size;
  }
  if (request == Request::workspace)
    return answer(Answer::bytes, uint64_t{kernel->workspace_bytes(calls.at(0)->get())});
  Launches launches{kernel, calls, count};
  if (request == Request::turns) return take_turns(std::move(launches), timer, cover_us, lane.socket);
  if (gpu) {
    launches.on_gpu(
        [&] { gpu->run(std::string("run of '") + kernel->name + "'", mode, [&] { return launches.run(); }); });
  } else {
    launches.run();
  }
  return launches.answer();
}

void open_gate(const Descriptor& page) {
  void* const memory = mmap(nullptr, sizeof(Gate), PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0);
  if (memory == MAP_FAILED) throw WireError("the gate can't be mapped");
  gate = static_cast<Gate*>(memory);
}

/// Enters the sandbox, before the first plugin runs: of other files than the system's it can read its libraries alone.
void enter(Unpacker& unpacker) {
  SandboxRules rules;
  for (uint64_t n = unpacker.count(); n > 0; --n) paths.emplace_back(unpacker.text());
  const auto index = unpacker.get<int32_t>();
  rules.uses_cuda = index != kNoGpu;
  if (const std::string folder(unpacker.text()); !folder.empty()) {
    rules.writable.push_back(folder);
    for (const char* variable : {"TMPDIR", "HOME"}) setenv(variable, folder.c_str(), 1);
  }
  for (const std::string& path : paths)
    for (std::string& file : libraries_of(path)) rules.readable.push_back(std::move(file));
  enter_sandbox(rules);
  if (rules.uses_cuda) {  // within it, since the driver starts threads
    gpu = open_guest_device(index);
    windows.lie_on(*gpu);
  }
}

Packer table_of_plugins() {
  Packer packer;
  packer.put(Answer::table).put(uint64_t{plugins.size()});
  const auto text = [&](const char* value) { packer.put(value != nullptr).text(value == nullptr ? "" : value); };
  for (const PluginTable& plugin : plugins) {
    packer.put(uint64_t{plugin.kernels.size()});
    for (const checkop_kernel* kernel : plugin.kernels) {
      for (const char* value : {kernel->name, kernel->op, kernel->pass, declared_recipes(*kernel)}) text(value);
      packer.put(kernel->device).put(kernel->min_arch).put(kernel->max_arch);
      packer.put(kernel->workspace_bytes != nullptr).put(kernel->launch != nullptr);
    }
  }
  return packer;
}

void serve(int socket);

/// The answer to a request; none if the gate has told the owner all.
std::optional<Packer> answer_to(const std::string& message, Lane& lane, std::vector<Descriptor>& descriptors) {
  Unpacker unpacker(message);
  switch (const auto request = unpacker.get<Request>()) {
    case Request::enter:
      try {
        enter(unpacker);
      } catch (const InputError& e) {
        return answer(Answer::refused, std::string(e.what()));
      } catch (const EnvironmentError& e) {
        return answer(Answer::no_device, std::string(e.what()));
      }
      return answer(Answer::bytes, uint64_t{0});
    case Request::load:
      try {
        for (const std::string& path : paths) plugins.push_back(open_plugin(path));
      } catch (const InputError& e) {
        return answer(Answer::refused, std::string(e.what()));
      }
      std::thread(serve, kControl).detach();
      return table_of_plugins();
    case Request::gate:
      open_gate(descriptors.at(0));
      return answer(Answer::bytes, uint64_t{0});
    case Request::launch:
    case Request::turns:
    case Request::workspace:
      return guarded([&] { return call_kernel(request, unpacker, lane, descriptors); });
    case Request::drop:
      if (gpu) gpu->make_current();
      drop_windows(unpacker);
      return answer(Answer::bytes, uint64_t{0});
    case Request::lane:
      std::thread(serve, descriptors.at(0).release()).detach();
      return answer(Answer::bytes, uint64_t{0});
  }
  throw WireError("an unknown request");
}

/// Answers requests until the owner closes its end.
void serve(int socket) {
  try {
    Lane lane{{sizeof(checkop_host_comm), 0, 1, all_gather, barrier, error_of}, socket, ""};
    std::string message;
    for (std::vector<Descriptor> descriptors; receive(socket, message, descriptors, kAnyLength); descriptors.clear()) {
      const std::optional<Packer> packed = answer_to(message, lane, descriptors);
      fflush(stdout);  // what the plugin printed belongs to this case
      if (packed && !send(socket, packed->bytes())) _exit(1);
    }
  } catch (const std::exception& e) {
    const std::string text = std::string("check_operator, process of plugins: ") + e.what() + "\n";
    _exit(write(STDERR_FILENO, text.data(), text.size()) < 0 ? 2 : 1);
  }
}

}  // namespace
}  // namespace checkop::host

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
/// Read by AddressSanitizer: its search for leaks starts a process, which the sandbox forbids.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif
#endif

int main() {
  using namespace checkop::host;
  watch_inputs();
  serve(kOwner);
  _exit(0);  // no destructor of a plugin: its memory is the owner's no more
}
