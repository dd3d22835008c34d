"""A kernel may write the elements that it reads if its view meets no element twice, at any size."""

from __future__ import annotations

import numpy as np
import pytest

from ctrlgrad.plan.checking.steps import reads_only_what_it_writes
from ctrlgrad.plan.model import Array, Operand, View, Write
from ctrlgrad.plan.sizes import ONE, Size, Sizes, row_major

N, M = Size(1, ("n",)), Size(1, ("m",))


def sizes(*numbers: int | Size) -> Sizes:
    return tuple(n if isinstance(n, Size) else Size(n) for n in numbers)


def view(whole: Sizes, shape: Sizes, strides: Sizes | None = None, offset: Sizes = ()) -> View:
    array = Array("a1", np.dtype("float64"), whole)
    return View(array, offset, shape, row_major(whole) if strides is None else strides)


def may_update(read: View, written: View | None = None, how: str = "store") -> bool:
    """Return true if a kernel may update an array in place while reading it."""
    target = read if written is None else written
    write = Write(target, (0,), how, base=target.array)
    return reads_only_what_it_writes(Operand(read), write)


SLICES = {
    "whole": view(sizes(3, N), sizes(3, N)),
    "a part of the last axis": view(sizes(3, N), sizes(3, M), offset=sizes(Size(2))),
    "a part of a middle axis": view(sizes(3, N, 9), sizes(2, M, 9), offset=sizes(9)),
    "with steps": view(sizes(N, N, 9), sizes(M, M, 3), sizes(Size(18) * N, 27, 3)),
    "backwards": view(sizes(3, N), sizes(3, M), (N, Size(-1)), offset=sizes(7)),
    "transposed": view(sizes(3, N), sizes(M, 3), (ONE, N)),
    "a column": view(sizes(N, 4), sizes(N, 1), sizes(4, 0)),
    "of no elements": view(sizes(N, 0), sizes(N, 0)),
    "of known sizes, along a diagonal": view(sizes(4, 4), sizes(4), sizes(5)),
}
OTHERS = {
    "repeated along an axis": view(sizes(3, N), sizes(3, N), sizes(0, 1)),
    "repeated so often as a run says": view(
        sizes(
            3,
        ),
        sizes(N),
        sizes(0),
    ),
    "windows": view(
        sizes(
            N,
        ),
        sizes(M, 3),
        sizes(1, 1),
    ),
    "windows of rows": view(sizes(N, 9), sizes(M, 3, 9), sizes(9, 9, 1)),
    "longer than the axis that it goes along": view(sizes(4, 4, N), sizes(2, 8, N), (Size(4) * N, N, ONE)),
    "of known sizes, windows": view(
        sizes(
            5,
        ),
        sizes(3, 3),
        sizes(1, 1),
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_is_updated_where_it_is_read(name: str) -> None:
    assert may_update(SLICES[name])


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("how", ["store", "sum"])
def test_overlapping_updates_are_not_in_place(name: str, how: str) -> None:
    assert not may_update(OTHERS[name], how=how)


@pytest.mark.parametrize("size", [N, Size(8)])
def test_other_elements_than_those_that_are_read_are_not_written(size: Size) -> None:
    one = view(sizes(3, size), sizes(3, 4), offset=sizes(1))
    assert may_update(one) and not may_update(one, view(sizes(3, size), sizes(3, 4), offset=sizes(2)))
    assert not may_update(one, view(sizes(3, size), sizes(3, 4), (size, Size(-1)), offset=sizes(4)))


def test_elements_that_no_other_point_writes_are_read() -> None:
    """Reads of one half and writes of the other do not overlap, at known sizes."""
    half = lambda first: view(sizes(8), sizes(4), offset=sizes(first))
    assert may_update(half(0), half(4)) and not may_update(half(1), half(4))


def test_a_reduction_that_begins_anew_is_not_read_there() -> None:
    whole = view(sizes(3, N), sizes(3, N))
    assert not reads_only_what_it_writes(Operand(whole), Write(whole, (0,), "sum"))
