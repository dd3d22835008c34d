"""Calls with a user's rule: the function is the region of a `call` node, and its rule is traced lazily.

A derivative's need depends on which arguments are differentiated and which results have a cotangent. So user rules are
traced lazily, at differentiation, once for each such combination. A rule may call the function that it belongs to,
directly or through other functions; that is a call like any other, so derivatives of every order exist.

A rule may use variables that it closes over, with the values that they had when the call was recorded. Traced values
among them are captures of the call (see `frontend/rules.py`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ctrlgrad import tree
from ctrlgrad.blocks import holding
from ctrlgrad.errors import DifferentiationError, LeakedValueError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced, leaves_of
from ctrlgrad.ir import Builder, Closed, Graph, TensorType, Value, close, control
from ctrlgrad.ir.attributes import NamedAxis, Saving
from ctrlgrad.ir.rules import Answer, Batching, Forward, Positions
from ctrlgrad.records import record
from ctrlgrad.source import Source, device_here, placed_on

# Captured values: saved when a function is stored for a later call, restored when it is called.
#
# A rule is traced when a derivative is asked for, after the function that made it has gone on or returned. Two things
# are noted when the call is recorded. Traced values that the rule can reach become operands of the call; otherwise
# they would not be available later. The variables that the rule closes over are saved with their values: Python binds
# them late, so rules made in a loop would all see the values of the last iteration.
#
# The search follows variables, defaults, bound arguments and objects, elements of containers and attributes, to any
# depth. It does not look into modules, classes and global variables.


_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, np.dtype, type, types.ModuleType)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)


@record
class ClosedOver:
    """The traced values that some functions reach, and their variables with what they hold."""

    tensors: tuple[Tensor, ...]
    variables: tuple[tuple[types.CellType, Any], ...]

    @contextmanager
    def as_noted(self) -> Iterator[None]:
        """The variables as they were; what the block itself assigns to them stays."""
        before = [(cell, noted, _content(cell)) for cell, noted in self.variables]
        changed = [(cell, noted, now) for cell, noted, now in before if now is not noted]
        for cell, noted, _ in changed:
            cell.cell_contents = noted
        try:
            yield
        finally:
            for cell, noted, now in changed:
                if _content(cell) is noted:
                    cell.cell_contents = now


# Content of a variable that has no value yet.
_EMPTY = object()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def closed_over(roots: Iterable[Any]) -> ClosedOver:
    """Return the tensors and variables that these functions, or objects that hold functions, reach now."""
    tensors: list[Tensor] = []
    variables: list[tuple[types.CellType, Any]] = []
    waiting, seen = list(roots), dict[int, Any]()
    while waiting:
        x = waiting.pop()
        if isinstance(x, _PLAIN) or id(x) in seen:
            continue
        # Kept, so that no other object gets its number.
        seen[id(x)] = x
        if isinstance(x, Tensor):
            tensors.append(x)
            continue
        if isinstance(x, types.CellType):
            held = _content(x)
            if held is not _EMPTY:
                variables.append((x, held))
                waiting.append(held)
            continue
        waiting += _inside(x)
    return ClosedOver(tuple(tensors), tuple(variables))


def _inside(x: Any) -> list[Any]:
    """Return the objects that an object refers to."""
    if isinstance(x, types.FunctionType):
        return [*(x.__closure__ or ()), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values(), *vars(x).values()]
    if isinstance(x, types.MethodType):
        return [x.__self__, x.__func__]
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    if isinstance(x, Mapping):
        return list(x.values()) if isinstance(x, dict | types.MappingProxyType) else []
    if isinstance(x, list | tuple | AbstractSet):
        return list(x)
    slots = [s for kind in type(x).__mro__ for s in _names(kind.__dict__.get("__slots__", ()))]
    held = [*getattr(x, "__dict__", {}).values(), *(getattr(x, s, None) for s in slots)]
    if type(x).__module__.partition(".")[0] == "ctrlgrad":
        # Of this library's own objects the functions and values that the user gave them, not graphs and plans.
        return [y for y in held if isinstance(y, (*_FUNCTIONS, Tensor, list, tuple))]
    return held


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(s for s in slots if s not in ("__dict__", "__weakref__"))


# Named mapped axes of the current trace, with their sizes.


@record
class Bound:
    """A mapped axis with a name; its size is an int or a traced scalar of the trace around."""

    axis: NamedAxis
    size: Any


Axes = tuple[Bound, ...]
_BOUND: ContextVar[Axes] = ContextVar("mapped axes that have names, the innermost last", default=())


def around() -> Axes:
    """The axes that have names here."""
    return _BOUND.get()


def within(axes: Axes) -> AbstractContextManager[None]:
    """Trace where these axes have names."""
    return holding(_BOUND, axes)


def bound_to(name: Hashable, size: Any) -> Bound:
    """A new mapped axis of this name, inside the current ones."""
    return Bound(NamedAxis(name, len(around())), size)


def axis_called(operation: str, name: Hashable) -> Bound:
    """The innermost axis of that name."""
    for bound in reversed(around()):
        if bound.axis.name == name:
            return bound
    names = ", ".join(dict.fromkeys(repr(bound.axis.name) for bound in around()))
    raise UserInputError(
        f"{operation}: no mapped axis is called {name!r} here",
        expected=f"one of {names}" if names else "a name that ctrlgrad.vmap(axis_name=) has given around it",
        got=repr(name),
        hint=f"ctrlgrad.vmap(function, axis_name={name!r}), and the collective inside that function",
    )


@record
class Results:
    """Results of a function: a leaf for each, and the pytree that they form."""

    leaves: list[Leaf]
    treedef: tree.TreeDef

    @staticmethod
    def of(traced: Traced) -> Results:
        return Results(leaves_of(traced.leaves, [None] * len(traced.leaves)), traced.treedef)

    def stand_ins(self) -> list[Tensor]:
        """Tensors of these types, for errors to show."""
        return [Tensor(Builder(), Value(x.type, x.hint), x.weak) for x in self.leaves]


def trace_rule(
    what: str, fn: Callable[[list[Any]], Any], inputs: Sequence[Leaf], known: Sequence[Any] | None = None
) -> Traced:
    return Traced(what, fn, inputs, what=f"{what}: the result", known=known)


class CallWithRule(Protocol):
    """A call of a function with a rule, which is forward, reverse or for rows; each calls its own of the last methods.

    The methods trace graphs without the captures of the call.
    """

    kind: str
    leaves: list[Any]
    inputs: list[Leaf]
    source: Source | None
    # True if the rule is told which arguments are differentiated and which results have cotangents.
    symbolic_zeros: bool

    @property
    def roots(self) -> Sequence[Any]:
        """The functions that the rule calls, and their arguments that are not traced."""

    def primal(self, inputs: list[Any]) -> Any:
        """The function itself."""

    def push(self, results: Results, perturbed: Positions) -> Answer | None: ...
    def forward(self, results: Results, perturbed: Positions) -> Graph: ...
    def backward(self, results: Results, perturbed: Positions, seeded: Positions) -> Answer: ...
    def rows(self, results: Results, size: int | None, mapped: Positions) -> Answer: ...


class Later:
    """A rule of a recorded call: its graphs, over the captures of the call, traced when they are asked for.

    Args:
        function: what the rule is of, by identity.
        label: how errors name the rule.
        primal: the function of the call, not closed.
    """

    def __init__(self, call: CallWithRule, function: object, label: str, results: Results, primal: Graph) -> None:
        self.call, self.function, self.label, self.results, self.source = call, function, label, results, call.source
        self.outer, self.axes, self.device = recorder(), around(), device_here()
        self.closed_over = closed_over(call.roots)
        reached = [x.value for x in self.closed_over.tensors if x.builder.is_open or self.outer.borrows(x.value)]
        self.closed = close([primal], [*close([primal]).captures, *reached])
        self._answers: dict[Hashable, Answer | None] = {}

    def __repr__(self) -> str:
        return "later"

    def answer(self, question: Hashable, trace_it: Callable[[], Answer | None]) -> Answer | None:
        """The graph that answers a question, traced the first time."""
        if question not in self._answers:
            self._answers[question] = self._traced(trace_it)
        return self._answers[question]

    def _traced(self, trace_it: Callable[[], Answer | None]) -> Answer | None:
        if self.function in _TRACED.get():
            raise DifferentiationError(
                f"{self.label}: the rule differentiates the function that it is the rule of",
                source=self.source,
                expected="a rule made of functions and their values",
                got="a rule that needs itself",
                hint="take the derivative of the function behind it, or write it out",
            )
        # Numbers that the trace around had at hand are there for the rule too.
        outer = Builder(self.outer, "later")
        outer.lent = frozenset(self.closed.captures)
        try:
            with (
                trace.recording(outer),
                within(self.axes),
                placed_on(self.device),
                holding(_TRACED, (*_TRACED.get(), self.function)),
                self.closed_over.as_noted(),
            ):
                answer = trace_it()
        except LeakedValueError as error:
            raise self._out_of_reach(str(error.got)) from error
        if answer is None:
            return None
        closed = close([answer.graph], self.closed.captures)
        if closed.captures != self.closed.captures:
            raise self._out_of_reach(", ".join(str(v.type) for v in closed.captures if v not in outer.lent))
        return replace(answer, graph=closed.regions[0])

    def _out_of_reach(self, got: str) -> DifferentiationError:
        return DifferentiationError(
            f"{self.label}: the rule uses a traced value that it does not close over",
            source=self.source,
            expected="the values of its arguments, and variables of the functions around it",
            got=got,
            hint="pass the value as an argument of the function",
        )


# The functions whose rules are being traced.
_TRACED: ContextVar[tuple[object, ...]] = ContextVar("functions whose rules are being traced", default=())


class LaterPush(Later):
    """A forward rule (`ir.rules.Forward`)."""

    @property
    def symbolic_zeros(self) -> bool:
        return self.call.symbolic_zeros

    def push(self, perturbed: Positions) -> Answer | None:
        seen = self.seen(perturbed)
        return self.answer(("push", seen), lambda: self.call.push(self.results, seen))

    def seen(self, perturbed: Positions) -> Positions:
        """Positions of the arguments that the rule treats as perturbed: all, unless the rule takes symbolic zeros."""
        return perturbed if self.symbolic_zeros else tuple(range(len(self.call.inputs)))


class LaterReverse(LaterPush):
    """A reverse rule (`ir.rules.Reverse`)."""

    def forward(self, perturbed: Positions) -> Graph:
        seen = self.seen(perturbed)
        found = self.answer(("forward", seen), lambda: Answer(self.call.forward(self.results, seen), seen, ()))
        assert found is not None
        return found.graph

    def backward(self, perturbed: Positions, seeded: Positions) -> Answer:
        if not self.symbolic_zeros:
            seeded = tuple(i for i, x in enumerate(self.results.leaves) if x.type.is_differentiable)
        seen = self.seen(perturbed)
        self.forward(seen)
        found = self.answer(("backward", seen, seeded), lambda: self.call.backward(self.results, seen, seeded))
        assert found is not None
        return found


class LaterRows(Later):
    """A rule for rows (`ir.rules.Batching`)."""

    def rows(self, size: int | None, mapped: Positions) -> Answer:
        found = self.answer((size, mapped), lambda: self.call.rows(self.results, size, mapped))
        assert found is not None
        return found


def record_call(later: type[LaterPush] | type[LaterRows], function: object, label: str, call: Any) -> Any:
    """Record a call of a function that has a rule; returns the function's result."""
    region = trace_rule(call.kind, call.primal, call.inputs, call.leaves)
    rule = later(call, function, label, Results.of(region), region.finish())
    closed = rule.closed
    if getattr(function, "stops_captures", False):
        closed = replace(closed, captures=tuple(map(_stopped, closed.captures)))
    return tree.unflatten(region.treedef, emit_call(call.kind, closed, call.leaves, call.source, rule))


def _stopped(value: Value) -> Value:
    """A captured value as a constant to derivatives."""
    is_tensor = isinstance(value.type, TensorType) and value.type.is_differentiable
    return recorder().emit("stop_gradient", [value]) if is_tensor else value


def emit_call(
    kind: str,
    closed: Closed,
    leaves: Sequence[Any],
    source: Source | None,
    rule: Forward | Batching | None = None,
    policy: tuple[Saving, ...] = (),
) -> list[Tensor]:
    """Record the call; what its functions use from outside are captures of all of them."""
    builder = recorder()
    arguments = [value_in(builder, x) for x in leaves]
    hints = [v.hint for v in closed.regions[0].outputs]
    values = control.emit_call(builder, kind, closed, arguments, rule=rule, policy=policy, source=source, hints=hints)
    return [Tensor(builder, v) for v in values]
