"""`checkpoint`, `custom_vjp` and `custom_jvp`: functions whose derivative is computed otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import cast, is_weak, type_of, value_in
from ctrlgrad.frontend.arguments import argument_names
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.regions import at_once, check_leaves, same_structure
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, Graph, TensorType, Value, close
from ctrlgrad.source import Source, here

# A rule may call the function that it is the rule of. Its rule is recorded with it so many times over, which
# serves derivatives up to that order; beyond it the function's own derivative is taken.
MAXIMUM_DEPTH = 4


class _Region:
    """A Python function traced over the leaves of its arguments."""

    def __init__(self, fn: Callable[..., Any], leaves: Sequence[Any], hints: Sequence[str | None], what: str) -> None:
        self.builder = Builder(trace.current(), what.replace(" ", "_"))
        with trace.recording(self.builder):
            inputs = [
                Tensor(self.builder, self.builder.input(type_of(x), h), is_weak(x))
                for x, h in zip(leaves, hints, strict=True)
            ]
            result = fn(inputs)
            self.result = result
            self.leaves, self.treedef = tree.flatten(result)
            check_leaves(f"{what}: the result", self.leaves)
            self.outputs = [value_in(self.builder, x) for x in self.leaves]

    def finish(self, outputs: Sequence[Value] | None = None) -> Graph:
        return self.builder.finish(self.outputs if outputs is None else outputs)


def _emit(kind: str, regions: Sequence[Graph], leaves: Sequence[Any], source: Source | None) -> list[Tensor]:
    """Record the call; what its functions use from outside become captures of all of them."""
    builder = trace.current()
    assert builder is not None
    closed = close(regions)
    operands = [*closed.captures, *(value_in(builder, x) for x in leaves)]
    attrs = {"kind": kind, "captures": len(closed.captures)}
    hints = [v.hint for v in closed.regions[0].outputs]
    values = builder.emit_all("call", operands, attrs, regions=closed.regions, source=source, hints=hints)
    return [Tensor(builder, v) for v in values]


def _in_trace(fn: Callable[[], Any]) -> Any:
    return at_once(fn) if trace.current() is None else fn()


def checkpoint(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose inside is computed again in the backward pass instead of saved; as `jax.checkpoint`.

    Only its arguments are kept. Around a loop's body it makes the loop keep its carry and nothing else.

    >>> import numpy as np, ctrlgrad as cg
    >>> step = cg.checkpoint(lambda x: np.sin(np.exp(x)))
    >>> float(cg.grad(lambda x: cg.fori_loop(0, 3, lambda i, y: step(y), x))(0.5)) != 0
    True
    """

    @functools.wraps(fn)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        source = here()
        leaves, treedef = tree.flatten((args, kwargs))
        check_leaves("checkpoint: an argument", leaves)

        def call(inputs: list[Any]) -> Any:
            given, named = tree.unflatten(treedef, inputs)
            return fn(*given, **named)

        def record() -> Any:
            region = _Region(call, leaves, argument_names(fn, treedef), "checkpoint")
            return tree.unflatten(region.treedef, _emit("checkpoint", [region.finish()], leaves, source))

        return _in_trace(record)

    return checkpointed


class custom_vjp:
    """A function with a reverse rule of its own; as `jax.custom_vjp`.

    `defvjp(forward, backward)`: `forward(*args)` returns (result, residuals); `backward(residuals, cotangent)`
    returns one cotangent per argument, None for zero. Forward mode through it is an error.

    >>> import numpy as np, ctrlgrad as cg
    >>> @cg.custom_vjp
    ... def clipped(x):
    ...     return x * 1.0
    >>> clipped.defvjp(lambda x: (x * 1.0, None), lambda residuals, ct: (np.clip(ct, -1.0, 1.0),))
    >>> float(cg.grad(lambda x: 100.0 * clipped(x))(2.0))
    1.0
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self._depth = 0
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Give the reverse rule."""
        self.forward, self.backward = forward, backward

    def __call__(self, *args: Any) -> Any:
        if self.forward is None or self.backward is None:
            raise UserInputError(
                "custom_vjp: the function has no rule yet", source=here(), hint="call .defvjp(forward, backward) first"
            )
        source = here()
        if self._depth >= MAXIMUM_DEPTH:
            return self.fn(*args)
        self._depth += 1
        try:
            return _in_trace(lambda: self._record(args, source))
        finally:
            self._depth -= 1

    def _record(self, args: tuple[Any, ...], source: Source | None) -> Any:
        leaves, treedef = tree.flatten(args)
        check_leaves("custom_vjp: an argument", leaves)
        hints = argument_names(self.fn, tree.flatten((args, {}))[1])
        primal = _Region(lambda xs: self.fn(*tree.unflatten(treedef, xs)), leaves, hints, "custom_vjp")
        forward = _Region(lambda xs: self._forward(tree.unflatten(treedef, xs), source), leaves, hints, "forward")
        result, residuals = forward.result
        given, given_treedef = tree.flatten(result)
        labels = ("the function's result", "the forward rule's result")
        same_structure("custom_vjp", source, labels, (primal.leaves, primal.treedef), (given, given_treedef))
        for x, y, path in zip(primal.leaves, given, tree.paths(primal.treedef), strict=True):
            if type_of(x) != type_of(y):
                raise TypeMismatchError(
                    f"custom_vjp: the forward rule's result{path} differs from the function's",
                    source=source,
                    expected=str(type_of(x)),
                    got=str(type_of(y)),
                )
        backward = self._trace_backward(primal, residuals, leaves, treedef, source)
        regions = [primal.finish(), forward.finish(), backward.finish()]
        results = _emit("custom_vjp", regions, leaves, source)
        return tree.unflatten(primal.treedef, results)

    def _forward(self, args: Any, source: Source | None) -> Any:
        assert self.forward is not None
        pair = self.forward(*args)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeMismatchError(
                "custom_vjp: the forward rule does not return a pair",
                source=source,
                expected="(result, residuals)",
                got=type(pair).__name__,
            )
        return pair

    def _trace_backward(
        self, primal: _Region, residuals: Any, leaves: Sequence[Any], treedef: tree.TreeDef, source: Source | None
    ) -> _Region:
        assert self.backward is not None
        backward = self.backward
        kept, kept_treedef = tree.flatten(residuals)
        differentiable = [i for i, x in enumerate(primal.leaves) if type_of(x).is_differentiable]
        inputs = [*kept, *(primal.leaves[i] for i in differentiable)]
        hints: list[str | None] = [*("residual" for _ in kept), *("ct" for _ in differentiable)]

        def call(values: list[Any]) -> Any:
            cotangents: list[Any] = [None] * len(primal.leaves)
            for i, ct in zip(differentiable, values[len(kept) :], strict=True):
                cotangents[i] = ct
            given = tree.unflatten(primal.treedef, cotangents)
            found = backward(tree.unflatten(kept_treedef, values[: len(kept)]), given)
            return _cotangents(found, leaves, treedef, source)

        return _Region(call, inputs, hints, "backward")


def _cotangents(found: Any, leaves: Sequence[Any], treedef: tree.TreeDef, source: Source | None) -> list[Any]:
    """One cotangent per argument leaf, zeros for None, with the arguments' dtypes checked."""
    args = tree.unflatten(treedef, list(leaves))
    if not isinstance(found, tuple | list) or len(found) != len(args):
        raise TypeMismatchError(
            "custom_vjp: the backward rule does not return one cotangent per argument",
            source=source,
            expected=f"a tuple of {len(args)}",
            got=f"{type(found).__name__}" + (f" of {len(found)}" if isinstance(found, tuple | list) else ""),
        )
    result: list[Any] = []
    for position, (argument, given) in enumerate(zip(args, found, strict=True)):
        expected, argument_treedef = tree.flatten(argument)
        if given is None:
            result += [FUNCTIONS["zeros_like"](x) for x in expected]
            continue
        cotangents, given_treedef = tree.flatten(given)
        labels = (f"argument {position}", "its cotangent")
        same_structure("custom_vjp", source, labels, (expected, argument_treedef), (cotangents, given_treedef))
        for x, ct in zip(expected, cotangents, strict=True):
            t = type_of(x)
            fitted = cast(ct, t.dtype) if isinstance(t, TensorType) and is_weak(ct) else ct
            if not t.accepts(type_of(fitted)):
                raise TypeMismatchError(
                    f"custom_vjp: the cotangent of argument {position} does not fit",
                    source=source,
                    expected=str(t),
                    got=str(type_of(fitted)),
                )
            result.append(fitted)
    return result


class custom_jvp:
    """A function with a forward rule of its own; as `jax.custom_jvp`. Reverse mode uses the rule's transpose.

    `defjvp(rule)`: `rule(primals, tangents)` takes two tuples and returns (result, tangent of the result), the
    tangent linear in `tangents`.

    >>> import numpy as np, ctrlgrad as cg
    >>> @cg.custom_jvp
    ... def sign_of(x):
    ...     return np.sign(x)
    >>> sign_of.defjvp(lambda primals, tangents: (np.sign(primals[0]), tangents[0]))
    >>> float(cg.grad(lambda x: 3.0 * sign_of(x))(2.0))
    3.0
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self._depth = 0
        self.rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> None:
        """Give the forward rule."""
        self.rule = rule

    def __call__(self, *args: Any) -> Any:
        if self.rule is None:
            raise UserInputError(
                "custom_jvp: the function has no rule yet", source=here(), hint="call .defjvp(rule) first"
            )
        source = here()
        if self._depth >= MAXIMUM_DEPTH:
            return self.fn(*args)
        self._depth += 1
        try:
            return _in_trace(lambda: self._record(args, source))
        finally:
            self._depth -= 1

    def _record(self, args: tuple[Any, ...], source: Source | None) -> Any:
        assert self.rule is not None
        rule = self.rule
        leaves, treedef = tree.flatten(args)
        check_leaves("custom_jvp: an argument", leaves)
        hints = argument_names(self.fn, tree.flatten((args, {}))[1])
        primal = _Region(lambda xs: self.fn(*tree.unflatten(treedef, xs)), leaves, hints, "custom_jvp")

        def push(values: list[Any]) -> Any:
            primals = tree.unflatten(treedef, values[: len(leaves)])
            pair = rule(primals, tree.unflatten(treedef, values[len(leaves) :]))
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TypeMismatchError(
                    "custom_jvp: the rule does not return a pair",
                    source=source,
                    expected="(result, tangent)",
                    got=type(pair).__name__,
                )
            tangents, tangent_treedef = tree.flatten(pair[1])
            labels = ("the function's result", "the rule's tangent")
            same_structure("custom_jvp", source, labels, (primal.leaves, primal.treedef), (tangents, tangent_treedef))
            return tangents

        pushed = _Region(push, [*leaves, *leaves], [*hints, *(f"t_{h}" for h in hints)], "push")
        results = _emit("custom_jvp", [primal.finish(), pushed.finish()], leaves, source)
        return tree.unflatten(primal.treedef, results)
