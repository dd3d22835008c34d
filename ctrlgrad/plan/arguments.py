"""Facts about the arguments that a plan is made for."""

from __future__ import annotations

from ctrlgrad.records import record


@record
class ArgumentShape:
    """Known shape of one argument. Of an array, each dimension is a number, or a name that equal sizes share."""

    dims: tuple[int | str, ...]
    # Of a stack: whether its rows differ in shape.
    is_ragged: bool = False
