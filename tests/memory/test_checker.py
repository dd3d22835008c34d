"""The checker rejects each kind of faulty plan, and a real trace from which a wait was removed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from instruments.sessions import actions_of
from instruments.simulated import SimulatedDevice
from memory_cases.driving import CHUNK, Driver, chunks

from ctrlgrad.errors import VerificationError
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.checker import check
from ctrlgrad.memory.profile.records import (
    Action,
    Await,
    Close,
    CopyOut,
    Drop,
    Evict,
    Fetch,
    Fill,
    Free,
    Give,
    KeepState,
    LetStateGo,
    Open,
    Overwrite,
    Place,
    Recompute,
    Recording,
    Signal,
    Take,
    Use,
)
from ctrlgrad.memory.sizes import Budget

LIMITS = (8, 100)

# One block: filled, copied away, evicted, fetched into other bytes, read.
ROUND_TRIP: list[Action] = [
    Take(1, 0, 8, "blocks"),
    Place(1, 1),
    Fill(1, 1),
    Signal(1, "compute"),
    Await("out", 1),
    Take(2, 1, 8, "blocks"),
    Place(1, 2),
    CopyOut(1, 1, 2, "out"),
    Signal(2, "out"),
    Await("host", 2),
    Evict(1, 0),
    Give(1),
    Take(3, 0, 8, "temporary"),
    Use(3),
    Signal(3, "compute"),
    Give(3),
    Take(4, 0, 8, "blocks"),
    Await("in", 2),
    Await("in", 3),
    Place(1, 4),
    Fetch(1, 2, 4, "in"),
    Signal(4, "in"),
    Await("compute", 4),
    Open(1, 4),
    Close(1),
    Signal(5, "compute"),
    Await("host", 4),
    Free(1),
    Give(4),
    Give(2),
]


def without(actions: Sequence[Action], action: Action) -> list[Action]:
    return [a for a in actions if a != action]


def test_a_sound_plan_passes() -> None:
    check(ROUND_TRIP, LIMITS)


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        (Await("out", 1), "slot 1 is read before compute has written it"),
        (Await("host", 2), "whole nowhere else"),
        (Await("in", 3), "slot 4 is written while compute may use its bytes"),
        (Await("compute", 4), "slot 4 is read before in has written it"),
        (Await("host", 4), "slot 4 goes while in may use it"),
        (Fill(1, 1), "slot 1 is read and holds nothing"),
        (CopyOut(1, 1, 2, "out"), "whole nowhere else"),
        (Fetch(1, 2, 4, "in"), "slot 4 is read and holds nothing"),
        (Evict(1, 0), "holds a block"),
        (Open(1, 4), "not open"),
        (Free(1), "holds a block"),
        (Give(2), "never given back"),
        (Take(4, 0, 8, "blocks"), "not allocated"),
        (Signal(4, "in"), "was not set"),
    ],
)
def test_missing_actions_are_noticed(missing: Action, complaint: str) -> None:
    assert missing in ROUND_TRIP
    with pytest.raises(VerificationError, match=complaint):
        check(without(ROUND_TRIP, missing), LIMITS)


def test_a_block_that_is_given_up_says_when_its_computation_ends() -> None:
    given_up = [Take(1, 0, 8, "blocks"), Place(1, 1), Use(1), Signal(1, "compute"), Free(1), Give(1)]
    check(given_up, LIMITS)
    with pytest.raises(VerificationError, match="the end of the computation that writes its block is unknown"):
        check(without(given_up, Use(1)), LIMITS)


def test_a_limit_is_a_limit() -> None:
    check(ROUND_TRIP, (8, 8))
    with pytest.raises(VerificationError, match="8 bytes of level 0, limit 7"):
        check(ROUND_TRIP, (7, 8))


def test_a_copy_to_a_tier_that_is_no_neighbour() -> None:
    wrong = [Take(1, 0, 1, ""), Place(1, 1), Fill(1, 1), Take(2, 2, 1, ""), Place(1, 2), CopyOut(1, 1, 2, "compute")]
    with pytest.raises(VerificationError, match="next tier"):
        check(wrong, (None, None, None))


DROPPED: list[Action] = [
    KeepState(1, 0, 4),
    Take(1, 0, 4, "blocks"),
    Place(1, 1),
    Fill(1, 1),
    Drop(1, 0, (1,)),
    Give(1),
    Recompute(1, 0, 0),
    Take(2, 0, 4, "blocks"),
    Place(1, 2),
    Fill(1, 2),
    Open(1, 2),
    Close(1),
    Free(1),
    Give(2),
    LetStateGo(1, 0),
]


@pytest.mark.parametrize(
    ("actions", "complaint"),
    [
        (DROPPED[1:], "no state before it"),
        (DROPPED[:-1], "never let go"),
        (without(DROPPED, Recompute(1, 0, 0)), None),
        ([*DROPPED[:6], Recompute(1, 1, None)], "does not follow"),
        ([*DROPPED[:6], Recompute(1, 2, 2)], "is not kept"),
        ([*DROPPED[:4], Open(1, 1), *DROPPED[4:]], "dropped while it is open"),
        (DROPPED[:6], "never let go"),
        ([*DROPPED[:6], Open(1, 1)], "is not in slot"),
    ],
)
def test_chunks_that_are_run_again(actions: list[Action], complaint: str | None) -> None:
    check(DROPPED, (8, None))
    if complaint is None:
        check(actions, (8, None))
        return
    with pytest.raises(VerificationError, match=complaint):
        check(actions, (8, None))


OVERWRITTEN: list[Action] = [KeepState(1, 0, 4), Overwrite(1, 0, (1,)), *DROPPED[6:]]


@pytest.mark.parametrize(
    ("actions", "complaint"),
    [
        (OVERWRITTEN[1:], "no state before it"),
        ([*OVERWRITTEN[:2], Overwrite(1, 1, (1,))], "exists already"),
        (OVERWRITTEN[:2], "never let go"),
        ([*OVERWRITTEN[:5], *OVERWRITTEN[6:]], "holds nothing"),
    ],
)
def test_chunks_that_ran_in_the_bytes_of_the_next_one(actions: list[Action], complaint: str) -> None:
    check(OVERWRITTEN, (8, None))
    with pytest.raises(VerificationError, match=complaint):
        check(actions, (8, None))


def recorded(tiers: int) -> tuple[list[Action], list[int | None]]:
    """A trace of a manager on an asynchronous device."""
    names = ("device", "host", "disk")[:tiers]
    device = SimulatedDevice(dict.fromkeys(names, 1 << 20), bandwidth_out=2.0 * CHUNK, bandwidth_in=2.0 * CHUNK)
    recording = Recording()
    manager = Manager(device, Budget(device=2 * CHUNK, host=2 * CHUNK if tiers == 3 else None), recording)
    Driver(manager, chunks(6)).run(swap=True)
    manager.close()
    return actions_of(recording, manager), [account.limit for account in manager.accounts]


@pytest.mark.parametrize("tiers", [2, 3])
def test_waits_that_are_left_out_of_a_trace_are_missed(tiers: int) -> None:
    """Removing a wait from a trace is detected, unless another wait implies it; each kind of waiter has a detected
    one."""
    actions, limits = recorded(tiers)
    check(actions, limits)
    missed = set()
    for place, action in enumerate(actions):
        if not isinstance(action, Await):
            continue
        try:
            check(actions[:place] + actions[place + 1 :], limits)
        except VerificationError:
            missed.add(action.waiter)
    assert missed >= {"host", "out", "in", "compute"}


def test_every_smaller_limit_is_passed() -> None:
    actions, limits = recorded(2)
    check(actions, limits)
    with pytest.raises(VerificationError, match="limit"):
        check(actions, [2 * CHUNK - 1, None])
