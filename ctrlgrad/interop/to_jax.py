"""`to_jax`: a function of this library as one of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ctrlgrad.dtypes import BFLOAT16, NAMES
from ctrlgrad.errors import TracingError, TypeMismatchError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.calling import explains_calls
from ctrlgrad.frontend.checks import check_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import Leaf
from ctrlgrad.frontend.watched import Watched, code_in, watch
from ctrlgrad.gradients import current_manner
from ctrlgrad.interop.avals import has_weak_type, is_array, static_argument
from ctrlgrad.interop.engine_primitive import JaxProgram, bind
from ctrlgrad.interop.flat import Flat
from ctrlgrad.interop.pure_jax import obstacle, run_in_jax
from ctrlgrad.interop.settings import has_x64
from ctrlgrad.ir import Graph, TensorType
from ctrlgrad.ir.caching import Recent
from ctrlgrad.options import current_options
from ctrlgrad.passes import simplify

# Of how many signatures a function's programs are kept.
SIGNATURES = 256


@explains_calls
def to_jax(fn: Callable[..., Any]) -> JaxFunction:
    """A function of this library as one of JAX: `jit`, `grad`, `vmap`, `jvp`, `hessian` and `lax.scan` take it.

    It is traced once for each structure, dtypes and shapes of the arguments, and again where a variable or an array of
    at most 4,096 bytes that it reads has changed (see `function`). A graph whose loops, if there are any, run
    a known number of times becomes operations of JAX. Any other becomes one primitive of JAX that this library's engine
    runs, with rules for batches and for both modes, at any order and within each other: a `while_loop` is
    differentiated in reverse. The backward pass runs the forward pass again, so that nothing whose size depends on data
    passes through JAX. `to_jax(fn).explain(*args)` says which of the two it is, and why. `to_jax(from_jax(f))` is `f`
    with loops that `jax.grad` takes.

    Args:
        fn: takes and returns pytrees of JAX's. Arrays and floats among the arguments are traced, those of floats
            of 8 bits as float32; Python integers, booleans, strings and functions reach it as they are. It
            should be pure. What it needs of a trace of JAX must be among the arguments.

    Returns:
        A function of the same arguments. Its results are JAX's arrays, strongly typed, of the dtypes that `fn` gives
        them (Python numbers and JAX's weakly typed arrays give way in promotions); while JAX's 64-bit types are off,
        arguments and results are of 32 bits, whatever `fn` computes with.

    Raises (when called):
        TypeMismatchError: an argument of a dtype that is not supported, or one that is no array and has no hash.
        TracingError: the size of a result depends on data, or `fn` uses a value of a trace of JAX around it.

    Under `jax.jit` the primitive is a call of this library's machine code, without Python's lock where the run needs no
    Python (on the processor, by the native engine; otherwise a call of Python from compiled code). Errors of the run
    come as JAX's own, with the text of ours. The engine is the one that `ctrlgrad.options` names when `fn` is traced;
    options and budgets of the block around a compiled call do not reach it, those that `fn` itself asks for do
    (`ctrlgrad.checkpoint`).

    >>> import jax, ctrlgrad as cg
    >>> @cg.to_jax
    ... def root(a):
    ...     return cg.while_loop(lambda x: abs(x * x - a) > 1e-5, lambda x: 0.5 * (x + a / x), a)
    >>> print(f"{jax.jit(jax.grad(root))(4.0):.4f} {jax.hessian(root)(4.0):.4f}")
    0.2500 -0.0312
    >>> root.explain(4.0).form
    'one primitive'
    """
    check_function("to_jax", fn)
    return JaxFunction(fn)


@dataclass(frozen=True)
class Explanation:
    """What a function is in JAX, for arguments of one signature; `reason` says why it is not JAX's own operations."""

    form: Literal["pure JAX", "one primitive"]
    reason: str | None

    def __str__(self) -> str:
        return self.form if self.reason is None else f"{self.form}: it has {self.reason}"


@dataclass(eq=False)
class _Signature:
    """A function for arguments of one signature."""

    flat: Flat
    program: JaxProgram
    graph: Graph
    explanation: Explanation
    watched: Watched

    def __call__(self, arrays: Sequence[Any]) -> Any:
        found = run_in_jax(self.graph, arrays) if self.explanation.reason is None else bind(self.program, *arrays)
        return self.flat.unflatten(found)


class JaxFunction:
    """A function of this library for JAX; made by `ctrlgrad.to_jax`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = str(getattr(fn, "__name__", type(fn).__name__))
        self._signatures: Recent[Any, _Signature] = Recent(SIGNATURES)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{self.name} for JAX>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        signature, arrays = self._signature(args, kwargs)
        return signature(arrays)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What the function is in JAX for these arguments."""
        return self._signature(args, kwargs)[0].explanation

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Signature, list[Any]]:
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        kinds = tuple(map(self._kind, leaves))
        key = (treedef, kinds, has_x64(), current_options().engine, current_manner())
        signature = self._signatures.get(key, lambda: self._traced(treedef, kinds))
        if not signature.watched.is_current():
            self._signatures.forget(key)
            signature = self._signatures.get(key, lambda: self._traced(treedef, kinds))
        return signature, [_array(x, kind) for x, kind in zip(leaves, kinds, strict=True) if isinstance(kind, Leaf)]

    def _traced(self, treedef: Any, kinds: tuple[Any, ...]) -> _Signature:
        before = watch([self.fn, *code_in(kinds)])
        flat = Flat(self.fn, treedef, kinds, _narrow)
        inputs: list[Leaf] = flat.arrays
        types: list[Any] = [leaf.type for leaf in inputs]

        def fn(*tensors: Any) -> list[Any]:
            return flat(*(Tensor(x.builder, x.value, leaf.weak) for x, leaf in zip(tensors, inputs, strict=True)))

        try:
            program = JaxProgram.traced(self.name, fn, types, current_options().engine)
        except (jax.errors.JAXTypeError, TracingError) as error:
            cause = error if isinstance(error, jax.errors.JAXTypeError) else error.__cause__
            if not isinstance(cause, jax.errors.JAXTypeError):
                raise
            raise TracingError(
                f"to_jax: {self.name} uses a value of a trace of JAX that is not among its arguments",
                expected="arrays, or values that are passed as arguments",
                got=str(cause).splitlines()[0],
                hint="give the function one more argument, and pass the value; jax.numpy takes no tensor of this"
                " library: read functions that are written with it by ctrlgrad.from_jax",
            ) from error
        graph = simplify(program.graph)
        reason = obstacle(graph)
        explanation = Explanation("pure JAX" if reason is None else "one primitive", reason)
        return _Signature(flat, program, graph, explanation, watch([self.fn, *code_in(kinds)]).without_own(before))

    def _kind(self, x: Any) -> Any:
        """What a call's signature has for an argument: its type, weak as JAX has it, or the value itself."""
        if isinstance(x, float | complex) and not isinstance(x, np.generic):
            return Leaf(TensorType(jax.dtypes.canonicalize_dtype(type(x))), True)
        if isinstance(x, Tensor):
            raise TracingError(
                f"to_jax: {self.name} is called on a traced tensor of this library",
                expected="JAX's arrays and tracers, NumPy's arrays, numbers",
                got=repr(x),
                hint="call the function itself there, or read the JAX program around it by ctrlgrad.from_jax",
            )
        if not is_array(x):
            return static_argument(f"to_jax: {self.name}", x)
        if _is_short(x):
            return Leaf(TensorType(np.dtype(np.float32), x.shape), has_weak_type(x))
        if getattr(x.dtype, "name", "") not in NAMES:
            is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
            raise TypeMismatchError(
                f"to_jax: {self.name} is called on an array of a dtype that is not supported",
                expected=", ".join(NAMES),
                got=f"{x.dtype}",
                hint="pass jax.random.key_data(key)" if is_key else "cast it to float32 before, x.astype(jnp.float32)",
            )
        return Leaf(TensorType(jax.dtypes.canonicalize_dtype(x.dtype), x.shape), has_weak_type(x))


def _array(x: Any, kind: Leaf) -> Any:
    if _is_short(x):
        x = jnp.asarray(x).astype(kind.type.dtype)  # type: ignore[union-attr]
    # Of NumPy's array a copy, which stays as it is where JAX keeps it.
    return x if isinstance(x, jax.Array) else np.array(x, kind.type.dtype)  # type: ignore[union-attr]


def _is_short(x: Any) -> bool:
    """Whether an argument is an array of floats that no graph holds: those of 8 bits."""
    dtype: Any = getattr(x, "dtype", None)
    is_other = getattr(dtype, "kind", "") == "V" and dtype != BFLOAT16
    return is_other and bool(jnp.issubdtype(dtype, jnp.floating))


def _narrow(x: Any) -> Any:
    """A result in the dtype that JAX has for it."""
    if isinstance(x, jax.Array):
        x = np.asarray(x)
    return cast(x, jax.dtypes.canonicalize_dtype(x.dtype if hasattr(x, "dtype") else type(x)))
