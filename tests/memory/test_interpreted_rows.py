"""Rows that interpreted code pushes in a session have the same bits, in blocks that are copied out and back, and
leave no memory."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same_bits
from instruments.sessions import assert_no_chunks, checked_session
from instruments.simulated import SimulatedDevice
from instruments.tables import programs_at_orders
from programs import Program

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.errors import IndexOutOfRangeError, MemoryBudgetError, UserInputError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import walk
from ctrlgrad.runtime.stack import BlockStack


def pushes(graph: Any) -> bool:
    return any(node.op.name == "stack_push" for node in walk(graph))


# The other half of the corpus runs on the dataflow engine (tests/dataflow/test_budgets.py).
@programs_at_orders(0, 1, 2, share=(1, 2))
def test_corpus_in_less_and_less_memory(program: Program, order: int) -> None:
    """Shrink the budget until it is insufficient: every result before that has the bits of the unlimited run."""
    graph, leaves = program.graph(order), program.leaves
    if not pushes(graph):
        return
    expected = run_on("reference", graph, leaves)
    with checked_session() as session:
        assert_same_bits(run_on("reference", graph, leaves), expected)
        limit = session.manager().stats.peak_bytes["device"]
    while limit := limit // 5:
        try:
            with checked_session(limit):
                assert_same_bits(run_on("reference", graph, leaves), expected)
        except MemoryBudgetError as error:
            assert "device" in str(error) and "limit" in str(error)
            return


def chain(x: Any, steps: Any, **options: Any) -> Any:
    """A loop of scalars whose every value is saved."""
    return cg.while_loop(lambda c: c[0] < steps, lambda c: (c[0] + 1, np.sin(c[1]) * x), (0, x), **options)[1]


SLOPE = cg.function(cg.grad(chain), engine="reference")
LONG, SHORT = 5000, 400


def test_a_long_loop_of_scalars_leaves_and_comes_back() -> None:
    expected = SLOPE(0.7, LONG)
    with checked_session(4 << 10) as session:
        assert SLOPE(0.7, LONG) == expected
        stats = session.manager().stats
    assert stats.copies_out > 30 and stats.bytes_out > 8 * LONG * 3 // 4
    # An evicted block is fetched once; a block that is still on the device at the turn is not fetched.
    assert stats.evictions == stats.copies_in
    # A copy moves a block of many rows.
    assert stats.copies_out < LONG // 50


class Clockwork:
    """A simulated device whose clock goes on by a second with each row that is pushed or popped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows_per_second: float) -> None:
        self.device = SimulatedDevice(
            {"device": 1 << 20, "host": 1 << 20},
            bandwidth_out=8 * rows_per_second,
            bandwidth_in=8 * rows_per_second,
            blocking=True,
        )
        push, pop = BlockStack.push, BlockStack.pop

        def timed_push(stack: BlockStack, row: Any) -> None:
            self.device.advance(1.0)
            push(stack, row)

        def timed_pop(stack: BlockStack) -> Any:
            self.device.advance(1.0)
            return pop(stack)

        monkeypatch.setattr(BlockStack, "push", timed_push)
        monkeypatch.setattr(BlockStack, "pop", timed_pop)


def test_copies_run_beside_the_pushes_and_pops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies run beside pushes and pops: a link of two rows a second hides all copies of a loop that pushes one. The
    oldest blocks leave first."""
    expected = SLOPE(0.7, SHORT)
    clockwork = Clockwork(monkeypatch, rows_per_second=2.0)
    with checked_session(1024, {"cpu": clockwork.device}) as session:
        assert SLOPE(0.7, SHORT) == expected
        stats, recording = session.manager().stats, session.recording
    assert recording is not None
    out = [c.block for c in recording.copied if c.target == "host"]
    back = [c.block for c in recording.copied if c.source == "host"]
    assert out == sorted(out) and back == sorted(back, reverse=True) and len(back) > 8
    assert stats.stalls == 0


def test_a_link_that_is_too_slow_makes_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is too slow stalls the loop, so that a count of no stalls above is meaningful."""
    clockwork = Clockwork(monkeypatch, rows_per_second=0.25)
    with checked_session(1024, {"cpu": clockwork.device}) as session:
        SLOPE(0.7, SHORT)
        assert session.manager().stats.stalls > 8


def test_the_profile_names_the_loop_and_the_line() -> None:
    def named(x: Any) -> Any:
        body = lambda c: (c[0] + 1, np.sin(c[1]) * x)
        return cg.while_loop(lambda c: c[0] < 300, body, (0, x), name="pendulum")[1]

    with memory.profile() as recording, memory.budget(device=1024):
        cg.function(cg.grad(named), engine="reference")(0.7)
    summary = recording.summary()
    (value,) = summary.values
    assert value.loop.startswith("pendulum at ") and "test_interpreted_rows.py" in value.label
    assert value.nbytes == 300 * 8 and value.out_bytes >= 1200 and value.in_bytes
    assert summary.forward_seconds > 0 and summary.backward_seconds > 0
    assert any(computed.label.startswith("pendulum") for computed in recording.computed)


def test_unswapped_loops_stay() -> None:
    def stays(x: Any) -> Any:
        return chain(x, SHORT, swap_memory=False)

    slope = cg.function(cg.grad(stays), engine="reference")
    expected = slope(0.7)
    with checked_session(16 << 10) as session:
        assert slope(0.7) == expected
        assert not session.manager().stats.copies_out
    with pytest.raises(MemoryBudgetError, match="no more can be freed") as caught, memory.budget(device=1024):
        slope(0.7)
    assert "limit 1.0 KiB" in str(caught.value)


def test_swap_memory_opens_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = cg.function(cg.grad(lambda x: chain(x, SHORT, swap_memory=True)), engine="reference")
    opened: list[Any] = []
    budget = memory.budget
    monkeypatch.setattr(memory, "budget", lambda: opened.append(1) or budget())
    assert swapped(0.7) == SLOPE(0.7, SHORT)
    assert opened == [1]


def test_checkpoint_is_refused() -> None:
    again = cg.function(cg.grad(lambda x: chain(x, SHORT, checkpoint=True)), engine="reference")
    with pytest.raises(UserInputError, match="only loops in machine code are run again") as caught:
        again(0.7)
    assert caught.value.source.file == __file__ and "swap_memory=True" in str(caught.value)


def test_a_loop_whose_sizes_depend_on_data_pushes_into_blocks_too() -> None:
    """A loop whose sizes depend on data pushes into blocks too, beside a loop of fixed sizes."""

    def growing(x: Any) -> Any:
        body = lambda c: (c[0] + 1, np.sin(c[1]) * cnp.sum(x[: c[0] % 7 + 1]))
        inner = cg.while_loop(lambda c: c[0] < 300, body, (0, 1.0), name="growing")[1]
        return chain(inner, 200, name="chain")

    slope, x = cg.function(cg.grad(growing), engine="native"), np.linspace(0.01, 0.05, 8)
    expected = slope(x)
    with checked_session(2048) as session:
        np.testing.assert_allclose(slope(x), expected, rtol=1e-12)
        assert session.recording is not None
        pushed = {note.loop.split(" ")[0] for note in session.recording.blocks}
        copied = {copied.label for copied in session.recording.copied}
    assert pushed == {"growing", "chain"} and len(copied) > 1


def test_an_error_in_the_loop_leaves_nothing_behind() -> None:
    """An error in the loop leaves no memory, even while the caller holds the error and its frames."""

    def beyond(x: Any) -> Any:
        return cg.while_loop(lambda c: c[0] < 500, lambda c: (c[0] + 1, np.tanh(c[1]) * x[c[0]]), (0, x[0]))[1]

    step = cg.function(cg.grad(beyond), engine="reference")
    with checked_session(1024) as session:
        for _ in range(2):
            with pytest.raises(IndexOutOfRangeError, match="400") as caught:
                step(np.linspace(0.5, 1.0, 400))
            assert caught.value.__traceback__ is not None
            assert_no_chunks(session.manager())
        assert np.isfinite(step(np.linspace(0.5, 1.0, 500))).all()


def test_rows_of_several_shapes_stay_and_the_profile_says_so() -> None:
    def growing(x: Any) -> Any:
        body = lambda c: (c[0] + 1, cnp.concat([c[1], c[1][:1] * x]), c[2] + cnp.sum(np.sin(c[1]) ** 2))
        return cg.while_loop(lambda c: c[0] < 20, body, (0, cg.unknown_dims(x * np.ones(1), 0), 0.0))[2]

    graph = cg.function(cg.grad(growing)).graph(0.5)
    expected = run_on("reference", graph, [np.asarray(0.5)])
    with checked_session() as session:
        assert_same_bits(run_on("reference", graph, [np.asarray(0.5)]), expected)
        recording = session.recording
    assert recording is not None
    assert any("differ in shape: (1,), (2,)" in found.text for found in recording.fell_back)
    with pytest.raises(MemoryBudgetError, match="a row that stays where it is"), memory.budget(device=256):
        run_on("reference", graph, [np.asarray(0.5)])


def test_a_history_that_is_pushed_on_and_read() -> None:
    """A history that is pushed and read in turn: each read ends the top block, and blocks stay as small as the rows."""

    def history(x: Any) -> Any:
        def body(c: Any) -> Any:
            i, rows, total = c
            rows = rows.push(x * i)
            return i + 1, rows, total + rows.read(i // 2) * 0.1

        return cg.while_loop(lambda c: c[0] < 200, body, (0, cg.TensorArray(np.float64), 0.0))[2]

    for function in (history, cg.grad(history)):
        traced = cg.function(function, engine="reference")
        expected = traced(0.7)
        with checked_session(1500):
            assert traced(0.7) == expected


def test_threads_share_a_budget() -> None:
    expected = SLOPE(0.7, 2000)
    found: list[Any] = []
    with checked_session(4096) as session:
        contexts = [copy_context() for _ in range(4)]
        work = lambda context: context.run(lambda: found.append(SLOPE(0.7, 2000)))
        threads = [threading.Thread(target=work, args=(context,)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.manager().stats.copies_out
    assert found == [expected] * 4
