"""Views of views: NumPy says where their elements lie, of memory that is never looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ctrlgrad.engines.cuda.prepared.model import CannotPrepare
from ctrlgrad.engines.cuda.prepared.operands import Affine, Shape, View
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ir.attributes import DYNAMIC


def viewed(view: View, of: Callable[[np.ndarray], np.ndarray]) -> View:
    """Apply a NumPy function that copies nothing to a view."""
    memory = np.zeros(1, view.dtype)
    # An array without elements has no address that could be compared.
    shape = tuple(max(size, 1) for size in view.shape) if not view.size else view.shape
    whole = as_strided(memory, shape, view.strides)
    part = of(whole)
    assert isinstance(part, np.ndarray)
    offset = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return replace(view, shape=part.shape, strides=part.strides, offset=view.offset + offset)


def part(view: View, key: Sequence[Any], indices: Sequence[Affine]) -> tuple[View, list[tuple[Affine, int]]]:
    """A basic part of a view, and what its indices must be below, where they are numbers of the host."""
    if not view.size:
        raise CannotPrepare("an array without elements")
    rest, moved, bounds = iter(indices), view.moved, []
    items: list[Any] = []
    axis = 0
    for item in key:
        if isinstance(item, slice) and DYNAMIC in (item.start, item.stop, item.step):
            raise CannotPrepare("a slice's bounds are values")
        if item is DYNAMIC:
            index = next(rest)
            bounds.append((index, view.shape[axis]))
            moved = moved.plus(index, view.strides[axis])
            items.append(0)
        else:
            if isinstance(item, int) and not -view.shape[axis] <= item < view.shape[axis]:
                raise CannotPrepare("an index is out of range")
            items.append(item)
        axis += item is not None
    found = viewed(replace(view, moved=moved), lambda x: np.asarray(x[(*items, ...)]))
    return found, bounds


def reshaped(view: View, shape: Shape) -> View | None:
    """A view that is seen with another shape, in which one size may be -1; None where its elements lie otherwise."""
    rest = math.prod(size for size in shape if size != -1)
    sizes = tuple(view.size // rest if size == -1 else size for size in shape)
    # Elements that are equally far apart, from the last axis: how many, and how far.
    runs: list[tuple[int, int]] = []
    for size, step in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if runs and step == runs[-1][0] * runs[-1][1]:
            runs[-1] = runs[-1][0] * size, runs[-1][1]
        elif size != 1:
            runs.append((size, step))
    ahead, left, step, strides = iter(runs), 1, view.dtype.itemsize, list[int]()
    for size in reversed(sizes):
        if left == 1 and size != 1:
            left, step = next(ahead)
        if left % size:
            return None
        strides.append(step)
        left, step = left // size, step * size
    return replace(view, shape=sizes, strides=tuple(reversed(strides)))


def known_shape(node: Node) -> Shape:
    """The shape that a node says, where all of it is known."""
    shape = attributes.Shape.of(node).shape
    if None in shape:
        raise CannotPrepare(f"a size of {node.op.name} is not known")
    return tuple(d for d in shape if d is not None)


def broadcast(view: View, shape: Shape) -> View:
    """A view that is seen with a shape that it broadcasts to."""
    return viewed(view, lambda x: np.broadcast_to(x, shape))
