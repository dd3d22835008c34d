"""Sessions that are looked at: what happened in them was sound, and nothing is left at their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ctrlgrad import memory
from ctrlgrad.memory.devices.device import Device
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.checker import check
from ctrlgrad.memory.profile.records import Action, Recording


@contextmanager
def checked_session(limit: int | None = None, devices: Mapping[str, Device] | None = None) -> Iterator[memory.Session]:
    """A session on the CPU whose recording the checker accepts, in which no chunk outlives what the caller did."""
    with memory.profile() as recording, memory.budget(device=limit, devices=devices) as session:
        yield session
        managers = list(session.managers.values())
        for manager in managers:
            assert_no_chunks(manager)
            assert limit is None or manager.stats.peak_bytes["device"] <= limit
        session.close()
        for manager in managers:
            assert not any(account.used for account in manager.accounts)
            check_actions(recording, manager)


def actions_of(recording: Recording, manager: Manager) -> list[Action]:
    """The actions of one manager in the host's order."""
    return [entry.action for entry in recording.actions if entry.manager == manager.number]


def check_actions(recording: Recording, manager: Manager) -> None:
    """Have the checker judge what a manager did."""
    check(actions_of(recording, manager), [account.limit for account in manager.accounts])


def assert_no_chunks(manager: Manager) -> None:
    """Check that no block is held. Dead blocks are only queued until bytes are asked for."""
    manager.reserve(0, "a look").release()
    assert not manager.index
