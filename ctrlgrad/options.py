"""Options that hold for a block of code: `with cg.options(engine="reference"): ...`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import field, fields, replace
from typing import Any, Literal

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.blocks import block, holding
from ctrlgrad.engines import ENGINES
from ctrlgrad.engines.precision import PRECISIONS, Precision, computing_with
from ctrlgrad.gradients.manner import Manner, differentiating
from ctrlgrad.records import record


@record
class Options:
    """The options in force."""

    engine: str = "auto"
    check_nans: bool | Literal["gradients"] = False
    precision: Precision = "ieee"
    default_float: str = "float64"
    no_answer: Literal["error", "nan"] = "error"
    strong_zeros: bool = True
    flush_subnormals: bool = True
    # The options that decide what a trace records, since each call looks for a trace by them.
    of_traces: tuple[Any, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        found = self.default_float, self.no_answer, self.strong_zeros, self.check_nans == "gradients"
        object.__setattr__(self, "of_traces", found)


# Values of the options that have names.
_CHOICES: dict[str, tuple[Any, ...]] = {
    "engine": ENGINES,
    "check_nans": (False, True, "gradients"),
    "precision": PRECISIONS,
    "default_float": ("float32", "float64"),
    "no_answer": ("error", "nan"),
}
_VARIABLE = "CTRLGRAD_DEFAULT_FLOAT"
_AT_FIRST = Options(default_float=os.environ.get(_VARIABLE, "float64"))
check_choice(_VARIABLE, "default_float", _AT_FIRST.default_float, _CHOICES["default_float"])
_OPTIONS: ContextVar[Options] = ContextVar("ctrlgrad options", default=_AT_FIRST)


def current_options() -> Options:
    return _OPTIONS.get()


def default_float() -> np.dtype:
    """The dtype of floats that have none of their own."""
    return np.dtype(_OPTIONS.get().default_float)


def check_engine(engine: str) -> None:
    """Refuse the name of an engine that does not exist."""
    check_choice("ctrlgrad", "engine", engine, ENGINES)


@block("ctrlgrad.options")
def options(**changes: Any) -> Iterator[Options]:
    """Set options for a block; the former ones come back at its end, whatever happens.

    Args:
        engine: which engine runs graphs that do not name one: "auto", "native", "cuda",
            "dataflow" or "reference".
        check_nans: stop with a `NonFiniteError` at the first op that makes a NaN or an Inf. It names the line, says
            whether it happened in a gradient, and in which iteration of each loop. Every op is then run by itself;
            of engine="cuda" by the reference engine, on the processor. With "gradients" it stops at the first
            cotangent that is not finite: a NaN that `where` leaves out of the result is passed over. It looks at
            what is differentiated in the block.
        precision: how exactly engine="cuda" computes. "ieee" rounds every operation in its dtype. With "tf32" and
            "bf16" products of float32 and complex64 may round their operands to 10 and to 7 bits of fraction, and sum
            in float32; kernels may then round a product and a sum once. Other engines always compute as "ieee" says.
        default_float: "float64", or "float32": the dtype of floats that have none of their own. These are what creation
            functions and `ctrlgrad.random` make where no dtype is given, Python floats and lists of them, and floats
            that are made of integers alone. Arrays keep their dtype. The environment variable CTRLGRAD_DEFAULT_FLOAT
            sets it from the start.
        no_answer: "error", or "nan": what Cholesky factors and linear systems are of a matrix that has none (it is not
            positive definite, or singular), in functions that are traced in the block. In programs of JAX
            (`ctrlgrad.from_jax`) they are always NaN.
        strong_zeros: whether a cotangent that is zero because something else was selected stops there, whatever the
            slope behind it is: the gradient of `where(x > 0, sqrt(x), 0)` at 0 is then 0. Without them it is zero times
            infinity, NaN, as IEEE's arithmetic has it. It holds for what is differentiated in the block.
        flush_subnormals: take numbers nearer to zero than the smallest normal one (1.2e-38 in float32, 2.2e-308 in
            float64) for zero in compiled programs with loops, as XLA does. Gradients of long recurrent networks are
            full of such numbers, and a processor takes about a hundred times as long for them. With False they are
            kept, as they always are without loops and on engine="reference".

    >>> with cg.options(engine="reference") as now:
    ...     now.engine
    'reference'
    """
    names = {f.name for f in fields(Options) if f.init}
    for name in changes:
        check_choice("ctrlgrad.options", "option", name, sorted(names))
        if name in _CHOICES:
            check_choice("ctrlgrad.options", name, changes[name], _CHOICES[name])
    now = replace(_OPTIONS.get(), **changes)
    manner = Manner(now.strong_zeros, now.check_nans == "gradients")
    with holding(_OPTIONS, now), computing_with(now.precision, now.flush_subnormals), differentiating(manner):
        yield now
