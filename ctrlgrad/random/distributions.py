"""Numbers of distributions, made of uniform bits; those of `jax.random`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import BFLOAT16, as_dtype, dtype_kind, finfo
from ctrlgrad.errors import ShapeError, TypeMismatchError, UnknownSizeError, UserInputError
from ctrlgrad.frontend.array.sorting import places_of_largest
from ctrlgrad.frontend.functions import described, publish
from ctrlgrad.frontend.loops import while_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.random.keys import checked, encrypted, float_of, shape_of, split
from ctrlgrad.scipy.gamma_functions import erf, floats, gammaln, random_gamma_grad
from ctrlgrad.transforms.custom_calls import custom_jvp
from ctrlgrad.transforms.grad import stop_gradient
from ctrlgrad.transforms.vmap import vmap

# Uniform bits, integers, floats and booleans.


def bits(key: Any, shape: Sequence[int] = (), dtype: Any = np.uint32) -> Any:
    """Uniform bits as unsigned integers.

    >>> cg.random.bits(cg.random.key(0), (2,)).dtype
    dtype('uint32')
    """
    key = checked("bits", key)
    shape, dtype = shape_of("bits", shape), as_dtype("random.bits", dtype)
    high, low = encrypted(key, math.prod(shape))
    if dtype in (np.uint8, np.uint16, np.uint32):
        return (high ^ low).astype(dtype).reshape(shape)
    if dtype == np.uint64:
        return ((high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)).reshape(shape)
    raise TypeMismatchError("random.bits: no such dtype", expected="uint8, uint16, uint32 or uint64", got=dtype.name)


# Unsigned dtype of the bits that a float is made from, and the number of bits that it uses.
_MANTISSAS = {
    np.dtype(np.float64): (np.uint64, 52),
    np.dtype(np.float32): (np.uint32, 23),
    np.dtype(np.float16): (np.uint16, 10),
    BFLOAT16: (np.uint8, 7),
}


def uniform(key: Any, shape: Sequence[int] = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Uniform numbers in [minval, maxval), of a float dtype; those of `jax.random.uniform`.

    >>> x = cg.random.uniform(cg.random.key(0), (1000,))
    >>> bool((0 <= x).all() and (x < 1).all())
    True
    """
    dtype = float_of("uniform", dtype)
    # The mantissa's bits: every multiple of 2^-52 (float32: 2^-23) in [0, 1).
    wide, width = _MANTISSAS[dtype]
    drawn = bits(key, shape, wide) >> wide(8 * np.dtype(wide).itemsize - width)
    low, high = cnp.asarray(minval, dtype=dtype), cnp.asarray(maxval, dtype=dtype)
    return cnp.maximum(low, drawn.astype(dtype) * dtype.type(2.0**-width) * (high - low) + low)


def randint(key: Any, shape: Sequence[int], minval: Any, maxval: Any, dtype: Any = np.int64) -> Any:
    """Integers in [minval, maxval), minval where that is empty; the numbers of `jax.random.randint`.

    Each has its probability up to a relative error of (maxval - minval) / 2 to the number of bits of the dtype.

    >>> x = cg.random.randint(cg.random.key(0), (100,), 0, 6)
    >>> int(x.min()), int(x.max())
    (0, 5)
    """
    dtype = as_dtype("random.randint", dtype)
    if dtype_kind(dtype) not in "iu":
        raise TypeMismatchError("random.randint: no such dtype", expected="an integer dtype", got=dtype.name)
    info, wide = np.iinfo(dtype), np.dtype(f"u{dtype.itemsize}")
    # Arrays with an axis: integers wrap in them, where NumPy's scalars would warn.
    low, high = (cnp.reshape(x, x.shape or (1,)) for x in map(cnp.asarray, (minval, maxval)))
    low, high = (x if dtype_kind(x.dtype) in "iu" else x.astype(np.int64) for x in (low, high))
    # A range may end after the largest number of the dtype.
    beyond = high > info.max
    low, high = cnp.clip(low, info.min, info.max).astype(dtype), cnp.clip(high, info.min, info.max).astype(dtype)
    one = wide.type(1)
    span = cnp.where(high > low, high.astype(wide) - low.astype(wide), one)
    span = cnp.where(beyond & (high > low), span + one, span)
    first, second = split(key)
    sizes = shape_of("randint", shape)
    upper, lower = bits(first, sizes or (1,), wide), bits(second, sizes or (1,), wide)
    # Of 2 to the dtype's bits, which it has no number for: the square of its root. A span of 0 stands for all numbers.
    safe = cnp.where(span == 0, one, span)
    factor = wide.type(2 ** (4 * wide.itemsize)) % safe
    factor = (factor * factor) % safe
    drawn = ((upper % safe) * factor + lower % safe) % safe
    drawn = cnp.where(span == 0, lower, drawn)
    return cnp.reshape((low.astype(wide) + drawn).astype(dtype), sizes)


def bernoulli(key: Any, p: Any = 0.5, shape: Sequence[int] | None = None) -> Any:
    """Bools that are true with probability `p`, of the given shape or that of `p`.

    >>> bool(cg.random.bernoulli(cg.random.key(0), 1.0))
    True
    """
    p = cnp.asarray(p)
    dtype = p.dtype if p.dtype == np.float32 else np.float64
    return uniform(key, p.shape if shape is None else shape, dtype) < p


def rademacher(key: Any, shape: Sequence[int] = (), dtype: Any = np.int64) -> Any:
    """-1 or 1, each as likely; the numbers of `jax.random.rademacher`.

    >>> sorted({int(x) for x in cg.random.rademacher(cg.random.key(0), (20,))})
    [-1, 1]
    """
    drawn = bernoulli(key, 0.5, shape)
    return (2 * drawn.astype(dtype) - 1).astype(dtype)


# Numbers of continuous distributions, by functions of uniform ones; those of `jax.random`.


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


def _standard(name: str, what: str, least: Callable[[Any], float], fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Numbers that are a function of uniform ones in [least, 1), and of their dtype."""

    def function(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
        dtype = float_of(name, dtype)
        return fn(uniform(key, shape, dtype, least(dtype), 1.0), dtype)

    summary = f"Numbers of the {what}; those of `jax.random.{name}`."
    return described(function, name, summary, f"cg.random.{name}(cg.random.key(0), (3,)).shape -> (3,)")


_tiny: Callable[[Any], float] = lambda dtype: float(finfo(dtype).tiny)
exponential = _standard(
    "exponential", "exponential distribution of mean 1", lambda dtype: 0.0, lambda u, dtype: -cnp.log1p(-u)
)
gumbel = _standard("gumbel", "Gumbel distribution", _tiny, lambda u, dtype: -cnp.log(-cnp.log(u)))
laplace = _standard(
    "laplace",
    "Laplace distribution",
    lambda dtype: -1.0 + float(finfo(dtype).epsneg),
    lambda u, dtype: cnp.sign(u) * cnp.log1p(-cnp.abs(u)),
)
logistic = _standard("logistic", "logistic distribution", _tiny, lambda u, dtype: cnp.log(u) - cnp.log1p(-u))
cauchy = _standard(
    "cauchy",
    "Cauchy distribution",
    lambda dtype: float(finfo(dtype).eps),
    lambda u, dtype: cnp.tan(dtype.type(math.pi) * (u - dtype.type(0.5))),
)


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


# Numbers of the gamma distribution, and of distributions derived from it; those of `jax.random`.
#
# Derivative of a gamma-distributed number by its parameter, at constant cumulative probability.


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
        raise UnknownSizeError(
            "random.categorical: the shape of the logits is not known",
            got=str(logits.shape),
            hint="reshape the logits to sizes that are known before the call runs",
        )
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
    _check_count("categorical", count, logits.shape[axis])
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
    if _is_count(x):
        return _shuffled(key, cnp.arange(x), 0)
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
    is_count = _is_count(a)
    a = a if is_count else cnp.asarray(a)
    axis = 0 if is_count else axis % a.ndim
    size = a if is_count else a.shape[axis]
    p = None if p is None else floats(p)
    shape = shape_of("choice", shape)
    count = math.prod(shape)
    if not replace:
        _check_count("choice", count, size)
    if p is None and not replace and not is_count:
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
    return numbers if is_count else cnp.take(a, numbers, axis=axis)


def _is_count(x: Any) -> bool:
    """Return true for an integer, a traced one too: it stands for the numbers below it."""
    return isinstance(x, int | np.integer) or (isinstance(x, Tensor) and x.ndim == 0 and dtype_kind(x.dtype) in "iu")


def _check_count(operation: str, count: int, most: int) -> None:
    if count > most:
        raise UserInputError(
            f"random.{operation}: more is drawn without replacement than there is",
            expected=f"at most {most}",
            got=str(count),
            hint="draw fewer, or with replace=True",
        )


# Whole numbers of distributions without a bound, and vectors of normal numbers; those of `jax.random`.


def _integers(operation: str, dtype: Any) -> Any:
    found = as_dtype(f"random.{operation}", dtype)
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
    key: Any, mean: Any, cov: Any, shape: Sequence[int] | None = None, dtype: Any = None, method: str = "cholesky"
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
    check_choice("random.multivariate_normal", "method", method, ("cholesky", "eigh", "svd"))
    if method == "cholesky":
        factor = cnp.linalg.cholesky(cov)
    elif method == "eigh":
        values, vectors = cnp.linalg.eigh(cov)
        factor = vectors * cnp.sqrt(values[..., None, :])
    else:
        left, values, _ = cnp.linalg.svd(cov, full_matrices=False)
        factor = left * cnp.sqrt(values[..., None, :])
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


publish(__name__, "differentiable", "shaped")
