#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the source tree: who may include whom, where CUDA may appear, NaN-safe comparisons, tests of messages.

Usage: lint.py [--root DIR] | lint.py --graph [--root DIR] | lint.py --write [--root DIR] | lint.py --self-test
--graph prints which folder of src/ includes which, with the number of includes, besides the findings.
--write puts what CUDA kernels say into tests/data/cuda_messages.txt, to be read before it is committed.
Errors read `file:line: rule: message`; exit 1 when there are any, 2 for a wrong command line.
A line is excused from a rule by a comment that says why: `// lint: allow RULE, REASON`.
"""
import argparse
import os
import re
import sys
from typing import NamedTuple

# The build's own list of the folders of src/, in layering order.
LAYERS_FILE = "scripts/cmake/Layers.cmake"
LAYERS_LINE = re.compile(r"^set\(CHECK_OPERATOR_LAYERS ([a-z_ ]+)\)$", re.M)
# The gold may use the definition of an operator, the error type for wrong inputs and a macro for loops, nothing else of src/.
REFERENCE_MAY_INCLUDE = {"operator/operator.hpp", "operator/emulation.hpp", "operator/model.hpp", "base/error.hpp",
                         "base/vector_clones.hpp", "cblas.h"}

TOP_FOLDERS = (".ci", "cases", "contracts", "docs", "kernels", "reference", "scripts", "src", "tests")
CODE = (".c", ".cpp", ".cu", ".cuh", ".h", ".hpp")
SOURCE = CODE + (".cmake", ".py", ".sh")
TEXT = SOURCE + (".json", ".md", ".txt")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_HEADER = re.compile(r"^(cuda|cublas|cusparse|cusolver|curand|cudnn|cutlass/|cute/|cub/|thrust/|nccl\.|nvrtc|nvml|"
                         r"cooperative_groups|mma\.h|sm_\d|driver_types|device_launch_parameters|vector_types)")
CUDA_CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\bCHECK_OPERATOR_CUDA\b")
LIMIT = r"\w*(?:bound|tol|limit|threshold)\w*"
ERROR = r"\w*(?:err|error|diff|delta|ratio|achieved)\w*"
ACCESS = r"(?:\w+(?:\.|->|::))*"
NAN_UNSAFE = (
    re.compile(rf"\s>=?\s+{ACCESS}{LIMIT}", re.I),
    re.compile(rf"(?<![\w.>]){ACCESS}{LIMIT}(?:\(\))?\s<=?\s+(?:std::)?(?:f?abs\(|{ACCESS}{ERROR})", re.I),
    re.compile(rf"(?<![\w.>]){ACCESS}\w*(?:err|error)\w*(?:\(\))?\s>=?\s+(?!0\b)", re.I),
)
PRINTING = re.compile(r"\bstd::(cout|cerr|clog)\s*<<|\b[fv]?printf\s*\(|\bf?puts\s*\(|\bputchar\s*\(|\bfmt::print\b")
# worker/child.cpp, worker/rank_server.cpp: separate processes, which report fatal errors on stderr.
MAY_PRINT = re.compile(r"^src/(cli/.*|session/.*|report/.*|worker/(child|rank_server)\.cpp)$")
ATOMIC = re.compile(r"\batomic[A-Z]\w*\s*\(|\bcuda::atomic|\bstd::atomic|\"[^\"]*\b(?:red|atom)\.[a-z]")
# Calls whose strings are told to the user: errors of the input and the machine, how a candidate or its process ended,
# what a native kernel refuses. JsonValue::fail() is one, and lambdas of this name do the same.
TELLS = {"InputError", "EnvironmentError", "fail", "Stopped", "Failure", "WireError", "ProcessEnded", "DeviceError",
         "OutOfMemory", "Refusal", "OtherIntegers", "refuse"}
# Files that print nearly all of their strings: the reasons of verdicts, and lines of the terminal.
TELLS_ALL = ("src/judge/verdict.cpp", "src/judge/diagnosis.cpp", "src/judge/trivial.cpp", "src/case/axes.cpp",
             "src/report/vacuity.cpp", "src/report/certificate.cpp", "src/session/control.cpp")
# No test here can bring about what these say: a fault of the GPU or of MPI.
TELLS_UNTESTED = ("src/device/cuda_", "src/device/nccl_comm.", "src/worker/mpi.cpp")
# Nor what kernels say that only a GPU runs. Somebody reads their sentences in this list, which is exactly that of the
# sources. Exempt are words of what was done when a call of CUDA failed, "launch logp forward": say() puts CUDA's own words
# behind them.
UNTESTED_CODE = (".cu", ".cuh")
CUDA_TELLS = {"say", "Refusal", "refuse"}
CUDA_MESSAGES = "tests/data/cuda_messages.txt"
CUDA_MESSAGES_HEAD = "# What CUDA kernels say of a call, {} for numbers and names. Written by scripts/lint.py --write.\n"
PRINTF = re.compile(r"%[0-9.]*(?:ll|l|z)?[a-z]")
# Of these files only errors of the input and the machine count. The rest tells of a plugin's process that breaks the
# protocol, which the shipped program never does.
TELLS_ERRORS = ("src/plugin_host/", "src/run/plugin_host.cpp")
ERRORS = {"InputError", "EnvironmentError"}
TOKEN = re.compile(r'R"\((?P<raw>.*?)\)"|"(?P<plain>(?:\\.|[^"\\\n])*)"|(?P<name>[A-Za-z_]\w*)|'
                   r"'(?:\\.|[^'\\\n])'|::|\S", re.S)
ESCAPES = {"n": "\n", "t": "\t"}
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
TABLE_LINE = re.compile(r"^extern const Operator k\w+;\s*//\s*(\w+)\.cpp")


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def layers_of(files):
    """The folders of src/ in layering order, read from the build."""
    match = LAYERS_LINE.search(files.get(LAYERS_FILE, ""))
    return match[1].split() if match else []


def without_comments(text):
    """The text with comments blanked; line breaks and strings are kept."""
    blank = lambda match: match.group() if match.group()[0] in "\"'" else re.sub(r"[^\n]", " ", match.group())
    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/', blank, text, flags=re.S)


def includes(text):
    """(line number, "<" or '"', header) of every include directive."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


def folder_includes(files):
    """(path, line number, folder of src/, header, its folder) of every include from one file of src/ to another."""
    for path, text in sorted(files.items()):
        # The public headers are installed side by side, and include each other so.
        if path.startswith("src/") and not path.startswith(("src/sdk/", "src/abi/")) and path.endswith(CODE):
            for number, quote, header in includes(text):
                if quote == '"':
                    yield path, number, path.split("/")[1], header, header.split("/")[0]


def check_layers(files):
    order = layers_of(files)
    if not order:
        yield Finding(LAYERS_FILE, 1, "layer", "expected a line 'set(CHECK_OPERATOR_LAYERS base ...)'")
        return
    for path in sorted(files):
        if path.startswith("src/") and path.endswith(CODE) and path.split("/")[1] not in order + ["sdk"]:
            yield Finding(path, 1, "layer", f"lies in no folder of {LAYERS_FILE}: {' '.join(order)}")
    for path, number, own, header, other in folder_includes(files):
        if own not in order:
            continue
        if "/" not in header or other not in order:
            yield Finding(path, number, "layer", f"'{header}': write the folder of src/ that it is in, \"judge/compare.hpp\"")
        elif order.index(other) > order.index(own):
            yield Finding(path, number, "layer", f"{own}/ may not include '{header}': {other}/ comes after it in the layering")


def print_graph(files):
    """Prints one line per folder of src/, in layering order: the folders that it includes, and how often."""
    order = layers_of(files)
    counts = {}
    for _, _, own, _, other in folder_includes(files):
        if own != other:
            counts[own, other] = counts.get((own, other), 0) + 1
    for own in order:
        row = [f"{other} {counts[own, other]}{'' if order.index(other) < order.index(own) else ' UPWARDS'}"
               for other in order if (own, other) in counts]
        print(f"{own:9} -> {', '.join(row) or 'nothing'}")


def check_foreign_includes(path, text, files):
    """reference/ and kernels/ may include almost nothing of src/."""
    folder = os.path.dirname(path)
    for number, quote, header in includes(text):
        if quote == "<":
            continue
        local = os.path.normpath(os.path.join(folder, header))
        if path.startswith("reference/"):
            of_reference = any(option.startswith("reference/") and option in files for option in (local, "reference/" + header))
            if header not in REFERENCE_MAY_INCLUDE and not of_reference:
                yield Finding(path, number, "reference-include",
                              f"'{header}': the gold includes only {', '.join(sorted(REFERENCE_MAY_INCLUDE))} and headers of reference/")
        elif header != "check_operator.h" and not CUDA_HEADER.match(header):
            if not any(option in files for option in (local, "kernels/" + header)) or not local.startswith("kernels/"):
                yield Finding(path, number, "kernel-include",
                              f"'{header}': a kernel includes only check_operator.h and headers of kernels/")


def check_cuda_headers(path, text):
    if path.startswith(("kernels/", "src/sdk/init/", "tests/gpu/", "src/device/cuda_", "src/device/nccl_comm.")):
        return
    for number, _, header in includes(text):
        if CUDA_HEADER.match(header):
            yield Finding(path, number, "cuda-header",
                          f"'{header}' belongs in kernels/, src/sdk/init/, src/device/cuda_*, src/device/nccl_comm.* or tests/gpu/ alone")


def check_cuda_condition(files):
    places = [(path, number) for path, text in sorted(files.items()) if path.endswith(CODE)
              for number, line in enumerate(text.splitlines(), 1) if CUDA_CONDITION.match(line)]
    seen = False
    for path, number in places:
        if path != "src/device/device.cpp" or seen:
            yield Finding(path, number, "cuda-condition", "only the factory has a condition on CHECK_OPERATOR_CUDA")
        seen = seen or path == "src/device/device.cpp"
    if not seen:
        yield Finding("src/device/device.cpp", 1, "cuda-condition", "the factory's '#ifdef CHECK_OPERATOR_CUDA' is missing")


def check_head(path, lines):
    """SPDX first (after #!), then a comment that says what the file is for."""
    if path.startswith("src/sdk/init/"):
        return  # templates become files of users, under their own licence
    first = 1 if lines and lines[0].startswith("#!") else 0
    if len(lines) <= first or "SPDX-License-Identifier: Apache-2.0" not in lines[first]:
        yield Finding(path, first + 1, "head", "the first line must say 'SPDX-License-Identifier: Apache-2.0'")
        return
    purpose = lines[first + 1].strip() if len(lines) > first + 1 else ""
    if not re.match(r'^(//|#(?!include|pragma|if|define)|\*|/\*|""")\s*\S.{8,}', purpose):
        yield Finding(path, first + 2, "head", "the second line must be a comment that says what the file is for")


def check_lines(path, text):
    """Rules about single lines of C++ and CUDA."""
    raw_lines = text.splitlines()
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if re.match(r"^src/(judge|run/invariance)/.*\.(cpp|hpp)$", path):
            if any(pattern.search(line) for pattern in NAN_UNSAFE):
                yield Finding(path, number, "nan-compare",
                              "false for a NaN, so a NaN would pass; write !(error <= bound) instead")
        if path.startswith("src/") and not MAY_PRINT.match(path) and PRINTING.search(line):
            yield Finding(path, number, "printing", "only cli/, session/, report/ and worker processes print")
        if path.startswith("kernels/") and ATOMIC.search(line):
            if not any("// order-free:" in near for near in raw_lines[max(0, number - 8):number]):
                yield Finding(path, number, "atomic", "atomics come in another order each run; use none, or say why "
                              "the result does not depend on it: '// order-free: WHY'")


class Literal(NamedTuple):
    text: str  # of neighbouring strings, joined; {} for what stands between two with `+`
    statement: int  # how many semicolons stand before it
    line: int
    told: str  # the call that tells it to the user; "" for none


class Bracket:
    """An open bracket, and the string that is being read in it."""

    def __init__(self, name, line):
        self.name, self.line = name, line  # of the call
        self.parts, self.in_operand = [], False  # whether a `+` has come after the last part

    def add(self, text, line):
        if not self.parts:
            self.begin = line
        self.parts.append("{}" + text if self.in_operand else text)
        self.in_operand = False

    def goes_on(self, token):
        """Whether the string may have further parts after this token of the same bracket."""
        if token == "+":
            self.in_operand = True
        return self.in_operand and token not in (",", ";", "?", ":", "<<")


def literals(text, tells=frozenset(TELLS)):
    """The strings of C++ code. `tells`: the calls that tell theirs to the user."""
    code = without_comments(text)
    line_of = lambda at: code.count("\n", 0, at) + 1
    found, open_brackets, last, statement = [], [Bracket("", 0)], "", 0

    def end(bracket):
        if bracket.parts and not any(each.name == "static_assert" for each in open_brackets):
            call = next((each for each in open_brackets if each.name in tells), None)
            found.append(Literal("".join(bracket.parts), statement, call.line if call else bracket.begin,
                                 call.name if call else ""))
        bracket.parts, bracket.in_operand = [], False

    for token in TOKEN.finditer(code):
        bracket = open_brackets[-1]
        if token["raw"] is not None or token["plain"] is not None:
            bracket.add(token["raw"] if token["plain"] is None else
                        re.sub(r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), token["plain"]),
                        line_of(token.start()))
            continue
        if bracket.parts and (token[0] in ")]}" or not bracket.goes_on(token[0])):
            end(bracket)
        if token[0] in "([{":
            open_brackets.append(Bracket(last, line_of(token.start())))
        elif token[0] in ")]}" and len(open_brackets) > 1:
            open_brackets.pop()
        statement += token[0] == ";"
        last = token[0]
    return found


def texts_of_tests(files):
    """What tests expect: their data, and the strings of each statement in one line."""
    lines = []
    for path, text in sorted(files.items()):
        if path.startswith("tests/") and path.endswith(CODE):
            statements = {}
            for literal in literals(text):
                statements.setdefault(literal.statement, []).append(literal.text.replace("\n", " "))
            lines += [" ".join(strings) for strings in statements.values()]
        elif path.startswith("tests/") and path != CUDA_MESSAGES:
            lines.append(text)
    return "\n".join(lines)


def cuda_messages(files):
    """{what stands in CUDA_MESSAGES: (path, line)} for the sentences of CUDA kernels."""
    found = {}
    for path, text in sorted(files.items()):
        if path.startswith("kernels/") and path.endswith(UNTESTED_CODE):
            for literal in literals(text, CUDA_TELLS):
                sentence = PRINTF.sub("{}", literal.text.replace("\n", " ")).strip()
                if literal.told and len(re.findall(r"[A-Za-z]{2,}", sentence)) > 1:
                    found.setdefault(f"{path}: {sentence}", (path, literal.line))
    return found


def check_cuda_messages(files):
    said = cuda_messages(files)
    listed = {line: number for number, line in enumerate(files.get(CUDA_MESSAGES, "").splitlines(), 1) if line[:1] != "#"}
    for sentence, (path, line) in said.items():
        if sentence not in listed:
            yield Finding(path, line, "message", f"{CUDA_MESSAGES} lacks '{sentence.partition(': ')[2]}'; run lint.py --write, and read "
                          "there what it adds")
    for sentence, line in listed.items():
        if sentence not in said:
            yield Finding(CUDA_MESSAGES, line, "message", f"no kernel says '{sentence}'; run lint.py --write")


def is_shown(message, texts):
    """Whether for every line of the format string `message` a line of `texts` has all of it, with anything for its {}."""
    for line in message.strip().split("\n"):
        parts = [part.replace("\1", "{").replace("\2", "}")
                 for part in re.split(r"\{[^{}]*\}", line.strip().replace("{{", "\1").replace("}}", "\2"))]
        longest = max(parts, key=len)
        at = texts.find(longest)
        while at >= 0:
            begin, end = texts.rfind("\n", 0, at) + 1, texts.find("\n", at)
            end = end if end >= 0 else len(texts)
            for part in parts:  # each behind the one before it
                begin = texts.find(part, begin, end)
                if begin < 0:
                    break
                begin += len(part)
            if begin >= 0:
                break
            at = texts.find(longest, end)
        else:
            return False
    return True


def check_messages(files):
    """Every sentence of an error or a verdict occurs in a test, so that somebody has read it as it is printed."""
    texts = texts_of_tests(files)
    for path, text in sorted(files.items()):
        if not path.startswith(("src/", "reference/", "kernels/")) or not path.endswith(CODE):
            continue
        if path.startswith(TELLS_UNTESTED) or path.endswith(UNTESTED_CODE):
            continue
        for literal in literals(text):
            words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^{}]*\}", " ", literal.text))
            if literal.told:
                told = len(words) > 1 and (literal.told in ERRORS or not path.startswith(TELLS_ERRORS))
            else:
                told = len(words) > 2 and " " in literal.text and path in TELLS_ALL
            if told and not is_shown(literal.text, texts):
                yield Finding(path, literal.line, "message", f"no test shows '{literal.text.strip()}'; add the command that "
                              "prints it to tests/data/messages/, or a test that compares the whole message")


def check_operators(files):
    """An operator has a file or folder of the same name in four places."""
    table = files.get("reference/operators.cpp", "")
    names = {}
    for number, line in enumerate(table.splitlines(), 1):
        if match := TABLE_LINE.match(line):
            names[match[1]] = number
    for name, number in names.items():
        for needed in (f"reference/{name}.cpp", f"cases/{name}.json"):
            if needed not in files:
                yield Finding("reference/operators.cpp", number, "stems", f"operator '{name}' has no {needed}")
    plugins = {}
    for path in sorted(files):
        parts = path.split("/")
        if parts[0] == "kernels" and len(parts) == 3 and parts[1] not in ("control", "cpu") and path.endswith((".cpp", ".cu")):
            plugins.setdefault(parts[1], path)
    for folder, path in plugins.items():
        if folder not in names or f"reference/{folder}.cpp" not in files:
            yield Finding(path, 1, "stems", f"kernels/{folder}/ names no operator of reference/operators.cpp")


def lint(files):
    """All findings in a tree given as {path: text}, except findings excused on their line or the line above."""
    findings = list(check_cuda_condition(files)) + list(check_operators(files)) + list(check_layers(files))
    findings += check_messages(files)
    findings += check_cuda_messages(files)
    for path, text in sorted(files.items()):
        lines = text.splitlines()
        name = os.path.basename(path)
        if path.endswith(SOURCE) or name in ("CMakeLists.txt", ".clang-tidy") or path == ".ci/run":
            findings += check_head(path, lines)
        for number, line in enumerate(lines, 1):
            if match := UNFINISHED.search(line):
                findings.append(Finding(path, number, "unfinished", f"'{match[1]}': finish it, or write an issue"))
        if path.endswith(CODE):
            findings += check_cuda_headers(path, text)
            findings += check_lines(path, text)
            if path.startswith(("reference/", "kernels/")):
                findings += check_foreign_includes(path, text, files)

    def excused(finding):
        lines = files.get(finding.path, "").splitlines()[max(0, finding.line - 2):finding.line]
        return any(re.search(rf"lint: allow {finding.rule}, \S", line) for line in lines)

    return sorted(finding for finding in findings if not excused(finding))


def read_tree(root):
    """{path: text} of the project's text files below `root`, without build folders and other people's files."""
    files = {}
    for folder, folders, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        if relative == ".":
            folders[:] = [name for name in folders if name in TOP_FOLDERS]
        else:
            folders[:] = [name for name in folders if name not in ("__pycache__", "results")]
        for name in names:
            path = os.path.normpath(os.path.join(relative, name))
            if path.endswith(TEXT) or path in (".ci/run", ".clang-tidy"):
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    files[path] = file.read()
    return files


HEAD = "// SPDX-License-Identifier: Apache-2.0\n// What this file is for.\n"
CLEAN = {
    LAYERS_FILE: "# SPDX-License-Identifier: Apache-2.0\n# The folders of src/.\n"
                 "set(CHECK_OPERATOR_LAYERS base abi operator contract device plugin_host run judge report session cli)\n",
    "src/device/device.cpp": HEAD + '#include "base/error.hpp"\n#ifdef CHECK_OPERATOR_CUDA\n#endif\n',
    "src/device/cuda_device.cpp": HEAD + "#include <cuda_runtime_api.h>\n",
    "src/base/error.hpp": HEAD,
    "src/judge/compare.cpp": HEAD + '#include "contract/contract.hpp"\nif (!(error <= bound)) ++bad;  // not error > bound\n'
                              "std::vector<double> bound;\nif (n > 0) f(a->limit);\n",
    "src/report/text.cpp": HEAD + '#include "report/report.hpp"\nfmt::print("x");\n',
    "src/run/runner.cpp": HEAD + "std::snprintf(text, 3, text);\n",
    "reference/operators.cpp": HEAD + "extern const Operator kLogp;  // logp.cpp\n",
    "reference/logp.cpp": HEAD + '#include <cmath>\n\n#include "operator/operator.hpp"\n#include "softmax.hpp"\n',
    "reference/softmax.hpp": HEAD,
    "cases/logp.json": "{}\n",
    "kernels/cuda/common.cuh": HEAD + "#include <cuda_bf16.h>\n",
    "kernels/logp/cuda.cu": HEAD + '#include "cuda/common.cuh"\n#include "check_operator.h"\n'
                                   "// order-free: integers commute\natomicAdd(&n, 1);\n",
    "src/contract/reader.cpp": HEAD + 'throw InputError(path, fmt::format("has {} rules, "\n    "{{{}}} at most", n), "remove one");\n'
                               'json.fail("one rule", hint); log("never shown");\n'
                               'static_assert(n > 1, "the reader needs two"); '
                               'throw WireError("byte " + std::to_string(n) + (n ? "" : "?") + " is missing");\n',
    "src/judge/verdict.cpp": HEAD + 'text += ": not one of them"; key = "two words";\n',
    "kernels/logp/native.cpp": HEAD + 'throw Refusal(kFailed, std::string(name) + ": no data in " + where + "!");\n',
    "kernels/logp/cuda_sm90.cu": HEAD + 'throw Refusal(kFailed, "only a GPU says this");\nf(call, "launch the logits");\n'
                                 'return say(call, kFailed, "%lld of %s, at most %.3g", n);\n',
    CUDA_MESSAGES: "# Read.\nkernels/logp/cuda_sm90.cu: only a GPU says this\nkernels/logp/cuda_sm90.cu: {} of {}, at most {}\n",
    "src/plugin_host/main.cpp": HEAD + 'throw WireError("never sent by us");\n',
    "tests/unit/contract/reader_test.cpp": HEAD + 'EXPECT_EQ(said, "c.json: has 7 rules, {3} at most" + end + "; remove one");\n',
    "tests/unit/judge/verdict_test.cpp": HEAD + 'EXPECT_EQ(said, "byte 7 is missing: not one of them");\n'
                                         'EXPECT_EQ(said, "x: no data in " + path + "!");\n',
    "tests/data/messages/contracts.txt": "c.json: expected one rule, got 2\n",
    "src/sdk/init/rms_norm.cu": "#include <cuda_runtime.h>\n",
    "scripts/x.sh": "#!/bin/bash\n# SPDX-License-Identifier: Apache-2.0\n# What this script is for.\n",
}
# rule, path, text that the rule must flag there; None removes the file.
VIOLATIONS = (
    ("layer", "src/judge/compare.cpp", HEAD + '#include "session/session.hpp"\n'),
    ("layer", "src/judge/compare.hpp", HEAD + '#include "report/report.hpp"\n'),
    ("layer", "src/run/invariance/contexts.cpp", HEAD + '#include "judge/compare.hpp"\n'),
    ("layer", "src/judge/compare.cpp", HEAD + '#include "bound.hpp"\n'),
    ("layer", "src/judge/compare.cpp", HEAD + '#include "../run/runner.hpp"\n'),
    ("layer", "src/operator/operator.cpp", HEAD + '#include "../../reference/softmax.hpp"\n'),
    ("layer", "src/misc.cpp", HEAD),
    ("layer", "src/commands/run.cpp", HEAD),
    ("layer", LAYERS_FILE, None),
    ("reference-include", "reference/logp.cpp", HEAD + '#include "case.hpp"\n'),
    ("reference-include", "reference/logp.cpp", HEAD + '#include "../src/gold.hpp"\n'),
    ("kernel-include", "kernels/logp/cuda.cu", HEAD + '#include "dtype.hpp"\n'),
    ("kernel-include", "kernels/logp/native.cpp", HEAD + '#include "../../reference/softmax.hpp"\n'),
    ("cuda-header", "src/run/runner.cpp", HEAD + "#include <cuda_runtime_api.h>\n"),
    ("cuda-header", "reference/logp.cpp", HEAD + "#include <cublas_v2.h>\n"),
    ("cuda-header", "tests/unit/judge/compare_test.cpp", HEAD + "#include <cuda_bf16.h>\n"),
    ("cuda-condition", "src/run/runner.cpp", HEAD + "#ifdef CHECK_OPERATOR_CUDA\n#endif\n"),
    ("cuda-condition", "src/device/plugin.cpp", HEAD + "#if defined(CHECK_OPERATOR_CUDA)\n#endif\n"),
    ("cuda-condition", "src/device/device.cpp", HEAD + "#ifdef CHECK_OPERATOR_CUDA\n#endif\n" * 2),
    ("cuda-condition", "src/device/device.cpp", HEAD),
    ("head", "src/run/runner.cpp", "// What this file is for.\n"),
    ("head", "src/run/runner.cpp", "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"),
    ("head", "scripts/x.sh", "#!/bin/bash\n# What this script is for.\n"),
    ("head", "tests/CMakeLists.txt", "add_executable(x)\n"),
    ("message", "src/contract/reader.cpp", HEAD + 'throw InputError(path, fmt::format("has {} rules, one is the most", n));\n'),
    ("message", "src/cli/main.cpp", HEAD + 'throw EnvironmentError("no GPU");\n'),
    ("message", "reference/logp.cpp", HEAD + 'json.fail("two rules", hint);\n'),
    ("message", "kernels/logp/native.cpp", HEAD + 'throw Refusal(kFailed, "no data in " + where + "?");\n'),
    ("message", "kernels/logp/native.cpp", HEAD + 'refuse((n ? "" : "x: ") + words + " or no data", kFailed);\n'),
    ("message", "src/run/stage.cpp", HEAD + 'throw Stopped{RunStatus::failed, fmt::format("{} gave up", what)};\n'),
    ("message", "src/plugin_host/main.cpp", HEAD + 'throw InputError(path, "no plugin", "");\n'),
    ("message", "src/judge/verdict.cpp", HEAD + 'text += ": none of them";\n'),
    ("message", "tests/data/messages/contracts.txt", None),
    ("message", CUDA_MESSAGES, None),
    ("message", "kernels/logp/cuda_sm90.cu", HEAD),
    ("message", "kernels/logp/cuda.cu", HEAD + 'return say(call, kFailed, "%lld rows are too many", rows);\n'),
    ("message", "kernels/logp/native.cpp", HEAD + 'throw Refusal(kFailed, "only a GPU says this");\n'),
    ("nan-compare", "src/judge/compare.cpp", HEAD + "if (error > bound) ++bad;\n"),
    ("nan-compare", "src/judge/compare.cpp", HEAD + "if (std::abs(a - b) > gate.atol) ++bad;\n"),
    ("nan-compare", "src/judge/compare.cpp", HEAD + "if (err >= tol) ++bad;\n"),
    ("nan-compare", "src/judge/verdict.cpp", HEAD + "bad = gate.limit < gate.achieved;\n"),
    ("nan-compare", "src/judge/compare.cpp", HEAD + "if (max_error > 1e-3) ++bad;\n"),
    ("nan-compare", "src/judge/compare.cpp", HEAD + "if (bound < std::abs(error)) ++bad;\n"),
    ("printing", "src/run/runner.cpp", HEAD + 'std::cout << "x";\n'),
    ("printing", "src/judge/compare.cpp", HEAD + 'std::fprintf(stderr, "x");\n'),
    ("atomic", "kernels/logp/cuda.cu", HEAD + "atomicAdd(&sum, x);\n"),
    ("atomic", "kernels/logp/cuda.cu", HEAD + 'asm volatile("red.global.add.f32 [%0], %1;");\n'),
    ("unfinished", "src/run/runner.cpp", HEAD + "// TO" + "DO: later\n"),
    ("unfinished", "cases/logp.json", '{"why": "FIX' + 'ME"}\n'),
    ("stems", "kernels/logpp/native.cpp", HEAD),
    ("stems", "cases/logp.json", None),
    ("stems", "reference/logp.cpp", None),
)


def self_test():
    failures = [f"clean tree: {finding}" for finding in lint(CLEAN)]
    for rule, path, text in VIOLATIONS:
        tree = {**CLEAN, path: text}
        if text is None:
            del tree[path]
        found = {finding.rule for finding in lint(tree)}
        if rule not in found:
            failures.append(f"{path}: not flagged as '{rule}' (flagged: {sorted(found)}): {text!r}")
    excuse = {**CLEAN, "src/judge/compare.cpp": HEAD + "if (error > bound) f();  // lint: allow nan-compare, counts\n"}
    failures += [f"excused line: {finding}" for finding in lint(excuse)]
    for failure in failures:
        print(f"lint.py: self-test: {failure}")
    print(f"lint.py: self-test: {len(VIOLATIONS)} violations, {len(failures)} failures")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--root", default=os.path.dirname(here), help="the checkout")
    parser.add_argument("--graph", action="store_true", help="print which folder of src/ includes which, too")
    parser.add_argument("--write", action="store_true", help="write what CUDA kernels say")
    parser.add_argument("--self-test", action="store_true", help="feed violations to every rule; all must be flagged")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    files = read_tree(arguments.root)
    if LAYERS_FILE not in files:
        print(f"lint.py: no source tree at '{arguments.root}'; give its root with --root", file=sys.stderr)
        return 2
    if arguments.write:
        files[CUDA_MESSAGES] = CUDA_MESSAGES_HEAD + "".join(line + "\n" for line in sorted(cuda_messages(files)))
        with open(os.path.join(arguments.root, CUDA_MESSAGES), "w", encoding="utf-8") as file:
            file.write(files[CUDA_MESSAGES])
    if arguments.graph:
        print_graph(files)
    findings = lint(files)
    for finding in findings:
        print(finding)
    print(f"lint.py: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
