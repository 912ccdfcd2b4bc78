# SPDX-License-Identifier: Apache-2.0
"""A candidate that declines every case, with what the request says of outputs for a message.

Usage: tells_outputs.py OP PASS
"""
import json
import sys


def say(answer):
    print(json.dumps(answer), flush=True)


sys.stdin.readline()
say({"protocol": 1, "kernels": [{"op": sys.argv[1], "pass": sys.argv[2]}]})
for line in sys.stdin:
    run = json.loads(line)["run"]
    lists = {"wanted": [each["name"] for each in run["want"]], "forward": run["forward_outputs"],
             "optional": run["optional_outputs"]}
    say({"id": run["id"], "status": "unsupported",
         "message": "; ".join(f"{name}: {' '.join(names)}" for name, names in lists.items())})
