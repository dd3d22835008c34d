"""A stack's rows as an array, and an array as a stack, in machine code: in place, joined, copied, empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.engines.native.outside import Outside
from ctrlgrad.engines.native.stacks import FrameStack

UNKNOWN = (cg.TensorSpec((None, 3)), cg.TensorSpec((3,)))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Counts of joins of blocks, copies of rows, and reference kernels that touch stacks."""
    found = {"join": 0, "copy_rows": 0, "computed": 0}

    def counted(cls: Any, name: str) -> None:
        right = getattr(cls, name)

        def call(self: Any, *args: Any) -> Any:
            found[name] += 1
            return right(self, *args)

        monkeypatch.setattr(cls, name, call)

    counted(FrameStack, "join")
    counted(FrameStack, "copy_rows")
    counted(Outside, "computed")
    yield found


def scanned(xs: Any, h: Any) -> Any:
    def body(h: Any, x: Any) -> Any:
        h = cnp.tanh(h * 0.5 + x)
        return h, (h * 2, cnp.sum(h))

    return cg.scan(body, h, xs)[1]


def loss(xs: Any, h: Any) -> Any:
    rows, sums = scanned(xs, h)
    return cnp.sum(rows**2) + cnp.sum(cnp.cos(sums))


def both(fn: Any, *arguments: Any, signature: Any = None) -> Any:
    """The native engine's results, after a comparison with the reference engine's."""
    expected = cg.function(fn, engine="reference", signature=signature)(*arguments)
    native = cg.function(fn, engine="native", signature=signature)
    for _ in range(2):
        found = native(*arguments)
        for x, y in zip(cg.tree.leaves(expected), cg.tree.leaves(found), strict=True):
            assert np.asarray(x).dtype == np.asarray(y).dtype and np.shape(x) == np.shape(y)
            np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-12)
    return found


@pytest.mark.parametrize("length", [0, 1, 2, 300, 1500])
def test_a_scan_and_its_gradients(length: int, counts: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    xs, h = rng.normal(size=(length, 3)), rng.normal(size=3)
    both(scanned, xs, h, signature=UNKNOWN)
    both(cg.grad(loss, argnums=(0, 1)), xs, h, signature=UNKNOWN)
    # After a run with several blocks, the next call has one block for all rows.
    assert counts["join"] <= 4 * (length > 256) and counts["copy_rows"] == counts["computed"] == 0
    if length == 2:
        both(cg.grad(lambda xs, h: cnp.sum(cg.grad(loss)(xs, h) ** 2), argnums=(0, 1)), xs, h, signature=UNKNOWN)


def test_lengths_change_from_call_to_call() -> None:
    function = cg.function(cg.value_and_grad(loss), engine="native", signature=UNKNOWN)
    reference = cg.function(cg.value_and_grad(loss), engine="reference", signature=UNKNOWN)
    rng = np.random.default_rng(1)
    for length in (3, 700, 20, 0, 2000, 5, 900):
        xs, h = rng.normal(size=(length, 3)), rng.normal(size=3)
        for x, y in zip(cg.tree.leaves(reference(xs, h)), cg.tree.leaves(function(xs, h)), strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-11, atol=1e-11)


def test_results_are_the_callers_own() -> None:
    function = cg.function(scanned, engine="native")
    xs, h = np.ones((400, 3)), np.zeros(3)
    first = function(xs, h)
    kept = [x.copy() for x in first]
    function(xs * 2, h)
    for x, y in zip(first, kept, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_stack_that_is_needed_later_is_copied(counts: dict[str, int]) -> None:
    def written_after(x: Any, n: Any) -> Any:
        rows = cg.TensorArray(np.float64, element_shape=(3,), rewritable=True)
        rows = cg.fori_loop(0, n, lambda i, rows: rows.write(i, x * i), rows)
        before = rows.stack()
        rows = rows.write(1, x * 100)
        return before, rows.stack(), before * 2

    both(written_after, np.arange(3.0), 5)
    both(written_after, np.arange(3.0), 700)
    assert counts["computed"] == 0


def test_rows_in_a_loop(counts: dict[str, int]) -> None:
    """Each iteration makes a stack of an array, and reads an array that comes from a stack."""

    def repeated(x: Any, n: Any) -> Any:
        fixed = cg.TensorArray(np.float64, 4, element_shape=()).unstack(x)

        def body(i: Any, x: Any) -> Any:
            return cg.scan(lambda s, e: (s + e, s * e), x[0], x)[1] * 0.1 + fixed.stack()

        return cg.fori_loop(0, n, body, x)

    both(repeated, np.arange(4.0), 3)
    both(cg.grad(lambda x: cnp.sum(repeated(x, 3) ** 2)), np.arange(4.0))


def test_slots_that_were_never_written_are_zeros() -> None:
    def sparse(x: Any) -> Any:
        rows = cg.TensorArray(np.float64, 5, element_shape=(3,))
        return rows.write(1, x).write(3, x * 2).stack()

    found = both(sparse, np.arange(3.0))
    assert not found[[0, 2, 4]].any()


def test_rows_of_unknown_shape_and_none_of_them_are_the_same_error() -> None:
    def empty(x: Any, n: Any) -> Any:
        rows = cg.TensorArray(np.float64, element_shape=(None,))
        return cg.fori_loop(0, n, lambda i, rows: rows.write(i, x), rows).stack()

    signature = (cg.TensorSpec((None,)), cg.TensorSpec((), np.int64))
    both(empty, np.arange(3.0), 4, signature=signature)
    messages = []
    for engine in ("reference", "native"):
        with pytest.raises(cg.errors.CtrlgradError) as caught:
            cg.function(empty, engine=engine, signature=signature)(np.arange(3.0), 0)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_under_a_budget() -> None:
    rng = np.random.default_rng(2)
    xs, h = rng.normal(size=(3000, 3)), rng.normal(size=3)
    function = cg.function(cg.value_and_grad(loss), engine="native")
    expected = function(xs, h)
    with memory.budget(device="1 MiB"):
        found = function(xs, h)
    for x, y in zip(cg.tree.leaves(expected), cg.tree.leaves(found), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-12)
