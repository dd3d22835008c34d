"""Where the arrays of a plan lie, and when their memory is given back."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ctrlgrad.plan.sizes import Size
from ctrlgrad.records import record


@record
class Buffer:
    """Memory for `count` elements. A result's is the caller's; of the others, `is_known_at_entry` says whether the size
    follows from the arguments' sizes."""

    number: int
    dtype: np.dtype
    count: Size
    is_known_at_entry: bool
    # Which result of the plan it is.
    result: int | None = None

    @property
    def is_free_to_move(self) -> bool:
        """Whether its memory, sized when it is needed, may become that of another such buffer."""
        return self.result is None and not self.is_known_at_entry

    def __str__(self) -> str:
        return f"b{self.number}"


@record
class Place:
    """Where an array lies.

    "buffer": in a buffer; "argument", "constant": in that one of the call; "slot": in the row that it is pushed to, by
    push number so much; "row": in the row of a stack that was popped, or in all rows of one.
    """

    kind: Literal["buffer", "argument", "constant", "slot", "row"]
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


@record
class Release:
    """What nobody needs any more after a step: buffers that are sized when they are needed, and stacks by handle."""

    buffers: tuple[int, ...] = ()
    stacks: tuple[int, ...] = ()
