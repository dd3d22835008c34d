"""Adam is the algorithm of the paper, changes nothing in place, and keeps dtypes."""

import copy

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import optim
from ctrlgrad.errors import CtrlgradError


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rate", [0.1, optim.warmup_cosine(0.1, 10, 3)], ids=["number", "schedule"])
def test_updates_in_a_traced_loop_are_those_outside_and_have_derivatives(rate, dtype):
    optimiser = optim.adam(rate)

    def loss(params, t):
        return cnp.sum((cnp.sin(params["w"]) * t - params["b"]) ** 2)

    def step(params, state, t):
        grads = optim.clip_by_global_norm(cg.grad(loss)(params, t), 0.7)
        return optimiser.update(grads, state, params)

    def train(params):
        body = lambda i, carry: step(*carry, (i + 1).astype(dtype))
        return cg.fori_loop(0, 6, body, (params, optimiser.init(params)))

    start = {"w": np.arange(3, dtype=dtype), "b": dtype(0.5)}
    params, state = start, optimiser.init(start)
    for i in range(6):
        params, state = step(params, state, dtype(i + 1))
    found = train(start)
    assert found[1]["step"] == 6
    np.testing.assert_allclose(found[0]["w"], params["w"], rtol=1e-5 if dtype == np.float32 else 1e-13)
    assert found[0]["w"].dtype == dtype
    if dtype == np.float64:
        cg.check_grads(
            lambda w: loss(train({"w": w, "b": start["b"]})[0], 1.0), (start["w"],), against=("finite_differences",)
        )


def test_python_numbers_are_parameters():
    optimiser = optim.adam(0.1)
    params = {"w": 1.0}
    params, _ = optimiser.update({"w": np.array(2.0)}, optimiser.init(params), params)
    np.testing.assert_allclose(params["w"], 0.9)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda o, p, g: o.update(p, g, o.init(p)), "is no state of adam"),
        (lambda o, p, g: o.update([g["w"]], o.init(p), p), "the parameters and the gradients are different pytrees"),
        (
            lambda o, p, g: o.update({"w": np.ones(4)}, o.init(p), p),
            r"the shapes of the parameters and of the gradients",
        ),
        (lambda o, p, g: o.update(g, o.init({"w": np.ones(4)}), p), r"the shapes of the parameters and of the state"),
    ],
)
def test_what_does_not_fit_an_update_is_said(call, words):
    params = {"w": np.ones(3)}
    with pytest.raises(CtrlgradError, match=words) as caught:
        call(optim.adam(0.1), params, {"w": np.ones(3)})
    assert "test_optim.py" in str(caught.value) and "try: " in str(caught.value)
