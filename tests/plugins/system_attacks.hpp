// SPDX-License-Identifier: Apache-2.0
// Attacks by system calls, the same for the CPU and for GPUs. The plugin includes its own multiply() and write_zeros()
// of test_plugin before this file.
#pragma once

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
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace test_plugin {

/// The file that attacks on files aim at: the test names it.
inline std::string target() {
  const char* const name = std::getenv("CHECKOP_ATTACKED");
  return name == nullptr ? "" : name;
}

/// Right if the attack succeeded, wrong otherwise.
inline checkop_status succeed_if(bool success, const checkop_call* call) {
  say(call, success ? "the attack succeeded" : "the attack was refused");
  if (success) return multiply(call);
  write_zeros(call->outputs[0]);
  return CHECKOP_OK;
}

/// Attacks once in each process; later calls have the same outcome.
template <class Attack>
checkop_status once(const checkop_call* call, const Attack& attack) {
  static const bool success = attack();
  return succeed_if(success, call);
}

// --- other processes ---

inline checkop_status signals_parent(const checkop_call* call) {
  return once(call, [] { return kill(getppid(), 0) == 0; });
}
inline checkop_status signals_group(const checkop_call* call) {
  return once(call, [] { return kill(0, SIGCONT) == 0; });
}
inline checkop_status signals_everyone(const checkop_call* call) {
  return once(call, [] { return kill(-1, SIGCONT) == 0; });
}
inline checkop_status signals_by_descriptor(const checkop_call* call) {
  return once(call, [] { return syscall(SYS_pidfd_open, getppid(), 0) >= 0; });
}
inline checkop_status queues_signal(const checkop_call* call) {
  return once(call, [] { return sigqueue(getppid(), 0, sigval{}) == 0; });
}
inline checkop_status ptraces_parent(const checkop_call* call) {
  return once(call, [] { return ptrace(PTRACE_SEIZE, getppid(), nullptr, nullptr) == 0; });
}
inline checkop_status reads_parent_memory(const checkop_call* call) {
  return once(call, [] {
    char here = 0;
    iovec local{&here, 1}, remote{const_cast<char*>("x"), 1};
    return process_vm_readv(getppid(), &local, 1, &remote, 1, 0) == 1 || errno == EFAULT;
  });
}
inline checkop_status opens_parent_memory(const checkop_call* call) {
  return once(call, [] { return open(("/proc/" + std::to_string(getppid()) + "/mem").c_str(), O_RDWR) >= 0; });
}
inline checkop_status reads_parent_command(const checkop_call* call) {
  return once(call, [] { return open(("/proc/" + std::to_string(getppid()) + "/cmdline").c_str(), O_RDONLY) >= 0; });
}
inline checkop_status limits_parent(const checkop_call* call) {
  return once(call, [] {
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    return prlimit(getppid(), RLIMIT_CORE, &none, nullptr) == 0;
  });
}

// --- processes of its own ---

inline checkop_status forks(const checkop_call* call) {
  return once(call, [] {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    return child > 0 && waitpid(child, nullptr, 0) == child;
  });
}
inline checkop_status becomes_daemon(const checkop_call* call) {
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
inline checkop_status leaves_group(const checkop_call* call) {
  return once(call, [] { return setpgid(0, 0) == 0 && getpgrp() == getpid(); });
}
inline checkop_status starts_a_program(const checkop_call* call) {
  return once(call, [] { return std::system("true") == 0; });
}
inline checkop_status becomes_a_program(const checkop_call* call) {
  return once(call, [] {
    execl("/nowhere", "nowhere", static_cast<char*>(nullptr));
    return errno == ENOENT;  // it was looked for
  });
}

// --- files and the network ---

inline checkop_status rewrites_file(const checkop_call* call) {
  return once(call, [] {
    std::ofstream file(target(), std::ios::app);
    file << "attacked" << std::flush;
    return static_cast<bool>(file);
  });
}
inline checkop_status removes_file(const checkop_call* call) {
  return once(call, [] { return unlink(target().c_str()) == 0; });
}
inline checkop_status reads_file(const checkop_call* call) {
  return once(call, [] { return open(target().c_str(), O_RDONLY) >= 0; });
}
inline checkop_status rewrites_itself(const checkop_call* call) {
  return once(call, [] {
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(&reads_file), &info) != 0 && open(info.dli_fname, O_WRONLY) >= 0;
  });
}
/// Leaves a file for the next process.
inline checkop_status remembers_on_disk(const checkop_call* call) {
  return once(call, [] { return open("/tmp/check_operator_attack", O_CREAT | O_RDWR, 0600) >= 0; });
}
inline checkop_status remembers_in_shared_memory(const checkop_call* call) {
  return once(call, [] { return shm_open("/check_operator_attack", O_CREAT | O_RDWR, 0600) >= 0; });
}
inline checkop_status remembers_in_system_v(const checkop_call* call) {
  return once(call, [] {
    const int id = shmget(0x636f7061, 4096, IPC_CREAT | 0600);
    return id >= 0 && shmctl(id, IPC_RMID, nullptr) == 0;  // it worked, so another user's run can do the same
  });
}
/// The path of this plugin.
inline std::string own_path() {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(&reads_file), &info) != 0 ? info.dli_fname : "";
}
/// Marks that the next process can read.
inline checkop_status changes_a_mode(const checkop_call* call) {
  return once(call, [] {
    struct stat status {};
    return chmod(target().c_str(), 0640) == 0 && stat(target().c_str(), &status) == 0 &&
           (status.st_mode & 0777) == 0640;
  });
}
inline checkop_status sets_a_time(const checkop_call* call) {
  return once(call, [] {
    const timespec times[2] = {{777, 0}, {777, 0}};
    struct stat status {};
    return utimensat(AT_FDCWD, target().c_str(), times, 0) == 0 && stat(target().c_str(), &status) == 0 &&
           status.st_mtim.tv_sec == 777;
  });
}
inline checkop_status leaves_an_attribute(const checkop_call* call) {
  return once(call, [] { return setxattr(own_path().c_str(), "user.check_operator_attack", "x", 1, 0) == 0; });
}
inline checkop_status locks_a_file(const checkop_call* call) {
  return once(call, [] {
    struct flock lock {};
    lock.l_type = F_RDLCK;
    lock.l_len = 1;
    const int file = open("/usr/bin/env", O_RDONLY | O_CLOEXEC);
    return fcntl(file, F_OFD_SETLK, &lock) == 0 && close(file) == 0;
  });
}
inline checkop_status schedules_the_judge(const checkop_call* call) {
  return once(call, [] {
    const sched_param none{};
    return sched_setscheduler(getppid(), SCHED_BATCH, &none) == 0 && sched_getscheduler(getppid()) == SCHED_BATCH;
  });
}
inline checkop_status outlives_the_judge(const checkop_call* call) {
  return once(call, [] {
    int signal = 0;
    prctl(PR_SET_PDEATHSIG, 0);
    return prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == 0;
  });
}
/// Its text would begin lines of its own in the report, its output would rewrite what the judge printed.
inline checkop_status forges_lines(const checkop_call* call) {
  constexpr char kLine[] = "\n[  PASSED  ] 99 pass\n";
  const off_t end = lseek(STDERR_FILENO, 0, SEEK_END);
  const bool is_file = end >= 0 && ftruncate(STDERR_FILENO, 0) == 0;
  const bool is_shared = fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK) == 0 && is_file;
  const bool is_printed = write(STDERR_FILENO, kLine, sizeof kLine - 1) > 0;
  const checkop_status status = succeed_if(is_shared && is_printed, call);
  say(call, kLine);
  return status;
}
inline checkop_status asks_the_network(const checkop_call* call) {
  return once(call, [] { return socket(AF_INET, SOCK_STREAM, 0) >= 0; });
}
inline checkop_status asks_a_local_socket(const checkop_call* call) {
  return once(call, [] { return socket(AF_UNIX, SOCK_STREAM, 0) >= 0; });
}
inline checkop_status traces_events(const checkop_call* call) {
  return once(call, [] { return syscall(SYS_io_uring_setup, 1, nullptr) >= 0 || errno == EFAULT; });
}

inline checkop_status raises_its_limit(const checkop_call* call) {
  return once(call, [] {
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    return setrlimit(RLIMIT_DATA, &none) == 0;
  });
}

// --- answers to the judge ---

/// Writes the answers to this call and the next one itself, and computes nothing.
inline checkop_status forges_done(const checkop_call* call) {
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
/// Closes the connection on whose other end the judge waits.
inline checkop_status closes_descriptors(const checkop_call* call) {
  for (int descriptor = 0; descriptor < 5; ++descriptor) close(descriptor);
  return multiply(call);
}
/// An answer that would need more memory than there is.
inline checkop_status floods_channel(const checkop_call* call) {
  const uint64_t length = uint64_t{1} << 40;
  const std::vector<char> bytes(size_t{1} << 16);
  const bool is_sent = write(3, &length, sizeof length) == sizeof length && write(3, bytes.data(), bytes.size()) > 0;
  write_zeros(call->outputs[0]);
  return is_sent ? CHECKOP_OK : CHECKOP_FAILED;
}

/// The kernels of these attacks, for the table of a plugin for `device`.
#define CHECKOP_SYSTEM_ATTACKS(device)                                                                                \
  kernel("signals_parent", signals_parent, nullptr, device), kernel("signals_group", signals_group, nullptr, device), \
      kernel("signals_everyone", signals_everyone, nullptr, device),                                                  \
      kernel("signals_by_descriptor", signals_by_descriptor, nullptr, device),                                        \
      kernel("queues_signal", queues_signal, nullptr, device),                                                        \
      kernel("ptraces_parent", ptraces_parent, nullptr, device),                                                      \
      kernel("reads_parent_memory", reads_parent_memory, nullptr, device),                                            \
      kernel("opens_parent_memory", opens_parent_memory, nullptr, device),                                            \
      kernel("reads_parent_command", reads_parent_command, nullptr, device),                                          \
      kernel("limits_parent", limits_parent, nullptr, device), kernel("forks", forks, nullptr, device),               \
      kernel("becomes_daemon", becomes_daemon, nullptr, device),                                                      \
      kernel("leaves_group", leaves_group, nullptr, device),                                                          \
      kernel("starts_a_program", starts_a_program, nullptr, device),                                                  \
      kernel("becomes_a_program", becomes_a_program, nullptr, device),                                                \
      kernel("rewrites_file", rewrites_file, nullptr, device), kernel("removes_file", removes_file, nullptr, device), \
      kernel("reads_file", reads_file, nullptr, device), kernel("rewrites_itself", rewrites_itself, nullptr, device), \
      kernel("remembers_on_disk", remembers_on_disk, nullptr, device),                                                \
      kernel("remembers_in_shared_memory", remembers_in_shared_memory, nullptr, device),                              \
      kernel("remembers_in_system_v", remembers_in_system_v, nullptr, device),                                        \
      kernel("changes_a_mode", changes_a_mode, nullptr, device), kernel("sets_a_time", sets_a_time, nullptr, device), \
      kernel("leaves_an_attribute", leaves_an_attribute, nullptr, device),                                            \
      kernel("locks_a_file", locks_a_file, nullptr, device),                                                          \
      kernel("schedules_the_judge", schedules_the_judge, nullptr, device),                                            \
      kernel("outlives_the_judge", outlives_the_judge, nullptr, device),                                              \
      kernel("forges_lines", forges_lines, nullptr, device),                                                          \
      kernel("asks_the_network", asks_the_network, nullptr, device),                                                  \
      kernel("asks_a_local_socket", asks_a_local_socket, nullptr, device),                                            \
      kernel("traces_events", traces_events, nullptr, device),                                                        \
      kernel("raises_its_limit", raises_its_limit, nullptr, device),                                                  \
      kernel("forges_done", forges_done, nullptr, device),                                                            \
      kernel("closes_descriptors", closes_descriptors, nullptr, device),                                              \
      kernel("floods_channel", floods_channel, nullptr, device)

}  // namespace test_plugin
