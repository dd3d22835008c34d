"""The same random program for other arguments: several as rows of a vmap, of other sizes, and at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Graph, verify
from random_programs.expected import UnsuitableError, expectation
from random_programs.kinds import Float, Int, Typed, Unknown
from random_programs.program import Argument, Program

# How many rows a vmap has, and calls there are at the same time.
ROWS = 3
# Values of unknown sizes in turn, where they differ from the first ones.
LENGTHS = (4, 1, 2)


def with_other_values(program: Program, seed: int) -> Program:
    """The program for other floats and integers of the same sizes."""
    rng = np.random.default_rng(seed)

    def drawn(argument: Argument) -> np.ndarray:
        kind, value = argument.variable.kind, argument.value
        if isinstance(kind, Float):
            return np.asarray(rng.uniform(-1.5, 1.5, value.shape))
        return np.asarray((value + 1 + seed % 3) % 4, np.int64) if isinstance(kind, Int) else value

    return replace(program, arguments=tuple(replace(a, value=drawn(a)) for a in program.arguments))


def with_length(program: Program, length: int) -> Program:
    """The program for arguments whose unknown sizes are so large."""
    rng = np.random.default_rng(length)

    def drawn(argument: Argument) -> np.ndarray:
        kind = argument.variable.kind
        if not isinstance(kind, Float) or kind.is_static:
            return argument.value
        return np.asarray(rng.uniform(-1.5, 1.5, [length if isinstance(d, Unknown) else d for d in kind.dims]))

    return replace(program, arguments=tuple(replace(a, value=drawn(a)) for a in program.arguments))


def is_suitable(program: Program) -> bool:
    try:
        return expectation(program).results is not None
    except UnsuitableError:
        return False


def of_other_sizes(program: Program) -> Iterator[Program]:
    """The program for other sizes, where its graph leaves them open."""
    if program.has_unknown_sizes:
        now = next(a.value.shape[d] for a in program.arguments for d, n in enumerate(a.spec[0]) if n is None)
        yield from filter(is_suitable, (with_length(program, n) for n in LENGTHS if n != now))


@dataclass(frozen=True)
class Batch:
    """Programs that differ in the values of their arguments, and these as rows: `axes` are None where all have one."""

    programs: tuple[Program, ...]
    axes: tuple[int | None, ...]

    @property
    def arguments(self) -> list[np.ndarray]:
        columns = zip(*(p.arguments for p in self.programs), strict=True)
        return [
            column[0].value if axis is None else np.stack([a.value for a in column])
            for column, axis in zip(columns, self.axes, strict=True)
        ]

    def graph(self, function: Callable[..., Any]) -> Graph:
        """The vmap of a function of the program's arguments."""
        first = self.programs[0]
        specs = None
        if first.has_unknown_sizes:
            lead = [() if axis is None else (len(self.programs),) for axis in self.axes]
            specs = tuple(
                cg.TensorSpec((*n, *a.spec[0]), a.spec[1]) for n, a in zip(lead, first.arguments, strict=True)
            )
        mapped = cg.vmap(function, in_axes=self.axes)
        return verify(cg.function(mapped, signature=specs).graph(*self.arguments), "rows of a random program")


def batch_of(program: Program, number: int) -> Batch | None:
    """Some rows; the integers differ from row to row in every second program. None where there are not two."""
    integers = number % 2 == 0
    axes = tuple(
        None if isinstance(kind, Typed) or (isinstance(kind, Int) and not integers) else 0
        for kind in (a.variable.kind for a in program.arguments)
    )
    others = [with_other_values(program, seed) for seed in range(1, ROWS)]
    if not integers:
        others = [
            replace(p, arguments=tuple(b if axis is None else a for a, b, axis in _paired(p, program, axes)))
            for p in others
        ]
    rows = [p for p in (program, *others) if is_suitable(p)]
    return Batch(tuple(rows), axes) if len(rows) > 1 else None


def _paired(
    one: Program, other: Program, axes: Sequence[int | None]
) -> Iterator[tuple[Argument, Argument, int | None]]:
    return zip(one.arguments, other.arguments, axes, strict=True)


def refuses_rows(error: Exception, program: Program) -> bool:
    """Return true if vmap may refuse: values of a different size in each row have no place in an array."""
    text = str(error)
    of_a_slice = "is out of bounds" in text and program.contents()["dynamic slice"] > 0
    return isinstance(error, CtrlgradError) and (text.startswith("vmap:") or of_a_slice)


def at_the_same_time(run: Callable[[Sequence[Any]], Any], arguments: Sequence[Sequence[Any]], times: int) -> list[Any]:
    """Results of runs by several threads, in the order of `arguments`, each so many times."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(run, [a for a in arguments for _ in range(times)]))
