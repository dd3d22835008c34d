"""A program whose forward pass keeps what the backward pass needs, where that is to come at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ctrlgrad.batching import batch_whole
from ctrlgrad.engines import current_without
from ctrlgrad.engines.block_kernels import as_lists
from ctrlgrad.execution import after_failure, program_of, run_on
from ctrlgrad.frontend.apply import EagerStack
from ctrlgrad.function import hand_out
from ctrlgrad.gradients.reverse import reverse
from ctrlgrad.interop.program import Program
from ctrlgrad.ir import Graph, StackType
from ctrlgrad.memory.session import current as session
from ctrlgrad.options import current_options
from ctrlgrad.signature import simplified


@dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals of a forward pass for the backward pass with respect to the arguments at `wrt`."""

    wrt: tuple[int, ...]
    values: list[Any]


class _Code:
    """A graph with its machine code at hand. Stacks go in and come out in blocks."""

    def __init__(self, graph: Graph, engine: str) -> None:
        self.graph, self.engine = simplified(graph), engine
        types = [v.type.element if isinstance(v.type, StackType) else v.type for v in graph.inputs]
        self.is_static = all(t.is_static for t in types)
        self.known: Callable[[Sequence[Any]], list[Any]] | None = None

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """The results, which share no memory with the arguments."""
        checks, failure = current_options().check_nans, None
        if not checks and self.engine in ("auto", "native") and session() is None and not current_without():
            known = self.known or program_of(self.graph, arrays)
            if known is not None:
                try:
                    found = known(arrays)
                    self.known = known if self.is_static else None
                    return found
                except Exception as error:
                    self.known, failure = None, error
        given = as_lists(arrays)
        if failure is not None:
            found = after_failure(self.graph, given, failure)
        else:
            found = run_on(self.engine, self.graph, given, checks)
        return [x.items if isinstance(x, EagerStack) else x for x in hand_out(self.graph, found, given)]


@dataclass(frozen=True, eq=False)
class _Halves:
    """Both passes. Residuals are what `forward` gives after the results, and the arguments at `read`, in `order`."""

    forward: _Code
    backward: _Code
    read: tuple[int, ...]
    order: tuple[int, ...]


class TorchProgram(Program):
    """A program that `torch.autograd` runs forwards and, with what that run has kept, backwards."""

    def run(self, *arrays: Any) -> Any:
        """The results for NumPy's arrays."""
        return self._once("code", lambda: _Code(self.graph, self.engine))(arrays)

    def run_and_keep(self, wrt: tuple[int, ...], *arrays: Any) -> tuple[list[Any], Residuals]:
        """The results, and what `run_backward` needs to pull cotangents of them back to the arguments at `wrt`."""
        found, count = self._halves(wrt).forward(arrays), len(self.results)
        return found[:count], Residuals(wrt, found[count:])

    def run_backward(self, residuals: Residuals, argument: Callable[[int], Any], seeds: Sequence[Any]) -> list[Any]:
        """The cotangents of the arguments at `residuals.wrt`, for one of each result that is a float; `argument` gives
        the array of an argument's position."""
        halves = self._halves(residuals.wrt)
        values = [*residuals.values, *map(argument, halves.read)]
        return halves.backward([*(values[i] for i in halves.order), *seeds])

    def _halves(self, wrt: tuple[int, ...]) -> _Halves:
        def make() -> _Halves:
            found, count = reverse(self.graph, wrt, self.floats, batch_whole), len(self.results)
            forward, residuals = found.forward, found.forward.outputs[count:]
            places = {v: i for i, v in enumerate(forward.inputs)}
            kept = [v for v in residuals if v not in places]
            read = [v for v in residuals if v in places]
            outputs = (*forward.outputs[:count], *kept)
            return _Halves(
                _Code(Graph(forward.inputs, forward.nodes, outputs, forward.name), self.engine),
                _Code(found.backward, self.engine),
                tuple(places[v] for v in read),
                tuple([*kept, *read].index(v) for v in residuals),
            )

        halves: _Halves = self._once(("halves", wrt), make)
        return halves


__all__ = ["Residuals", "TorchProgram"]
