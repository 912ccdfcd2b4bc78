# SPDX-License-Identifier: Apache-2.0
"""Vectors of tp_linear_logp: those of linear_logp, whose mathematics it has, shared by three ranks where there are columns enough."""
import linear_logp


def vectors():
    for given in linear_logp.vectors():
        dims = {**given["dims"], "world_size": min(3, given["dims"]["vocab"])}
        attrs = {**given.get("attrs", {"ignore_index": -100}), "canonical_segments": 0}
        yield {**given, "name": "tp_" + given["name"], "op": "tp_linear_logp", "dims": dims, "attrs": attrs}
