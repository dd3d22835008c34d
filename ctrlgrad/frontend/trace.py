"""The state of tracing: which builder receives nodes now.

`recording(builder)` makes a builder the current one for a block. When the block ends the builder is
finished: its tensors must not be used any more, and using one is a `LeakedValueError`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ctrlgrad.ir import Builder
from ctrlgrad.source import here

Captured = dict[int, tuple[np.ndarray, np.ndarray]]


class Trial:
    """A trace in which sizes are unknown as long as the function does not ask for their numbers.

    Python and other libraries replace the error of a tensor that has no number by one of their own, so it is noted. So
    is a size that chooses code by autograph: branches that differ in more than numbers raise an error of their own.
    """

    needs_numbers = False


class _State(threading.local):
    builder: Builder | None = None
    captured: Captured | None = None
    trial: Trial | None = None


_STATE = _State()


def current() -> Builder | None:
    """The innermost builder that is recording, or None outside any trace."""
    return _STATE.builder


@contextmanager
def capturing() -> Iterator[Captured]:
    """In this block, note the user's arrays that become constants of a graph: by the id of the constant or
    another copy, both."""
    outer, _STATE.captured = _STATE.captured, {}
    try:
        yield _STATE.captured
    finally:
        _STATE.captured = outer


@contextmanager
def trying_unknown_sizes() -> Iterator[Trial]:
    """In this block, a number that is asked for means that the function is traced for its exact sizes instead."""
    outer, _STATE.trial = _STATE.trial, Trial()
    try:
        yield _STATE.trial
    finally:
        _STATE.trial = outer


def trial() -> Trial | None:
    """The innermost trial, or None outside any."""
    return _STATE.trial


def note_number() -> None:
    """Note in a trial that an error may be due to a size whose number is asked for."""
    if _STATE.trial is not None:
        _STATE.trial.needs_numbers = True


class Mapped(Builder):
    """The builder of a function that is being mapped."""


def is_mapped(builder: Builder | None) -> bool:
    """Return true if the nodes of a builder will be batched by `vmap`."""
    return builder is not None and (isinstance(builder, Mapped) or is_mapped(builder.parent))


def captured() -> Captured | None:
    """Return the record of arrays that become constants, or None."""
    return _STATE.captured


def recorder() -> Builder:
    """The innermost builder, where there must be one."""
    builder = _STATE.builder
    assert builder is not None
    return builder


@contextmanager
def recording(builder: Builder) -> Iterator[Builder]:
    """Record nodes into `builder` until the block ends. A builder may be recorded into several times."""
    outer = _STATE.builder
    _STATE.builder = builder
    builder.is_open = True
    builder.began = builder.began or here()
    try:
        yield builder
    finally:
        _STATE.builder = outer
        builder.is_open = False
