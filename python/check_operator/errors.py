# SPDX-License-Identifier: Apache-2.0
"""What is raised, by the exit code of the program that stands behind it."""
from __future__ import annotations


class CheckFailed(AssertionError):
    """A check failed (exit code 1). str() is what the program said of it, with the command that repeats it."""


class CheckVacuous(CheckFailed):
    """Nothing was compared, or an answer that needs no computation would have passed too (exit code 1)."""


class InputError(ValueError):
    """An argument, a contract or a file is wrong (exit code 2); the text says where and what to do."""


class NothingChecked(RuntimeError):
    """No check was made, or the candidate supports none (exit code 3)."""


class CandidateError(RuntimeError):
    """The candidate's process ended or broke its protocol (exit code 4)."""


class CandidateTimeout(CandidateError):
    """The candidate did not answer in time (exit code 4)."""


class MachineError(RuntimeError):
    """A device, disk space or the program itself is missing (exit code 5)."""
