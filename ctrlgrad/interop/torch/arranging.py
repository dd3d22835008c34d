"""Operators that make numbers and move them."""

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


def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return cnp.diagonal(x, offset, dim1, dim2)


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


def _scalar(x: Any, dtype: Any = None) -> Any:
    return cast(x, dtype) if is_array(x) else np.asarray(x, dtype or np.float32)


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
    "diagonal": _diagonal,
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
    "scalar_tensor": _scalar,
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
