"""Built-in functions as converted code calls them: Python's own, except on traced tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.autograph.iteration import Enumerate, Items, Range, Reversed, Zip, as_items, beside
from ctrlgrad.autograph.truth import is_traced, truth
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, of_default
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import TensorType
from ctrlgrad.source import here


def _is_items(x: Any) -> bool:
    return isinstance(x, Items | Tensor)


def _range(*bounds: Any) -> Any:
    return Range.of(*bounds) if any(map(is_traced, bounds)) and len(bounds) <= 3 else range(*bounds)


def _enumerate(iterable: Any, start: Any = 0) -> Any:
    items = as_items(iterable)
    return enumerate(iterable, start) if items is None else Enumerate(items, start)


def _zip(*iterables: Any, strict: bool = False) -> Any:
    if not any(map(_is_items, iterables)):
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


def _bool(*args: Any) -> Any:
    return truth(args[0], "`bool()`", here()) if len(args) == 1 and is_traced(args[0]) else bool(*args)


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
    range: _range,
    enumerate: _enumerate,
    zip: _zip,
    reversed: _reversed,
    len: _len,
    int: _number(int, np.int64),
    float: _number(float, np.float64),
    complex: _number(complex, np.complex128),
    bool: _bool,
    min: _extreme(min, "min", "less"),
    max: _extreme(max, "max", "greater"),
    sum: _sum,
    all: _quantifier(all, "all", _over("all", False)),
    any: _quantifier(any, "any", _over("any", True)),
}
