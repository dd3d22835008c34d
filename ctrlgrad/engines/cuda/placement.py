"""Place of each value of a region: scalars of control on the host, arrays on the device.

A launch costs about ten microseconds of host time, a scalar operation of NumPy's a tenth of one. So scalars that do not
depend on anything on the device (counters, indices, bounds, sizes, and whole loops of them) are computed on the host. A
kernel takes them as arguments, which costs nothing; an index that is on the host costs no read.

A value is on the host where it is a scalar (or a stack of scalars) and all that it is made of is on the host; sizes are
there always. A stack of scalars that is on the host stays there if an index on the device reads or updates it: the host
waits for the index. What a loop carries is on the host where it starts there and the body leaves it there: a fixpoint,
reached from below. A number that goes by whole steps (a counter) is a word that the card adds up by itself. Any other
number that changes (a learning rate that decays, a time that goes by `dt`) would have each iteration wait for Python.
So in a loop with work on the card the card computes such a number, unless the host needs it: for sizes and places, or
for the trip count of an inner loop. What branches yield is on the host where all of them yield it there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

import numpy as np

from ctrlgrad.ir import Branch, Graph, Loop, Node, StackType, TensorType, Trait, Use, Value, view
from ctrlgrad.ir.control import Carry, step_of

INT64 = np.dtype(np.int64)


def is_integer(value: Value) -> bool:
    """Return true if a value is an integer as the host counts (a scalar int64)."""
    return isinstance(value.type, TensorType) and value.type.rank == 0 and value.type.dtype == INT64


def computed_carries(loop: Loop, positions: Iterable[int]) -> list[int]:
    """Positions, among the given ones, of carries that do not change by a constant integer step and that the host does
    not need."""

    def is_steady(c: Carry) -> bool:
        return c.next is c.in_body or (is_integer(c.in_body) and step_of(loop, c, lambda value: None) is not None)

    carries = {n: loop.carries[n] for n in positions}
    changing = [n for n, c in carries.items() if isinstance(c.in_body.type, TensorType) and not is_steady(c)]
    if not changing:
        return []
    needed = _needed_inside(loop, (), ())
    return [n for n in changing if needed.isdisjoint((carries[n].in_cond, carries[n].in_body))]


def _needed_inside(loop: Loop, results: Collection[int], asked: Sequence[Value]) -> set[Value]:
    """Values in a loop's regions that the host needs in order to have these results, and these values of the cond."""
    carried = set(results)
    while True:
        values = _needed(loop.cond, asked) | _needed(loop.body, [loop.carries[n].next for n in carried])
        found = {n for n, c in enumerate(loop.carries) if c.in_body in values or c.in_cond in values}
        if found <= carried:
            return values
        carried |= found


def _needed(graph: Graph, wanted: Sequence[Value]) -> set[Value]:
    """Values in a region that the host needs in order to have the wanted ones."""
    needed = set(wanted)
    for node in reversed(graph.nodes):
        results = [n for n, v in enumerate(node.results) if v in needed]
        needed.update(node.used_as(Use.SIZE, Use.INDEX))
        match view(node):
            case Loop() as loop:
                inside = _needed_inside(loop, results, loop.cond.outputs)
                needed.update(c.outer for c in loop.captures if c.in_body in inside or c.in_cond in inside)
                needed.update(c.init for c in loop.carries if c.in_body in inside or c.in_cond in inside)
                needed.update(loop.carries[n].init for n in results)
            case Branch() as branch:
                for side in branch.branches:
                    inside = _needed(side, [side.outputs[n] for n in results])
                    needed.update(v for v, own in zip(branch.operands, side.inputs, strict=True) if own in inside)
            case _:
                if results or Trait.EFFECT in node.op.traits:
                    needed.update(node.operands)
    return needed


class Place(Enum):
    HOST = "host"
    DEVICE = "device"


HOST, DEVICE = Place.HOST, Place.DEVICE
Places = tuple[Place, ...]


def is_scalar(value: Value) -> bool:
    """Return true if a value is a scalar or a stack of scalars."""
    t = value.type.element if isinstance(value.type, StackType) else value.type
    return t.rank == 0


def join(places: Sequence[Place]) -> Place:
    """The host if all are there."""
    return DEVICE if DEVICE in places else HOST


def place(graph: Graph, inputs: Sequence[Place]) -> dict[Value, Place]:
    """Place of each value of a graph, given the places of its inputs."""
    places = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        given = [places[v] for v in node.operands]
        places.update(zip(node.results, results_of(node, given), strict=True))
    return places


def outputs_of(graph: Graph, inputs: Sequence[Place]) -> Places:
    """Places of a graph's outputs."""
    places = place(graph, inputs)
    return tuple(places[v] for v in graph.outputs)


def results_of(node: Node, given: Sequence[Place]) -> Places:
    """Places of a node's results."""
    match view(node):
        case Loop() as loop:
            return carried(loop, given)
        case Branch() as branch:
            _, *operands = given
            return tuple(map(join, zip(*(outputs_of(side, operands) for side in branch.branches), strict=True)))
    if _is_known_on_host(node):
        return (HOST,)
    # The values that are read or written decide about the result's place; indices and sizes do not.
    values = [p for i, p in enumerate(given) if node.op.use(i) not in (Use.INDEX, Use.SIZE)] or given
    return tuple(HOST if is_scalar(v) and join(values) is HOST else DEVICE for v in node.results)


def fetched(node: Node, places: Mapping[Value, Place]) -> tuple[int, ...]:
    """The operands that a node with results on the host needs there, and that are on the device: it waits for them.

    These are indices and lengths: all else that a value on the host is made of is there.
    """
    if _is_known_on_host(node) or any(places[v] is DEVICE for v in node.results):
        return ()
    return tuple(i for i, v in enumerate(node.operands) if places[v] is DEVICE)


def _is_known_on_host(node: Node) -> bool:
    """Return true if the host knows the result without a read, as a property of a device value (a length, say)."""
    return node.op.has_use(Use.MEASURE) and is_scalar(node.result)


def carried(loop: Loop, given: Sequence[Place]) -> Places:
    """Places of a loop's carries, from the places of its operands."""
    shared, carry = map(tuple, loop.split(given))
    while True:
        after = outputs_of(loop.body, (*shared, *carry))
        joined = [join(pair) for pair in zip(carry, after, strict=True)]
        if DEVICE in joined:
            for position in computed_carries(loop, [n for n, p in enumerate(joined) if p is HOST]):
                joined[position] = DEVICE
        if tuple(joined) == carry:
            return carry
        carry = tuple(joined)
