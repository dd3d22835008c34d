"""What an op is: a name, an arity, a type rule and traits. Nothing else.

What an op means to a stage (how it runs, its derivatives, its batching, its JAX form) stands in that
stage's own table, keyed by the op's name. `OPS` is the registry; a test walks it and fails where a table
lacks an entry.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ctrlgrad.errors import VerificationError
from ctrlgrad.ir.attributes import NO_ATTRS, Attributes, Given
from ctrlgrad.ir.types import RegionType, Type


class Trait(enum.Enum):
    """A property that passes rely on."""

    ELEMENTWISE = "the result at a position depends on the operands at that position alone, after broadcasting"
    TOTAL = "never fails at run time, so it may move ahead of a point that might not be reached"
    TOTAL_IF_STATIC = "never fails at run time where every operand's shape is known when the graph is built"
    CHEAP = "costs no more than moving its operands, so recomputing it may beat saving it"
    EFFECT = "does something besides computing its results: it is neither dropped, merged nor moved"
    SHAPE_OF_FIRST = "the result has the shape of the first operand"
    VIEW = "the result is a view of the first operand: no data is touched"

    # Each is one object, asked for at every node; Enum's own hash is that of its name, and Python code.
    __hash__ = object.__hash__


TypeRule = Callable[[Sequence[Type], Any, Sequence[RegionType]], Sequence[Type]]


@dataclass(frozen=True, slots=True)
class Op:
    """A declaration. `arity` is None for a variable number of operands.

    `infer(operand types, attributes, region types)` gives the result types or raises a `CtrlgradError`.
    """

    name: str
    arity: int | None
    infer: TypeRule
    traits: frozenset[Trait] = frozenset()
    family: type[Attributes] = Attributes

    def attributes(self, given: Given) -> Attributes:
        """The attributes of a node, of names and values; `NO_ATTRS` gives none."""
        if given is NO_ATTRS and self.family is not Attributes:
            given = {}
        if isinstance(given, Attributes):
            return given
        try:
            return self.family(**given)
        except TypeError as error:
            names = ", ".join(f.name for f in fields(self.family)) or "no attributes"
            raise VerificationError(f"{self.name}: {error}", expected=names, got=", ".join(given) or "none") from None

    def __repr__(self) -> str:
        return f"Op({self.name})"


OPS: dict[str, Op] = {}


def declare(
    name: str, arity: int | None, infer: TypeRule, *traits: Trait, attributes: type[Attributes] = Attributes
) -> Op:
    """Register an op under a name of its own."""
    assert name not in OPS, f"op {name!r} is declared twice"
    OPS[name] = op = Op(name, arity, infer, frozenset(traits), attributes)
    return op
