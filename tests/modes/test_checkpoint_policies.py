"""Policies of `checkpoint` decide which values are saved and which are recomputed; derivatives are the same."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.ad_checkpoint import checkpoint_name
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph, walk
from ctrlgrad.passes import simplify

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
name_of_jax = pytest.importorskip("jax.ad_checkpoint").checkpoint_name


@pytest.fixture(autouse=True)
def _doubles() -> Any:
    with jax.enable_x64(True):
        yield


W = np.array([[0.3, 0.8], [-0.5, 1.1]])
X = np.array([0.4, -0.7])
OURS, THEIRS = cg.checkpoint_policies, jax.checkpoint_policies


def layers(w, x, np=np, checkpoint_name=checkpoint_name):
    hidden = checkpoint_name(np.sin(w @ x), "hidden")
    return np.exp(checkpoint_name(np.tanh(w @ hidden), "out"))


@cache
def derivatives_of_jax():
    """The gradients and the second derivatives: what is saved changes none of them."""
    named = lambda w, x: layers(w, x, jnp, name_of_jax).sum()
    return jax.jit(lambda w, x: (jax.grad(named, (0, 1))(w, x), jax.hessian(named)(w, x)))(W, X)


def policies(p):
    return {
        "none": None,
        "nothing": p.nothing_saveable,
        "everything": p.everything_saveable,
        "dots": p.dots_saveable,
        "unbatched dots": p.dots_with_no_batch_dims_saveable,
        "hidden": p.save_only_these_names("hidden"),
        "both names": p.save_only_these_names("hidden", "out"),
        "not hidden": p.save_any_names_but_these("hidden"),
        "all but hidden": p.save_anything_except_these_names("hidden"),
        "either": p.save_from_both_policies(p.dots_saveable, p.save_only_these_names("hidden")),
    }


def gradient_graph(policy, fn=layers, *args) -> Graph:
    step = cg.checkpoint(fn, policy=policy)
    return simplify(cg.function(cg.value_and_grad(lambda w, x: step(w, x).sum())).graph(*(args or (W, X))))


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in walk(graph))


@pytest.mark.parametrize("name", policies(OURS))
def test_derivatives_are_those_of_jax_whatever_is_saved(name):
    assert name in policies(THEIRS)
    step = cg.checkpoint(layers, policy=policies(OURS)[name])
    loss = lambda w, x: step(w, x).sum()
    gradients, hessian = derivatives_of_jax()
    for found, expected in zip(cg.grad(loss, (0, 1))(W, X), gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(cg.hessian(loss)(W, X), hessian, rtol=1e-10)
    cg.check_grads(loss, (W, X), order=2, modes=("rev", "fwd"), against=("finite_differences",))


@pytest.mark.parametrize(
    ("name", "again"),
    [
        # Of each policy which of (product, sin, tanh) stand in the gradient: forward, and once more if computed again.
        ("none", {"sin": 2, "tanh": 2, "exp": 2}),
        ("dots", {"sin": 2, "tanh": 2, "exp": 2}),
        ("hidden", {"sin": 1, "tanh": 2, "exp": 2}),
        ("both names", {"sin": 1, "tanh": 1, "exp": 2}),
        ("not hidden", {"sin": 2, "tanh": 1, "exp": 2}),
        ("all but hidden", {"sin": 2, "tanh": 1, "exp": 1}),
        ("either", {"sin": 1, "tanh": 2, "exp": 2}),
    ],
)
def test_saved_values_are_not_recomputed(name, again):
    found = ops(gradient_graph(policies(OURS)[name]))
    assert {op: found[op] for op in again} == again


def test_a_saved_product_is_not_computed_again():
    """Two products forward; backward one for each of the three cotangents that are wanted, and those computed again."""
    count = lambda policy: ops(gradient_graph(policy))["matmul"]
    assert count(OURS.dots_saveable) == count(OURS.everything_saveable) == count(None) - 2


def test_products_with_batch_dimensions_are_told_from_others():
    batched = lambda w, x: np.sin(np.sin(w @ x) @ w)
    args = (np.stack([W, W]), np.stack([W, -W]))
    count = lambda policy: ops(gradient_graph(policy, batched, *args))["matmul"]
    assert count(OURS.dots_saveable) == count(None) - 2
    assert count(OURS.dots_with_no_batch_dims_saveable) == count(None)
    args = (W, np.stack([W, -W]))
    assert count(OURS.dots_with_no_batch_dims_saveable) == count(None) - 2


def pushed_shapes(policy) -> list[tuple[int, ...]]:
    """Shapes of the values that a loop with a checkpoint as its body saves in each iteration."""
    step = cg.checkpoint(lambda w, y: checkpoint_name(np.sin(w @ y), "hidden")[:2] + y, policy=policy)
    w = np.ones((5, 2))
    loss = lambda w, x: cg.fori_loop(0, 3, lambda i, y: step(w, y), x).sum()
    graph = simplify(cg.function(cg.grad(loss)).graph(w, X))
    return sorted(node.operands[1].tensor.shape for node in walk(graph) if node.op.name == "stack_push")


def test_a_loop_saves_its_carry_and_what_the_policy_of_its_body_names():
    assert pushed_shapes(None) == [(2,)]
    assert pushed_shapes(OURS.dots_saveable) == [(2,), (5, 1)]
    assert pushed_shapes(OURS.save_only_these_names("hidden")) == [(2,)]  # the derivative of sin wants its operand
    assert pushed_shapes(OURS.save_only_these_names("other")) == [(2,)]


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("name", ["dots", "hidden", "all but hidden"])
def test_policies_hold_in_loops_and_rows(engine, name):
    step = cg.checkpoint(layers, policy=policies(OURS)[name])
    of = lambda body: cg.grad(lambda w: cg.vmap(lambda x: cg.fori_loop(0, 3, lambda i, y: body(w, y), x))(W).sum())
    with cg.options(engine=engine):
        np.testing.assert_allclose(of(step)(W), of(layers)(W), rtol=1e-12)
        rows = [cg.vmap(of(body))(np.stack([W, W * 0.5])) for body in (step, layers)]
    np.testing.assert_allclose(*rows, rtol=1e-12)


def test_a_name_changes_no_value_and_passes_pytrees():
    found = checkpoint_name({"a": X, "b": (2.0, np.arange(3))}, "kept")
    assert found["a"].tolist() == X.tolist() and found["b"][0] == 2.0 and found["b"][1].tolist() == [0, 1, 2]
    graph = cg.function(lambda x: checkpoint_name(x, "kept") * 2.0).graph(X)
    assert "name=kept" in str(graph)
    assert run_on("reference", graph, [X])[0].tolist() == (X * 2.0).tolist()


def test_unknown_policies_and_names_are_refused():
    with pytest.raises(CtrlgradError, match="save_only_these_names"):
        cg.checkpoint(layers, policy=lambda prim, *_, **__: True)
    with pytest.raises(CtrlgradError, match="expected: a string"):
        OURS.save_only_these_names(3)
    with pytest.raises(CtrlgradError, match="checkpoint_name: the name"):
        checkpoint_name(X, None)
