"""Reductions of reduced rows, vector by vector: values of all sizes, and what is not written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import target
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Cascade, Plan
from tests.plan.plans import graph_of, placed

# Fewer rows than a vector has lanes, as many, some more, some whole turns with and without others beside them.
ROWS, TERMS = (1, 7, 8, 12, 16, 31, 32, 33, 40, 67, 100), (1, 3, 8, 16, 17)
# Of distances and weights.
REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda d, w: cnp.sum(d),
    "mapped sum": lambda d, w: cnp.sum(cnp.sqrt(d) + 1.0),
    "dot": lambda d, w: cnp.sum(d * w),
    "function": lambda d, w: cnp.sum(cnp.exp(-d)),
    "max": lambda d, w: cnp.max(d * w),
    "min": lambda d, w: cnp.min(d),
    "argmin": lambda d, w: cnp.argmin(d),
    "argmax": lambda d, w: cnp.argmax(d * w),
    "any": lambda d, w: cnp.any(d > 9.0),
    "all": lambda d, w: cnp.all(d > 1e-2),
    "two": lambda d, w: (cnp.sum(d, keepdims=True) * cnp.max(d, keepdims=True))[0],
}
SPECS = ((None, None), (None, None), (None,))


@pytest.fixture(params=[16, 32, 64], ids=lambda n: f"{n} bytes")
def vector_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> int:
    """Vectors of another processor: LLVM makes several of this one's of them, or uses a part."""
    monkeypatch.setattr(target.Target, "vector_bytes", property(lambda _: request.param))
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    return int(request.param)


def distances(matrix: Any, point: Any) -> Any:
    return cnp.sum((matrix - point) ** 2, axis=1)


def in_loop(reduce: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A number for each point, the second one counting twice, and so on."""

    def program(matrix: Any, points: Any, weights: Any) -> Any:
        def body(t: Any, s: Any) -> Any:
            return s + (t + 1.0) * reduce(distances(matrix, points[t]), weights)

        return cg.fori_loop(0, points.shape[0], body, 0.0)

    return program


def expected_of(reduce: Callable[[Any, Any], Any], matrix: Any, points: Any, weights: Any) -> float:
    with cg.options(engine="reference"):
        found = [reduce(distances(matrix, point), weights) for point in points]
    return float(sum((t + 1.0) * float(x) for t, x in enumerate(found)))


@in_turn("name, dtype", list(REDUCTIONS), ["float32", "float64"])
def test_values_of_all_sizes(name: str, dtype: str, vector_bytes: int) -> None:
    reduce = REDUCTIONS[name]
    signature = tuple(cg.TensorSpec(shape, dtype) for shape in SPECS)
    function = cg.function(in_loop(reduce), signature=signature, engine="native")
    rng, tolerance = np.random.default_rng(0), 1e-4 if dtype == "float32" else 1e-12
    for rows in ROWS:
        for terms in TERMS:
            shapes = ((rows, terms), (3, terms), (rows,))
            given = [rng.normal(size=shape).astype(dtype) for shape in shapes]
            np.testing.assert_allclose(
                function(*given), expected_of(reduce, *given), rtol=tolerance, err_msg=f"{rows} rows of {terms}"
            )


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("rows", [9, 33, 47, 100])
def test_values_of_known_sizes(name: str, rows: int) -> None:
    rng = np.random.default_rng(1)
    given = [rng.normal(size=shape) for shape in ((rows, 5), (3, 5), (rows,))]
    found = cg.function(in_loop(REDUCTIONS[name]), engine="native")(*given)
    np.testing.assert_allclose(found, expected_of(REDUCTIONS[name], *given), rtol=1e-12)


@pytest.mark.parametrize("rows", [8, 13, 32, 45, 100])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["argmin", "argmax", "min", "max", "sum"])
def test_a_row_with_a_special_number(name: str, special: float, rows: int) -> None:
    """Wherever it is, and twice: the first NaN is the extreme, and of equal numbers the first one."""
    reduce = REDUCTIONS[name]

    def program(matrix: Any, point: Any) -> Any:
        """A row may have any sum."""
        body = lambda t, s: s + reduce(cnp.sum(matrix * point[t], axis=1), 1.0)
        return cg.fori_loop(0, 1, body, 0.0)

    function = cg.function(program, signature=(cg.TensorSpec((None, 2)), cg.TensorSpec((None, 2))), engine="native")
    matrix, ones = np.random.default_rng(2).normal(size=(rows, 2)), np.ones((1, 2))
    for first in range(rows):
        for second in (first, (first + 7) % rows, rows - 1):
            given = matrix.copy()
            given[[first, second], 0] = special
            with np.errstate(invalid="ignore"):
                sums = given.sum(axis=1)
                expected = {"argmin": np.argmin, "argmax": np.argmax, "min": np.min, "max": np.max, "sum": np.sum}[name]
                np.testing.assert_allclose(function(given, ones), float(expected(sums)))


@pytest.mark.parametrize("rows", [8, 13, 32, 45, 100])
def test_of_equal_rows_the_first_one_is_the_nearest(rows: int) -> None:
    function = cg.function(in_loop(REDUCTIONS["argmin"]), signature=tuple(map(cg.TensorSpec, SPECS)), engine="native")
    for first in range(rows):
        matrix = np.ones((rows, 3))
        matrix[first:] = 0.5
        assert function(matrix, np.zeros((1, 3)), np.ones(rows)) == first


def plan_of(name: str, without: tuple[str, ...] = ()) -> Plan:
    given = [np.ones(shape) for shape in ((100, 5), (3, 5), (100,))]
    return placed(graph_of(in_loop(REDUCTIONS[name]), *given), given, without)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_all_of_these_are_cascades(name: str) -> None:
    assert sum(isinstance(step, Cascade) for step in walk(plan_of(name).body)) == 1


@pytest.mark.parametrize(("without", "stores"), [((), 0), (("cascade",), 5)])
def test_what_lies_between_is_not_written(without: tuple[str, ...], stores: int) -> None:
    """A vector of its own and four at a time, where it is."""
    text = PlanWriter(plan_of("min", without), 64).function("plan")
    assert len(re.findall(r"store <8 x double> %\d+, ptr %\d+, align 8", text)) == stores


def nearest(matrix: Any, points: Any) -> Any:
    """Points belong to the nearest row, and softly to all."""

    def body(t: Any, s: Any) -> Any:
        point = points[t]
        nearest = matrix[cnp.argmin(distances(cg.stop_gradient(matrix), point))]
        return s + cnp.sum((nearest - point) ** 2) - cnp.log(cnp.sum(cnp.exp(-distances(matrix, point))))

    return cg.fori_loop(0, points.shape[0], body, 0.0)


def test_derivatives_of_what_is_nearest() -> None:
    rng = np.random.default_rng(4)
    matrix, points = rng.normal(size=(21, 3)), rng.normal(size=(4, 3))
    with cg.options(engine="native"):
        cg.check_grads(nearest, (matrix, points), order=2)
