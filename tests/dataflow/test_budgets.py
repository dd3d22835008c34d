"""The dataflow engine under a budget: one to three devices give the same bits within any sufficient budget, and
leave no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same_bits
from instruments.dataflow_runs import at_random, short_delays
from instruments.sessions import assert_no_chunks, checked_session
from instruments.simulated import SimulatedDevice
from instruments.tables import programs_at_orders
from programs import PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad import dataflow, memory
from ctrlgrad.dataflow.partition import partition, place
from ctrlgrad.dataflow.plan import cluster
from ctrlgrad.dataflow.settings import refuse_gpus
from ctrlgrad.errors import IndexOutOfRangeError, MemoryBudgetError, UserInputError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import walk

WAYS: tuple[dict[str, Any], ...] = (
    {"parallel_iterations": 1},
    {"parallel_iterations": 2, "order": 3, "delay": short_delays},
    {"parallel_iterations": 32, "order": 4},
    {"clusters": "whole", "parallel_iterations": 2},
    {"clusters": "none", "parallel_iterations": 32},
)


# The reference engine runs the other half of the corpus; its rows lie in the same blocks.
@programs_at_orders(1, 2, share=(0, 2))
def test_corpus_in_less_and_less_memory(program: Program, order: int) -> None:
    graph, leaves = program.graph(order), program.leaves
    if not any(node.op.name == "stack_push" for node in walk(graph)):
        return
    number = PROGRAMS.index(program) + order
    devices = 1 + number % 3
    place = at_random(devices, number) if devices > 1 else None
    with dataflow.settings(place=place, **WAYS[number % len(WAYS)]):
        expected = run_on("dataflow", graph, leaves)
        with checked_session() as session:
            assert_same_bits(run_on("dataflow", graph, leaves), expected)
            limit = session.manager().stats.peak_bytes["device"]
        while limit := limit // 5:
            try:
                with checked_session(limit):
                    assert_same_bits(run_on("dataflow", graph, leaves), expected)
            except MemoryBudgetError:
                return


def three(x: Any, steps: Any, **options: Any) -> Any:
    """Three recurrences, each on a device of its own; the first two feed the third."""

    def body(c: Any) -> Any:
        i, a, b, s = c
        with cg.device("cpu:1"):
            a = np.sin(a) * x
        with cg.device("cpu:2"):
            b = np.cos(b) * x
        with cg.device("cpu:0"):
            s = np.tanh(s + a * b)
        return i + 1, a, b, s

    return cg.while_loop(lambda c: c[0] < steps, body, (0, x, x, x), **options)[3]


SLOPE = cg.function(cg.grad(three), engine="dataflow")


@pytest.mark.parametrize("window", [1, 2, 32])
def test_several_devices_push_into_one_budget(window: int) -> None:
    with dataflow.settings(parallel_iterations=window):
        expected = SLOPE(0.7, 400)
        with checked_session(4 << 10) as session:
            assert SLOPE(0.7, 400) == expected
            stats = session.manager().stats
    assert stats.copies_out > 8 and stats.copies_in > 8


def test_a_long_loop_of_scalars() -> None:
    slope = cg.function(
        cg.grad(lambda x: cg.while_loop(lambda c: c[0] < 2500, lambda c: (c[0] + 1, np.sin(c[1]) * x), (0, x))[1]),
        engine="dataflow",
    )
    expected = slope(0.7)
    with checked_session(4 << 10) as session:
        assert slope(0.7) == expected
        stats = session.manager().stats
    assert stats.copies_out > 15 and stats.evictions == stats.copies_in < 2500 // 50


def test_a_push_returns_at_once() -> None:
    """A push returns at once: copies run on streams beside the computation, and on an instant link nothing ever
    waits."""
    device = SimulatedDevice(
        {"device": 1 << 20, "host": 1 << 20}, bandwidth_out=np.inf, bandwidth_in=np.inf, blocking=True
    )
    expected = SLOPE(0.7, 600)
    with checked_session(8 << 10, {"cpu": device}) as session:
        assert SLOPE(0.7, 600) == expected
        stats = session.manager().stats
    assert stats.copies_out > 8 and stats.copies_in > 8 and not stats.stalls


def test_swap_memory_opens_a_session_and_the_profile_names_the_loop() -> None:
    swapped = cg.function(cg.grad(lambda x: three(x, 300, swap_memory=True, name="three")), engine="dataflow")
    expected = SLOPE(0.7, 300)
    assert swapped(0.7) == expected
    with memory.profile() as recording, memory.budget(device=4096):
        assert swapped(0.7) == expected
    summary = recording.summary()
    assert all(value.loop.startswith("three at ") and "test_budgets.py" in value.label for value in summary.values)
    assert sum(value.nbytes for value in summary.values) >= 3 * 300 * 8
    assert any(value.out_bytes and value.in_bytes for value in summary.values)
    assert summary.forward_seconds > 0


def test_unswapped_loops_stay() -> None:
    stays = cg.function(cg.grad(lambda x: three(x, 300, swap_memory=False)), engine="dataflow")
    with checked_session(64 << 10) as session:
        assert stays(0.7) == SLOPE(0.7, 300)
        assert not session.manager().stats.copies_out
    refused = pytest.raises(MemoryBudgetError, match="no more can be freed")
    with refused as caught, memory.budget(device=4096):
        stays(0.7)
    # It comes from the thread of a device, where no frame is the user's.
    assert caught.value.source.file == __file__


def test_checkpoint_is_refused() -> None:
    again = cg.function(cg.grad(lambda x: three(x, 10, checkpoint=True)), engine="dataflow")
    with pytest.raises(UserInputError, match="only loops in machine code are run again") as caught:
        again(0.7)
    assert caught.value.source.file == __file__ and "engine='dataflow'" in str(caught.value)


def test_gpus_are_refused() -> None:
    flat = place(dataflow.lower(SLOPE.graph(0.7, 3)), lambda node: "cuda:0")
    with pytest.raises(UserInputError, match="budgets with the dataflow engine are for cpu devices"):
        refuse_gpus(partition(cluster(flat, "whole")))


def test_a_failure_on_one_device_leaves_nothing_behind() -> None:
    @cg.function(engine="dataflow")
    def step(x: Any) -> Any:
        def loss(x: Any) -> Any:
            def body(c: Any) -> Any:
                i, y, z = c
                with cg.device("cpu:1"):
                    y = np.tanh(y) * x[i]
                with cg.device("cpu:2"):
                    z = np.sin(z + y)
                return i + 1, y, z

            return cg.while_loop(lambda c: c[0] < 300, body, (0, x[0], x[0]))[2]

        return cg.grad(loss)(x)

    expected = step(np.linspace(0.5, 1.0, 300))
    with checked_session(8 << 10) as session:
        for _ in range(3):
            with pytest.raises(IndexOutOfRangeError, match="200") as caught:
                step(np.linspace(0.5, 1.0, 200))
            assert caught.value.__traceback__ is not None
            assert_no_chunks(session.manager())
        np.testing.assert_array_equal(step(np.linspace(0.5, 1.0, 300)), expected)


def test_check_nans_counts_rows_where_they_are() -> None:
    with cg.options(check_nans=True), checked_session(64 << 10) as session:
        assert SLOPE(0.7, 300) == SLOPE(0.7, 300)
        assert not session.manager().stats.copies_out
    refused = pytest.raises(MemoryBudgetError, match="stays where it is")
    with cg.options(check_nans=True), refused, memory.budget(device=4096):
        SLOPE(0.7, 300)
