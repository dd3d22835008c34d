"""Kernels of ops on tensors: elementwise ones, reductions and scans, and ops that move elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import computed_dtype, converted, dtype_kind, running_dtype
from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.reference.table import IN_PLACE, PURE, InPlace, Pure, own, same, template_shape
from ctrlgrad.errors import ExecutionError, ShapeError
from ctrlgrad.ir import Node, TensorType, attributes
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ops.arrays import fill
from ctrlgrad.ops.elementwise import FACTS
from ctrlgrad.records import pairs
from ctrlgrad.threads import default_threads

PURE |= {name: same(facts.numpy) for name, facts in FACTS.items()}

# Python's operators do the same on arrays, and on NumPy's scalars in a tenth of the time.
_OPERATORS = pairs(
    "add:add subtract:sub multiply:mul divide:truediv negative:neg less:lt less_equal:le greater:gt greater_equal:ge "
    "equal:eq not_equal:ne"
)
PURE |= {name: same(getattr(operator, short)) for name, short in _OPERATORS.items()}


PURE["stop_gradient"] = lambda node: lambda x: x


def _cast(node: Node) -> Callable[..., Any]:
    dtype = attributes.Cast.of(node).dtype
    if dtype_kind(node.operands[0].tensor.dtype) == "c" and dtype_kind(dtype) not in "bc":
        return lambda x: converted(x.real, dtype)
    return lambda x: converted(x, dtype)


PURE["cast"] = _cast


# Elements from which a sum is computed in a wider dtype: along any axis but the last NumPy adds one after the other.
LONG = 1 << 10


def summed_dtype(x: Any) -> np.dtype:
    """The dtype that an array's elements are added up in."""
    return running_dtype(x.dtype) if x.size > LONG else computed_dtype(x.dtype)


def _matmul(node: Node) -> Callable[..., Any]:
    dtype = node.result.tensor.dtype
    if computed_dtype(dtype) == dtype and dtype_kind(dtype) != "c":
        return np.matmul

    def kernel(a: Any, b: Any) -> Any:
        # NumPy's library adds up products of complex numbers one after the other; those of floats it does not.
        is_long = dtype_kind(dtype) == "c" and a.shape[-1] > LONG
        computed = running_dtype(dtype) if is_long else computed_dtype(dtype)
        widened = (x.astype(computed, copy=False) for x in (a, b))
        return np.matmul(*widened).astype(dtype, copy=False)

    return kernel


PURE["matmul"] = _matmul


def _reduction(fn: Callable[..., Any]) -> Pure:
    def kernel(node: Node) -> Callable[..., Any]:
        given = attributes.Reduction.of(node)
        return lambda x: fn(x, axis=given.axes, keepdims=given.keepdims)

    return kernel


def _extreme_index(fn: Callable[..., Any]) -> Pure:
    def kernel(node: Node) -> Callable[..., Any]:
        given = attributes.Reduction.of(node)
        return lambda x: fn(x, axis=given.axes[0], keepdims=given.keepdims)

    return kernel


def _sum(node: Node) -> Callable[..., Any]:
    """A sum of the operand's dtype: by itself NumPy widens small integers."""
    given, dtype = attributes.Reduction.of(node), node.result.tensor.dtype
    axes, keepdims = given.axes, given.keepdims
    total: Callable[..., np.ndarray] = np.add.reduce
    return lambda x: total(x, axes, summed_dtype(x), keepdims=keepdims).astype(dtype, copy=False)


def _prod(node: Node) -> Callable[..., Any]:
    given, dtype = attributes.Reduction.of(node), node.result.tensor.dtype
    computed = computed_dtype(dtype)
    return lambda x: np.prod(x, axis=given.axes, keepdims=given.keepdims, dtype=computed).astype(dtype, copy=False)


PURE |= {name: _reduction(getattr(np, name)) for name in ("max", "min", "any", "all")}
PURE |= {"sum": _sum, "prod": _prod}
PURE |= {name: _extreme_index(getattr(np, name)) for name in ("argmax", "argmin")}


def _scan(fn: Callable[..., Any], dtype_of: Callable[[np.dtype], np.dtype]) -> Pure:
    def kernel(node: Node) -> Callable[..., Any]:
        axis, dtype = attributes.Axis.of(node).axis, node.result.tensor.dtype
        computed = dtype_of(dtype)

        def scanned(x: Any) -> Any:
            return fn(x, axis=axis, dtype=computed).astype(dtype, copy=False)

        if attributes.Scan.of(node).reverse:
            return lambda x: np.flip(scanned(np.flip(x, axis)), axis)
        return scanned

    return kernel


PURE["cumsum"] = _scan(np.cumsum, running_dtype)
PURE["cumprod"] = _scan(np.cumprod, computed_dtype)


def sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the axes in which `shape` was broadcast to the shape of `x`. An error where it does not broadcast."""
    lead = x.ndim - len(shape)
    if any(d not in (1, n) for d, n in zip(shape, x.shape[lead:], strict=True)):
        raise ValueError(f"shape {shape} does not broadcast to {x.shape}, which is to be summed to it")
    over = tuple(range(lead)) + tuple(
        lead + axis for axis, d in enumerate(shape) if d == 1 and x.shape[lead + axis] != 1
    )
    if not over:
        return x
    return x.sum(axis=over, dtype=summed_dtype(x)).astype(x.dtype, copy=False).reshape(shape)


def _common_size(node: Node) -> Callable[..., Any]:
    of = attributes.Described.of(node).what

    def kernel(sizes: Any) -> Any:
        differing = np.flatnonzero(sizes != sizes[0]) if sizes.size else sizes
        if differing.size:
            other = differing[0]
            raise ExecutionError(
                f"vmap: {of} differs from row to row",
                expected="one size for all rows: an array has no rows of different sizes",
                got=f"{sizes[0]} in row 0, {sizes[other]} in row {other}",
                hint="give all rows the largest size and fill the shorter ones up, or reduce each row inside vmap",
            )
        return sizes[0] if sizes.size else np.int64(0)

    return kernel


def require_sizes(node: Node, found: tuple[int, ...], sizes: Sequence[int]) -> None:
    """Refuse an array of other sizes than a node requires."""
    given, dtype = attributes.Required.of(node), node.result.tensor.dtype
    wanted = list(found)
    for axis, size in zip(given.axes, sizes, strict=True):
        wanted[axis] = size
    if found != tuple(wanted):
        shown = [str(TensorType(dtype, shape)) for shape in (tuple(wanted), found)]
        raise ShapeError(given.problem, expected=shown[0], got=shown[1], hint=given.hint, source=None)


def _ensure_sizes(node: Node) -> Callable[..., Any]:
    def kernel(x: Any, *dims: Any) -> Any:
        require_sizes(node, np.shape(x), template_shape(node, dims))
        return x

    return kernel


PURE["common_size"] = _common_size
PURE["constant"] = lambda node: lambda: attributes.Constant.of(node).value
PURE["dim"] = lambda node: lambda x: np.int64(x.shape[attributes.Axis.of(node).axis])
PURE["iota"] = lambda node: lambda *dims: np.arange(template_shape(node, dims)[0])
PURE["reshape"] = lambda node: lambda x, *dims: np.reshape(x, template_shape(node, dims))
PURE["ensure_sizes"] = _ensure_sizes
PURE["broadcast_to"] = lambda node: lambda x, *dims: np.broadcast_to(x, template_shape(node, dims))
PURE["sum_to"] = lambda node: lambda x, *dims: sum_to(x, template_shape(node, dims))
PURE["transpose"] = lambda node: lambda x: np.transpose(x, attributes.Axes.of(node).axes)
PURE["expand_dims"] = lambda node: lambda x: np.expand_dims(x, attributes.Axes.of(node).axes)
PURE["squeeze"] = lambda node: lambda x: np.squeeze(x, attributes.Axes.of(node).axes)
PURE["flip"] = lambda node: lambda x: np.flip(x, attributes.Axes.of(node).axes)
PURE["concat"] = lambda node: lambda *xs: np.concatenate(xs, axis=attributes.Axis.of(node).axis)


# Kernels of ops that find an order or positions.


def _argsort(node: Node) -> Callable[..., Any]:
    axis = attributes.Axis.of(node).axis
    if not attributes.Order.of(node).descending:
        return lambda x: _ascending(x, axis)
    return lambda x: _descending(x, axis)


# Units of work (see `ctrlgrad.threads`) of an element and a halving of its row; and of starting a thread: 100 us.
SORT, START = 100, 5_000_000


def most_sorters(rows: int, length: int) -> int:
    """The most threads that sorting so many rows of a length is worth."""
    return min(rows, SORT * rows * length * length.bit_length() // START)


def _ascending(x: Any, axis: int) -> np.ndarray:
    """The order of rows along an axis. Threads share the rows if there is much to do: NumPy sorts without the GIL."""
    x = np.asarray(x)
    rows = x.size // max(x.shape[axis], 1)
    most = most_sorters(rows, x.shape[axis])
    count = min(most, default_threads()) if most > 1 else 1
    if count < 2:
        return np.argsort(x, axis=axis, kind="stable")
    from concurrent.futures import ThreadPoolExecutor  # no part of the first call of a program without long sorts

    x = np.moveaxis(x, axis, -1)
    lines, order = x.reshape(rows, x.shape[-1]), np.empty((rows, x.shape[-1]), np.intp)
    ends = [rows * k // count for k in range(count + 1)]

    def some(k: int) -> None:
        order[ends[k] : ends[k + 1]] = np.argsort(lines[ends[k] : ends[k + 1]], axis=-1, kind="stable")

    with ThreadPoolExecutor(count - 1) as pool:
        others = [pool.submit(some, k) for k in range(1, count)]
        some(0)
        for other in others:
            other.result()
    return np.moveaxis(order.reshape(x.shape), -1, axis)


def _descending(x: Any, axis: int) -> Any:
    """The ascending order of the flipped elements, flipped: equal elements keep their order."""
    return x.shape[axis] - 1 - np.flip(_ascending(np.flip(x, axis), axis), axis)


def _top_k(node: Node) -> Callable[..., Any]:
    axis, count = attributes.Axis.of(node).axis, attributes.Selection.of(node).count
    first = (*[slice(None)] * axis, slice(0, count))

    def top_k(x: Any) -> Any:
        if x.shape[axis] < count:
            raise ValueError("fewer elements than are selected")
        return _descending(x, axis)[first]

    return top_k


PURE["argsort"] = _argsort
PURE["top_k"] = _top_k
PURE["searchsorted"] = lambda node: (
    lambda row, values: np.searchsorted(row, values, side=attributes.Search.of(node).side)
)
PURE["nonzero"] = lambda node: lambda x: np.stack(np.nonzero(x))


# Kernels of indexed reads and updates; updates happen in place where nothing else sees the array.


def _filler(key: Key) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """`fill` of one key, with all done that does not need the operands."""
    whole = [place for place, item in enumerate(key) if item is DYNAMIC]
    if any(isinstance(item, slice) and DYNAMIC in (item.start, item.stop, item.step) for item in key):
        return lambda operands: fill(key, operands)
    if not whole:
        return lambda operands: key
    if whole == [0]:
        rest = key[1:]
        return lambda operands: (operands[0], *rest)

    def filled(operands: Sequence[Any]) -> tuple[Any, ...]:
        items: list[Any] = list(key)
        for place, operand in zip(whole, operands, strict=True):
            items[place] = operand
        return tuple(items)

    return filled


def _getitem(node: Node) -> Callable[..., Any]:
    filled = _filler(attributes.Index.of(node).key)
    return lambda x, *indices: x[filled(indices)]


PURE["getitem"] = _getitem


def _updating(write: Callable[[Any, Any, Any], None]) -> InPlace:
    """An op that writes to a part of its first operand: `write(x, where, value)`."""

    def entry(node: Node) -> Callable[[list[Any], Run], Any]:
        filled = _filler(attributes.Index.of(node).key)

        def kernel(operands: list[Any], run: Run) -> Any:
            x = own(operands, run)
            value, *indices = operands
            try:
                write(x, filled(indices), value)
            except ValueError:
                # The error is about all operands.
                operands.insert(0, x)
                raise
            return x

        return kernel

    return entry


def _set(x: Any, where: Any, value: Any) -> None:
    x[where] = value


def _add(x: Any, where: Any, value: Any) -> None:
    x[where] += value


def _add_row(x: Any, where: Any, value: Any) -> None:
    # NumPy reads beyond a value of rank 1 that it repeats for the rows of an index array.
    np.add.at(x, where, value[None])


def _additem(node: Node) -> Callable[[list[Any], Run], Any]:
    _, value, *indices = (v.type.rank for v in node.operands if isinstance(v.type, TensorType))
    rank = max(indices, default=0)
    add = _add_row if rank > 1 and value == 1 else np.add.at if rank > 0 else _add
    return _updating(add)(node)


IN_PLACE["setitem"] = _updating(_set)
IN_PLACE["additem"] = _additem
