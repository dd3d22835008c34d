"""How loops, branches and calls run, and the ops that look in: all of them need the run or the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad.engines.reference.interpreter import Kernels, Values, compile_graph
from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.reference.table import IN_PLACE, PURE
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError
from ctrlgrad.ir import Node


def _while(node: Node, kernels: Kernels) -> Callable[[Values, Run], Any]:
    captures = node.attrs["captures"]
    maximum = node.attrs.get("maximum_iterations")
    backwards = node.attrs.get("counts_down", False)
    cond, body = (compile_graph(region, kernels) for region in node.regions)

    def kernel(values: Values, run: Run) -> Any:
        shared = values[:captures]
        carry = values[captures:]
        values.clear()
        trips = 0
        # A reversed loop starts from the number of iterations and counts down.
        first = int(carry[0]) - 1 if backwards else 0
        step = -1 if backwards else 1
        run.iterations.append(first)
        try:
            while cond(shared + carry, run)[0]:
                if trips == maximum:
                    raise MaximumIterationsError(
                        f"while_loop: the condition still holds after maximum_iterations={maximum} iterations",
                        source=node.source,
                        expected=f"a condition that is false after at most {maximum} iterations",
                        got=f"true after {trips} iterations",
                        hint="raise maximum_iterations, or check that the condition becomes false",
                    )
                arguments = shared + carry
                carry = []
                carry = body(arguments, run)
                del arguments
                trips += 1
                run.iterations[-1] += step
        except CtrlgradError as error:
            if not isinstance(error, MaximumIterationsError) or error.source is not node.source:
                error.notes.append(f"in iteration {run.iterations[-1]} of the {loop_name(node)}")
            raise
        finally:
            run.iterations.pop()
        run.counters.looped(node, trips)
        return carry if len(carry) != 1 else carry[0]

    return kernel


def loop_name(node: Node) -> str:
    """How a loop is called in an error."""
    name = node.attrs.get("name") or "while_loop"
    return f"{name} at {node.source}" if node.source else str(name)


def _cond(node: Node, kernels: Kernels) -> Callable[[Values, Run], Any]:
    branches = [compile_graph(region, kernels) for region in node.regions]
    last = len(branches) - 1

    def kernel(values: Values, run: Run) -> Any:
        chosen = min(max(int(values.pop(0)), 0), last)
        arguments = list(values)
        values.clear()
        results = branches[chosen](arguments, run)
        return results if len(results) != 1 else results[0]

    return kernel


def _call(node: Node, kernels: Kernels) -> Callable[[Values, Run], Any]:
    function = compile_graph(node.regions[0], kernels)

    def kernel(values: Values, run: Run) -> Any:
        arguments = list(values)
        values.clear()
        results = function(arguments, run)
        return results if len(results) != 1 else results[0]

    return kernel


CONTROL = {"call": _call, "while": _while, "cond": _cond}


def _callback(node: Node) -> Callable[[Values, Run], Any]:
    fn = node.attrs["fn"]

    def kernel(values: Values, run: Run) -> Any:
        fn(values, tuple(run.iterations))
        return ()

    return kernel


IN_PLACE["callback"] = _callback
PURE["forget_sizes"] = lambda node: lambda x: x
PURE["barrier"] = lambda node: lambda x: x
PURE["watch"] = lambda node: lambda x: x
