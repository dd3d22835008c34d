"""Observers of compilation: an observer is entered with a graph's name, and left when its code is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

from ctrlgrad.blocks import holding

Observer = Callable[[str], AbstractContextManager[None]]
_OBSERVER: ContextVar[Observer | None] = ContextVar("who is told what is compiled", default=None)


def observed(observer: Observer) -> AbstractContextManager[None]:
    """Have an observer told of all that is compiled in a block of code."""
    return holding(_OBSERVER, observer)


def compiling(name: str) -> AbstractContextManager[None]:
    """Around what makes code of a graph, or finds it."""
    observer = _OBSERVER.get()
    return nullcontext() if observer is None else observer(name)
