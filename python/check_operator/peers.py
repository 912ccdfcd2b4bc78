# SPDX-License-Identifier: Apache-2.0
"""Times implementations of PyTorch, or of what is called from it, beside candidates:

    check_operator bench --op rms_norm ... --peer 'python3 mine.py' --baseline torch

    from check_operator.peers import serve

    def rms_norm(case):
        x, weight = case.tensor("batch", "seq", "hidden"), case.tensor("hidden")
        return lambda: torch.nn.functional.rms_norm(x, weight.shape, weight, case.attrs["eps"])

    serve({"torch": {"rms_norm/forward": rms_norm}})

torch.nn.functional has rms_norm from PyTorch 2.4 on. A function gets a case and returns another one, without parameters, that
computes the case once on the device. It makes its own data, and raises Unsupported where it can't compute the case. Times are
taken as check_operator takes those of candidates: one launch between two events with a flushed cache, or launches back to back
on data that exceed the cache. Nobody judges what is computed.
"""
import gc
import json
import math
import sys
import time

import torch

from .serving import Unsupported, described

__all__ = ["Case", "Unsupported", "serve"]

WARM_UPS = 3
MOST_SETS = 16  # of data, for launches back to back
FLUSH_BYTES = {"cuda": 256 << 20, "cpu": 64 << 20}
COVER_CYCLES = 200_000  # for which the device waits while the host launches
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Case:
    """op, direction ("forward" or "backward"), dtype (of torch), dims, attrs, inputs and outputs (names of the tensors
    that the case has), device."""

    def __init__(self, question, device):
        self.op, self.direction, self.device = question["op"], question["pass"], device
        self.dims, self.inputs, self.outputs = question["dims"], question["inputs"], question["outputs"]
        self.attrs = {name: float(value) for name, value in question["attrs"].items()}
        if question["dtype"] not in DTYPES:
            raise Unsupported(f"dtype {question['dtype']}")
        self.dtype = DTYPES[question["dtype"]]

    def tensor(self, *dims, dtype=None, requires_grad=False):
        """Normally distributed numbers. A dimension is a name of the case, or a number."""
        shape = [self.dims[each] if isinstance(each, str) else each for each in dims]
        return torch.randn(shape, dtype=dtype or self.dtype, device=self.device, requires_grad=requires_grad)

    def ids(self, *dims, below):
        """Random int64 from 0 on."""
        shape = [self.dims[each] for each in dims]
        return torch.randint(self.dims[below], shape, device=self.device)


class Timer:
    """Milliseconds on one device."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.on_cuda = self.device.type == "cuda"
        # Not of bytes, whose sum takes several times as long as reading them.
        self.flushed = torch.zeros(FLUSH_BYTES[self.device.type] // 8, dtype=torch.int64, device=self.device)

    def allocated(self):
        return torch.cuda.memory_allocated(self.device) if self.on_cuda else 0

    def wait(self):
        if self.on_cuda:
            torch.cuda.synchronize(self.device)

    def ms(self, launch, covered=False):
        """Of what `launch` enqueues."""
        self.wait()
        if not self.on_cuda:
            start = time.perf_counter()
            launch()
            return (time.perf_counter() - start) * 1e3
        if covered:
            torch.cuda._sleep(COVER_CYCLES)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        launch()
        end.record()
        torch.cuda.synchronize(self.device)
        return begin.elapsed_time(end)

    def burst(self, make, count):
        launch = make()
        for _ in range(WARM_UPS):
            launch()
        times = []
        for _ in range(count):
            self.flushed.sum()
            times.append(self.ms(launch, covered=True))
        return times

    def sustained(self, make, rounds, ms):
        before = self.allocated()
        sets = [make()]
        own = max(1, self.allocated() - before)
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size if self.on_cuda else FLUSH_BYTES["cpu"]
        while len(sets) < min(MOST_SETS, math.ceil(3 * cache / own)) and self.on_cuda:
            sets.append(make())
        for launch in sets:
            for _ in range(WARM_UPS):
                launch()

        def chain(count):
            for i in range(count):
                sets[i % len(sets)]()

        one = self.ms(lambda: chain(len(sets))) / len(sets)
        count = max(1, min(100_000, int(ms / rounds / max(one, 1e-6))))
        return [self.ms(lambda: chain(count)) / count for _ in range(rounds)]


def times_of(name, functions, question, device, timer):
    """The answer for one implementation."""
    key = f"{question['op']}/{question['pass']}"
    if key not in functions:
        return {"name": name, "status": "unsupported", "message": f"does not compute {key}"}
    try:
        case = Case(question, device)
        if timer.on_cuda:
            torch.cuda.reset_peak_memory_stats(timer.device)
        before = timer.allocated()
        make = lambda: functions[key](case)
        times = timer.burst(make, question["count"]) if question["timing"] == "burst" else timer.sustained(
            make, question["count"], question["ms"])
        said = {"name": name, "ms": [max(each, 1e-6) for each in times]}
        if timer.on_cuda and question["timing"] == "burst":  # launches back to back have several sets of data
            said["peak_bytes"] = torch.cuda.max_memory_allocated(timer.device) - before
        return said
    except NotImplementedError as refusal:
        return {"name": name, "status": "unsupported", "message": str(refusal) or type(refusal).__name__}
    except Exception as error:
        return {"name": name, "status": "failed", "message": described(error)}


def serve(implementations):
    """Answers the questions on standard input until it ends. `implementations` maps the name of each implementation to its
    functions by "OP/forward" and "OP/backward"."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what functions print must not mix with answers
    timer = None
    for line in sys.stdin:
        question = json.loads(line)
        if "hello" in question:
            device = question["hello"]["device"]
            if device.startswith("cuda") and not torch.cuda.is_available():
                answer = {"no_device": f"torch {torch.__version__} finds no device '{device}'"}
            else:
                timer = Timer(device)
                answer = {"protocol": 1, "names": list(implementations)}
        else:
            question = question["time"]
            times = []
            for name, functions in implementations.items():
                times.append(times_of(name, functions, question, device, timer))
                gc.collect()
                if timer.on_cuda:
                    torch.cuda.empty_cache()
            answer = {"id": question["id"], "times": times}
        print(json.dumps(answer), file=answers, flush=True)
