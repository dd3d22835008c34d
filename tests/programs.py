"""The corpus: every program that the engines, the gradients and the checks must agree on.

`corpus/` holds them, a file per subject; `PROGRAMS` lists all, `BY_NAME` finds one.
"""

from __future__ import annotations

from corpus import arrays, branches, everyday, found, loops, loops_by_data, numerics, sequences
from corpus.program import PROGRAMS, Program, weighted_sum

FILES = (loops, loops_by_data, branches, arrays, numerics, sequences, everyday, found)
BY_NAME: dict[str, Program] = {program.name: program for program in PROGRAMS}

assert len(BY_NAME) == len(PROGRAMS), "two programs have the same name"
assert all(program.numpy_fn is not None for program in PROGRAMS), "a program has no twin"

__all__ = ["BY_NAME", "FILES", "PROGRAMS", "Program", "weighted_sum"]
