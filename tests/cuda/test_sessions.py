"""A session and the CUDA engine: what counts, what it costs, what errors leave, the profile, and a user's calls."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recurrent
from instruments.comparing import assert_same
from instruments.simulated import Fault
from instruments.stand_in import StandIn, StandInDevice
from instruments.stand_in_runs import on_reference
from instruments.stand_in_sessions import LIBRARY, counts_of, run_within, unlimited
from recurrent import recomputing, sequence, swapping

import ctrlgrad as cg
from ctrlgrad import memory
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, MemoryBudgetError, UserInputError
from ctrlgrad.ir import Graph
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.summary import summarize

lstm = partial(recurrent.lstm, "cuda")


def test_a_session_costs_no_waits_and_few_launches(chunks_of_16_kib: None) -> None:
    arguments = sequence(200)
    graph = lstm().graph(*arguments)
    plain = Context(LIBRARY)
    run_with(plain, optimised_graph(graph, is_for_gpu=True), arguments)
    within = counts_of(graph, arguments)
    assert (within.reads, within.predicate_reads, within.results) == (0, 0, 1)
    # A chunk has 8 iterations: what is carried out of one is copied.
    assert within.launches - plain.counts.launches <= 2 * 200 // 8


def test_everything_a_run_allocates_counts() -> None:
    """Arguments, constants, values, blocks; the stand-in says what is alive at once, and so does the account."""
    x = np.ones((64, 64))
    graph = cg.function(lambda x: (x @ x) @ np.full((64, 64), 0.5)).graph(x)
    peak = run_within(None, graph, [x])[1].stats.peak_bytes["device"]
    # The constant and both products, after the last use of the argument.
    assert peak == 3 * x.nbytes
    with pytest.raises(MemoryBudgetError, match=r"needs 32\.0 KiB"):
        run_within(peak - 1, graph, [x])
    assert_same(run_within(peak, graph, [x])[0], on_reference(graph, [x]))


def test_one_byte_less_is_the_error_that_says_what_is_needed() -> None:
    arguments = sequence(30)
    graph = lstm(swapping).graph(*arguments)

    def error(limit: int) -> MemoryBudgetError | None:
        try:
            run_within(limit, graph, arguments)
        except MemoryBudgetError as found:
            return found
        return None

    low, high = 1, 1 << 20
    assert error(high) is None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if error(middle) is None else (middle, high)
    assert error(high) is None
    needed = re.search(r"budget of (\d+) bytes", str(error(low)))
    assert needed is not None and int(needed[1]) > low


@pytest.fixture
def session() -> Iterator[memory.Session]:
    with memory.budget(device=1 << 20, devices={LIBRARY.name: StandInDevice()}) as found:
        yield found


def gradient_in(session: memory.Session, steps: int, loop: Callable[..., Any] = swapping) -> list[Any]:
    arguments = sequence(steps)
    graph = lstm(loop).graph(*arguments)
    return run_with(Context(LIBRARY), optimised_graph(graph, is_for_gpu=True), arguments)


def assert_nothing_is_held(session: memory.Session) -> None:
    manager = session.manager(LIBRARY.name)
    # Let the copies end that still use what was freed.
    for stream in (manager.device.out, manager.device.into):
        stream.record().wait()
    account = manager.accounts[0]
    # Work left by finalizers is done with the next request.
    manager.allocate(((account.limit or 0) - account.used,), np.dtype(np.uint8), "all that there is").release()
    manager.arena.sweep(0)
    assert not any(manager.accounts[0].kinds.values()), manager.accounts[0].show()
    assert not manager.index


@pytest.mark.parametrize("loop", [swapping, recomputing])
def test_nothing_waits_for_the_garbage_collector(loop: Callable[..., Any]) -> None:
    """Memory for recomputing a finished loop is counted no longer than its blocks."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with memory.budget(device=1 << 20, devices={LIBRARY.name: StandInDevice()}) as session:
            for _ in range(2):
                gradient_in(session, 60, loop)
                assert_nothing_is_held(session)
    finally:
        if collects:
            gc.enable()


def test_an_error_in_the_loop_that_pushes_leaves_nothing_behind(session: memory.Session) -> None:
    def beyond(x: Any) -> Any:
        body = lambda carry: (carry[0] + 1, np.tanh(carry[1]) * x[carry[0]])
        return np.sum(cg.while_loop(lambda carry: carry[0] < 500, body, (0, x[0]))[1])

    x = np.linspace(0.5, 1.0, 2 * 400).reshape(400, 2)
    graph = cg.function(cg.grad(beyond)).graph(x)
    for _ in range(2):
        with pytest.raises(IndexOutOfRangeError, match="400"):
            run_with(Context(LIBRARY), optimised_graph(graph, is_for_gpu=True), [x])
        assert_nothing_is_held(session)


def test_an_error_in_the_loop_that_pops_leaves_nothing_behind(chunks_of_16_kib: None) -> None:
    """A copy back is lost in the middle of the backward pass; the next call works."""
    arguments = sequence(200)
    expected = unlimited(lstm().graph(*arguments), arguments)
    device = StandInDevice(faults=[Fault("fail", "in", 20)])
    with memory.budget((160 << 10) + arguments[1].nbytes, devices={LIBRARY.name: device}) as session:
        with pytest.raises(ExecutionError, match="copy 20 on stream 'in'"):
            gradient_in(session, 200)
        assert_nothing_is_held(session)
        np.testing.assert_array_equal(gradient_in(session, 200)[1], expected[1])
        assert_nothing_is_held(session)


def test_threads_share_a_session() -> None:
    found: list[Any] = []
    with memory.budget(device=1 << 20, devices={LIBRARY.name: StandInDevice()}) as session:
        expected = gradient_in(session, 40)
        contexts = [copy_context() for _ in range(3)]
        threads = [
            threading.Thread(target=lambda c=c: c.run(lambda: found.append(gradient_in(session, 40)))) for c in contexts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        manager = session.manager(LIBRARY.name)
    assert len(found) == 3
    for results in found:
        np.testing.assert_array_equal(results[1], expected[1])
    assert not any(manager.accounts[0].kinds.values()), manager.accounts[0].show()


def test_a_copy_away_that_fails_is_made_again(chunks_of_16_kib: None) -> None:
    arguments = sequence(200)
    graphs = {loop: lstm(loop).graph(*arguments) for loop in (swapping, cg.while_loop)}
    expected = unlimited(graphs[swapping], arguments)
    limit = (160 << 10) + arguments[1].nbytes
    faults = [Fault("fail", "out", 3), Fault("refuse", "host", 5)]
    for graph in graphs.values():
        found, manager = run_within(limit, graph, arguments, "", StandInDevice(faults=faults))
        np.testing.assert_array_equal(found[1], expected[1])
        # Later copies on the stream count as failed too.
        assert manager.stats.failed_copies


def test_a_stack_that_is_a_result_comes_a_block_at_a_time(short_chunks: None) -> None:
    """The saved values of a forward pass, asked for alone; they do not fit the device at once."""
    x = np.linspace(0.0, 1.0, 50)
    graph = cg.function(cg.grad(lambda x: np.sum(cg.fori_loop(0, 40, lambda i, x: np.tanh(x) * np.sin(x), x)))).graph(x)
    place = next(i for i, node in enumerate(graph.nodes) if node.op.name == "while")
    forward = Graph(graph.inputs, graph.nodes[: place + 1], list(graph.nodes[place].results))
    expected = on_reference(forward, [x])
    found, manager = run_within(4000, forward, [x])
    assert manager.stats.copies_in > 5
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-12)


def test_the_profile_has_slices_and_copies(chunks_of_16_kib: None) -> None:
    arguments = sequence(200)
    limit = (160 << 10) + arguments[1].nbytes
    with memory.profile() as recording, memory.budget(limit, devices={LIBRARY.name: StandInDevice()}):
        run_with(Context(LIBRARY), optimised_graph(lstm(swapping).graph(*arguments), is_for_gpu=True), arguments)
    assert {(c.source, c.target) for c in recording.copied} == {("device", "host"), ("host", "device")}
    slices = [c for c in recording.computed if not c.again]
    assert {c.phase for c in slices} == {"forward", "backward"}
    # A slice for each chunk, of one loop forward and one backward, and no other slices inside.
    assert len(slices) == 2 * 200 // 8
    assert all(Path(recurrent.__file__).name in note.label for note in recording.blocks)
    text = str(summarize(recording))
    assert Path(recurrent.__file__).name in text


# As a user calls it.


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in in the place of the first device, for sessions too."""
    found = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: found)
    memory.register_device(found.name, lambda limits: StandInDevice())
    return found


@pytest.mark.parametrize("loop", [swapping, recomputing])
def test_memory_options_of_a_loop_open_a_session(
    card: StandIn, loop: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    original = Manager.loop
    monkeypatch.setattr(Manager, "loop", lambda self, label, **how: seen.append(how) or original(self, label, **how))
    arguments = sequence(40)
    value, gradient = lstm(loop)(*arguments)
    assert [(how["swap"], how["checkpoint"]) for how in seen[:1]] == [
        (True, None) if loop is swapping else (None, True)
    ]
    expected = lstm()(*arguments)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5)


def test_a_budget(card: StandIn) -> None:
    arguments = sequence(40)
    with cg.memory.budget(device="1 MiB") as session:
        lstm()(*arguments)
        assert 0 < session.manager(card.name).stats.peak_bytes["device"] <= 1 << 20
    with cg.memory.budget(device="1 KiB"), pytest.raises(MemoryBudgetError):
        lstm()(*arguments)


def test_a_loop_that_cannot_be_run_again_refuses_checkpoint(card: StandIn) -> None:
    def calls_back(x: Any) -> Any:
        def body(x: Any) -> Any:
            cg.debug.callback(lambda x, iterations: None, x)
            return np.tanh(x) * np.sin(x)

        return np.sum(cg.while_loop(lambda x: x[0] > 0.1, body, x, checkpoint=True))

    with pytest.raises(UserInputError, match="cannot be run again"):
        cg.function(cg.grad(calls_back), engine="cuda")(np.array([0.7, 0.8]))
