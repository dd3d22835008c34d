"""Whether a kernel may write where it reads: each element only at the point that reads it for the last time.

Points run in any order, several at once; each reads all that it needs before it writes. So an element that a point
writes must be read by no other point. Where all sizes are known, the elements are compared. Where one is not, both
views must be the same, and meet no element twice, which their axes tell: numbers tried in the place of sizes would be
ones that no run has, such as a part that is longer than the whole.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ctrlgrad.plan.effects import names_of
from ctrlgrad.plan.model import Operand, View, Write
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes, divided, row_major

# Views of more points are compared with each other by their form alone.
MOST_POINTS = 1 << 12


def reads_only_what_it_writes(operand: Operand, write: Write) -> bool:
    """Whether a kernel may write over what it reads as `operand`: no point reads what another one writes."""
    if operand.gathered or write.indices:
        return False
    if write.how != "store" and write.base is None:
        # The start of the reduction is written before anything is read.
        return False
    read, written = operand.view, write.view
    if read.shape != written.shape:
        return False
    if ZERO in read.shape:
        return True
    # Offsets that have other names may be equal or not: only equal ones are known.
    same = read.offset == written.offset and _equal_strides(read, written)
    if same and _meets_no_element_twice(written):
        return True
    if names_of((*read.shape, *read.strides, *read.offset, *written.strides, *written.offset)):
        return False
    points = math.prod(size.factor for size in read.shape)
    return (same or points <= MOST_POINTS) and _is_safe(_key(read), _key(written))


def _equal_strides(a: View, b: View) -> bool:
    return all(s == t or size == ONE for s, t, size in zip(a.strides, b.strides, a.shape, strict=True))


def _meets_no_element_twice(view: View) -> bool:
    """Whether each axis of a view goes along another axis of its array, as those of a slice do, in any order.

    That a slice lies within its array is the lowering's duty: how long it is may be a number that only a run knows.
    """
    whole = list(zip(view.array.shape, row_major(view.array.shape), strict=True))
    found: set[int] = set()
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == ONE:
            continue
        # An axis of the array along which one goes by a known step; of several, the outermost one.
        axis = next((k for k, (_, its) in enumerate(whole) if _is_multiple(stride, its)), None)
        if axis is None or axis in found or _is_longer(size, whole[axis][0]):
            return False
        found.add(axis)
    return True


def _is_multiple(stride: Size, of: Size) -> bool:
    step = divided(stride, of)
    return step is not None and step.is_known and step != ZERO


def _is_longer(part: Size, whole: Size) -> bool:
    """Whether a size is known to be larger than another one."""
    return part.names == whole.names and part.factor > whole.factor


_View = tuple[Sizes, Sizes, Sizes]


def _key(view: View) -> _View:
    return (view.offset, view.shape, view.strides)


@functools.lru_cache(maxsize=4096)
def _is_safe(read: _View, written: _View) -> bool:
    """Whether no point reads what another one writes, of views whose sizes are known."""
    shape = tuple(size.factor for size in read[1])
    a, b = (_addresses(view[0], view[2], shape) for view in (read, written))
    # Who reads each address, where it is one point; and nobody else may write it.
    order = np.argsort(b, kind="stable")
    ordered = b[order]
    if (ordered[1:] == ordered[:-1]).any() and np.isin(a, ordered[1:][ordered[1:] == ordered[:-1]]).any():
        return False
    at = np.minimum(np.searchsorted(ordered, a), max(len(ordered) - 1, 0))
    hit = (ordered[at] == a) if len(ordered) else np.zeros(0, bool)
    return bool((order[at][hit] == np.arange(len(a))[hit]).all())


def _addresses(offset: Sizes, strides: Sizes, shape: tuple[int, ...]) -> np.ndarray:
    total = np.full(shape, sum(term.factor for term in offset), np.int64)
    for axis, stride in enumerate(strides):
        steps = np.arange(shape[axis], dtype=np.int64) * stride.factor
        total += steps.reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return total.ravel()
