"""What a plan may know of the arguments that it is made for."""

from __future__ import annotations

from ctrlgrad.records import record


@record
class ArgumentShape:
    """What is known of one argument: of an array, each dimension as a number or as a name that equal ones share."""

    dims: tuple[int | str, ...]
    # Of a stack: whether its rows differ in shape.
    is_ragged: bool = False
