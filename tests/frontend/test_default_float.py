"""`options(default_float=)` decides the dtype of floats that have none of their own, and of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import UserInputError

KEY = cg.random.key(0)
WIDE, NARROW, WHOLE = np.ones(3), np.ones(3, np.float32), np.arange(3)

# What has no dtype of its own.
MADE: dict[str, Any] = {
    "zeros": lambda: cnp.zeros(3),
    "ones": lambda: cnp.ones((2, 2)),
    "full": lambda: cnp.full(3, 2.0),
    "eye": lambda: cnp.eye(2),
    "identity": lambda: cnp.identity(2),
    "tri": lambda: cnp.tri(2),
    "linspace": lambda: cnp.linspace(0.0, 1.0, 3),
    "arange": lambda: cnp.arange(0.0, 1.0, 0.5),
    "array": lambda: cnp.array([1.0, [2.0][0]]),
    "asarray": lambda: cnp.asarray(1.0),
    "fftfreq": lambda: cnp.fft.fftfreq(4),
    "a number": lambda: cnp.sin(1.0),
    "two numbers": lambda: cnp.add(1.0, 2),
    "integers": lambda: cnp.sqrt(WHOLE),
    "a quotient of integers": lambda: cnp.divide(WHOLE, 2),
    "integers and a number": lambda: cnp.multiply(WHOLE, 0.5),
    "a mean of integers": lambda: cnp.mean(WHOLE),
    "a histogram's edges": lambda: cnp.histogram(WHOLE, 2)[1],
    "edges in a range": lambda: cnp.histogram_bin_edges(WHOLE, 2, (0, 1)),
    "a density": lambda: cnp.histogram(WHOLE, 2, density=True)[0],
    "counts of cells": lambda: cnp.histogramdd(WHOLE[:, None], 2)[0],
    "a weighted count": lambda: cnp.bincount(WHOLE, WHOLE, length=3),
    "a quantile of integers": lambda: cnp.quantile(WHOLE, 0.3),
    "float_power": lambda: cnp.float_power(WHOLE, 2),
    "a power of integers": lambda: cnp.power(WHOLE, 0.5),
    "bartlett": lambda: cnp.bartlett(3),
    "blackman": lambda: cnp.blackman(3),
    "hamming": lambda: cnp.hamming(3),
    "hanning": lambda: cnp.hanning(3),
    "a norm of integers": lambda: cg.nn.rms_norm(WHOLE),
    "a window": lambda: cnp.kaiser(4, 2),
    "no window": lambda: cnp.kaiser(1, 2.0),
    "a transform of integers": lambda: cnp.fft.fft(WHOLE).real,
    "a complex number of integers": lambda: cnp.make_complex(WHOLE, 0).imag,
    "erf of integers": lambda: cg.scipy.special.erfc(WHOLE),
    "factors of integers": lambda: cg.scipy.linalg.lu(np.eye(2, dtype=int))[1],
    "a declared type": lambda: cnp.zeros(3, cg.TensorSpec((3,)).type.dtype),
    "the standard's": lambda: cnp.zeros(3, cnp.__array_namespace_info__().default_dtypes()["real floating"]),
    "one_hot": lambda: cg.nn.one_hot(WHOLE, 3),
    "he_normal": lambda: cg.nn.initializers.he_normal()(KEY, (2, 3)),
}
MADE |= {
    name: lambda name=name: getattr(cg.random, name)(KEY, shape=(3,))
    for name in ("uniform", "normal", "gumbel", "laplace", "logistic", "cauchy", "exponential", "lognormal", "maxwell")
}
MADE |= {
    name: lambda name=name: getattr(cg.random, name)(KEY, 2.0, shape=(3,))
    for name in ("gamma", "pareto", "chisquare", "t", "rayleigh", "generalized_normal")
}


@pytest.mark.parametrize("name", MADE)
def test_floats_without_a_dtype_have_the_default(name: str) -> None:
    traced = cg.function(lambda: cnp.add(MADE[name](), 0))
    for dtype in ("float64", "float32", "float64"):
        with cg.options(default_float=dtype, engine="reference"):
            assert MADE[name]().dtype == traced().dtype == dtype


def test_arrays_keep_their_dtype() -> None:
    def program(x: Any) -> Any:
        y = cg.fori_loop(0, 3, lambda i, c: cg.cond(cnp.sum(c) > 0, lambda c: c * 2.0 + 1, lambda c: c - 1.0, c), x)
        return cnp.where(y > 1.0, y, 0.5) + cnp.mean(y) * np.pi, cnp.maximum(y, 0.0) ** 2, cnp.clip(y, -1.0, 1.0)

    for x in (WIDE, NARROW):
        found = set()
        for dtype in ("float64", "float32"):
            with cg.options(default_float=dtype, engine="reference"):
                results = [*cg.function(program)(x), *program(x), cg.grad(lambda x: cnp.sum(program(x)[0]))(x)]
                found |= {y.dtype for y in results}
                assert cnp.array([x[0], 1.0]).dtype == np.result_type(x.dtype, np.float64)
        assert found == {x.dtype}


def test_python_floats_as_arguments() -> None:
    f = cg.function(lambda a, b: (a * 2.0, cg.while_loop(lambda c: c < b, lambda c: c * 2.0, a)))
    for engine in ("reference", "native"):
        for dtype in ("float32", "float64", "float32"):
            with cg.options(default_float=dtype, engine=engine):
                for _ in range(2):
                    found = f(0.3, 4.0)
                    assert [y.dtype for y in found] == [dtype] * 2
                    np.testing.assert_allclose(found, [0.6, 4.8], rtol=1e-6)
                assert cg.grad(lambda x: x**2)(3.0).dtype == dtype
    assert f.traces == 2


def test_a_conversion_in_rewritten_python() -> None:
    f = cg.function(lambda n: float(n), autograph=True)
    for dtype in ("float32", "float64"):
        with cg.options(default_float=dtype, engine="reference"):
            assert f(WHOLE[2]).dtype == dtype


def test_double_precision_is_kept_where_arrays_have_it() -> None:
    with cg.options(default_float="float32", engine="reference"):
        assert cnp.float_power(WIDE, 2).dtype == cnp.bincount(WHOLE, WIDE, length=3).dtype == np.float64
        assert cnp.float_power(NARROW, 2).dtype == np.float32
    assert cnp.float_power(NARROW, 2).dtype == cnp.bincount(WHOLE, NARROW, length=3).dtype == np.float64


def test_integers_are_compared_exactly() -> None:
    with cg.options(default_float="float32"):
        assert not cnp.isclose(2**24 + 1, 2**24, rtol=0, atol=0)
        assert cnp.isclose(2**24 + 1, np.int64(2**24 + 1), rtol=0, atol=0)


def test_complex_numbers_have_the_width_of_the_default() -> None:
    with cg.options(default_float="float32"):
        assert cnp.asarray(1.0 + 2.0j).dtype == cnp.exp(1j).dtype == np.complex64
        assert cnp.asarray(np.complex128(1j)).dtype == np.complex128


def test_what_is_no_float_dtype_is_refused() -> None:
    with pytest.raises(UserInputError, match="no such default"), cg.options(default_float="float16"):
        pass


def test_the_environment_sets_the_default() -> None:
    command = [sys.executable, "-c", "import ctrlgrad.numpy as cnp; print(cnp.zeros(2).dtype)"]
    for value, shown in (("float32", "float32"), ("half", "CTRLGRAD_DEFAULT_FLOAT: no such default")):
        run = subprocess.run(
            command, env={**os.environ, "CTRLGRAD_DEFAULT_FLOAT": value}, capture_output=True, text=True, check=False
        )
        assert shown in run.stdout + run.stderr
