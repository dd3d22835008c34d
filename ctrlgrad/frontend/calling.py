"""Calls with wrong arguments, as errors that show how a function of the library is called."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ctrlgrad.errors import TypeMismatchError

P = ParamSpec("P")
R = TypeVar("R")


def explains_calls(fn: Callable[P, R]) -> Callable[P, R]:
    """The function; where it is not called as its parameters ask for, the error says so at the user's line."""

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except TypeError as error:
            # Raised by the call itself, not inside of the function.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise _misfit(fn, args, kwargs, error) from None

    return called


def _misfit(fn: Callable[..., Any], args: Any, kwargs: Any, error: TypeError) -> TypeMismatchError:
    parameters = [name for name in inspect.signature(fn).parameters if name != "self"]
    name = fn.__qualname__.split(".")[-2] if fn.__name__ == "__init__" else fn.__name__
    return TypeMismatchError(
        f"{name}: {str(error).removeprefix(f'{fn.__qualname__}() ')}",
        expected=f"{name}({', '.join(parameters)})",
        got=f"{len(args) - (fn.__name__ != fn.__qualname__)} by position" + "".join(f", {name}=" for name in kwargs),
        hint=f"name the parameters as above; help(ctrlgrad.{name}) says what they mean"
        if hasattr(sys.modules["ctrlgrad"], name)
        else "name the parameters as above",
    )
