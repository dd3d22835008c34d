"""Random choices, permutations and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.array.sorting import places_of_largest
from ctrlgrad.frontend.while_loops import while_loop
from ctrlgrad.random.basic import bits, randint, uniform
from ctrlgrad.random.continuous import gumbel, normal
from ctrlgrad.random.keys import checked, float_of, shape_of, split
from ctrlgrad.scipy.error_functions import floats
from ctrlgrad.scipy.gamma_functions import gammaln
from ctrlgrad.source import here

# Choices among numbers or rows; those of `jax.random`.


def categorical(key: Any, logits: Any, axis: int = -1, shape: Sequence[int] | None = None, replace: bool = True) -> Any:
    """Indices along an axis, each with the probability softmax(logits); int64.

    By the largest of the logits with Gumbel noise added, or without replacement by the largest ones.

    Args:
        shape: of the result; that of the logits without the axis if not given, and it ends with that.

    >>> int(cg.random.categorical(cg.random.key(0), np.array([0.0, 100.0])))
    1
    """
    logits = cnp.asarray(logits)
    if any(not isinstance(n, int) for n in logits.shape):
        raise ShapeError("random.categorical: the shape of the logits is not known", got=str(logits.shape))
    axis = axis % logits.ndim - logits.ndim
    batch = tuple(n for a, n in enumerate(logits.shape) if a != axis + logits.ndim)
    shape = batch if shape is None else shape_of("categorical", shape)
    before = shape[: len(shape) - len(batch)]
    if replace:
        whole = list(shape[len(before) :])
        whole.insert(axis + logits.ndim, logits.shape[axis])
        noise = gumbel(key, (*before, *whole), logits.dtype)
        return cnp.argmax(noise + logits, axis=axis)
    count = math.prod(before)
    if count > logits.shape[axis]:
        raise UserInputError(
            "random.categorical: more is drawn without replacement than there is",
            source=here(),
            expected=f"at most {logits.shape[axis]}",
            got=str(count),
            hint="draw fewer, or with replace=True",
        )
    order = places_of_largest("random.categorical", logits + gumbel(key, logits.shape, logits.dtype), count, axis)
    return cnp.reshape(cnp.moveaxis(order, axis, 0), shape)


def _shuffled(key: Any, x: Any, axis: int) -> Any:
    """In the order of random bits, over and over until no two elements had equal bits each time, all but surely."""
    size = math.prod(x.shape)
    rounds = math.ceil(3 * math.log(max(1, size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, now = split(key)
        x = cnp.take_along_axis(x, cnp.argsort(bits(now, x.shape), axis=axis), axis)
    return x


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """The rows of an array, or the numbers below an integer, in a random order.

    Args:
        independent: each line along the axis is put into an order of its own.

    >>> sorted(int(i) for i in cg.random.permutation(cg.random.key(0), 5))
    [0, 1, 2, 3, 4]
    """
    key = checked("permutation", key)
    if isinstance(x, int | np.integer):
        return _shuffled(key, cnp.arange(int(x)), 0)
    x = cnp.asarray(x)
    if independent or x.ndim == 1:
        return _shuffled(key, x, axis)
    return cnp.take(x, _shuffled(key, cnp.arange(x.shape[axis]), 0), axis=axis)


def choice(key: Any, a: Any, shape: Sequence[int] = (), replace: bool = True, p: Any = None, axis: int = 0) -> Any:
    """Rows of an array, or numbers below an integer, drawn with or without replacement.

    Args:
        p: the probability of each row; without replacement they are drawn by adding Gumbel noise to log(p).

    >>> sorted(int(i) for i in cg.random.choice(cg.random.key(0), 4, (4,), replace=False))
    [0, 1, 2, 3]
    """
    a = a if isinstance(a, int) else cnp.asarray(a)
    axis = 0 if isinstance(a, int) else axis % a.ndim
    size = a if isinstance(a, int) else a.shape[axis]
    p = None if p is None else floats(p)
    shape = shape_of("choice", shape)
    count = math.prod(shape)
    if not replace and count > size:
        raise UserInputError(
            "random.choice: more is drawn without replacement than there is",
            source=here(),
            expected=f"at most {size}",
            got=str(count),
            hint="draw fewer, or with replace=True",
        )
    if p is None and not replace and not isinstance(a, int):
        rows = cnp.moveaxis(permutation(key, a, axis), axis, 0)[:count]
        rows = cnp.reshape(rows, (*shape, *rows.shape[1:]))
        return cnp.moveaxis(rows, tuple(range(len(shape))), tuple(range(axis, axis + len(shape))))
    if replace and p is None:
        numbers = randint(key, shape, 0, size)
    elif replace:
        sums = cnp.cumsum(p)
        numbers = cnp.searchsorted(sums, sums[-1] * (1 - uniform(key, shape, sums.dtype)))
    elif p is None:
        numbers = cnp.reshape(permutation(key, size)[:count], shape)
    else:
        numbers = cnp.reshape(
            places_of_largest("random.choice", gumbel(key, (size,), p.dtype) + cnp.log(p), count), shape
        )
    return numbers if isinstance(a, int) else cnp.take(a, numbers, axis=axis)


# Whole numbers of distributions without a bound, and vectors of normal numbers; those of `jax.random`.


def _integers(operation: str, dtype: Any) -> Any:
    found: np.dtype = np.dtype(dtype)
    if dtype_kind(found) not in "iu":
        raise TypeMismatchError(f"random.{operation}: no such dtype", expected="an integer dtype", got=found.name)
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
        # A negative k is refused anyhow.
        fits = s <= -lam + k * logarithm - gammaln(cnp.maximum(k, 0.0) + 1)
        accepts = ((shifted >= 0.07) & (v <= bound)) | (~is_refused & fits)
        return cnp.where(accepts, k, found), is_accepted | accepts, key

    begin = (cnp.full(lam.shape, -1.0, lam.dtype), cnp.zeros(lam.shape, bool), key)
    return while_loop(lambda c: ~cnp.all(c[1]), step, begin)[0]


def poisson(key: Any, lam: Any, shape: Sequence[int] | None = None, dtype: Any = np.int64) -> Any:
    """Numbers of the Poisson distribution with mean `lam`.

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
    """Number of tries until the first success, each with probability p.

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

    >>> cg.random.multivariate_normal(cg.random.key(0), np.zeros(2), np.eye(2), (3,)).shape
    (3, 2)
    """
    dtype = float_of("multivariate_normal", dtype)
    mean, cov = cnp.asarray(mean).astype(dtype), cnp.asarray(cov).astype(dtype)
    n = mean.shape[-1] if mean.ndim else 0
    if cov.ndim < 2 or tuple(cov.shape[-2:]) != (n, n):
        raise ShapeError(
            "random.multivariate_normal: the covariance does not fit the mean",
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

    >>> q = cg.random.orthogonal(cg.random.key(0), 3)
    >>> bool(np.allclose(q @ q.T, np.eye(3)))
    True
    """
    columns = n if m is None else m
    q, r = cnp.linalg.qr(normal(key, (*shape_of("orthogonal", shape), max(n, columns), min(n, columns)), dtype))
    q = q * cnp.sign(cnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    return cnp.matrix_transpose(q) if n < columns else q
