"""Application of an op: it records a node for traced tensors, and computes at once for concrete arrays.

So the same array functions work inside and outside of a trace. This module also makes operands: their types, their
values in a graph, NumPy's promotion, and the shapes of results whose sizes are partly unknown.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from ctrlgrad.dtypes import NAMES, as_dtype, converted, dtype_kind, native, result_type
from ctrlgrad.errors import CtrlgradError, NumberOverflowError, TracingError, TypeMismatchError
from ctrlgrad.execution import kernel_of, rows_of, run_on
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import SCALARS, SET_BY, Tensor, instead_of, is_operand, leaked
from ctrlgrad.frontend.tensor import is_weak as is_weak
from ctrlgrad.frontend.trace import current
from ctrlgrad.ir import OPS, Builder, Graph, StackType, TensorType, Trait, Type, Value, attributes
from ctrlgrad.ir.attributes import Dynamic
from ctrlgrad.ir.builder import SMALL
from ctrlgrad.ir.caching import Recent
from ctrlgrad.ir.types import Shape as Sizes
from ctrlgrad.ir.types import join
from ctrlgrad.memory.session import current as session
from ctrlgrad.ops.term import require_sizes
from ctrlgrad.options import current_options, default_float
from ctrlgrad.passes.dead_code import without_calls
from ctrlgrad.records import record
from ctrlgrad.source import Source, here, user_frame

# Result of `unknown_dims` outside a trace: a NumPy array some of whose sizes a loop treats as unknown.


class Unsized(np.ndarray):
    """An array as it is, with the axes whose sizes count as unknown. Computing with it gives a plain array."""

    axes: tuple[int, ...] = ()

    @staticmethod
    def of(x: Any, axes: tuple[int, ...]) -> Unsized:
        array = np.asarray(x).view(Unsized)
        array.axes = axes
        return array

    @property
    def known(self) -> tuple[int | None, ...]:
        """The shape, None for a size that counts as unknown."""
        return tuple(None if axis in self.axes else d for axis, d in enumerate(self.shape))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]


# `float0`: the dtype of the derivative with respect to an integer or a boolean, an array without any bytes.
#
# It is the structured dtype of NumPy that JAX has for it. A graph cannot hold it: in a trace a `Float0` stands for
# such an array, and becomes one where the function that was traced hands out its results.


float0 = np.dtype([("float0", np.void, 0)])


class Float0(Tensor):
    """An array of `float0` in a trace: booleans of its shape, which nothing should be computed from."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype:
        return float0


def float0_like(x: Any) -> Any:
    """The derivative with respect to something that has none: an array of `float0` of its shape."""
    builder = current()
    shape = () if isinstance(type_of(x), StackType) else FUNCTIONS["shape"](x)
    if builder is None:
        return np.zeros(shape, float0)
    return Float0(builder, value_in(builder, FUNCTIONS["zeros"](shape, np.bool_)))


def is_float0(x: Any) -> bool:
    """Return true if x is an array of `float0`."""
    return isinstance(x, Float0) or (isinstance(x, np.ndarray | np.generic) and x.dtype == float0)


def without_numbers(traced: Any, result: Any) -> Any:
    """Convert a result for the caller: zeros of `float0` for a `Float0`, otherwise the computed result."""
    return np.zeros(np.shape(result), float0) if isinstance(traced, Float0) else result


# The arrays that functions of `ctrlgrad.numpy`, loops and branches return outside of a trace: NumPy arrays, with what
# JAX users expect.
#
# A subclass of NumPy's array, since nothing else can be indexed by a traced tensor: `xs[t]` asks NumPy's array, which
# knows numbers alone. Everything else is NumPy's: memory, methods, printed text, `isinstance`. Results of compiled
# functions are NumPy's own arrays, so that a call costs nothing for it; `ctrlgrad.numpy.asarray(x)` makes one of
# these of any array, without a copy.
#
# Their values never change, as in a trace: `acc += x` gives `acc` a new array, on which no other name of the old one
# depends, and an assignment to a part is refused. NumPy's own arrays (`np.array(x)` makes one) stay as writable as
# ever.


class Array(np.ndarray):
    """A NumPy array with `x.at[key]`, as a traced tensor has it, that a traced tensor may index.

    >>> xs = cnp.asarray(np.array([1.0, 2.0, 4.0]))
    >>> xs.at[0].set(7.0)
    array([7., 2., 4.])
    >>> float(cg.fori_loop(0, 3, lambda t, total: total + xs[t], 0.0))
    7.0
    """

    __slots__ = ()

    @property
    def at(self) -> Any:
        """`x.at[key].set(value)` and its kin give the changed array; see `ctrlgrad.numpy.at`."""
        return FUNCTIONS["at"](self)

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except TracingError:
            if not _is_traced(key):
                raise
        return FUNCTIONS["getitem"](np.asarray(self), key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if _is_users():
            raise _unchanged("item assignment", "x = x.at[index].set(value), or .add(value)")
        super().__setitem__(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if _is_users():
            hint = SET_BY.get(name, "keep the value in a variable of its own")
            raise _unchanged(f"x.{name} = ...", hint)
        super().__setattr__(name, value)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if return_scalar or not array.ndim:
            plain = np.asarray(array)
            return plain[()] if return_scalar else plain
        # Not made read-only: NumPy's functions compute in place in what an operator has given them.
        return array.view(Array)

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _is_users() -> bool:
    """Return true if the user's code called the method that asks, and no function of NumPy on an array of its own."""
    return user_frame() is sys._getframe(2)


def _unchanged(shown: str, hint: str) -> TracingError:
    return TracingError(
        f"{shown}: an array of ctrlgrad.numpy cannot be changed in place",
        expected="an expression that gives a new array",
        got=shown,
        hint=f"{hint}; numpy.array(x) is an array of NumPy's that can be changed",
    )


def _refused(name: str) -> Callable[..., Any]:
    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        if not _is_users():  # NumPy's sort sorts a copy
            return getattr(np.ndarray, name)(self, *args, **kwargs)
        raise _unchanged(f"x.{name}(...)", instead_of(name).replace("a traced tensor", "an array"))

    method.__name__ = name
    return method


_IN_PLACE = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
for _name in _IN_PLACE.split():
    _operation = getattr(operator, f"__{_name}__")
    setattr(Array, f"__i{_name}__", lambda self, other, operation=_operation: operation(self, other))
for _name in ["sort", "partition", "fill", "put", "resize", "setfield", "setflags"]:
    setattr(Array, _name, _refused(_name))


def _is_traced(key: Any) -> bool:
    """Return true if an index key contains a traced tensor."""
    if isinstance(key, tuple | list):
        return any(map(_is_traced, key))
    if isinstance(key, slice):
        return any(isinstance(part, Tensor) for part in (key.start, key.stop, key.step))
    return isinstance(key, Tensor)


def concrete(x: Any) -> Any:
    """A NumPy array as an `Array` over the same memory; any other value unchanged."""
    if type(x) is not np.ndarray:
        return x
    found = x.view(Array)
    # NumPy's own method: that of an `Array` refuses.
    np.ndarray.setflags(found, write=False)
    return found


FUNCTIONS["array.concrete"] = concrete


def evaluate(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
    """Run a graph on arrays now, by the engine that the options name. A stack comes back as an `EagerStack`."""
    options, given = current_options(), [x.stack if isinstance(x, EagerStack) else x for x in arrays]
    engine = options.engine
    # One op outside of a trace: its kernel, not a compiler.
    if engine in ("auto", "native") and not any(node.regions for node in graph.nodes):
        engine = "reference"
    results = run_on(engine, without_calls(graph), given, options.check_nans)
    return [
        EagerStack(value.type, x) if isinstance(value.type, StackType) else x
        for value, x in zip(graph.outputs, results, strict=True)
    ]


@record(eq=False, frozen=False)
class EagerStack:
    """A stack outside a trace: of a `TensorArray`, or of what a pullback has saved.

    `stack` is a list of its rows (None for a slot never written), or of a call under a budget a `BlockStack`.
    """

    type: StackType
    stack: Any

    @property
    def items(self) -> list[Any]:
        """The rows; from now on they are arrays that no budget counts."""
        self.stack = found = rows_of(self.stack)
        return found

    def __reduce__(self) -> Any:
        """Copies and pickles have the rows."""
        return EagerStack, (self.type, self.items)


def type_of(x: Any) -> Type:
    """The type that x has, or would have as a tensor."""
    if isinstance(x, Tensor):
        return x.value.type
    if isinstance(x, EagerStack):
        return x.type
    array = _array(x)
    return TensorType(array.dtype, x.known if isinstance(x, Unsized) else array.shape)


def tensor_type(x: Any) -> TensorType:
    """Type of a value that is not a stack."""
    t = type_of(x)
    assert isinstance(t, TensorType)
    return t


# Common dtypes that graphs hold: the name of a dtype takes longer than this.
_HELD = frozenset(map(np.dtype, ("float64", "float32", "int64", "int32", "bool", "complex128", "complex64")))


def is_plain(x: Any) -> bool:
    """Return true for an array of NumPy, or an `Array`, of a common dtype: nothing is to be converted or checked."""
    return (type(x) is np.ndarray or type(x) is Array) and x.dtype in _HELD


def check_dtype(dtype: np.dtype) -> None:
    """Refuse dtypes that no graph can hold."""
    if dtype not in _HELD and dtype.name not in NAMES:
        raise TypeMismatchError(
            f"dtype {dtype} is not supported",
            expected="bool, an integer, a float or a complex dtype",
            got=str(dtype),
            hint="convert it with numpy's .astype(...), and keep text and objects outside of traced functions",
        )


def traced_by_jax(x: Any) -> TracingError:
    """Error for a traced array of JAX, which has no numbers that this library could take."""
    return TracingError(
        "a traced array of JAX reached a function of this library",
        expected="arrays, numbers and traced tensors of this library",
        got=type(x).__name__,
        hint="ctrlgrad.to_jax(fn) is a function that jax.jit, jax.grad and jax.vmap take;\n"
        "ctrlgrad.grad and ctrlgrad.vmap take a function of this library as it is",
    )


def as_array(x: Any) -> np.ndarray:
    """A value that is no traced tensor as an array; another library's tensor over its own memory, where NumPy can.

    Python floats, alone or in nested lists without arrays, have the default dtype.
    """
    if is_plain(x) or isinstance(x, np.number):
        return np.asarray(x)
    try:
        array: np.ndarray = np.asarray(x)
        if not array.dtype.isnative:
            array = array.astype(native(array.dtype))
    except (RuntimeError, TypeError) as error:
        if hasattr(x, "aval"):
            if str(x.dtype).startswith("key<"):  # of `jax.random.key`: its numbers
                return as_array(sys.modules["jax"].random.key_data(x))
            raise traced_by_jax(x) from error
        if not hasattr(x, "requires_grad"):
            raise
        raise TypeMismatchError(
            "a tensor of PyTorch has no array that its gradient would come back through",
            expected="tensors on the processor that require no gradient, of a dtype that NumPy has",
            got=str(error).splitlines()[0],
            hint="ctrlgrad.to_torch(fn) is a function that PyTorch differentiates; tensor.detach() is numbers alone",
        ) from error
    if type(x) is not np.ndarray and isinstance(x, np.ndarray) and hasattr(x, "mask"):
        raise TypeMismatchError(
            "a masked array is not supported: its mask would be lost",
            expected="an array, a number or a traced tensor",
            got=type(x).__name__,
            hint="x.filled(value) is an array; numpy.where(mask, value, x) leaves elements out of what is computed",
        )
    # np.float64 is a subclass of float.
    if (
        dtype_kind(array.dtype) in "fc"
        and isinstance(x, float | complex | list | tuple)
        and not isinstance(x, np.generic)
    ):
        dtype = of_default(array.dtype)
        return array if dtype == array.dtype or _has_dtype(x) else array.astype(dtype)
    return array


def of_default(dtype: np.dtype) -> np.dtype:
    """Default dtype of a float or complex number: NumPy's, or its 32-bit form with `default_float='float32'`."""
    if dtype_kind(dtype) in "fc" and default_float() == np.float32:
        return np.dtype(np.float32 if dtype_kind(dtype) == "f" else np.complex64)
    return dtype


def _has_dtype(x: Any) -> bool:
    """Return true if nested lists contain an array."""
    if isinstance(x, list | tuple):
        return any(map(_has_dtype, x))
    return not isinstance(x, SCALARS) or isinstance(x, np.generic)


def _array(x: Any) -> np.ndarray:
    array = as_array(x)
    if array.dtype == object and isinstance(x, int):
        raise too_large("a Python number", x, "int64 or uint64")
    check_dtype(array.dtype)
    return array


def too_large(operation: str, x: Any, dtype: Any) -> NumberOverflowError:
    """Error for a Python number that a dtype cannot hold."""
    return NumberOverflowError(
        f"{operation}: the number does not fit the dtype",
        expected=str(dtype),
        got=str(x),
        hint="cast the array to a larger dtype with .astype(...), or write the number as a float",
    )


def value_in(builder: Builder, x: Any) -> Value:
    """The value of x in the graph that `builder` makes: a tensor's own, or a constant."""
    if isinstance(x, Tensor):
        if not x.builder.is_open and not builder.borrows(x.value):
            raise leaked(x)
        return x.value
    if isinstance(x, EagerStack):
        items = x.items
        if items and all(item is not None and x.type.element == type_of(item) for item in items):
            return builder.emit("stack_from_tensor", [builder.constant(np.stack(items))])
        stack = builder.emit("stack_new", [builder.constant(len(items))], {"element": x.type.element})
        for position, item in enumerate(items):
            if item is not None:
                index = builder.constant(position)
                stack = builder.emit("stack_write", [stack, index, builder.constant(item)], {"grow": False})
        return stack
    array = _array(x)
    value = builder.constant(array)
    captured = trace.captured()
    if captured is not None and array is x and array.size > SMALL:
        constant = attributes.Constant.of(builder.nodes[-1]).value
        captured[id(constant)] = (constant, captured.get(id(array), (array, array))[1])
    if isinstance(x, Unsized):
        return builder.emit("forget_sizes", [value], {"axes": x.axes}, source=here())
    return value


def apply_all(op: str, operands: Sequence[Any], attrs: Mapping[str, Any] = {}) -> tuple[Any, ...]:
    """Apply an op; tensors if an operand is one, else arrays computed at once."""
    is_traced = any(isinstance(x, Tensor) for x in operands)
    if not is_traced and _computes_here():
        found = _at_once(op, operands, attrs)
        if found is not None:
            return found
    source = here()
    try:
        if is_traced:
            builder = trace.current()
            if builder is None:
                raise leaked(next(x for x in operands if isinstance(x, Tensor)))
            values = [value_in(builder, x) for x in operands]
            results = builder.emit_all(OPS[op], values, attrs, source=source)
            weak = all(is_weak(x) for x in operands)
            return tuple(Tensor(builder, v, weak) for v in results)
        arrays = [x if isinstance(x, EagerStack) else as_array(x) for x in operands]
        graph = _graph_of(op, tuple(map(type_of, arrays)), attrs, source)
    except CtrlgradError as error:
        if error.source is None:
            error.source = source
        raise
    return tuple(map(concrete, evaluate(graph, arrays)))


def _computes_here() -> bool:
    """Return true if NumPy computes ops outside of a trace: no engine, check or budget has to see them."""
    options = current_options()
    return options.engine in ("auto", "native", "reference") and not options.check_nans and session() is None


@np.errstate(all="ignore")
def _at_once(op: str, operands: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Results of an op on concrete operands by the reference engine's kernel, without a graph.

    None if there is no such kernel, or if it fails: the run of a graph then raises the error, with the user's line.
    """
    plain, traits = _plain(attrs) if attrs else (), OPS[op].traits
    if plain is None or Trait.STACK in traits:
        return None
    try:
        arrays = list(map(as_array, operands))
        if Trait.ELEMENTWISE in traits:  # one kernel for all shapes
            kernel = _kernel(op, plain, *[(x.dtype, ()) for x in arrays])
        else:
            kernel = _kernel(op, plain, *[(x.dtype, x.shape) for x in arrays])
        return tuple(map(concrete, kernel(arrays)))
    except (CtrlgradError, ArithmeticError, IndexError, TypeError, ValueError):
        return None


def at_once(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Result of an array function of one array and fixed arguments, by the kernels of its graph: only the first call
    with a dtype, a shape and these arguments runs the function.

    None for other arguments, or if tracing or a kernel fails: the function itself then raises the error.
    """
    if not (args and is_plain(args[0]) and _computes_here()):
        return None
    x, fixed = args[0], tuple(args[1:])
    given = (*fixed, *kwargs.values())
    if not all(map(_is_fixed, given)):
        return None
    # True and 1 are equal, but not the same argument.
    kinds = tuple(map(type, given))
    try:
        kernel = _kernel_of(fn, x.dtype, x.shape, fixed, tuple(kwargs.items()), kinds, current_options().default_float)
        if kernel is None:
            return None
        with np.errstate(all="ignore"):
            (found,) = kernel([np.asarray(x)])
        # The result is an array of its own also where the graph has nothing to compute.
        return concrete(found.copy() if type(found) is np.ndarray and np.may_share_memory(found, x) else found)
    except (CtrlgradError, ArithmeticError, IndexError, TypeError, ValueError):
        return None


def _is_fixed(x: Any) -> bool:
    """Return true for an argument that a graph has as an attribute."""
    kind = type(x)
    return kind in _FIXED or (kind is tuple and all(type(item) is int for item in x)) or isinstance(x, np.dtype)


_FIXED = frozenset((NoneType, bool, int, str, type))


@functools.lru_cache(2048)
def _kernel_of(
    fn: Callable[..., Any],
    dtype: np.dtype,
    shape: Sizes,
    fixed: tuple[Any, ...],
    named: tuple[Any, ...],
    kinds: tuple[type, ...],
    floats: str,
) -> Callable[[list[Any]], Sequence[Any]] | None:
    """The kernels of an array function's graph as one; None if its result is not computed from the array alone."""
    builder = Builder()
    x = Tensor(builder, builder.input(TensorType(dtype, shape)))
    with trace.recording(builder):
        found = fn(x, *fixed, **dict(named))
    if type(found) is not Tensor or found.builder is not builder or any(node.regions for node in builder.nodes):
        return None
    return kernel_of(builder.finish([found.value]))


@functools.lru_cache(2048)
def _kernel(op: str, plain: _Plain, *types: tuple[np.dtype, Sizes]) -> Callable[[list[Any]], Sequence[Any]]:
    """The kernel of an op for operands of these dtypes and shapes; an error if the op does not take them."""
    for dtype, _ in types:
        check_dtype(dtype)
    attrs = {
        name: tuple(slice(*i[1]) if type(i) is tuple else i for i in x) if kind is tuple else x
        for name, kind, x in plain
    }
    return kernel_of(_single(op, [TensorType(*t) for t in types], attrs))


# Graphs of single ops that were computed at once, with their kernels: by op, types, attributes and the user's line.
_SINGLE: Recent[Any, Graph] = Recent(512)


def _graph_of(op: str, types: tuple[Type, ...], attrs: Mapping[str, Any], source: Source | None) -> Graph:
    """The graph of one op, made once for a line of the user's code if its attributes are plain."""
    plain = _plain(attrs)
    if plain is None:
        return _single(op, types, attrs, source)
    return _SINGLE.get((op, types, plain, source), lambda: _single(op, types, attrs, source))


def _single(op: str, types: Sequence[Type], attrs: Mapping[str, Any], source: Source | None = None) -> Graph:
    builder = Builder()
    return builder.finish(builder.emit_all(OPS[op], [builder.input(t) for t in types], attrs, source=source))


def _plain(attrs: Mapping[str, Any]) -> _Plain | None:
    """Attributes as a part of a key, with their types (1 and True are equal); None if one cannot be a part."""
    found: list[tuple[str, type, Any]] = []
    for name, x in attrs.items():
        kind = type(x)
        if kind is tuple and _ITEMS.issuperset(map(type, x)):
            x = tuple([item.__reduce__() if type(item) is slice else item for item in x])
        elif kind not in (bool, int, str) and not isinstance(x, np.dtype):
            return None
        found.append((name, kind, x))
    return tuple(found)


_Plain = tuple[tuple[str, type, Any], ...]
# Types of the items of shapes, axes and index keys. A slice has no hash.
_ITEMS = frozenset((int, NoneType, Dynamic, slice))


def apply(op: str, operands: Sequence[Any], attrs: Mapping[str, Any] = {}) -> Any:
    """As `apply_all`, for an op with one result."""
    (result,) = apply_all(op, operands, attrs)
    return result


def unknown_size(x: Any, axis: int) -> Any:
    """Size of an unknown dimension: a traced scalar that promotes like the Python integer of a known dimension."""
    size = apply("dim", [x], {"axis": axis})
    return Tensor(size.builder, size.value, weak=True) if isinstance(size, Tensor) else size


FUNCTIONS["__dim__"] = unknown_size


def result_dtype(*operands: Any) -> np.dtype:
    """NumPy's promotion (NEP 50): Python numbers, and traced tensors that promote like them, do not widen arrays."""
    kinds: list[Any] = []
    for x in operands:
        if isinstance(x, Tensor):
            kinds.append(x.dtype.type(0).item() if x.weak else x.dtype)
        else:
            kinds.append(x if is_weak(x) else np.asarray(x).dtype)
    found = result_type(*kinds)
    return (
        found if any(isinstance(kind, np.dtype) and dtype_kind(kind) in "fc" for kind in kinds) else of_default(found)
    )


def cast(x: Any, dtype: Any, operation: str = "cast") -> Any:
    """x with another dtype; x itself where it has it already. An error for a Python number that it cannot hold."""
    if is_plain(x) and x.dtype is dtype:
        return x
    dtype = as_dtype(operation, dtype)
    if isinstance(x, Tensor):
        if x.dtype == dtype:
            return Tensor(x.builder, x.value) if x.weak else x
        check_dtype(dtype)
        strong = apply("cast", [x], {"dtype": dtype})
        return Tensor(strong.builder, strong.value)
    if isinstance(x, Unsized):
        return Unsized.of(converted(np.asarray(x), dtype), x.axes)
    if not is_weak(x) or isinstance(x, float):
        if (is_plain(x) or isinstance(x, np.generic)) and x.dtype == dtype:
            return x
        return converted(as_array(x) if hasattr(x, "aval") else np.asarray(x), dtype)
    try:
        return np.asarray(x, dtype)
    except OverflowError as error:
        raise too_large(operation, x, dtype) from error


def require_numbers(operation: str, *operands: Any) -> None:
    """Refuse operands that are no arrays or numbers, and stacks."""
    for position, x in enumerate(operands):
        if not is_operand(x) and not isinstance(x, list | tuple):
            raise TypeMismatchError(
                f"{operation}: operand {position} is not an array",
                expected="an array, a number or a traced tensor",
                got=f"{type(x).__name__}",
                hint="convert it with numpy.asarray",
            )
        if isinstance(x, Tensor) and isinstance(x.type, StackType):
            raise TypeMismatchError(
                f"{operation}: operand {position} is a TensorArray",
                expected="a tensor",
                got=str(x.type),
                hint="use .read(i) or .stack()",
            )


def shape_template(dims: Sequence[Any]) -> tuple[tuple[int | None, ...], list[Any]]:
    """Split sizes into a template (None where unknown) and the traced scalars that fill it, in order."""
    shape: list[int | None] = []
    operands: list[Any] = []
    for d in dims:
        if isinstance(d, Tensor):
            shape.append(None)
            operands.append(cast(d, np.int64))
        else:
            shape.append(int(d))
    require_sizes("a shape", [size for size in shape if size is not None])
    return tuple(shape), operands


def joint_type(leaves: Sequence[Any]) -> Type | None:
    """The type that arrays from different paths share, or None where they do not fit together.

    Python numbers take the dtype of the arrays; dtypes of arrays must agree. A dimension that is unknown on one
    path is unknown.
    """
    types = [type_of(x) for x in leaves]
    if all(isinstance(t, TensorType) for t in types):
        strong = {t.dtype for x, t in zip(leaves, types, strict=True) if not is_weak(x) and isinstance(t, TensorType)}
        dtype = result_dtype(*leaves)
        if len(strong) > 1 or (strong and dtype not in strong):
            return None
        types = [TensorType(dtype, t.shape) for t in types if isinstance(t, TensorType)]
    joined: Type | None = types[0]
    for t in types[1:]:
        joined = None if joined is None or not _known_dims_agree(joined, t) else join(joined, t)
    return joined


def _known_dims_agree(a: Type, b: Type) -> bool:
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.rank == b.rank and all(m is None or n is None or m == n for m, n in zip(a.shape, b.shape, strict=True))
    return True
