"""Batching of `while`.

Where the predicate is the same for all rows the loop stays as it is and its carry gets rows: those parts that
depend on a mapped value, a fixpoint.

Where rows go round different numbers of times:

    active, results = while captures(w) carry(active, x)
        cond: any(active)
        body: rows that are done see what the first active row sees (a guard, see `lanes`)
              y = body(w, x);  next = active and cond(w, y);  x = y in active rows, else x

A row that is done keeps its values and its stacks, and does nothing that an active row does not do: neither its
values nor its derivatives can become NaN by iterations that it did not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Batched, Fresh, Guard, Lane, Ragged, choose_rows, choose_rows_of_one_size
from ctrlgrad.batching.ragged import merged
from ctrlgrad.batching.regions import (
    MARKED,
    RAGGED,
    ROWS,
    SHARED,
    arriving,
    entering,
    following,
    guard_of,
    guarded,
    kind_of,
    leaving,
    taking_part,
)
from ctrlgrad.batching.stacks import as_ragged, choose, unguarded
from ctrlgrad.batching.table import batches
from ctrlgrad.ir import BOOL, Builder, Graph, Loop, Node, StackType, TensorType, Type, Value, attributes, close
from ctrlgrad.ir.control import emit_loop
from ctrlgrad.ir.flow import stays, updated_input
from ctrlgrad.ops.term import Term, emit


@batches("while")
def _while(batcher: Batcher, node: Node) -> Sequence[Lane]:
    loop = Loop.of(node)
    init = [batcher.lanes[c.init] for c in loop.carries]
    asked = (
        node,
        tuple((kind_of(lane), isinstance(lane, Fresh)) for lane in (batcher.lanes[v] for v in node.operands)),
    )
    kinds = batcher.rows.carried.get(asked) or [kind_of(lane) for lane in init]
    while True:
        cond = _Region(batcher, loop, loop.cond, kinds, init)
        (predicate,) = cond.outputs
        batcher.rows.carried[asked] = kinds
        if kind_of(predicate) != SHARED:
            return _masked(batcher, loop, init)
        body = _Region(batcher, loop, loop.body, kinds, init)
        more = [_next_kind(kind, *lanes) for kind, *lanes in zip(kinds, body.outputs, init, strict=True)]
        if more == kinds:
            break
        kinds = more
    guards = _guards(loop, init)
    types = [v.type for v in loop.results]
    outputs = [
        v
        for lane, kind, t, guard in zip(body.outputs, kinds, types, guards, strict=True)
        for v in leaving(body.batcher, lane, kind, t, guard)
    ]
    start = [
        v
        for lane, kind, t, guard in zip(init, kinds, types, guards, strict=True)
        for v in leaving(batcher, lane, kind, t, guard)
    ]
    test = cond.batcher.builder.finish([cond.batcher.term(loop.predicate).value])
    results = _emit(batcher, loop, test, body.batcher.builder.finish(outputs), start, loop.attrs)
    return _arriving(batcher, init, kinds, types, results, guards)


def _guards(loop: Loop, init: Sequence[Lane]) -> list[Guard | None]:
    """The guard that each carry keeps in the loop: rows that it leaves out are neither seen nor written there.

    An array has one where iterations do no more than update elements of it: seen from inside, it would be copied.
    """
    return [
        (lane.guard if updated_input(loop.body, c.next) is c.in_body else None)
        if isinstance(lane, Batched)
        else guard_of(lane)
        for c, lane in zip(loop.carries, init, strict=True)
    ]


def _arriving(
    batcher: Batcher,
    init: Sequence[Lane],
    kinds: Sequence[int],
    types: Sequence[Type],
    results: list[Value],
    guards: Sequence[Guard | None],
) -> list[Lane]:
    """The lanes of a loop's results."""
    found = []
    for before, kind, t, guard in zip(init, kinds, types, guards, strict=True):
        lane = arriving(batcher.builder, kind, t, results, guard)
        found.append(following(before if guard is not None and isinstance(before, Batched) else None, lane))
    return found


def _next_kind(kind: int, produced: Lane, start: Lane) -> int:
    """The kind that a carry needs, which enters the body as `kind` and leaves it as `produced`."""
    if kind == SHARED and kind_of(produced) in (MARKED, ROWS) and isinstance(start, Fresh):
        return MARKED
    return max(kind, kind_of(produced))


class _Region:
    """The cond or body of a loop whose predicate all rows share, batched for a carry of given kinds."""

    def __init__(self, outer: Batcher, loop: Loop, graph: Graph, kinds: Sequence[int], init: Sequence[Lane]) -> None:
        builder = Builder(outer.builder, graph.name)
        shared, carried = loop.split(graph.inputs)
        lanes = {v: outer.lanes[c.outer] for v, c in zip(shared, loop.captures, strict=True)}
        for v, kind, guard in zip(carried, kinds, _guards(loop, init), strict=True):
            lanes[v] = entering(builder, outer.rows, kind, v.type, v.hint, guard)
        self.batcher = Batcher(builder, outer.rows, lanes)
        self.outputs = self.batcher.run(graph)


def _emit(
    batcher: Batcher, loop: Loop, cond: Graph, body: Graph, start: Sequence[Value], attrs: attributes.Loop
) -> list[Value]:
    hints = [v.hint for v in body.inputs]
    return list(emit_loop(batcher.builder, close([cond, body]), start, attrs, source=loop.source, hints=hints))


def _masked(batcher: Batcher, loop: Loop, init: Sequence[Lane]) -> Sequence[Lane]:
    """The loop that runs while any row is active."""
    cond, body, rows = loop.cond, loop.body, batcher.rows
    types = [v.type for v in loop.results]
    kinds = [RAGGED if isinstance(t, StackType) else ROWS for t in types]
    guards = _guards(loop, init)
    around = [batcher.lanes[c.outer] for c in loop.captures]
    first = _predicate(batcher, cond, [*around, *init])
    start = [first.value]
    for lane, kind, t, guard in zip(init, kinds, types, guards, strict=True):
        start += leaving(batcher, lane, kind, t, guard)

    builder = Builder(batcher.builder, body.name)
    active = Term(builder, builder.input(first.tensor, "active"))
    carry = [
        entering(builder, rows, kind, v.type, v.hint, guard)
        for v, kind, guard in zip(loop.carried, kinds, guards, strict=True)
    ]
    guard = taking_part(active, rows)
    seen = [guarded(lane, guard, builder) for lane in (*around, *carry)]
    inner = Batcher(builder, replace(rows, guarded=True), dict(zip(body.inputs, seen, strict=True)))
    produced = inner.run(body)
    following = emit("logical_and", active, _predicate(inner, cond, [*loop.split(seen)[0], *produced]))
    outputs = [following.value]
    for c, lane, before, t in zip(loop.carries, produced, carry, types, strict=True):
        if isinstance(t, TensorType):
            assert isinstance(before, Batched)
            if None in t.shape:
                rows.require_one_size()
            if isinstance(lane, Batched) and lane.keeps(before.value):
                outputs.append(lane.value)
                continue
            outputs.append(_kept(active, inner.seen(lane, t), Term(builder, before.value)).value)
            continue
        assert isinstance(before, Ragged)
        ragged = as_ragged(lane, rows)
        if not stays(loop, c):
            ragged = merged(active, unguarded(ragged, builder), before, rows)
        outputs += [ragged.buffer, ragged.lengths]

    test = Builder(batcher.builder, cond.name)
    inputs = [test.input(v.type, v.hint) for v in builder.inputs]
    running = emit("any", Term(test, inputs[0]), axes=(0,), keepdims=False)
    attrs = replace(loop.attrs, counts_down=False)
    results = _emit(batcher, loop, test.finish([running.value]), builder.finish(outputs), start, attrs)
    results.pop(0)
    return _arriving(batcher, init, kinds, types, results, guards)


def _kept(active: Term, new: Term, old: Term) -> Term:
    """The next carry: new in active rows, old in the others."""
    if None not in old.tensor.shape[1:]:
        return choose_rows(active, new, old)
    # Sizes that change from iteration to iteration do so for all rows, or there is no array that holds them.
    everyone = emit("all", active, axes=(0,), keepdims=False)
    some = lambda inside: [
        choose_rows_of_one_size(*(Term(inside, x.value) for x in (active, new, old)), of="what a loop carries")
    ]
    (kept,) = choose(active.builder, everyone, [some, lambda inside: [Term(inside, new.value)]])
    return kept


def _predicate(batcher: Batcher, cond: Graph, lanes: Sequence[Lane]) -> Term:
    """For each row whether it goes round once more, computed where `batcher` is."""
    inner = Batcher(batcher.builder, batcher.rows, dict(zip(cond.inputs, lanes, strict=True)))
    (predicate,) = inner.run(cond)
    return inner.seen(predicate, BOOL)
