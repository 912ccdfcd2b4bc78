#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks README.md and docs/*.md: its length, links, anchors, paths, and every check_operator command in them.

Usage: docs_test.py [--self-test|--write] PROGRAM SOURCE_DIR

--write writes the table of recipes.

Length    README.md has at most 150 lines.
Links     The target of every relative link exists, and so does the heading that its #anchor names. Headings of a page
          differ. A page of docs/ links to pages of docs/ only, since the site holds nothing else.
Paths     A word in backticks that begins with a top-level folder of the repository names a file or folder that exists
          (a glob: at least one). `build/` is not looked at, and GENERATED lists further exceptions.
Sources   In docs/architecture.md a word in backticks that is a name of a source file, with or without folders, is the end
          of a file's path, and a word such as `judge()` is a function of one outside tests/.
Commands  In blocks fenced as ```bash every line that runs check_operator is checked; other lines are not looked at, but
          for `python3 FILE`, which is run where FILE is a file of the page (see below), and `pytest FILE`, both with the
          Python package of this tree. In blocks fenced as ```sh commands
          are not run, but their flags must be known to --help.
            build/cpu/check_operator or check_operator with --device cpu, or a subcommand that needs no device: run. It must
                exit with 0, or with N where the line ends in `# exits N`.
            check_operator on a GPU: run as `--device cpu --list`, without its candidates, which checks operators, sizes and
                presets. Where it is a subcommand, or reads files that are not there: flags only.
            mpirun ... check_operator, srun ... check_operator: flags only.
          Commands of a page run in the order of the page in one temporary folder, which looks like the repository and
          where build/cpu is the program's own folder.
          What needs torch is not run where Python has none: `import`, --torch-op, --peer, and files that import it, also as
          the last word of --exec.
Output    A block fenced as ```text title="output" is a part of what the command before it prints.
Files     A block fenced as ```LANGUAGE title="NAME", of another name, is written to NAME in that folder before the page's
          commands run.
Mutants   Names in backticks in the last column of a table, if it is headed "mutants", are faults that `mutate` plants.
Recipes   The table between the comments of RECIPES in docs/recipes.md is what `show` says of every operator.
Contract  Where contracts/default.json is shown with a hash, it is that of the file.
"""
import glob
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

MOST_README_LINES = 150
SECONDS_PER_COMMAND = 60
# Files that pages may name although a checkout lacks them, because a script creates them. None at present.
GENERATED = ()
HAS_TORCH = importlib.util.find_spec("torch") is not None
NEED_TORCH = {"--torch-op", "--peer"}
LAUNCHERS = ("mpirun", "srun")
RECIPES = ("<!-- recipes: written by tests/program/docs_test.py --write -->\n", "<!-- end of recipes -->")
NEEDS_NO_DEVICE = ("mutate", "contract explain", "contract lint", "contract diff", "report", "report diff", "report merge",
                   "compare", "import", "show", "list", "verify", "completion")
DROPPED_FOR_LIST = ("--candidate", "--plugin", "--exec", "--exec-name", "--contract", "--timeout-s")
SUBCOMMANDS = ("run", "bench", "mutate", "recipe", "init", "doctor", "list", "show", "contract explain", "contract lint",
               "contract diff", "contract calibrate", "report", "report diff", "report merge", "certify", "verify", "compare", "import",
               "completion")

OUTPUT = re.compile(r"\n*```text title=\"output\"\n(.*?)^```\s*$", re.M | re.S)
FENCE = re.compile(r"^```(\w*)(?:[^\n]*title=\"([^\"]+)\")?[^\n]*\n(.*?)^```\s*$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
ARCHITECTURE = "docs/architecture.md"
SOURCES = ("src", "reference", "kernels", "python", "tests", "scripts")
SOURCE_FILE = re.compile(r"^[\w/-]+\.(?:cpp|hpp|cu|cuh|h|py|sh|cmake)$")
FAULT = re.compile(r'\{\s*"([a-z0-9_.]+)",\s*"')
MUTANTS = re.compile(r"^\|[^\n]*\| mutants \|\n\|[-|]+\|\n((?:\|[^\n]*\n)*)", re.M)


class Command(NamedTuple):
    line: int
    environment: dict
    words: list  # from the program's name on
    exit_code: int
    launched: bool
    is_run: bool  # from ```bash, not from ```sh
    output: str = ""  # a part of what it prints


def slug(heading):
    """The anchor of a heading, as GitHub and mkdocs make it."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda match: match[1] or "", heading.strip().lower())
    return re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", text))


def without_fences(text):
    """The text with fenced blocks blanked; line breaks are kept."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def anchors(text):
    return [slug(match[1]) for match in re.finditer(r"^#+ (.*)$", without_fences(text), re.M)]


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def pages_of(root):
    """{path: text}"""
    pages = {}
    for path in ["README.md"] + sorted(os.path.relpath(p, root) for p in glob.glob(os.path.join(root, "docs", "*.md"))):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            pages[path] = file.read()
    return pages


def check_length(pages):
    lines = pages.get("README.md", "").count("\n")
    if lines > MOST_README_LINES:
        yield f"README.md: {lines} lines are more than {MOST_README_LINES}; move something to docs/"


def check_links(root, pages):
    for path, text in pages.items():
        plain, own = without_fences(text), anchors(text)
        yield from (f"{path}: more than one heading '{anchor}'" for anchor in sorted(set(own)) if own.count(anchor) > 1)
        for match in LINK.finditer(re.sub(r"`[^`\n]*`", lambda m: " " * len(m[0]), plain)):
            target, where = match[1], f"{path}:{line_of(plain, match.start())}"
            if re.match(r"\w+:", target):
                continue
            name, _, anchor = target.partition("#")
            goal = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            if path.startswith("docs/") and not goal.startswith("docs/"):
                yield f"{where}: link to {target} leaves docs/, which the site does not hold; name the path in backticks"
            elif not os.path.exists(os.path.join(root, goal)) and goal not in GENERATED and goal not in pages:
                yield f"{where}: link to {target}: there is no {goal}"
            elif anchor and goal in pages and anchor not in anchors(pages[goal]):
                yield f"{where}: link to {target}: {goal} has no heading '{anchor}'"


def check_paths(root, pages):
    folders = [name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)) and name not in ("build", ".git")]
    begins = re.compile(rf"^(?:{'|'.join(map(re.escape, folders))})/[\w./*+-]*$")
    for path, text in pages.items():
        plain = without_fences(text)
        for match in CODE.finditer(plain):
            for word in match[1].split():
                if not begins.match(word) or word in GENERATED:
                    continue
                if not glob.glob(os.path.join(root, word)):
                    yield f"{path}:{line_of(plain, match.start())}: `{word}` does not exist"


def check_sources(root, pages):
    plain = without_fences(pages.get(ARCHITECTURE, ""))
    files = ["/" + os.path.relpath(os.path.join(folder, name), root) for top in SOURCES
             for folder, _, names in os.walk(os.path.join(root, top)) for name in names]
    texts = None
    for match in CODE.finditer(plain):
        where = f"{ARCHITECTURE}:{line_of(plain, match.start())}"
        for word in match[1].split():
            if SOURCE_FILE.match(word) and not any(path.endswith("/" + word) for path in files):
                yield f"{where}: no source file is named `{word}`"
            if call := re.fullmatch(r"(?:\w+::)*(\w+)\(\)", word):
                if texts is None:
                    texts = "\n".join(open(root + path, encoding="utf-8").read() for path in files
                                      if SOURCE_FILE.match(path[1:]) and not path.startswith("/tests/"))
                if not re.search(rf"\b{call[1]}\(", texts):
                    yield f"{where}: no source file has `{word}`"


def commands_of(text):
    """Every command of check_operator, or python3, in a block of bash or sh."""
    for block in FENCE.finditer(text):
        if block[1] not in ("bash", "sh"):
            continue
        line, is_run = line_of(text, block.start()) + 1, block[1] == "bash"
        shown, commands = OUTPUT.match(text, block.end()), []
        for raw in re.sub(r"\\\n", "\\\\ ", block[3]).split("\n"):
            here, line = line, line + 1 + raw.count("\\ ")
            expected = re.search(r"\s# exits (\d)\b", raw)
            words = shlex.split(raw.replace("\\ ", " "), comments=True)
            environment = {}
            while words and re.match(r"^[A-Z_]+=", words[0]):
                name, _, environment[name] = words.pop(0).partition("=")
            launched = bool(words) and words[0] in LAUNCHERS
            at = next((i for i, word in enumerate(words) if os.path.basename(word) == "check_operator"), None)
            if words[:1] == ["pytest"]:
                yield Command(here, environment, words, int(expected[1]) if expected else 0, False, is_run)
            if at is not None and (at == 0 or launched):
                commands.append(Command(here, environment, words[at:], int(expected[1]) if expected else 0, launched, is_run))
            elif words and words[0] == "python3":
                commands.append(Command(here, environment, words, int(expected[1]) if expected else 0, False, is_run))
        if shown and commands:
            commands[-1] = commands[-1]._replace(output=shown[1])
        yield from commands


def subcommand_of(words):
    """"" for a run, "contract lint", ..."""
    two = " ".join(words[1:3])
    return two if two in SUBCOMMANDS else words[1] if len(words) > 1 and words[1] in SUBCOMMANDS else ""


def value_of(words, flag):
    return words[words.index(flag) + 1] if flag in words[:-1] else None


def uses_torch(path):
    with open(path, encoding="utf-8") as file:
        return re.search(r"^import torch|\bshims\b", file.read(), re.M) is not None


class Program:
    """Runs check_operator the way the commands of a page call it."""

    def __init__(self, program, root, folder):
        self.program, self.folder = program, folder
        self.known = {}
        for name in os.listdir(root):
            if name not in ("build", ".git"):
                os.symlink(os.path.join(root, name), os.path.join(folder, name))
        os.mkdir(os.path.join(folder, "build"))
        os.symlink(os.path.dirname(program), os.path.join(folder, "build", "cpu"))
        self.package = {"PYTHONPATH": os.path.join(root, "python"), "CHECK_OPERATOR_PROGRAM": os.path.abspath(program)}

    def run(self, words, environment):
        """(exit code, output)"""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
        path = os.path.dirname(sys.executable) + os.pathsep + inherited.get("PATH", "")
        result = subprocess.run(words, cwd=self.folder, env={**inherited, "PATH": path, **environment}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_PER_COMMAND, check=False)
        return result.returncode, result.stdout

    def flags(self, subcommand):
        if subcommand not in self.known:
            _, text = self.run([self.program, *subcommand.split(), "--help"], {})
            self.known[subcommand] = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
        return self.known[subcommand]

    def check(self, command):
        """The error in a command; "" if there is none."""
        words = command.words
        if words[0] == "python3":
            path = os.path.join(self.folder, words[1])
            if not command.is_run or not os.path.exists(path) or (not HAS_TORCH and uses_torch(path)):
                return ""
            code, text = self.run([sys.executable, *words[1:]], {**self.package, **command.environment})
            return "" if code == command.exit_code else f"exits {code}, not {command.exit_code}:\n{text[-1500:]}"
        if words[0] == "pytest":
            plain = [sys.executable, "-m", "pytest", "-p", "check_operator.pytest_plugin", *words[1:]]
            code, text = self.run(plain, {**self.package, **command.environment}) if command.is_run else (command.exit_code, "")
            return "" if code == command.exit_code else f"exits {code}, not {command.exit_code}:\n{text[-1500:]}"
        subcommand = subcommand_of(words)
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in self.flags(subcommand)]
        if unknown:
            return f"unknown flag {unknown[0]}"
        if command.launched or not command.is_run or (not HAS_TORCH and self.needs_torch(subcommand, words)):
            return ""
        on_cpu = value_of(words, "--device") == "cpu" or subcommand in NEEDS_NO_DEVICE
        if words[0] == "build/cuda/check_operator" or not on_cpu:
            if subcommand not in ("", "run") or "--inputs" in words or "--replay" in words:
                return ""
            words = self.as_list(words)
        installed = self.package if words[0] == "check_operator" else {}  # as pip does, beside the package
        code, text = self.run([self.program, *words[1:]], {**installed, **command.environment})
        if code != command.exit_code:
            return f"exits {code}, not {command.exit_code}:\n{text[-1500:]}"
        return "" if command.output in text else f"prints otherwise than the block below it:\n{text[-1500:]}"

    def needs_torch(self, subcommand, words):
        served = os.path.join(self.folder, ((value_of(words, "--exec") or "").split() or [""])[-1])
        return subcommand == "import" or NEED_TORCH & set(words) or (os.path.isfile(served) and uses_torch(served))

    @staticmethod
    def as_list(words):
        kept, skipped = [words[0]], False
        for word in words[1:]:
            if not skipped and word not in (*DROPPED_FOR_LIST, "--device"):
                kept.append(word)
            skipped = word in (*DROPPED_FOR_LIST, "--device")
        return kept + ["--device", "cpu", "--list"]


def check_commands(program, root, pages):
    for path, text in pages.items():
        with tempfile.TemporaryDirectory() as folder:
            tool = Program(program, root, folder)
            for block in FENCE.finditer(text):
                if block[2] and block[2] != "output":
                    os.makedirs(os.path.dirname(os.path.join(folder, block[2])), exist_ok=True)
                    with open(os.path.join(folder, block[2]), "w", encoding="utf-8") as file:
                        file.write(block[3])
            for command in commands_of(text):
                began = time.monotonic()
                try:
                    wrong = tool.check(command)
                except subprocess.TimeoutExpired:
                    wrong = f"takes more than {SECONDS_PER_COMMAND} s"
                if wrong:
                    yield f"{path}:{command.line}: {shlex.join(command.words)}: {wrong}"
                if time.monotonic() - began > 5:
                    print(f"{path}:{command.line}: took {time.monotonic() - began:.0f} s", file=sys.stderr)


def recipe_table(program):
    """The recipes of all operators as a table in Markdown, from `show`."""
    def said_by(*words):
        return subprocess.run([program, *words], text=True, stdout=subprocess.PIPE, check=True).stdout

    rows = {}  # (operator, pass) -> lines; operators with the same ones share them
    for operator in re.findall(r"^(\w+) +\S", said_by("list").partition("\npresets")[0], re.M):
        direction, lines = "", {}
        for line in re.sub(r"\n {12}(?=\S)", " | ", said_by("show", operator)).split("\n"):
            if re.fullmatch(r"  (forward|backward)", line):
                direction = line.strip()
            if line.startswith("    recipe "):
                name, outputs, formula, dtypes, kind, source = re.fullmatch(
                    r"    recipe  (\S+) +([^:]+): (.*) \| ([^;]+); ([^;]+); (.*)", line).groups()
                exact = "yes" if kind == "the gold rounds there, too" else "no"
                formula = formula.replace("|", "\\|")
                lines.setdefault(direction, []).append(
                    f"| `{name}` | {outputs} | {dtypes} | {exact} | `{formula}` | {source} |")
        for direction, found in lines.items():
            rows.setdefault((direction, tuple(found)), []).append(operator)
    table = ["| operator, pass | recipe | outputs | dtypes | exact | formula | rounded there by |", "|---|---|---|---|---|---|---|"]
    for (direction, found), operators in rows.items():
        table += [f"| {', '.join(operators)} {direction} {line}" for line in found]
    return "\n".join(table) + "\n"


def planted_faults(root):
    """The names of all faults: of emulated kernels, of spoiled results and of misbehaviour."""
    names = set()
    for pattern in ("reference/emulation/*", "src/mutate/*", "src/operator/emulation.hpp"):
        for path in glob.glob(os.path.join(root, pattern)):
            with open(path, encoding="utf-8") as file:
                names.update(FAULT.findall(file.read()))
    return names


def check_mutants(root, pages):
    known = None
    for page, text in pages.items():
        for table in MUTANTS.finditer(text):
            known = known or planted_faults(root)
            for row in table[1].splitlines():
                for name in CODE.findall(row.rstrip(" |").rpartition("|")[2]):
                    if name not in known:
                        yield f"{page}:{line_of(text, text.find(row))}: no fault is named '{name}'; see reference/emulation/ and src/mutate/"


def check_recipes(program, pages):
    """Of pages that have the comments of RECIPES."""
    for path, text in pages.items():
        if RECIPES[0] in text and text.partition(RECIPES[0])[2].partition(RECIPES[1])[0] != recipe_table(program):
            yield f"{path}: the table of recipes is not what `show` says; run docs_test.py --write"


def check_contract(program, root, pages):
    """Quoted outputs name the default contract with its hash."""
    shown = re.compile(r"contracts/default\.json \(([0-9a-f]{16})\)")
    command = [program, "--op", "silu", "--candidate", "native", "--device", "cpu", "--batch", "1", "--seq", "1", "--hidden", "1"]
    text = subprocess.run(command, cwd=root, text=True, stdout=subprocess.PIPE, check=True).stdout
    known = shown.search(text)[1]
    for path, text in pages.items():
        for match in shown.finditer(text):
            if match[1] != known:
                yield f"{path}:{line_of(text, match.start())}: contracts/default.json has the hash {known}, not {match[1]}"


def write_recipes(program, root):
    path = os.path.join(root, "docs", "recipes.md")
    with open(path, encoding="utf-8") as file:
        head, _, rest = file.read().partition(RECIPES[0])
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + RECIPES[0] + recipe_table(program) + RECIPES[1] + rest.partition(RECIPES[1])[2])


def findings(program, root, pages):
    yield from check_length(pages)
    yield from check_links(root, pages)
    yield from check_paths(root, pages)
    yield from check_sources(root, pages)
    yield from check_mutants(root, pages)
    yield from check_recipes(program, pages)
    yield from check_contract(program, root, pages)
    yield from check_commands(program, root, pages)


# Errors that the test must find, and their messages.
FAULTS = (
    ("151 lines", "line\n" * 151, "151 lines are more than 150"),
    ("broken link", "[x](docs/none.md)\n", "there is no docs/none.md"),
    ("broken anchor", "# One\n[x](#two)\n", "has no heading 'two'"),
    ("two equal headings", "# One\n## One\n", "more than one heading 'one'"),
    ("missing path", "`src/none.cpp`\n", "`src/none.cpp` does not exist"),
    ("unknown mutant", "| bug | mutants |\n|---|---|\n| x | `wrong_label`, `none_such` |\n", "no fault is named 'none_such'"),
    ("unknown flag", "```bash\ncheck_operator --op logp --vocabulary 7 --device cuda\n```\n", "unknown flag --vocabulary"),
    ("unknown operator on a GPU", "```bash\ncheck_operator --op logq --device cuda\n```\n", "exits 2, not 0"),
    ("other exit code", "```bash\ncheck_operator --op silu --device cpu --hidden 7  # exits 1\n```\n", "exits 0, not 1"),
    ("unknown flag in a block that is not run", "```sh\ncheck_operator --op none --devise cpu\n```\n", "unknown flag --devise"),
    ("other output", "```bash\ncheck_operator --op silu --device cpu --list\n```\n```text title=\"output\"\nno such line\n```\n",
     "prints otherwise"),
    ("other table of recipes", RECIPES[0] + "| none |\n" + RECIPES[1] + "\n", "is not what `show` says"),
    ("other hash", "contract contracts/default.json (0123456789abcdef); device\n", "has the hash"),
    ("unknown flag under MPI", "```bash\nmpirun -np 2 check_operator --world 2\n```\n", "unknown flag --world"),
)
# The same, in docs/architecture.md.
FAULTS_OF_ARCHITECTURE = (
    ("missing source file", "`judge/none.cpp` and `verdict.cpp`\n", "no source file is named `judge/none.cpp`"),
    ("missing function", "`judge()` and `no_such_call()`\n", "no source file has `no_such_call()`"),
)
SOUND = "# One\n\n[x](#one) [y](README.md) `src/` `build/x`\n```bash\nls --nothing\ncheck_operator --op none --device cpu  # exits 2\n```\n"


def self_test(program, root):
    failures = [f"a sound page: {finding}" for finding in findings(program, root, {"README.md": SOUND})]
    for page, (name, text, expected) in ([("README.md", fault) for fault in FAULTS] +
                                         [(ARCHITECTURE, fault) for fault in FAULTS_OF_ARCHITECTURE]):
        found = list(findings(program, root, {page: text}))
        if len(found) != 1 or expected not in found[0]:
            failures.append(f"{name}: expected '{expected}', found {found}")
    return failures


def main():
    arguments = sys.argv[1:]
    option = arguments.pop(0) if arguments[:1] in (["--self-test"], ["--write"]) else ""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    program, root = map(os.path.abspath, arguments)
    if option == "--write":
        write_recipes(program, root)
        return 0
    found = self_test(program, root) if option else list(findings(program, root, pages_of(root)))
    for finding in found:
        print(finding)
    print(f"docs_test.py: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
