"""Adam is the algorithm of the paper, changes nothing in place, and keeps dtypes."""

import copy

import numpy as np
import pytest

from ctrlgrad import optim


def adam_by_the_paper(x, grads, rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
    m = v = 0.0
    for t, g in enumerate(grads, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        x = x - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return x


def test_adam_is_algorithm_1_of_the_paper():
    rng = np.random.default_rng(0)
    start = rng.standard_normal(5)
    # One entry has gradients as small as epsilon: the place of epsilon shows there.
    grads = rng.standard_normal((20, 5)) * np.array([1, 1e3, 1e-3, 1e-8, 0])
    optimiser = optim.adam(0.05)
    params, state = {"w": start}, optimiser.init({"w": start})
    for g in grads:
        params, state = optimiser.update({"w": g}, state, params)
    np.testing.assert_allclose(params["w"], adam_by_the_paper(start, grads, 0.05), rtol=1e-12)


def test_update_leaves_its_arguments_as_they_are():
    optimiser = optim.adam(0.1)
    params = {"w": np.ones(3, np.float32), "list": [np.zeros((2, 2))]}
    grads = {"w": np.ones(3, np.float32), "list": [np.ones((2, 2))]}
    state = optimiser.init(params)
    before = copy.deepcopy((grads, state, params))
    optimiser.update(grads, state, params)
    np.testing.assert_equal((grads, state, params), before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_stay(dtype):
    optimiser = optim.adam(lambda step: 0.1)
    params = {"w": np.ones(3, dtype)}
    params, state = optimiser.update({"w": np.ones(3, dtype)}, optimiser.init(params), params)
    assert params["w"].dtype == state["mean"]["w"].dtype == state["square"]["w"].dtype == dtype


def test_a_schedule_gets_the_number_of_the_step():
    seen = []
    optimiser = optim.adam(lambda step: float(seen.append(step) or 0.1))
    params = np.ones(1)
    state = optimiser.init(params)
    for _ in range(3):
        params, state = optimiser.update(np.ones(1), state, params)
    assert seen == [0, 1, 2]


def test_clipping_scales_to_the_limit_and_keeps_the_direction():
    grads = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}
    clipped = optim.clip_by_global_norm(grads, 2.5)
    assert optim.global_norm(clipped) == pytest.approx(2.5)
    np.testing.assert_allclose(clipped["a"], grads["a"] / 2)
    np.testing.assert_allclose(clipped["b"], grads["b"] / 2)
    assert optim.clip_by_global_norm(grads, 5.0) is grads


def test_the_norm_of_float32_gradients_does_not_overflow():
    assert optim.global_norm([np.full(4, 1e30, np.float32)]) == pytest.approx(2e30)
