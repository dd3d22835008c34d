"""Methods and keywords of a `ufunc`.

Sums, products, extremes and updates use the array functions; any other function is applied in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import as_dtype, dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.creation import full
from ctrlgrad.frontend.array.elementwise import where as choose
from ctrlgrad.frontend.array.indexing import at, getitem, refuse_in_place, take
from ctrlgrad.frontend.array.manipulation import broadcast_to, concatenate, expand_dims, moveaxis, ravel
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import FUNCTIONS, ufunc
from ctrlgrad.frontend.loops import fori_loop, scan

# The array functions that are a ufunc's own reduction, running reduction, or update of a part.
REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}
RUNNING = {"add": "cumsum", "multiply": "cumprod"}
UPDATES = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "divide": "divide",
    "power": "power",
    "maximum": "max",
    "minimum": "min",
}


def _call(fn: ufunc, args: Sequence[Any], others: Mapping[str, Any], where: Any, dtype: Any) -> Any:
    """A call with `dtype=` or `where=`."""
    xs: list[Any] = operands(fn.__name__, args)
    if dtype is not None:
        numpys = getattr(np, fn.__name__, None)
        if not isinstance(numpys, np.ufunc):
            raise TypeMismatchError(
                f"{fn.__name__}: dtype= is for the functions that NumPy has",
                got=f"dtype={dtype}",
                hint="convert the operands with .astype(...)",
            )
        wanted = loop_dtypes(numpys, xs, as_dtype(fn.__name__, dtype))
        xs = [to_dtype(fn.__name__, x, t) for x, t in zip(xs, wanted, strict=True)]
    if where is True:
        return fn.func(*xs, **others)
    mask = truth(fn.__name__, where)
    # Elements that are left out are computed at a point where the function and its derivative are finite.
    results = fn.func(*(choose(mask, x, _harmless(fn, x)) for x in xs), **others)
    several = results if isinstance(results, tuple) else (results,)
    found = tuple(choose(mask, x, np.zeros((), dtype_of(x))) for x in several)
    return found if isinstance(results, tuple) else found[0]


def _harmless(fn: ufunc, x: Any) -> Any:
    dtype = dtype_of(operand(fn.__name__, x))
    if dtype_kind(dtype) not in "fc":
        return np.ones((), dtype)
    numpys = getattr(np, fn.__name__, None)
    with np.errstate(all="ignore"):
        inside = not isinstance(numpys, np.ufunc) or np.isfinite(numpys(*[0.5] * fn.nin)).all()
    return np.asarray(0.5 if inside else 2.0, dtype)


def _require_two(fn: ufunc, method: str) -> None:
    if (fn.nin, fn.nout) != (2, 1):
        raise TypeMismatchError(
            f"{fn.__name__}.{method}: not a function of two operands with one result",
            expected="2 operands, 1 result",
            got=f"{fn.nin} and {fn.nout}",
            hint="use a ufunc of two operands, such as add",
        )


def _reduce(fn: ufunc, a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    _require_two(fn, "reduce")
    where = None if where is True else where
    if fn.__name__ in REDUCTIONS:
        keywords = {"initial": initial} if fn.__name__ not in ("logical_and", "logical_or") else {}
        if fn.__name__ in RUNNING:
            keywords["dtype"] = dtype
        elif dtype is not None:
            a = to_dtype(fn.__name__, a, dtype)
        return FUNCTIONS[REDUCTIONS[fn.__name__]](a, axis, keepdims=keepdims, where=where, **keywords)
    a = operand(fn.__name__, a) if dtype is None else to_dtype(fn.__name__, a, dtype)
    axes = list(range(rank_of(a))) if axis is None else axes_in_order(fn.__name__, axis, rank_of(a))
    if where is not None and initial is None and fn.identity is None:
        raise TypeMismatchError(
            f"{fn.__name__}.reduce: where= needs a value for no elements",
            expected="initial=",
            got="none, and the function has no identity",
        )
    mask = None if where is None else broadcast_to(truth(fn.__name__, where), tuple(dims(a)))
    for number, place in enumerate(axes):
        # The mask and the initial value count once.
        a = _folded(fn, a, place, initial if number == 0 else None, mask if number == 0 else None)
    if keepdims:
        return a
    return reshaped(a, [d for place, d in enumerate(dims(a)) if place not in axes])


def _folded(fn: ufunc, a: Any, axis: int, initial: Any, mask: Any) -> Any:
    """The fold along an axis, which keeps size 1."""
    rows = moveaxis(a, axis, 0)
    shape, empty = dims(rows)[1:], shape_of(rows)[0] == 0
    start = fn.identity if initial is None and (mask is not None or empty) else initial
    if start is None and empty:
        raise ShapeError(
            f"{fn.__name__}.reduce: no elements",
            expected="an element at least, or initial=",
            got=f"axis {axis} of size 0",
        )
    first = rows[0] if start is None else full(tuple(shape), start, dtype=dtype_of(rows))
    rest = sliced(rows, 0, 1, None) if start is None else rows
    first = _widened(fn, first, rest)
    given = rest if mask is None else (rest, moveaxis(mask, axis, 0))

    def step(found: Any, row: Any) -> tuple[Any, Any]:
        if mask is None:
            return cast(fn.func(found, row), dtype_of(found)), None
        x, counts = row
        return choose(counts, cast(fn.func(found, x), dtype_of(found)), found), None

    return expand_dims(scan(step, first, given)[0], axis)


def _widened(fn: ufunc, first: Any, rows: Any) -> Any:
    """The first element in the dtype that the function gives."""
    probe = [np.ones((), dtype_of(x)) for x in (first, rows)]
    return cast(first, dtype_of(fn.func(*probe)))


def _accumulate(fn: ufunc, a: Any, axis: int, dtype: Any) -> Any:
    _require_two(fn, "accumulate")
    if fn.__name__ in RUNNING:
        return FUNCTIONS[RUNNING[fn.__name__]](a, axis, dtype)
    a = operand(fn.__name__, a) if dtype is None else to_dtype(fn.__name__, a, dtype)
    place = axis_of(fn.__name__, axis, rank_of(a))
    if shape_of(a)[place] == 0:
        return a
    rows = moveaxis(a, place, 0)
    first, rest = rows[0], sliced(rows, 0, 1, None)
    first = _widened(fn, first, rest)

    def step(found: Any, row: Any) -> tuple[Any, Any]:
        new = cast(fn.func(found, row), dtype_of(found))
        return new, new

    return moveaxis(concatenate([expanded(first, (0,)), scan(step, first, rest)[1]], 0), 0, place)


def _outer(fn: ufunc, a: Any, b: Any) -> Any:
    _require_two(fn, "outer")
    a, b = operand(fn.__name__, a), operand(fn.__name__, b)
    return fn.func(expanded(a, range(rank_of(a), rank_of(a) + rank_of(b))), b)


def _at(fn: ufunc, a: Any, indices: Any, b: Any, inplace: bool) -> Any:
    refuse_in_place(f"{fn.__name__}.at", inplace)
    if fn.nout != 1 or fn.nin != (1 if b is None else 2):
        raise TypeMismatchError(
            f"{fn.__name__}.at: the number of operands does not fit",
            expected=f"a function of {1 if b is None else 2} operands with one result",
            got=f"{fn.nin} operands, {fn.nout} results",
            hint="add.at(a, indices, b) for two operands, negative.at(a, indices) for one",
        )
    if fn.__name__ in UPDATES:
        return getattr(at(a)[indices], UPDATES[fn.__name__])(b)
    a = operand(fn.__name__, a)
    # One after another: an index may name a position twice.
    numbers = reshaped(iota(times(dims(a))), dims(a))
    found = getitem(numbers, indices)
    places, flat = ravel(found), ravel(a)
    values = None if b is None else ravel(broadcasted(operand(fn.__name__, b), dims(found)))

    def body(k: Any, x: Any) -> Any:
        place = getitem(places, k)
        old = x[place]
        new = fn.func(old) if values is None else fn.func(old, getitem(values, k))
        return at(x)[place].set(cast(new, dtype_of(x)))

    return reshaped(fori_loop(0, dim(places, 0), body, flat), dims(a))


def _reduceat(fn: ufunc, a: Any, indices: Any, axis: int, dtype: Any) -> Any:
    _require_two(fn, "reduceat")
    a = operand(fn.__name__, a) if dtype is None else to_dtype(fn.__name__, a, dtype)
    if fn.__name__ in RUNNING and dtype is None:
        # Small integers and booleans add up in 64 bits.
        a = cast(a, np.sum(np.zeros(0, dtype_of(a))).dtype)
    place, starts = axis_of(fn.__name__, axis, rank_of(a)), operand(fn.__name__, indices)
    size = dim(a, place)
    after = concatenate([sliced(starts, 0, 1, None), reshaped(cast(size, dtype_of(starts)), [1])], 0)
    ends = choose(after > starts, after, starts + 1)
    rank = rank_of(a)
    first = take(a, starts, place)
    starts, ends = laid_along(place, starts, rank), laid_along(place, ends, rank)
    first = _widened(fn, first, first)

    def body(k: Any, found: Any) -> Any:
        row = take(a, reshaped(k, [1]), place)
        return choose((starts < k) & (k < ends), cast(fn.func(found, row), dtype_of(found)), found)

    return fori_loop(0, size, body, first)


METHODS: dict[str, Callable[..., Any]] = {
    "ufunc.call": _call,
    "ufunc.reduce": _reduce,
    "ufunc.accumulate": _accumulate,
    "ufunc.outer": _outer,
    "ufunc.at": _at,
    "ufunc.reduceat": _reduceat,
}
FUNCTIONS.update(METHODS)


__all__ = ["ufunc"]
