"""A graph as what another framework's transforms work on: its derivatives and batches are programs again.

What such a framework asks of an operation of its own is the same operation of another program:

- a batch of calls is one call of the `vmap`;
- `tangent` is the derivative along tangents, `pullback` its transpose. Both compute the forward pass again, so they are
  functions of the arguments alone, which may themselves be differentiated: all orders and mixtures of the modes exist;
- where the forward pass has just run, `run_and_keep` has kept what the backward pass needs, for `run_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.batching import batch_whole
from ctrlgrad.execution import run_on
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced
from ctrlgrad.function import Function, function
from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.gradients.reverse import reverse
from ctrlgrad.ir import Builder, Graph, TensorType
from ctrlgrad.options import current_options
from ctrlgrad.passes.inline_calls import without_calls
from ctrlgrad.results import hand_out
from ctrlgrad.transforms.grad import vjp
from ctrlgrad.transforms.jvp import jvp
from ctrlgrad.transforms.vmap import vmap


@dataclass(frozen=True, eq=False)
class Residuals:
    """What a forward pass has left for the backward pass with respect to the arguments at `wrt`."""

    wrt: tuple[int, ...]
    values: list[Any]


class Program:
    """A graph that arrays go into and come out of, run by an engine."""

    def __init__(self, name: str, graph: Graph, engine: str) -> None:
        self.name, self.graph, self.engine = name, graph, engine
        self.types = tuple(v.tensor for v in graph.inputs)
        # The results that have derivatives.
        self.floats = tuple(i for i, v in enumerate(graph.outputs) if v.type.is_differentiable)
        self._derived: dict[Any, Any] = {}
        self._function: Function = function(lambda *arrays: tuple(self(*arrays)), name=graph.name, engine=engine)

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *arrays: Any) -> list[Tensor]:
        """The results, recorded in the trace that goes on."""
        builder = recorder()
        values = builder.inline(self.graph, [value_in(builder, x) for x in arrays])
        return [Tensor(builder, value) for value in values]

    def run(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """The results for NumPy's arrays."""
        results: tuple[np.ndarray, ...] = self._function(*arrays)
        return results

    def run_and_keep(self, wrt: tuple[int, ...], arrays: Sequence[Any]) -> tuple[list[np.ndarray], Residuals]:
        """The results, and what `run_backward` needs to pull cotangents of them back to the arguments at `wrt`."""
        forward = without_calls(self._halves(wrt).forward)
        found = run_on(self.engine, forward, arrays, current_options().check_nans)
        count = len(self.graph.outputs)
        kept = found[count:]
        return hand_out(self.graph, found[:count], [*arrays, *kept]), Residuals(wrt, kept)

    def run_backward(self, residuals: Residuals, cotangents: Sequence[Any]) -> list[np.ndarray]:
        """The cotangents of the arguments at `residuals.wrt`, of one for each result that is a float."""
        backward = without_calls(self._halves(residuals.wrt).backward)
        given = [*residuals.values, *cotangents]
        return hand_out(backward, run_on(self.engine, backward, given, current_options().check_nans), given)

    def _halves(self, wrt: tuple[int, ...]) -> Pullback:
        halves: Pullback = self._made(("halves", wrt), lambda: reverse(self.graph, wrt, self.floats, batch_whole))
        return halves

    def _made(self, key: Any, make: Callable[[], Any]) -> Any:
        found = self._derived.get(key)
        # Of two threads that make it, one keeps its own.
        return self._derived.setdefault(key, make()) if found is None else found

    def _traced(self, word: str, fn: Callable[..., Sequence[Any]], types: Sequence[TensorType]) -> Program:
        name = f"{word}_of_{self.graph.name}"
        traced = Traced(name, lambda xs: list(fn(*xs)), [Leaf(t) for t in types], builder=Builder(name=name))
        return Program(f"{word} of {self.name}", traced.finish(), self.engine)

    def batched(self, axes: tuple[int | None, ...], size: int) -> Program:
        """The program for all rows at once: argument i has them along axes[i], all results along the first."""

        def make() -> Program:
            types = [t if a is None else _with_rows(t, a, size) for t, a in zip(self.types, axes, strict=True)]
            mapped = vmap(lambda *xs: tuple(self(*xs)), in_axes=axes, axis_size=size)
            return self._traced("vmap", mapped, types)

        found: Program = self._made(("vmap", axes, size), make)
        return found

    def tangent(self, wrt: tuple[int, ...]) -> Program:
        """The derivative along tangents of the arguments at `wrt`, of the results that are floats."""

        def fn(*given: Any) -> list[Any]:
            point, tangents = given[: len(self.types)], given[len(self.types) :]
            found = jvp(self._of(point, wrt), tuple(point[i] for i in wrt), tuple(tangents))[1]
            return list(found)

        types = [*self.types, *(self.types[i] for i in wrt)]
        found: Program = self._made(("jvp", wrt), lambda: self._traced("jvp", fn, types))
        return found

    def pullback(self, wrt: tuple[int, ...]) -> Program:
        """The cotangents of the arguments at `wrt`: a program of the arguments, and of a cotangent for each result that
        is a float."""

        def fn(*given: Any) -> list[Any]:
            point, cotangents = given[: len(self.types)], given[len(self.types) :]
            pull = vjp(self._of(point, wrt), *(point[i] for i in wrt))[1]
            return list(pull(tuple(cotangents)))

        types = [*self.types, *(self.graph.outputs[i].tensor for i in self.floats)]
        found: Program = self._made(("vjp", wrt), lambda: self._traced("vjp", fn, types))
        return found

    def _of(self, point: Sequence[Any], wrt: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
        """Its float results as a function of the arguments at `wrt`."""

        def fn(*moving: Any) -> tuple[Any, ...]:
            given = list(point)
            for i, x in zip(wrt, moving, strict=True):
                given[i] = x
            results = self(*given)
            return tuple(results[i] for i in self.floats)

        return fn


def _with_rows(t: TensorType, axis: int, size: int) -> TensorType:
    return TensorType(t.dtype, (*t.shape[:axis], size, *t.shape[axis:]))


__all__ = ["Program", "Residuals"]
