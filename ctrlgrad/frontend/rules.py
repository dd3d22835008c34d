"""Calls with a rule of the user's: Python functions traced into the regions of the `call` op.

A rule may call the function that it is the rule of, itself or through others: so a derivative is given to every order.
Tracing such a rule at once would never end. The calls of a function that are met while its own rule is traced are
therefore recorded without regions for the rule: they hold a `Later`, which traces the rule once more when a derivative
of that call is asked for.

A rule that is traced later may use what it closes over: what it used the first time are captures of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import DifferentiationError, LeakedValueError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.named_axes import around, within
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced, leaves_of
from ctrlgrad.ir import Builder, Closed, Graph, Value, close, control
from ctrlgrad.ir.attributes import Saving
from ctrlgrad.source import Source


Moving = Collection[int] | None


@dataclass(frozen=True)
class Results:
    """What a function returns: a leaf for each result, and how they are put together."""

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


@dataclass(frozen=True)
class Custom:
    """A function with a rule that errors call `label`; `rules` traces the rule's regions, given what the function
    returns, and the places of the arguments that are differentiated (None: any of them)."""

    function: Any
    label: str
    rules: Callable[[Results, Moving], list[Graph]]


@dataclass
class _Trace:
    """A rule that is being traced: of which function, and what it closes over as far as that is known."""

    function: Any
    captures: tuple[Value, ...]
    # Asked for later: calls of functions whose rules are traced around it are traced by it all the same.
    is_later: bool = False
    met_itself: bool = False


# The rules that are being traced, the innermost last.
_TRACED: ContextVar[tuple[_Trace, ...]] = ContextVar("rules that are being traced", default=())


@contextmanager
def _tracing(rule: _Trace) -> Iterator[None]:
    token = _TRACED.set((*_TRACED.get(), rule))
    try:
        yield
    finally:
        _TRACED.reset(token)


def _traced_around(function: Any) -> _Trace | None:
    """The tracing of this function's rule that goes on now."""
    for rule in reversed(_TRACED.get()):
        if rule.function is function:
            return rule
        if rule.is_later:
            break
    return None


class Later:
    """The regions of a rule, traced when they are asked for; over the captures and arguments of the call."""

    def __init__(self, custom: Custom, results: Results, captures: tuple[Value, ...], source: Source | None) -> None:
        self.custom = custom
        self.results = results
        self.captures = captures
        self.source = source
        self.axes = around()
        self._made: dict[frozenset[int] | None, tuple[Graph, ...]] = {}

    def __repr__(self) -> str:
        return "later"

    def regions(self, moving: Moving) -> tuple[Graph, ...]:
        key = None if moving is None else frozenset(moving)
        if key not in self._made:
            self._made[key] = self._regions(key)
        return self._made[key]

    def _regions(self, moving: Moving) -> tuple[Graph, ...]:
        if any(rule.function is self.custom.function for rule in _TRACED.get()):
            raise DifferentiationError(
                f"{self.custom.label}: the rule differentiates the function that it is the rule of",
                source=self.source,
                expected="a rule made of functions and their values",
                got="a rule that needs itself",
                hint="take the derivative of the function behind it, or write it out",
            )
        outer = Builder(name="later")
        outer.lent = frozenset(self.captures)
        rule = _Trace(self.custom.function, self.captures, is_later=True)
        try:
            with trace.recording(outer), within(self.axes), _tracing(rule):
                regions = self.custom.rules(self.results, moving)
        except LeakedValueError as error:
            raise DifferentiationError(
                f"{self.custom.label}: the rule uses a traced value, for a derivative of higher order, that it did not"
                " use at first",
                source=self.source,
                expected="a rule that closes over the same values each time",
                got=str(error.got),
                hint="pass the value as an argument of the function",
            ) from error
        return close(regions, self.captures).regions


def record(
    custom: Custom,
    kind: str,
    primal: Callable[[list[Any]], Any],
    leaves: Sequence[Any],
    inputs: Sequence[Leaf],
    source: Source | None,
) -> Any:
    """Record a call of a function that has a rule; returns the function's result."""
    region = trace_rule(kind, primal, inputs, leaves)
    results, graph, met = Results.of(region), region.finish(), _traced_around(custom.function)
    if met is not None:
        met.met_itself = True
        closed = close([graph], met.captures)
        later = Later(custom, results, closed.captures, source)
        return tree.unflatten(region.treedef, emit_call(kind, closed, leaves, source, later))
    captures: tuple[Value, ...] = ()
    while True:
        rule = _Trace(custom.function, captures)
        with _tracing(rule):
            closed = close([graph, *custom.rules(results, None)])
        if not rule.met_itself or set(closed.captures) <= set(captures):
            break
        # The calls of itself in the rule have to capture all that the rule closes over.
        captures = closed.captures
    return tree.unflatten(region.treedef, emit_call(kind, closed, leaves, source))


def emit_call(
    kind: str,
    closed: Closed,
    leaves: Sequence[Any],
    source: Source | None,
    rule: control.Rule | None = None,
    policy: tuple[Saving, ...] = (),
) -> list[Tensor]:
    """Record the call; what its functions use from outside are captures of all of them."""
    builder = recorder()
    arguments = [value_in(builder, x) for x in leaves]
    hints = [v.hint for v in closed.regions[0].outputs]
    values = control.emit_call(builder, kind, closed, arguments, rule=rule, policy=policy, source=source, hints=hints)
    return [Tensor(builder, v) for v in values]
