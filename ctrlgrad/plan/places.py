"""Places of a plan's arrays, and releases of their memory."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ctrlgrad.plan.sizes import Size
from ctrlgrad.records import record


@record
class Buffer:
    """Memory for `count` elements. The caller owns a result's buffer. Of all other buffers, `is_known_at_entry` says
    whether the size follows from the arguments' sizes."""

    number: int
    dtype: np.dtype
    count: Size
    is_known_at_entry: bool
    # Position of the plan's result that it holds.
    result: int | None = None

    @property
    def is_free_to_move(self) -> bool:
        """Return true if the buffer is sized when it is needed, so that it may exchange memory with another such
        buffer."""
        return self.result is None and not self.is_known_at_entry

    def __str__(self) -> str:
        return f"b{self.number}"


@record
class Place:
    """Place of an array.

    "buffer": in a buffer; "argument", "constant": in that one of the call; "slot": in the row that it is pushed to, by
    push `number`; "row": in the row of a stack that was popped, or in all rows of one.
    """

    kind: Literal["buffer", "argument", "constant", "slot", "row"]
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


@record
class Release:
    """Memory that is dead after a step: buffers that are sized when they are needed, and stacks by handle."""

    buffers: tuple[int, ...] = ()
    stacks: tuple[int, ...] = ()
