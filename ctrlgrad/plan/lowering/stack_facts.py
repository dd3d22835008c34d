"""Facts that lowering knows of a stack, and facts that it must know from the start.

A stack whose rows differ in size becomes a `RaggedStack`, several stacks of the plan, if the graph only makes it,
pushes and pops rows, and joins them. Every other such stack, for example one that enters or leaves the plan, is a list
that reference kernels keep. Lowering first assumes that the rows of each stack have one shape. Where that proves wrong,
it records the stack's origin (`Origins`) and lowers the graph again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from ctrlgrad.ir import Node, Value
from ctrlgrad.plan.model import Holds, Stack
from ctrlgrad.plan.sizes import Size, Sizes
from ctrlgrad.records import record

Origin = Node | Value


@record
class Origins:
    """Origins of stacks whose rows have several shapes, or whose sizes differ though some looked equal."""

    # With the axes along which rows differ.
    ragged: Mapping[Origin, frozenset[int]] = field(default_factory=dict)
    # Kept by reference kernels.
    listed: frozenset[Origin] = frozenset()
    varied: frozenset[Origin] = frozenset()

    def __or__(self, other: Origins) -> Origins:
        axes = dict(self.ragged)
        for origin, more in other.ragged.items():
            axes[origin] = axes.get(origin, frozenset()) | more
        return Origins(axes, self.listed | other.listed, self.varied | other.varied)


class Learned(Exception):
    """An assumption on a stack was wrong: the graph is lowered again with the new facts."""


@record
class RaggedStack:
    """A stack of rows whose sizes differ, as the plan has it: see `Stack`."""

    elements: Stack
    sizes: tuple[Stack, ...]

    @property
    def parts(self) -> tuple[Stack, ...]:
        return (*self.sizes, self.elements)


def parts_of_stack(item: Stack | RaggedStack) -> tuple[Stack, ...]:
    """The stacks of the plan that stand for one of the graph."""
    return item.parts if isinstance(item, RaggedStack) else (item,)


@record(frozen=False)
class StackFacts:
    """Facts about all versions of one stack."""

    dtype: np.dtype
    # The rows' shape; None as long as it is not known.
    shape: Sizes | None
    # Sizes in it must be visible where the stack was created.
    scope: int
    # Where the stack comes from: a node, or the argument that it is.
    origin: Origin
    # True if it is a list that reference kernels keep.
    is_listed: bool = False
    # True if it is assumed to begin without rows, though the graph asks for some.
    is_taken_empty: bool = False
    holds: Holds = "rows"
    # Of ragged rows: the axes along which they differ, and their sizes, None along those and where not known yet.
    axes: tuple[int, ...] = ()
    row: tuple[Size | None, ...] = ()
    # Of a stack of sizes: the size that all rows so far are; true if rows differ; true if the plan relies on the one
    # size.
    only: Size | None = None
    is_varied: bool = False
    is_assumed: bool = False

    def put(self, size: Size | None) -> bool:
        """Record a pushed row: a size of the whole plan, or None. False if the plan relies on another size."""
        if size is not None and not self.is_varied and self.only in (None, size):
            self.only = size
            return True
        self.is_varied = True
        return not self.is_assumed

    def assumed_size(self) -> Size | None:
        """The size that every row is; None where they may differ."""
        is_new = isinstance(self.origin, Node) and not self.origin.operands
        if not is_new or self.is_varied or self.only is None:
            return None
        self.is_assumed = True
        return self.only
