"""Parts of views by a key in which there are indices from the card: which element is where, but for what they add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.prepared.model import Affine, CannotPrepare, ChosenAxis, View
from ctrlgrad.engines.cuda.prepared.views import broadcast, part, viewed
from ctrlgrad.ir.attributes import DYNAMIC


@dataclass(frozen=True)
class Chosen:
    """The part by a key, and each index in its shape.

    `part` lies where the part by indices that are all zero does: along the axes of the indices it does not move.
    """

    part: View
    axes: tuple[ChosenAxis, ...]
    indices: tuple[View, ...]
    # What indices of the host must be below.
    bounds: tuple[tuple[Affine, int], ...]


def chosen(view: View, key: Sequence[Any], indices: Sequence[Any]) -> Chosen:
    """What a key names whose indices, of the host or of the card, are these in their order.

    Raises `CannotPrepare`, also where nothing is named.
    """
    rest = iter(indices)
    named = [next(rest) if item is DYNAMIC else item for item in key]
    named += [slice(None)] * (len(view.shape) - sum(item is not None for item in named))
    arrays = [item for item in named if isinstance(item, View)]
    if any(isinstance(x, slice) and DYNAMIC in (x.start, x.stop, x.step) for x in named):
        raise CannotPrepare("a slice's bounds are values")
    # The part by all that the card does not choose, and by zeros along the axes where it does.
    basic = [slice(None) if isinstance(x, View) else x if _is_static(x) else DYNAMIC for x in named]
    whole, bounds = part(view, basic, [x for x in named if not _is_static(x) and not isinstance(x, View)])
    kept = [x for x in named if x is None or isinstance(x, slice | View)]
    axes = tuple(
        ChosenAxis(size, stride)
        for x, size, stride in zip(kept, whole.shape, whole.strides, strict=True)
        if isinstance(x, View)
    )
    zeros = tuple(0 if isinstance(x, View) else slice(None) for x in kept)
    others = viewed(whole, lambda x: np.asarray(x[(*zeros, ...)]))
    # As NumPy has it: numbers are index arrays beside others, and the axes of those that stand together stay there.
    advanced = [n for n, x in enumerate(named) if x is not None and not isinstance(x, slice)]
    first = advanced[0] if advanced[-1] - advanced[0] + 1 == len(advanced) else 0
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    result = (*others.shape[:first], *shape, *others.shape[first:])
    if 0 in result:
        raise CannotPrepare("an array without elements")
    new = tuple(range(first, first + len(shape)))
    behind = len(others.shape) - first
    indices = [viewed(x, lambda a: np.expand_dims(a, tuple(range(a.ndim, a.ndim + behind)))) for x in arrays]
    place = broadcast(viewed(others, lambda x: np.expand_dims(x, new)), result)
    return Chosen(place, axes, tuple(broadcast(x, result) for x in indices), tuple(bounds))


def _is_static(item: object) -> bool:
    return item is None or isinstance(item, slice | int)


__all__ = ["Chosen", "chosen"]
