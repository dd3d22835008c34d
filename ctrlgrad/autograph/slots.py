"""What a loop does with each of its variables.

- `Carried`: arrays, tensors and numbers are carried. A number starts out standing for a Python number, so it does
  not widen what it meets; where the body makes it an array, it is one from the start. What the pytree holds
  beside arrays must stay what it is.
- `Flag`: `return` and `break`. Known to be false whenever the body starts, since the loop's condition says so;
  carried only where the body sets it.
- `ReturnValue`: where the body starts nothing has been returned, so it is carried without being read.
- `Local`: what has no value before the loop has none when an iteration starts, and none after the loop.

A slot is entered (`enter` gives what the region sees), settled against what the body leaves (`settle` gives
another slot to trace the body again with, or None), and then asked for the operands, outputs and results of the node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ctrlgrad import tree
from ctrlgrad.autograph.undefined import Undefined, UndefinedReturnValue, is_flag, is_return_value, shown
from ctrlgrad.autograph.values import describe, is_array, joint_type, leaf_paths, same, weaken, zeros_array
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, is_weak, type_of, value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tensor_array import TensorArray
from ctrlgrad.ir import BOOL, Builder, TensorType, Type, Value
from ctrlgrad.source import Source

_NOT_A_TENSOR = """None is not a tensor: start with a number that stands for it (such as numpy.nan or -1), or with
zeros of the final shape, and keep a bool beside it that says whether there is a value"""
_ONLY_ARRAYS = """only tensors, arrays and numbers can change in such a loop: collect rows with ctrlgrad.TensorArray
or ctrlgrad.scan, or let the loop's condition be a Python value"""
_AGREE = "cast with .astype, or give it before the loop the dtype and shape that the body gives it"


@dataclass(frozen=True)
class Place:
    """Which loop: how errors call it, and where it stands."""

    construct: str
    source: Source | None

    def __str__(self) -> str:
        return f"{self.construct} at {self.source}" if self.source else self.construct


class Slot(Protocol):
    """One variable of a loop."""

    name: str
    is_read: bool
    """Whether the body may read it where it starts; if not, its inputs follow those of all that are read."""

    def enter(self, builder: Builder) -> Any: ...
    def enter_test(self, builder: Builder) -> Any: ...
    def settle(self, value: Any) -> Slot | None: ...
    def inputs(self, builder: Builder) -> list[Tensor]: ...
    def operands(self) -> list[Any]: ...
    def outputs(self, builder: Builder) -> list[Value]: ...
    def leave(self, results: list[Tensor]) -> Any: ...


def slot(name: str, initial: Any, place: Place) -> Slot:
    """The slot for a variable by what it holds before the loop."""
    if isinstance(initial, Undefined):
        return Local(name, initial.reason or f"has no value before the {place}", place)
    if is_return_value(name):
        return ReturnValue(name, initial, place)
    if is_flag(name):
        return Flag(name, initial)
    return Carried.of(name, initial, place)


@dataclass
class Local:
    name: str
    reason: str
    place: Place
    is_read: bool = True

    def enter(self, builder: Builder) -> Any:
        return Undefined(self.name, self.reason)

    enter_test = enter

    def settle(self, value: Any) -> Slot | None:
        return None

    def inputs(self, builder: Builder) -> list[Tensor]:
        return []

    def operands(self) -> list[Any]:
        return []

    def outputs(self, builder: Builder) -> list[Value]:
        return []

    def leave(self, results: list[Tensor]) -> Any:
        return Undefined(self.name, self.reason)


@dataclass
class Flag:
    name: str
    initial: Any
    after: Any = False
    is_read: bool = False

    @property
    def is_carried(self) -> bool:
        return isinstance(self.initial, Tensor) or self.after is not False

    def enter(self, builder: Builder) -> Any:
        return False

    def enter_test(self, builder: Builder) -> Any:
        return self.inputs(builder)[0] if self.is_carried else self.initial

    def settle(self, value: Any) -> Slot | None:
        self.after = value
        return None

    def inputs(self, builder: Builder) -> list[Tensor]:
        return [Tensor(builder, builder.input(BOOL))] if self.is_carried else []

    def operands(self) -> list[Any]:
        return [self.initial] if self.is_carried else []

    def outputs(self, builder: Builder) -> list[Value]:
        return [value_in(builder, self.after)] if self.is_carried else []

    def leave(self, results: list[Tensor]) -> Any:
        return results.pop(0) if self.is_carried else self.initial


@dataclass
class Carried:
    """`types` has None for a static leaf; `weak` says which leaves stand for Python numbers."""

    name: str
    initial: Any
    place: Place
    leaves: list[Any]
    treedef: tree.TreeDef
    types: list[Type | None]
    weak: list[bool]
    after: list[Any] = field(default_factory=list)
    entered: list[Any] = field(default_factory=list)
    is_read: bool = True

    @staticmethod
    def of(name: str, initial: Any, place: Place) -> Carried:
        leaves, treedef = tree.flatten(initial)
        types = [type_of(x) if is_array(x) else None for x in leaves]
        # A bool never widens anything, so only other numbers are told apart from arrays.
        weak = [t is not None and t != BOOL and is_weak(x) for x, t in zip(leaves, types, strict=True)]
        return Carried(name, initial, place, leaves, treedef, types, weak)

    def enter(self, builder: Builder) -> Any:
        inputs = self.inputs(builder)
        self.entered = [x if t is None else inputs.pop(0) for x, t in zip(self.leaves, self.types, strict=True)]
        return tree.unflatten(self.treedef, self.entered)

    def enter_test(self, builder: Builder) -> Any:
        inputs = self.inputs(builder)
        leaves = [x if t is None else inputs.pop(0) for x, t in zip(self.leaves, self.types, strict=True)]
        return tree.unflatten(self.treedef, leaves)

    def inputs(self, builder: Builder) -> list[Tensor]:
        paths = leaf_paths(self.name, self.treedef)
        return [
            Tensor(builder, builder.input(t, _hint(path)), weak)
            for t, weak, path in zip(self.types, self.weak, paths, strict=True)
            if t is not None
        ]

    def settle(self, value: Any) -> Slot | None:
        if isinstance(value, Undefined):
            # Some path through the body leaves it without a value: no later iteration can rely on one.
            return Local(self.name, value.reason or f"is deleted in the {self.place}", self.place)
        learned = _learn_elements(self.initial, value)
        if learned is not None:
            return Carried.of(self.name, learned, self.place)
        self.after, treedef = tree.flatten(value)
        if treedef != self.treedef:
            raise changes(self.name, self.initial, value, self.place, hint=_ONLY_ARRAYS)
        types, weak = list(self.types), list(self.weak)
        for position, (x, y, t) in enumerate(zip(self.leaves, self.after, self.types, strict=True)):
            path = leaf_paths(self.name, treedef)[position]
            if t is None or not is_array(y):
                if not same(x, y):
                    raise changes(self.name, self.initial, value, self.place, path, _ONLY_ARRAYS)
                continue
            settled = _settle_leaf(t, weak[position], y)
            if settled is None:
                raise changes(self.name, self.initial, value, self.place, path)
            types[position], weak[position] = settled, weak[position] and is_weak(y)
        if types == self.types and weak == self.weak:
            return None
        return Carried(self.name, self.initial, self.place, self.leaves, self.treedef, types, weak)

    def operands(self) -> list[Any]:
        return [_as(x, t) for x, t in zip(self.leaves, self.types, strict=True) if t is not None]

    def outputs(self, builder: Builder) -> list[Value]:
        return [value_in(builder, _as(y, t)) for y, t in zip(self.after, self.types, strict=True) if t is not None]

    def leave(self, results: list[Tensor]) -> Any:
        leaves = []
        for x, entered, y, t, weak in zip(self.leaves, self.entered, self.after, self.types, self.weak, strict=True):
            result = x if t is None else weaken(results.pop(0), weak)
            leaves.append(x if entered is y or same(entered, y) else result)
        unchanged = all(a is b for a, b in zip(leaves, self.leaves, strict=True))
        return self.initial if unchanged else tree.unflatten(self.treedef, leaves)


@dataclass
class ReturnValue:
    """Carried where the body returns; before anything is returned, zeros take its place."""

    name: str
    initial: Any
    place: Place
    treedef: tree.TreeDef | None = None
    after: list[Any] = field(default_factory=list)
    types: list[Type | None] = field(default_factory=list)
    weak: list[bool] = field(default_factory=list)
    is_read: bool = False

    def enter(self, builder: Builder) -> Any:
        return UndefinedReturnValue()

    def enter_test(self, builder: Builder) -> Any:
        self.inputs(builder)
        return UndefinedReturnValue()

    def settle(self, value: Any) -> Slot | None:
        if isinstance(value, UndefinedReturnValue):
            return None
        self.after, self.treedef = tree.flatten(value)
        before, treedef = (self.after, self.treedef) if self._is_new else tree.flatten(self.initial)
        if treedef != self.treedef:
            raise changes(self.name, self.initial, value, self.place)
        self.types, self.weak = [], []
        paths = leaf_paths("", treedef)
        for path, x, y in zip(paths, before, self.after, strict=True):
            t = joint_type([x, y]) if is_array(x) and is_array(y) else None
            if t is None and not same(x, y):
                raise changes(self.name, self.initial, value, self.place, path)
            self.types.append(t)
            self.weak.append(is_weak(x) and is_weak(y))
        return None

    @property
    def _is_new(self) -> bool:
        return isinstance(self.initial, UndefinedReturnValue)

    def inputs(self, builder: Builder) -> list[Tensor]:
        return [Tensor(builder, builder.input(t)) for t in self.types if t is not None]

    def operands(self) -> list[Any]:
        carried = [t for t in self.types if t is not None]
        if self._is_new:
            return [zeros_array(t) for t in carried]
        leaves = [x for x, t in zip(tree.leaves(self.initial), self.types, strict=False) if t is not None]
        return [_as(x, t) for x, t in zip(leaves, carried, strict=True)]

    def outputs(self, builder: Builder) -> list[Value]:
        return [value_in(builder, _as(y, t)) for y, t in zip(self.after, self.types, strict=True) if t is not None]

    def leave(self, results: list[Tensor]) -> Any:
        if self.treedef is None:
            return self.initial
        leaves = [
            y if t is None else weaken(results.pop(0), weak)
            for y, t, weak in zip(self.after, self.types, self.weak, strict=True)
        ]
        return tree.unflatten(self.treedef, leaves)


def _as(x: Any, t: Type | None) -> Any:
    return cast(x, t.dtype) if isinstance(t, TensorType) else x


def _settle_leaf(t: Type, weak: bool, y: Any) -> Type | None:
    """The type of a carried leaf after one look at what the body gives it; None where the two do not fit."""
    given = type_of(y)
    if not isinstance(t, TensorType) or not isinstance(given, TensorType):
        return t if t.accepts(given) else None
    kinds = [t.dtype.type(0).item() if weak else t.dtype, given.dtype.type(0).item() if is_weak(y) else given.dtype]
    joint = np.result_type(*kinds) if weak or is_weak(y) else given.dtype
    if joint != t.dtype and not weak:
        return None
    settled = TensorType(joint, t.shape)
    return settled if settled.accepts(TensorType(joint, given.shape)) else None


def _learn_elements(initial: Any, value: Any) -> Any:
    """`initial` with every open TensorArray given the element it has in `value`; None if none is learned."""

    def is_tensor_array(x: Any) -> bool:
        return isinstance(x, TensorArray)

    before, treedef = tree.flatten(initial, is_leaf=is_tensor_array)
    after, treedef_after = tree.flatten(value, is_leaf=is_tensor_array)
    if treedef != treedef_after:
        return None
    learned = [
        x.with_element(y.element)
        if is_tensor_array(x) and is_tensor_array(y) and x.element is None and y.element is not None
        else x
        for x, y in zip(before, after, strict=True)
    ]
    return None if all(a is b for a, b in zip(before, learned, strict=True)) else tree.unflatten(treedef, learned)


def _hint(path: str) -> str | None:
    return path if path.isidentifier() else None


def changes(name: str, initial: Any, value: Any, place: Place, path: str = "", hint: str = _AGREE) -> TypeMismatchError:
    """The error for a variable that the body leaves as something else."""
    where = f" (at {path})" if path not in ("", name) else ""
    return TypeMismatchError(
        f"autograph: {shown(name)} changes its type in a {place.construct} on a traced tensor{where}",
        source=place.source,
        expected=f"before the loop: {describe(initial)}",
        got=f"after the body: {describe(value)}",
        hint=_NOT_A_TENSOR if initial is None or value is None else hint,
    )
