"""Derivatives of ops between complex numbers and their parts.

Cotangents of complex values follow JAX: a cotangent c and a tangent t pair as Re(c t), without conjugation. A
holomorphic op then multiplies both by the same derivative, and an op that is linear over the complex numbers is
transposed, not adjoined. The gradient of a real f(x + iy) is df/dx - i df/dy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.gradients.table import forward, jointly_linear, linear, reverse, reverse_joint
from ctrlgrad.ops.term import Term, emit, sum_to, where


def conj(x: Term) -> Term:
    """The conjugate; x itself where it is real."""
    return emit("conj", x) if dtype_kind(x.dtype) == "c" else x


def as_complex(x: Term, like: Term) -> Term:
    return x if x.dtype == like.dtype else emit("cast", x, dtype=like.dtype)


linear("conj", lambda ct, x: emit("conj", ct))
# Re(c Re t), Re(c Im t) = Re(-i c t), for real c.
linear("real", lambda ct, x: as_complex(ct, x))
linear("imag", lambda ct, x: as_complex(ct, x) * -1j)


def _complex(ct: Term, out: Term, re: Term, im: Term) -> Sequence[Term]:
    """Re(c (s + it)) = Re(c) s - Im(c) t."""
    return sum_to(emit("real", ct), re.dims), sum_to(-emit("imag", ct), im.dims)


jointly_linear("complex", None)
reverse_joint("complex", _complex)


def _direction(x: Term, out: Term) -> Term:
    """conj(x) / abs(x), and 0 at 0."""
    return conj(x) / as_complex(where(out.equals(0), 1, out), x)


def _push_abs(tangents: Sequence[Term], out: Term, x: Term, **attrs: Any) -> Term:
    if dtype_kind(x.dtype) != "c":
        return tangents[0] * emit("sign", x)
    return emit("real", tangents[0] * _direction(x, out))


def _pull_abs(ct: Term, out: Term, x: Term) -> Term:
    if dtype_kind(x.dtype) != "c":
        return ct * emit("sign", x)
    return as_complex(ct, x) * _direction(x, out)


forward("abs", _push_abs)
reverse("abs", _pull_abs)
