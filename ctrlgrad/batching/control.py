"""Batching rules of branches, loops and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np

from ctrlgrad.batching.batcher import Batcher, batches
from ctrlgrad.batching.lanes import (
    Batched,
    Fresh,
    Guard,
    Lane,
    Ragged,
    Rows,
    Same,
    SizesMayDiffer,
    Uniform,
    choose_rows,
    choose_rows_of_one_size,
)
from ctrlgrad.batching.ragged import merged
from ctrlgrad.batching.stacks import as_ragged, as_uniform, new_ragged, plain, unguarded
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import (
    BOOL,
    INDEX,
    Branch,
    Builder,
    Call,
    Closed,
    Graph,
    Loop,
    Node,
    StackType,
    TensorType,
    Type,
    Value,
    attributes,
    close,
    is_call,
    rewrite,
)
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ir.control import emit_branch, emit_call, emit_loop
from ctrlgrad.ir.flow import passed_on, stays, updated_input, updated_operand
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.ops.term import Term, choose, constant, emit, reshape, zeros
from ctrlgrad.records import record

# Lanes at the borders of regions: the values that carry them, and how a region that not all rows enter sees them.


# Kinds of values at a border: shared by all rows; a stack with a batch axis that knows which slots were written; with a
# batch axis; a stack with a length for each row. Each kind can become any later one.
SHARED, MARKED, ROWS, RAGGED = range(4)


def kind_of(lane: Lane) -> int:
    if isinstance(lane, Same | Fresh):
        return SHARED
    if isinstance(lane, Ragged) or (isinstance(lane, Uniform) and lane.guard is not None):
        return RAGGED
    return MARKED if isinstance(lane, Uniform) and lane.marked else ROWS


def joined_kind(lanes: Sequence[Lane]) -> int:
    """Kind that a value has at a border where it arrives as any of these lanes."""
    kind = max(map(kind_of, lanes))
    # A stack that all rows share has forgotten which slots were written once it has rows.
    return ROWS if kind == MARKED and any(isinstance(lane, Same) for lane in lanes) else kind


def entering(builder: Builder, rows: Rows, kind: int, t: Type, hint: str | None, guard: Guard | None) -> Lane:
    """New inputs of a region for a value of type `t` (of one row), as a lane."""
    if kind == SHARED:
        return Same(builder, builder.input(t, hint))
    if isinstance(t, TensorType):
        return Batched(builder, builder.input(rows.of(t), hint), guard)
    if kind in (MARKED, ROWS):
        return Uniform(builder, builder.input(StackType(rows.of(t.element)), hint), marked=kind == MARKED)
    buffer = TensorType(t.element.dtype, (rows.static, None, *t.element.shape))
    lengths = TensorType(INDEX.dtype, (rows.static,))
    return Ragged(builder, builder.input(buffer, hint), builder.input(lengths, "lengths"), t.element, guard)


def leaving(batcher: Batcher, lane: Lane, kind: int, t: Type, guard: Guard | None) -> list[Value]:
    """The values that carry a lane out of the region that `batcher` makes, or into one, as a lane of that kind."""
    if kind == SHARED:
        return [plain(lane)]
    if isinstance(t, TensorType):
        if guard is not None:
            assert isinstance(lane, Batched) and lane.guard is guard, "an array that is updated in place"
            return [lane.value]
        return [batcher.seen(lane, t).value]
    if kind in (MARKED, ROWS):
        return [as_uniform(lane, batcher.rows).value]
    ragged = guarded_by(batcher, as_ragged(lane, batcher.rows), guard)
    return [ragged.buffer, ragged.lengths]


def guarded_by(batcher: Batcher, lane: Ragged, guard: Guard | None) -> Ragged:
    """The stack under that guard. One that every row has its own of may pass for a guarded one."""
    if lane.guard is not None and lane.guard is not guard:
        lane = unguarded(lane, batcher.builder)
    return Ragged(batcher.builder, lane.buffer, lane.lengths, lane.element, guard)


def arriving(builder: Builder, kind: int, t: Type, values: list[Value], guard: Guard | None) -> Lane:
    """The lane that results of a region's node carry; takes them off the list."""
    first = values.pop(0)
    if kind == SHARED:
        return Same(builder, first)
    if isinstance(t, TensorType):
        return Batched(builder, first)
    if kind in (MARKED, ROWS):
        return Uniform(builder, first, marked=kind == MARKED)
    return Ragged(builder, first, values.pop(0), t.element, guard)


def following(before: Lane | None, lane: Lane) -> Lane:
    """A result that is an array from before with elements updated, where there is one; else the lane as it is."""
    if before is None:
        return lane
    assert isinstance(before, Batched) and isinstance(lane, Batched)
    return before.followed_by(lane.builder, lane.value)


def guard_of(lane: Lane) -> Guard | None:
    return lane.guard if isinstance(lane, Ragged | Uniform) else None


def taking_part(mask: Term, rows: Rows) -> Guard:
    """The guard of the rows in `mask`, at least one of which is true: the other rows follow the first true one."""
    builder = mask.builder
    first = emit("argmax", mask, axes=(0,), keepdims=False)
    return Guard(mask.value, emit("where", mask, rows.iota(builder), first).value, first.value)


def guarded(lane: Lane, guard: Guard, builder: Builder) -> Lane:
    """A lane of the graph around, as the guarded region that `builder` makes sees it."""
    if isinstance(lane, Batched):
        return Batched(builder, lane.value, guard.inside(builder, lane.guard))
    if isinstance(lane, Uniform):
        return Uniform(builder, lane.value, guard.inside(builder, lane.guard), lane.marked)
    if isinstance(lane, Ragged):
        inner = guard.inside(builder, lane.guard)
        return Ragged(builder, lane.buffer, lane.lengths, lane.element, inner)
    return lane


# Batching of `cond`.
#
# Where the selector is the same for all rows the cond stays and its branches are batched. Where it differs, the
# branches run one after the other, each only if a row takes it; the rows that do not take it are guarded (see
# `lanes`): they see what the first row sees that does, so a branch that is no place for a row can do it no harm. The
# results are chosen row by row. A stack goes through the branches one after the other, each of which touches
# its own rows alone.


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
        if isinstance(before, Batched) and all(isinstance(x, Batched) and x.keeps(before) for x in lanes):
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
            assert isinstance(lane, Batched) and isinstance(before, Batched) and lane.keeps(before)
            return [Term(builder, lane.value)]
        if isinstance(t, TensorType):
            (old,) = (Term(builder, v) for v in _values(before))
            new = inner.seen(lane, t)
            if decided is None:
                return [new]
            if None not in t.shape:
                return [choose_rows(mask, new, old)]
            self.batcher.rows.require_one_size()
            # The value before has the sizes of the result only if a branch has run.
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


# Batching of `while`.
#
# Where the predicate is the same for all rows the loop stays as it is and its carry gets rows: those parts that
# depend on a mapped value, a fixpoint.
#
# Where rows go round different numbers of times:
#
#     active, results = while captures(w) carry(active, x)
#         cond: any(active)
#         body: rows that are done see what the first active row sees (a guard, see `lanes`)
#               y = body(w, x);  next = active and cond(w, y);  x = y in active rows, else x
#
# A row that is done keeps its values and its stacks, and does nothing that an active row does not do: neither its
# values nor its derivatives can become NaN by iterations that it did not run.


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
    # What moves into the body is differentiated there; a predicate is not, and no user's rule counts in it.
    cond, body, rows = rewrite(loop.cond, _without_rule), loop.body, batcher.rows
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
            if isinstance(lane, Batched) and lane.keeps(before):
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
    """The next carry: new in active rows, old in the remaining ones."""
    if None not in old.tensor.shape[1:]:
        return choose_rows(active, new, old)
    # Sizes that change from iteration to iteration do so for all rows, or there is no array that holds them.
    everyone = emit("all", active, axes=(0,), keepdims=False)
    some = lambda inside: [
        choose_rows_of_one_size(*(Term(inside, x.value) for x in (active, new, old)), of="what a loop carries")
    ]
    (kept,) = choose(active.builder, everyone, [some, lambda inside: [Term(inside, new.value)]])
    return kept


def _without_rule(node: Node, builder: Builder) -> Sequence[Value] | None:
    """The function of a call that has a rule for derivatives, in place of the call."""
    return builder.inline(Call.of(node).function, node.operands) if is_call(node, "custom_jvp", "custom_vjp") else None


def _predicate(batcher: Batcher, cond: Graph, lanes: Sequence[Lane]) -> Term:
    """For each row whether it goes round once more, computed where `batcher` is."""
    inner = Batcher(batcher.builder, batcher.rows, dict(zip(cond.inputs, lanes, strict=True)))
    (predicate,) = inner.run(cond)
    return inner.seen(predicate, BOOL)


# Batching of `call`: the function and the derivative that the user gave it, each batched.
#
# A checkpointed function takes its operands as they are. For a derivative given by the user every argument gets rows,
# so that its cotangent or tangent has rows too, whatever the rule makes of it.
#
# Of a derivative, what is differentiated is batched, and differentiated then; seeds alone may have rows, too.
#
# A call of kind "rows" is a batched graph inside a function that is being batched: region 0 is that graph, region 1
# what it was traced from. It is there where rows have stacks of their own length. Their buffers have a size that all
# rows share; where outer rows would go different ways that size would differ between them, and both batch axes
# become one instead.


@batches("call")
def _call(batcher: Batcher, node: Node) -> Sequence[Lane]:
    call = Call.of(node)
    rules = {"checkpoint": _checkpoint, "rows": _rows, "custom_vmap": _custom_vmap, "derivative": _derivative}
    return rules.get(call.kind, _custom)(batcher, call)


def _checkpoint(batcher: Batcher, call: Call) -> Sequence[Lane]:
    region = call.function
    lanes = {v: batcher.lanes[o] for v, o in zip(region.inputs, call.operands, strict=True)}
    inner = Batcher(Builder(batcher.builder, region.name), batcher.rows, lanes)
    produced = inner.run(region)
    kinds, guards = [kind_of(lane) for lane in produced], [guard_of(lane) for lane in produced]
    types = [v.type for v in call.results]
    outputs = [
        v
        for lane, kind, t, guard in zip(produced, kinds, types, guards, strict=True)
        for v in leaving(inner, lane, kind, t, guard)
    ]
    closed = close([inner.builder.finish(outputs)])
    results = list(emit_call(batcher.builder, call.kind, closed, policy=call.attrs.policy, source=call.source))
    return [
        arriving(batcher.builder, kind, t, results, guard) for kind, t, guard in zip(kinds, types, guards, strict=True)
    ]


def _custom_vmap(batcher: Batcher, call: Call) -> Sequence[Lane]:
    """The user's rule, in the place of the call."""
    mapped = tuple(i for i, v in enumerate(call.arguments) if not batcher.is_same(v))
    if any(isinstance(call.arguments[i].type, StackType) for i in mapped):
        raise _no_rows(call)
    rule = call.rule.rows(batcher.rows.static, mapped)
    used = {v for v in call.captured_by(call.function, rule.graph) if not batcher.is_same(v)}
    if used:
        raise TypeMismatchError(
            "vmap: a function with custom_vmap closes over a value that is mapped over",
            source=call.source,
            expected="a function whose result depends on its arguments alone",
            got=", ".join(str(v.type) for v in used),
            hint="pass the value as an argument",
        )
    # Mapped captures are unused here: zeros of their type stand for them.
    operands = [
        batcher.term(v).value if batcher.is_same(v) or v in call.arguments else _zero_row(batcher, v).value
        for v in call.operands
    ]
    results = batcher.builder.inline(rule.graph, operands)
    return [Batched(batcher.builder, v) if i in rule.found else Same(batcher.builder, v) for i, v in enumerate(results)]


def _zero_row(batcher: Batcher, value: Value) -> Term:
    return zeros(batcher.builder, value.tensor.dtype, batcher.term(value).dims[1:])


def _no_rows(call: Call) -> TypeMismatchError:
    return TypeMismatchError(
        f"vmap: {call.kind} with a TensorArray as an argument or result",
        source=call.source,
        expected="arrays",
        got="a TensorArray",
        hint="pass array.stack() and unstack it inside",
    )


def _custom(batcher: Batcher, call: Call) -> Sequence[Lane]:
    crossing, operands = [], []
    for v in call.captures:
        crossing.append(kind_of(batcher.lanes[v]))
        operands += leaving(batcher, batcher.lanes[v], crossing[-1], v.type, None)
    # Row counts that only a run tells.
    counts = [n for n in (batcher.rows.size, *batcher.rows.nested) if isinstance(n, Value)]
    rule = _Rule(call, tuple(crossing), batcher.rows, tuple(dict.fromkeys(counts)))
    closed = Closed((*rule.counts, *operands), (rule.batched(call.function),))
    arguments = [batcher.batched(v).value for v in call.arguments]
    results = emit_call(batcher.builder, call.kind, closed, arguments, rule=rule, source=call.source)
    return [Batched(batcher.builder, v) for v in results]


def _derivative(batcher: Batcher, call: Call) -> Sequence[Lane]:
    """The derivative of the batched function: rows do not depend on each other, so that of one is that of all. It has
    stacks of rows that all push at once, where batching its loops would give each row a stack of its own."""
    builder, rows = batcher.builder, batcher.rows
    seeds_alone = all(map(batcher.is_same, call.differentiated)) and not (rows.nested or any(rows.names))
    if seeds_alone:
        primal, shared = call.primal, call.rule.shared
        captures = [plain(batcher.lanes[v]) for v in call.captures]
        arguments = [plain(batcher.lanes[v]) for v in call.passed]
    else:
        (captures, arguments, primal), shared = _with_rows(batcher, call), 0
    rule = call.rule.with_rows(rows.static, seeds_alone)
    regions = Closed(tuple(captures), (rule.graph(primal, len(captures)), primal))
    arguments = [*arguments, *(batcher.batched(v).value for v in call.seeds)]
    results = emit_call(builder, call.kind, regions, arguments, rule=rule, source=call.source)
    # The half that runs first leaves stacks for the other one.
    lane = lambda v: Uniform(builder, v) if isinstance(v.type, StackType) else Batched(builder, v)
    return [*(Same(builder, v) for v in results[:shared]), *map(lane, results[shared:])]


def _with_rows(batcher: Batcher, call: Call) -> tuple[list[Value], list[Value], Graph]:
    """The captures, the arguments and the primal of a derivative, batched; once for all calls of one pullback."""
    given = call.differentiated
    key = (call.rule.name, given)
    if key in batcher.differentiated:
        return batcher.differentiated[key]
    builder, rows = Builder(batcher.builder, call.primal.name), batcher.rows
    captured: list[Value] = []
    arguments: list[Value] = []
    lanes: dict[Value, Lane] = {}
    for place, (v, operand) in enumerate(zip(call.primal.inputs, given, strict=True), -len(call.captures)):
        kind = ROWS if place in call.rule.wrt else kind_of(batcher.lanes[operand])
        taken = captured if place < 0 else arguments
        taken += leaving(batcher, batcher.lanes[operand], kind, v.type, None)
        lanes[v] = entering(builder, rows, kind, v.type, v.hint, None)
    inner = Batcher(builder, rows, lanes)
    produced = inner.run(call.primal)
    closed = close(
        [builder.finish(inner.seen(x, v.tensor).value for x, v in zip(produced, call.primal.outputs, strict=True))]
    )
    (primal,) = closed.regions
    found = [*closed.captures, *captured], arguments, primal
    batcher.differentiated[key] = found
    return found


@record(eq=False)
class _Rule:
    """The graphs of a rule (`ir.rules.Reverse`) with rows: arguments and results have them, what is closed over comes
    as it is. A residual may be a stack, which a derivative that the rule takes has left."""

    call: Call
    crossing: tuple[int, ...]
    rows: Rows
    counts: tuple[Value, ...]
    # With the kinds of the results.
    _batched: dict[Graph, tuple[Graph, tuple[int, ...]]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "later"

    @property
    def label(self) -> str:
        return str(self.call.rule.label)

    @property
    def symbolic_zeros(self) -> bool:
        found: bool = self.call.rule.symbolic_zeros
        return found

    def push(self, perturbed: Positions) -> Answer | None:
        found = self.call.rule.push(perturbed)
        return None if found is None else replace(found, graph=self.batched(found.graph))

    def forward(self, perturbed: Positions) -> Graph:
        return self.batched(self.call.rule.forward(perturbed))

    def backward(self, perturbed: Positions, seeded: Positions) -> Answer:
        found: Answer = self.call.rule.backward(perturbed, seeded)
        _, kinds = self._batched[self.call.rule.forward(perturbed)]
        return replace(found, graph=self.batched(found.graph, kinds[len(self.call.results) :]))

    def batched(self, region: Graph, residuals: tuple[int, ...] = ()) -> Graph:
        """The region with rows; `residuals` are the kinds of its first arguments, where they are residuals."""
        if region not in self._batched:
            graph, kinds = self._with_rows(region, residuals)
            (closed,) = close([graph], self.counts).regions
            self._batched[region] = closed, kinds
        return self._batched[region][0]

    def _with_rows(self, region: Graph, residuals: tuple[int, ...]) -> tuple[Graph, tuple[int, ...]]:
        builder, first = Builder(name=region.name), (*self.crossing, *residuals)
        for v in (*region.inputs[len(first) :], *region.outputs[: len(self.call.results)]):
            if not isinstance(v.type, TensorType):
                raise _no_rows(self.call)
        entered = [*first, *[ROWS] * (len(region.inputs) - len(first))]
        lanes = {
            v: entering(builder, self.rows, kind, v.type, v.hint, None)
            for v, kind in zip(region.inputs, entered, strict=True)
        }
        inner = Batcher(builder, self.rows, lanes)
        produced = inner.run(region)
        kinds = tuple(
            ROWS if isinstance(v.type, TensorType) else kind_of(x)
            for v, x in zip(region.outputs, produced, strict=True)
        )
        found = zip(produced, kinds, region.outputs, strict=True)
        outputs = [x for lane, kind, v in found for x in leaving(inner, lane, kind, v.type, None)]
        return builder.finish(outputs), kinds


def _rows(batcher: Batcher, call: Call) -> Sequence[Lane]:
    """The batched function with rows once more, if the sizes in it stay the same for all; else both axes as one."""
    trial = replace(batcher.rows, one_size=True)
    lanes = dict(zip(call.function.inputs, (batcher.lanes[v] for v in call.operands), strict=True))
    inner = Batcher(Builder(batcher.builder, call.function.name), trial, lanes)
    try:
        produced = inner.run(call.function)
    except SizesMayDiffer:
        return _on_flattened_rows(batcher, call)
    batcher.builder.nodes += inner.builder.nodes
    return [
        Same(batcher.builder, lane.value) if isinstance(lane, Same) else batcher.lane(inner.seen(lane, v.tensor))
        for lane, v in zip(produced, call.function.outputs, strict=True)
    ]


def _on_flattened_rows(batcher: Batcher, call: Call) -> Sequence[Lane]:
    """Both batch axes as one, `outer * inner` rows."""
    builder, row, mapped = batcher.builder, call.row, call.attrs.mapped
    first = call.operands[mapped[0]]
    outer, inner = batcher.rows.count(builder), batcher.term(first).dim(-first.tensor.rank)
    total = outer * inner
    sizes = [n if isinstance(n, int) else n.value for n in (total, inner)]
    rows = Rows(sizes[0], nested=(*batcher.rows.axes, sizes[1]), names=(*batcher.rows.names, call.attrs.rows))
    # The outer row that each of all rows belongs to.
    belongs = emit("floor_divide", rows.iota(builder), inner)
    lanes: dict[Value, Lane] = {}
    for position, (v, operand) in enumerate(zip(row.inputs, call.operands, strict=True)):
        if position in mapped:
            x = batcher.batched(operand)
            lanes[v] = batcher.lane(reshape(x, [total, *x.dims[2:]]))
        else:
            lanes[v] = _repeated(batcher, batcher.lanes[operand], belongs)
    flattened = Batcher(builder, rows, lanes)
    produced = flattened.run(row)
    found: list[Lane] = []
    for lane, v in zip(produced, row.outputs, strict=True):
        x = flattened.seen(lane, v.tensor)
        found.append(batcher.lane(reshape(x, [outer, inner, *x.dims[1:]])))
    return found


def _repeated(batcher: Batcher, lane: Lane, belongs: Term) -> Lane:
    """A value of the outer rows, for each of the inner rows that belong to one."""
    if isinstance(lane, Same | Fresh):
        return lane
    if isinstance(lane, Batched):
        return batcher.lane(emit("getitem", Term(batcher.builder, lane.seen()), belongs, key=_whole_rows(lane.value)))
    ragged = unguarded(as_ragged(lane, batcher.rows), batcher.builder)
    buffer = emit("getitem", Term(batcher.builder, ragged.buffer), belongs, key=_whole_rows(ragged.buffer))
    lengths = emit("getitem", Term(batcher.builder, ragged.lengths), belongs, key=(DYNAMIC,))
    return Ragged(batcher.builder, buffer.value, lengths.value, ragged.element)


def _whole_rows(x: Value) -> Key:
    return (DYNAMIC, *[slice(None)] * (x.tensor.rank - 1))
