"""Every shape of a loop, found before it runs: from its operands' shapes, and from integers that it only captures.

A compiled loop has all its buffers from the start, so each value's shape must be the same in every iteration and must
not depend on what the loop computes. Where it does, `NotNative` says so and the loop runs on the reference engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ctrlgrad.engines.native.layout import Dims, NotNative, Sizes
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Graph, Node, StackType, TensorType, Value, walk

# Ops whose shape is a template: the number of operands in front of the sizes that are not in it.
TEMPLATES = {"iota": 0, "reshape": 1, "broadcast_to": 1, "sum_to": 1}
# Stack ops that take an element's unknown sizes: the number of operands in front of them.
_SLOT_SIZES = {"stack_pop": 1, "stack_read": 2}
_INTEGER_OPS = {"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__, "maximum": max, "minimum": min}

# The dtypes that generated code knows.
DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, widths in (
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16, 32, 64)),
        ("float", (32, 64)),
        ("complex", (64, 128)),
    )
    for bits in widths
) | {"bool"}

Shape = tuple[int, ...]


@dataclass
class Shapes:
    """The shape of every tensor of a loop and of every stack's elements, in numbers and as sizes."""

    found: dict[Value, Shape] = field(default_factory=dict)
    elements: dict[Value, Shape | None] = field(default_factory=dict)
    known: dict[Value, int] = field(default_factory=dict)
    dims: Dims = field(default_factory=Dims)

    def sizes(self, value: Value) -> Sizes:
        """The shape of a tensor as sizes."""
        declared = value.tensor.shape
        return tuple(self.dims.size(d, n) for d, n in zip(declared, self.found[value], strict=True))

    def element(self, value: Value) -> Sizes:
        """The shape of a stack's elements as sizes."""
        assert isinstance(value.type, StackType)
        found = self.elements[value]
        if found is None:
            raise NotNative("the size of a stack's elements is not known before the loop runs")
        return tuple(self.dims.size(d, n) for d, n in zip(value.type.element.shape, found, strict=True))


def size_captures(node: Node) -> tuple[int, ...]:
    """Which captured integers of a loop decide sizes inside it: their values are part of what is compiled for."""
    captures = node.attrs["captures"]
    decides: set[int] = set()
    for region in node.regions:
        wanted = size_values(region)
        decides.update(i for i, v in enumerate(region.inputs[:captures]) if v in wanted)
    return tuple(sorted(decides))


def size_values(graph: Graph) -> set[Value]:
    """The values of a graph that sizes in it depend on."""
    wanted: set[Value] = set()
    for node in reversed(graph.nodes):
        name = node.op.name
        if name in TEMPLATES:
            wanted.update(node.operands[TEMPLATES[name] :])
        elif name in _SLOT_SIZES:
            wanted.update(node.operands[_SLOT_SIZES[name] :])
        elif name in _INTEGER_OPS and node.result in wanted:
            wanted.update(node.operands)
        skipped = 1 if name == "cond" else 0
        for region in node.regions:
            inner = size_values(region)
            wanted.update(o for o, v in zip(node.operands[skipped:], region.inputs, strict=True) if v in inner)
    return wanted


class Inference:
    """Finds the shapes of one loop."""

    def __init__(self) -> None:
        self.shapes = Shapes()

    def tensor(self, value: Value, shape: Shape) -> None:
        if value.tensor.dtype.name not in DTYPES:
            raise NotNative(f"{value.tensor.dtype.name} has no native form")
        known = self.shapes.found.setdefault(value, shape)
        if known != shape:
            raise NotNative(f"a value's shape changes: {known} and {shape}")

    def stack(self, value: Value, element: Shape | None) -> None:
        """What is known of a stack's elements; declared sizes are known anyhow."""
        assert isinstance(value.type, StackType)
        declared = value.type.element.shape
        if element is None and None not in declared:
            element = tuple(d for d in declared if d is not None)
        known = self.shapes.elements.get(value)
        if known is not None and element is not None and known != element:
            raise NotNative(f"the elements of a stack differ in shape: {known} and {element}")
        self.shapes.elements[value] = known if element is None else element

    def copy(self, source: Value, target: Value) -> None:
        """The same value under another name."""
        if isinstance(source.type, StackType):
            self.stack(target, self.shapes.elements.get(source))
        else:
            self.tensor(target, self.shapes.found[source])
            if source in self.shapes.known:
                self.shapes.known[target] = self.shapes.known[source]

    def region(self, graph: Graph) -> None:
        """All values of a graph whose inputs are known."""
        for node in graph.nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        name = node.op.name
        if name == "while":
            self._while(node)
        elif name == "cond":
            self._cond(node)
        elif name.startswith("stack_"):
            self._stack(node)
        else:
            self._plain(node)

    def _plain(self, node: Node) -> None:
        found = self.shapes.found
        types = [TensorType(v.tensor.dtype, found[v]) for v in node.operands]
        try:
            results = node.op.infer(types, node.attrs, node.regions)
        except CtrlgradError as error:
            raise NotNative(f"{node.op.name}: {error.args[0]}") from error
        for value, type in zip(node.results, results, strict=True):
            assert isinstance(type, TensorType)
            self.tensor(value, self._filled(node, type.shape))
        self._number(node)

    def _filled(self, node: Node, shape: Sequence[int | None]) -> Shape:
        if None not in shape:
            return tuple(d for d in shape if d is not None)
        start = TEMPLATES.get(node.op.name)
        if start is None:
            raise NotNative(f"the size of the result of {node.op.name} depends on data")
        sizes = iter(node.operands[start:])
        filled = []
        for d in shape:
            n = d if d is not None else self.shapes.known.get(next(sizes))
            if n is None:
                raise NotNative(f"a size that {node.op.name} is given depends on data")
            filled.append(n)
        return tuple(filled)

    def _number(self, node: Node) -> None:
        """Integers that are known: constants, sizes, and sums of such."""
        known, name = self.shapes.known, node.op.name
        if name == "constant":
            value = node.attrs["value"]
            if value.ndim == 0 and value.dtype.kind in "iu":
                known[node.result] = int(value)
        elif name == "dim":
            known[node.result] = self.shapes.found[node.operands[0]][node.attrs["axis"]]
        elif name in _INTEGER_OPS and all(v in known for v in node.operands):
            known[node.result] = _INTEGER_OPS[name](*(known[v] for v in node.operands))  # type: ignore[operator]

    def _stack(self, node: Node) -> None:
        name, s = node.op.name, node.operands[0] if node.operands else None
        if name == "stack_push" or name in ("stack_write", "stack_add"):
            assert s is not None
            self.stack(s, self.shapes.found[node.operands[-1]])
            self.copy(s, node.result)
        elif name in ("stack_pop", "stack_read"):
            assert s is not None
            self.stack(s, self._given(node, s))
            self.tensor(node.results[-1], self._element(s))
            if name == "stack_pop":
                self.copy(s, node.results[0])
        elif name in ("stack_clear", "stack_resize"):
            assert s is not None
            self.copy(s, node.result)
        elif name == "stack_new":
            self.stack(node.result, None)
        elif name == "stack_from_tensor":
            self.stack(node.result, self.shapes.found[node.operands[0]][1:])
        elif name == "stack_to_tensor":
            assert s is not None
            self.tensor(node.result, (self._length(node), *self._element(s)))
        elif name == "stack_length":
            self.tensor(node.result, ())
        else:
            raise NotNative(f"{name} inside a loop")

    def _element(self, s: Value) -> Shape:
        element = self.shapes.elements[s]
        if element is None:
            raise NotNative("the size of a stack's elements is not known before the loop runs")
        return element

    def _length(self, node: Node) -> int:
        """How many rows a stack has that becomes a tensor."""
        size: int | None = node.attrs["size"]
        if size is None:
            raise NotNative("the size of the result of stack_to_tensor depends on data")
        return size

    def _given(self, node: Node, s: Value) -> Shape | None:
        """An element's shape from the sizes that the op is given."""
        assert isinstance(s.type, StackType)
        sizes = node.operands[_SLOT_SIZES[node.op.name] :]
        if not sizes or any(v not in self.shapes.known for v in sizes):
            return None
        rest = iter(sizes)
        return tuple(d if d is not None else self.shapes.known[next(rest)] for d in s.type.element.shape)

    def _while(self, node: Node) -> None:
        for region in node.regions:
            for outer, inner in zip(node.operands, region.inputs, strict=True):
                if inner in self.shapes.known:
                    del self.shapes.known[inner]
                self.copy(outer, inner)
            for inner in region.inputs[node.attrs["captures"] :]:
                self.shapes.known.pop(inner, None)
            self.region(region)
        self.carried(node)
        for inner, result in zip(node.regions[1].inputs[node.attrs["captures"] :], node.results, strict=True):
            self.copy(inner, result)

    def carried(self, node: Node) -> None:
        """What a body yields is of the shape of what it took."""
        cond, body = node.regions
        for start, end in zip(body.inputs[node.attrs["captures"] :], body.outputs, strict=True):
            if isinstance(start.type, StackType):
                self.stack(start, self.shapes.elements.get(end))
                self.stack(end, self.shapes.elements.get(start))
            elif self.shapes.found[start] != self.shapes.found[end]:
                raise NotNative("a carry changes its shape")
        for a, b in zip(body.inputs, cond.inputs, strict=True):
            if isinstance(a.type, StackType):
                self.stack(b, self.shapes.elements.get(a))

    def _cond(self, node: Node) -> None:
        for region in node.regions:
            for outer, inner in zip(node.operands[1:], region.inputs, strict=True):
                self.copy(outer, inner)
            self.region(region)
        for position, result in enumerate(node.results):
            for region in node.regions:
                output = region.outputs[position]
                if isinstance(output.type, StackType):
                    self.stack(result, self.shapes.elements.get(output))
                else:
                    self.tensor(result, self.shapes.found[output])


def infer(node: Node, operands: Sequence[Shape | None], known: dict[int, int]) -> Shapes:
    """The shapes of a loop, given those of its operands (of a stack: its elements', None where it has none yet).

    `known` has the values of the operands that `size_captures` names. Raises `NotNative`.
    """
    inference = Inference()
    captures = node.attrs["captures"]
    # Twice: what a stack's elements are may be told by a push that comes after a pop.
    for last in (False, True):
        for region in node.regions:
            for position, (value, shape) in enumerate(zip(region.inputs, operands, strict=True)):
                if isinstance(value.type, StackType):
                    inference.stack(value, shape)
                else:
                    assert shape is not None
                    inference.tensor(value, shape)
                    if position < captures and position in known:
                        inference.shapes.known[value] = known[position]
        try:
            for region in node.regions:
                inference.region(region)
            inference.carried(node)
        except NotNative:
            if last or not _may_learn(node):
                raise
    return inference.shapes


def infer_graph(graph: Graph, inputs: Sequence[Shape], known: Mapping[int, int]) -> Shapes:
    """The shapes of a graph without stacks, given those of its inputs; `known` has the inputs that decide sizes.

    Raises `NotNative`.
    """
    inference = Inference()
    for value, shape in zip(graph.inputs, inputs, strict=True):
        inference.tensor(value, shape)
    inference.shapes.known.update((graph.inputs[position], number) for position, number in known.items())
    inference.region(graph)
    return inference.shapes


def _may_learn(node: Node) -> bool:
    return any(inner.op.name == "stack_push" for region in node.regions for inner in walk(region))


def shape_of(value: np.ndarray | np.generic) -> Shape:
    return tuple(value.shape)
