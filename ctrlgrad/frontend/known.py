"""The numbers behind traced tensors, where a transform is applied to values.

`grad(f)(x)`, called outside of any compiled function, traces f while x is at hand. A Python `if` or `while` on what is
differentiated then needs no construct: the number that it asks for is computed from the arguments' numbers, and the
trace goes the way that they go, as JAX's transforms do. Such a trace is good for these arguments alone, and nothing
compiles it for others.

`Builder.known` holds what the inputs of a trace stand for, and what was computed of them. The inputs of a loop's body,
of a compiled function and of the rows of `vmap` stand for no one number: what depends on them has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.frontend.apply import evaluate
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, Graph, Node, Value, attributes


class Known:
    """The numbers of one builder's values: those its inputs stand for, and what was computed of them."""

    def __init__(self, builder: Builder, inputs: Sequence[Any]) -> None:
        self.builder = builder
        # An array, a tensor of a trace around this one, or None for what has no one number.
        self._numbers: dict[Value, Any] = dict(zip(builder.inputs, map(_as_array, builder.inputs, inputs), strict=True))
        self._producers: dict[Value, Node] = {}
        self._indexed = 0

    def number(self, builder: Builder, value: Value) -> Any:
        """The array that a value of `builder`, this one or one inside it, has in this call; None if it has no one."""
        # What is waited for stands in a list: a Python loop makes longer chains than Python's calls may be deep.
        waiting = [(builder, value)]
        while waiting:
            owner = _owner(*waiting[-1])
            missing = None if owner is None else owner._missing(waiting[-1][1])
            if missing is None:
                return None
            if missing:
                waiting += missing
            else:
                waiting.pop()
        return _found(builder, value)

    def _has(self, value: Value) -> bool:
        nodes = self.builder.nodes
        for node in nodes[self._indexed :]:
            self._producers.update(dict.fromkeys(node.results, node))
        self._indexed = len(nodes)
        return value in self._numbers or value in self._producers

    def _missing(self, value: Value) -> list[tuple[Builder, Value]] | None:
        """What has to be computed before the value; nothing once it is there, None if it has no number."""
        if value not in self._numbers:
            node = self._producers[value]
            missing = [(self.builder, v) for v in node.operands if _found(self.builder, v) is None]
            if not missing:
                self._compute(node)
            return missing
        given = self._numbers[value]
        if not isinstance(given, Tensor):
            return None if given is None else []
        behind = _found(given.builder, given.value)
        if behind is None:
            return [(given.builder, given.value)]
        self._numbers[value] = behind
        return []

    def _compute(self, node: Node) -> None:
        if isinstance(node.attrs, attributes.Constant):
            self._numbers[node.result] = node.attrs.value
            return
        inputs = tuple(dict.fromkeys(node.operands))
        graph = Graph(inputs, (node,), node.results, "number")
        found = evaluate(graph, [_found(self.builder, v) for v in inputs])
        self._numbers.update(zip(node.results, found, strict=True))


def _as_array(value: Value, given: Any) -> Any:
    """What an input stands for, a Python number as the array that the reference kernels take."""
    return np.asarray(given, value.tensor.dtype) if isinstance(given, bool | int | float | complex) else given


def _owner(builder: Builder | None, value: Value) -> Known | None:
    """The numbers of the builder, of this one and those around it, that the value belongs to."""
    while builder is not None:
        if isinstance(builder.known, Known) and builder.known._has(value):
            return builder.known
        builder = builder.parent
    return None


def _found(builder: Builder, value: Value) -> Any:
    """The number, if it is there already."""
    owner = _owner(builder, value)
    found = None if owner is None else owner._numbers.get(value)
    return None if isinstance(found, Tensor) else found
