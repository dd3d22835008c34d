"""`at(x)[key].set(value)` and its kin: indexed updates that return the new array.

An update is done in place where the old array is not used again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.dtypes import can_cast, dtype_kind
from ctrlgrad.errors import MissingAttributeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast, result_dtype
from ctrlgrad.frontend.array.arithmetic import divide, maximum, minimum, multiply, power
from ctrlgrad.frontend.array.dims import (
    broadcasted,
    dim,
    dims,
    dtype_of,
    expanded,
    iota,
    rank_of,
    reshaped,
    shape_of,
    squeezed,
    times,
)
from ctrlgrad.frontend.array.indexing import Index, index
from ctrlgrad.frontend.array.manipulation import ravel
from ctrlgrad.frontend.array.promote import operand, operands, shown
from ctrlgrad.frontend.calling import explains_calls
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.loops import fori_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.records import record

_METHODS = ("set", "add", "subtract", "multiply", "divide", "power", "min", "max", "apply", "get")


def _misused(how: str, got: str, hint: str) -> TypeMismatchError:
    return TypeMismatchError(f"at: {how}", expected="x.at[index].set(value)", got=got, hint=hint)


def _missing(name: str, got: str, hint: str) -> MissingAttributeError:
    problem = f"at: there is no {name!r}"
    return MissingAttributeError(problem, expected="x.at[index].set(value)", got=got, hint=hint)


@record
class At:
    """An array that waits for a key: `at(x)[key]`."""

    x: Any

    def __getitem__(self, key: Any) -> Place:
        return Place(index(self.x, key))

    def __call__(self, *key: Any) -> None:
        raise _misused("called in place of indexed", "x.at(...)", "write square brackets: x.at[index]")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise _misused("assigned to", "x.at[...] = value", "arrays do not change: x = x.at[index].set(value)")

    def __iter__(self) -> Any:
        raise _misused("gone through", "iteration over x.at", "go through x itself, or map over its rows")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing(name, f"x.at.{name}", f"the index comes first: x.at[index].{name}(...)")


@record
class Place:
    """A part of an array: each method returns the whole array with that part changed.

    Values broadcast to the part and take the array's dtype; a value that would lose its fraction or its imaginary
    part is a TypeMismatchError.
    """

    index: Index

    @explains_calls
    def set(self, value: Any) -> Any:
        """With `value` there. Where an integer array names a position twice, the last value stays."""
        return self._whole(self._update("setitem", "set", self._value("set", value)))

    @explains_calls
    def add(self, value: Any) -> Any:
        """With `value` added. Where an integer array names a position twice, both values are added."""
        return self._whole(self._update("additem", "add", self._value("add", value)))

    @explains_calls
    def multiply(self, value: Any) -> Any:
        """With `value` multiplied in. Where an integer array names a position twice, both values are."""
        return self._whole(self._combine("multiply", multiply, value))

    @explains_calls
    def min(self, value: Any) -> Any:
        """With the smaller one of what is there and `value`, or the smallest where a position is named twice."""
        return self._whole(self._combine("min", minimum, value))

    @explains_calls
    def max(self, value: Any) -> Any:
        """With the larger one of what is there and `value`, or the largest where a position is named twice."""
        return self._whole(self._combine("max", maximum, value))

    @explains_calls
    def get(self) -> Any:
        """What is there; as x[key]."""
        return self._whole(apply("getitem", [self.index.target, *self.index.operands], {"key": self.index.key}))

    @explains_calls
    def subtract(self, value: Any) -> Any:
        """With `value` taken off. Where an integer array names a position twice, both values are."""
        (value,) = operands("at[...].subtract", (value,))
        return self.add(-value)

    @explains_calls
    def divide(self, value: Any) -> Any:
        """Divided by `value`. Where an integer array names a position twice, by both values."""
        return self._whole(self._combine("divide", divide, value))

    @explains_calls
    def power(self, value: Any) -> Any:
        """To the power of `value`. Where an integer array names a position twice, of both values."""
        return self._whole(self._combine("power", power, value))

    @explains_calls
    def apply(self, function: Callable[[Any], Any]) -> Any:
        """With what is there replaced by an elementwise function of it, once however often a position is named."""
        return self.set(function(self.get()))

    mul = multiply

    def __getitem__(self, key: Any) -> None:
        raise _misused("indexed twice", "x.at[...][...]", "all indices stand in one pair of brackets: x.at[i, j]")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing(name, f"x.at[...].{name}", f"there are {', '.join(_METHODS)}")

    def _no_value(self, *others: Any) -> Any:
        raise _misused(
            "computed with",
            "x.at[...] as an operand",
            "x[index] is the value that is there, x.at[index].add(v) the sum",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_value
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __neg__ = __float__ = __int__ = __bool__ = _no_value
    __iter__ = __array__ = _no_value

    def _whole(self, changed: Any) -> Any:
        """The array in its own shape: without the axes that scalar booleans choose from."""
        return squeezed(changed, self.index.chosen)

    def _value(self, method: str, value: Any) -> Any:
        (value,) = operands(f"at[...].{method}", (value,))
        dtype = dtype_of(self.index.target)
        if not can_cast(result_dtype(value, self.index.target), dtype, "same_kind"):
            raise TypeMismatchError(
                f"at[...].{method}: the value's dtype does not fit the array's",
                expected=f"a value that becomes {dtype} without loss of kind",
                got=shown(value),
                hint=f"value.astype({dtype.name}), or an array of another dtype",
            )
        return cast(value, dtype, f"at[...].{method}")

    def _update(self, op: str, method: str, value: Any) -> Any:
        at = self.index
        if op == "additem" and dtype_kind(dtype_of(at.target)) == "b":
            raise TypeMismatchError(f"at[...].{method}: booleans do not add up", got=shown(at.target), hint="use .set")
        if rank_of(at.target) == 0 and rank_of(value) <= len(at.key) and all(d == 1 for d in shape_of(value)):
            # The key adds axes at most: the part is the whole.
            whole = reshaped(value, ())
            if op == "additem":
                return apply("add", [at.target, whole])
            return whole if isinstance(whole, Tensor) else np.array(whole)
        if self._is_choice(value):
            x = at.target
            return self._chosen(value if op == "setitem" else apply("add", [x, value]))
        return apply(op, [at.target, value, *at.operands], {"key": at.key})

    def _is_choice(self, value: Any) -> bool:
        """Whether a traced mask is the whole key and the value has no row for each true element."""
        at = self.index
        return at.mask is not None and rank_of(value) <= rank_of(at.target) - rank_of(at.mask)

    def _chosen(self, changed: Any) -> Any:
        """`changed` where the mask holds, else the array as it was: its shape stays known."""
        mask, x = self.index.mask, self.index.target
        mask = expanded(mask, range(rank_of(mask), rank_of(x)))
        return apply("where", [mask, changed, x])

    def _combine(self, method: str, combine: Any, value: Any) -> Any:
        at = self.index
        value = self._value(method, value)
        if self._is_choice(value):
            return self._chosen(combine(at.target, value))
        if at.may_repeat:
            return self._one_by_one(combine, value)
        old = apply("getitem", [at.target, *at.operands], {"key": at.key})
        return self._update("setitem", method, combine(old, value))

    def _one_by_one(self, combine: Any, value: Any) -> Any:
        """A loop over the positions: an integer array may name one twice, and every value counts."""
        at = self.index
        numbers = reshaped(iota(times(dims(at.target))), dims(at.target))
        places = apply("getitem", [numbers, *at.operands], {"key": at.key})
        values = ravel(broadcasted(value, dims(places)))
        places, flat = ravel(places), ravel(at.target)
        one = {"key": (DYNAMIC,)}

        def body(k: Any, x: Any) -> Any:
            place = apply("getitem", [places, k], one)
            new = combine(apply("getitem", [x, place], one), apply("getitem", [values, k], one))
            return apply("setitem", [x, new, place], one)

        return reshaped(fori_loop(0, dim(places, 0), body, flat), dims(at.target))


@array_function()
def at(x: Any) -> At:
    """`at(x)[key]`, followed by `.set(v)`, `.add(v)`, `.multiply(v)` or another of JAX's names: x with a part changed.

    Keys are those of `x[key]`. x itself stays as it is.

    >>> cnp.at([1, 2, 3])[1:].add(10)
    array([ 1, 12, 13])
    """
    return At(operand("at", x))


__all__ = [
    "at",
]
