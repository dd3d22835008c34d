"""The launches of a read or of an update by indices, on arrays of the library or on views of prepared lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access, broadcast_strides, joined_axes
from ctrlgrad.engines.cuda.indexing.keys import Chosen
from ctrlgrad.engines.cuda.indexing.model import (
    BLOCK,
    FEW,
    MOST_BLOCKS,
    RUN,
    ChoiceSpec,
    IndexLaunch,
    IndexSpec,
    SortSpec,
    UpdateSpec,
)
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.sites import Site

Shape = tuple[int, ...]
_INT64 = np.dtype(np.int64)
# Elements that are moved as they are, by their bytes; larger ones as two.
_LARGEST = 8


@dataclass(frozen=True)
class Surroundings:
    """Context of launches: the access of a kernel to an argument, the allocator of arrays, the flag, and the node's
    site; in a list also the numbers of the words that are noted with the site."""

    access: Callable[[Any], Access]
    empty: Callable[[Shape, np.dtype], Any]
    flag: Any
    site: int | Site
    noted: tuple[int, ...] = ()


def gather(its: Chosen, out: Any, around: Surroundings) -> Iterator[IndexLaunch]:
    """Read what indices choose into `out`."""
    if not its.has_elements:
        yield from _check(its, around)
        return
    element, parts = _moved_as(out.dtype)
    shape = its.shape + parts
    indices = [(*its.spread(broadcast_strides(x, its.index_shape)), *(0 for _ in parts)) for x in its.indices]
    part = tuple(_LARGEST for _ in parts)
    x = (*its.part_strides, *part)
    sizes, strides = joined_axes(shape, range(len(shape)), [x, *indices, (*out.strides, *part)])
    yield _choice(its, element, sizes, strides, [its.whole, *its.indices, out], around)


def scatter(its: Chosen, value: Any, text: KernelText | None, around: Surroundings) -> Iterator[IndexLaunch]:
    """Write values where indices choose, the last one where they repeat; or what `text` computes, one by one.

    Args:
        value: broadcasts to what the key names.
        text: of what is there, and a value, what is to be there; None for the value.
    """
    if not its.has_elements:
        yield from _check(its, around)
        return
    count = math.prod(its.index_shape)
    if count <= FEW:
        yield _update(its, value, text, None, around)
        return
    places = around.empty((count,), _INT64)
    yield from _places(its, places, around)
    yield _update(its, value, text, (yield from _sorted(places, count, around)), around)


def _moved_as(dtype: np.dtype) -> tuple[str, Shape]:
    """The type that elements are moved as, and how many of them they are: another axis."""
    size = dtype.itemsize
    return f"uint{8 * min(size, _LARGEST)}", () if size <= _LARGEST else (size // _LARGEST,)


def _launch(spec: IndexSpec, arguments: Sequence[Any], numbers: Sequence[int | Site], threads: int) -> IndexLaunch:
    return IndexLaunch(spec, tuple(arguments), tuple(numbers), min(-(-threads // BLOCK), MOST_BLOCKS))


def _choice(
    its: Chosen,
    element: str | None,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    arguments: Sequence[Any],
    around: Surroundings,
) -> IndexLaunch:
    count = math.prod(sizes)
    dtypes = tuple(x.dtype.name for x in its.indices)
    arguments = (*arguments, around.flag)
    spec = ChoiceSpec(len(sizes), dtypes, element, tuple(map(around.access, arguments)), len(around.noted))
    numbers = [count, *sizes, *(step for its_own in strides for step in its_own)]
    return _launch(spec, arguments, (*numbers, *_axes(its, around)), count)


def _axes(its: Chosen, around: Surroundings) -> list[Any]:
    """Of each index the size and the stride of its axis, the site, and the words that are noted."""
    sizes = ((its.whole.shape[axis], its.whole.strides[axis]) for axis in its.axes)
    return [*(number for its_own in sizes for number in its_own), around.site, *around.noted]


def _places(its: Chosen, places: Any, around: Surroundings) -> Iterator[IndexLaunch]:
    """Launch that computes the offset, from the array's beginning, of each row that indices choose."""
    shape = its.index_shape
    indices = [broadcast_strides(x, shape) for x in its.indices]
    sizes, strides = joined_axes(shape, range(len(shape)), indices)
    yield _choice(its, None, sizes, strides, [*its.indices, places], around)


def _check(its: Chosen, around: Surroundings) -> Iterator[IndexLaunch]:
    """Nothing is read or written, but indices may be out of range all the same."""
    if count := math.prod(its.index_shape):
        yield from _places(its, around.empty((count,), _INT64), around)


def _sorted(places: Any, count: int, around: Surroundings) -> Generator[IndexLaunch, None, tuple[Any, Any]]:
    """Positions in ascending order, and where they were."""
    order, run = None, RUN
    while True:
        found = [around.empty((count,), _INT64) for _ in range(2)]
        given = [places, *([] if order is None else [order]), *found]
        spec = SortSpec(order is not None, tuple(map(around.access, given)))
        yield _launch(spec, given, (count, run), count)
        run *= 1 if order is None else 2
        places, order = found
        if run >= count:
            return places, order


def _update(
    its: Chosen, value: Any, text: KernelText | None, listed: tuple[Any, Any] | None, around: Surroundings
) -> IndexLaunch:
    """The update by positions that are sorted, and where they were; or by the indices."""
    dtype = its.whole.dtype
    element, parts = _moved_as(dtype) if text is None else (dtype.name, ())
    part = tuple(_LARGEST for _ in parts)
    values, shape = broadcast_strides(value, its.shape), its.index_shape
    indices = its.indices if listed is None else ()
    by_row = [its.rows_of(values), *(broadcast_strides(x, shape) for x in indices)]
    rows, row_strides = joined_axes(shape, range(len(shape)), by_row)
    rest = its.rest_shape + parts
    ours = [(*its.columns_of(values), *part), (*its.rest_strides, *part)]
    columns, column_strides = joined_axes(rest, range(len(rest)), ours)
    read = (*indices, value) if listed is None else (*listed, value)
    arguments = (*read, its.whole, *([around.flag] if listed is None else []))
    accesses = tuple(map(around.access, arguments))
    dtypes, noted = tuple(x.dtype.name for x in indices), len(around.noted) if listed is None else 0
    spec = UpdateSpec(len(rows), len(columns), dtypes, element, text, accesses, noted)
    count, width = math.prod(shape), math.prod(rest)
    numbers = [count, width, *rows, *(step for its_own in row_strides for step in its_own)]
    numbers += [*columns, *column_strides[0], *column_strides[1]]
    return _launch(spec, arguments, [*numbers, *(_axes(its, around) if listed is None else [])], count * width)
