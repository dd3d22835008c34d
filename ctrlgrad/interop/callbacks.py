"""Calls of Python from a running program, and what has no meaning outside of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ctrlgrad.debug import callback
from ctrlgrad.errors import DifferentiationError
from ctrlgrad.frontend.host_calls import host_call
from ctrlgrad.interop.avals import is_float, is_key, tensor_type
from ctrlgrad.interop.primitives import REFUSED, Equation, entry, unsupported
from ctrlgrad.interop.settings import x64_as
from ctrlgrad.transforms.custom_jvp import custom_jvp

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
