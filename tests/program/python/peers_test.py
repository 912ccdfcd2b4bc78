# SPDX-License-Identifier: Apache-2.0
"""check_operator bench --peer: what a process is asked, what its answers become, and what is no answer; and the module
check_operator.peers over torch. Built where torch is. No test checks how long anything takes.

Usage: peers_test.py PROGRAM [TEST...]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.abspath(sys.argv[1])
PACKAGE = os.path.join(HERE, "..", "..", "..", "python")

# Answers with what it is told to, and keeps the questions.
FAKE = '''
import json, os, sys
kept, answers = sys.argv[1:]
answers = json.loads(answers)
for line in sys.stdin:
    question = json.loads(line)
    with open(kept, "a") as file:
        file.write(line)
    answer = answers["hello"] if "hello" in question else answers["time"]
    if answer == "exit":
        print("no more", file=sys.stderr)
        os._exit(3)
    if isinstance(answer, dict) and "times" in answer:
        answer.setdefault("id", question["time"]["id"])
        if answer["id"] < question["time"]["id"]:
            answer["id"] = question["time"]["id"]
    print(answer if isinstance(answer, str) else json.dumps(answer), flush=True)
'''

OVER_TORCH = '''
import torch
from check_operator.peers import Unsupported, serve

def silu(case):
    print("not an answer")
    x = case.tensor("batch", "seq", "hidden")
    return lambda: torch.nn.functional.silu(x)

def silu_backward(case):
    x = case.tensor("batch", "seq", "hidden", requires_grad=True)
    y = torch.nn.functional.silu(x)
    return lambda: torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)

def declines(case):
    raise Unsupported(f"hidden {case.dims['hidden']}")

serve({"torch": {"silu/forward": silu, "silu/backward": silu_backward}, "declines": {"silu/forward": declines},
       "breaks": {"silu/forward": lambda case: case.nothing}})
'''


class Peers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        self.kept = os.path.join(self.folder, "kept")

    def script(self, name, code):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(code)
        return f"{sys.executable} {path}"

    def fake(self, time, hello={"protocol": 1, "names": ["fast", "other"]}):
        answers = json.dumps({"hello": hello, "time": time})
        return f"{self.script('fake.py', FAKE)} {self.kept} '{answers}'"

    def bench(self, *words, timing="burst"):
        done = subprocess.run([PROGRAM, "bench", "--op", "silu", "--device", "cpu", "--candidate", "native", "--batch", "1", "--seq",
                               "2", "--hidden", "24", "--timing", timing, *words], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PACKAGE})
        return done.returncode, done.stdout, done.stderr

    def records(self, *words, code=0, **more):
        got, text, errors = self.bench(*words, "--json", **more)
        self.assertEqual(got, code, errors)
        return [json.loads(line) for line in text.splitlines()]

    def test_a_process_is_asked_about_the_case_and_is_a_baseline(self):
        times = {"times": [{"name": "fast", "ms": [0.5, 0.25, 1], "peak_bytes": 2097152},
                           {"name": "other", "status": "unsupported", "message": "not today"}]}
        records = self.records("--peer", self.fake(times), "--baseline", "fast")
        self.assertEqual([(each["candidate"], each["status"]) for each in records],
                         [("native", "ok"), ("fast", "ok"), ("other", "unsupported")])
        native, fast, other = records
        self.assertEqual((fast["ms_median"], fast["repeats"], fast["peak_mib"], fast["is_peer"]), (0.5, 6, 2, True))
        self.assertEqual((fast["kernels_digest"], fast["ratio_to"], other["message"]), (None, None, "not today"))
        self.assertEqual(native["ratio_to"], "fast")
        self.assertAlmostEqual(native["ratio"] * native["ms_median"], 0.5, delta=1e-4)
        self.assertNotIn("is_peer", native)
        self.assertEqual({each["run"] for each in records}, {native["run"]})
        with open(self.kept, encoding="utf-8") as file:
            hello, first, second = map(json.loads, file)
        self.assertEqual(hello, {"hello": {"device": "cpu", "protocol": 1}})
        self.assertEqual(first, {"time": {
            "id": 1, "op": "silu", "pass": "forward", "dtype": "fp32", "dims": {"batch": 1, "seq": 2, "hidden": 24}, "attrs": {},
            "inputs": ["x"], "outputs": ["y"], "timing": "burst", "count": 10, "ms": 0}})
        self.assertEqual(second["time"]["id"], 2)

    def test_the_text_says_whose_times_they_are(self):
        times = {"times": [{"name": "fast", "ms": [0.5]}, {"name": "other", "status": "failed", "message": "broken"}]}
        code, text, _ = self.bench("--peer", self.fake(times))
        self.assertEqual(code, 1)
        self.assertIn("other            failed: broken\n             timed by --peer, whose results nobody judges: fast, other\n",
                      text)

    def test_what_is_no_answer_is_a_crash_of_that_case_alone(self):
        for answer, told in {
            "exit": "exited with code 3 before it answered; it wrote: 'no more'",
            "no json": "its answer: line 1, column 2: ",
            '{"id": 7, "times": []}': "its answer: id: expected 1, got 7",
            '{"id": 1, "times": [{"name": "fast", "ms": [1]}]}': "its answer: times: "
                                                                 "expected one entry for each name of its first answer",
        }.items():
            records = self.records("--peer", self.fake(answer), code=4)
            self.assertEqual([each["status"] for each in records], ["ok", "crashed", "crashed"])
            self.assertIn(told, records[1]["message"])
        for wrong, told in {
            '{"name": "slow", "ms": [1]}': "times[0].name: unknown name 'slow'",
            '{"name": "fast", "ms": [0]}': "times[0].ms[0]: expected a finite number >= 1e-06, got 0",
            '{"name": "fast", "ms": []}': "times[0].ms: expected at least one time, got an empty array",
            '{"name": "fast"}': "times[0]: key 'ms' is missing",
            '{"name": "fast", "status": "ok", "sec": 1}': "times[0]: unknown key 'sec'",
            '{"name": "fast", "status": "failed"}': "times[0]: key 'message' is missing",
        }.items():
            answer = {"times": [json.loads(wrong), {"name": "other", "ms": [1]}]}
            self.assertIn(told, self.records("--peer", self.fake(answer), code=4)[1]["message"])

    def test_one_failure_leaves_an_implementation_out(self):
        """Of one kind of timing, or of one half."""
        code = FAKE.replace("    if answer ==", "    if question.get('time', {}).get('timing') == 'burst':\n"
                            "        answer['times'][0] = {'name': 'fast', 'status': 'failed', 'message': 'no burst'}\n"
                            "    elif 'time' in question:\n"
                            "        answer['times'][0] = {'name': 'fast', 'ms': [1]}\n"
                            "    if answer ==", 1)
        answers = json.dumps({"hello": {"protocol": 1, "names": ["fast"]}, "time": {"times": [{"name": "fast", "ms": [1]}]}})
        records = self.records("--peer", f"{self.script('half.py', code)} {self.kept} '{answers}'", timing="burst,sustained", code=1)
        self.assertEqual([(each["candidate"], each["status"]) for each in records[-1:]], [("fast", "failed")])
        self.assertEqual(records[-1]["message"], "no burst")

    def test_a_process_that_is_started_again_has_the_same_names(self):
        code = FAKE.replace("    if answer ==", "    if 'hello' in question and os.path.getsize(kept) > len(line):\n"
                            "        answer = {'protocol': 1, 'names': ['slow', 'slower']}\n"
                            "    if answer ==", 1)
        answers = json.dumps({"hello": {"protocol": 1, "names": ["fast"]}, "time": "exit"})
        records = self.records("--peer", f"{self.script('again.py', code)} {self.kept} '{answers}'", "--dtype", "fp32,bf16", code=4)
        self.assertEqual([each["status"] for each in records], ["ok", "crashed", "ok", "crashed"])
        self.assertIn("exited with code 3", records[1]["message"])
        self.assertIn("names: expected the names of its first start", records[3]["message"])

    def test_what_can_not_be_started_is_one_sentence(self):
        for command, code, told in (
            ("sh -c 'exit 3'", 2, "--peer 'sh -c 'exit 3'': exited with code 3 before it answered; "
             "it should answer the first line with the names of what it times\n"),
            (self.fake("", {"no_device": "no such card"}), 5, ": no such card\n"),
            (self.fake("", {"error": "bad luck"}), 2, ": bad luck\n"),
            (self.fake("", {"protocol": 2, "names": ["fast"]}), 2, ": protocol: expected 1, got 2\n"),
            (self.fake("", {"protocol": 1, "names": []}), 2, ": names: expected at least one name, got an empty array\n"),
            (self.fake("", {"protocol": 1, "names": ["fast", "fast"]}), 2,
             "check_operator: --peer: two implementations are called 'fast'; rename one of them\n"),
        ):
            got, _, errors = self.bench("--peer", command)
            self.assertEqual(got, code, errors)
            self.assertTrue(errors.endswith(told), errors)
        got, _, errors = self.bench("--peer", self.fake(""), "--baseline", "absent")
        self.assertEqual((got, errors), (2, "check_operator: --baseline: 'absent' is not among the candidates that are timed; name it "
                                         "in --candidate too\n"))
        got, _, errors = self.bench("--peer", "sleep 60", "--timeout-s", "1")
        self.assertEqual(got, 2)
        self.assertIn("--peer 'sleep 60': gave no answer within 1 s; killed; it should answer", errors)

    def test_functions_over_torch_are_timed(self):
        records = self.records("--peer", self.script("over_torch.py", OVER_TORCH), "--check-grad", timing="burst,sustained", code=1)
        seen = {}
        for each in records:
            seen.setdefault((each["candidate"], each["pass"]), []).append(each)
        self.assertEqual([(each["timing"], each["repeats"]) for each in seen["torch", "forward"]], [("burst", 20), ("sustained", 5)])
        self.assertEqual(len(seen["torch", "backward"]), 2)
        for step in seen["torch", "forward+backward"]:
            self.assertTrue(step["is_peer"])
        self.assertEqual(seen["declines", "forward"][0]["message"], "hidden 24")
        self.assertEqual(seen["declines", "backward"][0]["message"], "does not compute silu/backward")
        self.assertEqual(seen["breaks", "forward"][0]["status"], "failed")
        self.assertEqual(seen["breaks", "forward"][0]["message"], "AttributeError: 'Case' object has no attribute 'nothing'")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
