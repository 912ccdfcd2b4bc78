# SPDX-License-Identifier: Apache-2.0
"""Turns Python functions into a candidate of check_operator. check_operator.check() uses it; for a process of your own this
one file is all that is needed, and may be copied:

    from check_operator.serving import serve

    def rms_norm(x, weight, eps):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)

    serve({"rms_norm": rms_norm})

    check_operator --op rms_norm --dtype bf16 --check-grad --exec 'python3 mine.py' --candidate exec

A function gets an operator's inputs (tensors of the framework) and attributes (numbers) by the names that
`check_operator show OP` prints. Attributes missing in its signature are not passed. If its signature lacks a tensor of the
case, such as an optional one, or an attribute that has another value than its default, the case is unsupported. A parameter
without a default that nothing is passed for is a failure. It returns the
output, a tuple or list of the outputs in order, or a dict by name. Each output is a contiguous tensor of its own, with the shape
and dtype that the operator declares (`show` says fp32 if that is not the case's dtype). If it returns the required outputs alone
where the case asks for an optional one, too, or None for that, the case is unsupported. A dict may hold optional outputs that
the case does not ask for.

Keys are "OP", "OP/forward" and "OP/backward". A backward function gets the inputs of the backward pass, which include
upstream gradients named grad_NAME, and returns the gradients dNAME. If only "OP" is given, torch and JAX differentiate it;
an input that the backward pass lacks, since no gradient depends on its values (the weight of embedding), is then zeros.

Frameworks: torch (also for Triton), JAX, NumPy. serve() uses framework=, or the one that the functions use, or the first of
them that has been imported.
  torch   computes on device=, or else on the device that --device names; tensors are on that device. The helper
          synchronizes after each function. After a CUDA error that makes the device unusable, the process ends and
          check_operator starts another.
  JAX     the same; 64-bit types are enabled, for ids and fp64.
  NumPy   has no bf16: bf16 inputs come as float32, which holds them exactly, and a float32 result is rounded once to bf16,
          to nearest, ties to even; bfloat16 of ml_dtypes is taken as it is. No automatic gradients.
Numbers of 8 and 4 bits (float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float4_e2m1fn_x2) come in the framework's own types, or
as uint8 where it has none; results may be of the type or uint8 tensors of the same bits. Two numbers of 4 bits are a byte,
the first one in its lower half.
serve(functions, recipes={"rms_norm": ["normalised_row_in_16_bit"]}) declares rounding points that the functions have by
design, by keys as above, in the names that `check_operator show OP` prints. They count where the contract allows them.

A function declines a case by raising Unsupported or NotImplementedError; any other exception is a failure of the
candidate, with the function's part of the traceback on standard error. Output that functions print also goes there.

As a program, it serves one function of a module, the functions of a module that @check_operator.candidate registers, or a
registered operator of torch; see --help.

Inputs and outputs lie in memory of check_operator, which this file maps: do not write to inputs. A function that has a
parameter `out` gets the output to write to (a tuple, if there are several); it returns None, or `out`, and
declines cases of outputs that it lacks. Then check_operator sees elements that it leaves out and writes beyond the tensor.
What a function returns is copied.
serve(functions, strides=True): the functions honour the strides of their tensors, whose rows and elements may lie apart,
be exchanged or expanded. serve(functions, any_ids=True): they take ids as int32 and as int64.

The protocol, for other languages: JSON objects, one per line. The first one answers {"hello": {"protocol": 1,
"device": D, "id": N}}, where D is "auto", "cpu" or "cuda:N":
  {"protocol": 1, "device": {"kind": "cpu"}, "kernels": [{"op": "rms_norm", "pass": "forward"}]}
or {"no_device": "why"} if the device is missing, {"error": "why"} for any other error. "id" may be repeated in the answer;
over a socket it should be, since the answer to a process of check_operator that gave up waiting may arrive late.
kind is cpu or cuda; index, name, arch (90), multiprocessors, memory_bytes, driver and runtime are optional, and so is
"digest" beside "device": 16 hex digits that change with the candidate's code, for reports. A kernel may also declare
"recipes": ["normalised_row_in_16_bit"]. Each request
  {"run": {"id": 1, "op": "rms_norm", "pass": "forward", "attrs": {"eps": 1e-05}, "changed_attrs": ["eps"],
           "inputs": "FILE", "outputs": "FILE", "want": [{"name": "y", "dtype": "BF16", "shape": [2, 3, 64]}],
           "forward_outputs": ["y"], "optional_outputs": []}}
is answered, after the file with the wanted tensors has been written, by
  {"id": 1, "status": "ok"}     or "unsupported" or "failed"; "message": "why" is optional.
Both files are safetensors. Attributes that are not finite are strings; "changed_attrs" are those with other values than their
defaults. "forward_outputs" are the outputs of the forward pass in such a case. "optional_outputs" names those of the outputs in
the request that only some cases have and that belong to no input: a kernel without one answers "unsupported". The process exits
at the end of its input.
Protocol 2, in which tensors lie in shared memory, is described in docs/python.md.
"""
import argparse
import contextlib
import ctypes
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import mmap
import os
import select
import socket
import stat
import struct
import sys
import traceback
import types

PROTOCOLS = (1, 2)
SOCKET = "CHECK_OPERATOR_FD"  # the number of the socket over which descriptors come
SERVES = "CHECK_OPERATOR_SERVES"  # set while this file serves as a program: to what
NARROW = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2"}
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1, **{code: 1 for code in NARROW}}
SPOKEN = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "I64": "int64", "I32": "int32", "U8": "uint8",
          "BOOL": "bool", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "F8_E8M0": "e8m0", "F4": "e2m1x2"}


class Unsupported(NotImplementedError):
    """Raised by a function to decline a case."""


class BadResult(TypeError):
    """What a function returned is not what its operator asks for; the text says it all."""


class BadCandidate(ValueError):
    """The functions can't be served as they were given; the text says it all."""


class Malformed(ValueError):
    """A request that can't be understood; the text says it all."""


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
            shape = entry["shape"]
            if entry["dtype"] == "F4":  # a file counts numbers, of which a byte has two
                shape = [*shape[:-1], shape[-1] // 2]
            tensors[name] = (entry["dtype"], tuple(shape), data)
        return tensors


def write_safetensors(path, tensors, metadata=None):
    """tensors: {name: (dtype, shape, bytes-like object with items of one byte)}; metadata: {text: text}"""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        in_file = [*shape[:-1], shape[-1] * 2] if dtype == "F4" else list(shape)
        header[name] = {"dtype": dtype, "shape": in_file, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


# --- memory of check_operator ---


class HostArena:
    """A memfd, mapped."""

    def __init__(self, descriptor, size, writable):
        self.size, self.writable = size, writable
        self.memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))


class CudaDriver:
    """The functions of libcuda that map memory of another process."""

    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]

    class Access(ctypes.Structure):
        pass

    Access._fields_ = [("location", Location), ("flags", ctypes.c_int)]

    def __init__(self, index):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", ctypes.c_uint(0))
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        uuid = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", uuid, device)
        self.device, self.uuid = device.value, bytes(uuid).hex()

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(ctypes.c_int(result), ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or str(result).encode()).decode()}")


class CudaArena:
    """Device memory of another process, mapped between unmapped addresses, so that an access beyond it faults."""

    MARGIN = 2 << 20  # the granularity of addresses

    def __init__(self, driver, descriptor, size, writable):
        self.driver, self.size, self.writable, self.reserved = driver, size, writable, size + 2 * self.MARGIN
        wide, none = ctypes.c_ulonglong, ctypes.c_ulonglong(0)
        handle, self.addresses = wide(), wide()
        driver.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), ctypes.c_int(1))
        try:
            driver.call("cuMemAddressReserve", ctypes.byref(self.addresses), ctypes.c_size_t(self.reserved),
                        ctypes.c_size_t(0), none, none)
            self.begin = self.addresses.value + self.MARGIN
            driver.call("cuMemMap", wide(self.begin), ctypes.c_size_t(size), ctypes.c_size_t(0), handle, none)
        finally:
            driver.call("cuMemRelease", handle)  # the mapping keeps the memory
        access = CudaDriver.Access(CudaDriver.Location(1, driver.device), 3 if writable else 1)
        driver.call("cuMemSetAccess", wide(self.begin), ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))

    def __del__(self):
        if getattr(self, "begin", 0):
            wide = ctypes.c_ulonglong
            self.driver.library.cuMemUnmap(wide(self.begin), ctypes.c_size_t(self.size))
            self.driver.library.cuMemAddressFree(self.addresses, ctypes.c_size_t(self.reserved))


class CudaStretch:
    """Elements in a CudaArena, which it keeps alive, for frameworks that take __cuda_array_interface__."""

    def __init__(self, arena, offset, count, width):
        self.arena = arena
        kinds = {1: "|u1", 2: "<i2", 4: "<i4", 8: "<i8"}
        self.__cuda_array_interface__ = {"data": (arena.begin + offset, False), "shape": (count,),
                                         "typestr": kinds[width], "version": 3}


class Place:
    """A tensor of a request, checked, in its arena. Strides are in elements."""

    def __init__(self, entry, arenas):
        try:
            self.name, self.dtype = str(entry["name"]), entry["dtype"]
            self.shape = tuple(int(each) for each in entry["shape"])
            self.strides = tuple(int(each) for each in entry["strides"])
            self.arena, self.offset = arenas[entry["arena"]], int(entry["offset"])
            self.width, self.is_output = BYTES[self.dtype], entry["role"] == "output"
        except KeyError as error:
            raise Malformed(f"tensor {entry.get('name')!r}: {error} is missing or unknown") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise Malformed(f"tensor {entry.get('name')!r}: {error}") from error
        self.count = 1  # of elements from the first to the last
        for extent, stride in zip(self.shape, self.strides):
            self.count += (extent - 1) * stride
        self.is_empty = 0 in self.shape
        if self.is_empty:
            self.count = 0
        if (len(self.shape) != len(self.strides) or min((0, *self.shape, *self.strides)) < 0 or self.offset < 0
                or self.offset + self.count * self.width > self.arena.size):
            raise Malformed(f"tensor '{self.name}' does not lie in its arena")
        if self.is_output and not self.arena.writable:
            raise Malformed(f"output '{self.name}' lies in memory that can't be written")

    @property
    def want(self):
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


def require_form(want, dtype, shape):
    """Throws BadResult unless an output has the wanted dtype and shape."""
    if (dtype, list(shape)) != (want["dtype"], list(want["shape"])):
        raise BadResult(f"its output '{want['name']}' is {SPOKEN.get(dtype, dtype)} {list(shape)}, expected "
                        f"{SPOKEN.get(want['dtype'], want['dtype'])} {list(want['shape'])}")


def require_shape(name, output, upstream):
    """Throws BadResult unless an output has the shape of the gradient that comes from above."""
    if tuple(output.shape) != tuple(upstream.shape):
        raise BadResult(f"output '{name}' has shape {list(output.shape)}, expected {list(upstream.shape)}")


# --- frameworks ---


class Framework:
    """What serving needs of a library of tensors. Subclasses have load(dtype, shape, data), view(place), write(place,
    tensor), and store(tensor, want) for files."""

    can_differentiate = False
    has_read_only = True  # its tensors can lie in memory that can't be written
    can_write = True  # a function can write to its tensors, as `out` asks for

    def transports(self):
        """Those by which tensors can lie in memory of check_operator, the best first, and why a better one is missing."""
        return ["memfd"], ""

    def uuid(self):
        """Of the GPU that it computes on, for "cuda_vmm"."""
        return ""

    def map(self, transport, descriptor, size, writable):
        if transport != "memfd":
            raise OSError(f"{self.name} has no transport '{transport}'")
        return HostArena(descriptor, size, writable)

    def destination(self, place):
        """The tensor in check_operator's memory that a function writes to; None if it needs one of its own."""
        return None

    def blank(self, want):
        """An output to write to, in memory of its own. All bits are set: NaN, where there is one."""
        count = functools.reduce(lambda product, extent: product * extent, want["shape"], 1)
        return self.load(want["dtype"], tuple(want["shape"]), bytearray(b"\xff") * (count * BYTES[want["dtype"]]))


class NumPy(Framework):
    name = "NumPy"

    def __init__(self, device):
        import numpy

        if device not in ("auto", "cpu"):
            raise BadCandidate(f"device: NumPy computes on the CPU, and '{device}' was asked for; use the device 'cpu', or a "
                               "function over torch or JAX")
        self.numpy = numpy
        self.types = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "U8": "u1", "BOOL": "u1",
                      **{code: "u1" for code in NARROW}}

    def describe_device(self):
        return {"kind": "cpu"}

    def load(self, dtype, shape, data):
        np = self.numpy
        if dtype == "BF16":
            bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
            return bits.view(np.float32).reshape(shape)
        return np.frombuffer(data, "<" + self.types[dtype]).reshape(shape)

    def raw(self, place):
        """A view of a place in its arena; bf16 as its bits."""
        kind = "<u2" if place.dtype == "BF16" else "<" + self.types[place.dtype]
        return self.numpy.ndarray(place.shape, kind, place.arena.memory, 0 if place.is_empty else place.offset,
                                  [stride * place.width for stride in place.strides])

    def view(self, place):
        np = self.numpy
        array = self.raw(place)
        if place.dtype == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        array.flags.writeable = False
        return array

    def destination(self, place):
        return None if place.dtype == "BF16" else self.raw(place)

    def write(self, place, array):
        dtype = self.dtype_of(array, place.want)
        require_form(place.want, dtype, array.shape)
        if dtype in NARROW:
            array = array.view("u1")
        self.raw(place)[...] = self.to_bf16(array).reshape(array.shape) if dtype == "BF16" else array

    def own(self, name, value):
        if not isinstance(value, (self.numpy.ndarray, self.numpy.generic)):
            value = from_dlpack(self.numpy.from_dlpack, name, value, "numpy.ndarray")
        return self.numpy.asarray(value)

    def is_contiguous(self, array):
        return array.flags.c_contiguous

    def span(self, array):
        return array.ctypes.data, array.ctypes.data + array.nbytes

    def trouble(self, array):
        return ""

    def dtype_of(self, array, want):
        if array.dtype.name == "bfloat16" or (want["dtype"] == "BF16" and array.dtype == self.numpy.float32):
            return "BF16"  # the former as ml_dtypes has it
        if array.dtype.name in ("uint8", NARROW.get(want["dtype"])):
            return want["dtype"] if want["dtype"] in NARROW else "U8"
        for name, code in self.types.items():
            if name != "BOOL" and array.dtype == self.numpy.dtype("<" + code):
                return name
        raise BadResult(f"output '{want['name']}' has dtype {array.dtype}, which no operator has")

    def store(self, array, want):
        dtype = self.dtype_of(array, want)
        data = self.to_bf16(array) if dtype == "BF16" else self.numpy.ascontiguousarray(array)
        return dtype, array.shape, data.tobytes()

    def to_bf16(self, array):
        """float32 rounded to bf16 bits, to nearest, ties to even; a NaN stays NaN. bf16 of ml_dtypes: its bits."""
        np = self.numpy
        if array.dtype.name == "bfloat16":
            return np.ascontiguousarray(array).reshape(-1).view("<u2")
        bits = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        return np.where(nan, (bits >> 16) | 0x40, rounded).astype("<u2")

    def finish(self):
        pass

    def is_lost(self):
        return False


class Torch(Framework):
    name = "torch"
    can_differentiate = True
    has_read_only = False

    def __init__(self, device):
        import torch

        self.torch = torch
        self.driver = None
        self.device = torch.device("cpu" if device == "auto" else device)
        if self.device.type == "cuda":
            if torch.cuda._is_in_bad_fork():
                raise BadCandidate("this process was forked after CUDA began, and CUDA does not survive a fork; start it "
                                   "afresh (multiprocessing has 'spawn'), or use isolate='spawn'")
            if not torch.cuda.is_available() or (self.device.index or 0) >= torch.cuda.device_count():
                raise NoDevice(f"torch {torch.__version__} finds no device '{device}'")
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        self.types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
                      "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool,
                      **{code: getattr(torch, name, torch.uint8) for code, name in NARROW.items()}}

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
        flat = torch.frombuffer(data, dtype=torch.uint8 if dtype in NARROW else self.types[dtype])
        return flat.view(self.types[dtype]).reshape(shape).to(self.device)

    def transports(self):
        if self.device.type != "cuda":
            return ["memfd"], ""
        try:
            self.torch.zeros(1, device=self.device)  # there is a context
            self.driver = CudaDriver(self.device.index)
        except (OSError, RuntimeError, AttributeError) as error:
            return ["memfd"], f"no cuda_vmm: {error}"
        return ["cuda_vmm", "memfd"], ""

    def uuid(self):
        return self.driver.uuid if self.driver else ""

    def map(self, transport, descriptor, size, writable):
        if transport == "cuda_vmm" and self.driver:
            return CudaArena(self.driver, descriptor, size, writable)
        return super().map(transport, descriptor, size, writable)

    def raw(self, place):
        """A view of a place in its arena."""
        torch, dtype = self.torch, self.types[place.dtype]
        on_host = isinstance(place.arena, HostArena)
        if place.is_empty:
            return torch.empty(place.shape, dtype=dtype, device="cpu" if on_host else self.device)
        if on_host:
            flat = torch.frombuffer(place.arena.memory, dtype=torch.uint8 if place.dtype in NARROW else dtype,
                                    count=place.count, offset=place.offset).view(dtype)
        else:
            stretch = CudaStretch(place.arena, place.offset, place.count, place.width)
            flat = torch.as_tensor(stretch, device=self.device).view(dtype)
        return flat.as_strided(place.shape, place.strides)

    def view(self, place):
        return self.raw(place).to(self.device)

    def destination(self, place):
        return None if isinstance(place.arena, HostArena) and self.device.type != "cpu" else self.raw(place)

    def write(self, place, tensor):
        tensor = tensor.detach()
        dtype = self.dtype_of(tensor, place.want)
        require_form(place.want, dtype, tensor.shape)
        to = self.raw(place)
        if dtype in NARROW:
            to, tensor = to.view(self.torch.uint8), tensor.view(self.torch.uint8)
        to.copy_(tensor)

    def own(self, name, value):
        if not isinstance(value, self.torch.Tensor):
            value = from_dlpack(self.torch.from_dlpack, name, value, "torch.Tensor")
        return value

    def is_contiguous(self, tensor):
        return tensor.is_contiguous()

    def span(self, tensor):
        return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()

    def trouble(self, tensor):
        if tensor.layout != self.torch.strided or tensor.is_nested:
            return f"is {'nested' if tensor.is_nested else tensor.layout}; return a dense tensor"
        if tensor.requires_grad:
            return "requires grad, and no input of this pass does; return it detached, or compute under torch.no_grad()"
        if tensor.device != self.device:
            return f"is on {tensor.device}, and the inputs are on {self.device}; return it on their device"
        return ""

    def dtype_of(self, tensor, want):
        if want["dtype"] in NARROW and tensor.dtype in (self.torch.uint8, self.types[want["dtype"]]):
            return want["dtype"]
        for name, dtype in self.types.items():
            if dtype == tensor.dtype:
                return name
        raise BadResult(f"output '{want['name']}' has dtype {tensor.dtype}, which no operator has")

    def store(self, tensor, want):
        tensor = tensor.detach().contiguous().cpu()  # a gradient that torch made may have strides
        size = tensor.numel() * tensor.element_size()
        return (self.dtype_of(tensor, want), tuple(tensor.shape),
                ctypes.string_at(tensor.data_ptr(), size) if size else b"")

    def zeros(self, dtype, shape):
        return self.torch.zeros(shape, dtype=self.types[dtype], device=self.device)

    def gradients(self, forward, tensors, attrs, request):
        """Gradients of the function's outputs, weighted by grad_NAME, for the inputs whose dNAME is wanted."""
        inputs, upstream, wanted = split(tensors, request, self.zeros)
        leaves = {name: inputs[name].detach().requires_grad_() for name in wanted}
        names, optional = list(upstream), request.get("optional_outputs", [])
        with self.torch.enable_grad():
            returned = by_name(call(forward, {**inputs, **leaves}, attrs), request["forward_outputs"], optional)
            outputs = chosen(returned, names, optional)
        for name, output in outputs.items():
            if not isinstance(output, self.torch.Tensor) or not output.requires_grad:
                raise BadResult(f"output '{name}' has no gradient: it is detached, computed under torch.no_grad(), or not by "
                                "torch; give the function that computes the gradients")
            require_shape(name, output, upstream[name])
        require_all(outputs, names)
        found = self.torch.autograd.grad(list(outputs.values()), list(leaves.values()),
                                         [upstream[name] for name in names], allow_unused=True)
        for name, gradient in zip(leaves, found):
            if gradient is None:
                raise BadResult(f"no gradient reaches input '{name}': the outputs do not depend on it, or it is detached")
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


class Jax(Framework):
    name = "JAX"
    can_differentiate = True
    can_write = False

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
                      "U8": "u1", "BOOL": "u1", **{code: getattr(ml_dtypes, name, "u1") for code, name in NARROW.items()}}

    def describe_device(self):
        if self.device.platform == "cpu":
            return {"kind": "cpu"}
        arch = str(getattr(self.device, "compute_capability", "0")).replace(".", "")
        return {"kind": "cuda", "index": self.device.id, "name": self.device.device_kind, "arch": int(arch)}

    def load(self, dtype, shape, data):
        array = self.numpy.frombuffer(data, self.numpy.dtype(self.types[dtype])).reshape(shape)
        return self.jax.device_put(array, self.device)

    def transports(self):
        return ["memfd"], "no cuda_vmm: JAX copies from host memory" if self.device.platform != "cpu" else ""

    def raw(self, place):
        return self.numpy.ndarray(place.shape, self.numpy.dtype(self.types[place.dtype]), place.arena.memory,
                                  0 if place.is_empty else place.offset,
                                  [stride * place.width for stride in place.strides])

    def view(self, place):
        return self.jax.device_put(self.numpy.array(self.raw(place)), self.device)

    def write(self, place, array):
        array = self.numpy.asarray(array)
        dtype = self.dtype_of(array, place.want)
        require_form(place.want, dtype, array.shape)
        if dtype in NARROW:
            self.raw(place).view("u1")[...] = array.view("u1")
        else:
            self.raw(place)[...] = array

    def own(self, name, value):
        if not isinstance(value, (self.jax.Array, self.numpy.ndarray, self.numpy.generic)):
            value = from_dlpack(self.jax.dlpack.from_dlpack, name, value, "jax.Array")
        return value

    def is_contiguous(self, array):
        return True  # JAX's arrays have no strides

    def span(self, array):
        return 0, 0  # nor can they be written to, so that sharing does no harm

    def trouble(self, array):
        return ""

    def dtype_of(self, array, want):
        if want["dtype"] in NARROW and array.dtype.name in ("uint8", NARROW[want["dtype"]]):
            return want["dtype"]
        for name, dtype in self.types.items():
            if name != "BOOL" and array.dtype == self.numpy.dtype(dtype):
                return name
        raise BadResult(f"output '{want['name']}' has dtype {array.dtype}, which no operator has")

    def store(self, array, want):
        array = self.numpy.asarray(array)
        return self.dtype_of(array, want), array.shape, array.tobytes()

    def zeros(self, dtype, shape):
        return self.jax.device_put(self.numpy.zeros(shape, self.types[dtype]), self.device)

    def gradients(self, forward, tensors, attrs, request):
        inputs, upstream, wanted = split(tensors, request, self.zeros)
        optional = request.get("optional_outputs", [])

        def weighed(*leaves):
            returned = by_name(call(forward, {**inputs, **dict(zip(wanted, leaves))}, attrs), request["forward_outputs"], optional)
            outputs = chosen(returned, list(upstream), optional)
            for name, output in outputs.items():
                if not isinstance(output, (self.jax.Array, self.numpy.ndarray, self.numpy.generic)):
                    raise BadResult(f"output '{name}' has no gradient: it is a {type(output).__qualname__}, expected a jax.Array")
                require_shape(name, output, upstream[name])
                if output.dtype != upstream[name].dtype:
                    raise BadResult(f"output '{name}' has dtype {output.dtype}, expected {upstream[name].dtype}")
            require_all(outputs, upstream)
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


def parameters_of(function):
    """By name; None where nobody knows them, as of some built-in functions."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def takes_no(function, name, given):
    """What is said of a function that has no parameter of that name, and what to do about it: "" unless it needs one of
    another name than those of `given`."""
    parameters = parameters_of(function)
    known = ", ".join("*" * (each.kind is each.VAR_POSITIONAL) + each.name for each in parameters.values())
    spare = next((other for other in parameters if other not in given and needs(function, other) and other != "out"
                  and parameters[other].kind is not inspect.Parameter.VAR_POSITIONAL), "")
    hint = f"adapt={{'{name}': '{spare}'}} passes it as '{spare}'" if spare else ""
    return f"takes no '{name}'; it takes {known or 'no arguments'}", hint


def call(function, tensors, attrs):
    parameters = parameters_of(function)
    if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function(**tensors, **attrs)
    for name in tensors:
        if name not in parameters:
            takes, hint = takes_no(function, name, {**tensors, **attrs})
            # A parameter that nothing is passed for is a mistake; without one, the function knows no such input.
            raise BadResult(f"the function {takes}; {hint}") if hint else Unsupported(f"the function {takes}")
    for name, each in parameters.items():
        if each.default is each.empty and each.kind is not each.VAR_POSITIONAL and name not in tensors and name not in attrs:
            raise BadResult(f"the function needs '{name}', which is neither an input nor an attribute of this pass; give it a "
                            "default, or say with adapt which one it is")
    given = {**tensors, **{name: value for name, value in attrs.items() if name in parameters}}
    first = [given.pop(name) for name, each in parameters.items() if each.kind is each.POSITIONAL_ONLY and name in given]
    return function(*first, **given)


def require_attrs(function, attrs, changed):
    """A function that lacks an attribute computes with a fixed value, which may be its default and is no other."""
    parameters = parameters_of(function)
    if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in changed:
        if name in attrs and name not in parameters:
            raise Unsupported(f"the function takes no '{name}', which is {attrs[name]:g} in this case and not its default")


def adapted(function, names):
    """`function` with other names for its parameters: `names` maps an operator's names to the function's."""
    if not names:
        return function
    theirs = {own: name for name, own in names.items()}
    known = parameters_of(function)
    if known is not None:
        takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
        for name, own in names.items():
            if own not in known and not takes_any:
                raise BadCandidate(f"adapt: '{name}' should be passed as '{own}', and the function takes only "
                                   f"{', '.join(known) or 'no arguments'}; name one of them")
            if name in known and name not in theirs:
                raise BadCandidate(f"adapt: '{name}' is passed as '{own}', and the function takes '{name}', too; "
                                   f"say which input that is")

    def renamed(**given):
        return call(function, {names.get(name, name): value for name, value in given.items()}, {})

    if known is not None:
        renamed.__signature__ = inspect.Signature(
            [each if each.kind is each.VAR_KEYWORD else
             inspect.Parameter(theirs.get(each.name, each.name), each.KEYWORD_ONLY, default=each.default)
             for each in known.values() if each.kind is not each.VAR_POSITIONAL])
    renamed.__wrapped__ = function
    return renamed


def by_name(result, names, optional=()):
    """{name: output}; a dict is taken as it is. Results may lack the last names if all of those are `optional`. Throws BadResult
    for another number of results."""
    wanted = ", ".join(f"'{name}'" for name in names)
    if result is None:
        raise BadResult(f"the function returned None; return {wanted}")
    if isinstance(result, dict):
        return result
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    required = [name for name in names if name not in optional]
    if len(results) == len(required) and names[:len(required)] == required:
        return dict(zip(required, results))
    if len(results) != len(names):
        raise BadResult(f"the function returned {len(results)} output{'' if len(results) == 1 else 's'}, expected "
                        f"{len(names)}: {wanted}")
    return dict(zip(names, results))


def chosen(outputs, names, optional=()):
    """The outputs of these names. Throws BadResult for one that is missing or None, unless it is `optional` and there is no
    output of another name, which may be meant for it."""
    if set(outputs) <= set(names):
        names = [name for name in names if name not in optional or outputs.get(name) is not None]
    for name in names:
        if name not in outputs:
            raise BadResult(f"the function returned no '{name}', only {', '.join(map(repr, outputs)) or 'an empty dict'}")
        if outputs[name] is None:
            raise BadResult(f"the function returned None for '{name}'")
    return {name: outputs[name] for name in names}


def require_all(outputs, names):
    """Raises Unsupported where chosen() left optional outputs out, which the function does not have."""
    if missing := [name for name in names if name not in outputs]:
        raise Unsupported(f"the function returns {', '.join(outputs)} alone; this case asks for {', '.join(missing)} too")


def from_dlpack(take, name, value, expected):
    """`value` of another framework, through DLPack."""
    if not hasattr(value, "__dlpack__") or isinstance(value, type):
        raise BadResult(f"output '{name}' is a {type(value).__module__}.{type(value).__qualname__}, expected a {expected} or an "
                        "object with __dlpack__()")
    return take(value)


@contextlib.contextmanager
def reading(name):
    """Whatever reading an output may raise names it."""
    try:
        yield
    except BadResult:
        raise
    except Exception as error:
        raise BadResult(f"output '{name}' can't be read: {described(error)}") from error


def require_own_tensors(framework, outputs, inputs, wants):
    """The outputs as tensors of the framework. Throws BadResult for one that can't be judged as the function's own work: of
    another dtype or shape than the one in `wants`, with strides, in the memory of an input or of another output, or where
    `framework.trouble` says why."""
    forms = {want["name"]: want for want in wants}
    taken = [(f"input '{name}'", framework.span(tensor)) for name, tensor in inputs.items()]
    owned = {}
    for name, value in outputs.items():
        with reading(name):
            tensor = owned[name] = framework.own(name, value)
            if why := framework.trouble(tensor):
                raise BadResult(f"output '{name}' {why}")
            require_form(forms[name], framework.dtype_of(tensor, forms[name]), tensor.shape)
            if not framework.is_contiguous(tensor):
                raise BadResult(f"output '{name}' is not contiguous; return a contiguous copy")
            begin, end = framework.span(tensor)
        for other, (first, last) in taken:
            if begin < last and first < end:
                raise BadResult(f"output '{name}' shares memory with {other}; return a tensor of its own")
        taken.append((f"output '{name}'", (begin, end)))
    return owned


def number(value):
    """Attributes with whole values, such as ignore_index, become int."""
    value = float(value)
    return int(value) if value.is_integer() else value


def takes_out(function, given):
    """Whether a function writes to outputs that it gets as `out`."""
    return "out" in (parameters_of(function) or ()) and "out" not in given


def needs(function, name):
    """Whether a function has a parameter of that name without a default."""
    return name in (parameters_of(function) or ()) and parameters_of(function)[name].default is inspect.Parameter.empty


def written(result, outs):
    """The names of the outputs in `outs`, which a function was given as `out`. Throws BadResult if it returned others."""
    if result is not None:
        for name, value in chosen(by_name(result, list(outs)), list(outs)).items():
            if value is not outs[name]:
                raise BadResult(f"output '{name}' is not the one that the function got as out; write to that, and return "
                                "it or None")
    return list(outs)


class FileTensors:
    """The tensors of a request of protocol 1."""

    def __init__(self, request, framework):
        self.framework, self.path, self.wants = framework, request["outputs"], request["want"]
        self.inputs = {name: framework.load(*entry) for name, entry in read_safetensors(request["inputs"]).items()}

    def destination(self, want):
        return None

    def finish(self, outputs):
        """Writes outputs, by name."""
        if os.path.isdir(os.path.dirname(self.path)):  # else check_operator waited too long, and has tidied up
            stored = {}
            for want in self.wants:
                with reading(want["name"]):
                    stored[want["name"]] = self.framework.store(outputs[want["name"]], want)
            write_safetensors(self.path, stored)
        return {}


class SharedTensors:
    """The tensors of a request of protocol 2, in check_operator's memory."""

    def __init__(self, request, framework, arenas):
        self.framework = framework
        places = [Place(entry, arenas) for entry in request["tensors"]]
        self.inputs = {place.name: framework.view(place) for place in places if not place.is_output}
        self.outputs = {place.name: place for place in places if place.is_output}
        self.wants = [place.want for place in self.outputs.values()]
        self.given = set()  # outputs that a function writes to itself

    def destination(self, want):
        tensor = self.framework.destination(self.outputs[want["name"]])
        if tensor is not None:
            self.given.add(want["name"])
        return tensor

    def finish(self, outputs):
        """Copies outputs, by name, unless they are there already."""
        returned = [name for name in self.outputs if name not in self.given]
        for name in returned:
            with reading(name):
                self.framework.write(self.outputs[name], outputs[name])
        self.framework.finish()
        return {"returned": returned}


def run(request, functions, framework, arenas):
    """Computes and hands over the wanted tensors. Returns what the answer says of them."""
    tensors = SharedTensors(request, framework, arenas) if "tensors" in request else FileTensors(request, framework)
    request["want"] = tensors.wants
    attrs = {name: number(value) for name, value in request["attrs"].items()}
    op, direction = request["op"], request["pass"]
    function = functions.get(f"{op}/{direction}", functions.get(op) if direction == "forward" else None)
    names, optional = [want["name"] for want in tensors.wants], request.get("optional_outputs", [])
    require_attrs(functions[op] if function is None else function, attrs, request.get("changed_attrs", []))
    process = os.getpid()
    try:
        if function is None:
            if takes_out(functions[op], {**tensors.inputs, **attrs}) and needs(functions[op], "out"):
                raise BadResult("the function writes to 'out', and so has no automatic gradients; return the outputs, or give the "
                                "function that computes the gradients")
            outputs = framework.gradients(functions[op], tensors.inputs, attrs, request)
        elif takes_out(function, {**tensors.inputs, **attrs}):
            if not framework.can_write:
                raise BadResult(f"the function takes 'out', and nothing can write to a tensor of {framework.name}; return the "
                                "outputs")
            outputs = {}
            for want in tensors.wants:
                tensor = tensors.destination(want)
                outputs[want["name"]] = framework.blank(want) if tensor is None else tensor
            outs = tuple(outputs.values())
            written(call(function, tensors.inputs, {**attrs, "out": outs[0] if len(outs) == 1 else outs}), outputs)
        else:
            outputs = by_name(call(function, tensors.inputs, attrs), names, optional)
    finally:
        if os.getpid() != process:
            os._exit(0)  # a function that forked comes back twice, and only this process may answer
    framework.finish()
    if function is not None and not takes_out(function, {**tensors.inputs, **attrs}):
        outputs = require_own_tensors(framework, chosen(outputs, names, optional), tensors.inputs, tensors.wants)
        require_all(outputs, names)
    return tensors.finish(outputs)


def words_of(error):
    """What an exception says, in one line that any encoding can take; "" for one that says nothing."""
    try:
        lines = str(error).splitlines()
    except Exception:  # of its own __str__
        return ""
    return " | ".join(line.strip() for line in lines if line.strip()).encode("utf-8", "replace").decode()


def described(error):
    """The same behind its type."""
    words = words_of(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def print_traceback(error):
    """The part of it that lies in the functions: nobody who wrote one looks for its fault here."""
    folder = os.path.dirname(__file__)
    ours = (__file__, importlib.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
    frames = error.__traceback__
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if file not in ours and (os.path.basename(folder) != "check_operator" or os.path.dirname(file) != folder):
            break
        frames = frames.tb_next
    if frames is None and isinstance(error, ImportError):
        return  # there is no such module, and the message says so
    traceback.print_exception(type(error), error, frames)


def answer_to(request, functions, framework, may_exit, arenas):
    try:
        return {"status": "ok", **run(request, functions, framework, arenas)}
    except NotImplementedError as refusal:
        return {"status": "unsupported", "message": words_of(refusal) or type(refusal).__name__}
    except (BadResult, Malformed) as error:
        return {"status": "failed", "message": str(error)}
    except BaseException as error:  # a failure of the candidate must not end the process
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and may_exit):
            raise
        print_traceback(error)
        if may_exit and framework.is_lost():
            sys.stderr.flush()
            os._exit(70)  # this process can't use the device any more
        return {"status": "failed", "message": described(error)}


def kernels_of(functions, framework):
    kernels = []
    for key in functions:
        op, slash, direction = key.partition("/")
        if slash and direction not in ("forward", "backward"):
            raise BadCandidate(f"'{key}': expected OP, OP/forward or OP/backward")
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
            raise BadCandidate(f"recipes of '{key}': there is no such function")
        for kernel in named:
            kernel["recipes"] = kernel.get("recipes", []) + ([names] if isinstance(names, str) else list(names))
    return kernels


def innermost(function):
    """The function that a decorator, a partial or adapted() wraps."""
    for _ in range(16):  # deeper than anybody wraps; an object that has every attribute has no end
        inner = next((each for each in (getattr(function, name, None) for name in ("__wrapped__", "func", "fn"))
                      if callable(each)), None)
        if inner is None:
            break
        function = inner
    return function


def modules_used(function):
    """Top-level names of the modules that a function's code names, then of those that its module has imported."""
    function = innermost(function)
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        function = getattr(type(function), "__call__", None)
    scope = getattr(function, "__globals__", {})
    codes, names = [getattr(function, "__code__", None)], []
    while codes:
        code = codes.pop()
        if code is not None:
            names += code.co_names
            codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    for known in ([scope[name] for name in names if name in scope], list(scope.values())):
        yield {value.__name__.partition(".")[0] for value in known if isinstance(value, types.ModuleType)}


def choose_framework(name, functions=()):
    known = {"torch": Torch, "jax": Jax, "numpy": NumPy}
    if name is not None and name not in known:
        raise BadCandidate(f"framework: unknown value '{name}'; use {', '.join(known)}")
    if name is not None:
        return known[name]
    for function in functions:
        if getattr(function, "framework", None) in known:  # it says so itself
            return known[function.framework]
        for used in modules_used(function):
            for each in known:
                if each in used or (each == "torch" and "triton" in used):
                    return known[each]
    return next((known[each] for each in known if each in sys.modules), NumPy)


def open_framework(framework, device):
    """An instance of it. Throws BadCandidate where the framework can't be imported, NoDevice where its device is missing."""
    try:
        return framework(device)
    except ImportError as error:
        raise BadCandidate(f"{framework.name} can't be imported: {error}; install it, or repair what it lacks") from error


def digest_of(functions):
    """16 hex digits that change with the files, or else the code, of the functions."""
    digest = hashlib.sha256()
    for key, function in sorted(functions.items()):
        inner = innermost(function)
        digest.update(f"{key} {getattr(inner, '__qualname__', '')}".encode())
        try:
            with open(inspect.getsourcefile(inner), "rb") as file:
                digest.update(file.read())
        except (TypeError, OSError):  # built in, or typed into an interpreter
            code = getattr(inner, "__code__", None)
            simple = [each for each in getattr(code, "co_consts", ()) if isinstance(each, (int, float, str))]
            digest.update(getattr(code, "co_code", b"") + repr(simple).encode())
    return digest.hexdigest()[:16]


def require_request(request):
    """Throws Malformed unless the request of a launch has all its parts."""
    parts = {"id": int, "op": str, "pass": str, "attrs": dict, "forward_outputs": list,
             **({"tensors": list} if "tensors" in request else {"inputs": str, "outputs": str, "want": list})}
    for name, kind in parts.items():
        if not isinstance(request.get(name), kind):
            raise Malformed(f"the request has no {name} of type {kind.__name__}")
    if not all(isinstance(each, dict) for each in request.get("tensors", [])):
        raise Malformed("a tensor is no object")


class Server:
    """Answers requests, one after the other. The parameters are those of converse()."""

    def __init__(self, functions, framework, device, may_exit, differentiate, recipes, layouts, take_descriptor):
        self.functions, self.wanted_framework, self.device, self.may_exit = functions, framework, device, may_exit
        self.differentiate, self.recipes, self.layouts = differentiate, recipes or {}, layouts or {}
        self.take_descriptor = take_descriptor
        self.framework, self.arenas = None, {}

    def answer(self, line):
        """The answer to a line, and whether it ends the conversation."""
        try:
            request = json.loads(line)
            kind = next((each for each in ("hello", "run", "arena", "drop") if isinstance(request.get(each), dict)), None)
        except (ValueError, AttributeError):
            return {"status": "unsupported", "message": "the request is no JSON object"}, False
        if kind == "hello":
            return self.hello(request[kind])
        if kind is None or self.framework is None:
            known = "a request comes before hello" if kind else "this request is unknown"
            return {"status": "unsupported", "message": known}, False
        return getattr(self, kind)(request[kind]), False

    def hello(self, hello):
        self.arenas = {}  # whoever asked before has gone
        offered = hello.get("protocols", [hello.get("protocol")])
        protocol = max((each for each in PROTOCOLS if isinstance(offered, list) and each in offered), default=None)
        wanted = hello.get("device", "auto")
        same = {"id": hello["id"]} if "id" in hello else {}
        if protocol is None or not isinstance(wanted, str):
            return {"error": f"speaks protocols {PROTOCOLS[0]} and {PROTOCOLS[1]}, not {offered}", **same}, True
        if self.device and not (self.device == "cuda" and wanted.startswith("cuda")):
            wanted = self.device
        try:
            self.framework = open_framework(choose_framework(self.wanted_framework, self.functions.values()), wanted)
            if self.differentiate and not self.framework.can_differentiate:
                raise BadCandidate(f"backward: {self.framework.name} has no automatic gradients; "
                                   "give the function that computes them, or none")
            kernels = declare(self.recipes, kernels_of(self.functions, self.framework))
            if protocol > 1:
                kernels = [{**kernel, "strides": False, "any_ids": False, **self.layouts} for kernel in kernels]
            answer = {"protocol": protocol, "device": self.framework.describe_device(),
                      "digest": digest_of(self.functions), "kernels": kernels}
        except NoDevice as error:
            return {"no_device": str(error), **same}, True
        except BadCandidate as error:
            return {"error": str(error), **same}, True
        return {**answer, **same, **(self.memory() if protocol > 1 else {})}, False

    def memory(self):
        """What a hello of protocol 2 says of shared memory."""
        if self.take_descriptor is None:
            return {"transports": ["files"], "why": f"{SOCKET} names no socket of this process"}
        transports, why = self.framework.transports()
        return {"transports": [*transports, "files"], "gpu_uuid": self.framework.uuid(),
                "read_only_inputs": self.framework.has_read_only, **({"why": why} if why else {})}

    def arena(self, arena):
        number = arena.get("id")
        try:
            descriptor = self.take_descriptor()
        except (OSError, TypeError) as error:
            return {"arena": number, "status": "refused", "message": f"no descriptor came: {error}"}
        try:
            self.arenas[number] = self.framework.map(arena.get("transport"), descriptor, arena["bytes"],
                                                     arena["access"] == "rw")
            return {"arena": number, "status": "mapped"}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            return {"arena": number, "status": "refused", "message": str(error) or type(error).__name__}
        finally:
            os.close(descriptor)

    def drop(self, drop):
        number = drop.get("arena")
        if isinstance(number, int):
            self.arenas.pop(number, None)  # tensors that a function kept keep it mapped
        return {"arena": number, "status": "dropped"}

    def run(self, request):
        try:
            require_request(request)
        except Malformed as error:
            return {"id": request.get("id"), "status": "failed", "message": str(error)}
        answer = answer_to(request, self.functions, self.framework, self.may_exit, self.arenas)
        sys.stdout.flush()
        sys.stderr.flush()
        return {"id": request["id"], **answer}


def converse(lines, answers, functions, framework=None, device=None, may_exit=True, newer=None, differentiate=False,
             recipes=None, layouts=None, take_descriptor=None):
    """Answers requests until the other end closes. `newer()`: whether it has asked again without waiting for an answer,
    which is then no longer wanted. `may_exit`: this process is the candidate's alone. `differentiate`: a framework that
    can't is an error. `recipes`: those of serve(); `layouts`: its `strides` and `any_ids`. `take_descriptor()`: the next
    descriptor that came with a line; None if none can come."""
    server = Server(functions, framework, device, may_exit, differentiate, recipes, layouts, take_descriptor)
    try:
        for line in lines:
            answer, is_last = server.answer(line)
            if newer is None or not newer():
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
            if is_last:
                return
    except KeyboardInterrupt:
        if not may_exit:
            raise
        sys.exit(130)  # as shells say it, and without a traceback


def take_standard_streams():
    """The requests and the answers. Only answers may go to standard output, and only this file may read requests."""
    lines = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return lines, answers


def refuse(why, lines=None, answers=None):
    """Answers the first request, whatever it is, that nothing can be served."""
    if lines is None:
        lines, answers = take_standard_streams()
    lines.readline()
    answers.write(json.dumps({"error": why}) + "\n")
    answers.flush()


def receive(connection, most):
    """Bytes of a socket, and the descriptors that came with them."""
    width = struct.calcsize("i")
    data, controls, _, _ = connection.recvmsg(most, socket.CMSG_SPACE(16 * width), socket.MSG_CMSG_CLOEXEC)
    found = []
    for level, kind, content in controls:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found += struct.unpack(f"{len(content) // width}i", content[:len(content) // width * width])
    return data, found


def descriptors_beside():
    """take_descriptor() of a process that check_operator started; None if it has no socket."""
    try:
        number = int(os.environ.get(SOCKET, ""))
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
    except (ValueError, OSError):
        return None
    os.set_inheritable(number, False)  # processes that a function starts have no business with it
    connection = socket.socket(fileno=number)

    def take():
        _, found = receive(connection, 1)
        if not found:
            raise OSError("the socket is closed")
        return found[0]

    return take


class SocketLines:
    """The lines that come over a socket, and the descriptors that come with them."""

    def __init__(self, connection):
        self.connection, self.pending, self.descriptors = connection, b"", []

    def __iter__(self):
        return self

    def __next__(self):
        while b"\n" not in self.pending:
            data, found = receive(self.connection, 65536)
            self.descriptors += found
            if not data:
                self.close()
                raise StopIteration
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        return line.decode("utf-8", "replace")

    def take(self):
        if not self.descriptors:
            raise OSError("none came with the request")
        return self.descriptors.pop(0)

    def close(self):
        for each in self.descriptors:
            os.close(each)
        self.descriptors = []

    def has_more(self):
        return b"\n" in self.pending or bool(select.select([self.connection], [], [], 0)[0])


def serve(functions, framework=None, device=None, recipes=None, strides=False, any_ids=False):
    """Answers requests until check_operator ends. `device`: "cpu", "cuda" or "cuda:1"; None: check_operator's --device.
    `recipes`: declared rounding points, by keys of `functions`. `strides`: the functions honour strides.
    `any_ids`: they take ids as int32 and as int64."""
    take = descriptors_beside()
    converse(*take_standard_streams(), functions, framework, device, recipes=recipes,
             layouts={"strides": strides, "any_ids": any_ids}, take_descriptor=take)


def serve_socket(connection, functions, differentiate=False):
    """The same over a socket, in a process that goes on when check_operator ends, and whose streams are its own."""
    lines = SocketLines(connection)
    try:
        with connection.makefile("w", encoding="utf-8") as answers:
            converse(lines, answers, functions, may_exit=False, differentiate=differentiate, newer=lines.has_more,
                     take_descriptor=lines.take)
    except (BrokenPipeError, ConnectionResetError):
        pass  # check_operator has ended, and its exit code says why
    finally:
        lines.close()


def functions_for(op, forward, backward, adapt):
    """What serve() takes. `backward`: True for automatic gradients, False for none, or a function."""
    if backward is True:
        return {op: adapted(forward, adapt)}
    functions = {f"{op}/forward": adapted(forward, adapt)}
    if backward:
        renamed = {name: own for name, own in adapt.items() if own in (parameters_of(backward) or ())}
        functions[f"{op}/backward"] = adapted(backward, renamed)
    return functions


def find_function(place):
    """The function at "MODULE:QUALIFIED.NAME"."""
    module, _, name = place.partition(":")
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as error:  # whatever importing a module may raise
        print_traceback(error)
        raise BadCandidate(f"'{place}' can't be imported: {described(error)}") from error


def registered_functions(place):
    """Of "MODULE", "FILE.py" or "MODULE:NAME": see _candidate.served_by()."""
    module, _, name = place.partition(":")
    if module.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(module)))
        module = os.path.basename(module)[:-len(".py")]
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever importing a module may raise
        print_traceback(error)
        raise BadCandidate(f"'{module}' can't be imported: {described(error)}") from error
    return importlib.import_module("check_operator._candidate").served_by(module, name)


def main():
    parser = argparse.ArgumentParser(description="Serves functions of a module as a candidate, for --exec.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("function", metavar="MODULE:NAME", nargs="?", help="one function")
    what.add_argument("--candidates", metavar="MODULE[:NAME]", help="those with @check_operator.candidate")
    what.add_argument("--torch-op", metavar="NAMESPACE::NAME", help="a registered operator of torch, with its autograd")
    parser.add_argument("--import", action="append", default=[], dest="imports", metavar="MODULE",
                        help="that registers the operator")
    parser.add_argument("--op", help="operator that the function computes")
    parser.add_argument("--backward", metavar="auto|MODULE:NAME", help="default: no backward pass")
    parser.add_argument("--adapt", action="append", default=[], metavar="NAME=PARAMETER",
                        help="the function's parameter for what the operator calls NAME")
    parser.add_argument("--path", action="append", default=[], metavar="FOLDER", help="where modules lie")
    given = parser.parse_args()
    if not given.candidates and not given.op:
        parser.error("--op is missing")
    # Modules of candidates import the package, and find this module in it.
    sys.modules.setdefault("check_operator.serving", sys.modules["__main__"])
    folder = os.path.dirname(os.path.abspath(__file__))
    take = descriptors_beside()
    lines, answers = take_standard_streams()
    if sys.path[0] == folder:
        del sys.path[0]  # this file's neighbours are no top-level modules
    sys.path[:0] = given.path
    if importlib.util.find_spec("check_operator") is None:
        sys.path.append(os.path.dirname(folder))
    os.environ[SERVES] = given.function or given.candidates or given.torch_op
    recipes, framework, adapt = {}, None, dict(each.split("=", 1) for each in given.adapt)
    try:
        if given.candidates:
            functions, recipes, differentiate = registered_functions(given.candidates)
        elif given.torch_op:
            find = importlib.import_module("check_operator._torch_op").find
            functions = functions_for(given.op, find(given.torch_op, given.imports), True, adapt)
            framework, differentiate = "torch", True
        else:
            backward = given.backward == "auto" or (find_function(given.backward) if given.backward else False)
            functions = functions_for(given.op, find_function(given.function), backward, adapt)
            differentiate = backward is True
    except (BadCandidate, ImportError) as error:
        return refuse(str(error), lines, answers)
    converse(lines, answers, functions, framework, differentiate=differentiate, recipes=recipes,
             take_descriptor=take)


if __name__ == "__main__":
    main()
