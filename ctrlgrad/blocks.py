"""Context managers for settings: of context variables, and for users, with a warning if their block is never entered.

`ctrlgrad.options(engine="cuda")` as a statement of its own changes nothing. Without a warning its author would believe
that the engine has changed, or that memory has a budget.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from ctrlgrad.advice import misfit
from ctrlgrad.source import here

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Block(Generic[T]):
    """Context manager, or decorator of functions whose calls are such blocks. It warns if it was used as neither."""

    _is_used = True

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._make = make
        self._manager = make()
        self._name, self._source, self._is_used = name, here(), False

    def __enter__(self) -> T:
        self._is_used = True
        entered: T = self._manager.__enter__()
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        swallowed: bool | None = self._manager.__exit__(kind, error, traceback)
        return swallowed

    def __call__(self, fn: F) -> F:
        self._is_used = True

        @functools.wraps(fn)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._make():
                return fn(*args, **kwargs)

        return inside  # type: ignore[return-value]

    def __del__(self) -> None:
        if not self._is_used:
            ways = f"for a block, `with {self._name}(...):`, or for a function's calls, `@{self._name}(...)` above it"
            text = f"{self._name}(...) changes nothing by itself: it holds {ways}; at: {self._source}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a context variable a value in a block of code."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def block(name: str) -> Callable[[Callable[P, Iterator[T]]], Callable[P, Block[T]]]:
    """Like `contextlib.contextmanager`, for what users enter by this name."""

    def of(fn: Callable[P, Iterator[T]]) -> Callable[P, Block[T]]:
        manager = contextmanager(fn)

        signature = inspect.signature(fn)

        @functools.wraps(fn)
        def begin(*args: P.args, **kwargs: P.kwargs) -> Block[T]:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise misfit(fn, args, kwargs, error) from None
            return Block(name, lambda: manager(*args, **kwargs))

        return begin

    return of
