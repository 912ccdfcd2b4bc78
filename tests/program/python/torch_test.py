# SPDX-License-Identifier: Apache-2.0
"""The Python package over torch: gradients, what may be returned, and which framework a function uses. Built where torch is.

Usage: torch_test.py PROGRAM [TEST...]
"""
import io
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from contextlib import redirect_stderr

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["CHECK_OPERATOR_PROGRAM"] = os.path.abspath(sys.argv[1])
sys.path[:0] = [os.path.join(HERE, "..", "..", "..", "python")]

import check_operator as co
import some_kernels
import torch_kernels
from torch_kernels import PARAMETER, half_gradient, rms_norm, without_gradient_of_weight
from check_operator import serving

# Registered as extensions do it: a schema, and kernels of it. A composite one has the gradients of what it calls.
OPERATORS = '''
import torch
library = torch.library.Library("of_tests", "DEF")
library.define("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor")
library.define("scale_(Tensor(a!) x) -> Tensor(a!)")
library.define("detached(Tensor x) -> Tensor")
library.define("two.a(Tensor x) -> Tensor")
library.define("two.b(Tensor x, int n) -> Tensor")

def rms_norm(x, weight, eps=1e-6):
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

library.impl("rms_norm", rms_norm, "CompositeImplicitAutograd")
library.impl("scale_", lambda x: x.mul_(2), "CPU")
library.impl("detached", lambda x: (x * torch.sigmoid(x)).detach(), "CPU")
library.impl("two.a", lambda x: x * 2, "CPU")
'''
exec(OPERATORS, {})


def ask(fn, **more):
    return co.check(fn, **{"op": "rms_norm", "dims": dict(batch=1, seq=2, hidden=32), **more})


def ask_attention(fn, **more):
    """Cases with and without lse."""
    return co.check(fn, op="attention", cases=os.path.join(HERE, "optional_outputs.json"), backward=True, **more)


class Torch(unittest.TestCase):
    def test_forward_and_automatic_gradients_pass(self):
        for isolate in ("spawn", "here"):
            report = ask(rms_norm, dtype=[torch.float32, torch.bfloat16, torch.float16], backward=True, isolate=isolate)
            self.assertTrue(report, report)
            self.assertEqual([each.dtype for each in report.checks].count("bf16"), 2)

    def test_an_optional_output_may_be_left_out(self):
        for isolate in ("spawn", "here"):
            report = ask_attention(torch_kernels.attention_and_lse, isolate=isolate)
            self.assertEqual([each.verdict for each in report.checks], ["pass"] * 4, report)
            report = ask_attention(torch_kernels.attention, isolate=isolate)
            self.assertEqual([(each.pass_name, each.verdict) for each in report.checks],
                             [("forward", "pass"), ("forward", "unsupported"), ("backward", "pass"), ("backward", "unsupported")])
            for each in report.checks[1], report.checks[3]:
                self.assertEqual(each.reason, "the function returns o alone; this case asks for lse too")

    def test_a_required_output_may_not_be_left_out(self):
        report = ask_attention(torch_kernels.lse_alone)
        self.assertEqual([each.verdict for each in report.checks], ["fail"] * 4, report)
        for each in report.checks:
            self.assertEqual(each.reason, "the candidate failed: the function returned no 'o', only 'lse'")

    def test_memory_is_observed(self):
        for dtype in ("fp32", "bf16"):
            report = ask(torch_kernels.writes_to_out, dtype=dtype)
            self.assertTrue(report, report)
            self.assertNotIn("not observed", repr(report))
            for sentence, fn in {
                "changed an input: x: 1 element changed, first at index 3": torch_kernels.writes_to_its_input,
                "y[0,1,31]: 1 element was never written": torch_kernels.leaves_out_an_element,
                "output 'y': 1 element changed behind its end, first at +0": torch_kernels.writes_past_out,
            }.items():
                for isolate in ("spawn", "here") if dtype == "fp32" else ("here",):
                    report = ask(fn, dtype=dtype, isolate=isolate)
                    self.assertEqual(report.verdict, "fail", sentence)
                    self.assertIn(sentence, report.checks[0].reason)

    def test_a_wrong_gradient_fails(self):
        report = ask(half_gradient, backward=True)
        self.assertEqual([(each.pass_name, each.verdict) for each in report.checks],
                         [("forward", "pass"), ("backward", "fail")], report)
        with redirect_stderr(io.StringIO()):
            report = ask(without_gradient_of_weight, backward=True)
        self.assertEqual([each.verdict for each in report.checks], ["pass", "fail"])

    def test_gradients_that_can_not_be_taken_are_one_sentence(self):
        for sentence, fn in {
            "no gradient reaches input 'weight': the outputs do not depend on it": lambda x, weight, eps:
                rms_norm(x, weight.detach(), eps),
            "output 'y' has no gradient: it is detached": lambda x, weight, eps: rms_norm(x, weight, eps).detach(),
            "output 'y' has shape [64], expected [1, 2, 32]": lambda x, weight, eps: rms_norm(x, weight, eps).flatten(),
            "the function returned None": lambda x, weight, eps: None,
            "the function writes to 'out', and so has no automatic gradients": torch_kernels.writes_to_out,
        }.items():
            errors = io.StringIO()
            with redirect_stderr(errors):
                report = ask(fn, backward=True)
            self.assertIn("the candidate failed: " + sentence, report.checks[1].reason)
            self.assertEqual(errors.getvalue(), "")

    def test_a_process_that_was_forked_after_cuda_began_is_refused(self):
        with unittest.mock.patch("torch.cuda._is_in_bad_fork", lambda: True):
            with self.assertRaisesRegex(co.InputError, "^this process was forked after CUDA began, and CUDA does not survive"):
                ask(lambda x, weight, eps: rms_norm(x, weight, eps), device="cuda")

    def test_what_can_not_be_judged_is_one_sentence(self):
        for sentence, fn in {
            "output 'y' requires grad, and no input of this pass does": lambda x, weight, eps:
                rms_norm(x, weight, eps) * PARAMETER,
            "output 'y' is not contiguous": lambda x, weight, eps: rms_norm(x, weight, eps).mT.contiguous().mT,
            "its output 'y' is fp32 [1, 2, 31], expected fp32 [1, 2, 32]": lambda x, weight, eps: rms_norm(x, weight, eps)[..., :-1],
            "its output 'y' is fp32 [1, 1, 32], expected fp32 [1, 2, 32]": lambda x, weight, eps: weight.view(1, 1, 32),
            "output 'y' shares memory with input 'x'": lambda x, weight, eps: x.view(1, 2, 32),
            "output 'y' is torch.sparse_coo; return a dense tensor": lambda x, weight, eps: rms_norm(x, weight, eps).to_sparse(),
            "output 'y' is nested; return a dense tensor": lambda x, weight, eps: torch.nested.nested_tensor([weight]),
            "its output 'y' is bool [1, 2, 32], expected fp32": lambda x, weight, eps: rms_norm(x, weight, eps) > 0,
            "output 'y' is a builtins.PyCapsule, expected a torch.Tensor or an object with __dlpack__()": lambda x, weight, eps:
                torch.utils.dlpack.to_dlpack(rms_norm(x, weight, eps)),
            "output 'y' can't be read: TypeError: 'NoneType' object is not callable": lambda x, weight, eps:
                torch_kernels.WithoutDevice(rms_norm(x, weight, eps)),
            "output 'y' is a builtins.float, expected a torch.Tensor": lambda x, weight, eps: float(rms_norm(x, weight, eps)[0, 0, 0]),
            "output 'y' is on meta, and the inputs are on cpu": lambda x, weight, eps: rms_norm(x, weight, eps).to("meta"),
            "its output 'y' is fp64 [1, 2, 32], expected fp32 [1, 2, 32]": lambda x, weight, eps: rms_norm(x, weight, eps).double(),
            "output 'y' has dtype torch.complex64": lambda x, weight, eps: rms_norm(x, weight, eps).to(torch.complex64),
        }.items():
            report = ask(fn)
            self.assertEqual(report.verdict, "fail", sentence)
            self.assertIn("the candidate failed: " + sentence, report.checks[0].reason)

    def test_a_missing_device_is_a_machine_error(self):
        with self.assertRaisesRegex(co.MachineError, "finds no device 'cuda:99'"):
            ask(rms_norm, device="cuda:99")

    def test_other_frameworks_come_through_dlpack(self):
        report = ask(lambda x, weight, eps: some_kernels.right(x.numpy(), weight.numpy(), eps) if torch else None)
        self.assertTrue(report, report)

    def test_the_framework_is_the_one_that_the_code_uses(self):
        self.assertIs(serving.choose_framework(None, [rms_norm]), serving.Torch)
        self.assertIs(serving.choose_framework(None, [some_kernels.right]), serving.NumPy)
        self.assertIs(serving.choose_framework(None, [lambda x: np.exp(x)]), serving.NumPy)
        self.assertIs(serving.choose_framework("numpy", [rms_norm]), serving.NumPy)

    def test_a_registered_operator_is_a_candidate(self):
        self.assertTrue(ask(torch.ops.of_tests.rms_norm, backward=True))
        self.assertTrue(ask(torch.ops.of_tests.rms_norm.default, adapt={"weight": "weight"}))
        self.assertTrue(ask(torch_kernels.MadeByCustomOp(), backward=True))
        with self.assertRaisesRegex(co.InputError, "^isolate: a registered operator of torch has no name to import it by"):
            ask(torch.ops.of_tests.rms_norm, isolate="spawn")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "registers.py"), "w", encoding="utf-8") as file:
                file.write(OPERATORS)
            for words, code, sentence in (
                    (["of_tests::rms_norm", "--op", "rms_norm", "--check-grad"], 0, "rms_norm/backward  rms_norm  fp32"),
                    (["of_tests::rms_norm.default", "--op", "rms_norm"], 0, "rms_norm/forward  rms_norm  fp32"),
                    (["of_tests::scale_", "--op", "silu"], 1, "x the bound"),  # x is written to, and not a formula of silu
                    (["of_tests::detached", "--op", "silu", "--check-grad"], 3, "of_tests::detached has no autograd"),
                    (["of_tests::two", "--op", "silu"], 2, "--torch-op of_tests::two: of_tests.two has the overloads a, b; name one"),
                    (["of_tests::two.c", "--op", "silu"], 2, "'of_tests::two' has no overload 'c'; known: a, b"),
                    (["of_tests::absent", "--op", "silu"], 2, "--torch-op of_tests::absent: torch has no operator 'of_tests::absent'; name the module"),
                    (["silu", "--op", "silu"], 2, "--torch-op silu: 'silu' is no operator's name; write NAMESPACE::NAME"),
                    (["of_tests::rms_norm"], 2, "--torch-op: computes one operator, and --op does not name one"),
                    (["of_tests::rms_norm", "--op", "silu"], 1, "the function needs 'weight', which is neither an input nor"),
                    (["of_tests::rms_norm", "--op", "silu", "--import", "nosuch"], 2, "--import: 'nosuch' can't be imported")):
                done = subprocess.run([os.environ["CHECK_OPERATOR_PROGRAM"], "--torch-op", *words, "--import", "registers", "--device", "cpu"], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
                                      env={**os.environ, "CHECK_OPERATOR_PYTHON": sys.executable})
                self.assertEqual(done.returncode, code, done.stdout)
                self.assertIn(sentence, done.stdout)
                self.assertNotIn("_torch_op.py", done.stdout)

    def test_tensors_are_close(self):
        gold = torch.linspace(-2, 2, 64, dtype=torch.float64).reshape(4, 16)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            co.assert_close(gold.to(dtype), gold, cls="pointwise", contract="assert_close", dtype=dtype)
            wrong = gold.to(dtype)
            wrong[3, 1] = float("nan")
            with self.assertRaisesRegex(co.CheckFailed, r"value\[3,1\] = nan"):
                co.assert_close(wrong, gold, cls="pointwise", contract="assert_close")
        for tensor in (gold.to_sparse(), gold.to("meta")):
            with self.assertRaisesRegex(co.InputError, r"^actual can't be read: \w+: .*; give a dense tensor"):
                co.assert_close(tensor, gold, cls="pointwise", contract="assert_close")
        self.assertEqual(co.magnitude.matmul(gold, gold.mT).dtype, torch.float64)
        co.assert_close(gold.mT.requires_grad_(), gold.mT, cls="exact")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
