"""Adding to, and writing at, positions that may repeat, in the order in which they are listed.

Atomic additions of the hardware come in any order, and so do writes to one place: a chunk that is run again would have
other bits. Here the positions are sorted, equal ones keeping their order, and one thread does all that happens to one
element. The bits are those of `numpy.add.at`, and nothing but the rows that are named is touched.

The array is seen as rows: the axes that index arrays choose from go to the front, and make up a row's number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.library import ArrayLibrary, Rows

# What happens for element `i` of `count` rows of `width`, in CUDA C++: `places` are numbers of rows, equal ones next to
# each other, and `order` says which row of `value` each is for. The first thread of a row adds, the last one writes.
ADD = """\
const long long j = i / width, c = i % width;
if (j == 0 || places[j] != places[j - 1]) {
    T sum = x[places[j] * width + c];
    for (long long k = j; k < count && places[k] == places[j]; k++) sum = T(sum + value[order[k] * width + c]);
    x[places[j] * width + c] = sum;
}"""
WRITE = """\
const long long j = i / width, c = i % width;
if (j == count - 1 || places[j] != places[j + 1]) x[places[j] * width + c] = value[order[j] * width + c];"""


def rows_of(library: ArrayLibrary, x: Any, key: Sequence[Any], value: Any) -> Rows | None:
    """What a key of numbers, slices, Nones and index arrays names; None where that is nothing.

    One array at least is in the key, and `value` broadcasts to the shape of `x[key]`.
    """
    xp = library.xp
    key = [*key, *(slice(None),) * (x.ndim - sum(item is not None for item in key))]
    part = x[(*(slice(None) if library.is_array(item) else item for item in key), ...)]
    kept = [item for item in key if not isinstance(item, int)]
    chosen = [axis for axis, item in enumerate(kept) if library.is_array(item)]
    others = [axis for axis in range(part.ndim) if axis not in chosen]
    whole = xp.transpose(part, (*chosen, *others))
    arrays = [item for item in key if library.is_array(item)]
    shape = np.broadcast_shapes(*(tuple(a.shape) for a in arrays))
    sizes, rest = whole.shape[: len(chosen)], whole.shape[len(chosen) :]
    count, width = math.prod(shape), math.prod(rest)
    if not count * width:
        return None
    number: Any = None
    for array, size in zip(arrays, sizes, strict=True):
        # Negative indices count from the end.
        index = array.astype(np.int64) % np.int64(size)
        number = index if number is None else number * np.int64(size) + index
    places = number.reshape(-1)
    order = xp.argsort(places, kind="stable")
    return Rows(whole, len(sizes), places[order], order, _rows_of_value(library, value, key, shape, rest, count))


def _rows_of_value(
    library: ArrayLibrary, value: Any, key: Sequence[Any], shape: tuple[int, ...], rest: tuple[int, ...], count: int
) -> Any:
    """`value` `[count, width]`: what `x[key]` would have the shape of, the axes of the index arrays first."""
    xp = library.xp
    if not library.is_array(value):
        value = library.upload(np.asarray(value))
    # As NumPy has it: numbers are index arrays beside others, and the axes of those that stand together stay there.
    advanced = [n for n, item in enumerate(key) if isinstance(item, int) or library.is_array(item)]
    together = advanced[-1] - advanced[0] + 1 == len(advanced)
    first = advanced[0] if together else 0
    value = xp.broadcast_to(value, (*rest[:first], *shape, *rest[first:]))
    axes = range(value.ndim)
    front = axes[first : first + len(shape)]
    value = xp.transpose(value, (*front, *(axis for axis in axes if axis not in front)))
    return xp.ascontiguousarray(value.reshape((count, math.prod(rest))))


__all__ = ["ADD", "WRITE", "rows_of"]
