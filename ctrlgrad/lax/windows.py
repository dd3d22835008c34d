"""Windows of an operand at starts that may be traced: `gather` reads them, the `scatter`s write them.

A start is a row of the last axis of an array of starts. An axis that starts count along, or that operand and starts
have in common, is indexed by an array over (the starts, the axes of the window); of all others a window has a plain
slice. So a window of whole rows moves rows, and the operand itself is never transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.lax.numbers import GatherScatterMode
from ctrlgrad.source import here


def module_of(*arrays: Any) -> Any:
    """NumPy where all is known while tracing."""
    return np if all(isinstance(a, np.ndarray | np.generic | int) for a in arrays) else cnp


@dataclass(frozen=True)
class Windows:
    """Windows of sizes `sizes` of an operand of shape `shape`."""

    shape: tuple[Any, ...]
    sizes: tuple[Any, ...]
    # Axes of the operand that a window has in the result.
    kept: tuple[int, ...]
    # The axes indexed by arrays, each with its starts: arrays of the shape `batch`, moved inside the operand.
    starts: dict[int, Any]
    batch: tuple[Any, ...]
    # Which windows lie inside: of the shape `batch`; None where all do, or are moved there.
    inside: Any
    # Whether that was promised of all.
    promised: bool

    def at(self, starts: dict[int, Any]) -> tuple[Any, ...]:
        """The key of the windows at these starts."""
        axes = [d for d in starts if d in self.kept]
        key: list[Any] = []
        for d, size in enumerate(self.sizes):
            if d not in starts:
                key.append(np.s_[:] if isinstance(size, int) and self.shape[d] == size else np.s_[:size])
                continue
            start = starts[d]
            if axes:
                start = module_of(start).reshape(start, (*start.shape, *(1 for _ in axes)))
            if d in self.kept:
                start = start + np.arange(size).reshape([size if a == d else 1 for a in axes])
            key.append(start)
        return tuple(key)

    def order(self, batch: int) -> list[Any]:
        """What the axes of `operand[key]` are: "b0", "b1", ... of the starts, and axes of the operand."""
        joined: list[Any] = [f"b{i}" for i in range(batch)] + [d for d in self.starts if d in self.kept]
        plain = [d for d in range(len(self.sizes)) if d not in self.starts]
        indexed = list(self.starts)
        if not indexed or not joined:
            return plain
        if indexed[-1] - indexed[0] + 1 == len(indexed):
            before = [d for d in plain if d < indexed[0]]
            return [*before, *joined, *plain[len(before) :]]
        return [*joined, *plain]


def find_windows(
    operation: str,
    shape: tuple[Any, ...],
    starts: Any,
    sizes: Sequence[Any],
    components: Sequence[int],
    common: Sequence[tuple[int, int]],
    dropped: Sequence[int],
    mode: Any,
) -> Windows:
    """The windows of an operand: `common` pairs its axes with those of the starts, `dropped` are of size 1."""
    mode = GatherScatterMode.from_any(mode)
    promised = mode is GatherScatterMode.PROMISE_IN_BOUNDS
    checked = promised or mode is GatherScatterMode.FILL_OR_DROP
    if dtype_kind(starts.dtype) not in "iu":
        raise TypeMismatchError(
            f"lax.{operation}: the starts are not integers", source=here(), expected="an integer dtype", got=str(starts)
        )
    if starts.ndim == 0 or starts.shape[-1] != len(components):
        raise ShapeError(
            f"lax.{operation}: a start has not one component for each axis that it counts along",
            source=here(),
            expected=f"starts of shape [..., {len(components)}]",
            got=str(starts.shape),
        )
    batch = tuple(starts.shape[:-1])
    xp = module_of(starts, *shape)
    starts = starts.astype(np.int64)
    found: dict[int, Any] = {}
    inside: Any = None
    for k, d in enumerate(components):
        start, last = starts[..., k], shape[d] - sizes[d]
        if checked:
            fits = (start >= 0) & (start <= last)
            inside = fits if inside is None else inside & fits
        if d in dropped or not isinstance(shape[d], int) or shape[d] != sizes[d]:
            found[d] = xp.clip(start, 0, last)
    for d, axis in common:
        along = np.arange(shape[d]).reshape([shape[d] if a == axis else 1 for a in range(len(batch))])
        found[d] = np.broadcast_to(along, batch)
    if isinstance(inside, np.ndarray | np.generic) and inside.all():
        inside = None
    if batch and shape and not found:
        found[0] = np.zeros(batch, np.int64)
    gone = {*dropped, *(d for d, _ in common)}
    kept = tuple(d for d in range(len(shape)) if d not in gone)
    return Windows(tuple(shape), tuple(sizes), kept, dict(sorted(found.items())), batch, inside, promised)


def turned(x: Any, permutation: list[int]) -> Any:
    """The axes in another order."""
    return x if permutation == sorted(permutation) else cnp.transpose(x, permutation)


__all__ = ["Windows", "find_windows", "module_of", "turned"]
