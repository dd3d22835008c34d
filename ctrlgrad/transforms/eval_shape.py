"""`eval_shape`: what a function would return, without computing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import is_weak, type_of
from ctrlgrad.frontend.checks import argument_names, check_function
from ctrlgrad.frontend.tracer import Leaf, Traced
from ctrlgrad.ir import TensorType
from ctrlgrad.signature import Static, TensorSpec, static


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
