"""Derivatives of elementwise functions at 0, -0, infinity and the ends of domains: calculus, JAX, and decisions.

Rows of `TABLE` say the first derivative there; where JAX differs, `DECIDED` says what is decided and why. Below them
each elementwise op is compared at all edges, in both orders, and `DIFFERENT` holds the decisions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ops.elementwise import FACTS

MAX = np.finfo(np.float64).max
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
# Decisions that differ from JAX's.
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


# The table of the ops themselves, in values, first and second derivatives, on every point of `EDGES`.

EDGES = np.array(
    [0.0, -0.0, INF, -INF, NAN, 1e-300, -1e-300, 1.0, -1.0, 0.5, -0.5, 2.5, 1e300, -1e300, 1000.0, -1000.0]
)
PAIRS = np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 2.5, 1e-300, 1e300])
OPS_BY_NAME = {"erfinv": cg.scipy.special.erfinv, "sigmoid": cg.nn.sigmoid}
# The condition of a choice has no derivative, strong products are no function of a user's, complex numbers no reals.
APART = {"where", "strong_multiply", "complex"}
DIFFERENTIABLE = [name for name, facts in FACTS.items() if facts.partials != () and name not in APART]


def _outside(inside: Any, found: Any) -> Any:
    return np.where(inside, found, NAN)


def _arccosh(label: str, x: Any) -> Any:
    # Two roots: x x - 1 overflows.
    slope = 1 / np.sqrt(x - 1) / np.sqrt(x + 1)
    return slope if label == "d0" else -np.where(np.isinf(x), 0.0, x) * slope / (x - 1) / (x + 1)


def _hypot(label: str, x: Any, y: Any) -> Any:
    z = np.hypot(x, y)
    size = np.where(z == 0, 1.0, z)
    p, q = (np.where(z == 0, 0.0, v / size) for v in (x, y))
    bends = {"d00": np.where(np.isinf(y), 0.0, q * q / size), "d11": np.where(np.isinf(x), 0.0, p * p / size)}
    return {"d0": p, "d1": q, "d01": -p * q / size, "d10": -p * q / size, **bends}[label]


def _logaddexp(label: str, x: Any, y: Any) -> Any:
    tie = np.where((x == y) & np.isfinite(x), 0.5, 0.0)
    p, q = (np.where((a == INF) & (b < INF), 1.0, tie) for a, b in ((x, y), (y, x)))
    return {"d0": p, "d1": q, "d00": p * q, "d01": -p * q, "d10": -p * q, "d11": p * q}[label]


def _power(label: str, x: Any, y: Any) -> Any:
    """Of exponent 0 the function of x is constant; at x = 0 the exponent's factor log x counts as 0."""
    return np.where((label == "d01") & (x == 0) & (y == 0), 1.0, 0.0 * label.count("d"))


def _divide(label: str, x: Any, y: Any) -> Any:
    return -(1 / y) * (x / y)


def _arctan2(label: str, y: Any, x: Any) -> Any:
    """The quotients in extended precision, whose squares do not overflow here; 0 far out. NaN is an infinite bend."""
    y, x = y.astype(np.longdouble), x.astype(np.longdouble)
    r = x * x + y * y
    slopes = {"d0": x / r, "d1": -y / r, "d00": -2 * x * y / r**2, "d11": 2 * x * y / r**2}
    found = slopes[label] if label in slopes else (y - x) * (y + x) / r**2
    found = np.where(np.isinf(x) ^ np.isinf(y), 0.0, found)
    return np.where((abs(found) > MAX) & (x == y), NAN, found).astype(np.float64)


# Differences from JAX: the decision, and the judge of ours there, `(label, *points) -> value`.
DIFFERENT: dict[str, tuple[str, Any]] = {
    "tanh": ("-2 tanh(x) near 0, which JAX rounds to 0", lambda label, x: -2 * np.tanh(x)),
    "arccosh": ("NaN below 1, as the value; JAX has a number there, and 0 at 1e300 by overflow", _arccosh),
    "arctanh": (
        "2 x / (1 - x x)^2: infinite at the ends of the domain, NaN at infinity, which is outside",
        lambda label, x: _outside(abs(x) <= 1, 2 * x / (1 - x * x) ** 2),
    ),
    "divide": ("-x / y^2 in steps that do not overflow", _divide),
    "arctan2": ("x / (x x + y y) in steps that do not overflow", _arctan2),
    "power": ("x ** 0 is 1, a constant, at 0 too; and 0 ** y has the slope 0 in y", _power),
    "remainder": ("as NumPy's value, whose zero has the divisor's sign", lambda label, x, y: _remainder(label, x, y)),
    "hypot": ("x / z, 0 at the tip; JAX's square overflows, and it has maxima of equal operands", _hypot),
    "copysign": (
        "zero and NaN count by their sign bits",
        lambda label, x, y: np.where(np.signbit(x) == np.signbit(y), 1.0, -1.0),
    ),
    "logaddexp": ("the share of infinities: 1 and 0, and 0 of two -inf; 1/2 of equal numbers of any size", _logaddexp),
    "abs": ("the middle of -1 and 1 at 0, and NaN of NaN", lambda label, x: np.where(x == 0, 0.0, NAN)),
}


def _remainder(label: str, x: Any, y: Any) -> Any:
    return np.remainder(x, y) if label == "value" else np.where(np.isinf(x), NAN, -np.floor_divide(x, y))


def derivatives(f: Any, xs: tuple[np.ndarray, ...], grad: Any, compiled: Any) -> dict[str, np.ndarray]:
    """Values, and the derivatives of both orders by each operand, elementwise."""
    n = range(len(xs))

    def slope(f: Any, k: int) -> Any:
        return grad(lambda *xs: f(*xs).sum(), argnums=k)

    made = {"value": f}
    made |= {f"d{k}": slope(f, k) for k in n} | {f"d{k}{j}": slope(slope(f, k), j) for k in n for j in n}
    return {label: np.asarray(compiled(g)(*xs)) for label, g in made.items()}


def _same(a: np.ndarray, b: np.ndarray, rtol: float = 1e-9) -> np.ndarray:
    return (a == b) | (np.isnan(a) & np.isnan(b)) | np.isclose(a, b, rtol=rtol, atol=0)


@engines
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_each_op_at_its_edges_is_as_jax_s_or_as_decided(name: str, engine: str) -> None:
    facts = FACTS[name]
    arity = len(facts.partials or (None,))
    grid = np.meshgrid(*[EDGES if arity == 1 else PAIRS] * arity, indexing="ij")
    xs = tuple(np.ascontiguousarray(v.ravel()) for v in grid)
    judge: Any = jax
    for part in facts.jax.split("."):
        judge = getattr(judge, part)
    op = OPS_BY_NAME.get(name) or getattr(np, name)
    with np.errstate(all="ignore"), cg.options(engine=engine), jax.enable_x64(True):
        ours = derivatives(op, xs, cg.grad, cg.function)
        theirs = derivatives(judge, tuple(map(jnp.asarray, xs)), jax.grad, jax.jit)
        values = facts.numpy(*xs)
        np.testing.assert_allclose(ours["value"], values, rtol=1e-14)
        assert (np.signbit(ours["value"]) == np.signbit(values))[values == 0].all()
        differs = False
        for label, found in ours.items():
            other = ~_same(found, theirs[label])
            if label == "value":
                other |= (found == 0) & (np.signbit(found) != np.signbit(theirs[label]))
            if not other.any():
                continue
            differs = True
            assert name in DIFFERENT, f"{label} of {name} at {[v[other] for v in xs]}: {found[other]}"
            expected = np.broadcast_to(DIFFERENT[name][1](label, *(v[other] for v in xs)), found[other].shape)
            wrong = ~_same(found[other], expected)
            places = [v[other][wrong] for v in xs]
            assert not wrong.any(), f"{label} of {name} at {places}: {found[other][wrong]}, {expected[wrong]}"
    # Later versions of JAX agree in some of them.
    if jax.__version_info__ < (0, 12):
        assert differs == (name in DIFFERENT)


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if facts.partials == ()])
def test_an_op_without_a_derivative_is_one_of_steps_or_of_bits(name: str) -> None:
    """New ops without a derivative are looked at here: a step function of floats, a truth value, or integers."""
    steps = {"sign", "floor", "ceil", "trunc", "rint", "floor_divide"}
    truths = {"signbit", "isnan", "isinf", "isfinite", "less", "less_equal", "greater", "greater_equal"}
    bits = {"nextafter", "float_to_bits", "bits_to_float", "bits_to_bfloat16", "integer_power"}
    assert name in steps | truths | bits or name.startswith(("logical_", "bitwise_")) or name.endswith("equal")


# Functions in extended precision, which has the numbers of float64 and their squares as normal ones.
EXTENDED: dict[str, Any] = {"sigmoid": lambda x: 1 / (1 + np.exp(-x))}
SINGULAR_AT_ZERO = {"sqrt", "reciprocal", "log", "log2", "log10", "abs"}
SMALL = np.array([5e-324, -5e-324, 1e-310, -1e-310, 1e-300, -1e-300, 0.5, -0.5, 0.75])


@engines
@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if len(FACTS[n].partials or (None,)) == 1])
def test_each_function_of_one_operand_is_that_of_calculus_at_subnormals(name: str, engine: str) -> None:
    """JAX takes subnormals for 0; the judge is difference quotients in extended precision."""
    f, op = EXTENDED.get(name) or FACTS[name].numpy, OPS_BY_NAME.get(name) or getattr(np, name)
    x = SMALL.astype(np.longdouble)
    h = abs(x) * 1e-5 if name in SINGULAR_AT_ZERO else np.full_like(x, 1e-5)
    with np.errstate(all="ignore"), cg.options(engine=engine):
        value, slope, bend = derivatives(op, (SMALL,), cg.grad, cg.function).values()
        if name == "erfinv":  # NumPy has it in float64 alone.
            exact = (f(SMALL), np.exp(f(SMALL) ** 2) * np.sqrt(np.pi) / 2)
            exact = (*exact, 2 * f(SMALL) * exact[1] ** 2)
        else:
            below, at, above = f(x - h), f(x), f(x + h)
            exact = (at, (above - below) / (2 * h), (above - 2 * at + below) / h**2)
        first, second, third = (np.asarray(v).astype(np.float64) for v in exact)
    inside, atol = ~np.isnan(value), 0.0 if name in SINGULAR_AT_ZERO else 1e-6
    np.testing.assert_allclose(value, first, rtol=1e-14)
    np.testing.assert_allclose(slope[inside], second[inside], rtol=1e-8, atol=1e-3 * atol)
    np.testing.assert_allclose(bend[inside], third[inside], rtol=1e-6, atol=atol)


@engines
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_the_slope_of_a_complex_absolute_value_is_finite_at_subnormals(dtype: str, engine: str) -> None:
    """A decaying oscillation passes through them; 1 / abs(z) overflows there."""
    tiny = np.finfo(dtype).smallest_subnormal * 1000
    z = np.array([3 + 4j, -3 + 4j, 5, -5j]).astype(dtype) * tiny
    with cg.options(engine=engine):
        found = cg.function(cg.grad(lambda z: cnp.sum(cnp.abs(z))))(z)
        np.testing.assert_allclose(found, [0.6 - 0.8j, -0.6 - 0.8j, 1, 1j], rtol=1e-3)
        _, pushed = cg.function(lambda z: cg.jvp(cnp.abs, (z,), (np.full(4, 1 + 1j, dtype),)))(z)
        np.testing.assert_allclose(pushed, [1.4, 0.2, 1, -1], rtol=1e-3)


@engines
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [-0.6, 0.6])
def test_slopes_of_angles_far_from_one_have_all_digits_in_a_loop(dtype: str, exponent: float, engine: str) -> None:
    """The squares of these numbers underflow or overflow."""
    size = np.dtype(dtype).type(10.0 ** int(exponent * np.log10(float(np.finfo(dtype).max))))
    y, x = np.array([[1, -2, 0.3, 1, 1], [1, 1, -1, 0.5, 2]], dtype) * size

    def turn(y: Any, x: Any) -> Any:
        return cg.fori_loop(0, 2, lambda i, s: s + cnp.sum(cnp.arctan2(y, x) * (i + 1)), 0.0)

    with cg.options(engine=engine):
        found = cg.function(cg.grad(turn, argnums=(0, 1)))(y, x)
    r = (x / size) ** 2 + (y / size) ** 2
    rtol = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(found[0] * size, 3 * (x / size) / r, rtol=rtol)
    np.testing.assert_allclose(found[1] * size, -3 * (y / size) / r, rtol=rtol)


@engines
def test_the_shares_of_large_log_probabilities_are_those_of_their_difference(engine: str) -> None:
    """exp(x - z) has the error of z: half a percent in float32 for sums of log probabilities near -300,000."""
    x, y = np.float32(-3e5), np.float32(-3e5 + 1)
    with cg.options(engine=engine):
        shares = cg.function(cg.grad(cnp.logaddexp, argnums=(0, 1)))(x, y)
        in_loop = cg.function(cg.grad(lambda x: cg.fori_loop(0, 3, lambda i, s: cnp.logaddexp(s, s), x)))(x)
    np.testing.assert_allclose(shares, [1 / (1 + np.e), np.e / (1 + np.e)], rtol=1e-6)
    np.testing.assert_allclose(in_loop, 1.0, rtol=1e-6)


def test_composed_functions_at_their_edges() -> None:
    """Value, first and second derivative of what is no op of its own; what JAX has otherwise stands beside it."""
    special = cg.scipy.special
    table: list[tuple[Any, float, tuple[float, float, float]]] = [
        (cg.nn.hard_silu, INF, (INF, 1.0, 0.0)),
        (cg.nn.hard_silu, -INF, (0.0, 0.0, 0.0)),  # JAX NaN, of -inf times 0
        (cg.nn.hard_silu, 3.0, (3.0, 1.25, 1 / 6)),  # the middle of 1 and 3/2; JAX 1
        (cg.nn.relu, NAN, (NAN, 1.0, 0.0)),  # of the branch that gives the value; JAX 0
        (cg.nn.relu, 0.0, (0.0, 0.0, 0.0)),
        (cnp.cbrt, 1e-300, (1e-100, 1e200 / 3, -INF)),
        (cnp.cbrt, -1e-300, (-1e-100, 1e200 / 3, INF)),
        (cnp.cbrt, 1e-160, (np.cbrt(1e-160), np.cbrt(1e-160) / 3e-160, -2 / 9 * np.cbrt(1e-160) / 1e-160 / 1e-160)),
        # Its second slope is beyond all numbers there; the quotient that gives it is of two infinities.
        (cnp.cbrt, 5e-324, (np.cbrt(5e-324), np.cbrt(5e-324) / 3 / 5e-324, NAN)),
        (np.sinc, 1e300, (np.sinc(1e300), np.cos(np.pi * 1e300) / 1e300, -np.pi * np.sin(np.pi * 1e300) / 1e300)),
        (np.sinc, 0.0, (1.0, 0.0, -(np.pi**2) / 3)),
        (np.arccosh, 1.0, (0.0, INF, -INF)),
        (special.digamma, 0.0, (NAN, INF, -INF)),
    ]
    for f, x, expected in table:
        with np.errstate(all="ignore"):
            found = [float(g(np.float64(x))) for g in (f, cg.grad(f), cg.grad(cg.grad(f)))]
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=f"{f} at {x}")


def test_the_mixed_second_derivatives_of_a_power_at_zero_are_those_of_its_decided_slopes() -> None:
    """The slope in x is y of `x ** y` there, since `x ** 0` counts as constant, and that in y is 0; JAX: NaN."""
    by_x, by_y = cg.grad(cnp.power, argnums=0), cg.grad(cnp.power, argnums=1)
    with np.errstate(all="ignore"):
        assert float(cg.grad(by_x, argnums=1)(0.0, 0.0)) == 1.0
        assert float(cg.grad(by_y, argnums=0)(0.0, 0.0)) == 0.0
        with jax.enable_x64(True):
            assert np.isnan(jax.grad(jax.grad(jnp.power, argnums=0), argnums=1)(0.0, 0.0))


def test_digamma_near_a_pole_has_all_digits() -> None:
    """The judge: JAX at numbers above 0, and the recurrence f(x) = f(x + 1) - 1 / x with its derivatives."""
    f, polygamma = cg.scipy.special.digamma, jax.scipy.special.polygamma
    with jax.enable_x64(True):
        for x in (-1 + 1e-12, -1 - 1e-9, -2.5, -1e-10, -20.25):
            steps = x + np.arange(25)
            found = [float(g(x)) for g in (f, cg.grad(f), cg.grad(cg.grad(f)))]
            above = [float(polygamma(n, x + 25.0)) for n in range(3)]
            below = [-(1 / steps).sum(), (1 / steps**2).sum(), -2 * (1 / steps**3).sum()]
            np.testing.assert_allclose(found, np.add(above, below), rtol=1e-10)


def test_the_quotient_behind_a_remainder_is_that_of_its_value() -> None:
    """0.1 goes into 1 nine times, by the rounded numbers, though 1 / 0.1 rounds to 10."""
    for x, y in ((1.0, 0.1), (1.0, -INF), (-1.0, INF), (7.5, -2.0)):
        slope = float(cg.grad(np.remainder, argnums=1)(x, y))
        assert slope == -np.floor_divide(x, y)
