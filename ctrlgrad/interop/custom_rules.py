"""JAX's primitives that call functions: functions with rules, control flow, mapped axes, calls of Python.

The rules of `jax.custom_jvp` and `jax.custom_vjp` are kept. JAX applies a rule where the equation is differentiated. So
the rule is read off by differentiating the equation alone, `jax.jvp` or `jax.vjp` of it, while JAX traces: what comes
out is the rule as a jaxpr, whose own calls of functions with rules are equations again. It is traced when a derivative
is asked for, not before: a rule may call its own function.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import ad

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.debug import callback
from ctrlgrad.errors import DifferentiationError
from ctrlgrad.frontend.branches import cond, switch
from ctrlgrad.frontend.host_calls import host_call
from ctrlgrad.frontend.loops import scan, while_loop
from ctrlgrad.frontend.rules import LaterPush, LaterReverse, Results, record_call, trace_rule
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import Leaf, leaves_of
from ctrlgrad.interop.avals import is_float, is_key, key_words, tensor_type, told, x64_as
from ctrlgrad.interop.primitives import REFUSED, TABLE, Equation, entry, plain, shown, unsupported
from ctrlgrad.ir import Graph
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.records import record
from ctrlgrad.transforms.checkpoint import checkpoint, checkpoint_policies
from ctrlgrad.transforms.custom_calls import custom_jvp
from ctrlgrad.transforms.grad import stop_gradient
from ctrlgrad.transforms.implicit import custom_linear_solve

# Any of JAX's primitives that are classes with rules, since JAX 0.11: `jax.lax.custom_root` is one.
_HIGH = "call_hi_primitive"


class _Alone:
    """An equation with a rule, as a JAX function of its operands; results that nothing uses are left out.

    Derivatives are taken with respect to the floats among `perturbed`, places among the operands: rules of JAX may ask
    which they are, and refuse some.
    """

    def __init__(self, equation: Equation, perturbed: Positions) -> None:
        eqn, called = equation.jax, _called(equation)
        self.inputs = list(called.in_avals)
        self.used = [i for i, v in enumerate(eqn.outvars) if type(v).__name__ != "DropVar"]
        outputs = [eqn.outvars[i] for i in self.used]
        one = eqn.replace(invars=list(called.jaxpr.invars))
        jaxpr = called.jaxpr.replace(constvars=[], invars=list(called.jaxpr.invars), outvars=outputs, eqns=[one])
        self.function = jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))
        self.floats = [i for i in perturbed if is_float(self.inputs[i])]
        # Positions among all results, and among the used results.
        self.float_results = [i for i in self.used if is_float(equation.outputs[i])]
        self.float_outputs = [place for place, i in enumerate(self.used) if i in self.float_results]

    def of_floats(self, operands: Sequence[Any]) -> Callable[..., Any]:
        """Return the function of the float operands: its float results, and all its results."""

        def function(*floats: Any) -> Any:
            given = list(operands)
            for i, x in zip(self.floats, floats, strict=True):
                given[i] = x
            found = self.function(*given)
            return [found[place] for place in self.float_outputs], found

        return function

    def operands(self, operands: Sequence[Any]) -> list[Any]:
        return [operands[i] for i in self.floats]


def _called(equation: Equation) -> Any:
    """The function itself."""
    params = equation.params
    for name in ("call_jaxpr", "fun_jaxpr"):
        if name in params:
            return params[name]
    # A primitive whose implementation is JAX.
    primitive = equation.jax.primitive
    run = primitive.to_lojax if equation.name == _HIGH else primitive.impl
    return equation.implementation(lambda *xs: run(*xs, **params), *equation.inputs)


class _Call:
    """An equation with a rule, as a call that is recorded here."""

    symbolic_zeros = True

    def __init__(self, kind: str, equation: Equation, operands: Sequence[Any], places: Collection[int] | None = None):
        self.kind, self.equation, self.source = kind, equation, equation.source
        # The operands that have derivatives.
        self.places = range(len(operands)) if places is None else places
        self.leaves = list(operands)
        self.inputs = leaves_of(operands, [None] * len(operands))

    # JAX's rules have no traced values of ours.
    roots: tuple[Any, ...] = ()

    def primal(self, inputs: list[Any]) -> Any:
        return self.equation.read(_called(self.equation), *inputs)

    def alone(self, perturbed: Positions) -> _Alone:
        alone = _Alone(self.equation, tuple(i for i in perturbed if i in self.places))
        # The first operands are what the function closes over: its rule knows nothing of them.
        closed_over = [alone.inputs[i] for i in alone.floats if i < self.equation.params.get("num_consts", 0)]
        if closed_over:
            raise DifferentiationError(
                f"from_jax: a function with a {self.kind} rule closes over a value that is differentiated",
                source=self.source,
                expected="a rule for each value that has a derivative; JAX refuses this, too",
                got="closed over: " + shown(closed_over),
                hint="pass the value as an argument of the function, or close over jax.lax.stop_gradient of it",
            )
        return alone

    def traced(self, fn: Callable[..., Any], *avals: Any) -> Any:
        """A rule as a jaxpr."""
        problem = f"from_jax: JAX does not differentiate {self.equation.name!r}"
        hint = "mend its rule, or give the function around it one, by jax.custom_jvp or jax.custom_vjp"
        with told(DifferentiationError, problem, self.source, hint):
            return self.equation.trace(fn, *avals)

    def recorded(self, later: type[LaterPush]) -> Any:
        return record_call(later, self, f"JAX's {self.kind}", self)


class _Jvp(_Call):
    def rule(self) -> ClosedJaxpr:
        """The forward rule for all operands that may have derivatives."""
        return self._pushed(_Alone(self.equation, tuple(range(len(self.leaves)))))

    def push(self, results: Results, perturbed: Positions) -> Answer | None:
        alone = self.alone(perturbed)
        jaxpr = self._pushed(alone)

        def push(values: list[Any]) -> Any:
            found = self.equation.read(_closed(self.equation, jaxpr, values), *values)
            return [*_placed(found[: len(alone.used)], alone.used, results), *found[len(alone.used) :]]

        given = [*self.inputs, *alone.operands(self.inputs)]
        return Answer(trace_rule("push", push, given).finish(), tuple(alone.floats), tuple(alone.float_results))

    def _pushed(self, alone: _Alone) -> ClosedJaxpr:
        """The forward rule as a jaxpr of the operands and the tangents of floats."""
        count = len(alone.inputs)

        def pushed(*values: Any) -> Any:
            primals, tangents = values[:count], values[count:]
            floats = tuple(alone.operands(primals))
            _, pushed, found = jax.jvp(alone.of_floats(primals), floats, tuple(tangents), has_aux=True)
            return found, pushed

        found: ClosedJaxpr = self.traced(pushed, *alone.inputs, *alone.operands(alone.inputs))
        return found


def _closed(equation: Equation, rule: ClosedJaxpr, values: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr of a rule, with the values of the equation's operands for the tracers among its constants.

    A function among a rule's `nondiff_argnums` may close over a value that was traced with the program. JAX makes it an
    operand of the equation, but not of its rule.
    """
    operands = {id(atom): value for atom, value in zip(equation.jax.invars, values, strict=False)}

    def known(x: Any) -> Any:
        if not isinstance(x, jax.core.Tracer):
            return x
        try:
            return operands[id(getattr(x, "val", None))]
        except KeyError:
            raise unsupported(
                equation,
                "its rule closes over a traced value that the function does not use",
                "pass the value as an argument of the function",
            ) from None

    return ClosedJaxpr(rule.jaxpr, [known(x) for x in rule.consts])


@record
class _Ahead:
    """A forward pass: its residuals by JAX's types and by ours, and JAX's structure of the pullback."""

    alone: _Alone
    graph: Graph
    saved: list[Any]
    residuals: list[Leaf]
    treedef: Any


class _Vjp(_Call):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ahead: dict[Positions, _Ahead] = {}

    def push(self, results: Results, perturbed: Positions) -> Answer | None:
        """JAX has no forward mode of it either."""
        return None

    def forward(self, results: Results, perturbed: Positions) -> Graph:
        alone = self.alone(perturbed)
        treedefs = []

        def forward(*values: Any) -> Any:
            _, pullback, found = jax.vjp(alone.of_floats(values), *alone.operands(values), has_aux=True)
            residuals, treedef = jax.tree_util.tree_flatten(pullback)
            treedefs.append(treedef)
            return found, residuals

        jaxpr = self.traced(forward, *alone.inputs)
        saved = list(jaxpr.out_avals[len(alone.used) :])

        def first(values: list[Any]) -> Any:
            found = self.equation.read(jaxpr, *values)
            own = _placed(found[: len(alone.used)], alone.used, results)
            return own, found[len(alone.used) :]

        traced = trace_rule("forward", first, self.inputs)
        residuals = leaves_of(traced.result[1], ["residual"] * len(saved))
        self._ahead[perturbed] = _Ahead(alone, traced.finish(), saved, residuals, treedefs[-1])
        return self._ahead[perturbed].graph

    def backward(self, results: Results, perturbed: Positions, seeded: Positions) -> Answer:
        ahead = self._ahead[perturbed]
        alone, count = ahead.alone, len(ahead.saved)
        seeds = [self.equation.outputs[i] for i in alone.float_results]

        def backward(*values: Any) -> Any:
            pullback = jax.tree_util.tree_unflatten(ahead.treedef, values[:count])
            return pullback(list(values[count:]))

        jaxpr = self.traced(backward, *ahead.saved, *seeds)

        def second(values: list[Any]) -> Any:
            given = dict(zip(seeded, values[count:], strict=True))
            for i, aval in zip(alone.float_results, seeds, strict=True):
                given.setdefault(i, np.zeros(aval.shape, aval.dtype))
            cotangents = [given[i] for i in alone.float_results]
            return self.equation.read(jaxpr, *values[:count], *cotangents)

        given = [*ahead.residuals, *(results.leaves[i] for i in seeded)]
        return Answer(trace_rule("backward", second, given).finish(), seeded, tuple(alone.floats))


class _Both(_Jvp, _Vjp):
    """A call with a reverse rule, and a forward rule if JAX has one."""

    def push(self, results: Results, perturbed: Positions) -> Answer | None:
        try:
            return super().push(results, perturbed)
        except DifferentiationError as error:
            if isinstance(error.__cause__, NotImplementedError):
                return None
            raise


def with_rules_of_jax(equation: Equation, operands: Sequence[Any], places: Collection[int]) -> Any:
    """An equation whose value is its primitive's implementation, and whose derivatives are the primitive's rules, both
    written in JAX; of the operands those at these places have derivatives."""
    return _Both("custom_vjp", equation, operands, places).recorded(LaterReverse)


def by_its_rules(equation: Equation, *operands: Any) -> Any:
    """Read a primitive that has no entry in the table: by its implementation, and by its rules if it has some.

    Errors: `UnsupportedPrimitiveError` if the primitive is not implemented in JAX's own operations.
    """
    primitive = equation.jax.primitive
    try:
        implementation = _called(equation)
    except Exception as error:
        # JAX and packages raise errors of many types for what cannot be traced.
        raise unsupported(equation) from error
    if _calls(implementation.jaxpr, primitive):
        raise unsupported(equation)
    if primitive in ad.primitive_jvps:
        return with_rules_of_jax(equation, operands, range(len(operands)))
    return equation.read(implementation, *operands)


def _calls(jaxpr: Any, primitive: Any) -> bool:
    """Return true if a jaxpr, or one inside it, has an equation of a primitive."""
    inner = (x.jaxpr for eqn in jaxpr.eqns for x in eqn.params.values() if isinstance(x, ClosedJaxpr))
    return any(eqn.primitive is primitive for eqn in jaxpr.eqns) or any(_calls(x, primitive) for x in inner)


# Primitives that are compiled by a function in JAX's operations, whose derivatives theirs are; its module and name.
# JAX has only some of the derivatives of a `pallas_call` that it interprets.
_COMPILED = {
    "bcoo_dot_general": ("jax.experimental.sparse.bcoo", "_bcoo_dot_general_impl"),
    "bcsr_dot_general": ("jax.experimental.sparse.bcsr", "_bcsr_dot_general_impl"),
    "ragged_dot_general": ("jax._src.lax.lax", "_ragged_dot_general_impl"),
    "pallas_call": ("jax._src.pallas.hlo_interpreter", "pallas_call_hlo_interpret"),
}


@entry(*_COMPILED)
def _by_what_is_compiled(equation: Equation, *operands: Any) -> Any:
    params = dict(equation.params)
    if equation.name == "pallas_call" and params.pop("interpret") is not True:
        raise unsupported(equation, "it is compiled for an accelerator", "pass interpret=True to pallas_call")
    module, name = _COMPILED[equation.name]
    implementation = getattr(importlib.import_module(module), name, None)
    if implementation is None:
        raise unsupported(equation)
    found = equation.implementation(lambda *xs: implementation(*xs, **params), *equation.inputs)
    return equation.read(found, *operands)


@entry("custom_jvp_call", "custom_jvp_call_jaxpr")
def _custom_jvp(equation: Equation, *operands: Any) -> Any:
    """Read a function with a forward rule. JAX transposes the rule where a package's primitive in it says how: it is
    linear in its tangents, but its implementation need not be."""
    packages = [p for p in ad.primitive_transposes if p not in ad.primitive_jvps and p.name not in TABLE | REFUSED]
    if packages and any(_calls(_Jvp("custom_jvp", equation, operands).rule().jaxpr, p) for p in packages):
        return with_rules_of_jax(equation, operands, range(len(operands)))
    return _Jvp("custom_jvp", equation, operands).recorded(LaterPush)


@entry("custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_vjp(equation: Equation, *operands: Any) -> Any:
    return _Vjp("custom_vjp", equation, operands).recorded(LaterReverse)


@entry(_HIGH)
def _high(equation: Equation, *operands: Any) -> Any:
    return with_rules_of_jax(equation, operands, range(len(operands)))


def _placed(found: Sequence[Any], places: Sequence[int], like: Results) -> list[Any]:
    """Spread values to their places among the results; zeros elsewhere."""
    given = dict(zip(places, found, strict=True))
    return [
        given[i] if i in given else cnp.broadcast_to(np.zeros((), leaf.type.dtype), leaf.type.shape)  # type: ignore[union-attr]
        for i, leaf in enumerate(like.leaves)
    ]


# Primitives of Equinox, which Diffrax, Optimistix and Lineax are made of.


TABLE |= {
    # A row of a batch that has ended keeps what it has; without a batch the predicate is true.
    "select_if_vmap": plain(lambda pred, x, y: cnp.where(pred, x, y)),
    # `vmap` here masks each row of a loop by its own predicate: a row asks about itself.
    "unvmap_any": plain(cnp.any),
    "unvmap_all": plain(cnp.all),
    "unvmap_max": plain(cnp.max),
    # Equinox has its backward pass fail; here the identity has its derivative.
    "nondifferentiable_backward": plain(lambda x: x),
    "nonbatchable": plain(lambda x: x),
    "nontraceable": plain(lambda x: x),
    "announce_jaxpr": lambda equation, *operands: list(operands),
}


@entry("maybe_set", "noinline")
def _by_its_implementation(equation: Equation, *operands: Any) -> Any:
    """Read the JAX implementation: these primitives' derivatives are those of their implementations.

    Operands that are known stay known to the implementation: `noinline` finds its function by a number.
    """
    places = [i for i, x in enumerate(operands) if isinstance(x, Tensor) or key_words(equation.inputs[i])]
    given = list(operands)

    def implementation(*traced: Any) -> Any:
        for i, x in zip(places, traced, strict=True):
            given[i] = x
        return equation.jax.primitive.impl(*given, **equation.params)

    found = equation.implementation(implementation, *(equation.inputs[i] for i in places))
    return equation.read(found, *(operands[i] for i in places))


@entry("linear_solve")
def _linear_solve(equation: Equation, *operands: Any) -> Any:
    return with_rules_of_jax(equation, operands, _of_the_system(equation.params))


@entry("vprim")
def _vprim(equation: Equation, *operands: Any) -> Any:
    """Read `vmap` of a primitive that has derivatives of its own, to any depth of `vmap`.

    The primitive's rules are mapped with it: the implementation has other derivatives, or none.
    """
    primitive, params = equation.params["prim"], dict(equation.params["params"])
    while primitive.name == "vprim":
        primitive, params = params["prim"], dict(params["params"])
    if primitive.name == "maybe_set":
        return _by_its_implementation(equation, *operands)
    places = _of_the_system(params) if primitive.name == "linear_solve" else range(len(operands))
    return with_rules_of_jax(equation, operands, places)


def _of_the_system(params: Mapping[str, Any]) -> list[int]:
    """Places of the operands of Lineax's `linear_solve` that have derivatives: the operator and the right side.

    Its operands are the leaves of an operator, the solver's state, the right side, options, the solver and a flag.
    """
    places = iter(range(len(params["static"])))
    # An `object()` marks the place of an operand.
    leaves = [next(places) if type(x) is object else None for x in params["static"]]
    operator, _, vector, *_ = jax.tree_util.tree_unflatten(params["treedef"], leaves)
    return jax.tree_util.tree_leaves((operator, vector))


# JAX's primitives of control flow, of mapped axes, and of calls of Python.


Function = Callable[..., Any]


def parts(operands: Sequence[Any], *lengths: int) -> list[list[Any]]:
    """Operands in groups of these lengths, and the rest."""
    bounds = [0, *accumulate(lengths), len(operands)]
    return [list(operands[a:b]) for a, b in pairwise(bounds)]


@entry("while")
def _while(equation: Equation, *operands: Any) -> Any:
    params, read = equation.params, equation.read
    for_cond, for_body, carry = parts(operands, params["cond_nconsts"], params["body_nconsts"])
    goes_on: Function = lambda c: read(params["cond_jaxpr"], *for_cond, *c)[0]
    body: Function = lambda c: read(params["body_jaxpr"], *for_body, *c)
    axes = params["cond_jaxpr"].out_avals[0].ndim
    if not axes:
        return while_loop(goes_on, body, carry)

    # A loop that JAX has mapped over rows: it goes on while one row does, and finished rows keep their values.
    def masked(c: list[Any]) -> list[Any]:
        alive = goes_on(c)
        of_rank: Function = lambda x: cnp.reshape(alive, (*alive.shape, *[1] * (x.ndim - axes)))
        return [cnp.where(of_rank(new), new, old) for old, new in zip(c, body(c), strict=True)]

    return while_loop(lambda c: cnp.any(goes_on(c)), masked, carry)


def _constants_and_carries(params: Mapping[str, Any]) -> tuple[int, int]:
    """Count a scan's constants and carries."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # A tree of the operands, since JAX 0.11.
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


@entry("scan")
def _scan(equation: Equation, *operands: Any) -> Any:
    params, read = equation.params, equation.read
    consts, carry, rows = parts(operands, *_constants_and_carries(params))

    def step(c: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = read(params["jaxpr"], *consts, *c, *row)
        return results[: len(carry)], results[len(carry) :]

    last, collected = scan(step, carry, rows, length=params["length"], reverse=params["reverse"])
    return [*last, *collected]


@entry("cond")
def _cond(equation: Equation, which: Any, *operands: Any) -> Any:
    branches, read = equation.params["branches"], equation.read
    if not isinstance(which, Tensor):
        # Known when the program is read, as the platform is: of the other branches nothing is asked.
        return read(branches[int(np.clip(which, 0, len(branches) - 1))], *operands)
    functions = [lambda *xs, branch=branch: read(branch, *xs) for branch in branches]
    if which.dtype == bool:
        return cond(which, functions[1], functions[0], *operands)
    return switch(which, functions, *operands)


@entry("platform_index")
def _platform_index(equation: Equation) -> Any:
    """The branch that is written for the processor."""
    platforms = equation.params["platforms"]
    for i, names in enumerate(platforms):
        if names is not None and "cpu" in names:
            return np.int32(i)
    if None in platforms:
        return np.int32(platforms.index(None))
    raise unsupported(equation, "no branch is for the processor", "give a default to jax.lax.platform_dependent")


@entry("jit", "pjit", "closed_call", "core_call", "call", "core_closed_call", "eval_jaxpr")
def _call(equation: Equation, *operands: Any) -> Any:
    params = equation.params
    return equation.read(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"], *operands)


@entry("custom_vmap_call")
def _custom_vmap(equation: Equation, *operands: Any) -> Any:
    """Read the function itself: if JAX maps it over rows, the jaxpr has its rule instead."""
    return equation.read(equation.params["call"], *operands)


@entry("remat2", "checkpoint", "remat")
def _remat(equation: Equation, *operands: Any) -> Any:
    policy = equation.params["policy"]
    # A policy of JAX's that has no counterpart here changes what is saved, not what is computed.
    known = getattr(policy, "__name__", "") in vars(checkpoint_policies)
    function = lambda *xs: equation.read(equation.params["jaxpr"], *xs)
    return checkpoint(function, policy=policy if known else None)(*operands)


@entry("custom_linear_solve")
def _custom_linear_solve(equation: Equation, *operands: Any) -> Any:
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    counts = (lengths.matvec, lengths.vecmat, lengths.solve, lengths.transpose_solve)
    matvec, _, solve, transposed, b = parts(operands, *counts)
    size = len(b)

    def solver(jaxpr: Any, consts: list[Any]) -> Any:
        # The derivative is that of the equation: how it is solved has none.
        kept = stop_gradient(consts)

        def solved(_: Any, y: list[Any]) -> Any:
            results = equation.read(jaxpr, *kept, *y)
            return results[:size], results[size:]

        return solved

    x, aux = custom_linear_solve(
        lambda x: equation.read(jaxprs.matvec, *matvec, *x),
        b,
        solver(jaxprs.solve, solve),
        None if jaxprs.transpose_solve is None else solver(jaxprs.transpose_solve, transposed),
        has_aux=True,
    )
    return [*x, *aux]


# Collectives: reductions over rows of `jax.vmap`, and programs that are written for several devices and run on one.
#
# `jax.vmap(axis_name=...)` turns the name in `psum` into the number of an axis. A name that is left belongs to a
# mesh, and meshes of more than one device are refused, so that its axis has size 1.


REFUSED["ragged_all_to_all"] = "it speaks of several devices"


def _over_rows(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(equation: Equation, *operands: Any) -> list[Any]:
        axes = tuple(axis for axis in equation.params["axes"] if isinstance(axis, int))
        return [reduce(x, axes) if axes else x for x in operands]

    return reduced


TABLE |= dict.fromkeys(("psum", "psum2", "psum_invariant"), _over_rows(lax.reduce_sum))
TABLE |= {"pmax": _over_rows(lax.reduce_max), "pmin": _over_rows(lax.reduce_min)}


@entry("all_gather", "all_gather_invariant", "reduce_scatter", "all_to_all")
def _of_one_device(equation: Equation, x: Any) -> Any:
    """Read an exchange of one device with itself: at most, an axis of size 1 comes, goes or moves."""
    return lax.reshape(x, equation.outputs[0].shape)


@entry("ppermute")
def _ppermute(equation: Equation, *operands: Any) -> Any:
    """Read a permutation of one device: the operands, or zeros if nothing is sent to it."""
    return [x if tuple(equation.params["perm"]) else lax.full_like(x, 0) for x in operands]


@entry("axis_index")
def _axis_index(equation: Equation) -> Any:
    return np.zeros((), equation.outputs[0].dtype)


# Annotations of how values vary from device to device.
TABLE |= dict.fromkeys(("pbroadcast", "pcast", "pvary"), plain(lambda *operands: list(operands)))


@entry("shard_map")
def _shard_map(equation: Equation, *operands: Any) -> Any:
    """Read a program for the devices of a mesh that has one device."""
    if (size := equation.params["mesh"].size) != 1:
        raise unsupported(equation, f"its mesh has {size} devices", "give it a mesh of one device")
    return equation.read(equation.params["jaxpr"], *operands)


# Calls of Python from a running program, and primitives without a meaning outside of JAX.


_REFS = "it changes an array in place"
_TOKENS = "it orders effects"

REFUSED |= {
    **dict.fromkeys(("get", "swap", "addupdate"), _REFS),
    **dict.fromkeys(("after_all", "create_token"), _TOKENS),
    "custom_lin": "it is a step of JAX's own reverse mode",
    "rng_uniform": "its numbers come from hidden state and differ in each run; use jax.random",
    "ffi_call": "it is compiled code",
}


def _for_each_lane(equation: Equation, call: Callable[[list[Any]], Any]) -> Callable[[list[Any], Any], None]:
    """A function of JAX's arrays of the ranks that JAX knows: under `ctrlgrad.vmap` it is called once for each lane."""
    ranks = [len(aval.shape) for aval in equation.inputs]

    def show(arrays: list[Any], iterations: Any) -> None:
        given = [np.asarray(x) for x in arrays]
        lanes = [x.shape[: x.ndim - rank] for x, rank in zip(given, ranks, strict=True)]
        outer = max(lanes, key=len, default=())
        for place in np.ndindex(outer):
            call(_as_jax(equation, [x[place] if shape else x for x, shape in zip(given, lanes, strict=True)]))

    return show


def _as_jax(equation: Equation, arrays: Sequence[Any]) -> list[Any]:
    """Arrays of JAX, which a callback's author may index and call methods of as if JAX called it."""
    with x64_as(True):
        pairs = zip(arrays, equation.inputs, strict=True)
        return [x if is_key(aval) else jax.numpy.asarray(x, aval.dtype) for x, aval in pairs]


@entry("debug_callback")
def _debug_callback(equation: Equation, *operands: Any) -> Any:
    function = equation.params["callback"]
    show = _for_each_lane(equation, lambda arrays: function(*arrays))
    callback(show, list(operands), "jax.debug.callback")
    return []


@entry("io_callback")
def _io_callback(equation: Equation, *operands: Any) -> Any:
    """Read one without results, whose calls happen in the order of the program; a result would be an effect's, which
    no derivative may compute again."""
    if equation.outputs:
        raise unsupported(
            equation,
            "it has results and effects, and a gradient runs parts of a program again",
            "call jax.pure_callback if the function has no effects, or give io_callback the result_shape_dtypes None",
        )
    function = equation.params["callback"]
    seen = [
        _without_derivative(equation, x) if is_float(v) else x for v, x in zip(equation.inputs, operands, strict=True)
    ]
    callback(_for_each_lane(equation, lambda arrays: function(*arrays)), seen, "jax.io_callback")
    return []


def _without_derivative(equation: Equation, x: Any) -> Any:
    """The identity; to differentiate it is an error, as in JAX."""
    identity = custom_jvp(lambda x: x)

    def refuse(primals: Any, tangents: Any) -> Any:
        raise DifferentiationError(
            "from_jax: JAX's io_callback is given a value that is differentiated",
            source=equation.source,
            expected="a value without a derivative; JAX refuses this, too",
            got=", ".join(map(str, equation.inputs)),
            hint="pass jax.lax.stop_gradient of it, or call jax.debug.callback",
        )

    identity.defjvp(refuse)
    return identity(x)


@entry("pure_callback")
def _pure_callback(equation: Equation, *operands: Any) -> Any:
    params = equation.params
    # A callback that JAX would refuse to map, as in the errors of Equinox, is called for each row.
    method = params["vmap_method"]
    method = "sequential" if method in (None, "sequential_unrolled") else method
    results = [tensor_type(aval) for aval in equation.outputs]
    given = params["callback"]
    function = functools.wraps(given)(lambda *arrays: given(*_as_jax(equation, arrays)))
    return host_call(function, operands, results, "jax.pure_callback", method)


@entry("debug_print")
def _debug_print(equation: Equation, *operands: Any) -> Any:
    params = equation.params
    static = dict(params["static_args"])
    count = len(operands) + len(static)

    def show(arrays: list[Any]) -> None:
        given = iter(arrays)
        leaves = [static[i] if i in static else next(given) for i in range(count)]
        args, kwargs = jax.tree_util.tree_unflatten(params["in_tree"], leaves)
        print(params["fmt"].format(*args, **kwargs))

    callback(_for_each_lane(equation, show), list(operands), "jax.debug.print")
    return []
