"""The arrays that functions of `ctrlgrad.numpy`, loops and branches return outside of a trace: NumPy arrays, with what
JAX users expect.

A subclass of NumPy's array, since nothing else can be indexed by a traced tensor: `xs[t]` asks NumPy's array, which
knows numbers alone. Everything else is NumPy's: memory, methods, printed text, `isinstance`. Results of compiled
functions are NumPy's own arrays, so that a call costs nothing for it; `ctrlgrad.numpy.asarray(x)` makes one of these of
any array, without a copy.

Their values never change, as in a trace: `acc += x` gives `acc` a new array, on which no other name of the old one
depends, and an assignment to a part is refused. NumPy's own arrays (`np.array(x)` makes one) stay as writable as ever.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.advice import SET_BY, instead_of
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.source import user_frame


class Array(np.ndarray):
    """A NumPy array with `x.at[key]`, as a traced tensor has it, that a traced tensor may index.

    >>> xs = cnp.asarray(np.array([1.0, 2.0, 4.0]))
    >>> xs.at[0].set(7.0)
    array([7., 2., 4.])
    >>> float(cg.fori_loop(0, 3, lambda t, total: total + xs[t], 0.0))
    7.0
    """

    __slots__ = ()

    @property
    def at(self) -> Any:
        """`x.at[key].set(value)` and its kin give the changed array; see `ctrlgrad.numpy.at`."""
        return FUNCTIONS["at"](self)

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except TracingError:
            if not _is_traced(key):
                raise
        return FUNCTIONS["getitem"](np.asarray(self), key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if _is_users():
            raise _unchanged("item assignment", "x = x.at[index].set(value), or .add(value)")
        super().__setitem__(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if _is_users():
            hint = SET_BY.get(name, "keep the value in a variable of its own")
            raise _unchanged(f"x.{name} = ...", hint)
        super().__setattr__(name, value)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if return_scalar or not array.ndim:
            plain = np.asarray(array)
            return plain[()] if return_scalar else plain
        # Not made read-only: NumPy's functions compute in place in what an operator has given them.
        return array.view(Array)

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _is_users() -> bool:
    """Return true if the user's code called the method that asks, and no function of NumPy on an array of its own."""
    return user_frame() is sys._getframe(2)


def _unchanged(shown: str, hint: str) -> TracingError:
    return TracingError(
        f"{shown}: an array of ctrlgrad.numpy cannot be changed in place",
        expected="an expression that gives a new array",
        got=shown,
        hint=f"{hint}; numpy.array(x) is an array of NumPy's that can be changed",
    )


def _rebinding(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: operation(self, other)


def _refused(name: str) -> Callable[..., Any]:
    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        if not _is_users():  # NumPy's sort sorts a copy
            return getattr(np.ndarray, name)(self, *args, **kwargs)
        raise _unchanged(f"x.{name}(...)", instead_of(name).replace("a traced tensor", "an array"))

    method.__name__ = name
    return method


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
):
    _operation = getattr(operator, f"__{_name}__")
    setattr(Array, f"__i{_name}__", _rebinding(_operation))
for _name in ["sort", "partition", "fill", "put", "resize", "setfield", "setflags"]:
    setattr(Array, _name, _refused(_name))


def _is_traced(key: Any) -> bool:
    """Return true if an index key contains a traced tensor."""
    if isinstance(key, tuple | list):
        return any(map(_is_traced, key))
    if isinstance(key, slice):
        return any(isinstance(part, Tensor) for part in (key.start, key.stop, key.step))
    return isinstance(key, Tensor)


def concrete(x: Any) -> Any:
    """A NumPy array as an `Array`, of the same memory; anything else as it is."""
    if type(x) is not np.ndarray:
        return x
    found = x.view(Array)
    # NumPy's own method: that of an `Array` refuses.
    np.ndarray.setflags(found, write=False)
    return found
