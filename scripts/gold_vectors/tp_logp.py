# SPDX-License-Identifier: Apache-2.0
"""Vectors of tp_logp: logp's, divided among three ranks if there are enough columns; the formulas are the same."""
import logp


def vectors():
    for given in logp.vectors():
        dims = {**given["dims"], "world_size": min(3, given["dims"]["vocab"])}
        if given["attrs"]["temperature"] != 1 or given["attrs"]["softcap"] != 0:
            continue  # the operator has no such attributes
        attrs = {"ignore_index": given["attrs"]["ignore_index"], "canonical_segments": 0}
        yield {**given, "name": "tp_" + given["name"], "op": "tp_logp", "dims": dims, "attrs": attrs}
