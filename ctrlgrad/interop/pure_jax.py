"""A graph as operations of JAX, which JAX compiles, batches and differentiates itself.

That is there for graphs whose every size is known before they run: no loop, no stack. A rule that the user has given
for a derivative stays his, so a graph that holds one goes another way (`engine_primitive.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from ctrlgrad.ir import Graph, Node, TensorType, is_branch, is_call, is_loop, walk
from ctrlgrad.verify.jax_ops import TENSOR_OPS, Entry
from ctrlgrad.verify.jax_translation import Arrays, Translator

# In the judge's table they stand for nothing.
_EFFECTS = frozenset(["callback", "watch"])


def obstacle(graph: Graph) -> str | None:
    """What of a graph has no form in JAX's operations, with the user's line; None where all of it has one."""
    return next(_obstacles(graph), None)


def _obstacles(graph: Graph) -> Iterator[str]:
    for node in walk(graph):
        where = f" at {node.source}" if node.source else ""
        name = node.op.name
        if is_loop(node):
            yield f"a loop{where}"
        elif is_call(node):
            yield f"a function with a derivative rule of its own{where}"
        elif name in _EFFECTS or (name not in TENSOR_OPS and not is_branch(node)):
            yield f"the op {name}{where}"
        for value in node.results:
            if not isinstance(value.type, TensorType) or not value.type.is_static:
                yield f"a size that is known when it runs{where}"
            elif jax.dtypes.canonicalize_dtype(value.type.dtype) != value.type.dtype:
                yield f"values of {value.type.dtype.name}, while JAX's 64-bit types are off{where}"


class _Pure(Translator):
    stacks: ClassVar[dict[str, Entry]] = {}

    def sizes(self, node: Node, operands: Arrays) -> None:
        return None

    def loop(self, node: Node, operands: Arrays) -> Arrays:
        raise AssertionError("a loop is an obstacle")

    def branch(self, node: Node, operands: Arrays) -> Arrays:
        selector, *rest = operands
        branches = [lambda *given, region=region: self.run(region, given) for region in node.regions]
        found: Arrays = lax.switch(selector.astype(jnp.int32), branches, *rest)
        return found


def run_in_jax(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    """The results of a graph without obstacles, as JAX's arrays or tracers."""
    given = [lax.convert_element_type(x, v.tensor.dtype) for x, v in zip(arguments, graph.inputs, strict=True)]
    found = _Pure().run(graph, tuple(given))
    return [x.astype(v.tensor.dtype) for x, v in zip(found, graph.outputs, strict=True)]


__all__ = ["obstacle", "run_in_jax"]
