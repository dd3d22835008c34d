"""Whole numbers: common divisors, and the bits that they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.arithmetic import floor_divide, multiply, remainder
from ctrlgrad.frontend.array.bits import bitwise_and, bitwise_right_shift
from ctrlgrad.frontend.array.dims import axis_of, dim, dims, dtype_of, rank_of, reshaped
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.logic import where
from ctrlgrad.frontend.array.manipulation import broadcast_arrays, moveaxis, ravel
from ctrlgrad.frontend.array.padding import pad
from ctrlgrad.frontend.array.promote import loop_dtypes, operand, operands, shown, truth
from ctrlgrad.frontend.array.reduction import any as some
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.while_loops import while_loop

# The weights of the bits of a byte, the highest first.
_WEIGHTS = 2 ** np.arange(7, -1, -1)


@array_function()
def gcd(x1: Any, x2: Any) -> Any:
    """The greatest common divisor, 0 of two zeros; as `numpy.gcd`, by Euclid's algorithm in a loop.

    >>> cnp.gcd([12, 7], 18)
    array([6, 1])
    """
    xs = operands("gcd", (x1, x2))
    dtypes = loop_dtypes(np.gcd, xs)
    a, b = broadcast_arrays(*(absolute(cast(x, dtype)) for x, dtype in zip(xs, dtypes, strict=True)))

    def step(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        a, b = pair
        goes_on = b != 0
        return where(goes_on, b, a), where(goes_on, remainder(a, where(goes_on, b, 1)), 0).astype(dtype_of(b))

    return while_loop(lambda pair: some(pair[1] != 0), step, (a, b), name="gcd")[0]


@array_function()
def lcm(x1: Any, x2: Any) -> Any:
    """The least common multiple, 0 where one is 0; as `numpy.lcm`.

    >>> cnp.lcm([4, 7], 6)
    array([12, 42])
    """
    xs = operands("lcm", (x1, x2))
    a, b = (cast(x, dtype) for x, dtype in zip(xs, loop_dtypes(np.lcm, xs), strict=True))
    divisor = gcd(a, b)
    none = divisor == 0
    return absolute(multiply(floor_divide(a, where(none, 1, divisor).astype(dtype_of(a))), b))


@array_function()
def bitwise_count(x: Any) -> Any:
    """How many bits of abs(x) are set: uint8; as `numpy.bitwise_count`.

    >>> cnp.bitwise_count([7, -8])
    array([3, 1], dtype=uint8)
    """
    x = operand("bitwise_count", x)
    if dtype_kind(dtype_of(x)) not in "biu":
        raise TypeMismatchError("bitwise_count: not an integer", expected="integers", got=shown(x))
    n = cast(absolute(x) if dtype_kind(dtype_of(x)) == "i" else x, np.uint64)
    # Sums of neighbouring groups of 1, 2 and 4 bits, each in its place; a product adds up the eight bytes.
    for width, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        kept = np.uint64(mask)
        n = bitwise_and(n, kept) + bitwise_and(bitwise_right_shift(n, np.uint64(width)), kept)
    return cast(bitwise_right_shift(multiply(n, np.uint64(0x0101010101010101)), np.uint64(56)), np.uint8)


def _check_order(operation: str, bitorder: str) -> None:
    if bitorder not in ("big", "little"):
        raise TypeMismatchError(
            f"{operation}: an unknown order of bits", expected="'big' or 'little'", got=repr(bitorder)
        )


@array_function()
def packbits(x: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements along an axis as the bits of a byte, zeros at the end; as `numpy.packbits`.

    >>> cnp.packbits([1, 0, 1])
    array([160], dtype=uint8)
    """
    _check_order("packbits", bitorder)
    x = truth("packbits", x)
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("packbits", axis, rank_of(x)))
    last = moveaxis(x, axis, -1)
    size = dim(last, -1)
    if isinstance(size, int):
        last = pad(last, [(0, 0)] * (rank_of(x) - 1) + [(0, -size % 8)])
    else:
        last = pad(last, [(0, 0)] * (rank_of(x) - 1) + [(0, 7)])[..., : (size + 7) // 8 * 8]
    groups = reshaped(last, [*dims(last)[:-1], dim(last, -1) // 8, 8])
    weights = _WEIGHTS if bitorder == "big" else _WEIGHTS[::-1]
    return moveaxis(cast(total(groups * weights, -1), np.uint8), -1, axis)


@array_function()
def unpackbits(x: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """The bits of bytes as elements along an axis; as `numpy.unpackbits`, of uint8 alone.

    Args:
        x: uint8, rank 1 or more.
        axis: None flattens.
        count: how many to keep; a negative number leaves as many out, one that is too large fills up with zeros.
        bitorder: "big" has the highest bit first.

    >>> cnp.unpackbits(cnp.asarray([160], cnp.uint8), count=3)
    array([1, 0, 1], dtype=uint8)
    """
    _check_order("unpackbits", bitorder)
    x = operand("unpackbits", x)
    if dtype_of(x) != np.uint8:
        raise TypeMismatchError("unpackbits: not bytes", expected="uint8", got=shown(x))
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("unpackbits", axis, rank_of(x)))
    last = moveaxis(x, axis, -1)
    weights = (_WEIGHTS if bitorder == "big" else _WEIGHTS[::-1]).astype(np.uint8)
    bits = cast(bitwise_and(apply("expand_dims", [last], {"axes": (rank_of(last),)}), weights) != 0, np.uint8)
    found = reshaped(bits, [*dims(last)[:-1], dim(last, -1) * 8])
    size = dim(found, -1)
    if count is not None and isinstance(size, int) and count > size:
        found = pad(found, [(0, 0)] * (rank_of(x) - 1) + [(0, count - size)])
    elif count is not None:
        found = found[..., :count]
    return moveaxis(found, -1, axis)


__all__ = [
    "bitwise_count",
    "gcd",
    "lcm",
    "packbits",
    "unpackbits",
]
