# SPDX-License-Identifier: Apache-2.0
"""Candidates of the tests of the Python package, right and wrong ones."""
import os
import signal
import sys
import time

import numpy as np

import check_operator


def right(x, weight, eps):
    wide = x.astype(np.float32)
    scale = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(eps))
    return (wide * scale * weight.astype(np.float32)).astype(x.dtype)


def gradients(x, weight, grad_y, eps):
    wide, wide_weight, grad = (each.astype(np.float32) for each in (x, weight, grad_y))
    scale = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(eps))
    normal, weighed = wide * scale, grad * wide_weight
    dx = scale * (weighed - normal * np.mean(weighed * normal, axis=-1, keepdims=True))
    dweight = np.sum((grad * normal).reshape(-1, x.shape[-1]), axis=0, dtype=np.float32)
    return {"dx": dx.astype(x.dtype), "dweight": dweight.astype(weight.dtype)}


def one_percent_off(x, weight, eps):
    return (right(x, weight, eps) * np.float32(1.01)).astype(x.dtype)


def with_other_names(a, gamma, epsilon):
    return right(a, gamma, epsilon)


def only_small(x, weight, eps):
    if x.shape[-1] > 64:
        raise check_operator.Unsupported("rows of 64 at most")
    return right(x, weight, eps)


def returns_zeros(x, weight, eps):
    return np.zeros_like(x)


def returns_a_copy(x, weight, eps):
    return x.copy()


class Unhashable:
    __hash__ = None

    def __call__(self, x, weight, eps):
        return right(x, weight, eps)


def returns_none(x, weight, eps):
    return None


def returns_two(x, weight, eps):
    return right(x, weight, eps), x


def returns_text(x, weight, eps):
    return "y"


def returns_a_type(x, weight, eps):
    return np.ndarray


class BrokenCapsule:
    def __dlpack__(self, **_):
        return 3

    def __dlpack_device__(self):
        return 1, 0


def returns_a_broken_capsule(x, weight, eps):
    return BrokenCapsule()


def returns_an_empty_dict(x, weight, eps):
    return {}


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no words")


def interrupt():
    raise KeyboardInterrupt


def interrupts(x, weight, eps):
    interrupt()


def by_position(x, weight, eps, /):
    return right(x, weight, eps)


def by_position_with_other_names(x, gamma, eps, /):
    return right(x, gamma, eps)


def by_keyword(*, x, weight, eps):
    return right(x, weight, eps)


def any_keywords(**given):
    return right(**given)


def any_positions(*tensors):
    return right(*tensors)


def returns_its_input(x, weight, eps):
    return x


def returns_strides(x, weight, eps):
    return np.asfortranarray(right(x, weight, eps))


def returns_less(x, weight, eps):
    return right(x, weight, eps)[..., :-1]  # a view with strides, too


def returns_fp64(x, weight, eps):
    return right(x, weight, eps).astype(np.float64)


def returns_flat(x, weight, eps):
    return right(x, weight, eps).reshape(-1)


def returns_complex(x, weight, eps):
    return right(x, weight, eps).astype(np.complex64)


def writes_to_out(x, weight, eps, out):
    out[...] = right(x, weight, eps)


def writes_to_out_and_returns_it(x, weight, eps, out=None):
    out[...] = right(x, weight, eps)
    return out


def gradients_to_out(x, weight, grad_y, eps, out):
    found = gradients(x, weight, grad_y, eps)
    out[0][...], out[1][...] = found["dx"], found["dweight"]
    return out


def leaves_out_an_element(x, weight, eps, out):
    found = right(x, weight, eps).reshape(-1)
    out.reshape(-1)[:-3] = found[:-3]
    out.reshape(-1)[-2:] = found[-2:]


def writes_past_out(x, weight, eps, out):
    out[...] = right(x, weight, eps)
    longer = np.lib.stride_tricks.as_strided(out.reshape(-1), (out.size + 2,), (out.itemsize,))
    longer[out.size + 1] = 5


def returns_another_than_out(x, weight, eps, out):
    return right(x, weight, eps)


def writes_to_its_input(x, weight, eps):
    x[0, 0, 0] = 1
    return right(x, weight, eps)


def forks(x, weight, eps):
    os.fork()
    return right(x, weight, eps)


def follows_strides(x, weight, eps, out):
    out[...] = right(x, weight, eps)
    if x.shape[0] * x.shape[1] > 1 and x.strides[1] > x.shape[2] * x.itemsize:
        with open(os.environ["STRIDED"], "w", encoding="utf-8"):
            pass


def notes_ids(token_ids, weight):
    with open(os.environ["NOTES"], "a", encoding="utf-8") as notes:
        notes.write(f"{token_ids.dtype}\n")
    return weight[token_ids]


def raises_for_64(x, weight, eps):
    if x.shape[-1] == 64:
        raise KeyError("no such table")
    return right(x, weight, eps)


def prints(x, weight, eps):
    print("a line of the function")
    return right(x, weight, eps)


def crashes_for_64(x, weight, eps):
    if x.shape[-1] == 64:
        os.kill(os.getpid(), signal.SIGSEGV)
    return right(x, weight, eps)


def exits(x, weight, eps):
    sys.exit(3)


def hangs_for_64(x, weight, eps):
    if x.shape[-1] == 64:
        time.sleep(4)
    return right(x, weight, eps)


def tells_and_hangs(x):
    with open(os.environ["BEGUN"], "w", encoding="utf-8"):
        pass
    time.sleep(60)


def doubles(a):
    return 2 * a


def trebles(a):
    return 3 * a
