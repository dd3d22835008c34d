"""The driver of chunks, which all engines share: how it divides a loop, and the order of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from ctrlgrad.runtime import chunks
from ctrlgrad.runtime.chunks import UNBOUNDED, ChunkDriver, Closed, EntryState, Lengths
from ctrlgrad.runtime.stack import Blocks, Storage


class Runs:
    """Chunks of one run of a loop, with a log of the driver's calls."""

    def __init__(self, log: list[Any], replay: Any = None) -> None:
        self.log, self.replay = log, replay

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self._noted("lock", "unlock")

    @contextmanager
    def _noted(self, first: str, last: str) -> Any:
        self.log.append(first)
        yield
        self.log.append(last)

    def begin(self, snapshot: Any, state_bytes: Any) -> Blocks:
        self.log.append("begin" if snapshot is None else ("begin from", snapshot()[1], state_bytes()))
        return self

    def block(self, shape: Sequence[int], dtype: np.dtype, label: str, stack: int = 0) -> Storage:
        raise NotImplementedError

    def __enter__(self) -> None:
        self.log.append("run")

    def __exit__(self, *_: object) -> None:
        self.log.append("stop")

    def seal(self, ran: Any = None, seconds: float | None = None) -> None:
        self.log.append(("seal", ran, seconds))

    def discard(self) -> None:
        self.log.append("discard")

    def finish(self) -> None:
        self.log.append("finish")

    def abandon(self) -> None:
        self.log.append("abandon")


class Loop:
    """A loop that pushes a given number of bytes an iteration."""

    def __init__(self, log: list[Any], nbytes: float = 0, known: bool = True) -> None:
        self.log, self.nbytes, self.known = log, nbytes, known
        self.pushed = 0.0
        self.error: Exception | None = None

    def run(self, iterations: int) -> int:
        self.pushed += self.nbytes * iterations
        return iterations

    def state_bytes(self) -> int:
        return 8

    def snapshot(self) -> tuple[EntryState, int]:
        return EntryState((np.zeros(1),)), 8

    def iteration_bytes(self) -> float:
        return self.nbytes if self.known else 0

    def lend(self, chunk: Blocks, iterations: int) -> None:
        self.log.append(("lend", iterations))
        if self.error is not None:
            raise self.error
        self.pushed = 0

    def pushed_bytes(self) -> int:
        return int(self.pushed)

    def close(self, iterations: int) -> Closed[int]:
        self.log.append("close")
        return Closed(iterations, 0.5)

    def sealed(self) -> None:
        self.log.append("sealed")

    def finish(self) -> None:
        self.log.append("loop over")

    def abandon(self) -> None:
        self.log.append("loop failed")


def driver_of(lengths: Lengths | int, replay: Any = None, **given: Any) -> tuple[ChunkDriver[int], Loop, list[Any]]:
    log: list[Any] = []
    loop = Loop(log, **given)
    return ChunkDriver(loop, Runs(log, replay), lengths), loop, log  # type: ignore[arg-type]


def lengths_of(driver: ChunkDriver[int], loop: Loop, log: list[Any], iterations: int) -> list[int]:
    """Run a number of iterations, and return the length of each chunk."""
    for _ in range(iterations):
        driver.before()
        driver.after(loop.run(1))
    driver.finish()
    return [item[1] for item in log if item[0] == "seal"]


@pytest.fixture(autouse=True)
def chunks_of_1000_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1000)


def test_chunks_grow_up_to_what_their_bytes_allow() -> None:
    driver, loop, log = driver_of(Lengths(4, 64), nbytes=100)
    assert lengths_of(driver, loop, log, 40) == [4, 8, 10, 10, 8]
    # No blocks are lent for more iterations.
    assert [item[1] for item in log if item[0] == "lend"] == [4, 8, 10, 10, 10]


def test_chunks_grow_up_to_the_most_iterations() -> None:
    assert lengths_of(*driver_of(Lengths(4, 16)), 70) == [4, 8, 16, 16, 16, 10]


def test_a_chunk_has_the_least_iterations_whatever_they_push() -> None:
    driver, _, log = driver_of(Lengths(16, 64, least=16), nbytes=500)
    assert driver.before() == 16 and ("lend", 16) in log


def test_a_chunk_whose_iterations_push_an_unknown_number_of_bytes_ends_when_they_are_enough() -> None:
    driver, loop, log = driver_of(Lengths(64, 64), nbytes=300, known=False)
    assert lengths_of(driver, loop, log, 9) == [4, 4, 1]


def test_a_chunk_is_told_how_many_iterations_it_still_has() -> None:
    driver, loop, _ = driver_of(Lengths(4, 64), nbytes=1)
    assert driver.before() == 4
    driver.after(loop.run(3))
    assert driver.before() == 1
    driver.after(loop.run(1))
    assert driver.before() == 8


def test_a_chunk_is_closed_before_it_is_sealed_and_nothing_moves_in_between() -> None:
    driver, loop, log = driver_of(Lengths(2, 2), nbytes=1)
    assert lengths_of(driver, loop, log, 2) == [2]
    order = ["begin", ("lend", 2), "run", "stop", "close", "lock", ("seal", 2, 0.5), "sealed", "unlock"]
    assert log == [*order, "loop over", "finish"]


def test_a_state_is_copied_only_where_chunks_can_be_run_again() -> None:
    for replay, expected in ((None, "begin"), (object(), ("begin from", 8, 8))):
        driver, _, log = driver_of(Lengths(2, 2), replay)
        driver.before()
        assert log[0] == expected


def test_a_chunk_without_an_iteration_is_discarded() -> None:
    driver, _, log = driver_of(Lengths(2, 2))
    driver.before()
    driver.finish()
    assert log[-4:] == ["close", "discard", "loop over", "finish"]


def test_a_loop_that_is_one_chunk_ends_it_at_its_own_end() -> None:
    driver, loop, log = driver_of(5, nbytes=500)
    assert driver.before() == UNBOUNDED and log[1] == ("lend", 5)
    driver.after(loop.run(3))
    driver.finish(loop.run(4))
    assert ("seal", 7, 0.5) in log and log.count("begin") == 1


def test_a_chunk_whose_blocks_are_refused_is_discarded() -> None:
    driver, loop, log = driver_of(Lengths(2, 2))
    loop.error = MemoryError("no room")
    with pytest.raises(MemoryError):
        driver.before()
    driver.abandon()
    assert log == ["begin", ("lend", 2), "discard", "loop failed", "abandon"]


def test_a_loop_that_fails_leaves_no_chunk() -> None:
    driver, _, log = driver_of(Lengths(2, 2))
    driver.before()
    driver.abandon()
    assert log[2:] == ["run", "stop", "loop failed", "discard", "abandon"]
    assert driver.chunk is None
