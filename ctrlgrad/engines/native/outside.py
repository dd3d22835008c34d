"""The other side of `rules.outside`: what generated code calls to have a reference kernel run.

A call comes with its number and the address of a table of addresses: one per operand, then one per result. Sizes are
those of the plan. An exception does not cross the generated code: it is kept here, the code returns with
`Status.RAISED`, and the driver raises it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.native.layout import Size
from ctrlgrad.engines.native.program import OutsideCall
from ctrlgrad.engines.reference import REFERENCE

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True)
class _Memory:
    """An operand or result without its address."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def at(self, address: int) -> np.ndarray:
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        if not nbytes:
            return np.empty(self.shape, self.dtype)
        raw: Any = (ctypes.c_char * nbytes).from_address(address)
        found: np.ndarray = np.frombuffer(raw, self.dtype).reshape(self.shape)
        return found


@dataclass(frozen=True)
class PreparedCall:
    """A call whose sizes are known."""

    kernel: Callable[..., Any]
    operands: tuple[_Memory, ...]
    results: tuple[_Memory, ...]

    def run(self, addresses: Sequence[int]) -> None:
        count = len(self.operands)
        operands = [m.at(a) for m, a in zip(self.operands, addresses, strict=False)]
        found = self.kernel(*[x if x.ndim else x[()] for x in operands])
        given = [found] if len(self.results) == 1 else found
        for memory, address, value in zip(self.results, addresses[count:], given, strict=True):
            memory.at(address)[...] = value


def prepared(call: OutsideCall, size: Callable[[Size], int]) -> PreparedCall:
    """A call for the sizes of a plan."""
    kernel = REFERENCE.pure[call.node.op.name](call.node)
    sides = [
        tuple(_Memory(tuple(size(n) for n in shape), dtype) for shape, dtype in side)
        for side in (call.operands, call.results)
    ]
    return PreparedCall(kernel, sides[0], sides[1])


class Outside:
    """The callback of one run, at `address`; `error` is the exception that a kernel raised."""

    def __init__(self, calls: Sequence[PreparedCall]) -> None:
        self.calls = calls
        self.error: BaseException | None = None
        self._callback = _CALLBACK(self._run)
        self.address: int = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def _run(self, number: int, table: int) -> int:
        call = self.calls[number]
        count = len(call.operands) + len(call.results)
        try:
            with np.errstate(all="ignore"):
                call.run(list((ctypes.c_int64 * count).from_address(table)))
        except BaseException as error:  # Ctrl-C too: it would be lost here
            self.error = error
            return 1
        return 0


__all__ = ["Outside", "PreparedCall", "prepared"]
