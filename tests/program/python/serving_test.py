# SPDX-License-Identifier: Apache-2.0
"""python/check_operator/serving.py without check_operator: rounding, files, and how functions are called."""
import array
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python")
sys.path.insert(0, FOLDER)
from check_operator import serving as helper


def nearest_bf16(value):
    """The bits of the bf16 number nearest to a finite or infinite float32, from the distances to its two neighbours."""
    bits = int(np.float32(value).view(np.uint32))
    sign, low = bits >> 31 << 15, (bits & 0x7FFFFFFF) >> 16

    def number(half):  # exact in double; the number after the largest is 2^128, which rounds to infinity
        return 2.0**128 if half == 0x7F80 else float(np.uint32(half << 16).view(np.float32))

    if low == 0x7F80:
        return sign | low
    size = abs(float(value))
    below, above = size - number(low), number(low + 1) - size
    up = above < below or (above == below and low % 2 == 1)
    return sign | (low + up)


class Bf16(unittest.TestCase):
    def setUp(self):
        self.numpy = helper.NumPy("cpu")

    def test_rounds_to_nearest_ties_to_even(self):
        highs = [*range(0, 0x10000, 97), 0x7F7F, 0x7F80, 0xFF7F, 0xFF80, 0, 1, 0x7F, 0x80]
        bits = np.array([high << 16 | low for high in highs for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)], np.uint32)
        numbers = bits.view(np.float32)
        numbers = numbers[~np.isnan(numbers)]
        found = self.numpy.to_bf16(numbers)
        self.assertEqual(found.tolist(), [nearest_bf16(number) for number in numbers])

    def test_nan_stays_nan(self):
        nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], np.uint32).view(np.float32)
        for half in self.numpy.to_bf16(nans).tolist():
            self.assertGreater(half & 0x7FFF, 0x7F80)

    def test_every_number_survives_the_way_through_fp32(self):
        halves = np.arange(0x10000, dtype="<u2")
        numbers = self.numpy.load("BF16", (256, 256), bytearray(halves.tobytes()))
        kept = ~np.isnan(numbers.reshape(-1))
        self.assertEqual(self.numpy.to_bf16(numbers)[kept].tolist(), halves[kept].tolist())

    def test_only_float32_is_rounded_to_bf16(self):
        want = {"name": "y", "dtype": "BF16"}
        self.assertEqual(self.numpy.store(np.ones(3, np.float32), want)[0], "BF16")
        self.assertEqual(self.numpy.store(np.ones(3, np.float64), want)[0], "F64")


class NumbersOf8And4Bits(unittest.TestCase):
    def frameworks(self):
        yield helper.NumPy("cpu"), np.uint8
        try:
            import torch
        except ImportError:
            return
        yield helper.Torch("cpu"), torch.uint8

    def test_every_code_goes_through_as_it_is(self):
        codes = bytes(range(256))
        for framework, byte in self.frameworks():
            for dtype in helper.NARROW:
                want = {"name": "codes", "dtype": dtype, "shape": [16, 16]}
                loaded = framework.load(dtype, (16, 16), bytearray(codes))
                self.assertEqual(framework.dtype_of(loaded, want), dtype)
                self.assertEqual(framework.store(loaded, want), (dtype, (16, 16), codes))
                bits = framework.load("U8", (16, 16), bytearray(codes))
                self.assertEqual(bits.dtype, byte)
                self.assertEqual(framework.store(bits, want), (dtype, (16, 16), codes))

    def test_a_number_of_another_type_is_no_code(self):
        for framework, _ in self.frameworks():
            wide = framework.load("F32", (1,), bytearray(4))
            self.assertEqual(framework.dtype_of(wide, {"name": "codes", "dtype": "F8_E4M3"}), "F32")
            bits = framework.load("U8", (1,), bytearray(1))
            self.assertEqual(framework.dtype_of(bits, {"name": "mask", "dtype": "U8"}), "U8")

    def test_a_file_counts_two_numbers_of_4_bits_a_byte(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x")
            helper.write_safetensors(path, {"codes": ("F4", (3, 2), b"123456")})
            self.assertEqual(helper.read_safetensors(path), {"codes": ("F4", (3, 2), bytearray(b"123456"))})
            with open(path, "rb") as file:
                self.assertIn(b'"shape": [3, 4]', file.read())


class Files(unittest.TestCase):
    def test_what_is_written_is_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x")
            tensors = {"y": ("F32", (2, 1), b"12345678"), "none": ("U8", (0, 4), b""), "s": ("F64", (), b"abcdefgh")}
            helper.write_safetensors(path, tensors)
            self.assertEqual(helper.read_safetensors(path), {name: (d, s, bytearray(b)) for name, (d, s, b) in
                                                             tensors.items()})


class Calls(unittest.TestCase):
    def test_attributes_that_are_not_named_are_left_out(self):
        self.assertEqual(helper.call(lambda x, eps: (x, eps), {"x": 1}, {"eps": 2, "beta": 3}), (1, 2))
        self.assertEqual(helper.call(lambda **all: all, {"x": 1}, {"eps": 2}), {"x": 1, "eps": 2})

    def test_an_attribute_that_is_not_named_and_changed_is_unsupported(self):
        for function in (lambda x, eps: x, lambda **all: all, lambda x, eps, beta=3: x):
            helper.require_attrs(function, {"eps": 2, "beta": 3}, ["eps"])
        helper.require_attrs(lambda x, eps, beta: x, {"eps": 2, "beta": 3}, ["eps", "beta"])
        with self.assertRaisesRegex(helper.Unsupported, "takes no 'beta', which is 3 in this case and not its default"):
            helper.require_attrs(lambda x, eps: x, {"eps": 2, "beta": 3}, ["eps", "beta"])

    def test_tensor_that_is_not_named_is_unsupported(self):
        with self.assertRaisesRegex(helper.Unsupported, "^the function takes no 'bias'; it takes x, block$"):
            helper.call(lambda x, block=4: x, {"x": 1, "bias": 2}, {})

    def test_a_parameter_of_another_name_is_a_mistake(self):
        for function in (lambda x, b: x, lambda x, b, out: x):
            with self.assertRaisesRegex(helper.BadResult, "^the function takes no 'bias'; it takes x, b.*; adapt={'bias': 'b'} passes "
                                                          "it as 'b'$"):
                helper.call(function, {"x": 1, "bias": 2}, {})

    def test_parameters_that_nothing_is_passed_for_are_named(self):
        with self.assertRaisesRegex(helper.BadResult, "the function needs 'weight', which is neither an input nor an attribute"):
            helper.call(lambda x, weight, bias=None: x, {"x": 1}, {"eps": 2})

    def test_results_get_their_names(self):
        self.assertEqual(helper.by_name(5, ["y"]), {"y": 5})
        self.assertEqual(helper.by_name((5, 6), ["y", "lse"]), {"y": 5, "lse": 6})
        self.assertEqual(helper.by_name({"lse": 6}, ["y", "lse"]), {"lse": 6})
        self.assertEqual(helper.chosen({"lse": 6, "y": 5, "z": 0}, ["y", "lse"]), {"y": 5, "lse": 6})
        with self.assertRaisesRegex(TypeError, "returned no 'y', only 'lse'"):
            helper.chosen({"lse": 6}, ["y", "lse"])
        with self.assertRaisesRegex(TypeError, "returned None for 'y'"):
            helper.chosen({"y": None}, ["y"])
        with self.assertRaisesRegex(TypeError, "returned None; return 'y'"):
            helper.by_name(None, ["y"])
        with self.assertRaisesRegex(TypeError, "returned 1 output, expected 2: 'y', 'lse'"):
            helper.by_name(5, ["y", "lse"])

    def test_optional_results_may_be_left_out(self):
        optional = ["lse", "kl"]
        for result, kept in ((5, {"o": 5}), ((5,), {"o": 5}), ({"o": 5}, {"o": 5}), ((5, None, None), {"o": 5}),
                             ({"o": 5, "kl": 7}, {"o": 5, "kl": 7}), ((5, 6, 7), {"o": 5, "lse": 6, "kl": 7})):
            names = ["o", "lse", "kl"]
            self.assertEqual(helper.chosen(helper.by_name(result, names, optional), names, optional), kept)
        helper.require_all({"o": 5, "lse": 6}, ["o", "lse"])
        with self.assertRaisesRegex(helper.Unsupported, "^the function returns o, m alone; this case asks for lse, kl too$"):
            helper.require_all({"o": 5, "m": 6}, ["o", "lse", "kl", "m"])

    def test_results_that_are_neither_all_nor_the_required_ones_are_wrong(self):
        names, optional = ["o", "lse", "kl"], ["lse", "kl"]
        with self.assertRaisesRegex(helper.BadResult, "returned 2 outputs, expected 3: 'o', 'lse', 'kl'"):
            helper.by_name((5, 6), names, optional)  # nobody knows which
        with self.assertRaisesRegex(helper.BadResult, "returned 2 outputs, expected 3: 'o', 'lse', 'm'"):
            helper.by_name((5, 6), ["o", "lse", "m"], optional)  # m may be missing, which is required
        for result, sentence in (({"o": 5, "LSE": 6}, "returned no 'lse', only 'o', 'LSE'"), ({}, "no 'o', only an empty dict"),
                                 ({"lse": 6, "kl": 7}, "returned no 'o', only 'lse', 'kl'"), ((None, 6, 7), "None for 'o'")):
            with self.assertRaisesRegex(helper.BadResult, sentence):
                helper.chosen(helper.by_name(result, names, optional), names, optional)

    def test_inputs_upstream_gradients_and_wanted_ones_are_told_apart(self):
        request = {"forward_outputs": ["y"], "want": [{"name": "dx"}, {"name": "dgrad_x"}]}
        inputs, upstream, wanted = helper.split({"x": 1, "grad_x": 2, "grad_y": 3}, request, None)
        self.assertEqual((inputs, upstream, wanted), ({"x": 1, "grad_x": 2}, {"y": 3}, ["x", "grad_x"]))

    def test_an_input_that_the_backward_pass_lacks_is_zeros(self):
        request = {"forward_outputs": ["y"], "want": [{"name": "dweight", "dtype": "BF16", "shape": [5, 2]}]}
        inputs, upstream, wanted = helper.split({"token_ids": 1, "grad_y": 2}, request, lambda *made: made)
        self.assertEqual(inputs, {"token_ids": 1, "weight": ("BF16", [5, 2])})
        self.assertEqual((upstream, wanted), ({"y": 2}, ["weight"]))

    def test_whole_attributes_are_integers(self):
        self.assertIs(type(helper.number(-100.0)), int)
        self.assertEqual(helper.number("inf"), float("inf"))

    def test_passes_follow_from_the_keys(self):
        numpy = helper.NumPy("cpu")
        self.assertEqual(helper.kernels_of({"silu": None}, numpy), [{"op": "silu", "pass": "forward"}])
        numpy.can_differentiate = True
        both = [{"op": "silu", "pass": "forward"}, {"op": "silu", "pass": "backward"}]
        self.assertEqual(helper.kernels_of({"silu": None, "silu/backward": None}, numpy), both)
        with self.assertRaises(ValueError):
            helper.kernels_of({"silu/sideways": None}, numpy)

    def test_recipes_are_declared_of_one_pass_or_of_both(self):
        kernels = [{"op": "rope", "pass": "forward"}, {"op": "rope", "pass": "backward"}, {"op": "silu", "pass": "forward"}]
        declared = helper.declare({"rope": ["a"], "rope/backward": ["b"]}, kernels)
        self.assertEqual([kernel.get("recipes") for kernel in declared], [["a"], ["a", "b"], None])
        with self.assertRaisesRegex(ValueError, "recipes of 'silu/backward': there is no such function"):
            helper.declare({"silu/backward": ["a"]}, kernels)


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from check_operator.serving import serve
import numpy as np
def silu(x):
    print("printed")
    if x.shape[0] == 2: raise NotImplementedError("two rows")
    if x.shape[0] == 3: return x.reshape(-1), x
    if x.shape[0] == 4: raise KeyError("four")
    return x / (1 + np.exp(-x))
serve({{"silu": silu}})
"""


class Serving(unittest.TestCase):
    """One conversation with a process."""

    def talk(self, rows):
        with tempfile.TemporaryDirectory() as folder:
            inputs, outputs = os.path.join(folder, "in"), os.path.join(folder, "out")
            x = np.linspace(-2, 2, rows * 4, dtype=np.float32).reshape(rows, 1, 4)
            helper.write_safetensors(inputs, {"x": ("F32", x.shape, x.tobytes())})
            request = {"id": 9, "op": "silu", "pass": "forward", "attrs": {}, "inputs": inputs, "outputs": outputs,
                       "want": [{"name": "y", "dtype": "F32", "shape": [rows, 1, 4]}], "forward_outputs": ["y"]}
            lines = [{"hello": {"protocol": 1, "device": "auto"}}, {"run": request}]
            done = subprocess.run([sys.executable, "-c", SCRIPT.format(folder=FOLDER)], capture_output=True, text=True,
                                  input="".join(json.dumps(line) + "\n" for line in lines), check=True)
            hello, answer = map(json.loads, done.stdout.splitlines())
            self.assertRegex(hello.pop("digest"), "^[0-9a-f]{16}$")
            self.assertEqual(hello, {"protocol": 1, "device": {"kind": "cpu"},
                                     "kernels": [{"op": "silu", "pass": "forward"}]})
            self.assertIn("printed", done.stderr)
            y = helper.read_safetensors(outputs)["y"] if os.path.exists(outputs) else None
            return answer, y, x

    def test_result_is_written(self):
        answer, (dtype, shape, data), x = self.talk(1)
        self.assertEqual(answer, {"id": 9, "status": "ok"})
        self.assertEqual((dtype, shape), ("F32", (1, 1, 4)))
        np.testing.assert_allclose(np.frombuffer(data, "f4"), (x / (1 + np.exp(-x))).reshape(-1), rtol=1e-6)

    def test_refusal_is_unsupported(self):
        self.assertEqual(self.talk(2)[0], {"id": 9, "status": "unsupported", "message": "two rows"})

    def test_too_many_results_are_a_failure(self):
        self.assertEqual(self.talk(3)[0]["status"], "failed")

    def test_exception_is_a_failure_with_its_text(self):
        self.assertEqual(self.talk(4)[0], {"id": 9, "status": "failed", "message": "KeyError: 'four'"})


class OptionalOutputs(unittest.TestCase):
    """Requests for an optional output, answered within this process."""

    OPTIONAL = {"optional_outputs": ["lse"]}

    def answer(self, result, **more):
        with tempfile.TemporaryDirectory() as folder:
            inputs = os.path.join(folder, "in")
            helper.write_safetensors(inputs, {"q": ("F32", (2, 3), bytes(24))})
            want = [{"name": "o", "dtype": "F32", "shape": [2, 3]}, {"name": "lse", "dtype": "F32", "shape": [2]}]
            request = {"id": 1, "op": "attention", "pass": "forward", "attrs": {}, "inputs": inputs, "want": want,
                       "outputs": os.path.join(folder, "out"), "forward_outputs": ["o", "lse"], **more}
            return helper.answer_to(request, {"attention": lambda q: result}, helper.NumPy("cpu"), False, {})

    def test_a_function_without_it_declines(self):
        o = np.zeros((2, 3), np.float32)
        for result in (o, [o], {"o": o}, (o, None)):
            self.assertEqual(self.answer(result, **self.OPTIONAL),
                             {"status": "unsupported", "message": "the function returns o alone; this case asks for lse too"})
        self.assertEqual(self.answer((o, np.zeros(2, np.float32)), **self.OPTIONAL), {"status": "ok"})

    def test_what_it_returns_must_be_right_in_form(self):
        for result, sentence in (
                (np.zeros(2, np.float32), "its output 'o' is fp32 [2], expected fp32 [2, 3]"),
                (np.zeros((2, 3)), "its output 'o' is fp64 [2, 3], expected fp32 [2, 3]"),
                (np.zeros((3, 2), np.float32).T, "output 'o' is not contiguous; return a contiguous copy"),
                ({"o": np.zeros((2, 3), np.float32), "l": 0}, "the function returned no 'lse', only 'o', 'l'"),
                ({"lse": np.zeros(2, np.float32)}, "the function returned no 'o', only 'lse'")):
            self.assertEqual(self.answer(result, **self.OPTIONAL), {"status": "failed", "message": sentence})

    def test_without_the_list_every_output_is_required(self):
        """As an earlier check_operator asks."""
        self.assertEqual(self.answer(np.zeros((2, 3), np.float32)),
                         {"status": "failed", "message": "the function returned 1 output, expected 2: 'o', 'lse'"})


def silu(x, out):
    out[...] = x / (1 + np.exp(-x))


class Shared(unittest.TestCase):
    """Protocol 2, within this process."""

    def setUp(self):
        self.ours, theirs = socket.socketpair()
        lines = helper.SocketLines(theirs)
        self.server = helper.Server({"silu": silu}, None, None, False, False, None, False, lines.take)
        self.lines = lines
        self.addCleanup(self.ours.close)
        self.addCleanup(theirs.close)
        self.hello = {"hello": {"protocol": 1, "protocols": [1, 2], "device": "auto", "transports": ["memfd", "files"]}}

    def ask(self, request, descriptor=None):
        line = json.dumps(request).encode() + b"\n"
        rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        self.ours.sendmsg([line], rights)
        answer, _ = self.server.answer(next(self.lines))
        return json.loads(json.dumps(answer))

    def share(self, number, access="rw", size=4096):
        """Asks for the mapping of a new memfd; returns the answer and the memfd."""
        memory = os.memfd_create("test")
        os.ftruncate(memory, size)
        self.addCleanup(os.close, memory)
        return self.ask({"arena": {"id": number, "bytes": size, "access": access, "transport": "memfd"}}, memory), memory

    def launch(self, **changes):
        common = {"dtype": "F32", "shape": [2, 4], "strides": [4, 1]}
        tensors = [{"name": "x", "role": "input", "arena": 1, "offset": 256, **common, **changes.pop("x", {})},
                   {"name": "y", "role": "output", "arena": 2, "offset": 512, **common, **changes.pop("y", {})}]
        return {"run": {"id": 5, "op": "silu", "pass": "forward", "attrs": {}, "tensors": tensors, "forward_outputs": ["y"],
                        **changes}}

    def begin(self):
        self.ask(self.hello)
        for number in (1, 2):
            answer, memory = self.share(number)
            self.assertEqual(answer, {"arena": number, "status": "mapped"})
        return memory

    def test_a_launch_writes_to_the_memory(self):
        hello = self.ask(self.hello)
        self.assertEqual((hello["protocol"], hello["transports"], hello["read_only_inputs"]), (2, ["memfd", "files"], True))
        memory = self.begin()
        self.assertEqual(self.ask(self.launch()), {"id": 5, "status": "ok", "returned": []})
        self.assertEqual(os.pread(memory, 4, 512), bytes(4))  # silu(0) is 0
        strided = self.launch(y={"strides": [9, 2], "offset": 1024})
        os.pwrite(memory, b"\xff" * 256, 1024)
        self.assertEqual(self.ask(strided)["status"], "ok")
        written = np.frombuffer(os.pread(memory, 256, 1024), "<u4") == 0
        self.assertEqual(np.flatnonzero(written).tolist(), [0, 2, 4, 6, 9, 11, 13, 15])

    def test_what_does_not_lie_in_its_arena_is_refused(self):
        self.begin()
        for name, changes in {"offset": dict(offset=4096), "negative": dict(offset=-4), "end": dict(offset=4096 - 31),
                              "stride": dict(strides=[1 << 40, 1]), "backwards": dict(strides=[-4, 1]),
                              "rank": dict(strides=[1]), "extent": dict(shape=[-2, 4])}.items():
            answer = self.ask(self.launch(x=changes))
            self.assertEqual((name, answer["status"]), (name, "failed"))
            self.assertIn("tensor 'x' does not lie in its arena", answer["message"], name)
        self.assertIn("is missing or unknown", self.ask(self.launch(x=dict(arena=7)))["message"])
        self.assertIn("is missing or unknown", self.ask(self.launch(x=dict(dtype="F8")))["message"])
        self.assertIn("tensor 'x': unhashable", self.ask(self.launch(x=dict(dtype=[])))["message"])
        self.assertEqual(self.ask(self.launch(x=dict(offset=4096 - 32)))["status"], "ok")

    def test_an_output_needs_memory_that_can_be_written(self):
        self.begin()
        self.share(3, access="r")
        self.assertIn("output 'y' lies in memory that can't be written", self.ask(self.launch(y=dict(arena=3)))["message"])

    def test_memory_that_can_not_be_mapped_is_refused(self):
        self.ask(self.hello)
        answer, _ = self.share(1, size=4096)
        self.assertEqual(answer["status"], "mapped")
        memory = os.memfd_create("short")
        self.addCleanup(os.close, memory)
        for arena in ({"bytes": 4096}, {"bytes": -1}, {"bytes": "many"}, {}, {"bytes": 4096, "transport": "cuda_vmm"}):
            answer = self.ask({"arena": {"id": 2, "access": "rw", "transport": "memfd", **arena}}, memory)
            self.assertEqual((answer["arena"], answer["status"]), (2, "refused"), arena)
        self.assertIn("no descriptor came", self.ask({"arena": {"id": 2, "bytes": 1, "access": "rw"}})["message"])

    def test_arenas_come_and_go_without_a_descriptor_left(self):
        self.begin()
        before = len(os.listdir("/proc/self/fd"))
        memory = os.memfd_create("many")
        os.ftruncate(memory, 4096)
        for number in range(3, 1003):
            arena = {"id": number, "bytes": 4096, "access": "rw", "transport": "memfd"}
            self.assertEqual(self.ask({"arena": arena}, memory)["status"], "mapped")
            self.assertEqual(self.ask(self.launch(y=dict(arena=number)))["status"], "ok")
            self.assertEqual(self.ask({"drop": {"arena": number}}), {"arena": number, "status": "dropped"})
        os.close(memory)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_hello_forgets_earlier_memory(self):
        self.begin()
        self.ask(self.hello)
        self.assertEqual(self.ask(self.launch())["status"], "failed")

    def test_unknown_requests_are_unsupported(self):
        self.assertEqual(self.ask(self.launch())["status"], "unsupported")
        self.begin()
        for request in ({"dance": {}}, {}, [], 3, None, "run", {"run": 3}):
            self.assertEqual(self.ask(request)["status"], "unsupported", request)
        self.assertEqual(self.server.answer("{")[0]["status"], "unsupported")

    def test_an_earlier_program_gets_protocol_1(self):
        answer = self.ask({"hello": {"protocol": 1, "device": "auto"}})
        self.assertEqual(sorted(answer), ["device", "digest", "kernels", "protocol"])
        self.assertEqual((answer["protocol"], answer["kernels"]), (1, [{"op": "silu", "pass": "forward"}]))
        self.assertIn("speaks protocols 1 and 2, not [3]", self.ask({"hello": {"protocol": 3, "device": "auto"}})["error"])

    def test_no_request_ends_in_an_exception(self):
        """Mutations of good requests: parts missing, of other types, or out of range."""
        chance = random.Random(1)
        odd = [None, True, -1, 0, 1 << 70, 1.5, "", "x", [], {}, [[]], ["y", 3], {"a": 1}]
        self.begin()

        def mutated(value):
            if isinstance(value, dict) and value and chance.random() < 0.9:
                value = dict(value)
                key = chance.choice(list(value))
                if chance.random() < 0.2:
                    del value[key]
                else:
                    value[key] = mutated(value[key])
                return value
            if isinstance(value, list) and value and chance.random() < 0.9:
                value = list(value)
                at = chance.randrange(len(value))
                value[at] = mutated(value[at])
                return value
            return chance.choice(odd)

        arena = {"arena": {"id": 3, "bytes": 4096, "access": "rw", "transport": "memfd"}}
        with open(os.devnull, "w", encoding="utf-8") as nowhere, mock.patch("sys.stderr", nowhere):
            for _ in range(4000):
                request = chance.choice([self.launch(), arena, {"drop": {"arena": 3}}, self.hello])
                answer, _ = self.server.answer(json.dumps(mutated(request)))
                self.assertIsInstance(json.loads(json.dumps(answer)), dict)
                if self.server.framework is None or 1 not in self.server.arenas or 2 not in self.server.arenas:
                    self.begin()
        self.begin()
        self.assertEqual(self.ask(self.launch())["status"], "ok")


if __name__ == "__main__":
    unittest.main()
