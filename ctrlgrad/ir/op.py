"""What an op is: a name, an arity, a type rule and traits. Nothing else.

What an op means to a stage (how it runs, its derivatives, its batching, its JAX form) stands in that
stage's own table, keyed by the op's name. `OPS` is the registry; a test walks it and fails where a table
lacks an entry.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ctrlgrad.ir.types import Type

if TYPE_CHECKING:
    from ctrlgrad.ir.graph import Graph


class Trait(enum.Enum):
    """A property that passes rely on."""

    ELEMENTWISE = "the result at a position depends on the operands at that position alone, after broadcasting"
    TOTAL = "never fails at run time, so it may move ahead of a point that might not be reached"
    TOTAL_IF_STATIC = "never fails at run time where every operand's shape is known when the graph is built"
    CHEAP = "costs no more than moving its operands, so recomputing it may beat saving it"
    EFFECT = "does something besides computing its results: it is neither dropped, merged nor moved"
    VIEW = "the result is a view of the first operand: no data is touched"

    # Each is one object, asked for at every node; Enum's own hash is that of its name, and Python code.
    __hash__ = object.__hash__


TypeRule = Callable[[Sequence[Type], Mapping[str, Any], "Sequence[Graph]"], Sequence[Type]]


@dataclass(frozen=True, slots=True)
class Op:
    """A declaration. `arity` is None for a variable number of operands.

    `infer(operand types, attrs, regions)` gives the result types or raises a `CtrlgradError`.
    """

    name: str
    arity: int | None
    infer: TypeRule
    traits: frozenset[Trait] = frozenset()

    def __repr__(self) -> str:
        return f"Op({self.name})"


OPS: dict[str, Op] = {}


def declare(name: str, arity: int | None, infer: TypeRule, *traits: Trait) -> Op:
    """Register an op under a name of its own."""
    assert name not in OPS, f"op {name!r} is declared twice"
    OPS[name] = op = Op(name, arity, infer, frozenset(traits))
    return op
