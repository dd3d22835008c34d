"""Linear systems, determinants, factorisations and norms: real and complex, tall, wide and square, batched."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.scipy.linalg import solve_triangular
from rule_cases.case import DIFFERENCES, Case, normal
from rule_cases.complex import number, of_complex, parts

L = cnp.linalg
M, ONE, TALL, WIDE = normal(20, 2, 3, 3), normal(21, 3, 3), normal(22, 4, 3), normal(23, 3, 4)
SOLVABLE = M + 3 * np.eye(3)
SPD = M @ np.swapaxes(M, -1, -2) + np.eye(3)
C, CTALL, CWIDE = normal(24, 2, 3, 3), normal(25, 2, 4, 3), normal(26, 2, 3, 4)
SINGULAR = np.outer(normal(27, 3), normal(28, 3))

# Singular vectors and eigenvectors of complex matrices up to their phase.


def _moduli(*vectors):  # type: ignore[no-untyped-def]
    return tuple(cnp.abs(v) ** 2 for v in vectors)


def _svd(x):  # type: ignore[no-untyped-def]
    u, s, vh = L.svd(number(x))
    return s, *_moduli(u, vh)


def _svd_of_real(a):  # type: ignore[no-untyped-def]
    # Signs are not LAPACK's (`ops.linalg.signed`).
    u, s, vh = L.svd(a)
    return abs(u), s, abs(vh), (u * s[..., None, :] ** 2) @ vh


def _eig(a):  # type: ignore[no-untyped-def]
    # LAPACK leaves the sign of a vector open, not its phase.
    values, vectors = L.eig(a)
    return *parts(values), *parts(vectors * vectors)


CASES: dict[str, Case] = {
    "solve": Case(L.solve, (M, normal(29, 3, 2))),
    "solve batched": Case(L.solve, (ONE, normal(29, 2, 3, 2))),
    "solve vector unknown": Case(L.solve, (ONE, normal(29, 3)), unknown=True),
    "solve complex": Case(lambda a, b: parts(L.solve(number(a), number(b))), (C, normal(30, 2, 3, 2))),
    "triangular": Case(lambda a, b: solve_triangular(a, b, lower=True), (SOLVABLE, normal(29, 3, 2))),
    "triangular upper, batched": Case(solve_triangular, (SOLVABLE[0], normal(29, 2, 3, 2))),
    "triangular turned, of ones, unknown": Case(
        lambda a, b: solve_triangular(a, b, trans=1, lower=True, unit_diagonal=True), (ONE, normal(29, 3)), unknown=True
    ),
    "triangular complex": Case(
        lambda a, b: parts(solve_triangular(number(a) + 3 * np.eye(3), number(b), trans=2)), (C, normal(30, 2, 3, 2))
    ),
    "lstsq tall": Case(lambda a, b: L.lstsq(a, b)[:2], (TALL, normal(31, 4, 2))),
    "lstsq wide, one side": Case(lambda a, b: L.lstsq(a, b)[0], (WIDE, normal(32, 3))),
    "lstsq unknown": Case(lambda a, b: L.lstsq(a, b)[:2], (TALL, normal(33, 4)), unknown=True),
    "lstsq complex": Case(lambda a, b: parts(L.lstsq(number(a), number(b))[0]), (CTALL, normal(34, 2, 4))),
    "cond": Case(L.cond, (M,)),
    "cond of smallest, unknown": Case(lambda a: L.cond(a, -2), (TALL,), unknown=True),
    "cond by Frobenius": Case(lambda a: L.cond(a, "fro"), (ONE,)),
    "multi_dot": Case(lambda a, b, c: L.multi_dot([c, a, b, a]), (TALL, normal(35, 3, 4), normal(36, 4))),
    "multi_dot unknown": Case(lambda a, b: L.multi_dot([a, b, a]), (TALL, normal(35, 3, 4)), unknown=True),
    "inv": Case(L.inv, (M,)),
    "inv unknown": Case(L.inv, (ONE,), unknown=True),
    "det": Case(L.det, (M,)),
    # The second derivative of JAX 0.12 is NaN or wrong there.
    "det at a singular matrix": Case(L.det, (SINGULAR,), DIFFERENCES),
    "det of a number": Case(lambda a: L.det(a) ** 2, (ONE[:1, :1],)),
    "det complex": Case(of_complex(L.det), (C,)),
    "gradient of det": Case(cg.grad(lambda a: L.det(a)), (ONE,), DIFFERENCES),
    "slogdet": Case(lambda a: L.slogdet(a)[1], (M,)),
    "slogdet complex": Case(lambda a: (*parts(L.slogdet(number(a))[0]), L.slogdet(number(a))[1]), (C,)),
    "cholesky": Case(L.cholesky, (SPD,)),
    "cholesky unknown": Case(lambda a: L.cholesky(a, upper=True), (SPD[0],), unknown=True),
    "cholesky complex": Case(lambda a: parts(L.cholesky(number(a) @ cnp.conj(number(a)).mT + np.eye(3))), (C,)),
    "qr tall": Case(lambda a: tuple(L.qr(a)), (TALL,)),
    "qr square": Case(lambda a: tuple(L.qr(a)), (M,)),
    "qr wide": Case(lambda a: tuple(L.qr(a)), (WIDE,)),
    "qr unknown": Case(lambda a: tuple(L.qr(a)), (WIDE,), unknown=True),
    "qr complex": Case(lambda a: (*parts(L.qr(number(a))[0]), *parts(L.qr(number(a))[1])), (CTALL,)),
    "eigh": Case(lambda a: tuple(L.eigh(a)), (SPD,)),
    "eigh unknown": Case(lambda a: tuple(L.eigh(a)), (SPD[0],), unknown=True),
    "eigh complex": Case(lambda a: (L.eigvalsh(number(a)), *_moduli(L.eigh(number(a))[1])), (C,)),
    "eig": Case(_eig, (M,), DIFFERENCES),
    "eig unknown": Case(_eig, (M[0],), DIFFERENCES, unknown=True),
    "eig complex": Case(lambda a: _eig(number(a)), (C,), DIFFERENCES),
    "svd tall": Case(_svd_of_real, (TALL,)),
    "svd wide unknown": Case(_svd_of_real, (WIDE,), unknown=True),
    "svd square": Case(_svd_of_real, (M,)),
    "svd complex": Case(_svd, (CTALL,)),
    "svd complex wide": Case(_svd, (CWIDE,)),
    "svdvals": Case(L.svdvals, (TALL,)),
    "pinv": Case(L.pinv, (TALL,)),
    "pinv unknown": Case(L.pinv, (WIDE,), unknown=True),
    "pinv complex": Case(of_complex(L.pinv), (CTALL,)),
    "matrix_power": Case(lambda a: L.matrix_power(a, 3), (ONE,)),
    "matrix_power negative": Case(lambda a: L.matrix_power(a, -2), (ONE,)),
    "norms": Case(
        lambda a: tuple(L.matrix_norm(a, ord=o) for o in ("fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf)), (TALL,)
    ),
    "vector norms": Case(lambda x: tuple(L.vector_norm(x, axis=1, ord=o) for o in (1, 2, 3, -1, np.inf)), (TALL,)),
    "vector norm complex": Case(lambda x: L.vector_norm(number(x), ord=3), (CTALL,)),
    "cross": Case(lambda a: L.cross(a, a[::-1] * a), (TALL,)),
    "trace and diagonal": Case(lambda a: L.trace(a) ** 2 + cnp.sum(L.diagonal(a, offset=1) ** 2), (M,)),
}
