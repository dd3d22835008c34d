"""`linearize`: the derivative at a point, as a function that may be called many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, is_weak, type_of
from ctrlgrad.frontend.checks import same_structure
from ctrlgrad.frontend.float0 import float0_like, is_float0
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.ir import TensorType
from ctrlgrad.source import here
from ctrlgrad.transforms.grad import vjp
from ctrlgrad.transforms.tracing import float_positions


def linearize(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The result of `fn(*primals)` and its derivative there, a linear function of tangents; as `jax.linearize`.

    The derivative may be called many times; the forward pass is not repeated, since it is the transpose of the
    pullback, which is linear: what the pullback has saved serves it too (Frostig et al., "Decomposing reverse-mode
    automatic differentiation", 2021, the other way round).

    Args:
        fn: returns any pytree of arrays; with `has_aux` a pair of it and another one, which is handed on.
        primals: pytrees of arrays.

    Returns:
        (outputs, push), with `has_aux` (outputs, push, aux): `push(*tangents)` takes a pytree like each primal and
        returns one like the outputs. The tangent of an integer or boolean output is of dtype `float0`.

    >>> import ctrlgrad as cg
    >>> y, push = cg.linearize(lambda x: x * x, 3.0)
    >>> float(y), float(push(1.0)), float(push(2.0))
    (9.0, 6.0, 12.0)
    """
    outputs, pullback, *aux = vjp(fn, *primals, has_aux=has_aux)
    inputs, inputs_treedef = tree.flatten(primals)
    results, results_treedef = tree.flatten(outputs)
    moving, moved = float_positions(inputs), float_positions(results)

    def pull(*cotangents: Any) -> list[Any]:
        given = dict(zip(moved, cotangents, strict=True))
        found = tree.leaves(pullback(tree.unflatten(results_treedef, [given.get(i, y) for i, y in enumerate(results)])))
        return [found[i] for i in moving]

    # Linear: where it is differentiated does not matter.
    _, transpose = vjp(pull, *(FUNCTIONS["zeros_like"](results[i]) for i in moved))

    def push(*tangents: Any) -> Any:
        given, given_treedef = tree.flatten(tangents)
        labels = ("the primals", "the tangents")
        same_structure("linearize", here(), labels, (inputs, inputs_treedef), (given, given_treedef))
        directions = []
        for i in moving:
            t, direction = type_of(inputs[i]), given[i]
            if isinstance(t, TensorType) and not is_float0(direction) and is_weak(direction):
                direction = cast(direction, t.dtype)
            if is_float0(direction) or not t.accepts(type_of(direction)):
                raise TypeMismatchError(
                    f"linearize: the tangent{tree.paths(inputs_treedef)[i]} does not fit its primal",
                    source=here(),
                    expected=str(t),
                    got="float0" if is_float0(direction) else str(type_of(direction)),
                    hint="a tangent has the dtype and shape of its primal: numpy.ones_like(primal)",
                )
            directions.append(direction)
        found = dict(zip(moved, transpose(directions), strict=True))
        tangent = [found[i] if i in found else float0_like(y) for i, y in enumerate(results)]
        return tree.unflatten(results_treedef, tangent)

    return (outputs, push, *aux)
