"""Ops on whole stacks by blocks agree with the reference kernels, which go row by row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from instruments.natively import run_natively
from programs import BY_NAME

from ctrlgrad import tree
from ctrlgrad.engines.native.outside import Call, Outside
from ctrlgrad.engines.reference import Run
from ctrlgrad.engines.reference.table import IN_PLACE, PURE
from ctrlgrad.ir import OPS, Node
from ctrlgrad.runtime.stack import WHOLE_STACKS, BlockStack, from_rows

F64 = np.dtype(np.float64)


def stack(length: int, *missing: int, parts: int = 1) -> tuple[BlockStack, list]:
    """A stack of rows of two numbers in a given number of blocks, and the same rows as a list."""
    rows = [None if k in missing else np.array([k + 1.0, -k]) for k in range(length)]
    if missing or parts == 1:
        return from_rows(F64, (2,), rows), rows
    made = BlockStack(F64, (2,))
    for part in np.array_split(np.arange(length), parts):
        for block in from_rows(F64, (2,), [rows[k] for k in part]).blocks:
            made.add(block)
    return made, rows


def same(found: BlockStack, expected: list) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found.rows(), expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            np.testing.assert_array_equal(a, b)


KINDS = ["plain", "unwritten", "parts", "empty"]


@pytest.mark.parametrize("length", [0, 2, 5, 8])
@pytest.mark.parametrize(
    "given", [stack(5), stack(5, 1, 4), stack(5, parts=3), stack(0)], ids=["plain", "unwritten", "parts", "empty"]
)
def test_resized(given: tuple[BlockStack, list], length: int) -> None:
    blocks, rows = given
    before = blocks.rows()
    kernel = IN_PLACE["stack_resize"](Node(OPS["stack_resize"], (), ()))
    same(WHOLE_STACKS["stack_resize"](blocks.copy(), np.int64(length)), kernel([list(rows), length], Run()))
    same(blocks, before)


def test_a_stack_that_gets_shorter_stays_where_it_is() -> None:
    """A stack that gets shorter stays in place: a loop that pops a row an iteration costs one row each."""
    blocks, _ = stack(5)
    array = blocks.blocks[0].storage.open()
    for length in (4, 3):
        blocks = WHOLE_STACKS["stack_resize"](blocks, np.int64(length))
        assert blocks.blocks[0].storage.open() is array


@pytest.mark.parametrize(
    "a", [stack(5), stack(5, 1, 4), stack(5, parts=3), stack(0)], ids=["plain", "unwritten", "parts", "empty"]
)
@pytest.mark.parametrize(
    "b", [stack(3), stack(3, 0, 1), stack(7, parts=2), stack(0)], ids=["plain", "unwritten", "parts", "empty"]
)
def test_summed(a: tuple[BlockStack, list], b: tuple[BlockStack, list]) -> None:
    kernel = PURE["stack_sum"](Node(OPS["stack_sum"], (), ()))
    before = a[0].rows(), b[0].rows()
    same(WHOLE_STACKS["stack_sum"](a[0], b[0]), kernel(a[1], b[1]))
    same(a[0], before[0])
    same(b[0], before[1])


@pytest.mark.parametrize("name", ["a_write_that_appends_to_rows", "tensor_array_of_unknown_size"])
def test_an_append_is_undone_without_a_call_of_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    right = Outside.computed

    def computed(self: Outside, call: Call, *rest: Any) -> Any:
        calls[call.node.op.name] += 1
        return right(self, call, *rest)

    monkeypatch.setattr(Outside, "computed", computed)
    program = BY_NAME[name]
    for order in (1, 2):
        found = run_natively(program.graph(order), tree.leaves(program.args))
        for a, b in zip(found, program.expected(order), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
        # The second gradient undoes a popped row, which leaves an unwritten row.
        assert (calls["stack_resize"] > 0) == (order == 2)
