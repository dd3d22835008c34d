"""The kernel of a group: its text, and what goes in and out.

A group is one expression. Its text is the same for every group that computes the same, so that such groups share a
compiled kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from ctrlgrad.engines.cuda.elementary_functions import definitions
from ctrlgrad.engines.cuda.expressions import kernel_constant, node_expression, statements
from ctrlgrad.engines.cuda.functions import PREAMBLE
from ctrlgrad.engines.cuda.groups import Group
from ctrlgrad.ir import Node, Value, attributes
from ctrlgrad.plan.elementary.table import Elementary
from ctrlgrad.plan.expression import ExpressionBuilder, Number


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
        return PREAMBLE + definitions(self.functions)

    def __str__(self) -> str:
        head = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return f"{head}\n{self.operation}"


@dataclass(frozen=True)
class Target:
    """Where a kernel writes a value: into an array of its own, a slot of a stack, or a part of a concatenation."""

    value: Value
    push: Node | None = None
    concat: Node | None = None
    part: int = 0


@dataclass(frozen=True)
class GroupKernel:
    """A group's kernel with the values that it reads and the places that it writes to, in the order of its text."""

    text: KernelText
    reads: tuple[Value, ...]
    targets: tuple[Target, ...]


def group_kernel(group: Group, needed: set[Value], constants: Mapping[Value, Node]) -> GroupKernel:
    """The kernel of a group. `needed` are the values that are read after it; `constants` has constants by value."""
    builder = ExpressionBuilder()
    numbers: dict[Value, Number] = {}
    reads: list[Value] = []

    def number(v: Value) -> Number:
        if v not in numbers:
            value = (
                kernel_constant(attributes.Constant.of(constants[v]).value)
                if v in constants and v.tensor.rank == 0
                else None
            )
            if value is None:
                numbers[v] = builder.emit("load", (), v.tensor.dtype, len(reads))
                reads.append(v)
            else:
                numbers[v] = builder.constant(value, v.tensor.dtype)
        return numbers[v]

    for node in group.nodes:
        numbers[node.result] = node_expression(node, builder, [number(v) for v in node.operands])
    targets = [Target(push.operands[1], push=push) for push in group.pushes]
    targets += [Target(v, None, c, i) for c in group.concats for i, v in enumerate(c.operands)]
    written = {target.value for target in targets}
    targets += [Target(node.result) for node in group.nodes if node.result in needed and node.result not in written]
    text = statements(builder.finish(*(number(t.value) for t in targets)), lambda leaf: f"a{leaf.value}")
    lines = [*text.lines, *(f"o{i} = {name};" for i, name in enumerate(text.outputs))]
    inputs = tuple(Parameter(v.tensor.dtype.name, f"a{i}") for i, v in enumerate(reads))
    outputs = tuple(Parameter(t.value.tensor.dtype.name, f"o{i}") for i, t in enumerate(targets))
    kernel = KernelText(inputs, outputs, "\n".join(lines), text.functions)
    return GroupKernel(kernel, tuple(reads), tuple(targets))


__all__ = ["GroupKernel", "KernelText", "Parameter", "Target", "group_kernel"]
