"""Sizes that are unknown when a function is traced: rows of loops that never run, and sizes that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import count_ops, verify

ENGINES = ("native", "reference", "dataflow")
TABLE = np.array([0.5, 2.0, 5.0])


def _rows_of_ones(x: Any, w: Any) -> Any:
    """The sizes of a row are told to the op that makes it."""
    return cg.map(lambda row: cnp.ones((2 * row.shape[0] + 1, w.shape[0])) * row[0], x)


def _rows_of_a_sum(x: Any, w: Any) -> Any:
    """A carry, a product and a row of the argument come together: the sizes of three values."""
    return cg.scan(lambda c, row: (np.tanh(c + row @ w), c * row), w[0], x)[1]


ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda x, w: cg.map(np.tanh, x),
    "reversed": lambda x, w: cg.scan(lambda c, row: (c, (row @ w)[None]), 0.0, x, reverse=True)[1],
    "a sum": _rows_of_a_sum,
    "told sizes": _rows_of_ones,
    "one element and a row": lambda x, w: (lambda u: cg.map(lambda row: u * row, x))(w[0, :1]),
    "a row and one element": lambda x, w: (lambda u: cg.map(lambda row: row - u, x))(w[0, :1]),
    "what is around": lambda x, w: cg.map(lambda row: row[0] * w.mT, x),
    "outer product": lambda x, w: cg.map(lambda row: row[:, None] * row, x),
    "all elements": lambda x, w: cg.map(lambda row: cnp.ravel(row[:, None] * w), x),
    "a slice": lambda x, w: cg.map(lambda row: row[1:] * w[0, 0], x),
    "slices by data": lambda x, w: cg.map(lambda row: row[row.shape[0] - 3 : -1], x),
    "joined": lambda x, w: cg.map(lambda row: cnp.concat([row, w[0], row[:1]]), x),
    "rolled": lambda x, w: cg.map(lambda row: np.roll(row * w, 1, axis=1), x),
    "collected inside": lambda x, w: cg.map(lambda row: cg.map(lambda u: u * w[0], row), x),
    "collected inside, from the end": lambda x, w: cg.map(
        lambda row: cg.scan(lambda c, u: (c * u, c), 1.0, row, reverse=True)[1], x
    ),
    "as many as told": lambda x, w: cg.map(
        lambda row: cg.scan(lambda c, _: (np.sin(c), c), row, None, length=w.shape[0])[1], x
    ),
    "inside a map": lambda x, w: cg.vmap(lambda y: cg.map(np.sin, y[:0, None] * w[0]))(x),
    "inside a loop": lambda x, w: cg.map(lambda row: cg.map(lambda u: u * row, TABLE), x),
}


@in_turn("name, engine", list(ROWS), ENGINES)
def test_a_loop_that_never_runs_has_rows_of_the_shape_of_others(name: str, engine: str) -> None:
    """One trace serves every number of rows, none too; the gradient is as one that is traced for these sizes alone."""
    fn = ROWS[name]
    loss = cg.grad(lambda x, w: cnp.sum(np.sin(fn(x, w))), argnums=(0, 1))
    rows, slopes = cg.function(fn, engine=engine), cg.function(loss, engine=engine)
    rng = np.random.default_rng(5)
    for count, width in ((2, 3), (4, 2), (0, 5), (1, 1), (0, 2)):
        x, w = rng.normal(size=(count, width)), rng.normal(size=(width, width))
        known = cg.function(fn, engine="reference")(x, w)
        found = rows(x, w)
        assert found.shape == known.shape
        np.testing.assert_allclose(found, known, rtol=1e-12)
        for a, b in zip(slopes(x, w), cg.function(loss, engine="reference")(x, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    assert rows.traces == 2


MISFITS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda x: cg.vmap(lambda a, b: a + b)(x, TABLE),
    "scan": lambda x: cg.scan(lambda c, row: (c + row[0] * row[1], None), 0.0, (x, TABLE))[0],
    "map": lambda x: cg.map(lambda row: row[0] * row[1], (TABLE, x)),
    "foldr": lambda x: cg.foldr(lambda c, row: c + row[0] * row[1], (x, TABLE), 0.0),
    "dot": lambda x: x @ TABLE,
    "gradient of a dot": cg.grad(lambda x: x @ TABLE),
    "gradient of a scan": cg.grad(lambda x: cg.scan(lambda c, row: (c + row[0] * row[1], None), 0.0, (x, TABLE))[0]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", MISFITS)
def test_sizes_that_do_not_fit_are_refused_whatever_was_called_before(name: str, size: int, engine: str) -> None:
    """Not only by the first call, which knows them; and the function goes on to work."""
    f = cg.function(MISFITS[name], engine=engine)
    expected = f(np.ones(3))
    for _ in range(2):
        with pytest.raises(CtrlgradError):
            f(np.ones(size))
    np.testing.assert_array_equal(f(np.ones(3)), expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sizes", [(4, 3), (3, 4), (1, 4), (4, 1)])
def test_lengths_that_differ_are_refused_where_neither_is_known(sizes: tuple[int, int], engine: str) -> None:
    def total(x: Any, y: Any) -> Any:
        return cg.scan(lambda c, row: (c + row[0] * row[1], None), 0.0, (x, y))[0]

    f = cg.function(total, engine=engine)
    for n in (2, 3):
        assert float(f(np.ones(n), np.ones(n))) == n
    with pytest.raises(CtrlgradError):
        f(*map(np.ones, sizes))


ROWS_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "both": lambda c, row: (c + row[0] * row[1], None),
    "their sum": lambda c, row: (c + row[0] + row[1], None),
    "the known one alone": lambda c, row: (c + row[1], None),
    "a product": lambda c, row: (c * row[0] + row[1], None),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ROWS_OF_TWO)
def test_lengths_that_differ_are_refused_where_one_is_known(name: str, engine: str) -> None:
    """In derivatives that need no element of the other one too."""
    total = lambda x, known: cg.scan(ROWS_OF_TWO[name], 1.0, (x, known))[0]
    signature = [cg.TensorSpec((None,)), cg.TensorSpec((3,))]
    along = lambda x, known: cg.jvp(lambda known: total(x, known), (known,), (known,))[1]
    for fn in (total, cg.grad(total, 1), cg.grad(total, (0, 1)), along):
        f = cg.function(fn, signature=signature, engine=engine)
        expected = cg.tree.leaves(cg.function(fn, engine=engine)(np.full(3, 0.5), TABLE))
        for found, value in zip(cg.tree.leaves(f(np.full(3, 0.5), TABLE)), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-14)
        for size in (1, 2, 4):
            with pytest.raises(CtrlgradError, match="scan: the leading dimensions differ"):
                f(np.ones(size), TABLE)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_length_that_is_given_is_that_of_rows_that_are_not_looked_at(engine: str) -> None:
    counted = lambda x: cg.scan(lambda c, row: (c + 1.0, c), 0.0, x, length=3)
    f = cg.function(counted, signature=[cg.TensorSpec((None,))], engine=engine)
    total, rows = f(np.ones(3))
    assert float(total) == 3.0 and rows.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(CtrlgradError, match="scan: the leading dimensions differ"):
        f(np.ones(4))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradient_of_a_broadcast_is_refused_where_it_was_none(engine: str) -> None:
    """The product itself is not computed for it; one element is broadcast, as in the first call."""
    slope = cg.function(cg.grad(lambda x: cnp.sum(x * TABLE)), engine=engine)
    for n in (3, 1):
        np.testing.assert_allclose(slope(np.ones(n)), TABLE if n == 3 else [TABLE.sum()])
    with pytest.raises(CtrlgradError):
        slope(np.ones(4))


def test_rows_that_are_known_from_one_argument_are_known_of_all() -> None:
    """In the graph too: a loop inside of another map begins with what its body declares."""

    def powers(x: Any) -> Any:
        return cg.vmap(lambda a, n: cg.fori_loop(0, n, lambda i, s: np.sin(s) * a, a))(x, np.array([0, 2, 5]))

    slope = cg.grad(lambda x: cnp.sum(powers(x) ** 2))
    one, two = cg.TensorSpec((None,), "float64"), cg.TensorSpec((None, None), "float64")
    xs = np.random.default_rng(1).normal(size=(2, 3))
    for fn, spec, x in ((powers, one, xs[0]), (slope, one, xs[0]), (cg.vmap(slope), two, xs)):
        f = cg.function(fn, signature=[spec])
        verify(f.graph(x))
        np.testing.assert_allclose(f(x), cg.function(fn, engine="reference")(x), rtol=1e-12)


def test_the_array_that_tells_a_length_is_not_compared_with_itself() -> None:
    spec = cg.TensorSpec((None,), "float64")
    total = lambda *xs: cg.scan(lambda c, row: (c + sum(row), None), 0.0, xs)[0]
    for arrays in (1, 2, 3):
        graph = cg.function(total, signature=[spec] * arrays).graph(*[np.ones(3)] * arrays)
        assert count_ops(graph)["ensure_sizes"] == arrays - 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bounds", [(None, -1), (1, None), (-2, None), (2, 1), (-5, 9), (0, 0)])
def test_the_gradient_of_slices_by_sizes(bounds: tuple[int | None, int | None], engine: str) -> None:
    """Of parts that are joined in a loop: where each lies in the cotangent follows from its slice."""

    def total(x: Any) -> Any:
        part = slice(*bounds)
        step = lambda i, s: (
            s + cnp.sum(cnp.concat([x[part] * s, x, x[part]]) * cnp.arange(x.shape[0] + 2 * x[part].shape[0]))
        )
        return cg.fori_loop(0, 2, step, 0.5)

    slope = cg.function(cg.grad(total), signature=[cg.TensorSpec((None,), "float64")], engine=engine)
    for n in (1, 3, 6):
        x = np.random.default_rng(n).normal(size=n)
        np.testing.assert_allclose(slope(x), cg.function(cg.grad(total), engine="reference")(x), rtol=1e-10)
        cg.check_grads(lambda x: cg.function(total, signature=[cg.TensorSpec((None,), "float64")])(x), (x,))


# Programs that use a size as the Python integer that it is at the first call.
AS_A_PYTHON_INTEGER: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: cnp.add(x.shape[0], x.shape[0]) * x,
    "NumPy's add": lambda x: np.add(x.shape[0], x.shape[0]) * x,
    "abs": lambda x: cnp.abs(x.shape[0]) * x,
    "negative": lambda x: cnp.negative(x.shape[0]) * x,
    "positive": lambda x: cnp.positive(x.shape[0]) * x,
    "divide": lambda x: cnp.divide(1.0, x.shape[0]) * x,
    "floor_divide": lambda x: cnp.floor_divide(x.shape[0], 2) * x,
    "remainder": lambda x: cnp.remainder(x.shape[0], 2) * x,
    "power": lambda x: cnp.power(x.shape[0], 2) * x,
    "a root": lambda x: cnp.power(x.shape[0], 0.5) * x,
    "a power of zero": lambda x: cnp.power(x.shape[0], 0) * x,
    "bits": lambda x: cnp.bitwise_left_shift(x.shape[0], 1) * x,
    "maximum": lambda x: cnp.maximum(x.shape[0], 2) * x,
    "gcd": lambda x: cnp.gcd(x.shape[0], 6) * x,
    "operators": lambda x: (-(-x.shape[0] // 2) + abs(x.shape[0] - 9) ** 2 + divmod(x.shape[0], 2)[1]) * x,
    "a sum of comparisons": lambda x: ((x.shape[0] > 2) + (x.shape[0] > 3)) * x,
    "a difference of comparisons": lambda x: ((x.shape[0] > 2) - (x.shape[0] > 3)) * x,
    "a negative comparison": lambda x: -(x.shape[0] > 2) * x,
    "an inverted comparison": lambda x: ~(x.shape[0] > 2) * x,
    "an f-string": lambda x: {"w3": 1.0, "w4": 2.0, "w5": 3.0}[f"w{x.shape[0]}"] * x,
    "str()": lambda x: {"3": 1.0, "4": 2.0, "5": 3.0}[str(x.shape[0])] * x,
    "repr()": lambda x: {"3": 1.0, "4": 2.0, "5": 3.0}[repr(x.shape[0])] * x,
    "an f-string of the shape": lambda x: float(len(f"{x.shape}")) * x,
    "a format of C": lambda x: {"3": 1.0, "4": 2.0, "5": 3.0}["%d" % x.shape[0]] * x,  # noqa: UP031
    "a method of int": lambda x: x.shape[0].bit_length() * x,
    "range()": lambda x: sum(i * x[i] for i in range(x.shape[0])) * x,
    "a list of so many": lambda x: cnp.array([2.0] * x.shape[0]) * x,
}


@pytest.mark.parametrize("name", AS_A_PYTHON_INTEGER)
def test_a_size_is_a_python_integer_at_every_call(name: str) -> None:
    """Also where it is unknown, in the first call with a second size; the dtype is that of the first call."""
    of_length = AS_A_PYTHON_INTEGER[name]
    fn, gradient = cg.function(of_length), cg.grad(lambda x: of_length(x).sum())
    for n in (3, 4, 5):
        x = np.arange(1, n + 1, dtype=np.float32)
        want, found = of_length(x), fn(x)
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)
        np.testing.assert_allclose(
            gradient(x.astype(float)), cg.grad(lambda x: of_length(x).sum())(x.astype(float)), rtol=1e-12
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flag_that_starts_as_a_python_boolean_stays_one_at_every_size(engine: str) -> None:
    """As in JAX: only comparisons of sizes are integers."""

    def last(x: Any) -> Any:
        step = lambda c: (np.where(c[1], c[0] * 2, c[0] + x[0]), ~c[1], c[2] + 1)
        return cg.while_loop(lambda c: c[2] < 4, step, (x[1], True, 0))[0]

    fn = cg.function(last, engine=engine)
    for n in (3, 4, 5):
        assert fn(np.arange(1.0, n + 1)) == 11.0


def test_an_error_in_a_call_with_a_second_size_does_not_cost_a_trace_for_each_size() -> None:
    is_wrong = [False]

    def total(x: Any) -> Any:
        if is_wrong[0]:
            raise ArithmeticError("the user's own")
        return x.sum()

    fn = cg.function(total)
    fn(np.ones(3))
    is_wrong[0] = True
    with pytest.raises(ArithmeticError, match="own"):
        fn(np.ones(4))
    is_wrong[0] = False
    for n in (5, 6, 7):
        assert fn(np.ones(n)) == n
    assert fn.traces == 4  # of which two are of the wrong call


def test_an_error_that_passes_does_not_make_a_function_ask_for_sizes() -> None:
    """An error of the trace for unknown sizes alone becomes a warning with its text, and the call works."""
    left = [0]

    def total(x: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError("the disk is busy")
        return x.sum()

    fn = cg.function(total)
    fn(np.ones(3))
    left[0] = 1
    with pytest.warns(RuntimeWarning, match="total: traced for the sizes(.|\n)*OSError: the disk is"):
        assert fn(np.ones(4)) == 4
    traces = fn.traces
    for n in (5, 6, 7):
        assert fn(np.ones(n)) == n
    assert fn.traces == traces + 1


def test_a_fault_that_only_unknown_sizes_show_is_told() -> None:
    """Of a function that works for known sizes, each new size says so."""

    def total(x: Any) -> Any:
        if not isinstance(x.shape[0], int):
            raise AssertionError("not a size")
        return x.sum()

    fn = cg.function(total)
    fn(np.ones(3))
    for n in (4, 5):
        with pytest.warns(RuntimeWarning, match="for unknown sizes it raised: AssertionError: not a size"):
            assert fn(np.ones(n)) == n


NEED_SIZES: dict[str, Callable[[Any], Any]] = {
    "squeeze": lambda x: cnp.squeeze(x[None]).sum(),
    "unstack": lambda x: sum(cnp.unstack(x)),
    "associative_scan": lambda x: cg.associative_scan(np.add, x)[-1],
    "random.normal": lambda x: (x + cg.random.normal(cg.random.key(0), x.shape) * 0).sum(),
    "polyval": lambda x: cnp.polyval(x, 1.0),
    "numpy.zeros": lambda x: (np.zeros(x.shape) + x).sum(),
    "checkpoint that reads a row of unknown size": lambda x: cg.grad(_row_in_a_checkpoint)(x)[0] + x.size - 1.0,
    "histogram": lambda x: cnp.histogram(x, x.shape[0])[0].sum(),
    "an error of the user's in place of ours": lambda x: _at_least_one(x) * x.sum(),
}


def _row_in_a_checkpoint(x: Any) -> Any:
    """The sum of the elements, with a derivative for a known number of them alone."""

    def step(i: Any, carry: Any) -> Any:
        rows, total = carry
        rows = rows.push(x)
        return rows, total + cg.checkpoint(lambda rows: rows.read(0).sum())(rows)

    return cg.fori_loop(0, 1, step, (cg.TensorArray("float64"), 0.0))[1]


def _at_least_one(x: Any) -> int:
    try:
        return min(int(x.shape[0]), 1)
    except TypeError:
        raise KeyError(0) from None


@pytest.mark.parametrize("name", NEED_SIZES)
def test_a_function_that_needs_sizes_is_traced_once_for_each(name: str) -> None:
    """Without a warning, and without a further trial for unknown sizes."""
    fn = cg.function(NEED_SIZES[name])
    for n in (3, 4, 5, 6):
        assert fn(np.ones(n)) == n
    assert fn.traces == 5


NUMBERS_OF_UNKNOWN_SIZE: dict[str, Callable[[Any], Any]] = {
    "lax.iota": lambda x: (cg.lax.iota(np.float64, x.shape[0]) * 0.0 + x).sum(),
    "map: batch_size": lambda x: cg.map(lambda row: row, x, batch_size=x.shape[0]).sum(),
    "attention: window": lambda x: cg.nn.dot_product_attention(
        *[x[None, :, None, None]] * 3, local_window_size=(x.shape[0] // 2, 0)
    ).sum(),
}


@pytest.mark.parametrize("name", NUMBERS_OF_UNKNOWN_SIZE)
def test_a_number_of_something_may_be_an_unknown_size(name: str) -> None:
    """The check of such an argument does not ask for the number: one graph serves all sizes."""
    fn = cg.function(NUMBERS_OF_UNKNOWN_SIZE[name])
    for n in (3, 4, 5, 6):
        np.testing.assert_allclose(fn(np.ones(n)), n, rtol=1e-12)
    assert fn.traces == 2


def named_by_if(x: Any) -> Any:
    if x.shape[0] == 4:
        name, factor = "four", 1.0
    else:
        name, factor = "else", 1.0
    return x.sum() * factor * (len(name) / 4)


def rows_by_if(x: Any) -> Any:
    rows = np.ones(2) if x.shape[0] > 4 else np.ones(3)
    return x.sum() * rows[0]


def chosen_by_and(x: Any) -> Any:
    big = x.shape[0] > 4 and "big"
    return x.sum() if big else x.sum() * 1


def text_by_while(x: Any) -> Any:
    i, text = 0, ""
    while i < x.shape[0]:
        i, text = i + 1, text + "."
    return x.sum() * (len(text) / x.shape[0])


def rank_by_for(x: Any) -> Any:
    y = x
    for _ in range(x.shape[0] - 2):
        y = y[None]
    return y.sum()


@pytest.mark.parametrize("fn", [named_by_if, rows_by_if, chosen_by_and, text_by_while, rank_by_for])
def test_a_size_that_chooses_python_objects_is_no_fault(fn: Any) -> None:
    """Autograph's error is not about the user's code, which chooses them by a Python number when sizes are known."""
    traced = cg.function(fn, autograph=True)
    for n in (3, 4, 5, 6):
        assert traced(np.ones(n)) == n
    assert traced.traces == 5


@pytest.mark.parametrize("name", ["an f-string", "a sum of comparisons", "range()", "a method of int"])
def test_a_size_is_a_python_integer_after_a_global_has_changed(name: str) -> None:
    """A trace for unknown sizes that is out of date is followed by one that may ask for the sizes."""
    chosen = ["add"]
    fn = cg.function(lambda x: AS_A_PYTHON_INTEGER[chosen[0]](x))
    for n in (3, 4, 5):
        fn(np.ones(n))
    chosen[0] = name
    for n in (3, 4, 5):
        x = np.arange(1.0, n + 1)
        np.testing.assert_array_equal(fn(x), AS_A_PYTHON_INTEGER[name](x))
