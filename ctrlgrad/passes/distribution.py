"""Loop distribution: products that the recurrence of a loop neither needs nor feeds leave it, a chunk at a time.

A loop with such products becomes a loop over chunks around a loop over the iterations of one chunk:

- producers: a product of row t of a captured array with a captured matrix is computed before the chunk, for all of its
  rows, as one product;
- sums (`sums`): a product that is only added to a carry is taken out of the loop; its factors are collected on stacks,
  and what all iterations of the chunk add is one product of the collected factors after it; reductions of collected
  values that are only added to a carry are taken out too;
- tails (`tails`): a product with a captured matrix that the recurrence does not need is taken out with all that follows
  from it; its left factor is collected, and the rest runs after the chunk over the rows of one product.

A loop inside a loop stays whole unless it pays for what distributing it costs the loop around it
(`heavy.WORTH_INSIDE`).

In: any graph. Out: no other loop has a heavy product of these kinds whose sizes are known; values change within
rounding, since sums are taken in another order. A loop that counts down is cut at multiples of the chunk's length, so
that it takes from a stack what one chunk of the loop that counts up has pushed. A loop that fails still fails, but may
tell of another iteration's error: what comes after the chunk was to fail earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctrlgrad.ir import Graph, Loop, Node, Rewriter, Value, attributes, definitions, is_loop
from ctrlgrad.passes.chunks import ChunkedLoop, Found
from ctrlgrad.passes.heavy import is_heavy, pays_inside
from ctrlgrad.passes.recurrence import Row, rows
from ctrlgrad.passes.sums import find_sums, find_totals
from ctrlgrad.passes.tails import Recurrence, find_tail
from ctrlgrad.stacks.choice import bytes_of

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
        """None where nothing does, and for other nodes. `is_inside`: of another loop."""
        if not is_loop(node):
            return None
        if node not in self._found:
            self._found[node] = _find(node, outer_producers, is_inside)
        return self._found[node]


def _bytes_collected(graph: Graph, finding: _Finding, is_inside: bool = False) -> int:
    """What one iteration of the greediest loop collects and is given by producers, unknown sizes guessed."""
    most = 0
    producers = definitions(graph)
    for node in graph.nodes:
        found = finding.of(node, producers, is_inside)
        inside = [_bytes_collected(region, finding, is_inside or is_loop(node)) for region in node.regions]
        most = max([most, *inside, sum(map(bytes_of, found.held)) if found is not None else 0])
    return most


class _Distributing(Rewriter):
    def __init__(
        self,
        graph: Graph,
        chunk: int,
        finding: _Finding,
        outer: _Distributing | None = None,
        owner: Node | None = None,
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
    """What leaves a loop; None where it stays whole."""
    loop = Loop.of(node)
    if loop.attrs.chunk is not None or loop.attrs.chunks_of is not None:
        return None
    producers = _find_producers(loop, outer_producers)
    sums = find_sums(loop, producers)
    placed = {*producers, *(p.node for p in sums.products)}
    settled = {p.position for p in sums.products}
    found = Found(loop, producers, sums, find_tail(Recurrence(loop, placed, settled)))
    in_tail = found.tail.carries if found.tail is not None else ()
    for position in in_tail:
        sums.terms.pop(position, None)
    find_totals(sums, loop.body, found.collected)
    return found if found.any and (not is_inside or pays_inside(found.multiplications)) else None


def _find_producers(loop: Loop, outer_producers: Mapping[Value, Node]) -> dict[Node, Row]:
    shared = set(loop.shared)
    row_values = rows(loop)
    start = {c.in_body: c.init for c in loop.carries}
    found = {}
    for inner in loop.body.nodes:
        if is_heavy(inner) and inner.operands[1] in shared:
            row = row_values.get(inner.operands[0])
            if row is not None and (row.counts_down or _starts_inside(start[row.counter], outer_producers)):
                found[inner] = row
    return found


def _starts_inside(start: Value, producers: Mapping[Value, Node]) -> bool:
    """Whether a counter starts from a constant that is no negative index."""
    node = producers.get(start)
    return node is not None and node.op.name == "constant" and int(attributes.Constant.of(node).value) >= 0
