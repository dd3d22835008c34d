"""Prepared launches: how little the host does for them, what they agree with, and which mistakes would be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.driver import Driver
from instruments.mutants import nothing, shows
from instruments.recorded import recorded_run
from instruments.stand_in import StandIn
from instruments.stand_in_runs import calls_on_stand_in, on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import stacks
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.prepared import reading, runner, walker
from ctrlgrad.engines.cuda.prepared.binding import Binding, RowMemory, StackRows
from ctrlgrad.ir import Graph


def lstm_loss(w: Any, u: Any, x: Any, n: Any) -> Any:
    def step(carry: Any) -> Any:
        t, h, c = carry
        gates = x[t] @ w + h @ u
        i, f, g, o = (gates[:, 3 * k : 3 * k + 3] for k in range(4))
        c = c * cnp.tanh(f) + cnp.tanh(i) * cnp.tanh(g)
        return t + 1, cnp.tanh(c) * cnp.exp(-o), c

    zero = np.zeros((2, 3))
    _, h, c = cg.while_loop(lambda carry: carry[0] < n, step, (0, zero, zero))
    return cnp.sum(h * h + c)


def lstm(steps: int, order: int) -> tuple[Graph, list[Any]]:
    """A recurrent network, or its gradients."""
    rng = np.random.default_rng(steps)
    w, u, x = rng.normal(size=(4, 12)) * 0.3, rng.normal(size=(3, 12)) * 0.3, rng.normal(size=(steps, 2, 4))
    arguments = [w, u, x, np.int64(steps)]
    fn = cg.grad(lstm_loss, argnums=(0, 1, 2)) if order else lstm_loss
    return cg.function(fn).graph(*arguments), arguments


@pytest.mark.parametrize("order", [0, 1])
def test_python_calls_do_not_grow_with_the_iterations(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an LSTM and of its gradient: one run of prepared launches for each loop, and as many calls of Python for 40
    steps as for 20. A block has room for all of them. Graphs are in `test_graphs`."""
    monkeypatch.setattr(stacks, "LEAST_ROWS", 64)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 1 << 20)
    library, calls, counts = StandIn(), [], []
    for steps in (20, 40):
        graph, arguments = lstm(steps, order)
        # The first run compiles.
        counts.append(on_stand_in(graph, arguments, library=library).counts)
        calls.append(calls_on_stand_in(lambda g=graph, x=arguments: on_stand_in(g, x, library=library)))
    assert calls[0] == calls[1]
    assert [c.runs for c in counts] == [1 + order] * 2
    assert counts[1].products == 2 * counts[0].products


def test_a_run_ends_where_a_block_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16, 32 and 64 rows; backwards those of 2, 32 and 16."""
    graph, leaves = lstm(50, 1)
    ran = on_stand_in(graph, leaves)
    assert_same(ran.results, on_reference(graph, leaves), 1e-9)
    assert (ran.counts.runs, ran.counts.graphs) == (3 + 3, 1 + 2)


def test_an_iteration_that_a_block_ends_in_is_run_step_by_step() -> None:
    """Three rows an iteration: of a block of 16 one is left, of the next one of 32 none."""

    def body(i: Any, carry: Any) -> Any:
        x, rows = carry
        return x + 1.0, rows.push(x).push(x * 2.0).push(x * 3.0)

    def rows(x: Any) -> Any:
        return cg.fori_loop(0, 17, body, (x, cg.TensorArray(np.float64, None, (2,))))[1].stack()

    x = np.array([0.7, 0.9])
    graph = cg.function(rows).graph(x)
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]))
    # 5 iterations, one by itself, 10, and the last one.
    assert ran.counts.runs == 3


def test_long_loops_give_python_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LONGEST_RUN", 4)
    x = np.ones(3)
    graph = cg.function(lambda x: cg.fori_loop(0, 10, lambda i, x: np.tanh(x) + x, x)).graph(x)
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]))
    assert ran.counts.runs == 3


def launching_of(fn: Callable[..., Any], *args: Any) -> list[str]:
    library = StandIn()
    graph = cg.function(fn).graph(*args)
    assert_same(on_stand_in(graph, args).results, on_reference(graph, args))
    return [loop.launching for loop in explain_on(library, optimised_graph(graph, is_for_gpu=True), args).all_loops()]


def test_explain_says_how_launches_are_put_on_the_stream() -> None:
    x = np.linspace(0.1, 1.0, 6)

    def loop(body: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        return lambda x: cg.fori_loop(0, 3, body, x)

    # A kernel, and the counter.
    assert launching_of(loop(lambda i, x: np.tanh(x)), x) == ["from a list of 2 an iteration"]
    assert launching_of(loop(lambda i, x: np.sort(x) * 0.5), x) == ["one by one (argsort is called in the library)"]
    assert launching_of(loop(lambda i, x: x * np.sum(x) + i), x) == ["from a list of 3 an iteration"]
    report = str(
        explain_on(
            StandIn(), optimised_graph(cg.function(loop(lambda i, x: np.tanh(x))).graph(x), is_for_gpu=True), [x]
        )
    )
    assert "  launched from a list of 2 an iteration\n" in report and "2 runs" not in report


def swapping(x: Any) -> Any:
    return cg.fori_loop(0, 5, lambda i, c: (c[1] * 1.5, c[0]), (x, x + 1.0))


def rotating(x: Any) -> Any:
    return cg.fori_loop(0, 4, lambda i, c: (c[1], c[2], c[0]), (x, x + 1.0, x * 2.0))


def shared(x: Any) -> Any:
    """One value is carried twice, and one as it lies otherwise."""

    def body(i: Any, c: Any) -> Any:
        y = np.tanh(c[0] + c[1])
        return y, y, c[1].T + y

    return cg.fori_loop(0, 3, body, (x, x * 2.0, x))


def updated(x: Any) -> Any:
    """An overwritten array is read before and after the update."""

    def body(i: Any, c: Any) -> Any:
        x, y = c
        changed = cnp.at(x)[i].add(x[i + 1])
        return changed, y + x + changed

    return cg.fori_loop(0, 2, body, (x, x))


def accumulated(x: Any) -> Any:
    """A product that is added in place, and one that is not, since its sum is read later."""

    def body(i: Any, c: Any) -> Any:
        total, kept = c
        return total + x @ x.T, kept + kept @ x + total @ x

    return cg.fori_loop(0, 3, body, (x * 0.0, x))


def summed(x: Any) -> Any:
    return cg.fori_loop(0, 3, lambda i, y: y + np.sum(y, axis=0) * 0.1 + np.sum(y, axis=1, keepdims=True), x)


def numbers(x: Any) -> Any:
    """Of the host, which the card computes where a kernel reads them."""

    def body(i: Any, y: Any) -> Any:
        factor = 1.0 + np.sin(i * 0.1)
        return np.where(i % 2 == 0, y * factor, y - factor) + i * i + 3 - i

    return cg.fori_loop(0, 3, body, x)


def backwards(x: Any) -> Any:
    return cg.fori_loop(0, 3, lambda i, y: y + x[2 - i] * (2 * i - 1), x[0])


@pytest.mark.parametrize("fn", [swapping, rotating, shared, updated, accumulated, summed, numbers, backwards])
def test_loops_with_unusual_carries_are_prepared(fn: Callable[[Any], Any]) -> None:
    x = np.linspace(-0.5, 1.0, 9).reshape(3, 3)
    assert all(text.startswith("from a list") for text in launching_of(fn, x))
    loss = lambda x: sum(np.sum(np.sin(y)) for y in cg.tree.leaves(fn(x)))
    graph = cg.function(cg.grad(loss)).graph(x)
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]), 1e-9)


@pytest.mark.parametrize("use", ["product", "kernel", "reduction", "row"])
def test_a_constant_that_lies_by_columns_is_read_where_its_elements_are(use: str) -> None:
    """A list took the place of an element from the shape: it read the transposed of `weights.T`."""
    weights = np.linspace(-1.0, 1.0, 9).reshape(3, 3).T
    step = {
        "product": lambda i, h: np.tanh(weights @ h),
        "kernel": lambda i, h: np.tanh(weights * h),
        "reduction": lambda i, h: np.tanh(cnp.sum(weights * h, axis=0)),
        "row": lambda i, h: np.tanh(cnp.asarray(weights)[i] + h),
    }[use]
    x = np.eye(3) * 0.3 if use == "kernel" else np.array([0.1, 0.2, 0.4])
    fn = lambda x: cg.fori_loop(0, 3, step, x)
    assert launching_of(fn, x)[0].startswith("from a list")
    graph = cg.function(cg.grad(lambda x: cnp.sum(fn(x) ** 2))).graph(x)
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]), 1e-9)


def test_results_are_not_overwritten_by_the_next_call() -> None:
    library, x = StandIn(), np.ones(3)
    graph = cg.function(lambda x: cg.fori_loop(0, 3, lambda i, x: x * 2.0, x)).graph(x)
    first = on_stand_in(graph, [x], "f", library).results
    on_stand_in(graph, [x * 5.0], "f", library)
    assert_same(first, [x * 8.0])


def test_an_error_of_the_driver_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is launched behind it."""
    launched = 0

    def refuse(self: Driver, *_: int) -> None:
        nonlocal launched
        launched += 1
        if launched == 4:
            raise RuntimeError("no such kernel")

    monkeypatch.setattr(Driver, "_launch", refuse)
    x = np.ones(3)
    graph = cg.function(lambda x: cg.fori_loop(0, 9, lambda i, x: np.tanh(x), x)).graph(x)
    with pytest.raises(Exception, match="no such kernel"):
        on_stand_in(graph, [x])
    assert launched == 4


# Mistakes.


def off_by_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = StackRows._memory

    def wrong(self: StackRows, array: Any, count: int, capacity: int) -> RowMemory:
        found = memory(self, array, count, capacity)
        return replace(found, address=found.address + self.its.row_bytes)

    monkeypatch.setattr(StackRows, "_memory", wrong)


def counter_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    write = reading.Numbers.write
    stays = lambda text: "a0 + int64(0)" if text == "a0 + int64(1)" else text
    monkeypatch.setattr(
        reading.Numbers, "write", lambda self, found: write(self, {n: stays(x) for n, x in found.items()})
    )


def block_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    run, first = Binding.run, {}

    def with_old_blocks(self: Binding, iterations: int, rows: Any, *rest: Any) -> walker.Counts:
        return run(self, iterations, first.setdefault(self, rows), *rest)

    monkeypatch.setattr(Binding, "run", with_old_blocks)


@pytest.mark.parametrize("mistake", [nothing, off_by_one_slot, counter_stands_still, block_stays])
def test_mistakes_are_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, short_chunks: None
) -> None:
    mistake(monkeypatch)
    assert shows(monkeypatch, *lstm(9, 1)) == (mistake is not nothing)


def test_prepared_launches_are_in_the_record(monkeypatch: pytest.MonkeyPatch, short_chunks: None) -> None:
    """Each with the rows that it reads and writes, on the compute stream."""
    graph, leaves = lstm(6, 1)
    _, entries, _ = recorded_run(monkeypatch, graph, leaves, 1 << 20, 0.5)
    row = 6 * 8
    writes = [entry for entry in entries if entry[0] == "launched" and any(size == row for _, size in entry[3])]
    # Six rows an iteration by one kernel, beside what is carried on.
    assert sum(len(entry[3]) == 8 for entry in writes) >= 6
