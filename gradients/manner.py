"""Manner of differentiation, for a block of code."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from ctrlgrad.blocks import holding
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


def differentiating(manner: Manner) -> AbstractContextManager[None]:
    """A block of code that takes derivatives in this manner."""
    return holding(_MANNER, manner)
