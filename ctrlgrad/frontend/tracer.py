"""The tracer: how a Python function becomes a graph, in every construct and transform.

A `Traced` calls its function once, on tensors that stand for the inputs of a new graph, with the builder of that graph
as the current one. What the function returns is then looked at (does the carry settle, do the branches agree), and
`finish` makes the outputs of it. Values of the traces around it that the function uses stay free; `close` makes
captures of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.errors import CtrlgradError, TracingError
from ctrlgrad.forks import once
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import (
    EagerStack,
    cast,
    concrete,
    evaluate,
    is_weak,
    type_of,
    value_in,
    without_numbers,
)
from ctrlgrad.frontend.checks import check_leaves, is_array
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, Graph, Node, Type, Value, attributes
from ctrlgrad.ir.interning import lift_constants, shared
from ctrlgrad.passes.dead_code import without_calls
from ctrlgrad.records import record
from ctrlgrad.source import raised_at
from ctrlgrad.tree import Aside

# Recovery of this library's error if another library has replaced it by its own.


# NumPy's messages for an operand that is not a number.
_ELEMENT = "setting an array element with a sequence"
# Messages of JAX and PyTorch for an operand that is not an array: the text before and after the tensor.
_FOREIGN = (
    (
        "JAX",
        re.compile(r"'(Tensor\(.*?\))' of type '?<class 'ctrlgrad\..*is not a valid JAX type", re.DOTALL),
        "ctrlgrad.from_jax(fn) makes it one of this library; ctrlgrad.numpy and ctrlgrad.lax have JAX's functions",
    ),
    (
        "PyTorch",
        re.compile(r"must be (Tensor), not Tensor$|expected (Tensor) as element .* but got Tensor"),
        "ctrlgrad.numpy has NumPy's functions; ctrlgrad.to_torch(fn) makes a function of this library one of PyTorch",
    ),
)
_SHAPE = "expected a sequence of integers or a single integer, got 'Tensor("


def refused_inside(error: BaseException) -> TracingError | None:
    """The refusal that an error of NumPy's hides; None for any other error."""
    if isinstance(error, CtrlgradError):
        return None
    text, cause = str(error), error.__cause__
    if text.startswith(_ELEMENT) and isinstance(cause, TracingError):
        return cause
    if text.startswith(_SHAPE):
        return TracingError(
            "a traced size in a shape that NumPy makes: it needs a number, and has none until the program runs",
            source=raised_at(error),
            expected="a size that is known",
            got=text.split("got ", 1)[1].strip("'"),
            hint="ctrlgrad.numpy.zeros, ctrlgrad.numpy.ones and ctrlgrad.numpy.full take traced sizes",
        )
    for library, refusal, hint in _FOREIGN:
        if (found := refusal.search(text)) is not None:
            return TracingError(
                f"a function of {library} was given a traced tensor of this library",
                source=raised_at(error),
                expected=f"an array of {library}",
                got=found[1] or "Tensor",
                hint=hint,
            )
    return None


# Known values of traced tensors, in a transform that is applied to values.
#
# `grad(f)(x)`, called outside of any compiled function, traces f while x is at hand. A Python `if` or `while` on what
# is differentiated then needs no construct: the number that it asks for is computed from the arguments' numbers, and
# the trace goes the way that they go, as JAX's transforms do. Such a trace is good for these arguments alone, and
# nothing compiles it for other arguments.
#
# `Builder.known` holds the arrays behind the inputs of a trace, and the arrays computed from them. The inputs of a
# loop's body, of a compiled function and of the rows of `vmap` have none, nor have values that depend on them.


class Known:
    """Known arrays for the values of one builder: those of its inputs, and the ones computed from them."""

    def __init__(self, builder: Builder, inputs: Sequence[Any]) -> None:
        self.builder = builder
        # An array, a tensor of an enclosing trace, or None for a value without a known array.
        self._numbers: dict[Value, Any] = dict(zip(builder.inputs, map(_as_array, builder.inputs, inputs), strict=True))
        self._producers: dict[Value, Node] = {}
        self._indexed = 0

    def number(self, builder: Builder, value: Value) -> Any:
        """The array that a value of `builder`, this one or one inside it, has in this call; None if it has no one."""
        # An explicit stack of waiting values: a Python loop makes chains longer than Python's recursion limit.
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

    def forget_stacks(self) -> None:
        """Let go of rows: traces refer to themselves, so they wait for the collector."""
        for value, given in self._numbers.items():
            if isinstance(given, EagerStack):
                self._numbers[value] = None

    def _has(self, value: Value) -> bool:
        nodes = self.builder.nodes
        for node in nodes[self._indexed :]:
            self._producers.update(dict.fromkeys(node.results, node))
        self._indexed = len(nodes)
        return value in self._numbers or value in self._producers

    def _missing(self, value: Value) -> list[tuple[Builder, Value]] | None:
        """Return the values to compute before this one: empty once it has a number, None if it can have none."""
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
    """Return an input's value as an array that the reference kernels take; a Python number is converted."""
    return np.asarray(given, value.tensor.dtype) if isinstance(given, bool | int | float | complex) else given


def _owner(builder: Builder | None, value: Value) -> Known | None:
    """The numbers of the builder, of this one and those around it, that the value belongs to."""
    while builder is not None:
        if isinstance(builder.known, Known) and builder.known._has(value):
            return builder.known
        builder = builder.parent
    return None


def _found(builder: Builder, value: Value) -> Any:
    """The array of a value, if it has been computed."""
    owner = _owner(builder, value)
    found = None if owner is None else owner._numbers.get(value)
    return None if isinstance(found, Tensor) else found


@record
class Leaf:
    """An argument or result of a traced function: its type, its name, and whether it promotes like a Python number."""

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
        known: what the inputs stand for in this one call, where the trace serves no other (see `frontend/tracer.py`).
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
                self.known = self.builder.known = Known(self.builder, known)
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
    """Run the function in the current trace; without one, trace it alone and run the graph at once.

    A graph that runs at once gives arrays as functions of `ctrlgrad.numpy` do: a traced tensor may index them.
    `aside`: the result may have leaves that are no arrays.
    """
    if trace.current() is not None:
        return fn()
    traced = Traced("at_once", lambda _: set_aside(fn()) if aside else fn(), known=())
    graph, arrays = lift_constants(traced.finish())
    # The graph that runs has no rules, so that two traces of one program are equal.
    graph, captured = shared(without_calls(graph))
    results = map(without_numbers, traced.leaves, evaluate(graph, [*arrays, *captured]))
    return tree.unflatten(traced.treedef, [*map(concrete, map(_writable, results))])


def _writable(result: Any) -> Any:
    """A result that is a constant of the graph as an array of its caller's own."""
    return result.copy() if isinstance(result, np.ndarray) and not result.flags.writeable else result
