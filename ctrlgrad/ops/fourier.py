"""The discrete Fourier transform along one axis: the one op that `ctrlgrad.numpy.fft` is made of.

y[k] = sum over n of x[n] exp(-2 pi i k n / N), or with `inverse` exp(+2 pi i k n / N): no factor.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.op import Trait, declare
from ctrlgrad.ir.types import RegionType, Type
from ctrlgrad.ops.checks import axes, tensors


def _infer_fft(operands: Sequence[Type], attrs: attributes.Axis, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("fft", operands)
    (axis,) = axes("fft", (attrs.axis,), x.rank)
    if dtype_kind(x.dtype) != "c":
        raise TypeMismatchError("fft: the operand is not complex", expected="c64 or c128", got=str(x))
    if x.shape[axis] == 0:
        raise ShapeError("fft: no elements along the axis", got=str(x))
    return (x,)


declare("fft", 1, _infer_fft, Trait.TOTAL_IF_STATIC, attributes=attributes.Transform)
