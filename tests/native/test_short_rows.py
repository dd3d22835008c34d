"""Rows reduced several at a time have the bits of rows reduced alone, and their sums form one vector."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import target
from ctrlgrad.engines.native.nests import KernelWriter
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel
from ctrlgrad.plan.vectors import vectors_of
from tests.plan.plans import plan_of

REDUCTIONS = {
    "sum": lambda x: cnp.sum(x * x, axis=1),
    "product": lambda x: cnp.prod(x, axis=1),
    "max": lambda x: cnp.max(x, axis=1),
    "sum of columns": lambda x: cnp.sum(cnp.transpose(x) * 3.0, axis=0),
    "two": lambda x: cnp.sum(x, axis=1) - cnp.min(x, axis=1),
    "position": lambda x: cnp.argmax(x, axis=1),
    "no zeros": lambda x: cnp.sum(x * x + 1.0, axis=1),
    "every other": lambda x: cnp.sum(x[::2] * 2.0, axis=1),
}


@pytest.fixture(params=[16, 32, 64], ids=lambda n: f"{n} bytes")
def vector_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> int:
    """Compile for vectors of another processor: LLVM splits them into several of this one's, or uses a part of one."""
    monkeypatch.setattr(target.Target, "vector_bytes", property(lambda _: request.param))
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    return int(request.param)


def _by_few(function, x: np.ndarray, step: int = 1) -> np.ndarray:
    """Results of two rows at a time, too few to be grouped; with `step=2`, of every second row."""
    if step == 2:
        return np.concatenate([function(x[i : i + 2]) for i in range(0, len(x), 2)])
    return np.concatenate([function(x[i : i + 2])[: 1 + (i == len(x) - 2)] for i in range(len(x) - 1)])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, t) for n in sorted(REDUCTIONS) for t in ("float32", "float64")] + [("sum", "complex128")],
)
def test_rows_together_have_the_bits_of_each_alone(name: str, dtype: str, vector_bytes: int) -> None:
    reduce = REDUCTIONS[name]
    function = cg.function(reduce, signature=(cg.TensorSpec((None, None), dtype),), engine="native")
    rng = np.random.default_rng(0)
    for rows in (2, 3, 4, 5, 8, 11, 17):
        for columns in (2, 3, 4, 5, 8, 9, 15, 16, 17, 35, 66):
            x = rng.normal(size=(rows, columns)).astype(dtype)
            if rows > 2:
                x[2, columns // 2], x[1, 0] = np.nan, -0.0
            step = 2 if name == "every other" else 1
            x = x[: rows // step * step]
            found = function(x)
            np.testing.assert_array_equal(found, _by_few(function, x, step))
            with cg.options(engine="reference"):
                tolerance = 2e-5 if dtype == "float32" else 1e-12
                np.testing.assert_allclose(found, reduce(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(6, 3), (9, 8), (5, 31), (7, 64)])
def test_rows_of_a_known_size_as_of_an_unknown_one(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).normal(size=shape)
    reduce = REDUCTIONS["sum"]
    unknown = cg.function(reduce, signature=(cg.TensorSpec((None, shape[1]), "float64"),), engine="native")
    known = cg.function(reduce, engine="native")
    np.testing.assert_array_equal(known(x), _by_few(unknown, x))
    np.testing.assert_allclose(known(x), np.sum(x * x, axis=1), rtol=1e-13)


def text_of(function: Any, shape: tuple[int, ...], vector_bytes: int, **given: Any) -> str:
    """The printed text of a function's single kernel."""
    plan = plan_of(function, np.zeros(shape), **given)
    (kernel,) = (step for step in walk(plan.body) if isinstance(step, Kernel))
    writer = Writer()
    places: Sequence[Any] = [lambda _: "%x", lambda _: "%n", lambda size: str(size.factor) if size.is_known else "%n"]
    KernelWriter(writer, kernel, *places, lambda *_: None, vectors_of(kernel, vector_bytes, False)).write()
    return writer.function("void @f()")


def kernel_text(rows: int, columns: int, vector_bytes: int) -> str:
    """The printed text of a kernel that sums rows."""
    return text_of(lambda x: cnp.sum(x * x, axis=1), (rows, columns), vector_bytes)


@pytest.mark.parametrize(("vector_bytes", "lanes"), [(32, 4), (64, 8)])
def test_the_sums_of_rows_become_one_vector(vector_bytes: int, lanes: int) -> None:
    """Sums of `lanes` rows take `lanes - 1` additions of vectors; each row alone would take log2 of that many."""
    text = kernel_text(3 * lanes, lanes, vector_bytes)
    assert text.count("shufflevector") == 2 * (lanes - 1)
    assert text.count("fadd") == lanes - 1
    assert re.findall(r"store (<.*> )%", text) == [f"<{lanes} x double> "] * (lanes + 1)
    assert "extractelement" not in text


def test_the_last_rows_are_reduced_again_where_some_are_left_over() -> None:
    """Eleven rows are two groups of eight; the second group begins with the fourth row."""
    text = kernel_text(11, 8, 64)
    assert text.count("fmul") == 8
    assert "@llvm.smin.i64(i64 %" in text
    assert ", i64 3)" in text


def test_rows_reduced_again_read_what_they_did_before() -> None:
    """Rows that are reduced twice read the same operand both times, even where the result takes the operand's memory
    in a loop."""
    x = np.random.default_rng(3).normal(size=(11, 8)) / 3

    def body(_: Any, y: Any) -> Any:
        return cnp.sum(x * y[:, None] + 0.5, axis=1)

    y = expected = np.ones(11)
    for _ in range(4):
        expected = np.sum(x * expected[:, None] + 0.5, axis=1)
    found = cg.function(lambda y: cg.fori_loop(0, 4, body, y), engine="native")(y)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_nothing_waits_for_an_extreme_but_the_next_one() -> None:
    """An extreme depends only on the extreme before it: NaN is tested beforehand, and the two conditions are not
    combined."""
    text = text_of(lambda x: cnp.max(x), (400,), 64, signature=(cg.TensorSpec((None,), "float64"),))
    (body,) = re.findall(r"body\.\d+:\n(?:  .*\n)*?  %\d+ = load <8 x double>(?:.*\n)*?  br", text)[:1]
    assert " or " not in text
    assert body.count("fcmp ogt") == body.count("fcmp uno") == body.count("load <8 x double>, ptr %e") == 4


@pytest.mark.parametrize(("vector_bytes", "masks"), [(16, 0), (32, 1), (64, 1)])
def test_the_rest_of_a_sum_is_one_masked_vector(vector_bytes: int, masks: int) -> None:
    signature = (cg.TensorSpec((None,), "float64"),)
    text = text_of(lambda x: cnp.sum(x + 1.0), (400,), vector_bytes, signature=signature)
    assert text.count("call <") == masks and ("@llvm.masked.load" in text) == bool(masks)
    # Stores go element by element.
    text = text_of(lambda x: x * x, (400,), vector_bytes, signature=signature)
    assert "@llvm.masked" not in text
