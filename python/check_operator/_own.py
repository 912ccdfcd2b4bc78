# SPDX-License-Identifier: Apache-2.0
"""Inputs and a gold of the caller's own, as the files that --inputs and --gold take."""
from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, List, Mapping, Optional

from ._tensors import CODE_NAMES, Entry, named_tensors
from .errors import InputError
from .serving import write_safetensors


# In what the program says of a bound that can't be computed.
NEEDS_MAGNITUDE, NEEDS_REFERENCE = "needs the magnitude", "needs what a reference computed"


def magnitude_is_missing() -> InputError:
    return InputError("magnitude: the contract's bounds for this class follow the sum of the terms' absolute values; give "
                      "magnitude=, such as check_operator.magnitude.matmul(a, b) or .sum(x, dim), or contract='assert_close' "
                      "for torch's tolerances")


def held(value: Any, tensors: Mapping[str, Entry]) -> str:
    """The names of the tensors that an argument holds."""
    if is_tensor(value):
        return "is a tensor alone"
    names = [f"'{name}'" for name in tensors]
    return "holds " + (", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "no tensors")


def beside_gold(group: str, tensors: Any, gold: Any, known: Mapping[str, Entry]) -> Dict[str, Entry]:
    """The tensors of "magnitude", "rounding" or "reference" by the names "GROUP/NAME" of the file. `known`: those of gold.
    Throws InputError for names and shapes that are not gold's."""
    found = {}
    for name, entry in named_tensors(group, tensors).items():
        if name not in known:
            raise InputError(f"{group}: gold has no '{name}': it {held(gold, known)}; give {group} the structure of gold")
        shape, wanted = list(entry[1]), list(known[name][1])
        if shape != wanted and "F4" not in (entry[0], known[name][0]):  # whose shape here is that of bytes
            raise InputError(f"{group}: '{name}' has shape {shape}, and its gold {wanted}; give one number for each element of "
                             "gold")
        found[f"{group}/{name}"] = entry
    return found


@dataclasses.dataclass(frozen=True)
class OwnData:
    """Tensors in place of generated inputs, of the gold, or of both; see docs/own_data.md."""

    inputs: Dict[str, Entry]
    gold: Dict[str, Entry]  #: with "magnitude/NAME" and "reference/NAME" beside NAME
    cls: Optional[str] = None
    terms: Optional[int] = None

    @staticmethod
    def of(inputs: Any, gold: Any, cls: Optional[str], terms: Optional[int], magnitude: Any = None,
           reference: Any = None) -> "Optional[OwnData]":
        """None where nothing was given. Throws InputError naming the argument that is wrong or missing."""
        if inputs is None:
            for argument, value in (("gold", gold), ("cls", cls), ("terms", terms), ("magnitude", magnitude),
                                    ("reference", reference)):
                if value is not None:
                    raise InputError(f"{argument}: has no effect without inputs=; give the tensors that the function gets")
            return None
        if not isinstance(inputs, Mapping) or not inputs:
            raise InputError("inputs: expected a dict of tensors by the names of the function's parameters, got "
                             f"{inputs!r:.80}")
        all_gold = {} if gold is None else named_tensors("gold", {"y": gold} if is_tensor(gold) else gold)
        for name, (code, _, _) in all_gold.items():
            if CODE_NAMES[code] in ("fp32", "fp16", "bf16"):
                raise InputError(f"gold: '{name}' is {CODE_NAMES[code]}; compute the gold in float64")
        if gold is not None and not all_gold:
            raise InputError("gold: holds no tensors; give one for each output")
        if gold is not None and cls is None:
            raise InputError("cls: is missing; say which rules of the contract judge the outputs: exact, pointwise, "
                             "reduction, contraction, logprob or composite")
        outputs = dict(all_gold)
        for group, tensors in (("magnitude", magnitude), ("reference", reference)):
            if tensors is not None:
                all_gold.update(beside_gold(group, {"y": tensors} if is_tensor(tensors) else tensors, gold, outputs))
        return OwnData(named_tensors("inputs", dict(inputs)), all_gold, cls, terms)

    def has(self, group: str) -> bool:
        """Whether there is a "magnitude" or a "reference" for some output."""
        return any(name.startswith(group + "/") for name in self.gold)

    def flags(self, folder: str) -> List[str]:
        """Writes the files to `folder`."""
        found = []
        for flag, tensors in (("inputs", self.inputs), ("gold", self.gold)):
            if tensors:
                path = os.path.join(folder, flag + ".safetensors")
                write_safetensors(path, tensors)
                found.append(f"--{flag}={path}")
        if self.cls is not None:
            found.append(f"--class={self.cls}")
        if self.terms is not None:
            found.append(f"--terms={self.terms}")
        return found


def is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
