"""Result of a transform: a function that runs as a graph, but whose Python code sees the user's state at each call.

JAX's transforms are not compiled: at each call they see the current values of the user's globals, closures, attributes
and arrays, and a flag or a count beside the weights is a Python value in the function that is differentiated. Here a
transformed function is compiled as a whole, and three rules give the same behaviour:

- Each call traces the function. Compiled code is reused for traces that differ in constants alone
  (`ir/interning.py`). A signature has only the types that its last trace had, so sizes that differ become unknown.

- Python integers and booleans that are not differentiated are part of the signature: each value has a graph.
- If tracing needs a number (an `if` on an array, a `while` on a differentiated value), the arguments stay concrete: the
  call is traced anew each time, over the differentiated values alone, and follows the path that their numbers take
  (`frontend/tracer.py`). Its compiled code is reused, since numbers from outside are inputs of such a graph. Any other
  error is raised at once: the user's function is not called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.errors import ShapeError, TracingError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import evaluate, without_numbers
from ctrlgrad.frontend.tracer import Traced, set_aside
from ctrlgrad.frontend.watched import Watched
from ctrlgrad.function import Function, hand_out
from ctrlgrad.ir import Type
from ctrlgrad.ir.interning import lift_constants, shared
from ctrlgrad.passes.dead_code import without_calls
from ctrlgrad.signature import Concrete, Signature, StaticArguments, python_values_static
from ctrlgrad.transforms.tracing import renamed

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Transformed(Function):
    """The function that a transform makes of `fn`.

    Args:
        wrapper: does it, in a trace.
        mark: gives the arguments with what is part of the signature marked as `Static`.
    """

    def __init__(
        self,
        wrapper: Callable[..., Any],
        fn: Callable[..., Any],
        prefix: str,
        mark: Callable[[tuple[Any, ...], dict[str, Any]], Arguments],
        static: StaticArguments | None = None,
    ) -> None:
        super().__init__(renamed(wrapper, fn, prefix), "auto", None, None, static)
        self.mark = mark

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result; a second one that `has_aux` hands on may hold leaves that are no arrays."""
        return set_aside(self.fn(*args, **kwargs))

    def _marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        return self.mark(*super()._marked(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if trace.current() is not None:
            return self.fn(*args, **kwargs)
        try:
            return self._traced_and_run(*self._marked(args, kwargs))[-1]
        except TracingError as error:
            if not error.asks_for_values:
                raise
        return self._on_values(args, kwargs)

    def _known_for(self, known: Signature, types: list[Type], leaves: list[Any], treedef: tree.TreeDef) -> Concrete:
        """A new trace, for the types that the last one of this signature had, if these fit them."""
        if known.refused is not None:
            raise known.refused
        found = next((x for x in known.variants if x.accepts(types)), None)
        try:
            if found is None:
                return self._trace_new(known, types, leaves, treedef)
            try:
                return self._trace(found.types, leaves, treedef)
            except (TracingError, ShapeError):
                if list(found.types) == types:
                    raise
            # By now the function uses its sizes as Python numbers.
            known.exact_only = True
            known.variants.remove(found)
            return self._trace_new(known, types, leaves, treedef)
        except TracingError as error:
            if error.refused:
                # Kept without the trace that it stands in.
                error.asks_for_values, error.refused = True, ()
                known.refused = error.with_traceback(None)
            raise

    def _watch(self, given: list[Any], captured: list[np.ndarray]) -> Watched:
        """Nothing: each call traces."""
        return Watched()

    def _on_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result for concrete arguments, of which those are traced alone that are differentiated."""
        traced = Traced(self.name, lambda _: self._called(args, kwargs), what=f"{self.name}: the result", known=())
        graph, arrays = lift_constants(traced.finish())
        graph, captured = shared(without_calls(graph))
        results = hand_out(graph, evaluate(graph, [*arrays, *captured]), arrays)
        return tree.unflatten(traced.treedef, [*map(without_numbers, traced.leaves, results)])


def all_but(numbers: int | Sequence[int]) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    """Marks Python values in all arguments but those at `numbers`, which are differentiated."""
    chosen = numbers if isinstance(numbers, tuple | list) else (numbers,)

    def mark(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        differentiated = {n % len(args) for n in chosen if isinstance(n, int) and args}
        given = tuple(x if n in differentiated else python_values_static(x) for n, x in enumerate(args))
        return given, python_values_static(kwargs)

    return mark
