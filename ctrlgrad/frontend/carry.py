"""The carry of a loop while its body is traced, and the types that the body settles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from ctrlgrad import tree
from ctrlgrad.blocks import holding
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, is_weak, result_dtype, type_of
from ctrlgrad.frontend.checks import check_leaves, same_structure, type_name
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import Leaf, Traced
from ctrlgrad.ir import Builder, Node, StackType, TensorType, Type, Value
from ctrlgrad.ir.attributes import Constant
from ctrlgrad.ir.types import dtype_name
from ctrlgrad.records import record
from ctrlgrad.source import Source

# Growing arrays without an element type, and its inference from a loop's body or another branch.


class Elements:
    """A pytree node that holds elements of one type; `element` is None until the first is written."""

    element: TensorType | None

    def with_element(self, element: TensorType) -> Any:
        """The same empty array with its element known."""
        raise NotImplementedError


def is_elements(x: Any) -> bool:
    return isinstance(x, Elements)


def has_open_elements(pytree: Any) -> bool:
    """Return true if the pytree has an array whose element type is not known yet."""
    return any(is_elements(x) and x.element is None for x in tree.flatten(pytree, is_leaf=is_elements)[0])


def learn_elements(before: Any, after: Any) -> Any:
    """`before` with every open array given the element that it has in `after`; None if none is learned."""
    known, treedef = tree.flatten(before, is_leaf=is_elements)
    given, treedef_after = tree.flatten(after, is_leaf=is_elements)
    if treedef != treedef_after:
        return None
    learned = [
        x.with_element(y.element)
        if is_elements(x) and is_elements(y) and x.element is None and y.element is not None
        else x
        for x, y in zip(known, given, strict=True)
    ]
    return None if all(a is b for a, b in zip(known, learned, strict=True)) else tree.unflatten(treedef, learned)


# Search for the op and the operand that promoted a value to an unwanted dtype.
#
# Promotion records a cast at the source line of the op that needs it. So the trace has the answer: among the nodes
# that a value is computed from in its dtype, the first op that casts an operand from the wanted dtype.


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


# Traces of a loop's body until the types of its carry settle. The cost does not double with each enclosing loop.
#
# The types of a carry (a dtype, the element of an array) are inferred by a trace of the body, which is traced once
# more. In a nest of loops that all learn, each would trace the loops inside it twice, the innermost body 2**depth
# times.
#
# So a body that may teach something is traced as a guess at first: a loop in it that learns stops there, and hands
# out results of the types that it has learned so far without a node that makes them. If the carry around learns from
# it, the guess has served; if not, or if the guess is in error, the body is traced in earnest. A guess calls each
# body once, so the innermost body of a nest is called once more with every level.


class Learner(Protocol):
    """Carry of a loop, as far as its types are known."""

    @property
    def may_learn(self) -> bool:
        """True if tracing the body can still settle a type."""

    def settle(self, result: Any) -> Self | None:
        """Return the carry to trace the body with again, given the body's result; None if the result fits."""


L = TypeVar("L", bound=Learner)


@record(frozen=False)
class _Guess:
    """A trace of a body that only serves to infer types. `has_gaps`: an inner loop was not recorded."""

    has_gaps: bool = False


_GUESS: ContextVar[_Guess | None] = ContextVar("the guess that goes on", default=None)


@record
class Settled(Generic[L]):
    """The settled carry and the last trace of the body; `is_final` is false inside a trace that only infers types."""

    carry: L
    body: Traced
    is_final: bool


def settle(
    carry: L, trace_body: Callable[[L], Traced], following: Callable[[Traced], Any] = lambda body: body.result
) -> Settled[L]:
    """Trace the body until the types of its result equal those of its carry; `following` gives the next carry."""
    around = _GUESS.get()
    while True:
        if carry.may_learn:
            guess = _Guess()
            try:
                with holding(_GUESS, guess):
                    body = trace_body(carry)
                better = carry.settle(following(body))
            except Exception:
                if not guess.has_gaps:
                    raise
            else:
                if better is None and not guess.has_gaps:
                    return Settled(carry, body, is_final=True)
                if around is not None:
                    around.has_gaps = True
                    return Settled(better or carry, body, is_final=False)
                if better is not None:
                    carry = better
                    continue
        body = trace_body(carry)
        better = carry.settle(following(body))
        if better is None:
            return Settled(carry, body, is_final=True)
        carry = better


@record(frozen=False)
class Carry:
    """The carry of a loop while its body is traced: initial leaves, and the types they have settled on.

    Two things may be learned from the body, after which it is traced once more: the dtype of a leaf that
    was given as a Python number, and the element of a `TensorArray` that was made without one.
    """

    operation: str
    init: Any
    source: Source | None
    leaves: list[Any]
    treedef: tree.TreeDef
    dtypes: list[Any]

    @staticmethod
    def of(operation: str, init: Any, source: Source | None) -> Carry:
        leaves, treedef = tree.flatten(init)
        check_leaves(f"{operation}: the initial carry", leaves)
        dtypes = [t.dtype if isinstance(t, TensorType) else None for t in map(type_of, leaves)]
        return Carry(operation, init, source, leaves, treedef, dtypes)

    @property
    def types(self) -> list[Type]:
        return [
            t if isinstance(t, StackType) else TensorType(d, t.shape)
            for t, d in zip(map(type_of, self.leaves), self.dtypes, strict=True)
        ]

    @property
    def hints(self) -> list[str]:
        return tree.names(self.treedef, "c")

    @property
    def weak(self) -> list[bool]:
        """Flag for each leaf: true for a Python number whose dtype the body has not settled."""
        return [
            is_weak(x) and isinstance(t := type_of(x), TensorType) and t.dtype == d
            for x, d in zip(self.leaves, self.dtypes, strict=True)
        ]

    @property
    def may_learn(self) -> bool:
        """True if tracing the body can still settle a dtype or an element of this carry."""
        return any(self.weak) or has_open_elements(self.init)

    def guessed(self, builder: Builder, following: Sequence[Any]) -> Any:
        """Results of a loop whose types alone are needed: values without a producer."""
        results = [Tensor(builder, Value(t)) for t in self.types]
        # An array whose element has been learned has more leaves than before.
        known = following if len(following) == len(results) else self.leaves
        return tree.unflatten(self.treedef, self.rest_weak(results, known))

    def entry(self, hints: Sequence[str] | None = None) -> list[Leaf]:
        """Inputs of a region for the carry."""
        given = zip(self.types, self.weak, self.hints if hints is None else hints, strict=True)
        return [Leaf(t, weak, hint) for t, weak, hint in given]

    def rest_weak(self, results: Sequence[Tensor], following: Sequence[Any]) -> list[Tensor]:
        """The loop's results; a leaf promotes like a Python number if both its start and its next value do."""
        return [
            Tensor(x.builder, x.value, weak and is_weak(y))
            for x, weak, y in zip(results, self.weak, following, strict=True)
        ]

    def values(self) -> list[Any]:
        """The initial leaves in the settled dtypes."""
        return [x if d is None else cast(x, d) for x, d in zip(self.leaves, self.dtypes, strict=True)]

    def settle(self, result: Any) -> Carry | None:
        """Carry for another trace of the body; None if the result fits. An error if it cannot fit."""
        learned = learn_elements(self.init, result)
        if learned is not None:
            return Carry.of(self.operation, learned, self.source)
        labels = ("the carry", "the body's result")
        following, treedef = tree.flatten(result)
        same_structure(self.operation, self.source, labels, (self.leaves, self.treedef), (following, treedef))
        dtypes = list(self.dtypes)
        wrong, promotions = [], []
        given_leaves = zip(self.leaves, self.types, following, tree.paths(self.treedef), strict=True)
        for position, (x, declared, y, path) in enumerate(given_leaves):
            given = type_of(y)
            if isinstance(declared, TensorType) and isinstance(given, TensorType) and declared.dtype != given.dtype:
                if is_weak(x) and result_dtype(x, y) == given.dtype:
                    dtypes[position] = given.dtype
                    continue
                if is_weak(y) and result_dtype(x, y) == declared.dtype:
                    given = TensorType(declared.dtype, given.shape)
            if not declared.accepts(given):
                wrong.append(f"carry{path}: starts as {declared}, the body returns {type_name(y)}")
                found = promotion(y, declared.dtype) if isinstance(declared, TensorType) else None
                if found is not None:
                    wrong.append(f"  {found.text}")
                promotions.append(found)
        if wrong:
            raise TypeMismatchError(
                f"{self.operation}: the body's result differs from the carry",
                source=self.source,
                expected="the carry's dtypes and shapes, path by path",
                got="\n".join(wrong),
                hint=advice(
                    promotions,
                    "cast with .astype, or give the initial value the dtype and shape that the body returns;\n"
                    "where a size changes from iteration to iteration, start from ctrlgrad.unknown_dims(x, axis)",
                ),
            )
        if dtypes == self.dtypes:
            return None
        return Carry(self.operation, self.init, self.source, self.leaves, self.treedef, dtypes)
