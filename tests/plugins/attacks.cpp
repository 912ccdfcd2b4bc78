// SPDX-License-Identifier: Apache-2.0
// Attacks on the judge: each candidate of matmul/forward answers wrongly unless its attack succeeds, and says in its
// message whether a step of it did. Beside them honest candidates that use the same features. Only for worker
// processes.
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

/// The file that an attack on files is after: the test names it.
std::string target() {
  const char* const name = std::getenv("CHECKOP_ATTACKED");
  return name == nullptr ? "" : name;
}

/// Right if the attack succeeded, wrong otherwise.
checkop_status succeed_if(bool success, const checkop_call* call) {
  say(call, success ? "the attack succeeded" : "the attack was refused");
  if (success) return multiply(call);
  write_zeros(call->outputs[0]);
  return CHECKOP_OK;
}

/// Once for each process.
template <class Attack>
checkop_status once(const checkop_call* call, const Attack& attack) {
  static const bool success = attack();
  return succeed_if(success, call);
}

// --- other processes ---

checkop_status signals_parent(const checkop_call* call) {
  return once(call, [] { return kill(getppid(), 0) == 0; });
}
checkop_status signals_group(const checkop_call* call) {
  return once(call, [] { return kill(0, SIGCONT) == 0; });
}
checkop_status signals_everyone(const checkop_call* call) {
  return once(call, [] { return kill(-1, SIGCONT) == 0; });
}
checkop_status signals_by_descriptor(const checkop_call* call) {
  return once(call, [] { return syscall(SYS_pidfd_open, getppid(), 0) >= 0; });
}
checkop_status queues_signal(const checkop_call* call) {
  return once(call, [] { return sigqueue(getppid(), 0, sigval{}) == 0; });
}
checkop_status ptraces_parent(const checkop_call* call) {
  return once(call, [] { return ptrace(PTRACE_SEIZE, getppid(), nullptr, nullptr) == 0; });
}
checkop_status reads_parent_memory(const checkop_call* call) {
  return once(call, [] {
    char here = 0;
    iovec local{&here, 1}, remote{const_cast<char*>("x"), 1};
    return process_vm_readv(getppid(), &local, 1, &remote, 1, 0) == 1 || errno == EFAULT;
  });
}
checkop_status opens_parent_memory(const checkop_call* call) {
  return once(call, [] { return open(("/proc/" + std::to_string(getppid()) + "/mem").c_str(), O_RDWR) >= 0; });
}
checkop_status reads_parent_command(const checkop_call* call) {
  return once(call, [] { return open(("/proc/" + std::to_string(getppid()) + "/cmdline").c_str(), O_RDONLY) >= 0; });
}
checkop_status limits_parent(const checkop_call* call) {
  return once(call, [] {
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    return prlimit(getppid(), RLIMIT_CORE, &none, nullptr) == 0;
  });
}

// --- processes of its own ---

checkop_status forks(const checkop_call* call) {
  return once(call, [] {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    return child > 0 && waitpid(child, nullptr, 0) == child;
  });
}
checkop_status becomes_daemon(const checkop_call* call) {
  return once(call, [] {
    const pid_t child = fork();
    if (child == 0) {
      setsid();
      if (fork() == 0) sleep(1);
      _exit(0);
    }
    return child > 0 && waitpid(child, nullptr, 0) == child;
  });
}
checkop_status leaves_group(const checkop_call* call) {
  return once(call, [] { return setpgid(0, 0) == 0 && getpgrp() == getpid(); });
}
checkop_status starts_a_program(const checkop_call* call) {
  return once(call, [] { return std::system("true") == 0; });
}
checkop_status becomes_a_program(const checkop_call* call) {
  return once(call, [] {
    execl("/nowhere", "nowhere", static_cast<char*>(nullptr));
    return errno == ENOENT;  // it was looked for
  });
}

// --- files and the network ---

checkop_status rewrites_file(const checkop_call* call) {
  return once(call, [] {
    std::ofstream file(target(), std::ios::app);
    file << "attacked" << std::flush;
    return static_cast<bool>(file);
  });
}
checkop_status removes_file(const checkop_call* call) {
  return once(call, [] { return unlink(target().c_str()) == 0; });
}
checkop_status reads_file(const checkop_call* call) {
  return once(call, [] { return open(target().c_str(), O_RDONLY) >= 0; });
}
checkop_status rewrites_itself(const checkop_call* call) {
  return once(call, [] {
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(&reads_file), &info) != 0 && open(info.dli_fname, O_WRONLY) >= 0;
  });
}
/// Leaves word for the next process.
checkop_status remembers_on_disk(const checkop_call* call) {
  return once(call, [] { return open("/tmp/check_operator_attack", O_CREAT | O_RDWR, 0600) >= 0; });
}
checkop_status remembers_in_shared_memory(const checkop_call* call) {
  return once(call, [] { return shm_open("/check_operator_attack", O_CREAT | O_RDWR, 0600) >= 0; });
}
checkop_status remembers_in_system_v(const checkop_call* call) {
  return once(call, [] {
    const int id = shmget(0x636f7061, 4096, IPC_CREAT | 0600);
    return id >= 0 && shmctl(id, IPC_RMID, nullptr) == 0;  // it worked, so another user's run can do the same
  });
}
checkop_status asks_the_network(const checkop_call* call) {
  return once(call, [] { return socket(AF_INET, SOCK_STREAM, 0) >= 0; });
}
checkop_status asks_a_local_socket(const checkop_call* call) {
  return once(call, [] { return socket(AF_UNIX, SOCK_STREAM, 0) >= 0; });
}
checkop_status traces_events(const checkop_call* call) {
  return once(call, [] { return syscall(SYS_io_uring_setup, 1, nullptr) >= 0 || errno == EFAULT; });
}

// --- the judge's memory and its answers ---

/// The first input, given other rights.
checkop_status makes_input_writable(const checkop_call* call) {
  void* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(call->inputs[0].data) & ~uintptr_t{4095});
  return succeed_if(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0, call);
}
checkop_status writes_input_by_proc_self_mem(const checkop_call* call) {
  const int memory = open("/proc/self/mem", O_RDWR);
  const float value = *static_cast<const float*>(call->inputs[0].data);  // what is there already
  const ssize_t n = pwrite(memory, &value, sizeof value, reinterpret_cast<off_t>(call->inputs[0].data));
  return succeed_if(n == sizeof value, call);
}
checkop_status writes_input(const checkop_call* call) {
  static_cast<float*>(call->inputs[0].data)[1] = 0;
  return multiply(call);
}
/// Answers this call and the next one itself, and works no more.
checkop_status forges_done(const checkop_call* call) {
  struct [[gnu::packed]] Done {
    uint64_t length = 13;
    uint8_t kind = 2;
    int32_t status = 0;
    uint64_t message = 0;
  };
  const Done done[2];
  const bool is_sent = write(3, &done, sizeof done) == sizeof done;
  write_zeros(call->outputs[0]);
  return is_sent ? CHECKOP_OK : CHECKOP_FAILED;
}
/// Writes only what seems not to be written yet.
checkop_status writes_over_nan_alone(const checkop_call* call) {
  const checkop_tensor& c = call->outputs[0];
  std::vector<float> before(static_cast<size_t>(count(c)));
  std::memcpy(before.data(), c.data, before.size() * sizeof(float));
  const checkop_status status = multiply(call);
  for (size_t i = 0; i < before.size(); ++i)
    if (!std::isnan(before[i])) static_cast<float*>(c.data)[i] = before[i];
  return status;
}
/// Right until its thread runs, wrong from then on.
checkop_status writes_after_done(const checkop_call* call) {
  const checkop_tensor c = call->outputs[0];
  const checkop_status status = multiply(call);
  std::atomic<bool> runs = false;  // on a busy machine the whole check might be over before
  std::thread([c, &runs] {
    runs = true;
    for (;;) static_cast<volatile float*>(c.data)[0] = 0;
  }).detach();
  while (!runs) std::this_thread::yield();
  return status;
}
checkop_status writes_slack(const checkop_call* call) {
  const checkop_status status = multiply(call);
  static_cast<float*>(call->outputs[0].data)[-1] = 0;
  return status;
}
/// Writes where it has seen such poison before: its first two launches tell it what that is.
checkop_status writes_over_known_poison(const checkop_call* call) {
  static std::set<uint32_t> known;
  static int launches = 0;
  uint32_t found = 0;
  std::memcpy(&found, call->outputs[0].data, sizeof found);
  if (++launches <= 2) known.insert(found);
  return known.contains(found) ? multiply(call) : CHECKOP_OK;
}
/// Has the answers to data that everybody has: those of the seed that is used if none is given.
checkop_status knows_the_seed(const checkop_call* call) {
  uint32_t first = 0;
  std::memcpy(&first, call->inputs[0].data, sizeof first);
  return succeed_if(first == 0xbd324f46u, call);
}
/// What lies behind an input is zeros wherever memory is new.
checkop_status reads_past_input(const checkop_call* call) {
  const checkop_status status = multiply(call);
  const checkop_tensor& a = call->inputs[0];
  static_cast<float*>(call->outputs[0].data)[0] += static_cast<const float*>(a.data)[count(a) + 3];
  return status;
}
checkop_status writes_far_past_output(const checkop_call* call) {
  const checkop_status status = multiply(call);
  static_cast<volatile float*>(call->outputs[0].data)[size_t{4} << 20] = 0;
  return status;
}
/// The judge waits on the other end of what it closes.
checkop_status closes_descriptors(const checkop_call* call) {
  for (int descriptor = 0; descriptor < 1024; ++descriptor) close(descriptor);
  return multiply(call);
}
/// An answer that would need more memory than there is.
checkop_status floods_channel(const checkop_call* call) {
  const uint64_t length = uint64_t{1} << 40;
  const std::vector<char> bytes(size_t{1} << 16);
  const bool is_sent = write(3, &length, sizeof length) == sizeof length && write(3, bytes.data(), bytes.size()) > 0;
  write_zeros(call->outputs[0]);
  return is_sent ? CHECKOP_OK : CHECKOP_FAILED;
}
checkop_status raises_its_limit(const checkop_call* call) {
  return once(call, [] {
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    return setrlimit(RLIMIT_DATA, &none) == 0;
  });
}

// --- honest ---

checkop_status honest_threads(const checkop_call* call) {
  checkop_status status = CHECKOP_FAILED;
  std::thread([&] { status = multiply(call); }).join();
  return status;
}
checkop_status honest_memory(const checkop_call* call) {
  constexpr size_t kBytes = size_t{1} << 20;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CHECKOP_FAILED;
  std::memset(memory, 1, kBytes);
  munmap(memory, kBytes);
  return multiply(call);
}
checkop_status honest_temporary_file(const checkop_call* call) {
  const std::string path = std::string(std::getenv("TMPDIR")) + "/scratch";
  std::ofstream(path) << "scratch";
  const bool is_there = static_cast<bool>(std::ifstream(path));
  unlink(path.c_str());
  return is_there ? multiply(call) : CHECKOP_FAILED;
}
checkop_status honest_signal(const checkop_call* call) {
  static std::atomic<int> caught = 0;
  caught = 0;
  signal(SIGUSR1, [](int) { ++caught; });
  raise(SIGUSR1);
  return caught == 1 ? multiply(call) : CHECKOP_FAILED;
}
checkop_status honest_look_at_the_machine(const checkop_call* call) {
  const bool knows = static_cast<bool>(std::ifstream("/proc/cpuinfo")) &&
                     static_cast<bool>(std::ifstream("/proc/self/status")) && sysconf(_SC_NPROCESSORS_ONLN) > 0;
  cpu_set_t cores;
  return knows && sched_getaffinity(0, sizeof cores, &cores) == 0 ? multiply(call) : CHECKOP_FAILED;
}
checkop_status honest_library(const checkop_call* call) {
  void* const library = dlopen("libm.so.6", RTLD_NOW);
  if (library == nullptr) return CHECKOP_FAILED;
  dlclose(library);
  return multiply(call);
}
checkop_status honest_exception(const checkop_call* call) {
  try {
    throw 1;
  } catch (int) {
  }
  return multiply(call);
}
checkop_status honest_workspace(const checkop_call* call) {
  std::memset(call->workspace, 1, call->workspace_bytes);
  return multiply(call);
}
size_t some_workspace(const checkop_call*) { return 1000; }

#define ATTACK(name) kernel(#name, name)
constexpr checkop_kernel kKernels[] = {
    ATTACK(signals_parent),
    ATTACK(signals_group),
    ATTACK(signals_everyone),
    ATTACK(signals_by_descriptor),
    ATTACK(queues_signal),
    ATTACK(ptraces_parent),
    ATTACK(reads_parent_memory),
    ATTACK(opens_parent_memory),
    ATTACK(reads_parent_command),
    ATTACK(limits_parent),
    ATTACK(forks),
    ATTACK(becomes_daemon),
    ATTACK(leaves_group),
    ATTACK(starts_a_program),
    ATTACK(becomes_a_program),
    ATTACK(rewrites_file),
    ATTACK(removes_file),
    ATTACK(reads_file),
    ATTACK(rewrites_itself),
    ATTACK(remembers_on_disk),
    ATTACK(remembers_in_shared_memory),
    ATTACK(remembers_in_system_v),
    ATTACK(asks_the_network),
    ATTACK(asks_a_local_socket),
    ATTACK(traces_events),
    ATTACK(makes_input_writable),
    ATTACK(writes_input_by_proc_self_mem),
    ATTACK(writes_input),
    ATTACK(forges_done),
    ATTACK(writes_over_nan_alone),
    ATTACK(writes_after_done),
    ATTACK(writes_slack),
    ATTACK(raises_its_limit),
    ATTACK(writes_over_known_poison),
    ATTACK(knows_the_seed),
    ATTACK(reads_past_input),
    ATTACK(writes_far_past_output),
    ATTACK(closes_descriptors),
    ATTACK(floods_channel),
    ATTACK(honest_threads),
    ATTACK(honest_memory),
    ATTACK(honest_temporary_file),
    ATTACK(honest_signal),
    ATTACK(honest_look_at_the_machine),
    ATTACK(honest_library),
    ATTACK(honest_exception),
    kernel("honest_workspace", honest_workspace, some_workspace),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
