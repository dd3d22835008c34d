"""Support for forks: a forked child has one thread, and the locks and unfinished work of the parent's other threads.

- `lock` and `recursive_lock`: locks that are free in the child even if another thread held them. So they may only guard
  data that is valid between any two steps of the holder.
- `undivided`: a block of code that a fork must not interrupt, since its unfinished state belongs to the
  interpreter or to LLVM. A fork waits for its end.
- Imports: a fork also waits until no other thread is importing a module of ctrlgrad, or of a package that ctrlgrad
  imports lazily. The child would wait for ever for the lock of a half imported module.
- `once`: an attribute that is computed when it is first asked for, without a lock.
"""

from __future__ import annotations

import _imp
import importlib._bootstrap as _bootstrap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    """A lock that is free in a forked child."""
    found = threading.Lock()
    _LOCKS.add(found)
    return found


def recursive_lock() -> Any:
    """A reentrant lock; free in a forked child unless the forking thread holds it."""
    found = threading.RLock()
    _LOCKS.add(found)
    return found


# Threads inside undivided blocks, with their depth.
_busy: list[int] = []
_change = threading.Condition()


@contextmanager
def undivided() -> Iterator[None]:
    """A fork by another thread waits for the end of this block, which must not wait for that thread."""
    me = threading.get_ident()
    with _change:
        _busy.append(me)
    try:
        yield
    finally:
        with _change:
            _busy.remove(me)
            _change.notify_all()


_PACKAGES = {"ctrlgrad", "gradients", "stacks", "memory", "llvmlite", "numpy", "optree", "scipy"}

# Longest wait for imports. An import that takes longer itself waits for the thread that forks.
_PATIENCE = 5.0


def _is_importing(me: int) -> bool:
    """Return True if another thread is importing a module of `_PACKAGES`."""
    # Python has no public list of running imports. Locks of finished imports leave this dictionary.
    locks: dict[str, Any] = vars(_bootstrap)["_module_locks"]
    found = [(name, reference()) for name, reference in list(locks.items())]
    return any(
        lock is not None and lock.owner not in (None, me) and name.partition(".")[0] in _PACKAGES
        for name, lock in found
    )


def _wait() -> None:
    """Before a fork: wait for the end of all undivided blocks and of imports.

    No thread begins either until the fork is over: `_change` and Python's lock of all imports are held.
    """
    _change.acquire()
    _imp.acquire_lock()
    me = threading.get_ident()
    end = time.monotonic() + _PATIENCE
    while set(_busy) - {me} or (_is_importing(me) and time.monotonic() < end):
        _imp.release_lock()
        _change.wait(0.001)
        _imp.acquire_lock()


def _go_on() -> None:
    _imp.release_lock()
    _change.release()


def _free() -> None:
    """In the child."""
    _go_on()
    for one in list(_LOCKS):
        # Python's own modules renew their locks by this method too.
        if not (hasattr(one, "_is_owned") and one._is_owned()):
            one._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_free)


class once(Generic[T]):
    """As `functools.cached_property`, without a lock: two threads may both compute the value.

    Before Python 3.12 `cached_property` has one lock for all objects: threads wait for each other's objects, and a
    child that is forked meanwhile waits for ever.

    >>> class Circle:
    ...     radius = 2.0
    ...     @once
    ...     def area(self) -> float:
    ...         return 3.0 * self.radius**2
    >>> Circle().area
    12.0
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, one: None, owner: type) -> once[T]: ...
    @overload
    def __get__(self, one: object, owner: type) -> T: ...
    def __get__(self, one: Any, owner: type) -> Any:
        if one is None:
            return self
        found = one.__dict__[self.name] = self.compute(one)
        return found
