"""The error function and its complement, by rational approximations that are exact to the last digits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import computed_dtype, dtype_kind, result_type
from ctrlgrad.frontend.apply import is_weak
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float
from ctrlgrad.transforms.custom_jvp import custom_jvp

# The rational approximations of fdlibm (Sun Microsystems, s_erf.c, 1993), highest power first.
_NEAR: tuple[float, ...] = (-2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02)
_NEAR += (-3.25042107247001499370e-01, 1.28379167095512558561e-01)
_NEAR_BELOW: tuple[float, ...] = (-3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03)
_NEAR_BELOW += (6.50222499887672944485e-02, 3.97917223959155352819e-01, 1.0)
_ONE = 8.45062911510467529297e-01
_MIDDLE: tuple[float, ...] = (-2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01)
_MIDDLE += (3.18346619901161753674e-01, -3.72207876035701323847e-01, 4.14856118683748331666e-01)
_MIDDLE += (-2.36211856075265944077e-03,)
_MIDDLE_BELOW: tuple[float, ...] = (1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01)
_MIDDLE_BELOW += (7.18286544141962662868e-02, 5.40397917702171048937e-01, 1.06420880400844228286e-01, 1.0)
_FAR: tuple[float, ...] = (-9.81432934416914548592e00, -8.12874355063065934246e01, -1.84605092906711035994e02)
_FAR += (-1.62396669462573470355e02, -6.23753324503260060396e01, -1.05586262253232909814e01)
_FAR += (-6.93858572707181764372e-01, -9.86494403484714822705e-03)
_FAR_BELOW: tuple[float, ...] = (-6.04244152148580987438e-02, 6.57024977031928170135e00, 1.08635005541779435134e02)
_FAR_BELOW += (4.29008140027567833386e02, 6.45387271733267880336e02, 4.34565877475229228821e02)
_FAR_BELOW += (1.37657754143519042600e02, 1.96512716674392571292e01, 1.0)
_LAST: tuple[float, ...] = (-4.83519191608651397019e02, -1.02509513161107724954e03, -6.37566443368389627722e02)
_LAST += (-1.60636384855821916062e02, -1.77579549177547519889e01, -7.99283237680523006574e-01)
_LAST += (-9.86494292470009928597e-03,)
_LAST_BELOW: tuple[float, ...] = (-2.24409524465858183362e01, 4.74528541206955367215e02, 2.55305040643316442583e03)
_LAST_BELOW += (3.19985821950859553908e03, 1.53672958608443695994e03, 3.25792512996573918826e02)
_LAST_BELOW += (3.03380607434824582924e01, 1.0)


def floats(x: Any) -> Any:
    """x as an array of floats."""
    x = cnp.asarray(x)
    return x if dtype_kind(x.dtype) == "f" else x.astype(default_float())


def promoted(*xs: Any) -> list[Any]:
    """Convert to floats of one dtype and shape; Python's numbers take the dtype of the arrays."""
    dtypes = [floats(x).dtype for x in xs if not isinstance(x, bool | int | float)]
    dtype = result_type(*dtypes) if dtypes else default_float()
    return list(cnp.broadcast_arrays(*(cnp.asarray(x).astype(dtype) for x in xs)))


def in_single(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of many steps, of floats of 16 bits computed in float32 and rounded once, as JAX does."""

    @functools.wraps(fn)
    def function(*args: Any, **named: Any) -> Any:
        given = {x.dtype for x in (*args, *named.values()) if _has_dtype(x)}
        if all(computed_dtype(dtype) == dtype for dtype in given):
            return fn(*args, **named)
        result = result_type(*(dtype for dtype in given if dtype_kind(dtype) == "f"))
        args = tuple(_widened(x) for x in args)
        found = fn(*args, **{name: _widened(x) for name, x in named.items()})
        return found.astype(result) if computed_dtype(result) != result else found

    return function


def _has_dtype(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic | Tensor) and not is_weak(x)


def _widened(x: Any) -> Any:
    return x.astype(computed_dtype(x.dtype)) if _has_dtype(x) else x


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate a polynomial by Horner's scheme, the highest coefficient first."""
    found: Any = coefficients[0]
    for c in coefficients[1:]:
        found = found * x + c
    return found


def _ratio(above: tuple[float, ...], below: tuple[float, ...], x: Any) -> Any:
    return polynomial(above, x) / polynomial(below, x)


def _tail(size: Any) -> Any:
    """1 - erf(size) for size >= 1.25."""
    safe = cnp.clip(size, 1.25, 28.0)
    ratio = _ratio_of_tail(safe)
    # exp(-x*x) in two parts, of which the first is exact: x with half its digits.
    half = safe.astype(np.float32).astype(safe.dtype)
    half = cnp.round(safe * 1024.0) / 1024.0 if safe.dtype == np.float64 else half
    tail = cnp.exp(-half * half - 0.5625) * cnp.exp((half - safe) * (half + safe) + ratio) / safe
    return cnp.where(size > 27.5, 0.0, tail)


def _ratio_of_tail(x: Any) -> Any:
    """log(x exp(x*x) erfc(x)) + 0.5625 for x from 1.25 to 28."""
    s = 1.0 / (x * x)
    return cnp.where(x < 1 / 0.35, _ratio(_FAR, _FAR_BELOW, s), _ratio(_LAST, _LAST_BELOW, s))


def _parts(x: Any) -> tuple[Any, Any]:
    """(erf, 1 - erf) of |x|."""
    size = cnp.abs(x)
    near = size + size * _ratio(_NEAR, _NEAR_BELOW, size * size)
    middle = _ratio(_MIDDLE, _MIDDLE_BELOW, cnp.clip(size, 0.8, 1.3) - 1.0)
    tail = _tail(size)
    value = cnp.where(size < 0.84375, near, cnp.where(size < 1.25, _ONE + middle, 1.0 - tail))
    rest = cnp.where(size < 0.84375, 1.0 - near, cnp.where(size < 1.25, (1.0 - _ONE) - middle, tail))
    return value, rest


@custom_jvp
def _erf(x: Any) -> Any:
    return cnp.where(cnp.isnan(x), x, cnp.sign(x) * _parts(x)[0])


@custom_jvp
def _erfc(x: Any) -> Any:
    value, rest = _parts(x)
    return cnp.where(cnp.isnan(x), x, cnp.where(x < 0, 1.0 + value, rest))


_erf.defjvps(lambda t, out, x: t * cnp.exp(-x * x) * (2 / math.sqrt(math.pi)))
_erfc.defjvps(lambda t, out, x: -t * cnp.exp(-x * x) * (2 / math.sqrt(math.pi)))


@in_single
def erf(x: Any) -> Any:
    """The error function.

    >>> float(erf(0.0))
    0.0
    """
    return _erf(floats(x))


@in_single
def erfc(x: Any) -> Any:
    """1 - erf(x), exact for large x.

    >>> float(erfc(0.0))
    1.0
    """
    return _erfc(floats(x))


@custom_jvp
def _erfcx(x: Any) -> Any:
    low, middle, far = cnp.minimum(x, 1.25), cnp.clip(x, 1.25, 28.0), cnp.maximum(x, 28.0)
    scaled = cnp.exp(_ratio_of_tail(middle) - 0.5625) / middle
    # Abramowitz and Stegun 7.1.23.
    s = 0.5 / far / far
    series = (
        (1.0 - s * (1.0 - 3.0 * s * (1.0 - 5.0 * s * (1.0 - 7.0 * s * (1.0 - 9.0 * s))))) / far / math.sqrt(math.pi)
    )
    return cnp.where(x < 1.25, cnp.exp(low * low) * _erfc(low), cnp.where(x <= 28.0, scaled, series))


_erfcx.defjvps(lambda t, out, x: t * (2.0 * x * out - 2 / math.sqrt(math.pi)))


@in_single
def erfcx(x: Any) -> Any:
    """exp(x**2) `erfc`(x), which does not vanish for large x.

    >>> round(float(erfcx(1e3)), 15)
    0.000564189301453
    """
    return _erfcx(floats(x))


__all__ = ["erf", "erfc", "erfcx", "floats", "polynomial", "promoted"]
