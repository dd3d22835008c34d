"""Loops of the CUDA engine under a budget: same values, never more counted bytes, nothing left behind.

The stand-in's arrays count as CuPy's do, and the simulated device overwrites what is freed, so a row that is read after
its block has left gives another result. The plan checker replays what the memory manager did, as if all streams ran
beside each other.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import BY_NAME, PROGRAMS, Program
from running import assert_same, on_reference
from stand_in import StandIn, StandInArray, StandInDevice

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory, tree
from ctrlgrad.engines import _optimised
from ctrlgrad.engines import chunks as engine_chunks
from ctrlgrad.engines.cuda import chunks, cupy_library, saved
from ctrlgrad.engines.cuda.context import Context, Counts
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, MemoryBudgetError, UserInputError
from ctrlgrad.ir import Graph, StackType
from ctrlgrad.memory.checker import check
from ctrlgrad.memory.loop import LoopMemory
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.simulated import Fault
from ctrlgrad.memory.summary import summarize

LIBRARY = StandIn()


def run_within(
    limit: int | None, graph: Graph, arguments: list[Any], kinds: str = "", device: StandInDevice | None = None
) -> tuple[list[Any], Manager]:
    """The results under a budget, arguments of some dtype kinds being on the device from the start; and the manager.

    Whatever the manager did has been checked, and given back.
    """
    given = [StandInArray(np.array(x)) if np.asarray(x).dtype.kind in kinds else x for x in arguments]
    devices = {LIBRARY.name: device or StandInDevice()}
    with memory.profile() as recording, memory.budget(device=limit, devices=devices) as session:
        results = run_with(Context(LIBRARY), _optimised(graph, frozenset()), given)
        manager = session.manager(LIBRARY.name)
    check(recording.actions_of(manager.number), [account.limit for account in manager.accounts])
    kinds_in_use = manager.accounts[0].kinds
    assert not kinds_in_use["blocks"] and not kinds_in_use["entry states"] and not manager.room.chunks, kinds_in_use
    return results, manager


def gradient_of(program: Program, order: int) -> tuple[Graph, list[Any]]:
    return program.graph(order), [np.asarray(x) for x in tree.leaves(program.args)]


# What is asked of every loop; None: what the program says, which is nothing.
SWAP, RECOMPUTE, FREE = "swapping", "recomputing", "as the planner likes"


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one or two iterations: the loops of the corpus are short."""
    monkeypatch.setattr(chunks, "FIRST_ITERATIONS", 1)
    monkeypatch.setattr(chunks, "MOST_ITERATIONS", 2)
    monkeypatch.setattr(saved, "FIRST_ROWS", 1)


def force(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Ask for a way in the place of every loop's user."""
    loop = Manager.loop

    def forced(self: Manager, label: str, *, recompute: Any, **_: Any) -> LoopMemory:
        again = way == RECOMPUTE and recompute is not None
        return loop(self, label, swap=way == SWAP or None, checkpoint=True if again else None, recompute=recompute)

    if way != FREE:
        monkeypatch.setattr(Manager, "loop", forced)


CASES = [(program, 1, way) for program in PROGRAMS for way in (SWAP, RECOMPUTE)]
CASES += [
    (BY_NAME[name], 2, way)
    for name in ("lstm", "masked_rnn", "early_exit", "triple_nesting", "soft_sorting_network", "branch_in_a_loop")
    for way in (SWAP, RECOMPUTE, FREE)
]


@pytest.mark.parametrize(("program", "order", "way"), CASES, ids=str)
def test_corpus_in_less_and_less_memory(
    program: Program, order: int, way: str, short_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to a budget that does not do: until then the values are those of the reference engine."""
    graph, leaves = gradient_of(program, order)
    if not any(isinstance(v.type, StackType) for node in graph.nodes for v in node.results):
        return  # nothing is pushed
    force(monkeypatch, way)
    expected = on_reference(graph, leaves)
    results, manager = run_within(None, graph, leaves, "biuf")
    assert_same(results, expected)
    limit = manager.stats.peak_bytes["device"]
    while limit:
        limit = limit * 4 // 5
        try:
            results, manager = run_within(limit, graph, leaves, "biuf")
        except MemoryBudgetError as error:
            assert "device" in str(error)
            return
        assert_same(results, expected)
        assert manager.stats.peak_bytes["device"] <= limit


def test_the_corpus_is_really_moved(short_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass if nothing ever left the device."""
    graph, leaves = gradient_of(BY_NAME["adaptive_runge_kutta"], 1)
    for way in (SWAP, RECOMPUTE):
        with monkeypatch.context() as patch:
            force(patch, way)
            peak = run_within(None, graph, leaves, "biuf")[1].stats.peak_bytes["device"]
            stats = run_within(peak * 4 // 5, graph, leaves, "biuf")[1].stats
        assert (stats.copies_in if way == SWAP else stats.recomputed_chunks) > 5


# A long sequence.


def lstm(loop: Callable[..., Any] = cg.while_loop) -> Any:
    """The gradient of a layer of 16 units, batch 8, by its weights."""

    def loss(w: Any, xs: Any) -> Any:
        def body(carry: Any) -> Any:
            t, h, c, total = carry
            i, f, g, o = cnp.split(cnp.concat([xs[t], h], axis=1) @ w, 4, axis=1)
            c = cnp.sigmoid(f) * c + cnp.sigmoid(i) * cnp.tanh(g)
            h = cnp.sigmoid(o) * cnp.tanh(c)
            return t + 1, h, c, total + cnp.sum(h * h)

        zeros = np.zeros((8, 16), np.float32)
        return loop(lambda c: c[0] < xs.shape[0], body, (0, zeros, zeros, np.float32(0)))[3]

    return cg.function(cg.value_and_grad(loss), engine="cuda")


def sequence(steps: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(24, 64)).astype("f") / 5, rng.normal(size=(steps, 8, 8)).astype("f")]


def swapping(*args: Any) -> Any:
    return cg.while_loop(*args, swap_memory=True)


def recomputing(*args: Any) -> Any:
    return cg.while_loop(*args, checkpoint=True)


@pytest.fixture
def chunks_of_16_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of the same length with a budget as without: then results are the same bits."""
    monkeypatch.setattr(engine_chunks, "CHUNK_BYTES", 16 << 10)


def unlimited(graph: Graph, arguments: list[Any]) -> list[Any]:
    return run_with(Context(LIBRARY), _optimised(graph, frozenset()), arguments)


@pytest.mark.parametrize("loop", [cg.while_loop, swapping, recomputing])
def test_a_long_sequence_has_the_same_bits(loop: Callable[..., Any], chunks_of_16_kib: None) -> None:
    arguments = sequence(400)
    expected = unlimited(lstm().graph(*arguments), arguments)
    limit = (160 << 10) + arguments[1].nbytes
    found, manager = run_within(limit, lstm(loop).graph(*arguments), arguments)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)
    stats = manager.stats
    assert stats.peak_bytes["device"] <= limit
    # What is saved is many times what there is room for.
    if loop is swapping:
        assert stats.bytes_in > 4 * (160 << 10) and not stats.recomputed_chunks
    if loop is recomputing:
        assert stats.recomputed_chunks > 20 and not stats.copies_out


def test_recomputation_without_a_budget(chunks_of_16_kib: None) -> None:
    """`checkpoint` acts by itself; memory grows with the square root of the length."""
    peaks = []
    for steps in (60, 240, 960):
        arguments = sequence(steps)
        expected = unlimited(lstm().graph(*arguments), arguments)
        found, manager = run_within(None, lstm(recomputing).graph(*arguments), arguments)
        np.testing.assert_array_equal(found[1], expected[1])
        peaks.append(manager.stats.peak_bytes["device"] - arguments[1].nbytes)
        assert manager.stats.recomputed_chunks
    assert peaks[1] < 2.5 * peaks[0] and peaks[2] < 2.5 * peaks[1]


@pytest.mark.parametrize("states", [1, 3])
def test_a_number_of_states(states: int, chunks_of_16_kib: None) -> None:
    arguments = sequence(120)
    expected = unlimited(lstm().graph(*arguments), arguments)
    graph = lstm(lambda *args: cg.while_loop(*args, checkpoint=states)).graph(*arguments)
    found, manager = run_within(None, graph, arguments)
    np.testing.assert_array_equal(found[1], expected[1])
    assert 0 < manager.stats.most_states <= states


def test_a_masked_loop_is_run_again(short_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last chunk has iterations past the end, whose rows were dropped."""

    def loss(x: Any) -> Any:
        return np.sum(cg.while_loop(lambda x: np.sum(x * x) > 1.0, lambda x: np.tanh(x) * 0.98, x))

    monkeypatch.setattr(chunks, "MOST_ITERATIONS", 5)
    for start in np.linspace(0.5, 3.0, 8):
        x = np.full(4, start)
        graph = cg.function(cg.grad(loss)).graph(x)
        expected = on_reference(graph, [x])
        for way in (SWAP, RECOMPUTE):
            with monkeypatch.context() as patch:
                force(patch, way)
                assert_same(run_within(None, graph, [x])[0], expected)
                assert_same(run_within(700, graph, [x])[0], expected)


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE])
def test_a_row_that_is_carried_on_does_not_keep_its_block(
    way: str, short_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iteration's value is written to the stack and read there by the next one, which may be in the next chunk."""
    force(monkeypatch, way)
    x = np.linspace(0.1, 1.0, 50)
    graph = cg.function(cg.grad(lambda x: np.sum(cg.fori_loop(0, 40, lambda i, x: np.exp(-x), x)))).graph(x)
    context = Context(LIBRARY)
    run_with(context, _optimised(graph, frozenset()), [x])
    if way == SWAP:
        # One copy a chunk.
        assert counts_of(graph, [x]).calls - context.counts.calls == 21
    found, manager = run_within(5000, graph, [x])
    assert_same(found, on_reference(graph, [x]))
    assert manager.stats.copies_in > 10 if way == SWAP else manager.stats.recomputed_chunks > 10


# What a session does to a run.


def counts_of(graph: Graph, arguments: list[Any], limit: int | None = None) -> Counts:
    context = Context(LIBRARY)
    with memory.budget(device=limit, devices={LIBRARY.name: StandInDevice()}):
        run_with(context, _optimised(graph, frozenset()), arguments)
    return context.counts


def test_a_session_costs_no_waits_and_few_launches(chunks_of_16_kib: None) -> None:
    arguments = sequence(200)
    graph = lstm().graph(*arguments)
    plain = Context(LIBRARY)
    run_with(plain, _optimised(graph, frozenset()), arguments)
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
    return run_with(Context(LIBRARY), _optimised(graph, frozenset()), arguments)


def assert_nothing_is_held(session: memory.Session) -> None:
    manager = session.manager(LIBRARY.name)
    # Let the copies end that still use what was freed.
    for stream in (manager.device.out, manager.device.into):
        stream.record().wait()
    # What finalizers have left is done with the next request.
    manager.allocate((manager.accounts[0].free or 0,), np.dtype(np.uint8), "all that there is").release()
    manager.slots.sweep(0)
    assert not any(manager.accounts[0].kinds.values()), manager.accounts[0].show()
    assert not manager.room.chunks


@pytest.mark.parametrize("loop", [swapping, recomputing])
def test_nothing_waits_for_the_garbage_collector(loop: Callable[..., Any]) -> None:
    """What a finished loop needed for being run again counts no longer than its blocks."""
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
            run_with(Context(LIBRARY), _optimised(graph, frozenset()), [x])
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
        # Those behind it on the stream are taken to have failed too.
        assert manager.stats.failed_copies


def test_a_stack_that_is_a_result_comes_a_block_at_a_time(short_chunks: None) -> None:
    """What a forward pass saves, asked for by itself; it does not fit the device at once."""
    x = np.linspace(0.0, 1.0, 50)
    graph = cg.function(cg.grad(lambda x: np.sum(cg.fori_loop(0, 40, lambda i, x: np.tanh(x) * np.sin(x), x)))).graph(x)
    place = next(i for i, node in enumerate(graph.nodes) if node.op.name == "while")
    forward = Graph(graph.inputs, graph.nodes[: place + 1], list(graph.nodes[place].results))
    expected = on_reference(forward, [x])
    found, manager = run_within(4000, forward, [x])
    assert manager.stats.copies_in > 10
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-12)


def test_the_profile_has_slices_and_copies(chunks_of_16_kib: None) -> None:
    arguments = sequence(200)
    limit = (160 << 10) + arguments[1].nbytes
    with memory.profile() as recording, memory.budget(limit, devices={LIBRARY.name: StandInDevice()}):
        run_with(Context(LIBRARY), _optimised(lstm(swapping).graph(*arguments), frozenset()), arguments)
    assert {(c.source, c.target) for c in recording.copied} == {("device", "host"), ("host", "device")}
    slices = [c for c in recording.computed if not c.again]
    assert {c.phase for c in slices} == {"forward", "backward"}
    # A slice for each chunk, of one loop forward and one backward, and no other slices inside.
    assert len(slices) == 2 * 200 // 8
    assert all(Path(__file__).name in note.label for note in recording.blocks)
    text = str(summarize(recording))
    assert Path(__file__).name in text


# As a user calls it.


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in in the place of the first device, for sessions too."""
    found = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: found)
    memory.register_device(found.name, lambda limits: StandInDevice())
    return found


@pytest.mark.parametrize("loop", [swapping, recomputing])
def test_what_a_loop_asks_for_opens_a_session(
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
