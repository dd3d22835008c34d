"""The carry of a loop while its body is traced, and what is learned of it from the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, is_weak, result_dtype, type_of
from ctrlgrad.frontend.checks import check_leaves, same_structure, type_name
from ctrlgrad.frontend.elements import has_open_elements, learn_elements
from ctrlgrad.frontend.promotions import advice, promotion
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import Leaf
from ctrlgrad.ir import Builder, StackType, TensorType, Type, Value
from ctrlgrad.records import record
from ctrlgrad.source import Source


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
        """Flag for each leaf: true if it stands for a Python number whose dtype the body has not settled."""
        return [
            is_weak(x) and isinstance(t := type_of(x), TensorType) and t.dtype == d
            for x, d in zip(self.leaves, self.dtypes, strict=True)
        ]

    @property
    def may_learn(self) -> bool:
        """True if tracing the body can still settle a dtype or an element of this carry."""
        return any(self.weak) or has_open_elements(self.init)

    def guessed(self, builder: Builder, following: Sequence[Any]) -> Any:
        """The results of a loop of which no more is wanted than their types: values that no node makes."""
        results = [Tensor(builder, Value(t)) for t in self.types]
        # An array whose element has been learned has more leaves than before.
        known = following if len(following) == len(results) else self.leaves
        return tree.unflatten(self.treedef, self.rest_weak(results, known))

    def entry(self, hints: Sequence[str] | None = None) -> list[Leaf]:
        """The inputs that stand for the carry in a region."""
        given = zip(self.types, self.weak, self.hints if hints is None else hints, strict=True)
        return [Leaf(t, weak, hint) for t, weak, hint in given]

    def rest_weak(self, results: Sequence[Tensor], following: Sequence[Any]) -> list[Tensor]:
        """The loop's results; one stays a Python number where the carry starts as one and is followed by one."""
        return [
            Tensor(x.builder, x.value, weak and is_weak(y))
            for x, weak, y in zip(results, self.weak, following, strict=True)
        ]

    def values(self) -> list[Any]:
        """The initial leaves in the settled dtypes."""
        return [x if d is None else cast(x, d) for x, d in zip(self.leaves, self.dtypes, strict=True)]

    def settle(self, result: Any) -> Carry | None:
        """A carry to trace the body with again, or None when what it returns fits; an error when it cannot."""
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
