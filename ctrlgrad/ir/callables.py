"""Python functions in a graph, compared by what they do: a callback is made anew at each trace.

Two functions are alike if they have one code, and what they close over is the same object or an equal number, text or
type. One that assigns to a variable around it, or closes over a list that each trace makes anew, is like itself alone.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

import numpy as np
import optree

from ctrlgrad.ir.types import StackType, TensorType
from ctrlgrad.source import Source

FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_NUMBERS = (float, complex, np.generic)
_EQUAL = (bool, int, str, bytes, np.dtype, TensorType, StackType, Source, optree.PyTreeSpec, types.CodeType)


class Alike:
    """A function as a key: equal to functions that do the same now."""

    __slots__ = ("fn",)

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __hash__(self) -> int:
        return hash(getattr(_plain(self.fn), "__code__", None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and _alike(self.fn, other.fn)


def _plain(fn: Any) -> Any:
    while isinstance(fn, functools.partial | types.MethodType):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    return fn


def _alike(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, types.MethodType):
        return a.__self__ is b.__self__ and _alike(a.__func__, b.__func__)
    if isinstance(a, functools.partial):
        return all(map(_alike, (a.func, a.args, _items(a.keywords)), (b.func, b.args, _items(b.keywords))))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, types.FunctionType):
        return (
            a.__code__ is b.__code__
            and a.__globals__ is b.__globals__
            and not (a.__dict__ or b.__dict__ or _assigns_around(a.__code__))
            and all(map(_alike, _held(a), _held(b)))
        )
    if isinstance(a, _NUMBERS):
        return repr(a) == repr(b)
    return isinstance(a, _EQUAL) and a == b


def _items(keywords: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(keywords.items()))


def _held(fn: types.FunctionType) -> tuple[Any, ...]:
    """Defaults, and what the variables around a function hold; an empty one is like no other."""
    try:
        cells = tuple(cell.cell_contents for cell in fn.__closure__ or ())
    except ValueError:
        return (object(),)
    return fn.__defaults__, _items(fn.__kwdefaults__ or {}), cells


@functools.lru_cache(maxsize=1024)
def _assigns_around(code: types.CodeType) -> bool:
    """Return true if a function, or one inside it, assigns to a variable around it."""
    around = set(code.co_freevars)
    stores = (i for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF"))
    return any(i.argval in around for i in stores) or any(
        isinstance(x, types.CodeType) and _assigns_around(x) and around.intersection(x.co_freevars)
        for x in code.co_consts
    )
