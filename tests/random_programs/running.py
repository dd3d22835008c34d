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
from ctrlgrad.autograph import convert
from random_programs.kinds import Float, Kind, Typed
from random_programs.program import Program
from random_programs.python_source import python_source
from random_programs.source import plain_source, traced_source

MOST_ITERATIONS = 150

_numbers = count()


class TooLongError(Exception):
    """The program takes more iterations than a test should."""


class LimitError(Exception):
    """A loop goes on after its `maximum_iterations`: every engine must refuse the program as well."""


@dataclass
class Decisions:
    """Notes of the plain form: iterations, and the least distance of any comparison from its other outcome."""

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

    def ordered(self, x: Any, axis: int = 0) -> Any:
        self.note(np.diff(np.sort(x, axis=axis), axis=axis))
        return np.sort(x, axis=axis)

    def by_size(self, x: Any) -> Any:
        """The places of a tensor's elements along its last axis in their order."""
        self.ordered(x, -1)
        return np.argsort(x, axis=-1)

    def at_places(self, x: Any, places: Any, values: Any, how: str) -> np.ndarray:
        """An update whose places may be the same: one after the other; an extreme is as sure as all that meet there."""
        result = np.array(x)
        if how in ("max", "min"):
            for place in set(map(int, places)):
                self.ordered(np.concatenate([values[places == place], x[place : place + 1]]))
        ufunc = {"add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}[how]
        ufunc.at(result, places, values)
        return result


def stacked(rows: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    return np.stack(rows) if rows else np.zeros((0, *shape))


def limited(trips: int, maximum: int) -> int:
    """One more iteration, if it is allowed."""
    if trips >= maximum:
        raise LimitError
    return trips + 1


def cast(x: Any, dtype: Any) -> Any:
    return np.asarray(x).astype(dtype)


def gradients(count: int, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """Gradients of a function of values that are known, by the first so many of them, outside of any trace."""
    with cg.options(engine="reference"):
        result: tuple[Any, ...] = cg.grad(function, argnums=tuple(range(count)))(*arguments)
    return result


def directional(directions: Sequence[Any], function: Callable[..., Any], *arguments: Any) -> Any:
    """The derivative of a function of values that are known along directions of the first ones, by reverse mode."""

    def paired(*given: Any) -> Any:
        # The cotangent is an argument: the gradient with respect to it of <gradient, directions> is the derivative.
        cotangent, *rest = given
        _, pullback = cg.vjp(lambda *point: function(*point, *rest[len(directions) :]), *rest[: len(directions)])
        return sum(np.sum(g * d) for g, d in zip(pullback(cotangent), directions, strict=True))

    with cg.options(engine="reference"):
        return cg.grad(paired)(np.zeros_like(cg.function(function)(*arguments)), *arguments)


def written(array: list[Any], index: Any, value: Any) -> list[Any]:
    """A list with one item replaced, or added at its end."""
    return [*array[:index], np.asarray(value), *array[index + 1 :]]


def updated(x: Any, key: Any, value: Any, how: str) -> np.ndarray:
    """A copy of an array with a part of it set or added to."""
    result = np.array(x)
    if how == "set":
        result[key] = value
    else:
        np.add.at(result, key, value)
    return result


def accumulated(combine: Callable[..., Any], pair: tuple[Any, Any], axis: int, reverse: bool) -> np.ndarray:
    """The second parts of what pairs combine to along an axis, one after the other."""
    rows = [tuple(x[::-1] if reverse else x) for x in (np.moveaxis(x, axis, 0) for x in pair)]
    results = [(rows[0][0], rows[1][0])]
    for row in zip(rows[0][1:], rows[1][1:], strict=True):
        results.append(combine(results[-1], row))
    found = np.stack([second for _, second in results])
    return np.moveaxis(found[::-1] if reverse else found, 0, axis)


def correlated(x: Any, y: Any) -> np.ndarray:
    """The correlation with a small matrix, of the size of x."""
    sizes = [((n - 1) // 2, n // 2) for n in y.shape]
    wide = np.pad(x, sizes)
    return np.array(
        [[np.sum(wide[i : i + y.shape[0], j : j + y.shape[1]] * y) for j in range(x.shape[1])] for i in range(len(x))]
    )


def looped(trips: int, body: Callable[[int, Any], Any], carry: Any) -> Any:
    """Carry of a counted loop at its end."""
    for t in range(trips):
        carry = body(t, carry)
    return carry


def beyond(x: Any, places: Any, how: str, value: Any = None) -> np.ndarray:
    """Rows at places, or what is added there: those outside are filled or dropped, or taken for the nearest ones."""
    places = np.where(places < 0, places + len(x), places)
    inside, near = (places >= 0) & (places < len(x)), np.clip(places, 0, len(x) - 1)
    if value is not None:
        return updated(x, places[inside] if how == "drop" else near, value, "add")
    rows = np.asarray(x)[near]
    return rows if how == "clip" else np.where(np.reshape(inside, (-1, *[1] * (rows.ndim - 1))), rows, 0.5)


def here(function: Callable[..., Any], *arguments: Any) -> np.ndarray:
    """A function of values that are known, outside of any trace."""
    with cg.options(engine="reference"):
        return np.asarray(function(*arguments))


def _compiled(source: str, names: dict[str, Any]) -> Callable[..., Any]:
    # Errors of the library name the user's line: give them the source to show.
    filename = f"<random program {next(_numbers) % 64}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), names)
    function: Callable[..., Any] = names["program"]
    return function


_TWINS = (
    *(stacked, written, updated, looped, limited, cast, gradients, directional, accumulated, correlated),
    *(beyond, here),
)


def traced_function(program: Program) -> Callable[..., Any]:
    """The program with ctrlgrad's constructs, or with Python's own control flow, converted."""
    names = {"np": np, "cnp": cnp, "cg": cg}
    if program.python:
        return convert(_compiled(python_source(program), names))
    return _compiled(traced_source(program), names)


def plain_run(program: Program) -> tuple[tuple[Any, ...], Decisions]:
    """The results of the plain twin, and its decisions. Raises `TooLongError` and `LimitError`."""
    decisions = Decisions()
    methods = ("tick", "less", "floored", "maximum", "largest", "ordered", "by_size", "at_places")
    names: dict[str, Any] = {"np": np, "cnp": cnp, "cg": cg} | {f.__name__: f for f in _TWINS}
    function = _compiled(plain_source(program), names | {name: getattr(decisions, name) for name in methods})
    # Small integers wrap around in a graph without a word.
    with np.errstate(over="ignore"):
        return function(*(a.value for a in program.arguments)), decisions


def differentiated(program: Program) -> tuple[int, ...]:
    """The arguments that derivatives are taken with respect to."""
    return tuple(i for i, a in enumerate(program.arguments) if isinstance(a.variable.kind, Float))


def loss_of(program: Program, results: Sequence[Any]) -> Any:
    """A scalar in which every float of the results counts: a weighted sum of their sines."""
    total: Any = 0.0
    for position, (leaf, kind) in enumerate(zip(results, program.result_kinds, strict=True)):
        for part in _floats_of(program, leaf, kind):
            total = total + (1.0 + position / 8.0) * np.sum(np.sin(part))
    return total


def _floats_of(program: Program, leaf: Any, kind: Kind) -> Sequence[Any]:
    if isinstance(kind, Float):
        return (leaf,)
    if not isinstance(kind, Typed) or (kind.is_narrow and not program.coarse):
        return ()
    if kind.family == "c":
        return (np.real(leaf) * 1.0, np.imag(leaf) * 0.7)
    return (leaf.astype(np.float64),) if kind.family == "f" else ()


def signature(program: Program) -> tuple[Any, ...] | None:
    """The declared arguments of a program with unknown sizes."""
    return tuple(cg.TensorSpec(*a.spec) for a in program.arguments) if program.has_unknown_sizes else None
