"""Declaration of ops: a name, an arity, a type rule, traits, and the use of each operand. Nothing else.

The meaning of an op for a stage (its kernels, derivatives, batching, JAX form) stands in that stage's own table, keyed
by the op's name. `OPS` is the registry; a test walks it and fails if a table lacks an entry.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from ctrlgrad.errors import CtrlgradError, VerificationError
from ctrlgrad.ir.attributes import NO_ATTRS, Attributes, Given
from ctrlgrad.ir.types import RegionType, Type
from ctrlgrad.records import record


class Trait(enum.Enum):
    """A property that passes rely on."""

    ELEMENTWISE = "the result at a position depends on the operands at that position alone, after broadcasting"
    TOTAL = "never fails at run time, so it may move ahead of a point that might not be reached"
    TOTAL_IF_STATIC = "never fails at run time where every operand's shape is known when the graph is built"
    CHEAP = "costs no more than moving its operands, so recomputing it may beat saving it"
    MOVES = "moves elements of its operands and computes nothing, so it may be done again where they are at hand"
    EFFECT = "does something besides computing its results: it is neither dropped, merged nor moved"
    SHAPE_OF_FIRST = "the result has the shape of the first operand"
    MAPPED = "means something in a function that is being mapped alone: batching puts other ops in its place"
    VIEW = "the result is a view of the first operand: no data is touched"
    STACK = "takes a stack or gives one"
    SINGULAR = "of finite operands, its result or its derivative may be infinite or NaN"
    SELECTS = "gives some elements of its operands; the elements left out have zero cotangents"
    PRODUCT = "linear in each of its two operands, so a partial derivative is made of the other one"
    WHOLE = "uses every element of an operand that it reads or changes"
    BOUNDED = "its partial derivatives are bounded, whatever its operands are"

    # Each is one object, asked for at every node; Enum's own hash is that of its name, and Python code.
    __hash__ = object.__hash__


class Use(enum.Enum):
    """Use that an op makes of one of its operands.

    A stack, or an array that is updated in part, has versions: an op that changes it takes one and gives the next. A
    node that owns regions (`ir.control`) passes its operands on into them; their uses are those in the regions.
    """

    VALUE = "computes with it"
    MEASURE = "asks for its sizes or its length, for none of its elements"
    READ = "looks at elements of it"
    PASS = "gives it back as the first result, as it is"
    UPDATE = "gives it back as the first result, changed"
    PUSH = "gives it back as the first result, with one more row at its end"
    POP = "gives it back as the first result, without the row at its end"
    INDEX = "is told by it where to read or to change another operand"
    SIZE = "is told by it how large something is"

    __hash__ = object.__hash__

    @property
    def changes(self) -> bool:
        """True if the first result is the operand's next version, made in place if this version has no other user."""
        return self in _CHANGES

    @property
    def goes_on(self) -> bool:
        """True if the first result is the operand, changed or not."""
        return self is Use.PASS or self.changes

    @property
    def observes(self) -> bool:
        """True if the operand stays as it is, and no result holds its elements."""
        return self is Use.READ or self is Use.MEASURE


_CHANGES = (Use.UPDATE, Use.PUSH, Use.POP)
TypeRule = Callable[[Sequence[Type], Any, Sequence[RegionType]], Sequence[Type]]


@record
class Op:
    """A declaration. `arity` is None for a variable number of operands.

    `uses` belong to the first operands, `further` to all remaining ones; only the first operand may be changed.
    `infer(operand types, attributes, region types)` gives the result types or raises a `CtrlgradError`.
    """

    name: str
    arity: int | None
    infer: TypeRule
    traits: frozenset[Trait] = frozenset()
    family: type[Attributes] = Attributes
    uses: tuple[Use, ...] = ()
    further: Use = Use.VALUE

    def use(self, position: int) -> Use:
        """Use of the operand at a position."""
        return self.uses[position] if position < len(self.uses) else self.further

    def has_use(self, *uses: Use) -> bool:
        """True if the op may use an operand in one of these ways."""
        return self.further in uses or any(use in uses for use in self.uses)

    @property
    def updates(self) -> bool:
        """True if the first result is the first operand, changed."""
        return self.use(0).changes

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
    name: str,
    arity: int | None,
    infer: TypeRule,
    *traits: Trait,
    attributes: type[Attributes] = Attributes,
    uses: tuple[Use, ...] = (),
    further: Use = Use.VALUE,
) -> Op:
    """Register an op under a name of its own.

    An error of its type rule has no place: the caller of the rule knows the node's line.
    """
    assert name not in OPS, f"op {name!r} is declared twice"

    def without_place(types: Sequence[Type], attrs: Any, regions: Sequence[RegionType]) -> Sequence[Type]:
        try:
            return infer(types, attrs, regions)
        except CtrlgradError as error:
            error.source = None
            raise

    OPS[name] = op = Op(name, arity, without_place, frozenset(traits), attributes, uses, further)
    return op
