"""A program of the corpus, and its registration.

    @program(normal(1, 3))
    def doubling(x): ...            # written with ctrlgrad

    @doubling.twin
    def _(x): ...                   # the same mathematics with Python's own `while` and `if`

Arguments are float64 or int64 arrays, or pytrees of one of the two. Values stay smooth around them: no kink and no
change of a trip count or branch within the step of a finite difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.ir import Graph


@dataclass(eq=False)
class Program:
    """A function, its twin, and the arguments that both are run on."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    signature: tuple[Any, ...] | None = None
    numpy_fn: Callable[..., Any] | None = None
    graphs: dict[int, Graph] = field(default_factory=dict, init=False)
    results: dict[int, list[np.ndarray]] = field(default_factory=dict, init=False)

    def twin(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Attach the twin; a decorator."""
        self.numpy_fn = fn
        return fn

    @property
    def argnums(self) -> tuple[int, ...]:
        """The arguments that hold floats."""
        return tuple(
            position
            for position, argument in enumerate(self.args)
            if all(np.asarray(leaf).dtype.kind == "f" for leaf in tree.leaves(argument))
        )

    @property
    def leaves(self) -> list[np.ndarray]:
        """The arguments' arrays, as a graph of the program takes them."""
        return [np.asarray(x) for x in tree.leaves(self.args)]

    def function(self) -> Any:
        """The program, traced."""
        return cg.function(self.fn, signature=self.signature, name=self.name)

    def loss(self, *args: Any) -> Any:
        """A scalar in which every number of the result counts, each leaf with a weight of its own."""
        return weighted_sum(self.fn(*args))

    def grad_function(self, order: int = 1) -> Any:
        """The gradient with respect to all float arguments, `order` times (of the weighted sum of the one before)."""
        fn: Callable[..., Any] = self.loss
        for _ in range(order - 1):
            fn = _then_sum(cg.grad(fn, argnums=self.argnums))
        return cg.function(cg.grad(fn, argnums=self.argnums), signature=self.signature, name=f"grad_{self.name}")

    def graph(self, order: int = 0) -> Graph:
        """The forward graph (order 0) or the gradient's (1, 2), traced once per process."""
        if order not in self.graphs:
            self.graphs[order] = self.traced_again(order)
        return self.graphs[order]

    def expected(self, order: int = 0) -> list[np.ndarray]:
        """The reference engine's results for the graph, computed once per process and read-only."""
        if order not in self.results:
            found = [np.asarray(x) for x in run_graph(self.graph(order), [np.array(x) for x in tree.leaves(self.args)])]
            for x in found:
                x.flags.writeable = False
            self.results[order] = found
        return self.results[order]

    def traced_again(self, order: int) -> Graph:
        """The same, traced anew."""
        function = self.function() if order == 0 else self.grad_function(order)
        graph: Graph = function.graph(*self.args)
        return graph

    def __repr__(self) -> str:
        return self.name


def _then_sum(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: weighted_sum(fn(*args))


def weighted_sum(result: Any) -> Any:
    """The sum of the sines of all elements, the k-th leaf's times 1 + k / 8: not linear, so every order counts."""
    total: Any = 0.0
    for position, leaf in enumerate(tree.leaves(result)):
        total = total + (1.0 + position / 8.0) * np.sum(np.sin(leaf))
    return total


PROGRAMS: list[Program] = []


def program(*args: Any, signature: tuple[Any, ...] | None = None) -> Callable[[Callable[..., Any]], Program]:
    """Register a function with its arguments; a decorator."""

    def register(fn: Callable[..., Any]) -> Program:
        made = Program(fn.__name__, fn, args, signature)
        PROGRAMS.append(made)
        return made

    return register


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Seeded normal numbers."""
    return np.asarray(scale * np.random.default_rng(seed).standard_normal(shape))


def between(low: float, high: float, seed: int, *shape: int) -> np.ndarray:
    """Seeded uniform numbers."""
    return np.asarray(np.random.default_rng(seed).uniform(low, high, shape))


def scalar(x: float) -> np.ndarray:
    return np.asarray(x, np.float64)


def count(n: int) -> np.ndarray:
    return np.asarray(n, np.int64)
