"""Operators that make numbers, move them, pick them by integers or booleans, and write them there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.torch.operators import TABLE, at, entry, is_array
from ctrlgrad.interop.windows import Window, folded, unfolded
from ctrlgrad.transforms.grad import stop_gradient

_ALL = slice(None)


def axes_of(x: Any, dim: Any) -> tuple[int, ...]:
    """Axes from the start; all of them for None or an empty list."""
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(x.ndim))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(d % x.ndim if x.ndim else 0 for d in dims)


def axis_of(x: Any, dim: int, more: int = 0) -> int:
    rank = x.ndim + more
    return dim % rank if rank else 0


@entry("view", "_unsafe_view", "reshape", "_reshape_alias", "unsafe_reshape")
def reshape(x: Any, size: Sequence[Any], stride: Any = None) -> Any:
    return cnp.reshape(x, tuple(size))


@entry("expand", "broadcast_to")
def _expand(x: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    own = (*[1] * (len(size) - x.ndim), *x.shape)
    sizes = [n if isinstance(m, int) and m == -1 else m for m, n in zip(size, own, strict=True)]
    return cnp.broadcast_to(x, tuple(sizes))


def _squeeze(x: Any, dim: Any = None) -> Any:
    axes = axes_of(x, dim) if x.ndim else ()
    return cnp.squeeze(x, tuple(a for a in axes if isinstance(x.shape[a], int) and x.shape[a] == 1))


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    key = (*[_ALL] * axis_of(x, dim), slice(start, _end(end), step))
    return at(x, key)


def _end(end: Any) -> Any:
    return None if isinstance(end, int) and end >= 2**62 else end


def select(x: Any, dim: int, index: Any) -> Any:
    """One place along an axis."""
    return at(x, (*[_ALL] * axis_of(x, dim), index))


def _slice_scatter(x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    key = (*[_ALL] * axis_of(x, dim), slice(start, _end(end), step))
    return cnp.at(x)[key].set(cnp.broadcast_to(src, x[key].shape))


@entry("diagonal_scatter")
def _diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    places = np.arange(math.prod(x.shape)).reshape(x.shape)
    flat = cnp.at(cnp.ravel(x))[np.diagonal(places, offset, dim1, dim2).ravel()].set(cnp.ravel(src))
    return cnp.reshape(flat, x.shape)


@entry("split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(x: Any, sizes: Sequence[Any], dim: int = 0) -> list[Any]:
    bounds = [0, *itertools.accumulate(sizes)]
    return [_slice(x, dim, a, b) for a, b in itertools.pairwise(bounds)]


@entry("split", "split_copy")
def _split(x: Any, size: Any, dim: int = 0) -> list[Any]:
    if isinstance(size, Sequence):
        parts: list[Any] = _split_with_sizes(x, size, dim)
        return parts
    n = x.shape[axis_of(x, dim)]
    return [_slice(x, dim, i, min(i + size, n)) for i in range(0, max(n, 1), size)]


@entry("unbind", "unbind_copy")
def _unbind(x: Any, dim: int = 0) -> list[Any]:
    return [select(x, dim, i) for i in range(x.shape[axis_of(x, dim)])]


@entry("cat")
def _cat(xs: Sequence[Any], dim: int = 0) -> Any:
    # An empty tensor of rank 1 stands for one of any shape.
    rank = max(x.ndim for x in xs)
    kept = [x for x in xs if x.ndim == rank]
    return kept[0] if len(kept) == 1 else cnp.concatenate(kept, axis=dim)


def _repeat(x: Any, repeats: Sequence[Any]) -> Any:
    x = cnp.reshape(x, (*[1] * (len(repeats) - x.ndim), *x.shape))
    return cnp.tile(x, tuple(repeats))


def _triangle(keep: Any) -> Any:
    def fn(x: Any, diagonal: int = 0) -> Any:
        rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
        return cnp.where(keep(columns - rows, diagonal), x, cnp.zeros_like(x))

    return fn


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    if not dims:
        return cnp.reshape(cnp.roll(cnp.ravel(x), shifts[0]), x.shape)
    return cnp.roll(x, tuple(shifts), tuple(dims))


@entry("constant_pad_nd")
def pad_constant(x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    """x with `value` before and behind its last axes, given from the last one backwards."""
    widths = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    config = [(0, 0, 0)] * (x.ndim - len(widths)) + [(a, b, 0) for a, b in reversed(widths)]
    return lax.pad(x, np.asarray(value, x.dtype), config)


def _padded(mode: str) -> Any:
    def fn(x: Any, pad: Sequence[int]) -> Any:
        widths = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
        for axis, (a, b) in enumerate(reversed(widths), x.ndim - len(widths)):
            n = x.shape[axis]
            places = np.arange(-a, n + b)
            if mode == "reflect":
                places = np.abs(places)
                places = np.where(places >= n, 2 * (n - 1) - places, places)
            x = cnp.take(x, np.clip(places, 0, n - 1) if mode == "edge" else places, axis=axis)
        return x

    return fn


# Making.


def _full(size: Sequence[Any], value: Any, dtype: Any = None) -> Any:
    kind = dtype or (value.dtype if is_array(value) else np.asarray(value).dtype)
    if isinstance(value, float) and dtype is None:
        kind = np.dtype(np.float32)
    return cnp.full(tuple(size), value, dtype=kind)


def _filled(value: Any) -> Any:
    return lambda size, dtype=None, **_: _full(size, value, dtype or np.dtype(np.float32))


def _filled_like(value: Any) -> Any:
    return lambda x, dtype=None: cnp.full_like(x, value, dtype=dtype or x.dtype)


def _new(value: Any) -> Any:
    return lambda x, size, dtype=None: _full(size, value, dtype or x.dtype)


@entry("arange")
def _arange(start: Any, end: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    start, end = (0, start) if end is None else (start, end)
    return cnp.arange(start, end, step, dtype=dtype)


TABLE |= {
    "sym_size": lambda x, dim: x.shape[dim],
    "sym_numel": lambda x: x.size,
    "_local_scalar_dense": lambda x: x,
    "view_copy": reshape,
    "permute": lambda x, dims: cnp.transpose(x, axes_of(x, dims)) if x.ndim else x,
    "permute_copy": lambda x, dims: cnp.transpose(x, axes_of(x, dims)) if x.ndim else x,
    "transpose": lambda x, a, b: cnp.swapaxes(x, a, b) if x.ndim else x,
    "t": lambda x: cnp.transpose(x),
    "numpy_T": lambda x: cnp.transpose(x),
    "unsqueeze": lambda x, dim: cnp.expand_dims(x, axis_of(x, dim, 1)),
    "squeeze": _squeeze,
    "slice": _slice,
    "select": select,
    "select_scatter": lambda x, src, dim, index: cnp.at(x)[(*[_ALL] * axis_of(x, dim), index)].set(src),
    "slice_scatter": _slice_scatter,
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: cnp.diagonal(x, offset, dim1, dim2),
    "diag": lambda x, k=0: cnp.diag(x, k),
    "triu": _triangle(lambda distance, k: distance >= k),
    "tril": _triangle(lambda distance, k: distance <= k),
    "stack": lambda xs, dim=0: cnp.stack(xs, axis=dim),
    "repeat": _repeat,
    "tile": lambda x, dims: _repeat(x, [*[1] * (x.ndim - len(dims)), *dims]),
    "flip": lambda x, dims: cnp.flip(x, axes_of(x, dims)) if len(dims) and x.ndim else x,
    "roll": _roll,
    "reflection_pad1d": _padded("reflect"),
    "reflection_pad2d": _padded("reflect"),
    "reflection_pad3d": _padded("reflect"),
    "replication_pad1d": _padded("edge"),
    "replication_pad2d": _padded("edge"),
    "replication_pad3d": _padded("edge"),
    "full": _full,
    "zeros": _filled(0),
    "ones": _filled(1),
    "empty": _filled(0),
    "full_like": lambda x, value, dtype=None: cnp.full_like(x, value, dtype=dtype or x.dtype),
    "zeros_like": _filled_like(0),
    "ones_like": _filled_like(1),
    "empty_like": _filled_like(0),
    "new_zeros": _new(0),
    "new_ones": _new(1),
    "new_empty": _new(0),
    "new_full": lambda x, size, value, dtype=None: _full(size, value, dtype or x.dtype),
    "scalar_tensor": lambda x, dtype=None: cast(x, dtype) if is_array(x) else np.asarray(x, dtype or np.float32),
    "eye": lambda n, m=None, dtype=None: np.eye(n, m, dtype=dtype or np.float32),
    "linspace": lambda start, end, steps, dtype=None: cast(
        cnp.linspace(start, end, steps), np.dtype(dtype or np.float32)
    ),
    "_assert_tensor_metadata": lambda *args, **_: None,
    "_assert_async": lambda *args: None,
    "_assert_scalar": lambda *args: None,
    "sym_constrain_range": lambda *args, **_: None,
    "sym_constrain_range_for_size": lambda *args, **_: None,
}


# Operators that pick numbers by whole numbers or booleans, and write them there.


def _key(x: Any, indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_ALL if i is None else i for i in indices)


@entry("index", "_unsafe_index")
def _index(x: Any, indices: Sequence[Any]) -> Any:
    return at(x, _key(x, indices))


@entry("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, unsafe: bool = False) -> Any:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == bool and not accumulate and not values.ndim:
        mask = indices[0]
        return cnp.where(cnp.reshape(mask, (*mask.shape, *[1] * (x.ndim - mask.ndim))), cast(values, x.dtype), x)
    place = cnp.at(x)[_key(x, indices)]
    return place.add(values) if accumulate else place.set(values)


def _index_select(x: Any, dim: int, index: Any) -> Any:
    if not x.ndim:
        return x
    return cnp.take(x, cnp.reshape(index, (-1,)), axis=dim)


def _grid(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """The place of each number of `index`, along all axes of x."""
    axis = axis_of(x, dim)
    rank = index.ndim
    own = [cnp.reshape(cnp.arange(n), (*[1] * i, -1, *[1] * (rank - i - 1))) for i, n in enumerate(index.shape)]
    return tuple(index if i == axis else places for i, places in enumerate(own))


@entry("gather")
def _gather(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    if not x.ndim:
        return cnp.broadcast_to(x, index.shape)
    if not index.ndim:
        return select(x, dim, index)
    return at(x, _grid(x, dim, index))


def _scatter(how: str) -> Any:
    def fn(x: Any, dim: int, index: Any, src: Any, **_: Any) -> Any:
        if not x.ndim:
            x, index = cnp.reshape(x, (1,)), cnp.reshape(index, (1,))
            return cnp.reshape(fn(x, 0, index, cnp.reshape(src, (1,)) if is_array(src) else src), ())
        if is_array(src) and src.ndim:
            src = cast(src[tuple(slice(0, n) for n in index.shape)], x.dtype)
        place = cnp.at(x)[_grid(x, dim, index)]
        return getattr(place, how)(src)

    return fn


_ADDED, _SET = _scatter("add"), _scatter("set")
_REDUCED = {"sum": "add", "add": "add", "prod": "multiply", "multiply": "multiply", "amax": "max", "amin": "min"}


@entry("scatter.reduce", "scatter.value_reduce")
def _scatter_old(x: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    return _scatter(_REDUCED[reduce])(x, dim, index, src)


@entry("scatter_reduce")
def _scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    if not x.ndim:
        x, index, src = (cnp.reshape(y, (1,)) for y in (x, index, src))
        return cnp.reshape(_scatter_reduce(x, 0, index, src, reduce, include_self=include_self), ())
    if not include_self:
        neutral = {"sum": 0, "mean": 0, "prod": 1}.get(reduce)
        if neutral is None:
            least, most = _limits(np.dtype(x.dtype))
            neutral = least if reduce == "amax" else most
        x = _SET(x, dim, index, np.asarray(neutral, x.dtype))
    if reduce != "mean":
        return _scatter(_REDUCED[reduce])(x, dim, index, src)
    total = _ADDED(x, dim, index, src)
    counts = cnp.zeros(x.shape, x.dtype) if not include_self else cnp.ones(x.shape, x.dtype)
    counts = cnp.maximum(_ADDED(counts, dim, index, cnp.ones(index.shape, x.dtype)), np.asarray(1, x.dtype))
    return cnp.floor_divide(total, counts) if np.dtype(x.dtype).kind in "iu" else total / counts


def _limits(dtype: np.dtype) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def _index_write(how: str) -> Any:
    def fn(x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
        if not x.ndim:
            return fn(cnp.reshape(x, (1,)), 0, index, cnp.reshape(source, (1,)), alpha)[0]
        place = cnp.at(x)[(*[_ALL] * axis_of(x, dim), cnp.reshape(index, (-1,)))]
        return getattr(place, how)(source if alpha == 1 else source * alpha)

    return fn


@entry("masked_scatter")
def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    mask = cnp.broadcast_to(mask, x.shape)
    order = cnp.cumsum(cast(cnp.ravel(mask), np.dtype(np.int64))) - 1
    most = source.size - 1
    taken = cnp.take(cnp.ravel(source), cnp.minimum(cnp.maximum(order, 0), most), axis=0)
    return cnp.where(mask, cnp.reshape(taken, x.shape), x)


@entry("masked_select")
def _masked_select(x: Any, mask: Any) -> Any:
    shape = cnp.broadcast_shapes(x.shape, mask.shape)
    return cnp.broadcast_to(x, shape)[cnp.broadcast_to(mask, shape)]


@entry("nonzero")
def _nonzero(x: Any) -> Any:
    if not x.ndim:
        return cnp.zeros((cast(x != 0, np.dtype(np.int64)), 0), np.int64)
    return cnp.stack(cnp.nonzero(x), axis=-1)


@entry("embedding")
def _embedding(
    weight: Any, ids: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    rows = cnp.take(weight, ids, axis=0)
    if padding_idx < 0:
        return rows
    return cnp.where((ids == padding_idx)[..., None], stop_gradient(rows), rows)


@entry("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    weight: Any,
    ids: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, Any, Any, Any]:
    """The sum, mean or maximum of the rows of each bag; a bag begins at its offset."""
    starts = offsets[:-1] if include_last_offset else offsets
    bags, count = starts.shape[0], ids.shape[0]
    bag = cnp.searchsorted(starts, cnp.arange(count), side="right") - 1
    rows = cnp.take(weight, ids, axis=0)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    counted = ids != padding_idx
    sizes = cnp.at(cnp.zeros((bags,), np.int64))[bag].add(cast(counted, np.dtype(np.int64)))
    shape = (bags, weight.shape[1])
    if mode == 2:
        least = np.asarray(-np.inf, rows.dtype)
        found = cnp.at(cnp.full(shape, least))[bag].max(cnp.where(counted[:, None], rows, least))
        found = cnp.where(sizes[:, None] == 0, np.asarray(0, rows.dtype), found)
    else:
        found = cnp.at(cnp.zeros(shape, rows.dtype))[bag].add(cnp.where(counted[:, None], rows, cnp.zeros_like(rows)))
        found = found / cast(cnp.maximum(sizes, 1), rows.dtype)[:, None] if mode == 1 else found
    return found, bag, sizes, cnp.zeros(shape, np.int64)


@entry("unfold")
def _unfold(x: Any, dim: int, size: int, step: int) -> Any:
    if not x.ndim:
        return cnp.reshape(x, (1,))[:size]
    axis = axis_of(x, dim)
    starts = np.arange(0, x.shape[axis] - size + 1, step)
    found = cnp.take(x, starts[:, None] + np.arange(size), axis=axis)
    return cnp.moveaxis(found, axis + 1, -1)


def _pairs(padding: Any) -> list[tuple[int, int]]:
    return [(p, p) for p in padding]


@entry("im2col")
def _im2col(x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    window = Window.of(kernel, stride, dilation, _pairs(padding))
    return unfolded(x[None], window)[0] if x.ndim == 3 else unfolded(x, window)


@entry("col2im")
def _col2im(x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    window = Window.of(kernel, stride, dilation, _pairs(padding))
    return folded(x[None], size, window)[0] if x.ndim == 2 else folded(x, size, window)


TABLE |= {
    "index_select": _index_select,
    "scatter": _SET,
    "scatter_add": _ADDED,
    "index_add": _index_write("add"),
    "index_copy": _index_write("set"),
    "index_fill": lambda x, dim, index, value: _index_write("set")(
        x, dim, index, cnp.broadcast_to(cast(value, x.dtype), _index_select(x, dim, index).shape)
    ),
}
