"""JAX's names for its own tests, so that what they evaluate goes through `from_jax`.

The tests keep JAX's functions, on JAX's arrays. But what they call outside of a trace of JAX is evaluated here: a
control flow function is read by `from_jax` and run, and a transform of JAX's becomes this library's of the function
that `from_jax` reads. Within a trace of JAX (of which `from_jax` makes one for every function that it reads) all is
JAX's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src.core import trace_state_clean

import ctrlgrad as cg

# How many evaluations have gone through `from_jax`.
evaluations = 0
# Tests that are not run, by expressions of their names, each with its reason.
NOT_ASKED = {
    r"testWhileGradError": "JAX has no reverse mode of such loops and asserts an error",
    r"test_cond_vmap_forwarding_doesnt_promote": "asserts that a result is the same Python object as an argument",
    r"test_platform_dependent_with_primitive_with_lowering_error": "binds a primitive of its own",
    r"test_scan_vmap_collectives": "collectives",
    r"testCondOneBranchConstant": "asserts that a result is weakly typed: here results are arrays of NumPy's",
    r"test_fori_loop_supports_unrolling$": "static bounds of NumPy's, which `from_jax` traces as all arrays",
}
_OPS = ("associative_scan", "cond", "fori_loop", "map", "platform_dependent", "scan", "switch", "while_loop")
# Transforms of functions, and functions that take a function and its arguments.
_TRANSFORMS = ("grad", "hessian", "jacfwd", "jacrev", "value_and_grad", "vmap")
_IMMEDIATE = ("jvp", "linear_transpose", "linearize", "vjp")


class Through:
    """A function of JAX, and the one of this library that it is read as."""

    def __init__(self, theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
        functools.update_wrapper(self, theirs)
        self.theirs, self.ours = theirs, ours

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.theirs, name)  # `jit(f).lower` and the like

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not trace_state_clean():
            return self.theirs(*args, **kwargs)
        return _evaluated(self.ours, self.theirs, *args, **kwargs)


def _evaluated(ours: Callable[..., Any], theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The results here; of a function with Python's own `if` or `while`, such as the tests compare with, JAX's."""
    global evaluations
    try:
        found = as_theirs(ours(*args, **kwargs))
    except jax.errors.ConcretizationTypeError:
        return theirs(*args, **kwargs)
    evaluations += 1
    return found


def as_theirs(results: Any) -> Any:
    """Arrays as JAX's own, whose methods the tests call; the functions that `vjp` gives make such too."""
    make = lambda x: jax.numpy.asarray(x) if isinstance(x, np.ndarray | np.generic) and x.dtype != cg.float0 else x
    leaves, treedef = jax.tree_util.tree_flatten(results)
    wrapped = [(lambda *args, x=x: as_theirs(x(*args))) if callable(x) else make(x) for x in leaves]
    return jax.tree_util.tree_unflatten(treedef, wrapped)


def ours_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of JAX as one of this library."""
    return fn.ours if isinstance(fn, Through) else cg.from_jax(fn)


def _theirs_of(fn: Any) -> Any:
    return fn.theirs if isinstance(fn, Through) else fn


def _jit(fn: Any = None, **options: Any) -> Any:
    if fn is None:
        return functools.partial(_jit, **options)
    theirs, ours = jax.jit(_theirs_of(fn), **options), ours_of(fn)
    if any(name.startswith("static") for name in options):
        return Through(theirs, ours)
    # JAX traces Python's integers here.
    return Through(theirs, lambda *args, **kwargs: ours(*jax.tree.map(_weak, args), **jax.tree.map(_weak, kwargs)))


def _weak(x: Any) -> Any:
    return jax.numpy.asarray(x) if isinstance(x, int) else x


def _checkpoint(fn: Any = None, **options: Any) -> Any:
    if fn is None:
        return functools.partial(_checkpoint, **options)
    theirs = jax.checkpoint(_theirs_of(fn), **options)
    return Through(theirs, cg.from_jax(theirs))


def _transform(name: str) -> Callable[..., Any]:
    def transform(fn: Any, *args: Any, **options: Any) -> Any:
        theirs = getattr(jax, name)(_theirs_of(fn), *args, **options)
        if "axis_name" in options:  # named axes are JAX's own matter
            return Through(theirs, cg.from_jax(theirs))
        return Through(theirs, getattr(cg, name)(ours_of(fn), *args, **options))

    return transform


def _immediate(name: str) -> Callable[..., Any]:
    def apply(fn: Any, *args: Any, **options: Any) -> Any:
        theirs = functools.partial(getattr(jax, name), _theirs_of(fn))
        if not trace_state_clean():
            return theirs(*args, **options)
        return _evaluated(functools.partial(getattr(cg, name), ours_of(fn)), theirs, *args, **options)

    return apply


def names(make: Callable[[Any, dict[str, Any]], Any]) -> Any:
    """The module `jax` of the tests; `make` puts names over those of a module."""
    lax = {name: Through(getattr(jax.lax, name), cg.from_jax(getattr(jax.lax, name))) for name in _OPS}
    ours: dict[str, Any] = {name: _transform(name) for name in _TRANSFORMS}
    ours |= {name: _immediate(name) for name in _IMMEDIATE}
    return make(jax, ours | {"jit": _jit, "checkpoint": _checkpoint, "remat": _checkpoint, "lax": make(jax.lax, lax)})
