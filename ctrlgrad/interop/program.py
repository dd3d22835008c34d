"""A graph as what another framework's transforms work on: its derivatives and batches are programs again.

What such a framework asks of an operation of its own is the same operation of another program:

- a batch of calls is one call of the `vmap`;
- `tangent` is the derivative along tangents, f'(x) t, which is linear in t. It has a transpose, `pullback`, f'(x)^T c,
  linear in c, whose transpose is the tangent. Both compute the forward pass again, so they are functions of the
  arguments alone, which may themselves be differentiated: all orders and mixtures of the modes exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced
from ctrlgrad.function import Function, function
from ctrlgrad.ir import Builder, Graph, TensorType
from ctrlgrad.transforms.grad import jvp, vjp
from ctrlgrad.transforms.vmap import vmap

Fn = Callable[..., Sequence[Any]]


class Program:
    """A function of arrays that gives arrays, run by an engine.

    Args:
        trace: makes its graph. It is called when the graph is first needed: of a tangent that is only transposed
            nothing is asked, so a function may have a reverse rule alone.
        types, results: of its arguments and its results.
        linear: in how many of its last arguments it is linear.
        transposed: makes the transpose with respect to these: a program of the other arguments and one cotangent per
            result, with one result per argument that it is linear in.
    """

    def __init__(
        self,
        name: str,
        trace: Callable[[], Graph],
        types: Sequence[TensorType],
        results: Sequence[TensorType],
        engine: str,
        linear: int = 0,
        transposed: Callable[[], Self] | None = None,
    ) -> None:
        self.name, self.engine, self.linear = name, engine, linear
        self.types, self.results = tuple(types), tuple(results)
        # The results that have derivatives.
        self.floats = tuple(i for i, t in enumerate(self.results) if t.is_differentiable)
        self._trace, self._transposed = trace, transposed
        self._made: dict[Any, Any] = {}
        self._function: Function = function(lambda *arrays: tuple(self(*arrays)), name=_word(name), engine=engine)

    @classmethod
    def of(cls, name: str, graph: Graph, engine: str) -> Self:
        """The program of a graph."""
        types, results = ([v.tensor for v in values] for values in (graph.inputs, graph.outputs))
        return cls(name, lambda: graph, types, results, engine)

    def __repr__(self) -> str:
        return self.name

    @functools.cached_property
    def graph(self) -> Graph:
        """Graph of the program."""
        return self._trace()

    def __call__(self, *arrays: Any) -> list[Tensor]:
        """The results, recorded in the current trace."""
        builder = recorder()
        values = builder.inline(self.graph, [value_in(builder, x) for x in arrays])
        return [Tensor(builder, value) for value in values]

    def run(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The results for NumPy's arrays."""
        results: tuple[np.ndarray, ...] = self._function(*arrays)
        return results

    def batched(self, axes: tuple[int | None, ...], size: int) -> Self:
        """The program for all rows at once: argument i has them along axes[i], all results along the first."""

        straight = axes[: len(axes) - self.linear]
        transposed = lambda: self.transposed.batched((*straight, *(0 for _ in self.results)), size)
        types = [t if a is None else _with_rows(t, a, size) for t, a in zip(self.types, axes, strict=True)]
        results = [_with_rows(t, 0, size) for t in self.results]
        mapped = vmap(lambda *xs: tuple(self(*xs)), in_axes=axes, axis_size=size)
        return self._derived("vmap", (axes, size), mapped, types, results, self.linear, transposed)

    def tangent(self, wrt: tuple[int, ...]) -> Self:
        """The derivative along tangents of the arguments at `wrt`, of the results that are floats."""
        moving, results = [self.types[i] for i in wrt], [self.results[i] for i in self.floats]

        def fn(*given: Any) -> list[Any]:
            point, tangents = given[: len(self.types)], given[len(self.types) :]
            return list(jvp(self._of(point, wrt), tuple(point[i] for i in wrt), tuple(tangents))[1])

        types = [*self.types, *moving]
        return self._derived("jvp", (wrt,), fn, types, results, len(moving), lambda: self.pullback(wrt))

    def pullback(self, wrt: tuple[int, ...]) -> Self:
        """The transpose of `tangent`: the cotangents of the arguments at `wrt`, of one for each result that is a
        float."""
        seeds, results = [self.results[i] for i in self.floats], [self.types[i] for i in wrt]

        def fn(*given: Any) -> list[Any]:
            point, cotangents = given[: len(self.types)], given[len(self.types) :]
            pull = vjp(self._of(point, wrt), *(point[i] for i in wrt))[1]
            return list(pull(tuple(cotangents)))

        types = [*self.types, *seeds]
        return self._derived("vjp", (wrt,), fn, types, results, len(seeds), lambda: self.tangent(wrt))

    @property
    def transposed(self) -> Self:
        """The transpose with respect to the arguments that it is linear in."""
        assert self._transposed is not None
        return self._transposed()

    def _of(self, point: Sequence[Any], wrt: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
        """Its float results as a function of the arguments at `wrt`."""

        def fn(*moving: Any) -> tuple[Any, ...]:
            given = list(point)
            for i, x in zip(wrt, moving, strict=True):
                given[i] = x
            results = self(*given)
            return tuple(results[i] for i in self.floats)

        return fn

    def _derived(
        self,
        word: str,
        details: tuple[Any, ...],
        fn: Fn,
        types: Sequence[TensorType],
        results: Sequence[TensorType],
        linear: int,
        transposed: Callable[[], Self],
    ) -> Self:
        name, cls = f"{word} of {self.name}", type(self)
        make = lambda: cls(name, lambda: traced(name, fn, types), types, results, self.engine, linear, transposed)
        found: Self = self._once((word, *details), make)
        return found

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        found = self._made.get(key)
        # Of two threads that make it, one keeps its own.
        return self._made.setdefault(key, make()) if found is None else found


def traced(name: str, fn: Fn, types: Sequence[TensorType], what: str | None = None) -> Graph:
    """The graph of a function of tensors of these types; `what` is how errors call its result."""
    builder = Builder(name=_word(name))
    return Traced(builder.name, lambda xs: list(fn(*xs)), [Leaf(t) for t in types], what=what, builder=builder).finish()


def _word(name: str) -> str:
    word = name.replace(" ", "_")
    return word if word.isidentifier() else "function"


def _with_rows(t: TensorType, axis: int, size: int) -> TensorType:
    return TensorType(t.dtype, (*t.shape[:axis], size, *t.shape[axis:]))
