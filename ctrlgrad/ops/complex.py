"""Ops between complex numbers and their parts, elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, TypeRule
from ctrlgrad.ir.types import RegionType, TensorType, Type
from ctrlgrad.ops.checks import tensors
from ctrlgrad.ops.elementwise import add, broadcast

# The complex dtype whose parts have a real dtype, and back.
COMPLEX_OF: dict[np.dtype, np.dtype] = {
    np.dtype(np.float32): np.dtype(np.complex64),
    np.dtype(np.float64): np.dtype(np.complex128),
}
REAL_OF: dict[np.dtype, np.dtype] = {c: r for r, c in COMPLEX_OF.items()}


def _on_complex(name: str, *, real: bool) -> TypeRule:
    def infer(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
        (x,) = tensors(name, operands)
        if x.dtype not in REAL_OF:
            raise TypeMismatchError(f"{name}: the operand is not complex", expected="c64 or c128", got=str(x))
        return (TensorType(REAL_OF[x.dtype] if real else x.dtype, x.shape),)

    return infer


def _infer_complex(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    re, im = types = tensors("complex", operands)
    if re.dtype != im.dtype or re.dtype not in COMPLEX_OF:
        raise TypeMismatchError(
            "complex: the parts are not floats of one dtype", expected="f32 or f64, twice", got=f"{re} and {im}"
        )
    return (broadcast("complex", types, COMPLEX_OF[re.dtype]),)


for _name, _real in {"conj": False, "real": True, "imag": True}.items():
    add(_name, 1, _on_complex(_name, real=_real), None, total=Trait.TOTAL)


def _complex(re: Any, im: Any) -> Any:
    result = np.empty(np.broadcast_shapes(re.shape, im.shape), COMPLEX_OF[re.dtype])
    result.real, result.imag = re, im
    return result


add("complex", 2, _infer_complex, None, numpy=_complex, jax="lax.complex", total=Trait.TOTAL_IF_STATIC)
