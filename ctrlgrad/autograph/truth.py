"""What a traced tensor means as a condition, and how it stands in a program of another library."""

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

    def represented(self, x: Tensor) -> Any:
        """The object that stands for a traced tensor in the region that is being traced."""


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


def state_of(get: GetState, set: SetState) -> tuple[GetState, SetState]:
    """The functions that read and write variables, for variables as control flow sees them."""
    if REPRESENTATION.get() is None:
        return get, set

    def write(values: Sequence[Any]) -> None:
        set(tuple(map(represented, values)))

    return lambda: tuple(map(plain, get())), write


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
