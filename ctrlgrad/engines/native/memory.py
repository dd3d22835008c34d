"""Memory of compiled code as NumPy arrays."""

from __future__ import annotations

import ctypes

import numpy as np

# NumPy's binary interface: after what all objects begin with, an array has the address of its elements. To ask NumPy
# for that in Python costs more than a small program runs.
_ADDRESS = object.__basicsize__
_word_at = ctypes.c_size_t.from_address


def address_of(array: np.ndarray) -> int:
    """Address of an array's elements."""
    return _word_at(id(array) + _ADDRESS).value


class _Memory:
    """An array at an address."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": dtype.str,
            "version": 3,
        }


def array_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype) -> np.ndarray:
    """The array at an address; without strides a dense one."""
    if 0 in shape:
        return np.empty(shape, dtype)
    found = np.asarray(_Memory(address, shape, strides, dtype))
    # The interface has no name for bfloat16, but for items of so many bytes.
    return found if found.dtype == dtype else found.view(dtype)
