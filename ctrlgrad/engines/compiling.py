"""Observers of compilation: an observer is entered with a graph's name, and left when its code is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

Observer = Callable[[str], AbstractContextManager[None]]
_OBSERVER: ContextVar[Observer | None] = ContextVar("who is told what is compiled", default=None)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Have an observer told of all that is compiled in a block of code."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def compiling(name: str) -> AbstractContextManager[None]:
    """Around what makes code of a graph, or finds it."""
    observer = _OBSERVER.get()
    return nullcontext() if observer is None else observer(name)
