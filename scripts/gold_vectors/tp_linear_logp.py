# SPDX-License-Identifier: Apache-2.0
"""Vectors of tp_linear_logp: linear_logp's, divided among three ranks if there are enough columns; the formulas are the same."""
import linear_logp


def vectors():
    for given in linear_logp.vectors():
        dims = {**given["dims"], "world_size": min(3, given["dims"]["vocab"])}
        if given["attrs"]["temperature"] != 1 or given["attrs"]["softcap"] != 0:
            continue  # the operator has no such attributes
        attrs = {"ignore_index": given["attrs"]["ignore_index"], "canonical_segments": 0}
        yield {**given, "name": "tp_" + given["name"], "op": "tp_linear_logp", "dims": dims, "attrs": attrs}
