"""`custom_vjp`: functions with a reverse rule of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import optree

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import cast, is_float0, is_weak, type_of
from ctrlgrad.frontend.array.promote import ensured, unknown_axes
from ctrlgrad.frontend.checks import check_callable, check_function, check_leaves, explains_calls, same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.rules import LaterReverse, Results, record_call, trace_rule
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import in_trace, leaves_of
from ctrlgrad.ir import Graph, TensorType, Type
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.custom_calls import (
    CustomCall,
    CustomVJPPrimal,
    RuleSetters,
    SymbolicZero,
    by_position,
    is_python,
    is_same,
    may_be_same,
    nondiff_positions,
    symbolic_zero,
    without_a_rule,
    without_rule,
)
from ctrlgrad.transforms.custom_jvp import ForwardRule
from ctrlgrad.tree import NAMESPACE

_LIKE_THE_ARGUMENT = (
    "a cotangent has the dtype and the shape of its argument: sum it over what was broadcast, and cast it by\n"
    ".astype; None stands for a cotangent of zero"
)


class custom_vjp(RuleSetters):
    """A function with a reverse rule of its own; as `jax.custom_vjp`.

    `defvjp(forward, backward)`: `forward(*args)` returns (result, residuals); `backward(residuals, cotangent)`
    returns one cotangent per argument, None for zero, for a whole argument or a part of it. Forward mode through it
    is an error, unless `.defjvp` gives a rule for it too. The rules may call the function itself: they are its
    derivatives of every order. Arguments at `nondiff_argnums`, or of `nondiff_argnames`, have no cotangent: `backward`
    takes them first, before the residuals. Python integers, booleans and strings, among arguments and residuals, reach
    function and rules as they are.

    >>> @cg.custom_vjp
    ... def clipped(x):
    ...     return x * 1.0
    >>> clipped.defvjp(lambda x: (x * 1.0, None), lambda residuals, ct: (np.clip(ct, -1.0, 1.0),))
    >>> float(cg.grad(lambda x: 100.0 * clipped(x))(2.0))
    1.0
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        check_function("custom_vjp", fn)
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.nondiff = nondiff_positions(fn, nondiff_argnums, nondiff_argnames)
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        self.push: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @explains_calls
    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Give the reverse rule.

        Args:
            fwd, bwd: the forward and the backward function.
            symbolic_zeros: `fwd` takes an object with `.value` and `.perturbed` for each leaf of its arguments, and
                `bwd` a `SymbolicZero` for each cotangent that is zero whatever the values are. Perturbed is what
                depends on something that is differentiated.
            optimize_remat: accepted for JAX's sake; it changes nothing here.
        """
        self.forward, self.backward, self.symbolic_zeros = fwd, bwd, symbolic_zeros

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Give a forward rule beside the reverse rule, as to `custom_jvp`; reverse mode does not use it."""
        self.push = jvp
        return jvp

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.forward is None or self.backward is None:
            raise without_a_rule("custom_vjp", self.fn, "defvjp(forward, backward)")
        args = by_position(self.fn, args, kwargs, "custom_vjp")
        if trace.current() is None:
            return without_rule(self.fn, args)
        call = _ReverseRule(self, self.forward, self.backward, args, here())
        return in_trace(lambda: record_call(LaterReverse, self, call.label(call.rules[0]), call))


class _ReverseRule(CustomCall):
    """A call of a function with a reverse rule."""

    def __init__(
        self,
        function: custom_vjp,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        args: tuple[Any, ...],
        source: Source | None,
    ) -> None:
        super().__init__("custom_vjp", function.fn, args, function.nondiff, source)
        self.rules = forward, backward
        self.symbolic_zeros = function.symbolic_zeros
        self.pushing = None if function.push is None else ForwardRule(function, function.push, args, source)
        # By the arguments that are perturbed.
        self._kept: dict[Positions, _Kept] = {}

    @property
    def roots(self) -> tuple[Any, ...]:
        pushing = () if self.pushing is None else self.pushing.roots
        return (*self.rules, *self.static, *pushing)

    def push(self, results: Results, perturbed: Positions) -> Answer | None:
        return None if self.pushing is None else self.pushing.push(results, perturbed)

    def forward(self, results: Results, perturbed: Positions) -> Graph:
        """The forward function, to (results, what is kept)."""
        kept = self._kept[perturbed] = _Kept(self, results, perturbed)
        return kept.graph

    def backward(self, results: Results, perturbed: Positions, seeded: Positions) -> Answer:
        """The backward function, of what the forward function kept and the cotangents of the results."""
        kept = self._kept[perturbed]
        inputs = leaves_of([*kept.saved, *kept.sizes], ["residual"] * len(kept.saved) + ["size"] * len(kept.sizes))
        inputs += [replace(results.leaves[i], hint="ct") for i in seeded]

        def backward(values: list[Any]) -> Any:
            given = iter(values)
            saved = kept.residuals(list(islice(given, len(kept.saved))))
            known = list(islice(given, len(kept.sizes)))
            cotangents: list[Any] = [symbolic_zero(x.type) if self.symbolic_zeros else None for x in results.leaves]
            for i, ct in zip(seeded, given, strict=True):
                cotangents[i] = ct
            self.check_rule(self.rules[1], "the backward rule", "residuals", "cotangent")
            found = self.rules[1](*self.static, saved, tree.unflatten(results.treedef, cotangents))
            cotangents = self._cotangents(found, known)
            return [cotangents[i] for i in perturbed]

        known = [*kept.saved, *kept.sizes, *[None] * len(seeded)]
        return Answer(trace_rule("backward", backward, inputs, known).finish(), seeded, perturbed)

    def primals(self, inputs: list[Any], perturbed: Positions) -> list[Any]:
        """Arguments for the forward rule; with `symbolic_zeros` each is a `CustomVJPPrimal`."""
        if not self.symbolic_zeros:
            return self.arguments(inputs)
        given = [CustomVJPPrimal(x, i in perturbed) for i, x in enumerate(inputs)]
        return self.arguments(given, lambda x: CustomVJPPrimal(x, False))

    def _cotangents(self, found: Any, sizes: Sequence[Any]) -> list[Any]:
        """One cotangent per input, zeros for None, with the arguments' dtypes checked."""
        label = self.label(self.rules[1])
        shapes = iter(self._shapes(sizes))
        args = self.differentiable(Results(self.inputs, self.treedef).stand_ins())
        if not isinstance(found, tuple | list) or len(found) != len(args):
            raise TypeMismatchError(
                f"{label}: the backward rule does not return one cotangent per argument",
                source=self.source,
                expected=f"a tuple of {len(args)}",
                got=f"{type(found).__name__}" + (f" of {len(found)}" if isinstance(found, tuple | list) else ""),
                hint=f"return {', '.join(f'ct_{self.parameters[n]}' for n in self.diff)}{',' * (len(self.diff) == 1)} "
                "with None for an argument that needs none; nondiff_argnums names arguments that have no cotangent",
            )
        result: list[Any] = []
        for position, (argument, returned) in enumerate(zip(args, found, strict=True)):
            expected = tree.leaves(argument)
            for x, ct in zip(expected, self._parts(position, argument, returned), strict=True):
                if is_python(x):
                    continue
                t, shape = type_of(x), next(shapes)
                if ct is None or (is_float0(ct) and not t.is_differentiable):
                    result.append(self._zero(t, shape))
                    continue
                if isinstance(ct, SymbolicZero):
                    given: Any = TensorType(ct.dtype, ct.shape)
                    fits = may_be_same(t, given)
                else:
                    check_leaves(f"{label}: the cotangent of argument {position}", [ct])
                    ct = cast(ct, t.dtype) if isinstance(t, TensorType) and is_weak(ct) else ct
                    given = type_of(ct)
                    fits = t.accepts(given)
                problem, hint = f"{label}: the cotangent of argument {position} does not fit", _LIKE_THE_ARGUMENT
                if not fits:
                    raise TypeMismatchError(problem, source=self.source, expected=str(t), got=str(given), hint=hint)
                if isinstance(ct, SymbolicZero):
                    result.append(self._zero(t, shape))
                else:
                    result.append(ensured(ct, {axis: shape[axis] for axis in unknown_axes(t)}, problem, hint))
        return result

    def _parts(self, position: int, argument: Any, given: Any) -> list[Any]:
        """A cotangent for each leaf of an argument; None stands for those of all the leaves in its place, an array for
        an object of one leaf."""
        leaves, prefix = optree.tree_flatten(given, none_is_leaf=True, namespace=NAMESPACE)
        try:
            parts = prefix.flatten_up_to(argument)
        except (ValueError, TypeError):
            parts = None
        fits = parts is not None and all(
            ct is None or len(tree.leaves(part)) == 1 or tree.flatten(part)[1] == tree.flatten(ct)[1]
            for ct, part in zip(leaves, parts, strict=True)
        )
        if parts is None or not fits:
            labels = (f"argument {position}", "its cotangent")
            label = self.label(self.rules[1])
            same_structure(label, self.source, labels, tree.flatten(argument), tree.flatten(given))
            return leaves
        return [ct for ct, part in zip(leaves, parts, strict=True) for _ in tree.leaves(part)]

    def _shapes(self, sizes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """For each input its shape, none for a stack."""
        unknown = iter(sizes)
        for x in self.inputs:
            known = x.type.shape if isinstance(x.type, TensorType) else ()
            yield tuple(next(unknown) if d is None else d for d in known)

    def _zero(self, t: Type, shape: tuple[Any, ...]) -> Any:
        if isinstance(t, TensorType):
            return FUNCTIONS["zeros"](shape, t.dtype)
        raise TypeMismatchError(
            f"{self.label(self.rules[1])}: None for the cotangent of a TensorArray",
            source=self.source,
            expected="a TensorArray like the argument",
            got=f"None for {t}",
            hint="pass array.stack() into the function",
        )


class _Kept:
    """The forward rule, traced: its graph, to (results, what is saved, sizes), and what it returned as residuals.

    `saved` are the residuals that are arrays; Python numbers, booleans and strings are known to the backward rule.
    """

    def __init__(self, call: _ReverseRule, results: Results, perturbed: Positions) -> None:
        rule, _ = call.rules

        def forward(inputs: list[Any]) -> Any:
            check_callable(call.label(rule), "the forward rule", rule, call.parameters, call.source)
            found = rule(*call.primals(inputs, perturbed))
            result, residuals = call.pair(found, rule, "the forward rule", "(result, residuals)")
            labels = ("the function's result", "the forward rule's result")
            self.flat, self.treedef = tree.flatten(residuals)
            self.saved = [x for x in self.flat if not is_python(x)]
            # The sizes that only a run tells: a cotangent of zero is made of them.
            self.sizes = [
                d for x in inputs if isinstance(type_of(x), TensorType) for d in x.shape if isinstance(d, Tensor)
            ]
            return call.like(rule, result, results, labels, is_same), self.saved, self.sizes

        self.graph = trace_rule("forward", forward, call.inputs, call.leaves).finish()

    def residuals(self, saved: Sequence[Any]) -> Any:
        """The residuals, given what was saved of them."""
        given = iter(saved)
        return tree.unflatten(self.treedef, [x if is_python(x) else next(given) for x in self.flat])
