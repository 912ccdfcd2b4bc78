# SPDX-License-Identifier: Apache-2.0
"""Vectors of tp_logp: logp's, divided among three ranks if there are enough columns; the formulas are the same."""
import logp


def vectors():
    for given in logp.vectors():
        dims = {**given["dims"], "world_size": min(3, given["dims"]["vocab"])}
        usual = {"temperature": 1, "softcap": 0, "top_k": 0, "top_p": 1}
        if any(given["attrs"][name] != value for name, value in usual.items()):
            continue  # the operator has no such attributes
        attrs = {"ignore_index": given["attrs"]["ignore_index"], "canonical_segments": 0}
        yield {**given, "name": "tp_" + given["name"], "op": "tp_logp", "dims": dims, "attrs": attrs}
