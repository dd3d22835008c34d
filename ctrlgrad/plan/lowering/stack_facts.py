"""What lowering knows of a stack; and the errors by which it learns what it has to know of one from the start."""

from __future__ import annotations

import numpy as np

from ctrlgrad.ir import Node, Value
from ctrlgrad.plan.sizes import Size, Sizes
from ctrlgrad.records import record


class RowsDiffer(Exception):
    """A stack that was assumed to be of rows of one shape has rows of several: it has to be known from the start."""

    def __init__(self, origin: Node | Value) -> None:
        super().__init__(origin)
        self.origin = origin


class NumbersDiffer(Exception):
    """A stack all of whose rows were assumed to be of one size holds others too: it has to be known from the start."""

    def __init__(self, origin: Node) -> None:
        super().__init__(origin)
        self.origin = origin


@record(frozen=False)
class StackFacts:
    """What is known of all versions of one stack."""

    dtype: np.dtype
    # The rows' shape; None as long as it is not known.
    shape: Sizes | None
    # Sizes in it must be visible where the stack was created.
    scope: int
    # Where the stack comes from: a node, or the argument that it is.
    origin: Node | Value
    is_ragged: bool = False
    # The size that all rows so far are; whether some are not, or others; whether that size was relied on.
    only: Size | None = None
    is_varied: bool = False
    is_assumed: bool = False

    def put(self, size: Size | None) -> None:
        """A row goes onto the stack: a size of the whole plan, or something else."""
        if size is not None and not self.is_varied and self.only in (None, size):
            self.only = size
            return
        self.is_varied = True
        if self.is_assumed:
            assert isinstance(self.origin, Node)
            raise NumbersDiffer(self.origin)

    def assumed_size(self) -> Size | None:
        """The size that every row is; None where they may differ."""
        is_new = isinstance(self.origin, Node) and not self.origin.operands
        if not is_new or self.is_varied or self.only is None:
            return None
        self.is_assumed = True
        return self.only
