"""Slopes by finite differences: as exact as their own error estimate says, on one side of every jump."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ctrlgrad.verify.check import Sample, slope

SMOOTH: list[tuple[Callable[[np.float64], np.float64], float]] = [
    (lambda t: np.sin(1.0 + t), np.cos(1.0)),
    (lambda t: np.exp(3.0 * (1.0 + t)), 3.0 * np.exp(3.0)),
    (lambda t: (1.0 + t) ** 7, 7.0),
    (lambda t: np.sin(50.0 * (1.0 + t)), 50.0 * np.cos(50.0)),
    (lambda t: 1e6 + t, 1.0),
]


def slope_of(function: Callable[[np.float64], np.float64], path: Callable[[float], int] = lambda t: 0):
    centre = abs(float(function(np.float64(0.0))))
    return slope(lambda t: Sample(float(function(np.float64(t))), path(t)), 0.1, 4e-16 * centre)


@pytest.mark.parametrize(("function", "exact"), SMOOTH)
def test_smooth_functions(function: Callable[[np.float64], np.float64], exact: float) -> None:
    s = slope_of(function)
    assert s.is_conclusive
    assert abs(s.value - exact) <= 10.0 * s.error
    assert s.error <= 1e-8 * max(abs(exact), 1.0)


def test_a_singularity_nearby_shortens_the_step() -> None:
    with np.errstate(all="ignore"):
        s = slope_of(lambda t: np.log(0.01 + t))
    assert s.step < 0.01
    assert abs(s.value - 100.0) < 1e-6


def test_steps_that_leave_the_path_are_not_used() -> None:
    """A jump at 0.003: without the path, the larger steps would see it."""
    s = slope_of(lambda t: np.sin(t) + (5.0 if t > 0.003 else 0.0), path=lambda t: int(t > 0.003))
    assert s.is_conclusive
    assert s.step <= 0.003
    assert abs(s.value - 1.0) < 1e-9


def test_a_larger_step_back_on_the_path_is_not_used_either() -> None:
    """The path differs only for distances around 0.02: what lies beyond it is not extrapolated through it."""
    s = slope_of(lambda t: np.sin(t), path=lambda t: int(0.02 < abs(t) < 0.03))
    assert s.step < 0.02
    assert abs(s.value - 1.0) < 1e-9


def test_a_jump_at_the_point_itself_is_not_conclusive() -> None:
    s = slope_of(lambda t: np.sin(t), path=lambda t: int(t > 0.0))
    assert not s.is_conclusive
    assert np.isnan(s.value)
    assert s.reason == "every step changes a trip count or a branch"


def test_without_an_answer_there_is_a_reason() -> None:
    with np.errstate(all="ignore"):
        assert slope_of(np.sqrt).reason == "the function is not finite nearby"
        assert slope_of(lambda t: np.log(t - 1.0)).reason == "the function is not finite here"
    assert slope_of(np.sin).reason == ""


@pytest.mark.parametrize(("left", "right"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 2.5)])
def test_a_kink_is_told_by_half_the_distance_of_the_one_sided_slopes(left: float, right: float) -> None:
    s = slope_of(lambda t: np.sin(t) + (right if t > 0 else left) * np.exp(t) - (right if t > 0 else left))
    assert s.value == pytest.approx(1.0 + (left + right) / 2.0, abs=1e-2)
    assert s.kink == pytest.approx((right - left) / 2.0, rel=0.05)


@pytest.mark.parametrize("function", [f for f, _ in SMOOTH] + [lambda t: t**4, lambda t: t**3, lambda t: 0.0 * t])
def test_a_smooth_function_has_no_kink(function: Callable[[np.float64], np.float64]) -> None:
    assert slope_of(function).kink == 0.0


def test_noise_is_part_of_the_error() -> None:
    rng = np.random.default_rng(0)
    s = slope(lambda t: Sample(float(np.sin(t) + 1e-6 * rng.standard_normal())), 0.1, 1e-6)
    assert abs(s.value - 1.0) <= 10.0 * s.error
    assert s.error >= 1e-5
