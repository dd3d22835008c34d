"""Loop distribution: products that the recurrence of a loop neither needs nor feeds leave it, a chunk at a time.

A loop with such products becomes a loop over chunks around a loop over the iterations of one chunk:

- producers: a product of row t of a captured array with a captured matrix is computed before the chunk, for all of its
  rows, as one product;
- consumers: a product that is only added to a carry is taken out of the loop; its factors are collected on stacks, and
  what all iterations of the chunk add is one product of the collected factors after it.

In: any graph. Out: no loop has a heavy product of either kind whose sizes are known; values change within rounding,
since sums are taken in another order. A loop that counts down is cut at multiples of the chunk's length, so that it
takes from a stack what one chunk of the loop that counts up has pushed. Loops with `maximum_iterations` stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad.ir import INDEX, Builder, Graph, Node, StackType, TensorType, Value, copy_node, uses
from ctrlgrad.ir.types import Dim
from ctrlgrad.ops.indexing import DYNAMIC
from ctrlgrad.passes.recurrence import Row, rows
from ctrlgrad.stacks.choice import bytes_of

# Bytes that a chunk may collect and produce, and the least and most iterations that it may have.
CHUNK_BYTES, LEAST, MOST = 16 << 20, 64, 4096
# Multiplications in one iteration's product from which it pays to take it out of the loop.
HEAVY = 4_000
_GUESS = 64


def distribute(graph: Graph, chunk: int | None = None) -> Graph:
    """The graph with its loops distributed, those inside regions too.

    `chunk` is the number of iterations of a chunk, by default what `CHUNK_BYTES` allow. It is one for all loops of the
    graph: then one loop's chunks fit what another has pushed.
    """
    if chunk is None:
        room = CHUNK_BYTES // max(_bytes_collected(graph), 1)
        chunk = min(max(1 << room.bit_length() - 1 if room else 0, LEAST), MOST)
    return _distribute(graph, chunk)


def _bytes_collected(graph: Graph) -> int:
    """What one iteration of the greediest loop collects and is given by producers, unknown sizes guessed."""
    most = 0
    made = {v: node for node in graph.nodes for v in node.results}
    for node in graph.nodes:
        if node.op.name == "while":
            found = _find(node, made)
            values = {v for c in found.consumers for v in c.product.operands}
            values |= {p.result for p in found.producers}
            most = max(most, sum(bytes_of(v) for v in values))
        most = max([most, *map(_bytes_collected, node.regions)])
    return most


def _distribute(graph: Graph, chunk: int) -> Graph:
    builder = Builder(name=graph.name)
    went: dict[Value, Value] = {v: builder.input(v.type, v.hint) for v in graph.inputs}
    made = {v: node for node in graph.nodes for v in node.results}
    for node in graph.nodes:
        if node.op.name == "while":
            found = _find(node, made)
            if found.producers or found.consumers:
                builder.source = node.source
                results = _Distribution(node, found, chunk).emit(builder, [went[v] for v in node.operands])
                went.update(zip(node.results, results, strict=True))
                continue
        regions = tuple(_distribute(region, chunk) for region in node.regions)
        attrs = {k: v for k, v in node.attrs.items() if k != "paired"}
        copy_node(builder, Node(node.op, node.operands, node.results, attrs, regions, node.source), went)
    return builder.finish(went[v] for v in graph.outputs)


@dataclass
class _Consumer:
    """A product of matrices that is only added to the carry at `position`."""

    position: int
    product: Node


@dataclass
class _Found:
    """What can leave a loop."""

    producers: dict[Node, Row] = field(default_factory=dict)
    consumers: list[_Consumer] = field(default_factory=list)
    # Per carry that is accumulated into: what is still added to it inside the loop.
    left: dict[int, list[Value]] = field(default_factory=dict)


def _find(node: Node, made_outside: dict[Value, Node]) -> _Found:
    found = _Found()
    if node.attrs.get("maximum_iterations") is not None or "chunk" in node.attrs or "chunks_of" in node.attrs:
        return found
    cond, body = node.regions
    captures = node.attrs["captures"]
    shared = set(body.inputs[:captures])
    row_values = rows(body, captures)
    start = dict(zip(body.inputs, node.operands, strict=True))
    for inner in body.nodes:
        if inner.op.name == "matmul" and _is_heavy(inner) and inner.operands[1] in shared:
            row = row_values.get(inner.operands[0])
            if row is not None and _starts_inside(start[row.counter], made_outside):
                found.producers[inner] = row
    _find_consumers(body, cond, captures, found)
    return found


def _starts_inside(start: Value, made: dict[Value, Node]) -> bool:
    """Whether a counter starts from a constant that is no negative index."""
    node = made.get(start)
    return node is not None and node.op.name == "constant" and int(node.attrs["value"]) >= 0


def _is_heavy(product: Node) -> bool:
    a, b = (v.tensor for v in product.operands)
    if a.rank != 2 or b.rank != 2 or a.dtype.kind not in "fc":
        return False
    m, k, n = (_GUESS if d is None else d for d in (*a.shape, b.shape[1]))
    return m * k * n >= HEAVY


def _find_consumers(body: Graph, cond: Graph, captures: int, found: _Found) -> None:
    made = {v: node for node in body.nodes for v in node.results}
    count = uses(body)
    in_cond = uses(cond)
    for position, (carry, out) in enumerate(zip(body.inputs[captures:], body.outputs, strict=True)):
        if isinstance(carry.type, StackType) or count[carry] != 1 or in_cond[cond.inputs[captures + position]]:
            continue
        terms = _terms(out, made, count)
        if carry not in terms or count[out] != 1:
            continue
        products = [
            made[v] for v in terms if v in made and made[v].op.name == "matmul" and _is_heavy(made[v]) and count[v] == 1
        ]
        products = [p for p in products if p not in found.producers and carry.type == p.result.type]
        if products:
            found.consumers += [_Consumer(position, p) for p in products]
            gone = {p.result for p in products} | {carry}
            found.left[position] = [v for v in terms if v not in gone]


def _terms(value: Value, made: dict[Value, Node], count: dict[Value, int]) -> list[Value]:
    """The terms of a sum, through sums that are used nowhere else."""
    node = made.get(value)
    if node is None or node.op.name != "add" or count[value] != 1 or any(v.type != value.type for v in node.operands):
        return [value]
    return [term for v in node.operands for term in _terms(v, made, count)]


class _Distribution:
    """The two loops that stand for one."""

    def __init__(self, node: Node, found: _Found, chunk: int) -> None:
        self.node, self.found, self.chunk = node, found, chunk
        self.cond, self.body = node.regions
        self.captures: int = node.attrs["captures"]
        # Carries that leave the inner loop for good: nothing in it adds to them.
        self.gone = {i for i, left in found.left.items() if not left}
        self.kept = [i for i in range(len(node.results)) if i not in self.gone]

    def emit(self, builder: Builder, operands: Sequence[Value]) -> tuple[Value, ...]:
        """Put the loop over chunks into a builder; returns its results."""
        outer = Builder(name=self.body.name)
        outer.source = self.node.source
        inputs = [outer.input(v.type, v.hint) for v in self.body.inputs]
        shared, carry = inputs[: self.captures], inputs[self.captures :]
        produced = {p: self._produce(outer, p, row, inputs) for p, row in self.found.producers.items()}
        limit = self._limit(outer, carry)
        collected = self._collected()
        stacks = [outer.emit("stack_new", (), {"element": v.type}) for v in collected]
        start = outer.constant(0, INDEX.dtype)
        kept = [carry[i] for i in self.kept]
        given = [*shared, *produced.values(), limit, *kept, start, *stacks]
        regions = self._inner_regions(list(produced), collected)
        count = len(shared) + len(produced) + 1
        results = outer.emit_all("while", given, self._attrs(captures=count, chunk=self.chunk), regions=regions)
        ends = dict(zip(self.kept, results, strict=False))
        rows_of = dict(zip(collected, results[len(kept) + 1 :], strict=True))
        outputs = [ends.get(i, carry[i]) for i in range(len(carry))]
        tensors = {v: _flat(outer, outer.emit("stack_to_tensor", [s], {"size": None})) for v, s in rows_of.items()}
        for consumer in self.found.consumers:
            left, right = (tensors[v] for v in self._factors(consumer.product))
            sides = [outer.emit("transpose", [left], {"axes": (1, 0)}), right]
            product = outer.emit("matmul", sides, source=consumer.product.source)
            outputs[consumer.position] = outer.emit("add", [outputs[consumer.position], product])
        test = self._copy_cond()
        attrs = self._attrs(captures=self.captures, chunks_of=self.chunk)
        return builder.emit_all(
            "while", operands, attrs, regions=(test, outer.finish(outputs)), source=self.node.source
        )

    def _attrs(self, **changes: Any) -> dict[str, Any]:
        return {**self.node.attrs, **changes}

    def _copy_cond(self) -> Graph:
        copy = Builder(name=self.cond.name)
        inputs = [copy.input(v.type, v.hint) for v in self.cond.inputs]
        return copy.finish(copy.inline(self.cond, inputs))

    def _limit(self, outer: Builder, carry: Sequence[Value]) -> Value:
        """How many iterations this chunk has at most."""
        length = outer.constant(self.chunk, INDEX.dtype)
        if not self.node.attrs.get("counts_down"):
            return length
        one = outer.constant(1, INDEX.dtype)
        rest = outer.emit("remainder", [outer.emit("subtract", [carry[0], one]), length])
        return outer.emit("add", [rest, one])

    def _produce(self, outer: Builder, product: Node, row: Row, inputs: Sequence[Value]) -> Value:
        """The products of all rows of a chunk: `[rows, m, n]`."""
        went = dict(zip(self.body.inputs, inputs, strict=True))
        array, first = went[row.array], went[row.counter]
        end = outer.emit("add", [first, outer.constant(self.chunk, INDEX.dtype)])
        key = (slice(DYNAMIC, DYNAMIC), *[slice(None)] * (array.tensor.rank - 1))
        part = outer.emit("getitem", [array, first, end], {"key": key}, source=product.source)
        left, right = product.operands
        flat = _reshaped(outer, part, [None, left.tensor.shape[1]])
        whole = outer.emit("matmul", [flat, went[right]], source=product.source)
        count = outer.emit("dim", [part], {"axis": 0})
        m = left.tensor.shape[0]
        if m is None:
            m_value = outer.emit("dim", [part], {"axis": 1})
            return outer.emit("reshape", [whole, count, m_value], {"shape": (None, None, right.tensor.shape[1])})
        return outer.emit("reshape", [whole, count], {"shape": (None, m, right.tensor.shape[1])})

    def _factors(self, product: Node) -> tuple[Value, Value]:
        """The two values that are collected: `[k, m]` and `[k, n]`, of which the product is `left.T @ right`."""
        left, right = product.operands
        made = next((n for n in self.body.nodes if left in n.results), None)
        if made is not None and made.op.name == "transpose" and made.attrs["axes"] == (1, 0):
            return made.operands[0], right
        return self._turned(left), right

    def _turned(self, value: Value) -> Value:
        """The value that the inner body makes as the transpose of another."""
        if value not in self._turns:
            m, k = value.tensor.shape
            self._turns[value] = Value(TensorType(value.tensor.dtype, (k, m)), value.hint)
        return self._turns[value]

    @property
    def _turns(self) -> dict[Value, Value]:
        turns: dict[Value, Value] = self.__dict__.setdefault("turns", {})
        return turns

    def _collected(self) -> list[Value]:
        return list(dict.fromkeys(v for c in self.found.consumers for v in self._factors(c.product)))

    def _inner_regions(self, produced: Sequence[Node], collected: Sequence[Value]) -> tuple[Graph, Graph]:
        """The test and the body of the loop over one chunk."""
        regions = []
        for region in (self.cond, self.body):
            inner = Builder(name=region.name)
            inner.source = self.node.source
            went = {v: inner.input(v.type, v.hint) for v in region.inputs[: self.captures]}
            batches = [inner.input(self._batch_type(p), p.result.hint) for p in produced]
            limit = inner.input(INDEX, "limit")
            carries = region.inputs[self.captures :]
            went |= {carries[i]: inner.input(carries[i].type, carries[i].hint) for i in self.kept}
            step = inner.input(INDEX, "step")
            stacks = [inner.input(StackType(_tensor(v)), v.hint) for v in collected]
            if region is self.cond:
                regions.append(self._inner_cond(inner, went, step, limit))
            else:
                regions.append(
                    self._inner_body(
                        inner,
                        went,
                        dict(zip(produced, batches, strict=True)),
                        step,
                        dict(zip(collected, stacks, strict=True)),
                    )
                )
        return regions[0], regions[1]

    @staticmethod
    def _batch_type(product: Node) -> TensorType:
        t = product.result.tensor
        return TensorType(t.dtype, (None, *t.shape))

    def _inner_cond(self, inner: Builder, went: dict[Value, Value], step: Value, limit: Value) -> Graph:
        for node in self.cond.nodes:
            copy_node(inner, node, went)
        below = inner.emit("less", [step, limit])
        return inner.finish([inner.emit("logical_and", [below, went[self.cond.outputs[0]]])])

    def _inner_body(
        self,
        inner: Builder,
        went: dict[Value, Value],
        batches: dict[Node, Value],
        step: Value,
        stacks: dict[Value, Value],
    ) -> Graph:
        left_out = {c.product for c in self.found.consumers} | self._sums()
        for node in self.body.nodes:
            if node in batches:
                key = (DYNAMIC, *[slice(None)] * node.result.tensor.rank)
                # `last_use`: nothing reads the row again, so its memory may be written to.
                attrs = {"key": key, "last_use": True}
                row = inner.emit("getitem", [batches[node], step], attrs, source=node.source)
                went[node.result] = row
            elif node not in left_out:
                copy_node(inner, node, went)
        for value, turned in self._turns.items():
            went[turned] = inner.emit("transpose", [went[value]], {"axes": (1, 0)})
        for value in stacks:
            stacks[value] = inner.emit("stack_push", [stacks[value], went[value]])
        outputs = []
        for i in self.kept:
            carry, out = self.body.inputs[self.captures + i], self.body.outputs[i]
            if i not in self.found.left:
                outputs.append(went[out])
                continue
            total = went[carry]
            for term in self.found.left[i]:
                total = inner.emit("add", [total, went[term]])
            outputs.append(total)
        following = inner.emit("add", [step, inner.constant(1, INDEX.dtype)])
        return inner.finish([*outputs, following, *stacks.values()])

    def _sums(self) -> set[Node]:
        """The additions that made up the carries which consumers are added to."""
        made = {v: node for node in self.body.nodes for v in node.results}
        found: set[Node] = set()

        def visit(value: Value, terms: set[Value]) -> None:
            if value not in terms:
                found.add(made[value])
                for v in made[value].operands:
                    visit(v, terms)

        for position in self.found.left:
            products = {c.product.result for c in self.found.consumers if c.position == position}
            carry = self.body.inputs[self.captures + position]
            visit(self.body.outputs[position], {*products, carry, *self.found.left[position]})
        return found


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _reshaped(builder: Builder, x: Value, shape: Sequence[Dim]) -> Value:
    """`[a, ..., n]` as `[a * ..., n]`."""
    total: Value | None = None
    known = 1
    for axis, d in enumerate(x.tensor.shape[:-1]):
        if d is not None:
            known *= d
        else:
            size = builder.emit("dim", [x], {"axis": axis})
            total = size if total is None else builder.emit("multiply", [total, size])
    assert total is not None
    if known != 1:
        total = builder.emit("multiply", [total, builder.constant(known, INDEX.dtype)])
    sizes = [total]
    if shape[-1] is None:
        sizes.append(builder.emit("dim", [x], {"axis": x.tensor.rank - 1}))
    return builder.emit("reshape", [x, *sizes], {"shape": tuple(shape)})


def _flat(builder: Builder, x: Value) -> Value:
    """Collected matrices `[chunk, k, n]` as one `[chunk * k, n]`."""
    return _reshaped(builder, x, [None, x.tensor.shape[-1]])


__all__ = ["distribute"]
