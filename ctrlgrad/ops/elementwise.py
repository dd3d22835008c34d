"""Elementwise ops: operands broadcast against each other as in NumPy, dtypes equal (the frontend promotes).

Names are NumPy's. Dividing by zero, overflow and the like follow IEEE 754 and raise nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, TypeRule, declare
from ctrlgrad.ir.types import RegionType, TensorType, Type, broadcast_shapes
from ctrlgrad.ops.checks import require_kind, tensors

BOOL = np.dtype(bool)


def broadcast(operation: str, types: Sequence[TensorType], dtype: np.dtype) -> TensorType:
    """The type of an elementwise result."""
    shape = broadcast_shapes([t.shape for t in types])
    if shape is None:
        raise ShapeError(
            f"{operation}: the operands' shapes do not broadcast",
            expected="dimensions that are equal or 1, aligned at the right",
            got=" and ".join(str(t) for t in types),
            hint="add dimensions of size 1 where they are missing: x[:, None], or numpy.expand_dims",
        )
    return TensorType(dtype, shape)


def _same_dtype(operation: str, types: Sequence[TensorType]) -> np.dtype:
    dtypes = {t.dtype for t in types}
    if len(dtypes) != 1:
        raise TypeMismatchError(
            f"{operation}: the operands' dtypes differ",
            expected="one dtype",
            got=" and ".join(str(t) for t in types),
            hint="cast them first, with .astype",
        )
    return dtypes.pop()


def _rule(name: str, kinds: str, result: np.dtype | None) -> TypeRule:
    def infer(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
        types = tensors(name, operands)
        dtype = _same_dtype(name, types)
        require_kind(name, kinds, types)
        return (broadcast(name, types, dtype if result is None else result),)

    return infer


def _declare_all(arity: int, kinds: str, names: str, result: np.dtype | None = None) -> None:
    for name in names.split():
        total = Trait.TOTAL if arity == 1 else Trait.TOTAL_IF_STATIC
        declare(name, arity, _rule(name, kinds, result), Trait.ELEMENTWISE, Trait.CHEAP, total)


INEXACT, REAL, NUMERIC, ANY = "fc", "iuf", "iufc", "biufc"

_declare_all(1, NUMERIC, "negative square")
# Of complex numbers, the sign varies continuously: the frontend divides by the modulus.
_declare_all(1, REAL, "sign")
_declare_all(1, INEXACT, "exp expm1 log log1p log2 log10 sqrt sigmoid reciprocal")
_declare_all(1, INEXACT, "sin cos tan tanh sinh cosh arcsin arccos arctan arcsinh arccosh arctanh")
_declare_all(1, "f", "exp2 floor ceil trunc rint")
_declare_all(1, "f", "signbit", BOOL)
_declare_all(1, INEXACT, "isnan isinf isfinite", BOOL)
_declare_all(1, "b", "logical_not")
_declare_all(2, NUMERIC, "add subtract multiply")
_declare_all(2, INEXACT, "divide")
_declare_all(2, INEXACT, "power")
_declare_all(2, REAL, "maximum minimum floor_divide remainder")
_declare_all(2, "f", "arctan2 logaddexp hypot copysign nextafter")
_declare_all(2, "b", "logical_and logical_or logical_xor")
_declare_all(2, ANY, "equal not_equal", BOOL)
_declare_all(2, "biuf", "less less_equal greater greater_equal", BOOL)
# Bits of integers; booleans have the logical ops.
_declare_all(1, "iu", "bitwise_invert")
_declare_all(2, "iu", "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift")
# A negative exponent is an error at run time, so this is not total, unlike `power`.
declare("integer_power", 2, _rule("integer_power", "iu", None), Trait.ELEMENTWISE, Trait.CHEAP)


def _infer_abs(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("abs", operands)
    dtype = np.dtype(x.dtype.type(0).real.dtype) if x.dtype.kind == "c" else x.dtype
    return (TensorType(dtype, x.shape),)


def _infer_where(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    condition, a, b = types = tensors("where", operands)
    if condition.dtype != BOOL:
        raise TypeMismatchError(
            "where: the condition is not boolean",
            expected="bool",
            got=str(condition),
            hint="compare: x != 0",
        )
    return (broadcast("where", types, _same_dtype("where", (a, b))),)


def _infer_cast(operands: Sequence[Type], attrs: attributes.Cast, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("cast", operands)
    return (TensorType(attrs.dtype, x.shape),)


def _infer_identity(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return (operands[0],)


declare("abs", 1, _infer_abs, Trait.ELEMENTWISE, Trait.TOTAL, Trait.CHEAP)
declare("where", 3, _infer_where, Trait.ELEMENTWISE, Trait.CHEAP, Trait.TOTAL_IF_STATIC)
declare("cast", 1, _infer_cast, Trait.ELEMENTWISE, Trait.TOTAL, Trait.CHEAP, attributes=attributes.Cast)
# The identity whose derivative is zero.
declare("stop_gradient", 1, _infer_identity, Trait.TOTAL, Trait.VIEW, Trait.CHEAP, Trait.SHAPE_OF_FIRST)
