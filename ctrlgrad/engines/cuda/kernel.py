"""A kernel of a plan as text: those that compute the same have one text, and share what is compiled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ctrlgrad.engines.cuda.elementary_functions import definitions
from ctrlgrad.engines.cuda.expressions import Leaf, Statements, statements
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
        """Definitions of the functions that its operation calls."""
        return preamble(str(self)) + definitions(self.functions)

    def __str__(self) -> str:
        head = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return f"{head}\n{self.operation}"


def leaf_of(kernel: Kernel) -> Leaf:
    """Names of a kernel's inputs in its text: operands a0, a1, ..., numbers s0, ..."""

    def leaf(instruction: Instruction) -> str:
        if instruction.op == "scalar":
            return f"s{instruction.value}"
        assert instruction.op == "load" and not instruction.args
        operand, part = instruction.value
        is_complex = kernel.operands[operand].view.dtype.kind == "c"
        return f"{('np_real', 'np_imag')[part]}(a{operand})" if is_complex else f"a{operand}"

    return leaf


def element_lines(kernel: Kernel, text: Statements) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...], list[str]]:
    """Of a kernel's text what it reads, what it writes of each element (o0, ...), and the lines that do."""
    inputs = [Parameter(operand.view.dtype.name, f"a{i}") for i, operand in enumerate(kernel.operands)]
    inputs += [Parameter(register.dtype.name, f"s{i}") for i, register in enumerate(kernel.numbers)]
    outputs, lines = [], []
    for i, write in enumerate(write for write in kernel.writes if write.how == "store"):
        first, *rest = (text.outputs[output] for output in write.outputs)
        lines.append(f"o{i} = {write.view.dtype.name}({first}, {rest[0]});" if rest else f"o{i} = {first};")
        outputs.append(Parameter(write.view.dtype.name, f"o{i}"))
    return tuple(inputs), tuple(outputs), lines


def kernel_text(kernel: Kernel) -> KernelText:
    """The text of a plan's kernel without reductions."""
    text = statements(kernel.expression, leaf_of(kernel))
    inputs, outputs, lines = element_lines(kernel, text)
    return KernelText(inputs, outputs, "\n".join([*text.lines, *lines]), text.functions)
