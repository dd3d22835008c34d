"""Rows whose sizes differ between iterations are handled by machine code alone, with a budget and without."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruments.natively import run_natively
from instruments.sessions import checked_session
from plan.plans import executed

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.runtime import Frame
from ctrlgrad.engines.native.stacks import FrameStack
from ctrlgrad.errors import ExecutionError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Builder, Graph, TensorType
from ctrlgrad.runtime.stack import BlockStack

DOUBLE = np.dtype(np.float64)
Arguments = list[Any]


def pooled(w: Any, q: Any, x: Any, ends: Any) -> Any:
    """Attention over each of many sequences that are stored end to end."""

    def body(t: Any, total: Any) -> Any:
        h = cnp.tanh(x[ends[t] : ends[t + 1]] @ w)
        a = cnp.exp(h @ q)
        return total + cnp.sum((a / cnp.sum(a) @ h) ** 2)

    return cg.fori_loop(0, ends.shape[0] - 1, body, 0.0)


def cached(w: Any, x: Any) -> Any:
    """Attention over a cache that grows by one row an iteration."""

    def body(t: Any, c: Any) -> Any:
        keys, h = c
        a = cnp.exp(keys @ h)
        h = cnp.tanh(w @ (a / cnp.sum(a) @ keys) + x[t])
        return cnp.concat([keys, h[None]]), h

    start = cg.unknown_dims(cnp.zeros((1, w.shape[0])), 0), cnp.zeros(w.shape[0])
    return cnp.sum(cg.fori_loop(0, x.shape[0], body, start)[1] ** 2)


def in_nested_loops(w: Any, ends: Any) -> Any:
    """Rows of two varying sizes, some empty, pushed in a branch of an inner loop."""

    def inner(k: Any, c: Any) -> Any:
        part = lambda: cnp.sum(cnp.sin(cnp.tanh(w[ends[k] :, k:] @ (w[k:, : ends[k]] * c)) * 0.5))
        return cg.cond(k % 3 == 1, lambda: c * 0.5, part)

    return cg.fori_loop(0, 3, lambda t, c: c + cg.fori_loop(0, ends.shape[0], inner, c * 0.3), 0.4)


def joined(x: Any, ends: Any) -> Any:
    """A TensorArray of rows of different sizes, read as one array."""
    rows = cg.TensorArray("float64", element_shape=(None, 2))
    rows = cg.fori_loop(0, ends.shape[0] - 1, lambda t, a: a.push(np.sin(x[ends[t] : ends[t + 1]])), rows)
    whole = rows.concat()
    return cnp.sum(whole * cnp.cumsum(whole, axis=0))


def sequences(counts: list[int], width: int = 3, seed: int = 0) -> Arguments:
    rng = np.random.default_rng(seed)
    ends = np.cumsum([0, *counts])
    return [rng.normal(size=(width, width)) * 0.5, rng.normal(size=width), rng.normal(size=(ends[-1], width)), ends]


CACHE = [np.random.default_rng(1).normal(size=shape) * 0.6 for shape in ((3, 3), (5, 3))]
NESTED = [np.random.default_rng(2).normal(size=(5, 5)) * 0.7, np.array([4, 0, 2, 5, 1])]
JOINED = [np.random.default_rng(3).normal(size=(9, 2)), np.array([0, 2, 2, 7, 9])]
PROGRAMS: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "pooled": (pooled, sequences([3, 1, 5])),
    "cached": (cached, CACHE),
    "in_nested_loops": (in_nested_loops, NESTED),
    "joined": (joined, JOINED),
}


def derivative(fn: Callable[..., Any], order: int) -> Callable[..., Any]:
    """The gradient by the first argument, or the gradient of its weighted sum."""
    for _ in range(order):
        before = fn
        fn = cg.grad(lambda *a, f=before: cnp.sum(cnp.sin(f(*a))))
    return fn


@pytest.mark.parametrize("order", (0, 1, 2))
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_are_those_of_the_reference_engine(name: str, order: int) -> None:
    fn, arguments = PROGRAMS[name]
    graph = cg.function(derivative(fn, order)).graph(*arguments)
    expected = run_on("reference", graph, arguments)
    for found in (run_natively(graph, arguments), executed(optimised_graph(graph), arguments)):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", (1, 2))
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_finite_differences(name: str, order: int) -> None:
    fn, (x, *rest) = PROGRAMS[name]
    lower = cg.function(lambda *a: cnp.sum(cnp.sin(derivative(fn, order - 1)(*a))), engine="native")
    step = 1e-6 * np.random.default_rng(9).normal(size=x.shape)
    slope = (lower(x + step, *rest) - lower(x - step, *rest)) / 2e-6
    found = np.sum(cg.function(derivative(fn, order), engine="native")(x, *rest) * step) / 1e-6
    np.testing.assert_allclose(found, slope, rtol=1e-6)


def jax_pooled(w: Any, q: Any, x: Any, ends: Any) -> Any:
    total = 0.0
    for start, end in itertools.pairwise(ends):
        h = jnp.tanh(x[start:end] @ w)
        a = jnp.exp(h @ q)
        total += jnp.sum((a / jnp.sum(a) @ h) ** 2)
    return total


def jax_cached(w: Any, x: Any) -> Any:
    keys, h = jnp.zeros((1, w.shape[0])), jnp.zeros(w.shape[0])
    for row in x:
        a = jnp.exp(keys @ h)
        h = jnp.tanh(w @ (a / jnp.sum(a) @ keys) + row)
        keys = jnp.concatenate([keys, h[None]])
    return jnp.sum(h**2)


@pytest.mark.parametrize("order", (1, 2))
@pytest.mark.parametrize("twin, name", [(jax_pooled, "pooled"), (jax_cached, "cached")])
def test_gradients_are_those_of_jax_unrolled(twin: Callable[..., Any], name: str, order: int) -> None:
    fn, arguments = PROGRAMS[name]
    expected = twin
    for _ in range(order):
        expected = jax.grad(lambda *a, f=expected: jnp.sum(jnp.sin(f(*a))))
    found = cg.function(derivative(fn, order), engine="native")(*arguments)
    with jax.enable_x64(True):
        np.testing.assert_allclose(found, expected(*arguments), rtol=1e-10, atol=1e-12)


def requests(run: Callable[[], Any]) -> Counter[Request]:
    """Count the requests of compiled code in a run."""
    counts: Counter[Request] = Counter()
    serve = Frame.serve

    def counted(self: Frame, request: int, a: int, b: int) -> None:
        counts[Request(request)] += 1
        serve(self, request, a, b)

    with mock.patch.object(Frame, "serve", counted):
        run()
    return counts


@pytest.mark.parametrize("fn", [derivative(pooled, order) for order in (0, 1, 2)])
def test_iterations_call_no_python(fn: Callable[..., Any]) -> None:
    """Iterations call no Python: many sequences make as many requests as few, all for memory that grows."""
    step = cg.function(fn, engine="native")
    few, many = sequences([30, 1, 2, 30, 20]), sequences([30, 1, 2, 30, 20] * 20)
    for arguments in (few, many):
        step(*arguments)
    before = requests(lambda: step(*few))
    after = requests(lambda: step(*many))
    assert Request.COMPUTE not in before + after
    assert sum(after.values()) <= sum(before.values()) + 4


def test_explain_tells_that_rows_differ() -> None:
    report = cg.function(cg.grad(pooled), engine="native").explain(*sequences([3, 1, 5]))
    assert not any(loop.ops for loop in report.all_loops())
    assert "tanh_stack, rows whose sizes differ: the result of tanh, needed backwards" in str(report)
    assert "dim_stack, 8 bytes: the result of dim" in str(report)


def test_rows_leave_under_a_budget_and_come_back() -> None:
    arguments = sequences([100 + 7 * k % 90 for k in range(60)], 8)
    graph = cg.function(cg.grad(pooled)).graph(*arguments)
    expected = run_on("native", graph, arguments)
    inputs = sum(x.nbytes for x in arguments)
    with checked_session(inputs) as session:
        np.testing.assert_allclose(run_natively(graph, arguments)[0], expected[0], rtol=1e-12)
        (manager,) = session.managers.values()
        assert manager.stats.bytes_out > 0
        assert session.recording is not None
        assert not session.recording.fell_back


# Stacks of elements.


def in_runs(given: BlockStack, pops: list[int], pushes: list[list[float]]) -> BlockStack:
    """Replay compiled code on a copy of a stack: pop runs of elements, then push new ones."""
    words = np.zeros(frame.STACK_WORDS, np.int64)
    running = FrameStack(0, words, DOUBLE, ())
    running.hold(given.copy())
    for count in pops:
        if words[frame.COUNT] < count:
            running.back(count)
        words[frame.COUNT] -= count
    for run in pushes:
        if words[frame.COUNT] + len(run) > words[frame.CAPACITY]:
            running.grow((), len(run))
        # No elements need no memory.
        if running.open is not None:
            array = running.open.storage.open()
            array[words[frame.COUNT] : words[frame.COUNT] + len(run)] = run
        words[frame.COUNT] += len(run)
    stack: BlockStack = running.settle()
    return stack


@pytest.mark.parametrize("seed", range(5))
def test_a_run_is_in_one_piece_and_versions_do_not_see_each_other(seed: int) -> None:
    draw = random.Random(seed)
    stacks: list[BlockStack] = [BlockStack(DOUBLE, ())]
    models: list[list[list[float]]] = [[]]
    for number in range(200):
        which = draw.randrange(max(0, len(stacks) - 8), len(stacks))
        model = models[which]
        pops = draw.randrange(min(len(model), 10) + 1) if draw.random() < 0.5 else 0
        kept, taken = model[: len(model) - pops], model[len(model) - pops :]
        pushes = [[float(number)] * draw.choice((0, 1, 5, 300)) for _ in range(draw.choice((0, 1, 3)))]
        stacks.append(in_runs(stacks[which], [len(run) for run in reversed(taken)], pushes))
        models.append(kept + pushes)
    for stack, model in zip(stacks, models, strict=True):
        np.testing.assert_array_equal(stack.tensor(), [x for run in model for x in run])


def test_a_run_that_no_block_holds_is_refused() -> None:
    given = in_runs(BlockStack(DOUBLE, ()), [], [[1.0] * 5])
    with pytest.raises(ExecutionError, match="popped more"):
        in_runs(given, [6], [])


def asked_for() -> Graph:
    """A stack of a given number of initial rows, onto which two rows are pushed."""
    builder, element = Builder(name="rows"), (None,)
    number = builder.input(TensorType(np.dtype(np.int64), ()))
    rows = [builder.input(TensorType(DOUBLE, element)) for _ in range(2)]
    stack = builder.emit("stack_new", (number,), {"element": TensorType(DOUBLE, element)})
    for row in rows:
        stack = builder.emit("stack_push", (stack, row))
    return builder.finish([builder.emit("stack_length", (stack,))])


@pytest.mark.parametrize("number", (0, 2))
@pytest.mark.parametrize("sizes", [(3, 3), (2, 3)])
def test_a_stack_that_is_taken_to_begin_without_rows_may_have_some(number: int, sizes: tuple[int, int]) -> None:
    graph = asked_for()
    arguments = [np.int64(number), *map(np.zeros, sizes)]
    assert run_natively(graph, arguments)[0] == executed(graph, arguments)[0] == number + 2
