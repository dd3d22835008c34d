"""`pure_callback`: a value that a Python function computes while the program runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.advice import check_choice, explains_calls
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import apply_all, value_in
from ctrlgrad.frontend.checks import check_leaves, structure
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import TensorType
from ctrlgrad.source import here

_METHODS = (None, "sequential", "expand_dims", "broadcast_all")


@explains_calls
def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, vmap_method: str | None = None, **kwargs: Any
) -> Any:
    """Call `callback(*args, **kwargs)` with arrays while the program runs; as `jax.pure_callback`.

    Args:
        callback: takes the arguments with arrays in place of tensors. It must have no effects: it may be called more
            often than its place is reached (a backward pass computes anew), or not at all where nothing uses a result.
        result_shape_dtypes: a pytree like its result, of anything with a `shape` and a `dtype`, such as `TensorSpec`.
        *args: pytrees of tensors, arrays and numbers.
        vmap_method: the treatment of the call under `vmap`. None refuses it; "sequential" calls it for each row;
            "expand_dims" calls it once for all rows, along a new first axis, which has size 1 where all rows share an
            argument; "broadcast_all" does so with the shared arguments repeated.

    Returns:
        A pytree like `result_shape_dtypes`. It has no derivative, and asking for one is an error: give a function
        around it a rule with `custom_jvp` or `custom_vjp`.

    Raises:
        UserInputError: a `vmap_method` that does not exist.
        TypeMismatchError: while it runs, a result of another shape or dtype than was stated, or more or fewer of them.

    >>> def norm(x):
    ...     return np.float64(np.sqrt((x * x).sum()))
    >>> f = cg.function(lambda x: cg.pure_callback(norm, cg.TensorSpec((), np.float64), x))
    >>> float(f(np.array([3.0, 4.0])))
    5.0
    """
    if not callable(callback):
        raise TypeMismatchError(
            "pure_callback: callback is not a function",
            expected="a function of the arguments, as arrays",
            got=type(callback).__name__,
            hint="pass the function first, then what it returns, then its arguments",
        )
    check_choice("pure_callback", "vmap_method", vmap_method, _METHODS)
    leaves, treedef = tree.flatten((args, kwargs))
    check_leaves("pure_callback: an argument", leaves)
    stated, out = tree.flatten(result_shape_dtypes)
    count = len(stated)
    label = f"pure_callback {getattr(callback, '__name__', type(callback).__name__)}"

    def call(*arrays: Any) -> Any:
        given, named = tree.unflatten(treedef, arrays)
        found, given_back = tree.flatten(callback(*given, **named))
        if len(found) != count:
            raise TypeMismatchError(
                f"{label}: the function returned a pytree of another size than was stated",
                expected=structure(out),
                got=structure(given_back),
                hint="return a pytree like the one of the shapes and dtypes that are stated",
                source=None,
            )
        return found

    for x in stated:
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise UserInputError(
                f"{label}: what the function returns is not stated by shapes and dtypes",
                expected="a pytree of ctrlgrad.TensorSpec, of arrays, or of other objects with a shape and a dtype",
                got=repr(x),
                hint="ctrlgrad.TensorSpec((3,), 'float64')",
            )
    types = [TensorType(np.dtype(x.dtype), tuple(x.shape)) for x in stated]
    return tree.unflatten(out, host_call(call, leaves, types, label, vmap_method))


def host_call(
    fn: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    results: Sequence[TensorType],
    label: str,
    vmap_method: str | None = None,
) -> Sequence[Any]:
    """The results of these types that `fn(*arrays)` gives.

    In a trace it is recorded, known operands or not: its place may be one that is never reached.
    """
    attrs = {"fn": fn, "label": label, "results": tuple(results), "vmap_method": vmap_method}
    builder = trace.current()
    if builder is None:
        return apply_all("pure_callback", operands, attrs)
    values = builder.emit_all("pure_callback", [value_in(builder, x) for x in operands], attrs, source=here())
    return [Tensor(builder, v) for v in values]
