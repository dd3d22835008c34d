"""The elementwise ops of the graph, the dtypes that their type rules accept, and their expressions on arrays."""

from __future__ import annotations

import numpy as np

import ctrlgrad.ops  # noqa: F401  (declares the ops)
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import OPS, TensorType
from ctrlgrad.ir.op import Trait
from ctrlgrad.plan.elementwise import DTYPES, elementwise_expression
from ctrlgrad.plan.expression import ExpressionBuilder

NAMES = sorted(name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits)
_DTYPES = sorted(DTYPES, key=lambda dtype: (dtype.kind, dtype.itemsize))


def part_of(dtype):
    """The dtype of a complex number's parts; that of a real number is its own."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def parts(dtype):
    """Number of real numbers in one number of this dtype."""
    return 2 if dtype.kind == "c" else 1


def signatures(name):
    """The operands' dtypes and the result's, for each dtype that the type rule accepts."""
    op = OPS[name]
    for dtype in _DTYPES:
        for to in _DTYPES if name == "cast" else [None]:
            dtypes = [dtype] * op.arity
            if name == "where":
                dtypes[0] = np.dtype(bool)
            attrs = op.attributes({"dtype": to} if name == "cast" else {})
            try:
                (result,) = op.infer([TensorType(d, (2,)) for d in dtypes], attrs, ())
            except CtrlgradError:
                continue
            yield dtypes, result.dtype


def expression_of(name, dtypes, result):
    """The expression of an op; its loads are the operands' parts in order."""
    builder, operands, loads = ExpressionBuilder(), [], 0
    for dtype in dtypes:
        numbers = tuple(builder.emit("load", (), part_of(dtype), loads + k) for k in range(parts(dtype)))
        operands.append(numbers if dtype.kind == "c" else numbers[0])
        loads += len(numbers)
    found = elementwise_expression(name, dtypes, result, builder, operands)
    return builder.finish(*(found if isinstance(found, tuple) else (found,)))
