"""Programs written for JAX give here what they give there, by a change of their imports alone: values, gradients and
curves of training. Where JAX has no reverse mode, its forward mode and central differences judge."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import ctrlgrad as cg
from ports.changed_imports import PROGRAMS, load, with_imports_changed
from ports.judging import assert_same, central_slope, direction, forward_slope, slope


@pytest.fixture(params=["reference", "native"])
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    with jax.enable_x64(True), cg.options(engine=request.param):
        yield


each_engine = pytest.mark.usefixtures("engine")
# JAX's results in a test, kept because the engines run one after the other.
_ANSWERS: dict[str, list[Any]] = {}


@pytest.fixture
def by_jax(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`by_jax(fn, *args)` is `fn(*args)`, which one engine's test has computed for that of the other one too."""
    answers = _ANSWERS.setdefault(re.sub(r"reference|native", "", request.node.name), [])
    calls = itertools.count()

    def answer(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        number = next(calls)
        if number == len(answers):
            answers.append(fn(*args, **options))
        return answers[number]

    return answer


def key(seed: int) -> np.ndarray:
    return np.array([0, seed], np.uint32)


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_a_port_differs_in_lines_of_imports_alone(path: Any) -> None:
    text = path.read_text()
    changed = with_imports_changed(text)
    pairs = [(a, b) for a, b in zip(text.split("\n"), changed.split("\n"), strict=True) if a != b]
    assert pairs
    assert all(re.match(r"(import|from) jax\b", line) for line, _ in pairs)
    assert not re.search(r"^\s*(import|from) jax\b", changed, re.MULTILINE)


def test_a_line_of_imports_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no line for 'import jax\.experimental'"):
        with_imports_changed("import jax.experimental")


def test_a_port_that_computes_something_else_is_seen() -> None:
    port = load("normalising_flow")
    params = port.ours.init_params(key(0), 3, 2)
    with pytest.raises(AssertionError, match=r"\.log_scale"):
        assert_same(params._replace(log_scale=params.log_scale + 1e-6), params)


@each_engine
def test_an_rnn_classifier(by_jax: Any) -> None:
    port = load("rnn_classifier")
    params, data = port.ours.init_params(key(0), 3, 4, 3), port.ours.make_data(key(1), 12, 5, 3)
    assert_same((params, data), (port.jax.init_params(key(0), 3, 4, 3), port.jax.make_data(key(1), 12, 5, 3)))
    found = cg.value_and_grad(port.ours.loss, has_aux=True)(params, data)
    assert_same(found, by_jax(jax.jit(jax.value_and_grad(port.jax.loss, has_aux=True)), params, data))

    trained, (losses, accuracies) = port.ours.train(params, data, key(7), steps=8)
    # JAX's loop gathers from its own arrays alone.
    data = jax.tree.map(jax.numpy.asarray, data)
    assert_same((trained, (losses, accuracies)), by_jax(port.jax.train, params, data, key(7), steps=8))
    assert losses[-1] < losses[0]


@each_engine
def test_a_normalising_flow_whose_depth_depends_on_the_data(by_jax: Any) -> None:
    port = load("normalising_flow")
    params, params_of_jax = (reading.init_params(key(0), 3, 2) for reading in (port.ours, port.jax))
    xs = 3 * np.random.default_rng(1).standard_normal((4, 2))
    depths = port.ours.depths(params, xs)
    assert len(set(depths.tolist())) > 1
    assert_same(depths, by_jax(port.jax.depths, params_of_jax, xs))
    assert_same(port.ours.loss(params, xs), by_jax(port.jax.loss, params_of_jax, xs))
    assert_same(port.ours.score(params, xs[0]), by_jax(port.jax.score, params_of_jax, xs[0]))

    along = direction(params)
    found = slope(port.ours.loss_gradient(params, xs), along)
    of_jax = jax.jit(lambda p: port.jax.loss(p, xs))
    judged = by_jax(forward_slope, of_jax, params_of_jax, port.jax.Layers(*along))
    assert found == pytest.approx(judged, rel=1e-9)
    assert found == pytest.approx(central_slope(lambda p: port.ours.loss(p, xs), params, along), rel=1e-6)


def _at(f: Any, argument: Any, params: Any) -> Any:
    return f(params, argument)


BALL = {"gravity": 9.81, "drag": 0.05, "restitution": 0.8, "height": 2.0}


@each_engine
def test_an_adaptive_ode_with_events(by_jax: Any) -> None:
    port = load("adaptive_ode")
    end = port.ours.solve(BALL, 3.0)
    assert end.bounces == 4
    assert end.rejected > 0
    assert_same(end, by_jax(port.jax.solve, BALL, 3.0))


@each_engine
@pytest.mark.parametrize(("name", "argument"), [("time_of_bounce", 1), ("energy_at", 1.5)])
def test_the_gradient_of_an_adaptive_ode_passes_through_its_events(name: str, argument: Any, by_jax: Any) -> None:
    port = load("adaptive_ode")
    ours, theirs = (partial(_at, getattr(reading, name), argument) for reading in (port.ours, port.jax))
    value, gradient = cg.value_and_grad(ours)(BALL)
    assert_same(value, by_jax(theirs, BALL))
    along = direction(BALL)
    found = slope(gradient, along)
    assert found == pytest.approx(by_jax(forward_slope, theirs, BALL, along), rel=1e-8)
    # The lengths of the steps are constants to the derivative and not to the difference: they agree as far as the
    # solver is exact.
    assert found == pytest.approx(central_slope(ours, BALL, along), rel=1e-3)


@each_engine
def test_a_decoder_with_a_cache(by_jax: Any) -> None:
    port = load("decoder_with_cache")
    params = port.ours.init_params(key(0), 7, 2, 2, 3, 6)
    assert_same(params, port.jax.init_params(key(0), 7, 2, 2, 3, 6))
    batch = np.array([[1, 2, 3, 4, 5], [6, 5, 3, 3, 1]])
    gradient = cg.grad(port.ours.batch_loss)(params, batch)
    assert_same(gradient, by_jax(jax.jit(jax.grad(port.jax.batch_loss)), params, batch))

    losses, params_of_jax = [], params
    for _ in range(3):
        params, loss = port.ours.train_step(params, batch, 0.3)
        params_of_jax, loss_of_jax = by_jax(port.jax.train_step, params_of_jax, batch, 0.3)
        assert_same((params, loss), (params_of_jax, loss_of_jax))
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)


@each_engine
def test_a_decoder_samples_until_it_ends(by_jax: Any) -> None:
    port = load("decoder_with_cache")
    params = port.ours.init_params(key(0), 7, 2, 2, 3, 6)
    lengths = []
    for seed in (0, 2, 5):
        found = port.ours.generate(params, np.array([1, 2]), key(seed), temperature=4.0)
        assert_same(found, by_jax(port.jax.generate, params, np.array([1, 2]), key(seed), temperature=4.0))
        lengths.append(int(found[1]))
    assert lengths == [6, 2, 3]


@each_engine
def test_a_ppo_rollout_and_its_updates(by_jax: Any) -> None:
    port = load("ppo")
    learner, learner_of_jax = (reading.make_learner(key(0), 3) for reading in (port.ours, port.jax))
    assert_same(learner, learner_of_jax)
    batch, after = port.ours.batch_of(learner, 8)
    batch_of_jax, _ = by_jax(jax.jit(port.jax.batch_of, static_argnums=1), learner_of_jax, 8)
    assert_same(batch, batch_of_jax)
    # Episodes of six steps end in a rollout of eight.
    assert batch[0].done.any()
    assert (after.envs.step == 2).all()
    found = cg.value_and_grad(port.ours.loss, has_aux=True)(learner.params, batch)
    of_jax = jax.jit(jax.value_and_grad(port.jax.loss, has_aux=True))
    judged = by_jax(of_jax, learner_of_jax.params, batch_of_jax)
    assert_same(found, judged)

    for _ in range(2):
        learner, *curve = port.ours.update(learner, 8)
        learner_of_jax, *curve_of_jax = by_jax(port.jax.update, learner_of_jax, 8)
        assert_same((learner, curve), (learner_of_jax, curve_of_jax))


@pytest.fixture
def observed() -> tuple[Any, Any]:
    """Observations with gaps, after a model for each reading of the program."""
    port = load("kalman_smoother")
    values = np.array(-1.0), np.array(-0.5), np.array(0.3), np.array([0.1, 0.2]), np.array([0.0, 0.5])
    ys = np.cumsum(np.random.default_rng(0).standard_normal((7, 1)), axis=0)
    seen = np.arange(7) % 3 != 2
    return (port.ours.Model(*values), ys, seen), (port.jax.Model(*values), ys, seen)


@each_engine
def test_a_kalman_smoother_to_and_fro_and_in_parallel(observed: Any, by_jax: Any) -> None:
    port = load("kalman_smoother")
    for name in ("smoothed", "smoothed_in_parallel"):
        found = getattr(port.ours, name)(*observed[0])
        assert_same(found, by_jax(getattr(port.jax, name), *observed[1]))
        assert_same(found, port.ours.smoothed(*observed[0]))


@each_engine
@pytest.mark.parametrize("name", ["loss", "roughness", "roughness_in_parallel"])
def test_the_gradient_of_a_kalman_smoother(observed: Any, name: str, by_jax: Any) -> None:
    port = load("kalman_smoother")
    found = cg.value_and_grad(getattr(port.ours, name))(*observed[0])
    assert_same(found, by_jax(jax.jit(jax.value_and_grad(getattr(port.jax, name))), *observed[1]))


@each_engine
def test_a_kalman_filter_is_fitted_by_the_same_curve(observed: Any, by_jax: Any) -> None:
    port = load("kalman_smoother")
    model, curve = port.ours.fit(*observed[0])
    assert_same((model, curve), by_jax(port.jax.fit, *observed[1]))
    assert (np.diff(curve) < 0).all()


@each_engine
def test_a_fixed_point_layer(by_jax: Any) -> None:
    port = load("fixed_point_layer")
    params = port.ours.init_params(key(0), 3, 4)
    assert_same(params, port.jax.init_params(key(0), 3, 4))
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((5, 3)), rng.standard_normal(5)
    value, gradient = cg.value_and_grad(port.ours.loss)(params, x, y)
    assert_same((value, gradient), by_jax(jax.jit(jax.value_and_grad(port.jax.loss)), params, x, y))
    along = direction(params)
    found = slope(gradient, along)
    assert found == pytest.approx(central_slope(lambda p: port.ours.loss(p, x, y), params, along), rel=1e-6)
    # The loop itself has a derivative here, the same one: the rule may be left out.
    port.ours.fixed_point, rule = port.ours.fixed_point.fn, port.ours.fixed_point
    try:
        assert found == pytest.approx(slope(cg.grad(port.ours.loss)(params, x, y), along), rel=1e-8)
    finally:
        port.ours.fixed_point = rule

    trained, losses = port.ours.train(params, x, y, steps=5)
    assert_same((trained, losses), by_jax(port.jax.train, params, x, y, steps=5))
    assert (np.diff(losses) < 0).all()


@each_engine
def test_a_neural_ode_whose_steps_depend_on_the_times(by_jax: Any) -> None:
    port = load("neural_ode")
    params, times = port.ours.init_params(key(0), (2, 4, 2)), np.array([0.0, 0.05, 0.4, 1.0])
    assert_same(params, port.jax.init_params(key(0), (2, 4, 2)))
    curves = port.ours.make_data(key(1), 3, times)
    assert_same(curves, port.jax.make_data(key(1), 3, times))
    value, gradient = cg.value_and_grad(port.ours.loss)(params, curves, times)
    of_jax = lambda p: port.jax.loss(p, curves, times)
    assert_same(value, by_jax(jax.jit(of_jax), params))
    # JAX has no reverse mode of such a loop.
    along = direction(params)
    found = slope(gradient, along)
    params_of_jax, along_of_jax = ([port.jax.Layer(*layer) for layer in tree] for tree in (params, along))
    assert found == pytest.approx(by_jax(forward_slope, jax.jit(of_jax), params_of_jax, along_of_jax), rel=1e-9)
    assert found == pytest.approx(central_slope(lambda p: port.ours.loss(p, curves, times), params, along), rel=1e-6)
    losses = []
    for _ in range(4):
        params, value = port.ours.train_step(params, curves, times, 0.2)
        losses.append(float(value))
    assert losses == sorted(losses, reverse=True)
