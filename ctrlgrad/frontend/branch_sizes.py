"""Branches return arrays of the same sizes: those that only a run tells are compared in the branch that is taken.

Only sizes that follow from the arguments' alone are: the size of what was cut out, joined or collected by data is known
in its branch alone, and stays unknown in the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.frontend.apply import apply, tensor_type, type_of
from ctrlgrad.frontend.array.dims import ensured
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import Traced
from ctrlgrad.ir import Builder, Node, TensorType, Value
from ctrlgrad.stacks.sizes import Size, origin

BRANCHES_DIFFER = "the branches' results differ"
AGREE = "cast with .astype, or reshape so that all branches agree"


def of_equal_sizes(operation: str, regions: Sequence[Traced]) -> list[list[Any]]:
    """The results of each branch, which refuse to be of other sizes than those of the other branches."""
    found = [list(region.leaves) for region in regions]
    producers: list[dict[Value, Node]] | None = None
    for i, leaves in enumerate(zip(*found, strict=True)):
        for axis in _unknown(leaves):
            if producers is None:
                producers = [_producers(region.builder) for region in regions]
            sizes = [_size(known, x, axis) for known, x in zip(producers, leaves, strict=True)]
            for its, own, region in zip(found, sizes, regions, strict=True):
                for size in dict.fromkeys(sizes):
                    if size != own and size is not None and own is not None:
                        with region.recording() as builder:
                            its[i] = ensured(
                                its[i], {axis: _number(builder, size)}, f"{operation}: {BRANCHES_DIFFER}", AGREE
                            )
    return found


def _unknown(leaves: Sequence[Any]) -> list[int]:
    """The axes along which the size of one of the results is unknown."""
    types = [type_of(x) for x in leaves]
    if not all(isinstance(t, TensorType) for t in types):
        return []
    return [axis for axis, ds in enumerate(zip(*(tensor_type(x).shape for x in leaves), strict=True)) if None in ds]


def _producers(builder: Builder | None) -> dict[Value, Node]:
    """The nodes of a graph that is being built, and of those around it."""
    found: dict[Value, Node] = {}
    while builder is not None:
        found.update((v, node) for node in builder.nodes for v in node.results)
        builder = builder.parent
    return found


def _size(producers: Mapping[Value, Node], x: Any, axis: int) -> int | Size | None:
    """The size of a result: a number, that of an argument, or None for one that is computed."""
    known = tensor_type(x).shape[axis]
    if known is None and isinstance(x, Tensor):
        return _followed(producers, Size(x.value, axis))
    # Also of a NumPy array whose size only counts as unknown: what `unknown_dims` gives outside of a trace.
    return int(np.shape(x)[axis])


def _followed(producers: Mapping[Value, Node], size: Size) -> int | Size | None:
    size = origin(producers, size)
    known = size.value.tensor.shape[size.axis]
    return known if known is not None else None if size.value in producers else size


def _number(builder: Builder, size: int | Size) -> Any:
    return size if isinstance(size, int) else apply("dim", [Tensor(builder, size.value)], {"axis": size.axis})
