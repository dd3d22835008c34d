"""Functions with derivatives of their own: `custom_jvp`, `custom_vjp`, `custom_gradient`; and `closure_convert`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import optree

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import cast, float0, is_float0, is_weak, type_of, value_in
from ctrlgrad.frontend.array.promote import ensured, unknown_axes
from ctrlgrad.frontend.checks import argument_names, check_callable, check_function, check_leaves, same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.rules import LaterPush, LaterReverse, Results, record_call, trace_rule
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced, in_trace, leaves_of
from ctrlgrad.gradients.later import settled
from ctrlgrad.ir import Builder, Graph, TensorType, Type, Value, close
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.passes import remove_dead_code
from ctrlgrad.records import record
from ctrlgrad.signature import TensorSpec
from ctrlgrad.source import Source, here
from ctrlgrad.tree import NAMESPACE


@record
class SymbolicZero:
    """A cotangent or tangent that is zero whatever the values are; as JAX's. `aval` has its shape and dtype."""

    aval: TensorSpec

    @property
    def shape(self) -> tuple[int | None, ...]:
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        return self.aval.dtype


@record
class CustomVJPPrimal:
    """An argument of a forward rule with `symbolic_zeros`: its value, and whether it may be differentiated."""

    value: Any
    perturbed: bool


def is_python(x: Any) -> bool:
    """True if a leaf is a Python value that a rule gets as it is."""
    return type(x) in (bool, int, str)


def symbolic_zero(t: Type) -> Any:
    """The zero of a type; that of a Python value has the type of its array."""
    return SymbolicZero(TensorSpec(t.shape, t.dtype)) if isinstance(t, TensorType) else None


def name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def by_position(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], kind: str) -> tuple[Any, ...]:
    """The arguments as the rules take them: all by position, defaults filled in, as JAX's custom rules do."""
    given = list(kwargs)
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except ValueError:
        bound = None  # a built-in function without a signature
    except TypeError as error:
        raise TypeMismatchError(
            f"{kind} {name_of(fn)}: the arguments do not fit the function",
            expected=f"{name_of(fn)}{inspect.signature(fn)}",
            got=str(error),
            hint="call it as its definition says",
        ) from error
    if bound is not None:
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    # Defaults reach the function in any case, as the bound keywords of `functools.partial` do.
    given = [name for name in kwargs if bound is None or name in given]
    if given:
        raise TypeMismatchError(
            f"{kind} {name_of(fn)}: a keyword-only argument has no position that its rules could take it at",
            expected="arguments that may be passed by position",
            got=", ".join(given),
            hint="drop the * from the function's parameters, or close over the value",
        )
    return args


def without_a_rule(kind: str, fn: Callable[..., Any], setter: str) -> UserInputError:
    """The error of a call of a function that was given no rule."""
    return UserInputError(
        f"{kind} {name_of(fn)}: the function has no rule yet",
        expected=f"a rule, given by .{setter}",
        got="a call before that",
        hint=f"call {name_of(fn)}.{setter} first, or leave {kind} out",
    )


def without_rule(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result of a call that nothing differentiates; like every engine it says nothing of infinities and NaN."""
    with np.errstate(all="ignore"):
        return in_trace(lambda: fn(*args))


def rule_graph(what: str, rule: Callable[[list[Any]], Any], inputs: Sequence[Leaf], known: Sequence[Any]) -> Graph:
    """The graph of a rule. Under `vmap`, it is batched by itself: see `settled`."""
    return settled(remove_dead_code(trace_rule(what, rule, inputs, known).finish()))


class RuleSetters:
    """A function with a rule. Rules of other kinds are set on the function that it wraps, as with JAX's decorators:
    of `custom_vjp(custom_vmap(f))` both `defvjp` and `def_vmap` are there."""

    fn: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name in ("defjvp", "defjvps", "defvjp", "def_vmap") and "fn" in vars(self):
            return getattr(self.fn, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Differentiable(RuleSetters):
    """A function with a derivative rule: `rule` of `custom_jvp`; `forward`, `backward` and `push` of `custom_vjp`."""

    # True where the derivative is that of the arguments alone, whatever the function and its rules close over.
    stops_captures = False

    @explains_calls
    def __init__(
        self,
        fn: Callable[..., Any],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        check_function(type(self).__name__, fn)
        functools.update_wrapper(self, fn)
        self.fn = fn
        # The positions of the arguments that a rule takes first, by number or by name.
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else tuple(nondiff_argnames)
        parameters = list(inspect.signature(fn).parameters) if names else []
        for name in names:
            if name not in parameters:
                raise UserInputError(
                    "nondiff_argnames: the function has no such parameter",
                    expected="one of " + ", ".join(parameters),
                    got=repr(name),
                    hint="name a parameter of the function that has the rule",
                )
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        self.nondiff = (*numbers, *map(parameters.index, names))
        self.rule: Callable[..., Any] | None = None
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        self.push: Callable[..., Any] | None = None
        self.symbolic_zeros = False


class CustomCall:
    """A call of a function that has a rule.

    Python numbers, booleans and strings among the arguments, and what stands at `nondiff`, reach the function and its
    rules as they are; the other leaves are the inputs of their graphs.
    """

    def __init__(
        self, kind: str, fn: Callable[..., Any], args: tuple[Any, ...], nondiff: Sequence[int], source: Source | None
    ) -> None:
        self.kind = kind
        self.fn = fn
        self.source = source
        self.args = args
        self.nondiff = sorted({n % len(args) for n in nondiff if -len(args) <= n < len(args)})
        # Names of the arguments of a call by position.
        count = len(args)
        try:
            known = [p.name for p in inspect.signature(fn).parameters.values() if p.kind is not p.VAR_POSITIONAL]
        except (TypeError, ValueError):
            known = []
        self.parameters = [known[n] if n < len(known) else f"argument {n}" for n in range(count)]
        self.diff = [n for n in range(len(args)) if n not in self.nondiff]
        self.flat, self.treedef = tree.flatten(tuple(args[n] for n in self.diff))
        self.traced = [i for i, x in enumerate(self.flat) if not is_python(x)]
        self.leaves = [self.flat[i] for i in self.traced]
        check_leaves(f"{kind}: an argument", self.leaves)
        names = argument_names(fn, tree.flatten((args, {}))[1])
        places = [path[1] for path in tree.flatten((args, {}))[1].paths()]
        hints = [name for name, n in zip(names, places, strict=True) if n in self.diff]
        self.hints = [hints[i] for i in self.traced]
        self.inputs = leaves_of(self.leaves, self.hints)

    @property
    def static(self) -> tuple[Any, ...]:
        """The arguments at `nondiff`, which rules take first."""
        return tuple(self.args[n] for n in self.nondiff)

    def differentiable(self, inputs: Sequence[Any], rest: Callable[[Any], Any] = lambda x: x) -> Any:
        """The other arguments, made of the graph's inputs; a Python value x is there as `rest(x)`."""
        given = dict(zip(self.traced, inputs, strict=True))
        return tree.unflatten(self.treedef, [given[i] if i in given else rest(x) for i, x in enumerate(self.flat)])

    def arguments(self, inputs: Sequence[Any], rest: Callable[[Any], Any] = lambda x: x) -> list[Any]:
        """All arguments, in their order."""
        result = list(self.args)
        for n, x in zip(self.diff, self.differentiable(inputs, rest), strict=True):
            result[n] = x
        return result

    def primal(self, inputs: list[Any]) -> Any:
        return self.fn(*self.arguments(inputs))

    def label(self, rule: Callable[..., Any]) -> str:
        """Name of a rule in errors."""
        return f"{self.kind} {name_of(self.fn)} (rule {name_of(rule)})"

    def pair(self, found: Any, rule: Callable[..., Any], what: str, expected: str) -> Any:
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeMismatchError(
                f"{self.label(rule)}: {what} does not return a pair",
                source=self.source,
                expected=expected,
                got=f"a tuple of {len(found)}" if isinstance(found, tuple | list) else type(found).__name__,
                hint=f"return both as a tuple: return {expected.strip('()')}",
            )
        return found

    def check_rule(self, rule: Callable[..., Any], name: str, *arguments: str) -> None:
        """Refuse a rule that does not take these arguments, and those at `nondiff` before them."""
        check_callable(
            self.label(rule), name, rule, (*(self.parameters[n] for n in self.nondiff), *arguments), self.source
        )

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


def is_same(wanted: Type, given: Type) -> bool:
    return wanted == given


def may_be_same(wanted: Type, given: Type) -> bool:
    """True if one value may have both types: an unknown size agrees with every size."""
    if not isinstance(wanted, TensorType) or not isinstance(given, TensorType):
        return wanted == given
    sizes = zip(wanted.shape, given.shape, strict=False)
    return wanted.dtype == given.dtype and wanted.rank == given.rank and all(None in (m, n) or m == n for m, n in sizes)


def may_be_tangent(wanted: Type, given: Type) -> bool:
    """True if a tangent fits a result's type; the tangent of a result that has no derivative may have any type."""
    return not wanted.is_differentiable or may_be_same(wanted, given)


class custom_jvp(Differentiable):
    """A function with a forward rule of its own; as `jax.custom_jvp`. Reverse mode uses the rule's transpose.

    `defjvp(rule)`: `rule(primals, tangents)` takes two tuples and returns (result, tangent of the result), the
    tangent linear in `tangents`. The rule may call the function itself: it is its derivative of every order. Where the
    function is differentiated, the result that the rule returns takes its result's place, and is differentiated next.
    Arguments at `nondiff_argnums`, or of `nondiff_argnames`, have no tangent: the rule takes them first, before
    `primals`. Python integers, booleans and strings reach function and rule as they are; their tangents are of dtype
    `float0`.

    >>> @cg.custom_jvp
    ... def sign_of(x):
    ...     return np.sign(x)
    >>> _ = sign_of.defjvp(lambda primals, tangents: (np.sign(primals[0]), tangents[0]))
    >>> float(cg.grad(lambda x: 3.0 * sign_of(x))(2.0))
    3.0
    """

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Give the forward rule; with `symbolic_zeros` the tangents that are zero because nothing that is
        differentiated reaches the argument are `SymbolicZero`s, and the rule may return such."""
        self.rule, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Give the rule as a function for each argument, `jvp(tangent, result, *primals)`; None: it has no part.

        >>> @cg.custom_jvp
        ... def scaled(x, y):
        ...     return np.sin(x) * y
        >>> scaled.defjvps(lambda t, out, x, y: np.cos(x) * y * t, lambda t, out, x, y: np.sin(x) * t)
        >>> float(cg.grad(scaled, 1)(0.0, 2.0)), float(cg.grad(scaled, 0)(0.0, 2.0))
        (0.0, 2.0)
        """
        if self.nondiff:
            raise UserInputError(
                "custom_jvp: defjvps does not go with nondiff_argnums",
                expected="a function that is differentiated with respect to all of its arguments",
                got=f"nondiff_argnums={self.nondiff}",
                hint="give one rule for all arguments, by .defjvp(rule)",
            )

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            result = self(*primals)
            tangent = tree.map(FUNCTIONS["zeros_like"], result)
            for jvp, t in zip(jvps, tangents, strict=True):
                if jvp is not None and not all(map(is_float0, tree.leaves(t))):
                    tangent = tree.map(FUNCTIONS["add"], tangent, jvp(t, result, *primals))
            return result, tangent

        self.defjvp(rule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.rule is None:
            raise without_a_rule("custom_jvp", self.fn, "defjvp(rule)")
        args = by_position(self.fn, args, kwargs, "custom_jvp")
        if trace.current() is None:
            return without_rule(self.fn, args)
        call = ForwardRule(self, self.rule, args, here(), self.symbolic_zeros)
        return in_trace(lambda: record_call(LaterPush, self, call.label(call.rule), call))


class ForwardRule(CustomCall):
    """A call of a function with a forward rule."""

    def __init__(
        self,
        function: Any,
        rule: Callable[..., Any],
        args: tuple[Any, ...],
        source: Source | None,
        symbolic_zeros: bool = False,
    ) -> None:
        super().__init__("custom_jvp", function.fn, args, function.nondiff, source)
        self.rule = rule
        self.symbolic_zeros = symbolic_zeros

    @property
    def roots(self) -> tuple[Any, ...]:
        return (self.rule, *self.static)

    def push(self, results: Results, perturbed: Positions) -> Answer:
        """The function of the arguments and their tangents, to the rule's results and their tangents."""
        found: list[int] = []

        def push(values: list[Any]) -> Any:
            primals, tangents = values[: len(self.inputs)], values[len(self.inputs) :]
            given = dict(zip(perturbed, tangents, strict=True))
            self.check_rule(self.rule, "the rule", "primals", "tangents")
            returned = self.rule(*self.static, self.differentiable(primals), self._tangents(given))
            result, tangent = self.pair(returned, self.rule, "the rule", "(result, tangent)")
            labels = ("the function's result", "the rule's result")
            primal = self.like(self.rule, result, results, labels, may_be_same)
            tangent, zeros = self._stand_ins(tangent, results)
            labels = ("the function's result", "the rule's tangent")
            leaves = self.like(self.rule, tangent, results, labels, may_be_tangent)
            floats = (i for i, x in enumerate(results.leaves) if x.type.is_differentiable)
            found.extend(i for i in floats if i not in zeros)
            return [*primal, *(leaves[i] for i in found)]

        tangents = [replace(self.inputs[i], hint=f"t_{self.inputs[i].hint}") for i in perturbed]
        known = [*self.leaves, *[None] * len(tangents)]
        graph = rule_graph("push", push, [*self.inputs, *tangents], known)
        return Answer(graph, perturbed, tuple(found))

    def _tangents(self, given: Mapping[int, Tensor]) -> Any:
        """The tangents as the rule takes them, by the arguments that have one."""
        if not self.symbolic_zeros:
            return self.differentiable(list(given.values()), lambda x: np.zeros((), float0))
        tangents = [given.get(i, symbolic_zero(x.type)) for i, x in enumerate(self.inputs)]
        return self.differentiable(tangents, lambda x: None if isinstance(x, str) else symbolic_zero(type_of(x)))

    def _stand_ins(self, tangent: Any, results: Results) -> tuple[Any, set[int]]:
        """The tangent with what has the type of zeros for `SymbolicZero` and `float0`, and where those stood."""
        leaves, treedef = tree.flatten(tangent)
        zeros = {i for i, x in enumerate(leaves) if isinstance(x, SymbolicZero) or is_float0(x)}
        for i in zeros:
            x = leaves[i]
            wanted = results.leaves[i].type if i < len(results.leaves) else None
            dtype = wanted.dtype if isinstance(wanted, TensorType) and is_float0(x) else x.dtype
            leaves[i] = Tensor(Builder(), Value(TensorType(dtype, np.shape(x) if is_float0(x) else x.shape)))
        return tree.unflatten(treedef, leaves), zeros


_LIKE_THE_ARGUMENT = (
    "a cotangent has the dtype and the shape of its argument: sum it over what was broadcast, and cast it by\n"
    ".astype; None stands for a cotangent of zero"
)


class custom_vjp(Differentiable):
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
        return Answer(rule_graph("backward", backward, inputs, known), seeded, perturbed)

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

        self.graph = rule_graph("forward", forward, call.inputs, call.leaves)

    def residuals(self, saved: Sequence[Any]) -> Any:
        """The residuals, given what was saved of them."""
        given = iter(saved)
        return tree.unflatten(self.treedef, [x if is_python(x) else next(given) for x in self.flat])


@explains_calls
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
    # Values without a derivative stay closed over, as in JAX.
    return _converted(fun, example_args, lambda t: t.is_differentiable)


def _converted(
    fun: Callable[..., Any], example_args: tuple[Any, ...], is_hoisted: Callable[[Type], bool]
) -> tuple[Callable[..., Any], list[Any]]:
    """Work of `closure_convert`: `is_hoisted` tells the types of the values that become arguments."""
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
    hoisted = [i for i, v in enumerate(closed.captures) if is_hoisted(v.type)]
    count = len(hoisted)

    def converted(*args: Any) -> Any:
        given, given_treedef = tree.flatten(args)
        labels = ("the example arguments and the values closed over", "the arguments")
        _, wanted = tree.flatten((*example_args, *range(count)))
        same_structure("closure_convert", source, labels, (leaves + [0] * count, wanted), (given, given_treedef))
        split = len(given) - count

        def record() -> Any:
            here_now = recorder()
            captured = {i: Tensor(builder, v) for i, v in enumerate(closed.captures)}
            captured.update(zip(hoisted, given[split:], strict=True))
            values = [value_in(here_now, x) for x in (*captured.values(), *given[:split])]
            results = here_now.inline(closed.regions[0], values)
            return tree.unflatten(traced.treedef, [Tensor(here_now, v) for v in results])

        return in_trace(record)

    return converted, [Tensor(builder, closed.captures[i]) for i in hoisted]


@explains_calls
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
        # The backward rule is traced elsewhere, where integers and booleans of this trace are out of reach too.
        converted, closed_over = _converted(backward, (value,), lambda t: True)

        def pull(consts: list[Any], cotangent: Any) -> tuple[Any, ...]:
            cotangents = converted(cotangent, *consts)
            is_tuple = isinstance(cotangents, tuple | list)
            return tuple(cotangents) if is_tuple and len(cotangents) == len(args) else (cotangents,)

        return value, tree.Partial(pull, closed_over)

    function.defvjp(forward, lambda pull, cotangent: pull(cotangent))
    return function
