"""Bit casts and single instructions on scalars: what Numba cannot say and vectorisable kernels need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Numba's own annotations do not cover its internals.
_code: Any = cgutils
_new_intrinsic: Any = intrinsic
_Codegen = Callable[[Any, Any, Any, Any], Any]
_Typing = Callable[..., tuple[Any, _Codegen] | None]


def _intrinsic(typing: _Typing) -> Any:
    return _new_intrinsic(typing)


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
