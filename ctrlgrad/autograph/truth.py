"""Traced tensors as conditions, and their representation in a program of another library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from ctrlgrad import tree
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import TensorType
from ctrlgrad.source import Source


class Representation(Protocol):
    """Objects of another library that stand for values of the trace, such as PyTorch's tensors."""

    def plain(self, x: Any) -> Any:
        """The value that x stands for, a traced tensor or an array; x itself where it stands for none."""

    def number(self, x: Any) -> Any:
        """As `plain`, for `float(x)` and `int(x)`."""

    def represented(self, x: Any) -> Any:
        """An object that stands for a value in the region that is being traced."""

    def stands(self, x: Any, value: Any) -> bool:
        """Return true if an object still represents a value in the region that is being traced."""


# Set while a program of another library is traced.
REPRESENTATION: ContextVar[Representation | None] = ContextVar("how traced tensors stand in a program", default=None)

GetState = Callable[[], tuple[Any, ...]]
SetState = Callable[[tuple[Any, ...]], None]


def is_traced(x: Any) -> bool:
    return isinstance(x, Tensor)


def plain(x: Any) -> Any:
    """A value as control flow sees it: the leaves of a pytree by what they stand for."""
    by = REPRESENTATION.get()
    if by is None:
        return x
    leaves, treedef = tree.flatten(x)
    found = [by.plain(leaf) for leaf in leaves]
    changed = any(a is not b for a, b in zip(leaves, found, strict=True))
    return tree.unflatten(treedef, found) if changed else x


def number(x: Any) -> Any:
    """A value as `float` and `int` see it."""
    by = REPRESENTATION.get()
    return x if by is None else by.number(x)


def represented(x: Any) -> Any:
    """A value as the program has it; numbers of the trace stay what they are."""
    by = REPRESENTATION.get()
    if by is None:
        return x
    leaves, treedef = tree.flatten(x)
    if not any(map(is_traced, leaves)):
        return x
    found = [by.represented(leaf) if isinstance(leaf, Tensor) and not leaf.weak else leaf for leaf in leaves]
    return tree.unflatten(treedef, found)


# In the place of an element `x[i]`, where x itself is a variable too: assigned to an element it changes nothing.
SAME: Any = type("Same", (), {"__repr__": lambda self: "the element as it is"})()


def state_of(get: GetState, set: SetState, names: Sequence[str]) -> tuple[GetState, SetState]:
    """The functions that read and write variables, for variables as control flow sees them."""
    by = REPRESENTATION.get()
    if by is None:
        return get, set

    # By variable and place in it: the objects that were read, and the values that they stood for.
    known: dict[tuple[int, int], list[tuple[Any, Any]]] = {}

    order = list(names)
    whole = {i: order.index(b) for i, name in enumerate(order) if (b := name.split("[")[0]) in order and b != name}

    def read() -> tuple[Any, ...]:
        found, given = [], get()
        for position, x in enumerate(given):
            if position in whole and by.plain(held := given[whole[position]]) is not held:
                found.append(SAME)
                continue
            leaves, treedef = tree.flatten(x)
            values = list(map(by.plain, leaves))
            for i, pair in enumerate(zip(leaves, values, strict=True)):
                if pair[0] is not pair[1]:
                    known.setdefault((position, i), []).append(pair)
            found.append(tree.unflatten(treedef, values) if known else x)
        return tuple(found)

    def stand(position: int, i: int, value: Any) -> Any:
        for x, was in known.get((position, i), ()):
            is_same = (
                value.value is was.value if isinstance(value, Tensor) and isinstance(was, Tensor) else value is was
            )
            if is_same:
                return x if by.stands(x, value) else by.represented(value)
        return by.represented(value) if isinstance(value, Tensor) and not value.weak else value

    def write(values: Sequence[Any]) -> None:
        written = []
        for position, x in enumerate(values):
            leaves, treedef = tree.flatten(x)
            stood = [stand(position, i, leaf) for i, leaf in enumerate(leaves)]
            changed = any(a is not b for a, b in zip(leaves, stood, strict=True))
            written.append(tree.unflatten(treedef, stood) if changed else x)
        set(tuple(written))

    return read, write


def truth(x: Tensor, construct: str, source: Source | None) -> Tensor:
    """The truth of a tensor with one element, as a bool scalar: for a number, whether it is not zero."""
    t = x.type
    if not isinstance(t, TensorType) or any(d != 1 for d in t.shape):
        raise TypeMismatchError(
            f"autograph: the condition of {construct} is not a scalar",
            source=source,
            expected="bool[], or one number",
            got=str(t),
            hint="reduce it with numpy.any or numpy.all; choose elementwise with numpy.where, numpy.logical_and,\n"
            "numpy.logical_or and numpy.logical_not",
        )
    scalar: Any = FUNCTIONS["reshape"](x, ()) if t.rank else x
    return scalar if t.dtype == bool else FUNCTIONS["not_equal"](scalar, 0)  # type: ignore[no-any-return]
