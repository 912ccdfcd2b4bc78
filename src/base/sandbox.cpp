// SPDX-License-Identifier: Apache-2.0
// Landlock, seccomp, capabilities: by system calls, since no library for them is on every machine.
#include "base/sandbox.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/child_process.hpp"

// Headers of a system may be older than its kernel.
#ifndef __NR_landlock_create_ruleset
#define __NR_landlock_create_ruleset 444
#define __NR_landlock_add_rule 445
#define __NR_landlock_restrict_self 446
#endif
#ifndef __NR_clone3
#define __NR_clone3 435
#endif
#ifndef __NR_process_madvise
#define __NR_process_madvise 440
#endif

namespace checkop {
namespace {

// --- files: Landlock ---

/// As in linux/landlock.h, ABI 6.
struct Ruleset {
  uint64_t files, network, scoped;
};
struct [[gnu::packed]] FileRule {
  uint64_t allowed;
  int32_t parent;
};
constexpr uint64_t kExecute = 1 << 0, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadFolder = 1 << 3;
constexpr uint64_t kRead = kExecute | kReadFile | kReadFolder;
constexpr uint64_t kRefer = 1 << 13, kTruncate = 1 << 14, kIoctl = 1 << 15;
constexpr uint64_t kFirstAbi = (1 << 13) - 1;
/// Rights that a file has; the others are those of folders.
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate | kIoctl;
constexpr uint64_t kTcp = 3, kScoped = 3;  // bind and connect; abstract sockets and signals
constexpr int kScopedAbi = 6;

/// 0: the kernel has none, or it is switched off.
int landlock_abi() {
  const long abi = syscall(__NR_landlock_create_ruleset, nullptr, 0, 1);
  return abi < 0 ? 0 : static_cast<int>(abi);
}

/// What the loader and the C library read, and what tells a library how many threads to use.
constexpr const char* kSystem[] = {"/usr",
                                   "/lib",
                                   "/lib32",
                                   "/lib64",
                                   "/opt",
                                   "/nix/store",
                                   "/gnu/store",
                                   "/etc/ld.so.cache",
                                   "/etc/ld.so.preload",
                                   "/etc/localtime",
                                   "/proc/self",
                                   "/proc/cpuinfo",
                                   "/proc/meminfo",
                                   "/proc/stat",
                                   "/proc/sys/vm/overcommit_memory",
                                   "/sys/devices/system",
                                   "/sys/kernel/mm/transparent_hugepage",
                                   "/dev/zero",
                                   "/dev/random",
                                   "/dev/urandom"};

void restrict_files(const SandboxRules& rules) {
  const int abi = landlock_abi();
  if (abi == 0 || (!rules.restrict_files && abi < kScopedAbi)) return;
  Ruleset ruleset{};
  if (rules.restrict_files) {
    ruleset.files = kFirstAbi | (abi >= 2 ? kRefer : 0) | (abi >= 3 ? kTruncate : 0) | (abi >= 5 ? kIoctl : 0);
    ruleset.network = abi >= 4 ? kTcp : 0;
  }
  ruleset.scoped = abi >= kScopedAbi ? kScoped : 0;
  const size_t size = abi >= kScopedAbi ? sizeof ruleset : abi >= 4 ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
  const auto set = static_cast<int>(syscall(__NR_landlock_create_ruleset, &ruleset, size, 0));
  if (set < 0) return;
  const auto allow = [&](const char* path, uint64_t rights) {
    const int file = open(path, O_PATH | O_CLOEXEC);
    if (file < 0) return;
    struct stat status {};
    if (fstat(file, &status) == 0) {
      const FileRule rule{rights & ruleset.files & (S_ISDIR(status.st_mode) ? ~uint64_t{0} : kOfFiles), file};
      syscall(__NR_landlock_add_rule, set, 1, &rule, 0);
    }
    close(file);
  };
  if (rules.restrict_files) {
    for (const char* path : kSystem) allow(path, kRead);
    for (const char* path : {"/dev/null", "/dev/full"}) allow(path, kReadFile | kWriteFile | kTruncate);
    for (const std::string& path : rules.readable) allow(path.c_str(), kRead);
    for (const std::string& path : rules.writable) allow(path.c_str(), ruleset.files & ~kExecute);
  }
  syscall(__NR_landlock_restrict_self, set, 0);
  close(set);
}

// --- system calls: seccomp ---

class Filter {
 public:
  Filter() {
#if defined(__x86_64__)
    constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#else
    constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif
    load(offsetof(seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
    constexpr uint32_t kX32 = 0x40000000;  // the same calls by other numbers
    add(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1);
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
#endif
  }

  void refuse(long call, int error = EPERM) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1);
    add(BPF_RET | BPF_K, returning(error));
  }

  /// Refuses the call unless argument `index` is `value`.
  void refuse_unless(long call, int index, uint32_t value) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 4);
    load_argument(index);
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
    add(BPF_RET | BPF_K, returning(EPERM));
    load(offsetof(seccomp_data, nr));
  }

  /// Refuses the call if argument `index` is `value`.
  void refuse_if(long call, int index, uint32_t value) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 4);
    load_argument(index);
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    add(BPF_RET | BPF_K, returning(EPERM));
    load(offsetof(seccomp_data, nr));
  }

  /// Refuses the call unless argument `index` has one of the `bits`.
  void refuse_without(long call, int index, uint32_t bits) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 4);
    load_argument(index);
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0);
    add(BPF_RET | BPF_K, returning(EPERM));
    load(offsetof(seccomp_data, nr));
  }

  /// Refuses the call if the pointer in argument `index` is not null.
  void refuse_pointer(long call, int index) {
    const auto offset = static_cast<uint32_t>(offsetof(seccomp_data, args) + static_cast<size_t>(index) * 8);
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 6);
    load(offset);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2);
    load(offset + 4);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    add(BPF_RET | BPF_K, returning(EPERM));
    load(offsetof(seccomp_data, nr));
  }

  /// For the calling process. Needs no right, once new programs can't get more rights either.
  bool install() {
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  }

 private:
  static uint32_t returning(int error) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error); }
  void add(uint16_t code, uint32_t k, uint8_t if_true = 0, uint8_t if_false = 0) {
    code_.push_back({code, if_true, if_false, k});
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  /// The low half, on little-endian machines.
  void load_argument(int index) { load(offsetof(seccomp_data, args) + static_cast<size_t>(index) * 8); }

  std::vector<sock_filter> code_;
};

/// Reach other processes, the kernel's inside or the machine's set-up; no candidate needs them.
constexpr long kForbidden[] = {__NR_ptrace,
                               __NR_process_vm_readv,
                               __NR_process_vm_writev,
                               __NR_process_madvise,
                               __NR_pidfd_getfd,
                               __NR_kcmp,
                               __NR_perf_event_open,
                               __NR_bpf,
                               __NR_userfaultfd,
                               __NR_io_uring_setup,
                               __NR_io_uring_enter,
                               __NR_keyctl,
                               __NR_add_key,
                               __NR_request_key,
                               __NR_mount,
                               __NR_umount2,
                               __NR_unshare,
                               __NR_setns,
                               __NR_chroot,
                               __NR_pivot_root,
                               __NR_open_tree,
                               __NR_move_mount,
                               __NR_fsopen,
                               __NR_open_by_handle_at,
                               __NR_init_module,
                               __NR_finit_module,
                               __NR_delete_module,
                               __NR_kexec_load,
                               __NR_reboot,
                               __NR_swapon,
                               __NR_swapoff,
                               __NR_settimeofday,
                               __NR_clock_settime,
                               __NR_clock_adjtime,
                               __NR_adjtimex,
                               __NR_sethostname,
                               __NR_setdomainname,
                               __NR_syslog,
                               __NR_acct,
                               __NR_quotactl,
                               __NR_migrate_pages,
                               __NR_move_pages,
                               __NR_setpriority,
                               __NR_ioprio_set};

/// What outlives a process and would carry answers to the next one, and what starts or limits processes.
constexpr long kForbiddenToPlugins[] = {
    __NR_socket, __NR_shmget,   __NR_msgget,    __NR_semget,     __NR_mq_open,
    __NR_execve, __NR_execveat, __NR_setrlimit, __NR_pidfd_open, __NR_pidfd_send_signal,
    __NR_tkill};

/// Only among a process's own threads. A signal 0 to others, which tells whether they live, is refused as well.
constexpr long kSignals[] = {__NR_kill, __NR_tgkill, __NR_rt_sigqueueinfo, __NR_rt_tgsigqueueinfo};

void restrict_calls(const SandboxRules& rules) {
  Filter filter;
  for (const long call : kForbidden) filter.refuse(call);
  // As if they had worked: a process that wants a group or session of its own goes on in the one it has.
  for (const long call : {__NR_setsid, __NR_setpgid}) filter.refuse(call, 0);
  if (rules.processes == SandboxRules::Processes::none) {
    for (const long call : kForbiddenToPlugins) filter.refuse(call);
    for (const long call : kSignals) filter.refuse_unless(call, 0, static_cast<uint32_t>(getpid()));
#if defined(__NR_fork)
    filter.refuse(__NR_fork);
    filter.refuse(__NR_vfork);
#endif
    filter.refuse(__NR_clone3, ENOSYS);  // its flags lie in memory; the C library goes on with clone
    filter.refuse_without(__NR_clone, 0, CLONE_THREAD);
    filter.refuse_pointer(__NR_prlimit64, 2);
  } else {
    for (const long call : kSignals) {
      for (const pid_t process : rules.untouchable) {
        filter.refuse_if(call, 0, static_cast<uint32_t>(process));
        filter.refuse_if(call, 0, static_cast<uint32_t>(-process));
      }
      filter.refuse_if(call, 0, static_cast<uint32_t>(-1));
    }
    for (const pid_t process : rules.untouchable) {
      filter.refuse_if(__NR_pidfd_open, 0, static_cast<uint32_t>(process));
      filter.refuse_if(__NR_prlimit64, 0, static_cast<uint32_t>(process));
    }
  }
  filter.install();
}

/// Rights over other processes and the machine. A user with all rights keeps those over files, which a checkout of
/// another user may need.
void drop_capabilities(SandboxRules::Processes processes) {
  for (const int each : {CAP_SYS_PTRACE, CAP_KILL, CAP_SYS_ADMIN, CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT,
                         CAP_NET_ADMIN, CAP_NET_RAW, CAP_MKNOD, CAP_SYS_CHROOT, CAP_SETPCAP}) {
    prctl(PR_CAPBSET_DROP, each, 0, 0, 0);
  }
  if (processes != SandboxRules::Processes::none) return;  // what it starts gets the rights that are left
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> kept{};
  if (syscall(__NR_capget, &header, kept.data()) != 0) return;
  constexpr uint32_t kOverFiles = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;
  kept[0] = {kept[0].effective & kOverFiles, kept[0].permitted & kOverFiles, 0};
  kept[1] = {};
  syscall(__NR_capset, &header, kept.data());
}

}  // namespace

void enter_sandbox(const SandboxRules& rules) {
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  drop_capabilities(rules.processes);
  restrict_files(rules);
  restrict_calls(rules);
}

void hide_memory() { prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); }

namespace {

/// What a candidate might try. Each returns whether it was refused; the order is that of probe_sandbox().
enum Attempt : int { kReadsFiles, kUsesNetwork, kSignalsOthers, kStartsProcesses, kTraces, kLeavesGroup, kAttempts };

int attempts_refused(pid_t parent) {
  int refused = 0;
  const auto note = [&](Attempt attempt, bool is_refused) { refused |= is_refused ? 1 << attempt : 0; };
  const int file = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  note(kReadsFiles, file < 0);
  const int tcp = socket(AF_INET, SOCK_STREAM, 0);
  note(kUsesNetwork, tcp < 0 && errno == EPERM);
  note(kSignalsOthers, kill(parent, 0) != 0);
  const std::string memory = fmt::format("/proc/{}/mem", parent);
  note(kTraces, open(memory.c_str(), O_RDONLY | O_CLOEXEC) < 0);
  setsid();
  note(kLeavesGroup, getsid(0) != getpid());
  const pid_t child = fork();
  if (child == 0) _exit(0);
  note(kStartsProcesses, child < 0);
  return refused;
}

}  // namespace

std::vector<SandboxMeasure> probe_sandbox() {
  const pid_t parent = getpid();
  ChildProcess child([parent] {
    enter_sandbox({});
    return attempts_refused(parent);
  });
  const int status = child.wait().status;
  const int refused = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  const int abi = landlock_abi();
  const std::string landlock = abi > 0 ? fmt::format("Landlock, ABI {}", abi) : "the kernel has no Landlock";
  const std::string seccomp = (refused >> kUsesNetwork & 1) != 0 ? "seccomp" : "the kernel has no seccomp filters";
  const auto measure = [&](const char* what, Attempt attempt, const std::string& how) {
    return SandboxMeasure{what, (refused >> attempt & 1) != 0, how};
  };
  return {measure("files that are not needed", kReadsFiles, landlock),
          measure("the network", kUsesNetwork, seccomp),
          measure("signals to others", kSignalsOthers, seccomp),
          measure("new processes", kStartsProcesses, seccomp),
          measure("leaving its process group", kLeavesGroup, seccomp),
          measure("memory of others", kTraces, abi > 0 ? landlock : "capabilities")};
}

}  // namespace checkop
