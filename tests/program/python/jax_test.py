# SPDX-License-Identifier: Apache-2.0
"""The Python package over JAX, and NumPy with the bf16 that comes with JAX. Run by hand or where CTest finds JAX.

Usage: jax_test.py PROGRAM [TEST...]
"""
import os
import sys
import unittest

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["CHECK_OPERATOR_PROGRAM"] = os.path.abspath(sys.argv[1])
sys.path[:0] = [os.path.join(HERE, "..", "..", "..", "python")]

import check_operator as co
import some_kernels


def rms_norm(x, weight, eps):
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale * weight.astype(jnp.float32)).astype(x.dtype)


def half_gradient(x, weight, eps):
    return 0.5 * rms_norm(x, weight, eps) + 0.5 * jax.lax.stop_gradient(rms_norm(x, weight, eps))


def attention_and_lse(q, k, v, causal, scale):
    scores = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool), scores, -jnp.inf)
    return {"o": jax.nn.softmax(scores, -1) @ v, "lse": jax.nn.logsumexp(scores, -1)}


def attention(q, k, v, causal, scale):
    return attention_and_lse(q, k, v, causal, scale)["o"]


def traced(x, weight, eps):
    kept = []
    jax.jit(lambda value: kept.append(value) or value)(x)
    return kept[0]


def deleted(x, weight, eps):
    y = rms_norm(x, weight, eps)
    y.delete()
    return y


def to_ml_dtypes(x, weight, eps):
    return some_kernels.right(x, weight, eps).astype(ml_dtypes.bfloat16)


class Capsule:
    """An array of NumPy by DLPack: `newest` says whether it tells its version and that it can't be written."""

    def __init__(self, array, newest):
        self.array, self.newest = array, newest

    def __dlpack__(self, **_):
        return self.array.__dlpack__(max_version=(1, 0)) if self.newest else self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def sealed(x, weight, eps):
    y = some_kernels.right(x, weight, eps)
    y.flags.writeable = False
    return y


def ask(fn, **more):
    return co.check(fn, **{"op": "rms_norm", "dims": dict(batch=1, seq=2, hidden=32), **more})


class Jax(unittest.TestCase):
    def test_forward_and_automatic_gradients_pass(self):
        for fn in (rms_norm, jax.jit(rms_norm)):
            report = ask(fn, dtype=["fp32", "bf16", "fp16"], backward=True, isolate="here")
            self.assertTrue(report, report)
            self.assertEqual(len(report.checks), 6)

    def test_a_wrong_gradient_fails(self):
        report = ask(half_gradient, backward=True)
        self.assertEqual([each.verdict for each in report.checks], ["pass", "fail"], report)

    def test_an_optional_output_may_be_left_out(self):
        cases = os.path.join(HERE, "optional_outputs.json")
        report = co.check(attention_and_lse, op="attention", cases=cases, backward=True)
        self.assertEqual([each.verdict for each in report.checks], ["pass"] * 4, report)
        report = co.check(attention, op="attention", cases=cases, backward=True)
        self.assertEqual([(each.pass_name, each.verdict) for each in report.checks],
                         [("forward", "pass"), ("forward", "unsupported"), ("backward", "pass"), ("backward", "unsupported")])
        for each in report.checks[1], report.checks[3]:
            self.assertEqual(each.reason, "the function returns o alone; this case asks for lse too")

    def test_what_can_not_be_judged_is_one_sentence(self):
        for sentence, fn in {
            "output 'y' can't be read: TracerArrayConversionError: ": traced,
            "output 'y' can't be read: RuntimeError: Array has been deleted": deleted,
            "output 'y' is a builtins.float, expected a jax.Array": lambda x, weight, eps: float(rms_norm(x, weight, eps)[0, 0, 0]),
            "its output 'y' is fp32 [], expected fp32 [1, 2, 32]": lambda x, weight, eps: jnp.sum(x),
            "output 'y' has dtype complex64": lambda x, weight, eps: rms_norm(x, weight, eps) + 0j,
            "the function takes 'out', and nothing can write to a tensor of JAX": lambda x, weight, eps, out: jnp.sum(x),
        }.items():
            report = ask(fn)
            self.assertEqual(report.verdict, "fail", sentence)
            self.assertIn("the candidate failed: " + sentence, report.checks[0].reason)
            self.assertNotIn("\n", report.checks[0].reason)

    def test_gradients_that_can_not_be_taken_are_one_sentence(self):
        for sentence, fn in {
            "output 'y' has shape [64], expected [1, 2, 32]": lambda x, weight, eps: rms_norm(x, weight, eps).reshape(-1),
            "output 'y' has dtype float64, expected float32": lambda x, weight, eps: rms_norm(x, weight, eps).astype("float64"),
            "output 'y' has no gradient: it is a float, expected a jax.Array": lambda x, weight, eps: 0.5,
            "the function returned None": lambda x, weight, eps: None,
        }.items():
            report = ask(fn, backward=True)
            self.assertIn("the candidate failed: " + sentence, report.checks[1].reason)

    def test_tensors_are_close(self):
        gold = np.linspace(-2, 2, 64).reshape(4, 16)
        for actual in (jnp.asarray(gold, jnp.bfloat16), gold.astype(ml_dtypes.bfloat16)):
            co.assert_close(actual, gold, cls="pointwise", contract="assert_close", dtype="bf16")


class NumPy(unittest.TestCase):
    def test_bf16_of_ml_dtypes_is_bf16(self):
        self.assertTrue(ask(to_ml_dtypes, dtype="bf16"))
        report = ask(to_ml_dtypes, dtype="fp32")
        self.assertIn("its output 'y' is bf16 [1, 2, 32], expected fp32", report.checks[0].reason)

    def test_capsules_of_every_version_are_read(self):
        for newest in (False, True):
            self.assertTrue(ask(lambda x, weight, eps: Capsule(some_kernels.right(x, weight, eps), newest)))
        self.assertTrue(ask(lambda x, weight, eps: Capsule(sealed(x, weight, eps), True) if np else None))
        report = ask(lambda x, weight, eps: Capsule(sealed(x, weight, eps), False) if np else None)
        self.assertIn("output 'y' can't be read: BufferError: ", report.checks[0].reason)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
