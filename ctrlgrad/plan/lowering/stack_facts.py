"""What lowering knows of a stack, and what has to be known of some from the start.

A stack of rows whose sizes differ is a `RaggedStack`, several stacks of the plan, if all that is done with it is to
make it, to push rows, to take them off and to join them. Any other, such as one that enters or leaves the plan, is a
list that reference kernels keep. Which stacks are such is found by lowering the graph as if they were not, and once
more with what that told (`Origins`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from ctrlgrad.ir import Node, Value
from ctrlgrad.plan.sizes import Size, Sizes
from ctrlgrad.plan.values import Holds, Stack
from ctrlgrad.records import record

Origin = Node | Value


@record
class Origins:
    """What makes stacks that are not of rows of one shape, or whose numbers differ though some looked alike."""

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
    """What was assumed of a stack is not so: the graph is to be lowered with what is known now."""


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
    """What is known of all versions of one stack."""

    dtype: np.dtype
    # The rows' shape; None as long as it is not known.
    shape: Sizes | None
    # Sizes in it must be visible where the stack was created.
    scope: int
    # Where the stack comes from: a node, or the argument that it is.
    origin: Origin
    # Whether it is a list that reference kernels keep.
    is_listed: bool = False
    # Whether it is taken to begin without rows, though it was asked for some.
    is_taken_empty: bool = False
    holds: Holds = "rows"
    # Of ragged rows: the axes along which they differ, and their sizes, None along those and where not known yet.
    axes: tuple[int, ...] = ()
    row: tuple[Size | None, ...] = ()
    # The size that all rows so far are; whether some are not, or others; whether that size was relied on.
    only: Size | None = None
    is_varied: bool = False
    is_assumed: bool = False

    def put(self, size: Size | None) -> bool:
        """A row goes onto the stack: a size of the whole plan, or something else. False where others were assumed."""
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
