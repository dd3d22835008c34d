"""The kernel of a group: its text, and what goes in and out.

Each node is one statement, in the order of the graph. The text is the same for every group that computes the same, so
that such groups share a compiled kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from ctrlgrad.engines.cuda.expressions import kernel_expression, kernel_literal, type_name
from ctrlgrad.engines.cuda.groups import Group
from ctrlgrad.ir import Node, Value


@dataclass(frozen=True)
class Parameter:
    """One argument of a kernel: a dtype's name, as NumPy has it, and a name."""

    dtype: str
    name: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.name}"


@dataclass(frozen=True)
class KernelText:
    """An elementwise kernel. `operation` is what happens for one element, in CUDA C++, a statement a line."""

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    operation: str

    @property
    def name(self) -> str:
        """A name that follows from the text."""
        return "elementwise_" + hashlib.sha256(str(self).encode()).hexdigest()[:12]

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
    names: dict[Value, str] = {}
    reads: list[Value] = []

    def name(v: Value) -> str:
        if v not in names:
            text = kernel_literal(constants[v].attrs["value"]) if v in constants and v.tensor.rank == 0 else None
            if text is None:
                text = f"a{len(reads)}"
                reads.append(v)
            names[v] = text
        return names[v]

    lines = []
    for number, node in enumerate(group.nodes):
        text = kernel_expression(node, [name(v) for v in node.operands])
        names[node.result] = f"v{number}"
        lines.append(f"{type_name(node.result.tensor.dtype)} v{number} = {text};")
    targets = [Target(push.operands[1], push=push) for push in group.pushes]
    targets += [Target(v, None, c, i) for c in group.concats for i, v in enumerate(c.operands)]
    written = {target.value for target in targets}
    targets += [Target(node.result) for node in group.nodes if node.result in needed and node.result not in written]
    lines += [f"o{i} = {name(target.value)};" for i, target in enumerate(targets)]
    inputs = tuple(Parameter(type_name(v.tensor.dtype), f"a{i}") for i, v in enumerate(reads))
    outputs = tuple(Parameter(type_name(t.value.tensor.dtype), f"o{i}") for i, t in enumerate(targets))
    return GroupKernel(KernelText(inputs, outputs, "\n".join(lines)), tuple(reads), tuple(targets))


__all__ = ["GroupKernel", "KernelText", "Parameter", "Target", "group_kernel"]
