"""The manager on the simulated device: order of copies, counts, budgets, holders, threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from instruments.simulated import SimulatedDevice, SimulatedEvent
from memory_cases.checked_run import Run, simulated
from memory_cases.driving import CHUNK, DOUBLE, WIDTH, Driver, chunks

from ctrlgrad.errors import ExecutionError, MemoryBudgetError
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.residency import Residency
from ctrlgrad.memory.sizes import Budget

HALF = CHUNK // 2
BYTES = np.dtype(np.uint8)


# Order.


def test_the_oldest_leave_first_and_come_back_last() -> None:
    with Run(Budget(device=2 * HALF)) as run:
        driver = Driver(run.manager, [[2]] * 5)
        driver.start(swap=True)
        driver.forward()
        assert run.moves() == [
            ("out", 1), ("out", 2), ("leave", 1), ("out", 3), ("leave", 2), ("out", 4), ("leave", 3), ("out", 5),
        ]  # fmt: skip
        before = len(run.moves())
        driver.backward()
        assert run.moves()[before:] == [("in", 3), ("in", 2), ("in", 1)]


def test_nothing_is_copied_while_less_than_half_is_used() -> None:
    with Run(Budget(device=16 * CHUNK)) as run:
        Driver(run.manager, chunks(5)).run(swap=True)
        assert run.manager.stats.copies_out == 0
        assert run.manager.stats.stalls == 0


def test_without_a_budget_nothing_leaves() -> None:
    with Run() as run:
        Driver(run.manager, chunks(50)).run(swap=True)
        stats = run.manager.stats
        assert stats.copies_out == stats.evictions == stats.drops == 0
        assert stats.peak_bytes["device"] == 50 * CHUNK


def test_backups_cost_nothing_to_drop() -> None:
    """Backups cost nothing to drop: copies end before room is needed, no push waits, and each block is copied at
    most once each way."""
    with Run(Budget(device=5 * CHUNK), simulated(bandwidth=1.1 * CHUNK)) as run:
        Driver(run.manager, chunks(40)).run(swap=True)
        stats = run.manager.stats
        assert stats.stalls == 0
        assert stats.copies_in <= stats.copies_out <= 80
        assert stats.bytes_out == stats.copies_out * HALF
        assert stats.peak_bytes["device"] == 5 * CHUNK


def test_only_the_rows_that_are_kept_are_copied() -> None:
    with Run(Budget(device=3 * CHUNK)) as run:
        Driver(run.manager, [[4]] * 8, shrink=True).run(swap=True)
        stats = run.manager.stats
        assert stats.bytes_out == stats.copies_out * 3 * WIDTH * 8


def test_three_tiers() -> None:
    with Run(Budget(device=3 * CHUNK, host=4 * CHUNK), simulated(3)) as run:
        Driver(run.manager, chunks(30)).run(swap=True)
        peaks = run.manager.stats.peak_bytes
        assert peaks["device"] <= 3 * CHUNK and peaks["host"] <= 4 * CHUNK
        assert peaks["disk"] >= 20 * CHUNK


def test_two_loops_are_one_stack() -> None:
    """Two loops share one stack: the first loop's chunks are evicted for the second loop's, and are fetched after
    them."""
    with Run(Budget(device=4 * CHUNK)) as run:
        first, second = (Driver(run.manager, chunks(6), label=label) for label in ("first", "second"))
        for driver in (first, second):
            driver.start(swap=True)
            driver.forward()
        left = [block for move, block in run.moves() if move == "leave"]
        assert left == sorted(left)
        for driver in (second, first):
            driver.backward()
            driver.settle()


def test_chunks_joined_across_a_budget_that_just_holds_them() -> None:
    with Run(Budget(device=3 * CHUNK)) as run:
        driver = Driver(run.manager, chunks(12))
        driver.start(swap=True)
        driver.forward()
        driver.backward(join=3)
        driver.settle()


def test_a_loop_of_no_chunks_and_blocks_of_no_bytes() -> None:
    with Run(Budget(device=CHUNK)) as run:
        Driver(run.manager, []).run(swap=True)
        Driver(run.manager, [[0], [2, 0], []]).run(swap=True)


# The budget.


def test_one_byte_less_than_enough_says_what_is_needed() -> None:
    with Run(Budget(device=2 * HALF)) as run:
        Driver(run.manager, [[2, 2]] * 5).run(swap=True)
    with Run(Budget(device=2 * HALF - 1)) as run:
        driver = Driver(run.manager, [[2, 2]] * 5)
        with pytest.raises(MemoryBudgetError) as caught:
            driver.run(swap=True)
        text = str(caught.value)
        assert f"a device budget of {2 * HALF} bytes or more" in text
        assert f"loop.1 needs {HALF} bytes" in text
        assert f"device: {HALF} bytes used (blocks: {HALF} bytes), limit {2 * HALF - 1} bytes" in text
        assert "host: 0 bytes used, no limit" in text
        assert driver.memory is not None
        driver.memory.abandon()
        Driver(run.manager, [[2]] * 5).run(swap=True)


def test_blocks_that_must_stay_are_not_copied_out() -> None:
    with Run(Budget(device=4 * CHUNK)) as run:
        driver = Driver(run.manager, chunks(5))
        with pytest.raises(MemoryBudgetError) as caught:
            driver.run(swap=False)
        assert "swap_memory" in str(caught.value)
        assert run.manager.stats.copies_out == 0


def test_temporaries_are_counted_and_make_blocks_leave() -> None:
    with Run(Budget(device=4 * CHUNK)) as run:
        driver = Driver(run.manager, chunks(4))
        driver.start(swap=True)
        driver.forward()
        temporary = run.manager.allocate((3, CHUNK), BYTES, "work", kind="temporary")
        temporary.array[...] = 7
        assert run.manager.stats.evictions >= 6
        with pytest.raises(MemoryBudgetError, match=r"big needs .* of tier 'device'"):
            run.manager.allocate((4, CHUNK), BYTES, "big")
        assert (temporary.array == 7).all()
        temporary.release()
        temporary.release()
        with pytest.raises(ExecutionError, match="was released"):
            _ = temporary.array
        driver.backward()
        driver.settle()
        assert run.manager.accounts[0].peaks["temporary"] == 3 * CHUNK


def test_a_request_larger_than_the_budget_moves_nothing() -> None:
    with Run(Budget(device=4 * CHUNK)) as run:
        driver = Driver(run.manager, chunks(3))
        driver.start(swap=True)
        driver.forward()
        with pytest.raises(MemoryBudgetError):
            run.manager.allocate((4 * CHUNK + 1,), BYTES, "too much")
        assert run.manager.stats.evictions == 0
        driver.backward()


def test_fetches_leave_room_for_temporaries() -> None:
    """Fetches leave room for temporaries: as much as temporaries took before stays free, so no block is fetched only
    to be evicted."""
    with Run(Budget(device=4 * CHUNK)) as run:
        driver = Driver(run.manager, chunks(12))
        driver.start(swap=True)
        driver.forward()
        for _ in range(12):
            temporary = run.manager.allocate((CHUNK,), BYTES, "work")
            driver.backward(1)
            temporary.release()
        assert run.manager.stats.copies_in <= 24


def test_eviction_waits_for_the_writer_and_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that the host sees as done may still wait for its source's writer: eviction waits for both."""
    waited: set[SimulatedEvent] = set()
    wait, step, steps = SimulatedEvent.wait, Residency._step, []

    def counted(self: Residency, *given: Any) -> bool:
        steps.append(given)
        assert len(steps) < 1000, "steps that bring nothing nearer"
        return step(self, *given)

    monkeypatch.setattr(SimulatedEvent, "is_done", lambda self: self in waited)
    monkeypatch.setattr(SimulatedEvent, "wait", lambda self: (waited.add(self), wait(self))[1])
    monkeypatch.setattr(Residency, "_step", counted)
    with Run(Budget(device=4 * CHUNK)) as run:
        driver = Driver(run.manager, chunks(8))
        driver.start(swap=True)
        driver.forward()
        temporary = run.manager.allocate((3, CHUNK), BYTES, "work")
        temporary.release()
        driver.backward()
        driver.settle()
        assert run.manager.stats.evictions >= 14 and len(steps) < 200


# Holders.


def pushed(run: Run, number: int) -> list[Any]:
    """Blocks of chunks with one block each, filled with their number."""
    memory = run.manager.loop("loop", swap=True)
    found = []
    for value in range(number):
        chunk = memory.begin()
        block = chunk.block((2, WIDTH), DOUBLE, "x")
        block.array[...] = value
        chunk.seal(1.0)
        found.append(block)
    memory.finish()
    return found


def test_a_block_lives_until_its_last_holder_frees_it() -> None:
    with Run(Budget(device=2 * HALF)) as run:
        blocks = pushed(run, 4)
        assert blocks[0].share() is blocks[0]
        blocks[0].free()
        assert blocks[0].open()[0, 0] == 0.0
        blocks[0].close()
        blocks[0].free()
        blocks[0].free()
        with pytest.raises(ExecutionError, match="opened after it was freed"):
            blocks[0].open()
        with pytest.raises(ExecutionError, match="shared after it was freed"):
            blocks[0].share()


def test_a_forgotten_block_is_freed_by_the_next_call() -> None:
    with Run(Budget(device=2 * HALF)) as run:
        blocks = pushed(run, 4)
        blocks.clear()
        gc.collect()
        temporary = run.manager.allocate((2 * HALF,), BYTES, "all of it")
        assert run.manager.accounts[0].used == 2 * HALF
        del temporary
        gc.collect()
        run.manager.allocate((2 * HALF,), BYTES, "again").release()


def test_pinned_blocks_stay() -> None:
    with Run(Budget(device=2 * HALF)) as run:
        blocks = pushed(run, 4)
        first, second = blocks[3].open(), blocks[2].open()
        with pytest.raises(MemoryBudgetError):
            blocks[1].open()
        assert (first[0, 0], second[0, 0]) == (3.0, 2.0)
        blocks[3].close()
        assert blocks[1].open()[0, 0] == 1.0
        with pytest.raises(ExecutionError, match="closed more often"):
            blocks[3].close()


def test_the_bytes_of_a_block_that_is_freed_while_it_is_open_wait_for_its_reader() -> None:
    """A reader frees block 3 without closing it; block 0 is fetched into its bytes after that read."""
    with Run(Budget(device=2 * HALF)) as run:
        blocks = pushed(run, 4)
        blocks[3].open()
        blocks[3].free()
        blocks[0].open()
        blocks[0].close()


def test_the_bytes_of_a_discarded_chunk_wait_for_its_computation() -> None:
    """Block 0 is fetched into bytes that a chunk wrote which is run again in larger blocks."""
    with Run(Budget(device=3 * HALF)) as run:
        blocks = pushed(run, 4)
        chunk = run.manager.loop("another loop").begin()
        chunk.block((2, WIDTH), DOUBLE, "x")
        chunk.discard()
        blocks[0].open()
        blocks[0].close()


def test_reading_twice_is_reading_the_same() -> None:
    with Run(Budget(device=2 * HALF)) as run:
        blocks = pushed(run, 5)
        for _ in range(2):
            for value in (4, 3, 2, 1, 0):
                assert (blocks[value].open() == value).all()
                blocks[value].close()
        with pytest.raises(ExecutionError, match="between open and close"):
            _ = blocks[0].array


def test_a_block_that_is_written_to_opens_as_its_array() -> None:
    with Run() as run:
        chunk = run.manager.loop("loop").begin()
        block = chunk.block((2,), DOUBLE, "x")
        assert block.open() is block.array
        block.close()
        assert block.open() is block.array
        chunk.seal(0.0)
        with pytest.raises(ExecutionError, match="a block after it was sealed"):
            chunk.block((2,), DOUBLE, "y")
        with pytest.raises(ExecutionError, match="between open and close"):
            _ = block.array


def test_a_discarded_chunk_leaves_nothing_and_is_begun_again() -> None:
    with Run(Budget(device=3 * CHUNK)) as run:
        driver = Driver(run.manager, chunks(6))
        driver.start(checkpoint=True)
        driver.forward(2)
        assert driver.memory is not None
        chunk = driver.memory.begin(lambda: (driver.state, 8))
        chunk.block((2, WIDTH), DOUBLE, "loop.0")
        used = run.manager.accounts[0].used
        chunk.discard()
        assert run.manager.accounts[0].used == used - HALF
        assert not run.manager.checkpoints.wants(driver.memory._record)
        driver.forward()
        driver.backward()
        driver.settle()


def test_a_closed_manager_says_so() -> None:
    run = Run()
    run.manager.close()
    run.manager.close()
    with pytest.raises(ExecutionError, match="is closed"):
        run.manager.allocate((1,), BYTES, "x")


# Threads.


@pytest.mark.parametrize("ways", [{"swap": True}, {"checkpoint": True}, {}], ids=["swap", "checkpoint", "free"])
def test_many_threads_share_a_budget(ways: dict[str, Any]) -> None:
    with Run(Budget(device=16 * CHUNK), simulated(seed=3)) as run:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for _ in range(3):
                    Driver(run.manager, chunks(8), label=f"loop{number}", state=number).run(**ways)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert run.manager.stats.peak_bytes["device"] <= 16 * CHUNK


def test_two_managers_do_not_know_each_other() -> None:
    with Run(Budget(device=3 * CHUNK)) as one, Run(Budget(device=3 * CHUNK)) as other:
        drivers = [Driver(run.manager, chunks(10)) for run in (one, other)]
        for driver in drivers:
            driver.start(swap=True)
            driver.forward()
        for driver in drivers:
            driver.backward()
            driver.settle()


def test_many_chunks_cost_no_more_each() -> None:
    """The cost of a chunk does not grow with their number. The search for a block to copy or evict once went through
    all chunks."""
    looked: list[int] = []

    class Counting(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            looked.append(1)
            return super().__iter__()

    def looks(count: int) -> int:
        device = SimulatedDevice({"device": 1 << 20, "host": 1 << 20}, blocking=True)
        manager = Manager(device, Budget(device=1000))
        loop = manager.loop("loop", swap=True)
        blocks = []
        looked.clear()
        for _ in range(count):
            chunk = loop.begin()
            manager.index.all()[-1].blocks = Counting()
            blocks.append(chunk.block((5,), np.dtype(np.float64), "x"))
            chunk.seal(seconds=1e-3)
        loop.finish()
        for block in reversed(blocks):
            block.open()
            block.close()
            block.free()
        manager.close()
        return len(looked)

    assert looks(400) < 3 * looks(200)
