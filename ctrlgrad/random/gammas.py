"""Numbers of the gamma distribution and of those that are made of it; those of `jax.random`.

A gamma-distributed number is differentiated with respect to its parameter: it moves so that its probability stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import finfo
from ctrlgrad.frontend.while_loops import while_loop
from ctrlgrad.random.basic import rademacher, uniform
from ctrlgrad.random.continuous import exponential, normal, shaped
from ctrlgrad.random.keys import shape_of, split
from ctrlgrad.scipy.incomplete import random_gamma_grad
from ctrlgrad.transforms.custom_jvp import custom_jvp
from ctrlgrad.transforms.vmap import vmap


def _one(key: Any, alpha: Any, log_space: bool) -> Any:
    """A number with one parameter.

    Source: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000). Below 1 it is one of alpha + 1
    times a power of a uniform number.
    """
    dtype = alpha.dtype
    of = dtype.type
    is_large = alpha >= 1
    d = cnp.where(is_large, alpha, alpha + of(1)) - of(1 / 3)
    c = of(1 / 3) / cnp.sqrt(d)

    def refused(state: Any) -> Any:
        _, square, cube, drawn = state
        is_far = drawn >= of(1) - of(0.0331) * square * square
        return is_far & (cnp.log(drawn) >= square * of(0.5) + d * (of(1) - cube + cnp.log(cube)))

    def candidate(state: Any) -> Any:
        key, _, _ = state
        key, now = split(key)
        x = normal(now, (), dtype)
        return key, x, of(1) + x * c

    def step(state: Any) -> Any:
        key, of_normal, of_uniform = split(state[0], 3)
        _, x, v = while_loop(lambda s: s[2] <= 0, candidate, (of_normal, of(0), of(-1)))
        return key, x * x, v * v * v, uniform(of_uniform, (), dtype)

    key, now = split(key)
    cube = while_loop(refused, step, (key, of(0), of(1), of(2)))[2]
    if log_space:
        power = -exponential(now, (), dtype)
        power = cnp.where(is_large | (power == 0), of(0), power / alpha)
        return cnp.log(d) + cnp.log(cube) + power
    power = (of(1) - uniform(now, (), dtype)) ** (of(1) / alpha)
    return d * cube * cnp.where(is_large, of(1), power)


def differentiable(draw: Callable[[Any, Any], Any], log_space: bool) -> Callable[..., Any]:
    """A drawing of gamma-distributed numbers, or of their logarithms, with its derivative by the parameter.

    >>> float(cg.grad(lambda a: differentiable(lambda key, a: a, False)(None, a))(50.0)) > 0
    True
    """

    @custom_jvp
    def drawn(key: Any, alpha: Any) -> Any:
        return draw(key, alpha)

    @drawn.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        key, alpha = primals
        found = drawn(key, alpha)
        if log_space:
            value = cnp.exp(found)
            value = cnp.where(value == 0, finfo(value.dtype).tiny, value)
            return found, tangents[1] * (random_gamma_grad(alpha, value) / value)
        return found, tangents[1] * random_gamma_grad(alpha, found)

    return drawn


def _drawn(log_space: bool) -> Callable[..., Any]:
    def draw(key: Any, alpha: Any) -> Any:
        flat = cnp.ravel(alpha)
        found = vmap(lambda key, a: _one(key, a, log_space))(split(key, flat.shape[0]), flat)
        return cnp.reshape(found, alpha.shape)

    return differentiable(draw, log_space)


_gamma, _loggamma = _drawn(False), _drawn(True)


def gamma(key: Any, a: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Numbers of the gamma distribution with parameter a and scale 1.

    >>> bool(cg.random.gamma(cg.random.key(0), 2.0, (3,)).min() > 0)
    True
    """
    shape, dtype, (a,) = shaped("gamma", shape, dtype, a)
    return _gamma(key, cnp.broadcast_to(a, shape))


def loggamma(key: Any, a: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Logarithms of the numbers of `gamma`: of small parameters those may be too small for a float.

    >>> cg.random.loggamma(cg.random.key(0), 1e-6, (3,)).shape
    (3,)
    """
    shape, dtype, (a,) = shaped("loggamma", shape, dtype, a)
    return _loggamma(key, cnp.broadcast_to(a, shape))


def beta(key: Any, a: Any, b: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Numbers of the beta distribution.

    >>> bool(0 < cg.random.beta(cg.random.key(0), 2.0, 3.0) < 1)
    True
    """
    shape, dtype, (a, b) = shaped("beta", shape, dtype, a, b)
    first, second = split(key)
    x, y = loggamma(first, a, shape, dtype), loggamma(second, b, shape, dtype)
    largest = cnp.maximum(x, y)
    x, y = cnp.exp(x - largest), cnp.exp(y - largest)
    return x / (x + y)


def dirichlet(key: Any, alpha: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Shares that sum up to 1 along the last axis, of the Dirichlet distribution.

    >>> round(float(cg.random.dirichlet(cg.random.key(0), np.ones(3)).sum()), 12)
    1.0
    """
    _, dtype, (alpha,) = shaped("dirichlet", None, dtype, alpha)
    shape = alpha.shape[:-1] if shape is None else shape_of("dirichlet", shape)
    return cnp.softmax(loggamma(key, alpha, (*shape, alpha.shape[-1]), dtype), -1)


def chisquare(key: Any, df: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Numbers of the chi-squared distribution.

    >>> bool(cg.random.chisquare(cg.random.key(0), 3.0) > 0)
    True
    """
    shape, dtype, (df,) = shaped("chisquare", shape, dtype, df)
    return cnp.exp(loggamma(key, df / 2, shape, dtype)) * dtype.type(2)


def f(key: Any, dfnum: Any, dfden: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Numbers of Fisher's distribution.

    >>> bool(cg.random.f(cg.random.key(0), 3.0, 4.0) > 0)
    True
    """
    shape, dtype, (dfnum, dfden) = shaped("f", shape, dtype, dfnum, dfden)
    below, above = split(key)
    return chisquare(above, dfnum, shape, dtype) / dfnum / (chisquare(below, dfden, shape, dtype) / dfden)


def t(key: Any, df: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Numbers of Student's distribution.

    >>> cg.random.t(cg.random.key(0), 3.0, (2,)).shape
    (2,)
    """
    shape, dtype, (df,) = shaped("t", shape, dtype, df)
    first, second = split(key)
    half = df / 2
    return normal(first, shape, dtype) * cnp.sqrt(half / gamma(second, half, shape, dtype))


def generalized_normal(key: Any, p: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers with a density proportional to exp(-|x|**p).

    >>> cg.random.generalized_normal(cg.random.key(0), 1.5, (2,)).shape
    (2,)
    """
    shape, dtype, (p,) = shaped("generalized_normal", shape, dtype, p)
    size, sign = split(key)
    return rademacher(sign, shape, dtype) * gamma(size, 1 / p, shape, dtype) ** (1 / p)


def ball(key: Any, d: int, p: float = 2, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Points of the unit ball of d dimensions by the p-norm, uniformly.

    Source: Barthe, Guedon, Mendelson and Naor, "A probabilistic approach to the geometry of the l_p^n-ball" (2005).

    >>> bool(np.linalg.norm(cg.random.ball(cg.random.key(0), 3)) <= 1)
    True
    """
    shape = shape_of("ball", shape)
    first, second = split(key)
    g = generalized_normal(first, p, (*shape, d), dtype)
    e = exponential(second, shape, dtype)
    p = g.dtype.type(p)
    return g / ((cnp.sum(cnp.abs(g) ** p, -1) + e) ** (g.dtype.type(1) / p))[..., None]
