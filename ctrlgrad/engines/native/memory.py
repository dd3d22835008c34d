"""Memory of compiled code as NumPy arrays."""

from __future__ import annotations

import numpy as np


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
