"""Kernels: nests of loops over a space, with one expression for all that is computed at a point."""

from __future__ import annotations

from typing import Literal

from ctrlgrad.ir import Node
from ctrlgrad.plan.expression import Expression
from ctrlgrad.plan.sizes import Size, Sizes
from ctrlgrad.plan.values import Array, Register, View
from ctrlgrad.records import record


@record
class Operand:
    """What a kernel reads: a view over the kernel's space, further moved by index instructions.

    A `load` instruction with arguments reads at the view's position plus each argument times its stride in `gathered`.
    `value` of a load of a complex array is (operand, 0 for the real and 1 for the imaginary part).
    """

    view: View
    gathered: Sizes = ()
    # The same elements as `Columns` has laid them out, of use where that has.
    columns: View | None = None


How = Literal["store", "sum", "dot", "product", "max", "min", "argmax", "argmin"]


@record
class Write:
    """What a kernel writes at each point of its space: outputs of its expression (two for a complex array).

    `how` is "store", or the reduction over the axes along which the view's stride is 0: "sum", "product", "max", "min";
    "dot", the sum of the products of two outputs, each product rounded once with the sum; "argmax", "argmin", the least
    of two outputs' second where the first is the extreme, along the innermost axes, without base.
    Other elements of the array are those of `base`; without one they mean nothing. A sum without base starts at 0.
    With `scattered` strides, the view is moved by the outputs called `indices`; "sum" then adds up at equal places.
    """

    view: View
    outputs: tuple[int, ...]
    how: How = "store"
    base: Array | None = None
    indices: tuple[int, ...] = ()
    scattered: Sizes = ()


@record
class Check:
    """An output of an expression that must be true; `found` and `bound` are outputs or registers for the message."""

    output: int
    site: int
    found: int
    bound: Size
    status: Literal["index", "value"] = "index"


@record(eq=False)
class Kernel:
    """A nest of loops over `space` that evaluates one expression at each point."""

    space: Sizes
    operands: tuple[Operand, ...]
    numbers: tuple[Register, ...]
    expression: Expression
    writes: tuple[Write, ...]
    # Outputs of the expression that must be true everywhere, and what failed otherwise.
    checks: tuple[Check, ...] = ()
    # Where it comes from, for reports.
    nodes: tuple[Node, ...] = ()


@record(eq=False)
class Cascade:
    """Two kernels, of which the second reduces the rows that the first has reduced: where the columns that this reads
    are laid out, the second takes each number as it is there, and it lies nowhere. Afterwards what the first makes
    means nothing.
    """

    first: Kernel
    second: Kernel


__all__ = ["Cascade", "Check", "How", "Kernel", "Operand", "Write"]
