"""A graph as one JAX primitive, which this library's engines run.

A `JaxProgram` is a function of arrays of known dtypes and shapes. All programs share the primitive; a bound one is its
parameter. What JAX asks of a primitive is again the same primitive, bound to a program that is derived from the first
(`program.py`). Its JVP is two calls, of the program itself and of its tangent, which has a transpose, the pullback.
That one runs the forward pass again, so nothing whose size depends on data passes through JAX.

In compiled code for the processor the primitive is a call of the engine's machine code (`engines/native/entry.py`),
which asks for Python's lock only where the run needs Python. Of other engines, and for other devices, it is a call of
Python. Both touch memory and NumPy's arrays alone: JAX's own could wait for the computation that waits for the call.
They run without the options and budgets of whichever thread JAX takes for it.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ctrlgrad.engines.native.entry import Entry
from ctrlgrad.errors import DifferentiationError, TracingError
from ctrlgrad.execution import program_of
from ctrlgrad.interop.primitives import TABLE
from ctrlgrad.interop.program import Fn, Program, traced
from ctrlgrad.interop.xla_calls import call_entry, has_typed_calls
from ctrlgrad.ir import Graph, TensorType


class JaxProgram(Program):
    """A function on arrays of these types as JAX knows it: with abstract values, and an entry for compiled code."""

    def __init__(self, name: str, trace: Callable[[], Graph], *args: Any, **kwargs: Any) -> None:
        super().__init__(name, lambda: _sized(name, trace()), *args, **kwargs)
        self.avals = tuple(jax.core.ShapedArray(t.shape, t.dtype) for t in self.results)
        self.tangents = tuple(
            jax.core.ShapedArray(t.shape, t.dtype if t.is_differentiable else jax.dtypes.float0) for t in self.results
        )
        # Whether it has been called outside of compiled code.
        self.has_run = False

    @classmethod
    def traced(cls, name: str, fn: Fn, types: Sequence[TensorType], engine: str) -> JaxProgram:
        """The program of a function that takes tensors and returns a sequence of them, or of arrays."""
        return cls.of(name, _sized(name, traced(name, fn, types, "to_jax: the result")), engine)

    def trace(self) -> None:
        """Trace it now: what is wrong with it is said here, and not from within a compiled program."""
        _ = self.graph

    def run(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The results for arrays of NumPy and JAX."""
        # JAX hands on Python numbers as they are, whatever type it takes them for.
        return super().run(*(np.asarray(x, t.dtype) for x, t in zip(arrays, self.types, strict=True)))

    def run_apart(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The same, whatever options and budgets this thread has."""
        return contextvars.Context().run(self.run, *arrays)

    @functools.cached_property
    def entry(self) -> Entry:
        """The program for compiled code."""

        def program(arrays: list[np.ndarray]) -> Any:
            return program_of(self._function.graph(*arrays), arrays)

        return Entry(self.types, self.results, lambda arrays: self.run(*arrays), program)


def _sized(name: str, graph: Graph) -> Graph:
    """The graph, whose results have known sizes."""
    for value in graph.outputs:
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            raise TracingError(
                f"to_jax: the size of a result of {name} is not known before it runs",
                expected="arrays whose sizes follow from those of the arguments: JAX needs them when it traces",
                got=str(value.type),
                hint="return a sum or another reduction of it, or pad it to the most elements that there can be",
            )
    return graph


program_p: Any = Primitive("ctrlgrad")
program_p.multiple_results = True


def bind(program: JaxProgram, *arrays: Any) -> list[Any]:
    """The results of a program as JAX's arrays, or tracers."""
    found: list[Any] = program_p.bind(*arrays, program=program)
    return found


# A call of compiled code takes NumPy's arrays in a fraction of the time that `device_put` needs for one of them.
_compiled_put = jax.jit(lambda *arrays: arrays)


def _run(*arrays: Any, program: JaxProgram) -> list[Any]:
    results = program.run(*arrays)
    config: Any = jax.config
    if program.has_run and not config.jax_disable_jit:
        return list(_compiled_put(*results))
    # What is called once is not worth the compilation.
    program.has_run = True
    return [jax.device_put(x) for x in results]


program_p.def_impl(_run)


def _types(*avals: Any, program: JaxProgram) -> tuple[Any, ...]:
    return program.avals


program_p.def_abstract_eval(_types)


def _lower(ctx: Any, *operands: Any, program: JaxProgram) -> Any:
    program.trace()
    results, _, kept = mlir.emit_python_callback(
        ctx, program.run_apart, None, operands, ctx.avals_in, ctx.avals_out, has_side_effect=False
    )
    _keep(ctx, kept)
    return results


def _lower_on_processor(ctx: Any, *operands: Any, program: JaxProgram) -> Any:
    if program.engine not in ("auto", "native") or not has_typed_calls():
        return _lower(ctx, *operands, program=program)
    program.trace()
    _keep(ctx, program.entry)
    return call_entry(ctx, program.entry, *operands)


def _keep(ctx: Any, what: Any) -> None:
    """Keep it alive as long as the compiled program."""
    if hasattr(ctx.module_context, "add_keepalive"):
        ctx.module_context.add_keepalive(what)


mlir.register_lowering(program_p, _lower)
mlir.register_lowering(program_p, _lower_on_processor, platform="cpu")


def _batch(arrays: Sequence[Any], axes: Sequence[Any], *, program: JaxProgram) -> tuple[list[Any], list[int]]:
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    straight = len(arrays) - program.linear
    # A transpose has a result for each argument that it is linear in: with rows, if any has.
    given = [
        x if i < straight else _in_front(x, axis, size) for i, (x, axis) in enumerate(zip(arrays, axes, strict=True))
    ]
    places = [*axes[:straight], *[0] * program.linear]
    results = bind(program.batched(tuple(places), size), *given)
    return results, [0] * len(results)


def _in_front(x: Any, axis: Any, size: int) -> Any:
    return jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)


batching.primitive_batchers[program_p] = _batch


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: JaxProgram) -> tuple[list[Any], list[Any]]:
    results = bind(program, *primals)
    wrt = tuple(i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero) and program.types[i].is_differentiable)
    moved: list[Any] = [ad.Zero(aval) for aval in program.tangents]
    if wrt and program.floats:
        found = bind(program.tangent(wrt), *primals, *(tangents[i] for i in wrt))
        for i, t in zip(program.floats, found, strict=True):
            moved[i] = t
    return results, moved


ad.primitive_jvps[program_p] = _jvp


def _transpose(cotangents: Sequence[Any], *arrays: Any, program: JaxProgram) -> list[Any]:
    straight = len(arrays) - program.linear
    unknown = [isinstance(x, ad.UndefinedPrimal) for x in arrays]
    if any(unknown[:straight]):
        raise DifferentiationError(
            f"to_jax: the transpose of {program.name}, which is not linear in all that is to be transposed",
            expected="jax.linear_transpose of a function that is linear",
            got=", ".join(map(str, program.types)),
            hint="use jax.vjp, which takes the derivative first",
        )
    found = bind(program.transposed, *arrays[:straight], *map(ad.instantiate_zeros, cotangents))
    given = [x if yes else None for x, yes in zip(found, unknown[straight:], strict=True)]
    return [None] * straight + given


ad.primitive_transposes[program_p] = _transpose

# What has gone to JAX comes back as it was.
TABLE["ctrlgrad"] = lambda equation, *operands: equation.params["program"](*operands)
