"""Every interleaving of streams and host on small cases: right values, no deadlock, no budget exceeded, valid
actions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from instruments.sessions import check_actions
from instruments.stepping import Scheduler, StepDevice, all_schedules
from instruments.tables import in_turn
from memory_cases.driving import CHUNK, Driver

from ctrlgrad.errors import VerificationError
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.sizes import Budget

HALF = CHUNK // 2


def run(scheduler: Scheduler, program: Callable[[Manager], Driver], budget: Budget, tiers: int, order: str) -> None:
    device = StepDevice(scheduler, tiers, order)
    recording = Recording()
    manager = Manager(device, budget, recording)
    program(manager).settle()
    manager.close()
    assert not any(account.used for account in manager.accounts)
    check_actions(recording, manager)


def swapped(rows: list[list[int]], **ways: object) -> Callable[[Manager], Driver]:
    def program(manager: Manager) -> Driver:
        driver = Driver(manager, rows)
        driver.start(**(ways or {"swap": True}))
        driver.forward()
        driver.backward()
        return driver

    return program


def half_way_back(manager: Manager) -> Driver:
    """A loop that goes forward, one chunk back, forward again, and then all the way back."""
    driver = Driver(manager, [[2]] * 3)
    driver.start(swap=True)
    driver.forward(2)
    driver.backward(1)
    driver.rows = [[2]] * 2
    driver.forward(1)
    driver.backward()
    return driver


# Programs, budgets and numbers of tiers.
Case = tuple[Callable[[Manager], Driver], Budget, int]

SMALL: dict[str, Case] = {
    "two chunks, room for one and a half": (swapped([[2], [2]]), Budget(device=HALF + 40), 2),
    "computed again": (swapped([[2], [2], [2]], checkpoint=True), Budget(device=HALF + 48), 2),
    "one chunk of two blocks, room for both": (swapped([[1, 1]]), Budget(device=HALF), 2),
}
MIDDLE: dict[str, Case] = {
    "three chunks, room for two": (swapped([[2], [2], [2]]), Budget(device=2 * HALF), 2),
    "two chunks, three tiers, room for one in two": (swapped([[2], [2]]), Budget(device=HALF, host=HALF), 3),
    "back and forth": (half_way_back, Budget(device=HALF), 2),
}
LARGE: dict[str, Case] = {
    "three chunks, room for one": (swapped([[2], [2], [2]]), Budget(device=HALF), 2),
    "blocks of two sizes": (swapped([[1, 2], [2, 1], [1, 1], [2, 2]]), Budget(device=CHUNK), 2),
    "three tiers, room for one in two": (swapped([[2], [2], [2]]), Budget(device=HALF, host=HALF), 3),
    "three tiers, five chunks": (swapped([[2], [1], [2], [2], [1]]), Budget(device=CHUNK, host=CHUNK), 3),
    "copied or computed again": (swapped([[2]] * 6, swap=None), Budget(device=CHUNK + 64), 2),
    "few states": (swapped([[2]] * 6, checkpoint=2), Budget(device=HALF + 48), 2),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_interleaving(name: str) -> None:
    program, budget, tiers = SMALL[name]
    count = 0
    for scheduler in all_schedules(5000):
        run(scheduler, program, budget, tiers, "any")
        count += 1
    assert count > 1


@in_turn("order, name", ["lazy", "eager"], list(MIDDLE))
def test_every_answer_that_the_host_may_get(order: str, name: str) -> None:
    program, budget, tiers = MIDDLE[name]
    count = 0
    for scheduler in all_schedules(5000):
        run(scheduler, program, budget, tiers, order)
        count += 1
    assert count > 10


@in_turn("name, order", [*MIDDLE, *LARGE], ["any", "lazy", "eager"])
def test_random_schedules(name: str, order: str) -> None:
    program, budget, tiers = {**MIDDLE, **LARGE}[name]
    for seed in range(25):
        run(Scheduler(random=Random(f"{name} {order} {seed}")), program, budget, tiers, order)


def test_a_wait_that_is_left_out_shows() -> None:
    """A removed wait is detected: the search finds the schedule in which a fetch overwrites bytes still in use."""

    def program(manager: Manager) -> Driver:
        manager.arena.vacate = lambda mark: None  # type: ignore[method-assign]
        return swapped([[2], [2], [2]])(manager)

    with pytest.raises((AssertionError, VerificationError)):
        for scheduler in all_schedules(5000):
            run(scheduler, program, Budget(device=2 * HALF), 2, "eager")
