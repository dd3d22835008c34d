"""What says that two calls share a graph: the tree of the arguments, their types, and values that are no arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.errors import TracingError, TypeMismatchError
from ctrlgrad.frontend.checks import how_to_pass
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import TensorType
from ctrlgrad.source import here


@dataclass(frozen=True)
class TensorSpec:
    """The declared type of an argument: a shape (None for an unknown dimension) and a dtype.

    >>> import ctrlgrad as cg
    >>> cg.TensorSpec((None, 3), "float32").type
    TensorType(dtype=dtype('float32'), shape=(None, 3))
    """

    shape: Sequence[int | None]
    dtype: Any = np.float64

    @property
    def type(self) -> TensorType:
        return TensorType(np.dtype(self.dtype), tuple(self.shape))


@dataclass(frozen=True)
class Static:
    """An argument that is no array: part of the signature. Compared by its value and its type."""

    value: Any
    kind: type


@dataclass(frozen=True)
class Key:
    """What must be equal for two calls to share a graph, up to the sizes of dimensions."""

    treedef: Any
    leaves: tuple[Any, ...]
    engine: str


def static(leaf: Any) -> Static:
    """A leaf of the arguments that is no array. Raises `TypeMismatchError` where it cannot be compared."""
    if isinstance(leaf, Tensor):
        raise TracingError(
            "a traced tensor reached a function outside of its trace",
            source=here(),
            expected="arrays and numbers",
            got=repr(leaf),
            hint="return the value from the traced function, and pass on what that returns",
        )
    try:
        hash(leaf)
    except TypeError as error:
        raise TypeMismatchError(
            "an argument is neither an array nor hashable",
            source=here(),
            expected="pytrees of arrays and numbers; other leaves are part of the signature and must be hashable",
            got=type(leaf).__name__,
            hint=f"{how_to_pass(leaf)};\nor make the object hashable, or use it from outside",
        ) from error
    return Static(leaf, type(leaf))


__all__ = ["Key", "Static", "TensorSpec", "static"]
