"""Stacks of rows whose sizes differ: a stack of the rows' elements, end to end, and stacks of the sizes that differ.

A row is pushed as a run of elements, with its size along each axis on which rows differ, and taken off as it was
pushed; the sizes along the other axes are those of the first row. What a run is copied to, or made in, is one piece of
memory.
"""

from __future__ import annotations

from ctrlgrad.ir import Node, TensorType, attributes
from ctrlgrad.plan.expression import BOOL
from ctrlgrad.plan.lowering.stack_facts import RaggedStack, StackFacts
from ctrlgrad.plan.lowering.state import INDEX, Splat, State
from ctrlgrad.plan.model import FromStack, Length, NewStack, Pop, Push, View
from ctrlgrad.plan.sizes import ONE, Size, product


def new(state: State, node: Node, element: TensorType, is_taken_empty: bool) -> None:
    """An empty stack. Along axes on which its rows do not differ they have the type's size, where that has one."""
    axes = tuple(sorted(state.origins.ragged[node]))
    row = tuple(None if d is None or axis in axes else Size(d) for axis, d in enumerate(element.shape))
    scope = len(state.scopes) - 1
    facts = StackFacts(element.dtype, (), scope, node, False, is_taken_empty, "elements", axes, row, is_varied=True)
    elements = state.stack(facts)
    sizes = [state.stack(StackFacts(INDEX, (), scope, node, holds="sizes", is_varied=True)) for _ in axes]
    for stack in (*sizes, elements):
        state.emit(NewStack(stack, None, node))
    state.items[node.result] = RaggedStack(elements, tuple(sizes))


def push(state: State, node: Node, stack: RaggedStack, row: View) -> None:
    _fit(state, stack, row)
    result = state.version(stack)
    assert isinstance(result, RaggedStack)
    axes = state.facts_of(stack).axes
    for axis, sizes, pushed in zip(axes, stack.sizes, result.sizes, strict=True):
        state.emit(Push(sizes, (state.size_register(row.shape[axis]),), pushed, node))
    state.emit(Push(stack.elements, row, result.elements, node))
    state.items[node.result] = result


def _fit(state: State, stack: RaggedStack, row: View) -> None:
    """The sizes of a row along the axes on which rows do not differ; the first row says what they are."""
    facts = state.facts_of(stack)
    known = list(facts.row)
    for axis, (before, size) in enumerate(zip(facts.row, row.shape, strict=True)):
        if axis in facts.axes or before == size:
            continue
        if before is None and state.scope_of(size) <= facts.scope:
            known[axis] = size
        elif before is None or not state.assumes("rows") or (before.is_known and size.is_known):
            state.rows_differ(facts, [axis])
        else:
            state.guard_equal(size, before, "rows")
    facts.row = tuple(known)


def pop(state: State, node: Node, stack: RaggedStack) -> None:
    facts = state.facts_of(stack)
    result = state.version(stack)
    assert isinstance(result, RaggedStack)
    unknown = [axis for axis, size in enumerate(facts.row) if size is None and axis not in facts.axes]
    if unknown:
        state.rows_differ(facts, unknown)
    shape = [size or Size(0) for size in facts.row]
    for axis, sizes, left in zip(facts.axes, stack.sizes, result.sizes, strict=True):
        register = state.register(INDEX, "n")
        state.emit(Pop(sizes, left, (register,), node))
        shape[axis] = Size(1, (register.name,))
    row = state.array(facts.dtype, tuple(shape))
    state.emit(Pop(stack.elements, result.elements, row, node))
    state.items.update({node.results[0]: result, node.results[1]: row.view})


def sizes_of_rows(state: State, node: Node, stack: RaggedStack) -> bool:
    """The rows' sizes along an axis as an array; false where they cannot be told."""
    facts, axis = state.facts_of(stack), attributes.Axis.of(node).axis
    length = state.register(INDEX)
    state.emit(Length(stack.sizes[0], length))
    shape, size = (state.size_of(length),), facts.row[axis]
    if axis in facts.axes:
        result = state.array(INDEX, shape)
        state.emit(FromStack(stack.sizes[facts.axes.index(axis)], result, node))
        state.items[node.result] = result.view
    elif size is not None:
        state.items[node.result] = Splat((state.size_register(size),), shape, INDEX)
    return axis in facts.axes or size is not None


def concatenated(state: State, node: Node, stack: RaggedStack) -> bool:
    """All rows, one below the other, as one array: their elements as they lie. False where they lie otherwise."""
    facts, attrs = state.facts_of(stack), attributes.Concat.of(node)
    rest = tuple(size for size in facts.row[1:] if size is not None)
    if attrs.axis != 0 or len(rest) < len(facts.row) - 1 or not state.assumes("rows"):
        return False
    for size, dim in zip(rest, node.operands[2:], strict=False):
        state.guard_equal(size, state.size_of(state.index(dim)))
    count, row = state.register(INDEX), product(rest)
    state.emit(Length(stack.elements, count))
    total = count
    if row != ONE:
        each = state.size_register(row)
        # If rows have no elements, their number cannot be told from the number of elements.
        state.guard(state.compute([each], BOOL, lambda n: n > 0), "rows", each)
        total = state.compute([count, each], INDEX, lambda n, m: n / m)
    size = state.size_of(total)
    if attrs.size is not None:
        state.guard_equal(size, Size(attrs.size))
        size = Size(attrs.size)
    result = state.array(facts.dtype, (size, *rest))
    state.emit(FromStack(stack.elements, result, node))
    state.items[node.result] = result.view
    return True
