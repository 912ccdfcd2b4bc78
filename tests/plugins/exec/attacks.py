# SPDX-License-Identifier: Apache-2.0
"""Attacks of a command on the judge: a candidate for matmul forward that answers rightly if its attack succeeds and with zeros
otherwise. Those that are honest use the same features as they should.

Usage: attacks.py ATTACK   CHECKOP_ATTACKED names a file that the attack is after
"""
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python"))
from check_operator.serving import read_safetensors, write_safetensors

libc = ctypes.CDLL(None, use_errno=True)
target = os.environ.get("CHECKOP_ATTACKED", "")
PIDFD_SEND_SIGNAL, CLONE, CLONE_NEWUSER = 424, 56, 0x10000000


def writes(path):
    with open(path, "a", encoding="utf-8") as file:
        file.write("attacked")


def opens_parent(name):
    with open(f"/proc/{os.getppid()}/{name}", "rb") as file:
        return file.fileno() >= 0


def reads_parent_memory_by_call():
    byte = ctypes.create_string_buffer(1)
    parts = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)
    n = libc.process_vm_readv(os.getppid(), parts, ctypes.c_ulong(1), parts, ctypes.c_ulong(1), ctypes.c_ulong(0))
    return n == 1 or ctypes.get_errno() == 14  # an address that is not there was looked at


def signals_parent_by_folder():
    folder = os.open(f"/proc/{os.getppid()}", os.O_RDONLY | os.O_DIRECTORY)
    return libc.syscall(PIDFD_SEND_SIGNAL, folder, 0, None, 0) == 0


def child_that(does):
    """Whether a child says so: it need not return."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if does() else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def leaves_a_daemon():
    """A process of its own session holds a lock on the file, and would rewrite the file after the end."""
    def daemon():
        os.setsid()
        if os.getsid(0) != os.getpid():
            return False
        if os.fork() == 0:
            time.sleep(1)
            writes(target)
            os._exit(0)
        return True
    return child_that(daemon)


def leaves_a_process():
    """Tells by a lock how long it lives. Succeeds in any case: the test looks whether the lock is still held."""
    file = os.open(target, os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_SH)
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    return True


def makes_namespaces():
    return child_that(lambda: libc.unshare(CLONE_NEWUSER) == 0)


def clones_into_namespaces():
    child = libc.syscall(CLONE, CLONE_NEWUSER | signal.SIGCHLD, None, None, None, None)
    if child == 0:
        os._exit(0)
    return child > 0 and os.waitpid(child, 0)[0] == child


def links_its_output():
    """The judge would read what the process itself must not read: here, the answer."""
    os.unlink(outputs_file)
    answer_into(outputs_file + ".elsewhere", right)
    os.symlink(outputs_file + ".elsewhere", outputs_file)
    return None


def is_honest_with_files():
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("scratch")
    os.makedirs(os.environ["TRITON_CACHE_DIR"], exist_ok=True)
    writes(os.path.join(os.environ["TRITON_CACHE_DIR"], "kernel"))
    with open("/proc/self/maps", "rb") as maps, open("/proc/cpuinfo", "rb") as machine, open(__file__, "rb") as script:
        return bool(maps.read() and machine.read() and script.read())


def is_honest_with_processes():
    said = []
    thread = threading.Thread(target=lambda: said.append(subprocess.check_output(["echo", "built"])))
    thread.start()
    thread.join()
    sleeper = subprocess.Popen(["sleep", "600"])
    sleeper.terminate()
    return said == [b"built\n"] and sleeper.wait() == -signal.SIGTERM and socket.socketpair() is not None


def schedules_parent():
    os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0))
    return os.sched_getscheduler(os.getppid()) == os.SCHED_BATCH


ATTACKS = {
    "exec_rewrites_file": lambda: writes(target) is None,
    "exec_truncates_file": lambda: os.truncate(target, 0) is None,
    "exec_removes_file": lambda: os.unlink(target) is None,
    "exec_replaces_file": lambda: os.rename(outputs_file, target) is None,
    "exec_remembers_on_disk": lambda: writes("/tmp/check_operator_attack") is None,
    "exec_remembers_in_shared_memory": lambda: writes("/dev/shm/check_operator_attack") is None,
    "exec_signals_parent": lambda: os.kill(os.getppid(), 0) is None,
    "exec_signals_group": lambda: os.kill(0, signal.SIGCONT) is None,
    "exec_signals_everyone": lambda: os.kill(-1, signal.SIGCONT) is None,
    "exec_signals_by_folder": signals_parent_by_folder,
    "exec_limits_parent": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0)) is not None,
    "exec_schedules_parent": schedules_parent,
    "exec_opens_parent_memory": lambda: opens_parent("mem"),
    "exec_reads_parent_memory": reads_parent_memory_by_call,
    "exec_reads_parent_command": lambda: opens_parent("cmdline"),
    "exec_asks_the_network": lambda: socket.socket() is not None,
    "exec_asks_a_local_socket": lambda: socket.socket(socket.AF_UNIX) is not None,
    "exec_becomes_daemon": leaves_a_daemon,
    "exec_makes_namespaces": makes_namespaces,
    "exec_clones_into_namespaces": clones_into_namespaces,
    "exec_reads_gold": lambda: read_safetensors(target) is not None,
    "exec_links_its_output": links_its_output,
    "exec_leaves_a_process": leaves_a_process,
    "exec_honest_files": is_honest_with_files,
    "exec_honest_processes": is_honest_with_processes,
}


def product(tensors):
    """The shape and the elements of a[batch, seq, k] b[k, n]"""
    (batch, seq, k), (_, n) = tensors["a"][1], tensors["b"][1]
    a = struct.unpack(f"<{batch * seq * k}f", tensors["a"][2])
    b = struct.unpack(f"<{k * n}f", tensors["b"][2])
    return (batch, seq, n), [sum(a[r * k + i] * b[i * n + c] for i in range(k))
                             for r in range(batch * seq) for c in range(n)]


def say(answer):
    print(json.dumps(answer), flush=True)


def answer_into(path, values):
    write_safetensors(path, {"c": ("F32", shape, struct.pack(f"<{len(values)}f", *values))})


json.loads(sys.stdin.readline())
say({"protocol": 1, "kernels": [{"op": "matmul", "pass": "forward"}]})
success = False
for times, line in enumerate(sys.stdin):
    request = json.loads(line)["run"]
    outputs_file = request["outputs"]
    shape, right = product(read_safetensors(request["inputs"]))
    answer_into(outputs_file, [0.0] * len(right))
    if times == 0 or success is None:
        try:
            success = ATTACKS[sys.argv[1]]()
        except (OSError, ValueError) as e:
            print(f"{sys.argv[1]}: {e}", file=sys.stderr, flush=True)
            success = False
    if success:
        answer_into(outputs_file, right)
    say({"id": request["id"], "status": "ok"})
