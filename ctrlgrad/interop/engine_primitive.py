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
import ctypes
import functools
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ctrlgrad.engines.native import objects, target
from ctrlgrad.engines.native.entry import MESSAGE_BYTES, Entry, routines
from ctrlgrad.errors import DifferentiationError, TracingError
from ctrlgrad.execution import program_of
from ctrlgrad.interop.primitives import TABLE
from ctrlgrad.interop.program import Fn, Program, traced
from ctrlgrad.ir import Graph, TensorType

# An `Entry` of the native engine as a custom call of XLA's typed foreign functions, on the processor.
#
# XLA calls a handler with a call frame, whose layout its C API fixes (`xla/ffi/api/c_api.h`, version 0). One handler
# serves all entries; which one is meant is an attribute of the call, the address of its words. That is good in one
# process only: a second attribute, a random number, keeps compiled programs that hold it out of reach of JAX's cache
# on disk for another one. Who lowers a call keeps the entry alive as long as the compiled program.


_NAME = "ctrlgrad_entry"
_PROCESS = np.int64(secrets.randbits(63))
_LOCK = threading.Lock()

# Offsets in XLA's structures, which all begin with their size and a list of extensions.
_EXTENSION, _API, _STAGE, _ARGS, _RETS, _ATTRS = 8, 16, 32, 40, 80, 120
_COUNT, _ITEMS = 16, 32  # of `XLA_FFI_Args` and `XLA_FFI_Rets`
_ATTR_ITEMS = 40
_BUFFER_DATA, _SCALAR_VALUE = 24, 8
_EXTENSION_TYPE, _METADATA, _METADATA_VERSION = 8, 24, 24
_ERROR_CREATE = 48
_IS_METADATA, _EXECUTE, _INTERNAL = 1, 3, 13


def _text(version: int) -> str:
    """The handler; `version` is the API's two numbers in one word."""
    return f"""
declare i64 @cg_enter(ptr, ptr, ptr)

define internal void @collect(ptr %call, i64 %which, ptr %addresses) nounwind {{
start:
  %list = getelementptr i8, ptr %call, i64 %which
  %count.p = getelementptr i8, ptr %list, i64 {_COUNT}
  %count = load i64, ptr %count.p
  %items.p = getelementptr i8, ptr %list, i64 {_ITEMS}
  %items = load ptr, ptr %items.p
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %one ]
  %ends = icmp eq i64 %k, %count
  br i1 %ends, label %done, label %one
one:
  %item.p = getelementptr ptr, ptr %items, i64 %k
  %item = load ptr, ptr %item.p
  %data.p = getelementptr i8, ptr %item, i64 {_BUFFER_DATA}
  %data = load ptr, ptr %data.p
  %place = getelementptr ptr, ptr %addresses, i64 %k
  store ptr %data, ptr %place
  %next = add i64 %k, 1
  br label %head
done:
  ret void
}}

define ptr @cg_xla(ptr %call) nounwind {{
start:
  %extension.p = getelementptr i8, ptr %call, i64 {_EXTENSION}
  %extension = load ptr, ptr %extension.p
  %is_extended = icmp ne ptr %extension, null
  br i1 %is_extended, label %extended, label %staged
extended:
  %type.p = getelementptr i8, ptr %extension, i64 {_EXTENSION_TYPE}
  %type = load i32, ptr %type.p
  %is_question = icmp eq i32 %type, {_IS_METADATA}
  br i1 %is_question, label %question, label %staged
question:
  %metadata.p = getelementptr i8, ptr %extension, i64 {_METADATA}
  %metadata = load ptr, ptr %metadata.p
  %version.p = getelementptr i8, ptr %metadata, i64 {_METADATA_VERSION}
  store i64 {version}, ptr %version.p
  ret ptr null
staged:
  %stage.p = getelementptr i8, ptr %call, i64 {_STAGE}
  %stage = load i32, ptr %stage.p
  %executes = icmp eq i32 %stage, {_EXECUTE}
  br i1 %executes, label %execute, label %nothing
nothing:
  ret ptr null
execute:
  %args.p = getelementptr i8, ptr %call, i64 {_ARGS + _COUNT}
  %args = load i64, ptr %args.p
  %rets.p = getelementptr i8, ptr %call, i64 {_RETS + _COUNT}
  %rets = load i64, ptr %rets.p
  %all = add i64 %args, %rets
  %addresses = alloca ptr, i64 %all
  call void @collect(ptr %call, i64 {_ARGS}, ptr %addresses)
  %results = getelementptr ptr, ptr %addresses, i64 %args
  call void @collect(ptr %call, i64 {_RETS}, ptr %results)
  %attrs.p = getelementptr i8, ptr %call, i64 {_ATTRS + _ATTR_ITEMS}
  %attrs = load ptr, ptr %attrs.p
  %scalar = load ptr, ptr %attrs
  %value.p = getelementptr i8, ptr %scalar, i64 {_SCALAR_VALUE}
  %value = load ptr, ptr %value.p
  %entry = load ptr, ptr %value
  %message = alloca [{MESSAGE_BYTES} x i8]
  %failed = call i64 @cg_enter(ptr %entry, ptr %addresses, ptr %message)
  %is_error = icmp ne i64 %failed, 0
  br i1 %is_error, label %error, label %fine
fine:
  ret ptr null
error:
  %given = alloca [4 x i64]
  store i64 28, ptr %given
  %given.extension = getelementptr i64, ptr %given, i64 1
  store ptr null, ptr %given.extension
  %given.message = getelementptr i64, ptr %given, i64 2
  store ptr %message, ptr %given.message
  %given.code = getelementptr i64, ptr %given, i64 3
  store i64 {_INTERNAL}, ptr %given.code
  %api.p = getelementptr i8, ptr %call, i64 {_API}
  %api = load ptr, ptr %api.p
  %create.p = getelementptr i8, ptr %api, i64 {_ERROR_CREATE}
  %create = load ptr, ptr %create.p
  %made = call ptr %create(ptr %given)
  ret ptr %made
}}
"""


def _version() -> int | None:
    """The version of XLA's C API that is installed, as two 32-bit numbers in a word; None for one that is not 0.x."""
    if not hasattr(jax, "ffi"):
        return None
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    except OSError:
        return None
    return int(found["MINOR"]) << 32 if found.get("MAJOR") == "0" and "MINOR" in found else None


@functools.cache
def _registered() -> bool:
    version = _version()
    if version is None:
        return False
    text = _text(version)
    make = lambda: objects.ObjectCode(("cg_xla",), target.compiled(text))
    code = objects.library(objects.key_of([text], []), make, {"cg_enter": routines()["cg_enter"]}).kept()
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    jax.ffi.register_ffi_target(_NAME, capsule(code["cg_xla"], None, None), platform="cpu")
    return True


def has_typed_calls() -> bool:
    """Return true if compiled programs of JAX can call entries; the first call registers the handler with XLA."""
    with _LOCK:
        return _registered()


def call_entry(ctx: Any, entry: Any, *operands: Any) -> Any:
    """The results of an entry in a program that JAX is lowering."""
    lower = jax.ffi.ffi_lowering(_NAME)
    return lower(ctx, *operands, entry=np.int64(entry.address), process=_PROCESS)


class JaxProgram(Program):
    """A function on arrays of these types as JAX knows it: with abstract values, and an entry for compiled code."""

    def __init__(self, name: str, trace: Callable[[], Graph], *args: Any, **kwargs: Any) -> None:
        super().__init__(name, lambda: _sized(name, trace()), *args, **kwargs)
        self.avals = tuple(jax.core.ShapedArray(t.shape, t.dtype) for t in self.results)
        self.tangents = tuple(
            jax.core.ShapedArray(t.shape, t.dtype if t.is_differentiable else jax.dtypes.float0) for t in self.results
        )
        # True once it has been called outside of compiled code.
        self.has_run = False

    @classmethod
    def traced(cls, name: str, fn: Fn, types: Sequence[TensorType], engine: str) -> JaxProgram:
        """The program of a function that takes tensors and returns a sequence of them, or of arrays."""
        return cls.of(name, _sized(name, traced(name, fn, types, "to_jax: the result")), engine)

    def trace(self) -> None:
        """Trace it now, so that errors are raised here and not inside a compiled program."""
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
    # A program that is called once is not worth the compilation.
    program.has_run = True
    return [jax.device_put(x) for x in results]


program_p.def_impl(_run)


program_p.def_abstract_eval(lambda *avals, program: program.avals)


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
        x if i < straight else (jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0))
        for i, (x, axis) in enumerate(zip(arrays, axes, strict=True))
    ]
    places = [*axes[:straight], *[0] * program.linear]
    results = bind(program.batched(tuple(places), size), *given)
    return results, [0] * len(results)


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

# A function of this library that JAX has traced is read as itself.
TABLE["ctrlgrad"] = lambda equation, *operands: equation.params["program"](*operands)
