"""Search for the op and the operand that promoted a value to an unwanted dtype.

Promotion records a cast at the source line of the op that needs it. So the trace has the answer: among the nodes that a
value is computed from in its dtype, the first op that casts an operand from the wanted dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, Node, TensorType, Value
from ctrlgrad.ir.attributes import Constant
from ctrlgrad.ir.types import dtype_name
from ctrlgrad.records import record


@record
class Promotion:
    """Explanation of a promotion, and advice on how to avoid it."""

    text: str
    hint: str


def promotion(x: Any, wanted: np.dtype) -> Promotion | None:
    """Explain how x, a result of the traced function, lost the wanted dtype; None if no op promoted it."""
    if not isinstance(x, Tensor) or not isinstance(x.type, TensorType) or x.dtype == wanted:
        return None
    makers = _makers(x.builder)
    order = {node: position for position, node in enumerate(x.builder.nodes)}
    reached: set[Value] = set()
    promoting: list[Node] = []
    sources: list[Value] = []
    pending = [x.value]
    while pending:
        value = pending.pop()
        if value in reached:
            continue
        reached.add(value)
        node = makers.get(value)
        same = [] if node is None or node not in order else [v for v in node.operands if _dtype(v) == x.dtype]
        if node is None or node not in order:
            sources.append(value)
        elif _promotes(node, wanted, x.dtype, makers):
            promoting.append(node)
            pending += [v for v in same if not _is_promoted(v, wanted, node, makers)]
        elif same:
            pending += same
        else:
            sources.append(value)
    if promoting:
        return _explained(min(promoting, key=order.__getitem__), wanted, x.dtype, makers)
    first = sources[-1]
    text = f"it is computed from {_name(first, None, makers)}, {first.type}"
    return Promotion(text, _written(first, wanted, makers))


def _makers(builder: Builder | None) -> dict[Value, Node]:
    """The node of each value of a trace and of those around it."""
    found: dict[Value, Node] = {}
    while builder is not None:
        found.update((value, node) for node in builder.nodes for value in node.results)
        builder = builder.parent
    return found


def _dtype(value: Value) -> np.dtype | None:
    return value.type.dtype if isinstance(value.type, TensorType) else None


def _promotes(node: Node, wanted: np.dtype, given: np.dtype, makers: Mapping[Value, Node]) -> bool:
    """Return true if a node's result has the dtype `given` because it combines, or rejects, the dtype `wanted`."""
    if node.op.name == "cast":
        return _dtype(node.operands[0]) == wanted
    promoted = [_is_promoted(v, wanted, node, makers) for v in node.operands if _dtype(v) == given]
    return any(promoted) and (not all(promoted) or _refuses(node, wanted, given))


def _is_promoted(value: Value, wanted: np.dtype, user: Node, makers: Mapping[Value, Node]) -> bool:
    """Return true if a value was cast from `wanted` for this user, perhaps with a change of shape after the cast."""
    node = makers.get(value)
    if node is None or node.source != user.source or len(node.operands) != 1:
        return False
    operand = node.operands[0]
    if node.op.name == "cast":
        return _dtype(operand) == wanted
    given = _dtype(value)
    return given is not None and not _refuses(node, wanted, given) and _is_promoted(operand, wanted, node, makers)


def _explained(node: Node, wanted: np.dtype, given: np.dtype, makers: Mapping[Value, Node]) -> Promotion:
    others = [v for v in node.operands if _dtype(v) == given and not _is_promoted(v, wanted, node, makers)]
    # If the other operand was cast too, to a dtype that holds both, its dtype before the cast is what matters.
    others = [makers[v].operands[0] if _was_cast(v, node, makers) else v for v in others]
    before, after = dtype_name(wanted), dtype_name(given)
    if node.op.name == "cast" or _refuses(node, wanted, given):
        return Promotion(f"{node.op.name} makes {after} of {before}, at {node.source}", _kept(wanted, given))
    names = " and ".join(f"{_name(v, node, makers)}, {v.type}," for v in others)
    text = f"{node.op.name} of {before} with {names} gives {after}, at {node.source}"
    if dtype_kind(wanted) in "biu" and dtype_kind(given) in "fc":
        return Promotion(text, _kept(wanted, given))
    return Promotion(text, _written(others[0], wanted, makers))


def _was_cast(value: Value, user: Node, makers: Mapping[Value, Node]) -> bool:
    node = makers.get(value)
    return node is not None and node.op.name == "cast" and node.source == user.source


def _refuses(node: Node, wanted: np.dtype, given: np.dtype) -> bool:
    """Return true if the type rule of an op never gives a result in the wanted dtype."""
    types = [
        TensorType(wanted, t.shape) if isinstance(t, TensorType) and t.dtype == given else t
        for t in (v.type for v in node.operands)
    ]
    try:
        node.op.infer(types, node.attrs, [region.type for region in node.regions])
    except TypeMismatchError:
        return True
    return False


def _name(value: Value, user: Node | None, makers: Mapping[Value, Node]) -> str:
    """An operand as its user knows it."""
    node = makers.get(value)
    if node is None:
        return value.hint or "an argument"
    if isinstance(node.attrs, Constant):
        array = node.attrs.value
        return f"the number {array}" if array.ndim == 0 else "an array"
    at = "" if user is not None and node.source == user.source else f" at {node.source}"
    return f"the result of {node.op.name}{at}"


def _written(value: Value, wanted: np.dtype, makers: Mapping[Value, Node]) -> str:
    """Advice on how to write an operand so that it does not promote."""
    node = makers.get(value)
    if node is not None and isinstance(node.attrs, Constant) and node.attrs.value.ndim == 0:
        number = node.attrs.value.item()
        return f"a Python number takes the dtype of what it is combined with: {number!r} in place of numpy's scalar"
    what = value.hint if node is None and value.hint else "that operand"
    return f"cast {what}: .astype({wanted.name!r})"


def _kept(wanted: np.dtype, given: np.dtype) -> str:
    if dtype_kind(wanted) in "biu" and dtype_kind(given) in "fc":
        return f"start from {given.name}, or make {wanted.name} of the result: x // y, .astype({wanted.name!r})"
    return f"leave it out, or cast back: .astype({wanted.name!r})"


def advice(found: Sequence[Promotion | None], otherwise: str) -> str:
    """Advice for an error: each promotion's own advice, once, then the general advice."""
    return "\n".join(dict.fromkeys([*(x.hint for x in found if x is not None), otherwise]))
