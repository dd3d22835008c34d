"""The table of rules: how each op that is not elementwise is written in generated code."""

from __future__ import annotations

from collections.abc import Callable

from ctrlgrad.engines.native.frames import Item
from ctrlgrad.engines.native.layout import Ref, Splat
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.ir import Node, Value

Rule = Callable[[RegionWriter, Node], None]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops; a decorator."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def give(e: RegionWriter, value: Value, item: Item) -> None:
    """Record what stands for a value; a reference to one element becomes a scalar."""
    if isinstance(item, Ref) and not item.shape:
        item = e.scalar(e.load(item, item.offset), item.dtype)
    elif isinstance(item, Splat) and not item.shape:
        item = item.scalar
    e.frame.items[value] = item
