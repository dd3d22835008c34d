"""Which axes of the operands play which part in a gather, a scatter or a convolution, by JAX's classes and names."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from ctrlgrad.errors import UserInputError
from ctrlgrad.source import here


class GatherDimensionNumbers(NamedTuple):
    """The axes of a gather; as `jax.lax.GatherDimensionNumbers`.

    Args:
        offset_dims: axes of the result along which the slices lie.
        collapsed_slice_dims: axes of the operand, of slices of size 1, that the result does not have.
        start_index_map: for each component of a start, the axis of the operand that it counts along.
        operand_batching_dims, start_indices_batching_dims: axes in common.

    >>> GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)).operand_batching_dims
    ()
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """The axes of a scatter; as `jax.lax.ScatterDimensionNumbers`.

    Args:
        update_window_dims: axes of the updates along which the windows lie.
        inserted_window_dims: axes of the operand, of windows of size 1, that the updates do not have.
        scatter_dims_to_operand_dims: for each component of a start, the axis of the operand that it counts along.
        operand_batching_dims, scatter_indices_batching_dims: axes in common.

    >>> ScatterDimensionNumbers((), (0,), (0,)).inserted_window_dims
    (0,)
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


class ConvDimensionNumbers(NamedTuple):
    """The axes of a convolution; as `jax.lax.ConvDimensionNumbers`.

    Args:
        lhs_spec: of the input: the batch, the features, then the others.
        rhs_spec: of the kernels: the features out, the features in, then the window's.
        out_spec: of the result, as `lhs_spec`.

    >>> ConvDimensionNumbers((0, 2, 1), (2, 1, 0), (0, 2, 1)).lhs_spec
    (0, 2, 1)
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


class GatherScatterMode(enum.Enum):
    """What becomes of slices that do not lie inside the operand; as `jax.lax.GatherScatterMode`.

    CLIP moves them inside, FILL_OR_DROP reads a fill value and writes nothing, PROMISE_IN_BOUNDS says that there are
    none (reads of them are moved inside and writes, cotangents too, dropped), and ONE_HOT is CLIP.

    >>> GatherScatterMode.from_any("drop") is GatherScatterMode.FILL_OR_DROP
    True
    """

    CLIP = 0
    FILL_OR_DROP = 1
    PROMISE_IN_BOUNDS = 2
    ONE_HOT = 3

    @staticmethod
    def from_any(mode: Any) -> GatherScatterMode:
        """A mode by its name: "clip", "fill", "drop" or "promise_in_bounds"; None is "fill"."""
        # JAX's own modes are known by their text: this library does not import JAX.
        name = "fill" if mode is None else str(mode).removeprefix("GatherScatterMode.").lower()
        name = "fill_or_drop" if name in ("fill", "drop") else name
        found = {m.name.lower(): m for m in GatherScatterMode}.get(name)
        if found is None:
            raise UserInputError(
                "lax: no such mode of a gather or scatter",
                source=here(),
                expected="'clip', 'fill', 'drop', 'promise_in_bounds', None or a GatherScatterMode",
                got=repr(mode),
            )
        return found


__all__ = ["ConvDimensionNumbers", "GatherDimensionNumbers", "GatherScatterMode", "ScatterDimensionNumbers"]
