"""Whether a kernel may write where it reads: each element only at the point that reads it for the last time.

Points run in any order, several at once; each reads all that it needs before it writes. So an element that a point
writes must be read by no other point. Sizes that are not known are tried with several numbers.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ctrlgrad.plan.effects import names_of
from ctrlgrad.plan.model import Operand, View, Write
from ctrlgrad.plan.sizes import ONE, Size, Sizes

# Kernels of more points are judged by the form of their views alone.
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
    same = read.offset == written.offset and _equal_strides(read, written)
    names = names_of((*read.shape, *read.strides, *read.offset, *written.strides, *written.offset))
    if not names:
        points = math.prod(size.factor for size in read.shape)
        if points <= MOST_POINTS:
            return _is_safe(_key(read), _key(written), ())
    # Offsets that have other names may be equal or not: only equal ones are known.
    return same and all(_is_safe(_key(read), _key(written), numbers) for numbers in _trials(tuple(sorted(names))))


def _equal_strides(a: View, b: View) -> bool:
    return all(s == t or size == ONE for s, t, size in zip(a.strides, b.strides, a.shape, strict=True))


def _trials(names: tuple[str, ...]) -> list[tuple[tuple[str, int], ...]]:
    return [tuple((name, 2 + (3 * k + shift) % 4) for k, name in enumerate(names)) for shift in range(3)]


_View = tuple[Sizes, Sizes, Sizes]


def _key(view: View) -> _View:
    return (view.offset, view.shape, view.strides)


@functools.lru_cache(maxsize=4096)
def _is_safe(read: _View, written: _View, numbers: tuple[tuple[str, int], ...]) -> bool:
    known = dict(numbers)

    def number(size: Size) -> int:
        return size.factor * math.prod(known[name] for name in size.names)

    shape = tuple(min(number(size), 6) if known else number(size) for size in read[1])
    a, b = (_addresses(view[0], view[2], shape, number) for view in (read, written))
    # Who reads each address, where it is one point; and nobody else may write it.
    order = np.argsort(b, kind="stable")
    ordered = b[order]
    if (ordered[1:] == ordered[:-1]).any() and np.isin(a, ordered[1:][ordered[1:] == ordered[:-1]]).any():
        return False
    at = np.minimum(np.searchsorted(ordered, a), max(len(ordered) - 1, 0))
    hit = (ordered[at] == a) if len(ordered) else np.zeros(0, bool)
    return bool((order[at][hit] == np.arange(len(a))[hit]).all())


def _addresses(offset: Sizes, strides: Sizes, shape: tuple[int, ...], number: object) -> np.ndarray:
    assert callable(number)
    total = np.full(shape, sum(number(term) for term in offset), np.int64)
    for axis, stride in enumerate(strides):
        steps = np.arange(shape[axis], dtype=np.int64) * number(stride)
        total += steps.reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return total.ravel()
