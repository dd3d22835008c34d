"""The checked mode finds what it is there to find: hand-written loops that each break one rule."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from programs import BY_NAME

from ctrlgrad import tree
from ctrlgrad.engines import run_on
from ctrlgrad.engines.native.checked import CheckedFunction, checked, is_checked
from ctrlgrad.engines.native.checked_memory import AccessError, Buffer, OutOfBuffer
from ctrlgrad.engines.native.loop import Plan
from ctrlgrad.engines.native.program import FIRST_ENTRY, Status

X, Y, COUNT = FIRST_ENTRY, FIRST_ENTRY + 1, FIRST_ENTRY + 2


def run(body: str, x: Buffer, y: Buffer, count: int = 3) -> np.ndarray:
    """Run lines with x and y as pointers and n as a number; returns the table."""
    lines = [f"x = pointer_float64(t[{X}])", f"y = pointer_float64(t[{Y}])", f"n = t[{COUNT}]", *body.splitlines()]
    table = np.zeros(COUNT + 1, np.int64)
    table[[X, Y, COUNT]] = x.array.ctypes.data, y.array.ctypes.data, count
    source = "def loop(t):\n" + "\n".join("    " + line for line in lines) + "\n"
    CheckedFunction(source).run(table, {X: x, Y: y})
    return table


def full(name: str = "x", size: int = 3, **roles: object) -> Buffer:
    return Buffer(name, np.arange(1.0, size + 1), **roles)  # type: ignore[arg-type]


def empty(name: str = "y", size: int = 3, **roles: object) -> Buffer:
    return Buffer(name, np.full(size, np.nan), given=0, **roles)  # type: ignore[arg-type]


COPY = """
scopes(1, 1)
for i in range(n):
    store(y, i, load(x, i, 1) * 2.0, 1, 0)
"""


def test_a_right_loop_runs() -> None:
    y = empty(is_result=True)
    run(COPY, full(), y)
    np.testing.assert_array_equal(y.array, [2.0, 4.0, 6.0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fetch(x, 3)", "fetch: element 3 of x, which has 3 elements"),
        ("fetch(x, -1)", "fetch: element -1 of x"),
        ("fetch(shifted(x, 2), 1)", "fetch: element 3 of x"),
        ("load(x, 3, 1)", "load: element 3 of x"),
        ("put(y, 3, 0.0)", "put: element 3 of y"),
        ("scopes(1, 1)\nstore(y, 3, 0.0, 1, 0)", "store: element 3 of y"),
        ("sum_of(x, 4, 0.0)", "read: element 3 of x"),
    ],
)
def test_an_access_outside_of_a_buffer(line: str, message: str) -> None:
    with pytest.raises(OutOfBuffer, match=message):
        run(line, full(), empty())


@pytest.mark.parametrize("line", ["fetch(y, 1)", "load(y, 1, 1)", "sum_of(y, 2, 0.0)"])
def test_reading_what_was_never_written(line: str) -> None:
    with pytest.raises(AccessError, match=r"element \d of y was never written"):
        run("put(y, 0, 1.0)\n" + line, full(), empty())


def test_writing_what_may_only_be_read() -> None:
    with pytest.raises(AccessError, match="x may only be read"):
        run("put(x, 0, 1.0)", full(writable=False), empty())


def test_results_must_be_written() -> None:
    with pytest.raises(AccessError, match="y: element 2 of 3 was never written"):
        run(COPY, full(), empty(is_result=True), count=2)


def test_a_stack_gives_back_no_more_than_it_was_given() -> None:
    rows = Buffer("y", np.zeros((3, 2)), given=1, is_result=True, length_place=COUNT)
    run("put(y, 2, 1.0)\nput(y, 3, 1.0)\nt[18] = 2", full(), rows)
    with pytest.raises(AccessError, match="y: element 4 of 6 was never written"):
        run("t[18] = 3", full(), rows)
    with pytest.raises(OutOfBuffer, match="the length given back"):
        run("t[18] = 4", full(), rows)


def test_results_of_a_failed_run_are_not_asked_for() -> None:
    table = run(f"t[1] = {int(Status.OUT_OF_RANGE)}", full(), empty(is_result=True))
    assert table[1] == Status.OUT_OF_RANGE


def test_arrays_change_places() -> None:
    a, b = full("a", is_result=True), empty("b")
    table = run(COPY + f"t[{X}], t[{Y}] = t[{Y}], t[{X}]", a, b)
    assert table[X] == b.address and table[Y] == a.address
    with pytest.raises(AccessError, match="b: element 0 of 3 was never written"):
        run(f"t[{X}], t[{Y}] = t[{Y}], t[{X}]", full("a", is_result=True), empty("b"))


# The promise of a loop nest.


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("store(x, 1, 0.0, 1, 0)\nload(x, 1, 1)", "load: loop 1 stored element 1 of x before"),
        ("load(x, 1, 1)\nstore(x, 1, 0.0, 1, 0)", "store: loop 1 loaded element 1 of x before"),
        ("store(x, 1, 0.0, 1, 0)\nstore(x, 1, 0.0, 1, 1)", "another store of loop 1 wrote element 1 of x"),
        ("store(x, 1, 0.0, 1, 2)", "loop 1 began without a store of number 2"),
        ("store(x, 1, 0.0, 2, 0)", "loop 2 began without a store of number 0"),
        ("store(x, 2, 0.0, 1, 0)\nload(shifted(x, 1), 1, 1)", "load: loop 1 stored element 1 of x before"),
    ],
)
def test_a_broken_promise(lines: str, message: str) -> None:
    with pytest.raises(AccessError, match=message):
        run("scopes(1, 2)\n" + lines, full(), empty())


@pytest.mark.parametrize(
    "lines",
    [
        "store(x, 1, 0.0, 1, 0)\nstore(x, 1, 0.0, 1, 0)",
        "store(x, 1, 0.0, 1, 0)\nload(x, 2, 1)",
        "store(x, 1, 0.0, 1, 0)\nfetch(x, 1)",
        "store(x, 1, 0.0, 1, 0)\nload(x, 1, 2)",
        "store(x, 1, 0.0, 1, 0)\nscopes(1, 2)\nload(x, 1, 1)",
    ],
)
def test_what_breaks_no_promise(lines: str) -> None:
    run("scopes(1, 2)\n" + lines, full(), empty())


# Matrix products, column-major as BLAS has them.


def product(call: str, x_size: int, y_size: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = full(size=x_size), empty(size=y_size)
    run(call, x, y)
    return x.array, y.array


@pytest.mark.parametrize(("ta", "lda"), [("N", 2), ("N", 4), ("T", 3), ("T", 5)])
@pytest.mark.parametrize(("tb", "ldb"), [("N", 3), ("T", 4)])
def test_gemm(ta: str, lda: int, tb: str, ldb: int) -> None:
    """[2, 3] @ [3, 4], both in one buffer."""
    call = f"gemm(0, {ord(ta)}, {ord(tb)}, 2, 4, 3, 2.0, x, {lda}, shifted(x, 20), {ldb}, 0.0, y, 2)"
    x, y = product(call, 40, 8)
    a = x[: lda * 3].reshape(3, lda)[:, :2].T if ta == "N" else x[: lda * 2].reshape(2, lda)[:, :3]
    flat = x[20:]
    b = flat[: ldb * 4].reshape(4, ldb)[:, :3].T if tb == "N" else flat[: ldb * 3].reshape(3, ldb)[:, :4]
    np.testing.assert_allclose(y, (2.0 * a @ b).T.ravel())


@pytest.mark.parametrize("transpose", ["N", "T"])
def test_gemv(transpose: str) -> None:
    """A [2, 3] matrix in columns of 4 and every other element of a vector, added to twice what is there."""
    lengths = (2, 3) if transpose == "N" else (3, 2)
    call = f"gemv(0, {ord(transpose)}, 2, 3, 1.0, x, 4, shifted(x, 12), 2, 2.0, y, 1)"
    x, y = full(size=20), full("y", size=lengths[0])
    before = y.array.copy()
    run(call, x, y)
    a = x.array[:12].reshape(3, 4)[:, :2].T
    a = a if transpose == "N" else a.T
    np.testing.assert_allclose(y.array, a @ x.array[12 : 12 + 2 * lengths[1] : 2] + 2.0 * before)


GEMM = "gemm(0, 78, 78, 2, 2, 2, 1.0, {a}, {lda}, {b}, 2, {beta}, {c}, 2)"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": "shifted(x, 5)"}, "matrix A of a product: element 8 of x, which has 8 elements"),
        ({"a": "shifted(x, -1)"}, "matrix A of a product: element -1 of x"),
        ({"c": "shifted(y, 1)"}, "matrix C of a product: element 4 of y"),
        ({"lda": "1"}, "matrix A of a product has the leading dimension 1, and 2 rows"),
        ({"lda": "5"}, None),
        ({"lda": "7"}, "matrix A of a product: element 8 of x"),
        ({"b": "y"}, "matrix B of a product: element 0 of y was never written"),
        ({"beta": "1.0"}, "matrix C of a product: element 0 of y was never written"),
        ({"c": "shifted(x, 4)"}, None),
        ({"c": "shifted(x, 3)"}, "matrix A of a product and matrix C of a product overlap in x"),
    ],
)
def test_gemm_checks_its_matrices(changed: dict[str, str], message: str | None) -> None:
    given = {"a": "x", "b": "x", "c": "y", "lda": "2", "beta": "0.0"} | changed
    if message is None:
        run(GEMM.format(**given), full(size=8), empty(size=4))
    else:
        with pytest.raises(AccessError, match=message):
            run(GEMM.format(**given), full(size=8), empty(size=4))


def test_gemv_leaves_its_result_alone_where_a_size_is_zero() -> None:
    """As BLAS does: who calls it must write the zeros."""
    with pytest.raises(AccessError, match="y: element 0 of 3 was never written"):
        run("gemv(0, 78, 3, 0, 1.0, x, 3, x, 1, 0.0, y, 1)", full(), empty(is_result=True))


@pytest.mark.parametrize("step", [0, -1])
def test_gemv_takes_no_step_that_blas_reads_otherwise(step: int) -> None:
    with pytest.raises(AccessError, match=f"vector x of a product has the step {step}"):
        run(f"gemv(0, 78, 2, 2, 1.0, x, 2, shifted(x, 4), {step}, 0.0, y, 1)", full(size=8), empty())


# The table.


def test_buffers_must_lie_apart() -> None:
    memory = np.zeros(5)
    with pytest.raises(AccessError, match="y overlaps x"):
        run("pass", Buffer("x", memory[:3]), Buffer("y", memory[2:]))
    run("pass", Buffer("x", memory[:3], writable=False), Buffer("y", memory[2:], writable=False))


def test_pointers_come_from_the_table() -> None:
    with pytest.raises(AccessError, match="is no address from the table"):
        run("pointer_float64(0)", full(), empty())
    with pytest.raises(AccessError, match="pointer_float32: x is of float64"):
        run(f"pointer_float32(t[{X}])", full(), empty())


def test_integers_wrap_and_bools_are_bytes() -> None:
    flags = Buffer("x", np.array([True, False]), writable=False)
    table = np.zeros(X + 1, np.int64)
    table[X] = flags.array.ctypes.data
    lines = (f"p = pointer_bool(t[{X}])", "t[3] = fetch(p, 0) + fetch(p, 1)", "t[4] = int8(int8(127) + int8(1))")
    CheckedFunction("def loop(t):\n    " + "\n    ".join(lines) + "\n").run(table, {X: flags})
    assert table[3] == 1 and table[4] == -128


def test_a_temporary_that_is_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop of the corpus: the generated code is right, the driver is made to allocate an element less."""
    program = BY_NAME["lstm"]
    size = Plan.size
    monkeypatch.setattr(Plan, "size", lambda plan, n: size(plan, n) - 1)
    with checked(), pytest.raises(AccessError, match=r"element \d+ of the temporary .*, which has \d+ elements"):
        run_on("native", program.traced_again(0), [np.asarray(x) for x in tree.leaves(program.args)])


def test_the_mode_ends_with_its_block() -> None:
    with pytest.raises(ZeroDivisionError), checked():
        assert is_checked()
        1 / 0  # noqa: B018
    assert not is_checked()
