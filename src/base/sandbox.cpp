// SPDX-License-Identifier: Apache-2.0
// Landlock, seccomp, capabilities: by system calls, since no library for them is on every machine.
#include "base/sandbox.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include "base/child_process.hpp"
#include "base/frame.hpp"

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
constexpr uint64_t kMakeFolder = 1 << 7;
constexpr uint64_t kRead = kExecute | kReadFile | kReadFolder;
constexpr uint64_t kRefer = 1 << 13, kTruncate = 1 << 14, kIoctl = 1 << 15;
constexpr uint64_t kFirstAbi = (1 << 13) - 1;
/// Rights that a file has; the others are those of folders.
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate | kIoctl;
constexpr uint64_t kTcp = 3, kScoped = 3;  // bind and connect; abstract sockets and signals
constexpr int kScopedAbi = 6;

/// The version of Landlock; 0 if the kernel has none or it is switched off.
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

// --- What the CUDA driver needs besides, as seen with driver 580 ---

/// Where the driver reads about the machine.
constexpr const char* kOfCuda[] = {"/proc/driver/nvidia", "/proc/driver/nvidia-caps",   "/proc/driver/nvidia-nvlink",
                                   "/proc/devices",       "/proc/sys/vm/mmap_min_addr", "/sys/bus/pci",
                                   "/sys/devices",        "/sys/module/nvidia",         "/sys/module/nvidia_uvm",
                                   "/etc/nvidia"};
/// The driver's devices are these and /dev/nvidiaN.
constexpr const char* kDevicesOfCuda[] = {"nvidiactl", "nvidia-uvm", "nvidia-caps"};
/// The driver does not start if it can't write the names of its threads, whose ids are not known beforehand.
constexpr const char* kThreads = "/proc/self/task";
/// The driver does not start without sockets of this kind either. It connects one to MPS, which is refused, and listens
/// on another.
constexpr uint32_t kDomainOfCuda = AF_UNIX, kSocketsOfCuda = SOCK_SEQPACKET;

/// Collects the rights over files that enter() limits the process to.
class FileRules {
 public:
  explicit FileRules(int abi) {
    ruleset_.files = kFirstAbi | (abi >= 2 ? kRefer : 0) | (abi >= 3 ? kTruncate : 0) | (abi >= 5 ? kIoctl : 0);
    ruleset_.network = abi >= 4 ? kTcp : 0;
    ruleset_.scoped = abi >= kScopedAbi ? kScoped : 0;
    const size_t size = abi >= kScopedAbi ? sizeof ruleset_ : abi >= 4 ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
    set_ = Descriptor(static_cast<int>(syscall(__NR_landlock_create_ruleset, &ruleset_, size, 0)));
  }

  void allow(const std::string& path, uint64_t rights) {
    const Descriptor file(open(path.c_str(), O_PATH | O_CLOEXEC));
    struct stat status {};
    if (file.get() < 0 || fstat(file.get(), &status) != 0) return;
    const FileRule rule{rights & ruleset_.files & (S_ISDIR(status.st_mode) ? ~uint64_t{0} : kOfFiles), file.get()};
    syscall(__NR_landlock_add_rule, set_.get(), 1, &rule, 0);
  }

  void allow_writing(const std::string& path, bool has_folders) {
    allow(path, has_folders ? ruleset_.files : ruleset_.files & ~kMakeFolder);
  }
  void allow_device(const std::string& path) { allow(path, kReadFolder | kReadFile | kWriteFile | kIoctl); }

  /// Allows reading the entries of `folder` except the files and folders of `hidden`. Landlock can't take back a right
  /// that it gave to a folder, so every other entry gets the right. A right to a link is a right to its target.
  void allow_reading_all_but(const std::vector<std::filesystem::path>& hidden, const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> inside;
    for (const std::filesystem::path& each : hidden) {
      if (each == folder) return;
      if (std::ranges::mismatch(folder, each).in1 == folder.end()) inside.push_back(each);
    }
    if (inside.empty()) return allow(folder, kRead);
    std::error_code ignored;
    for (std::filesystem::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
      if (!entry->is_symlink(ignored)) allow_reading_all_but(inside, entry->path());
    }
  }

  void enter() { syscall(__NR_landlock_restrict_self, set_.get(), 0); }

 private:
  Ruleset ruleset_{};
  Descriptor set_;
};

/// Allows reading all files except devices, those of other processes in /proc, and `more_hidden`.
void allow_reading_nearly_all(FileRules& files, const std::vector<std::string>& more_hidden) {
  constexpr const char* kProcesses = "/proc";
  std::vector<std::filesystem::path> hidden{kProcesses, "/dev"};
  std::error_code ignored;
  for (const std::string& path : more_hidden) hidden.push_back(std::filesystem::weakly_canonical(path, ignored));
  files.allow("/", kReadFolder);
  files.allow_reading_all_but(hidden, "/");
  for (std::filesystem::directory_iterator entry(kProcesses, ignored), end; entry != end; entry.increment(ignored)) {
    const bool is_process = std::isdigit(static_cast<unsigned char>(entry->path().filename().c_str()[0])) != 0;
    if (!is_process && !entry->is_symlink(ignored)) files.allow(entry->path(), kRead);
  }
}

void restrict_files(const SandboxRules& rules) {
  const int abi = landlock_abi();
  if (abi == 0) return;
  FileRules files(abi);
  for (const char* path : kSystem) files.allow(path, kRead);
  for (const char* path : {"/dev/null", "/dev/full"}) files.allow(path, kReadFile | kWriteFile | kTruncate);
  for (const std::string& path : rules.readable) files.allow(path, kRead);
  // Folders in folders would take long to remove. The CUDA driver may need some.
  const bool has_folders = rules.uses_cuda || rules.processes != SandboxRules::Processes::none;
  for (const std::string& path : rules.writable) files.allow_writing(path, has_folders);
  if (rules.reads_all) allow_reading_nearly_all(files, rules.hidden);
  if (rules.uses_cuda) {
    const CudaFiles cuda = cuda_files();
    for (const std::string& path : cuda.readable) files.allow(path, kRead);
    for (const std::string& path : cuda.devices) files.allow_device(path);
    for (const std::string& path : cuda.writable) files.allow(path, kReadFolder | kReadFile | kWriteFile | kTruncate);
  }
  files.enter();
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
  void refuse_unless(long call, int index, uint32_t value, int error = EPERM) {
    refuse_where(call, index, BPF_JEQ, value, false, error);
  }

  /// Refuses the call if argument `index` is `value`.
  void refuse_if(long call, int index, uint32_t value) { refuse_where(call, index, BPF_JEQ, value, true); }

  /// Refuses the call unless argument `index` has one of the `bits`.
  void refuse_without(long call, int index, uint32_t bits) { refuse_where(call, index, BPF_JSET, bits, false); }

  /// Refuses the call if argument `index` has one of the `bits`.
  void refuse_with(long call, int index, uint32_t bits) { refuse_where(call, index, BPF_JSET, bits, true); }

  /// Refuses the call if the pointer in argument `index` is not null.
  void refuse_pointer(long call, int index) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, kOfPointer + 1);
    refuse_unless_null(index);
    load(offsetof(seccomp_data, nr));
  }

  /// Refuses to set limits of another process by number.
  void refuse_limits_of_others() {
    add(BPF_JMP | BPF_JEQ | BPF_K, __NR_prlimit64, 0, kOfPointer + 3);
    load_argument(0);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, kOfPointer, 0);
    refuse_unless_null(2);
    load(offsetof(seccomp_data, nr));
  }

  /// Refuses sockets but those of a domain and a type.
  void refuse_sockets_but(uint32_t domain, uint32_t type) {
    constexpr uint32_t kTypeBits = 0xf;  // beside these are flags
    add(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 7);
    load_argument(0);
    add(BPF_JMP | BPF_JEQ | BPF_K, domain, 0, 3);
    load_argument(1);
    add(BPF_ALU | BPF_AND | BPF_K, kTypeBits);
    add(BPF_JMP | BPF_JEQ | BPF_K, type, 1, 0);
    add(BPF_RET | BPF_K, returning(EPERM));
    load(offsetof(seccomp_data, nr));
  }

  /// Installs the filter for the calling process. Needs no capability after PR_SET_NO_NEW_PRIVS.
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
  /// Loads the low half of the argument, on little-endian machines.
  void load_argument(int index) { load(offsetof(seccomp_data, args) + static_cast<size_t>(index) * 8); }

  /// Refuses the call unless the pointer in the argument is null.
  void refuse_unless_null(int index) {
    const size_t low = offsetof(seccomp_data, args) + static_cast<size_t>(index) * 8;
    load(low);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2);
    load(low + 4);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    add(BPF_RET | BPF_K, returning(EPERM));
  }
  static constexpr uint8_t kOfPointer = 5;  ///< instructions of refuse_unless_null()

  /// Refuses the call where `comparison` of argument `index` with `operand` gives `result`.
  void refuse_where(long call, int index, uint16_t comparison, uint32_t operand, bool result, int error = EPERM) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 4);
    load_argument(index);
    add(static_cast<uint16_t>(BPF_JMP | BPF_K | comparison), operand, result ? 0 : 1, result ? 1 : 0);
    add(BPF_RET | BPF_K, returning(error));
    load(offsetof(seccomp_data, nr));
  }

  std::vector<sock_filter> code_;
};

/// Calls that reach other processes, the kernel's internals or the machine's configuration; no candidate needs them.
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

/// Calls that reach any process that listens, or make objects that outlive a process and could carry answers to the
/// next.
constexpr long kForbiddenBetweenProcesses[] = {__NR_shmget,  __NR_msgget, __NR_semget,
                                               __NR_mq_open, __NR_tkill,  __NR_pidfd_send_signal};

/// Calls that leave a mark on a file, or on what processes share, which another process of the candidate could read.
/// They report success without effect, since programs give up where they fail.
constexpr long kMarks[] = {
#if defined(__NR_chmod)
    __NR_chmod,  __NR_chown,    __NR_lchown, __NR_utime,    __NR_utimes,    __NR_futimesat,
#endif
    __NR_fchmod, __NR_fchmodat, __NR_fchown, __NR_fchownat, __NR_utimensat, __NR_flock};

/// The same, and watches of what other processes do with files; no candidate needs them.
constexpr long kAttributesAndWatches[] = {__NR_setxattr,
                                          __NR_lsetxattr,
                                          __NR_fsetxattr,
                                          __NR_removexattr,
                                          __NR_lremovexattr,
                                          __NR_fremovexattr,
                                          __NR_inotify_init1,
                                          __NR_fanotify_init,
                                          452 /* fchmodat2 */,
                                          463 /* setxattrat */,
                                          466 /* removexattrat */};

/// Commands of fcntl() for locks and signals, which other processes see.
constexpr uint32_t kSharedByFcntl[] = {F_GETLK,    F_SETLK,  F_SETLKW, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW,
                                       F_SETLEASE, F_NOTIFY, F_SETSIG, F_SETOWN,    F_SETOWN_EX};

/// Calls that say how threads are scheduled. Of the calling thread alone: for any other they report success without
/// effect.
constexpr long kScheduling[] = {__NR_sched_setaffinity, __NR_sched_setscheduler, __NR_sched_setparam,
                                __NR_sched_setattr};

/// Calls that start or limit processes.
constexpr long kForbiddenToPlugins[] = {__NR_execve, __NR_execveat, __NR_setrlimit, __NR_pidfd_open};

/// Calls that a plugin may use for its own threads only. Signal 0 to other processes, which tells whether they live, is
/// refused as well.
constexpr long kSignals[] = {__NR_kill, __NR_tgkill, __NR_rt_sigqueueinfo, __NR_rt_tgsigqueueinfo};

/// New users, processes, mounts and the like, over which the process that makes them would have all rights.
constexpr uint32_t kNewNamespaces =
    CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

void restrict_calls(const SandboxRules& rules) {
  Filter filter;
  for (const long call : kForbidden) filter.refuse(call);
  for (const long call : kForbiddenBetweenProcesses) filter.refuse(call);
  if (rules.uses_cuda) {
    filter.refuse_sockets_but(kDomainOfCuda, kSocketsOfCuda);
    filter.refuse(__NR_connect, ENOENT);
  } else {
    filter.refuse(__NR_socket);
  }
  // Report success without effect: a process that wants a group or session of its own goes on in the one it has.
  for (const long call : {__NR_setsid, __NR_setpgid}) filter.refuse(call, 0);
  filter.refuse_if(__NR_ioctl, 1, TIOCSTI);  // would type into the terminal that the run was started from
  // Would make files immutable, as root.
  for (const uint32_t request : {uint32_t{FS_IOC_SETFLAGS}, uint32_t{FS_IOC_FSSETXATTR}})
    filter.refuse_if(__NR_ioctl, 1, request);
  for (const long call : kScheduling) filter.refuse_unless(call, 0, 0, 0);
  filter.refuse(__NR_clone3, ENOSYS);  // its flags lie in memory; the C library goes on with clone
  filter.refuse_with(__NR_clone, 0, kNewNamespaces);
  if (rules.processes == SandboxRules::Processes::none) {
    for (const long call : kForbiddenToPlugins) filter.refuse(call);
    for (const long call : kMarks) filter.refuse(call, 0);
    for (const long call : kAttributesAndWatches) filter.refuse(call);
    for (const uint32_t command : kSharedByFcntl) filter.refuse_if(__NR_fcntl, 1, command);
    filter.refuse_if(__NR_prctl, 0, PR_SET_PDEATHSIG);  // ends it with the worker
    for (const long call : kSignals) filter.refuse_unless(call, 0, static_cast<uint32_t>(getpid()));
#if defined(__NR_fork)
    filter.refuse(__NR_fork);
    filter.refuse(__NR_vfork);
#endif
    filter.refuse_without(__NR_clone, 0, CLONE_THREAD);
    filter.refuse_pointer(__NR_prlimit64, 2);
  } else {
    for (const long call : kSignals) {
      for (const pid_t process : rules.untouchable) {
        filter.refuse_if(call, 0, static_cast<uint32_t>(process));
        filter.refuse_if(call, 0, static_cast<uint32_t>(-process));
      }
      filter.refuse_if(call, 0, static_cast<uint32_t>(-1));
      filter.refuse_if(call, 0, 0);  // its own group, to which the process that started it belongs, too
    }
    for (const pid_t process : rules.untouchable) {
      filter.refuse_if(__NR_pidfd_open, 0, static_cast<uint32_t>(process));
    }
    filter.refuse_limits_of_others();
  }
  filter.install();
}

/// Capabilities over other processes and the machine. Root keeps its capabilities over files, which a checkout of
/// another user may need.
void drop_capabilities(SandboxRules::Processes processes) {
  for (const int each :
       {CAP_SYS_PTRACE, CAP_KILL, CAP_SYS_ADMIN, CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT, CAP_NET_ADMIN,
        CAP_NET_RAW, CAP_MKNOD, CAP_SYS_CHROOT, CAP_SETPCAP, CAP_LINUX_IMMUTABLE, CAP_SYS_RESOURCE, CAP_SYS_NICE}) {
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

CudaFiles cuda_files() {
  CudaFiles files;
  std::error_code ignored;
  for (const char* path : kOfCuda)
    if (std::filesystem::exists(path, ignored)) files.readable.emplace_back(path);
  for (std::filesystem::directory_iterator entry("/dev", ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string(), prefix = "nvidia";
    const bool is_gpu = name.starts_with(prefix) && name.size() > prefix.size() &&
                        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (is_gpu || std::ranges::count(kDevicesOfCuda, name) > 0) files.devices.push_back(entry->path().string());
  }
  std::ranges::sort(files.devices);
  files.writable.emplace_back(kThreads);
  return files;
}

void hide_memory() { prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); }

namespace {

/// What a candidate might try.
enum Attempt : int {
  kReadsFiles,
  kWritesFiles,
  kUsesNetwork,
  kSignalsOthers,
  kStartsProcesses,
  kLooksAtOthers,
  kTraces,
  kLeavesGroup
};

/// Makes every attempt. Returns a bit for each one that was refused.
int attempts_refused(pid_t parent) {
  int refused = 0;
  const auto note = [&](Attempt attempt, bool is_refused) { refused |= is_refused ? 1 << attempt : 0; };
  const auto opens = [&](const std::string& path, int flags) {
    return Descriptor(open(path.c_str(), flags | O_CLOEXEC, 0600)).get() >= 0;
  };
  note(kReadsFiles, !opens("/", O_RDONLY | O_DIRECTORY));
  note(kWritesFiles, !opens("/tmp", O_TMPFILE | O_RDWR) && errno == EACCES);
  const int tcp = socket(AF_INET, SOCK_STREAM, 0);
  note(kUsesNetwork, tcp < 0 && errno == EPERM);
  note(kSignalsOthers, kill(parent, 0) != 0);
  note(kLooksAtOthers, !opens(fmt::format("/proc/{}/cmdline", parent), O_RDONLY));
  note(kTraces, !opens(fmt::format("/proc/{}/mem", parent), O_RDONLY));
  setsid();
  note(kLeavesGroup, getsid(0) != getpid());
  const pid_t child = fork();
  if (child == 0) _exit(0);
  note(kStartsProcesses, child < 0);
  return refused;
}

}  // namespace

std::vector<SandboxMeasure> probe_sandbox(SandboxRules::Processes processes) {
  const pid_t parent = getpid();
  const bool are_plugins = processes == SandboxRules::Processes::none;
  ChildProcess child([&] {
    SandboxRules rules;
    rules.processes = processes;
    rules.reads_all = !are_plugins;
    rules.untouchable = {parent};
    enter_sandbox(rules);
    return attempts_refused(parent);
  });
  const int status = child.wait().status;
  const int refused = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  const auto holds = [&](Attempt attempt) { return (refused >> attempt & 1) != 0; };
  const int abi = landlock_abi();
  const std::string landlock = abi > 0 ? fmt::format("Landlock, ABI {}", abi) : "the kernel has no Landlock";
  const std::string seccomp = holds(kUsesNetwork) ? "seccomp" : "the kernel has no seccomp filters";
  std::vector<SandboxMeasure> measures;
  const auto add = [&](const char* what, Attempt attempt, const std::string& how) {
    measures.push_back({what, holds(attempt), how});
  };
  if (are_plugins) {
    add("files that are not needed", kReadsFiles, landlock);
    add("new processes", kStartsProcesses, seccomp);
  } else {
    add("writing to files", kWritesFiles, landlock);
  }
  add("the network", kUsesNetwork, seccomp);
  add("signals to others", kSignalsOthers, seccomp);
  add("leaving its process group", kLeavesGroup, seccomp);
  add("a look at other processes", kLooksAtOthers, landlock);
  add("memory of others", kTraces, abi > 0 ? landlock : "capabilities");
  return measures;
}

}  // namespace checkop
