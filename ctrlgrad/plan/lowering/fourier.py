"""Lowering of discrete Fourier transforms: to machine code for sizes without a prime factor above 5, else to SciPy."""

from __future__ import annotations

import numpy as np

from ctrlgrad.ir import Node, attributes
from ctrlgrad.plan.lowering.outside import outside
from ctrlgrad.plan.lowering.state import State
from ctrlgrad.plan.model import Spectrum, Transform, View, points_of
from ctrlgrad.plan.sizes import ONE, Size, product, row_major

# Limits up to which machine code is faster than a call of SciPy.
MOST_POINTS = 1 << 16
"""Most complex numbers of a transform in rows, if a multiple of 4: lanes are parts of one transform."""
MOST_ACROSS = 1 << 12
"""Most complex numbers of a transform in columns: lanes are transforms beside each other."""
MOST_ALONE = 1 << 10
"""Most complex numbers of a transform in rows, if no multiple of 4: lanes are rows, and stay empty where rows are
few."""


def transform(state: State, node: Node) -> None:
    """`fft`, `rfft` and `irfft`, of elements as they lie: axes in the order of memory."""
    axis, (shape,) = attributes.Axis.of(node).axis, map(state.shape, node.operands)
    how: Spectrum
    if node.op.name == "fft":
        how, size = "inverse_fft" if attributes.Transform.of(node).inverse else "fft", shape[axis]
    else:
        how, size = "rfft" if node.op.name == "rfft" else "irfft", Size(attributes.RealTransform.of(node).size)
    if not size.is_known or not shape[axis].is_known:
        outside(state, node)
        return
    n, view = size.factor, state.view(node.operands[0])
    order = [*range(len(shape))]
    if all(stride.is_known for stride in view.strides):
        order.sort(key=lambda a: -view.strides[a].factor)
    place = order.index(axis)
    sizes = tuple(shape[a] for a in order)
    folded = product(sizes[:place]), sizes[place], product(sizes[place + 1 :])
    if not _is_fast(points_of(how, n), folded[2]):
        outside(state, node)
        return
    dense = state.dense_view(View(view.array, view.offset, sizes, tuple(view.strides[a] for a in order)))
    given = View(dense.array, dense.offset, folded, row_major(folded))
    count = Size(n // 2 + 1) if how == "rfft" else size
    dtype = node.result.tensor.dtype
    array = state.array(np.dtype(dtype), (*sizes[:place], count, *sizes[place + 1 :]))
    state.emit(Transform(how, array, given, n))
    found = tuple(array.shape[order.index(a)] for a in range(len(order)))
    strides = tuple(array.view.strides[order.index(a)] for a in range(len(order)))
    state.items[node.result] = View(array, (), found, strides)


def _is_fast(points: int, columns: Size) -> bool:
    """Return true for a number of points that machine code transforms faster than SciPy."""
    if points == 0:
        return False
    left = points
    for prime in (2, 3, 5):
        while left % prime == 0:
            left //= prime
    if left > 1:
        return False
    if columns != ONE:
        return points <= MOST_ACROSS
    return points <= MOST_ALONE or (points % 4 == 0 and points <= MOST_POINTS)
