"""`while` on a traced condition, and what all traced loops share: the body becomes one `while` node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CellType
from typing import Any, Protocol

import numpy as np

from ctrlgrad import tree
from ctrlgrad.autograph.values import (
    GetState,
    SetState,
    Undefined,
    UndefinedReturnValue,
    cells_of,
    describe,
    is_array,
    is_flag,
    is_return_value,
    is_traced,
    leaf_paths,
    plain,
    same,
    shown,
    state_of,
    tracing,
    truth,
    unchanged,
    weaken,
    zeros_array,
)
from ctrlgrad.dtypes import result_type
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, is_weak, joint_type, type_of
from ctrlgrad.frontend.carry import has_open_elements, learn_elements, settle
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.loops import emit_while
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import note_number, recorder
from ctrlgrad.frontend.tracer import Leaf, Traced
from ctrlgrad.ir import BOOL, INDEX, Graph, TensorType, Type, Value, attributes
from ctrlgrad.source import Source, here

# Variables of a traced loop, one kind of slot for each way in which the loop treats them.
#
# - `Carried`: arrays, tensors and numbers are carried. A number starts as a Python number, so it does not widen the
#   values it is combined with; if the body makes it an array, it is an array from the start. Parts of the pytree that
#   are no arrays must stay the same.
# - `Flag`: `return` and `break`. Known to be false whenever the body starts, since the loop's condition says so;
#   carried only if the body sets it.
# - `ReturnValue`: when the body starts nothing has been returned, so it is carried without being read.
# - `Local`: a variable without a value before the loop has none when an iteration starts, and none after the loop.
#
# A slot is entered (`enter` gives the value that the region sees), settled against the value that the body leaves
# (`settle` gives another slot to trace the body again with, or None), and then gives the operands, outputs and
# results of the node.


_NOT_A_TENSOR = """None is not a tensor: start with a number that stands for it (such as numpy.nan or -1), or with
zeros of the final shape, and keep a bool beside it that says whether there is a value"""
_ONLY_ARRAYS = """only tensors, arrays and numbers can change in such a loop: collect rows with ctrlgrad.TensorArray
or ctrlgrad.scan, or let the loop's condition be a Python value"""
_REGISTER = """change its attributes, or make {0} a pytree node: @ctrlgrad.tree_util.register_dataclass above a
dataclass, ctrlgrad.tree_util.register_pytree_node(...) for another class"""
_AGREE = (
    "cast with .astype, or give it before the loop the dtype and shape that the body gives it;\n"
    "where a size changes from iteration to iteration, start from ctrlgrad.unknown_dims(x, axis)"
)


@dataclass(frozen=True)
class Place:
    """Loop that the slots belong to: its name in errors, and its line."""

    construct: str
    source: Source | None

    def __str__(self) -> str:
        return f"{self.construct} at {self.source}" if self.source else self.construct


class Slot(Protocol):
    """One variable of a loop."""

    name: str
    is_read: bool
    """True if the body may read it at its start; if not, its inputs follow those of all slots that are read."""

    @property
    def may_learn(self) -> bool: ...

    def entry(self) -> list[Leaf]:
        """Inputs of a region for this slot."""

    def enter(self, inputs: list[Tensor]) -> Any:
        """Return the variable's value in the body; a slot that is read takes its inputs from the front of the list."""

    def enter_test(self, inputs: list[Tensor]) -> Any: ...
    def settle(self, value: Any) -> Slot | None: ...
    def operands(self) -> list[Any]: ...
    def outputs(self) -> Iterator[Any]: ...
    def leave(self, results: list[Tensor]) -> Any: ...


@dataclass(frozen=True)
class Slots:
    """The variables of a loop, in the order of their names."""

    slots: tuple[Slot, ...]

    @property
    def in_order(self) -> list[Slot]:
        """In the order of operands: what the body reads where it starts, then the rest."""
        return sorted(self.slots, key=lambda s: not s.is_read)

    @property
    def may_learn(self) -> bool:
        return any(s.may_learn for s in self.slots)

    def settle(self, values: tuple[Any, ...]) -> Slots | None:
        """Slots for another trace of the body, from the variables after it; None if all types have settled."""
        better = [s.settle(x) for s, x in zip(self.slots, values, strict=True)]
        if all(s is None for s in better):
            return None
        return Slots(tuple(s if n is None else n for s, n in zip(self.slots, better, strict=True)))


def slot(name: str, initial: Any, place: Place) -> Slot:
    """Choose the slot of a variable by its value before the loop."""
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
    may_learn: bool = False

    def entry(self) -> list[Leaf]:
        return []

    def enter(self, inputs: list[Tensor]) -> Any:
        return Undefined(self.name, self.reason)

    enter_test = leave = enter

    def settle(self, value: Any) -> Slot | None:
        return None

    def operands(self) -> list[Any]:
        return []

    def outputs(self) -> Iterator[Any]:
        return iter(())


@dataclass
class Flag:
    name: str
    initial: Any
    after: Any = False
    is_read: bool = False
    may_learn: bool = False

    @property
    def is_carried(self) -> bool:
        return isinstance(self.initial, Tensor) or self.after is not False

    def entry(self) -> list[Leaf]:
        return [Leaf(BOOL)] if self.is_carried else []

    def enter(self, inputs: list[Tensor]) -> Any:
        return False

    def enter_test(self, inputs: list[Tensor]) -> Any:
        return inputs.pop(0) if self.is_carried else self.initial

    leave = enter_test

    def settle(self, value: Any) -> Slot | None:
        self.after = value
        return None

    def operands(self) -> list[Any]:
        return [self.initial] if self.is_carried else []

    def outputs(self) -> Iterator[Any]:
        return iter([self.after] if self.is_carried else [])


@dataclass
class Carried:
    """A carried variable. `types` has None for a static leaf; `weak` marks leaves that count as Python numbers."""

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

    @property
    def may_learn(self) -> bool:
        return any(self.weak) or has_open_elements(self.initial)

    def entry(self) -> list[Leaf]:
        paths = leaf_paths(self.name, self.treedef)
        return [
            Leaf(t, weak, (path if path.isidentifier() else None))
            for t, weak, path in zip(self.types, self.weak, paths, strict=True)
            if t is not None
        ]

    def enter(self, inputs: list[Tensor]) -> Any:
        self.entered = self._filled(inputs)
        return tree.unflatten(self.treedef, self.entered)

    def enter_test(self, inputs: list[Tensor]) -> Any:
        return tree.unflatten(self.treedef, self._filled(inputs))

    def _filled(self, tensors: list[Tensor]) -> list[Any]:
        """The leaves, those that are carried taken from the front of `tensors`."""
        return [x if t is None else tensors.pop(0) for x, t in zip(self.leaves, self.types, strict=True)]

    def settle(self, value: Any) -> Slot | None:
        if isinstance(value, Undefined):
            # Some path through the body leaves it without a value: no later iteration can rely on one.
            return Local(self.name, value.reason or f"is deleted in the {self.place}", self.place)
        learned = learn_elements(self.initial, value)
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
                    hint = (
                        _REGISTER.format(type(y).__name__)
                        if type(x) is type(y) and hasattr(y, "__dict__")
                        else _ONLY_ARRAYS
                    )
                    raise changes(self.name, self.initial, value, self.place, path, hint)
                continue
            settled = _settle_leaf(t, weak[position], y)
            if settled is None:
                raise changes(self.name, self.initial, value, self.place, path)
            types[position], weak[position] = settled, weak[position] and is_weak(y)
        if types == self.types and weak == self.weak:
            return None
        return replace(self, types=types, weak=weak)

    def operands(self) -> list[Any]:
        return [_as(x, t) for x, t in zip(self.leaves, self.types, strict=True) if t is not None]

    def outputs(self) -> Iterator[Any]:
        return (_as(y, t) for y, t in zip(self.after, self.types, strict=True) if t is not None)

    def leave(self, results: list[Tensor]) -> Any:
        found = [weaken(x, weak) for x, weak in zip(self._filled(results), self.weak, strict=True)]
        # In a guess the body has not been traced with the element that an array has learned.
        kept = [a is b or same(a, b) for a, b in zip(self.entered, self.after, strict=True)] or [False] * len(found)
        leaves = [x if stays else y for x, y, stays in zip(self.leaves, found, kept, strict=True)]
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
    may_learn: bool = False

    def entry(self) -> list[Leaf]:
        return [Leaf(t) for t in self.types if t is not None]

    def enter(self, inputs: list[Tensor]) -> Any:
        return UndefinedReturnValue()

    def enter_test(self, inputs: list[Tensor]) -> Any:
        del inputs[: len(self.entry())]
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

    def operands(self) -> list[Any]:
        carried = [t for t in self.types if t is not None]
        if self._is_new:
            return [zeros_array(t) for t in carried]
        leaves = [x for x, t in zip(tree.leaves(self.initial), self.types, strict=False) if t is not None]
        return [_as(x, t) for x, t in zip(leaves, carried, strict=True)]

    def outputs(self) -> Iterator[Any]:
        return (_as(y, t) for y, t in zip(self.after, self.types, strict=True) if t is not None)

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
    joint = result_type(*kinds) if weak or is_weak(y) else given.dtype
    if joint != t.dtype and not weak:
        return None
    settled = TensorType(joint, t.shape)
    return settled if settled.accepts(TensorType(joint, given.shape)) else None


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


def while_stmt(
    test: Callable[[], Any],
    body: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    names: tuple[str, ...],
    options: dict[str, Any],
    assigned: Iterable[str] = (),
) -> None:
    """`while test(): body()`. It runs in Python until the condition is a traced tensor, then becomes a node."""
    while True:
        go = plain(test())
        if is_traced(go):
            if go.weak:
                note_number()
            state = State(*state_of(get_state, set_state, names), names, cells_of(assigned, body))
            place = Place("`while`", here())
            stage(place, state, lambda _: plain(test()), lambda _: body(), (test, body), counts=False)
            _settle_flags(state, lambda: plain(test()))
            return
        if not go:
            return
        body()


@dataclass(frozen=True)
class State:
    """The variables that a statement may change: how to read and write them, and their names.

    `own`: those that mean nothing before and behind an iteration.
    """

    get: GetState
    set: SetState
    names: tuple[str, ...]
    own: tuple[CellType, ...] = ()


def stage(
    place: Place,
    state: State,
    test: Callable[[Any], Any],
    body: Callable[[Any], None],
    watched: Sequence[Callable[..., Any]],
    counts: bool,
) -> None:
    """Record a loop as a node and leave its results in the variables.

    Args:
        test: the condition; it and `body` get the number of iterations done, if the loop `counts`, or None.
        watched: the functions whose closures hold what the body may reach.

    If it raises, the variables are what they were.
    """
    before = state.get()
    try:
        slots = Slots(tuple(slot(name, x, place) for name, x in zip(state.names, before, strict=True)))
        with unchanged(f"a {place.construct}", place.source, *watched, own=state.own):
            settled = settle(slots, lambda slots: _trace_body(slots, state, body, counts, place))
            slots = settled.carry
            regions: tuple[Graph, Graph] | None = None
            if settled.is_final:
                body_graph = settled.body.finish(_outputs(settled.body, slots, counts))
                regions = _trace_test(slots, state, test, counts, place), body_graph
            state.set(before)
        start: list[Any] = [np.int64(0)] if counts else []
        start += [x for s in slots.in_order for x in s.operands()]
        if regions is not None:
            name = place.construct.strip("`")
            results = emit_while(*regions, start, attributes.Loop(name=name), place.source)
        else:
            results = [Tensor(recorder(), Value(type_of(x))) for x in start]
        if counts:
            del results[0]
        after = {s.name: s.leave(results) for s in slots.in_order}
    except BaseException:
        state.set(before)
        raise
    state.set(tuple(after[name] for name in state.names))


def _trace_body(slots: Slots, state: State, body: Callable[[Any], None], counts: bool, place: Place) -> Traced:
    """Trace the body; its result is the tuple of the variables after it."""

    def run(inputs: list[Tensor]) -> Any:
        count = inputs.pop(0) if counts else None
        state.set(tuple(s.enter(inputs) for s in slots.slots))
        body(count)
        return state.get()

    with tracing(place.construct, place.source):
        return Traced("body", run, [*_count(counts), *(x for s in slots.slots if s.is_read for x in s.entry())])


def _count(counts: bool) -> list[Leaf]:
    return [Leaf(INDEX, hint="k")] if counts else []


def _outputs(body: Traced, slots: Slots, counts: bool) -> Iterator[Any]:
    """Yield the body's outputs, once the variables have settled; inputs that it does not read are appended."""
    for s in slots.in_order:
        if not s.is_read:
            for leaf in s.entry():
                body.input(leaf)
    if counts:
        yield FUNCTIONS["add"](body.inputs[0], np.int64(1))
    for s in slots.in_order:
        yield from s.outputs()


def _trace_test(slots: Slots, state: State, test: Callable[[Any], Any], counts: bool, place: Place) -> Graph:
    def run(inputs: list[Tensor]) -> Any:
        count = inputs.pop(0) if counts else None
        seen = {s.name: s.enter_test(inputs) for s in slots.in_order}
        state.set(tuple(seen[name] for name in state.names))
        go = test(count)
        return truth(go, place.construct, place.source) if is_traced(go) else np.bool_(bool(go))

    return Traced("cond", run, [*_count(counts), *(x for s in slots.in_order for x in s.entry())]).finish()


def _settle_flags(state: State, test: Callable[[], Any]) -> None:
    """A flag without which the loop would go on is true after it: `while True` ends by `return` or `break` alone."""
    after = state.get()
    for position, (name, x) in enumerate(zip(state.names, after, strict=True)):
        if not is_flag(name) or not is_traced(x):
            continue

        def without(_: Any, position: int = position, after: tuple[Any, ...] = after) -> Any:
            state.set((*after[:position], False, *after[position + 1 :]))
            return test()

        go = Traced("scratch", without).result
        if not is_traced(go) and go:
            after = (*after[:position], True, *after[position + 1 :])
    state.set(after)
