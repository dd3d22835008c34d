"""Ops on stacks that are on the device: see `ctrlgrad.engines.cuda.stacks`.

Pushes are here only where no kernel writes the value into its slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernels.elementwise import added
from ctrlgrad.engines.cuda.kernels.table import DEVICE, Kernel, filled_shape
from ctrlgrad.engines.cuda.stacks import DeviceRows, DeviceStack, Stack, own_stack
from ctrlgrad.engines.reference.kernels import IN_PLACE, PURE
from ctrlgrad.engines.reference.stack_kernels import never_written
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import Node, StackType, TensorType, attributes


def element_of(node: Node) -> TensorType:
    """The element type of a stack op's stack."""
    return next(v.type.element for v in (*node.operands, *node.results) if isinstance(v.type, StackType))


def _zeros(context: Context, element: TensorType, dims: Sequence[Any]) -> Any:
    if not element.is_static and not dims:
        raise never_written(element)
    context.counts.calls += 1
    return context.xp.zeros(filled_shape(context, element.shape, dims), element.dtype)


def own_device_stack(context: Context, node: Node, operands: list[Any]) -> Stack:
    """Take the first operand off as a stack on the device that may be changed."""
    if not isinstance(operands[0], DeviceStack | DeviceRows):
        operands[0] = context.stack_on_device(operands[0], element_of(node).dtype)
    return own_stack(operands)


def as_list(stack: Stack) -> list[Any]:
    """A stack as a list of rows, the stack itself where it is one."""
    return DeviceRows(stack) if isinstance(stack, DeviceStack) else stack


def _new(node: Node) -> Kernel:
    element = element_of(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        size = context.number(operands[0]) if operands else 0
        return DeviceRows([None] * size) if size else DeviceStack(context.library, element.dtype)

    return kernel


def _push(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        stack = own_device_stack(context, node, operands)
        value = context.on_device(operands[0])
        context.counts.calls += 1
        put(context, stack, value.shape, value.dtype)[...] = value
        commit(stack)
        context.run.counters.pushed(node, value)
        return stack

    return kernel


def put(context: Context, stack: Stack, shape: Sequence[int], dtype: np.dtype) -> Any:
    """Writable array for the next row of a stack."""
    if isinstance(stack, DeviceStack):
        # The ellipsis makes a view of a scalar's slot.
        return stack.slot(shape)
    stack.append(context.library.empty(shape, dtype))
    return stack[-1]


def commit(stack: Stack) -> None:
    """The row has been written."""
    if isinstance(stack, DeviceStack):
        stack.commit()


def _pop(node: Node) -> Kernel:
    element = element_of(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack = own_device_stack(context, node, operands)
        if not len(stack):
            raise ExecutionError("stack: popped more values than were pushed")
        value = stack.pop()
        context.run.counters.popped(node)
        return stack, _zeros(context, element, operands) if value is None else value

    return kernel


def _read(node: Node) -> Kernel:
    element = element_of(node)
    checked = PURE["stack_read"](node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, index, *dims = operands
        # Of a list of positions the reference engine's kernel takes the one that is meant, or raises its error.
        position = checked(range(len(stack)), context.number(index))
        value = stack.row(position) if isinstance(stack, DeviceStack) else stack[position]
        return _zeros(context, element, dims) if value is None else context.on_device(value)

    return kernel


def _update(name: str) -> Any:
    """Writes and the like: the reference engine's kernel on a list of rows."""

    def factory(node: Node) -> Kernel:
        host = IN_PLACE[name](node)

        def kernel(context: Context, operands: list[Any]) -> Any:
            rows = as_list(own_device_stack(context, node, operands))
            index, *values = operands
            arguments = [rows, np.int64(context.number(index)), *map(context.on_device, values)]
            del rows, values
            operands.clear()
            return host(arguments, context.run)

        return kernel

    return factory


def _add(node: Node) -> Kernel:
    checked = PURE["stack_read"](node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        rows = as_list(own_device_stack(context, node, operands))
        index, value = operands
        position = checked(range(len(rows)), context.number(index))
        rows[position] = _both(context, rows[position], context.on_device(value))
        return rows

    return kernel


def _both(context: Context, a: Any, b: Any) -> Any:
    """The sum of two rows, of which those that were never written are None."""
    return b if a is None else a if b is None else added(context, a, b)


def _sum(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        a, b = (as_list(context.stack_on_device(s, element_of(node).dtype)) for s in operands)
        rows = itertools.zip_longest(a, b)
        return DeviceRows(_both(context, x, y) for x, y in rows)

    return kernel


def _to_tensor(node: Node) -> Kernel:
    element = element_of(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, *dims = operands
        stack = context.stack_on_device(stack, element.dtype)
        if not len(stack):
            known = element.shape if element.is_static else _zeros(context, element, dims).shape
            context.counts.calls += 1
            return context.xp.zeros((0, *known), element.dtype)
        if isinstance(stack, DeviceStack) and len(stack.blocks) == 1:
            return stack.rows(stack.blocks[0])
        context.counts.calls += 1
        if isinstance(stack, DeviceStack):
            return joined(context, stack)
        known = next((v.shape for v in stack if v is not None), None)
        blank = None
        if any(v is None for v in stack):
            blank = _zeros(context, element if known is None else TensorType(element.dtype, known), dims)
        return context.xp.stack([blank if v is None else v for v in stack])

    return kernel


def joined(context: Context, stack: DeviceStack) -> Any:
    """All rows in one array."""
    if not stack.is_managed:
        return context.xp.concatenate([stack.rows(block) for block in stack.blocks])
    # A block at a time: there may be room for one alone.
    joined = context.library.empty((len(stack), *stack.blocks[0].shape), stack.dtype)
    place = 0
    for block in stack.blocks:
        context.counts.calls += 1
        joined[place : place + block.count] = stack.rows(block)
        place += block.count
    stack.rest()
    return joined


def _from_tensor(node: Node) -> Kernel:
    return lambda context, operands: DeviceStack.of(context.library, context.on_device(operands[0]))


def _rows(node: Node) -> Kernel:
    element, axis = element_of(node), attributes.Axis.of(node).axis

    def kernel(context: Context, operands: list[Any]) -> Any:
        sizes = [(_zeros(context, element, ()) if v is None else v).shape[axis] for v in operands[0]]
        return context.on_device(np.array(sizes, np.int64))

    return kernel


def _concat(node: Node) -> Kernel:
    element, axis = element_of(node), attributes.Axis.of(node).axis

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, rows, *dims = operands
        stack = as_list(context.stack_on_device(stack, element.dtype))
        (counts,) = context.on_host(rows)
        known = next((v.shape for v in stack if v is not None), None)
        if known is None:
            blank = TensorType(element.dtype, (*element.shape[:axis], 0, *element.shape[axis + 1 :]))
            known = _zeros(context, blank, dims).shape

        def zeros(n: int) -> Any:
            context.counts.calls += 1
            return context.xp.zeros((*known[:axis], n, *known[axis + 1 :]), element.dtype)

        parts = [zeros(int(n)) if v is None else v for v, n in zip(stack, counts, strict=True)]
        context.counts.calls += 1
        return context.xp.concatenate(parts, axis) if parts else zeros(0)

    return kernel


def _split(node: Node) -> Kernel:
    axis = attributes.Axis.of(node).axis

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, rows = operands
        ends = np.cumsum(context.on_host(rows)[0])
        x = context.on_device(x)
        lead = (slice(None),) * axis
        starts = [0, *map(int, ends[:-1])]
        # Views: they keep the whole alive, and are copied where they are updated.
        return DeviceRows(x[(*lead, slice(a, int(b)))] for a, b in zip(starts, ends, strict=False))

    return kernel


DEVICE["stack_new"] = _new
DEVICE["stack_push"] = _push
DEVICE["stack_pop"] = _pop
DEVICE["stack_read"] = _read
DEVICE |= {name: _update(name) for name in ("stack_write", "stack_clear", "stack_resize")}
DEVICE["stack_add"] = _add
DEVICE["stack_sum"] = _sum
DEVICE["stack_to_tensor"] = _to_tensor
DEVICE["stack_from_tensor"] = _from_tensor
DEVICE["stack_rows"] = _rows
DEVICE["stack_concat"] = _concat
DEVICE["stack_split"] = _split
