"""The two forms of a random program as functions, and what a run of the plain one tells."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from random_programs.program import Program
from random_programs.source import plain_source, traced_source

MOST_ITERATIONS = 150

_numbers = count()


class TooLongError(Exception):
    """The program takes more iterations than a test should."""


@dataclass
class Decisions:
    """What the plain form noted: iterations, and the least distance of any comparison from its other outcome."""

    iterations: int = 0
    margin: float = float("inf")

    def tick(self) -> None:
        self.iterations += 1
        if self.iterations > MOST_ITERATIONS:
            raise TooLongError

    def note(self, distance: Any) -> None:
        if np.size(distance):
            self.margin = min(self.margin, float(np.min(np.abs(distance))))

    def less(self, a: Any, b: Any) -> Any:
        self.note(np.subtract(a, b))
        return np.less(a, b)

    def floored(self, x: Any) -> Any:
        self.note(x - np.rint(x))
        return np.floor(x).astype(np.int64)

    def maximum(self, a: Any, b: Any) -> Any:
        self.note(np.subtract(a, b))
        return np.maximum(a, b)

    def largest(self, x: Any, axis: int) -> Any:
        ordered = np.sort(x, axis=axis)
        if x.shape[axis] > 1:
            self.note(np.diff(ordered, axis=axis).take(-1, axis=axis))
        return np.take(ordered, -1, axis=axis)

    def ordered(self, x: Any) -> Any:
        self.note(np.diff(np.sort(x, axis=0), axis=0))
        return np.sort(x, axis=0)


def stacked(rows: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    return np.stack(rows) if rows else np.zeros((0, *shape))


def written(array: list[Any], index: Any, value: Any) -> list[Any]:
    """A list with one item replaced, or added at its end."""
    return [*array[:index], np.asarray(value, np.float64), *array[index + 1 :]]


def updated(x: Any, key: Any, value: Any, how: str) -> np.ndarray:
    """A copy of an array with a part of it set or added to."""
    result = np.array(x)
    if how == "set":
        result[key] = value
    else:
        np.add.at(result, key, value)
    return result


def _compiled(source: str, names: dict[str, Any]) -> Callable[..., Any]:
    # Errors of the library name the user's line: give them the source to show.
    filename = f"<random program {next(_numbers) % 64}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), names)
    function: Callable[..., Any] = names["program"]
    return function


def traced_function(program: Program) -> Callable[..., Any]:
    """The program with ctrlgrad's constructs."""
    return _compiled(traced_source(program), {"np": np, "cnp": cnp, "cg": cg})


def plain_run(program: Program) -> tuple[tuple[Any, ...], Decisions]:
    """The results of the plain twin, and its decisions. Raises `TooLongError`."""
    decisions = Decisions()
    methods = ("tick", "less", "floored", "maximum", "largest", "ordered")
    names = {"np": np, "stacked": stacked, "written": written, "updated": updated}
    function = _compiled(plain_source(program), names | {name: getattr(decisions, name) for name in methods})
    return function(*(a.value for a in program.arguments)), decisions


def signature(program: Program) -> tuple[Any, ...] | None:
    """The declared arguments of a program with unknown sizes."""
    return tuple(cg.TensorSpec(*a.spec) for a in program.arguments) if program.has_unknown_sizes else None
