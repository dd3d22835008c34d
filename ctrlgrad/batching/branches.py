"""Batching of `cond`.

Where the selector is the same for all rows the cond stays and its branches are batched. Where it differs, the
branches run one after the other, each only if a row takes it; the rows that do not take it are guarded (see
`lanes`): they see what the first row sees that does, so a branch that is no place for a row can do it no harm. The
results are chosen row by row. A stack goes through the branches one after the other, each of which touches
its own rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Batched, Guard, Lane, Ragged, choose_rows, choose_rows_of_one_size
from ctrlgrad.batching.ragged import merged
from ctrlgrad.batching.regions import (
    RAGGED,
    ROWS,
    arriving,
    following,
    guard_of,
    guarded,
    joined_kind,
    leaving,
    taking_part,
)
from ctrlgrad.batching.stacks import as_ragged, choose, new_ragged, unguarded
from ctrlgrad.batching.table import batches
from ctrlgrad.ir import BOOL, Branch, Builder, Graph, Node, StackType, TensorType, Value, close
from ctrlgrad.ir.control import emit_branch
from ctrlgrad.ir.flow import passed_on, updated_operand
from ctrlgrad.ops.term import Term, constant, emit, zeros


@batches("cond")
def _cond(batcher: Batcher, node: Node) -> Sequence[Lane]:
    branch = Branch.of(node)
    if not batcher.is_same(branch.selector):
        return _Masked(batcher, branch).run()
    walks, outputs = [], []
    for region in branch.branches:
        entered = {v: batcher.lanes[o] for v, o in zip(region.inputs, branch.operands, strict=True)}
        walks.append(Batcher(Builder(batcher.builder, region.name), batcher.rows, entered))
        outputs.append(walks[-1].run(region))
    kinds = [joined_kind(lanes) for lanes in zip(*outputs, strict=True)]
    guards = [_common_guard(lanes) for lanes in zip(*outputs, strict=True)]
    updated = _updated_in_place(batcher, branch, outputs)
    guards = [updated[p].guard if p in updated else guard for p, guard in enumerate(guards)]
    types = [v.type for v in branch.results]
    regions = []
    for inner, lanes in zip(walks, outputs, strict=True):
        values = [
            v
            for lane, kind, t, guard in zip(lanes, kinds, types, guards, strict=True)
            for v in leaving(inner, lane, kind, t, guard)
        ]
        regions.append(inner.builder.finish(values))
    closed = close(regions)
    hints = [v.hint for v in regions[0].outputs]
    selector = batcher.term(branch.selector).value
    results = list(emit_branch(batcher.builder, selector, closed, source=branch.source, hints=hints))
    arrived = [
        arriving(batcher.builder, kind, t, results, guard) for kind, t, guard in zip(kinds, types, guards, strict=True)
    ]
    return [following(updated.get(p), lane) for p, lane in enumerate(arrived)]


def _updated_in_place(batcher: Batcher, branch: Branch, outputs: Sequence[Sequence[Lane]]) -> dict[int, Batched]:
    """The guarded arrays that a result is, with elements updated or not, on each side; by the result's position."""
    found = {}
    for position, lanes in enumerate(zip(*outputs, strict=True)):
        place = updated_operand(branch, position)
        before = None if place is None else batcher.lanes[branch.operands[place]]
        if isinstance(before, Batched) and all(isinstance(x, Batched) and x.keeps(before.value) for x in lanes):
            found[position] = before
    return found


def _common_guard(lanes: Sequence[Lane]) -> Guard | None:
    guards = [guard_of(lane) for lane in lanes]
    return guards[0] if all(g is guards[0] for g in guards) else None


class _Masked:
    """A cond whose rows take different branches."""

    def __init__(self, batcher: Batcher, branch: Branch) -> None:
        self.batcher = batcher
        self.branch = branch
        self.lanes = [batcher.lanes[v] for v in branch.operands]
        # Result -> operand, for the stacks that every branch passes on.
        self.threads = {
            position: place
            for position, v in enumerate(branch.results)
            if isinstance(v.type, StackType) and (place := passed_on(branch, position)) is not None
        }
        for place in self.threads.values():
            self.lanes[place] = as_ragged(self.lanes[place], batcher.rows)
        # The same for the arrays of which every branch returns the one that it got, with elements updated or not.
        places = [updated_operand(branch, position) for position in range(len(branch.results))]
        self.arrays = {
            p: place
            for p, place in enumerate(places)
            if place is not None and places.count(place) == 1 and isinstance(self.lanes[place], Batched)
        }

    def run(self) -> list[Lane]:
        masks = self._masks()
        sofar = [self._blank(position) for position in range(len(self.branch.results))]
        decided: Term | None = None
        for mask, region in zip(masks, self.branch.branches, strict=True):
            sofar = self._side(region, mask, decided, sofar)
            decided = mask if decided is None else emit("logical_or", decided, mask)
        return sofar

    def _masks(self) -> list[Term]:
        """For each branch the rows that take it."""
        selector = self.batcher.batched(self.branch.selector)
        if self.branch.selector.type == BOOL:
            return [emit("logical_not", selector), selector]
        last = len(self.branch.branches) - 1
        index = emit("cast", selector, dtype=np.dtype(np.int64))
        low, high = (constant(index.builder, n, index.dtype) for n in (0, last))
        index = emit("minimum", emit("maximum", index, low), high)
        return [index.equals(number) for number in range(last + 1)]

    def _blank(self, position: int) -> Lane:
        """A result before any branch has run."""
        batcher, t = self.batcher, self.branch.results[position].type
        if position in self.arrays:
            return self.lanes[self.arrays[position]]
        if isinstance(t, TensorType):
            count = batcher.rows.count(batcher.builder)
            blank = zeros(batcher.builder, t.dtype, [count, *(0 if d is None else d for d in t.shape)])
            return batcher.lane(blank)
        if position in self.threads:
            return self.lanes[self.threads[position]]
        zero = constant(batcher.builder, 0, np.int64)
        return new_ragged(batcher.builder, batcher.rows, batcher.rows.spread(zero), t.element)

    def _side(self, region: Graph, mask: Term, decided: Term | None, sofar: list[Lane]) -> list[Lane]:
        batcher = self.batcher
        operands = list(self.lanes)
        for position, place in (*self.threads.items(), *self.arrays.items()):
            operands[place] = sofar[position]

        def skip(builder: Builder) -> list[Term]:
            return [Term(builder, v) for lane in sofar for v in _values(lane)]

        def enter(builder: Builder) -> list[Term]:
            guard = taking_part(Term(builder, mask.value), batcher.rows)
            seen = [guarded(lane, guard, builder) for lane in operands]
            rows = replace(batcher.rows, guarded=True)
            inner = Batcher(builder, rows, dict(zip(region.inputs, seen, strict=True)))
            produced = inner.run(region)
            joined = []
            for position, (lane, before) in enumerate(zip(produced, sofar, strict=True)):
                joined += self._joined(inner, mask, decided, position, lane, before)
            return joined

        some = emit("any", mask, axes=(0,), keepdims=False)
        results = [x.value for x in choose(batcher.builder, some, [skip, enter])]
        joined = [
            arriving(
                batcher.builder, RAGGED if isinstance(v.type, StackType) else ROWS, v.type, results, guard_of(lane)
            )
            for v, lane in zip(self.branch.results, sofar, strict=True)
        ]
        return [following(sofar[p] if p in self.arrays else None, lane) for p, lane in enumerate(joined)]

    def _joined(
        self, inner: Batcher, mask: Term, decided: Term | None, position: int, lane: Lane, before: Lane
    ) -> list[Term]:
        """A branch's result in the rows that took it, else what was there before."""
        builder, t = inner.builder, self.branch.results[position].type
        mask = Term(builder, mask.value)
        if position in self.arrays:
            assert isinstance(lane, Batched) and isinstance(before, Batched) and lane.keeps(before.value)
            return [Term(builder, lane.value)]
        if isinstance(t, TensorType):
            (old,) = (Term(builder, v) for v in _values(before))
            new = inner.seen(lane, t)
            if decided is None:
                return [new]
            if None not in t.shape:
                return [choose_rows(mask, new, old)]
            self.batcher.rows.require_one_size()
            # What was there before has the sizes of a result only if a branch has run.
            some = emit("any", Term(builder, decided.value), axes=(0,), keepdims=False)
            both: list[Callable[[Builder], Sequence[Term]]] = [
                lambda inside: [Term(inside, new.value)],
                lambda inside: [
                    choose_rows_of_one_size(
                        *(Term(inside, x.value) for x in (mask, new, old)), of="what the branches give"
                    )
                ],
            ]
            return choose(builder, some, both)
        assert isinstance(before, Ragged)
        ragged = as_ragged(lane, inner.rows)
        if position not in self.threads:
            ragged = merged(mask, unguarded(ragged, builder), before, inner.rows)
        return [Term(builder, ragged.buffer), Term(builder, ragged.lengths)]


def _values(lane: Lane) -> list[Value]:
    """The values of a lane of rows."""
    if isinstance(lane, Ragged):
        return [lane.buffer, lane.lengths]
    assert isinstance(lane, Batched)
    return [lane.value]
