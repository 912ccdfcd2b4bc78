# SPDX-License-Identifier: Apache-2.0
"""Candidates by name on the command line: --py with @check_operator.candidate; operators of the caller's own in check().

Usage: candidates_test.py PROGRAM [TEST...]
"""
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "..", "python")
PROGRAM = os.path.abspath(sys.argv[1])
os.environ["CHECK_OPERATOR_PROGRAM"] = PROGRAM
os.environ["CHECK_OPERATOR_PYTHON"] = sys.executable
sys.path[:0] = [PACKAGE]

import check_operator as co
import some_kernels as kernels


def program(*words, cwd=HERE, **environment):
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([PROGRAM, *words], cwd=cwd, env={**plain, **environment}, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)


class Py(unittest.TestCase):
    def test_a_modules_candidates_are_run_for_all_their_operators(self):
        done = program("--py", "decorated_kernels", "--device", "cpu", "--dtype", "fp32,bf16", "--check-grad")
        self.assertEqual(done.returncode, 0, done.stdout)
        for line in ("silu/forward  decorated_kernels  fp32", "silu/backward  decorated_kernels  bf16",
                     "rms_norm/forward  decorated_kernels  bf16"):
            self.assertIn(line, done.stdout)
        self.assertNotIn("rms_norm/backward", done.stdout)  # it has none
        self.assertNotIn("native", done.stdout)  # nor was anybody else asked

    def test_one_function_of_a_file_is_named_by_it(self):
        done = program("run", "--py", os.path.join(HERE, "decorated_kernels.py") + ":silu", "--device", "cpu", cwd="/")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("silu/forward  silu  fp32", done.stdout)

    def test_names_go_by_position(self):
        done = program("--py", "decorated_kernels:silu", "--exec", f"{sys.executable} {PACKAGE}/check_operator/serving.py "
                       f"decorated_kernels:silu --op silu --path {HERE}", "--exec-name", "first,second", "--candidate",
                       "first,second", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stdout)
        for name in ("first", "second"):
            self.assertIn(f"silu/forward  {name}  fp32", done.stdout)

    def test_the_repeat_command_repeats(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "wrong.py"), "w", encoding="utf-8") as file:
                file.write("import check_operator\n@check_operator.candidate(op='silu')\ndef silu(x): return x * 2\n")
            done = program("--py", "wrong", "--device", "cpu", cwd=folder)
            self.assertEqual(done.returncode, 1, done.stdout)
            repeat = next(line.strip() for line in done.stdout.splitlines() if line.strip().startswith("repeat: "))
            words = repeat[len("repeat: "):].replace("check_operator", PROGRAM, 1)
            self.assertEqual(subprocess.run(words, shell=True, capture_output=True, cwd=folder).returncode, 1)

    def test_what_can_not_be_served_is_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, code in {
                "twice": "@co.candidate(op='silu')\ndef a(x): return x\n@co.candidate(op='silu')\ndef b(x): return x\n",
                "plain": "def a(x): return x\n", "breaks": "raise ValueError('no GPU')\n",
                "typo": "@co.candidate(op='sylu')\ndef a(x): return x\n",
                "gradients": "import numpy\n@co.candidate(op='silu', backward=True)\ndef a(x): return numpy.exp(x)\n",
                "no_op": "@co.candidate(op=3)\ndef a(x): return x\n",
            }.items():
                with open(os.path.join(folder, name + ".py"), "w", encoding="utf-8") as file:
                    file.write("import check_operator as co\n" + code)
            for module, sentence in {
                "twice": "'twice' has two candidates for silu: 'a' and 'b'; choose one, such as twice:b",
                "plain": "'plain' registers no candidate; decorate a function with @check_operator.candidate(op=...)",
                "twice:c": "'twice' registers no candidate 'c'; known: a, b",
                "breaks": "'breaks' can't be imported: ValueError: no GPU",
                "nosuch": "'nosuch' can't be imported: ModuleNotFoundError: No module named 'nosuch'",
                "typo": "kernels[0].op: unknown operator 'sylu'; did you mean 'silu'?",
                "gradients": "backward: NumPy has no automatic gradients; give the function that computes them, or none",
                "no_op": "InputError: candidate: op: expected the name of an operator, got 3",
            }.items():
                done = program("--py", module, "--device", "cpu", cwd=folder)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(f"check_operator: --py {module}: ", done.stdout)
                self.assertIn(sentence, done.stdout.splitlines()[-1])
                self.assertNotIn("serving.py", done.stdout)
                self.assertNotIn("importlib", done.stdout)
                self.assertEqual(done.stdout.count("\n") > 1, module in ("breaks", "no_op"))  # their own traceback

    def test_the_decorator_returns_the_function(self):
        def plain(x):
            return x

        self.assertIs(co.candidate(op="silu")(plain), plain)


class Own(unittest.TestCase):
    """check(inputs=, gold=, cls=): an operator that the program does not know."""

    def setUp(self):
        self.a = np.random.default_rng(0).standard_normal((5, 7), np.float32)
        self.question = dict(op="doubling", inputs={"a": self.a}, gold=2 * self.a.astype(np.float64), cls="pointwise")

    def test_right_and_wrong_functions_are_told_apart(self):
        for isolate, right, wrong in (("here", lambda a: 2 * a, lambda a: 2 * a + (a > 1.5)),
                                      ("spawn", kernels.doubles, kernels.trebles)):
            for more in (dict(contract="assert_close"), dict(magnitude=np.abs(2 * self.a.astype(np.float64))),
                         dict(contract="vs_reference", reference=2 * self.a)):
                self.assertTrue(co.check(right, isolate=isolate, **self.question, **more))
                report = co.check(wrong, isolate=isolate, **self.question, **more)
                self.assertEqual(report.verdict, "fail", report)
                self.assertEqual(report.repeat, "")  # the files are gone
                self.assertNotIn("repeat:", repr(report))
                self.assertNotIn("safetensors", repr(report))

    def test_outputs_have_names_and_dtypes(self):
        gold = {"twice": 2 * self.a.astype(np.float64), "sign": np.sign(self.a).astype(np.int64)}
        question = {**self.question, "gold": gold, "contract": "assert_close"}
        self.assertTrue(co.check(lambda a: {"sign": np.sign(a).astype(np.int64), "twice": 2 * a}, **question))
        report = co.check(lambda a: {"sign": np.sign(a), "twice": 2 * a}, **question)
        self.assertIn("its output 'sign' is fp32 [5, 7], expected int64 [5, 7]", report.checks[0].reason)
        half = {**question, "gold": {"y": gold["twice"]}, "dtype": "fp16"}
        self.assertTrue(co.check(lambda a: (2 * a).astype(np.float16), **half))

    def test_given_inputs_of_a_known_operator_have_its_gold(self):
        x, weight = np.ones((1, 2, 32), np.float32) * np.arange(1, 33, dtype=np.float32), np.ones(32, np.float32)
        x[0, 1] += 1
        report = co.check(kernels.right, op="rms_norm", inputs=dict(x=x, weight=weight))
        self.assertTrue(report, report)
        self.assertEqual(co.check(kernels.one_percent_off, op="rms_norm", inputs=dict(x=x, weight=weight)).verdict, "fail")

    def test_a_bad_question_names_its_argument(self):
        for text, more in {
            "cls: is missing; say which rules": dict(cls=None),
            "gold: 'y' is fp32; compute the gold in float64": dict(gold=self.a),
            "inputs: expected a dict of tensors": dict(inputs=[self.a]),
            "inputs: 'a' is complex64; known:": dict(inputs={"a": self.a.astype(np.complex64)}),
            "gold: holds no tensors": dict(gold={}),
            "cls: has no effect without inputs=": dict(inputs=None, gold=None),
            "magnitude: gold has no 'z': it is a tensor alone; give magnitude the structure of gold": dict(magnitude={"z": self.a}),
            "magnitude: 'y' has shape [7], and its gold [5, 7]; give one number for each element of gold": dict(magnitude=self.a[0]),
            "reference: 'y' has shape [1, 7], and its gold [5, 7]; give one number for each element of gold":
                dict(reference=self.a[:1], contract="vs_reference"),
            "attrs: an operator with a gold of its own has none": dict(attrs=dict(eps=1)),
            "backward: inputs= are those of one pass": dict(backward=True),
            "cls: unknown value 'sum'": dict(cls="sum"),
            "magnitude: the contract's bounds for this class follow the sum": dict(),
            "inputs: holds no tensor 'x'; it holds a": dict(op="silu", gold=None, cls=None, magnitude=None),
            "reference: the contract compares with the errors of a trusted implementation": dict(contract="vs_reference"),
            "cls: has no effect without gold=; leave it out": dict(op="silu", inputs={"x": self.a}, gold=None, magnitude=None),
            "magnitude: 'y': holds -1 at index 0, which is no limit": dict(magnitude=np.full_like(self.a, -1, np.float64)),
        }.items():
            with self.assertRaises(co.InputError, msg=text) as caught:
                co.check(lambda **given: 2 * given["a"], **{**self.question, **more})
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
