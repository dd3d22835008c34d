"""Derivatives of elementwise functions at 0, -0, infinity and the ends of domains: calculus, JAX, and decisions.

Each row says the first derivative there. Where JAX differs, the row says what is decided and why.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

INF, NAN = np.inf, np.nan
# Function, JAX's, point, partial derivatives there.
TABLE: list[tuple[str, Any, Any, tuple[float, ...], tuple[float, ...]]] = [
    *(("cbrt", cnp.cbrt, jnp.cbrt, (x,), (d,)) for x, d in ((0.0, INF), (-0.0, INF), (INF, 0.0), (-INF, 0.0))),
    *(("cbrt", cnp.cbrt, jnp.cbrt, (x,), (1 / 12,)) for x in (8.0, -8.0)),
    *(("sqrt", np.sqrt, jnp.sqrt, (x,), (d,)) for x, d in ((0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN))),
    *(("log", np.log, jnp.log, (x,), (d,)) for x, d in ((0.0, INF), (-0.0, -INF), (INF, 0.0))),
    *(("log1p", np.log1p, jnp.log1p, (x,), (d,)) for x, d in ((-1.0, INF), (0.0, 1.0), (INF, 0.0))),
    *(("arcsin", np.arcsin, jnp.arcsin, (x,), (INF,)) for x in (1.0, -1.0)),
    *(("arccos", np.arccos, jnp.arccos, (x,), (-INF,)) for x in (1.0, -1.0)),
    *(("arctanh", np.arctanh, jnp.arctanh, (x,), (INF,)) for x in (1.0, -1.0)),
    *(("arccosh", np.arccosh, jnp.arccosh, (x,), (d,)) for x, d in ((1.0, INF), (INF, 0.0))),
    *(("tanh", np.tanh, jnp.tanh, (x,), (d,)) for x, d in ((INF, 0.0), (-INF, 0.0), (-0.0, 1.0))),
    *(("arctan", np.arctan, jnp.arctan, (x,), (0.0,)) for x in (INF, -INF)),
    ("entr", cg.scipy.special.entr, jax.scipy.special.entr, (0.0,), (INF,)),
    *(
        ("xlogy", cg.scipy.special.xlogy, jax.scipy.special.xlogy, x, d)
        for x, d in (
            ((0.0, 0.5), (np.log(0.5), 0.0)),
            ((-0.0, 2.0), (np.log(2.0), 0.0)),
            ((0.0, INF), (INF, 0.0)),
            ((1.0, 0.0), (-INF, INF)),
            ((2.0, 3.0), (np.log(3.0), 2 / 3)),
        )
    ),
    *(
        ("xlog1py", cg.scipy.special.xlog1py, jax.scipy.special.xlog1py, x, d)
        for x, d in (((0.0, 0.5), (np.log1p(0.5), 0.0)), ((1.0, -1.0), (-INF, INF)), ((2.0, 3.0), (np.log(4.0), 0.5)))
    ),
]
# What is decided otherwise than in JAX.
DECIDED: dict[str, tuple[Any, tuple[float, ...], tuple[float, ...]]] = {
    "abs at 0: the middle of -1 and 1 (JAX 1)": (np.abs, (0.0,), (0.0,)),
    "hypot at the tip: the slope of least size (JAX 1/2)": (np.hypot, (0.0, 0.0), (0.0, 0.0)),
    "hypot beside infinity: x / z, NaN in the infinite one (JAX NaN)": (np.hypot, (1.0, INF), (0.0, NAN)),
    "x ** 0 at 0: of a constant (JAX NaN)": (np.power, (0.0, 0.0), (0.0, 0.0)),
    "logaddexp of infinity: 1 and 0 (JAX e ** x)": (np.logaddexp, (INF, 1.0), (1.0, 0.0)),
    "xlogy at (0, 0): 0 in y, as beside it (JAX NaN)": (cg.scipy.special.xlogy, (0.0, 0.0), (-INF, 0.0)),
    "relu6 at 0: the middle of 0 and 1 (JAX 0)": (cg.nn.relu6, (0.0,), (0.5,)),
    "arccosh below its domain: NaN, as its value (JAX a number)": (np.arccosh, (-2.0,), (NAN,)),
}
engines = pytest.mark.parametrize("engine", ["native", "reference"])


def slopes(fn: Any, point: tuple[float, ...], engine: str) -> list[float]:
    with cg.options(engine=engine), np.errstate(all="ignore"):
        every = tuple(range(len(point)))
        found = cg.function(cg.grad(lambda *xs: fn(*xs), argnums=every))(*map(np.float64, point))
        forward = [
            cg.jvp(fn, tuple(map(np.float64, point)), tuple(np.float64(i == k) for i in every))[1] for k in every
        ]
    # Zero times infinity is the other slope's, not this one's: forward mode is asked where all of them are finite.
    if np.isfinite(found).all():
        np.testing.assert_allclose(forward, found, rtol=1e-12)
    return [float(x) for x in found]


@engines
def test_slopes_at_edges_are_those_of_calculus_and_of_jax(engine: str) -> None:
    with jax.enable_x64(True):
        for name, fn, judge, point, expected in TABLE:
            np.testing.assert_allclose(slopes(fn, point, engine), expected, rtol=1e-12, err_msg=f"{name} at {point}")
            theirs = jax.grad(judge, argnums=tuple(range(len(point))))(*map(jnp.float64, point))
            np.testing.assert_allclose(theirs, expected, rtol=1e-9, err_msg=f"JAX's {name} at {point}")


@engines
@pytest.mark.parametrize("name", DECIDED)
def test_slopes_that_are_decided(name: str, engine: str) -> None:
    fn, point, expected = DECIDED[name]
    np.testing.assert_allclose(slopes(fn, point, engine), expected, rtol=1e-12)


def test_values_at_the_edges_that_were_mended() -> None:
    x = np.array([0.0, -0.0, INF, -INF, NAN, 8.0, -8.0, 1e-310])
    np.testing.assert_allclose(cnp.cbrt(x), np.cbrt(x), rtol=1e-14)
    assert (np.signbit(cnp.cbrt(x[:2])) == [False, True]).all()
    zero = [float(cg.scipy.special.xlogy(a, b)) for a in (0.0, -0.0) for b in (0.0, INF, -1.0)]
    assert zero == [0.0] * 6
