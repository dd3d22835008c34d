"""Gathers and scatters."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import Node, entry, recorded


def _counted(places: Any, size: int | Any) -> Any:
    """Places counted from the front: negative ones count from the end."""
    return cnp.where(places < 0, places + np.asarray(size, places.dtype), places)


@entry("Gather")
def _gather(node: Node, x: Any, places: Any) -> Any:
    axis = node.get("axis", 0) % x.ndim
    if isinstance(x, np.ndarray | np.generic) and isinstance(places, np.ndarray | np.generic):
        return np.take(np.asarray(x), np.asarray(places), axis)
    return cnp.take(recorded(x), _counted(places, cnp.shape(x)[axis]), axis=axis)


@entry("GatherElements")
def _gather_elements(node: Node, x: Any, places: Any) -> Any:
    axis = node.get("axis", 0) % x.ndim
    return recorded(x)[_grid(_counted(places, cnp.shape(x)[axis]), axis)]


def _grid(places: Any, axis: int) -> tuple[Any, ...]:
    """An index for every axis: `places` along one, each element's own place along the others."""
    shape = places.shape
    own = [np.arange(n).reshape([n if b == a else 1 for b in range(len(shape))]) for a, n in enumerate(shape)]
    return tuple(places if a == axis else own[a] for a in range(len(shape)))


@entry("GatherND")
def _gather_nd(node: Node, x: Any, places: Any) -> Any:
    batch, depth = node.get("batch_dims", 0), places.shape[-1]
    key: list[Any] = []
    rank = places.ndim - 1
    for a in range(batch):
        key.append(np.arange(x.shape[a]).reshape([-1 if b == a else 1 for b in range(rank)]))
    key += [_counted(places[..., d], cnp.shape(x)[batch + d]) for d in range(depth)]
    return recorded(x)[tuple(key)]


def _scattered(node: Node, x: Any, key: tuple[Any, ...], updates: Any) -> Any:
    spot = cnp.at(recorded(x))[key]
    how = {"none": spot.set, "add": spot.add, "mul": spot.multiply, "max": spot.max, "min": spot.min}
    return how[node.get("reduction", "none")](updates)


@entry("Scatter", "ScatterElements")
def _scatter_elements(node: Node, x: Any, places: Any, updates: Any) -> Any:
    axis = node.get("axis", 0) % x.ndim
    return _scattered(node, x, _grid(_counted(places, cnp.shape(x)[axis]), axis), updates)


@entry("ScatterND")
def _scatter_nd(node: Node, x: Any, places: Any, updates: Any) -> Any:
    depth = places.shape[-1]
    key = tuple(_counted(places[..., d], cnp.shape(x)[d]) for d in range(depth))
    return _scattered(node, x, key, updates)


@entry("TensorScatter")
def _tensor_scatter(node: Node, past: Any, update: Any, starts: Any = None) -> Any:
    """A cache that is written to from a place of each row on."""
    axis = node.get("axis", -2) % past.ndim
    size, count, rows = past.shape[axis], update.shape[axis], past.shape[0]
    starts = np.zeros(rows, np.int64) if starts is None else starts
    places = cnp.expand_dims(starts, 1) + np.arange(count)
    if node.get("mode", "linear") == "circular":
        places = cnp.remainder(places, size)
    moved, new = cnp.moveaxis(past, axis, 1), cnp.moveaxis(update, axis, 1)
    key = (np.arange(rows)[:, None], places)
    return cnp.moveaxis(cnp.at(recorded(moved))[key].set(new), 1, axis)


@entry("OneHot")
def _one_hot(node: Node, places: Any, depth: Any, values: Any) -> Any:
    count = int(node.value(1).reshape(()))
    axis = node.get("axis", -1)
    axis = axis + places.ndim + 1 if axis < 0 else axis
    places = cnp.expand_dims(_counted(cast(places, np.int64), count), axis)
    classes = np.arange(count).reshape([-1 if a == axis else 1 for a in range(places.ndim)])
    return cnp.where(places == classes, values[1], values[0])


@entry("Compress")
def _compress(node: Node, x: Any, condition: Any) -> Any:
    axis = node.get("axis")
    known = node.known(1)
    if axis is None:
        x, axis = cnp.reshape(x, (-1,)), 0
    places = cnp.nonzero(condition)[0] if known is None else np.nonzero(known)[0]
    return cnp.take(x, places, axis=axis)
