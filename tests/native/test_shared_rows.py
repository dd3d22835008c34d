"""Two stacks that share rows do not see each other's pops and pushes."""

from __future__ import annotations

import numpy as np

from ctrlgrad.engines.native import engine
from ctrlgrad.ir import Graph, StackType, TensorType
from ctrlgrad.ir.builder import Builder
from ctrlgrad.runtime.stack import from_rows

ROW = TensorType(np.dtype(np.float64), (2,))


def test_a_push_after_a_pop_leaves_a_copied_stack_alone() -> None:
    b = Builder()
    x = b.input(ROW)
    whole = b.emit("stack_new", (), {"element": ROW})
    for factor in (1.0, 2.0, 3.0):
        whole = b.emit("stack_push", [whole, b.emit("multiply", [x, b.constant(factor)])])
    below, row = b.emit_all("stack_pop", [whole])
    other = b.emit("stack_push", [below, b.emit("add", [row, row])])
    graph = b.finish([b.emit("stack_to_tensor", [s], {"size": 3}) for s in (whole, other)])
    kept, changed = engine.run(graph, [np.array([1.0, 2.0])])
    np.testing.assert_array_equal(kept, [[1, 2], [2, 4], [3, 6]])
    np.testing.assert_array_equal(changed, [[1, 2], [2, 4], [6, 12]])


def last_row_doubled() -> Graph:
    b = Builder()
    below, row = b.emit_all("stack_pop", [b.input(StackType(ROW))])
    return b.finish([b.emit("stack_push", [below, b.emit("add", [row, row])])])


def test_the_rows_of_an_argument_stay_as_they_are() -> None:
    given = from_rows(np.dtype(np.float64), (2,), [np.ones(2), np.full(2, 2.0)])
    (found,) = engine.run(last_row_doubled(), [given])
    assert [row.tolist() for row in given] == [[1.0, 1.0], [2.0, 2.0]]
    assert [row.tolist() for row in found] == [[1.0, 1.0], [4.0, 4.0]]
