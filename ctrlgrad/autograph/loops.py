"""`while` on a traced condition, and what all traced loops share: the body becomes one `while` node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

import numpy as np

from ctrlgrad.autograph.containers import cells_of, unchanged
from ctrlgrad.autograph.raising import tracing
from ctrlgrad.autograph.slots import Place, Slots, slot
from ctrlgrad.autograph.truth import GetState, SetState, is_traced, plain, state_of, truth
from ctrlgrad.autograph.undefined import is_flag
from ctrlgrad.frontend.apply import type_of
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.settling import settle
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced
from ctrlgrad.frontend.while_loops import LoopOptions, emit_while
from ctrlgrad.ir import INDEX, Graph, Value
from ctrlgrad.source import here


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
            results = emit_while(*regions, start, LoopOptions(name=name), place.source)
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
    """The body, whose result is what it leaves in the variables."""

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
