"""Loop nests shared among threads give the same bits for every number of threads."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import threads
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.engines.native.products.library import products
from ctrlgrad.plan import sharing
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.decisions import with_vectors
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel, Plan, Share
from ctrlgrad.plan.printer import format_plan

RNG = np.random.default_rng(3)
X, Y = RNG.random((37, 150)) + 0.5, RNG.random((37, 150)) + 0.5
EACH = RNG.integers(0, X.size, X.size)
THREADS = (1, 2, 3, 7, 16, 64)
# Of the last job of the pool (`cg_pool_job`).
PANELS = 2


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Share nests that are small enough for tests."""
    monkeypatch.setattr(threads, "WORK_TO_SHARE", 1000)
    monkeypatch.setattr(threads, "WORK_OF_A_PART", 500)
    before = products().threads
    yield
    products().set_threads(before)


def plan_of(fn: Callable[..., Any], *args: np.ndarray) -> Plan:
    graph = optimised_graph(cg.function(fn).graph(*args))
    return engine.plan_of(graph, engine.shapes_of(graph, args))


def text_of(fn: Callable[..., Any], *args: np.ndarray) -> str:
    return PlanWriter(with_vectors(plan_of(fn, *args), 32)).function("plan")


def updated(x: Any, y: Any) -> Any:
    """A nest in a loop that overwrites the array that it reads."""
    return cg.fori_loop(0, 5, lambda i, x: cnp.sin(x) * y + i, x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: cnp.exp(-x) * cnp.sin(y) + x,
        lambda x, y: cnp.sum(cnp.tanh(x * y)),
        lambda x, y: (cnp.sum(x * y, axis=1), cnp.max(x - y, axis=1)),
        lambda x, y: (cnp.max(x - y), cnp.min(x * y), cnp.prod(1 + 1e-3 * x)),
        lambda x, y: cnp.any(x > 1.4 * y),
        lambda x, y: cnp.sum(x * cnp.exp(1j * y)),
        lambda x, y: cnp.sum(x.ravel() * cnp.arange(x.size)),
        lambda x, y: (x.T + y.T, cnp.sum(cnp.ones((4000,)) * x[0, 0])),
        lambda x, y: cnp.exp(x)[None, :, 3:] * y[0, :147],
        updated,
        cg.grad(lambda x, y: cnp.sum(updated(x, y) ** 2)),
        # Sums of columns over all rows: cut by columns, or by rows with partial sums.
        lambda x, y: (cnp.sum(x * y, axis=0), cnp.min(x - y, axis=0)),
        lambda x, y: (cnp.sum(x[:, :3] * y[:, :3], axis=0), cnp.prod(x[:, :3] * y[:, :3], axis=0)),
        lambda x, y: cnp.sum(x.reshape(-1, 2) * cnp.exp(1j * y.reshape(-1, 2)), axis=0),
        lambda x, y: cnp.argmax(x * y, axis=0),
        lambda x, y: (cnp.argmax(x), cnp.argmin(x * y), cnp.argmax(x.ravel()[2:] > 1.4)),
        lambda x, y: cnp.tile(x[:2, :20], (1, 30)) * cnp.exp(x.ravel()[:600]),
        # Small products.
        lambda x, y: x[:30, :144].reshape(30, 12, 12) @ y[:30, :144].reshape(30, 12, 12),
        lambda x, y: x[:36, :120].reshape(3, 12, 10, 12) @ y[0, :12],
        lambda x, y: x[:36, :120].reshape(36, 10, 12) @ y[:36, :12, None],
        lambda x, y: (x[:36, :120] + 1j).reshape(36, 10, 12) @ y[:36, :120].reshape(36, 12, 10),
        # Indices: parts along the rows of a gather, and along the columns of rows that are scattered.
        lambda x, y: x[(y[:, 0] * 20).astype("int64")] * 2,
        lambda x, y: x.ravel()[(y * 1000).astype("int64")],
        lambda x, y: cnp.sin(x[(y[:, 0] * 20).astype("int64"), (y[:, 1] * 20).astype("int64")][:, None] + y),
        lambda x, y: cnp.sum(x[(y * 20).astype("int64")[:, :20], 3]),
        lambda x, y: x.at[(y[:, 0] * 20).astype("int64")].add(y),
        lambda x, y: x.at[(y[:, 0] * 20).astype("int64")].set(y),
        lambda x, y: x.T.at[:, (y[:, 0] * 20).astype("int64")].multiply(y.T),
        cg.grad(lambda x, y: cnp.sum(x[(y[:, 0] * 20).astype("int64")] ** 2)),
    ],
    ids=[
        "map",
        "sum",
        "rows",
        "extremes",
        "any",
        "complex",
        "index",
        "transposed",
        "views",
        "loop",
        "gradient",
        "columns",
        "narrow",
        "complex-columns",
        "positions",
        "position-in-all",
        "rows-of-two",
        "products",
        "batches",
        "vectors",
        "complex-products",
        "gather",
        "elements",
        "points",
        "gathered-sum",
        "scatter-add",
        "scatter-set",
        "scatter-multiply",
        "gradient-of-a-gather",
    ],
)
def test_results_have_the_same_bits_whatever_the_number_of_threads(little_work: None, fn: Callable[..., Any]) -> None:
    assert "@cg_parallel" in text_of(fn, X, Y)
    function = cg.function(fn, engine="native")
    found = []
    for count in THREADS:
        products().set_threads(count)
        found.append(cg.tree.leaves(function(X, Y)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    expected = cg.tree.leaves(cg.function(fn, engine="reference")(X, Y))
    for a, b in zip(found[0], expected, strict=True):
        assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: cnp.sum(cnp.sin(x[:, None]) * y[:, :6, None], axis=1),
        lambda x, y: cnp.max(-x[:, None] * y[:, :6, None], axis=1),
        lambda x, y: (cnp.prod(x[:, None] * y[:, :6, None], axis=1), cnp.sum(x[:, None] * y[:, :6, None])),
        lambda x, y: cnp.sum(x[:, None] * cnp.exp(1j * y[:, :6, None]), axis=1),
        lambda x, y: cnp.argmin(x[:, None] * y[:, :6, None], axis=1),
        lambda x, y: cnp.all(x[:, None] > y[:, :2, None], axis=1),
        cg.grad(lambda x, y: cnp.sum(cnp.sin(cnp.sum(x[:, None] * y[:, :6, None], axis=1)))),
    ],
    ids=["sum", "negative", "product", "complex", "positions", "bools", "gradient"],
)
def test_accumulated_memory_is_initialised_once(little_work: None, fn: Callable[..., Any]) -> None:
    """Memory that parts add to is initialised once. Found: each part initialised the whole result, and so undid the
    earlier parts."""
    assert "@cg_parallel" in text_of(fn, X, Y)
    expected = cg.tree.leaves(cg.function(fn, engine="reference")(X, Y))
    function = cg.function(fn, engine="native")
    for count in THREADS:
        products().set_threads(count)
        for found, other in zip(cg.tree.leaves(function(X, Y)), expected, strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int8", "int32", "int64", "uint16"], ids=lambda dtype: dtype
)
@pytest.mark.parametrize("n", [1500, 5550, 5551, 6144])
def test_the_parts_of_a_long_row_have_extremes_of_their_own(little_work: None, dtype: str, n: int) -> None:
    """The first of equal extremes stands, and the first NaN before all numbers, in whichever part they are."""
    some = (RNG.random(n) * 40).astype(dtype)
    rows = [some, np.zeros(n, dtype), np.full(n, 7, dtype)]
    if np.dtype(dtype).kind == "f":
        rows += [np.full(n, value, dtype) for value in (-np.inf, np.inf, np.nan)]
        for places in ([0], [n // 2], [n - 1], [n - 1, n // 3]):
            rows += [some.copy() for _ in range(2)]
            rows[-1][n // 7] = np.inf
            for row in rows[-2:]:
                row[places] = np.nan
    for name in ("argmax", "argmin"):
        fn = getattr(cnp, name)
        assert "@cg_parallel" in text_of(fn, some)
        function = cg.function(lambda x, y, fn=fn: (fn(x), fn(x[:, None], axis=0), fn(x + y)), engine="native")
        for count in THREADS:
            products().set_threads(count)
            for row in rows:
                found = [int(np.squeeze(position)) for position in function(row, np.zeros(n, dtype))]
                assert found == [getattr(np, name)(row)] * 3


@pytest.mark.parametrize("dtype", ["float64", "float16", "complex128", "uint8"])
def test_results_of_parts_lie_lines_of_the_cache_apart(little_work: None, dtype: str) -> None:
    """Threads that add to results on one line wait for each other: two took longer than one."""
    x = (RNG.random((400, 5)) * 10).astype(dtype)
    sums = lambda x: x.sum(0)
    ((distance, kind),) = re.findall(r"mul i64 %part, (\d+)\n.* getelementptr (\w+)", text_of(sums, x))
    assert int(distance) * {"double": 8, "i64": 8, "float": 4}[kind] % sharing.LINE == 0
    np.testing.assert_allclose(cg.function(sums)(x), x.sum(0), rtol=1e-2)


@pytest.mark.parametrize(
    ("shape", "axes", "unit"),
    [((40, 9000), 0, 320), ((40, 9000, 5), (0, 2), 256), ((9, 200, 45), 0, 1152), ((9, 8200, 128), 0, 4160)],
)
def test_parts_that_add_to_one_array_have_16_lines_of_it(shape: tuple[int, ...], axes: Any, unit: int) -> None:
    """The results are too many for each part to have its own."""
    x, sums = RNG.random(shape), lambda x: cnp.sin(x).sum(axes)
    (share,) = plan_of(sums, x).shares.values()
    assert not share.has_results and share.unit == unit and share.unit * 8 >= sharing.LINE * sharing.LINES
    found = []
    for count in (1, 2, 3, 16):
        products().set_threads(count)
        found.append(np.asarray(cg.function(sums)(x)))
    products().set_threads(threads.default_threads())
    assert all((a == found[0]).all() for a in found)
    np.testing.assert_allclose(found[0], np.sin(x).sum(axes))


@pytest.mark.parametrize(("columns", "parts"), [(1000, 8), (1024, 8), (1025, 7), (1280, 6), (1281, 0)])
def test_sums_of_columns_are_cut_along_the_rows_where_their_results_fit(columns: int, parts: int) -> None:
    """Columns alone are read slowly: 4,000 x 1,000 took five times as long."""
    (share,) = plan_of(lambda x: x.sum(0), np.empty((4000, columns))).shares.values()
    assert (share.axes, share.has_results) == (((0,), True) if parts else ((1,), False))
    assert not parts or share.parts == parts


@pytest.mark.parametrize(("rows", "parts"), [(256 * 16, {2: 16, 3: 16, 64: 16}), (256 * 17, {2: 9, 3: 17, 64: 17})])
def test_neighbouring_parts_are_joined_beyond_eight_for_each_thread(
    monkeypatch: pytest.MonkeyPatch, rows: int, parts: dict[int, int]
) -> None:
    monkeypatch.setattr(threads, "parts_of", lambda work, are_awake=False: 64)
    x, native = RNG.random(rows), products()
    (share,) = plan_of(lambda x: cnp.exp(x) * x, x).shares.values()
    assert share.parts == rows // 256
    native.set_threads(1)
    compiled = cg.function(lambda x: cnp.exp(x) * x)
    found = [np.asarray(compiled(x))]
    for count, expected in parts.items():
        native.set_threads(count)
        found.append(np.asarray(compiled(x)))
        assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(native.address("cg_pool_job"))(PANELS) == expected
    native.set_threads(threads.default_threads())
    assert all((a == found[0]).all() for a in found)


UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: cnp.tanh(x) * 2 + x,
    "everything": lambda x: (x * x).sum(),
    "complex": lambda x: (x * 1j + x).sum(),
    "rows": lambda x: cnp.sin(x).sum(1),
    "columns": lambda x: (x.max(0), x.sum(0)),
    "half": lambda x: x.astype("float16").sum(0),
    "indices": lambda x: x[cnp.arange(x.shape[0])[::-1]] * 2,
    "updates": lambda x: cnp.zeros((7, x.shape[1])).at[cnp.arange(x.shape[0]) % 7].add(x),
    "positions": lambda x: (x.argmax(1), x.argmax()),
    "gradient": lambda x: cg.grad(lambda x: (cnp.log1p(x * x) * x).sum())(x),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_nests_of_unknown_size_are_cut_by_the_run(little_work: None, name: str) -> None:
    """Beside the least work that is shared, of no rows, and with the same bits as one thread's."""
    fn = UNKNOWN[name]
    compiled, plain = cg.function(fn), cg.function(fn, engine="reference")
    compiled(RNG.random((2, 3)))
    for shape in ((0, 5), (1, 1), (83, 3), (84, 3), (3, 700), (257, 33), (1, 5000), (5000, 1)):
        x = RNG.normal(size=shape)
        if not x.size and name in ("columns", "positions"):
            continue
        found = []
        for count in THREADS:
            products().set_threads(count)
            found.append(cg.tree.leaves(compiled(x)))
        for other in found:
            assert all((a == b).all() for a, b in zip(found[0], other, strict=True)), shape
        for a, b in zip(found[0], cg.tree.leaves(plain(x)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-2 if name == "half" else 1e-9, atol=1e-9)


def test_a_plan_says_that_a_run_cuts_a_nest_and_the_checker_judges_it() -> None:
    def shared(fn: Callable[..., Any], x: np.ndarray) -> tuple[Plan, list[Share]]:
        compiled = cg.function(fn, signature=[cg.TensorSpec((None, *x.shape[1:]), x.dtype)])
        graph = optimised_graph(compiled.graph(x))
        plan = engine.plan_of(graph, engine.shapes_of(graph, [x]))
        return plan, [*plan.shares.values()]

    plan, (share,) = shared(lambda x: x.sum(), np.ones((4, 3)))
    assert share == Share((0, 1), 256, 64, has_results=True, at_run_time=True)
    assert "at most 64 parts of 256 positions or more along 0,1 with results of their own" in format_plan(plan)
    check(plan)
    wrong = {step: replace(share, has_results=False) for step in plan.shares}
    with pytest.raises(PlanError, match="write the same elements"):
        check(replace(plan, shares=wrong))
    with pytest.raises(PlanError, match="at most 0 parts"):
        check(replace(plan, shares={step: replace(share, parts=0) for step in plan.shares}))
    plan, none = shared(lambda x: x.argmax(), np.ones((4, 3)))
    assert none == []
    (position,) = (step for step in walk(plan.body) if isinstance(step, Kernel))
    with pytest.raises(PlanError, match="whose parts are not combined"):
        check(replace(plan, shares={position: replace(share, axes=(0,))}))
    # To look at its work costs as much as a short kernel.
    assert shared(lambda x: cg.fori_loop(0, 3, lambda i, x: cnp.sin(x), x), np.ones((4, 3)))[1] == []


def test_nests_whose_parts_would_meet_are_not_cut(little_work: None) -> None:
    """Elements that may be added to one place."""
    fn = lambda x, y: x.ravel().at[EACH].add(y.ravel())
    assert not any(write.scattered for kernel in plan_of(fn, X, Y).shares for write in kernel.writes)
    expected = cg.function(fn, engine="reference")(X, Y)
    np.testing.assert_allclose(cg.function(fn, engine="native")(X, Y), expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_a_batch_of_small_factors_has_the_same_bits_whatever_the_number_of_threads(
    little_work: None, k: int, dtype: str
) -> None:
    x = (RNG.standard_normal((6, 41, k, k)) + 2 * k * np.eye(k)).astype(dtype)
    x = x + 0.3j * np.ones_like(x) if np.dtype(dtype).kind == "c" else x

    def of_all(x: Any) -> Any:
        square = x @ cnp.conj(cnp.swapaxes(x, -1, -2))
        found = [cnp.linalg.solve(x, x[..., :1]), cnp.linalg.det(x), cnp.linalg.inv(x[2]), cnp.linalg.cholesky(square)]
        if np.dtype(dtype).kind == "c":
            return found
        return [*found, cnp.linalg.eigvalsh(square), cnp.abs(cnp.linalg.qr(x)[0]), cnp.linalg.svd(x, compute_uv=False)]

    assert "@cg_parallel" in text_of(lambda x: cnp.linalg.solve(x, x[..., :1]), x)
    gradient = cg.grad(lambda x: cnp.sum(cnp.abs(cnp.linalg.solve(x, cnp.sin(x)))))
    tolerance = 1e-9 if dtype == "float64" else 1e-3
    for fn in (of_all, gradient):
        function, found = cg.function(fn, engine="native"), list[list[np.ndarray]]()
        for count in THREADS:
            products().set_threads(count)
            found.append([np.array(leaf) for leaf in cg.tree.leaves(function(x))])
        assert all(a.tobytes() == b.tobytes() for other in found for a, b in zip(found[0], other, strict=True))
        expected = cg.tree.leaves(cg.function(fn, engine="reference")(x))
        for a, b in zip(found[0], expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_a_matrix_without_a_factor_is_told_by_any_number_of_threads(little_work: None) -> None:
    good = np.broadcast_to(np.eye(3), (200, 3, 3))
    function = cg.function(cnp.linalg.cholesky, engine="native")
    assert "@cg_parallel" in text_of(cnp.linalg.cholesky, good)
    for count in THREADS:
        products().set_threads(count)
        for place in (0, 77, 199):
            bad = good.copy()
            bad[place] *= -1
            with pytest.raises(cg.errors.ExecutionError, match="not positive definite"):
                function(bad)
        np.testing.assert_array_equal(function(good), good)


@pytest.mark.parametrize("rows", [[5], [36], [20, 5, 36], [0, 36]])
def test_the_first_index_out_of_range_is_told_by_any_number_of_threads(little_work: None, rows: list[int]) -> None:
    """Each part ends at its own first failure; the run ends with that of the first part that has one."""
    wrong = np.arange(37)
    wrong[rows] = 100 + np.array(rows)
    gathered = cg.function(lambda x, i: x[i] * 2, engine="native")
    assert "@cg_parallel" in text_of(lambda x, i: x[i] * 2, X, wrong)
    for count in THREADS:
        products().set_threads(count)
        for _ in range(2):
            with pytest.raises(cg.errors.IndexOutOfRangeError, match=f"{100 + min(rows)}"):
                gathered(X, wrong)
        np.testing.assert_array_equal(gathered(X, np.arange(37)[::-1]), 2 * X[::-1])


def test_a_plan_says_which_kernels_are_shared_and_the_checker_judges_it(little_work: None) -> None:
    plan = plan_of(lambda x: cnp.sum(x * x, axis=0), X[:, :128])
    ((kernel, share),) = plan.shares.items()
    assert share == Share((0,), 1, 37, has_results=True)
    assert "kernel [37,128], 37 parts along 0 with results of their own {" in format_plan(with_vectors(plan, 0))
    for right in (share, Share((0,), 10, 4, has_results=True), Share((1,), 64, 2)):
        check(replace(plan, shares={kernel: right}))
    for wrong, told in (
        (Share((1,), 64, 3), "not its 128 positions"),
        (Share((1,), 32, 2), "not its 128 positions"),
        (Share((0,), 10, 4), "write the same elements"),
        (Share((1, 0), 64, 74), "side by side"),
    ):
        with pytest.raises(PlanError, match=told):
            check(replace(plan, shares={kernel: wrong}))


@pytest.mark.parametrize(
    ("fn", "share", "told"),
    [
        (lambda x, y: x.at[EACH[:37] % 37].set(y), Share((0,), 1, 37), "write the same elements"),
        (lambda x, y: cnp.argmax(x * y, axis=1), Share((1,), 1, 150, has_results=True), "not combined"),
    ],
    ids=["scattered", "position"],
)
def test_the_checker_refuses_parts_that_would_meet(fn: Callable[..., Any], share: Share, told: str) -> None:
    plan = plan_of(fn, X, Y)
    kernels = [step for step in walk(plan.body) if isinstance(step, Kernel)]
    (kernel,) = (k for k in kernels if any(w.scattered or w.how == "argmax" for w in k.writes))
    with pytest.raises(PlanError, match=told):
        check(replace(plan, shares={kernel: share}))


def test_parts_come_in_pairs() -> None:
    def parts(rows: int) -> list[int]:
        large = np.ones((rows, 150))
        return [share.parts for share in plan_of(lambda x, y: cnp.exp(x) * y, large, large).shares.values()]

    # Instructions per element: a call, two loads, a product and a store.
    assert sharing.CALL + 4 == 24
    assert [parts(rows) for rows in (100, 200, 300, 600)] == [[], [4], [8], [16]]


@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_sizes_beside_the_least_work_that_is_shared(beside: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just below, at and just above the work from which threads share it, of tiled loops and cumulative operations too:
    the bits of one thread, and the numbers of the reference engine."""

    def loop(x: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, c: cnp.tanh(c) * x + 1, x)

    many = [
        lambda x: (x * x + 1, cnp.tanh(x)),
        lambda x: (cnp.sum(x), cnp.argmax(x), cnp.argmin(x * x)),
        lambda x: (cnp.cumsum(x), cnp.cumsum(x[::-1])),
        loop,
        cg.grad(lambda x: cnp.sum(loop(x) ** 2)),
    ]
    before = products().threads
    # Bytes or instructions of an element: of each program there is one that is at the threshold.
    for units in (4, 8, 12, 22, 24):
        x = RNG.standard_normal(threads.WORK_TO_SHARE // units + beside).astype("float32")
        for fn in many:
            function, found = cg.function(fn, engine="native"), list[list[np.ndarray]]()
            for count in (1, 2, 3, 8, 40):
                monkeypatch.setenv("CTRLGRAD_THREADS", str(count))
                products().set_threads(count)
                found.append([np.array(leaf) for leaf in cg.tree.leaves(function(x))])
            assert all(a.tobytes() == b.tobytes() for other in found for a, b in zip(found[0], other, strict=True))
            for a, b in zip(found[0], cg.tree.leaves(cg.function(fn, engine="reference")(x)), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-2)
    products().set_threads(before)


def test_little_work_is_not_shared() -> None:
    assert "@cg_parallel" not in text_of(lambda x, y: cnp.exp(x) + y, X, Y)
    large = np.ones((1000, 150))
    assert "@cg_parallel" in text_of(lambda x, y: cnp.exp(x) + y, large, large)


@pytest.mark.parametrize(
    ("shape", "parts"), [((64, 1 << 16), 128), ((1 << 16, 64), 64), ((3, 1 << 19), 32), ((1 << 20,), 32)]
)
def test_the_axis_that_gives_most_parts_is_cut(shape: tuple[int, ...], parts: int) -> None:
    """The axis that gives most parts is cut: columns of long rows, rows of narrow columns with partial sums,
    elements of one axis."""
    axis = None if len(shape) == 1 else 0
    shares = plan_of(lambda x: cnp.sum(x, axis=axis), np.ones(shape, "float32")).shares.values()
    assert [share.parts for share in shares] == [parts]


@pytest.mark.parametrize("asleep", [0, 1, 2, 6, 15, 63])
def test_sleeping_threads_are_woken_as_work_grows(asleep: int) -> None:
    """A small program wakes as few threads of 64 as of 2."""
    share = threads.WORK_TO_SHARE
    assert threads.parts_of(share - 1) == 1
    assert [threads.woken(work, 4, asleep) for work in (0, share, 2 * share - 1)] == [0, 0, 0]
    assert threads.woken(2 * share, 8, asleep) == min(1, asleep)
    assert threads.woken(8 * share, 32, asleep) == min(7, asleep)
    assert threads.woken(1000 * share, 256, asleep) == asleep
    assert threads.woken(1000 * share, 3, asleep) == min(2, asleep)


@pytest.mark.parametrize(
    ("rows", "side", "is_shared"),
    [(128, 60, False), (32, 128, False), (44, 128, False), (48, 128, True), (30, 256, True)],
)
def test_a_kernel_beside_a_product_is_shared_from_a_quarter_of_the_work(rows: int, side: int, is_shared: bool) -> None:
    """Threads that share the product of a loop are awake for its kernels. The first case has too small a product, the
    next two too small a kernel."""

    def loop(x, w):
        return cg.fori_loop(0, 3, lambda i, x: cnp.tanh(x @ w), x)

    x, w = np.ones((rows, side), "float32"), np.ones((side, side), "float32")
    assert ("@cg_parallel" in text_of(loop, x, w)) == is_shared
    assert "@cg_parallel" not in text_of(lambda x, w: cnp.tanh(x @ w), x, w)


def test_much_work_has_more_parts_than_threads() -> None:
    per_part = threads.WORK_OF_A_PART
    assert [threads.parts_of(k * per_part) for k in (4, 63, 64, 255, 256, 10000)] == [4, 32, 64, 128, 256, 256]


@pytest.mark.parametrize("columns", [1, 16, 60, 500])
def test_results_of_parts_fit_a_small_stack_where_a_nest_has_many(columns: int) -> None:
    """Once the process died: each result had as much of the stack as all of them have now."""

    def nest(x: Any) -> list[Any]:
        return [(x * k).sum(0) for k in range(1, 12)] + [cnp.argmax(x * k, 0) for k in range(1, 8)]

    x = np.ones((200_000 // columns, columns))
    shares = plan_of(nest, x).shares.items()
    for kernel, share in shares:
        assert isinstance(kernel, Kernel)
        reduced = [w for w in kernel.writes if w.how != "store"]
        of_a_part = [sharing.pitch(columns, w.view.dtype) * (16 if w.how == "argmax" else 8) for w in reduced]
        assert not share.has_results or share.parts * sum(of_a_part) <= 64 << 10


def test_results_of_parts_need_no_more_of_the_stack_where_a_function_has_many_nests(little_work: None) -> None:
    """Nests that reduce, check their indices or add up along rows use the same memory in turn."""
    where = RNG.integers(0, len(X), 37)

    def on_the_stack(count: int) -> int:
        def nests(x: Any, where: Any) -> Any:
            y = cnp.ones(x.shape[1])
            for _ in range(count):
                y = cnp.cumsum((x[where] * y).max(0).sum() + x[0] + x.sum(), 0)
            return y

        plan = plan_of(nests, X, where)
        assert sum(share.has_results for share in plan.shares.values()) > count
        text = PlanWriter(with_vectors(plan, 32)).function("plan")
        (body,) = re.findall(r"define void @plan\(.*?\n}", text, re.DOTALL)
        return sum(int(n) for n in re.findall(r"= alloca \[(\d+) x (?:i8|double|i64)\], align 64", body))

    assert on_the_stack(4) == on_the_stack(12) > 0
