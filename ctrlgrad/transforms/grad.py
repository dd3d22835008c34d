"""`value_and_grad`, `grad` and `vjp`, by reverse mode, and `stop_gradient`.

Each transform traces its function into a graph of its own, differentiates that, and inlines the result into the
trace around it, so transforms compose in any order and to any depth.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.batching import batch_whole
from ctrlgrad.errors import DifferentiationError, TypeMismatchError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import EagerStack, as_array, cast, evaluate, is_weak, type_of, value_in
from ctrlgrad.frontend.array.promote import ensured, unknown_axes
from ctrlgrad.frontend.checks import check_function, check_leaves, explains_calls, same_structure, structure
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import Mapped, is_mapped, recorder
from ctrlgrad.function import Function, hand_out
from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.gradients.later import Derivative, Part, is_batched_first, reversed_once
from ctrlgrad.gradients.manner import current_manner
from ctrlgrad.ir import Builder, TensorType
from ctrlgrad.signature import StaticArguments
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.tracing import (
    TracedFunction,
    check_argnums,
    check_complex,
    check_differentiable,
    chosen_paths,
    float_positions,
    leaf_names,
    not_linear,
    record_derivative,
    trace_function,
    with_float0,
    without_aux,
)
from ctrlgrad.transforms.transformed import Transformed, all_but

_LIKE_THE_OUTPUT = "a cotangent has the dtype and shape of its output: numpy.ones_like(output)"


@explains_calls
def value_and_grad(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """A function that returns `fn(*args)` and its gradient; as `jax.value_and_grad`.

    Python integers, booleans, strings and None that are not differentiated reach `fn` as they are.

    Args:
        fn: returns a float scalar, or with `has_aux` a pair of it and any pytree, whose leaves may be of any type.
        argnums: which positional arguments to differentiate: an int, or several for a tuple of gradients.
        holomorphic: `fn` is a holomorphic function; arguments and result are complex, and so is the derivative.
        allow_int: integers among what is differentiated have a gradient of dtype `float0`, which holds nothing.
        static_argnums, static_argnames: further arguments that reach `fn` as they are, as for `ctrlgrad.function`.

    Raises (when called):
        DifferentiationError: the result is no float scalar, or an argument to differentiate is no float.

    >>> value, gradient = cg.value_and_grad(lambda x: x ** 3)(2.0)
    >>> float(value), float(gradient)
    (8.0, 12.0)
    >>> float(cg.grad(lambda x, n, plus: sum(x for _ in range(n)) + (1 if plus else 0))(2.0, 3, plus=True))
    3.0
    """

    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        source = here()
        numbers = check_argnums("grad", argnums, args)
        chosen = [args[n] for n in numbers]
        leaves, treedef = tree.flatten(tuple(chosen))
        paths = chosen_paths(fn, args, numbers)
        check_leaves("grad: an argument", leaves, paths)
        floats = float_positions(leaves) if allow_int else range(len(leaves))
        if not allow_int:
            check_differentiable("grad", leaves, paths, source)
        if holomorphic:
            check_complex("grad", "an argument", leaves, holomorphic, source)

        def call(tensors: list[Any]) -> Any:
            replaced = list(args)
            for n, x in zip(numbers, tree.unflatten(treedef, tensors), strict=True):
                replaced[n] = x
            return _loss(fn(*replaced, **kwargs), has_aux, holomorphic, source)

        traced = trace_function(fn, leaves, leaf_names(fn, args, numbers), call)
        halves = _halves(traced, floats, (0,), selected=False)
        outputs, back = _recorded(halves, traced, floats, leaves, selected=False)
        found = back([cast(1.0, traced.graph.outputs[0].tensor.dtype)])
        value = tree.unflatten(traced.treedef, outputs)
        gradient = tree.unflatten(treedef, with_float0(leaves, dict(zip(floats, found, strict=True))))
        if not isinstance(argnums, tuple | list):
            (gradient,) = gradient
        return value, gradient

    static = StaticArguments("value_and_grad", fn, static_argnums, static_argnames)
    return Transformed(value_and_gradient, fn, "value_and_grad", all_but(argnums), static)


@explains_calls
def grad(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """A function that returns the gradient of `fn`; as `jax.grad`. Its result can be differentiated again.

    With `has_aux` it returns (gradient, aux). See `value_and_grad`.

    >>> cube = lambda x: x ** 3
    >>> float(cg.grad(cube)(2.0)), float(cg.grad(cg.grad(cube))(2.0))
    (12.0, 12.0)
    """
    static = StaticArguments("grad", fn, static_argnums, static_argnames)
    both = value_and_grad(fn, argnums, has_aux, holomorphic, allow_int)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both.fn(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return Transformed(gradient, fn, "grad", all_but(argnums), static)


def _loss(result: Any, has_aux: bool, holomorphic: bool, source: Source | None) -> Any:
    loss, aux = without_aux("grad", result, source) if has_aux else (result, None)
    leaves = tree.leaves(loss)
    check_leaves("grad: the result", leaves)
    t = type_of(leaves[0]) if len(leaves) == 1 else None
    if isinstance(t, TensorType) and t.rank == 0:
        check_complex("grad", "the function's result", leaves, holomorphic, source)
    if not isinstance(t, TensorType) or t.rank != 0 or not t.is_differentiable:
        raise DifferentiationError(
            "grad: the function's result is not a float scalar",
            source=source,
            expected="one value of type f32[] or f64[]",
            got=", ".join(str(type_of(x)) for x in leaves) or "nothing",
            hint=_hint_of_a_loss(loss, leaves),
        )
    return (loss, aux) if has_aux else loss


def _hint_of_a_loss(result: Any, leaves: Sequence[Any]) -> str:
    if not leaves:
        return "return the loss: a function without `return` gives None"
    if isinstance(result, tuple | list) and len(result) == 2 and isinstance(type_of(leaves[0]), TensorType):
        return "where the loss comes first and the rest is only handed on, say has_aux=True; or use ctrlgrad.vjp"
    return "reduce it with .sum() or .mean(), or use ctrlgrad.vjp with a cotangent"


def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The result of `fn(*primals)` and its pullback; as `jax.vjp`.

    Args:
        fn: returns any pytree of arrays; with `has_aux` a pair of it and another one of any leaves, which is not
            differentiated.
        primals: pytrees of arrays; all are differentiated.

    Returns:
        (outputs, pullback), with `has_aux` (outputs, pullback, aux): `pullback(cotangents)` takes a pytree like the
        outputs and returns a tuple with one pytree of cotangents per primal, of dtype `float0` for integers. It may
        be called many times; the forward pass is not repeated. It is a pytree of what the forward pass saved, so a
        traced function may return it.

    >>> y, pullback = cg.vjp(lambda a, b: a * b, 2.0, 3.0)
    >>> [float(g) for g in pullback(1.0)]
    [3.0, 2.0]
    """
    return pulled("vjp", fn, primals, has_aux)


def pulled(
    operation: str,
    fn: Callable[..., Any],
    primals: tuple[Any, ...],
    has_aux: bool = False,
    *,
    linear: bool = False,
    fixed: int = 0,
) -> Any:
    """Work of `vjp`. With `linear` the function has to be linear, and the primals do not matter.

    The first `fixed` primals are not differentiated: their cotangents are of dtype `float0`.
    """
    source = here()
    check_function(operation, fn)
    leaves, treedef = tree.flatten(primals)
    check_leaves(f"{operation}: a primal", leaves)
    first = len(tree.leaves(primals[:fixed]))
    floats = [i for i in float_positions(leaves) if i >= first]
    hints = leaf_names(fn, primals, range(len(primals)))

    def call(tensors: list[Any]) -> Any:
        result = fn(*tree.unflatten(treedef, tensors))
        return without_aux(operation, result, source) if has_aux else (result, None)

    traced = trace_function(fn, leaves, hints, call)
    result, _ = tree.unflatten(traced.treedef, range(len(traced.leaves)))
    result_treedef = tree.flatten(result)[1]
    count = result_treedef.num_leaves
    seeded = tuple(i for i, v in enumerate(traced.graph.outputs[:count]) if v.type.is_differentiable)
    halves = _halves(traced, floats, seeded)
    if linear and not halves.is_of_linear_map:
        raise not_linear(operation, source)
    residuals: list[Any]
    back = None
    if trace.current() is None:
        # Copies: the pullback must not see what the caller does to his arrays, nor to the outputs.
        own = [x if isinstance(x, EagerStack) else np.array(as_array(x)) for x in leaves]
        results = evaluate(halves.forward, [*traced.captures, *own])
        split = len(results) - halves.residuals
        residuals = results[split:]
        outputs = hand_out(traced.graph, results[:split], residuals)
    else:
        outputs, back = _recorded(halves, traced, floats, leaves)
        residuals = back.residuals
    # The sizes of outputs that only a run tells: cotangents must have them.
    unknown = {i: unknown_axes(traced.graph.outputs[i].type) for i in seeded}
    sizes = [outputs[i].shape[axis] for i, axes in unknown.items() for axis in axes]

    def pull(saved: tuple[list[Any], list[Any]], *given_cotangents: Any) -> tuple[Any, ...]:
        if len(given_cotangents) != 1:
            raise TypeMismatchError(
                f"{operation}: the pullback takes one pytree of cotangents",
                expected=f"the structure of the outputs, {structure(result_treedef)}",
                got=f"{len(given_cotangents)} arguments",
                hint="the cotangents of several outputs are passed as the outputs are returned: pullback((a, b))",
            )
        (cotangents,) = given_cotangents
        residuals, sizes = saved
        size = iter(sizes)
        given, given_treedef = tree.flatten(cotangents)
        labels = ("the outputs", "the cotangents")
        same_structure(operation, here(), labels, (outputs[:count], result_treedef), (given, given_treedef))
        seeds = []
        for i in seeded:
            t = traced.graph.outputs[i].type
            seed = cast(given[i], t.dtype) if isinstance(t, TensorType) and is_weak(given[i]) else given[i]
            if not t.accepts(type_of(seed)):
                raise TypeMismatchError(
                    f"{operation}: a cotangent does not fit its output",
                    expected=str(t),
                    got=str(type_of(seed)),
                    hint=_LIKE_THE_OUTPUT,
                )
            required = {axis: next(size) for axis in unknown[i]}
            seeds.append(ensured(seed, required, f"{operation}: a cotangent does not fit its output", _LIKE_THE_OUTPUT))
        if trace.current() is None:
            found: Any = hand_out(halves.backward, evaluate(halves.backward, [*residuals, *seeds]), seeds)
        elif back is not None and back.is_seen_with(residuals):
            found = back(seeds)
        else:
            found = _inline_backward(halves, residuals, seeds)
        return tree.unflatten(treedef, with_float0(leaves, dict(zip(floats, found, strict=True))))  # type: ignore[no-any-return]

    result, aux = tree.unflatten(traced.treedef, outputs)
    pullback = tree.Partial(pull, (residuals, sizes))
    return (result, pullback, aux) if has_aux else (result, pullback)


def _halves(
    traced: TracedFunction, floats: Iterable[int], seeded: tuple[int, ...], *, selected: bool = True
) -> Pullback:
    """The function differentiated with respect to those of its own inputs; once, where another trace made its graph.

    `selected`: see `reverse`.
    """
    wrt = tuple(traced.wrt[i] for i in floats)
    return reversed_once(traced.graph, wrt, seeded, batch_whole, selected, current_manner())


class _Back:
    """The backward half of a recorded function: a call with the cotangents of outputs gives those of the arguments."""

    def __init__(self, halves: Pullback, saved: Callable[[], Sequence[Any]]) -> None:
        self.halves = halves
        self._saved = saved

    @cached_property
    def residuals(self) -> list[Any]:
        return [*self._saved()]

    def is_seen_with(self, residuals: Sequence[Any]) -> bool:
        """True if these are the residuals, and not what a loop, for one, has made of them."""
        return len(residuals) == len(self.residuals) and all(map(operator.is_, residuals, self.residuals))

    def __call__(self, seeds: Sequence[Any]) -> list[Tensor]:
        return _inline_backward(self.halves, self.residuals, seeds)


class _BackLater(_Back):
    """One that `vmap` takes after it has batched the function; in a loop, of the residuals of each row."""

    def __init__(self, halves: Pullback, recorded: Callable[..., list[Tensor]]) -> None:
        super().__init__(halves, lambda: recorded(Part.RESIDUALS))
        self.recorded, self.builder = recorded, recorder()

    def __call__(self, seeds: Sequence[Any]) -> list[Tensor]:
        builder: Builder | None = recorder()
        while isinstance(builder, Mapped) and builder is not self.builder:
            builder = builder.parent
        return self.recorded(Part.COTANGENTS, seeds) if builder is self.builder else super().__call__(seeds)


def _recorded(
    halves: Pullback, traced: TracedFunction, floats: Iterable[int], leaves: Sequence[Any], *, selected: bool = True
) -> tuple[list[Any], _Back]:
    """Record the function into the current trace; returns its outputs and its backward half."""
    builder = recorder()
    values = [value_in(builder, x) for x in leaves]
    if is_mapped(builder) and is_batched_first(traced.graph):
        count = len(traced.graph.outputs)
        rule = Derivative(Part.OUTPUTS, count, tuple(floats), halves.seeded, batch_whole, selected, traced=halves)
        record = partial(record_derivative, rule, traced, [Tensor(builder, v) for v in values])
        return record(Part.OUTPUTS), _BackLater(halves, record)
    results = [Tensor(builder, v) for v in builder.inline(halves.forward, [*traced.captures, *values])]
    split = len(results) - halves.residuals
    return results[:split], _Back(halves, lambda: results[split:])


def _inline_backward(halves: Pullback, residuals: Sequence[Any], seeds: Sequence[Any]) -> list[Tensor]:
    """Record the backward half into the current trace; returns the cotangents."""
    builder = recorder()
    given = [value_in(builder, x) for x in (*residuals, *seeds)]
    return [Tensor(builder, v) for v in builder.inline(halves.backward, given)]


def stop_gradient(x: Any) -> Any:
    """The same values with derivative zero, leaf by leaf; as `jax.lax.stop_gradient`.

    >>> float(cg.grad(lambda x: x * cg.stop_gradient(x))(3.0))
    3.0
    """
    if callable(x) and tree.flatten(x)[0] == [x]:
        raise TypeMismatchError(
            "stop_gradient: a function has no derivative to stop",
            expected="pytrees of arrays",
            got=getattr(x, "__name__", type(x).__name__),
            hint="stop that of its result: lambda x: ctrlgrad.stop_gradient(fn(x))",
        )
    return tree.map(_stop_leaf, x)


def _stop_leaf(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.type.is_differentiable:
        return x
    builder = recorder()
    return Tensor(builder, builder.emit("stop_gradient", [value_in(builder, x)], source=here()), x.weak)
