"""Common part of the transforms: trace the function into a graph of its own, check and name its arguments.

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

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import DifferentiationError, TracingError, TypeMismatchError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import evaluate, float0_like, is_weak, type_of, value_in, without_numbers
from ctrlgrad.frontend.checks import argument_names, argument_paths, check_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import Leaf, Traced, leaves_of, set_aside
from ctrlgrad.frontend.watched import Watched
from ctrlgrad.function import Function, hand_out
from ctrlgrad.gradients.later import Derivative, Part
from ctrlgrad.ir import Closed, Graph, TensorType, Type, close, is_call, walk
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.control import emit_call
from ctrlgrad.ir.interning import lift_constants, shared
from ctrlgrad.passes import simplify
from ctrlgrad.passes.dead_code import without_calls
from ctrlgrad.records import record
from ctrlgrad.signature import Concrete, Signature, Static, StaticArguments, TensorSpec, python_values_static, static
from ctrlgrad.source import Source, here


@record(frozen=False)
class TracedFunction:
    """A function traced into a graph over (captures, its own inputs).

    The captures are values of the trace around it; outside of any trace they are arrays.
    """

    captures: tuple[Any, ...]
    graph: Graph
    leaves: list[Any]
    treedef: tree.TreeDef

    @property
    def wrt(self) -> range:
        """The positions of the function's own inputs."""
        return range(len(self.captures), len(self.graph.inputs))


def trace_function(
    fn: Callable[..., Any], leaves: Sequence[Any], hints: Sequence[str | None], call: Callable[[list[Any]], Any]
) -> TracedFunction:
    """Trace `call(tensors)` with one input per leaf; outer tensors that it uses become captures."""
    name = getattr(fn, "__name__", "function").replace("<lambda>", "function")
    traced = Traced(name, call, leaves_of(leaves, hints), what="the differentiated function's result", known=leaves)
    closed = close([traced.finish()])
    traced.known.forget_stacks()
    (graph,) = closed.regions
    if any(map(is_call, walk(graph))):
        # A function with a rule of its own is another one at each trace.
        return TracedFunction(closed.captures, simplify(graph), traced.leaves, traced.treedef)
    # Results cached for the graph of an earlier call are reused: it is simplified, and differentiated, once.
    graph, constants = shared(graph, differentiated=True)
    split, outer = len(graph.inputs) - len(constants), trace.current()
    varying = (
        constants if outer is None else [outer.emit("constant", (), {"value": x, "varies": True}) for x in constants]
    )
    captures = (*varying, *closed.captures)
    graph = _SIMPLIFIED.get(graph, split, lambda: simplify(_last_first(graph, split)))
    return TracedFunction(captures, graph, traced.leaves, traced.treedef)


def record_derivative(
    rule: Derivative, traced: TracedFunction, leaves: Sequence[Any], part: Part, seeds: Sequence[Any] = ()
) -> list[Tensor]:
    """Record results of a derivative that is taken later, as a call, which `vmap` can batch."""
    builder, rule = trace.recorder(), replace(rule, part=part)
    closed = Closed(traced.captures, (rule.graph(traced.graph, len(traced.captures)), traced.graph))
    arguments = [value_in(builder, x) for x in (*leaves, *seeds)]
    return [Tensor(builder, v) for v in emit_call(builder, "derivative", closed, arguments, rule=rule, source=here())]


_SIMPLIFIED: Cache[int, Graph] = Cache(1)


def _last_first(graph: Graph, split: int) -> Graph:
    return Graph((*graph.inputs[split:], *graph.inputs[:split]), graph.nodes, graph.outputs, graph.name)


def check_argnums(operation: str, argnums: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """The chosen positions, counted from the front."""
    numbers = argnums if isinstance(argnums, tuple | list) else (argnums,)
    for n in numbers:
        if not isinstance(n, int) or not -len(args) <= n < len(args):
            raise UserInputError(
                f"{operation}: argnums does not fit the call",
                expected=f"positions among {len(args)} positional arguments",
                got=repr(argnums),
                hint="argnums counts from 0; pass what is to be differentiated by position, not by name",
            )
    found = tuple(n % len(args) for n in numbers)
    if len(set(found)) < len(found):
        raise UserInputError(
            f"{operation}: argnums names an argument twice",
            expected="each position once",
            got=repr(argnums),
            hint="the derivative with respect to an argument is one: use it twice",
        )
    return found


def check_differentiable(operation: str, leaves: Sequence[Any], paths: Sequence[str], source: Source | None) -> None:
    """Refuse to differentiate with respect to what is no float. `paths` are how the user calls the leaves."""
    for x, path in zip(leaves, paths, strict=True):
        t = type_of(x)
        if not t.is_differentiable:
            raise DifferentiationError(
                f"{operation}: the derivative with respect to a value that is not a float",
                source=source,
                expected="float32 or float64 arguments",
                got=f"{path}: {t}",
                hint=("leave it out of argnums" if path.isidentifier() else "pass it alone, outside of argnums")
                + ", or pass it as floats: x.astype(float)",
            )


def float_positions(leaves: Sequence[Any]) -> list[int]:
    """The leaves that have a derivative."""
    return [i for i, x in enumerate(leaves) if type_of(x).is_differentiable]


def with_float0(leaves: Sequence[Any], derivatives: Mapping[int, Any]) -> list[Any]:
    """A derivative for each leaf: those found, by position, and `float0` for what has none."""
    return [derivatives[i] if i in derivatives else float0_like(x) for i, x in enumerate(leaves)]


def without_aux(operation: str, result: Any, source: Source | None) -> tuple[Any, Any]:
    """The result of a function with `has_aux`, which is a pair; of the second, traced leaves alone are traced on."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeMismatchError(
            f"{operation}: with has_aux the function returns a pair",
            source=source,
            expected="(result, aux)",
            got=type(result).__name__,
            hint="return (result, aux) as a tuple, or leave has_aux out",
        )
    return result[0], set_aside(result[1], lambda x: isinstance(x, Tensor))


def check_complex(operation: str, what: str, leaves: Sequence[Any], holomorphic: bool, source: Source | None) -> None:
    """Refuse complex values where one number cannot be their derivative, and real ones with `holomorphic`."""
    for x in leaves:
        t = type_of(x)
        if isinstance(t, TensorType) and t.is_differentiable and (dtype_kind(t.dtype) == "c") != holomorphic:
            raise DifferentiationError(
                f"{operation}: {what} is {'real, with holomorphic=True' if holomorphic else 'complex'}",
                source=source,
                expected="complex values with holomorphic=True, real values without",
                got=str(t),
                hint="holomorphic=True is for holomorphic functions of complex arguments alone;\n"
                "differentiate the real and imaginary parts of complex results, or use ctrlgrad.vjp or ctrlgrad.jvp",
            )


def not_linear(operation: str, source: Source | None) -> DifferentiationError:
    """The error of a function whose derivative is not the same everywhere."""
    return DifferentiationError(
        f"{operation}: the function is not linear",
        source=source,
        expected="sums of arguments, and products of arguments with values that do not depend on them",
        got="a function whose derivative depends on where it is taken",
        hint="ctrlgrad.vjp(fn, x) gives the transpose of its derivative at x",
    )


def renamed(wrapper: Callable[..., Any], fn: Callable[..., Any], prefix: str) -> Callable[..., Any]:
    """The wrapper under a name that says what it makes of `fn`."""
    name = getattr(fn, "__name__", "function").replace("<lambda>", "function")
    wrapper.__name__ = f"{prefix}_{name}"
    wrapper.__doc__ = f"ctrlgrad.{prefix} of {name}.\n\n{inspect.getdoc(fn) or ''}".rstrip()
    wrapper.__wrapped__ = fn  # type: ignore[attr-defined]
    return wrapper


def leaf_names(fn: Callable[..., Any], args: Sequence[Any], numbers: Sequence[int]) -> list[str | None]:
    """Names for the leaves of the arguments at `numbers`."""
    _, treedef = tree.flatten((tuple(args), {}))
    named = list(zip(treedef.paths(), argument_names(fn, treedef), strict=True))
    return [name for n in numbers for path, name in named if path[1] == n]


def chosen_paths(fn: Callable[..., Any], args: Sequence[Any], numbers: Sequence[int]) -> list[str]:
    """Return the leaves of the arguments at `numbers` as the user would write them."""
    _, treedef = tree.flatten((tuple(args), {}))
    named = list(zip(treedef.paths(), argument_paths(fn, treedef), strict=True))
    return [name for n in numbers for path, name in named if path[1] == n]


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
        # The result for concrete arguments, of which those are traced alone that are differentiated.
        traced = Traced(self.name, lambda _: self._called(args, kwargs), what=f"{self.name}: the result", known=())
        graph, arrays = lift_constants(traced.finish())
        graph, captured = shared(without_calls(graph))
        results = hand_out(graph, evaluate(graph, [*arrays, *captured]), arrays)
        return tree.unflatten(traced.treedef, [*map(without_numbers, traced.leaves, results)])

    def _known_for(self, known: Signature, types: list[Type], leaves: list[Any], treedef: tree.TreeDef) -> Concrete:
        """A new trace, for the types that the last one of this signature had, if these fit them."""
        if known.refused is not None:
            raise known.refused
        place = next((i for i, x in enumerate(known.variants) if x.accepts(types)), None)
        try:
            if place is None:
                return self._trace_new(known, types, leaves, treedef)
            return self._trace_again(known, place, types, leaves, treedef)
        except TracingError as error:
            if error.refused:
                # Kept without the trace that it stands in.
                error.asks_for_values, error.refused = True, ()
                known.refused = error.with_traceback(None)
            raise

    def _watch(self, given: list[Any], captured: list[np.ndarray]) -> Watched:
        """Nothing: each call traces."""
        return Watched()


def all_but(numbers: int | Sequence[int]) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    """Marks Python values in all arguments but those at `numbers`, which are differentiated."""
    chosen = numbers if isinstance(numbers, tuple | list) else (numbers,)

    def mark(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        differentiated = {n % len(args) for n in chosen if isinstance(n, int) and args}
        given = tuple(x if n in differentiated else python_values_static(x) for n, x in enumerate(args))
        return given, python_values_static(kwargs)

    return mark


def eval_shape(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes of `fn(*args, **kwargs)`, traced and not run; as `jax.eval_shape`.

    Args:
        fn: returns a pytree of arrays.
        args, kwargs: pytrees of arrays, numbers, `TensorSpec`s, or anything with a shape and a dtype. Other leaves
            reach `fn` as they are.

    Returns:
        A pytree like the result, of `TensorSpec`s; a size that only a run tells is None.

    >>> cg.eval_shape(lambda a, b: a @ b, cg.TensorSpec((2, 3)), np.ones((3, 5)))
    TensorSpec(shape=(2, 5), dtype=dtype('float64'))
    """
    check_function("eval_shape", fn)
    leaves, treedef = tree.flatten((args, kwargs))
    known = [_leaf(x) for x in leaves]
    inputs = [
        Leaf(t, is_weak(x), hint)
        for x, t, hint in zip(leaves, known, argument_names(fn, treedef), strict=True)
        if not isinstance(t, Static)
    ]

    def call(tensors: list[Any]) -> Any:
        given = iter(tensors)
        values = [t.value if isinstance(t, Static) else next(given) for t in known]
        positional, named = tree.unflatten(treedef, values)
        return fn(*positional, **named)

    traced = Traced("eval_shape", call, inputs, what="eval_shape: the function's result")
    return tree.unflatten(traced.treedef, [_spec(type_of(x)) for x in traced.leaves])


def _leaf(x: Any) -> Any:
    """The type of an argument, or the argument itself, marked, where it is no array."""
    if isinstance(x, TensorSpec):
        return x.type
    try:
        return type_of(x)
    except (TypeError, ValueError):
        pass
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return TensorSpec(tuple(x.shape), x.dtype).type
    return static(x)


def _spec(t: Any) -> TensorSpec:
    if not isinstance(t, TensorType):
        raise TypeMismatchError(
            "eval_shape: the function returns a TensorArray", expected="arrays", got=str(t), hint="return array.stack()"
        )
    return TensorSpec(t.shape, t.dtype)
