"""Whole numbers of distributions without a bound, and vectors of normal numbers; those of `jax.random`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.while_loops import while_loop
from ctrlgrad.random.basic import uniform
from ctrlgrad.random.continuous import normal
from ctrlgrad.random.keys import checked, float_of, shape_of, split
from ctrlgrad.scipy.error_functions import floats
from ctrlgrad.scipy.gamma_functions import gammaln
from ctrlgrad.source import here


def _integers(operation: str, dtype: Any) -> Any:
    found: np.dtype = np.dtype(dtype)
    if dtype_kind(found) not in "iu":
        raise TypeMismatchError(
            f"random.{operation}: no such dtype", source=here(), expected="an integer dtype", got=found.name
        )
    return found


def _few(key: Any, lam: Any) -> Any:
    """Knuth's algorithm: how many uniform numbers until their product is below exp(-lam)."""

    def step(c: Any) -> Any:
        count, key, logarithm = c
        key, now = split(key)
        count = cnp.where(logarithm > -lam, count + 1, count)
        return count, key, logarithm + cnp.log(uniform(now, lam.shape, np.float32))

    begin = (cnp.zeros(lam.shape, np.int64), key, cnp.zeros(lam.shape, np.float32))
    return while_loop(lambda c: cnp.any(c[2] > -lam), step, begin)[0] - 1


def _many(key: Any, lam: Any) -> Any:
    """Hoermann, "The transformed rejection method for generating Poisson random variables" (1993)."""
    logarithm = cnp.log(lam)
    b = 0.931 + 2.53 * cnp.sqrt(lam)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    bound = 0.9277 - 3.6224 / (b - 2)

    def step(c: Any) -> Any:
        found, is_accepted, key = c
        key, first, second = split(key, 3)
        u, v = uniform(first, lam.shape, lam.dtype) - 0.5, uniform(second, lam.shape, lam.dtype)
        shifted = 0.5 - cnp.abs(u)
        k = cnp.floor((2 * a / shifted + b) * u + lam + 0.43)
        s = cnp.log(v * inverse / (a / (shifted * shifted) + b))
        is_refused = (k < 0) | ((shifted < 0.013) & (v > shifted))
        # Where k is negative it is refused anyhow.
        fits = s <= -lam + k * logarithm - gammaln(cnp.maximum(k, 0.0) + 1)
        accepts = ((shifted >= 0.07) & (v <= bound)) | (~is_refused & fits)
        return cnp.where(accepts, k, found), is_accepted | accepts, key

    begin = (cnp.full(lam.shape, -1.0, lam.dtype), cnp.zeros(lam.shape, bool), key)
    return while_loop(lambda c: ~cnp.all(c[1]), step, begin)[0]


def poisson(key: Any, lam: Any, shape: Sequence[int] | None = None, dtype: Any = np.int64) -> Any:
    """Numbers of the Poisson distribution with mean `lam`.

    >>> import ctrlgrad as cg
    >>> bool(cg.random.poisson(cg.random.key(0), 3.0, (5,)).min() >= 0)
    True
    """
    key, dtype, lam = checked("poisson", key), _integers("poisson", dtype), cnp.asarray(lam)
    shape = tuple(lam.shape) if shape is None else shape_of("poisson", shape)
    # As in JAX, in single precision unless the mean is an array of doubles.
    lam = cnp.broadcast_to(lam.astype(np.float32) if dtype_kind(lam.dtype) != "f" else lam, shape)
    is_few = cnp.isnan(lam) | (lam < 10)
    few = _few(key, cnp.where(is_few, lam, 0.0)).astype(dtype)
    many = _many(key, cnp.where(is_few, 1e5, lam)).astype(dtype)
    return cnp.where(lam == 0, 0, cnp.where(is_few, few, many)).astype(dtype)


def geometric(key: Any, p: Any, shape: Sequence[int] | None = None, dtype: Any = np.int64) -> Any:
    """How many tries it takes to succeed once, each with probability p.

    >>> import ctrlgrad as cg
    >>> bool(cg.random.geometric(cg.random.key(0), 0.3, (5,)).min() >= 1)
    True
    """
    p, dtype = floats(p), _integers("geometric", dtype)
    shape = tuple(p.shape) if shape is None else shape_of("geometric", shape)
    drawn = uniform(key, shape, p.dtype)
    drawn = cnp.where(drawn == 0, 1, drawn)
    return (cnp.floor(cnp.log(drawn) / cnp.log1p(-p)) + 1).astype(dtype)


def multivariate_normal(
    key: Any,
    mean: Any,
    cov: Any,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    method: str = "cholesky",
) -> Any:
    """Vectors of normal numbers with this mean and covariance; `shape` is that of the vectors.

    Args:
        method: how the covariance is factored: "cholesky", "eigh" or "svd".

    >>> import ctrlgrad as cg
    >>> cg.random.multivariate_normal(cg.random.key(0), np.zeros(2), np.eye(2), (3,)).shape
    (3, 2)
    """
    dtype = float_of("multivariate_normal", dtype)
    mean, cov = cnp.asarray(mean).astype(dtype), cnp.asarray(cov).astype(dtype)
    n = mean.shape[-1] if mean.ndim else 0
    if cov.ndim < 2 or tuple(cov.shape[-2:]) != (n, n):
        raise ShapeError(
            "random.multivariate_normal: the covariance does not fit the mean",
            source=here(),
            expected="a mean [..., n] and a covariance [..., n, n]",
            got=f"{tuple(mean.shape)} and {tuple(cov.shape)}",
        )
    if shape is None:
        shape = cnp.broadcast_shapes(mean.shape[:-1], cov.shape[:-2])
    if method == "cholesky":
        factor = cnp.linalg.cholesky(cov)
    elif method == "eigh":
        values, vectors = cnp.linalg.eigh(cov)
        factor = vectors * cnp.sqrt(values[..., None, :])
    elif method == "svd":
        left, values, _ = cnp.linalg.svd(cov, full_matrices=False)
        factor = left * cnp.sqrt(values[..., None, :])
    else:
        raise UserInputError(
            "random.multivariate_normal: no such method",
            source=here(),
            expected="'cholesky', 'eigh' or 'svd'",
            got=repr(method),
        )
    drawn = normal(key, (*shape_of("multivariate_normal", shape), n), dtype)
    return mean + cnp.matmul(factor, drawn[..., None])[..., 0]


def orthogonal(key: Any, n: int, shape: Sequence[int] = (), dtype: Any = None, m: int | None = None) -> Any:
    """Orthogonal matrices [n, n], uniformly; or [n, m] with orthonormal rows or columns.

    Source: Mezzadri, "How to generate random matrices from the classical compact groups" (2007).

    >>> import ctrlgrad as cg
    >>> q = cg.random.orthogonal(cg.random.key(0), 3)
    >>> bool(np.allclose(q @ q.T, np.eye(3)))
    True
    """
    columns = n if m is None else m
    q, r = cnp.linalg.qr(normal(key, (*shape_of("orthogonal", shape), max(n, columns), min(n, columns)), dtype))
    q = q * cnp.sign(cnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    return cnp.matrix_transpose(q) if n < columns else q
