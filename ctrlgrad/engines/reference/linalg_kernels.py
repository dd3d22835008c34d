"""Kernels of factorisations, linear systems and the Fourier transform."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.table import PURE, same
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ops.linalg import signed
from ctrlgrad.threads import default_threads


def _adjoint(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


def _if_finite(fn: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A function of matrices that has NaN for those that are not finite: NumPy raises, or LAPACK never ends."""

    def kernel(a: Any, *others: Any, **options: Any) -> tuple[Any, ...]:
        is_finite = np.isfinite(a).all((-2, -1))
        if is_finite.all():
            return fn(a, *others, **options)
        found = fn(np.where(is_finite[..., None, None], a, np.zeros((), a.dtype)), *others, **options)
        axes = [tuple(range(is_finite.ndim, np.ndim(x))) for x in found]
        return tuple(
            np.where(np.expand_dims(is_finite, over), x, np.asarray(np.nan, x.dtype))
            for x, over in zip(found, axes, strict=True)
        )

    return kernel


_svd = _if_finite(np.linalg.svd)


def _answered(node: Node, fn: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A function of matrices; `otherwise` is of one without an answer, where the node asks for no error."""
    if not attributes.Answer.of(node).or_nan:
        return fn

    def kernel(*operands: Any) -> Any:
        try:
            return fn(*operands)
        except np.linalg.LinAlgError:
            shape = np.broadcast_shapes(*(x.shape[:-2] for x in operands))
            spread = [np.broadcast_to(x, (*shape, *x.shape[-2:])) for x in operands]
            result = np.empty_like(spread[-1])
            for place in np.ndindex(shape):
                matrices = [x[place] for x in spread]
                try:
                    result[place] = fn(*matrices)
                except np.linalg.LinAlgError:
                    result[place] = otherwise(*matrices)
            return result

    return kernel


def _adjugate(a: Any) -> Any:
    """adj(u s v^H) = det(u) det(v^H) v adj(s) u^H; adj(s) is diagonal, each entry the product of all other singular
    values."""
    u, s, vh = _svd(a)
    others = np.where(np.eye(s.shape[-1], dtype=bool), s.dtype.type(1), s[..., None, :]).prod(-1)
    sign = (np.linalg.det(u) * np.linalg.det(vh))[..., None, None]
    return (sign * (_adjoint(vh) * others[..., None, :])) @ _adjoint(u)


def _adjugate_along(a: Any, e: Any) -> Any:
    """As `_adjugate`, with the derivative of adj(s) along b = u^H e v in the middle.

    With m_ij the product of all of s but s_i and s_j, that is sum over j != i of m_ij b_jj on the diagonal, and
    -m_ij b_ij elsewhere.
    """
    u, s, vh = _svd(a)
    n = s.shape[-1]
    same = np.eye(n, dtype=bool)
    left_out = same[:, None, :] | same[None, :, :]
    m = np.where(same, 0, np.where(left_out, s.dtype.type(1), s[..., None, None, :]).prod(-1))
    b = _adjoint(u) @ e @ _adjoint(vh)
    on_diagonal = m @ np.diagonal(b, axis1=-2, axis2=-1)[..., None]
    sign = (np.linalg.det(u) * np.linalg.det(vh))[..., None, None]
    return (sign * (_adjoint(vh) @ (on_diagonal * same - m * b))) @ _adjoint(u)


def _singular_vectors(a: Any) -> Any:
    u, _, vh = _svd(a, full_matrices=False)
    return np.concatenate(signed(u, _adjoint(vh)), axis=-2)


def _general(which: int) -> Callable[[Any], Any]:
    """Eigenvalues (0) or eigenvectors (1), both of one call of LAPACK, so that they stand in one order."""

    def kernel(a: Any) -> Any:
        dtype = np.result_type(a.dtype, np.complex64)
        # LAPACK's iteration is given no matrix that is not finite: NumPy raises, and here such a matrix has NaN.
        is_finite = np.isfinite(a).all((-2, -1), keepdims=True)
        found = np.linalg.eig(np.where(is_finite, a, np.zeros((), a.dtype)))[which]
        return np.where(is_finite if which else is_finite[..., 0], found, np.nan).astype(dtype, copy=False)

    return kernel


# Fourier transforms are SciPy's, which keep float32 and take the rows of an array several at a time.

LEAST_ELEMENTS = 1 << 15
"""Elements for each thread of a transform: about a third of a millisecond."""


def _fft(node: Node) -> Callable[..., Any]:
    axis = attributes.Axis.of(node).axis
    name, norm = ("ifft", "forward") if attributes.Transform.of(node).inverse else ("fft", "backward")
    return lambda x: _transform(name)(x, axis=axis, norm=norm, workers=_workers(x))


def _rfft(node: Node) -> Callable[..., Any]:
    axis = attributes.Axis.of(node).axis
    return lambda x: _transform("rfft")(x, axis=axis, workers=_workers(x))


def _irfft(node: Node) -> Callable[..., Any]:
    given = attributes.RealTransform.of(node)
    return lambda z: _transform("irfft")(z, given.size, given.axis, norm="forward", workers=_workers(z))


@functools.cache
def _transform(name: str) -> Callable[..., Any]:
    import scipy.fft  # no part of the first call of a program without transforms

    return getattr(scipy.fft, name)  # type: ignore[no-any-return]


def _workers(x: np.ndarray) -> int:
    return max(min(default_threads(), x.size // LEAST_ELEMENTS), 1)


def _triangular_solve(node: Node) -> Callable[..., Any]:
    given = attributes.Triangle.of(node)
    part, inner = (np.tril, -1) if given.lower else (np.triu, 1)

    def solved(a: Any, b: Any) -> Any:
        if given.unit_diagonal:
            return np.linalg.solve(part(a, inner) + np.eye(a.shape[-1], dtype=a.dtype), b)
        return np.linalg.solve(part(a), b)

    def substituted(a: Any, b: Any) -> Any:
        """Of a triangle with zeros on its diagonal: infinite where something is divided by one, or NaN."""
        x, n = np.array(b), len(a)
        for j in range(n) if given.lower else reversed(range(n)):
            x[j] /= a[j, j]
            rest = slice(j + 1, n) if given.lower else slice(0, j)
            x[rest] -= a[rest, j, None] * x[j]
        return x

    return _answered(node, solved, substituted)


PURE["solve"] = lambda node: _answered(node, np.linalg.solve, lambda a, b: np.full_like(b, np.nan))
PURE["triangular_solve"] = _triangular_solve
PURE["cholesky"] = lambda node: _answered(node, np.linalg.cholesky, lambda a: np.full_like(a, np.nan))
PURE["det"] = same(np.linalg.det)
PURE["adjugate"] = same(_adjugate)
PURE["adjugate_along"] = same(_adjugate_along)
PURE["logabsdet"] = same(lambda a: np.linalg.slogdet(a)[1])
PURE["det_sign"] = same(lambda a: np.linalg.slogdet(a)[0])
PURE["orthonormal"] = same(lambda a: np.linalg.qr(a)[0])
PURE["eigenvalues"] = same(lambda a: _if_finite(np.linalg.eigh)(a)[0])
PURE["eigenvectors"] = same(lambda a: _if_finite(np.linalg.eigh)(a)[1])
PURE["general_eigenvalues"] = same(_general(0))
PURE["general_eigenvectors"] = same(_general(1))
PURE["singular_values"] = same(lambda a: _if_finite(lambda x: (np.linalg.svdvals(x),))(a)[0])
PURE["singular_vectors"] = same(_singular_vectors)
PURE["pinv"] = same(lambda a, rtol: _if_finite(lambda x: (np.linalg.pinv(x, rtol=rtol),))(a)[0])
PURE |= {"fft": _fft, "rfft": _rfft, "irfft": _irfft}
