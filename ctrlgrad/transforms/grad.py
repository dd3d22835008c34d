"""Derivatives: `grad` and `vjp` by reverse mode, `jvp` and `linearize` by forward mode, and matrices of derivatives.

Each transform traces its function into a graph of its own, differentiates that, and inlines the result into the
trace around it, so transforms compose in any order and to any depth.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.batching import batch_whole
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import DifferentiationError, NoForwardRuleError, TypeMismatchError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import (
    EagerStack,
    as_array,
    cast,
    concrete,
    evaluate,
    float0_like,
    is_float0,
    is_weak,
    type_of,
    value_in,
)
from ctrlgrad.frontend.array.promote import ensured, unknown_axes
from ctrlgrad.frontend.checks import check_function, check_leaves, same_structure, structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import Mapped, is_mapped, recorder
from ctrlgrad.frontend.tracer import in_trace, set_aside
from ctrlgrad.function import Function, hand_out
from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.gradients.forward import Pushforward, push_forward
from ctrlgrad.gradients.later import Derivative, Part, is_batched_first, reversed_once
from ctrlgrad.gradients.manner import Manner, current_manner, differentiating
from ctrlgrad.ir import Builder, TensorType, is_call
from ctrlgrad.ir.caching import Cache
from ctrlgrad.signature import StaticArguments
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.tracing import (
    TracedFunction,
    Transformed,
    all_but,
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
from ctrlgrad.transforms.vmap import vmap

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
        chosen = _Chosen("grad", fn, argnums, args, kwargs, allow_int)
        if holomorphic:
            check_complex("grad", "an argument", chosen.leaves, holomorphic, source)

        def call(tensors: list[Any]) -> Any:
            return _loss(chosen.of_leaves(*tensors), has_aux, holomorphic, source)

        traced = trace_function(fn, chosen.leaves, leaf_names(fn, args, chosen.numbers), call)
        halves = _halves(traced, chosen.floats, (0,), selected=False)
        outputs, back = _recorded(halves, traced, chosen.floats, chosen.leaves, selected=False)
        found = back([cast(1.0, traced.graph.outputs[0].tensor.dtype)])
        value = tree.unflatten(traced.treedef, outputs)
        return value, chosen.pack(with_float0(chosen.leaves, dict(zip(chosen.floats, found, strict=True))))

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
    if not any(type_of(leaf).is_differentiable for leaf in leaves):
        return "counts, positions and comparisons have no slope: return a loss of floats"
    return "reduce it with .sum() or .mean(), or use ctrlgrad.vjp with a cotangent"


@explains_calls
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
    strong_zeros: bool = True,
) -> Any:
    """Work of `vjp`. With `linear` the function has to be linear, and the primals do not matter; see `Manner` for
    `strong_zeros`.

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
    manner = current_manner()
    if not strong_zeros:
        manner = replace(manner, strong_zeros=False)
    with differentiating(manner):
        halves = _halves(traced, floats, seeded)
    if linear and not halves.is_of_linear_map:
        raise not_linear(operation, source)
    residuals: list[Any]
    back = None
    if trace.current() is None:
        # Copies: the pullback must not see what the caller does to his arrays, nor to the outputs.
        own = [x if isinstance(x, EagerStack) else np.array(as_array(x)) for x in leaves]
        results = evaluate(halves.forward, [*traced.captures, *own])
        # The pullback needs their types alone.
        leaves = [EagerStack(x.type, []) if isinstance(x, EagerStack) else x for x in leaves]
        split = len(results) - halves.residuals
        residuals = results[split:]
        outputs = hand_out(traced.graph, results[:split], residuals)
    else:
        with differentiating(manner):
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


@explains_calls
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
        return concrete(x)
    builder = recorder()
    return Tensor(builder, builder.emit("stop_gradient", [value_in(builder, x)], source=here()), x.weak)


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


@explains_calls
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
    # The transpose has strong zeros of its own: of tangents, not of cotangents.
    outputs, pullback, *aux = pulled("linearize", fn, primals, has_aux, strong_zeros=False)
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


@explains_calls
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
        # A zero could stop a factor that is not finite.
        points.append(FUNCTIONS["ones"](shape, dtype))
    return pulled("linear_transpose", fn, tree.unflatten(treedef, points), linear=True)[1]  # type: ignore[no-any-return]


def _basis(x: Any) -> Any:
    """One array like x per element of x, which is 1 there and 0 elsewhere, along a new first axis."""
    zeros = FUNCTIONS["zeros_like"](x)
    size = zeros.size
    return FUNCTIONS["reshape"](FUNCTIONS["eye"](size, dtype=zeros.dtype), (size, *zeros.shape))


class _Chosen:
    """The arguments that are differentiated, as leaves, and the function of those leaves alone."""

    def __init__(
        self,
        operation: str,
        fn: Callable[..., Any],
        argnums: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        allow_int: bool = False,
    ) -> None:
        self.numbers = check_argnums(operation, argnums, args)
        self.leaves, self.treedef = tree.flatten(tuple(args[n] for n in self.numbers))
        self.single = not isinstance(argnums, tuple | list)
        check_leaves(f"{operation}: an argument", self.leaves, chosen_paths(fn, args, self.numbers))
        if not allow_int:
            check_differentiable(operation, self.leaves, chosen_paths(fn, args, self.numbers), here())
        self.floats = float_positions(self.leaves)

        def of_leaves(*leaves: Any) -> Any:
            replaced = list(args)
            for n, x in zip(self.numbers, tree.unflatten(self.treedef, leaves), strict=True):
                replaced[n] = x
            return fn(*replaced, **kwargs)

        self.of_leaves = of_leaves

    def pack(self, per_leaf: Sequence[Any]) -> Any:
        """One value per leaf, arranged as the arguments are."""
        packed = tree.unflatten(self.treedef, per_leaf)
        return packed[0] if self.single else packed


@explains_calls
def jacfwd(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """The Jacobian by forward mode, column by column; as `jax.jacfwd`. Best where inputs are fewer than outputs.

    The result is a pytree like `fn`'s result whose leaves are pytrees like the argument, of arrays of shape
    `[*output shape, *input shape]`. Arguments are real; with `holomorphic` they are complex, and `fn` is a holomorphic
    function of them. With `has_aux` the function returns a pair, whose second part is handed on: (Jacobian, aux).

    >>> cg.jacfwd(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen = _Chosen("jacfwd", fn, argnums, args, kwargs)
        check_complex("jacfwd", "an argument", chosen.leaves, holomorphic, here())
        zeros = [FUNCTIONS["zeros_like"](x) for x in chosen.leaves]
        columns: list[list[Any]] = []
        treedef, aux = None, list[Any]()
        aux_treedef = tree.structure(aux)
        for position, x in enumerate(chosen.leaves):

            def along(direction: Any, position: int = position) -> Any:
                nonlocal aux_treedef
                tangents = [direction if i == position else z for i, z in enumerate(zeros)]
                _, tangent, *aux = jvp(chosen.of_leaves, tuple(chosen.leaves), tuple(tangents), has_aux)
                leaves, aux_treedef = tree.flatten(set_aside(aux))
                return tangent, leaves

            # The auxiliary result is the same for all directions.
            result, aux = vmap(along, out_axes=(0, None))(_basis(x))
            moved, treedef = tree.flatten(result)
            columns.append([_last(column, zeros[position].shape) for column in moved])
        if treedef is None:
            return fn(*args, **kwargs)
        rows = [chosen.pack([column[i] for column in columns]) for i in range(len(columns[0]))]
        found = tree.unflatten(treedef, rows)
        return (found, *tree.unflatten(aux_treedef, aux)) if has_aux else found

    static = StaticArguments("jacfwd", fn, static_argnums, static_argnames)
    return Transformed(jacobian, fn, "jacfwd", all_but(argnums), static)


def _last(column: Any, shape: tuple[Any, ...]) -> Any:
    """`[size, *output]` as `[*output, *shape]`."""
    moved = FUNCTIONS["moveaxis"](column, 0, -1)
    return FUNCTIONS["reshape"](moved, (*moved.shape[:-1], *shape))


@explains_calls
def jacrev(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """The Jacobian by reverse mode, row by row; as `jax.jacrev`. Best where outputs are fewer than inputs.

    The result has the form that `jacfwd` gives. Results of `fn` are real; with `holomorphic` arguments and results are
    complex, and `fn` is a holomorphic function. `has_aux` as for `jacfwd`, with `allow_int` the
    derivative with respect to integers is zeros of their dtype.

    >>> cg.jacrev(lambda x: np.sum(x * x, keepdims=True))(np.array([1.0, 2.0]))
    array([[2., 4.]])
    """

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        source = here()
        chosen = _Chosen("jacrev", fn, argnums, args, kwargs, allow_int)
        if holomorphic:
            check_complex("jacrev", "an argument", chosen.leaves, holomorphic, source)
        result, pullback, *aux = vjp(chosen.of_leaves, *chosen.leaves, has_aux=has_aux)
        outputs, treedef = tree.flatten(result)
        check_complex("jacrev", "the function's result", outputs, holomorphic, source)
        zeros = [FUNCTIONS["zeros_like"](y) for y in outputs]
        rows = []
        for position, y in enumerate(outputs):

            def back(direction: Any, position: int = position) -> Any:
                given = [direction if i == position else z for i, z in enumerate(zeros)]
                return pullback(tree.unflatten(treedef, given))

            found = iter(vmap(lambda direction: [back(direction)[i] for i in chosen.floats])(_basis(y)))
            shape = zeros[position].shape
            per_leaf = [
                FUNCTIONS["reshape"](row := next(found), (*shape, *row.shape[1:]))
                if i in chosen.floats
                else FUNCTIONS["zeros"]((*shape, *FUNCTIONS["shape"](x)), FUNCTIONS["zeros_like"](x).dtype)
                for i, x in enumerate(chosen.leaves)
            ]
            rows.append(chosen.pack(per_leaf))
        found = tree.unflatten(treedef, rows)
        return (found, *aux) if has_aux else found

    static = StaticArguments("jacrev", fn, static_argnums, static_argnames)
    return Transformed(jacobian, fn, "jacrev", all_but(argnums), static)


@explains_calls
def hessian(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """The matrix of second derivatives, forward over reverse; as `jax.hessian`.

    Where forward mode meets a function that has a reverse rule only, it is reverse over reverse.

    `holomorphic` and `has_aux` as for `jacfwd`.

    >>> cg.hessian(lambda x: np.sum(x ** 3))(np.array([1.0, 2.0]))
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    static = StaticArguments("hessian", fn, static_argnums, static_argnames)
    back = jacrev(fn, argnums, has_aux, holomorphic)
    by_columns, by_rows = (of(back.fn, argnums, has_aux, holomorphic).fn for of in (jacfwd, jacrev))

    def second(*args: Any, **kwargs: Any) -> Any:
        try:
            return by_columns(*args, **kwargs)
        except NoForwardRuleError:
            return by_rows(*args, **kwargs)

    return Transformed(second, fn, "hessian", all_but(argnums), static)
