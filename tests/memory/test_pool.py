"""Buffers return to the pool when no array refers to them any more, and not before."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ctrlgrad.dtypes import BFLOAT16
from ctrlgrad.memory import budget
from ctrlgrad.memory.devices.cpu import PAGE, RAM
from ctrlgrad.memory.pool import ALIGNMENT, LEAST_BYTES, POOL, ArrayPool, Pool
from ctrlgrad.runtime.stack import empty

DOUBLE = np.dtype(np.float64)
ROWS = LEAST_BYTES // 8


def address(x: np.ndarray) -> int:
    return int(x.ctypes.data)


def test_a_buffer_is_used_again_when_its_array_is_gone() -> None:
    pool = ArrayPool()
    x = pool.empty((ROWS,), DOUBLE)
    first = address(x)
    del x
    assert address(pool.empty((ROWS,), DOUBLE)) == first


def test_any_view_keeps_a_buffer() -> None:
    pool = ArrayPool()
    x = pool.empty((2, ROWS), DOUBLE)
    row = x[1].reshape(-1, 2).T
    first = address(x)
    del x
    assert address(pool.empty((2, ROWS), DOUBLE)) != first
    del row
    held = [pool.empty((2, ROWS), DOUBLE) for _ in range(2)]
    assert first in map(address, held)


def test_arrays_in_use_do_not_overlap() -> None:
    pool = ArrayPool()
    arrays = [pool.empty((ROWS + 7 * k,), DOUBLE) for k in range(5)]
    for k, x in enumerate(arrays):
        x[:] = k
    assert [set(x) for x in arrays] == [{float(k)} for k in range(5)]


def test_small_arrays_have_memory_of_their_own() -> None:
    pool = ArrayPool()
    pool.empty((3,), DOUBLE)
    assert pool.nbytes == 0


@pytest.mark.parametrize("dtype", [np.dtype(np.int8), DOUBLE, BFLOAT16])
@pytest.mark.parametrize("count", [0, 3, 1000, ROWS + 3])
def test_memory_begins_where_a_vector_may(count: int, dtype: np.dtype) -> None:
    """Memory of the pool is aligned for vectors; NumPy's begins at any multiple of 16."""
    pool = ArrayPool()
    held = [pool.empty((count, 5), dtype) for _ in range(5)]
    assert [x.ctypes.data % 64 for x in held if count] == [0] * (5 if count else 0)
    assert {(x.shape, x.dtype) for x in held} == {((count, 5), dtype)}
    for k, x in enumerate(held):
        x[:] = k
    assert [set(np.ravel(x).astype(int)) for x in held if count] == [{k} for k in range(5) if count]


def test_under_a_budget_it_does_too_and_counts_as_long_as_a_view_lives() -> None:
    with budget(device="1 MiB") as session:
        fits = session.manager("cpu").fits
        x = empty((75_000,), DOUBLE, "a temporary")
        assert x.ctypes.data % 64 == 0
        part = x[10:20].view(np.int64)
        del x
        assert not fits(600_000)
        del part
        assert fits(600_000)


def test_free_buffers_are_let_go_beyond_the_limit_and_used_ones_are_not() -> None:
    pool = ArrayPool(limit=4 * LEAST_BYTES)
    held = [pool.empty((ROWS,), DOUBLE) for _ in range(6)]
    assert pool.nbytes >= 6 * LEAST_BYTES
    for k, x in enumerate(held):
        x[:] = k
    del held[2:]
    pool.empty((2 * ROWS,), DOUBLE)
    assert pool.nbytes <= 4 * LEAST_BYTES + 2 * LEAST_BYTES
    assert held[0][0] == 0 and held[1][-1] == 1


def test_many_threads_get_arrays_of_their_own() -> None:
    pool, wrong = ArrayPool(), []

    def work(number: int) -> None:
        for k in range(200):
            x = pool.empty((ROWS,), DOUBLE)
            x[:] = number * 1000 + k
            if x[0] != x[-1] or x[ROWS // 2] != number * 1000 + k:
                wrong.append((number, k))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_clear_gives_back_what_is_free_and_nothing_else() -> None:
    pool = ArrayPool()
    held = pool.empty((ROWS,), DOUBLE)
    held[:] = 3
    pool.empty((2 * ROWS,), DOUBLE)
    pool.clear()
    assert pool.nbytes == LEAST_BYTES + ALIGNMENT
    assert set(held) == {3.0}
    del held
    pool.clear()
    assert pool.nbytes == 0


def test_a_pool_is_restricted_until_more_is_in_use() -> None:
    pool = Pool(bytearray)
    held, *given = [pool.take(8) for _ in range(5)]
    for buffer in given:
        pool.give(8, buffer)
    for more, kept in ((32, 32), (31, 24), (24, 24), (100, 24), (8, 8), (7, 0), (0, 0)):
        pool.restrict(more)
        assert pool.nbytes - pool.used == kept
    given = [pool.take(8) for _ in range(2)]
    for buffer in (*given, held):
        pool.give(8, buffer)
    assert pool.nbytes == 24 and pool.used == 0


@pytest.mark.parametrize("lost", ["number", "buffer"])
def test_a_pool_outlives_a_call_that_was_interrupted(lost: str) -> None:
    """Ctrl-C, or a fork beside a thread that takes a buffer, leaves a number without its buffer, or the reverse."""
    pool = Pool(bytearray)
    for buffer in [pool.take(8) for _ in range(4)]:
        pool.give(8, buffer)
    if lost == "number":
        pool._numbers[8].pop()
    else:
        pool._free.popitem()
    taken = [pool.take(8) for _ in range(4)]
    assert len({id(buffer) for buffer in taken}) == 4
    for buffer in taken:
        pool.give(8, buffer)
    pool.clear()
    assert not pool._free and pool.used == 0


@pytest.mark.parametrize(("limit", "kept"), [(8 * PAGE, 8), (5 * PAGE, 5), (4 * PAGE + 1, 4), (0, 0), (None, 8)])
def test_a_session_takes_the_buffers_that_the_last_one_left(limit: int | None, kept: int) -> None:
    """A closed session's free buffers serve the next one, as far as its budget goes."""
    RAM.clear()
    before = RAM.nbytes
    with budget(device=8 * PAGE) as session:
        taken = [session.manager().allocate((PAGE,), np.dtype(np.uint8), "x") for _ in range(8)]
        places = {block.array.ctypes.data for block in taken}
        for block in taken:
            block.release()
    assert RAM.nbytes - before == 8 * PAGE
    with budget(device=limit) as session:
        session.manager()
        assert RAM.nbytes - before == kept * PAGE
        if kept:
            assert session.manager().allocate((PAGE,), np.dtype(np.uint8), "x").array.ctypes.data in places
    RAM.clear()


@pytest.mark.parametrize("limit", ["8 MiB", None])
def test_a_device_budget_on_the_cpu_counts_no_buffer_of_calls_before_it(limit: str | None) -> None:
    POOL.clear()
    before = POOL.nbytes
    POOL.empty((ROWS,), DOUBLE)
    assert POOL.nbytes == before + LEAST_BYTES + ALIGNMENT
    with budget(device=limit) as session:
        session.manager("cpu")
        assert POOL.nbytes == before + (LEAST_BYTES + ALIGNMENT if limit is None else 0)
    POOL.clear()
