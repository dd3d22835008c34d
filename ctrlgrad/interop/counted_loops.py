"""Loops whose number of iterations a graph says: a counter that starts, steps and ends at numbers that stand in it.

`CountedLoops` reads a graph from the outside in. Beside the numbers of iterations it finds which integers are known to
lie where, as the counter of a counted loop and what is computed with it: those below 2^31 are the same in 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Counting, Graph, Loop, Node, StackType, TensorType, Value, attributes, is_loop, step_of
from ctrlgrad.ir.control import Carry
from ctrlgrad.ir.op import Use


class Range(NamedTuple):
    """The least and the greatest that an integer can be."""

    low: int
    high: int

    @property
    def is_small(self) -> bool:
        """Whether 32 bits hold it."""
        return self.low >= -(1 << 31) and self.high < 1 << 31


def _of_corners(fn: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """Of a function that has its extremes at the ends of ranges."""

    def found(a: Range, b: Range) -> Range:
        corners = [fn(x, y) for x in a for y in b]
        return Range(min(corners), max(corners))

    return found


_ARITHMETIC: dict[str, Callable[[Range, Range], Range]] = {
    "add": _of_corners(lambda x, y: x + y),
    "subtract": _of_corners(lambda x, y: x - y),
    "multiply": _of_corners(lambda x, y: x * y),
    "minimum": _of_corners(min),
    "maximum": _of_corners(max),
}
_MOVES = frozenset(["cast", "reshape", "broadcast_to", "squeeze", "expand_dims", "barrier", "stop_gradient"])


class CountedLoops:
    """The loops of a graph that have a known number of iterations, and the integers that have a known range."""

    def __init__(self, graph: Graph) -> None:
        self.trips: dict[Node, int] = {}
        self.ranges: dict[Value, Range] = {}
        self._read(graph)

    def _read(self, graph: Graph) -> None:
        for node in graph.nodes:
            if is_loop(node):
                self._loop(node)
            elif node.regions:
                # Which operands the regions have is of no use here: what comes in is not known.
                for region in node.regions:
                    self._read(region)
            else:
                self._note(node)

    def _note(self, node: Node) -> None:
        name, known = node.op.name, [self._range(v) for v in node.operands]
        found: Range | None = None
        if name == "constant":
            value = attributes.Constant.of(node).value
            if dtype_kind(value.dtype) in "biu" and value.size:
                found = Range(int(value.min()), int(value.max()))
        elif name in _ARITHMETIC and known[0] is not None and known[1] is not None:
            found = _ARITHMETIC[name](known[0], known[1])
        elif name in _MOVES and dtype_kind(node.result.tensor.dtype) in "iu":
            found = known[0]
        if found is not None and _holds(node.result.tensor.dtype, found):
            self.ranges[node.result] = found

    def _range(self, value: Value) -> Range | None:
        if value in self.ranges or not isinstance(value.type, TensorType):
            return self.ranges.get(value)
        dtype = value.type.dtype
        # Those of few bits are never large.
        return Range(*_limits(dtype)) if dtype_kind(dtype) in "iu" and dtype.itemsize <= 4 else None

    def _loop(self, node: Node) -> None:
        loop = Loop.of(node)
        for capture in loop.captures:
            if capture.outer in self.ranges:
                self.ranges[capture.in_cond] = self.ranges[capture.in_body] = self.ranges[capture.outer]
        for region in (loop.cond, loop.body):
            for inner in region.nodes:
                if inner.op.name == "constant":
                    self._note(inner)
        counting, most = Counting.of(loop, self._number), loop.attrs.maximum_iterations
        trips = None if counting is None else counting.count(self._number)
        if trips is not None and (most is None or trips <= most):
            self.trips[node] = trips
            for carry in loop.carries:
                self._count(loop, carry, trips)
        self._read(loop.cond)
        self._read(loop.body)

    def _number(self, value: Value) -> np.ndarray | None:
        found = self.ranges.get(value)
        is_one = isinstance(value.type, TensorType) and value.type.shape == () and found is not None
        return np.array(found.low) if is_one and found is not None and found.low == found.high else None

    def _count(self, loop: Loop, carry: Carry, trips: int) -> None:
        """Note the range of a carry that counts."""
        start = self.ranges.get(carry.init)
        step = None if start is None else step_of(loop, carry, self._number)
        if start is None or step is None:
            return
        after = [x + k * step for x in start for k in (0, trips)]
        found = Range(min(after), max(after))
        if _holds(carry.in_body.tensor.dtype, found):
            self.ranges |= dict.fromkeys((carry.in_cond, carry.in_body, carry.result), found)


def _holds(dtype: np.dtype, found: Range) -> bool:
    if dtype_kind(dtype) == "b":
        return True
    if dtype_kind(dtype) not in "iu":
        return False
    low, high = _limits(dtype)
    return low <= found.low and found.high <= high


def _limits(dtype: np.dtype) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _producers(graph: Graph) -> dict[Value, Node]:
    return {value: node for node in graph.nodes for value in node.results}


def pushed_only(graph: Graph) -> bool:
    """Whether all stacks of a graph, and of the loops in it, begin empty, are pushed to, and become arrays.

    Then each is a row of arrays of known sizes: an iteration's rows are the loop's, once per iteration.
    """
    producers = _producers(graph)

    def begins(value: Value) -> Value:
        """The version of a stack that those of which this one is made by pushes begin with."""
        while value in producers and (pushed := producers[value].used_as(Use.PUSH)):
            (value,) = pushed
        return value

    inputs = [v for v in graph.inputs if isinstance(v.type, StackType)]
    for node in graph.nodes:
        name, stacks = node.op.name, [v.type for v in (*node.operands, *node.results) if isinstance(v.type, StackType)]
        if is_loop(node):
            loop = Loop.of(node)
            if any(isinstance(c.outer.type, StackType) for c in loop.captures):
                return False
        elif name == "stack_new":
            if node.operands or not stacks[0].element.is_static:
                return False
        elif name == "stack_to_tensor":
            # Of a stack that comes from outside, an iteration knows its own rows alone.
            if begins(node.operands[0]) in inputs:
                return False
        elif stacks and not node.used_as(Use.PUSH):
            return False
        regions = (Loop.of(node).body,) if is_loop(node) else node.regions
        if not all(pushed_only(region) for region in regions):
            return False
    return [begins(v) for v in graph.outputs if isinstance(v.type, StackType)] == inputs
