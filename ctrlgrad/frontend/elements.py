"""Arrays of elements whose type is not known yet, and what a loop's body or another branch teaches of it."""

from __future__ import annotations

from typing import Any

from ctrlgrad import tree
from ctrlgrad.ir import TensorType


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
