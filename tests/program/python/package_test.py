# SPDX-License-Identifier: Apache-2.0
"""The Python package with a program that was built: check(), assert_close(), the pytest plugin, and what a wheel holds.

Usage: package_test.py PROGRAM BUILD_DIR [TEST...]
"""
import glob
import importlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from contextlib import redirect_stderr, redirect_stdout

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..", "..")
PACKAGE = os.path.join(SOURCE, "python")
PROGRAM, BUILD = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
os.environ["CHECK_OPERATOR_PROGRAM"] = PROGRAM
os.environ["PYTHONPATH"] = PACKAGE
sys.path[:0] = [PACKAGE]

import check_operator as co
import some_kernels as kernels

SMALL = dict(batch=1, seq=2, hidden=32)
TWO = dict(batch=1, seq=2, hidden=[64, 32])


def ask(fn, **more):
    return co.check(fn, **{"op": "rms_norm", "dims": SMALL, **more})


def python(code, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE, **more)


class Check(unittest.TestCase):
    def test_a_right_function_passes(self):
        for isolate in ("spawn", "here"):
            for dtype in ("fp32", "bf16", np.float16, ["fp32", "bf16"]):
                report = ask(kernels.right, isolate=isolate, dtype=dtype)
                self.assertTrue(report, report)
                self.assertEqual((report.verdict, report.exit_code), ("pass", 0))
                self.assertIs(report.require(), report)
        self.assertGreaterEqual(report.checks[0].headroom, 1)
        self.assertEqual([each.dtype for each in report.checks], ["fp32", "bf16"])

    def test_a_wrong_function_fails_and_is_shown(self):
        for isolate in ("spawn", "here"):
            report = ask(kernels.one_percent_off, isolate=isolate)
            self.assertFalse(report)
            self.assertEqual((report.verdict, report.exit_code), ("fail", 1))
            self.assertRegex(repr(report), r"\[  FAILED  \] rms_norm/forward  one_percent_off(.|\n)*x the bound")
            with self.assertRaisesRegex(co.CheckFailed, "NOT MET y: bound_ratio") as caught:
                report.require()
            self.assertIsInstance(caught.exception, AssertionError)
            self.assertNotIsInstance(caught.exception, co.CheckVacuous)
            self.assertNotIn("[==========]", str(caught.exception))
            self.assertEqual(str(caught.exception).count("[  FAILED  ]"), 1)  # the summary, which names it again, is cut off

    def test_the_repeat_command_repeats(self):
        for isolate in ("spawn", "here"):
            report = ask(kernels.one_percent_off, isolate=isolate)
            self.assertIn("repeat: " + report.repeat, repr(report))
            self.assertNotIn("COMMAND", repr(report))
            command = report.repeat.replace("check_operator", PROGRAM, 1)
            done = subprocess.run(command, shell=True, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("NOT MET y: bound_ratio", done.stdout)

    def test_a_closure_runs_here_and_says_how_to_be_repeated(self):
        factor = np.float32(1.01)
        report = ask(lambda x, weight, eps: (kernels.right(x, weight, eps) * factor).astype(x.dtype))
        self.assertEqual(report.verdict, "fail")
        self.assertEqual(repr(report).splitlines()[-1],
                         "the function lives in this process alone: put it in a module, and COMMAND can start it")
        self.assertIn("--exec COMMAND", report.repeat)
        with self.assertRaisesRegex(co.InputError, "isolate: .*put the function in a module, or use isolate='here'"):
            ask(lambda x: x, isolate="spawn")

    def test_attributes_and_seeds_arrive(self):
        seen = []
        ask(lambda x, weight, eps: seen.append(eps) or kernels.right(x, weight, eps), attrs=dict(eps=0.5), seed=7)
        self.assertEqual(set(seen), {0.5})
        self.assertIn("--seed 7", ask(kernels.right, seed=7).repeat)

    def test_gradients_come_from_a_function_of_their_own(self):
        for isolate in ("spawn", "here"):
            report = ask(kernels.right, backward=kernels.gradients, isolate=isolate)
            self.assertEqual([(each.pass_name, each.verdict) for each in report.checks],
                             [("forward", "pass"), ("backward", "pass")], report)
            with self.assertRaisesRegex(co.InputError, "^backward: NumPy has no automatic gradients; give the function"):
                ask(kernels.right, backward=True, isolate=isolate)

    def test_names_are_adapted(self):
        names = {"x": "a", "weight": "gamma", "eps": "epsilon"}
        for isolate in ("spawn", "here"):
            self.assertTrue(ask(kernels.with_other_names, adapt=names, isolate=isolate))
            with self.assertRaisesRegex(co.InputError, "adapt: 'x' should be passed as 'b', and the function takes only a, "):
                ask(kernels.with_other_names, adapt={**names, "x": "b"}, isolate=isolate)

    def test_a_function_without_an_input_of_every_case_is_refused(self):
        add = "add that parameter, or say with adapt which one it is"
        for sentence, fn, more in (
                ("fn: takes no 'x'; it takes a, gamma, epsilon; adapt={'x': 'a'} passes it as 'a'", kernels.with_other_names, {}),
                ("fn: takes no 'weight'; it takes x, gamma, epsilon; adapt={'weight': 'gamma'} passes it as 'gamma'",
                 kernels.with_other_names, dict(adapt={"x": "a"})),
                ("fn: takes no 'weight'; it takes x, gamma, eps; " + add, lambda x, gamma=None, eps=0: x, {}),
                ("fn: takes no 'x'; it takes *tensors; " + add, kernels.any_positions, {}),
                ("fn: takes no 'x'; it takes no arguments; " + add, kernels.interrupt, {}),
                ("backward: takes no 'grad_y'; it takes x, weight, grad, eps; adapt={'grad_y': 'grad'} passes it as 'grad'",
                 kernels.right, dict(backward=lambda x, weight, grad, eps: x)),
                ("fn: takes no 'b'; it takes a; adapt={'b': 'a'} passes it as 'a'", kernels.doubles,
                 dict(op="mine", dims=None, cls="exact", inputs={"b": np.ones(3)}, gold=np.ones(3)))):
            with self.assertRaises(co.InputError) as caught:
                ask(fn, **more)
            self.assertEqual(str(caught.exception), sentence)

    def test_a_refusal_is_unsupported_and_false(self):
        report = ask(kernels.only_small, dims=dict(batch=1, seq=2, hidden=65))
        self.assertEqual((bool(report), report.verdict, report.exit_code), (False, "unsupported", 3))
        with self.assertRaisesRegex(co.NothingChecked, "rows of 64 at most"):
            report.require()

    def test_contracts_have_names(self):
        self.assertIn("/policies/assert_close.json", ask(kernels.right, contract="assert_close").repeat)
        with self.assertRaisesRegex(co.InputError, "contract: 'nosuch' is neither a file nor a shipped policy; known: abs_or"):
            ask(kernels.right, contract="nosuch")

    def test_questions_that_can_not_be_asked_are_input_errors(self):
        for text, more in {
            "op: unknown operator 'rmsnorm'; did you mean 'rms_norm'": dict(op="rmsnorm"),
            "op: expected the name of an operator, got 'silu,rope'": dict(op="silu,rope"),
            "op: expected the name of an operator, got ''": dict(op=""),
            "dtype: unknown floating-point dtype 'int4'": dict(dtype="int4"),
            "dtype: is empty": dict(dtype=[]),
            "dims: size 'rows': no selected operator has it": dict(dims=dict(rows=4)),
            "dims: 'hidden': expected an integer >= 1, got -1": dict(dims=dict(hidden=-1)),
            "dims: has no effect on cases that come from files; leave it out, or leave out cases= and suite=": dict(suite="smoke"),
            "dims: 'a b' is no size": dict(dims={"a b": 1}),
            "attrs: rms_norm has no 'json'; known: eps": dict(attrs=dict(json=1)),
            "attrs: 'eps' is 'small'; give a number": dict(attrs=dict(eps="small")),
            "attrs: 'eps': expected a finite number > 0, got nan": dict(attrs=dict(eps=float("nan"))),
            "seed: expected at most 18446744073709551615, got 18446744073709551616": dict(seed=2 ** 64),
            "timeout_s: '1.5' is not a number that it takes": dict(timeout_s=1.5),
            "adapt: rms_norm has no 'gamma'; known: eps, x, weight": dict(adapt=dict(gamma="weight")),
            "attrs: expected a dict, got 3": dict(attrs=3),
            "dims: expected a dict, got 3": dict(dims=3),
            "adapt: expected a dict, got 'x'": dict(adapt="x"),
            "backward: expected True, False or a function, got 'auto'": dict(backward="auto"),
            "contract: expected a path or the name of a policy, got int": dict(contract=3),
            "op: expected the name of an operator, got 3": dict(op=3),
            "checks: unknown value '3'": dict(checks=3),
            "suite: no case": dict(suite="nosuch", dims=None),
            "device: unknown device 'tpu'": dict(device="tpu"),
            "checks: unknown value 'speed'": dict(checks="speed"),
            "isolate: unknown value 'fork'": dict(isolate="fork"),
            "name: there is a candidate 'native' already": dict(name="native"),
        }.items():
            with self.assertRaises(co.InputError, msg=text) as caught:
                ask(kernels.right, **more)
            self.assertTrue(str(caught.exception).startswith(text), caught.exception)
        with self.assertRaisesRegex(co.InputError, "fn: expected a function, got int"):
            ask(3)

    def test_a_path_names_a_contract(self):
        path = pathlib.Path(SOURCE, "contracts", "policies", "assert_close.json")
        self.assertIn("/policies/assert_close.json", ask(kernels.right, contract=path).repeat)
        with self.assertRaisesRegex(co.InputError, "^no/such.json: "):
            ask(kernels.right, contract=pathlib.Path("no", "such.json"))

    def test_a_framework_that_can_not_be_imported_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "torch.py"), "w", encoding="utf-8") as file:
                file.write("raise ImportError('libcudart.so.11: cannot open shared object file')\n")
            with open(os.path.join(folder, "uses_torch.py"), "w", encoding="utf-8") as file:
                file.write("import types, sys\ntorch = types.ModuleType('torch')\n"
                           "def f(x): return torch.nn.functional.silu(x)\n")
            for isolate in ("spawn", "here"):
                done = python("import check_operator as co, uses_torch\n"
                              f"co.check(uses_torch.f, op='silu', dims=dict(hidden=4), isolate='{isolate}')",
                              env={**os.environ, "PYTHONPATH": os.pathsep.join([PACKAGE, folder])})
                self.assertEqual(done.stderr.splitlines()[-1], "check_operator.errors.InputError: torch can't be imported: "
                                 "libcudart.so.11: cannot open shared object file; install it, or repair what it lacks")
                self.assertEqual(done.stderr.count("Traceback"), 1, done.stderr)

    def test_numpy_has_no_gpu(self):
        with self.assertRaisesRegex(co.InputError, "^device: NumPy computes on the CPU, and 'cuda:99' was asked for"):
            ask(kernels.right, device="cuda:99")

    def test_a_module_that_checks_itself_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "checks_itself.py"), "w", encoding="utf-8") as file:
                file.write("import check_operator, numpy\ndef f(x): return x / (1 + numpy.exp(-x))\n"
                           "def g(x): return f(x)\nreport = check_operator.check(f, op='silu', dims=dict(hidden=4))\n")
            done = python("import checks_itself", env={**os.environ, "PYTHONPATH": os.pathsep.join([PACKAGE, folder])})
            self.assertIn("InputError: 'checks_itself:f' can't be imported: InputError: check() is called by what "
                          "'checks_itself:f' imports, and would call itself without end", done.stderr)

    def test_a_module_that_can_not_be_imported_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "fails_later.py"), "w", encoding="utf-8") as file:
                file.write("import os\nif 'AGAIN' in os.environ: raise RuntimeError('no GPU today')\ndef f(x): return x\n")
            sys.path.insert(0, folder)
            try:
                module = importlib.import_module("fails_later")
                os.environ["AGAIN"] = "1"
                with self.assertRaisesRegex(co.InputError,
                                            "^'fails_later:f' can't be imported: RuntimeError: no GPU today"):
                    co.check(module.f, op="silu")
            finally:
                sys.path.remove(folder)
                os.environ.pop("AGAIN", None)


class SharedMemory(unittest.TestCase):
    """Tensors lie in memory of the program, which sees what a function does to it."""

    def test_the_report_tells_how_tensors_went(self):
        for isolate in ("spawn", "here"):
            report = ask(kernels.right, isolate=isolate)
            self.assertEqual(report.as_dict()["device"]["transport"], "memfd")
            self.assertEqual(report.as_dict()["candidates"][0]["cases"][0]["memory_unobserved"], "the function returns y")
            self.assertIn("memory of outputs is not observed: the function returns y", repr(report))

    def test_a_function_writes_to_out(self):
        for fn in (kernels.writes_to_out, kernels.writes_to_out_and_returns_it):
            for isolate in ("spawn", "here"):
                report = ask(fn, isolate=isolate, dtype=["fp32", "fp16"])
                self.assertTrue(report, report)
                self.assertNotIn("not observed", repr(report))
        report = ask(kernels.writes_to_out, backward=kernels.gradients_to_out)
        self.assertTrue(report, report)
        self.assertNotIn("not observed", repr(report))

    def test_bf16_outputs_of_numpy_are_copied(self):
        report = ask(kernels.writes_to_out, dtype="bf16")
        self.assertTrue(report, report)
        self.assertIn("memory of outputs is not observed: the function returns y", repr(report))

    def test_an_element_that_is_left_out_is_seen(self):
        report = ask(kernels.leaves_out_an_element)
        self.assertEqual(report.verdict, "fail")
        self.assertIn("y[0,1,29]: 1 element was never written", report.checks[0].reason)

    def test_a_write_past_an_output_is_seen(self):
        report = ask(kernels.writes_past_out)
        self.assertEqual(report.verdict, "fail")
        self.assertIn("output 'y': 1 element changed behind its end, first at +1", report.checks[0].reason)

    def test_a_write_to_an_input_is_refused(self):
        for dtype in ("fp32", "bf16"):
            with redirect_stderr(io.StringIO()):
                report = ask(kernels.writes_to_its_input, dtype=dtype)
            self.assertEqual(report.verdict, "fail")
            self.assertIn("ValueError: assignment destination is read-only", report.checks[0].reason)

    def test_another_tensor_than_out_is_one_sentence(self):
        report = ask(kernels.returns_another_than_out)
        self.assertEqual(report.verdict, "fail")
        self.assertIn("output 'y' is not the one that the function got as out; write to that", report.checks[0].reason)

    def test_a_function_that_forks_answers_once(self):
        for isolate in ("spawn", "here"):
            report = ask(kernels.forks, isolate=isolate)
            self.assertTrue(report, report)

    def test_no_descriptor_is_left(self):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            self.assertTrue(ask(kernels.writes_to_out, isolate="here", checks=["invariance", "determinism", "memory"],
                                dims=dict(batch=2, seq=8, hidden=64)))
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_memory_of_a_large_case_is_given_back(self):
        mapped = []

        def count():
            with open("/proc/self/maps", encoding="utf-8") as maps:
                return sum("memfd:checkop" in line for line in maps)

        def fn(x, weight, eps, out):
            mapped.append((x.shape, count() - before))
            return kernels.writes_to_out_and_returns_it(x, weight, eps, out)

        before = count()  # of tensors that tracebacks of other tests keep
        report = ask(fn, isolate="here", dims=dict(batch=1, seq=[4200, 2], hidden=4096), checks="accuracy")  # 66 MiB each
        self.assertEqual([each.verdict for each in report.checks], ["pass", "pass"], report)
        large, small = ([count for shape, count in mapped if shape[1] == seq] for seq in (4200, 2))
        self.assertEqual((set(large), set(small)), ({4}, {2}))  # weight and x, y, and where the first arena lies; then x, y

    # Functions of a process of its own write to folders of caches that are named, and to no others.
    def test_rows_lie_apart_for_functions_that_say_so(self):
        with tempfile.TemporaryDirectory() as folder:
            for strides in (False, True):
                script, marker = os.path.join(folder, "mine.py"), os.path.join(folder, f"strided{strides}")
                with open(script, "w", encoding="utf-8") as file:
                    file.write(f"import sys\nsys.path.insert(0, {HERE!r})\nimport some_kernels\n"
                               "from check_operator.serving import serve\n"
                               f"serve({{'rms_norm': some_kernels.follows_strides}}, strides={strides})\n")
                done = subprocess.run([PROGRAM, "--op=rms_norm", "--pass=forward", "--batch=2", "--seq=8", "--hidden=64",
                                       "--exec", f"{sys.executable} {script}", "--candidate=exec", "--check=invariance"],
                                      capture_output=True, text=True,
                                      env={**os.environ, "STRIDED": marker, "TRITON_CACHE_DIR": folder})
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(os.path.exists(marker), strides)

    def test_ids_are_of_the_other_type_for_functions_that_say_so(self):
        declined = {}
        with tempfile.TemporaryDirectory() as folder:
            for any_ids, types in ((False, {"int64"}), (True, {"int32", "int64"})):
                script, notes = os.path.join(folder, "mine.py"), os.path.join(folder, f"types{any_ids}")
                with open(script, "w", encoding="utf-8") as file:
                    file.write(f"import sys\nsys.path.insert(0, {HERE!r})\nimport some_kernels\n"
                               "from check_operator.serving import serve\n"
                               f"serve({{'embedding': some_kernels.notes_ids}}, any_ids={any_ids})\n")
                done = subprocess.run([PROGRAM, "--op=embedding", "--pass=forward", "--batch=2", "--seq=8", "--hidden=64",
                                       "--vocab=50", "--exec", f"{sys.executable} {script}", "--candidate=exec",
                                       "--check=determinism"],
                                      capture_output=True, text=True,
                                      env={**os.environ, "NOTES": notes, "TRITON_CACHE_DIR": folder})
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                with open(notes, encoding="utf-8") as file:
                    self.assertEqual(set(file.read().split()), types)
                declined[any_ids] = int(re.search(r"not compared: layout (\d+) of", done.stdout)[1])
        self.assertEqual(declined[False], declined[True] + 1)  # those with strides are declined in both runs

    def test_a_process_without_the_socket_gets_files(self):
        command = f"env -u CHECK_OPERATOR_FD {sys.executable} {SOURCE}/docs/exec/rms_norm_numpy.py"
        done = subprocess.run([PROGRAM, "--op=rms_norm", "--pass=forward", "--batch=1", "--seq=2", "--hidden=64", "--exec",
                               command, "--candidate=exec"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("tensors by files; CHECK_OPERATOR_FD names no socket of this process", done.stdout)
        self.assertIn("memory of outputs is not observed: tensors go through files", done.stdout)


class BadResults(unittest.TestCase):
    """One sentence for each, and the other cases go on."""

    SENTENCES = {
        kernels.returns_none: "the function returned None; return 'y'",
        kernels.returns_two: "the function returned 2 outputs, expected 1: 'y'",
        kernels.returns_text: "output 'y' is a builtins.str, expected a numpy.ndarray or an object with __dlpack__()",
        kernels.returns_a_type: "output 'y' is a builtins.type, expected a numpy.ndarray or an object with __dlpack__()",
        kernels.returns_a_broken_capsule: "output 'y' can't be read: ValueError: PyCapsule_GetPointer called with invalid "
                                          "PyCapsule object",
        kernels.returns_an_empty_dict: "the function returned no 'y', only an empty dict",
        kernels.returns_its_input: "output 'y' shares memory with input 'x'; return a tensor of its own",
        kernels.returns_strides: "output 'y' is not contiguous; return a contiguous copy",
        kernels.returns_less: "its output 'y' is fp32 [1, 2, 31], expected fp32 [1, 2, 32]",
        kernels.returns_fp64: "its output 'y' is fp64 [1, 2, 32], expected fp32 [1, 2, 32]",
        kernels.returns_flat: "its output 'y' is fp32 [64], expected fp32 [1, 2, 32]",
        kernels.returns_complex: "output 'y' has dtype complex64, which no operator has",
    }

    def test_each_is_one_sentence(self):
        for fn, sentence in self.SENTENCES.items():
            errors = io.StringIO()
            with redirect_stderr(errors):
                report = ask(fn, isolate="here")
            self.assertEqual(report.verdict, "fail", fn)
            self.assertEqual(report.checks[0].reason, "the candidate failed: " + sentence)
            self.assertEqual(errors.getvalue(), "")

    def test_an_exception_has_the_traceback_of_the_function_alone(self):
        for isolate in ("spawn", "here"):
            errors = io.StringIO()
            with redirect_stderr(errors):
                report = ask(kernels.raises_for_64, dims=TWO, isolate=isolate)
            self.assertEqual([each.verdict for each in report.checks], ["fail", "pass"])
            self.assertIn("the candidate failed: KeyError: 'no such table'", report.checks[0].reason)
            self.assertIn("some_kernels.py", errors.getvalue())
            self.assertNotIn("serving.py", errors.getvalue())

    def test_whatever_an_exception_is_it_is_one_sentence(self):
        for sentence, error in {"RuntimeError": RuntimeError(), "ValueError: a | b": ValueError("a\n\n b"),
                                "ValueError: \u2603 ?": ValueError("\u2603 \ud800"), "Unspeakable": kernels.Unspeakable(),
                                "GeneratorExit: stop": GeneratorExit("stop")}.items():
            def fn(x, weight, eps):
                raise error
            with redirect_stderr(io.StringIO()):
                report = ask(fn)
            self.assertEqual([each.reason for each in report.checks], ["the candidate failed: " + sentence])
        with self.assertRaises(KeyboardInterrupt):
            ask(lambda x, weight, eps: kernels.interrupt())
        with redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(ask(kernels.interrupts).checks[0].verdict, "error")
        self.assertNotIn("Traceback", errors.getvalue())

    def test_functions_are_called_as_they_can_be(self):
        for fn in (kernels.by_position, kernels.by_keyword, kernels.any_keywords):
            report = ask(fn)
            self.assertTrue(report, report)
        self.assertTrue(ask(kernels.by_position_with_other_names, adapt={"weight": "gamma"}))

    def test_a_crash_is_an_error_with_its_signal(self):
        report = ask(kernels.crashes_for_64, dims=TWO)
        self.assertEqual([each.verdict for each in report.checks], ["error", "pass"])
        self.assertEqual((report.verdict, report.exit_code), ("error", 4))
        with self.assertRaisesRegex(co.CandidateError, "killed by signal 11"):
            report.require()

    def test_an_exit_ends_the_process_or_the_check(self):
        self.assertIn("exited with code 3", ask(kernels.exits).checks[0].reason)
        self.assertIn("SystemExit: 3", ask(kernels.exits, isolate="here").checks[0].reason)

    def test_a_hang_is_a_timeout(self):
        for isolate in ("spawn", "here"):
            report = ask(kernels.hangs_for_64, dims=TWO, timeout_s=2, isolate=isolate)
            self.assertEqual([each.verdict for each in report.checks], ["timeout", "pass"], report)
            with self.assertRaises(co.CandidateTimeout):
                report.require()

    def test_late_answers_are_dropped(self):
        """A judge that starts a worker asks again over the socket; answers to the earlier one are not taken for its own."""
        left, right = socket.socketpair()
        judge = subprocess.Popen([PROGRAM, "run", "--op=silu", "--dim=hidden=4", "--device=cpu", "--candidate=f",
                                  "--exec-name=f", f"--exec-fd={right.fileno()}"], pass_fds=[right.fileno()],
                                 stdout=subprocess.PIPE, text=True)
        right.close()
        with left, left.makefile("r") as lines, left.makefile("w") as answers:
            for line in lines:
                kind, request = next(iter(json.loads(line).items()))
                answer = {"protocol": 1, "device": {"kind": "cpu"}, "kernels": [{"op": "silu", "pass": "forward"}]} \
                    if kind == "hello" else {"status": "failed", "message": "mine"}
                late = [{**answer, "id": request["id"] - 1000, "kernels": []} if kind == "hello" else
                        {"id": request["id"] - 1000, "status": "ok"}, {"error": "late", "id": 1}]
                for each in [*late, {**answer, "id": request["id"]}]:
                    answers.write(json.dumps(each) + "\n")
                answers.flush()
        out, _ = judge.communicate()
        self.assertEqual(judge.returncode, 1, out)
        self.assertIn("the candidate failed: mine", out)

    def test_what_a_function_prints_is_shown(self):
        errors = io.StringIO()
        with redirect_stderr(errors):
            self.assertTrue(ask(kernels.prints))
        self.assertIn("a line of the function", errors.getvalue())
        out = io.StringIO()
        with redirect_stdout(out):
            self.assertTrue(ask(kernels.prints, isolate="here"))
        self.assertIn("a line of the function", out.getvalue())

    def test_ctrl_c_ends_everything(self):
        """Of a terminal, which all processes get, or sent to this process alone; and no file is left."""
        here = "def f(x):\n    open(os.environ['BEGUN'], 'w'); time.sleep(60)\n"
        spawn = "from some_kernels import tells_and_hangs as f\n"
        for fn, send in ((here, os.killpg), (spawn, os.killpg), (spawn, os.kill)):
            with tempfile.TemporaryDirectory() as folder:
                scratch, begun = os.path.join(folder, "scratch"), os.path.join(folder, "begun")
                os.mkdir(scratch)
                code = ("import check_operator as co, os, sys, time\n" + fn +
                        "co.check(f, op='silu', dims=dict(batch=1, seq=2, hidden=4))\n")
                process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd=HERE,
                                           start_new_session=True, env={**os.environ, "TMPDIR": scratch, "BEGUN": begun,
                                                                        "TRITON_CACHE_DIR": folder},
                                           # Heeds Ctrl-C even where these tests run in the background.
                                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
                wait_until(lambda: os.path.exists(begun))
                send(process.pid, signal.SIGINT)
                _, errors = process.communicate(timeout=30)
                self.assertIn("KeyboardInterrupt", errors)
                wait_until(lambda: not group_lives(process.pid))
                self.assertEqual(os.listdir(scratch), [])


def wait_until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError("waited for half a minute")
        time.sleep(0.02)


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Reports(unittest.TestCase):
    def test_every_form_is_saved(self):
        report = ask(kernels.one_percent_off)
        with tempfile.TemporaryDirectory() as folder:
            for suffix, text in ((".json", '"exit_code": 1'), (".html", "<!DOCTYPE html>"), (".md", "one_percent_off"),
                                 (".xml", "<testsuite")):
                path = os.path.join(folder, "report" + suffix)
                report.save(path)
                with open(path, encoding="utf-8") as file:
                    self.assertIn(text, file.read())
            with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file), report.as_dict())
            with self.assertRaisesRegex(co.InputError, "save: '.*report.txt' has none of the suffixes"):
                report.save(os.path.join(folder, "report.txt"))

    def test_notebooks_get_the_page_in_a_frame(self):
        page = ask(kernels.right)._repr_html_()
        self.assertTrue(page.startswith("<iframe sandbox="))
        self.assertIn("&lt;!DOCTYPE html&gt;", page)
        self.assertEqual(page.count("<"), 2)  # the frame alone

    def test_a_report_is_a_copy(self):
        report = ask(kernels.right)
        report.as_dict()["exit_code"] = 1
        self.assertTrue(report)


class AssertClose(unittest.TestCase):
    def setUp(self):
        rng = np.random.default_rng(0)
        self.a, self.b = rng.standard_normal((8, 64), np.float32), rng.standard_normal((64, 8), np.float32)
        self.gold = self.a.astype(np.float64) @ self.b.astype(np.float64)
        self.got = self.a @ self.b
        self.sums = dict(cls="contraction", terms=64, magnitude=co.magnitude.matmul(self.a, self.b))
        self.plain = dict(cls="pointwise", contract="assert_close")

    def test_what_is_close_passes(self):
        self.assertIsNone(co.assert_close(self.got, self.gold, **self.sums))
        self.assertIsNone(co.assert_close(self.got, self.gold, **self.plain))
        self.assertIsNone(co.assert_close(np.arange(5), np.arange(5), cls="exact"))
        self.assertIsNone(co.assert_close([self.got, {"x": self.got}], (self.gold, {"x": self.gold}), **self.plain))

    def test_longer_sums_may_err_more(self):
        signs = np.random.default_rng(2).choice([-1, 1], self.gold.shape)
        got = (self.gold + signs * 16 * 2.0**-24 * self.sums["magnitude"]).astype(np.float32)
        self.assertIsNone(co.assert_close(got, self.gold, **self.sums))
        for terms in (None, 1):
            with self.assertRaises(co.CheckFailed):
                co.assert_close(got, self.gold, **{**self.sums, "terms": terms})

    def test_what_is_not_fails(self):
        wrong = self.got.copy()
        wrong[2, 3] += 0.5
        for more in (self.sums, self.plain):
            with self.assertRaisesRegex(co.CheckFailed, r"value\[2,3\] = (.|\n)*1 of 64 out of bound") as caught:
                co.assert_close(wrong, self.gold, **more)
            self.assertNotIn("repeat:", str(caught.exception))  # its files are gone
        with self.assertRaisesRegex(co.CheckFailed, r"x\.1\[2,3\]"):
            co.assert_close({"x": [self.got, wrong]}, {"x": [self.gold, self.gold]}, **self.plain)
        with self.assertRaises(co.CheckFailed):
            co.assert_close(np.arange(5), np.arange(5) + 1, cls="exact")

    def test_nan_fails(self):
        self.got[0, 0] = np.nan
        for more in (self.sums, self.plain):
            with self.assertRaisesRegex(co.CheckFailed, "^mine\n(.|\n)*not finite where the gold is"):
                co.assert_close(self.got, self.gold, msg="mine", **more)
            with self.assertRaisesRegex(co.CheckFailed, "^mine: .*FAILED"):
                co.assert_close(self.got, self.gold, msg=lambda text: "mine: " + text, **more)

    def test_shapes_and_names_must_agree(self):
        with self.assertRaisesRegex(co.CheckFailed, r"has shape \[3, 8\], its gold \[8, 8\]"):
            co.assert_close(self.got[:3], self.gold, **self.plain)
        with self.assertRaisesRegex(co.CheckFailed, "^actual: 'value' is fp32, and dtype says bf16"):
            co.assert_close(self.got, self.gold, dtype="bf16", **self.plain)
        many = {f"p{i}": self.gold for i in range(10)}
        for sentence, got, gold in (
                ("gold has no 'z': actual holds 'y', 'z', and gold holds 'y'", {"y": self.got, "z": self.got}, {"y": self.gold}),
                ("actual has no 'z': actual holds 'y', and gold holds 'y', 'z'", {"y": self.got}, {"y": self.gold, "z": self.gold}),
                ("gold has no 'a': actual holds 'a', and gold holds 'b'", {"a": self.got}, {"b": self.gold}),
                ("gold has no '0': actual holds '0', and gold is a tensor alone", (self.got,), self.gold),
                ("gold has no 'value': actual is a tensor alone, and gold holds 'x.0', 'x.1.y'", self.got,
                 {"x": [self.gold, {"y": self.gold}]}),
                ("gold has no 'a': actual holds 'a', and gold holds no tensors", {"a": self.got}, {}),
                ("gold has no 'a': actual holds 'a', and gold holds 'p0', 'p1', 'p2', 'p3', 'p4', 'p5', 'p6', 'p7' and 2 more",
                 {"a": self.got}, many)):
            with self.assertRaises(co.CheckFailed) as caught:
                co.assert_close(got, gold, msg="mine", **self.plain)
            self.assertEqual(str(caught.exception), f"mine\n{sentence}; give both the same structure")

    def test_nothing_to_compare_is_vacuous(self):
        for got, gold in (({}, {}), (self.got[:0], self.gold[:0])):
            with self.assertRaisesRegex(co.CheckVacuous, "nothing was compared"):
                co.assert_close(got, gold, **self.plain)

    def test_a_bad_question_names_its_argument(self):
        for text, kind, more in (
                ("takes no rtol=; the contract sets the bounds", TypeError, dict(rtol=1e-3)),
                ("takes no colour=$", TypeError, dict(colour=1)),
                ("^magnitude: the contract's bounds for this class follow", co.InputError, dict(magnitude=None)),
                ("^magnitude: gold has no 'x': it is a tensor alone; give magnitude the structure of gold$", co.InputError,
                 dict(magnitude={"x": self.gold})),
                (r"^magnitude: 'value' has shape \[8\], and its gold \[8, 8\]; give one number for each element of gold$",
                 co.InputError, dict(magnitude=self.sums["magnitude"][0])),
                (r"^rounding: 'value' has shape \[\], and its gold \[8, 8\]; give one number for each element of gold$",
                 co.InputError, dict(rounding=np.float64(3))),
                ("^cls: unknown value 'sum'", co.InputError, dict(cls="sum")),
                ("^terms: expected 1 or more, got 0", co.InputError, dict(terms=0)),
                ("^terms: 'x' is not a number", co.InputError, dict(terms="x")),
                ("^dtype: unknown dtype 'fp8'; known: fp64", co.InputError, dict(dtype="fp8")),
                ("^magnitude: 'value': holds -1 at index 0, which is no limit", co.InputError, dict(magnitude=-np.ones((8, 8)))),
                ("^contract: compares with the errors of a trusted implementation", co.InputError, dict(contract="vs_reference")),
                ("^magnitude is a str, expected a tensor", co.InputError, dict(magnitude="much"))):
            with self.assertRaisesRegex(kind, text):
                co.assert_close(self.got, self.gold, **{**self.sums, **more})
        with self.assertRaisesRegex(co.InputError, "^gold: 'value' is fp32; compute the gold in float64"):
            co.assert_close(self.got, self.got, **self.sums)
        with self.assertRaisesRegex(co.InputError, "^actual is complex64; known: float64"):
            co.assert_close(self.got.astype(np.complex64), self.gold, **self.sums)

    def test_it_says_what_compare_says(self):
        """Of random tensors, right and wrong ones, with files that are written here."""
        rng = np.random.default_rng(1)
        verdicts = set()
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(20):
                shape = tuple(rng.integers(1, 9, rng.integers(1, 4)).tolist())
                gold = rng.standard_normal(shape)
                got = (gold + rng.choice([0, 1e-6, 1e-3]) * rng.standard_normal(shape)).astype(np.float32)
                paths = [os.path.join(folder, each) for each in ("a", "b")]
                co.serving.write_safetensors(paths[0], {"value": ("F32", shape, got.tobytes())})
                co.serving.write_safetensors(paths[1], {"value": ("F64", shape, gold.tobytes())})
                policy = os.path.join(SOURCE, "contracts", "policies", "assert_close.json")
                said = subprocess.run([PROGRAM, "compare", *paths, "--class", "pointwise", "--contract", policy],
                                      capture_output=True).returncode
                try:
                    co.assert_close(got, gold, **self.plain)
                    here = 0
                except co.CheckFailed:
                    here = 1
                self.assertEqual(here, said, (got, gold))
                verdicts.add(here)
        self.assertEqual(verdicts, {0, 1})

    def test_magnitudes_are_sums_of_absolute_values(self):
        np.testing.assert_array_equal(co.magnitude.matmul([[1, -2]], [[3], [-4]]), [[11]])
        np.testing.assert_array_equal(co.magnitude.sum(np.array([[1, -2], [3, -4]]), 1), [3, 7])
        self.assertEqual(co.magnitude.sum([-1, 2]), 3)


TESTS = """
import pytest
import some_kernels as kernels

SMALL = dict(batch=[1, 2], seq=2, hidden=32)
rms_norm = lambda **more: pytest.mark.check_operator(**{"op": "rms_norm", "dtype": "bf16", "dims": SMALL, **more})

@rms_norm()
def test_right(candidate):
    assert candidate.check(kernels.right).verdict == "pass"

@rms_norm(dims=dict(batch=1, seq=2, hidden=32))
def test_wrong(candidate):
    candidate.check(kernels.one_percent_off)

@rms_norm(dims=dict(batch=1, seq=2, hidden=[32, 65]))
def test_small(candidate):
    candidate.check(kernels.only_small)

@rms_norm(dims=dict(batch=1, seq=2, hidden=32), backward=True)
def test_gradients(candidate):
    candidate.check(kernels.right, backward=kernels.gradients)
"""
IDS = ["test_right[rms_norm-forward-bf16-1x2x32]", "test_right[rms_norm-forward-bf16-2x2x32]",
       "test_wrong[rms_norm-forward-bf16-1x2x32]", "test_small[rms_norm-forward-bf16-1x2x32]",
       "test_small[rms_norm-forward-bf16-1x2x65]", "test_gradients[rms_norm-forward-bf16-1x2x32]",
       "test_gradients[rms_norm-backward-bf16-1x2x32]"]


class Plugin(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def pytest(self, *arguments, tests=TESTS):
        with open(os.path.join(self.folder, "test_it.py"), "w", encoding="utf-8") as file:
            file.write(tests)
        path, scratch = os.pathsep.join([PACKAGE, HERE]), os.path.join(self.folder, "tmp")
        os.makedirs(scratch, exist_ok=True)
        done = subprocess.run([sys.executable, "-m", "pytest", "-p", "check_operator.pytest_plugin", "-p", "no:cacheprovider",
                               "-rA", *arguments], cwd=self.folder, env={**os.environ, "PYTHONPATH": path, "TMPDIR": scratch},
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def outcomes(self, text):
        return {name: word for word, name in re.findall(r"^(PASSED|FAILED|ERROR) test_it\.py::(\S+)", text, flags=re.M)}

    def test_items_end_as_their_verdicts_say(self):
        code, text = self.pytest()
        self.assertEqual(code, 1, text)
        found = self.outcomes(text)
        self.assertEqual({name for name, word in found.items() if word == "FAILED"}, {IDS[2]}, text)
        self.assertEqual({name for name, word in found.items() if word == "PASSED"}, set(IDS) - {IDS[2], IDS[4]}, text)
        self.assertRegex(text, r"SKIPPED \[1\].*rows of 64 at most")
        self.assertRegex(text, r"\[  FAILED  \] rms_norm/forward  one_percent_off")
        self.assertNotIn("Traceback", text)
        self.assertNotIn("pytest_plugin.py", re.sub("SKIPPED .*", "", text))

    def test_a_case_of_zeros_is_judged_among_the_others(self):
        cases = {"format": "check_operator/cases-1", "cases": [
            {"op": "rms_norm", "dtype": "fp32", "dims": {"batch": 1, "seq": 2, "hidden": 32}, **data, "suites": ["mine"]}
            for data in ({}, {"input_mode": "constant", "constant_value": 0},
                         {"dims": {"batch": 1, "seq": 2, "hidden": 64}}, {"dims": {"batch": 0, "seq": 2, "hidden": 32}})]}
        for name, chosen in (("cases.json", cases), ("zeros.json", {**cases, "cases": cases["cases"][1:2]})):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                json.dump(chosen, file)
        code, text = self.pytest(tests="""
import pytest
import some_kernels as kernels

@pytest.mark.check_operator(op="rms_norm", cases="cases.json")
def test_right(candidate):
    report = candidate.check(kernels.raises_for_64)
    assert (report.exit_code, len(report.checks)) == (0, 1)

@pytest.mark.check_operator(op="rms_norm", cases="zeros.json")
def test_zeros(candidate):
    candidate.check(kernels.right)

@pytest.mark.check_operator(op="rms_norm", cases="cases.json")
def test_returns_zeros(candidate):
    candidate.check(kernels.returns_zeros)

@pytest.mark.check_operator(op="rms_norm", cases="cases.json")
def test_copies(candidate):
    candidate.check(kernels.returns_a_copy)

@pytest.mark.check_operator(op="rms_norm", cases="cases.json")
def test_unhashable(candidate):
    candidate.check(kernels.Unhashable(), isolate="here", name="unhashable")
""")
        normal, zeros, wide, empty = (f"[rms_norm-forward-fp32-{each}]" for each in
                                      ("1x2x32", "1x2x32~constant0t0", "1x2x64", "0x2x32"))
        # An empty case asks for a launch alone: nothing is computed there, and a function of zeros can't be told.
        self.assertEqual(self.outcomes(text), {
            "test_right" + normal: "PASSED", "test_right" + zeros: "PASSED", "test_right" + wide: "FAILED",
            "test_right" + empty: "PASSED", "test_zeros" + zeros: "FAILED", "test_returns_zeros" + normal: "FAILED",
            "test_returns_zeros" + zeros: "FAILED", "test_returns_zeros" + wide: "FAILED",
            "test_returns_zeros" + empty: "PASSED", "test_copies" + normal: "FAILED", "test_copies" + zeros: "FAILED",
            "test_copies" + wide: "FAILED", "test_copies" + empty: "PASSED", "test_unhashable" + normal: "PASSED",
            "test_unhashable" + zeros: "PASSED", "test_unhashable" + wide: "PASSED", "test_unhashable" + empty: "PASSED"},
                         text)
        self.assertIn("[ VACUOUS  ]", text)

    def test_strict_fails_what_is_unsupported(self):
        code, text = self.pytest("--check-operator-strict", "-k", "small")
        self.assertEqual(code, 1, text)
        self.assertEqual(self.outcomes(text), {IDS[3]: "PASSED", IDS[4]: "FAILED"}, text)

    def test_cases_are_chosen_by_name(self):
        code, text = self.pytest("-k", "right and 2x2x32")
        self.assertEqual((code, self.outcomes(text)), (0, {IDS[1]: "PASSED"}), text)

    def test_xdist_deals_out_the_same_items_and_one_report_holds_all(self):
        for arguments in ((), ("-n", "2")):
            path = os.path.join(self.folder, "all.json")
            code, text = self.pytest("--check-operator-report", path, *arguments)
            self.assertEqual(code, 1, text)
            self.assertEqual(set(self.outcomes(text)), set(IDS) - {IDS[4]}, text)
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            cases = [case for each in report["candidates"] for case in each["cases"]]
            self.assertEqual(len(cases), 7)
            self.assertEqual((report["planned"], report["exit_code"], report["passed"]), (7, 1, False))
            page = os.path.join(self.folder, "page.html")
            self.assertEqual(subprocess.run([PROGRAM, "report", path, "--html", page], capture_output=True).returncode, 0)
            self.assertEqual(glob.glob(os.path.join(self.folder, "tmp", "check_operator.*")), [])
            os.unlink(path)

    def test_a_report_that_can_not_be_written_is_refused_at_once(self):
        for path, text in (("report.txt", "'report.txt' has none of the suffixes .json, .html"),
                           ("nosuch/report.json", "'nosuch/report.json' can't be written: there is no folder"),
                           (".json", "'.json' has none of the suffixes")):
            code, said = self.pytest("--check-operator-report", path)
            self.assertEqual(code, 4, said)
            self.assertIn("ERROR: --check-operator-report: " + text, said)
            self.assertEqual(self.outcomes(said), {})
            self.assertNotIn("Traceback", said)

    def test_junit_has_the_verdict_and_the_command(self):
        path = os.path.join(self.folder, "junit.xml")
        self.pytest("--junitxml", path, "-k", "wrong")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for name in ("verdict", "repeat", "headroom", "worst_gate"):
            self.assertIn(f'name="check_operator.{name}"', text)

    def test_bad_markers_are_one_line(self):
        for line, tests in {
            "the fixture 'candidate' needs @pytest.mark.check_operator": "def test_x(candidate): pass",
            "pytest.mark.check_operator: takes .* by name, got colour":
                "import pytest\n@pytest.mark.check_operator(op='silu', colour=1)\ndef test_x(candidate): pass",
            "pytest.mark.check_operator: names no operator":
                "import pytest\n@pytest.mark.check_operator(dtype='bf16')\ndef test_x(candidate): pass",
            "op: unknown operator 'sylu'; did you mean 'silu'":
                "import pytest\n@pytest.mark.check_operator(op='sylu')\ndef test_x(candidate): pass",
            "backward: expected True or False, got 'yes'":
                "import pytest\n@pytest.mark.check_operator(op='silu', backward='yes')\ndef test_x(candidate): pass",
        }.items():
            code, text = self.pytest(tests=tests)
            self.assertEqual(code, 2, text)
            self.assertRegex(text, f"test_it.py::test_x: {line}")
            self.assertNotIn("_hooks.py", text)

    def test_a_test_that_checks_nothing_fails(self):
        bodies = dict(x="pass", y="candidate.check(None)", v="candidate.check(len, backward=len)",
                      w="candidate.check(len, backward=True)", u="candidate.check(len, backward='auto')",
                      z="pytest.skip('not here')")  # the last one is not blamed
        code, text = self.pytest(tests="import pytest\n" + "".join(
            f"@pytest.mark.check_operator(op='silu', dims=dict(hidden=8))\ndef test_{name}(candidate): {body}\n"
            for name, body in bodies.items()))
        self.assertEqual(code, 1, text)
        self.assertIn("check_operator: the test checked nothing; call candidate.check(function)", text)
        self.assertIn("check_operator: fn: expected a function, got NoneType", text)
        self.assertNotIn("During handling", text)
        self.assertEqual(text.count("check_operator: backward: has no effect, since the marker asks for no backward pass; put "
                                    "backward=True into pytest.mark.check_operator, too\n"), 2, text)
        self.assertIn("check_operator: backward: expected True or a function that computes the gradients, got 'auto'", text)
        self.assertRegex(text, "5 failed, 1 skipped")

    def test_a_marked_test_without_the_fixture_fails(self):
        code, text = self.pytest(tests="""
import pytest, unittest
silu = pytest.mark.check_operator(op="silu", dims=dict(hidden=8))

@silu
def test_alone(): pass

@silu
@pytest.mark.parametrize("candidate", [3])
def test_own(candidate): pass

@silu
class TestMarked:
    def test_method(self): pass
    def test_fails_before(self): assert 2 == 3
    def test_skips(self): pytest.skip("not here")

class TestCase(unittest.TestCase):
    @silu
    def test_case(self): pass

@pytest.fixture
def other(candidate): return candidate

@silu
def test_indirect(other): other.check(lambda **given: given["x"], isolate="here")

def test_plain(): pass
""")
        self.assertEqual(code, 1, text)
        for name in ("test_alone", "test_own[3]", "TestMarked.test_method", "TestCase.test_case"):
            self.assertRegex(text, f"_ {re.escape(name)} _+\ncheck_operator: the test has pytest.mark.check_operator and not the "
                                   "plugin's fixture 'candidate', so that it checked nothing; add the parameter candidate and call "
                                   r"candidate.check\(function\), or take the marker away\n")
        self.assertIn("FAILED test_it.py::TestMarked::test_fails_before - assert 2 == 3", text)
        self.assertIn("the candidate failed: output 'y' shares memory with input 'x'", text)
        self.assertRegex(text, "6 failed, 1 passed, 1 skipped")

    def test_a_parameter_of_another_name_fails_and_a_refusal_is_skipped(self):
        code, text = self.pytest(tests="""
import numpy, pytest
import check_operator
silu = pytest.mark.check_operator(op="silu", dims=dict(hidden=8))

def right(x): return x / (1 + numpy.exp(-x))
def other(inp): return right(inp)
def no_default(inp=None): return right(inp)
def declines(x): raise NotImplementedError("not today")
def refuses(x): raise check_operator.Unsupported("not here")

@pytest.mark.parametrize("isolate", ["spawn", "here"])
@pytest.mark.parametrize("function", [right, other, no_default, declines, refuses])
@silu
def test_it(candidate, function, isolate):
    candidate.check(function, isolate=isolate)
""")
        self.assertEqual(code, 1, text)
        self.assertEqual(text.count("check_operator: fn: takes no 'x'; it takes inp; adapt={'x': 'inp'} passes it as 'inp'\n"), 2, text)
        self.assertEqual(text.count("check_operator: fn: takes no 'x'; it takes inp; add that parameter, or say with adapt which one "
                                    "it is\n"), 2, text)
        for word in ("not today", "not here"):
            self.assertRegex(text, rf"SKIPPED \[2\] .*{word}")
        self.assertRegex(text, "4 failed, 2 passed, 4 skipped")

    def test_true_asks_for_automatic_gradients_as_the_marker_does(self):
        code, text = self.pytest("-k", "gradients", tests=TESTS.replace("backward=kernels.gradients", "backward=True"))
        self.assertEqual(self.outcomes(text), {IDS[5]: "PASSED", IDS[6]: "FAILED"}, text)
        self.assertIn("check_operator: backward: NumPy has no automatic gradients; give the function that computes them, or none",
                      text)

    def test_a_fixture_of_ones_own_stays(self):
        code, text = self.pytest(tests="import pytest\n@pytest.fixture\ndef candidate(): return 3\n"
                                       "def test_x(candidate): assert candidate == 3")
        self.assertEqual(code, 0, text)


class Wheel(unittest.TestCase):
    def test_project_file_names_what_is_there(self):
        import tomllib  # of Python 3.11, which Debian 12 has

        with open(os.path.join(SOURCE, "pyproject.toml"), "rb") as file:
            project = tomllib.load(file)
        settings = project["tool"]["scikit-build"]
        with open(os.path.join(SOURCE, settings["metadata"]["version"]["input"]), encoding="utf-8") as file:
            version = re.search(settings["metadata"]["version"]["regex"], file.read())["value"]
        self.assertEqual(version, co.__version__)
        for place in (project["project"]["scripts"]["check_operator"], "check_operator._program:find"):
            self.assertTrue(callable(co.serving.find_function(place)))
        for name, module in project["project"]["entry-points"]["pytest11"].items():
            self.assertEqual(name, module)  # or pytest would take "-p MODULE" for another plugin
            importlib.import_module(module)
        for folder in settings["wheel"]["packages"]:
            self.assertTrue(os.path.exists(os.path.join(SOURCE, folder, "py.typed")))

    def test_a_package_with_its_tool_needs_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, "check_operator")
            shutil.copytree(os.path.join(PACKAGE, "check_operator"), package)
            os.mkdir(os.path.join(folder, f"check_operator-{co.__version__}.dist-info"))
            with open(os.path.join(folder, f"check_operator-{co.__version__}.dist-info", "METADATA"), "w") as file:
                file.write(f"Metadata-Version: 2.1\nName: check_operator\nVersion: {co.__version__}\n")
            subprocess.run(["cmake", "--install", BUILD, "--prefix", os.path.join(package, "_tool")], check=True,
                           capture_output=True)
            plain = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join([folder, HERE])}
            done = python("import check_operator as co, some_kernels as k\n"
                          "r = co.check(k.one_percent_off, op='rms_norm', dims=dict(hidden=32), contract='assert_close')\n"
                          "print(r.verdict, co.__file__)", env=plain)
            self.assertEqual(done.stdout, f"fail {package}/__init__.py\n", done.stderr)
            # The command: the program's own exit code, and its data from the package.
            command = [sys.executable, "-c", "from check_operator._program import main; main()"]
            arguments = ["--op", "silu", "--candidate", "native", "--device", "cpu"]
            done = subprocess.run([*command, *arguments], env=plain, capture_output=True, text=True, cwd="/")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{package}/_tool/share/check_operator/contracts".lstrip("/"), done.stdout)
            self.assertEqual(subprocess.run([*command, "--op", "x"], env=plain, capture_output=True).returncode, 2)
            # Without the program there is no verdict, and 1 would be one.
            done = subprocess.run([sys.executable, "-c", "import check_operator._program as p; p.BUNDLED = ''; p.main()"], env=plain,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertRegex(done.stderr, "^check_operator: the program check_operator was not found; .*\n$")
            # Of another version, it refuses.
            tool = os.path.join(package, "_tool", "bin", "check_operator")
            os.unlink(tool)
            with open(tool, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho 0.0.9\n")
            os.chmod(tool, os.stat(tool).st_mode | stat.S_IXUSR)
            done = python("import check_operator", env=plain)
            self.assertIn(f"_tool/bin/check_operator is version 0.0.9, and the Python package beside it {co.__version__}; "
                          "install both again, together", done.stderr.splitlines()[-1])

    def test_a_program_of_another_protocol_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = os.path.join(folder, "check_operator")
            said = json.loads(subprocess.run([PROGRAM, "--version", "--json"], capture_output=True, check=True).stdout)
            self.assertEqual((said["version"], said["abi"]), (co.__version__, 1))
            self.assertEqual(list(co.serving.PROTOCOLS), said["protocols"])
            with open(fake, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho '" + json.dumps({**said, "protocols": [3, 4]}) + "'\n")
            os.chmod(fake, 0o755)
            done = python("import check_operator as co\nco.check(max, op='silu')", env={**os.environ, "CHECK_OPERATOR_PROGRAM": fake})
            self.assertIn("speaks protocol 3, 4, and the Python package beside it 1, 2; install both again, together",
                          done.stderr.splitlines()[-1])

    def test_a_program_of_another_version_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = os.path.join(folder, "check_operator")
            with open(fake, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho 0.0.9\n")
            os.chmod(fake, 0o755)
            for environment, text in (({"CHECK_OPERATOR_PROGRAM": fake}, "is version 0.0.9"),
                                      ({"CHECK_OPERATOR_PROGRAM": "/nosuch"}, "/nosuch can't be run"),
                                      ({"PATH": "/nosuch"}, "the program check_operator was not found")):
                kept = {name: os.environ[name] for name in ("PYTHONPATH",)}
                done = python("import check_operator as co\nco.check(max, op='silu')", env={**kept, **environment})
                self.assertIn(text, done.stderr.splitlines()[-1])
                self.assertIn("MachineError", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
