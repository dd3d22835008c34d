"""A graph as one JAX primitive, which this library's engines run.

A `Program` is a function of arrays of known dtypes and shapes. All programs share the primitive; a bound one is its
parameter. What JAX asks of a primitive is again the same primitive, bound to a program that is made of the first:

- a batch of calls is one call of the `vmap`;
- its JVP is two calls: of the program itself, and of its tangent, f'(x) t, which is linear in t. That one has a
  transpose, the pullback f'(x)^T c, linear in c, whose transpose is the tangent. The pullback runs the forward pass
  again, so nothing whose size depends on data passes through JAX;
- a tangent or pullback is differentiated as any other program: so all orders and mixtures of the modes exist.

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
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced
from ctrlgrad.function import Function, function
from ctrlgrad.interop.primitives import TABLE
from ctrlgrad.interop.xla_calls import call_entry, has_typed_calls
from ctrlgrad.ir import Builder, Graph, TensorType
from ctrlgrad.source import here
from ctrlgrad.transforms.grad import vjp
from ctrlgrad.transforms.jvp import jvp
from ctrlgrad.transforms.vmap import vmap

Fn = Callable[..., Sequence[Any]]


class Program:
    """A function on arrays of these types, traced once.

    Args:
        fn: takes tensors and returns a sequence of them, or of arrays.
        linear: in how many of its last arguments it is linear.
        transposed: makes the transpose with respect to these: a program of the other arguments and one cotangent per
            result, with one result per argument that it is linear in.
        results: the types of its results. Where they are given, `fn` is not traced before the program runs: of a
            tangent that JAX only transposes, nothing is asked, so a function may have a reverse rule alone.
    """

    def __init__(
        self,
        name: str,
        fn: Fn,
        types: Sequence[TensorType],
        engine: str,
        linear: int = 0,
        transposed: Callable[[], Program] | None = None,
        results: Sequence[TensorType] | None = None,
    ) -> None:
        self.name, self.types, self.engine = name, tuple(types), engine
        self.linear = linear
        self._fn, self._transposed = fn, transposed
        self._derived: dict[Any, Program] = {}
        self.result_types = tuple(v.tensor for v in self.graph.outputs) if results is None else tuple(results)
        # The results that have derivatives.
        self.floats = tuple(i for i, t in enumerate(self.result_types) if t.is_differentiable)
        self.results = tuple(jax.core.ShapedArray(t.shape, t.dtype) for t in self.result_types)
        self.tangents = tuple(
            jax.core.ShapedArray(t.shape, t.dtype if t.is_differentiable else jax.dtypes.float0)
            for t in self.result_types
        )
        self._function: Function = function(lambda *arrays: tuple(self(*arrays)), name=self._word, engine=engine)

    def __repr__(self) -> str:
        return self.name

    @property
    def _word(self) -> str:
        return self.name.replace(" ", "_")

    @functools.cached_property
    def graph(self) -> Graph:
        """What it computes."""
        inputs = [Leaf(t) for t in self.types]
        builder = Builder(name=self._word if self._word.isidentifier() else "function")
        graph = Traced(
            builder.name, lambda xs: list(self._fn(*xs)), inputs, what="to_jax: the result", builder=builder
        ).finish()
        for value in graph.outputs:
            if not isinstance(value.type, TensorType) or not value.type.is_static:
                raise TracingError(
                    f"to_jax: the size of a result of {self.name} is not known before it runs",
                    source=here(),
                    expected="arrays whose sizes follow from those of the arguments: JAX needs them when it traces",
                    got=str(value.type),
                    hint="return a sum or another reduction of it, or pad it to the most elements that there can be",
                )
        return graph

    def trace(self) -> None:
        """Trace it now: what is wrong with it is said here, and not from within a compiled program."""
        _ = self.graph

    def __call__(self, *arrays: Any) -> list[Tensor]:
        """The results, recorded in the trace that goes on."""
        builder = recorder()
        values = builder.inline(self.graph, [value_in(builder, x) for x in arrays])
        return [Tensor(builder, value) for value in values]

    def run(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The results for NumPy's arrays."""
        # JAX hands on Python numbers as they are, whatever type it takes them for.
        given = [np.asarray(x, t.dtype) for x, t in zip(arrays, self.types, strict=True)]
        results: tuple[np.ndarray, ...] = self._function(*given)
        return results

    def run_apart(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The same, whatever options and budgets this thread has."""
        return contextvars.Context().run(self.run, *arrays)

    @functools.cached_property
    def entry(self) -> Entry:
        """The program for compiled code."""

        def program(arrays: list[np.ndarray]) -> Any:
            return program_of(self._function.graph(*arrays), arrays)

        return Entry(self.types, self.result_types, lambda arrays: self.run(*arrays), program)

    def _cached(self, key: Any, make: Callable[[], Program]) -> Program:
        found = self._derived.get(key)
        # Of two threads that make it, one keeps its own.
        return self._derived.setdefault(key, make()) if found is None else found

    def batched(self, axes: tuple[int | None, ...], size: int) -> Program:
        """The program for all rows at once: argument i has them along axes[i], all results along the first."""

        def transposed() -> Program:
            straight = axes[: len(axes) - self.linear]
            return self.transposed.batched((*straight, *(0 for _ in self.results)), size)

        types = [t if a is None else _with_rows(t, a, size) for t, a in zip(self.types, axes, strict=True)]
        results = [_with_rows(t, 0, size) for t in self.result_types]
        mapped = vmap(lambda *xs: tuple(self(*xs)), in_axes=axes)
        return self._cached(
            ("vmap", axes, size),
            lambda: Program(f"vmap of {self.name}", mapped, types, self.engine, self.linear, transposed, results),
        )

    def tangent(self, wrt: tuple[int, ...]) -> Program:
        """The derivative along tangents of the arguments at `wrt`, of the results that are floats."""
        moving, results = [self.types[i] for i in wrt], [self.result_types[i] for i in self.floats]
        types = [*self.types, *moving]

        def fn(*given: Any) -> list[Any]:
            point, tangents = given[: len(self.types)], given[len(self.types) :]
            found = jvp(self._of(point, wrt), tuple(point[i] for i in wrt), tuple(tangents))[1]
            return list(found)

        return self._cached(
            ("jvp", wrt),
            lambda: Program(
                f"jvp of {self.name}", fn, types, self.engine, len(wrt), lambda: self.pullback(wrt), results
            ),
        )

    def pullback(self, wrt: tuple[int, ...]) -> Program:
        """The transpose of `tangent`."""
        seeds, results = [self.result_types[i] for i in self.floats], [self.types[i] for i in wrt]
        types = [*self.types, *seeds]

        def fn(*given: Any) -> list[Any]:
            point, cotangents = given[: len(self.types)], given[len(self.types) :]
            pull = vjp(self._of(point, wrt), *(point[i] for i in wrt))[1]
            return list(pull(tuple(cotangents)))

        return self._cached(
            ("vjp", wrt),
            lambda: Program(
                f"vjp of {self.name}", fn, types, self.engine, len(seeds), lambda: self.tangent(wrt), results
            ),
        )

    @property
    def transposed(self) -> Program:
        assert self._transposed is not None
        return self._transposed()

    def _of(self, point: Sequence[Any], wrt: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
        """Its float results as a function of the arguments at `wrt`."""

        def fn(*moving: Any) -> tuple[Any, ...]:
            given = list(point)
            for i, x in zip(wrt, moving, strict=True):
                given[i] = x
            results = self(*given)
            return tuple(results[i] for i in self.floats)

        return fn


def _with_rows(t: TensorType, axis: int, size: int) -> TensorType:
    return TensorType(t.dtype, (*t.shape[:axis], size, *t.shape[axis:]))


program_p: Any = Primitive("ctrlgrad")
program_p.multiple_results = True


def bind(program: Program, *arrays: Any) -> list[Any]:
    """The results of a program as JAX's arrays, or tracers."""
    found: list[Any] = program_p.bind(*arrays, program=program)
    return found


def _run(*arrays: Any, program: Program) -> list[Any]:
    return [jax.device_put(x) for x in program.run(*arrays)]


program_p.def_impl(_run)


def _types(*avals: Any, program: Program) -> tuple[Any, ...]:
    return program.results


program_p.def_abstract_eval(_types)


def _lower(ctx: Any, *operands: Any, program: Program) -> Any:
    program.trace()
    results, _, kept = mlir.emit_python_callback(
        ctx, program.run_apart, None, operands, ctx.avals_in, ctx.avals_out, has_side_effect=False
    )
    _keep(ctx, kept)
    return results


def _lower_on_processor(ctx: Any, *operands: Any, program: Program) -> Any:
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


def _batch(arrays: Sequence[Any], axes: Sequence[Any], *, program: Program) -> tuple[list[Any], list[int]]:
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


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: Program) -> tuple[list[Any], list[Any]]:
    results = bind(program, *primals)
    wrt = tuple(i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero) and program.types[i].is_differentiable)
    moved: list[Any] = [ad.Zero(aval) for aval in program.tangents]
    if wrt and program.floats:
        found = bind(program.tangent(wrt), *primals, *(tangents[i] for i in wrt))
        for i, t in zip(program.floats, found, strict=True):
            moved[i] = t
    return results, moved


ad.primitive_jvps[program_p] = _jvp


def _transpose(cotangents: Sequence[Any], *arrays: Any, program: Program) -> list[Any]:
    straight = len(arrays) - program.linear
    unknown = [isinstance(x, ad.UndefinedPrimal) for x in arrays]
    if any(unknown[:straight]):
        raise DifferentiationError(
            f"to_jax: the transpose of {program.name}, which is not linear in all that is to be transposed",
            source=here(),
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

__all__ = ["Program", "bind", "program_p"]
