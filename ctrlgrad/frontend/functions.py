"""The array functions by name: registered once, found by operators, methods and NumPy's protocols.

`FUNCTIONS` is filled by the modules of `ctrlgrad.frontend.array`. A tensor knows none of them; it looks here.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.ufuncs import as_ufunc, ufunc
from ctrlgrad.source import library_function

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
    """Work of `__array_ufunc__` for a tensor: call the array function of the same name."""
    name = numpys.__name__
    if method == "at":
        raise _in_place(
            f"np.{name}.at", f"x = x.at[index].add(value), or x = ctrlgrad.numpy.{name}.at(x, indices, values)"
        )
    shown = f"{module_of(numpys)}.{name}"
    if shown.startswith("scipy"):
        raise _unsupported(shown, inputs, ours("scipy.special", name))
    if method == "__call__":
        return call(shown, name, inputs, kwargs)
    fn = getattr(FUNCTIONS.get(name), method, None)
    if fn is None:
        raise _unsupported(f"{shown}.{method}", inputs)
    return _called(f"{shown}.{method}", name, fn, inputs, kwargs)


def module_of(numpys: np.ufunc) -> str:
    """Module of a ufunc, as users write it."""
    there = sys.modules.get("scipy.special")
    return "scipy.special" if getattr(there, numpys.__name__, None) is numpys else "np"


def ours(module: str, name: str) -> str | None:
    """The function of this library that stands for one of NumPy's or SciPy's, for a hint."""
    if module in ("np", "numpy"):
        return f"ctrlgrad.numpy.{name}" if name in FUNCTIONS else None
    try:
        # A module of a higher layer, imported here only to look up its names.
        there = importlib.import_module(f"ctrlgrad.{module}")
    except ImportError:
        return None
    return f"ctrlgrad.{module}.{name}" if name in getattr(there, "__all__", ()) else None


def call_function(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Work of `__array_function__` for a tensor: call the array function of the same name."""
    module = str(func.__module__).replace("numpy", "np", 1)
    return call(f"{module}.{func.__name__}", func.__name__, args, kwargs)


def call(shown: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an array function by its name; a TracingError where there is none, or not with these arguments."""
    if name in _CHANGING:
        _, called = library_function() or ("", name)
        if called != name and called in FUNCTIONS:
            # NumPy's own function fills an array of its own.
            raise _unsupported(f"np.{called}", args, f"ctrlgrad.numpy.{called}")
        raise _in_place(shown, _CHANGING[name])
    if name not in FUNCTIONS:
        raise _unsupported(shown, args)
    return _called(shown, name, FUNCTIONS[name], args, kwargs)


def _called(shown: str, name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function, where it takes these arguments."""
    kwargs = {key: value for key, value in kwargs.items() if not _says_nothing(key, value)}
    if "out" in kwargs:
        raise _given_out(shown, name, args, kwargs["out"])
    signature = _signature(fn)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        refused = TracingError(
            f"{shown}: these arguments are not supported on traced tensors ({error})",
            expected=f"{fn.__name__}{_parameters(signature)}",
            got=f"{len(args)} positional arguments" + "".join(f", {key}=" for key in kwargs),
            hint="convert before or after with .astype(...), or select with numpy.where",
        )
        refused.refused = tuple(args)
        raise refused from error
    return fn(*args, **kwargs)


def _says_nothing(key: str, value: Any) -> bool:
    """Return true if a NumPy argument has its default value; NumPy's own wrappers pass such arguments."""
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
        expected="a function that returns the new tensor",
        got=shown,
        hint=hint,
    )


_OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "true_divide": "/",
    "floor_divide": "//",
    "remainder": "%",
    "power": "**",
    "matmul": "@",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}


def _given_out(shown: str, name: str, args: Sequence[Any], out: Any) -> TracingError:
    """Error for out=, or for an operator like += on a NumPy array."""
    targets = out if isinstance(out, tuple) else (out,)
    operator = _OPERATORS.get(name)
    in_place = operator is not None and any(args and target is args[0] for target in targets)
    error = TracingError(
        f"{operator}= on a NumPy array: it cannot take a traced value in place"
        if in_place
        else f"{shown}: out= is not possible on a traced tensor",
        expected="an expression that gives a new tensor" if in_place else "a call without out=",
        got=f"y {operator}= x, where x is traced" if in_place else "a call with out=",
        hint=f"y = y {operator} x" if in_place else "use the result: y = f(x) instead of f(x, out=y)",
    )
    # The targets are the user's own arrays: with concrete arguments the call works, so the trace may be retried with
    # them.
    if all(isinstance(target, np.ndarray) for target in targets):
        error.refused = tuple(args)
    return error


def _unsupported(shown: str, args: Sequence[Any], instead: str | None = None) -> TracingError:
    error = TracingError(
        f"{shown} is not supported on traced tensors",
        expected="a function of ctrlgrad",
        got=shown,
        hint=f"{instead}, which takes them" if instead else "see ctrlgrad.numpy and ctrlgrad.scipy for what there is",
    )
    error.refused = tuple(args)
    return error
