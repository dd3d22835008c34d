"""What ops on complex numbers, orders, matrices and spectra are in JAX: further entries of `jax_ops.TENSOR_OPS`.

`nonzero` has no entry: the number of its results depends on data, and JAX needs it before it starts.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from ctrlgrad.ir import Node, attributes
from ctrlgrad.verify.jax_ops import TENSOR_OPS, Entry, _elementwise
from ctrlgrad.verify.recording import Sizes

_FIRST = frozenset(TENSOR_OPS)


def _argsort(node: Node, sizes: Sizes | None, x: Any) -> Any:
    order = jnp.argsort(
        x, axis=attributes.Axis.of(node).axis, descending=attributes.Order.of(node).descending, stable=True
    )
    return order.astype(jnp.int64)


def _top_k(node: Node, sizes: Sizes | None, x: Any) -> Any:
    axis, count = attributes.Axis.of(node).axis, attributes.Selection.of(node).count
    places = lax.top_k(jnp.moveaxis(x, axis, -1), count)[1]
    return jnp.moveaxis(places, -1, axis).astype(jnp.int64)


def _searchsorted(node: Node, sizes: Sizes | None, row: Any, values: Any) -> Any:
    return jnp.searchsorted(row, values, side=attributes.Search.of(node).side).astype(jnp.int64)


def _solve(a: Any, b: Any) -> Any:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.linalg.solve(*(jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b)))


def _triangular_solve(node: Node, sizes: Sizes | None, a: Any, b: Any) -> Any:
    given = attributes.Triangle.of(node)
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=given.lower, unit_diagonal=given.unit_diagonal)


def _singular_vectors(a: Any) -> Any:
    u, _, vh = jnp.linalg.svd(a, full_matrices=False)
    return jnp.concatenate([u, jnp.conj(jnp.swapaxes(vh, -1, -2))], axis=-2)


def _adjugate(a: Any) -> Any:
    return jnp.linalg.det(a)[..., None, None] * jnp.linalg.inv(a)


def _pinv(a: Any, rtol: Any) -> Any:
    # JAX's own takes a bound that is known while it traces.
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    counts = s > jnp.asarray(rtol)[..., None] * s[..., :1]
    inverse = jnp.where(counts, 1 / jnp.where(counts, s, 1), 0)
    return (jnp.conj(jnp.swapaxes(vh, -1, -2)) * inverse[..., None, :]) @ jnp.conj(jnp.swapaxes(u, -1, -2))


def _fft(node: Node, sizes: Sizes | None, x: Any) -> Any:
    if attributes.Transform.of(node).inverse:
        return jnp.fft.ifft(x, axis=attributes.Axis.of(node).axis, norm="forward")
    return jnp.fft.fft(x, axis=attributes.Axis.of(node).axis)


_MATRICES: dict[str, Entry] = {
    "solve": _elementwise(_solve),
    "triangular_solve": _triangular_solve,
    "cholesky": _elementwise(lambda a: jnp.linalg.cholesky(a, symmetrize_input=False)),
    "det": _elementwise(jnp.linalg.det),
    "adjugate": _elementwise(_adjugate),
    "logabsdet": _elementwise(lambda a: jnp.linalg.slogdet(a)[1]),
    "det_sign": _elementwise(lambda a: jnp.linalg.slogdet(a)[0]),
    "orthonormal": _elementwise(lambda a: jnp.linalg.qr(a)[0]),
    "eigenvalues": _elementwise(lambda a: jnp.linalg.eigh(a, symmetrize_input=False)[0]),
    "eigenvectors": _elementwise(lambda a: jnp.linalg.eigh(a, symmetrize_input=False)[1]),
    "general_eigenvalues": _elementwise(jnp.linalg.eigvals),
    "general_eigenvectors": _elementwise(lambda a: jnp.linalg.eig(a)[1]),
    "singular_values": _elementwise(lambda a: jnp.linalg.svd(a, full_matrices=False)[1]),
    "singular_vectors": _elementwise(_singular_vectors),
    "pinv": _elementwise(_pinv),
}

TENSOR_OPS |= _MATRICES
TENSOR_OPS |= {"argsort": _argsort, "top_k": _top_k, "searchsorted": _searchsorted, "fft": _fft}

# The ops that this file adds.
ADDED = frozenset(TENSOR_OPS) - _FIRST
