"""Kernels that know block stacks: what the reference engine has as a list, loops in machine code leave as blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.account import empty
from ctrlgrad.engines.products import matmul
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run
from ctrlgrad.engines.reference.table import InPlace, Pure
from ctrlgrad.ir import Node
from ctrlgrad.memory.session import current
from ctrlgrad.stacks.blocks import BlockStack

Control = Callable[[Node, Kernels], Callable[[list[Any], Run], Any]]


def as_lists(values: Sequence[Any]) -> list[Any]:
    """Values with each block stack as the list of its rows."""
    return [x.rows() if isinstance(x, BlockStack) else x for x in values]


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
                    operands[i] = operands[i].rows()
            return kernel(operands, run)

        return run_kernel

    return factory


def _length(node: Node) -> Callable[..., Any]:
    return lambda s: np.int64(len(s))


def _to_tensor(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_to_tensor"](node)
    return lambda s, *dims: s.tensor() if isinstance(s, BlockStack) else kernel(s, *dims)


def _rows(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_rows"](node)
    axis = node.attrs["axis"]
    return lambda s: np.full(len(s), s.shape[axis], np.int64) if isinstance(s, BlockStack) else kernel(s)


def _concat(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_concat"](node)
    if node.attrs["axis"] != 0:
        return lambda s, *rest: kernel(*as_lists([s]), *rest)
    # Rows of one shape, one below the other: their elements lie as they should.
    return lambda s, *rest: (
        s.tensor().reshape(len(s) * s.shape[0], *s.shape[1:]) if isinstance(s, BlockStack) else kernel(s, *rest)
    )


def _push(node: Node) -> Callable[[list[Any], Run], Any]:
    """Rows that an interpreted loop pushes stay where they are; in a session they count."""
    kernel = _in_place(REFERENCE.in_place["stack_push"])(node)

    def push(operands: list[Any], run: Run) -> Any:
        if current() is not None:
            row = empty(np.shape(operands[1]), operands[1].dtype, "a row that an interpreted loop pushed")
            row[...] = operands[1]
            operands[1] = row
            del row
        return kernel(operands, run)

    return push


def with_blocks(name: str, loop: Control) -> Kernels:
    """The reference engine's kernels, able to take block stacks, with another way to run loops."""
    pure, in_place = dict(REFERENCE.pure), dict(REFERENCE.in_place)
    pure |= {op: _pure(table) for op, table in pure.items() if op.startswith("stack_")}
    in_place |= {op: _in_place(table) for op, table in in_place.items() if op.startswith("stack_")}
    in_place["stack_push"] = _push
    pure |= {
        "stack_length": _length,
        "stack_to_tensor": _to_tensor,
        "stack_rows": _rows,
        "stack_concat": _concat,
        "matmul": lambda node: matmul,
    }
    return Kernels(name, pure, in_place, {**REFERENCE.control, "while": loop})


__all__ = ["as_lists", "with_blocks"]
