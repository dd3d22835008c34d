"""Blocks of stacks that many short runs push on: there are few, and versions of a stack are independent."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.stacks import FrameStack
from ctrlgrad.runtime.stack import BlockStack

DOUBLE = np.dtype(np.float64)


def run(given: BlockStack, pops: int, pushes: list[float]) -> BlockStack:
    """Replay compiled code on a copy of a stack: pops, then pushes."""
    words = np.zeros(frame.STACK_WORDS, np.int64)
    running = FrameStack(0, words, DOUBLE, ())
    running.hold(given.copy())
    for _ in range(pops):
        if not words[frame.COUNT]:
            running.back(1)
        words[frame.COUNT] -= 1
    for value in pushes:
        if words[frame.COUNT] == words[frame.CAPACITY] or not words[frame.CAPACITY]:
            running.grow((), 1)
        assert running.open is not None
        running.open.storage.open()[words[frame.COUNT]] = value
        words[frame.COUNT] += 1
    stack: BlockStack = running.settle()
    return stack


def test_short_runs_fill_one_block() -> None:
    stack = BlockStack(DOUBLE, ())
    for number in range(100):
        stack = run(stack, 0, [number, -number])
    assert len(stack.blocks) == 1
    np.testing.assert_array_equal(stack.tensor(), [x for n in range(100) for x in (n, -n)])


@pytest.mark.parametrize("seed", range(5))
def test_versions_of_a_stack_do_not_see_each_other(seed: int) -> None:
    draw = random.Random(seed)
    stacks = [BlockStack(DOUBLE, ())]
    models: list[list[float]] = [[]]
    for number in range(400):
        which = draw.randrange(max(0, len(stacks) - 8), len(stacks))
        pops = draw.randrange(min(len(models[which]), 40) + 1) if draw.random() < 0.5 else 0
        pushes = [float(number * 100 + k) for k in range(draw.choice((0, 1, 2, 7, 60)))]
        stacks.append(run(stacks[which], pops, pushes))
        models.append(models[which][: len(models[which]) - pops] + pushes)
    for stack, model in zip(stacks, models, strict=True):
        np.testing.assert_array_equal(stack.tensor(), model)
