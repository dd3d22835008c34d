"""Manner of differentiation, for a block of code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ctrlgrad.records import record


@record
class Manner:
    """Manner of differentiation: strong zeros or IEEE arithmetic, and whether a barrier marks each cotangent, so that a
    check finds it in a run."""

    strong_zeros: bool = True
    marks_cotangents: bool = False


_AT_FIRST = Manner()
_MANNER: ContextVar[Manner] = ContextVar("manner of derivatives", default=_AT_FIRST)


def current_manner() -> Manner:
    return _MANNER.get()


@contextmanager
def differentiating(manner: Manner) -> Iterator[None]:
    """A block of code that takes derivatives in this manner."""
    token = _MANNER.set(manner)
    try:
        yield
    finally:
        _MANNER.reset(token)
