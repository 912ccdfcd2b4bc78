#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Validates JSON files against a JSON Schema: validate_json.py SCHEMA FILE...

Prints 'N files valid'. Exits 1 with the first error (file, path, what), 2 when called wrongly.
"""
import gzip
import json
import sys

import jsonschema


def refuse_duplicates(pairs):
    """json.load keeps the last of two equal keys; a reader of the file sees both."""
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"key {twice[0]!r} appears twice in one object")
    return dict(pairs)


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def load(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as stream:
        return json.load(stream, object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant)


def main(arguments):
    if len(arguments) < 2:
        print("usage: validate_json.py SCHEMA FILE...", file=sys.stderr)
        return 2
    schema_path, *paths = arguments
    path = schema_path
    try:
        schema = load(schema_path)
        validator_class = jsonschema.validators.validator_for(schema)
        validator_class.check_schema(schema)
        validator = validator_class(schema)
        for path in paths:
            error = jsonschema.exceptions.best_match(validator.iter_errors(load(path)))
            if error is not None:
                print(f"{path}: {error.json_path}: {error.message}", file=sys.stderr)
                return 1
    except jsonschema.exceptions.SchemaError as error:
        print(f"{schema_path}: not a schema: {error.json_path}: {error.message}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    print(f"{len(paths)} files valid")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
