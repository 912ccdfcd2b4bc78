#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Validates JUnit XML against the rules that Ant's and Jenkins' schemas share: validate_junit.py FILE...

Checks the order of elements, the types of attributes, and that counts match the test cases.
Prints 'N files valid'. Exits 1 with the first error (file, element, what), 2 when called wrongly.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

COUNT, TIME, TEXT = r"\d+", r"\d+(\.\d+)?", r"(?s).+"
DATE = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}"
COUNTS = {"tests": COUNT, "failures": COUNT, "errors": COUNT, "time": TIME}
# element: (required attributes, optional ones, children as a regular expression over "name " words)
SCHEMA = {
    "testsuites": (COUNTS, {}, r"(testsuite )*"),
    "testsuite": ({**COUNTS, "name": TEXT, "id": COUNT, "package": TEXT, "timestamp": DATE, "hostname": TEXT},
                  {"skipped": COUNT}, r"properties (testcase )*system-out system-err "),
    "properties": ({}, {}, r"(property )*"),
    "property": ({"name": TEXT, "value": r"(?s).*"}, {}, ""),
    "testcase": ({"name": TEXT, "classname": TEXT, "time": TIME}, {}, r"((skipped|error|failure) )?"),
    "failure": ({"type": TEXT}, {"message": r"(?s).*"}, ""),
    "error": ({"type": TEXT}, {"message": r"(?s).*"}, ""),
    "skipped": ({}, {"message": r"(?s).*"}, ""),
    "system-out": ({}, {}, ""),
    "system-err": ({}, {}, ""),
}


def check(element):
    """Yields 'ELEMENT: what is wrong'."""
    if element.tag not in SCHEMA:
        yield f"{element.tag}: no such element"
        return
    required, optional, children = SCHEMA[element.tag]
    for name in required.keys() - element.attrib.keys():
        yield f"{element.tag}: attribute '{name}' is missing"
    for name, value in element.attrib.items():
        pattern = {**required, **optional}.get(name)
        if pattern is None:
            yield f"{element.tag}: attribute '{name}' is unknown"
        elif not re.fullmatch(pattern, value):
            yield f"{element.tag}: {name}={value!r} does not match {pattern}"
    words = "".join(child.tag + " " for child in element)
    if not re.fullmatch(children, words):
        yield f"{element.tag}: children '{words.strip()}' do not match {children}"
    for child in element:
        yield from check(child)


def check_counts(root):
    for suite in [root, *root.findall("testsuite")]:
        for name, path in (("tests", ""), ("failures", "/failure"), ("errors", "/error"), ("skipped", "/skipped")):
            found = len(suite.findall(f".//testcase{path}"))
            if name in suite.attrib and suite.attrib[name] != str(found):
                yield f"{suite.tag}: {name}={suite.attrib[name]}, and there are {found}"


def main(paths):
    if not paths:
        print("usage: validate_junit.py FILE...", file=sys.stderr)
        return 2
    for path in paths:
        try:
            root = ElementTree.parse(path).getroot()
            errors = [*check(root), *check_counts(root)]
            if root.tag != "testsuites":
                errors.insert(0, f"{root.tag}: the root must be testsuites")
        except (OSError, ElementTree.ParseError) as error:
            errors = [str(error)]
        if errors:
            print(f"{path}: {errors[0]}", file=sys.stderr)
            return 1
    print(f"{len(paths)} files valid")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
