"""Ops on whole stacks whose rows have one shape, by blocks instead of row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.runtime.stack import Block, BlockStack, supply


def resized(stack: Any, length: Any) -> Any:
    """The first rows, and rows of zeros behind them where there are too few. The stack is the caller's no longer."""
    if not isinstance(stack, BlockStack):
        return None
    count, length = len(stack), int(length)
    if length <= count:
        # In place: a loop that drops a row in each iteration must not copy the remaining rows each time.
        stack.drop(count - length)
        stack.written = None if stack.written is None else stack.written[:length]
        return stack
    whole = _filled(stack.dtype, stack.shape, length, _blocks(stack))
    whole.written = np.zeros(length, np.uint8)
    whole.written[:count] = 1 if stack.written is None else stack.written
    return whole


def summed(a: Any, b: Any) -> Any:
    """Row by row; the rows that only one of them has as they are."""
    if not (isinstance(a, BlockStack) and isinstance(b, BlockStack)):
        return None
    if not len(a) or not len(b):
        return (a if len(a) else b).copy()
    if a.shape != b.shape:
        return None
    longer, shorter = (b, a) if len(a) < len(b) else (a, b)
    whole = _filled(longer.dtype, longer.shape, len(longer), _blocks(longer))
    total, at = whole.blocks[0].storage.open(), 0
    for rows in _blocks(shorter):
        total[at : at + len(rows)] += rows
        at += len(rows)
    whole.blocks[0].storage.close()
    if longer.written is not None:
        whole.written = longer.written[: len(longer)].copy()
        marks = 1 if shorter.written is None else shorter.written[: len(shorter)]
        whole.written[: len(shorter)] |= marks
    return whole


def _blocks(stack: BlockStack) -> Any:
    """The rows of each block while it is open. A slot that was never written holds zeros."""
    for block in stack.blocks:
        yield block.open()
        block.close()


def _filled(dtype: np.dtype, shape: Sequence[int], length: int, parts: Any) -> BlockStack:
    """A stack of so many rows: those of the parts, then zeros."""
    whole = BlockStack(dtype, tuple(shape), supply=supply())
    if length:
        storage = supply().array((length, *shape), dtype, "rows")
        array, at = storage.open(), 0
        for rows in parts:
            count = min(len(rows), length - at)
            array[at : at + count] = rows[:count]
            at += count
        array[at:] = 0
        storage.close()
        whole.add(Block(storage, length))
    return whole


# A function that returns None leaves the op to the reference kernel.
WHOLE_STACKS: Mapping[str, Callable[..., Any]] = {
    "stack_resize": resized,
    "stack_sum": summed,
}
