"""Expected results of a random program, by its plain twin, and the tolerance for other engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.errors import CtrlgradError
from random_programs.kinds import dtype_text
from random_programs.program import Program
from random_programs.python_source import python_source
from random_programs.running import LimitError, TooLongError, plain_run
from random_programs.source import plain_source, traced_source

# How near a decision may be to turning out otherwise; and where numbers round to float16 or float32 on the way.
MARGIN, COARSE_MARGIN = 1e-4, 0.03
# Relative differences that rounding explains there, and in results of such dtypes.
COARSE = 0.05
ROUNDING = {"float16": 0.02, "bfloat16": 0.1, "float32": 1e-4, "complex64": 1e-4}
# Exceptions of a wrong program, graph or translation at run time.
ERRORS = (CtrlgradError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, AssertionError)


class ProgramMismatch(AssertionError):
    """A random program for which something does not hold."""


class UnsuitableError(Exception):
    """The program is empty, decides too nearly, or takes too long to be judged."""


def rounding(program: Program, dtype: np.dtype) -> float:
    """The relative difference that the dtypes of a program and of a result explain."""
    return max(program.coarse * COARSE, ROUNDING.get(dtype.name, 0.0))


@dataclass(frozen=True)
class Expected:
    """Results of the plain twin; no results where a loop goes on beyond its limit."""

    results: tuple[Any, ...] | None
    iterations: int = 0


def expectation(program: Program) -> Expected:
    """Run the plain twin. Raises `UnsuitableError`, and `ProgramMismatch` where it fails."""
    if not program.body.statements:
        raise UnsuitableError("nothing happens in it")
    try:
        results, decisions = plain_run(program)
    except TooLongError as error:
        raise UnsuitableError("too many iterations") from error
    except LimitError:
        return Expected(None)
    except ERRORS as error:
        raise ProgramMismatch(f"the plain twin: {type(error).__name__}: {error}\n\n{describe(program)}") from error
    if decisions.margin < (COARSE_MARGIN if program.coarse else MARGIN):
        raise UnsuitableError("a decision is too near")
    return Expected(results, decisions.iterations)


def describe(program: Program) -> str:
    """The program as source with its arguments."""
    arguments = "\n".join(
        f"{a.variable.name} = np.array({a.value.tolist()}, {dtype_text(a.value.dtype.name)}).reshape({a.value.shape})"
        f"  # declared {a.spec[0]}"
        for a in program.arguments
    )
    source = python_source(program) if program.python else traced_source(program)
    return f"{source}\n{arguments}\n\n# The twin.\n{plain_source(program)}"
