"""Turns of the calls of several threads under one budget: a call that another thread's leaves no room runs alone.

Ctrl-C may raise an error between any two steps of the main thread. So a call is on record within a `try`, whose
`finally` begins with the one step that takes it off; and a thread that waits looks again now and then, since the notice
may be missing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from ctrlgrad.errors import MemoryBudgetError, forget_values

T = TypeVar("T")

# Seconds between two looks of a thread that waits without a notice.
PATIENCE = 0.05


class Turns:
    """Calls of several threads under one budget. One that is refused while another runs, and can begin anew, does so
    alone: it waits for the calls that run, and those that would begin wait for it.

    No call in it may wait for another thread. Calls inside a call of the same thread run in its turn. A forked process
    has no calls of its parent's threads.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        # Taken and released without Python code, unlike the condition, so no error comes in between.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Threads with a running call, those of them that ran beside another, and the thread that runs alone, or waits
        # for that.
        self._running: set[int] = set()
        self._shared: set[int] = set()
        self._alone: int | None = None

    def run(self, call: Callable[[], T], again: Callable[[], T]) -> T:
        """Run a call; where it is refused beside another thread's, `again` alone."""
        if self._process != os.getpid():
            Turns.__init__(self)
        me = threading.get_ident()
        if me in self._running:
            return call()
        try:
            with self._lock:
                self._wait(lambda: self._alone in (None, me))
                self._running.add(me)
                self._shared |= self._running if len(self._running) > 1 else set()
            return call()
        except MemoryBudgetError as error:
            if me not in self._shared:
                raise
            forget_values(error)
        finally:
            self._running.discard(me)
            self._shared.discard(me)
            self._notify()
        try:
            with self._lock:
                self._wait(lambda: self._alone is None)
                self._alone = me
                self._wait(lambda: not self._running)
            return again()
        finally:
            if self._alone == me:
                self._alone = None
            self._notify()

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.wait(PATIENCE)

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()


def in_turns(all_turns: Iterable[Turns], call: Callable[[], T], again: Callable[[], T]) -> T:
    """Run a call in its turn under several budgets: `again`, which asks for the same turns, where it is refused.

    Every thread asks for them in one order, so that no two wait for each other.
    """
    for turns in sorted(all_turns, key=id):
        call = partial(turns.run, call, again)
    return call()
