"""`ctrlgrad.numpy` as a namespace of the Array API whose every call is traced.

Its arrays hold numbers; each function, operator and index is traced by `ctrlgrad.function` and run at once. Made for
data-apis' array-api-tests, which look at numbers after each call:

    ARRAY_API_TESTS_MODULE=traced_arrays.xp ARRAY_API_TESTS_VERSION=2024.12 \
    PYTHONPATH=tests/instruments pytest array_api_tests
"""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree


class Array:
    """Numbers on which everything but looking at them is traced."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, numbers: Any) -> None:
        self.numbers = np.asarray(numbers)

    def __repr__(self) -> str:
        return f"Array({self.numbers!r})"

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "shape", "ndim", "size", "device"):
            return getattr(self.numbers, name)
        if name in ("T", "mT"):
            return traced(lambda x: getattr(x, name), self)
        raise AttributeError(name)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        traced(lambda x: [x, x.__array_namespace__(api_version=api_version)][0], self)
        return xp

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        return traced(lambda x: x.to_device(device, stream=stream), self)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.numbers = traced(lambda x, key, value: x.at[key].set(value), self, key, value).numbers

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        return self.numbers.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> Any:
        return self.numbers.__dlpack_device__()


def _inner(x: Any) -> Any:
    return x.numbers if isinstance(x, Array) else x


def traced(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """fn of the arguments, whose arrays are traced; its arrays come back as numbers."""
    leaves, treedef = tree.flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Array)]
    plain: list[Any] = []

    def run(*arrays: Any) -> Any:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        given, keywords = tree.unflatten(treedef, filled)
        result = fn(*given, **keywords)
        results, treedef_of_results = tree.flatten(result)
        is_arrays = all(isinstance(x, cnp.ndarray | np.generic) for x in results)
        plain[:] = [treedef_of_results if is_arrays else None, result]
        return results if is_arrays else []

    found = cg.function(run, engine="reference")(*(leaves[place].numbers for place in places))
    return plain[1] if plain[0] is None else tree.unflatten(plain[0], [Array(x) for x in found])


def _namespace(module: ModuleType) -> dict[str, Any]:
    def wrapped(fn: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return traced(fn, *args, **kwargs)

        call.__wrapped__ = fn  # type: ignore[attr-defined]
        call.__name__ = getattr(fn, "__name__", "call")
        return call

    found = {}
    for name in module.__all__:
        value = getattr(module, name)
        found[name] = wrapped(value) if callable(value) and not isinstance(value, type) else value
    return found


def _define_operators() -> None:
    binary = [
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
    ]
    for name in (*binary, *["lt", "le", "gt", "ge", "eq", "ne"]):
        fn = getattr(operator, f"__{name}__")
        setattr(Array, f"__{name}__", lambda self, other, fn=fn: traced(fn, self, other))
        if name in binary:
            setattr(Array, f"__r{name}__", lambda self, other, fn=fn: traced(fn, other, self))
            setattr(Array, f"__i{name}__", _in_place(fn))
    for name in ["neg", "pos", "abs", "invert"]:
        fn = getattr(operator, f"__{name}__")
        setattr(Array, f"__{name}__", lambda self, fn=fn: traced(fn, self))
    Array.__getitem__ = lambda self, key: traced(operator.getitem, self, key)  # type: ignore[attr-defined]
    for name in ["bool", "int", "float", "complex", "index"]:
        setattr(Array, f"__{name}__", lambda self, name=name: getattr(self.numbers, f"__{name}__")())


def _in_place(fn: Any) -> Any:
    def change(self: Array, other: Any) -> Array:
        changed = traced(lambda x, y: cnp.broadcast_to(fn(x, y), x.shape).astype(x.dtype), self, other)
        self.numbers = changed.numbers
        return self

    return change


def _namespace_of(module: ModuleType, name: str) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(_namespace(module))
    return made


_define_operators()
xp: Any = _namespace_of(cnp, "traced_arrays.xp")
xp.linalg, xp.fft = _namespace_of(cnp.linalg, "linalg"), _namespace_of(cnp.fft, "fft")
xp.__array_api_version__ = "2024.12"
xp.__array_namespace_info__ = getattr(cnp, "__array_namespace_info__", None)
