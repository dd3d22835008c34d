"""Common part of `custom_vjp` and `custom_jvp`: the call of a function that has a rule, and the checks of the rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import cast, is_weak, type_of
from ctrlgrad.frontend.checks import argument_names, check_callable, check_leaves, same_structure
from ctrlgrad.frontend.rules import Results
from ctrlgrad.frontend.tracer import in_trace, leaves_of
from ctrlgrad.ir import TensorType, Type
from ctrlgrad.records import record
from ctrlgrad.signature import TensorSpec
from ctrlgrad.source import Source, here


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


def nondiff_positions(
    fn: Callable[..., Any], nondiff_argnums: int | Sequence[int], nondiff_argnames: str | Sequence[str]
) -> tuple[int, ...]:
    """The positions of the arguments that a rule takes first, by number or by name."""
    names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else tuple(nondiff_argnames)
    parameters = list(inspect.signature(fn).parameters) if names else []
    for name in names:
        if name not in parameters:
            raise UserInputError(
                "nondiff_argnames: the function has no such parameter",
                source=here(),
                expected="one of " + ", ".join(parameters),
                got=repr(name),
                hint="name a parameter of the function that has the rule",
            )
    numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
    return (*numbers, *map(parameters.index, names))


def without_a_rule(kind: str, fn: Callable[..., Any], setter: str) -> UserInputError:
    """The error of a call of a function that was given no rule."""
    return UserInputError(
        f"{kind} {name_of(fn)}: the function has no rule yet",
        source=here(),
        expected=f"a rule, given by .{setter}",
        got="a call before that",
        hint=f"call {name_of(fn)}.{setter} first, or leave {kind} out",
    )


def without_rule(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result of a call that nothing differentiates; like every engine it says nothing of infinities and NaN."""
    with np.errstate(all="ignore"):
        return in_trace(lambda: fn(*args))


class RuleSetters:
    """A function with a rule. Rules of other kinds are set on the function that it wraps, as with JAX's decorators:
    of `custom_vjp(custom_vmap(f))` both `defvjp` and `def_vmap` are there."""

    fn: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        if name in ("defjvp", "defjvps", "defvjp", "def_vmap") and "fn" in vars(self):
            return getattr(self.fn, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


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
        self.parameters = _parameters(fn, len(args))
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


def _parameters(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the arguments of a call by position."""
    try:
        known = [p.name for p in inspect.signature(fn).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    except (TypeError, ValueError):
        known = []
    return [known[n] if n < len(known) else f"argument {n}" for n in range(count)]


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
