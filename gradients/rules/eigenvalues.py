"""Derivatives of the eigenvalues and eigenvectors of matrices that need not be hermitian.

With a = v diag(w) v^-1 and p = v^-1 da v (Giles 2008, section 3.1; Boeddeker et al., arXiv 1701.00392, section 4.7):

    dw = diag(p);  dv = u - v diag(r + i c) with u = v (F * p), F_ij = 1 / (w_j - w_i) off the diagonal.

What is taken off u follows from how the op scales a column of v: its norm is 1, so r = Re(v^H u), and its largest
component is real, so c makes the imaginary part of that one's tangent zero. So the derivative is that of the vectors as
they are, not only of what does not depend on their phase. The pairing is the one of `decompositions.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.gradients.rules.complex import as_complex, conj
from ctrlgrad.gradients.rules.decompositions import column, diagonal, reciprocal_gaps
from ctrlgrad.gradients.rules.systems import numbers
from ctrlgrad.gradients.table import forward, reverse
from ctrlgrad.ops.term import Term, emit, swap_last, where


def _of_type(ct: Term, a: Term) -> Term:
    """A complex cotangent as that of the operand."""
    return ct if dtype_kind(a.dtype) == "c" else emit("real", ct)


def _rotated(v: Term, da: Term) -> Term:
    """v^-1 da v."""
    return emit("solve", v, as_complex(da, v) @ v)


def _rotated_transposed(v: Term, ct: Term, a: Term) -> Term:
    return _of_type(emit("solve", swap_last(v), ct @ swap_last(v)), a)


def _push_values(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    return diagonal(_rotated(emit("general_eigenvectors", a), tangents[0]))


def _pull_values(ct: Term, out: Term, a: Term) -> Term:
    vt = swap_last(emit("general_eigenvectors", a))
    return _of_type(emit("solve", vt, column(ct) * vt), a)


forward("general_eigenvalues", _push_values)
reverse("general_eigenvalues", _pull_values)


def _gaps(v: Term, a: Term) -> Term:
    return reciprocal_gaps(emit("general_eigenvalues", a), v)


def _scale_of_largest(v: Term) -> Term:
    """s, zero but at the largest component of each column, which is real there: 1 over that one."""
    real, imag = emit("real", v), emit("imag", v)
    # Of components of one modulus the real one is meant.
    size = where(emit("equal", imag, 0), emit("abs", real), -1)
    place = emit("argmax", size, axes=(v.rank - 2,), keepdims=True)
    chosen = emit("equal", emit("expand_dims", numbers(v.dim(-2), v.builder), axes=(1,)), place)
    return where(chosen, 1 / where(chosen, real, 1), 0)


def _total(x: Term) -> Term:
    """The sum of each column, as [..., 1, n]."""
    return emit("sum", x, axes=(x.rank - 2,), keepdims=True)


def _push_vectors(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    v = out
    u = v @ (_gaps(v, a) * _rotated(v, tangents[0]))
    r, c = _total(emit("real", conj(v) * u)), _total(_scale_of_largest(v) * emit("imag", u))
    return u - v * emit("complex", r, c)


def _pull_vectors(ct: Term, out: Term, a: Term) -> Term:
    v = out
    h = _total(ct * v)
    along = as_complex(_scale_of_largest(v) * emit("imag", h), v) * 1j
    ct_u = ct - conj(v) * as_complex(emit("real", h), v) - along
    return _rotated_transposed(v, _gaps(v, a) * (swap_last(v) @ ct_u), a)


forward("general_eigenvectors", _push_vectors)
reverse("general_eigenvectors", _pull_vectors)
