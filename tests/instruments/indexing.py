"""Kernels of reads and updates by indices, computed on NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.engines.cuda.indexing import (
    BLOCK,
    MOST_BLOCKS,
    ChoiceSpec,
    IndexSpec,
    SortSpec,
    UpdateSpec,
    names,
    strides_of,
)
from ctrlgrad.engines.cuda.sites import FLAG_WORDS
from instruments.text import run_text


class At(Protocol):
    """The argument of a number as an array, from so many bytes behind where it begins."""

    def __call__(self, k: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> np.ndarray: ...


Told = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


def launch_shape(spec: IndexSpec, numbers: Sequence[int]) -> tuple[int, int]:
    """Blocks and threads for all that a launch goes through."""
    its = dict(zip(spec.numbers, numbers, strict=True))
    return min(-(-its["count"] * its.get("width", 1) // BLOCK), MOST_BLOCKS), BLOCK


def run_indexed(spec: IndexSpec, numbers: Sequence[int], at: At, told: Told, computes: bool = True) -> None:
    """Compute and write; `told` is called before that with what is read and written. Words that are noted are in the
    place of their numbers."""
    its = dict(zip(spec.numbers, numbers, strict=True))
    match spec:
        case ChoiceSpec():
            _choose(spec, its, at, told, computes)
        case SortSpec():
            _sort(spec, its, at, told, computes)
        case UpdateSpec():
            _update(spec, its, at, told, computes)


def _along(its: dict[str, int], called: Sequence[str]) -> list[int]:
    return [its[name] for name in called]


def _choose(spec: ChoiceSpec, its: dict[str, int], at: At, told: Told, computes: bool) -> None:
    sizes = _along(its, names("n", spec.rank))
    assert its["count"] == np.prod(sizes, dtype=np.int64)
    chosen = [(its[f"size{k}"], its[f"step{k}"]) for k in range(len(spec.indices))]
    reads: list[np.ndarray] = []
    if spec.element is not None:
        # All that indices may choose is read.
        strides = [*_along(its, strides_of("x", spec.rank)), *(step for _, step in chosen)]
        reads.append(at(0, [*sizes, *(size for size, _ in chosen)], strides))
    for k in range(len(spec.indices)):
        reads.append(at(len(reads), sizes, _along(its, strides_of(f"a{k}", spec.rank))))
    if spec.element is None:
        out = at(len(reads), [its["count"]], [8])
    else:
        out = at(len(reads), sizes, _along(its, strides_of("o", spec.rank)))
    flag = at(len(reads) + 1, [FLAG_WORDS], [8])
    told([*reads, flag], [out, flag])
    if not computes:
        return
    places = _checked(reads[-len(chosen) :], its, flag)
    if spec.element is None:
        out[:] = sum(place * step for place, (_, step) in zip(places, chosen, strict=True)).reshape(-1)
    else:
        out[...] = reads[0][(*np.indices(sizes), *places)]


def _checked(indices: Sequence[np.ndarray], its: dict[str, int], flag: np.ndarray) -> list[np.ndarray]:
    """Indices from zero on; one that is out of range is noted, with words of a list's."""
    noted = [its[name] for name in names("noted", len(its)) if name in its]
    # In a list a site stands for an op, else for one and the iterations of loops.
    assert its["site"] > 0 if noted else its["site"] < 0
    found = []
    for k, index in enumerate(indices):
        size, index = its[f"size{k}"], index.astype(np.int64)
        is_bad = (index < -size) | (index >= size)
        if is_bad.any() and not flag[0]:
            flag[: 3 + len(noted)] = its["site"], index[is_bad][0], size, *noted
        found.append(np.where(is_bad, 0, np.where(index < 0, index + size, index)))
    return found


def _sort(spec: SortSpec, its: dict[str, int], at: At, told: Told, computes: bool) -> None:
    count, run = its["count"], its["run"]
    arrays = [at(k, [count], [8]) for k in range(4 if spec.merges else 3)]
    *given, ordered, found = arrays
    told(given, [ordered, found])
    if not computes:
        return
    for first in range(0, count, run * (1 + spec.merges)):
        span = slice(first, first + run * (1 + spec.merges))
        places = given[0][span]
        if spec.merges:
            assert all((np.diff(part) >= 0).all() for part in (places[:run], places[run:]))
        order = np.argsort(places, kind="stable")
        ordered[span] = places[order]
        found[span] = given[1][span][order] if spec.merges else first + order


def _update(spec: UpdateSpec, its: dict[str, int], at: At, told: Told, computes: bool) -> None:
    count = its["count"]
    columns, rows = (_along(its, names(*which)) for which in (("n", spec.columns), ("r", spec.rows)))
    assert its["width"] == np.prod(columns, dtype=np.int64) and count == np.prod(rows, dtype=np.int64)
    listed: list[np.ndarray] = []
    for k in range(len(spec.indices)):
        listed.append(at(k, rows, _along(its, strides_of(f"a{k}", spec.rows))))
    listed = listed or [at(k, [count], [8]) for k in range(2)]
    strides = _along(its, strides_of("row", spec.rows)) + _along(its, strides_of("v", spec.columns))
    value = at(len(listed), [*rows, *columns], strides)
    flags = [at(len(listed) + 2, [FLAG_WORDS], [8])] if spec.indices else []
    if not computes and spec.indices:
        # Where the rows lie is in the indices, which are checked in the kernel.
        told([*listed, value, *flags], flags)
        return
    if spec.indices:
        chosen = _checked(listed, its, flags[0])
        places = sum(x * its[f"step{k}"] for k, x in enumerate(chosen)).reshape(-1).tolist()
        order = list(range(count))
    else:
        places, order = (x.tolist() for x in listed)
        assert places == sorted(places)
    steps = _along(its, strides_of("x", spec.columns))
    whole = {place: at(len(listed) + 1, columns, steps, place) for place in places}
    targets = list(whole.values())
    told([*listed, value, *flags, *([] if spec.text is None else targets)], [*targets, *flags])
    if not computes:
        return
    with np.errstate(all="ignore"):
        for place, number in zip(places, order, strict=True):
            row = value[np.unravel_index(number, rows)] if rows else value
            target = whole[place]
            target[...] = row if spec.text is None else run_text(spec.text, [target, row])[0]


def dtypes_of(spec: IndexSpec) -> Iterator[Any]:
    """Of each argument."""
    return (np.dtype(p.dtype) for p in spec.parameters)


__all__ = ["At", "Told", "dtypes_of", "launch_shape", "run_indexed"]
