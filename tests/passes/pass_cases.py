"""Programs that show what the passes do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from corpus.program import normal

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.ir import Graph, Node, walk
from ctrlgrad.passes import (
    count_outside,
    distribute,
    hoist_invariants,
    join_updates,
    know_counts,
    merge_common,
    remove_dead_code,
    sink_slices,
    split_products,
)


def repeated_terms(x: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, np.sin(c[1]) * np.sin(c[1])), (0, x))[1]


def same_loop_twice(x: Any) -> Any:
    """A loop with branches, the same loop again, and one whose branches depend on another number."""

    def loop(bound: float) -> Any:
        def body(_: Any, y: Any) -> Any:
            return cg.cond(cnp.sum(y) < bound, lambda: np.sin(y) + x, lambda: y * x)

        return cg.fori_loop(0, 3, body, cnp.zeros_like(x))

    return loop(1.0) * loop(1.0) + loop(2.0)


def dead_carry(x: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, np.sin(c[1]), c[2] * 2.0), (0, x, x))[1]


def invariant_product(x: Any, w: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, np.tanh((w @ w) @ c[1])), (0, x))[1]


def parts_of_a_product(x: Any, w: Any) -> Any:
    def step(h: Any, _: Any) -> Any:
        z = h @ w
        return np.tanh(z[:, :2]) * z[:, 2:], None

    return cnp.sum(cg.scan(step, x, length=3)[0])


def parts_of_a_sum(x: Any, w: Any, b: Any) -> Any:
    def step(h: Any, _: Any) -> Any:
        z = h @ w + b
        return np.tanh(z[:, :2]) * z[:, 2:], None

    return cnp.sum(cg.scan(step, x, length=3)[0])


def product_over_a_concatenation(xs: Any, w: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        return np.tanh(cnp.concat([x, h], axis=1) @ w), None

    return cnp.sum(cg.scan(step, np.zeros((2, 3)), xs)[0])


def recurrent_layer(xs: Any, w: Any, u: Any) -> Any:
    def step(c: Any) -> Any:
        t, h = c
        return t + 1, np.tanh(xs[t] @ w + h @ u)

    return cnp.sum(cg.while_loop(lambda c: c[0] < xs.shape[0], step, (0, np.zeros((2, 3))))[1])


def recurrent_layer_with_a_bias(xs: Any, w: Any, b: Any) -> Any:
    def step(c: Any) -> Any:
        t, h = c
        return t + 1, np.tanh(cnp.concat([xs[t], h], axis=1) @ w + b)

    return cnp.sum(cg.while_loop(lambda c: c[0] < xs.shape[0], step, (0, np.zeros((2, 3))))[1])


def checkpointed_layer(xs: Any, w: Any, u: Any) -> Any:
    body = cg.checkpoint(lambda c: (c[0] + 1, np.tanh(xs[c[0]] @ w + c[1] @ u)))
    return cnp.sum(cg.while_loop(lambda c: c[0] < xs.shape[0], body, (0, np.zeros((2, 3))))[1])


def layer_of_layers(xs: Any, w: Any, u: Any, v: Any) -> Any:
    """Each step is a recurrent layer over the rows so far."""

    def word(c: Any) -> Any:
        i, h = c
        return i + 1, np.tanh(xs[i] @ w + h @ u)

    def step(c: Any) -> Any:
        t, h = c
        return t + 1, np.tanh(xs[t] @ v + cg.while_loop(lambda c: c[0] <= t, word, (0, h))[1] * 0.5)

    return cnp.sum(cg.while_loop(lambda c: c[0] < xs.shape[0], step, (0, np.zeros((2, 3))))[1])


def counters_of_loops(x: Any, n: Any) -> Any:
    """The final counters of two inner loops are used by the outer loop."""

    def step(c: Any) -> Any:
        i, y = c
        j, y = cg.while_loop(lambda c: c[0] <= i, lambda c: (c[0] + 1, 0.5 * c[1] + x), (0, y))
        k, y = cg.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, np.sin(c[1])), (5, y))
        return i + 1, y * j + k

    return cg.while_loop(lambda c: c[0] < n, step, (0, x))[1]


@dataclass(frozen=True)
class Case:
    """A graph for a pass: of a function, or of its gradient."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    run: Callable[[Graph], Graph]
    gradient: bool = False
    first: int = 0

    def graph(self) -> Graph:
        argnums = tuple(range(self.first, len(self.arguments)))
        function = cg.grad(self.function, argnums=argnums) if self.gradient else self.function
        builder = cg.function(function, name=self.function.__name__)
        builder.graph(*self.arguments)
        ((signature,),) = [known.variants for known in builder._cache.values()]
        return signature.graph if not self.gradient else signature.simplified

    @property
    def leaves(self) -> list[np.ndarray]:
        return [np.asarray(x) for x in tree.leaves(self.arguments)]


def _split_and_distributed(graph: Graph) -> Graph:
    return distribute(hoist_invariants(split_products(sink_slices(graph))), chunk=3)


WITH_BIAS = (normal(0, 7, 2, 4), normal(1, 7, 3), normal(2, 3))
LAYER = (normal(0, 7, 2, 4), normal(1, 4, 3), normal(2, 3, 3))
LAYERS = (*LAYER, normal(3, 4, 3))
CASES = {
    "merge_common": Case(repeated_terms, (normal(3),), merge_common),
    "merge_loops": Case(same_loop_twice, (normal(3),), merge_common),
    "know_counts": Case(counters_of_loops, (normal(3), np.int64(3)), know_counts),
    "remove_dead_code": Case(dead_carry, (normal(3),), remove_dead_code),
    "hoist_invariants": Case(invariant_product, (normal(3, 3), normal(4, 3, 3)), hoist_invariants),
    "join_updates": Case(parts_of_a_product, (normal(5, 3, 2), normal(6, 2, 4)), join_updates, gradient=True),
    "sink_slices": Case(parts_of_a_sum, (normal(5, 3, 2), normal(6, 2, 4), normal(9, 4)), sink_slices),
    "split_products": Case(product_over_a_concatenation, (normal(7, 4, 2, 4), normal(8, 7, 3)), split_products),
    "distribute": Case(recurrent_layer, LAYER, partial(distribute, chunk=3), gradient=True, first=1),
    "distribute_bias_and_rows": Case(recurrent_layer_with_a_bias, WITH_BIAS, _split_and_distributed, gradient=True),
    "distribute_checkpoint": Case(checkpointed_layer, LAYER, partial(distribute, chunk=3), gradient=True, first=1),
    "distribute_inside": Case(layer_of_layers, LAYERS, partial(distribute, chunk=2), gradient=True, first=1),
    "count_outside": Case(checkpointed_layer, LAYER, count_outside),
}
# The cases whose loops are distributed.
DISTRIBUTED = [name for name in CASES if name.startswith("distribute")]


def loops(graph: Graph, attr: str) -> list[Node]:
    return [n for n in walk(graph) if n.op.name == "while" and attr in n.attrs.given()]
