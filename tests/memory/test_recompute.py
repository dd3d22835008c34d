"""Recomputation of chunks: how often, in which order, and with how many entry states."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
from instruments.sessions import check_actions
from instruments.simulated import SimulatedDevice
from memory_cases.driving import CHUNK, DOUBLE, Driver, chunks

from ctrlgrad.errors import ExecutionError, MemoryBudgetError
from ctrlgrad.memory.manager import Chunk, Manager
from ctrlgrad.memory.planner import ChunkTimes, Planner
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.schedule import OnlineStates, fewest_runs, first_split, placed_states, plan_recovery, repetitions
from ctrlgrad.memory.sizes import Budget


def run(length: int, budget: Budget | None = None, state_bytes: int = 8, **ways: Any) -> tuple[Driver, Manager, float]:
    """Run one loop forward and back. Return its driver, its manager and its seconds; the checker approves the trace."""
    device = SimulatedDevice({"device": 1 << 30}, blocking=True)
    recording = Recording()
    manager = Manager(device, budget, recording)
    driver = Driver(manager, chunks(length), state_bytes=state_bytes)
    driver.run(**ways)
    seconds = device.now()
    manager.close()
    check_actions(recording, manager)
    return driver, manager, seconds


# Formulas of the papers.


@functools.cache
def fewest_by_search(length: int, states: int) -> int:
    """The recurrence of the closed form, minimised by search."""
    if length <= 1:
        return length
    if states == 1:
        return length * (length + 1) // 2
    return min(
        split + fewest_by_search(length - split, states - 1) + fewest_by_search(split, states)
        for split in range(1, length)
    )


@pytest.mark.parametrize("states", range(1, 7))
def test_the_closed_form_is_the_optimum(states: int) -> None:
    for length in range(45):
        assert fewest_runs(length, states) == fewest_by_search(length, states)


def test_the_first_split_is_one_that_reaches_the_optimum() -> None:
    for states in range(2, 6):
        for length in range(2, 40):
            k = first_split(length, states)
            assert fewest_runs(length, states) == k + fewest_runs(length - k, states - 1) + fewest_runs(k, states)


@pytest.mark.parametrize("limit", [2, 3, 5, 8])
def test_online_states_repeat_no_step_more_often_than_the_paper_allows(limit: int) -> None:
    """Placed states repeat no step more often than Wang, Moin and Iaccarino allow: of C(s + t, s) steps none runs
    again more than t times, with s = limit - 1."""
    states = OnlineStates(limit)
    tight = 0
    for step in range(120):
        states.reach(step)
        length = step + 1
        assert len(states.levels) <= limit and 0 in states.levels
        most, bound = max(repeats(sorted(states.levels), length, limit)), repetitions(length, limit - 1)
        assert most <= max(bound, 1)
        tight += most == bound
    assert tight


def repeats(kept: list[int], length: int, limit: int) -> list[int]:
    """Number of runs of each step on the way back, as the manager does it: from the nearest state, with
    `placed_states`."""
    counts = [0] * length
    kept = list(kept)
    for step in reversed(range(length)):
        base = max(i for i in kept if i <= step)
        kept = [i for i in kept if i <= base]
        for i in range(base, step + 1):
            counts[i] += 1
        kept += [base + i for i in placed_states(step - base + 1, limit - len(kept) + 1)]
        kept = [i for i in kept if i < step]
    return counts


def test_online_levels_on_a_small_case() -> None:
    states = OnlineStates(3)
    kept = []
    for step in range(10):
        states.reach(step)
        kept.append(sorted(states.levels))
    assert kept == [
        [0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 3, 4], [0, 3, 5], [0, 3, 6], [0, 6, 7], [0, 6, 8], [0, 6, 9],
    ]  # fmt: skip


# The manager.


def test_exact_order_with_one_state() -> None:
    driver, _, _ = run(4, checkpoint=1)
    # The last chunk's blocks are still held.
    assert driver.advances == [0, 1, 2, 0, 1, 0]


def test_exact_order_with_two_states() -> None:
    driver, manager, _ = run(7, checkpoint=2)
    assert manager.stats.most_states == 2
    assert driver.advances == [0, 1, 2, 3, 4, 5, 3, 4, 3, 0, 1, 2, 1, 0]


def test_states_before_all_chunks_run_each_once() -> None:
    driver, manager, _ = run(6, checkpoint=6)
    assert driver.advances == [4, 3, 2, 1, 0]
    assert manager.stats.most_states == 6


@pytest.mark.parametrize("states", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 5, 10, 21, 35, 56])
def test_runs_stay_between_the_optimum_and_the_bound(length: int, states: int) -> None:
    """The number of runs lies between the optimum for a known length and the bound; the length is unknown before the
    end."""
    driver, manager, _ = run(length, checkpoint=states)
    assert manager.stats.most_states <= states
    # The forward run counts as the first sweep, and the last chunk needs no run of its own.
    total = length + len(driver.advances)
    assert fewest_runs(length, states) <= total
    assert states == 1 or total <= (max(repetitions(length, states - 1), 1) + 1) * length
    assert manager.stats.recomputed_chunks == len(driver.advances)


@pytest.mark.parametrize("state_bytes", [CHUNK // 8, CHUNK])
def test_memory_grows_with_the_square_root_at_less_than_half_the_time_more(state_bytes: int) -> None:
    peaks = {}
    for length in (16, 64, 256, 1024):
        _, manager, seconds = run(length, state_bytes=state_bytes, checkpoint=True)
        assert seconds <= 1.45 * 3.0 * length
        peaks[length] = manager.stats.peak_bytes["device"]
        # Entry states and the blocks of one group, each within twice the optimum.
        assert peaks[length] <= 4 * math.sqrt(length * state_bytes * CHUNK) + 3 * CHUNK + 2 * state_bytes
    assert peaks[1024] <= 2.9 * peaks[256] and peaks[1024] <= 9 * peaks[16]


@pytest.mark.parametrize("room", [3, 4, 6, 10, 20])
def test_a_budget_is_used_to_run_less_often(room: int) -> None:
    driver, manager, _ = run(40, Budget(device=room * CHUNK), checkpoint=True)
    assert manager.stats.peak_bytes["device"] <= room * CHUNK
    if room >= 6:
        # Every dropped chunk runs once.
        assert len(driver.advances) == manager.stats.drops == len(set(driver.advances))


@pytest.mark.parametrize("checkpoint", [True, 1, 2, 5])
def test_states_are_found_without_the_blocks_before_them(checkpoint: int) -> None:
    """Entry states are found without blocks: each dropped chunk fills its blocks once more, and all other runs make
    none."""
    known, _, _ = run(40, Budget(device=8 * CHUNK), checkpoint=checkpoint)
    device = SimulatedDevice({"device": 1 << 20}, blocking=True)
    manager = Manager(device, Budget(device=8 * CHUNK))
    driver = Driver(manager, chunks(40), skips=True)
    driver.run(checkpoint=checkpoint)
    manager.close()
    assert len(driver.advances) == manager.stats.drops == len(set(driver.advances))
    assert len(driver.advances) + len(driver.skipped) == manager.stats.recomputed_chunks <= len(known.advances)


@pytest.mark.parametrize(
    ("room", "state_bytes", "most"), [(3, CHUNK // 2, 17_400), (3, CHUNK // 4, 3_700), (8, 80, 2_140)]
)
def test_states_leave_room_for_the_runs_between_them(
    room: int, state_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry states leave room for the runs between them: at most `most` runs for 700 chunks.

    There were 28,506 and 5,682 when states took half of a small budget, and 2,451 when they took an eighth.
    """
    monkeypatch.setattr(Planner, "times", lambda *_: ChunkTimes(1.0, 1.0, 1.0, 1.0, 1.0))
    monkeypatch.setattr(Planner, "_best_share", lambda planner, times: 0.0)
    for ways in ({}, {"checkpoint": True}):
        device = SimulatedDevice({"device": 1 << 20, "host": 1 << 20}, blocking=True)
        manager = Manager(device, Budget(device=room * CHUNK))
        Driver(manager, chunks(700), skips=True, state_bytes=state_bytes).run(**ways)
        manager.close()
        assert manager.stats.recomputed_chunks <= most


def test_states_that_do_not_all_fit_are_thinned() -> None:
    driver, manager, _ = run(60, Budget(device=5 * CHUNK), state_bytes=CHUNK // 2, checkpoint=True)
    assert manager.stats.peak_bytes["device"] <= 5 * CHUNK
    assert len(driver.advances) > manager.stats.drops


def test_one_byte_less_than_enough_is_an_error_that_says_what_is_needed() -> None:
    def attempt(limit: int) -> MemoryBudgetError | None:
        try:
            run(12, Budget(device=limit), checkpoint=True)
        except MemoryBudgetError as error:
            return error
        return None

    enough = next(limit for limit in range(CHUNK, 4 * CHUNK) if attempt(limit) is None)
    error = attempt(enough - 1)
    assert error is not None and f"limit {enough - 1} bytes" in str(error)
    assert f"a device budget of {enough} bytes" in str(error)


def test_a_loop_that_cannot_run_again_cannot_be_checkpointed() -> None:
    device = SimulatedDevice({"device": 1 << 20})
    manager = Manager(device)
    with pytest.raises(ExecutionError, match="cannot be run again"):
        manager.loop("loop", checkpoint=True)
    manager.close()


class Liar(Driver):
    """A loop that asks for other blocks when it runs again."""

    def filled(self, state: Any, chunk: Chunk) -> Any:
        chunk.block((3, 1), DOUBLE, "other")
        return state


def test_a_chunk_that_differs_when_it_runs_again_is_an_error() -> None:
    device = SimulatedDevice({"device": 1 << 20}, blocking=True)
    manager = Manager(device)
    driver = Liar(manager, chunks(3))
    with pytest.raises(ExecutionError, match="asked for other blocks"):
        driver.run(checkpoint=True)
    manager.close()
    assert not any(account.used for account in manager.accounts)


def test_recovery_plans() -> None:
    assert plan_recovery(1, 10, 1, 0, None).kept == 1
    assert plan_recovery(8, 10, 1, 80, None).states == ()
    groups = plan_recovery(8, 10, 1, 42, None)
    assert groups.kept == 4 and groups.states == (4,)
    assert plan_recovery(8, 10, 1, None, 0, 1).states == ()
    assert plan_recovery(8, 10, 1, None, 1, 1).states == (placed_states(8, 2)[0],)
