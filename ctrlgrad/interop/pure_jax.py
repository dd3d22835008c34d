"""A graph as operations of JAX, which JAX compiles, batches and differentiates itself.

That is there for graphs whose every size is known before they run: every loop runs a known number of times, and becomes
a `lax.scan`. Its stacks are pushed to and become arrays, as those of `scan` are: the scan collects what an iteration
pushes. A rule that the user has given for a derivative stays his, so a graph that holds one goes another way
(`engine_primitive.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from ctrlgrad.engines import asks_for_memory
from ctrlgrad.interop.counted_loops import CountedLoops, pushed_only
from ctrlgrad.ir import Graph, Loop, Node, StackType, TensorType, is_branch, is_call, is_loop, walk
from ctrlgrad.verify.jax_ops import TENSOR_OPS, Entry, jax_dtype
from ctrlgrad.verify.jax_translation import Arrays, Translator

# In the judge's table they stand for nothing.
_EFFECTS = frozenset(["callback", "watch"])

# JAX differentiates eigenvalues once, and eigenvectors not at all.
_WITHOUT_DERIVATIVES = frozenset(["general_eigenvalues", "general_eigenvectors"])


def obstacle(graph: Graph) -> str | None:
    """What of a graph has no form in JAX's operations, with the user's line; None where all of it has one."""
    return next(_obstacles(graph), None)


def _obstacles(graph: Graph) -> Iterator[str]:
    loops = CountedLoops(graph)
    for node in walk(graph):
        where = f" at {node.source}" if node.source else ""
        name = node.op.name
        if is_loop(node):
            if node not in loops.trips:
                yield f"a loop whose iterations the data count{where}"
        elif is_call(node):
            yield f"a function with a derivative rule of its own{where}"
        elif name in _WITHOUT_DERIVATIVES | _EFFECTS or not (name in TENSOR_OPS or name in _STACKS or is_branch(node)):
            yield f"the op {name}{where}"
        for value in node.results:
            t = value.type.element if isinstance(value.type, StackType) else value.type
            known = loops.ranges.get(value)
            if not t.is_static:
                yield f"a size that is known when it runs{where}"
            elif jax_dtype(t.dtype) != t.dtype and (known is None or not known.is_small):
                yield f"values of {t.dtype.name}, while JAX's 64-bit types are off{where}"
    if not pushed_only(graph):
        yield "stacks that are not only pushed to"
    if asks_for_memory(graph):
        yield "a wish for what is done with a loop's saved values"


def _collected(node: Node, sizes: Any, stack: Arrays) -> Any:
    return _rows(stack, TensorType(node.result.tensor.dtype, node.result.tensor.shape[1:]))


# A stack is a tuple of arrays, each of some of its rows.
_STACKS: dict[str, Entry] = {
    "stack_new": lambda node, sizes: (),
    "stack_push": lambda node, sizes, stack, row: (*stack, row[None]),
    "stack_to_tensor": _collected,
}


class _Pure(Translator):
    stacks: ClassVar[dict[str, Entry]] = _STACKS

    def __init__(self, graph: Graph) -> None:
        self.trips = CountedLoops(graph).trips

    def sizes(self, node: Node, operands: Arrays) -> None:
        return None

    def loop(self, node: Node, operands: Arrays) -> Arrays:
        loop, trips = Loop.of(node), self.trips[node]
        captures, start = map(tuple, loop.split(operands))
        types = [carry.init.type for carry in loop.carries]

        def step(carry: Arrays, _: None) -> tuple[Arrays, Arrays]:
            given = iter(carry)
            after = self.run(loop.body, captures + tuple(next(given) if _is_array(t) else () for t in types))
            both = list(zip(after, types, strict=True))
            rows = [_rows(x, t.element) for x, t in both if isinstance(t, StackType)]
            return tuple(x.astype(jax_dtype(t.dtype)) for x, t in both if isinstance(t, TensorType)), tuple(rows)

        arrays = tuple(x for x, t in zip(start, types, strict=True) if _is_array(t))
        last, pushed = map(iter, lax.scan(step, arrays, None, length=trips))
        return tuple(
            next(last) if _is_array(t) else (*x, _flat(next(pushed))) for x, t in zip(start, types, strict=True)
        )

    def branch(self, node: Node, operands: Arrays) -> Arrays:
        selector, *rest = operands
        branches = [lambda *given, region=region: self.run(region, given) for region in node.regions]
        found: Arrays = lax.switch(selector.astype(jnp.int32), branches, *rest)
        return found


def _is_array(t: Any) -> bool:
    return isinstance(t, TensorType)


def _rows(stack: Arrays, element: TensorType) -> Any:
    return jnp.concatenate([jnp.zeros((0, *element.shape), element.dtype), *stack])


def _flat(rows: Any) -> Any:
    """The rows of all iterations, which each has had some of."""
    return rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])


def run_in_jax(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    """The results of a graph without obstacles, as JAX's arrays or tracers."""
    given = [lax.convert_element_type(x, v.tensor.dtype) for x, v in zip(arguments, graph.inputs, strict=True)]
    found = _Pure(graph).run(graph, tuple(given))
    return [x.astype(v.tensor.dtype) for x, v in zip(found, graph.outputs, strict=True)]
