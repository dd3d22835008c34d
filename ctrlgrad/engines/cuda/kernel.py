"""A kernel of a plan as text: those that compute the same have one text, and share what is compiled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ctrlgrad.engines.cuda.elementary_functions import definitions
from ctrlgrad.engines.cuda.expressions import statements
from ctrlgrad.engines.cuda.functions import preamble
from ctrlgrad.plan.elementary.table import Elementary
from ctrlgrad.plan.expression import Instruction
from ctrlgrad.plan.model import Kernel


@dataclass(frozen=True)
class Parameter:
    """One argument of a kernel: a dtype's name, as NumPy has it, and a name."""

    dtype: str
    name: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.name}"


@dataclass(frozen=True)
class KernelText:
    """An elementwise kernel. `operation` is what happens for one element, in CUDA C++, a statement a line.

    `functions` are the elementary functions that it calls.
    """

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    operation: str
    functions: tuple[Elementary, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """A name that follows from the text."""
        return "elementwise_" + hashlib.sha256(str(self).encode()).hexdigest()[:12]

    @property
    def preamble(self) -> str:
        """What its operation calls."""
        return preamble(str(self)) + definitions(self.functions)

    def __str__(self) -> str:
        head = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return f"{head}\n{self.operation}"


def kernel_text(kernel: Kernel) -> KernelText:
    """The text of a plan's kernel: operands are called a0, a1, ..., numbers s0, ..., and what is written o0, ..."""

    def leaf(instruction: Instruction) -> str:
        if instruction.op == "scalar":
            return f"s{instruction.value}"
        assert instruction.op == "load" and not instruction.args
        operand, part = instruction.value
        is_complex = kernel.operands[operand].view.dtype.kind == "c"
        return f"{('np_real', 'np_imag')[part]}(a{operand})" if is_complex else f"a{operand}"

    text = statements(kernel.expression, leaf)
    lines = []
    for i, write in enumerate(kernel.writes):
        first, *rest = (text.outputs[output] for output in write.outputs)
        lines.append(f"o{i} = {write.view.dtype.name}({first}, {rest[0]});" if rest else f"o{i} = {first};")
    inputs = [Parameter(operand.view.dtype.name, f"a{i}") for i, operand in enumerate(kernel.operands)]
    inputs += [Parameter(register.dtype.name, f"s{i}") for i, register in enumerate(kernel.numbers)]
    outputs = [Parameter(write.view.dtype.name, f"o{i}") for i, write in enumerate(kernel.writes)]
    return KernelText(tuple(inputs), tuple(outputs), "\n".join([*text.lines, *lines]), text.functions)


__all__ = ["KernelText", "Parameter", "kernel_text"]
