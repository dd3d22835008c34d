"""Small helpers that the type rules share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir.types import Dim, Shape, StackType, TensorType, Type


def tensors(operation: str, operands: Sequence[Type]) -> tuple[TensorType, ...]:
    """The operand types, all of which must be tensors."""
    for position, t in enumerate(operands):
        if not isinstance(t, TensorType):
            raise TypeMismatchError(
                f"{operation}: operand {position} is not a tensor",
                expected="a tensor",
                got=str(t),
                hint="a TensorArray has .read(i) and .stack()",
                source=None,
            )
    return tuple(operands)  # type: ignore[arg-type]


def stack(operation: str, operand: Type) -> StackType:
    """The operand's type, which must be a stack."""
    if not isinstance(operand, StackType):
        raise TypeMismatchError(
            f"{operation}: the operand is not a stack",
            expected="a stack",
            got=str(operand),
            hint="make one with ctrlgrad.TensorArray",
            source=None,
        )
    return operand


def scalar_index(operation: str, what: str, operand: Type) -> None:
    """Require a scalar integer."""
    if not isinstance(operand, TensorType) or operand.rank != 0 or dtype_kind(operand.dtype) not in "iu":
        raise TypeMismatchError(
            f"{operation}: {what} is not a scalar integer",
            expected="i64[]",
            got=str(operand),
            hint="cast it with .astype(int), and take one number of an array: n[0]",
            source=None,
        )


def template(operation: str, shape: Shape, dims: Sequence[Type]) -> None:
    """Require one scalar integer operand for each unknown dimension of a shape template.

    Ops that make a shape (`reshape`, `broadcast_to`, ...) hold it as an attribute, known dimensions as
    ints and the unknown ones as None, and take the values of those as operands, in order.
    """
    unknown = sum(d is None for d in shape)
    if unknown != len(dims):
        raise ShapeError(
            f"{operation}: one operand per unknown dimension",
            expected=f"{unknown} operands",
            got=str(len(dims)),
            hint="give the size of every dimension that is None in the shape",
            source=None,
        )
    for t in dims:
        scalar_index(operation, "a dimension", t)


def axes(operation: str, given: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted; an error for one that does not exist or stands twice."""
    result = []
    for axis in given:
        if not -rank <= axis < rank:
            raise ShapeError(
                f"{operation}: axis {axis} is out of range",
                expected=f"-{rank} <= axis < {rank}",
                got=str(axis),
                hint="axes count from 0, or from the end with -1 for the last",
                source=None,
            )
        result.append(axis % rank)
    if len(set(result)) != len(result):
        raise ShapeError(
            f"{operation}: an axis stands twice",
            expected="every axis at most once",
            got=str(tuple(given)),
            hint="-1 is the last axis, which may be there by its number too",
            source=None,
        )
    return tuple(sorted(result))


_KINDS = {"b": "bool", "i": "int", "u": "unsigned int", "f": "float", "c": "complex"}


def require_kind(operation: str, kinds: str, types: Sequence[TensorType]) -> None:
    """Require operands of the dtype kinds given by NumPy's letters."""
    for t in types:
        if dtype_kind(t.dtype) not in kinds:
            raise TypeMismatchError(
                f"{operation}: dtype {t.dtype.name} is not supported",
                expected="a dtype among " + ", ".join(_KINDS[kind] for kind in kinds),
                got=" and ".join(map(str, types)),
                hint="cast with .astype",
                source=None,
            )


def product(dims: Sequence[Dim]) -> Dim:
    """The product of dimensions, None where one is unknown."""
    total = 1
    for d in dims:
        if d is None:
            return None
        total *= d
    return total


def default_int() -> np.dtype:
    return np.dtype(np.int64)
