"""Stacks whose rows lie in a session's blocks behave like lists, and blocks are freed with their rows."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same_bits
from instruments.sessions import assert_no_chunks, checked_session
from programs import BY_NAME

from ctrlgrad.engines import block_kernels as rows_of_stacks
from ctrlgrad.engines.block_kernels import RowBlock, RowPush, RowPushes, RowTails, row_pushes, rows_in_blocks
from ctrlgrad.execution import run_on
from ctrlgrad.runtime.stack import BlockStack, Resident

DOUBLE = np.dtype(np.float64)


@contextmanager
def rows(limit: int | None = None) -> Iterator[RowPushes]:
    """A source of rows inside a call in a session."""
    with checked_session(limit), rows_in_blocks(dict):
        source = row_pushes()
        assert source is not None
        yield source


def new_stack(source: RowPushes, shape: tuple[int, ...]) -> BlockStack:
    return BlockStack(DOUBLE, shape, tails=RowTails(source, RowPush("a loop", "a row", None)))


def test_rows_keep_their_order_of_axes() -> None:
    """Rows keep their order of axes; otherwise sums over them would differ in the last bit. Found by a gradient of
    attention."""
    program = BY_NAME["attention_over_a_growing_memory"]
    graph, leaves = program.graph(2), program.leaves
    with checked_session(4096):
        assert_same_bits(run_on("reference", graph, leaves), run_on("reference", program.graph(2), leaves))
    with rows(1 << 12) as source:
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            stack = new_stack(source, (2, 3, 4))
            pushed = [np.arange(24.0).reshape(np.array([2, 3, 4])[list(order)]) + i for i in range(40)]
            pushed = [row.transpose(np.argsort(order)) for row in pushed]
            for row in pushed:
                stack.push(row)
            for row in reversed(pushed):
                popped = stack.pop()
                np.testing.assert_array_equal(popped, row)
                assert popped.strides == row.strides


@pytest.mark.parametrize("limit", [None, 4096, 1000, 400])
@pytest.mark.parametrize("seed", range(4))
def test_a_stack_is_a_list(seed: int, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes, pops, copies and reads in any order agree with a list; two seeds take blocks of a third of the budget."""
    draw = random.Random(seed)
    if limit is not None and seed % 2 == 0:
        monkeypatch.setattr(rows_of_stacks, "chunk_bytes", lambda: limit // 3)
    with rows(limit) as source:
        models: list[list[Any]] = [[], []]
        stacks = [new_stack(source, (2,)), new_stack(source, (2,))]
        for number in range(1500):
            which = draw.randrange(len(stacks))
            model, stack = models[which], stacks[which]
            what = draw.choices(("push", "pop", "many", "copy", "read", "all", "die"), (30, 25, 3, 2, 3, 1, 1))[0]
            if what == "push":
                model.append(np.array([number, -number], float))
                stack.push(model[-1])
            elif what == "pop" and model:
                np.testing.assert_array_equal(stack.pop(), model.pop())
            elif what == "many":
                for _ in range(min(draw.randrange(40), len(model))):
                    np.testing.assert_array_equal(stack.pop(), model.pop())
            elif what == "copy" and len(stacks) < 5:
                stacks.append(stack.copy())
                models.append(list(model))
            elif what == "read" and model:
                index = draw.randrange(len(model))
                np.testing.assert_array_equal(stack[index], model[index])
            elif what == "all":
                np.testing.assert_array_equal(stack.tensor(), np.array(model).reshape(-1, 2))
            elif what == "die" and len(stacks) > 2:
                del stacks[which], models[which]
            assert [len(s) for s in stacks] == [len(m) for m in models]
            del stack
        del stacks


def test_a_stack_that_dies_frees_its_blocks() -> None:
    with rows(4096) as source:
        stack = new_stack(source, (8,))
        for number in range(200):
            stack.push(np.full(8, float(number)))
        assert source.manager.stats.copies_out
        stack.pop()
        other = stack.copy()
        other.pop()
        del stack, other
        assert_no_chunks(source.manager)


def test_rows_left_in_a_block_do_not_hold_the_block() -> None:
    """A row that pops leave in a block does not hold the whole block: 30 rounds leave a row each, in the memory of a
    few blocks."""
    with rows() as source:
        stack, model = new_stack(source, (4,)), []
        for turn in range(30):
            for number in range(64):
                model.append(np.full(4, 100.0 * turn + number))
                stack.push(model[-1])
            for _ in range(63):
                np.testing.assert_array_equal(stack.pop(), model.pop())
        assert source.manager.accounts[0].used <= 16 * 64 * 8
        np.testing.assert_array_equal(stack.tensor(), np.array(model))
        del stack


def test_blocks_of_a_manager_are_not_written_to_again() -> None:
    """A manager's settled block is not written to again, because copies of it may exist."""
    with rows() as source:
        stack = new_stack(source, ())
        for number in range(5):
            stack.push(np.float64(number))
        whole = stack.whole(3)
        assert isinstance(whole, Resident) and list(whole.array[:5]) == [0, 1, 2, 3, 4]
        assert stack.whole(3) is whole
        del stack, whole


@pytest.mark.parametrize("seed", range(4))
def test_no_row_is_lost_where_another_thread_settles_a_block_at_any_time(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """No row is lost when another thread, short of room, settles a block before its first row or while rows are
    written."""
    draw = random.Random(seed)
    put = RowBlock.put

    def put_after_another_thread(block: RowBlock, row: Any) -> bool:
        if draw.random() < 0.3:
            block.settle()
        return put(block, row)

    monkeypatch.setattr(RowBlock, "put", put_after_another_thread)
    with rows() as source:
        stack, model = new_stack(source, (2,)), []
        for number in range(400):
            if model and draw.random() < 0.45:
                np.testing.assert_array_equal(stack.pop(), model.pop())
            else:
                model.append(np.array([number, -number], float))
                stack.push(model[-1])
            if number % 20 == 0:
                np.testing.assert_array_equal(stack.tensor(), np.array(model).reshape(-1, 2))
        del stack


def test_two_threads_may_read_and_copy_a_stack_at_once() -> None:
    with rows(2048) as source:
        for _ in range(20):
            stack = new_stack(source, ())
            for number in range(300):
                stack.push(np.float64(number))
            found: list[list[float]] = []

            def read(shared: BlockStack = stack, found: list[list[float]] = found) -> None:
                mine = shared.copy()
                found.append([float(mine.pop()) for _ in range(300)] + [float(shared[7])])

            threads = [threading.Thread(target=copy_context().run, args=(read,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [[*map(float, reversed(range(300))), 7.0]] * 3
            del stack, read, threads


def test_rows_that_nobody_has_written_are_claimed_once() -> None:
    memory = Resident(np.zeros(8))
    assert not memory.claim(0)
    memory.release(3)
    assert not memory.claim(2)
    assert memory.claim(3) and not memory.claim(3)
    memory.release(8)
    assert not memory.claim(8)


def test_rows_that_are_cut_off_are_claimed_by_nobody() -> None:
    memory = Resident(np.zeros(8))
    memory.release(3)
    memory.shrink(3)
    assert not memory.claim(3)
