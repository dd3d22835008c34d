"""The texts of kernels that are no group's: copies, sums in place, and numbers that the host would compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.engines.cuda.expressions import statements
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.plan.elementwise import Operand, elementwise_expression
from ctrlgrad.plan.expression import ExpressionBuilder, Instruction
from ctrlgrad.plan.lowering.state import parts_of

ADVANCE = KernelText((Parameter("int64", "a0"),), (Parameter("int64", "o0"),), "o0 = a0 + int64(1);")
"""An iteration is over."""


def copy_text(source: np.dtype, target: np.dtype) -> KernelText:
    """One array written into another."""
    assert source == target
    return KernelText((Parameter(source.name, "a0"),), (Parameter(target.name, "o0"),), "o0 = a0;")


class TextBuilder:
    """An expression of whole elements, the parts of complex ones among them, as it is built."""

    def __init__(self) -> None:
        self._builder, self._inputs = ExpressionBuilder(), list[np.dtype]()

    def input(self, dtype: np.dtype) -> Operand:
        """The element of another array, or a number."""
        number = len(self._inputs)
        self._inputs.append(dtype)
        first, *rest = (self._builder.emit("load", (), its, (number, k)) for k, its in enumerate(parts_of(dtype)))
        return (first, rest[0]) if rest else first

    def elementwise(
        self, name: str, operands: Sequence[Operand], dtypes: Sequence[np.dtype], result: np.dtype
    ) -> Operand:
        """An op of elements of these dtypes."""
        return elementwise_expression(name, dtypes, result, self._builder, operands)

    def text(self, value: Operand, dtype: np.dtype) -> KernelText:
        """The kernel that writes a value."""

        def leaf(load: Instruction) -> str:
            number, part = load.value
            is_complex = self._inputs[number].kind == "c"
            return f"{('np_real', 'np_imag')[part]}(a{number})" if is_complex else f"a{number}"

        found = statements(self._builder.finish(*(value if isinstance(value, tuple) else (value,))), leaf)
        whole = f"{dtype.name}({', '.join(found.outputs)})" if isinstance(value, tuple) else found.outputs[0]
        inputs = tuple(Parameter(its.name, f"a{k}") for k, its in enumerate(self._inputs))
        lines = "\n".join([*found.lines, f"o0 = {whole};"])
        return KernelText(inputs, (Parameter(dtype.name, "o0"),), lines, found.functions)


def binary_text(name: str, dtype: np.dtype) -> KernelText:
    """An elementwise op on two arrays of one dtype."""
    builder = TextBuilder()
    operands = [builder.input(dtype), builder.input(dtype)]
    return builder.text(builder.elementwise(name, operands, [dtype, dtype], dtype), dtype)


def cast_text(source: np.dtype, target: np.dtype) -> KernelText:
    """An array in another dtype."""
    builder = TextBuilder()
    return builder.text(builder.elementwise("cast", [builder.input(source)], [source], target), target)
