# SPDX-License-Identifier: Apache-2.0
"""check_operator import: definitions of FlashInfer-Bench and SOL-ExecBench. Built where torch is.

Usage: definitions_test.py PROGRAM [TEST...]
"""
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..", "..")
EXAMPLES = os.path.join(SOURCE, "docs", "definitions")
PROGRAM = os.path.abspath(sys.argv[1])
os.environ["CHECK_OPERATOR_PROGRAM"] = PROGRAM
os.environ["CHECK_OPERATOR_PYTHON"] = sys.executable
sys.path[:0] = [os.path.join(SOURCE, "python")]

from check_operator import InputError, _gold, definitions, serving
from check_operator._definition import evaluate


def example(name):
    return os.path.join(EXAMPLES, name)


def load(name):
    with open(example(name), encoding="utf-8") as file:
        return json.load(file)


class Import(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def write(self, name, data):
        """A file of JSON, or of a list of lines of it."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(each) + "\n" for each in data) if isinstance(data, list) else
                       data if isinstance(data, str) else json.dumps(data))
        return path

    def run_import(self, *words):
        """What the program starts, without starting it: torch has been imported here."""
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said), self.assertRaises(SystemExit) as caught:
            definitions.main(words)
        return caught.exception.code, said.getvalue()

    def solve(self, code, definition="rmsnorm_h1024", **spec):
        return self.write("solution.json", {
            "name": "mine", "definition": definition, "author": "test", "sources": [{"path": "main.py", "content": code}],
            "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run", **spec}})

    def rmsnorm(self, code, **spec):
        return self.run_import(example("rmsnorm_h1024.json"), "--workload", example("rmsnorm_h1024.jsonl"), "--uuid",
                               "rmsnorm-7", "--solution", self.solve(code, **spec))


class Examples(Import):
    def test_rmsnorm_is_judged_by_its_bound(self):
        report = os.path.join(self.folder, "all.json")
        code, text = self.run_import(example("rmsnorm_h1024.json"), "--workload", example("rmsnorm_h1024.jsonl"), "--solution",
                                     example("rmsnorm_torch.json"), "--solution", example("rmsnorm_wrong_eps.json"),
                                     "--report", report)
        self.assertEqual(code, 1, text)
        self.assertEqual(text.count("2 casts widened; judged as a reduction"), 3)
        self.assertEqual(text.count("[       OK ] rmsnorm_h1024/forward  rmsnorm_torch  bf16"), 3)
        self.assertEqual(text.count("NOT MET output: bound_ratio"), 3)
        with open(report, encoding="utf-8") as file:
            data = json.load(file)
        self.assertEqual([len(each["cases"]) for each in data["candidates"]], [3, 3])
        self.assertEqual((data["exit_code"], data["planned"]), (1, 6))
        repeat = next(line for line in text.splitlines() if line.startswith("repeat: "))
        done = subprocess.run(repeat[len("repeat: "):].replace("check_operator", PROGRAM, 1), shell=True, text=True,
                              capture_output=True, cwd=self.folder)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout.count("[  FAILED  ] rmsnorm_h1024/forward  rmsnorm_wrong_eps"), 1)

    def indices(self, lengths=(17, 1, 127)):
        indptr = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        indices = torch.randperm(160, generator=torch.Generator().manual_seed(0))[:145].to(torch.int32)
        serving.write_safetensors(os.path.join(self.folder, "gqa_indices.safetensors"), {
            "kv_indptr": ("I32", (4,), indptr.numpy().tobytes()), "kv_indices": ("I32", (145,), indices.numpy().tobytes())})
        return ["--workload", example("gqa_paged_decode_h8_kv2_d64.jsonl"), "--root", self.folder]

    def test_gqa_decode_is_held_against_its_reference(self):
        definition = example("gqa_paged_decode_h8_kv2_d64.json")
        code, text = self.run_import(definition, *self.indices(), "--solution", example("gqa_torch.json"))
        self.assertEqual(code, 0, text)
        self.assertIn("judged within twice the error of the reference", text)
        self.assertRegex(text, r"headroom lse \S+x, output \S+x")
        wrong = load("gqa_torch.json")
        for right, fault in (("group, dim=2)\n    v", "group, dim=2).bfloat16().float()\n    v"),  # exact: no fault
                             ("* sm_scale", "* (sm_scale * 1.001)"), ("1.4426950408889634", "1.4427"),
                             ("clamp(max=", "clamp(min=1, max=")):
            content = wrong["sources"][0]["content"]
            self.assertIn(right, content)
            path = self.write("wrong.json", {**wrong, "sources": [{"path": "main.py", "content": content.replace(right, fault)}]})
            code, text = self.run_import(definition, *self.indices(), "--solution", path)
            self.assertEqual(code, 0 if "bfloat16" in fault else 1, (fault, text))
            self.assertEqual("vs_reference" in text.partition("NOT MET")[2], "bfloat16" not in fault, text)

    def test_an_infinity_of_the_gold_is_the_right_answer(self):
        """The lse of a sequence without keys is -inf."""
        definition, empty = example("gqa_paged_decode_h8_kv2_d64.json"), self.indices((17, 0, 128))
        code, text = self.run_import(definition, *empty)
        self.assertEqual(code, 0, text)
        reference = load("gqa_paged_decode_h8_kv2_d64.json")["reference"]
        self.assertIn('-float("inf")', reference)
        for answer, told in {'float("inf")': "inf, gold -inf: not finite, and not as the gold is", 'float("nan")': "nan, gold -inf:"
                             " not finite, and not as", "-1e30": "-1.00000002e+30, gold -inf: finite where the gold is not"}.items():
            wrong = self.solve(reference.replace('-float("inf")', answer), "gqa_paged_decode_h8_kv2_d64",
                               destination_passing_style=False)
            code, text = self.run_import(definition, *empty, "--solution", wrong)
            self.assertEqual(code, 1, text)
            self.assertIn("lse[1,0] = " + told, text)

    def test_constraints_are_held(self):
        words = [example("gqa_paged_decode_h8_kv2_d64.json"), *self.indices((17, 1, 126))]
        code, text = self.run_import(*words)
        self.assertEqual(code, 2, text)
        done = subprocess.run([PROGRAM, "import", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((done.returncode, done.stdout), (code, text))
        self.assertIn("workload gqa-3: constraint 'num_kv_indices == kv_indptr[-1].item()' does not hold", text)

    def test_sol_execbench_makes_its_own_inputs(self):
        code, text = self.run_import(example("sol_scaled_matmul.json"), "--workload", example("sol_scaled_matmul.jsonl"),
                                     "--solution", example("sol_matmul_torch.json"))
        self.assertEqual(code, 0, text)
        self.assertIn("M=33 K=96 N=64", text)
        self.assertIn("judged as a contraction", text)

    def test_without_a_solution_the_reference_is_the_candidate(self):
        workload = self.write("gemm.jsonl", [{"uuid": "one", "axes": {"M": 5}, "inputs": {"A": {"type": "random"},
                                                                                       "B": {"type": "random"}}}])
        code, text = self.run_import(example("gemm_n64_k256.json"), "--workload", workload, "--device", "cpu")
        self.assertEqual(code, 0, text)
        self.assertIn("gemm_n64_k256/forward  reference  bf16", text)
        code, text = self.run_import(example("gemm_n64_k256.json"), "--workload", workload, "--contract", "abs_or_rel")
        self.assertEqual(code, 0, text)
        self.assertIn("policies/abs_or_rel.json", text)


class Solutions(Import):
    """What a solution does wrong is its verdict, in one sentence."""

    RETURNS = dict(destination_passing_style=False)

    def test_what_is_not_written_is_seen(self):
        code, text = self.rmsnorm("def run(x, w, y):\n"
                                  "    y[1:] = x[1:].float() * (x[1:].float().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w\n")
        self.assertEqual(code, 1, text)
        self.assertIn("output[0,0] = nan", text)

    def test_what_is_returned_must_fit(self):
        for body, sentence in {
            "return None": "the function returned None; return 'output'",
            "return x, x": "the function returned 2 outputs, expected 1: 'output'",
            "return x.float()": "its output 'output' is fp32 [7, 1024], expected bf16 [7, 1024]",
            "return x[0] * 1": "its output 'output' is bf16 [1024], expected bf16 [7, 1024]",
            "return x": "output 'output' shares memory with input 'hidden_states'",
            "raise KeyError('table')": "KeyError: 'table'",
        }.items():
            code, text = self.rmsnorm(f"def run(x, w):\n    {body}\n", **self.RETURNS)
            self.assertEqual(code, 1, text)
            self.assertIn("the candidate failed: " + sentence, text)

    def test_a_crash_is_an_error(self):
        code, text = self.rmsnorm("import os\ndef run(x, w):\n    os._exit(7)\n", **self.RETURNS)
        self.assertEqual(code, 4, text)
        self.assertIn("exited with code 7", text)

    def test_what_can_not_be_asked_about_stops_nothing_else(self):
        broken = self.write("broken.json", {**load("rmsnorm_torch.json"), "sources": [
            {"path": each["path"], "content": "def run(:"} for each in load("rmsnorm_torch.json")["sources"]]})
        with open(example("rmsnorm_h1024.jsonl"), encoding="utf-8") as file:
            workloads = [json.loads(line) for line in file]
        workloads[0]["workload"]["axes"]["batch_size"] = 0
        report = os.path.join(self.folder, "report.json")
        code, text = self.run_import(example("rmsnorm_h1024.json"), "--workload", self.write("w.jsonl", workloads[:2]),
                                     "--solution", broken, "--solution", example("rmsnorm_wrong_eps.json"), "--report", report)
        self.assertEqual(code, 2, text)
        self.assertIn("has no elements, [0, 1024], and such a workload proves nothing; leave it out", text)
        self.assertRegex(text, r"(?m)^check_operator: \S+/broken.json: '\S+' can't be imported: SyntaxError: ")
        with open(report, encoding="utf-8") as file:
            self.assertEqual([len(each["cases"]) for each in json.load(file)["candidates"]], [1])

    def test_what_can_not_be_loaded_is_named(self):
        for words, sentence in {
            (("import nosuch\n",), ()): "'main.py' can't be imported: ModuleNotFoundError: No module named 'nosuch'",
            (("run = 3\n",), ()): "spec.entry_point: 'main.py' defines no function 'run'",
            (("",), (("entry_point", "other.py::run"),)): "spec.entry_point: 'other.py::run' is not FILE::FUNCTION",
            (("",), (("language", "cuda"),)): "spec.language: 'cuda' has to be built first",
            (("",), (("languages", ("cutlass",)),)): "spec.language: 'cutlass' has to be built first",
        }.items():
            code, text = self.rmsnorm(*words[0], **dict(words[1]))
            self.assertEqual(code, 2, text)
            self.assertIn(sentence, text.splitlines()[-1])
        code, text = self.run_import(example("gemm_n64_k256.json"), "--solution", self.solve(""))
        self.assertEqual(code, 2, text)
        self.assertIn("solves 'rmsnorm_h1024', and the definition is 'gemm_n64_k256'", text)


class Refusals(Import):
    """What can't be judged, in one sentence."""

    def refused(self, definition, workload=None, files=()):
        for name, data in files:
            self.write(name, data)
        words = [self.write("definition.json", definition)]
        if workload is not None:
            words += ["--workload", self.write("workload.jsonl", [workload])]
        code, text = self.run_import(*words)
        self.assertEqual(code, 2, text)
        self.assertEqual(text.count("\n"), 1, text)
        return text

    def plain(self, run, **more):
        tensor = {"shape": ["n"], "dtype": "float32"}
        return {"name": "plain", "op_type": "other", "axes": {"n": {"type": "const", "value": 8}}, "inputs": {"x": tensor},
                "outputs": {"y": tensor}, "reference": "import torch\nimport numpy\n" + run, **more}

    def test_definitions(self):
        tensor = {"shape": ["n"], "dtype": "float32"}
        for sentence, definition in {
            "has no 'reference'": {**self.plain(""), "reference": ""},
            "inputs.x: dtype 'float8_e4m3fn' is not among those": self.plain("", inputs={"x": {**tensor, "dtype": "float8_e4m3fn"}}),
            "outputs.y: shape names 'm', which is no axis": self.plain("", outputs={"y": {**tensor, "shape": ["m"]}}),
            "outputs.y: is a Python scalar": self.plain("", outputs={"y": {**tensor, "shape": None}}),
            "op_type: the result of 'sampling' is random": self.plain("def run(x): return x * 2", op_type="sampling"),
            "reference: can't be run: SyntaxError": self.plain("def run(x:"),
            "reference: defines no function 'run'": self.plain("def walk(x): return x"),
            "axes.n: has no value; give it with --workload": self.plain("def run(x): return x", axes={"n": {"type": "var"}}),
            "axes.n: unknown type 'vary'": self.plain("def run(x): return x", axes={"n": {"type": "vary"}}),
            "axes.n: expression 'f(3)': only numbers": self.plain("def run(x): return x",
                                                                 axes={"n": {"type": "expr", "expression": "f(3)"}}),
            "constraint 'n == 9' does not hold": self.plain("def run(x): return x * 2", constraints=["n == 9"]),
        }.items():
            self.assertIn(sentence, self.refused(definition))

    def test_a_missing_torch_is_named(self):
        code = "import sys; sys.modules['torch'] = None; from check_operator.definitions import main; main(['x.json'])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertRegex(done.stderr, "^check_operator: import: torch can't be imported: .*; references of definitions need it\n$")

    def test_devices(self):
        path = self.write("plain.json", self.plain("def run(x): return x * 2"))
        self.assertEqual(self.run_import(path, "--device", "tpu"),
                         (2, "check_operator: --device: unknown device 'tpu'; use auto, cpu, cuda or cuda:N\n"))
        code, text = self.run_import(path, "--device", "cuda:99")
        self.assertEqual(code, 5, text)
        self.assertRegex(text, "^check_operator: --device: torch .* finds no device 'cuda:99'\n$")

    def test_golds(self):
        for sentence, body in {
            "in float64: draws random numbers": "return x + torch.rand_like(x)",
            "in float64: reinterprets the bits of torch.float64 as torch.int32": "return x.view(torch.int32).float()",
            "in float64: output 'y' is torch.float32 [8], expected torch.float64 [8]":
                "return torch.from_numpy(x.cpu().numpy().astype(numpy.float32))",
            "in float64: output 'y' is torch.float64 [4], expected torch.float64 [8]": "return x[:4] * 2",
            "in float64: fails: AssertionError: not single": "assert x.dtype == torch.float32, 'not single'",
            "in float64: the function returned None": "pass",
            "in float64: output 'y' has NaN, which is no gold": "return x / 0 * 0",
            "in its own dtypes: output 'y' is torch.float16, expected float32": "return (x * 2).half()",
        }.items():
            self.assertIn(sentence, self.refused(self.plain(f"def run(x):\n    {body}\n")))

    def test_workloads(self):
        definition = self.plain("def run(x): return x * 2")
        work = {"uuid": "one", "axes": {}, "inputs": {"x": {"type": "random"}}}
        whole = {**definition, "inputs": {"x": {"shape": ["n"], "dtype": "int64"}}, "outputs": {"y": {"shape": ["n"], "dtype": "int64"}}}
        scalar = {**definition, "inputs": {"x": {"shape": None, "dtype": "float32"}}}
        stored = {**work, "inputs": {"x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}}}
        for sentence, given, workload, files in (
                ("input 'x': is random int64, and the definition does not say what its integers mean", whole, work, ()),
                ("input 'x': is a scalar without a value", scalar, work, ()),
                ("input 'x': unknown type 'None'", definition, {**work, "inputs": {}}, ()),
                ("has no 'uuid'", definition, {"axes": {}, "inputs": {}}, ()),
                ("holds no workload of 'plain'", definition, {"definition": "other", "workload": work}, ()),
                ("input 'x': there is no 'x.safetensors' below", definition, stored, ()),
                ("x.safetensors is a pointer of Git LFS, not the file", definition, stored,
                 [("x.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")]),
                ("x.safetensors is no safetensors file", definition, stored, [("x.safetensors", "12345678{")]),
                ("custom_inputs_entrypoint: is missing", definition, {**work, "inputs": {"x": {"type": "custom"}}}, ())):
            self.assertIn(sentence, self.refused(given, workload, files))
        serving.write_safetensors(os.path.join(self.folder, "x.safetensors"), {"x": ("F32", (4,), bytes(16)), "f": ("I8", (8,), bytes(8))})
        self.assertIn("input 'x': is torch.float32 [4], expected float32 [8]", self.refused(definition, stored))
        stored["inputs"]["x"]["tensor_key"] = "z"
        self.assertIn("holds no tensor 'z'; known: x, f", self.refused(definition, stored))
        stored["inputs"]["x"]["tensor_key"] = "f"
        self.assertIn("is I8, which check_operator does not have", self.refused(definition, stored))

    def test_a_wild_reference_proves_nothing(self):
        """In its own dtypes it is further from the gold than zeros are."""
        path = self.write("wild.json", self.plain("def run(x): return x * 2 if x.dtype == torch.float64 else -x\n"))
        code, text = self.run_import(path)
        self.assertEqual(code, 1, text)
        self.assertIn("VACUOUS", text)


class Gold(unittest.TestCase):
    """References in float64, against what they mean."""

    x = torch.linspace(-3, 3, 24).reshape(4, 6).to(torch.bfloat16)

    def gold(self, run, *arguments):
        return _gold.run_in_float64(run, arguments or [self.x])

    def test_casts_to_16_and_32_bits_are_widened_and_counted(self):
        wide, third = self.x.double(), torch.tensor(1, dtype=torch.float64) / 3
        for casts, run in ((1, lambda x: x.float() / 3), (1, lambda x: x.to(torch.float32) / 3), (1, lambda x: x.half() / 3),
                           (1, lambda x: x.to(dtype=torch.bfloat16) / 3), (0, lambda x: x.to(x.dtype) / 3),
                           (1, lambda x: x * torch.ones(6, dtype=torch.float32) / 3), (0, lambda x: x * torch.ones(6) / 3),
                           (1, lambda x: x.type(torch.float32) / 3), (0, lambda x: x * torch.tensor(1.0) / 3),
                           (1, lambda x: x / torch.full((6,), 3, dtype=torch.float32)), (1, lambda x: x.bfloat16() / 3),
                           (1, lambda x: x.new_zeros(6, dtype=torch.float16) + x / 3)):
            found, counted = self.gold(run)
            self.assertEqual((found.dtype, counted), (torch.float64, casts))
            self.assertLessEqual(((found - wide * third).abs()).max().item(), 1e-15)

    def test_what_is_known_by_hand(self):
        ones = torch.ones(1, 4)
        for value, run in ((math.log(4), lambda x: torch.logsumexp(x * 0, dim=-1)), (0.25, lambda x: torch.softmax(
                x, dim=-1, dtype=torch.float32)), (1 / math.sqrt(1 + 1e-5), lambda x: x * torch.rsqrt(x.pow(2).mean(
                    -1, keepdim=True) + 1e-5)), (4.0, lambda x: x @ x.T), (1 / (1 + math.exp(-1)), torch.sigmoid)):
            found, _ = self.gold(run, ones)
            self.assertLessEqual((found - value).abs().max().item(), 1e-15)

    def test_integers_and_quantisation_stay(self):
        found, casts = self.gold(lambda x: (x * 7).round().to(torch.int8).to(torch.float32) / 7)
        self.assertEqual(casts, 1)
        self.assertTrue(torch.equal(found, (self.x.double() * 7).round() / 7))
        if hasattr(torch, "float8_e4m3fn"):
            found, _ = self.gold(lambda x: x.to(torch.float8_e4m3fn).to(torch.float32))
            self.assertTrue(torch.equal(found, self.x.to(torch.float8_e4m3fn).double()))

    def test_complex_numbers_are_widened(self):
        found, _ = self.gold(lambda x: torch.view_as_real(torch.view_as_complex(x.float().reshape(4, 3, 2)) *
                                                          torch.tensor(1j, dtype=torch.complex64)))
        self.assertEqual(found.dtype, torch.float64)

    def test_arguments_and_defaults_are_as_before(self):
        for given in (self.x.clone(), self.x.double(), torch.arange(4)):
            before = given.clone()
            self.gold(lambda x: x.mul_(2), given)
            self.assertTrue(torch.equal(given, before))
        self.assertEqual(torch.get_default_dtype(), torch.float32)

    def test_expressions_are_arithmetic(self):
        self.assertEqual(evaluate("", "-(2 * n) // 3 + n ** 2 % 5", dict(n=4)), -(2 * 4) // 3 + 4 ** 2 % 5)
        for text in ("n / 3", "m", "__import__('os')", "n.real", "1 //", "1 // 0"):
            with self.assertRaises(InputError):
                evaluate("axes.k", text, dict(n=4))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
