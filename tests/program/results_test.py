#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/results.py on a simulated source tree and simulated output of scripts/gpu.sh."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "results.py")

KERNEL = """// What this kernel is for.
#include <cuda_runtime_api.h>

#include "common.cuh"
#include "check_operator.h"

const char* text = "a // b";  // not a comment within the quotes
int add(int a, int b) { return a + +b; }
"""
TREE = {
    "kernels/logp/cuda.cu": KERNEL,
    "kernels/silu/cuda_sm90.cu": '#include "../common.cuh"\nint half(int a) { return a / 2; }\n',
    "kernels/common.cuh": '#pragma once\n#include "rows.cuh"\nint one() { return 1; }\n',
    "kernels/rows.cuh": "#pragma once\nint rows();\n",
    "src/abi/check_operator.h": "struct Call { int dtype; };\n",
    "docs/index.md": "\n",
    "docs/recipes.md": "# Recipes\n<!-- frameworks: written by scripts/results.py page -->\n<!-- end of frameworks -->\n\n## More\n",
    "tests/gpu/results/none.txt": "\n",
}
DEVICE = {"name": "NVIDIA H200", "arch_key": "sm90", "multiprocessors": 132, "memory_bytes": 1, "runtime": "13.0", "kind": "cuda"}


def case(verdict="pass", kind="", headroom=2.0, dtype="bf16", seq=4, **fields):
    gates = [{"headroom": headroom}]
    return {"op": "logp", "pass": "forward", "dtype": dtype, "dims": {"batch": 1, "seq": seq}, "case_name": f"logp-{dtype}-1x{seq}",
            "verdict": verdict, "kind": kind, "bit_checks": [],
            "outputs": [{"name": "logp", "candidate_dtype": "fp32", "gates": gates, "max_abs_error": 1e-6}], **fields}


def report(cases, candidate="cuda", started="2026-01-02T03:04:05Z", **fields):
    return {"format": "check_operator/report-1", "device": DEVICE, "contract": {"hash": "0123456789abcdef"}, "complete": True,
            "volatile": {"started": started}, "candidates": [{"backend": candidate, "cases": cases}], **fields}


def record(candidate, ms, timing="burst", **fields):
    return {"op": "logp", "pass": "forward", "candidate": candidate, "status": "ok", "case": "logp-bf16-1x4", "dtype": "bf16",
            "dims": {"batch": 1, "seq": 4}, "run": "r", "device": "NVIDIA H200", "kernels_digest": "fedcba9876543210", "timing": timing,
            "date": "2026-01-02T03:04:05Z", "ms_median": ms, "of_copy": 0.5, "gbps": 100.0, "of_cublas": None, "ratio_to": None, **fields}


class Results(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.tree = os.path.join(holder.name, "tree")
        self.folder = os.path.join(holder.name, "raw")
        self.summary = os.path.join(self.tree, "tests", "gpu", "results", "h200.json")
        for path, text in TREE.items():
            self.write(os.path.join(self.tree, path), text)
        self.write_raw("kernels.json", self.run_script("digests"))

    def write(self, path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def write_raw(self, name, content):
        self.write(os.path.join(self.folder, name), content if isinstance(content, str) else json.dumps(content))

    def edit(self, path, old, new):
        with open(os.path.join(self.tree, path), encoding="utf-8") as file:
            text = file.read()
        self.assertIn(old, text)
        self.write(os.path.join(self.tree, path), text.replace(old, new))

    def run_script(self, *arguments, code=0):
        done = subprocess.run([sys.executable, SCRIPT, "--root", self.tree, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def summarize(self):
        self.run_script("summarize", self.folder, "--into", self.summary)
        with open(self.summary, encoding="utf-8") as file:
            return json.load(file)

    def page(self):
        self.run_script("page")
        with open(os.path.join(self.tree, "docs", "results.md"), encoding="utf-8") as file:
            return file.read()

    def digest(self, kernel="logp/cuda"):
        return json.loads(self.run_script("digests"))[kernel]


class Digests(Results):
    def test_are_of_every_candidate_by_its_name(self):
        self.assertEqual(set(json.loads(self.run_script("digests"))), {"logp/cuda", "silu/cuda-sm90"})

    def test_change_with_code_even_of_a_header_of_a_header(self):
        before, other = self.digest(), self.digest("silu/cuda-sm90")
        self.edit("kernels/logp/cuda.cu", "a + +b", "a - +b")
        after = self.digest()
        self.assertNotEqual(after, before)
        self.assertEqual(self.digest("silu/cuda-sm90"), other)
        self.edit("kernels/rows.cuh", "int rows();", "long rows();")
        self.assertNotEqual(self.digest(), after)
        self.assertNotEqual(self.digest("silu/cuda-sm90"), other)

    def test_change_with_code_that_is_linked_beside_a_header(self):
        self.write(os.path.join(self.tree, "kernels/rows.hpp"), "int rows();")
        self.edit("kernels/logp/cuda.cu", "// What this", '#include "rows.hpp"\n// What this')
        before, other = self.digest(), self.digest("silu/cuda-sm90")
        self.write(os.path.join(self.tree, "kernels/rows.cpp"), '#include "rows.hpp"\nint rows() { return 1; }')
        self.assertNotEqual(self.digest(), before)
        self.assertEqual(self.digest("silu/cuda-sm90"), other)

    def test_change_with_white_space_that_a_compiler_sees(self):
        for old, new in (("a + +b", "a ++b"), ("a // b", "a  // b"), ("const char", "constchar")):
            before = self.digest()
            self.edit("kernels/logp/cuda.cu", old, new)
            self.assertNotEqual(self.digest(), before, new)

    def test_do_not_change_with_comments_and_layout(self):
        before = self.digest()
        self.edit("kernels/logp/cuda.cu", "// What this kernel is for.", "/* Told in\n   other words: \"it's\" */")
        self.edit("kernels/logp/cuda.cu", "return a + +b;", "\n  return a\n      + +b;  // the sum\n")
        self.edit("kernels/common.cuh", "int one() {", "int one()\n{")
        self.assertEqual(self.digest(), before)

    def test_do_not_change_where_a_header_moves(self):
        before = self.digest()
        os.makedirs(os.path.join(self.tree, "kernels/cuda"))
        os.rename(os.path.join(self.tree, "kernels/common.cuh"), os.path.join(self.tree, "kernels/cuda/shared.cuh"))
        self.edit("kernels/logp/cuda.cu", '"common.cuh"', '"cuda/shared.cuh"')
        self.edit("kernels/silu/cuda_sm90.cu", "../common.cuh", "cuda/shared.cuh")
        self.assertEqual(self.digest(), before)

    def test_do_not_change_with_declarations_of_the_interface(self):
        before = self.digest()
        with open(os.path.join(self.tree, "src/abi/check_operator.h"), "a", encoding="utf-8") as file:
            file.write("int added();\n")
        self.assertEqual(self.digest(), before)

    def test_name_the_file_of_an_include_that_leads_nowhere(self):
        self.edit("kernels/rows.cuh", "int rows();", '#include "lost.cuh"')
        self.assertIn('kernels/rows.cuh: includes "lost.cuh"', self.run_script("digests", code=1))


class Summaries(Results):
    def test_hold_a_row_for_each_report_operator_pass_candidate_and_dtype(self):
        self.write_raw("report-smoke.json", report([case(headroom=3.0), case(headroom=1.5, seq=9), case("fail", "invariance"),
                                                    case("unsupported", "unsupported", seq=99, outputs=[]), case(dtype="fp32", headroom="Infinity")]))
        summary = self.summarize()
        self.assertEqual(summary["device"]["name"], "NVIDIA H200")
        fp32, bf16 = sorted(summary["checks"], key=lambda row: row["checks"])
        self.assertEqual(bf16, {
            "op": "logp", "candidate": "cuda", "pass": "forward", "dtype": "bf16", "suite": "smoke", "checks": 4,
            "verdicts": {"fail: invariance": 1, "pass": 2, "unsupported": 1}, "least_headroom": {"wide": 1.5},
            "largest": {"batch": 1, "seq": 9}, "contract": "0123456789abcdef", "kernels_digest": self.digest(),
            "date": "2026-01-02T03:04Z"})
        self.assertEqual(fp32["least_headroom"], {"wide": "exact"})

    def test_have_no_row_where_nothing_was_judged_and_say_where_a_run_ended_early(self):
        unsupported = case("unsupported", "unsupported", dtype="fp32", outputs=[])
        self.write_raw("report-smoke.json", report([unsupported, case()], complete=False))
        row, = self.summarize()["checks"]
        self.assertEqual((row["dtype"], row["complete"]), ("bf16", False))

    def test_add_up_the_parts_of_one_run(self):
        for part in (0, 1):
            self.write_raw(f"report-ranks-smoke-{part}.json", report([case()], shard={"index": part}))
        self.assertEqual([(row["suite"], row["checks"]) for row in self.summarize()["checks"]], [("ranks-smoke", 2)])

    def test_have_a_line_for_every_row(self):
        self.write_raw("bench-logp.jsonl", "".join(json.dumps(record(name, 1.0)) + "\n" for name in ("cuda", "peer")))
        self.summarize()
        with open(self.summary, encoding="utf-8") as file:
            lines = [line for line in file if '"ms_median"' in line]
        self.assertEqual(len(lines), 2)
        self.assertTrue(all(line.startswith('  {"op":"logp","candidate":') for line in lines))

    def test_leave_out_the_sums_of_both_passes(self):
        records = [{**record("cuda", 1.0), "pass": name} for name in ("forward", "backward", "forward+backward")]
        self.write_raw("bench-logp.jsonl", "".join(json.dumps(one) + "\n" for one in records))
        self.assertEqual(sorted(row["pass"] for row in self.summarize()["bench"]), ["backward", "forward"])

    def test_take_new_rows_for_old_ones_and_keep_the_others(self):
        self.write_raw("report-smoke.json", report([case()]))
        self.write_raw("report-ci.json", report([case()]))
        old = self.summarize()["kernels_digest"]
        self.edit("kernels/rows.cuh", "int rows();", "long rows();")
        os.remove(os.path.join(self.folder, "report-ci.json"))
        self.write_raw("kernels.json", self.run_script("digests"))
        self.write_raw("report-smoke.json", report([case("fail", "accuracy")], started="2026-02-01T00:00:00Z"))
        summary = self.summarize()
        ci, smoke = sorted(summary["checks"], key=lambda row: row["suite"])
        self.assertEqual((ci["verdicts"], ci["date"]), ({"pass": 1}, "2026-01-02T03:04Z"))
        self.assertEqual((smoke["verdicts"], smoke["date"], smoke["kernels_digest"]),
                         ({"fail: accuracy": 1}, "2026-02-01T00:00Z", self.digest()))
        self.assertNotEqual(ci["kernels_digest"], smoke["kernels_digest"])
        self.assertNotEqual(summary["kernels_digest"], old)

    def test_keep_a_newer_row_when_an_older_folder_comes_later(self):
        self.write_raw("report-smoke.json", report([case()], started="2026-02-01T00:00:00Z"))
        self.summarize()
        self.write_raw("report-smoke.json", report([case("fail", "accuracy")], started="2026-01-01T00:00:00Z"))
        summary = self.summarize()
        self.assertEqual((summary["date"], summary["checks"][0]["verdicts"]), ("2026-02-01T00:00Z", {"pass": 1}))

    def test_refuse_another_device_a_torn_file_and_an_empty_folder(self):
        self.assertIn("holds no report-", self.run_script("summarize", self.folder, code=1))
        self.write_raw("report-smoke.json", report([case()]))
        self.summarize()
        self.write_raw("report-smoke.json", {**report([case()]), "device": {**DEVICE, "name": "NVIDIA B200"}})
        self.assertIn("'NVIDIA B200', the summary is of 'NVIDIA H200'", self.run_script("summarize", self.folder, "--into", self.summary, code=1))
        self.write_raw("report-smoke.json", '{"format": ')
        self.assertIn("report-smoke.json: is no JSON", self.run_script("summarize", self.folder, code=1))
        os.remove(os.path.join(self.folder, "report-smoke.json"))
        self.write_raw("bench-logp.jsonl", '{"op": "logp"}\n')
        self.assertIn("bench-logp.jsonl:1: is no record", self.run_script("summarize", self.folder, code=1))

    def test_take_the_plugins_digest_for_no_digest_of_sources(self):
        self.write_raw("bench-logp.jsonl", "".join(json.dumps(record(name, 1.0)) + "\n" for name in ("cuda", "torch-compile")))
        ours, peer = sorted(self.summarize()["bench"], key=lambda row: row["candidate"])
        self.assertEqual(ours["kernels_digest"], self.digest())
        self.assertIsNone(peer["kernels_digest"])

    def test_tell_cases_apart_by_what_their_names_have_behind_the_sizes(self):
        shown = {"": "", "+lse~ignored0": " +lse", "~ignored0#12g34": "", "+lse#5": " +lse", "~ignored2g7": " ~ignored2", "@0-3-4": " @0-3-4", "@2": ""}
        self.write_raw("bench-logp.jsonl", "".join(json.dumps(record("cuda", 1.0, case="logp-bf16-1x4" + extras, dims={"batch": 1, "seq": at})) + "\n"
                                                   for at, extras in enumerate(shown)))
        kept = [row.get("extras", "") for row in self.summarize()["bench"]]
        self.assertCountEqual(kept, [{"@2": "", "~ignored0#12g34": "~ignored0#"}.get(extras, extras) for extras in shown])
        page = self.page()
        for at, text in enumerate(shown.values()):
            self.assertIn(f"| seq={at}{text} |", page)

    def test_leave_out_what_a_peer_lacks_and_its_older_time(self):
        for status, names in (("ok", ["cuda", "flash"]), ("unsupported", ["cuda"])):
            peer = {**record("flash", 1.0 if status == "ok" else None), "is_peer": True, "status": status}
            self.write_raw("bench-logp.jsonl", "".join(json.dumps(one) + "\n" for one in (record("cuda", 1.0), peer)))
            self.assertEqual([row["candidate"] for row in self.summarize()["bench"]], names)

    def test_leave_out_a_cut_run_of_another_frameworks_kernel(self):
        self.write_raw("report-smoke.json", report([case()]))
        self.write_raw("report-frameworks-hf-default-logp.json", report([case()]))
        self.assertEqual([row["suite"] for row in self.summarize()["checks"]], ["smoke"])

    def test_say_what_sanitizers_found(self):
        ran = "[       OK ] {}/forward  cuda-sm90  bf16  batch=1 (1 ms)\n"
        command = "check_operator --suite smoke --op {} --candidate cuda-sm90\n"
        clean = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
        self.write_raw("sanitizer-all-racecheck.log", command.format("logp,silu") + ran.format("logp"))  # out of time
        self.write_raw("sanitizer-silu-synccheck.log", command.format("silu"))  # not a single check
        self.write_raw("sanitizer-silu-racecheck.log", command.format("silu") + ran.format("silu") + clean)
        self.write_raw("sanitizer-logp-memcheck.log", command.format("logp") + ran.format("logp") + "========= ERROR SUMMARY: 3 errors\n")
        self.write_raw("sanitizer-control.log", "========= Invalid __global__ write of size 4 bytes\n")
        rows = {(row["op"], row["tool"], row["result"], row["checks"]) for row in self.summarize()["sanitizers"]}
        self.assertEqual(rows, {("logp", "racecheck", "no summary", 1), ("silu", "racecheck", "clean", 1),
                                ("silu", "synccheck", "no summary", 0),
                                ("logp", "memcheck", "3 errors", 1), ("matmul", "memcheck", "illegal write reported", 1)})

    def test_say_which_axes_change_bits(self):
        def axis(name, different):
            broken = [{"different": different, "compared": 8}] if different else []
            return {"axis": name, "different": different, "broken": broken}

        def with_bits(*axes):
            return case(bit_checks=[{"name": "logp", "axes": axes, "rows": {"different": "2-3", "same": "1"}, "smallest_rows": 2}])

        self.write_raw("invariance.json", report([with_bits(axis("batch", 3), axis("alignment", 0))], "cublas"))
        self.write_raw("invariance-ci.json", report([with_bits(axis("batch", 0)), with_bits(axis("graph", 1))]))
        ci, alone = sorted(self.summarize()["invariance"], key=lambda row: row["suite"] == "invariance")
        self.assertEqual((ci["checks"], ci["axes"], "case" in ci), (2, ["graph"], False))
        self.assertEqual((alone["case"], alone["axes"], alone["rows_different"], alone["changed"]), ("logp-bf16-1x4", ["batch"], "2-3", [3, 8]))
        self.assertRegex(self.page(), r"\| 2-3 \| 1 \| 2 \| 3 of 8 \|")


    def test_hold_the_errors_of_tensor_parallel_runs(self):
        self.write_raw("report-ranks-2-512-1024-8192.json", report([case()]))
        row, = self.summarize()["ranks"]
        self.assertEqual((row["gpus"], row["rows"], row["hidden"], row["vocab"], row["max_abs_error"]), (2, 512, 1024, 8192, {"logp": 1e-6}))
        self.assertRegex(self.page(), r"\| 512 x 1024 x 8192 \| bf16 \| 2 \| 1.00e-06 \| - \|.*\| 3.05e-4, ")

    def test_hold_certificates(self):
        bits = [{"axes": [{"axis": "batch", "different": 0}, {"axis": "graph", "different": 1}]}]
        self.write_raw("certificates/logp-cuda.json", {"digest": "00112233445566ff", "content": {
            "device": DEVICE, "entries": [{"op": "logp", "candidate": "cuda", "bits": bits}] * 2}})
        row, = self.summarize()["certificates"]
        self.assertEqual((row["cases"], row["axes"], row["digest"], row["kernels_digest"]), (2, ["graph"], "00112233445566ff", self.digest()))
        self.assertIn("| logp | cuda | 2 | graph | `00112233445566ff` |", self.page())


class Page(Results):
    def test_is_what_the_summaries_say(self):
        self.write_raw("report-smoke.json", report([case(), case("fail", "invariance")]))
        self.write_raw("bench-logp.jsonl", "".join(json.dumps(one) + "\n" for one in (
            record("cuda", 0.5, ratio_to="torch-compile", ratio=1.9), record("torch-compile", 1.0))))
        self.write_raw("table-tests.txt", "gpu-tests                          PASS, 27 passed               44s  gpu-tests.log\n")
        self.summarize()
        page = self.page()
        self.assertIn("| logp forward | cuda | batch=1 seq=4 | 1 pass, **1 fail: invariance**; 2x | 2026-01-02 |", page)
        self.assertIn("| logp forward | seq=4 | cuda | 0.5 | - | 0.50 (100 GB/s) | - | torch-compile 1 ms (1.900x) | 2026-01-02 |", page)
        self.assertIn("| gpu-tests | PASS, 27 passed | 44 |", page)
        self.assertNotIn("**older than the kernels** |", page)
        self.run_script("page", "--check")

    def test_says_of_a_candidate_without_times_how_it_ended(self):
        failed = {key: value for key, value in record("cuda", 1.0).items() if key not in ("timing", "ms_median", "of_copy", "gbps")}
        self.write_raw("bench-logp.jsonl", "".join(json.dumps(one) + "\n" for one in (
            record("cuda", 0.5), record("cuda", 0.4, "sustained"), record("torch-compile", 1.0))))
        self.assertEqual(len(self.summarize()["bench"]), 3)
        self.write_raw("bench-logp.jsonl", "".join(json.dumps(one) + "\n" for one in (
            {**failed, "status": "out of memory"}, record("torch-compile", 1.0))))
        self.assertEqual(len(self.summarize()["bench"]), 2)
        self.assertIn("| logp forward | seq=4 | cuda | **out of memory** |  |  |  | torch-compile 1 ms | 2026-01-02 |", self.page())

    def test_has_kernels_from_elsewhere_among_the_recipes(self):
        def of(contract, cases, candidate="hf"):
            self.write_raw(f"frameworks-{candidate}-{contract}.json",
                           report(cases, candidate, contract={"hash": "0", "path": f"contracts/{contract}.json"}))

        def judged(verdict, kind="", under=None):
            output = {"name": "logp", "candidate_dtype": "fp32", "gates": [], "max_abs_error": 1e-6, "passes_under": under}
            return case(verdict, kind, outputs=[output])

        of("default", [judged("pass"), judged("fail", "accuracy", ["logp_in_16_bit"]), judged("vacuous", "empty")])
        of("framework", [judged("pass"), judged("pass"), judged("unsupported", "unsupported")])
        of("framework", [judged("fail", "accuracy")], "hf+tail")
        self.summarize()
        self.page()
        with open(os.path.join(self.tree, "docs", "recipes.md"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("| `hf` | logp forward | 1, 1 | 2, 0 | `logp_in_16_bit` | batch=1 seq=4 | 2026-01-02 |", text)
        self.assertIn("| `hf` | logp | tail | 0, 1 | - | 2026-01-02 |", text)
        self.assertTrue(text.startswith("# Recipes\n<!-- frameworks") and text.endswith("<!-- end of frameworks -->\n\n## More\n"))
        self.run_script("page", "--check")
        self.edit("docs/recipes.md", "| 2, 0 |", "| 3, 0 |")
        self.assertIn("docs/recipes.md:7: is not what", self.run_script("page", "--check", code=1))
        self.edit("docs/recipes.md", "<!-- end of frameworks -->", "")
        self.assertIn("needs the lines", self.run_script("page", code=1))

    def test_of_another_text_fails_the_check(self):
        self.write_raw("report-smoke.json", report([case()]))
        self.summarize()
        self.assertIn("docs/results.md:1: is not what", self.run_script("page", "--check", code=1))
        lines = self.page().splitlines()
        number = next(number for number, line in enumerate(lines, 1) if line.startswith("| logp forward |"))
        self.edit("docs/results.md", "| logp forward |", "| logp backward |")
        self.assertIn(f"docs/results.md:{number}: is not what", self.run_script("page", "--check", code=1))

    def test_marks_rows_older_than_their_kernel_once_its_code_changes(self):
        self.write_raw("report-smoke.json", report([case()]))
        self.write_raw("report-ci.json", report([case(op="silu")], "cuda-sm90"))
        self.summarize()
        self.page()
        self.edit("kernels/logp/cuda.cu", "// What this kernel is for.", "// What it is for.")
        self.run_script("page", "--check")
        self.edit("kernels/logp/cuda.cu", "a + +b", "b + +a")
        self.run_script("page", "--check", code=1)
        page = self.page()
        self.assertRegex(page, r"\| logp forward \|.*\| 2026-01-02, \*\*older than the kernels\*\* \|")
        self.assertRegex(page, r"\| silu forward \|.*\| 2026-01-02 \|")
        self.assertIn("| 1 of 2 |", page)

    def test_keeps_older_and_present_rows_of_one_kernel_apart(self):
        self.write_raw("report-smoke.json", report([case()]))
        self.summarize()
        self.edit("kernels/rows.cuh", "int rows();", "long rows();")
        os.remove(os.path.join(self.folder, "report-smoke.json"))
        self.write_raw("kernels.json", self.run_script("digests"))
        self.write_raw("report-ci.json", report([case("fail", "accuracy")], started="2026-02-01T00:00:00Z"))
        self.summarize()
        rows = re.findall(r"^\| logp forward \|.*$", self.page(), re.M)
        self.assertEqual([("1 pass" in row, "1 fail: accuracy" in row, "older than" in row) for row in rows],
                         [(False, True, False), (True, False, True)])

    def test_prune_keeps_what_no_other_device_has_shown_of_the_present_kernel(self):
        silu = [{**case(), "op": "silu"}]
        sanitizer_log = "check_operator --op logp --candidate cuda\n========= ERROR SUMMARY: 0 errors\n"
        self.write_raw("report-smoke.json", report([case(), case(dtype="fp32")]))
        self.write_raw("report-sm90.json", report(silu, "cuda-sm90"))
        self.write_raw("bench-logp.jsonl", json.dumps(record("cuda", 1.0)) + "\n")
        self.write_raw("sanitizer-logp-memcheck.log", sanitizer_log)
        self.write_raw("sanitizer-logp-racecheck.log", sanitizer_log)
        before = self.summarize()
        self.edit("kernels/logp/cuda.cu", "a + +b", "b + +a")
        for name in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, name))
        self.write_raw("kernels.json", self.run_script("digests"))
        self.write_raw("sanitizer-logp-memcheck.log", sanitizer_log)
        self.write_raw("sanitizer-logp-racecheck.log", "check_operator --op logp --candidate cuda\n")  # ran out of time
        for architecture, removed in (("sm80", 0), ("sm90", 2)):
            other = report([case("fail", "accuracy"), case(seq=9)], device={**DEVICE, "name": "H100", "arch_key": architecture})
            self.write_raw("report-smoke.json", other)
            path = os.path.join(os.path.dirname(self.summary), f"{architecture}.json")
            self.run_script("summarize", self.folder, "--into", path)
            self.run_script("prune")
            with open(self.summary, encoding="utf-8") as file:
                after = json.load(file)
            count = lambda summary: sum(len(rows) for rows in summary.values() if isinstance(rows, list))
            self.assertEqual(count(after), count(before) - removed, architecture)
        self.assertEqual([(row["op"], row["dtype"]) for row in after["checks"]], [("logp", "fp32"), ("silu", "bf16")])
        self.assertEqual([row["tool"] for row in after["sanitizers"]], ["racecheck"])
        self.assertEqual(after["bench"], before["bench"])

    def test_prune_keeps_a_present_failure_and_takes_no_cut_run_for_a_newer_one(self):
        other = os.path.join(os.path.dirname(self.summary), "h100.json")
        device = {**DEVICE, "name": "H100"}
        self.write_raw("report-smoke.json", report([case("fail", "accuracy"), case(dtype="fp32")], device=device))
        self.run_script("summarize", self.folder, "--into", other)
        for complete, dtypes in ((False, ["bf16", "fp32"]), (True, ["bf16"])):
            self.write_raw("report-smoke.json", report([case(), case(dtype="fp32")], started="2199-01-01T00:00:00Z", complete=complete))
            self.summarize()
            self.run_script("prune")
            with open(other, encoding="utf-8") as file:
                self.assertEqual([row["dtype"] for row in json.load(file)["checks"]], dtypes, complete)

    def test_prune_removes_an_older_suite_where_a_present_one_has_judged_unless_it_failed_alone(self):
        self.write_raw("report-large.json", report([case(), case(dtype="fp32"), case("fail", "accuracy", dtype="fp16")]))
        with_bits = case(bit_checks=[{"name": "logp", "axes": [], "rows": {"different": "", "same": "1-3"}, "smallest_rows": 0}])
        for suite in ("invariance", "invariance-ci"):
            self.write_raw(f"{suite}.json", report([with_bits, {**with_bits, "dtype": "fp32"}]))
        self.summarize()
        self.edit("kernels/logp/cuda.cu", "a + +b", "b + +a")
        for name in ("report-large.json", "invariance.json", "invariance-ci.json"):
            os.remove(os.path.join(self.folder, name))
        self.write_raw("kernels.json", self.run_script("digests"))
        by_size = [("invariance", "bf16"), ("invariance", "fp32")]  # tells at which numbers of rows the bits are others
        for complete, fp16, dtypes, bits in ((False, ["pass"], ["bf16", "bf16", "fp16", "fp16", "fp32"], ["bf16", "fp32"]),
                                             (True, ["pass"], ["bf16", "fp16", "fp16", "fp32"], ["fp32"]),
                                             (True, ["fail", "accuracy"], ["bf16", "fp16", "fp32"], ["fp32"])):
            self.write_raw("report-smoke.json", report([case(), case(*fp16, dtype="fp16")], complete=complete))
            self.summarize()
            self.run_script("prune")
            with open(self.summary, encoding="utf-8") as file:
                after = json.load(file)
            self.assertEqual(sorted(row["dtype"] for row in after["checks"]), dtypes, (complete, fp16))
            self.assertEqual([(row["suite"], row["dtype"]) for row in after["invariance"]],
                             by_size + [("invariance-ci", dtype) for dtype in bits], complete)

    def test_prune_removes_older_times_where_the_present_kernel_has_some_of_the_same_sizes(self):
        def write(*records):
            self.write_raw("bench-logp.jsonl", "".join(json.dumps(one) + "\n" for one in records))

        peer = {"is_peer": True, "tflops": 9.0}
        other = {"case": "logp-bf16-1x5", "dims": {"batch": 1, "seq": 5}, "run": "other"}
        write(record("cuda", 2.0), record("torch", 2.0, **peer), record("cuda", 3.0, **other), record("torch", 3.0, **other, **peer),
              record("cuda", 4.0, case="logp-bf16-1x4+bias", run="bias"))
        self.assertEqual([row.get("tflops") for row in self.summarize()["bench"]], [None] * 5)  # a peer's time says it
        self.edit("kernels/logp/cuda.cu", "a + +b", "b + +a")
        self.write_raw("kernels.json", self.run_script("digests"))
        drawn = {"case": "logp-bf16-1x4+mask#12g34", "run": "drawn"}
        write(record("cuda", 1.0, run="new", case="logp-bf16-1x4+mask"), record("cuda", 1.0, ratio_to="torch", ratio=1.5, **drawn),
              record("torch", 1.5, **drawn, **peer), record("compile", 1.7, **drawn, **peer),
              {"op": "logp", "pass": "forward", "candidate": "cuda", "status": "out of memory", "case": "logp-bf16-1x4+bias+lse", "dtype": "bf16",
               "dims": {"batch": 1, "seq": 4}, "run": "failed", "device": "NVIDIA H200", "date": "2026-01-02T03:04:05Z"})
        self.summarize()
        self.run_script("prune")
        with open(self.summary, encoding="utf-8") as file:
            after = json.load(file)["bench"]
        # A run has a name where another candidate shares it.
        self.assertEqual(sorted((row["candidate"], row["status"], row.get("run", row.get("extras"))) for row in after),
                         [("cuda", "ok", "+bias"), ("cuda", "ok", "+mask"), ("cuda", "ok", "drawn"), ("cuda", "ok", "other"),
                          ("cuda", "out of memory", "+bias+lse"), ("torch", "ok", "drawn"), ("torch", "ok", "other")])

    def test_marks_rows_whose_kernel_nobody_knows(self):
        os.remove(os.path.join(self.folder, "kernels.json"))
        self.write_raw("report-smoke.json", report([case()]))
        self.assertEqual(self.summarize()["checks"][0]["kernels_digest"], "unknown")
        self.assertIn("**older than the kernels** |", self.page())


if __name__ == "__main__":
    unittest.main()
