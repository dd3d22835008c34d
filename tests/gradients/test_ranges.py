"""Ranges hold what they are said to hold, and tell where no product has to be strong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.gradients.ranges import RULES, TAME, WILD, limits_of
from ctrlgrad.ops.elementwise import FACTS

# Ops of floats whose rule is that of their value; a condition or an integer is no operand.
VALUED = [name for name in RULES if name in FACTS and name not in ("where", "equal", "isfinite", "strong_multiply")]


def intervals(rng: np.random.Generator, dtype: np.dtype) -> tuple[float, float]:
    """Ends at 0, at 1, at random sizes and at the end of the dtype."""
    most = float(np.finfo(dtype).max)
    ends = [0.0, 1.0, -1.0, most, -most, *(rng.normal(size=3) * 10.0 ** rng.integers(-6, 4, 3))]
    low, high = sorted(float(dtype.type(x)) for x in rng.choice(ends, 2))
    return low, high


def inside(rng: np.random.Generator, ends: tuple[float, float], dtype: np.dtype, count: int) -> np.ndarray:
    low, high = ends
    share = np.concatenate([[0.0, 1.0], rng.random(count), 10.0 ** rng.uniform(-12, 0, count)])
    points = [low * (1 - share) + high * share, high * (1 - share) + low * share]
    return np.clip(np.concatenate(points).astype(dtype), low, high).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("name", VALUED)
def test_values_lie_in_the_range_that_is_computed(name: str, dtype: type) -> None:
    rng, kind = np.random.default_rng(len(name)), np.dtype(dtype)
    of, arity = limits_of(kind), len(FACTS[name].partials or (None,))
    for _ in range(40):
        ends = [intervals(rng, kind) for _ in range(arity)]
        points = [rng.permutation(inside(rng, e, kind, 20)) for e in ends]
        with np.errstate(all="ignore"):
            found = np.asarray(FACTS[name].numpy(*points), np.float64)
        low, high = RULES[name](of, *ends)
        # As `_rounded` has it, whose errors are those of the dtype.
        slack = 4 * max(of.rounding, 2.0**-52)
        low, high = low - abs(low) * slack - of.least, high + abs(high) * slack + of.least
        assert not np.isnan(found).any() or (low, high) == WILD, (ends, low, high)
        # Overflow of sums and products is not looked for: such a range goes to the end of the dtype.
        assert (found >= low).all() or low <= -of.most, (ends, low, found.min())
        assert (found <= high).all() or high >= of.most, (ends, high, found.max())


@pytest.mark.parametrize("name", TAME)
def test_derivatives_are_finite_where_an_op_is_said_to_be_tame(name: str) -> None:
    rng, kind = np.random.default_rng(1), np.dtype(np.float64)
    arity, tame = len(FACTS[name].partials or ()), 0
    op = lambda *xs: cg.numpy.asarray(_apply(name, xs))
    with cg.options(engine="reference", strong_zeros=False), np.errstate(all="ignore"):
        gradient = cg.function(cg.grad(lambda *xs: op(*xs).sum(), argnums=tuple(range(arity))))
        for _ in range(60):
            # Sums and products that overflow are not looked for.
            ends = [tuple(np.clip(intervals(rng, kind), -1e3, 1e3)) for _ in range(arity)]
            if TAME[name](limits_of(kind), *ends):
                tame += 1
                points = [rng.permutation(inside(rng, e, kind, 10)) for e in ends]
                for slope in gradient(*points):
                    assert np.isfinite(slope).all(), ends
    assert tame > 0


def _apply(name: str, xs: Any) -> Any:
    forms = {"erfinv": cg.scipy.special.erfinv}
    return (forms.get(name) or getattr(np, name))(*xs)


X = np.array([0.3, -1.2, 2.5, 0.0])
# Functions of which no derivative is infinite or NaN, by what is known of ranges.
BOUNDED: dict[str, Callable[[Any], Any]] = {
    "quotient by a square": lambda x: x / (x * x + 1e-6),
    "norm": lambda x: x / np.sqrt((x**2).sum() + 1e-12),
    "root beside 0": lambda x: np.sqrt(x * x + 1.0),
    "logistic function": lambda x: 1.0 / (1.0 + np.exp(-np.abs(x))),
    "clipped denominator": lambda x: x / np.maximum(x, 0.1),
    "clipped logarithm": lambda x: np.log(np.clip(x, 1e-3, 1.0)),
    "softmax": lambda x: cg.nn.softmax(x * x),
    "logsumexp": lambda x: cg.scipy.special.logsumexp(x) * x,
    "logarithm of softmax": lambda x: cg.nn.log_softmax(x),
    "cosine": lambda x: 1.0 / (1.5 - np.cos(x)),
    "negative power": lambda x: (x * x + 1.0) ** -1.5,
    "clipped power of 0": lambda x: x * np.minimum(np.maximum(np.abs(cg.stop_gradient(x)) ** -0.2, 0.5), 0.6),
    "exponential of what is below 0": lambda x: np.exp(-(x * x)),
}
# The same without what bounds them.
UNBOUNDED: dict[str, Callable[[Any], Any]] = {
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
    f, x = _selected(BOUNDED[name]), X.astype(dtype)
    assert "strong_multiply" not in str(cg.function(cg.grad(f)).graph(x))
    assert cg.check_grads(f, (X[:3],), against=("finite_differences",)).ok


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_derivative_that_may_be_infinite_needs_a_strong_product(name: str) -> None:
    f = _selected(UNBOUNDED[name])
    assert "strong_multiply" in str(cg.function(cg.grad(f)).graph(X))
    assert np.isfinite(np.asarray(cg.grad(f)(np.zeros(4)))).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ranges_of_carries_are_found_by_widening(dtype: Any) -> None:
    """A counter is never below 0, a step size never below 0; a carry that falls by 1 in each iteration passes 0."""
    x = X.astype(dtype)

    def rising(x: Any) -> Any:
        sums = cg.fori_loop(0, 20, lambda i, c: c + x / cnp.asarray(i + 1, x.dtype), x)
        return cnp.where(x > 0.1, sums, 0.0).sum()

    def halved(x: Any) -> Any:
        start = (dtype(1.0), x)
        sums = cg.fori_loop(0, 20, lambda i, c: (c[0] * 0.5, c[1] + x / (c[0] + 1e-3)), start)[1]
        return cnp.where(x > 0.1, sums, 0.0).sum()

    def falling(x: Any) -> Any:
        sums = cg.fori_loop(0, 3, lambda i, c: (c[0] + x / c[1], c[1] - 1.0), (x, dtype(2.0)))[0]
        return cnp.where(x > 0.1, sums, 0.0).sum()

    assert "strong_multiply" not in str(cg.function(cg.grad(rising)).graph(x))
    assert "strong_multiply" not in str(cg.function(cg.grad(halved)).graph(x))
    assert "strong_multiply" in str(cg.function(cg.grad(falling)).graph(x))
    assert cg.check_grads(rising, (X[:3],), against=("finite_differences",)).ok


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
        text = str(cg.function(cg.grad(f)).graph(np.abs(X) + 1.0))
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
    """A fully masked row has softmax 0 / 0: -inf is not finite, so the sum of exponentials is not known to be 1."""

    def loss(x: Any, mask: Any) -> Any:
        rows = cg.nn.softmax(cnp.where(mask, x, -np.inf), axis=-1)
        return cnp.where(mask.any(axis=-1, keepdims=True), rows * x, 0.0).sum()

    x, mask = np.arange(6.0).reshape(2, 3), np.array([[True, True, False], [False] * 3])
    found = np.asarray(cg.grad(loss)(x, mask))
    alone = np.asarray(cg.grad(loss)(x[:1], mask[:1]))
    np.testing.assert_allclose(found, np.concatenate([alone, np.zeros((1, 3))]), rtol=1e-12)
