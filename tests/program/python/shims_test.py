# SPDX-License-Identifier: Apache-2.0
"""Shims of KernelBench, BackendBench and GPU MODE, with problems in their formats. Built where torch is.

Usage: shims_test.py PROGRAM [TEST...]
"""
import io
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stderr

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["CHECK_OPERATOR_PROGRAM"] = os.path.abspath(sys.argv[1])
sys.path[:0] = [os.path.join(HERE, "..", "..", "..", "python")]

from check_operator import InputError, MachineError, shims

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 16)

    def forward(self, x):
        return torch.softmax(self.linear(x), dim=-1)

def get_inputs():
    return [torch.rand(8, 64)]

def get_init_inputs():
    return [64]
"""
SOLUTION = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 16)

    def forward(self, x):
        scores = x @ self.linear.weight.T + self.linear.bias
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return weights / weights.sum(-1, keepdim=True)
"""
REFERENCE = """
import torch
from utils import make_match_reference

def generate_input(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(rows, rows, generator=generator).half() for _ in range(2))
    return a, b, torch.empty(rows, rows, dtype=torch.float16)

def ref_kernel(data):
    a, b, output = data
    output[...] = a + b
    return output

check_implementation = make_match_reference(ref_kernel)
"""
UTILS = """
import torch

def make_match_reference(reference):
    return lambda data, output: "" if torch.allclose(output, reference(data), 1e-5, 1e-8) else "mismatch found!"
"""


class Shims(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def verdict(self, ask):
        with redirect_stderr(io.StringIO()):
            report = ask()
        return report.verdict, report.checks[0].reason + repr(report)


class KernelBench(Shims):
    def ask(self, solution, **more):
        paths = self.write("softmax.py", PROBLEM), self.write("mine.py", solution)
        return self.verdict(lambda: shims.kernelbench(*paths, **more))

    def test_a_right_model_passes_with_the_weights_of_theirs(self):
        draws_first = SOLUTION.replace("super().__init__()", "super().__init__(); torch.rand(3)")
        for solution, more in ((SOLUTION, {}), (SOLUTION, dict(contract="kernelbench")), (SOLUTION, dict(seed=7)),
                               (draws_first, {})):
            self.assertEqual(self.ask(solution, **more)[0], "pass")

    def test_wrong_models_fail(self):
        for right, wrong in (("amax(-1, keepdim=True)", "amax(-1, keepdim=True) + 1e-3 * scores"),
                             ("weights.sum(-1, keepdim=True)", "(weights.sum(-1, keepdim=True) + 1e-4)"),
                             (" + self.linear.bias", "")):
            verdict, text = self.ask(SOLUTION.replace(right, wrong))
            self.assertEqual(verdict, "fail", text)
            self.assertIn("vs_reference", text)
        # The benchmark's own tolerance accepts what rounds its result to 16 bits; twice the reference's error does not.
        rounds = SOLUTION.replace("return weights / weights.sum(-1, keepdim=True)",
                                  "return (weights / weights.sum(-1, keepdim=True)).half().float()")
        self.assertEqual((self.ask(rounds)[0], self.ask(rounds, contract="kernelbench")[0]), ("fail", "pass"))

    def test_what_a_model_returns_must_fit(self):
        for line, sentence in {"return None": "the function returned no tensor, expected output",
                               "return weights[0] * 1": "its output 'output' is fp32 [16], expected fp32 [8, 16]",
                               "return x, weights": "the function returned output.0, output.1, expected output",
                               "raise KeyError('table')": "KeyError: 'table'"}.items():
            verdict, text = self.ask(SOLUTION.replace("return weights / weights.sum(-1, keepdim=True)", line))
            self.assertEqual(verdict, "fail")
            self.assertIn("the candidate failed: " + sentence, text)

    def test_other_files_are_refused(self):
        for sentence, problem, solution in (
                ("mine.py: defines no 'ModelNew'; add it", PROBLEM, "x = 3\n"),
                ("softmax.py: defines no 'get_init_inputs'", PROBLEM.replace("get_init_inputs", "others"), SOLUTION),
                ("mine.py: can't be imported: ModuleNotFoundError", PROBLEM, "import nosuch\n"),
                ("ModelNew has the weights none, and Model linear.weight, linear.bias", PROBLEM,
                 "import torch\nclass ModelNew(torch.nn.Module):\n    def __init__(self, n): super().__init__()\n"),
                ("mine.py: ModelNew() fails: KeyError: 'no table'", PROBLEM,
                 "import torch\nclass ModelNew(torch.nn.Module):\n    def __init__(self, n): raise KeyError('no table')\n"),
                ("softmax: reference: in float64: draws random numbers",
                 PROBLEM.replace("torch.softmax(self.linear(x), dim=-1)", "torch.rand_like(x)"), SOLUTION)):
            paths = self.write("softmax.py", problem), self.write("mine.py", solution)
            with self.assertRaises(InputError, msg=sentence) as caught:
                shims.kernelbench(*paths)
            self.assertIn(sentence, str(caught.exception))
        with self.assertRaisesRegex(InputError, "^file: expected a path, got None"):
            shims.kernelbench(None, None)
        for kind, sentence, device in ((InputError, "device: unknown device 'tpu'; use", "tpu"),
                                       (MachineError, "device: torch .* finds no device 'cuda:99'", "cuda:99")):
            with self.assertRaisesRegex(kind, "^" + sentence):
                shims.kernelbench(self.write("softmax.py", PROBLEM), self.write("mine.py", SOLUTION), device=device)


class BackendBench(Shims):
    x = torch.sin(1.7 * torch.arange(60.0)).reshape(5, 12)

    def test_a_folder_of_an_operator_is_judged(self):
        self.write("add__Tensor/add__Tensor_implementation_v1.py",
                   "def add__Tensor_kernel_impl(a, b, *, alpha=1):\n    return a + alpha * b\n")
        folder = os.path.join(self.folder, "add__Tensor")
        ask = lambda **kwargs: self.verdict(lambda: shims.backendbench("add.Tensor", folder, self.x, self.x.flip(0),
                                                                       kwargs=kwargs))[0]
        self.assertEqual((ask(), ask(alpha=0.5)), ("pass", "pass"))

    def test_wrong_functions_fail(self):
        silu, cat = torch.ops.aten.silu.default, torch.ops.aten.cat.default
        for verdict, op, function, arguments in (
                ("pass", silu, lambda x: x * torch.sigmoid(x), [self.x]),
                ("fail", silu, lambda x: x * torch.sigmoid(1.001 * x), [self.x]),
                ("pass", "cat", lambda tensors, dim=0: torch.cat([each.clone() for each in tensors], dim), [[self.x, self.x + 1]]),
                ("fail", cat, lambda tensors, dim=0: torch.cat(tensors[::-1], dim), [[self.x, self.x + 1]]),
                ("pass", "native_layer_norm", lambda *all: torch.native_layer_norm(*all), [self.x, [12], None, None, 1e-5])):
            found, text = self.verdict(lambda: shims.backendbench(op, function, *arguments))
            self.assertEqual(found, verdict, text)

    def test_bad_questions_are_refused(self):
        for sentence, op, implementation, arguments in (
                ("op: torch has no operator 'aten::ad.Tensor'", "ad.Tensor", lambda: None, [self.x]),
                ("implementation: expected a path, got 3", "silu", 3, [self.x]),
                ("holds no file nosuch_implementation*.py", "silu", "/nosuch", [self.x]),
                ("there is no tensor among the arguments", "silu", lambda x: x, [3])):
            with self.assertRaises(InputError) as caught:
                shims.backendbench(op, implementation, *arguments)
            self.assertIn(sentence, str(caught.exception))


class GpuMode(Shims):
    def ask(self, kernel, **more):
        self.write("problems/utils.py", UTILS)
        self.write("problems/vectoradd/reference.py", REFERENCE)
        submission = self.write("submission.py", "from utils import make_match_reference\n" + kernel)
        with redirect_stderr(io.StringIO()):
            return shims.gpu_mode(os.path.join(self.folder, "problems", "vectoradd"), submission,
                                  **{"seed": 4242, "rows": 33, **more})

    def test_both_words_are_heard(self):
        for kernel, verdict, word in (
                ("def custom_kernel(data):\n    a, b, y = data\n    y[...] = a + b\n    return y\n", "pass", ""),
                ("def custom_kernel(data):\n    return data[0] + data[1]\n", "pass", ""),
                ("def custom_kernel(data):\n    return data[0] - data[1]\n", "fail", "mismatch found!"),
                ("def custom_kernel(data):\n    raise KeyError('no table')\n", "fail", "KeyError: 'no table'"),
                # Their exact tolerance rejects what errs by a unit in the last place; twice the reference's error does, too.
                ("def custom_kernel(data):\n    return (data[0] + data[1]) * 1.001\n", "fail", "mismatch found!")):
            report, theirs = self.ask(kernel)
            self.assertEqual((report.verdict, theirs), (verdict, word), report)

    def test_every_launch_has_data_of_its_own(self):
        report, _ = self.ask("def custom_kernel(data):\n    a, b, y = data\n    a += b\n    return a\n")
        self.assertEqual(report.verdict, "pass", report)

    def test_bad_questions_are_refused(self):
        with self.assertRaisesRegex(InputError, "generate_input.*unexpected keyword argument 'size'.*give its arguments by name"):
            self.ask("def custom_kernel(data): pass\n", size=3)
        with self.assertRaisesRegex(InputError, "submission.py: defines no 'custom_kernel'; add it"):
            self.ask("x = 3\n")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
