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

from ctrlgrad.ir import Builder, Graph, Node, Value, copy_node, definitions
from ctrlgrad.passes.chunks import ChunkedLoop, Found
from ctrlgrad.passes.heavy import is_heavy, pays_inside
from ctrlgrad.passes.recurrence import Row, rows
from ctrlgrad.passes.sums import find_sums, find_totals
from ctrlgrad.passes.tails import Loop, find_tail
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
    if chunk is None:
        room = chunk_bytes // max(_bytes_collected(graph), 1)
        least = LEAST if chunk_bytes >= CHUNK_BYTES else LEAST_OF_FEW_BYTES
        chunk = min(max(1 << room.bit_length() - 1 if room else 0, least), MOST)
    return _distribute(graph, chunk)


def _bytes_collected(graph: Graph, is_inside: bool = False) -> int:
    """What one iteration of the greediest loop collects and is given by producers, unknown sizes guessed."""
    most = 0
    made = definitions(graph)
    for node in graph.nodes:
        found = _find(node, made, is_inside)
        inside = [_bytes_collected(region, is_inside or node.op.name == "while") for region in node.regions]
        most = max([most, *inside, sum(map(bytes_of, found.held)) if found is not None else 0])
    return most


def _distribute(graph: Graph, chunk: int, is_inside: bool = False) -> Graph:
    builder = Builder(name=graph.name)
    went: dict[Value, Value] = {v: builder.input(v.type, v.hint) for v in graph.inputs}
    made = definitions(graph)
    for node in graph.nodes:
        found = _find(node, made, is_inside)
        regions = tuple(_distribute(region, chunk, is_inside or node.op.name == "while") for region in node.regions)
        attrs = {k: v for k, v in node.attrs.items() if k != "paired"}
        visited = Node(node.op, node.operands, node.results, attrs, regions, node.source)
        # Again: the nodes of its regions are others now.
        found = _find(visited, made, is_inside) if found is not None else None
        if found is None:
            copy_node(builder, visited, went)
            continue
        builder.source = node.source
        results = ChunkedLoop(visited, found, chunk).emit(builder, [went[v] for v in node.operands])
        went.update(zip(node.results, results, strict=True))
    return builder.finish(went[v] for v in graph.outputs)


def _find(node: Node, made_outside: dict[Value, Node], is_inside: bool) -> Found | None:
    """What leaves a loop; None where it stays whole, and for other nodes. `is_inside`: of another loop."""
    if node.op.name != "while" or "chunk" in node.attrs or "chunks_of" in node.attrs:
        return None
    cond, body = node.regions
    captures = node.attrs["captures"]
    producers = _find_producers(node, made_outside)
    sums = find_sums(cond, body, captures, producers)
    placed = {*producers, *(p.node for p in sums.products)}
    settled = {p.position for p in sums.products}
    found = Found(node, producers, sums, find_tail(Loop(cond, body, captures, placed, settled)))
    in_tail = found.tail.carries if found.tail is not None else ()
    for position in in_tail:
        sums.terms.pop(position, None)
    find_totals(sums, body, found.collected)
    return found if found.any and (not is_inside or pays_inside(found.multiplications)) else None


def _find_producers(node: Node, made_outside: dict[Value, Node]) -> dict[Node, Row]:
    body, captures = node.regions[1], node.attrs["captures"]
    shared = set(body.inputs[:captures])
    row_values = rows(body, captures, node.attrs.get("counts_down", False))
    start = dict(zip(body.inputs, node.operands, strict=True))
    found = {}
    for inner in body.nodes:
        if is_heavy(inner) and inner.operands[1] in shared:
            row = row_values.get(inner.operands[0])
            if row is not None and (row.counts_down or _starts_inside(start[row.counter], made_outside)):
                found[inner] = row
    return found


def _starts_inside(start: Value, made: dict[Value, Node]) -> bool:
    """Whether a counter starts from a constant that is no negative index."""
    node = made.get(start)
    return node is not None and node.op.name == "constant" and int(node.attrs["value"]) >= 0


__all__ = ["CHUNK_BYTES", "distribute"]
