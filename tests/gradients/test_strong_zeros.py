"""A cotangent that is zero because something else was selected stops, whatever the slope behind it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ir.attributes import Constant

jax.config.update("jax_enable_x64", True)
ENGINES = ("reference", "native", "dataflow")

# A function that is singular at the point, and what it is kept away from by: (f, point, a point beside it).
SINGULAR: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "sqrt": (lambda xp, x: xp.sqrt(x), 0.0),
    "log": (lambda xp, x: xp.log(x), 0.0),
    "log1p": (lambda xp, x: xp.log1p(x), -1.0),
    "divide": (lambda xp, x: 3.0 / x, 0.0),
    "quotient of zeros": (lambda xp, x: xp.sin(x) / x, 0.0),
    "reciprocal": (lambda xp, x: xp.reciprocal(x), 0.0),
    "product with an infinite factor": (lambda xp, x: (1.0 / x) * (x + 2.0), 0.0),
    "root of a product": (lambda xp, x: (x + 3.0) * xp.sqrt(x), 0.0),
    "power": (lambda xp, x: x**0.3, 0.0),
    "arccos": (lambda xp, x: xp.arccos(x), 1.0),
    "arcsin": (lambda xp, x: xp.arcsin(x), -1.0),
    "arctanh": (lambda xp, x: xp.arctanh(x), 1.0),
    "arccosh": (lambda xp, x: xp.arccosh(x), 1.0),
    "arctan2": (lambda xp, x: xp.arctan2(x, x), 0.0),
    "exp that overflows": (lambda xp, x: xp.exp(x), 1000.0),
    "sine of a logarithm": (lambda xp, x: xp.sin(xp.log(x)), 0.0),
    "norm": (lambda xp, x: xp.sqrt((xp.stack([x, 2.0 * x]) ** 2).sum(0)), 0.0),
}


def guarded(f: Callable[[Any, Any], Any], point: float) -> Callable[[Any, Any], Any]:
    """f beside the point, x cubed at it: the selection that gives NaN in IEEE's arithmetic."""
    return lambda xp, x: xp.where(x == point, x**3, f(xp, x))


def double_where(f: Callable[[Any, Any], Any], point: float) -> Callable[[Any], Any]:
    """The same in JAX, where the singular function never sees the point."""

    def function(x: Any) -> Any:
        beside = jnp.where(x == point, point + np.copysign(0.5, 0.5 - point), x)
        return jnp.where(x == point, x**3, f(jnp, beside))

    return function


@in_turn("name, engine", list(SINGULAR), ENGINES)
def test_a_selection_stops_an_infinite_slope_in_all_orders(name: str, engine: str) -> None:
    f, point = SINGULAR[name]
    x = np.array([point, point + np.copysign(0.25, 0.5 - point)])
    ours, jaxs = (lambda x: guarded(f, point)(cnp, x).sum()), double_where(f, point)
    with cg.options(engine=engine):
        value = np.asarray(cg.grad(ours)(x))
        along = np.asarray(cg.jvp(cg.grad(ours), (x,), (np.ones(2),))[1])
        second = np.asarray(cg.grad(lambda x: cg.grad(ours)(x).sum())(x))
        rows = np.asarray(cg.vmap(cg.grad(ours))(x))
        hessian = np.asarray(cg.hessian(ours)(x))
    first = np.asarray(jax.vmap(jax.grad(jaxs))(x))
    further = np.asarray(jax.vmap(jax.grad(jax.grad(jaxs)))(x))
    np.testing.assert_allclose(value, first, rtol=1e-12)
    np.testing.assert_allclose(rows, first, rtol=1e-12)
    np.testing.assert_allclose(along, further, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(second, further, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(hessian, np.diag(further), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SINGULAR)
def test_without_strong_zeros_the_gradient_is_that_of_ieee(name: str) -> None:
    f, point = SINGULAR[name]
    function = cg.function(cg.grad(lambda x: guarded(f, point)(cnp, x)))
    strong = float(function(point))
    with cg.options(strong_zeros=False):
        weak = float(function(point))
    with np.errstate(all="ignore"):
        expected = float(jax.grad(lambda x: guarded(f, point)(jnp, x))(point))
    assert np.isfinite(strong)
    np.testing.assert_array_equal(np.isnan(weak), np.isnan(expected))
    assert float(function(point)) == strong


def test_a_cotangent_that_happens_to_be_zero_has_a_derivative() -> None:
    """The second derivative of a selected (sqrt(x) - 1)^2 at 1 is 1/2, though the first one is 0."""

    def f(x: Any) -> Any:
        return cnp.where(x > 0.0, (cnp.sqrt(x) - 1.0) ** 2, 0.0)

    for second in (cg.grad(cg.grad(f)), cg.hessian(f), cg.jacrev(cg.jacfwd(f)), cg.jacfwd(cg.jacfwd(f))):
        assert float(second(1.0)) == 0.5
    h = 1e-5
    assert float(cg.grad(cg.grad(cg.grad(f)))(1.0)) == pytest.approx(
        float((cg.hessian(f)(1.0 + h) - cg.hessian(f)(1.0 - h)) / (2 * h)), rel=1e-6
    )


def test_selected_operands_keep_infinite_slopes() -> None:
    assert np.isinf(cg.grad(lambda x: cnp.sqrt(x))(0.0))
    assert np.isnan(cg.grad(lambda x: cnp.sqrt(x) * cnp.sqrt(x))(0.0))
    assert np.isinf(cg.grad(lambda x: cnp.where(x >= 0.0, cnp.sqrt(x), 0.0))(0.0))


def test_seeds_and_directions_that_are_zero_stop() -> None:
    x = np.array([0.0, 4.0])
    expected = np.array([[np.inf, 0.0], [0.0, 0.25]])
    np.testing.assert_array_equal(cg.jacrev(cnp.sqrt)(x), expected)
    np.testing.assert_array_equal(cg.jacfwd(cnp.sqrt)(x), expected)
    np.testing.assert_array_equal(cg.jvp(cnp.sqrt, (x,), (np.array([0.0, 1.0]),))[1], [0.0, 0.25])
    np.testing.assert_array_equal(cg.vjp(cnp.sqrt, x)[1](np.array([0.0, 1.0]))[0], [0.0, 0.25])


X = np.array([0.0, 4.0, 9.0])
MASK = np.array([0.0, 1.0, 1.0])
SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: cnp.sqrt(x)[1:].sum(),
    "gather": lambda x: cnp.sqrt(x)[np.array([2, 1])].sum(),
    "scatter": lambda x: cg.numpy.asarray(cnp.sqrt(x)).at[0].set(3.0).sum(),
    "mask of booleans": lambda x: ((x > 0.0) * cnp.sqrt(x)).sum(),
    "mask of constants": lambda x: (MASK * cnp.sqrt(x)).sum(),
    "one-hot product": lambda x: (np.eye(3)[1:] @ cnp.sqrt(x)).sum(),
    "maximum": lambda x: cnp.maximum(cnp.log(x), -100.0).sum(),
    "clip": lambda x: cnp.clip(cnp.log(x), -5.0, 50.0).sum(),
    "extreme": lambda x: cnp.sqrt(x).max() + cnp.sqrt(x[1:]).sum(),
    "cond under vmap": lambda x: cg.vmap(lambda v: cg.cond(v > 0.0, lambda: cnp.sqrt(v), lambda: 0.0 * v))(x).sum(),
    "cond around": lambda x: cg.cond(x[0] > 0.0, lambda y: y.sum(), lambda y: y[1:].sum(), cnp.sqrt(x)),
    "loop that does not run": lambda x: cg.fori_loop(0, cnp.sum(x < 0.0), lambda i, c: c + cnp.log(x).sum(), x.sum()),
    "checkpoint": lambda x: cnp.where(x > 0.0, cg.checkpoint(lambda v: cnp.sqrt(v))(x), 0.0).sum(),
    "sort": lambda x: cnp.sort(cnp.sqrt(x))[1:].sum(),
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_kind_of_selection_stops_a_nan(name: str, engine: str) -> None:
    f = SELECTIONS[name]
    with cg.options(engine=engine):
        found = np.asarray(cg.grad(f)(X))
    assert np.isfinite(found).all(), found
    h = 1e-6
    for i in (1, 2):
        step = h * np.eye(3)[i]
        assert found[i] == pytest.approx(float((f(X + step) - f(X - step)) / (2 * h)), rel=1e-5)


def test_a_mask_that_is_an_argument_stops_a_nan() -> None:
    f = lambda x, mask: (mask * cnp.sqrt(x)).sum()
    np.testing.assert_array_equal(cg.grad(f)(X, MASK), [0.0, 0.25, 1 / 6])


@pytest.mark.parametrize("engine", ENGINES)
def test_lanes_that_have_ended_stay_finite(engine: str) -> None:
    """Each lane runs until its own value is 0, where the body, which goes on in the other lanes, is singular."""

    def lane(x: Any, n: Any) -> Any:
        def body(state: Any) -> Any:
            i, v, total = state
            return i - 1, v - 1.0, total + cnp.sqrt(v) * x

        return cg.while_loop(lambda s: s[0] > 0, body, (n, x, 0.0))[2]

    x, n = np.array([2.0, 5.0, 3.0]), np.array([2, 5, 3])
    with cg.options(engine=engine):
        found = np.asarray(cg.grad(lambda x: cg.vmap(lane)(x, n).sum())(x))
        second = np.asarray(cg.jvp(cg.grad(lambda x: cg.vmap(lane)(x, n).sum()), (x,), (np.ones(3),))[1])
    alone = [float(cg.grad(lambda v, k=k: lane(v, k))(v)) for v, k in zip(x, n, strict=True)]
    again = [float(cg.grad(cg.grad(lambda v, k=k: lane(v, k)))(v)) for v, k in zip(x, n, strict=True)]
    np.testing.assert_allclose(found, alone, rtol=1e-12)
    np.testing.assert_allclose(second, again, rtol=1e-12)


def test_jax_vmap_of_a_while_loop_has_finite_gradients_of_lanes_that_have_ended() -> None:
    def lane(x: Any, n: Any) -> Any:
        def body(state: Any) -> Any:
            i, v, total = state
            return i - 1, v - 1.0, total + jnp.sqrt(v) * x

        return jax.lax.while_loop(lambda s: s[0] > 0, body, (n, x, 0.0))[2]

    x, n = np.array([2.0, 5.0, 3.0]), np.array([2, 5, 3])
    total = lambda x: jax.vmap(lane)(x, n).sum()
    found = np.asarray(cg.grad(cg.from_jax(total))(x))
    forward = np.asarray(jax.jacfwd(total)(x))
    np.testing.assert_allclose(found, forward, rtol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_scan_over_padded_rows_has_finite_gradients(engine: str) -> None:
    rows, lengths = np.array([[1.0, 4.0, 0.0], [2.0, 0.0, 0.0]]), np.array([2, 1])

    def loss(w: Any) -> Any:
        def sequence(row: Any, length: Any) -> Any:
            def step(carry: Any, given: Any) -> Any:
                i, x = given
                new = carry + cnp.log(w * x) / cnp.sqrt(x)
                return cnp.where(i < length, new, carry), None

            return cg.scan(step, 0.0 * w, (np.arange(3), row))[0]

        return cg.vmap(sequence)(rows, lengths).sum()

    with cg.options(engine=engine):
        found = float(cg.grad(loss)(1.5))
    assert found == pytest.approx(sum(1 / (1.5 * np.sqrt(x)) for x in (1.0, 4.0, 2.0)), rel=1e-12)


def test_a_line_search_that_guards_its_steps_has_finite_gradients() -> None:
    """BFGS in one dimension with backtracking, whose quotients are guarded by `where`, to convergence and beyond."""

    def solve(xp: Any, loop: Any, grad: Any, a: Any, guard: bool) -> Any:
        def objective(x: Any) -> Any:
            return (x * x - a) ** 2

        def step(i: Any, state: Any) -> Any:
            x, g, curvature = state
            direction = -g * curvature
            full = objective(x + direction) <= objective(x)
            size = xp.where(full, 1.0, xp.where(objective(x + 0.25 * direction) <= objective(x), 0.25, 0.01))
            moved = x + size * direction
            new = 4.0 * moved * (moved * moved - a)
            y, s = new - g, moved - x
            safe = abs(y) > 1e-9
            quotient = s / xp.where(safe, y, 1.0) if guard else s / y
            inverse = xp.where(safe & (s * y > 0.0), abs(quotient), curvature)
            return moved, new, inverse

        x = 2.0 + 0.0 * a
        return loop(0, 40, step, (x, 4.0 * x * (x * x - a), 0.05 + 0.0 * a))[0]

    a = 3.0
    ours = float(cg.grad(lambda a: solve(cnp, cg.fori_loop, cg.grad, a, False))(a))
    judge = float(jax.jacfwd(lambda a: solve(jnp, jax.lax.fori_loop, jax.grad, a, True))(a))
    assert ours == pytest.approx(judge, rel=1e-9)
    assert ours == pytest.approx(0.5 / np.sqrt(a), rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_product_whose_factors_may_both_be_selected_zeros_is_stopped_by_either(engine: str) -> None:
    """Forces of a Lennard-Jones potential, whose program masks NaN: the factors of its products are 0, inf or NaN."""

    def energy(xp: Any, distance: Any, s: Any) -> Any:
        inner = (s / xp.where(distance > 0.0, distance, 0.0)) ** 2
        return xp.nan_to_num(inner * inner - inner)

    def forces(s: Any) -> Any:
        distances = jnp.array([0.0, 0.7])
        return jnp.sum(jnp.sin(jax.grad(lambda x: jnp.sum(energy(jnp, x, s)))(distances)))

    # Without the first distance, which adds 0 to every derivative, nothing is singular.
    beside = lambda s: jnp.sin(jax.grad(lambda x: (s / x) ** 4 - (s / x) ** 2)(0.7))
    with cg.options(engine=engine):
        read = cg.from_jax(forces)
        found, forward = cg.grad(read)(0.5), cg.jvp(read, (0.5,), (1.0,))[1]
        second = cg.grad(cg.grad(read))(0.5)
    assert float(found) == pytest.approx(float(jax.grad(beside)(0.5)), rel=1e-12)
    assert float(forward) == pytest.approx(float(jax.jvp(forces, (0.5,), (1.0,))[1]), rel=1e-12)
    assert float(second) == pytest.approx(float(jax.grad(jax.grad(beside))(0.5)), rel=1e-12)
    assert float(found) == pytest.approx(float(forces(0.5 + 1e-6) - forces(0.5 - 1e-6)) / 2e-6, rel=1e-7)


def test_the_analysis_leaves_products_alone() -> None:
    """A loop of bounded operations has no strong product, though rows are read and masks selected in it."""

    def f(w: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            new = cnp.tanh(w * h + x)
            return cnp.where(x > 0.0, new, h), None

        return cg.scan(step, xs[0], xs)[0]

    text = str(cg.function(cg.grad(f)).graph(0.5, X))
    assert "strong_multiply" not in text


@pytest.mark.parametrize("engine", ENGINES)
def test_check_nans_of_gradients_passes_over_what_is_masked_and_stops_at_the_first_cotangent(engine: str) -> None:
    masked = lambda x: cnp.where(x > 0.0, cnp.log(x), 0.0).sum()
    wrong = lambda x: cnp.where(x > 0.0, cnp.log(x), cnp.sqrt(x)).sum()
    x = np.array([0.0, 4.0])
    with cg.options(engine=engine, check_nans="gradients"):
        np.testing.assert_array_equal(cg.grad(masked)(x), [0.0, 0.25])
        np.testing.assert_array_equal(cg.function(cg.grad(masked))(x), [0.0, 0.25])
        with pytest.raises(cg.errors.NonFiniteError, match="a cotangent is an Inf: the derivative of sqrt"):
            cg.grad(wrong)(x)
    with cg.options(engine=engine, check_nans=True), pytest.raises(cg.errors.NonFiniteError, match="makes an Inf"):
        cg.grad(masked)(x)


def test_check_nans_takes_no_other_word() -> None:
    with pytest.raises(cg.errors.UserInputError, match="check_nans"), cg.options(check_nans="forward"):
        pass


def test_singular_values_of_what_may_be_infinite() -> None:
    """Their cotangents have fewer axes than the matrices."""
    x = np.random.default_rng(0).normal(size=(2, 3, 3)) + 3.0

    def loss(x: Any) -> Any:
        return cg.cond(x.sum() > 0, lambda: np.linalg.svd(1.0 / x, compute_uv=False).max(), lambda: x.sum())

    assert cg.check_grads(loss, (x,), against=("finite_differences",)).ok


# Functions whose derivative, which solves a linear system, has a strong zero for a matrix of zeros.
SYSTEMS: dict[str, Callable[[Any, Any], Any]] = {
    "solve": lambda xp, x: xp.linalg.solve(x, xp.sin(x)),
    "inverse": lambda xp, x: xp.linalg.inv(x),
    "log of the determinant": lambda xp, x: xp.linalg.slogdet(x)[1],
    "cholesky": lambda xp, x: xp.linalg.cholesky(x @ x.T),
    "qr": lambda xp, x: xp.linalg.qr(x)[1],
    "pseudo-inverse": lambda xp, x: xp.linalg.pinv(x),
}
MATRIX, DIRECTION = np.array([[2.0, 0.3], [0.4, 1.5]]), np.array([[0.3, -0.7], [0.0, 1.1]])


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_strong_zero_of_a_matrix_is_linear(name: str) -> None:
    """The cotangent decides where it applies, and elements that are finite are the same for all cotangents."""
    f = lambda x: SYSTEMS[name](cnp, x)
    expected = jax.jvp(lambda x: SYSTEMS[name](jnp, x), (MATRIX,), (DIRECTION,))[1]
    np.testing.assert_allclose(cg.linearize(f, MATRIX)[1](DIRECTION), expected, rtol=1e-9, atol=1e-12)
    traced = cg.function(lambda x, t: cg.linearize(f, x)[1](t))(MATRIX, DIRECTION)
    np.testing.assert_allclose(traced, expected, rtol=1e-9, atol=1e-12)
    pull = lambda ct: cg.vjp(f, MATRIX)[1](ct)[0]
    transposed = cg.linear_transpose(pull, f(MATRIX))(DIRECTION)[0]
    np.testing.assert_allclose(transposed, expected, rtol=1e-9, atol=1e-12)


def test_a_forward_rule_may_be_a_pullback_with_a_strong_zero() -> None:
    inverse = cg.custom_jvp(np.linalg.inv)
    # The derivative of the inverse is its own transpose, of the transposed tangent.
    inverse.defjvp(lambda x, t: (np.linalg.inv(x[0]), cg.vjp(np.linalg.inv, x[0].T)[1](t[0])[0]))
    loss = lambda f: lambda x: cnp.sum(cnp.sin(f(x)))
    expected = jax.grad(lambda x: jnp.sum(jnp.sin(jnp.linalg.inv(x))))(MATRIX)
    np.testing.assert_allclose(cg.grad(loss(inverse))(MATRIX), expected, rtol=1e-9)


@pytest.mark.parametrize("zero", [0.0, 1.0])
def test_a_linearized_selection_stops_tangents_that_are_zero(zero: float) -> None:
    f = lambda x: cnp.where(x > 0.5, cnp.sqrt(x - 1.0), cnp.sqrt(x) * 0.0)
    x, t = np.array([0.0, 1.0]), np.array([zero, 0.0])
    np.testing.assert_array_equal(cg.linearize(f, x)[1](t), cg.jvp(f, (x,), (t,))[1])


BESIDE = np.array([0.3, -1.2, 2.5, 0.0])
# Functions of which no derivative is infinite or NaN, whatever finite numbers they are given.
BOUNDED: dict[str, Callable[[Any], Any]] = {
    "quotient by a number": lambda x: x / 3.0,
    "quotient by an array of numbers": lambda x: x / np.arange(1.0, 5.0),
    "remainder": lambda x: np.remainder(x, 2.0),
    "powers": lambda x: x**3 + x**16,
    "logistic function": lambda x: cg.nn.sigmoid(x) * np.tanh(x),
    "quotient by a square": lambda x: x / (x * x + 1e-6),
    "quotient by a norm": lambda x: x / np.sqrt((x**2).sum() + 1e-12),
    "quotient by what is clipped": lambda x: x / np.maximum(x, 0.1),
    "root beside 0": lambda x: np.sqrt(x * x + 1.0),
    "logarithm of what is clipped": lambda x: np.log(np.clip(x, 1e-3, 1.0)),
    "quotient by a cosine": lambda x: 1.0 / (1.5 - np.cos(x)),
    "negative power of what is positive": lambda x: (x * x + 1.0) ** -1.5,
    "a step that follows from an error": lambda x: x * np.clip(0.9 * abs(cg.stop_gradient(x)) ** -0.2, 0.2, 0.5),
    "exponential of what is below 0": lambda x: np.exp(-(x * x)),
    "quotient by a number that a loop captures": lambda x: cg.fori_loop(0, 3, lambda i, c: c / 3.0, x),
}
# The same without what bounds them.
UNBOUNDED: dict[str, Callable[[Any], Any]] = {
    "quotient by 0": lambda x: x / np.array([1.0, 2.0, 3.0, 0.0]),
    "quotient by a number whose inverse overflows": lambda x: x / 1e-310,
    "negative power": lambda x: x**-2,
    "quotient": lambda x: x / (x * x),
    "norm": lambda x: x / np.sqrt((x**2).sum()),
    "logarithm": lambda x: np.log(np.clip(x, 0.0, 1.0)),
    "root": lambda x: np.sqrt(np.maximum(x, 0.0)),
    "power": lambda x: np.abs(x) ** 0.5,
    "exponential": lambda x: np.exp(x),
    "cosine": lambda x: 1.0 / (1.0 - np.cos(x)),
}


def _selected(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: cnp.where(x > 0.1, f(x), x).sum()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", BOUNDED)
def test_a_derivative_that_is_known_to_be_finite_needs_no_strong_product(name: str, dtype: type) -> None:
    f, x = _selected(BOUNDED[name]), BESIDE.astype(dtype)
    assert "strong_multiply" not in str(cg.function(cg.grad(f)).graph(x))
    assert cg.check_grads(f, (BESIDE,), against=("finite_differences",)).ok


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_derivative_that_may_be_infinite_needs_a_strong_product(name: str) -> None:
    f = _selected(UNBOUNDED[name])
    assert "strong_multiply" in str(cg.function(cg.grad(f)).graph(BESIDE))
    assert np.isfinite(np.asarray(cg.grad(f)(np.zeros(4)))).all()


def test_parts_that_are_the_whole_together_select_nothing() -> None:
    def gated(x: Any, first: int) -> Any:
        a, b = x[:first], x[2:]
        return (np.exp(a).sum() * np.tanh(b)).sum()

    whole = lambda x: gated(np.exp(x), 2)
    left_out = lambda x: gated(np.exp(x), 1)
    numbers = lambda x: sum(float(i + 1) * np.sqrt(x)[i] for i in range(4))
    some = lambda x: sum(float(i + 1) * np.sqrt(x)[i] for i in range(3))
    split = lambda x: sum((part * part).sum() for part in cnp.split(np.sqrt(x), 2))
    for f, strong in ((whole, False), (left_out, True), (numbers, False), (some, True), (split, False)):
        text = str(cg.function(cg.grad(f)).graph(np.abs(BESIDE) + 1.0))
        assert ("strong_multiply" in text) == strong, text
    assert np.isfinite(np.asarray(cg.grad(some)(np.array([1.0, 2.0, 3.0, 0.0])))).all()


def test_a_value_that_shows_in_the_result_counts_as_finite() -> None:
    """The result is infinite where the quotient is; a loop that may not run shows nothing of what it captures."""

    def f(x: Any, steps: Any) -> Any:
        q = 1.0 / x
        return cg.fori_loop(0, steps, lambda i, c: (c[0] * 0.5 * q, c[1] + c[0] * q), (x, 0.0))[1]

    known = str(cg.function(cg.grad(lambda x: f(x, 3))).graph(2.0))
    unknown = str(cg.function(cg.grad(f)).graph(2.0, 3))
    assert "strong_multiply" not in known
    assert "strong_multiply" in unknown
    assert float(cg.grad(f)(0.0, 0)) == 0.0
    assert cg.check_grads(lambda x: f(x, 3), (2.0,), against=("finite_differences",)).ok


def test_a_row_that_is_masked_as_a_whole_has_a_finite_gradient() -> None:
    """A fully masked row has softmax 0 / 0."""

    def loss(x: Any, mask: Any) -> Any:
        rows = cg.nn.softmax(cnp.where(mask, x, -np.inf), axis=-1)
        return cnp.where(mask.any(axis=-1, keepdims=True), rows * x, 0.0).sum()

    x, mask = np.arange(6.0).reshape(2, 3), np.array([[True, True, False], [False] * 3])
    found = np.asarray(cg.grad(loss)(x, mask))
    alone = np.asarray(cg.grad(loss)(x[:1], mask[:1]))
    np.testing.assert_allclose(found, np.concatenate([alone, np.zeros((1, 3))]), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_infinities_of_a_constant_stop_behind_a_selection(dtype: type) -> None:
    """A constant of complex numbers is looked at as one of reals."""
    endless = np.full(4, np.inf).astype(dtype)

    def f(x: Any, mask: Any) -> Any:
        return cnp.sum(cnp.real(cnp.where(mask, x, x[0] * cnp.asarray(endless))))

    x, mask = np.ones(4, dtype), np.full(4, True)
    for gradient in (cg.grad(f)(x, mask), cg.function(cg.grad(f))(x, mask)):
        np.testing.assert_array_equal(gradient, x)


# Elements on both sides of each bound: of constants that a later call may change (bytes), and of those whose numbers
# the analysis knows.
SIZES = (1, 511, 512, 513, 4095, 4096, 4097)


def behind_a_mask(c: np.ndarray, engine: str) -> list[np.ndarray]:
    """Derivatives of both modes, where the elements of a constant that are not finite are masked."""
    mask, x = np.isfinite(c), np.full(c.shape, 2.0)
    f = lambda x: cnp.where(mask, cnp.real(x * c), 0.0).sum() + cnp.where(mask, cnp.real(cnp.sin(x + c)), 0.0).sum()
    slope = lambda x: cg.grad(f)(x)
    with cg.options(engine=engine):
        pushed = cg.jvp(lambda x: cnp.where(mask, cnp.real(x * x * c), 0.0), (x,), (np.zeros_like(x),))[1]
        return [slope(x), cg.function(slope)(x), cg.grad(lambda x: slope(x).sum())(x), pushed]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_constant_that_is_not_finite_stops_whatever_its_size_and_dtype(dtype: type, engine: str) -> None:
    for size in SIZES:
        for wild in (np.inf, -np.inf, np.nan):
            c = np.where(np.arange(size) % 2, 0.5, wild).astype(dtype)
            for found in behind_a_mask(c, engine):
                assert np.isfinite(found).all(), (size, wild)


@pytest.mark.parametrize("size", [4, 5000])
def test_a_constant_stops_though_it_was_finite_in_an_earlier_call(size: int) -> None:
    c = np.full(size, 0.5)
    first, *_ = behind_a_mask(c, "native")
    np.testing.assert_allclose(first, 0.5 + np.cos(2.5))
    for wild in (np.inf, np.nan, -np.inf):
        changed = np.where(np.arange(size) % 2, 0.5, wild)
        for found in behind_a_mask(changed, "native"):
            assert np.isfinite(found).all(), wild
        np.testing.assert_array_equal(behind_a_mask(c, "native")[0], first)


def test_constants_of_any_size_are_looked_at() -> None:
    """Once those of more than 1,048,576 elements counted as finite, and the gradient was NaN."""
    c = np.full((1 << 20) + 1, 0.5)
    assert Constant(value=c).is_finite
    c[-1] = np.inf
    assert not Constant(value=c).is_finite
    for found in behind_a_mask(c, "native"):
        assert np.isfinite(found).all()


# Programs with a constant c that `mask` keeps out of the result where it is not finite: (xp, lax, c, mask) -> f(x).
MASKED: dict[str, Callable[[Any, Any, Any, Any], Callable[[Any], Any]]] = {
    "product": lambda xp, lax, c, mask: lambda x: xp.where(mask, x**3 * c, 0.0).sum(),
    "sine": lambda xp, lax, c, mask: lambda x: xp.where(mask, xp.sin(x + c) * x, 0.0).sum(),
    "quotient": lambda xp, lax, c, mask: lambda x: xp.where(mask, x**3 / (c + x), 0.0).sum(),
    "loop": lambda xp, lax, c, mask: (
        lambda x: lax.fori_loop(0, 3, lambda i, s: xp.where(mask, xp.sin(s * c) + s, s), x).sum()
    ),
    "scan": lambda xp, lax, c, mask: (
        lambda x: lax.scan(
            lambda s, row: (xp.where(row[1], xp.sin(s * row[0]) + s, s), s.sum()),
            x,
            (xp.stack([c, c]), xp.stack([mask] * 2)),
        )[0].sum()
    ),
    "branch": lambda xp, lax, c, mask: (
        lambda x: lax.cond(x.sum() > 0.0, lambda x: xp.where(mask, xp.sin(x) * c * x, 0.0), lambda x: x, x).sum()
    ),
    "loop in a branch": lambda xp, lax, c, mask: (
        lambda x: lax.cond(
            x.sum() > 0.0,
            lambda x: lax.fori_loop(0, 2, lambda i, s: xp.where(mask, s * s * c, s), x),
            lambda x: x,
            x,
        ).sum()
    ),
}


@pytest.mark.parametrize("size", [6, 520])
@pytest.mark.parametrize("name", list(MASKED))
def test_a_constant_that_was_finite_before_stops_in_each_construct_and_order(name: str, size: int) -> None:
    """Calls with a finite constant, one that is not, and the finite one again; JAX is given 0.5 behind the mask."""
    x, v = np.linspace(0.4, 0.9, size), np.linspace(-1.0, 1.0, size)
    mask = np.arange(size) % 3 > 0
    xs = np.stack([x, 0.5 * x])

    def derivatives(grad: Any, vmap: Any, f: Any) -> list[Callable[[], Any]]:
        along = lambda x: (grad(f)(x) * v).sum()
        return [lambda: grad(f)(x), lambda: grad(along)(x), lambda: vmap(grad(f))(xs), lambda: vmap(grad(along))(xs)]

    safe = np.linspace(0.3, 0.8, size)
    wanted = [
        np.asarray(d()) for d in derivatives(jax.grad, jax.vmap, MASKED[name](jnp, jax.lax, jnp.asarray(safe), mask))
    ]
    for wild in (0.5, np.inf, np.nan, -np.inf, 0.5):
        c = np.where(mask, safe, wild)
        f = MASKED[name](cnp, cg.lax, c, mask)
        for d, want in zip(derivatives(cg.grad, cg.vmap, f), wanted, strict=True):
            np.testing.assert_allclose(d(), want, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(cg.function(d)(), want, rtol=1e-9, atol=1e-12)
        step = 1e-6
        slope = (f(x + step * v) - f(x - step * v)) / (2 * step)
        np.testing.assert_allclose((cg.grad(f)(x) * v).sum(), slope, rtol=1e-6, atol=1e-7)
