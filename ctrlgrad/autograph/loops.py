"""`while` on a traced condition, and what all traced loops share: the body becomes one `while` node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.autograph.branches import GetState, SetState
from ctrlgrad.autograph.containers import unchanged
from ctrlgrad.autograph.slots import Place, Slot, slot
from ctrlgrad.autograph.truth import is_traced, truth
from ctrlgrad.autograph.undefined import is_flag
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.while_loops import LoopOptions, emit_while
from ctrlgrad.ir import INDEX, Builder, Graph
from ctrlgrad.source import here


def while_stmt(
    test: Callable[[], Any],
    body: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    names: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    """`while test(): body()`. It runs in Python until the condition is a traced tensor, then becomes a node."""
    while True:
        go = test()
        if is_traced(go):
            state = State(get_state, set_state, names)
            place = Place("`while`", here())
            stage(place, state, lambda _: test(), lambda _: body(), (test, body), counts=False)
            _settle_flags(state, test)
            return
        if not go:
            return
        body()


@dataclass(frozen=True)
class State:
    """The variables that a statement may change: how to read and write them, and their names."""

    get: GetState
    set: SetState
    names: tuple[str, ...]


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
        slots = [slot(name, x, place) for name, x in zip(state.names, before, strict=True)]
        with unchanged(f"a {place.construct}", place.source, *watched):
            slots, body_graph = _trace_body(slots, state, body, counts)
            cond_graph = _trace_test(slots, state, test, counts, place)
            state.set(before)
        start: list[Any] = [np.int64(0)] if counts else []
        for s in _in_order(slots):
            start += s.operands()
        results = emit_while(cond_graph, body_graph, start, LoopOptions(name=place.construct.strip("`")), place.source)
        if counts:
            del results[0]
        after = {s.name: s.leave(results) for s in _in_order(slots)}
    except BaseException:
        state.set(before)
        raise
    state.set(tuple(after[name] for name in state.names))


def _in_order(slots: Sequence[Slot]) -> list[Slot]:
    """The order of operands: what the body reads where it starts, then the rest."""
    return sorted(slots, key=lambda s: not s.is_read)


def _trace_body(
    slots: Sequence[Slot], state: State, body: Callable[[Any], None], counts: bool
) -> tuple[list[Slot], Graph]:
    """Trace the body until every slot has settled."""
    while True:
        builder = Builder(trace.current(), "body")
        with trace.recording(builder):
            count = Tensor(builder, builder.input(INDEX, "k")) if counts else None
            state.set(tuple(s.enter(builder) for s in slots))
            body(count)
            after = state.get()
        better = [s.settle(x) for s, x in zip(slots, after, strict=True)]
        if all(s is None for s in better):
            break
        slots = [s if n is None else n for s, n in zip(slots, better, strict=True)]
    with trace.recording(builder):
        for s in _in_order(slots):
            if not s.is_read:
                s.inputs(builder)
        outputs = [] if count is None else [value_in(builder, FUNCTIONS["add"](count, np.int64(1)))]
        for s in _in_order(slots):
            outputs += s.outputs(builder)
    return list(slots), builder.finish(outputs)


def _trace_test(slots: Sequence[Slot], state: State, test: Callable[[Any], Any], counts: bool, place: Place) -> Graph:
    builder = Builder(trace.current(), "cond")
    with trace.recording(builder):
        count = Tensor(builder, builder.input(INDEX, "k")) if counts else None
        seen = {s.name: s.enter_test(builder) for s in _in_order(slots)}
        state.set(tuple(seen[name] for name in state.names))
        go = test(count)
        predicate = truth(go, place.construct, place.source) if is_traced(go) else np.bool_(bool(go))
        return builder.finish([value_in(builder, predicate)])


def _settle_flags(state: State, test: Callable[[], Any]) -> None:
    """A flag without which the loop would go on is true after it: `while True` ends by `return` or `break` alone."""
    after = state.get()
    for position, (name, x) in enumerate(zip(state.names, after, strict=True)):
        if not is_flag(name) or not is_traced(x):
            continue
        with trace.recording(Builder(trace.current(), "scratch")):
            state.set((*after[:position], False, *after[position + 1 :]))
            go = test()
        if not is_traced(go) and go:
            after = (*after[:position], True, *after[position + 1 :])
    state.set(after)
