"""Ranges hold the values that they are said to hold; slopes are finite where they say so."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.gradients.ranges import RULES, TAME, WILD, limits_of
from ctrlgrad.ops.elementwise import FACTS

# Ops of floats alone.
VALUED = [name for name in RULES if name in FACTS and name not in ("where", "strong_multiply")]


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
        slack = 4 * max(of.rounding, 2.0**-52)
        low, high = low - abs(low) * slack - of.least, high + abs(high) * slack + of.least
        assert not np.isnan(found).any() or (low, high) == WILD, (ends, low, high)
        # Sums and products that overflow are not looked for: such a range goes to the end of the dtype.
        assert (found >= low).all() or low <= -of.most, (ends, low, found.min())
        assert (found <= high).all() or high >= of.most, (ends, high, found.max())


@pytest.mark.parametrize("ends", [((0.0, np.inf), (1.0, 2.0)), ((1.0, 2.0), (0.0, np.inf)), ((-1.0, 1.0), (0.0, 3.0))])
@pytest.mark.parametrize("name", ["multiply", "divide", "add", "subtract", "maximum", "minimum"])
def test_ranges_with_infinities_hold_every_pair_of_their_numbers(name: str, ends: Any) -> None:
    low, high = RULES[name](limits_of(np.dtype(np.float64)), *ends)
    numbers = [[x for x in (-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, np.inf) if a <= x <= b] for a, b in ends]
    for x, y in itertools.product(*numbers):
        with np.errstate(all="ignore"):
            found = float(FACTS[name].numpy(np.float64(x), np.float64(y)))
        assert (low, high) == WILD if np.isnan(found) else low <= found <= high, (x, y, found, low, high)


@pytest.mark.parametrize("name", TAME)
def test_derivatives_are_finite_where_an_op_is_said_to_be_tame(name: str) -> None:
    rng, kind = np.random.default_rng(1), np.dtype(np.float64)
    arity, tame = len(FACTS[name].partials or ()), 0
    with cg.options(engine="reference", strong_zeros=False), np.errstate(all="ignore"):
        gradient = cg.function(cg.grad(lambda *xs: getattr(np, name)(*xs).sum(), argnums=tuple(range(arity))))
        for _ in range(60):
            # Sums and products that overflow are not looked for.
            ends = [tuple(np.clip(intervals(rng, kind), -1e3, 1e3)) for _ in range(arity)]
            if TAME[name](limits_of(kind), *ends):
                tame += 1
                points = [rng.permutation(inside(rng, e, kind, 10)) for e in ends]
                for slope in gradient(*points):
                    assert np.isfinite(slope).all(), ends
    assert tame > 0


X = np.array([0.3, -1.2, 2.5, 0.0])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ranges_of_carries_are_found_by_widening(dtype: Any) -> None:
    """A counter and a step size are never below 0; a carry that falls by 1 in each iteration passes 0."""
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

    for f, strong in ((rising, False), (halved, False), (falling, True)):
        assert ("strong_multiply" in str(cg.function(cg.grad(f)).graph(x))) == strong
    assert cg.check_grads(rising, (X[:3],), against=("finite_differences",)).ok
