"""Derivative rules of products, linear systems and eigenvalue decompositions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.gradients.rules.arrays import as_complex, conj
from ctrlgrad.gradients.table import forward, reverse
from ctrlgrad.ir import Builder
from ctrlgrad.ir.attributes import DYNAMIC, Item
from ctrlgrad.ops.linalg import DIFFER, TURN
from ctrlgrad.ops.term import Term, constant, emit, ensure_sizes, same_size, sum_to, swap_last, where, zeros


def _to(ct: Term, x: Term, contracted: int, other: int | Term) -> Term:
    """Sum over batch dimensions in which x was broadcast. The product itself need not be computed: that the axis along
    which x was contracted is as long as the other operand's is required here."""
    batch = x.tensor.shape[:-2]
    if batch != ct.tensor.shape[:-2] or None in batch:
        ct = sum_to(ct, [*x.dims[:-2], *ct.dims[-2:]])
    size = x.dim(contracted)
    if same_size(size, other):
        return ct
    return ensure_sizes(ct, {x.rank + contracted: size}, DIFFER, TURN)


def _push(tangents: Sequence[Term | None], out: Term, a: Term, b: Term) -> Term:
    da, db = tangents
    parts = [] if da is None else [da @ b]
    parts += [] if db is None else [a @ db]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


forward("matmul", _push)
reverse(
    "matmul",
    lambda ct, out, a, b: _to(ct @ swap_last(b), a, -1, b.dim(-2)),
    lambda ct, out, a, b: _to(swap_last(a) @ ct, b, -2, a.dim(-1)),
)


# Derivatives of linear systems, and what rules on matrices have in common: triangles, transposes.
#
# Below, x^T is `swap_last(x)`. A complex matrix is paired as below.


def adjoint(x: Term) -> Term:
    return conj(swap_last(x))


def solve(a: Term, b: Term, or_nan: bool = False) -> Term:
    return emit("solve", a, b, or_nan=or_nan)


def solve_triangular(a: Term, b: Term, *, lower: bool, unit_diagonal: bool = False, or_nan: bool = False) -> Term:
    """The solution of a x = b by one triangle of a."""
    return emit("triangular_solve", a, b, lower=lower, unit_diagonal=unit_diagonal, or_nan=or_nan)


def numbers(size: int | Term, builder: Builder) -> Term:
    return emit("iota", size, shape=(None,)) if isinstance(size, Term) else constant(builder, np.arange(size))


def triangle(x: Term, compare: str) -> Term:
    """Comparison of the row number with the column number: booleans [m, n] for x [..., m, n]."""
    rows, columns = (numbers(x.dim(axis), x.builder) for axis in (-2, -1))
    return emit(compare, emit("expand_dims", rows, axes=(1,)), emit("expand_dims", columns, axes=(0,)))


def keep(x: Term, compare: str) -> Term:
    return where(triangle(x, compare), x, 0)


def _summed(ct: Term, x: Term) -> Term:
    """Summed over batch dimensions in which x was broadcast."""
    return sum_to(ct, x.dims)


# a x = b:  dx = a^-1 (db - da x).


def _push_solve(tangents: Sequence[Term | None], out: Term, a: Term, b: Term, **answer: bool) -> Term:
    da, db = tangents
    if da is None:
        assert db is not None
        return solve(a, db, **answer)
    return solve(a, -(da @ out) if db is None else db - da @ out, **answer)


forward("solve", _push_solve)
reverse(
    "solve",
    lambda ct, out, a, b, **answer: _summed(-(solve(swap_last(a), ct, **answer) @ swap_last(out)), a),
    lambda ct, out, a, b, **answer: _summed(solve(swap_last(a), ct, **answer), b),
)


# The same with t, a triangle of a that is read, for a: elements that are not read have no part in da.


def _read(x: Term, lower: bool, unit_diagonal: bool) -> Term:
    order = "greater" if lower else "less"
    return keep(x, order if unit_diagonal else f"{order}_equal")


def _push_triangular(
    tangents: Sequence[Term | None], out: Term, a: Term, b: Term, lower: bool, unit_diagonal: bool, **answer: bool
) -> Term:
    da, db = tangents
    change = None if da is None else _read(da, lower, unit_diagonal) @ out
    right = db if change is None else -change if db is None else db - change
    assert right is not None
    return solve_triangular(a, right, lower=lower, unit_diagonal=unit_diagonal, **answer)


def _pull_triangular(ct: Term, a: Term, lower: bool, **others: bool) -> Term:
    return solve_triangular(swap_last(a), ct, lower=not lower, **others)


def _pull_triangle(ct: Term, out: Term, a: Term, b: Term, lower: bool, unit_diagonal: bool, **answer: bool) -> Term:
    change = -(_pull_triangular(ct, a, lower, unit_diagonal=unit_diagonal, **answer) @ swap_last(out))
    return _read(_summed(change, a), lower, unit_diagonal)


def _pull_right_side(ct: Term, out: Term, a: Term, b: Term, lower: bool, **others: bool) -> Term:
    return _summed(_pull_triangular(ct, a, lower, **others), b)


forward("triangular_solve", _push_triangular)
reverse("triangular_solve", _pull_triangle, _pull_right_side)


# Derivatives of the eigenvalues and eigenvectors of matrices that need not be hermitian.
#
# With a = v diag(w) v^-1 and p = v^-1 da v (Giles 2008, section 3.1; Boeddeker et al., arXiv 1701.00392, section
# 4.7):
#
#     dw = diag(p);  dv = u - v diag(r + i c) with u = v (F * p), F_ij = 1 / (w_j - w_i) off the diagonal.
#
# The correction of u follows from the op's scaling of a column of v: its norm is 1, so r = Re(v^H u), and its largest
# component is real, so c makes the imaginary part of that component's tangent zero. So the derivative is that of the
# vectors as they are, phase included. The pairing is the one of decompositions above.


def _of_type(ct: Term, a: Term) -> Term:
    """A complex cotangent as that of the operand."""
    return ct if dtype_kind(a.dtype) == "c" else emit("real", ct)


def _rotated(v: Term, da: Term) -> Term:
    """v^-1 da v."""
    return emit("solve", v, as_complex(da, v) @ v)


def _pull_values(ct: Term, out: Term, a: Term) -> Term:
    vt = swap_last(a.factor("general_eigenvectors"))
    return _of_type(emit("solve", vt, column(ct) * vt), a)


forward(
    "general_eigenvalues", lambda tangents, out, a: diagonal(_rotated(a.factor("general_eigenvectors"), tangents[0]))
)
reverse("general_eigenvalues", _pull_values)


def _gaps(v: Term, a: Term) -> Term:
    return reciprocal_gaps(a.factor("general_eigenvalues"), v)


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
    return _of_type(emit("solve", swap_last(v), (_gaps(v, a) * (swap_last(v) @ ct_u)) @ swap_last(v)), a)


forward("general_eigenvectors", _push_vectors)
reverse("general_eigenvectors", _pull_vectors)


# Derivatives of determinants and factorisations; those of linear systems stand in `systems`.
#
# Sources: Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation"
# (2008), sections 2.2 (inverse, determinant) and 3; Seeger et al., "Auto-differentiating linear algebra"
# (arXiv 1710.08717) for Cholesky, QR, symmetric eigenvectors and singular vectors; Golub and Pereyra (1973) for
# the pseudo-inverse. Each is written out here for complex matrices in the pairing Re(sum(ct * t)), so that a
# linear map t -> P t Q has the transpose ct -> P^T ct Q^T. Rules are made of the ops themselves, of `matmul` and
# of `solve` and `triangular_solve`, so they can be differentiated again.
#
# Below, x^T is `swap_last(x)`, x^H is `adjoint(x)`.


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
reverse("adjugate_along", _pull_along_matrix, lambda ct, out, a, e: swap_last(_along(a, swap_last(ct))))


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
    v = a.factor("eigenvectors")
    return _real(emit("sum", conj(v) * (tangents[0] @ v), axes=(a.rank - 2,), keepdims=False))


def _pull_eigenvalues(ct: Term, out: Term, a: Term) -> Term:
    v = a.factor("eigenvectors")
    return (conj(v) * as_complex(_row(ct), a)) @ swap_last(v)


forward("eigenvalues", _push_eigenvalues)
reverse("eigenvalues", _pull_eigenvalues)


def reciprocal_gaps(values: Term, like: Term) -> Term:
    """1 / (x_j - x_i), and 0 on the diagonal."""
    difference = _row(values) - column(values)
    same = triangle(difference, "equal")
    return as_complex(where(same, 0, 1 / where(same, 1, difference)), like)


def _push_eigenvectors(tangents: Sequence[Term], out: Term, a: Term) -> Term:
    return out @ (reciprocal_gaps(a.factor("eigenvalues"), a) * (adjoint(out) @ tangents[0] @ out))


def _pull_eigenvectors(ct: Term, out: Term, a: Term) -> Term:
    inner = reciprocal_gaps(a.factor("eigenvalues"), a) * (swap_last(out) @ ct)
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
        self.u, self.v = self.split(a.factor("singular_vectors") if vectors is None else vectors)
        # Where the vectors are a whole basis there is nothing beside them.
        rows, columns = a.tensor.shape[-2:]
        known = rows is not None and columns is not None
        self.u_is_basis = known and rows <= columns  # type: ignore[operator]
        self.v_is_basis = known and columns <= rows  # type: ignore[operator]

    def split(self, vectors: Term) -> tuple[Term, Term]:
        """The left part and the right one."""
        return _rows(vectors, None, self.rows), _rows(vectors, self.rows, None)

    def values(self, a: Term) -> Term:
        return a.factor("singular_values")


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
