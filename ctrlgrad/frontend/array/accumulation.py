"""Products along an axis, running sums and products, and differences.

A product of floats is made of pairwise multiplications in log2(n) rounds, whether n is known or not. Every
factor's derivative is then a product of the others, exact at zeros and to any order, without a division.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.arithmetic import floor_divide, multiply
from ctrlgrad.frontend.array.dims import (
    axes_of,
    axis_of,
    broadcasted,
    concatenated,
    dim,
    dtype_of,
    rank_of,
    shape_of,
    sliced,
    squeezed,
    whole_number,
)
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import operand, shown, to_dtype
from ctrlgrad.frontend.array.reduction import kept, reduce, widened
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.while_loops import while_loop


@array_function("product")
def prod(
    x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The product along axes, or of all elements; arguments as for `sum`.

    Its derivatives are exact at zeros, to any order.

    >>> print(cnp.prod([[1.0, 2.0], [3.0, 4.0]]))
    24.0
    """
    x = kept("prod", widened("prod", x, dtype), where, 1)
    if initial is not None:
        found = prod(x, axis, keepdims=keepdims)
        return cast(multiply(found, cast(initial, dtype_of(found), "prod")), dtype_of(found))
    axes = axes_of("prod", axis, rank_of(x))
    if dtype_kind(dtype_of(x)) not in "fc":
        return reduce("prod", x, axes, keepdims)
    for a in axes:
        x = _multiplied(x, a) if shape_of(x)[a] is not None else _multiplied_unknown(x, a)
    return x if keepdims else squeezed(x, axes)


def _ones(x: Any, axis: int, size: Any) -> Any:
    """Ones in the shape of x, but of `size` on one axis."""
    return broadcasted(np.ones((), dtype_of(x)), [size if a == axis else dim(x, a) for a in range(rank_of(x))])


def _multiplied(x: Any, axis: int) -> Any:
    """The product along an axis of known size, which keeps size 1: a tree of halvings."""
    left = shape_of(x)[axis]
    assert left is not None
    if left == 0:
        # A sum of nothing and one: traced where x is, so that a traced index may read it.
        return apply("add", [reduce("sum", x, (axis,), True), np.ones((), dtype_of(x))])
    odd = None
    while left > 1:
        half = left // 2
        if left % 2:
            last = sliced(x, axis, left - 1, left)
            odd = last if odd is None else apply("multiply", [odd, last])
        x = apply("multiply", [sliced(x, axis, 0, half), sliced(x, axis, half, 2 * half)])
        left = half
    return x if odd is None else apply("multiply", [x, odd])


def _multiplied_unknown(x: Any, axis: int) -> Any:
    """As `_multiplied` for a size that is known at run time only: a loop of halvings."""

    def halve(y: Any) -> Any:
        size = dim(y, axis)
        half = floor_divide(size, 2)
        pairs = apply("multiply", [sliced(y, axis, 0, half), sliced(y, axis, half, multiply(half, 2))])
        return concatenated([pairs, sliced(y, axis, multiply(half, 2), size)], axis)

    # The one in front makes the empty product.
    start = concatenated([_ones(x, axis, 1), x], axis)
    one = while_loop(lambda y: dim(y, axis) > 1, halve, start, name="prod")
    return sliced(one, axis, 0, 1)


def _running(op: str, x: Any, axis: Any, dtype: Any) -> tuple[Any, int]:
    """The operand in the dtype to accumulate in, and the axis; all elements in one dimension for None."""
    x = widened(op, x, dtype)
    if axis is None:
        x, axis = ravel(x), 0
    return x, axis_of(op, axis, rank_of(x))


@array_function()
def cumsum(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """The running sum along an axis, or of all elements in one dimension; widens as `sum`.

    >>> cnp.cumsum([1, 2, 3])
    array([1, 3, 6])
    """
    x, place = _running("cumsum", x, axis, dtype)
    return apply("cumsum", [x], {"axis": place, "reverse": False})


@array_function()
def cumprod(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """The running product along an axis, or of all elements in one dimension; widens as `prod`.

    Its derivatives are exact at zeros, to any order.

    >>> cnp.cumprod([1, 2, 3])
    array([1, 2, 6])
    """
    x, place = _running("cumprod", x, axis, dtype)
    if dtype_kind(dtype_of(x)) not in "fc":
        return apply("cumprod", [x], {"axis": place, "reverse": False})
    size = shape_of(x)[place]
    if size is None:
        return _running_product_unknown(x, place)
    reach = 1
    while reach < size:
        x = _joined(x, place, reach)
        reach *= 2
    return x


def _joined(x: Any, axis: int, reach: Any) -> Any:
    """Products of `reach` elements become products of twice as many: each times the one that ends before it."""
    size = dim(x, axis)
    products = apply("multiply", [sliced(x, axis, reach, size), sliced(x, axis, 0, size - reach)])
    return concatenated([sliced(x, axis, 0, reach), products], axis)


def _running_product_unknown(x: Any, axis: int) -> Any:
    size = dim(x, axis)

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        reach, y = state
        return multiply(reach, 2), _joined(y, axis, reach)

    return while_loop(lambda state: state[0] < size, step, (np.int64(1), x), name="cumprod")[1]


def _cumulative(name: str, fn: Callable[..., Any], x: Any, axis: Any, dtype: Any, include_initial: bool) -> Any:
    x = operand(name, x)
    if rank_of(x) == 0:
        raise ShapeError(f"{name}: needs rank 1 or more", got=shown(x))
    if axis is None and rank_of(x) != 1:
        raise ShapeError(f"{name}: an axis is needed for more than one dimension", got=shown(x))
    place = axis_of(name, 0 if axis is None else axis, rank_of(x))
    result = fn(x, place, dtype)
    if not include_initial:
        return result
    initial = np.asarray(0 if fn is cumsum else 1, dtype_of(result))
    sizes = [1 if a == place else dim(result, a) for a in range(rank_of(result))]
    return concatenated([broadcasted(initial, sizes), result], place)


@array_function()
def cumulative_sum(x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """The running sum along an axis, which may be left out for one dimension.

    With `include_initial` a zero stands in front. Raises a ShapeError for a scalar, or where the axis is missing.

    >>> cnp.cumulative_sum([1, 2, 3], include_initial=True)
    array([0, 1, 3, 6])
    """
    return _cumulative("cumulative_sum", cumsum, x, axis, dtype, include_initial)


@array_function()
def cumulative_prod(x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """The running product along an axis, which may be left out for one dimension.

    With `include_initial` a one stands in front. Raises a ShapeError for a scalar, or where the axis is missing.

    >>> cnp.cumulative_prod([1, 2, 3])
    array([1, 2, 6])
    """
    return _cumulative("cumulative_prod", cumprod, x, axis, dtype, include_initial)


@array_function()
def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The differences of neighbours along an axis, taken n times: the axis becomes n shorter.

    Args:
        x: rank 1 or more; booleans differ where they are not equal.
        n: how often, at least 0.
        prepend, append: arrays or numbers to put at the ends first.

    >>> cnp.diff([1, 4, 9])
    array([3, 5])
    """
    x, times = operand("diff", x), whole_number("diff", "n", n)
    if rank_of(x) == 0 or times < 0:
        raise ShapeError("diff: needs rank 1 or more and n >= 0", got=f"{shown(x)}, n={n}")
    place = axis_of("diff", axis, rank_of(x))
    if times == 0:
        return x
    x = _with_ends(x, place, prepend, append)
    op = "not_equal" if dtype_kind(dtype_of(x)) == "b" else "subtract"
    for _ in range(times):
        size = dim(x, place)
        upper, lower = sliced(x, place, 1, None), sliced(x, place, 0, _before_last(size))
        x = apply(op, [upper, lower])
    return x


def _before_last(size: Any) -> Any:
    return max(size - 1, 0) if isinstance(size, int) else apply("maximum", [size - 1, np.int64(0)])


def _with_ends(x: Any, axis: int, prepend: Any, append: Any) -> Any:
    parts = [x]
    for at, end in ((0, prepend), (2, append)):
        if end is not None:
            end = operand("diff", end)
            if rank_of(end) == 0:
                end = broadcasted(end, [1 if a == axis else dim(x, a) for a in range(rank_of(x))])
            parts.insert(at, end)
    if len(parts) == 1:
        return x
    dtype = result_type(*(dtype_of(part) for part in parts))
    return concatenated([to_dtype("diff", part, dtype) for part in parts], axis)


__all__ = [
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "prod",
]
