"""Loops of the native engine under a budget: same values, counted bytes within the limit, and a clear error if it is
too small.

The programs are the corpus and an LSTM.
"""

from __future__ import annotations

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
from instruments import comparing
from instruments.checked import checked
from instruments.comparing import assert_same_bits
from instruments.sessions import assert_no_chunks, checked_session
from instruments.tables import programs_at_orders
from programs import BY_NAME, Program
from random_programs.engines import all_products_leave
from recurrent import recomputing, sequence, swapping

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native.stacks import FrameLoop
from ctrlgrad.errors import IndexOutOfRangeError, MemoryBudgetError, ShapeError, UserInputError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import StackType, walk
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.planner import ChunkTimes, Planner
from ctrlgrad.memory.profile.records import Overwrite
from ctrlgrad.runtime import chunks
from ctrlgrad.runtime.chunks import ManagedLoop

assert_same = partial(comparing.assert_same, rtol=1e-9)
lstm = partial(recurrent.lstm, "native")


def assert_all_given_back(manager: Manager) -> None:
    """Check that a closed session holds nothing."""
    kinds = manager.accounts[0].kinds
    assert not kinds["blocks"] and not kinds["entry states"] and not manager.index, kinds


@pytest.mark.parametrize("ways", [{"checkpoint": True}, {}])
@pytest.mark.parametrize("length", [*range(238, 250), 1000])
def test_chunks_that_will_be_computed_again_run_in_the_same_bytes(
    length: int, ways: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that will be recomputed run in the same bytes, one after the other.

    A chunk has five iterations, its share of the budget; the driver is called for the next entry state and at the end.
    """
    monkeypatch.setattr(chunks, "WORTH_BYTES", 0)
    monkeypatch.setattr(Planner, "times", lambda *_: ChunkTimes(1.0, 1.0, 1.0, 1.0, 1.0))
    monkeypatch.setattr(Planner, "_best_share", lambda planner, times: 0.0)

    @cg.function
    @cg.grad
    def gradient(x: Any, n: Any) -> Any:
        carry = cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, 0.99 * c[1] + 0.01 * c[1] ** 2), (0, x), **ways)
        return cnp.sum(carry[1])

    x = np.linspace(0.0, 0.5, 100)
    expected = gradient(x, length)
    lent = []
    lend = FrameLoop.lend
    monkeypatch.setattr(FrameLoop, "lend", lambda *given: (lent.append(given), lend(*given))[1])
    with checked_session(16 << 10) as session:
        np.testing.assert_array_equal(gradient(x, length), expected)
        assert session.recording is not None
        overwritten = [entry for entry in session.recording.actions if isinstance(entry.action, Overwrite)]
    count = -(-length // 5)
    assert len(overwritten) > count // 3
    first_runs = sum(isinstance(chunk, ManagedLoop) and chunk.loop is not None for _, chunk, _ in lent)
    assert first_runs + len(overwritten) in (count, count + 1)


@pytest.fixture
def everything_leaves() -> Iterator[None]:
    with all_products_leave():
        yield


@pytest.mark.parametrize(("steps", "limit"), [(700, 1 << 21), (701, 1 << 20), (513, 1 << 20), (511, 3 << 19)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distributed_loops_have_the_same_bits_with_shorter_chunks(
    steps: int, limit: int, dtype: str, everything_leaves: None
) -> None:
    """Distributed loops have the same bits with shorter chunks.

    A weight's gradient was once a sum of one product a chunk, and the budget decides the chunk's length. Here the
    gradients of two weights, the rows of the inputs and the outputs leave the loop; three products are added to one
    weight's gradient, and some stay in the loop.
    """
    rng = np.random.default_rng(0)
    draw = lambda *shape: (rng.normal(size=shape) / shape[-2] ** 0.5).astype(dtype)
    arguments = draw(steps, 1, 40), draw(40, 61), draw(61, 61), draw(1, 61)

    def loss(xs: Any, w: Any, u: Any, bias: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = cnp.tanh(x @ w + cnp.tanh(h @ u) @ u + bias + 0.1 * cnp.sum(u * u))
            return h, cnp.sum((h @ u) ** 2)

        h, ys = cg.scan(step, cnp.zeros((1, 61), dtype), xs)
        return cnp.sum(h) + cnp.sum(ys)

    slope = cg.function(cg.grad(loss, argnums=(0, 1, 2, 3)), engine="native")
    graph = slope.graph(*arguments)
    expected = slope(*arguments)

    def lengths() -> set[int]:
        return {n.attrs.chunk for n in walk(optimised_graph(graph)) if n.regions and n.attrs.given().get("chunk")}

    whole = lengths()
    with memory.budget(device=limit) as session:
        assert len(whole) == len(lengths()) == 1 and lengths() < set(range(max(whole)))
        assert_same_bits(slope(*arguments), expected)
        assert session.manager().stats.peak_bytes["device"] <= limit


@programs_at_orders(1, 2, share=(0, 3))
def test_corpus_in_less_and_less_memory(program: Program, order: int, everything_leaves: None) -> None:
    """Shrink the budget until it is insufficient: every result before that has the bits of the unlimited run."""
    graph, leaves = program.graph(order), program.leaves
    if not any(isinstance(v.type, StackType) for node in graph.nodes for v in node.results):
        return  # nothing is pushed
    with memory.budget() as session, checked():
        expected = run_on("native", graph, leaves)
        limit = session.manager().stats.peak_bytes["device"]
    assert_same(expected, program.expected(order))
    while limit := limit // 5:
        try:
            with memory.budget(device=limit) as session, checked():
                assert_same_bits(run_on("native", graph, leaves), expected)
                manager = session.manager()
            assert manager.stats.peak_bytes["device"] <= limit
            assert_all_given_back(manager)
        except MemoryBudgetError as error:
            assert "device" in str(error)
            return


def test_budgets_of_all_sizes_run_one_program() -> None:
    """Budgets of all sizes run one program: a graph depends on the chunk length only where products are batched."""
    graph = BY_NAME["triple_nesting"].graph(1)
    found = optimised_graph(graph)
    for limit in (None, 1 << 30, 1 << 20, 1 << 10):
        with memory.budget(device=limit):
            assert optimised_graph(graph) is found


@pytest.fixture
def chunks_of_16_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16 KiB, so that there are many without a budget."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 16 << 10)


@pytest.mark.parametrize("loop", [cg.while_loop, swapping, recomputing])
def test_a_long_sequence_has_the_same_bits(loop: Callable[..., Any]) -> None:
    step, (w, xs) = lstm(loop), sequence(800)
    value, gradient = lstm()(w, xs)
    limit = 256 << 10
    with memory.budget(device=limit) as session:
        found = step(w, xs)
        stats = session.manager().stats
    assert found[0] == value
    np.testing.assert_array_equal(found[1], gradient)
    assert stats.peak_bytes["device"] <= limit
    # The saved values take many times the budget.
    assert stats.copies_out + stats.drops > 20
    if loop is swapping:
        assert stats.bytes_in > 8 * limit and not stats.recomputed_chunks
    if loop is recomputing:
        assert stats.recomputed_chunks and not stats.copies_out


def test_recomputation_without_a_budget(chunks_of_16_kib: None) -> None:
    """`checkpoint` works without a budget; memory grows with the square root of the length."""
    peaks = []
    for steps in (100, 400, 1600):
        w, xs = sequence(steps)
        value, gradient = lstm()(w, xs)
        with memory.budget() as session:
            found = lstm(recomputing)(w, xs)
            stats = session.manager().stats
        assert found[0] == value
        np.testing.assert_array_equal(found[1], gradient)
        peaks.append(stats.peak_bytes["device"])
        assert stats.recomputed_chunks > 0
    assert peaks[1] < 2.5 * peaks[0] and peaks[2] < 2.5 * peaks[1]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_entry_states_give_way_to_blocks(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry states make room for blocks, whatever share of chunks the link can carry: a budget that suffices for one
    policy suffices for all."""

    def flow(x: Any) -> Any:
        body = lambda c: (c[0] + 1, c[1] + 0.01 * np.sin(c[1]))
        return cnp.sum(cg.while_loop(lambda c: c[0] < 1000, body, (0, x))[1])

    slope, x = cg.function(cg.grad(flow), engine="native"), np.linspace(0.0, 1.0, 1000)
    expected = slope(x)
    monkeypatch.setattr(Planner, "_best_share", lambda planner, times: share)
    with memory.budget(device=256 << 10) as session:
        manager = session.manager()
        np.testing.assert_array_equal(slope(x), expected)
        assert (manager.stats.recomputed_chunks > 0) == (share < 1)
        assert manager.stats.peak_bytes["device"] <= 256 << 10


@pytest.mark.parametrize("states", [1, 3, 8])
def test_a_number_of_states(states: int, chunks_of_16_kib: None) -> None:
    w, xs = sequence(150)
    value, gradient = lstm()(w, xs)
    with memory.budget() as session:
        found = lstm(lambda *args: cg.while_loop(*args, checkpoint=states))(w, xs)
        assert session.manager().stats.most_states <= states
    assert found[0] == value
    np.testing.assert_array_equal(found[1], gradient)


def test_one_byte_less_is_the_error_that_says_what_is_needed() -> None:
    step, (w, xs) = lstm(swapping), sequence(40)

    def runs(limit: int) -> MemoryBudgetError | None:
        try:
            with memory.budget(device=limit):
                step(w, xs)
        except MemoryBudgetError as error:
            return error
        return None

    low, high = 1, 1 << 22
    assert runs(high) is None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if runs(middle) is None else (middle, high)
    error = runs(low)
    assert error is not None and runs(high) is None
    needed = re.search(r"budget of (\d+) bytes", str(error))
    assert needed is not None, error
    assert int(needed[1]) > low


def test_an_error_in_the_loop_leaves_nothing_behind() -> None:
    def beyond(x: Any) -> Any:
        return cg.while_loop(lambda c: c[0] < 5000, lambda c: (c[0] + 1, np.tanh(c[1]) * x[c[0]]), (0, x[0]))[1]

    step = cg.function(cg.grad(beyond), engine="native")
    x = np.linspace(0.5, 1.0, 4000)
    with memory.budget(device=256 << 10) as session:
        for _ in range(2):
            with pytest.raises(IndexOutOfRangeError, match="4000"):
                step(x)
            manager = session.manager()
            assert not any(chunk.held for chunk in manager.index.all())
        assert np.isfinite(step(np.linspace(0.5, 1.0, 5000))).all()


def test_a_folder_for_spill_files_is_empty_afterwards(tmp_path: Path) -> None:
    step, (w, xs) = lstm(swapping), sequence(500)
    with memory.budget(device=512 << 10, disk=str(tmp_path)) as session:
        step(w, xs)
        assert session.manager().stats.copies_out
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_threads_share_a_session() -> None:
    step, (w, xs) = lstm(), sequence(300)
    value, gradient = step(w, xs)
    found: list[Any] = []
    with memory.budget(device=16 << 20) as session:
        contexts = [copy_context() for _ in range(4)]
        threads = [threading.Thread(target=lambda c=c: c.run(lambda: found.append(step(w, xs)))) for c in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.manager().stats.peak_bytes["device"] <= 16 << 20
    assert len(found) == 4
    for v, g in found:
        assert v == value
        np.testing.assert_array_equal(g, gradient)


def test_a_chunk_that_runs_again_with_more_room_frees_each_block_once() -> None:
    """A chunk that runs again with more room frees each block once.

    The inner loop's rows do not fit the first blocks; the checker once found them freed twice.
    """

    def bursts(x: Any) -> Any:
        def outer(c: Any) -> Any:
            i, y = c
            inner = lambda d: (d[0] + 1, np.sin(d[1]) * x)
            return i + 1, cg.while_loop(lambda d: d[0] < 40 * (i % 5), inner, (0, y))[1]

        return cg.while_loop(lambda c: c[0] < 20, outer, (0, x))[1]

    slope = cg.function(cg.grad(bursts), engine="native")
    expected = slope(0.7)
    for limit in (None, 32 << 10):
        with checked_session(limit):
            np.testing.assert_allclose(slope(0.7), expected, rtol=1e-12)


@pytest.mark.parametrize("steps", [0, 3, 256, 257])
def test_chunks_that_push_nothing_are_forgotten(steps: int) -> None:
    """Chunks that push nothing are forgotten. Each call once kept the records of its empty chunks to the session's
    end."""
    slope = cg.function(
        cg.grad(lambda x, n: cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.sin(c[1]) * x), (0, x))[1]),
        engine="native",
    )
    with checked_session(64 << 10) as session:
        for _ in range(3):
            slope(0.7, steps)
            assert_no_chunks(session.manager())


def test_a_loop_that_cannot_be_run_again_refuses_checkpoint() -> None:
    def collected(x: Any) -> Any:
        rows = cg.TensorArray(np.float64, size=3, rewritable=True)
        body = lambda c: (c[0] + 1, np.sin(c[1]), c[2].write(c[0] % 3, c[1]))
        _, _, rows = cg.while_loop(lambda c: c[0] < 9, body, (0, x, rows), checkpoint=True)
        return cnp.sum(cnp.cos(rows.stack()))

    with pytest.raises(UserInputError, match="cannot be run again"):
        cg.function(cg.grad(collected), engine="native")(0.3)


def rows_by_length(x: Any, **option: Any) -> Any:
    """A loop that reads the length of the array that it fills."""
    body = lambda c: (c[0] + 1, c[1].push(np.sin(c[2])), np.sin(c[2]) * 0.5 * c[2] + c[1].size() * 1e-3)
    array = cg.TensorArray(np.float64).push(x)
    _, array, y = cg.while_loop(lambda c: c[0] < 300, body, (0, array, x), **option)
    return np.sum(y) + np.sum(array.stack())


def rows_by_rows(x: Any, **option: Any) -> Any:
    """A loop that reads the array that it fills."""

    def body(c: Any) -> Any:
        z = np.sin(c[1].read(c[0])) + c[2] * 0.1
        return c[0] + 1, c[1].push(z), z * c[2]

    array = cg.TensorArray(np.float64).push(x).push(x * 2)
    _, array, y = cg.while_loop(lambda c: c[0] < 300, body, (0, array, x), **option)
    return np.sum(y) + np.sum(array.stack())


def rows_by_all(x: Any, **option: Any) -> Any:
    """A loop that reads all rows of the array that it fills."""
    body = lambda c: (c[0] + 1, c[1].push(np.sin(c[2])), np.sin(c[2]) * 0.5 + 1e-3 * np.sum(c[1].stack()))
    array = cg.TensorArray(np.float64).push(x)
    _, array, y = cg.while_loop(lambda c: c[0] < 60, body, (0, array, x), **option)
    return np.sum(y) + np.sum(array.stack())


@pytest.mark.parametrize("fn", [rows_by_length, rows_by_rows, rows_by_all])
def test_a_loop_that_reads_what_it_fills_is_not_run_again(fn: Any) -> None:
    """A loop that reads the rows that it fills is not run again. A repeated chunk lacks the rows from before it, and
    gave wrong gradients."""
    x = np.full(20, 0.3)
    with pytest.raises(UserInputError, match="cannot be run again"):
        cg.function(cg.grad(lambda x: fn(x, checkpoint=True)), engine="native")(x)
    with memory.budget():
        found = cg.function(cg.grad(lambda x: fn(x, swap_memory=True)), engine="native")(x)
    np.testing.assert_array_equal(found, cg.function(cg.grad(fn), engine="native")(x))


def test_a_loop_around_a_scan_is_run_again() -> None:
    """A loop around a scan is run again: the inner scan's rows live for one iteration."""

    def scans(x: Any, **options: Any) -> Any:
        def outer(c: Any) -> Any:
            i, total = c
            total, rows = cg.scan(lambda h, v: (cnp.tanh(0.9 * h + v), h * v), total, x)
            return i + 1, total + 0.1 * cnp.sum(rows * rows)

        return cg.while_loop(lambda c: c[0] < 2000, outer, (0, 0.1), **options)[1]

    x = np.linspace(-1.0, 1.0, 5)
    expected = cg.function(cg.grad(scans), engine="native")(x)
    with memory.budget() as session:
        found = cg.function(cg.grad(lambda x: scans(x, checkpoint=True)), engine="native")(x)
        assert session.manager().stats.recomputed_chunks
    np.testing.assert_array_equal(found, expected)


def loops_in_a_loop(x: Any, n: Any) -> Any:
    """An outer loop with inner ones: one iteration of it pushes most of the rows."""
    inner = lambda _, x: cg.fori_loop(0, n, lambda _, z: np.sin(z) * 1.01, x) + x
    return cnp.sum(cg.fori_loop(0, 3, inner, x))


def descent(x: Any, n: Any) -> Any:
    """An outer loop that carries no stack: each iteration begins the inner loop's stacks anew."""
    slope = cg.grad(lambda x: cnp.sum(cg.fori_loop(0, n, lambda _, z: np.sin(z) * 1.01, x)))
    return cg.fori_loop(0, 3, lambda _, x: x - 0.1 * slope(x), x)


@pytest.mark.parametrize("fn", [cg.grad(loops_in_a_loop), descent], ids=["pushing", "not pushing"])
@pytest.mark.parametrize("limit", [1 << 13, 1 << 15])
def test_an_iteration_of_an_outer_loop_may_push_more_than_the_budget(fn: Any, limit: int) -> None:
    """One iteration of an outer loop may push more than the budget: 500 rows of 128 bytes."""
    x, function = np.linspace(0.1, 0.9, 16), cg.function(fn, engine="native")
    expected = function(x, 500)
    with checked_session(limit) as session:
        np.testing.assert_allclose(function(x, 500), expected, rtol=1e-12)
        stats = session.manager().stats
        assert stats.bytes_out or stats.recomputed_chunks


def growing(x: Any, **option: Any) -> Any:
    """A loop with a size that depends on data."""
    body = lambda c: (c[0] + 1, c[1] + 0.1 * cnp.sum(x[: c[0] % 7 + 1]) * np.sin(c[1]))
    return cnp.sum(cg.while_loop(lambda c: c[0] < 400, body, (0, np.ones(64)), **option)[1])


def stretched(x: Any, k: Any, **option: Any) -> Any:
    """A loop whose plan assumes that `k` is the length of `x`; an array of one element is broadcast nevertheless."""
    body = lambda c: (c[0] + 1, c[1] + cnp.sum(cnp.sin(x[:k]) * x * c[1]))
    return cg.while_loop(lambda c: c[0] < 5, body, (0, 1.0), **option)[1]


def test_checkpoint_where_a_size_turns_out_to_be_one() -> None:
    """A chunk of another plan is recomputed too: the first plan assumes equal sizes, and the second broadcasts one."""
    x = np.linspace(0.5, 1.0, 8)
    reference = cg.function(cg.grad(stretched), engine="reference")
    checkpointed = cg.function(cg.grad(lambda x, k: stretched(x, k, checkpoint=True)), engine="native")
    for k in (8, 1, 8):
        np.testing.assert_allclose(checkpointed(x, k), reference(x, k), rtol=1e-12)
    # A mistake in the program is reported as such.
    with pytest.raises(ShapeError, match="do not broadcast"):
        checkpointed(x, 3)


def test_a_loop_whose_sizes_depend_on_data_is_run_again() -> None:
    x = np.linspace(0.5, 1.0, 8)
    expected = cg.function(cg.grad(growing), engine="native")(x)
    again = cg.function(cg.grad(lambda x: growing(x, checkpoint=True)), engine="native")
    with memory.budget(device="64 KiB") as session:
        np.testing.assert_allclose(again(x), expected, rtol=1e-12)
        stats = session.manager().stats
        assert stats.recomputed_chunks and not stats.copies_out


def test_a_loop_whose_sizes_depend_on_data_swaps() -> None:
    x = np.linspace(0.5, 1.0, 8)
    expected = cg.function(cg.grad(growing), engine="native")(x)
    swapping = cg.function(cg.grad(lambda x: growing(x, swap_memory=True)), engine="native")
    with memory.budget(device="64 KiB") as session:
        np.testing.assert_allclose(swapping(x), expected, rtol=1e-12)
        stats = session.manager().stats
        assert stats.copies_out and not stats.recomputed_chunks


WRONG = ({"swap_memory": "yes"}, {"checkpoint": 0}, {"checkpoint": -1}, {"checkpoint": "all"})


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match="is not usable"):
        cg.while_loop(lambda x: x < 1, lambda x: x + 1, 0, **wrong)


def test_swapping_and_recomputing_exclude_each_other() -> None:
    with pytest.raises(UserInputError, match="two ways"):
        cg.while_loop(lambda x: x < 1, lambda x: x + 1, 0, swap_memory=True, checkpoint=True)


def test_a_loop_without_bytes_after_one_with_bytes() -> None:
    """Measured times are per byte, so they say nothing about a loop that saves no bytes."""
    flow = lambda x: cg.while_loop(lambda c: c[0] < 9000, lambda c: (c[0] + 1, np.sin(c[1])), (0, x))[1].sum()
    slope = cg.function(cg.grad(flow))
    with memory.budget(device="64 KiB"):
        for size in (10, 0, 10, 0):
            assert slope(np.ones(size)).shape == (size,)
