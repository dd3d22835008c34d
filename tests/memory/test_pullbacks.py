"""Pullbacks and linear maps under a budget: their saved rows stay in the blocks of the session, also between calls."""

import contextvars
import copy
import gc
import pickle
import sys
import threading
import time
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest
from instruments.sessions import assert_no_chunks

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.memory.devices.spill import SpillFile
from ctrlgrad.memory.planner import ChunkTimes, Planner
from ctrlgrad.memory.residency import Residency

LIMIT = 512 * 1024
X = np.linspace(0.1, 1.0, 100)


def flow(x):
    # 3,000 rows of 800 bytes: 2.3 MiB.
    return cg.while_loop(lambda c: c[0] < 3000, lambda c: (c[0] + 1, c[1] + 1e-3 * np.sin(c[1])), (0, x))[1].sum()


@pytest.fixture(params=["native", "dataflow", "reference"])
def engine(request):
    with cg.options(engine=request.param):
        yield request.param


def within(call):
    with memory.budget(device=LIMIT) as session:
        found = call()
        assert session.manager().stats.peak_bytes["device"] <= LIMIT
    return found


def test_a_pullback_is_made_and_called_in_a_budget(engine):
    def twice():
        _, pullback = cg.vjp(flow, X)
        return pullback(1.0)[0], pullback(2.0)[0]

    slope = cg.grad(flow)(X)
    once, doubled = within(twice)
    np.testing.assert_array_equal(once, slope)
    np.testing.assert_allclose(doubled, 2 * slope, rtol=1e-14)


def test_a_pullback_from_outside_is_called_in_a_budget_and_one_from_inside_after_it(engine):
    _, outside = cg.vjp(flow, X)
    found = within(lambda: outside(1.0)[0])
    _, inside = within(lambda: cg.vjp(flow, X))
    np.testing.assert_array_equal(found, outside(1.0)[0])
    np.testing.assert_array_equal(found, inside(1.0)[0])


def test_forty_pullbacks_are_alive_in_a_budget():
    with cg.options(engine="native"):
        found = within(lambda: [p(1.0)[0] for p in [cg.vjp(flow, (1 + k / 100) * X)[1] for k in range(40)]])
        for k in (0, 39):
            np.testing.assert_array_equal(found[k], cg.grad(flow)((1 + k / 100) * X))


def test_a_linear_map_is_made_and_called_in_a_budget(engine):
    def both():
        _, push = cg.linearize(flow, X)
        return push(np.ones(100)), push(X)

    ones, scaled = within(both)
    slope = cg.grad(flow)(X)
    np.testing.assert_allclose(ones, slope.sum(), rtol=1e-12)
    np.testing.assert_allclose(scaled, (slope * X).sum(), rtol=1e-12)


def test_several_stacks_share_what_a_budget_has_room_for():
    def coupled(x):
        def body(c):
            i, a, b = c
            return i + 1, a + 1e-3 * np.sin(b * a), b - 1e-3 * np.cos(a) * np.exp(-b)

        _, a, b = cg.while_loop(lambda c: c[0] < 3000, body, (0, x, 1 + x))
        return (a * b).sum()

    with cg.options(engine="native"):
        found = within(lambda: cg.vjp(coupled, X)[1](1.0)[0])
        np.testing.assert_array_equal(found, cg.grad(coupled)(X))
    cg.check_grads(coupled, (X[:3],))


def test_a_pullback_that_a_traced_function_closes_over_is_one_constant():
    _, pullback = cg.vjp(flow, X)
    traced = cg.function(lambda ct: pullback(ct)[0])
    np.testing.assert_allclose(traced(2.0), pullback(2.0)[0], rtol=1e-14)
    assert len(traced.graph(2.0).nodes) < 30


def test_a_linear_map_of_a_loop_is_made_and_called_in_a_traced_function(engine):
    def both(x, n):
        f = lambda x: cg.fori_loop(0, n, lambda i, c: np.sin(c) * x, x)
        return cg.linearize(f, x)[1](np.ones_like(x)), cg.jvp(f, (x,), (np.ones_like(x),))[1]

    linear, pushed = cg.function(both)(X, 3)
    np.testing.assert_allclose(linear, pushed, rtol=1e-12)


@pytest.mark.parametrize("carries", [1, 2])
@pytest.mark.parametrize("share", [0.0, 1.0, None])
def test_a_pullback_needs_no_more_than_a_gradient(carries, share, monkeypatch):
    """Whatever the times are, three rows of each carry suffice, and so does every larger budget: chunks are computed
    again by choice only where there is room for that."""
    if share is not None:
        monkeypatch.setattr(Planner, "times", lambda *_: ChunkTimes(1.0, 1.0, 1.0, 1.0, 1.0))
        monkeypatch.setattr(Planner, "_best_share", lambda planner, times: share)
    x = np.ones(1000)

    def f(x):
        start = (0, *[x + j for j in range(carries)])
        return sum(v.sum() for v in cg.while_loop(lambda c: c[0] < 100, body, start)[1:])

    def body(c):
        return c[0] + 1, *[cnp.sin(v) * 1.01 for v in c[1:]]

    gradient = cg.grad(f)(x)
    row = carries * x.nbytes
    for run in (lambda: cg.grad(f)(x), lambda: cg.vjp(f, x)[1](1.0)[0]):
        for nbytes in (3 * row + 256, *range(7 * row // 2, 8 * row, row // 2)):
            with memory.budget(device=nbytes):
                np.testing.assert_array_equal(run(), gradient)
    with memory.budget(device=3 * row - 256), pytest.raises(cg.errors.MemoryBudgetError):
        cg.grad(f)(x)
    with memory.budget(device=2 * row - 256), pytest.raises(cg.errors.MemoryBudgetError):
        cg.vjp(f, x)


def test_a_pullback_that_is_never_called_leaves_nothing(tmp_path):
    with memory.budget(device=LIMIT // 4, disk=tmp_path) as session:
        _, pullback = cg.vjp(flow, X)
        manager = session.manager()
        assert manager.index.all() and sum(account.used for account in manager.accounts)
        assert list(tmp_path.iterdir())
        del pullback
        assert_no_chunks(manager)
        assert not any(account.used for account in manager.accounts)
    assert not list(tmp_path.iterdir())


WAYS = [{}, {"swap_memory": True}, {"checkpoint": True}, {"checkpoint": 2}]


def counting(ways, rows=1500):
    """A flow of 8,000 bytes an iteration: 12 MB in all."""
    body = lambda c: (c[0] + 1, c[1] + 1e-3 * np.sin(c[1]))
    return lambda x: cg.while_loop(lambda c: c[0] < rows, body, (0, x), **ways)[1].sum()


WIDE = np.linspace(0.1, 1.0, 1000)


def held_after(make):
    """Return the result of a call, and the bytes that the process holds more than before it."""
    tracemalloc.start()
    try:
        found = make()
        return found, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("make", [cg.vjp, cg.linearize, lambda f, x: cg.function(lambda x: cg.vjp(f, x))(x)])
def test_the_rows_of_a_pullback_are_counted_between_its_calls(make, ways, tmp_path):
    """12 MB of rows: within the budget, on the disk or nowhere, and not in arrays beside it."""
    f = counting(ways)
    given = WIDE if make is cg.linearize else 1.0
    make(f, WIDE)  # traces and compiles
    expected = make(f, WIDE)[1](given)
    with memory.budget(device="256 KiB", disk=tmp_path) as session:
        (_, pullback), held = held_after(lambda: make(f, WIDE))
        device, disk = (account.used for account in session.manager().accounts)
        assert held < 3_000_000
        assert 0 < device <= 256 * 1024
        if "checkpoint" not in ways:
            assert disk >= 12_000_000 * 0.9
        for _ in range(2):
            np.testing.assert_array_equal(pullback(given), expected)
        assert session.manager().stats.peak_bytes["device"] <= 256 * 1024
        del pullback
        assert_no_chunks(session.manager())
        assert not any(account.used for account in session.manager().accounts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ways", WAYS)
def test_a_budget_with_room_for_the_rows_counts_them(ways):
    f = counting(ways, 200)
    slope = cg.grad(f)(WIDE)
    with memory.budget(device="16 MiB") as session:
        _, pullback = cg.vjp(f, WIDE)
        used = session.manager().accounts[0].used
        assert 1_600_000 <= used <= 4_800_000
        np.testing.assert_array_equal(pullback(1.0)[0], slope)
        np.testing.assert_array_equal(pullback(1.0)[0], slope)
        assert not session.manager().stats.bytes_out


@pytest.mark.parametrize("ways", WAYS)
def test_threads_share_a_pullback_in_a_budget(ways):
    f = counting(ways)
    expected, found = cg.grad(f)(WIDE), []
    with memory.budget(device="256 KiB") as session:
        _, pullback = cg.vjp(f, WIDE)
        call = lambda: found.extend(pullback(1.0)[0] for _ in range(2))
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(call,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.manager().stats.peak_bytes["device"] <= 256 * 1024
    assert len(found) == 6
    for each in found:
        np.testing.assert_array_equal(each, expected)


@pytest.mark.parametrize("ways", WAYS)
def test_a_pullback_that_outlives_its_budget_keeps_its_blocks_until_it_is_gone(ways, tmp_path):
    f = counting(ways)
    with memory.budget(device="256 KiB", disk=tmp_path) as session:
        _, pullback = cg.vjp(f, WIDE)
        manager = session.manager()
    expected = cg.grad(f)(WIDE)
    for around in (nullcontext, lambda: memory.budget(device="64 KiB")):
        with around():
            np.testing.assert_array_equal(pullback(1.0)[0], expected)
    assert manager.stats.peak_bytes["device"] <= 256 * 1024
    with pytest.raises(cg.errors.UserInputError, match="has ended"):
        session.manager()
    del pullback
    assert manager.is_closed and not any(account.used for account in manager.accounts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("engine", "limit"), [("native", "1 MiB"), ("reference", "16 MiB")])
def test_threads_share_a_pullback_that_outlives_its_budget(engine, limit):
    """Each call in machine code has a turn, as in a budget. Each call reads through a stack of its own: through a
    shared one rows came from blocks that another thread had let go."""
    wide, found, interval = np.linspace(0.1, 1.0, 20_000), [], sys.getswitchinterval()
    f = lambda x: cg.while_loop(lambda c: c[0] < 60, lambda c: (c[0] + 1, np.sin(c[1] * x)), (0, x))[1].sum()
    with cg.options(engine=engine):
        expected = cg.grad(f)(wide)
        with memory.budget(device=limit):
            _, pullback = cg.vjp(f, wide)

    def call():
        with cg.options(engine=engine):
            found.extend(pullback(1.0)[0] for _ in range(3))

    threads = [threading.Thread(target=call) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(found) == 24
    for each in found:
        np.testing.assert_array_equal(each, expected)


def test_the_collector_finds_the_last_pullback_of_a_budget_in_a_thread_that_copies(tmp_path, monkeypatch):
    """`close` waits for the copies, so it must not run in their thread."""
    is_due, collected, write = threading.Event(), threading.Event(), SpillFile.write

    def collecting(self, *given):
        if is_due.is_set() and not collected.is_set():
            left.wait(30)
            gc.collect()
            collected.set()
        return write(self, *given)

    monkeypatch.setattr(SpillFile, "write", collecting)
    left, cycle = threading.Event(), []
    gc.disable()
    try:
        with memory.budget(device="256 KiB", disk=tmp_path) as session:
            manager = session.manager()
            cycle += [cycle, cg.vjp(counting({}), WIDE)[1]]
            del cycle
            chunk = manager.loop("a loop", swap=True).begin(None, None)
            held = [chunk.block((8,), np.dtype(np.uint8), "rows")]
            is_due.set()
            spill = manager.device.spill
            manager.device.out.put(lambda: spill.write(spill.allocate(8), memoryview(bytes(8))))
        left.set()
        assert collected.wait(30)
        # A thread of its own closes the manager, then removes the files.
        for _ in range(3000):
            if manager.is_closed and not any(tmp_path.iterdir()):
                break
            time.sleep(0.01)
    finally:
        left.set()
        gc.enable()
    assert held and manager.is_closed and not list(tmp_path.iterdir())


def test_a_pullback_that_is_never_called_ends_with_its_budget_or_after_it(tmp_path):
    with memory.budget(device="64 KiB", disk=tmp_path) as session:
        pullbacks = [cg.vjp(counting({}, 100), WIDE)[1] for _ in range(3)]
        manager = session.manager()
        del pullbacks[0]
    assert list(tmp_path.iterdir()) and not manager.is_closed
    del pullbacks[:1]
    assert not manager.is_closed
    del pullbacks
    assert manager.is_closed and not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [None, "64 KiB"])
def test_a_function_that_is_differentiated_may_return_rows(limit):
    """Outside of `cg.function` the rows could not be handed out."""

    def rows(x):
        body = lambda c: (c[0] + 1, np.sin(c[1]), c[2].push(c[1]))
        return cg.while_loop(lambda c: c[0] < 50, body, (0, x, cg.TensorArray(np.float64, element_shape=(1000,))))[2]

    whole = lambda x: rows(x).stack()
    expected, slope = whole(WIDE), cg.vjp(whole, WIDE)[1](np.ones((50, 1000)))[0]
    with memory.budget(device=limit):
        found, pullback = cg.vjp(rows, WIDE)
        ones = cg.TensorArray(np.float64, element_shape=(1000,)).unstack(np.ones((50, 1000)))
        np.testing.assert_array_equal(pullback(ones)[0], slope)
        for k in (0, 49):
            np.testing.assert_array_equal(found.read(k), expected[k])


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_pullback_s_rows_are_copied_and_pickled(again):
    f = counting({}, 100)
    with memory.budget(device="64 KiB"):
        _, pullback = cg.vjp(f, WIDE)
        saved, treedef = cg.tree.flatten(pullback)
        np.testing.assert_array_equal(cg.tree.unflatten(treedef, again(saved))(1.0)[0], cg.grad(f)(WIDE))


@pytest.mark.parametrize("ways", WAYS)
def test_rows_are_computed_again_from_the_arguments_of_the_call(ways):
    """A loop captures an argument, which its caller changes before the pullback runs a chunk again."""

    def f(x, w):
        body = lambda c: (c[0] + 1, np.sin(c[1] * w))
        return cg.while_loop(lambda c: c[0] < 300, body, (0, x), **ways)[1].sum()

    w = 1 + WIDE / 100
    expected = cg.grad(f, argnums=(0, 1))(WIDE, w)
    for make in (cg.function(lambda x, w: cg.vjp(f, x, w)), lambda x, w: cg.vjp(f, x, w)):
        with memory.budget(device="128 KiB"):
            x, changed = WIDE.copy(), w.copy()
            _, pullback = make(x, changed)
            x[:], changed[:] = np.nan, np.nan
            del x, changed
            for _ in range(2):
                for a, b in zip(pullback(1.0), expected, strict=True):
                    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("ways", [{"swap_memory": True}, {"checkpoint": True}])
def test_a_failure_at_any_request_for_bytes_leaves_nothing(ways, error, tmp_path, monkeypatch):
    """A failed request for bytes leaves no memory: every fifth request fails once in a call, and the next call gives
    the same numbers."""

    @cg.function
    @cg.grad
    def slope(x):
        body = lambda c: (c[0] + 1, c[1] + 1e-3 * np.sin(c[1]))
        return cg.while_loop(lambda c: c[0] < 1400, body, (0, x), **ways)[1].sum()

    expected, take = slope(X), Residency.take
    asked, failing = 0, 0

    def counted(self, *given):
        nonlocal asked
        asked += 1
        if asked == failing:
            raise error("in the way")
        return take(self, *given)

    monkeypatch.setattr(Residency, "take", counted)
    with memory.budget(device=32 << 10, disk=tmp_path) as session:
        slope(X)
        manager, total = session.manager(), asked
        assert total > 40
        for failing in range(1, total, 5):
            asked = 0
            with pytest.raises(error, match="in the way"):
                slope(X)
            failing = 0
            assert_no_chunks(manager)
            assert not any(account.used for account in manager.accounts), failing
        np.testing.assert_array_equal(slope(X), expected)
    assert not list(tmp_path.iterdir())
