"""Stacks: rows of one shape, or of sizes that differ (see `ragged`); what is neither is kept by reference kernels."""

from __future__ import annotations

from typing import Any, TypeGuard

from ctrlgrad.ir import Node, Value, attributes
from ctrlgrad.plan.expression import BOOL, Number
from ctrlgrad.plan.lowering import ragged
from ctrlgrad.plan.lowering.outside import outside
from ctrlgrad.plan.lowering.stack_facts import Learned, RaggedStack, StackFacts
from ctrlgrad.plan.lowering.state import INDEX, Splat, State, Tensor, parts_of
from ctrlgrad.plan.model import (
    Block,
    Branch,
    FromStack,
    Guard,
    Length,
    NewStack,
    Numbers,
    Pop,
    Push,
    ReadRow,
    Stack,
    ToStack,
    View,
    WriteRow,
)
from ctrlgrad.plan.sizes import ONE, Size, Sizes


def stack_new(state: State, node: Node) -> None:
    element = attributes.NewStack.of(node).element
    shape = tuple(Size(d) for d in element.shape if d is not None) if element.is_static else None
    origins = state.origins
    size = state.index(node.operands[0]) if node.operands else None
    # Rows that were never written have a shape from the start. What a gradient asks for so begins without rows.
    is_taken_empty = False
    if shape is None and size is not None and node not in origins.listed and state.assumes("rows"):
        known = state.size_of(size)
        is_taken_empty = not (known.is_known and known.factor)
    is_listed = node in origins.listed or (shape is None and size is not None and not is_taken_empty)
    if is_taken_empty:
        assert size is not None
        state.guard(state.compute([size], BOOL, lambda n: n.equals(0)), "rows", size)
        size = None
    if node in origins.ragged and not is_listed:
        ragged.new(state, node, element, is_taken_empty)
        return
    is_varied = node in origins.varied
    scope = len(state.scopes) - 1
    facts = StackFacts(element.dtype, shape, scope, node, is_listed, is_taken_empty, is_varied=is_varied)
    result = state.stack(facts)
    state.emit(NewStack(result, size, node))
    state.items[node.result] = result


def _slots(state: State, value: Value) -> Stack | RaggedStack:
    """A stack whose rows are written or read at any place: those that it was asked for are there."""
    item = _stack(state, value)
    if state.facts_of(item).is_taken_empty:
        state.needs_list(item)
    return item


def _stack(state: State, value: Value) -> Stack | RaggedStack:
    item = state.items[value]
    assert isinstance(item, Stack | RaggedStack)
    return item


def _row(state: State, value: Value) -> View | Numbers:
    item = state.items[value]
    if isinstance(item, tuple):
        return item
    assert isinstance(item, View | Splat)
    return state.dense_view(item)


def _fits(state: State, stack: Stack, shape: Sizes) -> bool:
    """Return true if a row's shape is that of the stack's other rows; the first row sets it."""
    facts = state.facts[stack]
    if facts.is_listed:
        return False
    if facts.shape is None:
        inner = [axis for axis, size in enumerate(shape) if state.scope_of(size) > facts.scope]
        if inner:
            state.rows_differ(facts, inner)
            facts.is_listed = True
        else:
            facts.shape = shape
    elif facts.shape != shape:
        axes = [axis for axis, (a, b) in enumerate(zip(facts.shape, shape, strict=True)) if a != b]
        if not state.assumes("rows") or any(facts.shape[axis].is_known and shape[axis].is_known for axis in axes):
            state.rows_differ(facts, axes)
            raise Learned
        for a, b in zip(facts.shape, shape, strict=True):
            state.guard_equal(b, a, "rows")
    return not facts.is_listed


def stack_push(state: State, node: Node) -> None:
    stack, row = _stack(state, node.operands[0]), _row(state, node.operands[1])
    if isinstance(stack, RaggedStack):
        assert isinstance(row, View)
        ragged.push(state, node, stack, row)
        return
    if not _fits(state, stack, row.shape if isinstance(row, View) else ()):
        outside(state, node)
        return
    state.put(stack, _plan_size(state, row))
    result = state.stack(state.facts[stack])
    state.emit(Push(stack, row, result, node))
    state.items[node.result] = result


def _plan_size(state: State, row: View | Numbers) -> Size | None:
    """The size that a row is, where that is one for the whole plan: then backward loops need not ask the stack."""
    if not isinstance(row, tuple) or len(row) != 1 or row[0].dtype != INDEX:
        return None
    size = state.size_of(row[0])
    return size if state.scope_of(size) == 0 else None


def _new_row(state: State, stack: Stack) -> tuple[Any, Any]:
    """Target of a row that is taken off a stack, and the value that stands for it."""
    shape = state.facts[stack].shape
    assert shape is not None
    if shape == ():
        registers = state.registers(stack.dtype)
        return registers, registers
    array = state.array(stack.dtype, shape)
    return array, array.view


def _is_native(stack: Stack | RaggedStack, state: State) -> TypeGuard[Stack]:
    """Return true if a stack's rows have one known shape."""
    facts = state.facts_of(stack)
    return isinstance(stack, Stack) and not facts.is_listed and facts.shape is not None


def stack_pop(state: State, node: Node) -> None:
    stack = _stack(state, node.operands[0])
    if isinstance(stack, RaggedStack):
        ragged.pop(state, node, stack)
        return
    if not _is_native(stack, state):
        outside(state, node)
        return
    result = state.stack(state.facts[stack])
    row, item = _new_row(state, stack)
    state.emit(Pop(stack, result, row, node))
    size = state.facts[stack].assumed_size()
    if size is not None:
        item = (state.size_register(size),)
    state.items.update({node.results[0]: result, node.results[1]: item})


def stack_read(state: State, node: Node) -> None:
    stack = _slots(state, node.operands[0])
    if not _is_native(stack, state):
        outside(state, node)
        return
    row, item = _new_row(state, stack)
    state.emit(ReadRow(stack, state.index(node.operands[1]), row, state.site()))
    state.items[node.result] = item


def stack_write(state: State, node: Node) -> None:
    _write(state, node, "store", bool(attributes.Write.of(node).grow), bool(attributes.Write.of(node).once))


def stack_add(state: State, node: Node) -> None:
    _write(state, node, "add")


def _write(state: State, node: Node, how: Any, grow: bool = False, once: bool = False) -> None:
    stack, row = _slots(state, node.operands[0]), _row(state, node.operands[2])
    if isinstance(stack, RaggedStack) or not _fits(state, stack, row.shape if isinstance(row, View) else ()):
        outside(state, node)
        return
    _write_row(state, node, stack, row, how, grow, once)


def _write_row(
    state: State, node: Node, stack: Stack, row: Any, how: Any, grow: bool = False, once: bool = False
) -> None:
    state.put(stack, None)
    result = state.stack(state.facts[stack])
    index = state.index(node.operands[1])
    state.emit(WriteRow(stack, index, row, result, how, grow, once, state.site()))
    state.items[node.result] = result


def stack_clear(state: State, node: Node) -> None:
    """A slot that was never written holds zeros, where rows have one shape: the slot is given them."""
    stack = _slots(state, node.operands[0])
    if not _is_native(stack, state):
        outside(state, node)
        return
    shape = state.facts[stack].shape
    assert shape is not None
    zeros = tuple(state.number(0, part) for part in parts_of(stack.dtype))
    row = zeros if shape == () else state.dense_view(Splat(zeros, shape, stack.dtype))
    _write_row(state, node, stack, row, "clear")


def stack_resize(state: State, node: Node) -> None:
    """Another length. What undoes a row that was appended takes that row away; the kernel does all else."""
    stack = _slots(state, node.operands[0])
    if not _is_native(stack, state):
        outside(state, node)
        return
    length = state.register("int64")
    state.emit(Length(stack, length))

    def chosen(n: Number, m: Number) -> Number:
        one_more = (n > 0) & n.equals(m + 1)
        return n.equals(m).convert(INDEX) + 2 * one_more.convert(INDEX)

    how = state.compute([length, state.index(node.operands[1])], INDEX, chosen)
    with state.block() as by_kernel:
        outside(state, node)
        resized = state.items[node.result]
        assert isinstance(resized, Stack)
    with state.block() as shorter:
        popped = state.stack(state.facts[stack])
        row, _ = _new_row(state, stack)
        state.emit(Pop(stack, popped, row, node))
    blocks = (Block(tuple(by_kernel.steps)), Block(()), Block(tuple(shorter.steps)))
    result = state.stack(state.facts[stack])
    state.emit(Branch(how, blocks, ((resized,), (stack,), (popped,)), (result,), node))
    state.items[node.result] = result


def stack_length(state: State, node: Node) -> None:
    register = state.register("int64")
    stack = _stack(state, node.operands[0])
    state.emit(Length(stack.sizes[0] if isinstance(stack, RaggedStack) else stack, register))
    state.items[node.result] = (register,)


def stack_from_tensor(state: State, node: Node) -> None:
    if node in state.origins.listed:
        outside(state, node)
        return
    tensor: Tensor = state.tensor(node.operands[0])
    result = state.stack(StackFacts(tensor.dtype, tensor.shape[1:], len(state.scopes) - 1, node))
    state.emit(ToStack(state.dense_view(tensor), result, node))
    state.items[node.result] = result


def stack_to_tensor(state: State, node: Node) -> None:
    """All rows. The sizes among the operands are those that rows would have where there are none."""
    stack = _slots(state, node.operands[0])
    if not _is_native(stack, state):
        outside(state, node)
        return
    shape = state.facts[stack].shape
    assert shape is not None
    declared = node.result.tensor.shape
    dims = iter(node.operands[1:])
    for size, d in zip(shape, declared[1:], strict=True):
        if d is not None:
            state.guard_equal(size, Size(d))
        elif len(node.operands) > 1:
            state.guard_equal(size, state.size_of(state.index(next(dims))))
    length = state.register("int64")
    state.emit(Length(stack, length))
    size = state.size_of(length)
    if declared[0] is not None:
        state.guard_equal(size, Size(declared[0]))
        size = Size(declared[0])
    if None in declared[1:] and len(node.operands) == 1:
        # The rows' shape is said by a row, if there is one.
        some = state.compute([length], BOOL, lambda n: n > 0)
        state.emit(Guard(some, "size", state.site(), length, ONE))
    result = state.array(stack.dtype, (size, *shape))
    state.emit(FromStack(stack, result, node))
    state.items[node.result] = result.view


def stack_rows(state: State, node: Node) -> None:
    """Length of each row along an axis."""
    stack = _slots(state, node.operands[0])
    if not (isinstance(stack, RaggedStack) and ragged.sizes_of_rows(state, node, stack)):
        outside(state, node)


def stack_concat(state: State, node: Node) -> None:
    stack = _slots(state, node.operands[0])
    if not (isinstance(stack, RaggedStack) and ragged.concatenated(state, node, stack)):
        outside(state, node)
