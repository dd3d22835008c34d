"""Kernels of stack ops: a stack is a list of arrays, None in a slot that was never written.

Those of `OF_ROWS` take the functions of arrays that they call as `xp`: NumPy's, or those of another library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.reference.run import Run
from ctrlgrad.engines.reference.table import IN_PLACE, PURE, own_stack
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError
from ctrlgrad.ir import Node, StackType, TensorType, attributes


def never_written(element: TensorType) -> ExecutionError:
    """Error of reading a slot that was never written, where its shape is unknown."""
    return ExecutionError(
        "TensorArray: a slot that was never written is read, and its shape is not known",
        expected="a slot that was written, or an element_shape without None",
        got=f"element type {element}",
        hint="write every slot before it is read",
    )


def _shape(element: TensorType, dims: Sequence[Any]) -> tuple[int, ...]:
    if not element.is_static and not dims:
        raise never_written(element)
    rest = iter(dims)
    return tuple(int(next(rest)) if d is None else d for d in element.shape)


def _element(node: Node) -> TensorType:
    t = node.operands[0].type
    assert isinstance(t, StackType)
    return t.element


def _slot(s: list[Any], index: Any) -> int:
    position = int(index)
    if not -len(s) <= position < len(s):
        raise beyond_the_slots(position, len(s))
    return position % len(s)


def beyond_the_slots(position: int, length: int) -> IndexOutOfRangeError:
    """The error of an index that no slot has."""
    return IndexOutOfRangeError(
        f"TensorArray: index {position} is out of range",
        expected=f"-{length} <= index < {length}",
        got=str(position),
        hint="give the array a larger size, or none: then a write at index size() makes it grow",
    )


def written_twice(position: int) -> ExecutionError:
    """The error of writing a slot again that may be written once."""
    return ExecutionError(
        f"TensorArray: slot {position} is written twice",
        expected="a slot that was not written before",
        got=f"another write at index {position}",
        hint="TensorArray(..., rewritable=True) makes an array whose slots may be written again",
    )


def _push(node: Node) -> Callable[[list[Any], Run], Any]:
    def kernel(operands: list[Any], run: Run) -> Any:
        s = own_stack(operands)
        (value,) = operands
        # A view would keep all of its base alive: a pushed row costs the row.
        if isinstance(value, np.ndarray) and _keeps_more(value):
            value = value.copy()
        s.append(value)
        run.counters.pushed(node, value)
        return s

    return kernel


def _keeps_more(value: np.ndarray) -> bool:
    """Answer whether an array keeps more memory alive than its own bytes, or memory of unknown size."""
    base = value
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base.base is not None or value.nbytes < base.nbytes


def _pop(node: Node, xp: Any = np) -> Callable[[list[Any], Run], Any]:
    element = _element(node)

    def kernel(operands: list[Any], run: Run) -> Any:
        s = own_stack(operands)
        if not s:
            raise ExecutionError("stack: popped more values than were pushed")
        value = s.pop()
        run.counters.popped(node)
        return s, xp.zeros(_shape(element, operands), element.dtype) if value is None else value

    return kernel


def _read(node: Node, xp: Any = np) -> Callable[..., Any]:
    element = _element(node)

    def kernel(s: list[Any], index: Any, *dims: Any) -> Any:
        value = s[_slot(s, index)]
        return xp.zeros(_shape(element, dims), element.dtype) if value is None else value

    return kernel


def _write(node: Node, xp: Any = np) -> Callable[[list[Any], Run], Any]:
    grow, once = attributes.Write.of(node).grow, attributes.Write.of(node).once

    def kernel(operands: list[Any], run: Run) -> Any:
        s = own_stack(operands)
        index, value = operands
        if grow and int(index) == len(s):
            s.append(value)
        else:
            position = _slot(s, index)
            if once and s[position] is not None:
                raise written_twice(position)
            s[position] = value
        return s

    return kernel


def _add(node: Node, xp: Any = np) -> Callable[[list[Any], Run], Any]:
    def kernel(operands: list[Any], run: Run) -> Any:
        s = own_stack(operands)
        index, value = operands
        position = _slot(s, index)
        s[position] = value if s[position] is None else xp.add(s[position], value)
        return s

    return kernel


def _clear(node: Node, xp: Any = np) -> Callable[[list[Any], Run], Any]:
    def kernel(operands: list[Any], run: Run) -> Any:
        s = own_stack(operands)
        s[_slot(s, operands[0])] = None
        return s

    return kernel


def _resize(node: Node, xp: Any = np) -> Callable[[list[Any], Run], Any]:
    def kernel(operands: list[Any], run: Run) -> Any:
        s = own_stack(operands)
        length = int(operands[0])
        del s[length:]
        s += [None] * (length - len(s))
        return s

    return kernel


def _sum(node: Node, xp: Any = np) -> Callable[..., Any]:
    """A row that was not written is nothing."""

    def kernel(a: list[Any], b: list[Any]) -> list[Any]:
        if len(a) < len(b):
            a, b = b, a
        sums = [y if x is None else x if y is None else xp.add(x, y) for x, y in zip(a, b, strict=False)]
        return sums + a[len(b) :]

    return kernel


def _to_tensor(node: Node, xp: Any = np) -> Callable[..., Any]:
    element = _element(node)

    def kernel(s: list[Any], *dims: Any) -> Any:
        if not s:
            return xp.zeros((0, *_shape(element, dims)), element.dtype)
        if any(v is None for v in s):
            known = next((np.shape(v) for v in s if v is not None), None)
            blank = xp.zeros(_shape(element, dims) if known is None else known, element.dtype)
            s = [blank if v is None else v for v in s]
        return xp.stack(s)

    return kernel


def _rows(node: Node, xp: Any = np) -> Callable[..., Any]:
    element, axis = _element(node), attributes.Axis.of(node).axis
    return lambda s: np.array([(_shape(element, ()) if v is None else v.shape)[axis] for v in s], np.int64)


def _concat(node: Node, xp: Any = np) -> Callable[..., Any]:
    element, axis = _element(node), attributes.Axis.of(node).axis
    others = TensorType(element.dtype, (*element.shape[:axis], 0, *element.shape[axis + 1 :]))

    def kernel(s: list[Any], rows: Any, *dims: Any) -> Any:
        known = next((v.shape for v in s if v is not None), None)
        shape = _shape(others, dims) if known is None else known

        def zeros(n: int) -> Any:
            return xp.zeros((*shape[:axis], n, *shape[axis + 1 :]), element.dtype)

        parts = [zeros(int(n)) if v is None else v for v, n in zip(s, rows, strict=True)]
        return xp.concatenate(parts, axis) if parts else zeros(0)

    return kernel


def _split(node: Node) -> Callable[..., Any]:
    axis = attributes.Axis.of(node).axis

    def kernel(x: Any, rows: Any) -> Any:
        # Copies: a view would keep the whole alive, and a slot may be updated in place.
        return [part.copy() for part in np.split(x, np.cumsum(rows)[:-1], axis)] if len(rows) else []

    return kernel


IN_PLACE["stack_push"] = _push
PURE["stack_new"] = lambda node: lambda size=0: [None] * int(size)
PURE["stack_length"] = lambda node: lambda s: np.int64(len(s))
PURE["stack_split"] = _split
PURE["stack_from_tensor"] = lambda node: lambda x: list(x)

_CHANGES: dict[str, Callable[..., Callable[[list[Any], Run], Any]]] = {
    "stack_pop": _pop,
    "stack_write": _write,
    "stack_add": _add,
    "stack_clear": _clear,
    "stack_resize": _resize,
}
_READS: dict[str, Callable[..., Callable[..., Any]]] = {
    "stack_read": _read,
    "stack_sum": _sum,
    "stack_to_tensor": _to_tensor,
    "stack_rows": _rows,
    "stack_concat": _concat,
}
IN_PLACE |= _CHANGES
PURE |= _READS
OF_ROWS = _CHANGES | _READS
"""Kernels of rows of any library, by op: of a node, and of the library's functions of arrays."""
