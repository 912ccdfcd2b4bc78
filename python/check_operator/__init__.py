# SPDX-License-Identifier: Apache-2.0
"""Tells whether a GPU operator can be trusted, from Python. The program check_operator judges; nothing here does.

    report = check_operator.check(my_rms_norm, op="rms_norm", dtype="bf16", dims=dict(hidden=4096), backward=True)
    report.require()
"""
from . import magnitude
from ._candidate import candidate
from ._check import check
from ._close import assert_close
from ._program import require_same_version_if_bundled, version
from ._report import Check, Report
from .errors import (CandidateError, CandidateTimeout, CheckFailed, CheckVacuous, InputError, MachineError,
                     NothingChecked)
from .serving import Unsupported, serve

__version__ = version()
__all__ = ["CandidateError", "CandidateTimeout", "Check", "CheckFailed", "CheckVacuous", "InputError", "MachineError",
           "NothingChecked", "Report", "Unsupported", "assert_close", "candidate", "check", "magnitude", "serve"]

require_same_version_if_bundled()
