"""Derivatives of determinants and factorisations; those of linear systems stand in `systems`.

Sources: Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation"
(2008), sections 2.2 (inverse, determinant) and 3; Seeger et al., "Auto-differentiating linear algebra"
(arXiv 1710.08717) for Cholesky, QR, symmetric eigenvectors and singular vectors; Golub and Pereyra (1973) for
the pseudo-inverse. Each is written out here for complex matrices in the pairing Re(sum(ct * t)), so that a
linear map t -> P t Q has the transpose ct -> P^T ct Q^T. Rules are made of the ops themselves, of `matmul` and
of `solve` and `triangular_solve`, so they can be differentiated again.

Below, x^T is `swap_last(x)`, x^H is `adjoint(x)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.gradients.rules.complex import as_complex, conj
from ctrlgrad.gradients.rules.systems import adjoint, keep, solve, solve_triangular, triangle
from ctrlgrad.gradients.table import forward, reverse
from ctrlgrad.ir.attributes import DYNAMIC, Item
from ctrlgrad.ops.term import Term, emit, swap_last, where, zeros


def diagonal(x: Term) -> Term:
    """The diagonals of square matrices, as [..., n]."""
    return emit("sum", keep(x, "equal"), axes=(x.rank - 1,), keepdims=False)


def _imaginary(x: Term) -> Term:
    """i Im(x)."""
    return emit("complex", emit("imag", x) * 0, emit("imag", x))


def column(x: Term) -> Term:
    return emit("expand_dims", x, axes=(x.rank,))


def _row(x: Term) -> Term:
    return emit("expand_dims", x, axes=(x.rank - 1,))


def _matrix(x: Term) -> Term:
    """One number for each matrix as [..., 1, 1]."""
    return emit("expand_dims", x, axes=(x.rank, x.rank + 1))


def _trace(x: Term) -> Term:
    return emit("sum", keep(x, "equal"), axes=(x.rank - 2, x.rank - 1), keepdims=False)


def _pairing(a: Term, b: Term) -> Term:
    """trace(a b)."""
    return emit("sum", swap_last(a) * b, axes=(a.rank - 2, a.rank - 1), keepdims=False)


def _identity_like(x: Term) -> Term:
    return emit("cast", triangle(x, "equal"), dtype=x.dtype)


# a = l l^H:  dl = l Phi(l^-1 da l^-H), where Phi keeps the lower triangle and halves the diagonal.


def _phi(x: Term) -> Term:
    return where(triangle(x, "greater"), x, where(triangle(x, "equal"), x * 0.5, 0))


def _push_cholesky(tangents: Sequence[Term], out: Term, a: Term, **answer: bool) -> Term:
    half = solve_triangular(out, adjoint(tangents[0]), lower=True, **answer)
    return out @ _phi(solve_triangular(out, adjoint(half), lower=True, **answer))


def _pull_cholesky(ct: Term, out: Term, a: Term, **answer: bool) -> Term:
    middle = solve_triangular(swap_last(out), _phi(swap_last(out) @ ct), lower=False, **answer)
    return swap_last(solve_triangular(adjoint(out), swap_last(middle), lower=False, **answer))


forward("cholesky", _push_cholesky)
reverse("cholesky", _pull_cholesky)


# d det(a) = trace(adj(a) da), at singular matrices too.
forward("det", lambda tangents, out, a: _pairing(emit("adjugate", a), tangents[0]))
reverse("det", lambda ct, out, a: _matrix(ct) * swap_last(emit("adjugate", a)))


# d adj(a) along e, an op of its own that is exact at singular matrices too. trace(f adjugate_along(a, e)) is the
# second derivative of det(a) along e and f, so it is symmetric in them.


def _along(a: Term, e: Term) -> Term:
    return emit("adjugate_along", a, e)


forward("adjugate", lambda tangents, out, a: _along(a, tangents[0]))
reverse("adjugate", lambda ct, out, a: swap_last(_along(a, swap_last(ct))))


# Where a is invertible, adjugate_along(a, e) = a^-1 z with z = trace(adj(a) e) - e adj(a), so its own derivative along
# da is a^-1 (dz - da out), where d adj(a) = p = adjugate_along(a, da).


def _push_along(tangents: Sequence[Term | None], out: Term, a: Term, e: Term) -> Term:
    da, de = tangents
    result = None if de is None else _along(a, de)
    if da is not None:
        p = _along(a, da)
        bent = solve(a, _matrix(_pairing(p, e)) * _identity_like(a) - e @ p - da @ out)
        result = bent if result is None else result + bent
    assert result is not None
    return result


def _pull_along_matrix(ct: Term, out: Term, a: Term, e: Term) -> Term:
    y, et = solve(swap_last(a), ct), swap_last(e)
    k = _matrix(_trace(y)) * et - et @ y
    return swap_last(_along(a, swap_last(k))) - y @ swap_last(out)


forward("adjugate_along", _push_along)
reverse(
    "adjugate_along",
    _pull_along_matrix,
    lambda ct, out, a, e: swap_last(_along(a, swap_last(ct))),
)


# With z = trace(a^-1 da):  d log|det(a)| = Re z;  d sign = i Im(z) sign.


def _real(x: Term) -> Term:
    return emit("real", x) if dtype_kind(x.dtype) == "c" else x


def _inverse_transposed(a: Term) -> Term:
    return solve(swap_last(a), _identity_like(a))


forward("logabsdet", lambda tangents, out, a: _real(_trace(solve(a, tangents[0]))))
reverse("logabsdet", lambda ct, out, a: as_complex(_matrix(ct), a) * _inverse_transposed(a))


def _push_sign(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    if dtype_kind(a.dtype) != "c":
        return zeros(out.builder, out.dtype, out.dims)
    return out * _imaginary(_trace(solve(a, tangents[0])))


def _pull_sign(ct: Term, out: Term, a: Term) -> Term:
    if dtype_kind(a.dtype) != "c":
        return zeros(ct.builder, a.dtype, a.dims)
    return _matrix(_imaginary(ct * out)) * _inverse_transposed(a)


forward("det_sign", _push_sign)
reverse("det_sign", _pull_sign)


# a = q r:  with x = da r^-1 and c = q^H x,  dq = x + q (S(c) - c), where S(c) is the skew-hermitian matrix with
# the lower triangle of c and the imaginary part of its diagonal.


def _skew(c: Term) -> Term:
    lower = keep(c, "greater")
    skew = lower - adjoint(lower)
    return skew + where(triangle(c, "equal"), _imaginary(c), 0) if dtype_kind(c.dtype) == "c" else skew


def _skew_transposed(k: Term) -> Term:
    lower = keep(k - adjoint(k), "greater")
    return lower + where(triangle(k, "equal"), _imaginary(k), 0) if dtype_kind(k.dtype) == "c" else lower


def _upper(q: Term, a: Term) -> Term:
    return keep(adjoint(q) @ a, "less_equal")


def _push_orthonormal(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    r = _upper(out, a)
    x = swap_last(solve_triangular(swap_last(r), swap_last(tangents[0]), lower=True))
    c = adjoint(out) @ x
    return x + out @ (_skew(c) - c)


def _pull_orthonormal(ct: Term, out: Term, a: Term) -> Term:
    k = swap_last(out) @ ct
    x = ct + conj(out) @ (_skew_transposed(k) - k)
    return swap_last(solve_triangular(_upper(out, a), swap_last(x), lower=False))


forward("orthonormal", _push_orthonormal)
reverse("orthonormal", _pull_orthonormal)


# a = v diag(w) v^H:  dw = Re diag(v^H da v);  dv = v (F * (v^H da v)), F_ij = 1 / (w_j - w_i) off the diagonal.


def _push_eigenvalues(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    v = emit("eigenvectors", a)
    return _real(emit("sum", conj(v) * (tangents[0] @ v), axes=(a.rank - 2,), keepdims=False))


def _pull_eigenvalues(ct: Term, out: Term, a: Term) -> Term:
    v = emit("eigenvectors", a)
    return (conj(v) * as_complex(_row(ct), a)) @ swap_last(v)


forward("eigenvalues", _push_eigenvalues)
reverse("eigenvalues", _pull_eigenvalues)


def reciprocal_gaps(values: Term, like: Term) -> Term:
    """1 / (x_j - x_i), and 0 on the diagonal."""
    difference = _row(values) - column(values)
    same = triangle(difference, "equal")
    return as_complex(where(same, 0, 1 / where(same, 1, difference)), like)


def _push_eigenvectors(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    return out @ (reciprocal_gaps(emit("eigenvalues", a), a) * (adjoint(out) @ tangents[0] @ out))


def _pull_eigenvectors(ct: Term, out: Term, a: Term) -> Term:
    inner = reciprocal_gaps(emit("eigenvalues", a), a) * (swap_last(out) @ ct)
    return conj(out) @ inner @ swap_last(out)


forward("eigenvectors", _push_eigenvectors)
reverse("eigenvectors", _pull_eigenvectors)


# a = u diag(s) v^H, p = u^H da v:  ds = Re diag(p);  with F_ij = 1 / (s_j^2 - s_i^2) off the diagonal,
#   du = u (F * (p s + s p^H) + i Im diag(p) / s) + (1 - u u^H) da v / s,
#   dv = v (F * (s p + p^H s)) + (1 - v v^H) da^H u / s.


def _rows(x: Term, start: int | Term | None, stop: int | Term | None) -> Term:
    bounds = [bound for bound in (start, stop) if isinstance(bound, Term)]
    first, last = (DYNAMIC if isinstance(bound, Term) else bound for bound in (start, stop))
    key: list[Item] = [slice(None)] * x.rank
    key[-2] = slice(first, last, None)
    return emit("getitem", x, *bounds, key=tuple(key))


class _Singular:
    """The factors of a, from the op `singular_vectors` (given where it is at hand), and what both modes need."""

    def __init__(self, a: Term, vectors: Term | None = None) -> None:
        self.rows = a.dim(-2)
        self.u, self.v = self.split(emit("singular_vectors", a) if vectors is None else vectors)
        # Where the vectors are a whole basis there is nothing beside them.
        rows, columns = a.tensor.shape[-2:]
        known = rows is not None and columns is not None
        self.u_is_basis = known and rows <= columns  # type: ignore[operator]
        self.v_is_basis = known and columns <= rows  # type: ignore[operator]

    def split(self, vectors: Term) -> tuple[Term, Term]:
        """The left part and the right one."""
        return _rows(vectors, None, self.rows), _rows(vectors, self.rows, None)

    def values(self, a: Term) -> Term:
        return emit("singular_values", a)


def _push_singular_values(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    f = _Singular(a)
    return _real(emit("sum", conj(f.u) * (tangents[0] @ f.v), axes=(a.rank - 2,), keepdims=False))


def _pull_singular_values(ct: Term, out: Term, a: Term) -> Term:
    f = _Singular(a)
    return (conj(f.u) * as_complex(_row(ct), a)) @ swap_last(f.v)


forward("singular_values", _push_singular_values)
reverse("singular_values", _pull_singular_values)


def _push_singular_vectors(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    (da,) = tangents
    f = _Singular(a, out)
    real_s = f.values(a)
    gaps, s = reciprocal_gaps(real_s * real_s, a), as_complex(real_s, a)
    av, ahu = da @ f.v, adjoint(da) @ f.u
    p = adjoint(f.u) @ av
    left = gaps * (p * _row(s) + column(s) * adjoint(p))
    right = gaps * (column(s) * p + adjoint(p) * _row(s))
    if dtype_kind(a.dtype) == "c":
        left = left + where(triangle(p, "equal"), _imaginary(p) / _row(s), 0)
    du, dv = f.u @ left, f.v @ right
    if not f.u_is_basis:
        du = du + (av - f.u @ p) / _row(s)
    if not f.v_is_basis:
        dv = dv + (ahu - f.v @ (adjoint(f.v) @ ahu)) / _row(s)
    return emit("concat", du, dv, axis=a.rank - 2)


def _pull_singular_vectors(ct: Term, out: Term, a: Term) -> Term:
    f = _Singular(a, out)
    gu, gv = f.split(ct)
    real_s = f.values(a)
    gaps, s = reciprocal_gaps(real_s * real_s, a), as_complex(real_s, a)
    ku, kv = swap_last(f.u) @ gu, swap_last(f.v) @ gv
    fu, fv = gaps * ku, gaps * kv
    p = (fu + adjoint(fu)) * _row(s) + column(s) * (fv + adjoint(fv))
    if dtype_kind(a.dtype) == "c":
        p = p + where(triangle(p, "equal"), _imaginary(ku) / _row(s), 0)
    cotangent = conj(f.u) @ p @ swap_last(f.v)
    if not f.u_is_basis:
        cotangent = cotangent + ((gu - conj(f.u) @ ku) / _row(s)) @ swap_last(f.v)
    if not f.v_is_basis:
        cotangent = cotangent + conj(f.u) @ adjoint((gv - conj(f.v) @ kv) / _row(s))
    return cotangent


forward("singular_vectors", _push_singular_vectors)
reverse("singular_vectors", _pull_singular_vectors)


# b = a^+ of constant rank:  db = -b da b + b b^H da^H (1 - a b) + (1 - b a) da^H b^H b.


def _push_pinv(tangents: Sequence[Term | None], out: Term, a: Term, rtol: Term) -> Term:
    da, b = tangents[0], out
    if da is None:
        return zeros(b.builder, b.dtype, b.dims)
    dah, bh = adjoint(da), adjoint(b)
    outside, inside = b @ (bh @ dah), (dah @ bh) @ b
    return outside - (outside @ a) @ b + inside - b @ (a @ inside) - b @ da @ b


def _pull_pinv(ct: Term, out: Term, a: Term, rtol: Term) -> Term:
    b, bt = out, swap_last(out)
    left, right = swap_last(b @ adjoint(b)), swap_last(adjoint(b) @ b)
    of_rows = left @ (ct - ct @ swap_last(a @ b))
    of_columns = (ct - swap_last(b @ a) @ ct) @ right
    return adjoint(of_rows + of_columns) - bt @ ct @ bt


forward("pinv", _push_pinv)
reverse("pinv", _pull_pinv, None)
