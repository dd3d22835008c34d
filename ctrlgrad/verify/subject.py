"""What a check is about: a user's function as a scalar function of its array leaves, at one point.

A result of any pytree is reduced to a scalar by seeded random cotangents. Further derivatives follow by
directions: s_0 is that scalar, s_k(x) = <gradient of s_{k-1} at x, v_k>. All functions here take every leaf
of the arguments, in order; `wrt` names those that are differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.ir import Graph, Node, StackType, is_branch, is_loop
from ctrlgrad.source import here
from ctrlgrad.verify.finite_differences import Sample

Arrays = tuple[np.ndarray, ...]
Function = Callable[..., Any]
# From a function on leaves to its graph at the subject's point.
Tracer = Callable[[Function], Graph]
# From a scalar function and the positions of its arguments to the function that gives their gradients.
Gradient = Callable[[Function, tuple[int, ...]], Function]
# jvp(function, primals, tangents) -> (value, tangent)
Jvp = Callable[[Function, Sequence[Any], Sequence[Any]], tuple[Any, Any]]

_NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)


@dataclass(frozen=True)
class Subject:
    """The point, and the scalar function of it."""

    leaves: Arrays
    wrt: tuple[int, ...]
    paths: tuple[str, ...]
    scalar: Function
    # Trace a function of the leaves, and one of the leaves and a tangent for each that is differentiated.
    graph: Tracer
    graph_with_tangents: Tracer
    # Trace a function of the leaves for a judge: calls are not dissolved.
    graph_with_calls: Tracer

    def point(self) -> Arrays:
        """The differentiated leaves."""
        return tuple(self.leaves[position] for position in self.wrt)

    def moved(self, shift: Sequence[np.ndarray | None]) -> Arrays:
        """All leaves with a shift added to the differentiated ones, in their own dtypes."""
        leaves = list(self.leaves)
        for position, s in zip(self.wrt, shift, strict=True):
            if s is not None:
                leaves[position] = (leaves[position] + s).astype(leaves[position].dtype)
        return tuple(leaves)

    def random(self, rng: np.random.Generator) -> Arrays:
        """One direction through all differentiated leaves."""
        return tuple(np.asarray(rng.standard_normal(x.shape), x.dtype) for x in self.point())


def subject_of(fn: Function, args: Sequence[Any], trace: Callable[..., Graph], rng: np.random.Generator) -> Subject:
    """The subject of a check of `fn` at `args`; `trace(function, leaves, also, calls)` gives a graph,
    whose inputs are the leaves and once more those at the positions `also`, with its calls or without.

    Leaves that are no arrays or numbers stay what they are. Raises `UserInputError` where there is nothing to
    differentiate and `TypeMismatchError` for complex numbers and TensorArrays among arguments or results.
    """
    if not isinstance(args, tuple | list):
        raise UserInputError(
            "check_grads: the arguments are not a tuple",
            source=here(),
            expected="a tuple with one entry per argument of the function",
            got=type(args).__name__,
            hint="for one argument: check_grads(fn, (x,))",
        )
    everything, treedef = tree.flatten(tuple(args))
    kept = [position for position, x in enumerate(everything) if isinstance(x, _NUMBERS) or hasattr(x, "__array__")]
    raw = [everything[position] for position in kept]
    leaves = tuple(np.asarray(x) for x in raw)
    all_paths = tree.paths(treedef)
    paths = tuple(f"args{all_paths[position]}" for position in kept)
    for path, x in zip(paths, leaves, strict=True):
        if dtype_kind(x.dtype) not in "biuf":
            raise TypeMismatchError(
                f"check_grads: {path} cannot be checked",
                source=here(),
                expected="an array or number of a float, integer or bool dtype",
                got=f"{x.dtype.name}{list(x.shape)}",
                hint="pass real and imaginary parts as two arguments" if dtype_kind(x.dtype) == "c" else None,
            )
    wrt = tuple(position for position, x in enumerate(leaves) if dtype_kind(x.dtype) == "f" and x.size)
    if not wrt:
        raise UserInputError(
            "check_grads: no argument to differentiate",
            source=here(),
            expected="at least one leaf of a float dtype",
            got=", ".join(f"{p}: {x.dtype.name}{list(x.shape)}" for p, x in zip(paths, leaves, strict=True)) or "none",
            hint="pass floats: x.astype(float), or 1.0 in place of 1",
        )

    def flat(*inputs: Any) -> Any:
        merged = list(everything)
        for position, x in zip(kept, inputs, strict=True):
            merged[position] = x
        return tree.leaves(fn(*tree.unflatten(treedef, merged)))

    def graph(function: Function) -> Graph:
        # The leaves as the user gave them: a Python number does not widen what it meets.
        return trace(function, raw)

    def graph_with_tangents(function: Function) -> Graph:
        return trace(function, raw, wrt)

    def graph_with_calls(function: Function) -> Graph:
        return trace(function, raw, calls=True)

    cotangents = _cotangents(graph(flat), leaves, rng)
    scalar = lambda *inputs: _weighted(flat(*inputs), cotangents)
    names = tuple(paths[position] for position in wrt)
    return Subject(leaves, wrt, names, scalar, graph, graph_with_tangents, graph_with_calls)


def _cotangents(graph: Graph, leaves: Arrays, rng: np.random.Generator) -> list[np.ndarray | None]:
    """A seeded random weight for each element of each float result; None for the other results."""
    for value in graph.outputs:
        if isinstance(value.type, StackType) or dtype_kind(value.type.dtype) == "c":
            raise TypeMismatchError(
                "check_grads: a result cannot be checked",
                expected="arrays of float, integer or bool dtypes",
                got=str(value.type),
                hint="return array.stack()" if isinstance(value.type, StackType) else "return real and imaginary parts",
            )
    outputs = [np.asarray(x) for x in run_graph(graph, leaves)]
    if not any(dtype_kind(x.dtype) == "f" for x in outputs):
        raise UserInputError(
            "check_grads: no result to differentiate",
            expected="at least one result of a float dtype",
            got=", ".join(f"{x.dtype.name}{list(x.shape)}" for x in outputs) or "none",
        )
    if len(outputs) == 1 and outputs[0].shape == ():
        return [np.ones((), outputs[0].dtype)]
    return [np.asarray(rng.standard_normal(x.shape), x.dtype) if dtype_kind(x.dtype) == "f" else None for x in outputs]


def _weighted(results: Sequence[Any], weights: Sequence[Any]) -> Any:
    """The sum of all elements times their weights; results without a weight do not count."""
    total: Any = None
    for result, weight in zip(results, weights, strict=True):
        if weight is not None:
            term = result if np.shape(weight) == () and weight == 1 else (result * weight).sum()
            total = term if total is None else total + term
    return total


def by_reverse(gradient: Gradient, function: Function, wrt: tuple[int, ...], direction: Arrays) -> Function:
    """x -> <gradient of `function` at x, direction>, the gradient by reverse mode."""
    return lambda *inputs: _weighted(gradient(function, wrt)(*inputs), direction)


def by_forward(jvp: Jvp, function: Function, wrt: tuple[int, ...], direction: Sequence[Any]) -> Function:
    """The same number by forward mode."""
    along = by_forward_along_inputs(jvp, function, wrt)
    return lambda *inputs: along(*inputs, *direction)


def by_forward_along_inputs(jvp: Jvp, function: Function, wrt: tuple[int, ...]) -> Function:
    """The same number, the direction's arrays as further arguments."""

    def along(*inputs: Any) -> Any:
        leaves, direction = inputs[: -len(wrt)], inputs[-len(wrt) :]

        def of_point(*point: Any) -> Any:
            merged = list(leaves)
            for position, x in zip(wrt, point, strict=True):
                merged[position] = x
            return function(*merged)

        return jvp(of_point, [leaves[position] for position in wrt], list(direction))[1]

    return along


def sample(graph: Graph, leaves: Sequence[np.ndarray]) -> Sample:
    """The scalar that a graph gives, with the control-flow path it took."""
    (value,), path = outputs_and_path(graph, leaves)
    return Sample(float(value), path)


def outputs_and_path(graph: Graph, leaves: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Hashable]:
    """What a graph gives, and the control-flow path it took: every branch and every trip count."""
    path = 0

    def observer(node: Node, operands: Sequence[Any]) -> None:
        nonlocal path
        if is_branch(node):
            path = hash((path, id(node), int(operands[0])))
        elif is_loop(node):
            path = hash((path, id(node)))

    run = Run(observer=observer)
    outputs = [np.asarray(x) for x in run_graph(graph, leaves, run)]
    trips = tuple((id(node), trips, run.counters.iterations[node]) for node, trips in run.counters.trips.items())
    return outputs, (path, trips)
