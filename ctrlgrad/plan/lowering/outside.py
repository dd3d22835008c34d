"""Ops that the reference engine's kernels compute, called back from compiled code.

Numbers, arrays and stacks go as they are. A dimension of a result that only the kernel knows comes back as a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad.ir import Node, StackType
from ctrlgrad.plan.lowering.stack_facts import RaggedStack, StackFacts
from ctrlgrad.plan.lowering.state import INDEX, Splat, State
from ctrlgrad.plan.model import Array, Block, Branch, Numbers, Outside, Register, Stack, Value, View
from ctrlgrad.plan.sizes import Size, Sizes


def outside(
    state: State,
    node: Node,
    facts: StackFacts | None = None,
    shape: Sizes | None = None,
) -> None:
    """Call the reference kernel of a node; `facts` or `shape` are what is known of its one result."""
    operands: list[Numbers | View | Stack] = []
    for v in node.operands:
        given = state.items[v]
        if isinstance(given, RaggedStack):
            state.needs_list(given)
            given = given.elements
        operands.append(state.in_memory(given) if isinstance(given, Splat) else given)
    results: list[Numbers | Array | Stack] = []
    sizes: list[tuple[Register, int, int]] = []
    for position, v in enumerate(node.results):
        item: Any
        if isinstance(v.type, StackType):
            found = facts or _facts(state, node, v.type)
            stack = state.stack(found)
            item = stack
            results.append(stack)
        elif v.type.rank == 0:
            item = state.registers(v.type.dtype)
            results.append(item)
        else:
            dims = list(shape or ())
            for axis, d in enumerate(v.type.shape if shape is None else ()):
                if d is not None:
                    dims.append(Size(d))
                    continue
                register = state.register(INDEX, "n")
                sizes.append((register, position, axis))
                dims.append(Size(1, (register.name,)))
            array = state.array(v.type.dtype, tuple(dims))
            results.append(array)
            item = array.view
        state.items[v] = item
    state.emit(Outside(node, tuple(operands), tuple(results), tuple(sizes)))


def or_outside(state: State, node: Node, holds: Register, make: Callable[[], None], shape: Sizes) -> None:
    """The one result of a node, of a shape: as `make` puts it in its place, where `holds`, else the reference kernel's.

    `make` may leave what is in its place already.
    """
    before = state.items.get(node.result)
    blocks: list[Block] = []
    outputs: list[tuple[Value, ...]] = []

    def call() -> None:
        outside(state, node, shape=shape)

    for lower in (call, make):
        if before is not None:
            state.items[node.result] = before
        with state.block() as block:
            lower()
            item = state.items[node.result]
            assert isinstance(item, tuple | View | Splat)
            outputs.append(item if isinstance(item, tuple) else (state.dense(item),))
        blocks.append(Block(tuple(block.steps)))
    results: tuple[Value, ...]
    if node.result.tensor.rank:
        array = state.array(node.result.tensor.dtype, shape)
        results, state.items[node.result] = (array,), array.view
    else:
        registers = state.registers(node.result.tensor.dtype)
        results, state.items[node.result] = registers, registers
    state.emit(Branch(holds, tuple(blocks), tuple(outputs), results, node))


def _facts(state: State, node: Node, type: StackType) -> StackFacts:
    """Facts of a stack that a kernel makes: those of an operand with the same element type, if any."""
    for v in node.operands:
        item = state.items[v]
        if isinstance(item, Stack) and isinstance(v.type, StackType) and v.type.element == type.element:
            state.put(item, None)
            return state.facts[item]
    shape = tuple(Size(d) for d in type.element.shape if d is not None)
    is_listed = not type.element.is_static or node in state.origins.listed
    return StackFacts(type.element.dtype, None if is_listed else shape, len(state.scopes) - 1, node, is_listed)
