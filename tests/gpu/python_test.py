# SPDX-License-Identifier: Apache-2.0
"""The Python package on a GPU: functions over torch and Triton, whose tensors are memory of check_operator, and definitions.
Needs torch and Triton.

Usage: python_test.py PROGRAM [TEST...]
"""
import os
import subprocess
import sys
import tempfile
import unittest

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..")
PROGRAM = os.path.abspath(sys.argv[1])
os.environ["CHECK_OPERATOR_PROGRAM"] = PROGRAM
os.environ["CHECK_OPERATOR_PYTHON"] = sys.executable
sys.path[:0] = [os.path.join(SOURCE, "python")]

import check_operator as co
import triton_kernels
from check_operator import serving


def rms_norm(x, weight, eps):
    """PyTorch's own, which has gradients."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def ask(fn, **more):
    return co.check(fn, **{"op": "rms_norm", "dtype": "bf16", "dims": dict(batch=1, seq=5, hidden=192), "device": "cuda", **more})


class OnGpu(unittest.TestCase):
    def assert_no_byte_was_copied(self, report):
        self.assertEqual(report.as_dict()["device"]["transport"], "cuda_vmm", report)

    def test_triton_and_torch_compute_in_memory_of_the_judge(self):
        for fn in (triton_kernels.right, triton_kernels.returns, rms_norm):
            report = ask(fn, dtype=["fp32", "bf16", "fp16"], dims=dict(batch=1, seq=5, hidden=[192, 4096]))
            self.assertTrue(report, report)
            self.assertEqual(len(report.checks), 6)
            self.assert_no_byte_was_copied(report)
            self.assertEqual("memory of outputs is not observed" in repr(report), fn is not triton_kernels.right, report)

    def test_gradients_are_judged(self):
        report = ask(rms_norm, backward=True)
        self.assertTrue(report, report)
        self.assertEqual([each.pass_name for each in report.checks], ["forward", "backward"])

    def test_functions_without_a_name_run_here(self):
        report = ask(lambda x, weight, eps: rms_norm(x, weight, eps))
        self.assertTrue(report, report)
        self.assert_no_byte_was_copied(report)

    def test_the_sandbox_leaves_the_gpu_alone(self):
        report = ask(triton_kernels.reaches_out)
        self.assertTrue(report, report)
        self.assert_no_byte_was_copied(report)
        for what, attempt in triton_kernels.try_to_reach_out().items():  # where nothing refuses them they succeed
            with self.subTest(what):
                attempt()

    def test_memory_is_observed(self):
        for fn, sentence in {
            triton_kernels.writes_past_its_output: "output 'y': 1 element changed behind its end, first at +0",
            triton_kernels.leaves_out_the_last_row: "192 elements were never written",
            triton_kernels.writes_to_its_input: "changed an input: x: 1 element changed, first at index 3",
            triton_kernels.computes_on_the_cpu: "output 'y' is on cpu, and the inputs are on cuda:0; return it on their device",
        }.items():
            report = ask(fn)
            self.assertEqual(report.verdict, "fail", report)
            self.assertIn(sentence, report.checks[0].reason)


class Definitions(unittest.TestCase):
    def run_import(self, definition, workload, *words):
        folder = os.path.join(SOURCE, "docs", "definitions")
        at = [os.path.join(folder, each) for each in (definition, workload)]
        words = [os.path.join(folder, each) if each.endswith(".json") else each for each in words]
        done = subprocess.run([PROGRAM, "import", at[0], "--workload", at[1], "--device", "cuda", *words], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_rms_norm(self):
        for solution, expected in {"rmsnorm_torch": 0, "rmsnorm_triton": 0, "rmsnorm_wrong_eps": 1}.items():
            code, text = self.run_import("rmsnorm_h1024.json", "rmsnorm_h1024.jsonl", "--solution", solution + ".json")
            self.assertEqual(code, expected, text)
            self.assertEqual(text.count(f"] rmsnorm_h1024/forward  {solution}  bf16"), 3, text)

    def test_gqa_decode(self):
        with tempfile.TemporaryDirectory() as folder:
            indptr = torch.tensor([0, 17, 18, 145], dtype=torch.int32)
            indices = torch.randperm(160, generator=torch.Generator().manual_seed(0))[:145].to(torch.int32)
            serving.write_safetensors(os.path.join(folder, "gqa_indices.safetensors"), {
                "kv_indptr": ("I32", (4,), indptr.numpy().tobytes()), "kv_indices": ("I32", (145,), indices.numpy().tobytes())})
            for solution in ("gqa_torch", "gqa_triton"):
                code, text = self.run_import("gqa_paged_decode_h8_kv2_d64.json", "gqa_paged_decode_h8_kv2_d64.jsonl", "--root",
                                             folder, "--solution", solution + ".json")
                self.assertEqual(code, 0, text)
                self.assertIn("judged within twice the error of the reference", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
