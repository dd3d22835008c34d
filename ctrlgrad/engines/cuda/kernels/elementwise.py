"""Elementwise ops that no generated kernel holds: complex numbers, half floats, and functions without an expression.

They are functions of the library under NumPy's names, one launch or more each.
"""

from __future__ import annotations

from typing import Any

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernels.table import DEVICE, Factory, Kernel, call
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ops.special import FORMULAS, Formula, of_arrays

_NAMES = """negative square exp expm1 log log1p sqrt sin cos tan tanh sinh cosh arcsin arccos arctan reciprocal floor
ceil trunc rint isnan isinf isfinite add subtract multiply divide power maximum minimum floor_divide remainder arctan2
logaddexp equal not_equal less less_equal greater greater_equal log2 log10 exp2 arcsinh arccosh arctanh hypot copysign
nextafter signbit sign conj where abs real imag"""


def _function(name: str) -> Factory:
    def factory(node: Node) -> Kernel:
        def kernel(context: Context, operands: list[Any]) -> Any:
            return getattr(context.xp, name)(*map(context.on_device, operands))

        return call(kernel)

    return factory


def _of_formula(formula: Formula) -> Factory:
    def factory(node: Node) -> Kernel:
        def kernel(context: Context, operands: list[Any]) -> Any:
            return of_arrays(formula, context.xp)(context.on_device(operands[0]))

        return call(kernel)

    return factory


def _sigmoid(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        x = context.on_device(operands[0])
        half = x.dtype.type(0.5)
        return context.xp.tanh(x * half) * half + half

    return call(kernel)


def _cast(node: Node) -> Kernel:
    dtype = attributes.Cast.of(node).dtype
    drops = node.operands[0].tensor.dtype.kind == "c" and dtype.kind not in "bc"

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = context.on_device(operands[0])
        return (x.real if drops else x).astype(dtype)

    return call(kernel)


def _complex(node: Node) -> Kernel:
    dtype = node.result.tensor.dtype

    def kernel(context: Context, operands: list[Any]) -> Any:
        re, im = map(context.on_device, operands)
        re, im = context.xp.broadcast_arrays(re, im)
        # Part by part: a product with the imaginary unit would make NaN of an infinity.
        result = context.library.empty(re.shape, dtype)
        result.real = re
        result.imag = im
        return result

    return call(kernel)


def _same_bits(node: Node) -> Kernel:
    dtype = node.result.tensor.dtype
    return call(lambda context, operands: context.on_device(operands[0]).view(dtype))


DEVICE |= dict.fromkeys(("float_to_bits", "bits_to_float"), _same_bits)
DEVICE |= {name: _function(name) for name in _NAMES.split()}
DEVICE |= {name: _of_formula(formula) for name, formula in FORMULAS.items()}
DEVICE |= {"sigmoid": _sigmoid, "cast": _cast, "complex": _complex}
