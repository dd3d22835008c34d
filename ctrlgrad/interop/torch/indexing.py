"""Operators that pick numbers by whole numbers or booleans, and write them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.torch.arranging import axis_of, select
from ctrlgrad.interop.torch.operators import TABLE, at, entry, is_array
from ctrlgrad.interop.windows import Window, folded, unfolded
from ctrlgrad.transforms.grad import stop_gradient

_ALL = slice(None)


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
