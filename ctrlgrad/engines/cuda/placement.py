"""Place of each value of a region: scalars of control on the host, arrays on the device.

A launch costs about ten microseconds of host time, a scalar operation of NumPy's a tenth of one. So scalars that do not
depend on anything on the device (counters, indices, bounds, sizes, and whole loops of them) are computed on the host.
A kernel takes them as arguments, which costs nothing; an index that is on the host costs no read.

A value is on the host where it is a scalar (or a stack of scalars) and all that it is made of is on the host; sizes are
there always. A stack of scalars that is on the host stays there if an index on the device reads or updates it: the
host waits for the index. What a loop carries is on the host where it starts there and the body leaves it there: a
fixpoint, reached from below. Beside carries on the device no numbers are there that the card can compute as well (see
`numbers`). What branches yield is on the host where all of them yield it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ctrlgrad.engines.cuda.numbers import computed_carries
from ctrlgrad.ir import Branch, Call, Graph, Loop, Node, StackType, Use, Value, view


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
        case Call() as call:
            return outputs_of(call.function, given)
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
