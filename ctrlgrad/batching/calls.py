"""Batching of `call`: the function and the derivative that the user gave it, each batched.

A checkpointed function takes its operands as they are. For a derivative given by the user every argument gets rows,
so that its cotangent or tangent has rows too, whatever the rule makes of it.

Of a gradient, what is differentiated is batched, and differentiated then.

A call of kind "rows" is a batched graph inside a function that is being batched: region 0 is that graph, region 1
what it was traced from. It is there where rows have stacks of their own length. Their buffers have a size that all
rows share; where outer rows would go different ways that size would differ between them, and both batch axes
become one instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from ctrlgrad.batching.batcher import Batcher
from ctrlgrad.batching.lanes import Batched, Fresh, Lane, Ragged, Rows, Same, SizesMayDiffer
from ctrlgrad.batching.regions import ROWS, arriving, entering, guard_of, kind_of, leaving
from ctrlgrad.batching.stacks import as_ragged, unguarded
from ctrlgrad.batching.table import batches
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import Builder, Call, Closed, Graph, Node, StackType, TensorType, Value, close
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ir.control import emit_call
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.ops.term import Term, emit, reshape, zeros
from ctrlgrad.records import record


@batches("call")
def _call(batcher: Batcher, node: Node) -> Sequence[Lane]:
    call = Call.of(node)
    rules = {"checkpoint": _checkpoint, "rows": _rows, "custom_vmap": _custom_vmap, "gradient": _gradient}
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
    # What no one uses is there by its type alone.
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
        f"vmap: {call.kind} with a TensorArray as an argument, result or residual",
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


def _gradient(batcher: Batcher, call: Call) -> Sequence[Lane]:
    """The gradient of the batched function: rows do not depend on each other, so that of one is that of all. It has
    stacks of rows that all push at once, where batching its loops would give each row a stack of its own."""
    builder, rows = Builder(batcher.builder, call.primal.name), batcher.rows
    captured: list[Value] = []
    arguments: list[Value] = []
    lanes: dict[Value, Lane] = {}
    for place, (v, operand) in enumerate(zip(call.primal.inputs, call.operands, strict=True), -len(call.captures)):
        kind = ROWS if place in call.rule.wrt else kind_of(batcher.lanes[operand])
        given = captured if place < 0 else arguments
        given += leaving(batcher, batcher.lanes[operand], kind, v.type, None)
        lanes[v] = entering(builder, rows, kind, v.type, v.hint, None)
    inner = Batcher(builder, rows, lanes)
    produced = inner.run(call.primal)
    closed = close(
        [builder.finish(inner.seen(x, v.tensor).value for x, v in zip(produced, call.primal.outputs, strict=True))]
    )
    (primal,) = closed.regions
    captured = [*closed.captures, *captured]
    regions = Closed(tuple(captured), (call.rule.graph(primal, len(captured)), primal))
    results = emit_call(batcher.builder, call.kind, regions, arguments, rule=call.rule, source=call.source)
    return [Batched(batcher.builder, v) for v in results]


@record(eq=False)
class _Rule:
    """The graphs of a rule (`ir.rules.Reverse`) with rows: arguments and results have them, what is closed over comes
    as it is."""

    call: Call
    crossing: tuple[int, ...]
    rows: Rows
    counts: tuple[Value, ...]
    _batched: dict[Graph, Graph] = field(default_factory=dict)

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
        return replace(found, graph=self.batched(found.graph))

    def batched(self, region: Graph) -> Graph:
        if region not in self._batched:
            (self._batched[region],) = close([self._with_rows(region)], self.counts).regions
        return self._batched[region]

    def _with_rows(self, region: Graph) -> Graph:
        builder, shared = Builder(name=region.name), len(self.crossing)
        for v in (*region.inputs[shared:], *region.outputs):
            if not isinstance(v.type, TensorType):
                raise _no_rows(self.call)
        lanes: dict[Value, Lane] = {}
        for v, kind in zip(region.inputs, self.crossing, strict=False):
            lanes[v] = entering(builder, self.rows, kind, v.type, v.hint, None)
        for v in region.inputs[shared:]:
            lanes[v] = Batched(builder, builder.input(self.rows.of(v.tensor), v.hint))
        inner = Batcher(builder, self.rows, lanes)
        produced = inner.run(region)
        found = [inner.seen(lane, v.tensor).value for lane, v in zip(produced, region.outputs, strict=True)]
        return builder.finish(found)


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
