"""`jvp`: the derivative along a direction, by forward mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.batching import batch_whole
from ctrlgrad.errors import DifferentiationError, TypeMismatchError
from ctrlgrad.frontend.apply import cast, float0_like, is_float0, is_weak, type_of, value_in
from ctrlgrad.frontend.array.promote import ensured, unknown_axes
from ctrlgrad.frontend.checks import check_function, check_leaves, explains_calls, same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import is_mapped, recorder
from ctrlgrad.frontend.tracer import in_trace
from ctrlgrad.gradients.forward import Pushforward, push_forward
from ctrlgrad.gradients.later import Derivative, Part
from ctrlgrad.gradients.manner import Manner, current_manner
from ctrlgrad.ir import TensorType, is_call
from ctrlgrad.ir.caching import Cache
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.tracing import (
    chosen_paths,
    float_positions,
    leaf_names,
    record_derivative,
    trace_function,
    without_aux,
)

# By the positions of the inputs that have a tangent.
_PUSHED: Cache[tuple[tuple[int, ...], Manner], Pushforward] = Cache(4)
_LIKE_THE_PRIMAL = "a tangent has the dtype and shape of its primal: numpy.ones_like(primal)"


@explains_calls
def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The result of `fn(*primals)` and its derivative along `tangents`, by forward mode; as `jax.jvp`.

    Args:
        fn: returns any pytree of arrays; with `has_aux` a pair of it and another one, which is not differentiated.
        primals: a tuple of pytrees of arrays.
        tangents: a tuple of pytrees like them; for an integer or a boolean zeros of dtype `float0`.

    Returns:
        (outputs, tangents of the outputs), with `has_aux` (outputs, tangents, aux); the tangent of an integer or
        boolean output is of dtype `float0`.

    Needs the memory of one iteration however long a loop is.

    >>> y, t = cg.jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> float(y), float(t)
    (9.0, 6.0)
    """
    source = here()
    check_function("jvp", fn)
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple | list):
            raise TypeMismatchError(
                f"jvp: the {name} are not a tuple",
                source=source,
                expected="a tuple with one entry per argument of the function",
                got=type(given).__name__,
                hint="for one argument: jvp(fn, (x,), (t,))",
            )
    return in_trace(lambda: _jvp(fn, primals, tangents, has_aux, source), aside=has_aux)


def _jvp(
    fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool, source: Source | None
) -> Any:
    leaves, treedef = tree.flatten(tuple(primals))
    check_leaves("jvp: a primal", leaves)
    given, given_treedef = tree.flatten(tuple(tangents))
    check_leaves("jvp: a tangent", [t for t in given if not is_float0(t)])
    labels = ("primals", "tangents")
    same_structure("jvp", source, labels, (leaves, treedef), (given, given_treedef))
    directions = {
        i: _direction(x, t, path, source)
        for i, (x, t, path) in enumerate(
            zip(leaves, given, chosen_paths(fn, primals, range(len(primals))), strict=True)
        )
    }
    floats = float_positions(leaves)
    hints = leaf_names(fn, primals, range(len(primals)))

    def call(tensors: list[Any]) -> Any:
        result = fn(*tree.unflatten(treedef, tensors))
        return without_aux("jvp", result, source) if has_aux else (result, None)

    traced = trace_function(fn, leaves, hints, call)
    wrt = tuple(traced.wrt[i] for i in floats)
    key = (wrt, current_manner())
    pushed = _PUSHED.get(traced.graph, key, lambda: push_forward(traced.graph, wrt, batch_whole))
    builder = recorder()
    seeds, count = [directions[i] for i in floats], len(traced.graph.outputs)
    if is_mapped(builder) and any(is_call(node, "derivative") for node in traced.graph.nodes):
        rule = Derivative(Part.TANGENTS, count, tuple(floats), pushed.tangents, batch_whole)
        results = record_derivative(rule, traced, leaves, Part.TANGENTS, seeds)
    else:
        given = [value_in(builder, x) for x in (*leaves, *seeds)]
        results = [Tensor(builder, v) for v in builder.inline(pushed.graph, [*traced.captures, *given])]
    outputs = results[:count]
    moved = dict(zip(pushed.tangents, results[count:], strict=True))
    moving = [moved[i] if i in moved else _standing(y) for i, y in enumerate(outputs)]
    result, aux = tree.unflatten(traced.treedef, outputs)
    tangent, _ = tree.unflatten(traced.treedef, moving)
    return (result, tangent, aux) if has_aux else (result, tangent)


def _standing(y: Tensor) -> Any:
    """The tangent of an output that does not move."""
    return FUNCTIONS["zeros_like"](y) if y.type.is_differentiable else float0_like(y)


def _direction(x: Any, t: Any, path: str, source: Source | None) -> Any:
    """A tangent in the dtype of its primal."""
    primal = type_of(x)
    if not primal.is_differentiable:
        if is_float0(t):
            return t
        raise DifferentiationError(
            "jvp: the derivative with respect to a value that is not a float",
            source=source,
            expected="float32 or float64 primals, or a tangent of dtype ctrlgrad.float0",
            got=f"{path}: {primal}",
            hint="pass it as floats, x.astype(float), or its tangent as numpy.zeros(numpy.shape(x), ctrlgrad.float0)",
        )
    if not is_float0(t):
        direction = cast(t, primal.dtype) if isinstance(primal, TensorType) and is_weak(t) else t
        if primal.accepts(type_of(direction)):
            sizes = {axis: x.shape[axis] for axis in unknown_axes(primal)}
            return ensured(direction, sizes, _misfit(path), _LIKE_THE_PRIMAL)
    raise TypeMismatchError(
        _misfit(path),
        source=source,
        expected=str(primal),
        got="float0, which is for integers and booleans" if is_float0(t) else str(type_of(direction)),
        hint=_LIKE_THE_PRIMAL,
    )


def _misfit(path: str) -> str:
    return f"jvp: the tangent of {path} does not fit its primal"
