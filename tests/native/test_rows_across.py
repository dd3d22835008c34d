"""Rows reduced side by side, one lane each: values, gradients, and the printed text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import target
from tests.native.test_short_rows import text_of

ROWS, TERMS = (1, 7, 8, 9, 33, 100), (1, 2, 5, 8, 16, 17, 40)
REDUCTIONS = {
    "distances": lambda m, p: cnp.sum((m - p) ** 2, axis=1),
    "products": lambda m, p: cnp.prod(1.0 + 0.1 * m * p, axis=1),
    "max": lambda m, p: cnp.max(m * p, axis=1),
    "two": lambda m, p: cnp.min(m - p, axis=1) * cnp.sum(m * p, axis=1),
    "positions": lambda m, p: cnp.argmax(m * p, axis=1) + 0.5,
    "bools": lambda m, p: cnp.any(m > p, axis=1) * 1.0,
    "transposed": lambda m, p: cnp.sum(cnp.transpose(cnp.transpose(m) * p[:, None] + 1.0), axis=1),
}


@pytest.fixture(params=[16, 32, 64], ids=lambda n: f"{n} bytes")
def vector_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> int:
    """Compile for vectors of another processor: LLVM splits them into several of this one's, or uses a part of one."""
    monkeypatch.setattr(target.Target, "vector_bytes", property(lambda _: request.param))
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    return int(request.param)


def in_loop(reduce: Any) -> Any:
    """A loop over points that adds up a reduction of the matrix for each point."""

    def program(matrix: Any, points: Any) -> Any:
        def body(t: Any, s: Any) -> Any:
            return s + (t + 1.0) * reduce(matrix, points[t])

        return cg.fori_loop(0, points.shape[0], body, cnp.zeros(matrix.shape[0], dtype="float64"))

    return program


def expected_of(reduce: Any, matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    with cg.options(engine="reference"):
        found = [(t + 1.0) * np.asarray(reduce(matrix, point)) for t, point in enumerate(points)]
    return np.sum(found, axis=0, dtype=np.float64)


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_all_sizes(name: str, dtype: str, vector_bytes: int) -> None:
    reduce = REDUCTIONS[name]
    anything = (cg.TensorSpec((None, None), dtype),) * 2
    function = cg.function(in_loop(reduce), signature=anything, engine="native")
    rng = np.random.default_rng(0)
    for rows in ROWS:
        for terms in TERMS:
            matrix, points = rng.normal(size=(rows, terms)).astype(dtype), rng.normal(size=(3, terms)).astype(dtype)
            matrix[rows // 2, terms // 2] = np.nan
            tolerance = 1e-4 if dtype == "float32" else 1e-12
            expected = expected_of(reduce, matrix, points)
            np.testing.assert_allclose(function(matrix, points), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize(("rows", "terms"), [(9, 3), (100, 8), (31, 16)])
def test_values_of_known_sizes(name: str, rows: int, terms: int) -> None:
    rng = np.random.default_rng(1)
    matrix, points = rng.normal(size=(rows, terms)), rng.normal(size=(3, terms))
    found = cg.function(in_loop(REDUCTIONS[name]), engine="native")(matrix, points)
    np.testing.assert_allclose(found, expected_of(REDUCTIONS[name], matrix, points), rtol=1e-12)


def test_a_matrix_with_too_many_elements_is_read_as_it_is() -> None:
    rng = np.random.default_rng(2)
    function = cg.function(in_loop(REDUCTIONS["distances"]), signature=(cg.TensorSpec((None, None)),) * 2)
    for rows in (1024, 1025, 5000):
        matrix, points = rng.normal(size=(rows, 16)), rng.normal(size=(2, 16))
        np.testing.assert_allclose(
            function(matrix, points), expected_of(REDUCTIONS["distances"], matrix, points), rtol=1e-12
        )


@pytest.mark.parametrize("is_known", [True, False])
def test_a_part_of_a_matrix_that_stays(is_known: bool) -> None:
    """A slice that stays in place: rows from the third one on, reversed, and every second column from the second one
    on."""
    rng = np.random.default_rng(5)
    whole, points = rng.normal(size=(40, 9)), rng.normal(size=(3, 4))
    signature = None if is_known else (cg.TensorSpec((None, 9)), cg.TensorSpec((None, 4)))

    def program(whole: Any, points: Any) -> Any:
        return in_loop(REDUCTIONS["distances"])(whole[2:][::-1, 1::2], points)

    found = cg.function(program, signature=signature, engine="native")(whole, points)
    part = whole[2:][::-1, 1::2]
    np.testing.assert_allclose(found, expected_of(REDUCTIONS["distances"], part, points), rtol=1e-12)


def test_a_matrix_that_an_outer_loop_changes() -> None:
    """The reduction reads the matrix of the current outer iteration, not of the first one."""

    def inner(m: Any, points: Any) -> Any:
        return in_loop(REDUCTIONS["distances"])(m, points)

    def program(matrix: Any, points: Any) -> Any:
        return cg.fori_loop(0, 3, lambda t, m: m * 0.9 + 1e-2 * inner(m, points)[:, None], matrix)

    rng = np.random.default_rng(3)
    matrix, points = rng.normal(size=(20, 5)), rng.normal(size=(4, 5))
    expected = matrix
    for _ in range(3):
        expected = expected * 0.9 + 1e-2 * expected_of(REDUCTIONS["distances"], expected, points)[:, None]
    np.testing.assert_allclose(cg.function(program, engine="native")(matrix, points), expected, rtol=1e-12)


def nearest(matrix: Any, points: Any) -> Any:
    """Assign each point to the nearest row, softly and exactly."""

    def body(t: Any, s: Any) -> Any:
        distances = cnp.sum((matrix - points[t]) ** 2, axis=1)
        soft = -cnp.log(cnp.sum(cnp.exp(-distances)))
        hard = cnp.sum((matrix[cnp.argmin(distances)] - points[t]) ** 2)
        return s + soft + hard * cnp.max(distances)

    return cg.fori_loop(0, points.shape[0], body, 0.0)


def test_derivatives_of_what_is_nearest() -> None:
    rng = np.random.default_rng(4)
    matrix, points = rng.normal(size=(21, 3)), rng.normal(size=(4, 3))
    with cg.options(engine="native"):
        cg.check_grads(nearest, (matrix, points), order=2)


@pytest.mark.parametrize(("vector_bytes", "lanes"), [(32, 4), (64, 8)])
def test_no_lanes_are_added_up(vector_bytes: int, lanes: int) -> None:
    """Columns that lie side by side need no sum across lanes: four vectors of rows at a time, then one, each with
    all terms."""
    text = text_of(lambda x: cnp.sum(cnp.transpose(x) * 3.0, axis=1), (5, 4 * lanes + 3), vector_bytes)
    assert re.findall(r"store (<.*> )%", text)[-1] == f"<{lanes} x double> "
    # A number is broadcast to all lanes; no other shuffle is printed.
    assert all(line.endswith("zeroinitializer") for line in text.splitlines() if "shufflevector" in line)
    assert "extractelement" not in text
    assert text.count("@llvm.fmuladd.v") == 5


@pytest.mark.parametrize(("rows", "together", "latest"), [(35, "3", None), (41, "9", "33"), (27, None, "19")])
def test_some_rows_are_reduced_twice_where_some_are_left_over(
    rows: int, together: str | None, latest: str | None
) -> None:
    """Some rows are reduced twice where the number of rows is no multiple of a vector.

    Of 35 rows the first eight come first, then the 32 from row 3 on. Of 41 rows the first vector comes first, then
    another one, then the rows from row 9 on. Of 27 rows, too few for a group, the last vector is the last eight rows.
    """
    text = text_of(lambda x: cnp.sum(cnp.transpose(x) * 3.0, axis=1), (5, rows), 64)
    assert (set(re.findall(r"getelementptr double, ptr %x, i64 (\d+)", text)) - {"0"}) == {together} - {None}
    assert re.findall(r"smin.i64\(i64 %\d+, i64 (\d+)\)", text) == [latest] * (latest is not None)
    assert len(re.findall(r"store <8 x double> %\d+, ptr %\d+, align 8", text)) == (1 if together is None else 5)


def test_fewer_rows_than_a_vector_has_are_not_taken_side_by_side() -> None:
    """Fewer rows than lanes are not reduced side by side; a vector would begin before the first row, which no result
    shows."""
    signature = (cg.TensorSpec((5, None), "float64"),)
    text = text_of(lambda x: cnp.sum(cnp.transpose(x) * 3.0, axis=1), (5, 35), 64, signature=signature)
    (does,) = re.findall(r"(%\d+) = icmp sge i64 %n, 8\n", text)
    assert f"select i1 {does}, i64 %n, i64 0" in text
