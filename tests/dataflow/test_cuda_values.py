"""Places of values with devices `cuda:N`, on the stand-in: which values are sent, which stay, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from instruments.cards import COPIES, ON_BOTH, Cards, among, counts_of, on_both, registered
from instruments.comparing import assert_same
from instruments.dataflow_runs import run, short_delays
from instruments.tables import programs_at_orders, some
from programs import BY_NAME, PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad.dataflow import FlatBuilder
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.execution import run_on
from ctrlgrad.ir import INDEX, StackType, TensorType

# Devices `cuda:N` agree with the reference engine, on the stand-in, at any duration of copies. The corpus and its
# gradients run over cpu:0 and one or two cuda devices with ops placed at random, windows 1, 2 and 32, and random
# orders. Copies take time, by threads or by a clock, and their memory holds poison until they are done.


WAYS: tuple[dict[str, Any], ...] = (
    {"parallel_iterations": 1},
    {"parallel_iterations": 2, "order": 3, "delay": short_delays},
    {"parallel_iterations": 32, "order": 4},
    {"clusters": "whole", "parallel_iterations": 2},
    {"clusters": "none", "parallel_iterations": 32},
)
DEVICES = (["cuda:0"], ["cpu:0", "cuda:0"], ["cpu:0", "cuda:0", "cuda:1"])


@programs_at_orders(0, 1, share=(0, 2))
def test_corpus(program: Program, order: int, request: pytest.FixtureRequest) -> None:
    graph, leaves = program.graph(order), program.leaves
    expected = program.expected(order)
    number = PROGRAMS.index(program) + order
    found = Cards(COPIES[number % 3])
    with registered(found.libraries):
        for turn, names in some(tuple(enumerate(DEVICES)), 1, request.config, number // 3):
            way = WAYS[(number + 2 * turn) % len(WAYS)]
            results, _ = run(graph, leaves, place=among(names, number + turn), **way)
            assert_same(results, expected)
            assert all(isinstance(x, np.ndarray | np.generic) for x in results)
    found.assert_nothing_is_left()
    for library in found.libraries.values():
        library.copier().close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["loop_in_a_branch_in_a_loop", "nested_data_dependent_counts", "triple_nesting"])
def test_nested_loops_in_many_placements(cards: Cards, name: str, seed: int) -> None:
    graph, leaves = BY_NAME[name].graph(1), BY_NAME[name].leaves
    place = among(["cpu:0", "cuda:0", "cuda:1"], seed)
    found, _ = run(graph, leaves, place=place, order=seed, parallel_iterations=(1, 2, 3, 32)[seed])
    assert_same(found, run_on("reference", graph, leaves))
    cards.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["lstm", "early_exit"])
def test_second_order(cards: Cards, name: str) -> None:
    graph, leaves = BY_NAME[name].graph(2), BY_NAME[name].leaves
    expected = run_on("reference", graph, leaves)
    for names in (["cuda:0"], ["cpu:0", "cuda:1"]):
        assert_same(run(graph, leaves, place=among(names, 5))[0], expected)
    cards.assert_nothing_is_left()


def test_values_stay_on_their_device(cards: Cards) -> None:
    graph = cg.function(on_both).graph(*ON_BOTH)
    found, outcome = run(graph, ON_BOTH)
    assert_same(found, run_on("reference", graph, ON_BOTH))
    counts = counts_of(outcome, "cuda:0")
    # The two captured arrays are uploaded once, whatever the number of iterations; the predicate is computed on the
    # host; the one output comes back once.
    assert (counts.uploads, counts.reads, counts.predicate_reads, counts.results) == (2, 0, 0, 1)
    assert counts.products == 7
    copier = cards.libraries["cuda:0"].copier()
    # Each of the seven sums is sent in a message.
    assert copier.tiers[1].allocations == 7
    cards.assert_nothing_is_left()


def test_a_predicate_on_the_device_is_read_once_an_iteration(cards: Cards) -> None:
    def f(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y = carry
            y = cg.cond(y[0] > 2.0, lambda: y * 0.5 + i, lambda: y + 1.0)
            return i + 1, y

        return cg.while_loop(lambda carry: np.sum(carry[1]) < 40.0, body, (0, x))

    x = np.linspace(0.0, 1.0, 5)
    graph = cg.function(f).graph(x)
    expected = run_on("reference", graph, [x])
    found, outcome = run(graph, [x], place=lambda node: "cuda:0", parallel_iterations=1)
    assert_same(found, expected)
    # The loop's predicate is read once more than there are iterations, and the branch's once in each.
    assert counts_of(outcome, "cuda:0").predicate_reads == 2 * int(expected[0]) + 1


@pytest.mark.parametrize("window", [1, 2, 32])
def test_every_dtype_goes_both_ways(cards: Cards, window: int) -> None:
    for dtype in ("bool", "int8", "uint16", "int32", "int64", "float32", "float64", "complex64", "complex128"):

        def f(x: Any, n: Any) -> Any:
            def body(carry: Any) -> Any:
                i, y = carry
                with cg.device("cuda:0"):
                    z = y[::-1]
                with cg.device("cuda:1"):
                    z = np.concatenate([z[1:], z[:1]])
                return i + 1, z

            return cg.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]

        x = (np.arange(6).reshape(3, 2) % 2 if dtype == "bool" else np.arange(6).reshape(3, 2)).astype(dtype)
        if dtype.startswith("complex"):
            x = x * np.asarray(1 + 2j, dtype)
        arguments = [x, np.int64(4)]
        graph = cg.function(f).graph(*arguments)
        found, _ = run(graph, arguments, parallel_iterations=window)
        assert_same(found, run_on("reference", graph, arguments), 0.0)
    cards.assert_nothing_is_left()


def test_arrays_without_elements_and_scalars(cards: Cards) -> None:
    def f(x: Any, s: Any) -> Any:
        with cg.device("cuda:0"):
            empty, one = x[:0] * 2.0, np.sum(x) * s
        with cg.device("cpu:1"):
            return np.concatenate([empty, x]), one + 1.0

    arguments = [np.arange(3.0), np.float64(2.0)]
    graph = cg.function(f).graph(*arguments)
    assert_same(run(graph, arguments)[0], run_on("reference", graph, arguments), 0.0)
    cards.assert_nothing_is_left()


@pytest.mark.parametrize("is_empty", [False, True], ids=["full", "empty"])
@pytest.mark.parametrize("shape", [(), (4,), (None,)], ids=["scalars", "arrays", "of many sizes"])
def test_a_stack_goes_from_device_to_device(cards: Cards, shape: tuple[int | None, ...], is_empty: bool) -> None:
    """A stack moves from device to device. Only a graph built by hand does this: placement keeps all ops of a stack
    together."""
    element = TensorType(np.dtype("float64"), shape)

    def row(number: int) -> Any:
        return np.full([4 if n == 4 else number + 1 for n in shape], number / 7)

    b = FlatBuilder("stacks")
    stack = b.input(StackType(element), "stack")
    # A sum of an array's rows lies on the device, also if it is a scalar.
    given = TensorType(element.dtype, (2, *shape))
    pushed = [b.input(given, f"x{n}") for n in range(3)]
    for value, device in zip(pushed, ("cuda:0", "cuda:1", "cpu:1"), strict=True):
        made = b.op("sum", [value], {"axes": (0,), "keepdims": False}, device=device)
        stack = b.op("stack_push", [stack, made], device=device)
    after, last = b.ops("stack_pop", [stack], device="cuda:0")
    graph = b.finish([stack, after, last])
    before = [] if is_empty else [row(n) for n in range(3)]
    values = [np.stack([row(n), row(n)]) for n in range(3, 6)]
    for order in range(3):
        found, _ = run(graph, [list(before), *values], order=order)
        expected = [*before, *(value.sum(0) for value in values)]
        assert_same(found[0], expected, 1e-15)
        assert_same(found[1], expected[:-1], 1e-15)
        assert_same([found[2]], expected[-1:], 1e-15)
        assert isinstance(found[0], list) and isinstance(found[1], list)
    cards.assert_nothing_is_left()


@pytest.mark.parametrize("shape", [(), (4,)], ids=["scalars", "arrays"])
def test_slots_that_were_not_written_go_too(cards: Cards, shape: tuple[int, ...]) -> None:
    element = TensorType(np.dtype("float64"), shape)
    b = FlatBuilder("slots")
    stack, x, i = b.input(StackType(element), "stack"), b.input(element, "x"), b.input(INDEX, "i")
    for device in ("cuda:0", "cuda:1", "cpu:1", "cuda:0"):
        x = b.op("sin", [x], device=device)
        stack = b.op("stack_write", [stack, i, x], {"grow": False, "once": False}, device=device)
        i = b.op("add", [i, b.constant(np.int64(1))], device=device)
    graph = b.finish([stack])
    row = np.full(shape, 0.5)
    (found,), _ = run(graph, [[None] * 6, row, np.int64(1)])
    expected: list[Any] = [None]
    for _ in range(4):
        row = np.sin(row)
        expected.append(row)
    assert found[0] is None and found[5] is None
    assert_same(found[1:5], expected[1:], 1e-15)
    cards.assert_nothing_is_left()


@pytest.mark.parametrize("rows", ["scalars", "arrays", "of many sizes"])
def test_arrays_that_are_filled_on_a_device(cards: Cards, rows: str) -> None:
    """A TensorArray is filled on one device, and its array is read on another."""

    def row(i: Any, x: Any) -> Any:
        return {"scalars": x[0] * i, "arrays": x * i, "of many sizes": x[: i + 1]}[rows]

    def f(x: Any, n: Any) -> Any:
        shape = {"scalars": (), "arrays": (4,), "of many sizes": (None,)}[rows]
        first = cg.TensorArray("float64", element_shape=shape, rewritable=True)
        with cg.device("cuda:0"):
            made = cg.fori_loop(0, n, lambda i, array: array.write(i, row(i, x) * 2.0), first)
        with cg.device("cuda:1"):
            changed = made.write(1, made.read(2) + 1.0)
        with cg.device("cpu:1"):
            return changed.concat() if rows == "of many sizes" else changed.stack()

    arguments = [np.arange(1.0, 5.0), np.int64(4)]
    graph = cg.function(f).graph(*arguments)
    expected = run_on("reference", graph, arguments)
    assert_same(run(graph, arguments)[0], expected)
    assert_same(run(graph, arguments, clusters="none", place=among(["cpu:0", "cuda:0", "cuda:1"], 3))[0], expected)
    cards.assert_nothing_is_left()


def test_sent_arrays_are_not_written_to(cards: Cards) -> None:
    """A sent array is not written to: a row is set on cuda:0 while the old array is on its way to cpu:0."""

    def f(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, table, total = carry
            with cg.device("cpu:0"):
                total = total + table.sum()
            with cg.device("cuda:0"):
                table = table.at[i].set(-1.0)
            return i + 1, table, total

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, x, 0.0))

    arguments = [np.arange(40.0), np.asarray(30)]
    graph = cg.function(f).graph(*arguments)
    for order in range(3):
        assert_same(run(graph, arguments, order=order)[0], run_on("reference", graph, arguments), 0.0)
    cards.assert_nothing_is_left()


def test_values_that_are_dead_are_not_copied(cards: Cards) -> None:
    def f(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y = carry

            def rare() -> Any:
                with cg.device("cuda:0"):
                    z = y * 2.0
                with cg.device("cpu:1"):
                    return z + 1.0

            return i + 1, cg.cond(i % 8 == 7, rare, lambda: y)

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]

    arguments = [np.arange(4.0), np.int64(16)]
    graph = cg.function(f).graph(*arguments)
    found, outcome = run(graph, arguments)
    assert_same(found, run_on("reference", graph, arguments), 0.0)
    assert outcome.counts["cpu:1"].dead
    assert cards.libraries["cuda:0"].copier().tiers[1].allocations == 4


def test_a_scalar_stack_grows_on_the_device(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack of scalars grows on the device, in blocks: a list would be searched by every push."""
    into_blocks = [0]
    slot = DeviceStack.slot

    def counted(self: DeviceStack, shape: Sequence[int]) -> Any:
        into_blocks[0] += 1
        return slot(self, shape)

    monkeypatch.setattr(DeviceStack, "slot", counted)

    def loss(x: Any) -> Any:
        return cg.fori_loop(0, 200, lambda i, y: np.sin(y) * y, np.sum(x))

    x = np.linspace(0.1, 0.2, 3)
    graph = cg.function(cg.grad(loss)).graph(x)
    found, _ = run(graph, [x], place=lambda node: "cuda:0")
    assert_same(found, run_on("reference", graph, [x]))
    assert into_blocks[0] >= 200


def test_effects_come_in_their_order(cards: Cards) -> None:
    def f(seen: list[Any], x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y = carry
            cg.debug.callback(lambda now, at: seen.append((now.tolist(), at)), y)
            return i + 1, y * 1.5

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]

    arguments = [np.ones(2), np.int64(5)]
    expected: list[Any] = []
    run_on("reference", cg.function(lambda *xs: f(expected, *xs)).graph(*arguments), arguments)
    for seed in range(3):
        seen: list[Any] = []
        graph = cg.function(lambda *xs, seen=seen: f(seen, *xs)).graph(*arguments)
        run(graph, arguments, place=among(["cpu:0", "cuda:0"], seed), order=seed)
        assert seen == expected and len(seen) == 5


def test_a_user_calls_it(cards: Cards) -> None:
    @cg.function(engine="dataflow")
    def f(x: Any, w: Any, n: Any) -> Any:
        return on_both(x, w, n)[2]

    for _ in range(2):
        found = f(*ON_BOTH)
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, cg.function(on_both, engine="reference")(*ON_BOTH)[2], rtol=1e-12)
