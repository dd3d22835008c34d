"""Turns of threads under one budget where a thread is interrupted, fails, dies or forks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from os import _exit, fork, waitpid, waitstatus_to_exitcode
from signal import SIGINT, alarm, default_int_handler, pthread_kill, signal
from threading import Event, Thread, Timer, get_ident, main_thread
from time import sleep
from typing import Any

import pytest

from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.memory.turns import Turns, in_turns


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """A process that a shell runs in the background is told to ignore Ctrl-C."""
    before = signal(SIGINT, default_int_handler)
    yield
    signal(SIGINT, before)


def refused() -> Any:
    raise MemoryBudgetError("refused")


@contextmanager
def running(turns: Turns, *further: Turns) -> Iterator[tuple[Callable[[], None], Future[None]]]:
    """A call of another thread that runs until it is told to go on."""
    begun, go_on = Event(), Event()

    def long() -> None:
        begun.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(in_turns, (turns, *further), long, long)
        assert begun.wait(60)
        try:
            yield go_on.set, call
        finally:
            go_on.set()


@contextmanager
def interrupted() -> Iterator[None]:
    """Ctrl-C a moment after the block has begun, which is raised in it."""
    timer = Timer(0.3, lambda: pthread_kill(main_thread().ident or 0, SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()


def alone_beside(turns: Turns, call: Callable[[], Any], pool: ThreadPoolExecutor) -> Future[Any]:
    """A call of another thread that is refused beside one, which ends then: it begins anew alone."""
    with running(turns) as (finish, _):
        second = pool.submit(turns.run, refused, call)
        while turns._alone is None:
            sleep(0.001)
        finish()
    return second


def assert_free(turns: Turns) -> None:
    """Check that no call is on record: that another thread's runs, beside another and alone."""
    assert (turns._running, turns._shared, turns._alone) == (set(), set(), None)
    with running(turns), ThreadPoolExecutor(1) as pool:
        assert pool.submit(turns.run, lambda: 3, int).result(timeout=20) == 3


def test_an_interrupt_while_a_refused_call_waits_to_run_alone() -> None:
    turns = Turns()
    assert get_ident() == main_thread().ident
    with running(turns):
        with interrupted():
            turns.run(refused, lambda: pytest.fail("it ran beside the other call"))
        # The other call goes on, and a third one does not wait for the one that was interrupted.
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(turns.run, lambda: 3, int).result(timeout=20) == 3
    assert_free(turns)


def test_an_interrupt_while_a_call_waits_for_one_that_runs_alone() -> None:
    turns, begun, go_on = Turns(), Event(), Event()

    def alone() -> int:
        begun.set()
        assert go_on.wait(60)
        return 4

    with ThreadPoolExecutor(1) as pool:
        second = alone_beside(turns, alone, pool)
        assert begun.wait(60)
        with interrupted():
            turns.run(lambda: pytest.fail("it ran beside a call that runs alone"), int)
        go_on.set()
        assert second.result(timeout=60) == 4
    assert_free(turns)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, MemoryBudgetError])
def test_an_error_of_a_call_that_runs_alone_ends_its_turn(error: type[BaseException]) -> None:
    turns = Turns()

    def failing() -> None:
        raise error("failed")

    with ThreadPoolExecutor(1) as pool:
        second = alone_beside(turns, failing, pool)
        with pytest.raises(error, match="failed"):
            second.result(timeout=60)
    assert_free(turns)


def test_a_thread_that_dies_in_its_turn_leaves_it() -> None:
    turns = Turns()

    def die() -> None:
        raise SystemExit

    def run() -> None:
        with suppress(SystemExit):
            turns.run(die, die)

    thread = Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert_free(turns)


def test_an_error_in_the_turns_of_two_budgets_ends_both() -> None:
    first, second = Turns(), Turns()

    def failing() -> None:
        assert first._running == second._running == {get_ident()}
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        in_turns((first, second), failing, failing)
    assert_free(first)
    assert_free(second)


def test_a_child_forked_while_a_thread_waits_to_run_alone_has_no_calls() -> None:
    """In the child neither the running call nor the waiting one goes on; the parent's go on as before."""
    turns = Turns()
    with ThreadPoolExecutor(1) as pool, running(turns) as (finish, first):
        second = pool.submit(turns.run, refused, lambda: 4)
        while turns._alone is None:
            sleep(0.001)
        child = fork()
        if not child:
            alarm(30)
            _exit(3 if turns.run(lambda: 3, int) == 3 and turns._alone is None else 4)
        assert waitstatus_to_exitcode(waitpid(child, 0)[1]) == 3
        finish()
        first.result(timeout=60)
        assert second.result(timeout=60) == 4
    assert_free(turns)


def test_a_child_forked_in_a_call_goes_on_with_it() -> None:
    turns = Turns()

    def forking() -> int:
        child = fork()
        if not child:
            alarm(30)
            # Calls inside the call begin in new turns: the process is another one.
            _exit(turns.run(lambda: 3, int))
        return waitstatus_to_exitcode(waitpid(child, 0)[1])

    assert turns.run(forking, int) == 3
    assert_free(turns)
