"""`jvp`: the derivative along a direction, by forward mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.batching import batch_whole
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, is_weak, type_of, value_in
from ctrlgrad.frontend.checks import check_leaves, same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import in_trace
from ctrlgrad.gradients.forward import push_forward
from ctrlgrad.ir import TensorType
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.tracing import check_differentiable, chosen_paths, leaf_names, trace_function


def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The result of `fn(*primals)` and its derivative along `tangents`, by forward mode; as `jax.jvp`.

    Args:
        fn: returns any pytree of arrays.
        primals: a tuple of pytrees of float arrays.
        tangents: a tuple of pytrees like them.

    Returns:
        (outputs, tangents of the outputs); the tangent of an integer or boolean output is zeros of its dtype.

    Needs the memory of one iteration however long a loop is.

    >>> import ctrlgrad as cg
    >>> y, t = cg.jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> float(y), float(t)
    (9.0, 6.0)
    """
    source = here()
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple | list):
            raise TypeMismatchError(
                f"jvp: the {name} are not a tuple",
                source=source,
                expected="a tuple with one entry per argument of the function",
                got=type(given).__name__,
                hint="for one argument: jvp(fn, (x,), (t,))",
            )
    return in_trace(lambda: _jvp(fn, primals, tangents, source))  # type: ignore[no-any-return]


def _jvp(
    fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], source: Source | None
) -> tuple[Any, Any]:
    leaves, treedef = tree.flatten(tuple(primals))
    check_leaves("jvp: a primal", leaves)
    check_differentiable("jvp", leaves, chosen_paths(fn, primals, range(len(primals))), source)
    given, given_treedef = tree.flatten(tuple(tangents))
    check_leaves("jvp: a tangent", given)
    same_structure("jvp", source, ("primals", "tangents"), (leaves, treedef), (given, given_treedef))
    directions = []
    for x, t, path in zip(leaves, given, tree.paths(treedef), strict=True):
        primal = type_of(x)
        direction = cast(t, primal.dtype) if isinstance(primal, TensorType) and is_weak(t) else t
        if not primal.accepts(type_of(direction)):
            raise TypeMismatchError(
                f"jvp: the tangent{path} does not fit its primal",
                source=source,
                expected=str(primal),
                got=str(type_of(direction)),
                hint="a tangent has the dtype and shape of its primal: numpy.ones_like(primal)",
            )
        directions.append(direction)
    hints = leaf_names(fn, primals, range(len(primals)))
    traced = trace_function(fn, leaves, hints, lambda xs: fn(*tree.unflatten(treedef, xs)))
    pushed = push_forward(traced.graph, traced.wrt, batch_whole)
    builder = recorder()
    given_values = [value_in(builder, x) for x in (*leaves, *directions)]
    results = builder.inline(pushed.graph, [*traced.captures, *given_values])
    outputs = results[: len(traced.graph.outputs)]
    moved = dict(zip(pushed.tangents, results[len(outputs) :], strict=True))
    zero = [
        _zeros_like(Tensor(builder, v)) if i not in moved else Tensor(builder, moved[i]) for i, v in enumerate(outputs)
    ]
    return (
        tree.unflatten(traced.treedef, [Tensor(builder, v) for v in outputs]),
        tree.unflatten(traced.treedef, zero),
    )


def _zeros_like(x: Tensor) -> Any:
    return FUNCTIONS["zeros_like"](x)
