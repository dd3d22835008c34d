"""`from_jax`: a function of JAX as one of this library. Its jaxpr is read equation by equation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src.state.discharge import discharge_state
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from ctrlgrad.advice import explains_calls
from ctrlgrad.errors import CtrlgradError, TracingError, TypeMismatchError, locate
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import Float0, cast, traced_by_jax, type_of, value_in
from ctrlgrad.frontend.apply import tensor_type as operand_type
from ctrlgrad.frontend.checks import check_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.watched import Watched, code_in, watch
from ctrlgrad.function import Function, function
from ctrlgrad.interop import array_rules  # noqa: F401  (it fills the table)
from ctrlgrad.interop.avals import (
    Flat,
    constant,
    dtype_of,
    has_weak_type,
    has_x64,
    is_array,
    is_float0,
    is_key,
    is_of_jax,
    key_words,
    static_argument,
    tensor_type,
    told,
    x64_as,
)
from ctrlgrad.interop.custom_rules import by_its_rules
from ctrlgrad.interop.primitives import REFUSED, TABLE, Equation, Parameters, unsupported
from ctrlgrad.interop.primitives import jax_primitive as jax_primitive
from ctrlgrad.interop.program import traced
from ctrlgrad.ir import Graph
from ctrlgrad.ir.caching import Recent
from ctrlgrad.source import Source, here, is_own, read_from
from ctrlgrad.verify.originals import Original, keeps_originals

# Reading a jaxpr: its equations, one by one, as calls of this library's functions.
#
# `read` is called inside of a trace. Values are traced tensors, or arrays where all that they depend on is known;
# keys of `jax.random` are their words, uint32 with one more axis. Each result is brought to the dtype that the jaxpr
# states, since NumPy's promotions are not JAX's. What is recorded stands at the line of the user's that made the
# equation.


_REFS = frozenset(["new_ref", "empty_ref"])


@dataclass(frozen=True)
class Reader:
    """Reads jaxprs that were traced with 64-bit types or without them.

    An elementwise reader takes arrays for the numbers that a jaxpr is written for.
    """

    x64: bool
    is_elementwise: bool = False

    def read(self, jaxpr: Any, *operands: Any) -> list[Any]:
        """The results of a jaxpr, closed or open, for these operands."""
        closed = jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())
        with x64_as(self.x64):
            closed = without_refs(closed)
        jaxpr = closed.jaxpr
        values: dict[Any, Any] = {}

        def value(atom: Any) -> Any:
            return constant(atom.val, atom.aval) if isinstance(atom, Literal) else values[atom]

        for var, const in zip(jaxpr.constvars, closed.consts, strict=True):
            values[var] = const if isinstance(const, Tensor) else constant(const, var.aval)
        values.update(zip(jaxpr.invars, operands, strict=True))
        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [value(x) for x in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [value(x) for x in jaxpr.outvars]

    def equation(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of one equation."""
        source = source_of(eqn) or here()
        inputs, outputs = (tuple(x.aval for x in atoms) for atoms in (eqn.invars, eqn.outvars))
        over_arrays = Reader(self.x64, is_elementwise=True).read
        name = eqn.primitive.name
        params = Parameters(name, eqn.params, source)
        equation = Equation(name, params, inputs, outputs, source, self.read, over_arrays, self.trace, eqn)
        entry = TABLE.get(equation.name) or (by_its_rules if equation.name not in REFUSED else None)
        if entry is None:
            raise unsupported(equation)
        with read_from(source):
            try:
                results = entry(equation, *operands)
            except Exception as error:
                locate(error, f"JAX's {equation.name}", source)
                raise
            if not isinstance(results, tuple | list):
                results = [results]
            return [self.fitted(x, aval, equation) for x, aval in zip(results, outputs, strict=True)]

    def fitted(self, x: Any, aval: Any, equation: Equation) -> Any:
        """A result with the dtype that the jaxpr states; its rank must be the stated one."""
        if not hasattr(aval, "dtype"):  # a token
            return x
        result = cast(x, dtype_of(aval))
        if operand_type(result).rank != aval.ndim + len(key_words(aval)) and not self.is_elementwise:
            raise TypeMismatchError(
                f"from_jax: the translation of {equation.name!r} has another rank than JAX's",
                source=equation.source,
                expected=str(aval),
                got=str(type_of(result)),
                hint="mend the function that was given to ctrlgrad.interop.jax_primitive",
            )
        return result

    def trace(self, fn: Callable[..., Any], *avals: Any) -> Any:
        """A JAX function as a closed jaxpr."""
        with x64_as(self.x64):
            return jax.make_jaxpr(fn)(*avals)


def without_refs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A jaxpr whose references to arrays (`jax.new_ref`) are values that are passed on: JAX rewrites it."""
    return discharge_state(closed) if any(eqn.primitive.name in _REFS for eqn in closed.jaxpr.eqns) else closed


def source_of(eqn: Any) -> Source | None:
    """The line of the user's that made an equation."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        file = frame.file_name
        if not is_of_jax(file) and not is_own(file) and not file.startswith("<"):
            return Source(file, frame.line_num, frame.function_name)
    return None


# Number of signatures of a function whose jaxprs are kept.
SIGNATURES = 256


@explains_calls
def from_jax(fn: Callable[..., Any], *, x64: bool | None = None) -> Callable[..., Any]:
    """A function written for JAX as a function of this library, loops and library calls included.

    It is traced by JAX, once for each structure, dtypes and shapes of the arguments, and read equation by equation; and
    again where a variable or an array of at most 4,096 bytes that it reads has changed (see `function`).
    What comes out is like any function here: `grad`, `vmap`, `jvp`, `hessian` take it, at any order; it may be called
    within `function` and within loops; budgets and engines serve it. `lax.while_loop`s are differentiated in reverse.
    Rules of `jax.custom_jvp` and `jax.custom_vjp` are kept. Errors name the lines of `fn`.

    Args:
        fn: takes and returns pytrees of JAX's. Arrays, floats and traced tensors are traced; Python integers, booleans,
            strings, None and functions among the arguments reach it as they are. It should be pure, as for `jax.jit`.
        x64: whether JAX traces with its 64-bit types: None for what its setting `jax_enable_x64` says at the call.
            Where they are off, an array of 64 bits is brought to 32 bits, as JAX does it; unless that was asked for
            by `x64=False`, a warning says so once. Derivatives come back in the dtype of the argument.

    Returns:
        A function of the same arguments. Its results are NumPy arrays, or traced tensors inside of a trace, of the
        dtypes that JAX gives them; a key of `jax.random` is its words, uint32[..., 2], which `jax.random` takes too.

    Raises:
        UnsupportedPrimitiveError: `fn` uses a primitive that has no translation; see `interop.jax_primitive`.
        TracingError: the size of an argument is not known when it is traced, or JAX cannot trace `fn`; the error says
            what JAX said. Exceptions that the code of `fn` raises stay as they are.
        DifferentiationError: JAX has no derivative of a primitive or of a rule in `fn`.
        TypeMismatchError: an argument of a dtype that is not supported, or one that is no array and has no hash.

    >>> import jax, jax.numpy as jnp, numpy as np, ctrlgrad as cg
    >>> @cg.from_jax
    ... def halvings(x):
    ...     return jax.lax.while_loop(lambda c: jnp.sum(c) > 1.0, lambda c: 0.5 * c, x)
    >>> cg.grad(lambda x: halvings(x).sum())(np.array([3.0, 4.0], np.float32))
    array([0.125, 0.125], dtype=float32)
    """
    check_function("from_jax", fn)
    return _FromJax(fn, x64)


@dataclass(eq=False)
class _Program:
    """A JAX function for arguments of one signature."""

    name: str
    flat: Flat
    closed: Any
    x64: bool
    watched: Watched

    @functools.cached_property
    def function(self) -> Function:
        """Compiled function for calls outside of a trace."""
        made: Function = function(lambda *leaves: tuple(self.results(leaves)), name=self.name)
        return made

    @functools.cached_property
    def graph(self) -> Graph:
        """Graph for arguments of unknown values: read once, for any number of traces."""
        return traced(self.name, self._read, [tensor_type(aval) for aval in self.closed.in_avals])

    def results(self, leaves: Sequence[Any]) -> list[Any]:
        """The array results, recorded in the current trace."""
        avals, builder = self.closed.in_avals, recorder()
        given = [cast(x, dtype_of(aval)) for x, aval in zip(leaves, avals, strict=True)]
        # If some arguments are known, values that depend on them alone are computed now, and branches fall away.
        inlined = all(isinstance(x, Tensor) for x in given)
        if keeps_originals():
            inlined, found = False, self._called(given)
        elif inlined:
            found = list(builder.inline(self.graph, [value_in(builder, x) for x in given]))
        else:
            found = self._read(*given)
        # A weakly typed result of JAX stands for a Python number here.
        values = [x if inlined else value_in(builder, x) for x in found]
        return [
            Float0(builder, x) if is_float0(aval) else Tensor(builder, x, getattr(aval, "weak_type", False))
            for x, aval in zip(values, self.closed.out_avals, strict=True)
        ]

    def _called(self, given: Sequence[Any]) -> list[Any]:
        """The results as those of a call that keeps the JAX function, for a judge."""
        places = [i for i, x in enumerate(given) if isinstance(x, Tensor)]

        def over(fn: Callable[..., Any], known: Sequence[Any]) -> Callable[..., Any]:
            def of_tensors(*tensors: Any) -> Any:
                operands = list(known)
                for i, x in zip(places, tensors, strict=True):
                    operands[i] = x
                return fn(*operands)

            return of_tensors

        tensors = [given[i] for i in places]
        graph = traced(self.name, over(self._read, given), [x.tensor_type for x in tensors])
        return list(Original(over(self._in_jax, given), graph, self.x64).call(tensors))

    def _in_jax(self, *arrays: Any) -> Sequence[Any]:
        """The results by JAX: of what it has traced or, while it does not compile, of the function itself."""
        config: Any = jax.config
        # The words of keys are keys again.
        given = [
            jax.random.wrap_key_data(x, impl=aval.dtype._impl.name)
            if is_key(aval)
            else jax.numpy.asarray(x, aval.dtype)
            for x, aval in zip(arrays, self.closed.in_avals, strict=True)
        ]
        found: Sequence[Any] = (self.flat if config.jax_disable_jit else jaxpr_as_fun(self.closed))(*given)
        return [jax.random.key_data(x) if is_key(x) else x for x in found]

    def _read(self, *given: Any) -> list[Any]:
        return Reader(self.x64).read(self.closed, *given)


class _FromJax:
    """A JAX function, and its jaxprs for the signatures of former calls."""

    def __init__(self, fn: Callable[..., Any], x64: bool | None) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.x64 = x64
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self._programs: Recent[Any, _Program] = Recent(SIGNATURES)
        self._told = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{self.name} from JAX>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        x64 = has_x64() if self.x64 is None else self.x64
        with x64_as(x64):
            try:
                leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
                kinds = [self._kind(x) for x in leaves]
            except (TypeError, ValueError) as error:
                if isinstance(error, CtrlgradError):
                    raise
                raise TypeMismatchError(
                    f"from_jax: JAX does not take the arguments of {self.name}",
                    expected="pytrees of JAX's, of arrays, numbers, and objects that are compared by ==",
                    got=f"JAX's {type(error).__name__}: {error}",
                    hint="pass arrays of numbers, in pytrees that JAX knows",
                ) from error
            key = (treedef, tuple(kinds), x64)
            program = self._programs.get(key, lambda: self._traced(*key))
            if not program.watched.is_current():
                self._programs.forget(key)
                program = self._programs.get(key, lambda: self._traced(*key))
        arrays = [_numbers(x) for x, kind in zip(leaves, kinds, strict=True) if isinstance(kind, _Aval)]
        if trace.current() is not None:
            return program.flat.unflatten(program.results(arrays))
        return program.flat.unflatten(program.function(*arrays))

    def _traced(self, treedef: Any, kinds: tuple[Any, ...], x64: bool) -> _Program:
        flat = Flat(self.fn, treedef, kinds)
        before = watch([self.fn, *code_in(kinds)])
        hint = (
            "mend the function until jax.make_jaxpr takes it; pass Python numbers and strings that decide by themselves"
        )
        with told(TracingError, f"from_jax: JAX cannot trace {self.name}", here(), hint):
            closed = without_refs(jax.make_jaxpr(flat)(*(kind.aval() for kind in flat.arrays)))
        return _Program(self.name, flat, closed, x64, watch([self.fn, *code_in(kinds)]).without_own(before))

    def _kind(self, x: Any) -> Any:
        """Entry of a call's signature for an argument: its abstract value, or the value itself."""
        if isinstance(x, float | complex) and not isinstance(x, np.generic):
            return _Aval((), jax.dtypes.canonicalize_dtype(type(x)), True)
        if isinstance(x, Tensor):
            if None in x.tensor_type.shape:
                raise TracingError(
                    f"from_jax: {self.name} is called on a tensor whose size is not known",
                    expected="known sizes: JAX traces with shapes",
                    got=repr(x),
                    hint="call the function outside of what makes the size unknown, or pass arrays of one size",
                )
        elif isinstance(x, jax.core.Tracer):
            raise traced_by_jax(x)
        elif isinstance(x, jax.Array) and is_key(x):
            return _Aval(x.shape, x.dtype, False)
        elif not is_array(x):
            return static_argument(f"from_jax: {self.name}", x)
        dtype = np.dtype(x.dtype)
        narrow, weak = jax.dtypes.canonicalize_dtype(dtype), has_weak_type(x)
        if narrow != dtype and not weak:
            self._tell(dtype, narrow)
        return _Aval(tuple(x.shape), narrow, weak)

    def _tell(self, dtype: np.dtype, narrow: np.dtype) -> None:
        """Say once that values lose digits."""
        if self._told or self.x64 is False:
            return
        self._told = True
        place = here()
        warnings.warn(
            f"from_jax: {self.name} takes a {dtype.name} argument as {narrow.name}, since JAX's 64-bit types are off"
            + (f" (at {place})" if place else "")
            + '; jax.config.update("jax_enable_x64", True) or from_jax(fn, x64=True) keeps 64 bits,'
            " x64=False says that 32 bits are meant",
            stacklevel=4,
        )


@dataclass(frozen=True)
class _Aval:
    """Shape and dtype of an argument as JAX traces it."""

    shape: tuple[int, ...]
    dtype: Any
    weak: bool

    def aval(self) -> Any:
        struct: Any = jax.ShapeDtypeStruct
        return struct(self.shape, self.dtype, weak_type=self.weak)


def _numbers(x: Any) -> Any:
    """An argument as this library takes it."""
    if isinstance(x, jax.Array):
        return np.asarray(jax.random.key_data(x) if is_key(x) else x)
    if isinstance(x, np.ndarray) and is_float0(x):
        return np.zeros(x.shape, np.bool_)
    return x if isinstance(x, Tensor | float | complex) else np.asarray(x)
