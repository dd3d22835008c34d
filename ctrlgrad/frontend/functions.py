"""The array functions by name: registered once, found by operators, methods and NumPy's protocols.

`FUNCTIONS` is filled by the modules of `ctrlgrad.frontend.array`. A tensor knows none of them; it looks here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.ufuncs import as_ufunc, ufunc
from ctrlgrad.source import here

FUNCTIONS: dict[str, Callable[..., Any]] = {}
ufunc.functions = FUNCTIONS
# An argument that was left out, where None means something.
MISSING: Any = object()

F = TypeVar("F", bound=Callable[..., Any])


def array_function(*names: str) -> Callable[[F], F]:
    """Register an array function under its own name and further ones; a `ufunc` where NumPy has one."""

    def register(fn: F) -> F:
        fn = as_ufunc(fn)
        for name in (fn.__name__, *names):
            FUNCTIONS[name] = fn
        return fn

    return register


def call_ufunc(numpys: np.ufunc, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `__array_ufunc__` returns for a tensor."""
    name = numpys.__name__
    if method == "at":
        raise _in_place(
            f"np.{name}.at", f"x = x.at[index].add(value), or x = ctrlgrad.numpy.{name}.at(x, indices, values)"
        )
    if method == "__call__":
        return call(f"np.{name}", name, inputs, kwargs)
    fn = getattr(FUNCTIONS.get(name), method, None)
    if fn is None:
        raise _unsupported(f"np.{name}.{method}")
    return _called(f"np.{name}.{method}", fn, inputs, kwargs)


def call_function(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `__array_function__` returns for a tensor."""
    module = str(func.__module__).replace("numpy", "np", 1)
    return call(f"{module}.{func.__name__}", func.__name__, args, kwargs)


def call(shown: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an array function by its name; a TracingError where there is none, or not with these arguments."""
    if name in _CHANGING:
        raise _in_place(shown, _CHANGING[name])
    if name not in FUNCTIONS:
        raise _unsupported(shown)
    return _called(shown, FUNCTIONS[name], args, kwargs)


def _called(shown: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function, where it takes these arguments."""
    kwargs = {key: value for key, value in kwargs.items() if not _says_nothing(key, value)}
    if "out" in kwargs:
        raise TracingError(
            f"{shown}: out= is not possible on a traced tensor",
            source=here(),
            expected="a call without out=",
            got="a call with out=",
            hint="use the result: y = f(x) instead of f(x, out=y)",
        )
    signature = _signature(fn)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TracingError(
            f"{shown}: these arguments are not supported on traced tensors ({error})",
            source=here(),
            expected=f"{fn.__name__}{_parameters(signature)}",
            got=f"{len(args)} positional arguments" + "".join(f", {key}=" for key in kwargs),
            hint="convert before or after with .astype(...), or select with numpy.where",
        ) from error
    return fn(*args, **kwargs)


def _says_nothing(key: str, value: Any) -> bool:
    """Whether an argument of NumPy's is given as its default, as NumPy's own wrappers do."""
    if key == "where":
        return value is True or value is None
    if key == "out":
        return value is None or (isinstance(value, tuple) and all(x is None for x in value))
    return key == "initial" and (value is None or type(value).__name__ == "_NoValueType")


@lru_cache(maxsize=512)
def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(fn)


def _parameters(signature: inspect.Signature) -> str:
    """The parameters as `(x, axis, keepdims)`."""
    return f"({', '.join(signature.parameters)})"


# NumPy's functions that change their first argument, and what returns the changed array.
_CHANGING = {
    "copyto": "x = ctrlgrad.numpy.where(mask, values, x)",
    "putmask": "x = ctrlgrad.numpy.where(mask, values, x)",
    "place": "x = x.at[mask].set(values)",
    "put": "x = x.ravel().at[indices].set(values).reshape(x.shape)",
    "put_along_axis": "x = x.at[indices].set(values)",
    "fill_diagonal": "x = ctrlgrad.numpy.where(ctrlgrad.numpy.eye(n, dtype=bool), value, x)",
}


def _in_place(shown: str, hint: str) -> TracingError:
    return TracingError(
        f"{shown}: a traced tensor cannot be changed in place",
        source=here(),
        expected="a function that returns the new tensor",
        got=shown,
        hint=hint,
    )


def _unsupported(shown: str) -> TracingError:
    return TracingError(
        f"{shown} is not supported on traced tensors",
        source=here(),
        expected="a function that ctrlgrad.numpy has",
        got=shown,
        hint="see ctrlgrad.numpy for what there is, or write it with those functions",
    )
