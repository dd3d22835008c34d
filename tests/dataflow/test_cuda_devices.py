"""Devices `cuda:N` agree with the reference engine, on the stand-in, whatever copies beside the computation take.

The corpus and its gradients over cpu:0 and one or two cuda devices with ops placed at random, windows 1, 2 and 32, and
random orders. Copies take their time, by threads or by a clock, and memory is poison until they are over.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.dataflow_runs import leaves_of, run, short_delays
from instruments.stand_in import StandIn
from programs import BY_NAME, PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad import dataflow
from ctrlgrad.dataflow import FlatBuilder, FlatNode
from ctrlgrad.dataflow.cuda_copies import Copies
from ctrlgrad.dataflow.cuda_devices import registered
from ctrlgrad.dataflow.cuda_runs import CudaRun
from ctrlgrad.dataflow.devices import local_devices
from ctrlgrad.dataflow.engine import Outcome
from ctrlgrad.engines import run_on
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.errors import (
    ExecutionError,
    IndexOutOfRangeError,
    MaximumIterationsError,
    NonFiniteError,
    TierRefusedError,
    UserInputError,
)
from ctrlgrad.ir import INDEX, StackType, TensorType
from ctrlgrad.memory.devices.simulated import Fault

WAYS: tuple[dict[str, Any], ...] = (
    {"parallel_iterations": 1},
    {"parallel_iterations": 2, "order": 3, "delay": short_delays},
    {"parallel_iterations": 32, "order": 4},
    {"clusters": "whole", "parallel_iterations": 2},
    {"clusters": "none", "parallel_iterations": 32},
)
# How copies beside the computation go: done as soon as the thread has come by, by a clock that only waiting moves, and
# by threads that sleep.
INSTANT = {"bandwidth_out": math.inf, "bandwidth_in": math.inf}
BY_CLOCK = {"latency": 1e-5}
SLOW = {"seed": 1, "delay": 2e-3, **INSTANT}
COPIES: tuple[dict[str, Any], ...] = (INSTANT, BY_CLOCK, SLOW)


class Cards:
    """Devices cuda:0 and cuda:1 on the stand-in."""

    def __init__(self, copies: dict[str, Any]) -> None:
        self.libraries = {f"cuda:{n}": StandIn(**copies) for n in range(2)}

    def assert_nothing_is_left(self) -> None:
        gc.collect()
        for library in self.libraries.values():
            assert library.copier().used == {"device": 0, "host": 0}


@pytest.fixture(params=COPIES, ids=["instant", "by the clock", "slow"])
def cards(request: pytest.FixtureRequest) -> Iterator[Cards]:
    found = Cards(request.param)
    with registered({name: lambda library=library: library for name, library in found.libraries.items()}):
        yield found
    for library in found.libraries.values():
        library.copier().close()


def among(names: Sequence[str], seed: int) -> Callable[[FlatNode], str]:
    """A placement: each op on one of the devices."""
    draw = random.Random(seed)
    return lambda node: draw.choice(names)


def counts_of(outcome: Outcome, name: str) -> Any:
    device = outcome.devices[name]
    assert isinstance(device, CudaRun)
    return device.context.counts


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_corpus(program: Program, order: int) -> None:
    graph, leaves = program.graph(order), leaves_of(program)
    expected = run_on("reference", graph, leaves)
    number = PROGRAMS.index(program) + order
    found = Cards(COPIES[number % 3])
    with registered({name: lambda library=library: library for name, library in found.libraries.items()}):
        for turn, names in enumerate((["cuda:0"], ["cpu:0", "cuda:0"], ["cpu:0", "cuda:0", "cuda:1"])):
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
    graph, leaves = BY_NAME[name].graph(1), leaves_of(BY_NAME[name])
    place = among(["cpu:0", "cuda:0", "cuda:1"], seed)
    found, _ = run(graph, leaves, place=place, order=seed, parallel_iterations=(1, 2, 3, 32)[seed])
    assert_same(found, run_on("reference", graph, leaves))
    cards.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["lstm", "early_exit"])
def test_second_order(cards: Cards, name: str) -> None:
    graph, leaves = BY_NAME[name].graph(2), leaves_of(BY_NAME[name])
    expected = run_on("reference", graph, leaves)
    for names in (["cuda:0"], ["cpu:0", "cuda:1"]):
        assert_same(run(graph, leaves, place=among(names, 5))[0], expected)
    cards.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["lstm", "nested_data_dependent_counts", "early_exit"])
def test_loops_that_stay_whole(cards: Cards, name: str) -> None:
    graph, leaves = BY_NAME[name].graph(1), leaves_of(BY_NAME[name])
    found, outcome = run(graph, leaves, loops="whole", place=lambda node: "cuda:0")
    assert_same(found, run_on("reference", graph, leaves))
    assert outcome.counts["cuda:0"].frames_opened == 1


# What is where.


def on_both(x: Any, w: Any, n: Any) -> Any:
    """The count on cpu:0, products on cuda:0, a sum of what they make on cpu:0."""

    def body(carry: Any) -> Any:
        i, y, total = carry
        with cg.device("cuda:0"):
            y = np.tanh(y @ w)
        return i + 1, y, total + y

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, x, np.zeros_like(x)))


ON_BOTH = (np.linspace(-1.0, 1.0, 12).reshape(3, 4), np.eye(4) * 0.9, np.int64(7))


def test_values_stay_on_their_device(cards: Cards) -> None:
    graph = cg.function(on_both).graph(*ON_BOTH)
    found, outcome = run(graph, ON_BOTH)
    assert_same(found, run_on("reference", graph, ON_BOTH))
    counts = counts_of(outcome, "cuda:0")
    # The two arrays that it takes from outside go there once, whatever the number of iterations; the predicate is the
    # host's from the start; the one output comes back once.
    assert (counts.uploads, counts.reads, counts.predicate_reads, counts.results) == (2, 0, 0, 1)
    assert counts.products == 7
    copier = cards.libraries["cuda:0"].copier()
    # Each of the seven sums takes a message.
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
    # The loop's predicate once more than there are iterations, the branch's in each.
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
    """Only a graph that is built by hand moves a stack: placement keeps all ops on one together."""
    element = TensorType(np.dtype("float64"), shape)

    def row(number: int) -> Any:
        return np.full([4 if n == 4 else number + 1 for n in shape], number / 7)

    b = FlatBuilder("stacks")
    stack = b.input(StackType(element), "stack")
    # A sum of an array's rows is the device's, a scalar too.
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
    """A TensorArray is filled on one device, and what was made of it is read on another."""

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


def test_what_is_sent_is_not_written_to(cards: Cards) -> None:
    """A row is set on cuda:0 while the array, as it was, is on its way to cpu:0."""

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
    """Rows of the device's are pushed into blocks, not on a list that every push would look through."""
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
    found, outcome = run(graph, [x], place=lambda node: "cuda:0")
    assert_same(found, run_on("reference", graph, [x]))
    assert into_blocks[0] == outcome.runs["cuda:0"].counters.pushes >= 200


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


# Errors.


def out_of_range(x: Any, index: Any, n: Any) -> Any:
    def body(carry: Any) -> Any:
        i, y = carry
        with cg.device("cuda:0"):
            y = y + np.sum(x[index * 2])
        with cg.device("cpu:1"):
            z = y * 1.0
        return i + 1, z

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.0))[1]


def test_an_index_that_the_device_finds_out_of_range(cards: Cards) -> None:
    arguments = [np.arange(4.0), np.array([0, 1, 3]), np.int64(3)]
    graph = cg.function(out_of_range).graph(*arguments)
    for _ in range(2):
        with pytest.raises(IndexOutOfRangeError, match="index 6 is out of bounds for an axis with size 4") as caught:
            run(graph, arguments)
        assert caught.value.source.file == __file__
        # It is seen when something comes to the host; the iteration is not known.
        assert not caught.value.notes
        del caught
        cards.assert_nothing_is_left()
    fine = [arguments[0], np.array([0, 1, 1]), np.int64(3)]
    assert_same(run(graph, fine)[0], run_on("reference", graph, fine))


def test_no_message_carries_what_an_index_out_of_range_has_spoiled(cards: Cards) -> None:
    """The device wraps such an index around; cpu:1 would fail, with another error, on what it reads there."""

    def f(x: Any, index: Any, table: Any) -> Any:
        with cg.device("cuda:0"):
            places = x[index * 1]
        with cg.device("cpu:1"):
            found = table[places]
        with cg.device("cuda:0"):
            return found * 2.0

    arguments = [np.array([100, 1, 1, 1]), np.array([1, 4]), np.arange(3.0)]
    graph = cg.function(f).graph(*arguments)
    with pytest.raises(IndexOutOfRangeError, match="index 4 is out of bounds for an axis with size 4"):
        run(graph, arguments)


def test_a_failure_on_one_device_stops_all_and_the_next_call_works(cards: Cards) -> None:
    @cg.function(engine="dataflow")
    def f(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y, z = carry
            with cg.device("cpu:1"):
                y = y + x[i]
            with cg.device("cuda:0"):
                z = z * 1.01
            with cg.device("cuda:1"):
                w = z + 1.0
            return i + 1, y + np.sum(w) * 0.0, z

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.0, np.ones(3)))

    for _ in range(3):
        with pytest.raises(IndexOutOfRangeError) as caught:
            f(np.ones(5), 50)
        assert caught.value.source.file == __file__
        assert "in iteration 5 of the while_loop" in str(caught.value)
        # The error holds on to the frames that it went through.
        del caught
        assert f(np.ones(5), 5)[1] == 5.0
    cards.assert_nothing_is_left()


def test_a_loop_without_end_is_stopped_with_its_iterations(cards: Cards) -> None:
    def f(x: Any) -> Any:
        return cg.while_loop(lambda y: np.sum(y) < 1e9, lambda y: y + x, x, maximum_iterations=3)

    graph = cg.function(f).graph(np.ones(2))
    with pytest.raises(MaximumIterationsError) as caught:
        run(graph, [np.ones(2)], place=lambda node: "cuda:0")
    with pytest.raises(MaximumIterationsError) as expected:
        run_on("reference", graph, [np.ones(2)])
    assert str(caught.value) == str(expected.value)


def test_nans_are_looked_for_on_the_host(cards: Cards) -> None:
    def f(x: Any) -> Any:
        with cg.device("cuda:0"):
            return np.log(x) * 2.0

    x = np.array([1.0, -1.0])
    graph = cg.function(f).graph(x)
    with pytest.raises(NonFiniteError) as caught:
        run_on("dataflow", graph, [x], check_nans=True)
    with pytest.raises(NonFiniteError) as expected:
        run_on("reference", graph, [x], check_nans=True)
    assert str(caught.value) == str(expected.value)
    assert np.isnan(run_on("dataflow", graph, [x])[0][1])


@pytest.mark.parametrize("copies", [INSTANT, BY_CLOCK], ids=["instant", "by the clock"])
@pytest.mark.parametrize("stream", ["out", "in"])
def test_a_copy_that_fails_is_an_error_with_the_users_line(stream: str, copies: dict[str, Any]) -> None:
    library = StandIn(faults=(Fault("fail", stream, 3),), **copies)
    with registered({"cuda:0": lambda: library}):

        def f(x: Any, n: Any) -> Any:
            def body(carry: Any) -> Any:
                i, y = carry
                with cg.device("cuda:0"):
                    y = y + 1.0
                return i + 1, y * 0.5

            return cg.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]

        arguments = [np.ones(3), np.int64(6)]
        graph = cg.function(f).graph(*arguments)
        with pytest.raises(ExecutionError, match=f"copy 3 on stream '{stream}'") as caught:
            run(graph, arguments)
        assert caught.value.source.file == __file__
        # What is sent fails when other steps are under way; what is taken in, when it is used.
        assert len(caught.value.notes) == (stream == "in")
        assert_same(run(graph, arguments)[0], run_on("reference", graph, arguments), 0.0)
    # The error holds on to the frames that it went through.
    del caught
    gc.collect()
    assert library.copier().used == {"device": 0, "host": 0}
    library.copier().close()


def test_pinned_memory_that_is_refused_is_an_error_with_the_users_line() -> None:
    library = StandIn(faults=(Fault("refuse", "host", 2),))
    with registered({"cuda:0": lambda: library}):
        graph = cg.function(on_both).graph(*ON_BOTH)
        with pytest.raises(TierRefusedError, match="tier 'host'") as caught:
            run(graph, ON_BOTH)
        assert caught.value.source.file == __file__
        assert_same(run(graph, ON_BOTH)[0], run_on("reference", graph, ON_BOTH))
    library.copier().close()


def test_a_copy_out_does_not_hold_up_what_computes() -> None:
    """Between the copy and the message the device goes on; the message goes when the copy is over."""
    library = StandIn(latency=1.0)
    copies = Copies(library)
    with library.running():
        x = library.upload(np.arange(3.0))
        copy = copies.out([x])
        assert not copy.is_done()
        y = library.xp.add(x, x)
        assert not copy.is_done() and library.copier().clock.now == 0.0
        assert_same(copy.arrays(), [np.arange(3.0)], 0.0)
        assert_same(library.read([y]), [np.arange(3.0) * 2.0], 0.0)
        copies.close()
    library.copier().close()


# Which devices there are.


def test_the_devices_of_this_process(cards: Cards) -> None:
    names = local_devices()
    assert names[:2] == ["cpu:0", "cpu:1"] and names[-2:] == ["cuda:0", "cuda:1"]


def test_a_device_that_is_not_there_is_refused_with_the_users_line(cards: Cards) -> None:
    @cg.function(engine="dataflow")
    def f(x: Any) -> Any:
        with cg.device("cuda:2"):
            return x + 1.0

    with pytest.raises(UserInputError, match="cuda:2 does not exist here: there is no CUDA device 2") as caught:
        f(1.0)
    assert caught.value.source.file == __file__
    assert caught.value.expected == "cpu:0 to cpu:63, sim:0 to sim:63; of GPUs: cuda:0 to cuda:1"


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cupy" else find(name, *rest))
    with (
        dataflow.settings(place=lambda node: "cuda:0"),
        pytest.raises(UserInputError, match="the CUDA engine is not installed") as caught,
    ):
        cg.function(lambda x: x + 1.0, engine="dataflow")(1.0)
    assert caught.value.source.file == __file__
    assert "pip install 'ctrlgrad[cuda12]'" in str(caught.value.hint)
    assert local_devices()[-1] == "sim:63"
