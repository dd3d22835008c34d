"""Branches return arrays of the same elements: one that a branch leaves without any has those of another branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctrlgrad.frontend.elements import has_open_elements, learn_elements
from ctrlgrad.frontend.tracer import Traced


def of_equal_elements(regions: Sequence[Traced]) -> list[Traced]:
    """The branches, each of whose arrays without an element has the one that another branch gives it."""
    return [_taught(region, regions) if has_open_elements(region.result) else region for region in regions]


def learned_of(region: Traced, mine: Any, other: Any) -> Any:
    """A value of a branch, whose arrays without an element have those of another branch's value."""
    if mine is other or not has_open_elements(mine):
        return mine
    with region.recording():
        learned = learn_elements(mine, other)
    return mine if learned is None else learned


def _taught(region: Traced, regions: Sequence[Traced]) -> Traced:
    result = region.result
    for other in regions:
        result = learned_of(region, result, other.result)
    return Traced(region.builder.name, lambda _: result, builder=region.builder)
