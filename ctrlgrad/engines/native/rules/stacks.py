"""Stacks in generated code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.engines.native.expressions import literal
from ctrlgrad.engines.native.frames import Item, StackState
from ctrlgrad.engines.native.layout import NotNative, Ref, Scalar, Splat, product, row_major, times
from ctrlgrad.engines.native.program import FIRST_LOCAL, Status
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.rules.table import give, rule
from ctrlgrad.engines.native.stack_uses import local_use
from ctrlgrad.ir import Graph, Node, Value


def state_of(e: RegionWriter, value: Value) -> StackState:
    item = e.frame.items[value]
    if not isinstance(item, StackState) or item.version is not value:
        raise NotNative("a stack is used after it was changed")
    return item


def changed(e: RegionWriter, state: StackState, value: Value) -> None:
    state.version = value
    e.frame.items[value] = state


@rule("stack_push")
def _push(e: RegionWriter, node: Node) -> None:
    s, value = node.operands
    state = state_of(e, s)
    if node in e.in_slot or e.reserve(node):
        if state.use.marks:
            e.line(f"put(M{state.number}, {state.count}, uint8(1))")
    else:
        if e.in_loop or state.use.is_local:
            e.fail(f"{state.count} >= {state.capacity}", Status.FULL_INSIDE, str(state.number))
        _write_slot(e, state, state.count, value)
    e.line(f"{state.count} += 1")
    changed(e, state, node.result)


def _write_slot(e: RegionWriter, state: StackState, index: str, value: Value) -> None:
    if not state.use.element:
        slot = Ref(state.base, index, (), (), state.use.dtype)
        e.put(slot, index, e.number(value))
    else:
        item = e.tensor(value)
        if state.use.mode == "whole":
            e.flush()
        e.copy(item, e.slot(state, index))
    if state.use.marks:
        e.line(f"put(M{state.number}, {index}, uint8(1))")


@rule("stack_pop")
def _pop(e: RegionWriter, node: Node) -> None:
    state = state_of(e, node.operands[0])
    if e.in_loop or e.in_branch:
        e.fail(f"{state.count} <= 0", Status.EMPTY_INSIDE, str(state.number))
    elif state.use.mode == "whole":
        e.fail(f"{state.count} <= 0", Status.OUT_OF_RANGE, str(e.site(node)), "int64(0)", "int64(0)")
    e.line(f"{state.count} -= 1")
    changed(e, state, node.results[0])
    give(e, node.results[1], _row(e, state, state.count))


def _row(e: RegionWriter, state: StackState, index: str) -> Item:
    """A row of a stack, copied where a later op could change it."""
    if not state.use.element:
        return e.scalar(e.load(Ref(state.base, index, (), (), state.use.dtype), index), state.use.dtype)
    row = e.slot(state, index)
    return e.copied(row) if state.use.mode == "whole" else row


@rule("stack_read")
def _read(e: RegionWriter, node: Node) -> None:
    state = state_of(e, node.operands[0])
    index = e.checked_index(node, 0, e.number(node.operands[1]), state.count)
    give(e, node.result, _row(e, state, index))


@rule("stack_write")
def _write(e: RegionWriter, node: Node) -> None:
    s, where, value = node.operands
    state = state_of(e, s)
    given, index = e.number(where), e.fresh("q")
    e.line(f"{index} = int64({given})")
    if node.attrs["grow"]:
        if e.in_loop or state.use.is_local:
            full = f"{index} == {state.count} and {state.count} >= {state.capacity}"
            e.fail(full, Status.FULL_INSIDE, str(state.number))
        with e.block(f"if {index} == {state.count}:"):
            e.line(f"{state.count} += 1")
            if state.use.marks:
                e.line(f"put(M{state.number}, {index}, uint8(0))")
    place = e.checked_index(node, 0, index, state.count)
    if node.attrs.get("once"):
        e.fail(f"fetch(M{state.number}, {place}) != 0", Status.WRITTEN_TWICE, str(e.site(node)), place)
    _write_slot(e, state, place, value)
    changed(e, state, node.result)


@rule("stack_add")
def _add(e: RegionWriter, node: Node) -> None:
    s, where, value = node.operands
    state = state_of(e, s)
    given = e.tensor(value)
    e.flush()
    index = e.checked_index(node, 0, e.number(where), state.count)
    slot = e.slot(state, index) if state.use.element else Ref(state.base, index, (), (), state.use.dtype)
    _combine_into(e, slot, given)
    changed(e, state, node.result)


def _combine_into(e: RegionWriter, slot: Ref, given: Ref | Splat) -> None:
    if not slot.shape:
        assert isinstance(given, Splat)
        e.put(slot, slot.offset, f"{e.load(slot, slot.offset)} + {given.scalar.text}")
        return
    with e.nest(slot.shape, [given, slot]) as (index, element):
        e.line(f"put({slot.base}, {index(1)}, {e.load(slot, index(1))} + {element(0)})")


@rule("stack_clear")
def _clear(e: RegionWriter, node: Node) -> None:
    state = state_of(e, node.operands[0])
    e.flush()
    index = e.checked_index(node, 0, e.number(node.operands[1]), state.count)
    zero = Scalar(literal(state.use.dtype.type(0)), state.use.dtype)
    if state.use.element:
        e.copy(Splat(zero, state.use.element), e.slot(state, index))
    else:
        e.put(Ref(state.base, index, (), (), state.use.dtype), index, zero.text)
    if state.use.marks:
        e.line(f"put(M{state.number}, {index}, uint8(0))")
    changed(e, state, node.result)


@rule("stack_resize")
def _resize(e: RegionWriter, node: Node) -> None:
    """Cut off; or longer, by rows of zeros."""
    state = state_of(e, node.operands[0])
    e.flush()
    length, slot, element = e.fresh("q"), e.fresh("i"), product(state.use.element)
    e.line(f"{length} = int64({e.number(node.operands[1])})")
    e.fail(f"{length} > {state.capacity}", Status.FULL_INSIDE, str(state.number))
    with e.block(f"for {slot} in range({times(state.count, element)}, {times(length, element)}):"):
        e.line(f"put({state.base}, {slot}, {literal(state.use.dtype.type(0))})")
    if state.use.marks:
        with e.block(f"for {slot} in range({state.count}, {length}):"):
            e.line(f"put(M{state.number}, {slot}, uint8(0))")
    e.line(f"{state.count} = {length}")
    changed(e, state, node.result)


def local_stack(e: RegionWriter, value: Value, also: Sequence[tuple[Graph, Value]] = ()) -> StackState:
    """A stack that lives for one iteration, in rows that the driver lends for the chunk.

    `also`: what it is in regions inside, before it becomes the value.
    """
    use = local_use(e.frame.graph, value, FIRST_LOCAL + e.locals, e.shapes.element(value))
    use.marks |= any(local_use(graph, inner, 0, ()).marks for graph, inner in also)
    e.locals += 1
    state = StackState(use.position, use, value)
    e.declare(state)
    return state


def _local(e: RegionWriter, node: Node) -> StackState:
    state = e.frame.leaving.get(node.result) or local_stack(e, node.result)
    changed(e, state, node.result)
    return state


def _reset(e: RegionWriter, state: StackState, count: str) -> None:
    """The stack has so many rows."""
    e.fail(f"{count} > {state.capacity}", Status.FULL_INSIDE, str(state.number))
    e.line(f"{state.count} = {count}")


@rule("stack_new")
def _new(e: RegionWriter, node: Node) -> None:
    state = _local(e, node)
    e.flush()
    if not node.operands:
        e.line(f"{state.count} = 0")
        return
    length, slot = e.fresh("q"), e.fresh("i")
    e.line(f"{length} = int64({e.number(node.operands[0])})")
    _reset(e, state, length)
    with e.block(f"for {slot} in range({times(length, product(state.use.element))}):"):
        e.line(f"put({state.base}, {slot}, {literal(state.use.dtype.type(0))})")
    if state.use.marks:
        with e.block(f"for {slot} in range({length}):"):
            e.line(f"put(M{state.number}, {slot}, uint8(0))")


@rule("stack_from_tensor")
def _from_tensor(e: RegionWriter, node: Node) -> None:
    given = e.tensor(node.operands[0])
    state = _local(e, node)
    e.flush()
    _reset(e, state, f"int64({given.shape[0]})")
    e.copy(given, Ref(state.base, "0", given.shape, row_major(given.shape), state.use.dtype))
    if state.use.marks:
        slot = e.fresh("i")
        with e.block(f"for {slot} in range({state.count}):"):
            e.line(f"put(M{state.number}, {slot}, uint8(1))")


@rule("stack_to_tensor")
def _to_tensor(e: RegionWriter, node: Node) -> None:
    state = state_of(e, node.operands[0])
    e.flush()
    shape = e.shapes.sizes(node.result)
    e.fail(f"{state.count} != {shape[0]}", Status.OUT_OF_RANGE, str(e.site(node)), state.count, str(shape[0]))
    rows = Ref(state.base, "0", shape, row_major(shape), state.use.dtype)
    target = e.place(node.result)
    e.copy(rows, target)
    e.frame.items[node.result] = target


@rule("stack_length")
def _length(e: RegionWriter, node: Node) -> None:
    state = state_of(e, node.operands[0])
    e.frame.items[node.result] = e.scalar(state.count, np.dtype(np.int64))
