"""Values outside of a loop's recurrence, which could be computed for many iterations before or after the loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ctrlgrad.ir import INDEX, Loop, Node, StackType, Trait, Value, attributes, definitions
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.records import record


@record
class Row:
    """A value that is a row of a captured array.

    `counter` is the carry that tells which: the row of its own value, which goes up by 1, or, where the loop
    `counts_down` from the number of its iterations, the row before.
    """

    array: Value
    counter: Value
    counts_down: bool = False


def counters(loop: Loop) -> set[Value]:
    """The carries that each iteration adds 1 to."""
    producers = definitions(loop.body)
    found = set()
    for carry, out in zip(loop.carried, loop.body.outputs, strict=True):
        step = producers.get(out)
        if step is None or step.op.name != "add" or carry.type != INDEX or carry not in step.operands:
            continue
        (other,) = [v for v in step.operands if v is not carry] or [carry]
        constant = producers.get(other)
        if constant is not None and constant.op.name == "constant" and attributes.Constant.of(constant).value == 1:
            found.add(carry)
    return found


def rows(loop: Loop) -> dict[Value, Row]:
    """The values that are rows of captured arrays, or such rows in another shape."""
    counting = {v: (v, False) for v in counters(loop)}
    if loop.counts_down:
        counting[loop.carries[0].next] = (loop.carries[0].in_body, True)
    shared = set(loop.shared)
    found: dict[Value, Row] = {}
    for node in loop.body.nodes:
        name = node.op.name
        if name == "getitem" and node.operands[0] in shared and len(node.operands) == 2:
            first, *rest = attributes.Index.of(node).key
            whole = all(item == slice(None) for item in rest)
            if first is DYNAMIC and whole and node.operands[1] in counting:
                found[node.result] = Row(node.operands[0], *counting[node.operands[1]])
        elif name in ("expand_dims", "squeeze") and node.operands[0] in found:
            found[node.result] = found[node.operands[0]]
    return found


def outside_recurrence(loop: Loop) -> set[Value]:
    """The values that depend on captures, constants and rows of captures alone."""
    outside = {v for v in loop.shared if not isinstance(v.type, StackType)}
    row_values = rows(loop)
    for node in loop.body.nodes:
        if node.regions or Trait.EFFECT in node.op.traits:
            continue
        if (node.result in row_values if len(node.results) == 1 else False) or (
            all(v in outside for v in node.operands) and not any(isinstance(v.type, StackType) for v in node.results)
        ):
            outside.update(node.results)
    return outside


def inductions(loop: Loop) -> dict[int, Node]:
    """Carries that are counted up or down by a constant or a capture: their positions, and the nodes that count."""
    producers, shared = definitions(loop.body), set(loop.shared)
    found = {}
    for position, (carry, out) in enumerate(zip(loop.carried, loop.body.outputs, strict=True)):
        node = producers.get(out)
        if node is None or node.op.name not in ("add", "subtract") or carry.type != INDEX:
            continue
        first, second = node.operands
        step = first if second is carry and node.op.name == "add" else second if first is carry else carry
        if step is not carry and (step in shared or (step in producers and producers[step].op.name == "constant")):
            found[position] = node
    return found


def readers(loop: Loop) -> dict[Value, list[Node | int]]:
    """For each value of a loop's body, the nodes that read it, and the positions of carries whose next value it is."""
    found: dict[Value, list[Node | int]] = {}
    for node in loop.body.nodes:
        for v in node.operands:
            found.setdefault(v, []).append(node)
    for position, carry in enumerate(loop.carries):
        found.setdefault(carry.next, []).append(position)
    return found


def downstream(loop: Loop, value: Value, readers: Mapping[Value, list[Node | int]]) -> tuple[set[Node], set[int]]:
    """The nodes and the positions of carries that a value of one iteration reaches, in that one or in a later one."""
    waiting = [value]
    nodes: set[Node] = set()
    positions: set[int] = set()
    while waiting:
        for reader in readers.get(waiting.pop(), ()):
            if isinstance(reader, int):
                if reader not in positions:
                    positions.add(reader)
                    waiting.append(loop.carries[reader].in_body)
            elif reader not in nodes:
                nodes.add(reader)
                waiting += reader.results
    return nodes, positions


def upstream(loop: Loop, values: Iterable[Value]) -> set[Value]:
    """The values that these of one iteration depend on, in that one or in an earlier one; themselves included."""
    needed = set(values)
    while True:
        for node in reversed(loop.body.nodes):
            if not needed.isdisjoint(node.results):
                needed.update(node.operands)
        more = {c.next for c in loop.carries if c.in_body in needed} - needed
        if not more:
            return needed
        needed |= more
