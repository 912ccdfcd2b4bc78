# SPDX-License-Identifier: Apache-2.0
"""Turns Python functions into a candidate of check_operator. This one file is all that is needed; copy it.

    from check_operator_candidate import serve

    def rms_norm(x, weight, eps):
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)

    serve({"rms_norm": rms_norm})

    check_operator --op rms_norm --dtype bf16 --check-grad --exec 'python3 mine.py' --candidate exec

A function gets an operator's inputs (tensors of the framework) and attributes (numbers) by the names that
`check_operator show OP` prints. Attributes missing in its signature are not passed. If its signature lacks a tensor of the
case, such as an optional one, the case is unsupported. It returns the output, a tuple of the outputs in order, or a dict by
name. Each output has the shape and dtype that the operator declares (`show` says fp32 if that is not the case's dtype).

Keys are "OP", "OP/forward" and "OP/backward". A backward function gets the inputs of the backward pass, which include
upstream gradients named grad_NAME, and returns the gradients dNAME. If only "OP" is given, torch and JAX differentiate it;
an input that the backward pass lacks, since no gradient depends on its values (the weight of embedding), is then zeros.

Frameworks: torch (also for Triton), JAX, NumPy. serve() uses framework=, or the first of them that has been imported.
  torch   computes on device=, or else on the device that --device names; tensors are on that device. The helper
          synchronizes after each function. After a CUDA error that makes the device unusable, the process ends and
          check_operator starts another.
  JAX     the same; 64-bit types are enabled, for ids and fp64.
  NumPy   has no bf16: bf16 inputs come as float32, which holds them exactly, and a float32 result is rounded once to bf16,
          to nearest, ties to even. No automatic gradients.
serve(functions, recipes={"rms_norm": ["normalised_row_in_16_bit"]}) declares rounding points that the functions have by
design, by keys as above, in the names that `check_operator show OP` prints. They count where the contract allows them.

A function declines a case by raising Unsupported or NotImplementedError; any other exception is a failure of the
candidate, with the traceback on standard error. Output that functions print also goes to standard error.

The protocol, for other languages: JSON objects, one per line. The first one answers {"hello": {"protocol": 1,
"device": D}}, where D is "auto", "cpu" or "cuda:N":
  {"protocol": 1, "device": {"kind": "cpu"}, "kernels": [{"op": "rms_norm", "pass": "forward"}]}
or {"no_device": "why"} if the device is missing, {"error": "why"} for any other error.
A kernel may also declare "recipes": ["normalised_row_in_16_bit"].
kind is cpu or cuda; index, name, arch (90), multiprocessors, memory_bytes, driver and runtime are optional. Each request
  {"run": {"id": 1, "op": "rms_norm", "pass": "forward", "attrs": {"eps": 1e-06}, "inputs": "FILE", "outputs": "FILE",
           "want": [{"name": "y", "dtype": "BF16", "shape": [2, 3, 64]}], "forward_outputs": ["y"]}}
is answered, after the file with the wanted tensors has been written, by
  {"id": 1, "status": "ok"}     or "unsupported" or "failed"; "message": "why" is optional.
Both files are safetensors. Attributes that are not finite are strings. The process exits at the end of its input.
"""
import ctypes
import inspect
import json
import os
import struct
import sys
import traceback

PROTOCOL = 1
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


class Unsupported(Exception):
    """Raised by a function to decline a case."""


def read_safetensors(path):
    """{name: (dtype, shape, bytearray)}"""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            data = bytearray(end - begin)
            file.seek(8 + length + begin)
            if file.readinto(data) != len(data):
                raise ValueError(f"{path}: {name} is cut short")
            tensors[name] = (entry["dtype"], tuple(entry["shape"]), data)
        return tensors


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes-like object with items of one byte)}"""
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


class NumPy:
    can_differentiate = False

    def __init__(self, device):
        import numpy

        self.numpy = numpy
        self.types = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "U8": "u1", "BOOL": "u1"}

    def describe_device(self):
        return {"kind": "cpu"}

    def load(self, dtype, shape, data):
        np = self.numpy
        if dtype == "BF16":
            bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
            return bits.view(np.float32).reshape(shape)
        return np.frombuffer(data, "<" + self.types[dtype]).reshape(shape)

    def store(self, array, want):
        np = self.numpy
        array = np.asarray(array)
        dtype = want["dtype"]
        if dtype == "BF16" and array.dtype == np.float32:
            return "BF16", array.shape, self.to_bf16(array).tobytes()
        for name, code in self.types.items():
            if name != "BOOL" and array.dtype == np.dtype("<" + code):
                return name, array.shape, np.ascontiguousarray(array).tobytes()
        raise TypeError(f"output '{want['name']}' has dtype {array.dtype}")

    def to_bf16(self, array):
        """float32 rounded to bf16 bits, to nearest, ties to even; a NaN stays NaN."""
        np = self.numpy
        bits = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        return np.where(nan, (bits >> 16) | 0x40, rounded).astype("<u2")

    def finish(self):
        pass

    def is_lost(self):
        return False


class Torch:
    can_differentiate = True

    def __init__(self, device):
        import torch

        self.torch = torch
        self.device = torch.device("cpu" if device == "auto" else device)
        if self.device.type == "cuda":
            if not torch.cuda.is_available() or (self.device.index or 0) >= torch.cuda.device_count():
                raise NoDevice(f"torch {torch.__version__} finds no device '{device}'")
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        self.types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
                      "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}

    def describe_device(self):
        if self.device.type == "cpu":
            return {"kind": "cpu"}
        has = self.torch.cuda.get_device_properties(self.device)
        return {"kind": "cuda", "index": self.device.index, "name": has.name, "arch": has.major * 10 + has.minor,
                "multiprocessors": has.multi_processor_count, "memory_bytes": has.total_memory,
                "runtime": str(self.torch.version.cuda or "")}

    def load(self, dtype, shape, data):
        torch = self.torch
        if not data:
            return torch.empty(shape, dtype=self.types[dtype], device=self.device)
        return torch.frombuffer(data, dtype=self.types[dtype]).reshape(shape).to(self.device)

    def store(self, tensor, want):
        tensor = tensor.detach().contiguous().cpu()
        for name, dtype in self.types.items():
            if dtype == tensor.dtype:
                size = tensor.numel() * tensor.element_size()
                return name, tuple(tensor.shape), ctypes.string_at(tensor.data_ptr(), size) if size else b""
        raise TypeError(f"output '{want['name']}' has dtype {tensor.dtype}")

    def zeros(self, dtype, shape):
        return self.torch.zeros(shape, dtype=self.types[dtype], device=self.device)

    def gradients(self, forward, tensors, attrs, request):
        """Gradients of the function's outputs, weighted by grad_NAME, for the inputs whose dNAME is wanted."""
        inputs, upstream, wanted = split(tensors, request, self.zeros)
        leaves = {name: inputs[name].detach().requires_grad_() for name in wanted}
        with self.torch.enable_grad():
            outputs = by_name(call(forward, {**inputs, **leaves}, attrs), request["forward_outputs"])
        names = list(upstream)
        found = self.torch.autograd.grad([outputs[name] for name in names], list(leaves.values()),
                                         [upstream[name] for name in names])
        return {"d" + name: gradient for name, gradient in zip(leaves, found)}

    def finish(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def is_lost(self):
        try:
            self.finish()
        except RuntimeError:
            return True
        return False


class Jax:
    can_differentiate = True

    def __init__(self, device):
        import jax
        import ml_dtypes  # comes with JAX
        import numpy

        jax.config.update("jax_enable_x64", True)
        self.jax, self.numpy = jax, numpy
        kind, _, index = device.partition(":")
        try:
            self.device = jax.devices("gpu" if kind == "cuda" else "cpu")[int(index or 0)]
        except (RuntimeError, IndexError) as error:
            raise NoDevice(f"JAX {jax.__version__} finds no device '{device}': {error}") from error
        jax.config.update("jax_default_device", self.device)
        self.types = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16, "I64": "i8", "I32": "i4",
                      "U8": "u1", "BOOL": "u1"}

    def describe_device(self):
        if self.device.platform == "cpu":
            return {"kind": "cpu"}
        arch = str(getattr(self.device, "compute_capability", "0")).replace(".", "")
        return {"kind": "cuda", "index": self.device.id, "name": self.device.device_kind, "arch": int(arch)}

    def load(self, dtype, shape, data):
        array = self.numpy.frombuffer(data, self.numpy.dtype(self.types[dtype])).reshape(shape)
        return self.jax.device_put(array, self.device)

    def store(self, array, want):
        array = self.numpy.asarray(array)
        for name, dtype in self.types.items():
            if name != "BOOL" and array.dtype == self.numpy.dtype(dtype):
                return name, array.shape, array.tobytes()
        raise TypeError(f"output '{want['name']}' has dtype {array.dtype}")

    def zeros(self, dtype, shape):
        return self.jax.device_put(self.numpy.zeros(shape, self.types[dtype]), self.device)

    def gradients(self, forward, tensors, attrs, request):
        inputs, upstream, wanted = split(tensors, request, self.zeros)

        def weighed(*leaves):
            outputs = by_name(call(forward, {**inputs, **dict(zip(wanted, leaves))}, attrs), request["forward_outputs"])
            return [outputs[name] for name in upstream]

        _, pull_back = self.jax.vjp(weighed, *[inputs[name] for name in wanted])
        return {"d" + name: gradient for name, gradient in zip(wanted, pull_back(list(upstream.values())))}

    def finish(self):
        pass  # store() waits for its array

    def is_lost(self):
        return False


class NoDevice(Exception):
    pass


def split(tensors, request, zeros):
    """Returns the inputs of the forward pass, upstream gradients by output, and names of inputs that need gradients.
    An input that is missing, since no gradient depends on its values, is zeros(dtype, shape)."""
    upstream = {name[len("grad_"):]: tensor for name, tensor in tensors.items()
                if name.startswith("grad_") and name[len("grad_"):] in request["forward_outputs"]}
    inputs = {name: tensor for name, tensor in tensors.items() if name[len("grad_"):] not in upstream
              or not name.startswith("grad_")}
    wanted = [want["name"][1:] for want in request["want"]]
    for name, want in zip(wanted, request["want"]):
        if name not in inputs:
            inputs[name] = zeros(want["dtype"], want["shape"])
    return inputs, upstream, wanted


def call(function, tensors, attrs):
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in function
        return function(**tensors, **attrs)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function(**tensors, **attrs)
    for name in tensors:
        if name not in parameters:
            raise Unsupported(f"the function takes no '{name}'")
    return function(**tensors, **{name: value for name, value in attrs.items() if name in parameters})


def by_name(result, names):
    if isinstance(result, dict):
        return result
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(results) != len(names):
        raise TypeError(f"the function returned {len(results)} outputs, expected {len(names)}: {', '.join(names)}")
    return dict(zip(names, results))


def number(value):
    """Attributes with whole values, such as ignore_index, become int."""
    value = float(value)
    return int(value) if value.is_integer() else value


def run(request, functions, framework):
    """Computes and writes the wanted tensors."""
    tensors = {name: framework.load(*entry) for name, entry in read_safetensors(request["inputs"]).items()}
    attrs = {name: number(value) for name, value in request["attrs"].items()}
    op, direction = request["op"], request["pass"]
    function = functions.get(f"{op}/{direction}", functions.get(op) if direction == "forward" else None)
    names = [want["name"] for want in request["want"]]
    if function is None:
        outputs = framework.gradients(functions[op], tensors, attrs, request)
    else:
        outputs = by_name(call(function, tensors, attrs), names)
    framework.finish()
    missing = [name for name in names if outputs.get(name) is None]
    if missing:
        raise TypeError(f"the function returned no '{missing[0]}'")
    write_safetensors(request["outputs"], {want["name"]: framework.store(outputs[want["name"]], want)
                                           for want in request["want"]})


def answer_to(request, functions, framework):
    try:
        run(request, functions, framework)
        return {"status": "ok"}
    except (Unsupported, NotImplementedError) as refusal:
        return {"status": "unsupported", "message": str(refusal) or type(refusal).__name__}
    except Exception as error:  # a failure of the candidate must not end the process
        traceback.print_exc()
        if framework.is_lost():
            sys.stderr.flush()
            os._exit(70)  # this process can't use the device any more
        return {"status": "failed", "message": f"{type(error).__name__}: {error}"}


def kernels_of(functions, framework):
    kernels = []
    for key in functions:
        op, slash, direction = key.partition("/")
        if slash and direction not in ("forward", "backward"):
            raise ValueError(f"'{key}': expected OP, OP/forward or OP/backward")
        directions = [direction] if slash else ["forward", "backward"] if framework.can_differentiate else ["forward"]
        for each in directions:
            kernel = {"op": op, "pass": each}
            if kernel not in kernels:
                kernels.append(kernel)
    return kernels


def declare(recipes, kernels):
    """Adds the recipes of each key to the kernels that it names."""
    for key, names in recipes.items():
        op, _, direction = key.partition("/")
        named = [kernel for kernel in kernels if kernel["op"] == op and direction in ("", kernel["pass"])]
        if not named:
            raise ValueError(f"recipes of '{key}': there is no such function")
        for kernel in named:
            kernel["recipes"] = kernel.get("recipes", []) + list(names)
    return kernels


def choose_framework(name):
    known = {"torch": Torch, "jax": Jax, "numpy": NumPy}
    if name is not None:
        return known[name]
    return next((known[each] for each in known if each in sys.modules), NumPy)


def serve(functions, framework=None, device=None, recipes=None):
    """Answers requests until check_operator ends. `device`: "cpu", "cuda" or "cuda:1"; None: check_operator's --device.
    `recipes`: declared rounding points, by keys of `functions`."""
    # Only answers may go to standard output, and only this function may read the requests.
    lines = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def say(answer):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    hello = json.loads(lines.readline())["hello"]
    if hello["protocol"] != PROTOCOL:
        return say({"error": f"speaks protocol {PROTOCOL}, not {hello['protocol']}"})
    wanted = device or hello["device"]
    if device == "cuda" and hello["device"].startswith("cuda"):
        wanted = hello["device"]
    try:
        framework = choose_framework(framework)(wanted)
        kernels = declare(recipes or {}, kernels_of(functions, framework))
        say({"protocol": PROTOCOL, "device": framework.describe_device(), "kernels": kernels})
    except NoDevice as error:
        return say({"no_device": str(error)})
    for line in lines:
        request = json.loads(line)["run"]
        answer = answer_to(request, functions, framework)
        sys.stdout.flush()
        sys.stderr.flush()
        say({"id": request["id"], **answer})
