"""Data of reads and updates by indices: their specifications and launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.functions import preamble
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter

# Threads of a block, and the most blocks: a thread goes on with what is behind the whole grid.
BLOCK, MOST_BLOCKS = 128, 1 << 16
# Updates at up to so many positions are one launch, in which a thread looks at all of them for those like its own. Of
# more, in runs of `RUN`, a thread looks at those of its run for the rank of its own.
FEW, RUN = 64, 256

FLAG = Parameter("int64", "flag")
"""Words in which an index is noted that is out of range: see `ctrlgrad.engines.cuda.sites`."""


def names(letter: str, count: int) -> tuple[str, ...]:
    """A letter with so many numbers."""
    return tuple(f"{letter}{k}" for k in range(count))


def strides_of(name: str, rank: int) -> tuple[str, ...]:
    """Names of an array's strides."""
    return names(f"t_{name}_", rank)


def choice_names(indices: int, noted: int) -> tuple[str, ...]:
    """Of each index the size and the stride of its axis, the site, and the numbers of the words that are noted."""
    chosen = tuple(name for k in range(indices) for name in (f"size{k}", f"step{k}"))
    return (*chosen, "site", *names("noted", noted)) if indices else ()


class _Sized(ABC):
    """A kernel whose parameters are arrays, those that it only reads before those that it writes, then numbers."""

    accesses: tuple[Access, ...]
    # How many words are noted with an index.
    noted: int = 0

    @property
    @abstractmethod
    def read(self) -> tuple[Parameter, ...]: ...

    @property
    @abstractmethod
    def written(self) -> tuple[Parameter, ...]: ...

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters in the order of the accesses."""
        return (*self.read, *self.written)

    @property
    def is_moving(self) -> bool:
        """Return true if it reads the iteration counter and words."""
        return bool(self.noted) or any(access.is_moving for access in self.accesses)

    @property
    def preamble(self) -> str:
        return preamble("")


@dataclass(frozen=True)
class ChoiceSpec(_Sized):
    """Elements that indices choose are read, or (`element` is None) where they lie is written: bytes, int64.

    `rank` axes, `indices` dtypes of arrays of indices, `element` the unsigned integer of as many bytes.
    """

    rank: int
    indices: tuple[str, ...]
    element: str | None
    accesses: tuple[Access, ...]
    noted: int = 0

    @property
    def read(self) -> tuple[Parameter, ...]:
        indices = [Parameter(dtype, f"a{k}") for k, dtype in enumerate(self.indices)]
        return (*([Parameter(self.element, "x")] if self.element else []), *indices)

    @property
    def written(self) -> tuple[Parameter, ...]:
        return Parameter(self.element or "int64", "o"), FLAG

    @property
    def numbers(self) -> tuple[str, ...]:
        strided = [p.name for p in (*self.read, *self.written[: self.element is not None])]
        strides = [stride for name in strided for stride in strides_of(name, self.rank)]
        return ("count", *names("n", self.rank), *strides, *choice_names(len(self.indices), self.noted))


@dataclass(frozen=True)
class SortSpec(_Sized):
    """Positions are sorted in each run, and told where they were; or two runs that are sorted become one."""

    merges: bool
    accesses: tuple[Access, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        return "count", "run"

    @property
    def read(self) -> tuple[Parameter, ...]:
        return (Parameter("int64", "places"), *([Parameter("int64", "order")] if self.merges else []))

    @property
    def written(self) -> tuple[Parameter, ...]:
        return Parameter("int64", "sorted"), Parameter("int64", "found")


@dataclass(frozen=True)
class UpdateSpec(_Sized):
    """Rows of an array are written, or (`text`) what `text` computes of them, a0, and of values, a1.

    Where rows lie is told by `indices`, dtypes of arrays of them; without these it is sorted, and `order` tells which
    row of the values is for each. A row of values, and of indices, is found by `rows` axes, a column by `columns` ones.
    """

    rows: int
    columns: int
    indices: tuple[str, ...]
    element: str
    text: KernelText | None
    accesses: tuple[Access, ...]
    noted: int = 0

    @property
    def read(self) -> tuple[Parameter, ...]:
        listed = [Parameter(dtype, f"a{k}") for k, dtype in enumerate(self.indices)]
        listed = listed or [Parameter("int64", name) for name in ("places", "order")]
        return (*listed, Parameter(self.element, "v"))

    @property
    def written(self) -> tuple[Parameter, ...]:
        return (Parameter(self.element, "x"), *([FLAG] if self.indices else []))

    @property
    def numbers(self) -> tuple[str, ...]:
        indices = range(len(self.indices))
        rows = *names("r", self.rows), *strides_of("row", self.rows)
        rows += tuple(stride for k in indices for stride in strides_of(f"a{k}", self.rows))
        columns = *names("n", self.columns), *strides_of("v", self.columns), *strides_of("x", self.columns)
        return ("count", "width", *rows, *columns, *choice_names(len(indices), self.noted))

    @property
    def preamble(self) -> str:
        return preamble("") if self.text is None else self.text.preamble


IndexSpec = ChoiceSpec | SortSpec | UpdateSpec


@dataclass(frozen=True)
class IndexLaunch:
    """One launch: arguments in the order of the accesses, then numbers. In a list the site is a `Site`."""

    spec: IndexSpec
    arguments: tuple[Any, ...]
    numbers: tuple[Any, ...]
    blocks: int
