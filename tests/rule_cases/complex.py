"""Complex numbers and spectra, as functions of real and imaginary parts [2, ...]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from rule_cases.case import DIFFERENCES, Case, inside, normal

Z, T = inside(9, 2, 3), normal(10, 2, 2, 4)


def number(x: Any) -> Any:
    return cnp.make_complex(x[0], x[1])


def parts(z: Any) -> tuple[Any, Any]:
    return cnp.real(z), cnp.imag(z)


def of_complex(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of complex numbers as one of parts."""
    return lambda x: parts(fn(number(x)))


_HOLOMORPHIC = """negative square exp expm1 sin cos tan tanh sinh cosh arctan arcsinh reciprocal arcsin arccos arctanh
log log1p sqrt"""
CASES: dict[str, Case] = {}
CASES |= {f"complex {name}": Case(of_complex(getattr(cnp, name)), (Z,)) for name in _HOLOMORPHIC.split()}
# JAX has these for real numbers alone.
CASES |= {
    f"complex {name}": Case(of_complex(getattr(cnp, name)), (Z,), DIFFERENCES) for name in ("log2", "log10", "sigmoid")
}
# JAX's derivative is on the wrong branch where the real part is negative.
CASES["complex arccosh"] = Case(of_complex(cnp.arccosh), (Z,), DIFFERENCES)
CASES |= {
    "conj": Case(of_complex(lambda z: cnp.conj(z) * z[::-1]), (Z,)),
    "complex divide": Case(of_complex(lambda z: (z + 1j) / (z[0] - z[::-1] * 2)), (Z,)),
    "complex power": Case(of_complex(lambda z: z ** z[::-1]), (Z,)),
    "complex abs": Case(lambda x: cnp.abs(number(x)), (Z,)),
    "complex sign": Case(of_complex(cnp.sign), (Z,)),
    "complex where": Case(of_complex(lambda z: cnp.where(cnp.real(z) > 0, z * z, 1j)), (Z,)),
    "complex cast": Case(of_complex(lambda z: cnp.real(z).astype(np.complex128) * z), (Z,)),
    "complex set": Case(of_complex(lambda z: cnp.at(z)[0].set(z[1] * z[2]) * z), (Z,)),
    "angle": Case(lambda x: cnp.angle(number(x)), (Z,)),
    "complex broadcast": Case(lambda x, y: parts(cnp.make_complex(x, y) ** 2), (normal(11, 2, 1), normal(12, 3))),
    "complex broadcast unknown": Case(
        lambda x, y: parts(cnp.make_complex(x, y) ** 2), (normal(11, 2, 1), normal(12, 3)), unknown=True
    ),
    "complex matmul": Case(of_complex(lambda z: z @ cnp.conj(z).mT), (T,)),
    "complex prod": Case(of_complex(lambda z: cnp.prod(z, axis=0) * cnp.cumprod(z, axis=1)), (T,)),
    "complex var": Case(lambda x: cnp.var(number(x)), (T,)),
    "fft": Case(of_complex(lambda z: cnp.fft.fft(z) ** 2), (T,)),
    "ifft unknown": Case(of_complex(lambda z: cnp.fft.ifft(z, axis=0) ** 2), (T,), unknown=True),
    "fft cut": Case(of_complex(lambda z: cnp.fft.fft(z, n=3, norm="ortho") ** 2), (T,)),
    "rfft": Case(lambda x: parts(cnp.fft.rfft(x, n=5) ** 2), (T,)),
    "irfft": Case(lambda x: cnp.fft.irfft(number(x), n=5) ** 2, (T,)),
    "hfft": Case(lambda x: cnp.fft.hfft(number(x)) ** 2, (T,)),
    "irfftn of rfftn": Case(lambda x: cnp.fft.irfftn(cnp.fft.rfftn(x) ** 2), (T,)),
    "ifft2 of fft2 unknown": Case(of_complex(lambda z: cnp.fft.ifft2(cnp.fft.fft2(z) ** 2)), (T,), unknown=True),
    "irfft2 of rfft2": Case(lambda x: cnp.fft.irfft2(cnp.fft.rfft2(x, norm="ortho") ** 2, s=(2, 3)), (T,)),
    "fft of a number": Case(of_complex(lambda z: cnp.fft.fft(z[:1]) ** 2), (Z,)),
}
