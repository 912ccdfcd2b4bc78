# SPDX-License-Identifier: Apache-2.0
"""A candidate for matmul forward that misbehaves as MODE says; MODE "honest" is correct. With "shared_..." it speaks protocol
2, and its tensors lie in memory of check_operator.

Usage: faulty.py MODE [FILE]   every start appends a line to FILE
"""
import array
import json
import os
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python"))
from check_operator.serving import HostArena, descriptors_beside, read_safetensors, write_safetensors

mode = sys.argv[1]


def say(answer):
    sys.stdout.write((answer if isinstance(answer, str) else json.dumps(answer)) + "\n")
    sys.stdout.flush()


def product(tensors):
    """(shape, rows as lists) of a[batch, seq, k] b[k, n] in fp32"""
    _, (batch, seq, k), a = tensors["a"]
    _, (_, n), b = tensors["b"]
    a = struct.unpack(f"<{batch * seq * k}f", a)
    b = struct.unpack(f"<{k * n}f", b)
    rows = [[sum(a[r * k + i] * b[i * n + c] for i in range(k)) for c in range(n)] for r in range(batch * seq)]
    return (batch, seq, n), rows


arenas, accesses = {}, {}


def stretch(entry):
    """The bytes of a tensor, in memory of check_operator, and their begin."""
    count = 1
    for extent in entry["shape"]:
        count *= extent
    return arenas[entry["arena"]].memory, entry["offset"], count


def answer_shared(request):
    """Of protocol 2."""
    if "arena" in request:
        arena = request["arena"]
        descriptor = take_descriptor()
        is_first = not arenas
        if mode == "shared_refuses" or (mode == "shared_refuses_later" and not is_first):
            os.close(descriptor)
            return say({"arena": arena["id"], "status": "refused", "message": "no room for more"})
        if mode == "shared_other_arena":
            return say({"arena": arena["id"] + 1, "status": "mapped"})
        if mode == "shared_odd_status":
            return say({"arena": arena["id"], "status": "fine"})
        if mode == "shared_no_object":
            return say("[1]")
        accesses[arena["id"]] = arena["access"]
        arenas[arena["id"]] = HostArena(descriptor, arena["bytes"], arena["access"] == "rw")
        os.close(descriptor)
        return say({"arena": arena["id"], "status": "mapped", "unknown": "keys are ignored"})
    if "drop" in request:
        del arenas[request["drop"]["arena"]]
        return say({"arena": request["drop"]["arena"], "status": "dropped"})
    run = request["run"]
    tensors = {entry["name"]: entry for entry in run["tensors"]}
    given = {}
    for name in ("a", "b"):
        memory, begin, count = stretch(tensors[name])
        given[name] = (tensors[name]["dtype"], tensors[name]["shape"], memory[begin:begin + 4 * count])
    values = [value for row in product(given)[1] for value in row]
    memory, begin, count = stretch(tensors["c"])
    if mode == "shared_leaves_out":
        struct.pack_into(f"<{count - 1}f", memory, begin, *values[:-1])
    else:
        struct.pack_into(f"<{count}f", memory, begin, *values)
    if mode == "shared_writes_past":
        struct.pack_into("<f", memory, begin + 4 * count, 1.5)
    if mode == "shared_writes_before":
        struct.pack_into("<2f", memory, begin - 8, 1.5, 2.5)
    if mode == "shared_writes_input":
        where, begin, _ = stretch(tensors["a"])
        struct.pack_into("<f", where, begin + 4, 9.5)
    if mode == "shared_dies":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = {"id": run["id"], "status": "ok"}
    if mode == "shared_sealed":
        answer["message"] = " ".join(f"{name} {accesses[tensors[name]['arena']]}" for name in ("a", "b", "c"))
    if mode == "shared_returns":
        answer["returned"] = ["c"]
    if mode == "shared_returns_another":
        answer["returned"] = ["d"]
    if mode == "shared_counts":
        answer["message"] = f"{len(os.listdir('/proc/self/fd'))} descriptors, {len(arenas)} arenas"
    say(answer)


def answer(request, times):
    if mode == "exits":
        print("about to leave", file=sys.stderr)
        print("the reason is\tthis", file=sys.stderr, flush=True)
        sys.exit(7)
    if mode == "exits_once" and times == 1 and starts == 1:
        sys.exit(7)
    if mode == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "hangs":
        print("waiting for the lock", file=sys.stderr, flush=True)
        time.sleep(600)
    if mode == "closes_output":
        os.close(1)
        time.sleep(600)
    if mode == "garbage":
        return say("hello, world")
    if mode == "endless_line":
        sys.stdout.write("x" * (3 << 20))
        return sys.stdout.flush()
    if mode == "answers_too_early":  # each answer but the first belongs to the previous request
        if times == 1:
            say({"id": request["id"], "status": "ok"})
        return say({"id": request["id"], "status": "ok"})
    if mode in ("unsupported", "failed"):
        return say({"id": request["id"], "status": mode, "message": "as it likes"})
    if mode == "odd_status":
        return say({"id": request["id"], "status": "fine"})
    shape, rows = product(read_safetensors(request["inputs"]))
    dtype = "F32"
    if mode == "changes_with_rows" and len(rows) > 2:
        rows = [[value + 0.5 for value in row] for row in rows]
    if mode == "changes_with_time" and times > 1:
        rows[0][0] += 0.5
    if mode == "wrong":
        rows[0][0] += 1
    if mode == "wrong_shape":
        shape = (*shape[:2], 1, shape[2])
    if mode == "wrong_dtype":
        dtype = "I32"
    data = array.array("f", [value for row in rows for value in row]).tobytes()  # too large values become infinity
    tensors = {"other" if mode == "no_output" else "c": (dtype, shape, data)}
    if mode != "no_file":
        write_safetensors(request["outputs"], tensors)
    if mode == "truncated":
        os.truncate(request["outputs"], os.path.getsize(request["outputs"]) - 3)
    if mode == "leaves_between":
        say({"id": request["id"], "status": "ok"})
        sys.exit(5)
    if mode == "talks":
        print("a line for people", file=sys.stderr, flush=True)
    say({"id": request["id"], "status": "ok", "message": "plain loops"})


starts = 1
if len(sys.argv) > 2:
    with open(sys.argv[2], "a+") as file:
        file.write("start\n")
        file.flush()
        file.seek(0)
        starts = len(file.readlines())
hello = json.loads(sys.stdin.readline())["hello"]
kernel = {"op": "matmul", "pass": "forward"}
if mode == "hello_exits":
    sys.exit("no such module")
elif mode == "hello_garbage":
    say("Welcome!")
elif mode == "hello_unknown_operator":
    say({"protocol": 1, "kernels": [{"op": "matmull", "pass": "forward"}]})
elif mode == "declares":
    say({"protocol": 1, "kernels": [{**kernel, "recipes": ["tf32_operands"]}]})
elif mode == "hello_unknown_recipe":
    say({"protocol": 1, "kernels": [{**kernel, "recipes": ["tf32_operand"]}]})
elif mode == "hello_nothing":
    say({"protocol": 1, "kernels": []})
elif mode == "hello_no_device":
    say({"no_device": "there is no accelerator"})
elif mode == "hello_other_protocol":
    say({"protocol": 3, "kernels": [kernel]})
elif mode.startswith("hello_digest"):
    say({"protocol": 1, "kernels": [kernel], "digest": "0123456789abcdef" if mode == "hello_digest" else "0123456789ABCDEF"})
elif mode == "hello_twice":
    say({"protocol": 1, "kernels": [kernel, kernel]})
elif mode.startswith("shared_"):
    take_descriptor = descriptors_beside()
    say({"protocol": 2, "kernels": [kernel], "transports": ["nosuch", "memfd"], "read_only_inputs": mode == "shared_sealed",
         "unknown": "keys are ignored"})
elif mode == "accelerator":
    say({"protocol": 1, "kernels": [kernel], "device": {"kind": "cuda", "name": "Some GPU", "arch": 90}})
else:
    say({"protocol": 1, "kernels": [kernel]})
for times, line in enumerate(sys.stdin, 1):
    request = json.loads(line)
    if mode.startswith("shared_") and "inputs" not in request.get("run", {}):
        answer_shared(request)
    else:
        answer(request["run"], times)
