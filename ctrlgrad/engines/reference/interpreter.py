"""The reference engine: what a graph means, one node after the other, in NumPy.

A graph is turned once into a list of steps over numbered slots. A slot is cleared at its value's last use,
so memory is freed as early as it can be, and an update of a dead value happens in place (`kernels.own`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.reference.table import InPlace, Pure
from ctrlgrad.engines.sizes_of_a_run import refused
from ctrlgrad.errors import CtrlgradError, ExecutionError, IndexOutOfRangeError, locate
from ctrlgrad.ir import Graph, Node, StackType, TensorType, Value, attributes
from ctrlgrad.ir.caching import Cache
from ctrlgrad.records import record

Values = list[Any]


@record(frozen=False)
class Step:
    """One node over slots: `read` its operands, clear `dead`, call, write `results`, clear `unused`."""

    node: Node
    read: Callable[[Values], tuple[Any, ...]]
    dead: tuple[int, ...]
    # Takes the operands; one that is not pure takes their list over, and the run.
    kernel: Callable[..., Any]
    is_pure: bool
    results: tuple[int, ...]
    unused: tuple[int, ...]
    # The slot of the only result; None where there are none or several.
    result: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.result = self.results[0] if len(self.results) == 1 else None


@record(frozen=False)
class Program:
    """A graph over slots; the inputs are the first slots."""

    size: int
    inputs: int
    unused_inputs: tuple[int, ...]
    steps: list[Step]
    outputs: tuple[int, ...]

    def __call__(self, values: Values, run: Run) -> Values:
        """Run on input values. Takes the list over: it is emptied as its values die."""
        values += [None] * (self.size - self.inputs)
        for slot in self.unused_inputs:
            values[slot] = None
        watch = _Watch(run) if run.is_watched else None
        step = None
        operands: Any = ()
        try:
            for step in self.steps:
                operands = step.read(values)
                if watch is not None:
                    watch.before(step, operands)
                for slot in step.dead:
                    values[slot] = None
                if not step.is_pure:
                    # A list that alone holds them: what the kernel takes off it may be its own.
                    operands = list(operands)
                # No variable keeps a result: a later step may overwrite it.
                if step.result is not None:
                    values[step.result] = step.kernel(*operands) if step.is_pure else step.kernel(operands, run)
                else:
                    results: Any = step.kernel(*operands) if step.is_pure else step.kernel(operands, run)
                    for slot, value in zip(step.results, results, strict=True):
                        values[slot] = value
                    results = value = None
                for slot in step.unused:
                    values[slot] = None
                if watch is not None:
                    watch.after(step, values)
        except BaseException as error:
            if step is None:
                raise
            found = explained(error, step.node, operands)
            if found is error:
                raise
            raise found from error
        run.counters.ops += len(self.steps)
        return [values[slot] for slot in self.outputs]


class _Watch:
    """Checks and observers that run before and after each node."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.given: Any = None

    def before(self, step: Step, operands: Sequence[Any]) -> None:
        if self.run.observer is not None:
            self.run.observer(step.node, operands)
        if self.run.finite is not None:
            self.given = self.run.finite.before(step.node, operands)

    def after(self, step: Step, values: Values) -> None:
        if self.run.finite is not None and self.given is not None:
            results = [values[slot] for slot in step.results]
            self.run.finite.after(step.node, self.given, results, self.run.iterations)
        if self.run.check_types:
            _check_types(step, values)


def _reader(slots: tuple[int, ...]) -> Callable[[Values], tuple[Any, ...]]:
    """From values to those of some slots."""
    if len(slots) > 1:
        return itemgetter(*slots)
    if not slots:
        return lambda values: ()
    (slot,) = slots
    return lambda values: (values[slot],)


@record
class Kernels:
    """Kernels by which an interpreting engine runs nodes: tables under its name.

    `control` has the ops with regions: `factory(node, kernels)` gives a kernel that runs the regions by the same
    kernels.
    """

    name: str
    pure: Mapping[str, Pure]
    in_place: Mapping[str, InPlace]
    control: Mapping[str, Callable[[Node, Kernels], Callable[[Values, Run], Any]]]

    def effect(self, node: Node) -> Callable[[Values, Run], Any]:
        """The kernel of an op that needs the run, or takes its operands over."""
        name = node.op.name
        return self.control[name](node, self) if name in self.control else self.in_place[name](node)


# By the name of the kernels.
_PROGRAMS: Cache[str, Program] = Cache(8)


def compile_graph(graph: Graph, kernels: Kernels) -> Program:
    """The program of a graph, made once and kept with it."""
    return _PROGRAMS.get(graph, kernels.name, lambda: _compile(graph, kernels))


def _compile(graph: Graph, kernels: Kernels) -> Program:
    slots: dict[Value, int] = {v: i for i, v in enumerate(graph.inputs)}
    for node in graph.nodes:
        for v in node.results:
            slots[v] = len(slots)
    last: dict[Value, int] = dict.fromkeys(slots, -1)
    for position, node in enumerate(graph.nodes):
        last.update((v, position) for v in node.operands)
    last.update((v, len(graph.nodes)) for v in graph.outputs)
    updated = _last_updates(graph)
    steps = []
    for position, node in enumerate(graph.nodes):
        name = node.op.name
        is_pure = name in kernels.pure
        kernel = kernels.pure[name](node) if is_pure else kernels.effect(node)
        if name == "getitem" and (updated.get(node.operands[0], -1) > position or node.result in graph.outputs):
            kernel = _copied(kernel)
        dead = tuple(dict.fromkeys(slots[v] for v in node.operands if last[v] == position))
        unused = tuple(slots[v] for v in node.results if last[v] < 0)
        read = _reader(tuple(slots[v] for v in node.operands))
        steps.append(Step(node, read, dead, kernel, is_pure, tuple(slots[v] for v in node.results), unused))
    unused_inputs = tuple(slots[v] for v in graph.inputs if last[v] < 0)
    return Program(len(slots), len(graph.inputs), unused_inputs, steps, tuple(slots[v] for v in graph.outputs))


def _last_updates(graph: Graph) -> dict[Value, int]:
    """Position of the last op that may overwrite each value.

    A row of an array is a view; while it lives the array cannot be updated in place. A row read before such an
    update is therefore copied: that costs the row, not the array.
    """
    updated: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.op.updates or node.regions:
            updated.update((v, position) for v in (node.operands if node.regions else node.operands[:1]))
    return updated


def _copied(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: kernel(*operands).copy()


def interpret(graph: Graph, arguments: Sequence[Any], run: Run, kernels: Kernels) -> Values:
    """The outputs of a graph for the given arrays (and lists, for stacks)."""
    with np.errstate(all="ignore"):
        return compile_graph(graph, kernels)(list(arguments), run)


# Exceptions that a kernel raises for sizes and values that it cannot compute with.
_OF_VALUES = (ValueError, ArithmeticError, IndexError)
# Texts of NumPy's checks of an array's indices.
_OF_INDICES = re.compile("out of bounds|boolean index did not match|empty axes")


def explained(error: BaseException, node: Node, operands: Sequence[Any] = ()) -> BaseException:
    """An error with the node's place in the user's code, as one of ours if it is about this run's sizes or values.

    `operands` are those of the node, where they are at hand: what is wrong with their sizes is said as when tracing.

    Other errors keep their type and text: what a user's callback raises, an interruption, a defect of the library.
    """
    if isinstance(error, CtrlgradError) or not isinstance(error, _OF_VALUES) or attributes.Hook.find(node):
        locate(error, node.op.name, node.source)
        return error
    if getattr(error, "_ctrlgrad_located", False):
        return error  # of a callback inside
    misfit = refused(node, operands) if isinstance(error, ValueError) else None
    if misfit is not None:
        return misfit
    got = ", ".join(str(v.type) for v in node.operands) or "no operands"
    if isinstance(error, IndexError):
        found = re.search(r"index (-?\d+) is out of bounds for axis \d+ with size (\d+)", str(error))
        if found is None and not _OF_INDICES.search(str(error)):
            # A list or tuple of the library's own: a defect.
            locate(error, node.op.name, node.source)
            return error
        return IndexOutOfRangeError(
            f"{node.op.name}: {error}",
            source=node.source,
            expected=f"-{found[2]} <= index < {found[2]}" if found else "indices within the array's sizes",
            got=f"index {found[1]}; operands {got}" if found else got,
            hint="clip the index, or let the loop end before it leaves the array",
        )
    if isinstance(error, np.linalg.LinAlgError):
        needs = "positive definite" if node.op.name == "cholesky" else "invertible"
        return ExecutionError(
            f"{node.op.name}: {error}",
            source=node.source,
            expected=f"matrices that are {needs}",
            got=got,
            hint=f"a matrix is not {needs}: add a multiple of the identity to it,\n"
            'or have NaN in place of this error, in functions traced in: with ctrlgrad.options(no_answer="nan")',
        )
    return ExecutionError(
        f"{node.op.name}: {error}",
        source=node.source,
        expected=f"operands that {node.op.name} can be computed for",
        got=got,
        hint="the sizes or values of this run do not fit; look at the shapes of what this line takes",
    )


def _check_types(step: Step, values: Values) -> None:
    for slot, declared in zip(step.results, step.node.results, strict=True):
        if slot in step.unused:
            continue
        value, expected = values[slot], declared.type
        if isinstance(expected, StackType):
            fits = isinstance(value, list) and all(v is None or _is(v, expected.element) for v in value)
        else:
            fits = _is(value, expected)
        if not fits:
            got = f"{value.dtype.name}{value.shape}" if hasattr(value, "dtype") else type(value).__name__
            raise ExecutionError(
                f"{step.node.op.name}: the result is not of its declared type",
                source=step.node.source,
                expected=str(expected),
                got=got,
            )


def _is(value: Any, expected: TensorType) -> bool:
    return (
        isinstance(value, np.ndarray | np.generic)
        and value.dtype == expected.dtype
        and value.ndim == expected.rank
        and all(d is None or d == n for d, n in zip(expected.shape, value.shape, strict=True))
    )
