"""Kernels of loops, branches, calls and callbacks: all of them need the run or the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.interpreter import Kernels, Values, compile_graph
from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.reference.table import IN_PLACE, PURE
from ctrlgrad.errors import MaximumIterationsError, TypeMismatchError
from ctrlgrad.ir import Loop, Node, TensorType, attributes
from ctrlgrad.ir.control import loop_name


class InterpretedLoop:
    """A `while` node run one iteration after the other."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        self.node = node
        self.split = Loop.of(node).split
        self.maximum: int | None = attributes.Loop.of(node).maximum_iterations
        self.cond, self.body = (compile_graph(region, kernels) for region in node.regions)

    def __call__(self, values: Values, run: Run) -> Any:
        shared, carry = map(list, self.split(values))
        # The operands are the loop's own: it may overwrite them.
        values.clear()
        # A reversed loop starts from the number of iterations and counts down.
        backwards = attributes.Loop.of(self.node).counts_down
        trips, step = 0, -1 if backwards else 1
        run.iterations.append(int(carry[0]) - 1 if backwards else 0)
        try:
            while self.cond(shared + carry, run)[0]:
                if trips == self.maximum:
                    raise self._too_many(trips)
                arguments = shared + carry
                carry = []
                carry = self.body(arguments, run)
                del arguments
                trips += 1
                run.iterations[-1] += step
        except BaseException as error:
            if not isinstance(error, MaximumIterationsError) or error.source is not self.node.source:
                note(error, self.node, run.iterations[-1], run)
            raise
        finally:
            run.iterations.pop()
        run.counters.looped(self.node, trips)
        return carry if len(carry) != 1 else carry[0]

    def _too_many(self, trips: int) -> MaximumIterationsError:
        return too_many_iterations(self.node, self.maximum, trips)


def too_many_iterations(node: Node, maximum: int | None, trips: int) -> MaximumIterationsError:
    """The error of a loop whose condition still holds at its maximum."""
    return MaximumIterationsError(
        f"while_loop: the condition still holds after maximum_iterations={maximum} iterations",
        source=node.source,
        expected=f"a condition that is false after at most {maximum} iterations",
        got=f"true after {trips} iterations",
        hint="raise maximum_iterations, or check that the condition becomes false",
    )


def note(error: BaseException, node: Node, iteration: int, run: Run, *, is_inside: bool = True) -> None:
    """Add to an error in which iteration of a loop it happened; `is_inside`: the run's iterations have this loop's.

    Of a loop over chunks and the loop inside it, which were one, the inner one speaks for both.
    """
    if attributes.Loop.of(node).chunks_of is not None:
        return
    length = attributes.Loop.of(node).chunk
    if length is not None and not attributes.Loop.of(node).counts_down and len(run.iterations) > is_inside:
        iteration += run.iterations[-1 - is_inside] * length
    error.add_note(in_iteration(node, iteration))


def in_iteration(node: Node, iteration: int, *, from_the_end: bool = False) -> str:
    """Text that names an iteration of a loop, for a note; a reversed loop has the numbers of the forward one unless it
    says so."""
    text = f"in iteration {iteration} of the {loop_name(node)}"
    if not attributes.Loop.of(node).counts_down:
        return text
    return f"{text}, which runs backwards; " + ("counted from the end" if from_the_end else "numbered as forwards")


class InterpretedBranches:
    """A `cond` node."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        self.programs = [compile_graph(region, kernels) for region in node.regions]

    def __call__(self, values: Values, run: Run) -> Any:
        chosen = min(max(int(values.pop(0)), 0), len(self.programs) - 1)
        arguments = list(values)
        values.clear()
        results = self.programs[chosen](arguments, run)
        return results if len(results) != 1 else results[0]


class InterpretedCall:
    """A `call` node: its first region."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        self.programs = [compile_graph(node.regions[0], kernels)]

    def __call__(self, values: Values, run: Run) -> Any:
        arguments = list(values)
        values.clear()
        results = self.programs[0](arguments, run)
        return results if len(results) != 1 else results[0]


CONTROL: dict[str, Callable[[Node, Kernels], Callable[[Values, Run], Any]]] = {
    "call": InterpretedCall,
    "while": InterpretedLoop,
    "cond": InterpretedBranches,
}


def _callback(node: Node) -> Callable[[Values, Run], Any]:
    fn = attributes.Hook.of(node).fn

    def kernel(values: Values, run: Run) -> Any:
        if run.silent_callbacks:
            run.silent_callbacks -= 1
        else:
            fn(values, tuple(run.iterations))
        return ()

    return kernel


def _pure_callback(node: Node) -> Callable[..., Any]:
    attrs = attributes.HostCall.of(node)

    def kernel(*operands: Any) -> Any:
        # Copies: what the function keeps must not see an update in place.
        found = attrs.fn(*(np.array(x) for x in operands))
        results = [_fitting(x, t, attrs.label) for x, t in zip(found, attrs.results, strict=True)]
        return results[0] if len(results) == 1 else tuple(results)

    return kernel


def _fitting(found: Any, stated: TensorType, label: str) -> np.ndarray:
    """Result of a pure callback as an array, checked against the stated type."""
    x = np.asarray(found)
    fits = x.ndim == stated.rank and all(d in (None, n) for d, n in zip(stated.shape, x.shape, strict=True))
    if not fits or x.dtype != stated.dtype:
        raise TypeMismatchError(
            f"{label}: the function returned another type than was stated",
            expected=str(stated),
            got=str(TensorType(x.dtype, x.shape)),
            hint="state the shapes and dtypes that it returns, or convert its results with numpy.asarray",
            source=None,
        )
    return x


IN_PLACE["callback"] = _callback
PURE["pure_callback"] = _pure_callback
PURE["forget_sizes"] = lambda node: lambda x: x
PURE["barrier"] = lambda node: lambda x: x
PURE["watch"] = lambda node: lambda x: x
