"""JAX's primitives of control flow, of mapped axes, and of calls of Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import jax
import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.debug import callback
from ctrlgrad.errors import DifferentiationError
from ctrlgrad.frontend.branches import cond, switch
from ctrlgrad.frontend.host_calls import host_call
from ctrlgrad.frontend.loops import scan, while_loop
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.avals import is_float, is_key, tensor_type, x64_as
from ctrlgrad.interop.primitives import REFUSED, TABLE, Equation, entry, plain, unsupported
from ctrlgrad.transforms.checkpoint import checkpoint, checkpoint_policies
from ctrlgrad.transforms.custom_calls import custom_jvp
from ctrlgrad.transforms.grad import stop_gradient
from ctrlgrad.transforms.implicit import custom_linear_solve

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
def _linear_solve(equation: Equation, *operands: Any) -> Any:
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
    "rng_uniform": "its numbers come of a state that is hidden from programs: each run has others; use jax.random",
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
