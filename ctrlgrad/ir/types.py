"""Types of the values in a graph.

A `TensorType` is a dtype and a shape; a dimension that is not known until run time is `None`. A `StackType`
is a run-time list of tensors of one element type: the stacks of the gradient transform and the user's
`TensorArray` are both of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, dtype_kind
from ctrlgrad.records import record

Dim = int | None
Shape = tuple[Dim, ...]

_KNOWN_OR_NOT = frozenset([int, type(None)])
_SHORT = {"bool": "bool", "int": "i", "uint": "u", "float": "f", "complex": "c"}


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """`f32`, `bf16`, `i64`, `bool`, `c128`: the short name used in printed graphs."""
    if dtype == BFLOAT16:
        return "bf16"
    for kind, short in _SHORT.items():
        if dtype.name.startswith(kind):
            return short if short == "bool" else short + dtype.name[len(kind) :]
    return dtype.name


@record
class TensorType:
    """An array of one dtype; `shape` holds an int per known dimension and None per unknown one."""

    dtype: np.dtype
    shape: Shape = ()

    def __post_init__(self) -> None:
        # Most types are made from the dtypes of existing types: a valid one is not made anew.
        if not isinstance(self.dtype, np.dtype):
            object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if type(self.shape) is not tuple or not _KNOWN_OR_NOT.issuperset(map(type, self.shape)):
            object.__setattr__(self, "shape", tuple(None if d is None else int(d) for d in self.shape))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True if every dimension is known."""
        return None not in self.shape

    @property
    def is_differentiable(self) -> bool:
        """True if a value of this type can have a cotangent other than zero."""
        return dtype_kind(self.dtype) in "fc"

    def accepts(self, other: Type) -> bool:
        """True if a value of type `other` may be used where this type is declared."""
        return (
            isinstance(other, TensorType)
            and self.dtype == other.dtype
            and len(self.shape) == len(other.shape)
            and all(mine is None or mine == its for mine, its in zip(self.shape, other.shape, strict=True))
        )

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


@record
class StackType:
    """A list of tensors of type `element`, grown and shrunk at its end or indexed."""

    element: TensorType

    @property
    def is_differentiable(self) -> bool:
        return self.element.is_differentiable

    def accepts(self, other: Type) -> bool:
        return isinstance(other, StackType) and self.element.accepts(other.element)

    def __str__(self) -> str:
        return f"stack<{self.element}>"


Type = TensorType | StackType


@record
class RegionType:
    """Type of a region, as the type rule of an op sees it: the types of its inputs and outputs."""

    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]


BOOL = TensorType(np.dtype(bool))
INDEX = TensorType(np.dtype(np.int64))


def join(a: Type, b: Type) -> Type | None:
    """The smallest type that accepts both (dimensions that differ become unknown), or None if there is none."""
    if isinstance(a, StackType) and isinstance(b, StackType):
        element = join(a.element, b.element)
        return StackType(element) if isinstance(element, TensorType) else None
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype or a.rank != b.rank:
        return None
    return TensorType(a.dtype, tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)))


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape | None:
    """NumPy's broadcasting on shapes with unknown dimensions; None when they do not fit.

    An unknown dimension beside a known one other than 1 becomes the known one; beside 1 or another unknown
    one it stays unknown.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = []
    for axis in range(rank):
        dims = {shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0}
        known = {d for d in dims if d is not None and d != 1}
        if len(known) > 1:
            return None
        result.append(known.pop() if known else None if None in dims else 1)
    return tuple(result)
