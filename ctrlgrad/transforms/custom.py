"""`custom_vjp` and `custom_jvp`: functions with a derivative of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import cast, is_weak, type_of
from ctrlgrad.frontend.arguments import argument_names
from ctrlgrad.frontend.checks import check_leaves, same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.rules import Custom, Results, record, trace_rule
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import in_trace, leaves_of
from ctrlgrad.ir import Graph, TensorType, Type
from ctrlgrad.source import Source, here


class custom_vjp:
    """A function with a reverse rule of its own; as `jax.custom_vjp`.

    `defvjp(forward, backward)`: `forward(*args)` returns (result, residuals); `backward(residuals, cotangent)`
    returns one cotangent per argument, None for zero. Forward mode through it is an error. The rules may call the
    function itself: they are its derivatives of every order.

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
        call = _ReverseRule(self.fn, self.forward, self.backward, args, here())
        custom = Custom(self, call.label(self.forward), call.regions)
        return in_trace(lambda: record(custom, call.kind, call.primal, call.leaves, call.inputs, call.source))


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


class _Call:
    """A call of a function that has a rule."""

    def __init__(self, kind: str, fn: Callable[..., Any], args: tuple[Any, ...], source: Source | None) -> None:
        self.kind = kind
        self.fn = fn
        self.source = source
        self.leaves, self.treedef = tree.flatten(args)
        check_leaves(f"{kind}: an argument", self.leaves)
        self.hints = argument_names(fn, tree.flatten((args, {}))[1])
        self.inputs = leaves_of(self.leaves, self.hints)

    def primal(self, inputs: list[Any]) -> Any:
        return self.fn(*tree.unflatten(self.treedef, inputs))

    def label(self, rule: Callable[..., Any]) -> str:
        """How errors name a rule."""
        return f"{self.kind} {_name(self.fn)} (rule {_name(rule)})"

    def pair(self, found: Any, rule: Callable[..., Any], what: str, expected: str) -> Any:
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeMismatchError(
                f"{self.label(rule)}: {what} does not return a pair",
                source=self.source,
                expected=expected,
                got=type(found).__name__,
            )
        return found

    def like(
        self,
        rule: Callable[..., Any],
        found: Any,
        results: Results,
        labels: tuple[str, str],
        fits: Callable[[Type, Type], bool],
    ) -> list[Any]:
        """The leaves of a rule's result, whose structure is that of the function's and whose types fit, one by one."""
        label = self.label(rule)
        leaves, treedef = tree.flatten(found)
        check_leaves(f"{label}: {labels[1]}", leaves)
        same_structure(label, self.source, labels, (results.stand_ins(), results.treedef), (leaves, treedef))
        fitted = []
        for wanted, x, path in zip(results.leaves, leaves, tree.paths(treedef), strict=True):
            t = wanted.type
            if isinstance(t, TensorType) and t.is_differentiable and is_weak(x):
                x = cast(x, t.dtype)
            if not fits(t, type_of(x)):
                raise TypeMismatchError(
                    f"{label}: {labels[1]}{path} differs from {labels[0]}",
                    source=self.source,
                    expected=str(t),
                    got=str(type_of(x)),
                    hint="bring it to the dtype and the shape of the function's result, by .astype and broadcast_to",
                )
            fitted.append(x)
        return fitted


def _is_same(wanted: Type, given: Type) -> bool:
    return wanted == given


def _may_be_same(wanted: Type, given: Type) -> bool:
    """Whether one value may have both types: unknown sizes agree with all."""
    if not isinstance(wanted, TensorType) or not isinstance(given, TensorType):
        return wanted == given
    sizes = zip(wanted.shape, given.shape, strict=False)
    return wanted.dtype == given.dtype and wanted.rank == given.rank and all(None in (m, n) or m == n for m, n in sizes)


def _may_be_tangent(wanted: Type, given: Type) -> bool:
    """What stands for the tangent of a result that has none does not matter."""
    return not wanted.is_differentiable or _may_be_same(wanted, given)


class _ReverseRule(_Call):
    """A call of a function with a reverse rule."""

    def __init__(
        self,
        fn: Callable[..., Any],
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        args: tuple[Any, ...],
        source: Source | None,
    ) -> None:
        super().__init__("custom_vjp", fn, args, source)
        self.forward, self.backward = forward, backward

    def regions(self, results: Results) -> list[Graph]:
        """The forward function, to (results, residuals), and the backward function of residuals and cotangents."""

        def forward(inputs: list[Any]) -> Any:
            found = self.forward(*tree.unflatten(self.treedef, inputs))
            result, residuals = self.pair(found, self.forward, "the forward rule", "(result, residuals)")
            labels = ("the function's result", "the forward rule's result")
            # The sizes that only a run tells: a cotangent of zero is made of them.
            sizes = [d for x in inputs if isinstance(type_of(x), TensorType) for d in x.shape if isinstance(d, Tensor)]
            return self.like(self.forward, result, results, labels, _is_same), residuals, sizes

        kept = trace_rule("forward", forward, self.inputs)
        residuals, residuals_treedef = tree.flatten(kept.result[1])
        sizes = kept.result[2]
        inputs = leaves_of([*residuals, *sizes], [*("residual" for _ in residuals), *("size" for _ in sizes)])
        differentiable = [i for i, x in enumerate(results.leaves) if x.type.is_differentiable]
        inputs += [replace(results.leaves[i], hint="ct") for i in differentiable]

        def backward(values: list[Any]) -> Any:
            given = iter(values)
            saved = tree.unflatten(residuals_treedef, list(islice(given, len(residuals))))
            known = list(islice(given, len(sizes)))
            cotangents: list[Any] = [None] * len(results.leaves)
            for i, ct in zip(differentiable, given, strict=True):
                cotangents[i] = ct
            found = self.backward(saved, tree.unflatten(results.treedef, cotangents))
            return self._cotangents(found, known)

        return [kept.finish(), trace_rule("backward", backward, inputs).finish()]

    def _cotangents(self, found: Any, sizes: Sequence[Any]) -> list[Any]:
        """One cotangent per argument leaf, zeros for None, with the arguments' dtypes checked."""
        label = self.label(self.backward)
        zeros = self._zeros(sizes)
        args = tree.unflatten(self.treedef, Results(self.inputs, self.treedef).stand_ins())
        if not isinstance(found, tuple | list) or len(found) != len(args):
            raise TypeMismatchError(
                f"{label}: the backward rule does not return one cotangent per argument",
                source=self.source,
                expected=f"a tuple of {len(args)}",
                got=f"{type(found).__name__}" + (f" of {len(found)}" if isinstance(found, tuple | list) else ""),
            )
        result: list[Any] = []
        for position, (argument, given) in enumerate(zip(args, found, strict=True)):
            expected, argument_treedef = tree.flatten(argument)
            if given is None:
                result += [zero() for zero in zeros[len(result) : len(result) + len(expected)]]
                continue
            cotangents, given_treedef = tree.flatten(given)
            labels = (f"argument {position}", "its cotangent")
            same_structure(label, self.source, labels, (expected, argument_treedef), (cotangents, given_treedef))
            for x, ct in zip(expected, cotangents, strict=True):
                t = type_of(x)
                fitted = cast(ct, t.dtype) if isinstance(t, TensorType) and is_weak(ct) else ct
                if not t.accepts(type_of(fitted)):
                    raise TypeMismatchError(
                        f"{label}: the cotangent of argument {position} does not fit",
                        source=self.source,
                        expected=str(t),
                        got=str(type_of(fitted)),
                    )
                result.append(fitted)
        return result

    def _zeros(self, sizes: Sequence[Any]) -> list[Callable[[], Any]]:
        """For each argument leaf what makes a cotangent of zero."""
        unknown = iter(sizes)
        makers: list[Callable[[], Any]] = []
        for x, hint in zip(self.inputs, self.hints, strict=True):
            if isinstance(x.type, TensorType):
                shape = tuple(next(unknown) if d is None else d for d in x.type.shape)
                makers.append(functools.partial(FUNCTIONS["zeros"], shape, x.type.dtype))
            else:
                makers.append(functools.partial(self._no_zero, hint))
        return makers

    def _no_zero(self, hint: str | None) -> Any:
        raise TypeMismatchError(
            f"{self.label(self.backward)}: None for the cotangent of a TensorArray",
            source=self.source,
            expected="a TensorArray like the argument",
            got=f"None for {hint}",
            hint="pass array.stack() into the function",
        )


class custom_jvp:
    """A function with a forward rule of its own; as `jax.custom_jvp`. Reverse mode uses the rule's transpose.

    `defjvp(rule)`: `rule(primals, tangents)` takes two tuples and returns (result, tangent of the result), the
    tangent linear in `tangents`. The rule may call the function itself: it is its derivative of every order.

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
        self.rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> None:
        """Give the forward rule."""
        self.rule = rule

    def __call__(self, *args: Any) -> Any:
        if self.rule is None:
            raise UserInputError(
                "custom_jvp: the function has no rule yet", source=here(), hint="call .defjvp(rule) first"
            )
        call = _ForwardRule(self.fn, self.rule, args, here())
        custom = Custom(self, call.label(self.rule), call.regions)
        return in_trace(lambda: record(custom, call.kind, call.primal, call.leaves, call.inputs, call.source))


class _ForwardRule(_Call):
    """A call of a function with a forward rule."""

    def __init__(
        self, fn: Callable[..., Any], rule: Callable[..., Any], args: tuple[Any, ...], source: Source | None
    ) -> None:
        super().__init__("custom_jvp", fn, args, source)
        self.rule = rule

    def regions(self, results: Results) -> list[Graph]:
        """The function of the arguments and their tangents, to the tangents of the results."""

        def push(values: list[Any]) -> Any:
            halves = values[: len(self.inputs)], values[len(self.inputs) :]
            found = self.rule(*(tree.unflatten(self.treedef, half) for half in halves))
            result, tangent = self.pair(found, self.rule, "the rule", "(result, tangent)")
            self.like(self.rule, result, results, ("the function's result", "the rule's result"), _may_be_same)
            labels = ("the function's result", "the rule's tangent")
            return self.like(self.rule, tangent, results, labels, _may_be_tangent)

        tangents = [replace(x, hint=f"t_{x.hint}") for x in self.inputs]
        return [trace_rule("push", push, [*self.inputs, *tangents]).finish()]
