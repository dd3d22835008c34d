"""Numbers of continuous distributions, by functions of uniform ones; those of `jax.random`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import finfo
from ctrlgrad.random.basic import rademacher, uniform
from ctrlgrad.random.keys import float_of, shape_of, split
from ctrlgrad.scipy.error_functions import erf
from ctrlgrad.transforms.grad import stop_gradient


def _tiny(dtype: Any) -> float:
    return float(finfo(dtype).tiny)


def shaped(operation: str, shape: Any, dtype: Any, *parameters: Any) -> tuple[tuple[int, ...], Any, list[Any]]:
    """The shape, that of the parameters where None is given; the dtype; and the parameters in it."""
    dtype = float_of(operation, dtype)
    arrays = [cnp.asarray(p).astype(dtype) for p in parameters]
    if shape is None:
        shape = cnp.broadcast_shapes(*(p.shape for p in arrays))
    return shape_of(operation, shape), dtype, arrays


def normal(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Standard normal numbers; those of `jax.random.normal` up to the last digits.

    By the inverse of the error function.

    >>> x = cg.random.normal(cg.random.key(0), (10_000,))
    >>> bool(abs(x.mean()) < 0.05 and abs(x.std() - 1) < 0.05)
    True
    """
    dtype = float_of("normal", dtype)
    least = np.nextafter(dtype.type(-1), dtype.type(0))
    return dtype.type(math.sqrt(2)) * cnp.erfinv(uniform(key, shape, dtype, least, 1.0))


def truncated_normal(key: Any, lower: Any, upper: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Standard normal numbers between two bounds.

    >>> x = cg.random.truncated_normal(cg.random.key(0), -1.0, 2.0, (100,))
    >>> bool(-1 < x.min() and x.max() < 2)
    True
    """
    shape, dtype, (lower, upper) = shaped("truncated_normal", shape, dtype, lower, upper)
    root = dtype.type(math.sqrt(2))
    drawn = root * cnp.erfinv(uniform(key, shape, dtype, erf(lower / root), erf(upper / root)))
    least = cnp.nextafter(stop_gradient(lower), dtype.type(np.inf))
    return cnp.clip(drawn, least, cnp.nextafter(stop_gradient(upper), dtype.type(-np.inf)))


def exponential(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Exponential numbers of mean 1; the numbers of `jax.random.exponential`.

    >>> bool(cg.random.exponential(cg.random.key(0), (3,)).min() >= 0)
    True
    """
    return -cnp.log1p(-uniform(key, shape, dtype))


def gumbel(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers of the Gumbel distribution.

    >>> cg.random.gumbel(cg.random.key(0), (3,)).shape
    (3,)
    """
    dtype = float_of("gumbel", dtype)
    return -cnp.log(-cnp.log(uniform(key, shape, dtype, _tiny(dtype), 1.0)))


def laplace(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers of the Laplace distribution; those of `jax.random.laplace`.

    >>> cg.random.laplace(cg.random.key(0), (3,)).shape
    (3,)
    """
    dtype = float_of("laplace", dtype)
    drawn = uniform(key, shape, dtype, -1.0 + float(finfo(dtype).epsneg), 1.0)
    return cnp.sign(drawn) * cnp.log1p(-cnp.abs(drawn))


def logistic(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers of the logistic distribution.

    >>> cg.random.logistic(cg.random.key(0), (3,)).shape
    (3,)
    """
    dtype = float_of("logistic", dtype)
    drawn = uniform(key, shape, dtype, _tiny(dtype), 1.0)
    return cnp.log(drawn) - cnp.log1p(-drawn)


def cauchy(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers of the Cauchy distribution; those of `jax.random.cauchy`.

    >>> cg.random.cauchy(cg.random.key(0), (3,)).shape
    (3,)
    """
    dtype = float_of("cauchy", dtype)
    drawn = uniform(key, shape, dtype, float(finfo(dtype).eps), 1.0)
    return cnp.tan(dtype.type(math.pi) * (drawn - dtype.type(0.5)))


def lognormal(key: Any, sigma: Any = 1.0, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers whose logarithm is normal, with standard deviation `sigma`.

    >>> bool(cg.random.lognormal(cg.random.key(0), 2.0, (3,)).min() > 0)
    True
    """
    dtype = float_of("lognormal", dtype)
    return cnp.exp(normal(key, shape, dtype) * cnp.asarray(sigma).astype(dtype))


def pareto(key: Any, b: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers of the Pareto distribution with tail index b; those of `jax.random.pareto`.

    >>> bool(cg.random.pareto(cg.random.key(0), 2.0, (3,)).min() >= 1)
    True
    """
    dtype = float_of("pareto", dtype)
    return cnp.exp(exponential(key, shape, dtype) / cnp.asarray(b).astype(dtype))


def weibull_min(key: Any, scale: Any, concentration: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers of the Weibull distribution; those of `jax.random.weibull_min`.

    >>> bool(cg.random.weibull_min(cg.random.key(0), 1.0, 2.0, (3,)).min() >= 0)
    True
    """
    dtype = float_of("weibull_min", dtype)
    power = dtype.type(1) / cnp.asarray(concentration).astype(dtype)
    return exponential(key, shape, dtype) ** power * cnp.asarray(scale).astype(dtype)


def rayleigh(key: Any, scale: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Numbers of the Rayleigh distribution.

    >>> bool(cg.random.rayleigh(cg.random.key(0), 2.0, (3,)).min() >= 0)
    True
    """
    shape, dtype, (scale,) = shaped("rayleigh", shape, dtype, scale)
    return scale * cnp.sqrt(cnp.log(uniform(key, shape, dtype)) * dtype.type(-2))


def maxwell(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers of the Maxwell distribution: lengths of normal vectors of three.

    >>> bool(cg.random.maxwell(cg.random.key(0), (3,)).min() >= 0)
    True
    """
    return cnp.sqrt(cnp.sum(normal(key, (*shape_of("maxwell", shape), 3), dtype) ** 2, -1))


def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers of the Maxwell distribution with signs, each as likely, times `scale` plus `loc`.

    As in JAX the result has the shape that is given, followed by that of the parameters.

    >>> cg.random.double_sided_maxwell(cg.random.key(0), 0.0, 1.0, (3,)).shape
    (3,)
    """
    shape = shape_of("double_sided_maxwell", shape)
    _, dtype, (loc, scale) = shaped("double_sided_maxwell", None, dtype, loc, scale)
    of_parameters = tuple(cnp.broadcast_shapes(loc.shape, scale.shape))
    whole = (*(shape or of_parameters), *of_parameters)
    size, sign = split(key)
    return rademacher(sign, whole, dtype) * maxwell(size, whole, dtype) * scale + loc


def triangular(
    key: Any, left: Any, mode: Any, right: Any, shape: Sequence[int] | None = None, dtype: Any = None
) -> Any:
    """Numbers of the triangular distribution between `left` and `right`, most likely at `mode`.

    >>> bool(cg.random.triangular(cg.random.key(0), 0.0, 1.0, 2.0, (3,)).min() >= 0)
    True
    """
    shape, dtype, (left, mode, right) = shaped("triangular", shape, dtype, left, mode, right)
    drawn = uniform(key, shape, dtype)
    low = left + cnp.sqrt(drawn * (right - left) * (mode - left))
    high = right - cnp.sqrt((1 - drawn) * (right - left) * (right - mode))
    return cnp.where(drawn < (mode - left) / (right - left), low, high)


def wald(key: Any, mean: Any, shape: Sequence[int] | None = None, dtype: Any = None) -> Any:
    """Numbers of the Wald (inverse Gaussian) distribution with scale 1.

    >>> bool(cg.random.wald(cg.random.key(0), 2.0, (3,)).min() > 0)
    True
    """
    shape, dtype, (mean,) = shaped("wald", shape, dtype, mean)
    first, second = split(key)
    square = normal(first, shape, dtype) ** 2
    drawn = mean + mean**2 * square / 2 - mean / 2 * cnp.sqrt(4 * mean * square + mean**2 * square**2)
    return cnp.where(uniform(second, shape, dtype) <= mean / (mean + drawn), drawn, mean**2 / drawn)
