"""Values that the steps of a plan read and define: registers, arrays, stacks, and views of arrays."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ctrlgrad.plan.sizes import ONE, Size, Sizes, product, row_major
from ctrlgrad.records import record


@record
class Register:
    """A real number, or a bool. A complex number is two of them."""

    name: str
    dtype: np.dtype

    def __hash__(self) -> int:
        return hash(self.name)  # a plan has one value of a name; all that is told of it would cost more to look at

    def __str__(self) -> str:
        return self.name


@record
class Array:
    """A dense array in C order."""

    name: str
    dtype: np.dtype
    shape: Sizes

    def __hash__(self) -> int:
        return hash(self.name)  # a plan has one value of a name; all that is told of it would cost more to look at

    @property
    def count(self) -> Size:
        return product(self.shape)

    @property
    def view(self) -> View:
        """All of it."""
        return View(self, (), self.shape, row_major(self.shape))

    def __str__(self) -> str:
        return self.name


@record
class View:
    """Elements of an array: those at the sum of `offset` and of position times stride along each axis, in elements.

    A stride of 0 repeats, a negative one goes backwards.
    """

    array: Array
    offset: tuple[Size, ...]
    shape: Sizes
    strides: Sizes

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def is_dense(self) -> bool:
        """True if the elements are contiguous in C order."""
        expected = row_major(self.shape)
        return all(s == e or size == ONE for s, e, size in zip(self.strides, expected, self.shape, strict=True))

    @property
    def is_whole(self) -> bool:
        """True if the view is all of the array, in its order."""
        return not self.offset and self.is_dense and product(self.shape) == self.array.count


# Content of a stack: rows of one shape; or, of rows whose sizes differ, their elements end to end, or their sizes along
# one axis.
Holds = Literal["rows", "elements", "sizes"]


@record
class Stack:
    """A version of a run-time list of rows of one dtype.

    Of rows whose sizes differ there are several: one of elements, on which a row is pushed, and off which it is taken,
    as a run of numbers, and one of sizes for each axis along which they differ.
    """

    name: str
    dtype: np.dtype
    holds: Holds = "rows"

    def __hash__(self) -> int:
        return hash(self.name)  # a plan has one value of a name; all that is told of it would cost more to look at

    def __str__(self) -> str:
        return self.name


Value = Register | Array | Stack
Numbers = tuple[Register, ...]
