"""Kernels that know block stacks: what the reference engine has as a list, loops in machine code leave as blocks.

In a session, interpreted code pushes into blocks too, and pops from them, see `ctrlgrad.runtime.rows`. Rows that
differ in shape, and those of a stack whose slots are written in any order, are a list whose bytes are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.reference import REFERENCE, Kernels, Run
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop
from ctrlgrad.engines.reference.table import InPlace, Pure, own_stack
from ctrlgrad.ir import OPS, Node, Trait, Use, attributes, walk
from ctrlgrad.ir.control import loop_name
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.memory.session import current
from ctrlgrad.runtime.rows import row_pushes
from ctrlgrad.runtime.stack import CPU, BlockStack, copied

Control = Callable[[Node, Kernels], Callable[[list[Any], Run], Any]]


def as_lists(values: Sequence[Any]) -> list[Any]:
    """Values with each block stack as the list of its rows."""
    return [as_list(x) for x in values]


def as_list(value: Any) -> Any:
    """A value, a block stack as the list of its rows."""
    return value.rows() if isinstance(value, BlockStack) else value


def _pure(table: Pure) -> Pure:
    def factory(node: Node) -> Callable[..., Any]:
        kernel = table(node)
        return lambda *operands: kernel(*as_lists(operands))

    return factory


def _in_place(table: InPlace) -> InPlace:
    def factory(node: Node) -> Callable[[list[Any], Run], Any]:
        kernel = table(node)

        def run_kernel(operands: list[Any], run: Run) -> Any:
            for i in range(len(operands)):
                if isinstance(operands[i], BlockStack):
                    operands[i] = _counted_rows(operands[i])
            return kernel(operands, run)

        return run_kernel

    return factory


def _counted(row: Any) -> np.ndarray:
    """A copy of a row; in a session its bytes count."""
    return copied(np.asarray(row), "a row that stays where it is")


def _counted_rows(stack: BlockStack) -> list[Any]:
    if current() is None:
        return stack.rows()
    return [None if row is None else _counted(row) for row in stack.rows()]


def _length(node: Node) -> Callable[..., Any]:
    return lambda s: np.int64(len(s))


def _to_tensor(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_to_tensor"](node)
    # An empty stack may not know the shape of its rows; the operands do.
    return lambda s, *dims: s.tensor() if isinstance(s, BlockStack) and s.blocks else kernel(as_list(s), *dims)


def _rows(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_rows"](node)
    axis = attributes.Axis.of(node).axis
    return lambda s: np.full(len(s), s.shape[axis], np.int64) if isinstance(s, BlockStack) else kernel(s)


def _concat(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_concat"](node)
    if attributes.Axis.of(node).axis != 0:
        return lambda s, *rest: kernel(*as_lists([s]), *rest)
    # Rows of one shape, one below the other: their elements lie as they should.
    return lambda s, *rest: (
        s.tensor().reshape(len(s) * s.shape[0], *s.shape[1:]) if isinstance(s, BlockStack) else kernel(s, *rest)
    )


def _read(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_read"](node)

    def read(s: Any, index: Any, *dims: Any) -> Any:
        if not isinstance(s, BlockStack):
            return kernel(s, index, *dims)
        position, length = int(index), len(s)
        if not -length <= position < length:
            return kernel(s.rows(), index)
        row = s.row(position % length)
        return np.zeros(s.shape, s.dtype) if row is None else row

    return read


def _sum(node: Node) -> Callable[..., Any]:
    """Two stacks, row by row, are a stack of the same kind."""
    kernel = REFERENCE.pure["stack_sum"](node)

    def add(a: Any, b: Any) -> Any:
        longer, shorter = (b, a) if len(a) < len(b) else (a, b)
        if isinstance(longer, BlockStack) and not shorter:
            return longer.copy()
        pushes = row_pushes()
        if pushes is None or not _are_alike(a, b):
            return kernel(*[_counted_rows(x) if isinstance(x, BlockStack) else x for x in (a, b)])
        total = pushes.stack(node, longer.dtype, longer.shape)
        others = iter(shorter)
        for row in longer:
            other = next(others, None)
            total.push(row if other is None else row + other)
        return total

    return add


def _are_alike(a: Any, b: Any) -> bool:
    stacks = isinstance(a, BlockStack) and isinstance(b, BlockStack)
    return stacks and a.shape == b.shape and a.written is None and b.written is None


def _push(node: Node) -> Callable[[list[Any], Run], Any]:
    """In a session a row goes into a block; on a list that holds rows already it is one more of them, and counts."""
    kernel = _in_place(REFERENCE.in_place["stack_push"])(node)

    def push(operands: list[Any], run: Run) -> Any:
        if not operands[0]:
            pushes = row_pushes()
            if pushes is not None and not _is_of(operands[0], operands[1]):
                operands[0] = pushes.stack(node, operands[1].dtype, np.shape(operands[1]))
        if isinstance(operands[0], BlockStack) and _takes(node, operands[0], operands[1]):
            s = own_stack(operands)
            s.push(operands[0])
            run.counters.pushed(node, operands[0])
            return s
        if current() is not None:
            operands[1] = _counted(operands[1])
        return kernel(operands, run)

    return push


def _is_of(s: Any, row: Any) -> bool:
    return isinstance(s, BlockStack) and s.shape == np.shape(row)


def _takes(node: Node, s: BlockStack, row: Any) -> bool:
    """Return true if a block stack takes a row as it is: in a session, and if the row has the shape of the stack's
    rows."""
    pushes = row_pushes()
    if pushes is None or s.written is not None:
        return False
    if not _is_of(s, row):
        pushes.stays(node, s.shape, np.shape(row))
        return False
    if s.tails is None or not s.blocks:
        # A loop in machine code made it, or all its rows were popped: another run begins.
        s.tails = pushes.tails(node)
    return True


def _pop(node: Node) -> Callable[[list[Any], Run], Any]:
    kernel = _in_place(REFERENCE.in_place["stack_pop"])(node)

    def pop(operands: list[Any], run: Run) -> Any:
        if not isinstance(operands[0], BlockStack) or current() is None or not operands[0]:
            return kernel(operands, run)
        s = own_stack(operands)
        row = s.pop()
        run.counters.popped(node)
        return s, row

    return pop


def with_blocks(name: str, loop: Control) -> Kernels:
    """The reference engine's kernels, able to take block stacks, with another kernel for loops."""
    pure, in_place = dict(REFERENCE.pure), dict(REFERENCE.in_place)
    pure |= {op: _pure(table) for op, table in pure.items() if Trait.STACK in OPS[op].traits}
    in_place |= {op: _in_place(table) for op, table in in_place.items() if Trait.STACK in OPS[op].traits}
    in_place |= {"stack_push": _push, "stack_pop": _pop}
    pure |= {
        "stack_length": _length,
        "stack_read": _read,
        "stack_sum": _sum,
        "stack_to_tensor": _to_tensor,
        "stack_rows": _rows,
        "stack_concat": _concat,
    }
    return Kernels(name, pure, in_place, {**REFERENCE.control, "while": loop})


class NotedLoop(InterpretedLoop):
    """A `while` node whose time a session records, where it is the outermost one."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        super().__init__(node, kernels)
        pops = any(inner.op.has_use(Use.POP) for inner in walk(node.regions[1]))
        self.phase: Phase = "backward" if pops else "forward"

    def __call__(self, values: list[Any], run: Run) -> Any:
        session = current()
        if session is None or run.iterations:
            return super().__call__(values, run)
        with session.manager(CPU).running(loop_name(self.node), self.phase):
            return super().__call__(values, run)


# Kernels of engines without machine code in a session: the reference engine's kernels, to the bit.
IN_BLOCKS = with_blocks("reference in blocks", NotedLoop)
