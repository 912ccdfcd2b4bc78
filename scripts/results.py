#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""GPU results: maintains one summary per device in tests/gpu/results, and generates docs/results.md and a part of docs/recipes.md
from the summaries.

  results.py digests                        prints the digest of every CUDA kernel of the tree as JSON: {"logp/cuda": "..."}
  results.py summarize DIR [--into FILE]    merges the output of scripts/gpu.sh in DIR into the summary FILE, or prints the summary
  results.py prune                          removes rows of verdicts where the summary of another device of the same architecture has a row
                                            for them that is not older than its kernel: of several such rows the newest stays, and failures;
                                            and rows without failures that are older than their kernels, where the summary has a complete row
                                            of another suite that is not; so also rows of invariance that name neither a case nor an axis,
                                            and times that are older than their kernels, with those of their peers, where there are present
                                            times of the same sizes with these options or more; and times of peers in drawn sizes, but for the baseline's
  results.py page [--check]                 writes both pages; with --check exits 1 if one does not match the summaries

Every row of a summary has the date of the measurement and the digest of its kernel: `kernels_digest` covers the candidate's source and every
header that it includes in quotes, transitively, but for those of src/abi. Only what a compiler sees counts: comments, white space and #include lines are left out, and
the contents are hashed as a sorted list without their paths. So a row does not become outdated when a header moves or a comment
changes. The digest is null for a candidate without a source in kernels/ (an external peer), and "unknown" if DIR has no kernels.json;
a row with an unknown digest counts as older than its kernel.

The page compares these digests with the tree and marks rows that are older, so it must be generated again after a kernel changes.
"""
import argparse
import datetime
import glob
import gzip
import hashlib
import json
import math
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join("tests", "gpu", "results")
PAGE = os.path.join("docs", "results.md")
RECIPES_PAGE = os.path.join("docs", "recipes.md")
RECIPES_PART = ("<!-- frameworks: written by scripts/results.py page -->\n", "<!-- end of frameworks -->")
FORMAT = "check_operator/results-1"

# The key fields of a section's rows. A row of DIR replaces the row with the same key unless that one is newer. The timings of a
# candidate share a key and are replaced together, so that no old time hides that the candidate can't be timed any more.
KEYS = {
    "checks": ("op", "pass", "candidate", "dtype", "suite"),
    "bench": ("op", "pass", "dtype", "extras", "dims", "candidate"),
    "invariance": ("suite", "op", "pass", "dtype", "case", "candidate"),
    "certificates": ("op", "candidate"),
    "sanitizers": ("op", "candidate", "tool"),
    "ranks": ("op", "candidate", "dtype", "rows", "hidden", "vocab", "gpus"),
    "frameworks": ("candidate", "op", "pass", "contract", "fault"),
    "tests": ("name",),
}
# Fields of records of bench: the summary's device, and what other fields tell.
NOT_KEPT = ("device", "bytes", "flops", "distinct", "copy_gbps", "cublas_tflops", "repeats")
RATES = ("gbps", "of_copy", "tflops", "of_cublas")  # of a peer its times say them, beside the candidate's
VERDICTS = ("checks", "sanitizers")  # sections that hold for every device of an architecture; times hold for one device
FAILED = ("fail", "vacuous", "error", "timeout", "xpass")  # verdicts, without the part after a colon


def refuse(message):
    sys.exit(f"results.py: {message}")


# --- digests of kernels ---------------------------------------------------------------------------------------------------
LITERAL = r'R"([^()\\\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\b[ \t]*(?:"([^"\n]+)")?.*$', re.M)
INCLUDE_FOLDERS = ("kernels", "src", "src/abi")  # as in scripts/cmake/Kernels.cmake; the including file's own comes first
INTERFACE = "src/abi"  # declarations for every plugin; what a kernel takes from them stands in its own code
OPERATORS = "+-*/%<>=&|!:"


def without_comments(text):
    return re.sub(rf"{LITERAL}|//[^\n]*|/\*.*?\*/", lambda match: " " if match[0].startswith("/") else match[0], text, flags=re.S)


def normalized(text):
    """A file's own lines as a compiler sees them; white space stays only where two tokens would merge without it."""
    text = INCLUDE.sub("", without_comments(text)).strip()

    def shortened(match):
        if not (match[0].isspace() or match[0].startswith("\\")):
            return match[0]
        before, after = text[match.start() - 1], text[match.end()]
        words = all(character.isalnum() or character == "_" for character in (before, after))
        return " " if words or (before in OPERATORS and after in OPERATORS) else ""

    return re.sub(rf"{LITERAL}|(?:\\\n|\s)+", shortened, text, flags=re.S)


def add_sources(root, path, contents):
    """Reads the file, the files that it includes in quotes, and a .cpp beside a .hpp, which is linked into each kernel that
    includes it, into `contents`: {path: normalized text}. Not the INTERFACE: a member that is added there would make every
    kernel new."""
    path = os.path.normpath(path)
    if path in contents or os.path.dirname(path) == INTERFACE:
        return
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    contents[path] = normalized(text)
    for name in filter(None, INCLUDE.findall(without_comments(text))):
        places = [os.path.join(folder, name) for folder in (os.path.dirname(path), *INCLUDE_FOLDERS)]
        found = next((place for place in places if os.path.exists(os.path.join(root, place))), None)
        if found is None:
            refuse(f"{path}: includes \"{name}\", which is none of {', '.join(map(os.path.normpath, places))}; "
                   "correct the name, or add its folder to INCLUDE_FOLDERS in scripts/results.py")
        add_sources(root, found, contents)
    stem, extension = os.path.splitext(path)
    if extension == ".hpp" and os.path.exists(os.path.join(root, stem + ".cpp")):
        add_sources(root, stem + ".cpp", contents)


def digest_of(texts):
    """16 hex digits over the sorted digests of the texts, so that neither order nor path counts. Empty texts are skipped."""
    digests = sorted(hashlib.sha256(text.encode()).hexdigest() for text in texts if text)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


def kernel_digests(root=ROOT):
    """{"op/candidate": digest} of all CUDA candidates."""
    digests = {}
    for path in sorted(glob.glob(os.path.join(root, "kernels", "*", "*.cu"))):
        contents = {}
        add_sources(root, os.path.relpath(path, root), contents)
        op, name = os.path.split(os.path.relpath(path, os.path.join(root, "kernels")))
        digests[f"{op}/{os.path.splitext(name)[0].replace('_', '-')}"] = digest_of(contents.values())
    if not digests:
        refuse(f"{os.path.join(root, 'kernels')}: has no kernels/*/*.cu, run this in the project's source tree")
    return digests


def older(row, digests):
    """Whether the row's kernel has changed since the measurement, or may have."""
    digest = row["kernels_digest"]
    return digest is not None and digest != digests.get(f"{row['op']}/{row['candidate']}")


# --- output of gpu.sh -----------------------------------------------------------------------------------------------------
class Folder:
    """One folder of reports, and the summary rows made from its files."""

    def __init__(self, path):
        self.path = path
        if not os.path.isdir(path):
            refuse(f"{path}: is no folder; name the one that scripts/gpu.sh wrote to")
        kernels = os.path.join(path, "kernels.json")
        self.digests = self.load(kernels) if os.path.exists(kernels) else None
        self.device = None
        self.rows = {section: [] for section in KEYS}
        self.read_reports()
        self.read_invariance()
        self.read_bench()
        self.read_certificates()
        self.read_sanitizers()
        self.read_frameworks()
        self.read_tests()
        if not any(self.rows.values()):
            refuse(f"{path}: holds no report-*.json, invariance*.json, bench-*.jsonl, certificates/*.json, sanitizer-*.log, frameworks-*.json or table-*.txt")

    def files(self, *patterns):
        return sorted(path for pattern in patterns for path in glob.glob(os.path.join(self.path, pattern)))

    @staticmethod
    def text(path):
        try:
            with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8", errors="replace") as file:
                return file.read()
        except (OSError, EOFError) as error:
            refuse(f"{path}: can't be read: {error}; remove it, or copy it again")

    def load(self, path):
        try:
            return json.loads(self.text(path))
        except ValueError as error:
            refuse(f"{path}: is no JSON: {error}; a run may have been cut off, remove the file or measure again")

    def add(self, section, op, candidate, date, **fields):
        digest = "unknown" if self.digests is None else self.digests.get(f"{op}/{candidate}")
        self.rows[section].append({"op": op, "candidate": candidate, **fields, "kernels_digest": digest, "date": to_minute(date)})

    def on(self, device, path):
        """Records the device; a summary covers one kind of device."""
        if self.device and self.device["name"] != device["name"]:
            refuse(f"{path}: was made on '{device['name']}', other files of the folder on '{self.device['name']}'; summarize them apart")
        self.device = {**(self.device or {}), **device}

    def reports(self, *patterns):
        """(name, report, [(candidate, case)]) of every report."""
        for path in self.files(*patterns):
            report = self.load(path)
            if report.get("format") != "check_operator/report-1":
                refuse(f"{path}: its format is {report.get('format')!r}, expected 'check_operator/report-1'")
            self.on({key: report["device"][key] for key in ("name", "arch_key", "multiprocessors", "memory_bytes", "runtime")}, path)
            name = re.sub(r"^report-|\.json(\.gz)?$", "", os.path.basename(path))
            if "shard" in report:  # all shards of a run share one name
                name = re.sub(rf"-{report['shard']['index']}$", "", name)
            yield name, report, [(entry["backend"], case) for entry in report["candidates"] for case in entry["cases"]]

    def read_reports(self):
        groups = {}
        for name, report, cases in self.reports("report-*.json", "report-*.json.gz"):
            if name.startswith("frameworks-"):  # gpu.sh gives it another name when the run has ended
                continue
            for candidate, case in cases:
                group = groups.setdefault((name, case["op"], case["pass"], candidate, case["dtype"]), ([], []))
                group[0].append(report)
                group[1].append(case)
            ranks = re.fullmatch(r"ranks-(\d+)-(\d+)-(\d+)-(\d+)", name)
            if ranks:
                self.add_ranks(report, cases, *map(int, ranks.groups()))
        for (name, op, direction, candidate, dtype), (reports, cases) in groups.items():
            verdicts = count_verdicts(cases)
            if set(verdicts) == {"unsupported"}:  # nothing was judged
                continue
            rooms = {"wide": headroom(cases, False), "narrow": headroom(cases, True)}
            self.add("checks", op, candidate, max(report["volatile"]["started"] for report in reports),
                     **{"pass": direction}, dtype=dtype, suite=name, checks=len(cases), verdicts=verdicts,
                     least_headroom={kind: room for kind, room in rooms.items() if room is not None},
                     largest=largest(cases), contract=reports[0]["contract"]["hash"],
                     **({} if all(report["complete"] for report in reports) else {"complete": False}))

    def add_ranks(self, report, cases, gpus, rows, hidden, vocab):
        outputs = {output["name"]: output for _, case in cases for output in case["outputs"]}
        gold = outputs.get("dhidden", {}).get("gold_rows", "all")
        for candidate in sorted({candidate for candidate, _ in cases}):
            case = next(case for name, case in cases if name == candidate)
            self.add("ranks", case["op"], candidate, report["volatile"]["started"], dtype=case["dtype"], gpus=gpus, rows=rows, hidden=hidden,
                     vocab=vocab, max_abs_error={name: round_to(output["max_abs_error"], 3) for name, output in outputs.items()},
                     gold_rows=gold if isinstance(gold, str) else len(gold), verdicts=count_verdicts([case for _, case in cases]))

    def read_invariance(self):
        """One row per case of suite `invariance`, for the table by sizes; one row for all cases of any other run."""
        groups = {}
        for name, report, cases in self.reports("invariance*.json", "invariance*.json.gz"):
            for candidate, case in cases:
                key = (name, case["op"], case["pass"], candidate, case["dtype"], case["case_name"] if name == "invariance" else None)
                groups.setdefault(key, (report, []))[1].append(case)
        for (name, op, direction, candidate, dtype, alone), (report, cases) in groups.items():
            axes = sorted({axis["axis"] for case in cases for check in case["bit_checks"] for axis in check["axes"] if axis["different"]})
            self.add("invariance", op, candidate, report["volatile"]["started"], **{"pass": direction}, dtype=dtype, suite=name,
                     checks=len(cases), verdicts=count_verdicts(cases), axes=axes, **(bits_of(cases[0]) if alone else {}))

    def read_bench(self):
        for path in self.files("bench-*.jsonl"):
            for number, line in enumerate(self.text(path).splitlines(), 1):
                try:
                    record = json.loads(line)
                    op, candidate, date, device = (record.pop(key) for key in ("op", "candidate", "date", "device"))
                except (ValueError, KeyError) as error:
                    refuse(f"{path}:{number}: is no record of `check_operator bench --json`: {error!r}; remove the line or measure again")
                self.on({"name": device}, path)
                if record.get("pass") == "forward+backward":  # the sum of both, which their records have
                    continue
                # The digest is of the built plugin, which depends on the compiler.
                for name in ("kernels_digest", *NOT_KEPT, *(RATES if record.get("is_peer") else ())):
                    record.pop(name, None)
                extras = re.sub(r"^\w+-\w+-[\dx]+(@\d+(?![-\d]))?", "", record.pop("case", ""))  # behind operator, dtype, dims
                record["extras"] = re.sub(r"#\d+g\d+$", "#", extras) or None  # drawn: with any seeds
                self.add("bench", op, candidate, date, **{name: value for name, value in record.items() if value is not None})

    def read_certificates(self):
        for path in self.files("certificates/*.json"):
            certificate = self.load(path)
            content = certificate["content"]
            self.on({"name": content["device"]["name"]}, path)
            for op, candidate in sorted({(entry["op"], entry["candidate"]) for entry in content["entries"]}):
                entries = [entry for entry in content["entries"] if (entry["op"], entry["candidate"]) == (op, candidate)]
                changed = sorted({axis["axis"] for entry in entries for bits in entry["bits"] for axis in bits["axes"] if axis["different"]})
                self.add("certificates", op, candidate, written(path), cases=len(entries), axes=changed, digest=certificate["digest"])

    def read_sanitizers(self):
        rows = {}
        for path in self.files("sanitizer-*.log", "sanitizer-*.log.gz"):
            text = self.text(path)
            device = re.search(r"; device (\S.*) \((\w+)\)$", text, re.M)
            if device:
                self.on({"name": device[1], "arch_key": device[2]}, path)
            name = re.sub(r"^sanitizer-|\.log(\.gz)?$", "", os.path.basename(path))
            if name == "control":
                seen = "illegal write reported" if "Invalid __global__ write" in text else "BLIND: illegal write not seen"
                rows["matmul", "illegal_address", "memcheck"] = (path, seen, 1)
                continue
            tool, result = name.rsplit("-", 1)[1], sanitizer_result(text)
            ran = re.findall(r"^\[ +(?:OK|FAILED) +\] (\w+)/\w+ +(\S+) ", text, re.M)
            # gpu.sh writes its command first, because a log that ended early may name no operator.
            command = re.match(r"check_operator .*--op (\S+) .*--candidate (\S+)", text)
            named = [(op, command[2]) for op in command[1].split(",")] if command else []
            # A clean log outweighs a log of the same folder that ran out of time; errors outweigh both.
            weight = {"no summary": 0, "clean": 1}
            for key in ((op, candidate, tool) for op, candidate in {*ran, *named}):
                if key not in rows or weight.get(result, 2) >= weight.get(rows[key][1], 2):
                    rows[key] = (path, result, ran.count(key[:2]))
        for (op, candidate, tool), (path, result, checks) in rows.items():
            self.add("sanitizers", op, candidate, written(path), tool=tool, result=result, checks=checks)

    def read_frameworks(self):
        """One row per pass of a kernel from elsewhere, under a contract and with a fault or none."""
        groups = {}
        for _, report, cases in self.reports("frameworks-*.json", "frameworks-*.json.gz"):
            contract = re.sub(r"\.json$", "", os.path.basename(report["contract"]["path"]))
            for candidate, case in cases:
                name, _, fault = candidate.partition("+")
                groups.setdefault((name, case["op"], case["pass"], contract, fault), ([], []))
                group = groups[name, case["op"], case["pass"], contract, fault]
                group[0].append(report["volatile"]["started"])
                group[1].append(case)
        for (candidate, op, direction, contract, fault), (dates, cases) in groups.items():
            under = {name for case in cases for output in case["outputs"] for name in output["passes_under"] or ()}
            self.add("frameworks", op, candidate, max(dates), **{"pass": direction}, contract=contract, fault=fault,
                     verdicts=count_verdicts(cases), passes_under=sorted(under), largest=largest(cases))

    def read_tests(self):
        """Tests of the whole program, which have no kernel digest: the lines of gpu.sh's tables that belong to no report."""
        for path in self.files("table-*.txt"):
            for name, result, seconds in re.findall(r"^(\S+-tests|ranks-lost-\w+) +(\S.*?) +(\d+)s  ", self.text(path), re.M):
                self.rows["tests"].append({"name": name, "result": result, "seconds": int(seconds), "date": to_minute(written(path))})


def written(path):
    """Modification time of a file that contains no date."""
    return datetime.datetime.fromtimestamp(os.path.getmtime(path), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_minute(date):
    """2026-01-02T03:04Z of 2026-01-02T03:04:05Z"""
    return re.sub(r":\d\dZ$", "Z", date)


def size(dims):
    return math.prod(dims.values())


def largest(cases):
    """The sizes of the largest judged case; of the largest case if none was judged."""
    return max((case["dims"] for case in [case for case in cases if case["verdict"] != "unsupported"] or cases), key=size)


def round_to(value, digits):
    return float(f"{float(value):.{digits}g}") if math.isfinite(float(value)) else str(value)


def label(case):
    """A verdict, with its kind if that adds information: 'fail: invariance'."""
    verdict, kind = case["verdict"], case["kind"]
    return f"{verdict}: {kind}" if kind and kind != verdict else verdict


def count_verdicts(cases):
    labels = [label(case) for case in cases]
    return {name: labels.count(name) for name in sorted(set(labels))}


def headroom(cases, narrow):
    """Least headroom (limit / error) of all 16-bit outputs, or of all wider ones: None without outputs, "exact" without error."""
    values = [float(gate["headroom"]) for case in cases for output in case["outputs"] for gate in output["gates"]
              if (output["candidate_dtype"] in ("bf16", "fp16")) == narrow]
    finite = [value for value in values if math.isfinite(value)]
    return round_to(min(finite), 4) if finite else ("exact" if values else None)


def bits_of(case):
    """For the output whose bits changed most: at which numbers of rows, and the largest share of changed elements."""
    found = {"case": case["case_name"], "dims": case["dims"]}
    if not case["bit_checks"]:
        return found
    check = max(case["bit_checks"], key=lambda check: sum(axis["different"] for axis in check["axes"]))
    batch = [entry for axis in check["axes"] if axis["axis"] == "batch" for entry in axis["broken"]]
    worst = max(batch, key=lambda entry: entry["different"] / entry["compared"], default=None)
    return {**found, "output": check["name"], "rows_different": check["rows"]["different"], "rows_same": check["rows"]["same"],
            "smallest_rows": check["smallest_rows"], "changed": worst and [worst["different"], worst["compared"]]}


def sanitizer_result(text):
    errors = [int(count) for count in re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)]
    return (f"{sum(errors)} errors" if sum(errors) else "clean") if errors else "no summary"


# --- summaries ------------------------------------------------------------------------------------------------------------
def key_of(section, row):
    return json.dumps([row.get(field) for field in KEYS[section]], sort_keys=True)


def by_key(section, rows):
    """{key: rows}, with the latest row of each timing."""
    groups = {}
    for row in sorted(rows, key=lambda row: row["date"]):
        groups.setdefault(key_of(section, row), {})[row.get("timing", "")] = row
    return {key: [timings[timing] for timing in sorted(timings)] for key, timings in groups.items()}


def merged(summary, folder):
    """The summary, with rows that the folder measured again replaced."""
    summary = summary or {"format": FORMAT, "device": {}, "kernels_digest": "unknown", "date": ""}
    device, old = folder.device or {}, summary["device"]
    if device.get("name", old.get("name")) != old.get("name", device.get("name")):
        refuse(f"{folder.path}: was made on '{device['name']}', the summary is of '{old['name']}'; name another file with --into")
    latest = max(row["date"] for rows in folder.rows.values() for row in rows)
    result = {**summary, "device": {**old, **device}}
    if latest >= summary["date"]:
        digests = [f"{name} {digest}" for name, digest in (folder.digests or {}).items()]
        result.update(date=latest, kernels_digest=digest_of(digests) if digests else "unknown")
    for section, rows in folder.rows.items():
        kept = by_key(section, summary.get(section, []))
        for key, new in by_key(section, rows).items():
            if key not in kept or max(row["date"] for row in new) >= max(row["date"] for row in kept[key]):
                # A peer's process offers more than one operator: what it lacks has no row, nor an older time of it.
                kept[key] = [row for row in new if not (row.get("is_peer") and row["status"] == "unsupported")]
        result[section] = [row for key in sorted(kept) for row in kept[key]]
    # The name of a run says which candidates were timed beside each other.
    beside = {}
    for row in result.get("bench", []):
        beside.setdefault(row.get("run"), set()).add(row["candidate"])
    for row in result.get("bench", []):
        if len(beside[row.get("run")]) == 1:
            row.pop("run", None)
    return result


def as_text(summary):
    """JSON with one line per row, so that diffs of summaries are readable."""
    parts = []
    for name, value in summary.items():
        rows = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in value) if isinstance(value, list) else ""
        parts.append(f" {json.dumps(name)}: " + (f"[\n{rows}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_summary(path):
    try:
        with open(path, encoding="utf-8") as file:
            summary = json.load(file)
    except ValueError as error:
        refuse(f"{path}: is no JSON: {error}; take it from the repository again")
    if summary.get("format") != FORMAT:
        refuse(f"{path}: its format is {summary.get('format')!r}, expected {FORMAT!r}")
    return summary


# --- the page -------------------------------------------------------------------------------------------------------------
INTRODUCTION = """\
# Results on GPUs

For whoever wants to know what the shipped kernels have been shown to do on real hardware before using or changing them. The tables say, per
device, what was judged and with what verdict, how long kernels take beside libraries, which bits depend on the number of rows, how far
tensor-parallel kernels are from the exact answer, and what compute-sanitizer found.

`scripts/results.py page` writes this page from the summaries in `tests/gpu/results`, which `scripts/gpu.sh` makes. The last column of a
table says when a row was measured. **older than the kernels** there means that the kernel's code has changed since; such a row
says nothing certain about the present kernel.

"""
CORRECTNESS = """\
## Correctness

A cell counts checks by verdict and then says how often the worst error fits into its limit: first over outputs wider than 16 bits, then, in
parentheses, over 16-bit outputs, whose limit is seldom more than their rounding. `exact` means no error. `fail: invariance` for cuBLAS is a
finding and no defect of the check: cuBLAS chooses its kernel by the number of rows, so a row's bits depend on the batch. The attention
kernels of `cuda-sm90` round P and dS to 16 bits, as FlashAttention does: the default contract refuses that, `framework.json` allows it, and
rows that name it were judged by it.

"""
TIMES = """\
## Times

Median milliseconds of single launches (burst) and of launches back to back (sustained); the shares of a copy's bandwidth and of cuBLAS's
rate on one GPU are those of the burst. A peer's cell has its times and in parentheses the peer's time over the candidate's, burst and
sustained, where both were measured in turns: more than 1 means that the candidate is faster.

"""
INVARIANCE = """\
## Bits and the number of rows

Whether a row's bits depend on the rows beside it or on anything else but its values. The axes are those of `check_operator run --check
invariance,determinism`; the same bits are shown for the rows and addresses that were tried.

"""
CERTIFICATES = """\
### Certificates

What `check_operator certify` has written down of suite `ci` in bf16, to be compared with another machine's.

"""
SANITIZERS = """\
## compute-sanitizer

Each cell holds the finding and the number of checks that ran. `no summary` means that the tool ran out of time, which proves nothing. The
control is a kernel that writes to an illegal address: where it is not reported, the other rows count for nothing.

"""
RANKS = """\
## Tensor-parallel errors

The largest absolute errors against the FP64 gold, parts of uneven length, with a bias. RL-Kernel's own are those that it has published, of other
inputs against a reference of the same dtype; in bf16 most of a gradient's error is the rounding of its largest elements.

"""
TESTS = """\
## Tests of the program

Tests that need a GPU, and runs of which a process is killed or stopped: those have to end with exit code 4 in good time. No digest of a
kernel covers them; the date says how old they are.

"""
RANK_OUTPUTS = ("logp", "dhidden", "dlm_head_weight", "dbias")
# (rows, hidden, vocab): RL-Kernel's errors of RANK_OUTPUTS.
PUBLISHED = {(512, 1024, 8192): "3.05e-4, 6.25e-2, 6.25e-2, 1.56e-2", (256, 512, 4096): "1.07e-4, 3.13e-2, 3.13e-2, 1.95e-3"}
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
OF_THE_NUMBER = {"batch", "chunks", "padding"}  # axes that change the number of rows


def table(columns, rows):
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows]) + "\n\n"


def grouped(rows, *fields):
    """{values of the fields: rows}, in the order of the values."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[field] for field in fields), []).append(row)
    return dict(sorted(groups.items()))


class Page:
    """The page's text. If only some rows of a group are older than their kernel, they get a separate line."""

    def __init__(self, summaries, digests):
        self.summaries, self.digests = summaries, digests

    def measured(self, rows):
        day = min(row["date"] for row in rows)[:10]
        return f"{day}, **older than the kernels**" if any(older(row, self.digests) for row in rows) else day

    def parts(self, rows, *fields):
        """Like grouped(), but a group's older rows form a second group after its other rows."""
        for key, group in grouped(rows, *fields).items():
            for age in (False, True):
                part = [row for row in group if older(row, self.digests) is age]
                if part:
                    yield key, part

    def section(self, name, title, write):
        """The title, and for each device with rows of this section the text that `write` returns for them."""
        parts = [(device, summary[name]) for device, summary in self.summaries.items() if summary[name]]
        return title + "".join(f"On `{device}`:\n\n{write(rows)}" for device, rows in parts) if parts else ""

    def text(self):
        return (INTRODUCTION + self.devices() + self.section("checks", CORRECTNESS, self.correctness)
                + self.section("bench", TIMES, self.times) + self.section("invariance", INVARIANCE, self.invariance)
                + self.section("certificates", CERTIFICATES, self.certificates) + self.section("sanitizers", SANITIZERS, self.sanitizers)
                + self.section("ranks", RANKS, self.ranks) + self.section("tests", TESTS, self.tests)).rstrip() + "\n"

    def devices(self):
        lines = []
        for name, summary in self.summaries.items():
            device = summary["device"]
            rows = [row for section in KEYS if section not in ("tests", "frameworks") for row in summary[section]]
            old = sum(older(row, self.digests) for row in rows)
            gpus = re.search(r"-x(\d+)$", name)
            lines.append((f"`{name}`", (f"{gpus[1]} x " if gpus else "") + device["name"], device.get("arch_key", "-"),
                          device.get("multiprocessors", "-"), device.get("runtime", "-"), summary["date"][:10],
                          f"{old} of {len(rows)}" if old else f"none of {len(rows)}"))
        return table(("device", "GPUs", "architecture", "SMs", "CUDA", "measured last", "rows older than the kernels"), lines)

    def correctness(self, rows):
        dtypes = sorted({row["dtype"] for row in rows}, key=lambda dtype: ("fp64", "fp32", "fp16", "bf16").index(dtype))
        lines = []
        rows = [{**row, "under": ", `framework.json`" if row["suite"].endswith("-framework") else ""} for row in rows]
        for (op, direction, candidate, under), part in self.parts(rows, "op", "pass", "candidate", "under"):
            cells = [checks_cell([row for row in part if row["dtype"] == dtype]) for dtype in dtypes]
            lines.append((f"{op} {direction}", candidate + under, dims_text(max((row["largest"] for row in part), key=size)), *cells,
                          self.measured(part)))
        return table(("operator, pass", "candidate", "largest case", *dtypes, "measured"), lines)

    def times(self, rows):
        lines = []
        for (op, direction), part in grouped(rows, "op", "pass").items():
            cases = {}
            for row in part:
                cases.setdefault(key_of("bench", {**row, "candidate": ""}), []).append(row)
            for records in sorted(cases.values(), key=lambda records: order_of_sizes(records[0])):
                named = {record.get("ratio_to") for record in records}
                of = {name: {record.get("timing", ""): record for record in records if record["candidate"] == name}
                      for name in sorted({record["candidate"] for record in records})}
                peers = [name for name in of if name in named or f"{op}/{name}" not in self.digests]
                peers = [] if len(peers) == len(of) else peers
                for name in of:
                    if name not in peers:
                        beside = {peer: of[peer] for peer in peers}
                        used = [record for timings in (of[name], *beside.values()) for record in timings.values()]
                        lines.append((f"{op} {direction}", sizes_text(records[0]), name, *times_cells(of[name]),
                                      "; ".join(peer_text(peer, beside[peer], of[name]) for peer in peers) or "-", self.measured(used)))
        return table(("operator, pass", "sizes", "candidate", "burst, ms", "sustained, ms", "of a copy", "of cuBLAS", "peers", "measured"), lines)

    def invariance(self, rows):
        lines = []
        for (op, direction, candidate), part in self.parts(rows, "op", "pass", "candidate"):
            lines.append((f"{op} {direction}", candidate, ", ".join(sorted({row["dtype"] for row in part})), verdicts_text(total(part)),
                          ", ".join(sorted({axis for row in part for axis in row["axes"]})) or "none", self.measured(part)))
        products = [row for row in rows if row["suite"] == "invariance"]
        return (table(("operator, pass", "candidate", "dtypes", "cases", "axes that change bits", "measured"), lines)
                + (self.products(products) if products else ""))

    def products(self, rows):
        """One line per size of the weights about the candidate whose bits change; the other candidates are columns."""
        default = "cublas"
        others = sorted({row["candidate"] for row in rows} - {default})
        columns = ("weights", f"{default}: other bits at so many rows", "same bits at", "differs from the single-row result from",
                   "elements changed", "bits change also with", *others, "measured")
        text = ""
        for (op, dtype), of_op in grouped(rows, "op", "dtype").items():
            lines = []
            weights = [tuple(item for item in row["dims"].items() if item[0] not in ("batch", "seq")) for row in of_op]
            of_weights = grouped([{**row, "weights": of} for row, of in zip(of_op, weights)], "weights")
            for (sizes,), group in of_weights.items():
                of = {row["candidate"]: row for row in group}
                row = of.get(default, {"axes": ()})
                lines.append((dims_text(dict(sizes)), row.get("rows_different") or "none", row.get("rows_same") or "none",
                              row.get("smallest_rows") or "-", "{} of {}".format(*row["changed"]) if row.get("changed") else "none",
                              ", ".join(axis for axis in row["axes"] if axis not in OF_THE_NUMBER) or "-",
                              *(bits_cell(of.get(name)) for name in others), self.measured(group)))
            dims = of_op[0]["dims"]
            text += f"{op} in {dtype}, rows of a batch of {dims['batch'] * dims['seq']}, by size of the weights:\n\n" + table(columns, lines)
        return text

    def certificates(self, rows):
        return table(("operator", "candidate", "cases", "axes that change bits", "digest", "measured"),
                     [(row["op"], row["candidate"], row["cases"], ", ".join(row["axes"]) or "none", f"`{row['digest']}`", self.measured([row]))
                      for row in rows])

    def sanitizers(self, rows):
        lines = []
        for (op, candidate), part in self.parts(rows, "op", "candidate"):
            of = {row["tool"]: row for row in part}
            cells = [f"{bold(of[tool]['result'], 'clean', 'illegal write reported')}, {of[tool]['checks']}" if tool in of else "-" for tool in TOOLS]
            lines.append(("control" if candidate == "illegal_address" else op, candidate, *cells, self.measured(part)))
        return table(("operator", "candidate", *TOOLS, "measured"), lines)

    def ranks(self, rows):
        lines = []
        for row in sorted(rows, key=lambda row: (row["op"], row["candidate"], row["rows"], row["hidden"], row["vocab"], row["gpus"])):
            sizes = (row["rows"], row["hidden"], row["vocab"])
            errors = [error_text(row["max_abs_error"].get(name)) for name in RANK_OUTPUTS]
            lines.append((row["op"], row["candidate"], " x ".join(map(str, sizes)), row["dtype"], row["gpus"], *errors, row["gold_rows"],
                          verdicts_text(row["verdicts"]), PUBLISHED.get(sizes, "-"), self.measured([row])))
        return table(("operator", "candidate", "rows x hidden x vocab", "dtype", "GPUs", *RANK_OUTPUTS, "rows of the gold", "checks",
                      "RL-Kernel's own", "measured"), lines)

    def recipes(self):
        """The part of docs/recipes.md: how kernels from elsewhere fare, and the same with a fault planted."""
        text = ""
        for device, summary in self.summaries.items():
            rows = summary.get("frameworks", [])
            if not rows:
                continue
            lines, faults = [], []
            for (candidate, op, direction), group in grouped([row for row in rows if not row["fault"]], "candidate", "op", "pass").items():
                of = {row["contract"]: row for row in group}
                lines.append((f"`{candidate}`", f"{op} {direction}", *(judged_cell(of.get(name)) for name in ("default", "framework")),
                              recipes_text(of.get("default")), dims_text(group[0]["largest"]), self.measured(group)))
            for (name, op, fault), group in grouped([row for row in rows if row["fault"]], "candidate", "op", "fault").items():
                of = {row["pass"]: row for row in group}
                if any(judged(row) for row in group):
                    faults.append((f"`{name}`", op, fault, *(judged_cell(of.get(name)) for name in ("forward", "backward")),
                                   self.measured(group)))
            text += f"On `{device}`:\n\n" + table(("candidate", "operator, pass", "default: pass, fail", "framework: pass, fail",
                                                 "recipes that a default failure names", "largest case", "measured"), lines)
            if faults:
                text += (f"With one fault planted, under `framework`, on `{device}`:\n\n"
                         + table(("candidate", "operator", "fault", "forward: pass, fail", "backward: pass, fail", "measured"), faults))
        return text

    def tests(self, rows):
        return table(("test", "result", "seconds", "measured"), [(row["name"], row["result"], row["seconds"], row["date"][:10]) for row in rows])


def bold(text, *good):
    return text if text in good else f"**{text}**"


def dims_text(dims):
    return " ".join(f"{name}={value}" for name, value in dims.items())


def sizes_text(record):
    """The dims of a timing, and the rest of its case's name: options and the pattern of ignored rows, without its seeds."""
    extras = re.sub(r"(#\d*)?(g\d+)?$", "", record.get("extras", ""))
    extras = re.sub(r"~ignored0$", "", extras)  # no ignored rows: the default of timings
    return (dims_text({name: value for name, value in record["dims"].items() if (name, value) != ("batch", 1)}) + " " + extras).strip()


def order_of_sizes(record):
    """Sort key: sizes of the weights first, then the number of rows."""
    rows = {name: value for name, value in record["dims"].items() if name in ("batch", "seq")}
    return [value for name, value in record["dims"].items() if name not in rows], size(rows), record.get("extras", "")


def verdicts_text(verdicts):
    return ", ".join(f"**{count} {name}**" if name.split(":")[0] in FAILED else f"{count} {name}" for name, count in sorted(
        verdicts.items(), key=lambda item: (item[0] != "pass", item[0])))


def total(rows):
    """Counts of verdicts, summed over the rows."""
    verdicts = {}
    for name, count in (item for row in rows for item in row["verdicts"].items()):
        verdicts[name] = verdicts.get(name, 0) + count
    return verdicts


def checks_cell(rows):
    """'371 pass, 2 unsupported; 26.9x (1.02x)'"""
    if not rows:
        return "-"
    rooms = ""
    for kind, text in (("wide", " {}"), ("narrow", " ({})")):
        values = [row["least_headroom"][kind] for row in rows if kind in row["least_headroom"]]
        if values:
            numbers = [value for value in values if value != "exact"]
            rooms += text.format(f"{min(numbers):.3g}x" if numbers else "exact")
    cut = "" if all(row.get("complete", True) for row in rows) else ", **the run ended early**"
    return verdicts_text(total(rows)) + cut + (";" + rooms if rooms else "")


def judged(row):
    """(passed, failed) checks; None where none was judged. Empty cases are neither."""
    failed = sum(count for name, count in row["verdicts"].items() if name.split(":")[0] in FAILED and name != "vacuous: empty")
    passed = row["verdicts"].get("pass", 0)
    return (passed, failed) if passed + failed else None


def judged_cell(row):
    counts = judged(row) if row else None
    return f"{counts[0]}, {counts[1]}" if counts else "-"


def recipes_text(row):
    return ", ".join(f"`{name}`" for name in row["passes_under"]) if row and row["passes_under"] else "none"


def times_cells(timings):
    """Cells for burst, sustained, and the shares of the device's rates, from the first of the two timings that exists."""
    record = timings.get("burst") or timings.get("sustained")
    if record is None:
        return (f"**{next(iter(timings.values()))['status']}**", "", "", "")
    share = lambda of, rate, unit: f"{record[of]:.2f} ({record[rate]:.0f} {unit})" if record.get(of) is not None else "-"
    times = [f"{timings[name]['ms_median']:.4g}" if name in timings else "-" for name in ("burst", "sustained")]
    return (*times, share("of_copy", "gbps", "GB/s"), share("of_cublas", "tflops", "TFLOP/s"))


def peer_text(name, peer, ours):
    """'cublas 0.183, 0.205 ms (1.002x, 0.971x)'"""
    times, ratios = [], []
    for timing in ("burst", "sustained"):
        if timing not in peer:
            continue
        times.append(f"{peer[timing]['ms_median']:.4g}")
        mine = ours.get(timing, {})
        if mine.get("ratio_to") == name:  # paired, so that drifts of the clock cancel
            ratios.append(f"{mine['ratio']:.3f}x")
        elif mine.get("run") is not None and mine["run"] == peer[timing].get("run"):
            ratios.append(f"{peer[timing]['ms_median'] / mine['ms_median']:.3f}x")
    if not times:
        return f"{name} **{next(iter(peer.values()))['status']}**"
    return f"{name} {', '.join(times)} ms" + (f" ({', '.join(ratios)})" if ratios else "")


def error_text(error):
    return "-" if error is None else f"{float(error):.2e}"  # reports write NaN and Infinity as strings


def bits_cell(row):
    if row is None:
        return "-"
    if set(row["verdicts"]) == {"pass"}:
        return "same bits"
    return " ".join([verdicts_text(row["verdicts"]), *row["axes"]])


# --- the command line -----------------------------------------------------------------------------------------------------
def read_summaries(root):
    folder = os.path.join(root, RESULTS)
    names = sorted(name[:-len(".json")] for name in os.listdir(folder) if name.endswith(".json"))
    return {name: read_summary(os.path.join(folder, f"{name}.json")) for name in names}


def write_summary(path, summary):
    with open(path, "w", encoding="utf-8") as file:
        file.write(as_text(summary))


def fails(row):
    """Whether a row of verdicts or of a sanitizer has a failure."""
    return any(verdict.split(":")[0] in FAILED for verdict in row.get("verdicts", ())) or row.get("result", "clean") != "clean"


def subject_of(row):
    """What a row of checks or of invariance is about, in whatever suite"""
    return [row[name] for name in ("op", "pass", "candidate", "dtype")]


def newest_rows(summaries, digests):
    """Of the rows of verdicts that are not older than their kernels: (date, name of the summary) of the newest one, by architecture,
    section and key"""
    newest = {}
    for name, summary in sorted(summaries.items()):
        for section in VERDICTS:
            for row in summary.get(section, []):
                if row.get("result") != "no summary" and row.get("complete", True) and not older(row, digests):
                    key = (summary["device"].get("arch_key"), section, key_of(section, row))
                    newest[key] = max(newest.get(key, ("", "")), (row["date"], name))
    return newest


def kept_times(rows, digests):
    """The rows of bench without times that present ones of the same size replace, and without those of their peers. Of drawn sizes only
    the peer stays to which the ratio was taken."""
    timed = lambda row: [row.get(name) for name in ("op", "pass", "dtype", "dims", "candidate")]
    chosen = lambda row: set(re.split(r"(?=[+~#])", row.get("extras", "")))
    present = [(timed(row), chosen(row)) for row in rows if "ms_median" in row and not row.get("is_peer") and not older(row, digests)]
    is_replaced = lambda row: older(row, digests) and any(timed(row) == of and chosen(row) <= more for of, more in present)
    gone = {row["run"] for row in rows if "run" in row and is_replaced(row)}
    baseline = {row.get("run"): row["ratio_to"] for row in rows if row.get("ratio_to")}
    keeps_peer = lambda row: row.get("run") not in gone and (
        "#" not in row.get("extras", "") or row["candidate"] == baseline.get(row.get("run"), row["candidate"]))
    return [row for row in rows if (keeps_peer(row) if row.get("is_peer") else not is_replaced(row))]


def kept_checks(rows, digests):
    """The rows of checks without those that are older than their kernels, where a present one of another suite shows as much."""
    present = [row for row in rows if row.get("complete", True) and not older(row, digests)]
    is_shown = lambda row: any(subject_of(row) == subject_of(other) and (fails(other) or not fails(row)) for other in present)
    return [row for row in rows if not older(row, digests) or not is_shown(row)]


def kept_invariance(rows, checks, digests):
    """The rows of invariance without those that are older than their kernels, where present checks of suites, which look at invariance,
    too, are there. A row of one case says at which numbers of rows the bits are others."""
    present = [subject_of(row) for row in checks
               if row["suite"] in ("smoke", "ci") and row.get("complete", True) and not older(row, digests)]
    return [row for row in rows if fails(row) or "case" in row or row["axes"] or not older(row, digests) or subject_of(row) not in present]


def prune(options):
    summaries, digests = read_summaries(options.root), kernel_digests(options.root)
    newest = newest_rows(summaries, digests)
    for name, summary in summaries.items():
        count = lambda: sum(len(summary.get(section, [])) for section in (*VERDICTS, "bench", "invariance"))
        before, architecture = count(), summary["device"].get("arch_key")
        for section in VERDICTS:
            summary[section] = [row for row in summary.get(section, [])
                                if newest.get((architecture, section, key_of(section, row)), ("", name))[1] == name
                                or (fails(row) and not older(row, digests))]
        summary["bench"] = kept_times(summary.get("bench", []), digests)
        summary["checks"] = kept_checks(summary["checks"], digests)
        summary["invariance"] = kept_invariance(summary.get("invariance", []), summary["checks"], digests)
        removed = before - count()
        if removed:
            path = os.path.join(RESULTS, f"{name}.json")
            write_summary(os.path.join(options.root, path), summary)
            print(f"results.py: removed {removed} rows from {path}: there are newer ones")


def summarize(options):
    path = options.into
    summary = merged(read_summary(path) if path and os.path.exists(path) else None, Folder(options.folder))
    if not path:
        print(as_text(summary), end="")
        return
    write_summary(path, summary)
    print(f"results.py: wrote {path}: {', '.join(f'{len(summary[section])} {section}' for section in KEYS)}")


def with_part(text, part):
    """The page with the generated part between its marks replaced."""
    begin, end = RECIPES_PART
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        refuse(f"{RECIPES_PAGE}: needs the lines '{begin.strip()}' and '{end}', once each and in this order")
    return text[: text.index(begin) + len(begin)] + part.strip() + "\n" + text[text.index(end) :]


def page(options):
    pages = Page(read_summaries(options.root), kernel_digests(options.root))
    for path, text_of in ((PAGE, lambda present: pages.text()), (RECIPES_PAGE, lambda present: with_part(present, pages.recipes()))):
        place, present = os.path.join(options.root, path), ""
        if os.path.exists(place):
            with open(place, encoding="utf-8") as file:
                present = file.read()
        text = text_of(present)
        if not options.check:
            with open(place, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        if present != text:
            line = next(number for number, (a, b) in enumerate(zip(present.split("\n") + [None], text.split("\n") + [None]), 1) if a != b)
            refuse(f"{path}:{line}: is not what {RESULTS} and the kernels of this tree say; write it with `scripts/results.py page`")
        print(f"results.py: {path} is what the summaries say")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT, help="the source tree (default: the one that this script is in)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("digests").set_defaults(run=lambda options: print(json.dumps(kernel_digests(options.root), indent=1)))
    command = commands.add_parser("summarize")
    command.add_argument("folder", metavar="DIR", help="what scripts/gpu.sh wrote")
    command.add_argument("--into", metavar="FILE", help="summary to merge into, made where there is none")
    command.set_defaults(run=summarize)
    commands.add_parser("prune").set_defaults(run=prune)
    command = commands.add_parser("page")
    command.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is another")
    command.set_defaults(run=page)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
