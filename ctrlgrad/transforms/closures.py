"""Functions that close over traced values, made into functions that take them: `closure_convert`, `custom_gradient`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.checks import check_function, check_leaves, same_structure
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Traced, in_trace, leaves_of
from ctrlgrad.ir import close
from ctrlgrad.source import here
from ctrlgrad.transforms.custom_calls import name_of
from ctrlgrad.transforms.custom_vjp import custom_vjp


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A function without the traced values that `fun` closes over, and these values; as `jax.closure_convert`.

    With `converted, consts = closure_convert(fun, *example_args)`, `converted(*args, *consts)` is `fun(*args)`. A
    function with a rule of its own takes such values as arguments, since it cannot see what its callbacks close over.

    Args:
        fun: takes and returns pytrees of arrays.
        example_args: of the types, shapes and structure that `converted` will be called with.

    Raises:
        TypeMismatchError (when called): the arguments do not have the structure of `example_args` and the values.

    >>> def times(w):
    ...     converted, consts = closure_convert(lambda x: w * x, 1.0)
    ...     return converted(5.0, *consts) * len(consts)
    >>> float(cg.grad(times)(2.0))
    5.0
    """
    if trace.current() is None:
        return fun, []
    source = here()
    leaves, treedef = tree.flatten(example_args)
    check_leaves("closure_convert: an example argument", leaves)
    inputs = leaves_of(leaves, [None] * len(leaves))
    traced = Traced(
        "closure",
        lambda xs: fun(*tree.unflatten(treedef, xs)),
        inputs,
        what="closure_convert: the result",
        known=leaves,
    )
    closed = close([traced.finish()])
    builder = recorder()
    # Values without a derivative stay closed over, as in JAX.
    floats = [i for i, v in enumerate(closed.captures) if v.type.is_differentiable]
    count = len(floats)

    def converted(*args: Any) -> Any:
        given, given_treedef = tree.flatten(args)
        labels = ("the example arguments and the values closed over", "the arguments")
        _, wanted = tree.flatten((*example_args, *range(count)))
        same_structure("closure_convert", source, labels, (leaves + [0] * count, wanted), (given, given_treedef))
        split = len(given) - count

        def record() -> Any:
            here_now = recorder()
            captured = {i: Tensor(builder, v) for i, v in enumerate(closed.captures)}
            captured.update(zip(floats, given[split:], strict=True))
            values = [value_in(here_now, x) for x in (*captured.values(), *given[:split])]
            results = here_now.inline(closed.regions[0], values)
            return tree.unflatten(traced.treedef, [Tensor(here_now, v) for v in results])

        return in_trace(record)

    return converted, [Tensor(builder, closed.captures[i]) for i in floats]


def custom_gradient(fun: Callable[..., Any]) -> Any:
    """A function that gives its own derivative beside its value; as `jax.custom_gradient` (and TensorFlow's).

    Args:
        fun: returns (result, backward): `backward(cotangent)` gives the cotangent of each argument, as a tuple, or for
            one argument as it is. It may use what `fun` computed.

    >>> @cg.custom_gradient
    ... def safe_log(x):
    ...     return np.log(x), lambda ct: ct / np.maximum(x, 1e-3)
    >>> float(cg.grad(safe_log)(0.0)), float(cg.grad(safe_log)(2.0))
    (1000.0, 0.5)
    """
    check_function("custom_gradient", fun)

    def both(*args: Any) -> tuple[Any, Callable[..., Any]]:
        found = fun(*args)
        if not isinstance(found, tuple | list) or len(found) != 2 or not callable(found[1]):
            raise TypeMismatchError(
                f"custom_gradient {name_of(fun)}: the function does not return a pair",
                expected="(result, function of the result's cotangent)",
                got=type(found).__name__,
                hint="return the value and the backward function as a tuple",
            )
        return found[0], found[1]

    @functools.wraps(fun)
    def result(*args: Any) -> Any:
        return both(*args)[0]

    function = custom_vjp(result)

    def forward(*args: Any) -> tuple[Any, Any]:
        value, backward = both(*args)
        converted, closed_over = closure_convert(backward, value)

        def pull(consts: list[Any], cotangent: Any) -> tuple[Any, ...]:
            cotangents = converted(cotangent, *consts)
            is_tuple = isinstance(cotangents, tuple | list)
            return tuple(cotangents) if is_tuple and len(cotangents) == len(args) else (cotangents,)

        return value, tree.Partial(pull, closed_over)

    function.defvjp(forward, lambda pull, cotangent: pull(cotangent))
    return function
