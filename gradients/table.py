"""The tables of derivative rules, and how a rule is written.

Every rule is given terms (`ctrlgrad.ops.term`). A primal that a rule does not touch is not saved, so rules take
what they need and nothing else.

- `elementwise(op, *maps)`: one map per operand, `map(t, out, *operands) -> t'`: the linear map from a
  tangent of that operand to the tangent of the result, written without broadcasting. Being diagonal it is its
  own transpose, so both modes use it.
- `linear(op, transpose)`: the op is linear in its first operand and its tangent is the op itself;
  `transpose(ct, x, *rest, **attrs)` is the transposed map.
- `jointly_linear(op, positions)`: the same for several operands together (None: all of them); the reverse rule is
  given beside it.
- `forward(op, push)`: `push(tangents, out, *operands, **attrs) -> tangent`, tangents with None for zero.
- `reverse(op, *pullbacks)`: one pullback per operand, `pullback(ct, out, *operands, **attrs) -> ct'`.
- `reverse_variadic` and `reverse_joint` for ops with any number of operands, or one computation for all of them.
- `reverse_into(op, accumulate)`: for ops that read a part of their first operand:
  `accumulate(acc, ct, out, *operands, **attrs) -> acc'` adds to the operand's cotangent in place of making one
  that is zero almost everywhere.

None in place of a rule: the result does not depend differentiably on that operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ctrlgrad.errors import DifferentiationError
from ctrlgrad.ir import Node
from ctrlgrad.ir.attributes import Hook
from ctrlgrad.ops.term import Term
from ctrlgrad.records import record

Map = Callable[..., Term]


@record
class ReverseRule:
    """Reverse rule of an op. `pullbacks` is one rule per operand, or one for all (`variadic`)."""

    pullbacks: tuple[Map | None, ...] = ()
    # For ops with any number of operands: `variadic(position, ct, out, *operands, **attrs)`.
    variadic: Callable[..., Term | None] | None = None
    # For ops whose operands' cotangents come from one computation: `joint(ct, out, *operands, **attrs)`.
    joint: Callable[..., Sequence[Term | None]] | None = None
    accumulate: Map | None = None
    # Elementwise ops: the mechanism sums the cotangent to the operand's shape afterwards.
    broadcasts: bool = False

    def reaches(self, node: Node, position: int) -> bool:
        """True if a cotangent can flow to that operand."""
        if position == 0 and self.accumulate is not None:
            return True
        if self.variadic is not None or self.joint is not None:
            return True
        return position < len(self.pullbacks) and self.pullbacks[position] is not None


REVERSE: dict[str, ReverseRule] = {}
ELEMENTWISE: dict[str, tuple[Map | None, ...]] = {}
# The operands that an op is linear in, together; None for all of them.
LINEAR: dict[str, tuple[int, ...] | None] = {}
FORWARD: dict[str, Callable[..., Term]] = {}
# Ops whose results carry no derivative, in one list, so that a forgotten rule is not mistaken for one.
NOT_DIFFERENTIABLE: set[str] = set()
# Ops whose derivative is not known, though the result depends on the operands, with the advice to the user.
REFUSED: dict[str, str] = {}


def elementwise(op: str, *maps: Map | None) -> None:
    ELEMENTWISE[op] = maps
    REVERSE[op] = ReverseRule(tuple(map(_without_attrs, maps)), broadcasts=True)


def _without_attrs(rule: Map | None) -> Map | None:
    return None if rule is None else lambda ct, out, *operands, **attrs: rule(ct, out, *operands)


def linear(op: str, transposed: Map) -> None:
    LINEAR[op] = (0,)
    REVERSE[op] = ReverseRule((lambda ct, out, x, *others, **attrs: transposed(ct, x, *others, **attrs),))


def jointly_linear(op: str, positions: tuple[int, ...] | None) -> None:
    LINEAR[op] = positions


def forward(op: str, push: Callable[..., Term]) -> None:
    FORWARD[op] = push


def reverse(op: str, *pullbacks: Map | None) -> None:
    REVERSE[op] = ReverseRule(pullbacks)


def reverse_into(op: str, accumulate: Map, *pullbacks: Map | None) -> None:
    REVERSE[op] = ReverseRule((None, *pullbacks), accumulate=accumulate)


def reverse_variadic(op: str, pullback: Callable[..., Term | None]) -> None:
    REVERSE[op] = ReverseRule(variadic=pullback)


def reverse_joint(op: str, pullback: Callable[..., Sequence[Term | None]]) -> None:
    REVERSE[op] = ReverseRule(joint=pullback)


def not_differentiable(names: str | Sequence[str]) -> None:
    NOT_DIFFERENTIABLE.update(names.split() if isinstance(names, str) else names)


def refuse(op: str, hint: str) -> None:
    REFUSED[op] = hint


def refusal(node: Node, rule: str) -> DifferentiationError:
    """The error of an op that has no derivative; `rule` is the kind of rule that was looked for."""
    name = node.op.name
    known = name in NOT_DIFFERENTIABLE or name in REFUSED
    hook = Hook.find(node)
    hint = "use ctrlgrad.stop_gradient on its operand if the derivative there is meant to be zero"
    return DifferentiationError(
        f"{hook.label if hook else name} has no derivative" if known else f"{name} has no {rule} rule",
        source=node.source,
        hint=REFUSED.get(name, hint),
    )


def operand_reached(node: Node, position: int) -> bool:
    """True if a cotangent of the node's result can flow to that operand, by its rule and its type."""
    if not node.operands[position].type.is_differentiable:
        return False
    rule = REVERSE.get(node.op.name)
    return node.op.name in REFUSED or (rule is not None and rule.reaches(node, position))
