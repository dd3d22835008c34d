"""Launches of reductions outside of lists, recorded, and made again by compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrlgrad.engines.cuda.reductions import BLOCK, KernelSpec
from instruments.compiled_kernels import Called, compiled
from instruments.driver import Driver
from instruments.reductions import Geometry, blocks_of

# Bytes around each array that a compiled kernel is given.
_MARGIN, _PATTERN = 1 << 17, 0x5A


@dataclass(frozen=True)
class Record:
    """A launch: what it was given, and the outputs that the stand-in has computed."""

    spec: KernelSpec
    arguments: list[Any]
    numbers: list[int]
    outputs: list[np.ndarray]
    geometry: Geometry


def recording(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The launches from now on."""
    found: list[Record] = []
    reduce = Driver.reduce

    def recorded(self: Driver, spec: KernelSpec, arguments: Sequence[Any], numbers: Sequence[int]) -> None:
        reduce(self, spec, arguments, numbers)
        outputs = [np.copy(x) for x in arguments[len(spec.reads) :]]
        found.append(Record(spec, list(arguments), list(numbers), outputs, self.geometry(spec, numbers)))

    monkeypatch.setattr(Driver, "reduce", recorded)
    return found


def specs_of(records: Sequence[Record]) -> list[KernelSpec]:
    return list(dict.fromkeys(record.spec for record in records))


def differing(
    records: Sequence[Record], folder: Path, changed: Callable[[str], str] = lambda text: text
) -> tuple[int, int]:
    """Number of launches of the compiled text with different bits, with the first and the last thread first.

    A mistake that leads out of arrays is one, too; so is a barrier that not all threads come to.
    """
    specs = specs_of(records)
    functions = dict(zip(specs, compiled(specs, folder, changed), strict=True))
    first, last = (sum(not _is_same(r, functions[r.spec], backwards) for r in records) for backwards in (False, True))
    return first, last


def _is_same(record: Record, function: Called, backwards: bool) -> bool:
    spec, read = record.spec, len(record.spec.reads)
    given = [x if isinstance(x, np.generic) else guarded(x) for x in record.arguments]
    words = [
        np.array([x.ctypes.data]) if not access.is_number else np.atleast_1d(x)
        for x, access in zip(given, spec.accesses, strict=True)
    ]
    words += [np.array([n], np.int64) for n in record.numbers]
    pointers = (ctypes.c_void_p * len(words))(*(w.ctypes.data for w in words))
    if not function(ctypes.cast(pointers, ctypes.c_void_p), blocks_of(spec, record.geometry), BLOCK, backwards):
        return False
    for out, expected in zip(given[read:], record.outputs, strict=True):
        if not is_intact(out):
            return False
        if not np.array_equal(out, expected, equal_nan=out.dtype.kind in "fc"):
            return False
    return True


def guarded(x: np.ndarray) -> Any:
    """An array that lies likewise in memory of its own, with a margin."""
    low, high = np.lib.array_utils.byte_bounds(x)
    memory = np.full(high - low + 2 * _MARGIN, _PATTERN, np.uint8)
    memory[_MARGIN:-_MARGIN] = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)
    return np.ndarray(x.shape, x.dtype, memory, _MARGIN + x.ctypes.data - low, x.strides)


def is_intact(x: Any) -> bool:
    """Return true if nothing was written to the margin."""
    return not ((x.base[:_MARGIN] != _PATTERN).any() or (x.base[-_MARGIN:] != _PATTERN).any())


__all__ = ["Record", "differing", "guarded", "is_intact", "recording", "specs_of"]
