"""Stacks on the device: slots, rows, blocks, and who may write to what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn, StandInArray
from instruments.stand_in_runs import graph_of, on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda import stacks
from ctrlgrad.engines.cuda.stacks import BLOCK_BYTES, LEAST_ROWS, DeviceStack
from ctrlgrad.engines.reference.table import own_stack

F64 = np.dtype(np.float64)


@pytest.fixture
def library() -> Iterator[StandIn]:
    found = StandIn()
    with found.running():
        yield found


def push(stack: DeviceStack, value: float, shape: tuple[int, ...] = (2,)) -> StandInArray:
    slot: StandInArray = stack.slot(shape)
    slot[...] = value
    stack.commit()
    return slot


def rows(stack: DeviceStack) -> list[float]:
    return [float(row.data.reshape(-1)[0]) for row in stack]


def test_rows_are_popped_last_in_first_out(library: StandIn) -> None:
    stack = DeviceStack(library, F64)
    for k in range(40):
        push(stack, k)
    assert len(stack) == 40 and rows(stack) == list(range(40))
    # Blocks double.
    assert [len(block.storage.array) for block in stack.blocks] == [16, 32]
    assert [float(stack.pop().data[0]) for _ in range(40)] == list(range(39, -1, -1))
    assert not stack.blocks


def test_a_row_is_read_where_it_was_written(library: StandIn) -> None:
    stack = DeviceStack(library, F64)
    slot = push(stack, 1.0)
    assert np.shares_memory(stack.pop().data, slot.data)


def test_a_popped_row_is_not_written_over(library: StandIn) -> None:
    stack = DeviceStack(library, F64)
    push(stack, 1.0), push(stack, 2.0)
    row = stack.pop()
    push(stack, 3.0)
    assert row.data[0] == 2.0 and rows(stack) == [1.0, 3.0]


def test_a_copy_shares_rows_and_no_writes(library: StandIn) -> None:
    stack = DeviceStack(library, F64)
    push(stack, 1.0)
    other = stack.copy()
    push(stack, 2.0), push(other, 3.0)
    assert rows(stack) == [1.0, 2.0] and rows(other) == [1.0, 3.0]
    assert np.shares_memory(stack[0].data, other[0].data)


def test_a_slot_that_is_not_committed_is_nothing(library: StandIn) -> None:
    stack = DeviceStack(library, F64)
    stack.slot((2,))
    assert len(stack) == 0
    push(stack, 1.0)
    assert rows(stack) == [1.0]


def test_rows_of_another_shape_have_a_block_of_their_own(library: StandIn) -> None:
    stack = DeviceStack(library, F64)
    push(stack, 1.0), push(stack, 2.0, (3, 1)), push(stack, 3.0)
    assert [block.storage.array.shape[1:] for block in stack.blocks] == [(2,), (3, 1), (2,)]
    assert rows(stack) == [1.0, 2.0, 3.0]


def test_rows_that_are_dropped_are_written_again(library: StandIn) -> None:
    stack = DeviceStack(library, F64)
    for k in range(20):
        push(stack, k)
    stack.drop(6)
    push(stack, 50)
    assert rows(stack) == [*range(14), 50]


def test_room(library: StandIn) -> None:
    """A loop over a chunk gets one block; large rows get no more than the bytes of a block."""
    stack = DeviceStack(library, F64, capacity=300)
    for k in range(300):
        push(stack, k)
    assert [len(block.storage.array) for block in stack.blocks] == [300]
    large = DeviceStack(library, F64)
    size = BLOCK_BYTES // 8
    for _ in range(LEAST_ROWS + 1):
        large.slot((size // 8,))
        large.commit()
    assert [len(block.storage.array) for block in large.blocks] == [16, 16]


def test_ownership(library: StandIn) -> None:
    stack = DeviceStack(library, F64)
    push(stack, 1.0)
    kept = stack
    assert own_stack([stack]) is not kept
    held = [DeviceStack(library, F64)]
    number = id(held[0])
    assert id(own_stack(held)) == number


@pytest.mark.parametrize(("numbers", "expected"), [(511, 16), (512, 16), (513, 15), (8192, 1), (8193, 1)])
def test_a_block_of_long_rows_has_few_rows(
    library: StandIn, numbers: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just below, at and just above the most bytes of a block that is made ahead, 64 KiB here."""
    monkeypatch.setattr(stacks, "MOST_AHEAD", 1 << 16)
    monkeypatch.setattr(stacks, "BLOCK_BYTES", 1)
    assert DeviceStack(library, F64).free_rows((numbers,)) == expected
    assert DeviceStack(library, F64, 20).free_rows((numbers,)) == 20


def two_stacks(x: Any) -> Any:
    """Of one stack, outside of loops."""
    a = cg.TensorArray(np.float64, None, (3,)).push(x)
    u, v = a.push(x * 3.0), a.push(cnp.sin(x))
    return cnp.sum(u.stack() ** 2, axis=0) + cnp.sum(v.stack() * 3.0, axis=0)


def one_of_two(x: Any) -> Any:
    """Both have as many rows; a branch says which is carried on."""

    def step(i: Any, c: Any) -> Any:
        y, a = c
        u, v = a.push(y * 2.0), a.push(y * 3.0)
        return cnp.sin(y) + 0.2, cg.cond(y[0] > 0.3, lambda u, v: u, lambda u, v: v, u, v)

    y, a = cg.fori_loop(0, 6, step, (x, cg.TensorArray(np.float64, None, (3,))))
    return y + cnp.sum(a.stack() ** 2, axis=0)


def two_in_an_iteration(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        a = cg.TensorArray(np.float64, None, (3,)).push(y)
        u, v = a.push(y * 2.0), a.push(cnp.sin(y) * 3.0)
        return cnp.sin(y) + 0.1 * cnp.sum(u.stack(), axis=0) - 0.1 * cnp.sum(v.stack() ** 2, axis=0)

    return cg.fori_loop(0, 6, step, x)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("fn", [two_stacks, one_of_two, two_in_an_iteration])
def test_two_stacks_of_one(fn: Callable[[Any], Any], order: int) -> None:
    """One kernel pushes on a stack twice; in launch lists both rows would lie in one place."""
    x = np.linspace(-0.5, 1.0, 3)
    graph = graph_of(fn, order, x)
    assert_same(on_stand_in(graph, [x]).results, on_reference(graph, [x]))
