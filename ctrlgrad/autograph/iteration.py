"""`for`: over rows of a traced tensor and `range` of a traced bound a node, over all else in Python.

What a traced loop runs over is an `Items`: how many there are, and the k-th of them. `range`, `enumerate`, `zip`
and `reversed` of traced things are `Items` too.

A Python loop whose `break` or `return` comes to depend on a tensor goes on as a node from there, if it runs over
a `range`; over other Python iterables each further iteration becomes a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ctrlgrad.autograph.branches import and_, if_stmt
from ctrlgrad.autograph.loops import Place, State, stage
from ctrlgrad.autograph.values import (
    GetState,
    SetState,
    cells_of,
    is_traced,
    plain,
    represented,
    state_of,
    truth,
    weaken,
)
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TracingError, TypeMismatchError
from ctrlgrad.frontend.apply import cast, of_default
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import note_number
from ctrlgrad.ir import TensorType
from ctrlgrad.source import here

# Built-in functions for converted code: Python's own, except on traced tensors.


def _enumerate(iterable: Any, start: Any = 0) -> Any:
    items = as_items(iterable)
    return enumerate(iterable, start) if items is None else Enumerate(items, start)


def _zip(*iterables: Any, strict: bool = False) -> Any:
    if not any(isinstance(x, Items | Tensor) for x in iterables):
        return zip(*iterables, strict=strict)
    parts = tuple(map(beside, iterables))
    if strict:
        known = {n for n in (part.length() for part in parts) if not is_traced(n)}
        if len(known) > 1:
            raise ValueError(f"zip(): the arguments have different lengths: {sorted(known)}")
    return Zip(parts)


def _reversed(sequence: Any) -> Any:
    items = as_items(sequence)
    return reversed(sequence) if items is None else Reversed(items)


def _len(x: Any) -> Any:
    if isinstance(x, Items):
        return x.length()
    if isinstance(x, Tensor) and isinstance(x.type, TensorType) and x.ndim:
        return x.shape[0]
    return len(x)


def _number(kind: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    def convert(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or not is_traced(args[0]) or kwargs:
            return kind(*args, **kwargs)
        x: Tensor = args[0]
        if not isinstance(x.type, TensorType) or any(d != 1 for d in x.type.shape):
            raise TypeMismatchError(
                f"autograph: {kind.__name__}() of a tensor that is no scalar",
                expected="a tensor with one element",
                got=str(x.type),
                hint=f"x.astype({of_default(np.dtype(dtype)).name!r}) converts all elements",
            )
        scalar = cast(FUNCTIONS["reshape"](x, ()) if x.ndim else x, of_default(np.dtype(dtype)))
        return Tensor(scalar.builder, scalar.value, weak=True)

    return convert


def _extreme(kind: Callable[..., Any], reduction: str, better: str) -> Callable[..., Any]:
    def choose(*args: Any, **kwargs: Any) -> Any:
        items = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
        if kwargs or not any(map(is_traced, items)):
            return kind(*args, **kwargs)
        if len(items) == 1:
            return FUNCTIONS[reduction](items[0]) if items is args and items[0].ndim == 1 else kind(*args)
        best = items[0]
        for x in items[1:]:
            wins = FUNCTIONS[better](x, best)
            if is_traced(wins):
                truth(wins, f"`{kind.__name__}()`", here())
            best = FUNCTIONS["where"](wins, x, best)
        return best

    return choose


def _sum(iterable: Any, /, start: Any = 0) -> Any:
    return start + FUNCTIONS["sum"](iterable, axis=0) if is_traced(iterable) else sum(iterable, start)


def _over(word: str, decisive: bool) -> Callable[[Any], Any]:
    """`all` (decided by a False) and `any` (by a True) of a Python iterable that may hold tensors."""

    def decide(iterable: Any) -> Any:
        undecided: Any = None
        for x in iterable:
            if is_traced(x):
                x = truth(x, f"`{word}()`", here())
                join = "logical_or" if decisive else "logical_and"
                undecided = x if undecided is None else FUNCTIONS[join](undecided, x)
            elif bool(x) == decisive:
                return decisive
        return (not decisive) if undecided is None else undecided

    return decide


def _quantifier(kind: Callable[[Any], Any], reduction: str, over: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decide(iterable: Any) -> Any:
        if is_traced(iterable):
            return FUNCTIONS[reduction](iterable) if iterable.ndim == 1 else kind(iterable)
        return over(iterable)

    return decide


OVERLOADS: dict[Callable[..., Any], Callable[..., Any]] = {
    range: lambda *ends: Range.of(*ends) if any(map(is_traced, ends)) and len(ends) <= 3 else range(*ends),
    enumerate: _enumerate,
    zip: _zip,
    reversed: _reversed,
    len: _len,
    int: _number(int, np.int64),
    float: _number(float, np.float64),
    complex: _number(complex, np.complex128),
    bool: lambda *x: truth(x[0], "`bool()`", here()) if len(x) == 1 and is_traced(x[0]) else bool(*x),
    min: _extreme(min, "min", "less"),
    max: _extreme(max, "max", "greater"),
    sum: _sum,
    all: _quantifier(all, "all", _over("all", False)),
    any: _quantifier(any, "any", _over("any", True)),
}


class Items:
    """Sequence that a traced loop runs over."""

    def length(self) -> Any:
        """Number of items: an int, or a traced integer scalar."""
        raise NotImplementedError

    def at(self, k: Any) -> Any:
        """The k-th; `k` may be traced."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        n = self.length()
        if is_traced(n):
            raise TracingError(
                "going through an unknown number of items in Python",
                expected="a `for` statement; here Python itself asks for the items",
                hint="write the loop as a `for` statement, or use ctrlgrad.scan or ctrlgrad.map",
            )
        return (self.at(k) for k in range(n))

    def __len__(self) -> int:
        n = self.length()
        if is_traced(n):
            raise TracingError(
                "len() of an unknown number of items", hint="use the count itself: n of range(n), x.shape[0]"
            )
        return int(n)


@dataclass(frozen=True)
class Rows(Items):
    """The rows of an array."""

    array: Any

    def length(self) -> Any:
        return self.array.shape[0]

    def at(self, k: Any) -> Any:
        return FUNCTIONS["getitem"](self.array, k)


@dataclass(frozen=True)
class Range(Items):
    """`range(start, stop, step)`; start and stop may be traced. The items count as Python ints."""

    start: Any
    stop: Any
    step: int

    def length(self) -> Any:
        if not is_traced(self.start) and not is_traced(self.stop):
            return len(range(self.start, self.stop, self.step))
        distance = cast(self.stop, np.int64) - cast(self.start, np.int64)
        steps = distance if self.step == 1 else -(-distance // np.int64(self.step))
        return FUNCTIONS["maximum"](steps, np.int64(0))

    def at(self, k: Any) -> Any:
        offset = k if self.step == 1 else k * self.step
        return offset if not is_traced(self.start) and self.start == 0 else self.start + offset

    @staticmethod
    def of(*bounds: Any) -> Range:
        """From the arguments of `range`."""
        start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        for bound in (start, stop):
            if is_traced(bound) and (
                not isinstance(bound.type, TensorType) or dtype_kind(bound.dtype) not in "iu" or bound.ndim
            ):
                raise TypeMismatchError(
                    "autograph: range() of a tensor that is no integer scalar",
                    expected="i64[]",
                    got=str(bound.type),
                    hint="int(x) makes an integer of a scalar",
                )
        if is_traced(step):
            raise TracingError(
                "autograph: range() with a traced step",
                expected="a Python int as the step",
                got=repr(step),
                hint="use `while` and add the step yourself",
            )
        start, stop = (weaken(x, True) if is_traced(x) else x for x in (start, stop))
        return Range(start, stop, range(0, 0, step).step)


@dataclass(frozen=True)
class Enumerate(Items):
    items: Items
    start: Any = 0

    def length(self) -> Any:
        return self.items.length()

    def at(self, k: Any) -> Any:
        return (k + self.start, self.items.at(k))


@dataclass(frozen=True)
class Zip(Items):
    parts: tuple[Items, ...]

    def length(self) -> Any:
        lengths = [part.length() for part in self.parts]
        known = [n for n in lengths if not is_traced(n)]
        shortest: Any = min(known) if known else None
        for n in lengths:
            if is_traced(n):
                shortest = (
                    n
                    if shortest is None
                    else FUNCTIONS["minimum"](n, np.int64(shortest) if not is_traced(shortest) else shortest)
                )
        return shortest

    def at(self, k: Any) -> Any:
        return tuple(part.at(k) for part in self.parts)


@dataclass(frozen=True)
class Reversed(Items):
    items: Items

    def length(self) -> Any:
        return self.items.length()

    def at(self, k: Any) -> Any:
        return self.items.at(self.items.length() - 1 - k)


def as_items(x: Any) -> Items | None:
    """`Items` for a traced tensor; None for what Python iterates over itself."""
    if isinstance(x, Items):
        return x
    x = plain(x)
    if not isinstance(x, Tensor):
        return None
    if not isinstance(x.type, TensorType) or x.ndim == 0:
        raise ShapeError(
            "autograph: `for` over a tensor without rows",
            expected="a tensor of one dimension or more",
            got=str(x.type),
            hint="range(n) runs over the integers below a traced n",
        )
    return Rows(x)


def beside(x: Any) -> Items:
    """`Items` of an iterable that `zip` combines with traced items."""
    items = as_items(x)
    if items is not None:
        return items
    if isinstance(x, range):
        return Range(x.start, x.stop, x.step)
    if isinstance(x, np.ndarray) and x.ndim:
        return Rows(x)
    if isinstance(x, list | tuple):
        return Rows(FUNCTIONS["stack"](x))
    raise TypeMismatchError(
        "autograph: zip() of a traced tensor and something that has no rows",
        expected="arrays, tensors, ranges, or lists of arrays of one shape",
        got=type(x).__name__,
        hint="make a list or an array of it before zip()",
    )


def for_stmt(
    iterable: Any,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get_state: GetState,
    set_state: SetState,
    names: tuple[str, ...],
    options: dict[str, Any],
    assigned: Iterable[str] = (),
) -> None:
    """`for target in iterable: body(target)`, as long as `extra_test()` holds."""
    state = State(*state_of(get_state, set_state, names), names, cells_of(assigned, body))
    items = as_items(iterable)
    if items is not None:
        _stage_for(items, extra_test, body, state)
    elif extra_test is None:
        for target in iterable:
            body(target)
    else:
        _in_python(iterable, extra_test, body, state)


def _in_python(iterable: Any, extra_test: Callable[[], Any], body: Callable[[Any], None], state: State) -> None:
    iterator = iter(iterable)
    done = 0
    while True:
        go = plain(extra_test())
        if is_traced(go):
            if isinstance(iterable, range):
                rest = iterable[done:]
                if rest:
                    _stage_for(Range(rest.start, rest.stop, rest.step), extra_test, body, state)
            else:
                _unroll(iterator, extra_test, body, state)
            return
        if not go:
            return
        for target in islice(iterator, 1):
            body(target)
            break
        else:
            return
        done += 1


def _unroll(iterator: Iterator[Any], extra_test: Callable[[], Any], body: Callable[[Any], None], state: State) -> None:
    """Each further iteration as a branch on whether the loop still runs."""
    for target in iterator:

        def run(target: Any = target) -> None:
            body(target)

        if_stmt(
            plain(extra_test()), run, lambda: None, state.get, state.set, state.names, len(state.names), own=state.own
        )


def _stage_for(items: Items, extra_test: Callable[[], Any] | None, body: Callable[[Any], None], state: State) -> None:
    place = Place("`for`", here())
    length = items.length()
    if not is_traced(length):
        if length == 0:
            return
        length = np.int64(length)
    else:
        note_number()

    def test(k: Any) -> Any:
        more = FUNCTIONS["less"](k, length)
        return more if extra_test is None else and_(lambda: more, lambda: plain(extra_test()))

    def step(k: Any) -> None:
        body(represented(items.at(weaken(k, True))))

    watched = (body,) if extra_test is None else (body, extra_test)
    stage(place, state, test, step, watched, counts=True)
