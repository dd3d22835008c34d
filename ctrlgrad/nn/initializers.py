"""First values of parameters from keys, by the names of `jax.nn.initializers`, and with its numbers.

Each name but `zeros` and `ones` makes a function of a key, a shape and a dtype. The variance of those that scale
follows from how many inputs or outputs an entry has: the product of the axes that are neither `in_axis`, `out_axis`
nor `batch_axis` counts to both.

    >>> cg.nn.initializers.glorot_uniform()(cg.random.key(0), (3, 4)).shape
    (3, 4)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad import numpy as cnp
from ctrlgrad import random
from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import as_dtype
from ctrlgrad.errors import ShapeError
from ctrlgrad.options import default_float

Initializer = Callable[..., Any]
Axes = int | Sequence[int]
# The standard deviation of a normal distribution that is cut at plus and minus two.
_DEVIATION_OF_TRUNCATED = 0.87962566103423978


def _with_dtype(draw: Callable[[Any, tuple[int, ...], np.dtype], Any], default: Any) -> Initializer:
    """An initializer, of a function of key, shape and dtype."""

    def initializer(key: Any, shape: Any, dtype: Any = default) -> Any:
        sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        return draw(key, sizes, default_float() if dtype is None else as_dtype("nn.initializers", dtype))

    return initializer


def zeros(key: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    """Zeros; the key is not used.

    >>> zeros(None, (2,))
    array([0., 0.])
    """
    return cnp.zeros(shape, dtype)


def ones(key: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    """Ones; the key is not used.

    >>> ones(None, (2,))
    array([1., 1.])
    """
    return cnp.ones(shape, dtype)


def constant(value: Any, dtype: Any = None) -> Initializer:
    """An initializer that fills with a value.

    >>> constant(3.0)(None, (2,))
    array([3., 3.])
    """
    return _with_dtype(lambda key, shape, dtype: cnp.full(shape, value, dtype), dtype)


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """An initializer that draws from [0, scale).

    >>> bool((uniform(2.0)(cg.random.key(0), (5,)) < 2.0).all())
    True
    """
    return _with_dtype(lambda key, shape, dtype: random.uniform(key, shape, dtype) * dtype.type(scale), dtype)


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """An initializer that draws from a normal distribution.

    >>> normal(2.0)(cg.random.key(0), (5,)).shape
    (5,)
    """
    return _with_dtype(lambda key, shape, dtype: random.normal(key, shape, dtype) * dtype.type(stddev), dtype)


def truncated_normal(stddev: Any = 1e-2, dtype: Any = None, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """An initializer that draws from a normal distribution cut at `lower` and `upper`, then times `stddev`.

    >>> bool((abs(truncated_normal(3.0)(cg.random.key(0), (5,))) <= 6.0).all())
    True
    """

    def draw(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return random.truncated_normal(key, lower, upper, shape, dtype) * dtype.type(stddev)

    return _with_dtype(draw, dtype)


def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """An initializer of a matrix with orthonormal rows or columns, whichever are fewer, times `scale`.

    An array of more axes has its columns along `column_axis`, and its rows along all remaining axes.

    >>> q = orthogonal()(cg.random.key(0), (4, 2))
    >>> bool(np.allclose(q.T @ q, np.eye(2)))
    True
    """

    def draw(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        _check_rank("orthogonal", shape, 2)
        columns = shape[column_axis]
        rows = math.prod(shape) // columns
        q = random.orthogonal(key, rows, (), dtype, columns)
        others = [n for axis, n in enumerate(shape) if axis != column_axis % len(shape)]
        return dtype.type(scale) * cnp.moveaxis(q.reshape(*others, columns), -1, column_axis)

    return _with_dtype(draw, dtype)


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """An initializer of a convolution kernel `[*window, inputs, outputs]` that is zero but for an orthogonal matrix at
    the centre of its window.

    Source: Xiao et al. 2018, "Dynamical isometry and a mean field theory of CNNs".

    Raises:
        ShapeError: not 3 to 5 axes, or fewer outputs than inputs.

    >>> kernel = delta_orthogonal()(cg.random.key(0), (3, 2, 2))
    >>> bool((kernel[0] == 0).all()), bool((kernel[1] != 0).any())
    (True, True)
    """

    def draw(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if not 3 <= len(shape) <= 5 or shape[-1] < shape[-2]:
            raise ShapeError(
                "delta_orthogonal: the shape is not that of a kernel",
                expected="3 to 5 axes, the last at least as long as that before it",
                got=str(shape),
                hint="the last two axes are inputs and outputs",
            )
        centre = tuple((n - 1) // 2 for n in shape[:-2])
        return cnp.at(cnp.zeros(shape, dtype))[centre].set(orthogonal(scale, column_axis, dtype)(key, shape[-2:]))

    return _with_dtype(draw, dtype)


_MEANS: Mapping[str, Callable[[float, float], float]] = {
    "fan_in": lambda inputs, outputs: inputs,
    "fan_out": lambda inputs, outputs: outputs,
    "fan_avg": lambda inputs, outputs: (inputs + outputs) / 2,
    "fan_geo_avg": lambda inputs, outputs: math.sqrt(inputs * outputs),
}


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: Any = None,
) -> Initializer:
    """An initializer whose variance is `scale` over the number of inputs, of outputs, or their mean.

    Args:
        mode: "fan_in", "fan_out", "fan_avg" or, by their geometric mean, "fan_geo_avg".
        distribution: "uniform", "normal", or "truncated_normal", cut at two standard deviations.

    Raises:
        UserInputError: another mode or distribution. ShapeError (when called): fewer than two axes.

    >>> w = variance_scaling(3.0, "fan_in", "uniform")(cg.random.key(0), (300, 2))
    >>> bool(abs(w).max() <= 3.0 / 300**0.5)
    True
    """
    check_choice("variance_scaling", "mode", mode, _MEANS)
    check_choice("variance_scaling", "distribution", distribution, ("truncated_normal", "normal", "uniform"))

    def draw(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        _check_rank("variance_scaling", shape, 2)
        inputs, outputs, batch = (_product(shape, axes) for axes in (in_axis, out_axis, batch_axis))
        others = math.prod(shape) / inputs / outputs / batch
        # As an array of that dtype, so that the numbers are JAX's to the last bit.
        variance = np.asarray(scale / _MEANS[mode](inputs * others, outputs * others), dtype)
        if distribution == "uniform":
            return random.uniform(key, shape, dtype, -1) * np.sqrt(3 * variance).astype(dtype)
        if distribution == "normal":
            return random.normal(key, shape, dtype) * np.sqrt(variance).astype(dtype)
        deviation = np.sqrt(variance) / np.asarray(_DEVIATION_OF_TRUNCATED, dtype)
        return random.truncated_normal(key, -2, 2, shape, dtype) * deviation.astype(dtype)

    return _with_dtype(draw, dtype)


def _product(shape: Sequence[int], axes: Axes) -> int:
    return math.prod(shape[axis] for axis in ((axes,) if isinstance(axes, int) else axes))


def _check_rank(operation: str, shape: Sequence[int], least: int) -> None:
    if len(shape) < least:
        raise ShapeError(
            f"initializers.{operation}: the shape has too few axes",
            expected=f"at least {least}: inputs and outputs",
            got=str(tuple(shape)),
            hint="normal and uniform draw arrays of any shape",
        )


def _named(name: str, source: str, scale: float, mode: str, distribution: str) -> Callable[..., Initializer]:
    def initializer(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    initializer.__name__ = initializer.__qualname__ = name
    initializer.__doc__ = f"""`variance_scaling({scale}, "{mode}", "{distribution}")`: {source}.

    >>> cg.nn.initializers.{name}()(cg.random.key(0), (3, 4)).shape
    (3, 4)
    """
    return initializer


_GLOROT = "Glorot and Bengio 2010, for layers that keep the variance both ways"
_LECUN = "LeCun et al. 1998, for layers that keep the variance forward"
_HE = "He et al. 2015, for layers before a ReLU"
glorot_uniform = xavier_uniform = _named("glorot_uniform", _GLOROT, 1.0, "fan_avg", "uniform")
glorot_normal = xavier_normal = _named("glorot_normal", _GLOROT, 1.0, "fan_avg", "truncated_normal")
lecun_uniform = _named("lecun_uniform", _LECUN, 1.0, "fan_in", "uniform")
lecun_normal = _named("lecun_normal", _LECUN, 1.0, "fan_in", "truncated_normal")
he_uniform = kaiming_uniform = _named("he_uniform", _HE, 2.0, "fan_in", "uniform")
he_normal = kaiming_normal = _named("he_normal", _HE, 2.0, "fan_in", "truncated_normal")

__all__ = [
    "Initializer", "constant", "delta_orthogonal", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform",
    "kaiming_normal", "kaiming_uniform", "lecun_normal", "lecun_uniform", "normal", "ones", "orthogonal",
    "truncated_normal", "uniform", "variance_scaling", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip
