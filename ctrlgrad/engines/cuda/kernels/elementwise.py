"""Elementwise ops that no generated kernel holds: complex numbers, half floats, and functions without an expression.

They are functions of the library under NumPy's names, one launch or more each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernels.table import DEVICE, Factory, Kernel, call
from ctrlgrad.ir import OPS, Node, Trait, attributes
from ctrlgrad.ops.elementwise import FACTS
from ctrlgrad.ops.special import FORMULAS, Formula, of_arrays

# What may fail at run time (an integer's negative power) is left to the host, which can say so.
_NUMPY_NAMES = {
    name: facts.numpy.__name__
    for name, facts in FACTS.items()
    if getattr(np, facts.numpy.__name__, None) is facts.numpy
    and OPS[name].traits & {Trait.TOTAL, Trait.TOTAL_IF_STATIC}
}


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


DEVICE |= {op: _function(name) for op, name in _NUMPY_NAMES.items()}
DEVICE |= {name: _of_formula(formula) for name, formula in FORMULAS.items()}
DEVICE |= {"sigmoid": _sigmoid, "cast": _cast, "complex": _complex}
DEVICE |= dict.fromkeys(("float_to_bits", "bits_to_float"), _same_bits)
