"""Choice of the forward values that a region saves: the cheapest set from which all wanted values can be recomputed.

Every value is a node with the capacity of its bytes. A cheap op connects its operands to its result with unlimited
capacity; values that cannot be recomputed are connected to the source, wanted values to the sink. A minimum cut is then
a set of values of least bytes per iteration such that every wanted value is saved, or follows from saved values by
cheap ops alone. Of several minimum cuts the one nearest the sink is taken: it recomputes least.

Source: the cut between forward and backward is that of Herrmann et al. and of Zheng et al. for compilers of training
graphs; maximum flow by Dinitz, "Algorithm for solution of a problem of maximum flow", 1970.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ctrlgrad.ir import TensorType, Value

# Size that an unknown dimension counts as when bytes are compared.
GUESS = 64
UNLIMITED = 1 << 62


def bytes_of(value: Value) -> int:
    """The bytes of a tensor, unknown dimensions guessed."""
    assert isinstance(value.type, TensorType)
    total = value.type.dtype.itemsize
    for d in value.type.shape:
        total *= GUESS if d is None else d
    # A value of no bytes still costs a push.
    return max(total, 1)


def choose(wanted: Iterable[Value], operands_of: Callable[[Value], Sequence[Value] | None]) -> list[Value]:
    """The values to save, in the order in which they were met.

    Args:
        wanted: what the backward side needs.
        operands_of: the operands from which a value can be computed again, without those that are free;
            None for a value that can only be saved.
    """
    network = _Network()
    inside: dict[Value, int] = {}
    queue = deque(wanted)
    for value in queue:
        inside.setdefault(value, network.add(bytes_of(value)))
    sinks = list(inside)
    seen = set(inside)
    while queue:
        value = queue.popleft()
        operands = operands_of(value)
        if operands is None:
            network.connect(network.source, inside[value])
            continue
        for operand in operands:
            if operand not in seen:
                seen.add(operand)
                inside[operand] = network.add(bytes_of(operand))
                queue.append(operand)
            network.connect(inside[operand] + 1, inside[value])
    for value in sinks:
        network.connect(inside[value] + 1, network.sink)
    near_sink = network.cut()
    return [v for v, n in inside.items() if n not in near_sink and n + 1 in near_sink]


class _Network:
    """A flow network; node n and n + 1 are the two sides of a value, joined by its capacity."""

    source, sink = 0, 1

    def __init__(self) -> None:
        self.edges: list[list[int]] = [[], []]  # per node: numbers of edges that leave it
        self.to: list[int] = []
        self.left: list[int] = []  # capacity left; edge e ^ 1 is the reverse of edge e

    def add(self, capacity: int) -> int:
        node = len(self.edges)
        self.edges += [[], []]
        self.connect(node, node + 1, capacity)
        return node

    def connect(self, a: int, b: int, capacity: int = UNLIMITED) -> None:
        for start, end, room in ((a, b, capacity), (b, a, 0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.left.append(room)

    def cut(self) -> set[int]:
        """The nodes on the sink's side of the minimum cut nearest the sink."""
        while True:
            level = self._levels()
            if level[self.sink] < 0:
                break
            following = [0] * len(self.edges)
            while self._augment(level, following):
                pass
        side = {self.sink}
        queue = deque(side)
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                # A neighbour that can still send flow to `node` is on the sink's side.
                if self.left[edge ^ 1] > 0 and self.to[edge] not in side:
                    side.add(self.to[edge])
                    queue.append(self.to[edge])
        return side

    def _levels(self) -> list[int]:
        level = [-1] * len(self.edges)
        level[self.source] = 0
        queue = deque([self.source])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                if self.left[edge] > 0 and level[self.to[edge]] < 0:
                    level[self.to[edge]] = level[node] + 1
                    queue.append(self.to[edge])
        return level

    def _augment(self, level: list[int], following: list[int]) -> bool:
        """Send flow along one path of the level graph; False when there is none."""
        path: list[int] = []
        node = self.source
        while node != self.sink:
            edge = self._next_edge(node, level, following)
            if edge is not None:
                path.append(edge)
                node = self.to[edge]
            elif path:
                edge = path.pop()
                node = self.to[edge ^ 1]
                following[node] += 1
            else:
                return False
        amount = min(self.left[edge] for edge in path)
        for edge in path:
            self.left[edge] -= amount
            self.left[edge ^ 1] += amount
        return True

    def _next_edge(self, node: int, level: list[int], following: list[int]) -> int | None:
        edges = self.edges[node]
        while following[node] < len(edges):
            edge = edges[following[node]]
            if self.left[edge] > 0 and level[self.to[edge]] == level[node] + 1:
                return edge
            following[node] += 1
        return None
