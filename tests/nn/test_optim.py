"""Optimisers and schedules have Optax's values, change nothing in place, and keep dtypes."""

import copy
import inspect
import pickle

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import optim, tree
from ctrlgrad.errors import CtrlgradError, UserInputError


def adam_by_the_paper(x, grads, rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
    m = v = 0.0
    for t, g in enumerate(grads, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        x = x - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return x


def step(optimiser, grads, state, params):
    updates, state = optimiser.update(grads, state, params)
    return optim.apply_updates(params, updates), state


# Optimisers by Optax's names: a function of the module that makes each.
OPTIMISERS = {
    "sgd": lambda m: m.sgd(0.1),
    "sgd with momentum": lambda m: m.sgd(0.1, momentum=0.9),
    "sgd with Nesterov's momentum": lambda m: m.sgd(m.linear_schedule(0.1, 0.0, 4), momentum=0.9, nesterov=True),
    "adam": lambda m: m.adam(0.1),
    "adam, other numbers": lambda m: m.adam(0.1, 0.8, 0.95, 1e-3, eps_root=1e-4),
    "adam with Nesterov's momentum": lambda m: m.adam(m.cosine_decay_schedule(0.1, 4), nesterov=True),
    "adamw": lambda m: m.adamw(0.1),
    "adamw with a mask": lambda m: m.adamw(0.1, weight_decay=0.3, mask={"w": True, "b": [False]}),
    "adamw with a mask that is a function": lambda m: m.adamw(
        0.1, weight_decay=0.3, mask=lambda params: {"w": params["w"].ndim > 1, "b": [True]}
    ),
    "adamw with a schedule of decay": lambda m: m.adamw(0.1, weight_decay=m.linear_schedule(0.5, 0.0, 4)),
    "rmsprop": lambda m: m.rmsprop(0.1),
    "rmsprop, epsilon outside of the root": lambda m: m.rmsprop(0.1, 0.8, 1e-2, 0.5, eps_in_sqrt=False),
    "rmsprop, centred, with momentum": lambda m: m.rmsprop(0.1, centered=True, momentum=0.9, nesterov=True),
    "rmsprop without bias": lambda m: m.rmsprop(0.1, bias_correction=True),
    "rmsprop, centred, without bias": lambda m: m.rmsprop(0.1, eps=1e-3, centered=True, bias_correction=True),
    "adagrad": lambda m: m.adagrad(0.1),
    "adagrad from zero": lambda m: m.adagrad(0.1, 0.0),
    "lion": lambda m: m.lion(0.1),
    "clip": lambda m: m.chain(m.clip(0.3), m.sgd(0.1)),
    "clip_by_global_norm": lambda m: m.chain(m.clip_by_global_norm(0.7), m.adam(0.1)),
    "a chain of parts": lambda m: m.chain(
        m.scale_by_adam(),
        m.trace(0.5),
        m.add_decayed_weights(0.1),
        m.scale_by_schedule(lambda count: -0.1),
        m.scale(2.0),
    ),
    "identity": lambda m: m.identity(),
}

SCHEDULES = {
    "constant_schedule": lambda m: m.constant_schedule(0.3),
    "polynomial_schedule": lambda m: m.polynomial_schedule(1.0, 0.1, 2, 7, 3),
    "polynomial_schedule without steps": lambda m: m.polynomial_schedule(1.0, 0.1, 2, 0),
    "linear_schedule": lambda m: m.linear_schedule(0.0, 0.5, 6),
    "piecewise_constant_schedule": lambda m: m.piecewise_constant_schedule(1.0, {9: 0.1, 4: 0.5}),
    "exponential_decay": lambda m: m.exponential_decay(1.0, 5, 0.7, 2),
    "exponential_decay in stairs": lambda m: m.exponential_decay(1.0, 3, 0.7, staircase=True, end_value=0.4),
    "cosine_decay_schedule": lambda m: m.cosine_decay_schedule(1.0, 8, 0.1, 2.0),
    "warmup_constant_schedule": lambda m: m.warmup_constant_schedule(0.1, 1.0, 5),
    "warmup_cosine_decay_schedule": lambda m: m.warmup_cosine_decay_schedule(0.1, 1.0, 3, 9, 0.2),
    "warmup_exponential_decay_schedule": lambda m: m.warmup_exponential_decay_schedule(0.1, 1.0, 3, 4, 0.5),
    "join_schedules": lambda m: m.join_schedules([m.constant_schedule(1.0), m.linear_schedule(1.0, 0.0, 4)], [5]),
}


def drawn(seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {"w": rng.standard_normal((3, 2)).astype(dtype), "b": [rng.standard_normal(2).astype(dtype)]}


@pytest.fixture
def optax():
    """Optax, computing in float64."""
    import jax

    found = pytest.importorskip("optax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield found
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_updates_and_states_are_those_of_optax(name, optax):
    ours, theirs = OPTIMISERS[name](optim), OPTIMISERS[name](optax)
    params = drawn(0)
    state, their_state = ours.init(params), theirs.init(params)
    for count in range(5):
        grads = drawn(count + 1)
        updates, state = ours.update(grads, state, params)
        expected, their_state = theirs.update(grads, their_state, params)
        for found, wanted in zip(tree.leaves((updates, state)), tree.leaves((expected, their_state)), strict=True):
            # Optax computes a schedule of an int32 count in float32.
            np.testing.assert_allclose(found, wanted, rtol=5e-8, atol=1e-15)
        params = optim.apply_updates(params, updates)
        for found, wanted in zip(tree.leaves(updates), tree.leaves(params), strict=True):
            assert type(found) is np.ndarray and found.dtype == wanted.dtype == np.float64


@pytest.mark.parametrize("name", OPTIMISERS)
def test_float32_stays_and_is_optax_within_rounding(name, optax):
    ours, theirs = OPTIMISERS[name](optim), OPTIMISERS[name](optax)
    params, grads = drawn(0, np.float32), drawn(1, np.float32)
    updates, state = ours.update(grads, ours.init(params), params)
    expected, _ = theirs.update(grads, theirs.init(params), params)
    for found, wanted in zip(tree.leaves(updates), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    dtypes = {leaf.dtype for leaf in tree.leaves((updates, state, optim.apply_updates(params, updates)))}
    assert dtypes <= {np.dtype(np.float32), np.dtype(np.int32)}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_those_of_optax_and_the_same_when_traced(name, optax):
    ours, theirs = SCHEDULES[name](optim), SCHEDULES[name](optax)
    found = [ours(count) for count in range(14)]
    np.testing.assert_allclose(found, [theirs(count) for count in range(14)], rtol=1e-14, atol=1e-16)
    traced = cg.function(lambda count: cnp.asarray(ours(count)).astype(np.float64))
    np.testing.assert_allclose([traced(np.int32(count)) for count in range(14)], found, rtol=1e-14, atol=1e-16)


def test_optax_trains_our_pytrees(optax):
    """Optax updates from our gradients, and Optax functions within a chain of ours."""
    loss = lambda params: cnp.sum((params["w"] - 3.0) ** 2)
    for optimiser in (optax.adam(0.5), optim.chain(optim.clip(10.0), optax.adam(0.5)), optax.chain(optim.adam(0.5))):
        params = {"w": np.zeros(3)}
        state = optimiser.init(params)
        for _ in range(100):
            updates, state = optimiser.update(cg.grad(loss)(params), state, params)
            params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params["w"], 3.0, atol=0.05)


def test_adam_is_algorithm_1_of_the_paper():
    rng = np.random.default_rng(0)
    start = rng.standard_normal(5)
    # One entry has gradients as small as epsilon: the place of epsilon shows there.
    grads = rng.standard_normal((20, 5)) * np.array([1, 1e3, 1e-3, 1e-8, 0])
    optimiser = optim.adam(0.05)
    params, state = {"w": start}, optimiser.init({"w": start})
    for g in grads:
        params, state = step(optimiser, {"w": g}, state, params)
    np.testing.assert_allclose(params["w"], adam_by_the_paper(start, grads, 0.05), rtol=1e-12)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_update_leaves_its_arguments_as_they_are(name):
    optimiser = OPTIMISERS[name](optim)
    params, grads = drawn(0), drawn(1)
    state = optimiser.init(params)
    before = copy.deepcopy((grads, state, params))
    optimiser.update(grads, state, params)
    np.testing.assert_equal((grads, state, params), before)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_moments_have_the_dtype_that_is_asked_for(dtype):
    params = drawn(0, np.float32)
    for optimiser in (optim.adam(0.1, mu_dtype=dtype), optim.lion(0.1, mu_dtype=dtype)):
        state = optimiser.update(params, optimiser.init(params), params)[1]
        assert {leaf.dtype.name for leaf in tree.leaves(state[0].mu)} == {dtype}


def test_a_schedule_gets_the_number_of_the_step():
    seen = []
    optimiser = optim.adam(lambda count: float(seen.append(count) or 0.1))
    params = np.ones(1)
    state = optimiser.init(params)
    for _ in range(3):
        params, state = step(optimiser, np.ones(1), state, params)
    assert seen == [0, 1, 2] and {type(count) for count in seen} == {int}


def test_clipping_scales_to_the_limit_and_keeps_the_direction():
    grads = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}
    clipped, _ = optim.clip_by_global_norm(2.5).update(grads, optim.EmptyState())
    assert optim.global_norm(clipped) == pytest.approx(2.5)
    np.testing.assert_allclose(clipped["a"], grads["a"] / 2)
    np.testing.assert_allclose(clipped["b"], grads["b"] / 2)
    assert optim.clip_by_global_norm(5.1).update(grads, optim.EmptyState())[0]["a"] is grads["a"]


def test_the_norm_of_float32_gradients_does_not_overflow():
    assert optim.global_norm([np.full(4, 1e30, np.float32)]) == pytest.approx(2e30)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_updates_in_a_traced_loop_are_those_outside(name, dtype):
    optimiser = OPTIMISERS[name](optim)

    def loss(params, t):
        return cnp.sum((cnp.sin(params["w"]) * t - params["b"][0]) ** 2)

    def following(params, state, t):
        return step(optimiser, cg.grad(loss)(params, t), state, params)

    def train(params):
        body = lambda i, carry: following(*carry, (i + 1).astype(dtype))
        return cg.fori_loop(0, 6, body, (params, optimiser.init(params)))

    params = start = drawn(0, dtype)
    state = optimiser.init(start)
    for i in range(6):
        params, state = following(params, state, dtype(i + 1))
    found = train(start)
    for x, y in zip(tree.leaves(found), tree.leaves((params, state)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3 if dtype == np.float32 else 1e-11, atol=1e-6)
        assert x.dtype == y.dtype


@pytest.mark.parametrize("name", ["sgd with Nesterov's momentum", "adam", "adamw", "clip_by_global_norm", "adagrad"])
def test_training_has_derivatives(name):
    """The loss after some steps, by what the parameters were at first."""
    optimiser = OPTIMISERS[name](optim)
    loss = lambda params: cnp.sum((cnp.sin(params["w"]) - params["b"][0]) ** 2)

    def trained(w):
        params = {"w": w, "b": [np.array([0.2, -0.4])]}
        body = lambda i, carry: step(optimiser, cg.grad(loss)(carry[0]), carry[1], carry[0])
        return loss(cg.fori_loop(0, 4, body, (params, optimiser.init(params)))[0])

    cg.check_grads(trained, (drawn(0)["w"],))


def test_python_numbers_are_parameters():
    optimiser = optim.adam(0.1)
    params = {"w": 1.0}
    params, _ = step(optimiser, {"w": np.array(2.0)}, optimiser.init(params), params)
    np.testing.assert_allclose(params["w"], 0.9)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda o, p, g: o.update(p, g, o.init(p)), "is no state of this chain"),
        (lambda o, p, g: o.update(g, o.init(p)[::-1], p), "is no state of optim.adam"),
        (lambda o, p, g: o.update([g["w"]], o.init(p), p), "the parameters and the gradients are different pytrees"),
        (
            lambda o, p, g: o.update({"w": np.ones(4)}, o.init(p), p),
            r"the shapes of the parameters and of the gradients",
        ),
        (lambda o, p, g: o.update(g, o.init({"w": np.ones(4)}), p), r"the shapes of the gradients and of the state"),
        (lambda o, p, g: o.update(g, o.init(p)), r"update needs the parameters"),
        (lambda o, p, g: optim.apply_updates(p, [g["w"]]), "the parameters and the updates are different pytrees"),
    ],
)
def test_an_update_says_which_argument_does_not_fit(call, words):
    params = {"w": np.ones(3)}
    with pytest.raises(CtrlgradError, match=words) as caught:
        call(optim.adamw(0.1), params, {"w": np.ones(3)})
    assert "test_optim.py" in str(caught.value) and "try: " in str(caught.value)


def test_an_optimiser_says_why_it_does_not_pickle():
    with pytest.raises(CtrlgradError, match="store its state"):
        pickle.dumps(optim.adam(0.1))


@pytest.mark.parametrize(
    "make", [lambda: optim.cosine_decay_schedule(1.0, 0), lambda: optim.piecewise_constant_schedule(1.0, {3: -1.0})]
)
def test_schedules_refuse_numbers_without_meaning(make):
    with pytest.raises(UserInputError, match="try: "):
        make()


def test_parameters_have_the_names_order_and_defaults_of_optax():
    """Optax may have further ones behind ours."""
    optax = pytest.importorskip("optax")
    later = {"chain", "scale_by_learning_rate"}  # `*args` by another name; a default that only a newer Optax has
    names = {name for name in optim.__all__ if inspect.isfunction(getattr(optim, name)) and hasattr(optax, name)}
    assert len(names - later) > 20
    for name in names - later:
        ours, theirs = (
            [(p.name, p.default) for p in inspect.signature(getattr(library, name)).parameters.values()]
            for library in (optim, optax)
        )
        assert theirs[: len(ours)] == ours, name
