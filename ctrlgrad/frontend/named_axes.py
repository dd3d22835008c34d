"""Names of mapped axes: which are there where the function that is being mapped is traced, and how large they are."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ctrlgrad.errors import UserInputError
from ctrlgrad.ir.attributes import NamedAxis
from ctrlgrad.records import record
from ctrlgrad.source import here


@record
class Bound:
    """A mapped axis with a name; its size is an int or a traced scalar of the trace around."""

    axis: NamedAxis
    size: Any


Axes = tuple[Bound, ...]
_BOUND: ContextVar[Axes] = ContextVar("mapped axes that have names, the innermost last", default=())


def around() -> Axes:
    """The axes that have names here."""
    return _BOUND.get()


@contextmanager
def within(axes: Axes) -> Iterator[None]:
    """Trace where these axes have names."""
    token = _BOUND.set(axes)
    try:
        yield
    finally:
        _BOUND.reset(token)


def bound_to(name: Hashable, size: Any) -> Bound:
    """A further axis of that name, inside of those that are there."""
    return Bound(NamedAxis(name, len(around())), size)


def axis_called(operation: str, name: Hashable) -> Bound:
    """The innermost axis of that name."""
    for bound in reversed(around()):
        if bound.axis.name == name:
            return bound
    names = ", ".join(dict.fromkeys(repr(bound.axis.name) for bound in around()))
    raise UserInputError(
        f"{operation}: no mapped axis is called {name!r} here",
        source=here(),
        expected=f"one of {names}" if names else "a name that ctrlgrad.vmap(axis_name=) has given around it",
        got=repr(name),
        hint=f"ctrlgrad.vmap(function, axis_name={name!r}), and the collective inside that function",
    )
