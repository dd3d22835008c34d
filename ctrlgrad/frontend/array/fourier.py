"""The names of `ctrlgrad.numpy.fft`: discrete Fourier transforms by the Array API, all on the one op `fft`.

float32 and complex64 give complex64, everything else complex128. `norm` is "backward" (the inverse is divided by n),
"ortho" (both by sqrt(n)) or "forward" (the forward transform is divided by n).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice, explains_calls, no_such_name
from ctrlgrad.dtypes import as_dtype, dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.creation import check_device
from ctrlgrad.frontend.array.elementwise import *
from ctrlgrad.frontend.array.elementwise import real as real_part
from ctrlgrad.frontend.array.manipulation import flip, roll
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import array_function, described, publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float


def _as_complex(operation: str, x: Any) -> Any:
    x = operand(operation, x)
    dtype = default_float() if dtype_kind(dtype_of(x)) in "biu" else dtype_of(x)
    return cast(x, np.complex64 if dtype.name in ("float16", "bfloat16", "float32", "complex64") else np.complex128)


def _real_operand(operation: str, x: Any) -> Any:
    x = operand(operation, x)
    if dtype_kind(dtype_of(x)) == "c":
        raise TypeMismatchError(f"{operation}: the operand is complex", got=shown(x), hint="use fft")
    return x


def _size(operation: str, x: Any, axis: int, n: Any) -> Any:
    size = dim(x, axis) if n is None else size_argument(operation, "n", n)
    if not isinstance(size, Tensor) and size < 1:
        raise ShapeError(
            f"{operation}: no elements to transform", got=f"{shown(x)}, n={n}", hint="n=1 or more pads with zeros"
        )
    return size


def _resized(x: Any, axis: int, size: Any) -> Any:
    """x cut, or filled up with zeros, to a size along an axis."""
    have = dim(x, axis)
    if not isinstance(have, Tensor) and not isinstance(size, Tensor):
        if size <= have:
            return x if size == have else sliced(x, axis, 0, size)
        missing: Any = size - have
    else:
        missing = maximum(subtract(size, have), 0)
        x = sliced(x, axis, 0, minimum(size, have))
    sizes = [missing if a == axis else dim(x, a) for a in range(rank_of(x))]
    return concatenated([x, broadcasted(np.zeros((), dtype_of(x)), sizes)], axis)


def _transformed(x: Any, axis: int, inverse: bool) -> Any:
    return apply("fft", [x], {"axis": axis, "inverse": inverse})


def _scaled(operation: str, x: Any, size: Any, norm: Any, inverse: bool) -> Any:
    check_choice(operation, "norm", norm, (None, "backward", "ortho", "forward"))
    if norm == "ortho":
        return divide(x, cast(sqrt(cast(size, np.float64)), dtype_of(x)))
    return divide(x, cast(size, dtype_of(x))) if inverse is (norm != "forward") else x


def _one(operation: str, x: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Any:
    x = _as_complex(operation, x)
    place = axis_of(operation, axis, rank_of(x))
    if n is not None or shape_of(x)[place] == 0:
        x = _resized(x, place, _size(operation, x, place, n))
    return _scaled(operation, _transformed(x, place, inverse), dim(x, place), norm, inverse)


def _first_half(operation: str, x: Any, n: Any, axis: Any) -> tuple[Any, Any]:
    """The first n // 2 + 1 elements of the transform of real numbers, without a factor, and n."""
    x = _real_operand(operation, x)
    place = axis_of(operation, axis, rank_of(x))
    if n is not None or shape_of(x)[place] == 0:
        x = _resized(x, place, _size(operation, x, place, n))
    size = dim(x, place)
    if isinstance(size, Tensor):
        return sliced(_transformed(_as_complex(operation, x), place, False), place, 0, _half(size) + 1), size
    dtype = default_float() if dtype_kind(dtype_of(x)) in "biu" else dtype_of(x)
    single = dtype.name in ("float16", "bfloat16", "float32")
    return apply("rfft", [cast(x, np.float32 if single else np.float64)], {"axis": place, "size": size}), size


def _half(size: Any) -> Any:
    return floor_divide(size, 2) if isinstance(size, Tensor) else size // 2


def _from_half(operation: str, x: Any, n: Any, axis: Any) -> tuple[Any, Any]:
    """The n real numbers whose inverse transform has these first n // 2 + 1 elements, without a factor, and n."""
    x = _as_complex(operation, x)
    place = axis_of(operation, axis, rank_of(x))
    size = multiply(subtract(dim(x, place), 1), 2) if n is None else size_argument(operation, "n", n)
    size = size if isinstance(size, Tensor) else int(size)
    if not isinstance(size, Tensor) and size < 1:
        raise ShapeError(
            f"{operation}: no elements to transform", got=f"{shown(x)}, n={n}", hint="n=1 or more pads with zeros"
        )
    kept = _resized(x, place, _half(size) + 1)
    if not isinstance(size, Tensor) and not isinstance(dim(kept, place), Tensor):
        return apply("irfft", [kept], {"axis": place, "size": size}), size
    # Elements 1 to (n - 1) // 2 come back, conjugated, from the end.
    mirrored = conjugate(flip(sliced(kept, place, 1, size - _half(size)), place))
    return real_part(_transformed(concatenated([kept, mirrored], place), place, True)), size


# The transforms along one axis.


def _along(name: str, inverse: bool, summary: str, example: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    def function(x: Any, /, n: Any = None, axis: Any = -1, norm: Any = None) -> Any:
        return fn(name, x, n, axis, norm, inverse)

    return array_function()(described(function, name, summary, f"cnp.fft.{example}"))


def _halved(name: str, x: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Any:
    return _scaled(name, *_first_half(name, x, n, axis), norm, inverse)


def _restored(name: str, x: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Any:
    return _scaled(name, *_from_half(name, x, n, axis), norm, inverse)


_SUMMARY = "y[k] = sum over j of x[j] exp(-2 pi i j k / n) along an axis, cut or filled up with zeros to n first."
fft = _along("fft", False, _SUMMARY, "fft([1.0, 0.0]) -> array([1.+0.j, 1.+0.j])", _one)
ifft = _along("ifft", True, "The inverse of `fft`.", "ifft([2.0, 0.0]) -> array([1.+0.j, 1.+0.j])", _one)
_SUMMARY = "The first n // 2 + 1 elements of the `fft` of real numbers: the rest are their conjugates."
rfft = _along("rfft", False, _SUMMARY, "rfft([1.0, 0.0, 0.0]).shape -> (2,)", _halved)
_SUMMARY = "The inverse of `rfft`: n real numbers, by default 2 * (m - 1) of m."
irfft = _along("irfft", True, _SUMMARY, "irfft([1.0, 0.0]) -> array([0.5, 0.5])", _restored)
_SUMMARY = "The `fft` of n numbers with conjugate symmetry, given by the first n // 2 + 1: real."
_conjugated = lambda name, x, *given: _restored(name, conjugate(_as_complex(name, x)), *given)
hfft = _along("hfft", False, _SUMMARY, "hfft([1.0, 0.0]) -> array([1., 1.])", _conjugated)
_EXAMPLE = "ihfft([1.0, 1.0]).shape -> (2,)"
ihfft = _along("ihfft", True, "The inverse of `hfft`.", _EXAMPLE, lambda *given: conjugate(_halved(*given)))

# The transforms along several axes.


def _plan(operation: str, x: Any, s: Any, axes: Any) -> list[tuple[int, Any]]:
    """The axes to transform, in order, and the size to transform each in (None: as it is)."""
    rank = rank_of(x)
    sizes = None if s is None else [None if n == -1 else n for n in s]
    if axes is None:
        axes = list(range(rank)) if sizes is None else list(range(rank - len(sizes), rank))
    places = axes_in_order(operation, list(axes), rank)
    sizes = [None] * len(places) if sizes is None else sizes
    if len(sizes) != len(places) or not places:
        raise ShapeError(
            f"{operation}: one size for each axis", got=f"s={s}, axes={axes}", hint="such as s=(8, 8), axes=(0, 1)"
        )
    return list(zip(places, sizes, strict=True))


def _several(operation: str, x: Any, plan: Sequence[tuple[int, Any]], norm: Any, inverse: bool) -> Any:
    for place, n in plan:
        x = _one(operation, x, n, place, norm, inverse)
    return x


def _whole(name: str, x: Any, s: Any, axes: Any, norm: Any, inverse: bool) -> Any:
    x = _as_complex(name, x)
    return _several(name, x, _plan(name, x, s, axes), norm, inverse)


def _whole_halved(name: str, x: Any, s: Any, axes: Any, norm: Any, inverse: bool) -> Any:
    x = _real_operand(name, x)
    *others, (place, n) = _plan(name, x, s, axes)
    return _several(name, rfft(x, n, place, norm), others, norm, inverse)


def _whole_restored(name: str, x: Any, s: Any, axes: Any, norm: Any, inverse: bool) -> Any:
    x = _as_complex(name, x)
    *others, (place, n) = _plan(name, x, s, axes)
    return irfft(_several(name, x, others, norm, inverse), n, place, norm)


def _along_axes(
    name: str, inverse: bool, summary: str, example: str, fn: Callable[..., Any], chosen: Any = None
) -> Callable[..., Any]:
    def function(x: Any, /, s: Any = None, axes: Any = chosen, norm: Any = None) -> Any:
        return fn(name, x, s, axes, norm, inverse)

    return array_function()(described(function, name, summary, f"cnp.fft.{example}"))


_SUMMARY = "`fft` along several axes (None: all), each in the size that `s` names."
fftn = _along_axes("fftn", False, _SUMMARY, "fftn([[1.0, 0.0]]) -> array([[1.+0.j, 1.+0.j]])", _whole)
ifftn = _along_axes("ifftn", True, "The inverse of `fftn`.", "ifftn([[2.0, 0.0]]) -> array([[1.+0.j, 1.+0.j]])", _whole)
_SUMMARY = "`rfft` along the last of several axes, `fft` along the preceding ones."
rfftn = _along_axes("rfftn", False, _SUMMARY, "rfftn([[1.0, 0.0, 0.0]]).shape -> (1, 2)", _whole_halved)
irfftn = _along_axes(
    "irfftn", True, "The inverse of `rfftn`.", "irfftn([[1.0, 0.0]]) -> array([[0.5, 0.5]])", _whole_restored
)
_LAST = (-2, -1)
_EXAMPLE = "fft2([[1.0, 0.0]]) -> array([[1.+0.j, 1.+0.j]])"
fft2 = _along_axes("fft2", False, "`fftn` along two axes.", _EXAMPLE, _whole, _LAST)
_EXAMPLE = "ifft2([[2.0, 0.0]]) -> array([[1.+0.j, 1.+0.j]])"
ifft2 = _along_axes("ifft2", True, "The inverse of `fft2`.", _EXAMPLE, _whole, _LAST)
_EXAMPLE = "rfft2([[1.0, 0.0, 0.0]]).shape -> (1, 2)"
rfft2 = _along_axes("rfft2", False, "`rfftn` along two axes.", _EXAMPLE, _whole_halved, _LAST)
_EXAMPLE = "irfft2([[1.0, 0.0]]) -> array([[0.5, 0.5]])"
irfft2 = _along_axes("irfft2", True, "The inverse of `rfft2`.", _EXAMPLE, _whole_restored, _LAST)


def __getattr__(name: str) -> Any:
    raise no_such_name("ctrlgrad.numpy.fft", name, globals())


def _frequencies(name: str, summary: str, example: str) -> Callable[..., Any]:
    def function(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
        check_device(name, device)
        return getattr(np.fft, name)(whole_number(name, "n", n), d).astype(
            default_float() if dtype is None else as_dtype(name, dtype)
        )

    return described(function, name, summary, example)


_SUMMARY = "The frequencies that belong to the elements of an `fft` of n samples at distance d."
fftfreq = explains_calls(_frequencies("fftfreq", _SUMMARY, "cnp.fft.fftfreq(4) -> array([ 0.  ,  0.25, -0.5 , -0.25])"))
rfftfreq = explains_calls(
    _frequencies("rfftfreq", "As `fftfreq`, for `rfft`.", "cnp.fft.rfftfreq(4) -> array([0.  , 0.25, 0.5 ])")
)


def _shifts(operation: str, x: Any, axes: Any) -> list[int]:
    return axes_in_order(operation, list(range(rank_of(x))) if axes is None else axes, rank_of(x))


@array_function(of=operand)
def fftshift(x: Any, /, *, axes: Any = None) -> Any:
    """The element of frequency zero moved to the middle, along axes or all.

    >>> cnp.fft.fftshift([0, 1, -1])
    array([-1,  0,  1])
    """
    for place in _shifts("fftshift", x, axes):
        x = roll(x, _half(dim(x, place)), place)
    return x


@array_function(of=operand)
def ifftshift(x: Any, /, *, axes: Any = None) -> Any:
    """The inverse of `fftshift`.

    >>> cnp.fft.ifftshift([-1, 0, 1])
    array([ 0,  1, -1])
    """
    for place in _shifts("ifftshift", x, axes):
        half = _half(dim(x, place))
        x = roll(x, subtract(0, half) if isinstance(half, Tensor) else -half, place)
    return x


publish(__name__)
