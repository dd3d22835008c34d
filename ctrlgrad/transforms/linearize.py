"""`linearize`: the derivative at a point, as a function that may be called many times; `linear_transpose`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, float0_like, is_float0, is_weak, type_of
from ctrlgrad.frontend.checks import same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.ir import TensorType
from ctrlgrad.source import here
from ctrlgrad.transforms.grad import pulled
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
        returns one like the outputs. The tangent of an integer or boolean primal or output is of dtype `float0`. It is
        a pytree of what the forward pass saved, so a traced function may return it.

    >>> y, push = cg.linearize(lambda x: x * x, 3.0)
    >>> float(y), float(push(1.0)), float(push(2.0))
    (9.0, 6.0, 12.0)
    """
    outputs, pullback, *aux = pulled("linearize", fn, primals, has_aux)
    inputs, inputs_treedef = tree.flatten(primals)
    results, results_treedef = tree.flatten(outputs)
    moving, moved = float_positions(inputs), float_positions(results)

    def pull(pullback: Any, *cotangents: Any) -> list[Any]:
        given = dict(zip(moved, cotangents, strict=True))
        found = tree.leaves(pullback(tree.unflatten(results_treedef, [given.get(i, y) for i, y in enumerate(results)])))
        return [found[i] for i in moving]

    # Linear: where it is differentiated does not matter.
    zeros = tuple(FUNCTIONS["zeros_like"](results[i]) for i in moved)
    _, transpose = pulled("linearize", pull, (pullback, *zeros), linear=True, fixed=1)

    def push(transpose: Any, *tangents: Any) -> Any:
        given, given_treedef = tree.flatten(tangents)
        labels = ("the primals", "the tangents")
        same_structure("linearize", here(), labels, (inputs, inputs_treedef), (given, given_treedef))
        directions = []
        for i, x in enumerate(inputs):
            t, direction, none = type_of(x), given[i], is_float0(given[i])
            if i in moving and isinstance(t, TensorType) and not none and is_weak(direction):
                direction = cast(direction, t.dtype)
            if none == (i in moving) or (not none and not t.accepts(type_of(direction))):
                raise TypeMismatchError(
                    f"linearize: the tangent{tree.paths(inputs_treedef)[i]} does not fit its primal",
                    expected=str(t) if i in moving else "float0",
                    got="float0" if none else str(type_of(direction)),
                    hint="a tangent has the dtype and shape of its primal: numpy.ones_like(primal); that of an\n"
                    "integer is np.zeros(shape, ctrlgrad.float0)",
                )
            if not none:
                directions.append(direction)
        found = dict(zip(moved, transpose(directions)[1:], strict=True))
        tangent = [found[i] if i in found else float0_like(y) for i, y in enumerate(results)]
        return tree.unflatten(results_treedef, tangent)

    return (outputs, tree.Partial(push, transpose), *aux)


def linear_transpose(fn: Callable[..., Any], *primals: Any) -> Callable[[Any], tuple[Any, ...]]:
    """The transpose of a function that is linear in all of its arguments; as `jax.linear_transpose`.

    Args:
        fn: returns a pytree of arrays, linear in its arguments.
        primals: pytrees of arrays like those that `fn` takes, or of `TensorSpec`s and other objects with `shape` and
            `dtype`; of floats. Their values do not matter.

    Returns:
        A function of a pytree like the result of `fn` to a tuple of one pytree per argument: a pytree itself, as the
        pullback of `vjp`.

    >>> (x,) = cg.linear_transpose(lambda x: np.array([[1.0, 2.0], [0.0, 1.0]]) @ x, np.zeros(2))(np.array([1.0, 1.0]))
    >>> x
    array([1., 3.])
    """
    leaves, treedef = tree.flatten(primals)
    points = []
    for x, path in zip(leaves, tree.paths(treedef), strict=True):
        dtype, shape = (x.dtype, x.shape) if hasattr(x, "dtype") else (np.asarray(x).dtype, np.shape(x))
        if dtype_kind(np.dtype(dtype)) not in "fc":
            raise TypeMismatchError(
                f"linear_transpose: the argument{path} is no float",
                expected="floats: a linear function of integers has no transpose",
                got=str(dtype),
                hint="close over it, or pass x.astype(float)",
            )
        points.append(FUNCTIONS["zeros"](shape, dtype))
    return pulled("linear_transpose", fn, tree.unflatten(treedef, points), linear=True)[1]  # type: ignore[no-any-return]
