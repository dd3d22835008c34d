"""Loop distribution: products that the recurrence of a loop neither needs nor feeds leave it, a chunk at a time.

A loop with such products becomes a loop over chunks around a loop over the iterations of one chunk:

- producers: a product of row t of a captured array with a captured matrix is computed before the chunk, for all of its
  rows, as one product;
- sums: a product that is only added to a carry is taken out of the loop; its factors are collected on stacks, and what
  all iterations of the chunk add is one product of the collected factors after it. It may be a batch of products.

A loop inside a loop stays whole unless it pays for what distributing it costs the loop around it
(`heavy.WORTH_INSIDE`).

In: any graph. Out: no other loop has a heavy product of these kinds whose sizes are known; values change within
rounding, since sums are taken in another order. They are the same bits whatever the length of a chunk: products are in
order (`attributes.Product`), and where something else is added to a carry, a product that leaves the loop is added to a
carry of its own. A loop that counts down is cut at multiples of the chunk's length, so
that it takes from a stack what one chunk of the loop that counts up has pushed. A loop that fails still fails, but may
tell of another iteration's error: what comes after the chunk was to fail earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from ctrlgrad.ir import (
    INDEX,
    Builder,
    Closed,
    Graph,
    Loop,
    Node,
    Rewriter,
    StackType,
    TensorType,
    Value,
    attributes,
    copy_node,
    definitions,
    is_loop,
    uses,
)
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.control import emit_loop
from ctrlgrad.ir.types import Dim
from ctrlgrad.ops.term import Term, zeros
from ctrlgrad.passes.heavy import multiplications, pays_as_rows, pays_as_sum, pays_inside
from ctrlgrad.passes.recurrence import Row, rows
from ctrlgrad.records import record
from ctrlgrad.stacks.choice import bytes_of

# Sums over iterations: what a loop does nothing with but add it to a carry, like the gradients of its parameters.
#
# Of a product `left.T @ right` the factors are collected, and what all iterations of a chunk add is one product of the
# collected factors.


@record
class Product:
    """A product of matrices that is only added to the carry at `position`."""

    position: int
    node: Node


@record(frozen=False)
class Sums:
    """Terms that are added to carries, and the ones that can leave the loop."""

    # Per carry that is only added to: the terms.
    terms: dict[int, list[Value]] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)

    @property
    def left(self) -> dict[int, list[Value]]:
        """Per carry that something leaves: what is still added to it inside the loop."""
        gone = {p.node.result for p in self.products}
        return {i: [v for v in self.terms[i] if v not in gone] for i in sorted({p.position for p in self.products})}


def find_sums(loop: Loop, placed: Collection[Node]) -> Sums:
    """The sums over a loop's iterations; the products in them that can leave it and are not `placed` elsewhere."""
    found = Sums()
    producers, count, tested = definitions(loop.body), uses(loop.body), uses(loop.cond)
    for position, c in enumerate(loop.carries):
        carry, out = c.in_body, c.next
        if isinstance(carry.type, StackType) or count[carry] != 1 or tested[c.in_cond]:
            continue
        terms = _terms(out, producers, count)
        if carry not in terms or count[out] != 1:
            continue
        found.terms[position] = [v for v in terms if v is not carry]
        for v in terms:
            if (
                v in producers
                and pays_as_sum(producers[v])
                and count[v] == 1
                and producers[v] not in placed
                and carry.type == v.type
            ):
                found.products.append(Product(position, producers[v]))
    return found


def _terms(value: Value, producers: dict[Value, Node], count: Counter[Value]) -> list[Value]:
    """The terms of a sum, through sums that are used nowhere else."""
    node = producers.get(value)
    if node is None or node.op.name != "add" or count[value] != 1 or any(v.type != value.type for v in node.operands):
        return [value]
    return [term for v in node.operands for term in _terms(v, producers, count)]


# The loops that stand for one whose products leave it: a loop over chunks around a loop over a chunk's iterations.
#
# One iteration of the loop over chunks: the products of the chunk's rows; the iterations, which collect rows; and
# products of the collected rows, added to their carries.

_IN_ORDER = {"in_order": True}


@record(frozen=False)
class Found:
    """A loop, and what can leave it: products of rows, and what is only added to carries."""

    loop: Loop
    producers: dict[Node, Row] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)
    # Left factors that the body has only transposed, by the product's left operand.
    turned: dict[Value, Value] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        return bool(self.producers or self.sums.products)

    @property
    def multiplications(self) -> int:
        """Number of multiplications in the products that leave one iteration."""
        return sum(map(multiplications, (*self.producers, *(p.node for p in self.sums.products))))

    def factors(self, product: Node) -> tuple[Value, Value]:
        """The two values that are collected: `[..., k, m]` and `[..., k, n]`, of which it is `left.mT @ right`."""
        left, right = product.operands
        producer = definitions(self.loop.body).get(left)
        if (
            producer is not None
            and producer.op.name == "transpose"
            and attributes.Axes.of(producer).axes == _swapped(left)
        ):
            return producer.operands[0], right
        if left not in self.turned:
            *batch, m, k = left.tensor.shape
            self.turned[left] = Value(TensorType(left.tensor.dtype, (*batch, k, m)), left.hint)
        return self.turned[left], right

    @property
    def collected(self) -> list[Value]:
        """The values of which each iteration keeps its own to the end of the chunk."""
        return list(dict.fromkeys(v for p in self.sums.products for v in self.factors(p.node)))

    @property
    def held(self) -> list[Value]:
        """All values of which a chunk holds one for each iteration."""
        return [*self.collected, *(p.result for p in self.producers)]


class ChunkedLoop:
    """Emits the loops that stand for one."""

    def __init__(self, found: Found, chunk: int) -> None:
        self.found, self.chunk = found, chunk
        self.loop = found.loop
        self.left = found.sums.left
        # Products with carries of their own.
        first = {p.position: p for p in reversed(found.sums.products) if not self.left[p.position]}
        self.apart = [p for p in found.sums.products if first.get(p.position) is not p]
        # Carries that leave the inner loop for good: nothing in it adds to them.
        self.kept = {i: c for i, c in enumerate(self.loop.carries) if self.left.get(i, True)}
        self.maximum: int | None = self.loop.attrs.maximum_iterations

    def emit(self, builder: Builder) -> tuple[Value, ...]:
        """Put the loop over chunks into a builder; returns its results.

        With a maximum of iterations it carries the number of those done, and has a maximum of chunks.
        """
        body, cond = self._body(), self._outer_cond()
        attrs = replace(self.loop.attrs, chunks_of=self.chunk)
        captures, inits = [c.outer for c in self.loop.captures], [c.init for c in self.loop.carries]
        if self.maximum is not None:
            attrs = replace(attrs, maximum_iterations=-(-self.maximum // self.chunk))
            inits.append(builder.constant(0, INDEX.dtype))
        for p in self.apart:
            start = Term(builder, self.loop.carries[p.position].init)
            inits.append(zeros(builder, start.dtype, start.dims).value)
        regions = Closed(tuple(captures), (cond, body))
        results = list(emit_loop(builder, regions, inits, attrs, source=self.loop.source))
        for p, total in zip(self.apart, results[len(results) - len(self.apart) :], strict=True):
            results[p.position] = builder.emit("add", [results[p.position], total])
        return tuple(results[: len(self.loop.carries)])

    def _body(self) -> Graph:
        """One chunk."""
        outer = Builder(name=self.loop.body.name)
        outer.source = self.loop.source
        inputs = [outer.input(v.type, v.hint) for v in self.loop.body.inputs]
        done = outer.input(INDEX, "done") if self.maximum is not None else None
        apart = {p: outer.input(p.node.result.type, p.node.result.hint) for p in self.apart}
        shared, carry = self.loop.split(inputs)
        limit = self._limit(outer, carry, done)
        produced = {p: self._produce(outer, p, row, inputs, limit) for p, row in self.found.producers.items()}
        collected = self.found.collected
        stacks = [outer.emit("stack_new", (), {"element": v.type}) for v in collected]
        start = outer.constant(0, INDEX.dtype)
        kept = [carry[i] for i in self.kept]
        regions = Closed((*shared, *produced.values(), limit), self._inner_regions(list(produced), collected))
        attrs = replace(self.loop.attrs, chunk=self.chunk, maximum_iterations=None)
        results = emit_loop(outer, regions, [*kept, start, *stacks], attrs)
        steps = results[len(kept)]
        outputs = list(carry)
        for i, value in zip(self.kept, results, strict=False):
            outputs[i] = value
        held = dict(zip(collected, results[len(kept) + 1 :], strict=True))
        joined: dict[Value, Value] = {}
        for p in self.found.sums.products:
            factors = self.found.factors(p.node)
            for v in factors:
                if v not in joined:
                    joined[v] = _joined(outer, held[v], v)
            left, right = (joined[v] for v in factors)
            sides = [outer.emit("transpose", [left], {"axes": _swapped(left)}), right]
            product = outer.emit("matmul", sides, _IN_ORDER, source=p.node.source)
            total = outer.emit("add", [apart.get(p, outputs[p.position]), product])
            if p in apart:
                apart[p] = total
            else:
                outputs[p.position] = total
        if done is not None:
            outputs.append(outer.emit("add", [done, steps]))
        return outer.finish([*outputs, *apart.values()])

    def _outer_cond(self) -> Graph:
        cond = self.loop.cond
        copy = Builder(name=cond.name)
        inputs = [copy.input(v.type, v.hint) for v in cond.inputs]
        if self.maximum is not None:
            copy.input(INDEX, "done")
        for p in self.apart:
            copy.input(p.node.result.type, p.node.result.hint)
        return copy.finish(copy.inline(cond, inputs))

    def _limit(self, outer: Builder, carry: Sequence[Value], done: Value | None) -> Value:
        """Number of iterations that this chunk runs at most."""
        length = outer.constant(self.chunk, INDEX.dtype)
        if done is not None:
            rest = outer.emit("subtract", [outer.constant(self.maximum, INDEX.dtype), done])
            return outer.emit("minimum", [length, rest])
        if not self.loop.counts_down:
            return length
        one = outer.constant(1, INDEX.dtype)
        rest = outer.emit("remainder", [outer.emit("subtract", [carry[0], one]), length])
        return outer.emit("add", [rest, one])

    def _produce(self, outer: Builder, product: Node, row: Row, inputs: Sequence[Value], limit: Value) -> Value:
        """The products of all rows of a chunk in the array's order: `[rows, m, n]`."""
        copies = dict(zip(self.loop.body.inputs, inputs, strict=True))
        array, first = copies[row.array], copies[row.counter]
        if row.counts_down:
            first, end = outer.emit("subtract", [first, limit]), first
        else:
            end = outer.emit("add", [first, outer.constant(self.chunk, INDEX.dtype)])
        key = (slice(DYNAMIC, DYNAMIC), *[slice(None)] * (array.tensor.rank - 1))
        part = outer.emit("getitem", [array, first, end], {"key": key}, source=product.source)
        left, right = product.operands
        flat = _reshaped(outer, part, [None, left.tensor.shape[1]])
        whole = outer.emit("matmul", [flat, copies[right]], _IN_ORDER, source=product.source)
        sizes = [outer.emit("dim", [part], {"axis": 0})]
        m, n = left.tensor.shape[0], right.tensor.shape[1]
        if m is None:
            sizes.append(outer.emit("dim", [part], {"axis": 1}))
        if n is None:
            sizes.append(outer.emit("dim", [whole], {"axis": 1}))
        return outer.emit("reshape", [whole, *sizes], {"shape": (None, m, n)})

    # The loop over the iterations of a chunk.

    def _inner_regions(self, produced: Sequence[Node], collected: Sequence[Value]) -> tuple[Graph, Graph]:
        """The test and the body of the loop over one chunk."""
        regions = []
        for region in (self.loop.cond, self.loop.body):
            inner = Builder(name=region.name)
            inner.source = self.loop.source
            shared, carries = self.loop.split(region.inputs)
            copies = {v: inner.input(v.type, v.hint) for v in shared}
            batches = {p: inner.input(_batch_type(p.result), p.result.hint) for p in produced}
            limit = inner.input(INDEX, "limit")
            copies |= {carries[i]: inner.input(carries[i].type, carries[i].hint) for i in self.kept}
            step = inner.input(INDEX, "step")
            stacks = {v: inner.input(StackType(v.tensor), v.hint) for v in collected}
            if region is self.loop.cond:
                for node in self.loop.cond.nodes:
                    copy_node(inner, node, copies)
                below = inner.emit("less", [step, limit])
                regions.append(inner.finish([inner.emit("logical_and", [below, copies[self.loop.predicate]])]))
            else:
                regions.append(self._inner_body(inner, copies, batches, step, limit, stacks))
        return regions[0], regions[1]

    def _inner_body(
        self,
        inner: Builder,
        copies: dict[Value, Value],
        batches: Mapping[Node, Value],
        step: Value,
        limit: Value,
        stacks: dict[Value, Value],
    ) -> Graph:
        left_out = {p.node for p in self.found.sums.products} | self._sums()
        for node in self.loop.body.nodes:
            if node in batches:
                position = step
                if self.found.producers[node].counts_down:
                    one = inner.constant(1, INDEX.dtype)
                    position = inner.emit("subtract", [inner.emit("subtract", [limit, one]), step])
                # The row of a batch.
                batch = batches[node]
                attrs = {"key": (DYNAMIC, *[slice(None)] * (batch.tensor.rank - 1))}
                copies[node.result] = inner.emit("getitem", [batch, position], attrs, source=node.source)
            elif node not in left_out:
                copy_node(inner, node, copies)
        for value, turned in self.found.turned.items():
            copies[turned] = inner.emit("transpose", [copies[value]], {"axes": _swapped(value)})
        for value in stacks:
            stacks[value] = inner.emit("stack_push", [stacks[value], copies[value]])
        outputs = []
        for i, carry in self.kept.items():
            if i not in self.left:
                outputs.append(copies[carry.next])
                continue
            total = copies[carry.in_body]
            for term in self.left[i]:
                total = inner.emit("add", [total, copies[term]])
            outputs.append(total)
        following = inner.emit("add", [step, inner.constant(1, INDEX.dtype)])
        return inner.finish([*outputs, following, *stacks.values()])

    def _sums(self) -> set[Node]:
        """The additions that made up the carries which something leaves."""
        producers = definitions(self.loop.body)
        found: set[Node] = set()

        def visit(value: Value, terms: set[Value]) -> None:
            if value not in terms:
                found.add(producers[value])
                for v in producers[value].operands:
                    visit(v, terms)

        for position in self.left:
            carry = self.loop.carries[position]
            visit(carry.next, {carry.in_body, *self.found.sums.terms[position]})
        return found


def _swapped(value: Value) -> tuple[int, ...]:
    """The axes of matrices transposed."""
    *batch, rows, columns = range(value.tensor.rank)
    return (*batch, columns, rows)


def _joined(builder: Builder, stack: Value, value: Value) -> Value:
    """Collected matrices `[..., k, n]` joined along `k`. Where `k` is unknown it may change."""
    *batch, k, n = value.tensor.shape
    if k is None:
        counts = builder.emit("stack_rows", [stack], {"axis": 0})
        return builder.emit("stack_concat", [stack, counts], {"axis": 0, "size": None})
    rows = builder.emit("stack_to_tensor", [stack], {"size": None})
    if not batch:
        return _reshaped(builder, rows, [None, n])
    behind = len(batch)
    rows = builder.emit("transpose", [rows], {"axes": (*range(1, behind + 1), 0, behind + 1, behind + 2)})
    if k == 1:
        return builder.emit("squeeze", [rows], {"axes": (behind + 1,)})
    count = builder.emit("multiply", [builder.emit("dim", [rows], {"axis": behind}), builder.constant(k, INDEX.dtype)])
    sizes = [count] if n is not None else [count, builder.emit("dim", [rows], {"axis": behind + 2})]
    return builder.emit("reshape", [rows, *sizes], {"shape": (*batch, None, n)})


def _batch_type(value: Value) -> TensorType:
    """The type of one value for each iteration."""
    return TensorType(value.tensor.dtype, (None, *value.tensor.shape))


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


# Bytes that a chunk may collect and produce, and the most iterations that it may have.
CHUNK_BYTES, MOST = 16 << 20, 4096
# The least iterations: with so many bytes, shorter products waste more than memory; with fewer, memory is what counts.
LEAST, LEAST_OF_FEW_BYTES = 16, 8


def distribute(graph: Graph, chunk: int | None = None, chunk_bytes: int = CHUNK_BYTES) -> Graph:
    """The graph with its loops distributed, those inside regions too where they are worth it.

    `chunk` is the number of iterations of a chunk, by default the largest power of 2 for which a chunk collects and
    produces at most `chunk_bytes`, but at least `LEAST` (`LEAST_OF_FEW_BYTES` where `chunk_bytes` is less than
    `CHUNK_BYTES`) and at most `MOST`. It is one for all loops of the graph: then one loop's chunks fit what another
    has pushed.
    """
    finding = _Finding()
    if chunk is None:
        room = chunk_bytes // max(_bytes_collected(graph, finding), 1)
        least = LEAST if chunk_bytes >= CHUNK_BYTES else LEAST_OF_FEW_BYTES
        chunk = min(max(1 << room.bit_length() - 1 if room else 0, least), MOST)
    return _Distributing(graph, chunk, finding).run()


class _Finding:
    """Finds what leaves a loop, of each loop once."""

    def __init__(self) -> None:
        self._found: dict[Node, Found | None] = {}

    def of(self, node: Node, outer_producers: Mapping[Value, Node], is_inside: bool) -> Found | None:
        """Return the parts that leave a loop; None if there are none. `is_inside`: the loop stands in another loop."""
        if not is_loop(node):
            return None
        if node not in self._found:
            self._found[node] = _find(node, outer_producers, is_inside)
        return self._found[node]


def _bytes_collected(graph: Graph, finding: _Finding, is_inside: bool = False) -> int:
    """Bytes that one iteration of the greediest loop collects and gets from producers; unknown sizes are guessed."""
    most = 0
    producers = definitions(graph)
    for node in graph.nodes:
        found = finding.of(node, producers, is_inside)
        inside = [_bytes_collected(region, finding, is_inside or is_loop(node)) for region in node.regions]
        most = max([most, *inside, sum(map(bytes_of, found.held)) if found is not None else 0])
    return most


class _Distributing(Rewriter):
    def __init__(
        self, graph: Graph, chunk: int, finding: _Finding, outer: _Distributing | None = None, owner: Node | None = None
    ) -> None:
        super().__init__(graph, outer, owner)
        self._chunk, self._finding = chunk, finding
        self._is_inside: bool = outer is not None and owner is not None and (outer._is_inside or is_loop(owner))
        self._producers = definitions(graph)

    def region(self, node: Node, region: Graph) -> Graph:
        return _Distributing(region, self._chunk, self._finding, self, node).run()

    def visit(self, node: Node) -> Sequence[Value] | None:
        found = self._finding.of(node, self._producers, self._is_inside)
        return None if found is None else ChunkedLoop(found, self._chunk).emit(self.builder)


def _find(node: Node, outer_producers: Mapping[Value, Node], is_inside: bool) -> Found | None:
    """Find the parts of a loop that can be distributed; None if the loop stays whole."""
    loop = Loop.of(node)
    if loop.attrs.chunk is not None or loop.attrs.chunks_of is not None:
        return None
    producers = _find_producers(loop, outer_producers)
    sums = find_sums(loop, producers)
    found = Found(loop, producers, sums)
    return found if found.any and (not is_inside or pays_inside(found.multiplications)) else None


def _find_producers(loop: Loop, outer_producers: Mapping[Value, Node]) -> dict[Node, Row]:
    shared = set(loop.shared)
    row_values = rows(loop)
    start = {c.in_body: c.init for c in loop.carries}
    found = {}
    for inner in loop.body.nodes:
        if pays_as_rows(inner) and inner.operands[1] in shared:
            row = row_values.get(inner.operands[0])
            if row is not None and (row.counts_down or _starts_inside(start[row.counter], outer_producers)):
                found[inner] = row
    return found


def _starts_inside(start: Value, producers: Mapping[Value, Node]) -> bool:
    """True if a counter starts from a constant that is no negative index."""
    node = producers.get(start)
    return node is not None and node.op.name == "constant" and int(attributes.Constant.of(node).value) >= 0
