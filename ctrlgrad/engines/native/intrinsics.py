"""Loads and stores that name their buffer, and bit casts: what Numba cannot say and LLVM needs to hear.

A fused loop over many arrays vectorises only where LLVM knows that its stores do not touch what its loads read. Between
arrays passed as arguments it can check that as the loop starts, but it gives up beyond a few of them. `load` and
`store` therefore carry the number of a buffer, as LLVM's scoped alias metadata (LLVM Language Reference, "noalias and
alias.scope metadata"), and assert:

    two accesses within one compiled function with different buffer numbers never touch the same byte.

Accesses with the same number may overlap in any way, and LLVM treats them as it treats plain ones. So all arrays that a
function only reads share the number `READ_ONLY`; each array that it writes has a number of its own; and whatever may
share memory with a written array, such as an operand that the result overwrites in place, has that array's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np import arrayobj

READ_ONLY = 0
"""The number of the buffers that a function reads and never writes."""
BUFFERS = 64
"""Buffer numbers are below this."""

_DOMAIN = "ctrlgrad.buffers"
# Numba's own annotations do not cover its internals.
_arrays: Any = arrayobj
_code: Any = cgutils
_new_intrinsic: Any = intrinsic
_Codegen = Callable[[Any, Any, Any, Any], Any]
_Typing = Callable[..., tuple[Any, _Codegen] | None]


def _intrinsic(typing: _Typing) -> Any:
    return _new_intrinsic(typing)


def _intrinsic_of_literals(typing: _Typing) -> Any:
    return _new_intrinsic(prefer_literal=True)(typing)


def _say_buffer(accesses: Iterable[Any], number: int) -> None:
    """Attach the metadata to each load and store: it touches buffer `number` and no other."""
    for access in accesses:
        module = access.module
        domain = module.add_metadata([_DOMAIN])
        scopes = [module.add_metadata([f"{_DOMAIN}.{k}", domain]) for k in range(BUFFERS)]
        access.set_metadata("alias.scope", module.add_metadata([scopes[number]]))
        access.set_metadata("noalias", module.add_metadata(scopes[:number] + scopes[number + 1 :]))


def _accesses_since(builder: Any, start: int) -> list[Any]:
    emitted = builder.block.instructions[start:]
    return [i for i in emitted if isinstance(i, ir.LoadInstr | ir.StoreInstr)]


def _check(operation: str, array: Any, index: Any, buffer: Any) -> None:
    if not isinstance(array, types.Array) or array.layout != "C":
        raise TypingError(f"{operation}: expected a C-contiguous array, got {array}")
    if not isinstance(index, types.Integer):
        raise TypingError(f"{operation}: expected an integer index, got {index}")
    if not isinstance(buffer, types.IntegerLiteral) or not 0 <= buffer.literal_value < BUFFERS:
        raise TypingError(f"{operation}: expected a literal buffer number below {BUFFERS}, got {buffer}")


def _element(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The pointer to the element that the first two arguments, array and index, name."""
    index = context.cast(builder, args[1], signature.args[1], types.intp)
    return builder.gep(_arrays.make_array(signature.args[0])(context, builder, args[0]).data, [index], inbounds=True)


@_intrinsic_of_literals
def load(typing_context: Any, array: Any, index: Any, buffer: Any) -> tuple[Any, _Codegen]:
    """Element `index` of a C-contiguous array of any rank, counted flat from 0, in the buffer of that number.

    The index is neither checked nor wrapped. `buffer` is a literal; the module says what it asserts.
    """
    _check("load", array, index, buffer)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element(context, builder, signature, args)
        start = len(builder.block.instructions)
        if isinstance(array.dtype, types.Boolean):
            # Numba's own conversion from a byte branches, and a branch stops the vectoriser.
            byte = builder.load(pointer)
            value = builder.icmp_unsigned("!=", byte, byte.type(0))
        else:
            value = _arrays.load_item(context, builder, array, pointer)
        _say_buffer(_accesses_since(builder, start), buffer.literal_value)
        return value

    return array.dtype(array, index, buffer), codegen


@_intrinsic_of_literals
def store(typing_context: Any, array: Any, index: Any, value: Any, buffer: Any) -> tuple[Any, _Codegen]:
    """Write `value`, cast to the array's dtype, where `load` with the same arguments reads."""
    _check("store", array, index, buffer)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element(context, builder, signature, args)
        item = context.cast(builder, args[2], signature.args[2], array.dtype)
        start = len(builder.block.instructions)
        _arrays.store_item(context, builder, array, item, pointer)
        _say_buffer(_accesses_since(builder, start), buffer.literal_value)
        return context.get_dummy_value()

    return types.none(array, index, value, buffer), codegen


_BITS: dict[Any, Any] = {
    types.float32: types.int32,
    types.float64: types.int64,
    types.int32: types.float32,
    types.int64: types.float64,
}


@_intrinsic
def bits(typing_context: Any, value: Any) -> tuple[Any, _Codegen] | None:
    """The same bits as another type: float32 as int32, int32 as float32, and likewise with 64 bits."""
    result = _BITS.get(value)
    if result is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(value), codegen


@_intrinsic
def where(typing_context: Any, condition: Any, a: Any, b: Any) -> tuple[Any, _Codegen] | None:
    """`a if condition else b` without a branch; both are of one type and both are computed."""
    if a != b or not isinstance(condition, types.Boolean):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(*args)

    return a(condition, a, a), codegen


@_intrinsic
def horner(typing_context: Any, x: Any, coefficients: Any) -> tuple[Any, _Codegen] | None:
    """The polynomial in `x` with these coefficients, lowest power first: a chain of fused multiply-adds."""
    if not isinstance(coefficients, types.UniTuple) or coefficients.dtype != x:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        *rest, value = _code.unpack_tuple(builder, args[1])
        for coefficient in reversed(rest):
            value = builder.fma(value, args[0], coefficient)
        return value

    return x(x, coefficients), codegen


def _llvm(name: str, arity: int) -> Any:
    """LLVM's intrinsic of that name on floating-point operands of one type, as a function for compiled code."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * len(args)))
        return builder.call(function, args)

    def typed(*operands: Any) -> tuple[Any, _Codegen] | None:
        same = isinstance(operands[0], types.Float) and len(set(operands)) == 1
        return (operands[0](*operands), emit) if same else None

    def unary(typing_context: Any, x: Any) -> tuple[Any, _Codegen] | None:
        return typed(x)

    def binary(typing_context: Any, x: Any, y: Any) -> tuple[Any, _Codegen] | None:
        return typed(x, y)

    return _intrinsic(unary if arity == 1 else binary)


@_intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> tuple[Any, _Codegen] | None:
    """`a * b + c` rounded once."""
    if not (isinstance(a, types.Float) and a == b == c):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), codegen


absolute = _llvm("llvm.fabs", 1)
copysign = _llvm("llvm.copysign", 2)
square_root = _llvm("llvm.sqrt", 1)
floor = _llvm("llvm.floor", 1)
ceil = _llvm("llvm.ceil", 1)
truncate = _llvm("llvm.trunc", 1)
round_even = _llvm("llvm.rint", 1)


@_intrinsic
def c_remainder(typing_context: Any, x: Any, y: Any) -> tuple[Any, _Codegen] | None:
    """The exact remainder of x / y with the sign of `x`: a call of the C library's fmod."""
    if x != y or not isinstance(x, types.Float):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.frem(*args)

    return x(x, x), codegen


@_intrinsic
def widest_vectors(typing_context: Any) -> tuple[Any, _Codegen]:
    """A statement: the loops of the function that holds it use 512-bit vectors where the processor has them.

    LLVM otherwise keeps to 256 bits on processors whose clock may fall under wider ones.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # llvmlite admits only the attributes that it knows; this one is a string attribute of LLVM's x86 target.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), codegen
