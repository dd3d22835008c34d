"""The tracer: how a Python function becomes a graph, in every construct and transform.

A `Traced` calls its function once, on tensors that stand for the inputs of a new graph, with the builder of that graph
as the current one. What the function returns is then looked at (does the carry settle, do the branches agree), and
`finish` makes the outputs of it. Values of the traces around it that the function uses stay free; `close` makes
captures of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.errors import TracingError
from ctrlgrad.forks import once
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import cast, evaluate, is_weak, type_of, value_in
from ctrlgrad.frontend.checks import check_leaves, is_array
from ctrlgrad.frontend.concrete import concrete
from ctrlgrad.frontend.float0 import without_numbers
from ctrlgrad.frontend.known import Known
from ctrlgrad.frontend.refusals import refused_inside
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, Graph, Type
from ctrlgrad.ir.interning import lift_constants, shared
from ctrlgrad.passes.inline_calls import without_calls
from ctrlgrad.records import record
from ctrlgrad.source import here
from ctrlgrad.tree_classes import Aside


@record
class Leaf:
    """An argument or result of a traced function: its type, whether it stands for a Python number, and its name."""

    type: Type
    weak: bool = False
    hint: str | None = None


def leaves_of(values: Sequence[Any], hints: Sequence[str | None]) -> list[Leaf]:
    return [Leaf(type_of(x), is_weak(x), hint) for x, hint in zip(values, hints, strict=True)]


class Traced:
    """A Python function that has been called to make a graph: `inputs` it was called on, `result` it returned.

    Args:
        name: of the graph.
        fn: takes a list of tensors, one for each of `inputs`.
        what: how errors call the result, whose leaves are arrays then; None for a result that may hold anything.
        builder: what to record into, if not a new builder inside the current one.
        known: what the inputs stand for in this one call, where the trace serves no other (see `frontend/known.py`).
    """

    def __init__(
        self,
        name: str,
        fn: Callable[[list[Tensor]], Any],
        inputs: Sequence[Leaf] = (),
        *,
        what: str | None = None,
        builder: Builder | None = None,
        known: Sequence[Any] | None = None,
    ) -> None:
        is_outermost = trace.current() is None
        self.builder = Builder(trace.current(), name) if builder is None else builder
        with self.recording():
            self.inputs = [self.input(x) for x in inputs]
            if known is not None:
                self.builder.known = Known(self.builder, known)
            try:
                self.result = fn(list(self.inputs))
            except (TypeError, ValueError) as error:
                refused = refused_inside(error)
                if refused is None:
                    raise
                raise refused from None
            except RecursionError as error:
                if not is_outermost:
                    raise
                raise _too_deep(name) from error
            if what is not None:
                check_leaves(what, self.leaves)

    def recording(self) -> AbstractContextManager[Builder]:
        """Record more into the graph."""
        return trace.recording(self.builder)

    def input(self, leaf: Leaf) -> Tensor:
        return Tensor(self.builder, self.builder.input(leaf.type, leaf.hint), leaf.weak)

    @once
    def _flat(self) -> tuple[list[Any], tree.TreeDef]:
        return tree.flatten(self.result)

    @property
    def leaves(self) -> list[Any]:
        return self._flat[0]

    @property
    def treedef(self) -> tree.TreeDef:
        return self._flat[1]

    def finish(self, outputs: Iterable[Any] | None = None, dtypes: Sequence[Any] | None = None) -> Graph:
        """The graph; its outputs are the leaves of the result, cast to `dtypes` where these are given, or `outputs`,
        which may be a generator that records into it."""
        found = self.leaves if outputs is None else outputs
        with self.recording() as builder:
            if dtypes is not None:
                found = [x if d is None else cast(x, d) for x, d in zip(found, dtypes, strict=True)]
            return builder.finish([value_in(builder, x) for x in found])


def _too_deep(name: str) -> TracingError:
    limit = sys.getrecursionlimit()
    return TracingError(
        f"{name}: tracing it takes calls that are nested deeper than Python allows",
        source=here(),
        expected=f"at most {limit} calls in each other: a loop or branch inside another one takes about twelve\n"
        "of them, and a recursion that only data would end any number, since both branches of a cond are traced",
        got=f"more than {limit}",
        hint=f"where the nest ends: sys.setrecursionlimit({10 * limit}); else write the recursion as a while_loop,\n"
        "and keep what waits for its turn on a TensorArray",
    )


def set_aside(result: Any, is_traced: Callable[[Any], bool] | None = None) -> Any:
    """Set the leaves of a result aside that are not to be traced, by default Python numbers and all that is no array:
    they are no leaves of it then, but stand in their places again where its tree is unflattened."""
    leaves, treedef = tree.flatten(result)
    keep = is_traced or (lambda x: not isinstance(x, bool | int | float | complex) and is_array(x))
    traced = [keep(x) for x in leaves]
    if all(traced):
        return result
    return tree.unflatten(treedef, [x if yes else Aside(x) for x, yes in zip(leaves, traced, strict=True)])


def in_trace(fn: Callable[[], Any], *, aside: bool = False) -> Any:
    """What the function records in the trace that goes on; outside of one, in a trace of its own that runs at once.

    What runs at once gives arrays as functions of `ctrlgrad.numpy` do: a traced tensor may index them.
    `aside`: the result may have leaves that are no arrays.
    """
    if trace.current() is not None:
        return fn()
    traced = Traced("at_once", lambda _: set_aside(fn()) if aside else fn(), known=())
    graph, arrays = lift_constants(traced.finish())
    # What runs knows no rules, so that two traces of one program are equal.
    graph, captured = shared(without_calls(graph))
    results = map(without_numbers, traced.leaves, evaluate(graph, [*arrays, *captured]))
    return tree.unflatten(traced.treedef, [*map(concrete, map(_writable, results))])


def _writable(result: Any) -> Any:
    """A result that is a constant of the graph as an array of its caller's own."""
    return result.copy() if isinstance(result, np.ndarray) and not result.flags.writeable else result
