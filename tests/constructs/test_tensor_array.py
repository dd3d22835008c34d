"""`TensorArray`: every operation inside and outside of a trace, its derivatives, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, ShapeError, TracingError, TypeMismatchError
from ctrlgrad.ir import walk

X = np.array([0.5, -1.0, 2.0, 3.0])
TABLE = np.arange(12.0).reshape(4, 3) - 5.0

both_ways = pytest.mark.parametrize("way", [lambda f: f, cg.function], ids=["at once", "traced"])


def checked(fn, *args, form=None):
    """To second order in both modes; `form` is how JAX has to run it."""
    report = cg.check_grads(fn, args, order=2, modes=("rev", "fwd"))
    if form is not None:
        assert {row.judge for row in report.rows} >= {f"jax ({form})"}


# Sizes.


@both_ways
def test_a_fixed_size(way):
    def f(x):
        array = cg.TensorArray("float64", 3).write(2, x).write(0, 2 * x)
        return array.size(), array.stack()

    size, stacked = way(f)(X)
    assert size == 3
    np.testing.assert_array_equal(stacked, [2 * X, 0 * X, X])


def test_a_size_that_is_data():
    body = lambda i, array: array.write(i, i * 2.0)
    f = cg.function(lambda n: cg.fori_loop(0, n, body, cg.TensorArray("float64", n)).stack())
    assert f(4).tolist() == [0.0, 2.0, 4.0, 6.0] and f(0).tolist() == []


def test_a_loop_learns_the_element_of_one_leaf_beside_others():
    def body(i, carry):
        array, y = carry
        return array.write(i, y), 2 * y

    f = cg.function(lambda x: cg.fori_loop(0, 3, body, (cg.TensorArray("float64"), x))[0].stack())
    assert f(1.5).tolist() == [1.5, 3.0, 6.0]


@both_ways
def test_an_array_without_a_size_grows(way):
    def f(x):
        array = cg.TensorArray("float64")
        array = array.write(0, x).push(2 * x)
        array = array.write(array.size(), 3 * x)
        return array.size(), array.stack()

    size, stacked = way(f)(X)
    assert size == 3
    np.testing.assert_array_equal(stacked, [X, 2 * X, 3 * X])


def test_writing_beyond_the_end_is_refused():
    for size, index in ((None, 1), (2, 2), (2, -3)):
        with pytest.raises(IndexOutOfRangeError, match=f"index {index} is out of range"):
            cg.TensorArray("float64", size, ()).write(index, 1.0)


def test_collecting_a_value_per_iteration_of_a_loop_of_unknown_length():
    def halvings(x):
        def body(carry):
            y, seen = carry
            return y / 2.0, seen.push(y)

        return cg.while_loop(lambda c: c[0] > 1.0, body, (x, cg.TensorArray("float64")))[1].stack()

    f = cg.function(halvings)
    for start in (0.5, 1.5, 100.0, 1e9):
        expected = []
        y = start
        while y > 1.0:
            expected.append(y)
            y /= 2.0
        np.testing.assert_array_equal(f(start), expected)
    assert f.traces == 1
    checked(lambda x: halvings(x) ** 2, 100.0, form="scan")


# Reading.


@both_ways
def test_a_slot_never_written_holds_zeros(way):
    array = way(lambda: cg.TensorArray("float64", 3, (2,)).write(1, np.ones(2)).stack())()
    np.testing.assert_array_equal(array, [[0, 0], [1, 1], [0, 0]])
    np.testing.assert_array_equal(way(lambda: cg.TensorArray("int32", 2, (2,)).read(0))(), np.zeros(2, np.int32))


def test_a_slot_of_unknown_size_must_be_written_before_it_is_read():
    with pytest.raises(ExecutionError, match="never written"):
        cg.TensorArray("float64", 2, (None,)).read(0)


@both_ways
def test_negative_indices_count_from_the_end(way):
    def f(x):
        array = cg.TensorArray("float64", 3, ()).write(-1, x)
        return array.read(2), array.read(-1), array.read(-3)

    assert [float(v) for v in way(f)(4.0)] == [4.0, 4.0, 0.0]


# Whole arrays.


@both_ways
def test_unstack_and_stack_are_each_others_inverse(way):
    f = way(lambda x: (cg.TensorArray("float64").unstack(x).stack(), cg.TensorArray("float64").unstack(x).read(1)))
    whole, row = f(TABLE)
    np.testing.assert_array_equal(whole, TABLE)
    np.testing.assert_array_equal(row, TABLE[1])


@both_ways
@pytest.mark.parametrize("indices", [[2, 0, 2, -1], [1], []])
def test_gather(way, indices):
    f = way(lambda x: cg.TensorArray("float64").unstack(x).gather(np.array(indices, np.int64)))
    np.testing.assert_array_equal(f(TABLE), TABLE[np.array(indices, np.int64)])


def test_gather_with_traced_indices_and_its_derivatives():
    def f(x, indices):
        return cg.TensorArray("float64").unstack(x).gather(indices) ** 2

    indices = np.array([1, 1, 3])
    np.testing.assert_array_equal(cg.function(f)(TABLE, indices), TABLE[indices] ** 2)
    checked(f, TABLE, indices, form="scan")


def test_gather_costs_the_slots_that_are_named():
    def f(x):
        return cg.TensorArray("float64").unstack(x).gather(np.array([5, 7]))

    graph = cg.function(f).graph(np.zeros(1000))
    assert not any(node.op.name == "getitem" and node.operands[0].type.shape == (1000,) for node in walk(graph))
    run = Run()
    run_graph(graph, [np.zeros(1000)], run)
    assert run.counters.iterations.total() == 2 and run.counters.pushes == 2


@both_ways
@pytest.mark.parametrize("shape", [(4, 3), (4, 1), (1, 3), (0, 3), (3, 2, 2)])
def test_concat_of_slots_of_one_size(way, shape):
    x = np.arange(float(np.prod(shape))).reshape(shape)
    np.testing.assert_array_equal(
        way(lambda x: cg.TensorArray("float64").unstack(x).concat())(x), x.reshape(shape[0] * shape[1], *shape[2:])
    )


def test_concat_knows_its_size_where_it_can():
    graph = cg.function(lambda x: cg.TensorArray("float64", 3).write(0, x).concat()).graph(np.ones((2, 5)))
    assert graph.outputs[0].type.shape == (6, 5)


def triangle(x, n):
    """Slots of 0, 1, 2, ... rows, joined."""

    def body(i, array):
        return array.push(x[:i] * (1.0 + i))

    return cg.fori_loop(0, n, body, cg.TensorArray("float64", element_shape=(None, 3))).concat()


@pytest.mark.parametrize("n", [0, 1, 4])
def test_concat_of_slots_of_different_sizes(n):
    expected = np.concatenate([np.zeros((0, 3)), *(TABLE[:i] * (1.0 + i) for i in range(n))])
    np.testing.assert_array_equal(cg.function(triangle)(TABLE, n), expected)
    array = cg.TensorArray("float64", element_shape=(None, 3))
    for i in range(n):
        array = array.push(TABLE[:i] * (1.0 + i))
    np.testing.assert_array_equal(array.concat(), expected)


def test_derivatives_of_concat_of_slots_of_different_sizes():
    checked(lambda x: triangle(x, 4) ** 3, TABLE, form="unrolled")
    checked(lambda x: cg.TensorArray("float64").unstack(x).concat() ** 3, TABLE, form="scan")


def test_slots_written_before_the_derivative_begins_keep_their_sizes():
    """The first slots do not depend on x: their cotangents and tangents are zeros of the slots' own sizes."""

    def f(x):
        array = cg.TensorArray("float64", 3, (None,)).write(0, np.ones(3)).write(1, np.ones(1))
        return array.write(2, x * x).concat() * np.arange(1.0, 9.0)

    checked(f, X)
    np.testing.assert_array_equal(cg.jacfwd(f)(X), cg.jacrev(f)(X))


def test_rows_of_a_batch_join_their_own_slots():
    batch = np.stack([TABLE, 2 * TABLE])
    rows = cg.vmap(lambda x: triangle(x, 4))(batch)
    np.testing.assert_allclose(rows, [cg.function(triangle)(x, 4) for x in batch])
    gradient = cg.grad(lambda x: cnp.sum(triangle(x, 4) ** 3))
    np.testing.assert_allclose(cg.vmap(gradient)(batch), [gradient(x) for x in batch])


# Writing twice.


def test_a_second_write_is_refused_with_its_index_and_iteration():
    def f(x):
        return cg.fori_loop(0, 7, lambda i, a: a.write(i % 4, x * i), cg.TensorArray("float64", 5, ())).stack()

    with pytest.raises(ExecutionError, match="slot 0 is written twice") as caught:
        cg.function(f)(1.0)
    text = str(caught.value)
    assert "in iteration 4 of the fori_loop" in text and "rewritable=True" in text
    assert f"test_tensor_array.py:{f.__code__.co_firstlineno + 1}" in text
    with pytest.raises(ExecutionError, match="slot 0 is written twice"):
        cg.value_and_grad(lambda x: cnp.sum(f(x)))(1.0)


@both_ways
@pytest.mark.parametrize(
    "make",
    [
        lambda x: cg.TensorArray("float64", 3).write(1, x).write(1, x),
        lambda x: cg.TensorArray("float64", 3).write(2, x).write(-1, x),
        lambda x: cg.TensorArray("float64").push(x).write(0, x),
        lambda x: cg.TensorArray("float64").unstack(cnp.stack([x, x])).write(1, x),
    ],
    ids=["same index", "negative index", "pushed", "unstacked"],
)
def test_every_way_of_writing_twice_is_refused(way, make):
    with pytest.raises(ExecutionError, match=r"slot \d is written twice"):
        way(lambda x: make(x).stack())(1.0)


def test_two_arrays_made_of_one_do_not_share_their_writes():
    def f(x):
        base = cg.TensorArray("float64", 2).write(0, x)
        return base.write(1, 2 * x).stack() + base.write(1, 3 * x).stack() + base.stack()

    assert cg.function(f)(1.0).tolist() == [3.0, 5.0]


def test_a_rewritable_array_holds_the_last_write():
    def f(x):
        start = cg.TensorArray("float64", 3, (), rewritable=True)
        return cg.fori_loop(0, 7, lambda i, a: a.write(i % 3, x * i), start).stack()

    assert cg.function(f)(2.0).tolist() == [12.0, 8.0, 10.0]
    assert cg.jacfwd(f)(2.0).tolist() == [6.0, 4.0, 5.0]
    checked(f, 2.0)


def test_branches_may_write_one_slot_each():
    def f(x):
        empty = cg.TensorArray("float64", 2, ())
        return cg.cond(x > 0, lambda a: a.write(0, x), lambda a: a.write(1, x), empty).stack()

    assert cg.function(f)(3.0).tolist() == [3.0, 0.0] and cg.function(f)(-3.0).tolist() == [0.0, -3.0]


# Refused when the program is written.


@both_ways
@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (lambda x: cg.TensorArray("float64", 2).read(0), TracingError, "element_shape"),
        (lambda x: cg.TensorArray("float64", 2).stack(), TracingError, "element_shape"),
        (lambda x: cg.TensorArray("float64", 2).concat(), TracingError, "element_shape"),
        (lambda x: cg.TensorArray("float64", 2).gather([0]), TracingError, "element_shape"),
        (lambda x: cg.TensorArray("float64", 2).push(x), TracingError, "fixed size"),
        (lambda x: cg.TensorArray("float64", 2, (3,)).write(0, x), TypeMismatchError, r"f64\[3\]"),
        (lambda x: cg.TensorArray("float32", 2).write(0, x), TypeMismatchError, "float32"),
        (lambda x: cg.TensorArray("float64", 2, ()).concat(), ShapeError, "scalars"),
        (lambda x: cg.TensorArray("float64").unstack(x).gather(1), TypeMismatchError, "i64"),
        (lambda x: cg.TensorArray("float64").unstack(x).gather([0.5]), TypeMismatchError, "i64"),
        (lambda x: cg.TensorArray("float64").unstack(x).gather([[0]]), TypeMismatchError, "rank 1"),
    ],
)
def test_mistakes_name_the_line(way, wrong, error, words):
    with pytest.raises(error, match=words) as caught:
        way(lambda x: wrong(x))(X)
    assert "test_tensor_array.py" in str(caught.value)


def test_a_gathered_index_out_of_range_names_it():
    with pytest.raises(IndexOutOfRangeError, match="index 4 is out of range"):
        cg.TensorArray("float64").unstack(X).gather([0, 4])


# Branches.


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_branch_without_an_element_has_that_of_another(n):
    """One gives rows, one none yet, and of the other array the last branch alone says what it holds."""

    def chosen(x, n):
        grown, sized = cg.TensorArray("float64", rewritable=True), cg.TensorArray("float64", size=2)
        branches = [
            lambda: (grown.push(x), sized),
            lambda: (grown, sized),
            lambda: (grown.push(x).push(x * x), sized.write(1, x[0])),
        ]
        a, b = cg.switch(n, branches)
        return a.stack(), b.stack()

    expected = [np.stack([X]), np.zeros((0, 4)), np.stack([X, X * X])][n], np.array([0.0, X[0] if n == 2 else 0.0])
    for fn in (chosen, cg.function(chosen)):
        for a, b in zip(fn(X, n), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    cg.check_grads(lambda x: chosen(x, n)[0], (X,), order=2)
    rows = cg.vmap(lambda x: cg.cond(x[0] > 9.0, lambda: chosen(x, n)[0], lambda: x[None]))(np.stack([X, X + 1.0]))
    np.testing.assert_array_equal(rows, np.stack([X, X + 1.0])[:, None])


@pytest.mark.parametrize("way", ["write", "push"])
def test_updates_outside_of_a_function_share_the_other_rows(way: str) -> None:
    """An update costs one row and the list of the slots: no update copies the rows before it."""
    rows = [np.full(100, float(i)) for i in range(1000)]
    array = cg.TensorArray("float64")
    for i, row in enumerate(rows):
        before, array = array, array.write(i, row) if way == "write" else array.push(row)
        if i:
            kept = zip(before._stack.stack, array._stack.stack, strict=False)
            assert all(a is b for a, b in kept)
    np.testing.assert_array_equal(array.stack(), np.stack(rows))


def _slots_of_known_sizes(kind: str, x: Any) -> Any:
    """Values of known shapes in slots of unknown ones; half of the slots are never read."""
    size = 4 if kind == "sized" else None
    array = cg.TensorArray("float64", size=size, element_shape=(None, None), rewritable=kind != "once")

    def body(t: Any, carry: Any) -> Any:
        array, total = carry
        value = np.sin(x[t:] + total)
        if kind == "pushed":
            return array.push(value).push(value * 2.0), total + np.sum(array.push(value).read(2 * t)) * 0.1
        array = array.write(2 * t, value).write(2 * t + 1, value * 2.0)
        return array, total + np.sum(array.read(2 * t)) * 0.1

    array, total = cg.fori_loop(0, 2, body, (array, 0.1))
    whole = np.sum(array.concat() ** 2) if kind == "pushed" else 0.0
    return total + np.sum(np.cos(array.read(3))) + whole


@pytest.mark.parametrize("kind", ["pushed", "once", "rewritten", "sized"])
@pytest.mark.parametrize("shape", [(3, 2), (3, None), (None, None)])
def test_gradients_of_values_whose_sizes_are_known_where_the_elements_are_not(kind: str, shape: Any) -> None:
    """As found: slots that nothing reads had no size in the gradient, and two unknown axes one size too few."""
    f = lambda x: _slots_of_known_sizes(kind, x)
    x = np.linspace(0.1, 0.9, 6).reshape(3, 2)
    whole = cg.function(f, signature=(cg.TensorSpec(shape, np.float64),))
    assert cg.check_grads(whole, (x,), order=2, modes=("rev", "fwd")).ok
    rows = cg.function(cg.vmap(cg.grad(f)))(np.stack([x, x * 0.5]))
    np.testing.assert_allclose(rows, [cg.grad(f)(x), cg.grad(f)(x * 0.5)], rtol=1e-12)


@pytest.mark.parametrize("kind", ["pushed", "once", "rewritten", "sized"])
@pytest.mark.parametrize("read", ["in a loop", "at once"])
def test_forward_mode_of_slots_without_a_tangent_whose_sizes_only_the_values_know(kind: str, read: str) -> None:
    """As found: a constant in a slot of unknown sizes was never written in the tangent, and reading it failed."""

    def f(x: Any) -> Any:
        size = 2 if kind == "sized" else None
        array = cg.TensorArray("float64", size=size, element_shape=(None, None), rewritable=kind != "once")
        for i, value in enumerate((np.ones((2, 2)), x)):
            array = array.push(value) if kind == "pushed" else array.write(i, value)
        if read == "at once":
            return np.sum(np.sin(array.stack()) * x)
        return cg.fori_loop(0, 2, lambda t, s: s + np.sum(np.sin(array.read(t) * x[0])), 0.0)

    x = np.array([[0.9, 1.2], [0.3, 0.6]])
    for shape in ((2, 2), (None, 2)):
        whole = cg.function(f, signature=(cg.TensorSpec(shape, np.float64),))
        assert cg.check_grads(whole, (x,), order=2, modes=("rev", "fwd")).ok


@both_ways
@pytest.mark.parametrize(("dtype", "value"), [("int64", 1.5), ("float64", 1j), ("bool", 2), ("int32", np.float32(0.5))])
def test_values_that_would_lose_a_part_are_refused(dtype, value, way):
    """Found: a Python float became an integer, its fraction lost; a complex number was an error of NumPy's."""
    for store in (
        lambda x: cg.TensorArray(dtype, 2, ()).write(0, value).stack(),
        lambda x: cg.TensorArray(dtype).push(value).stack(),
        lambda x: cg.TensorArray(dtype).unstack(np.array([value])).stack(),
    ):
        with pytest.raises(TypeMismatchError, match="the value's dtype does not fit"):
            way(store)(1.0)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", 1.5), ("float32", 2), ("int32", True), ("complex64", 2.0), (cnp.bfloat16, 0.5), ("float16", 3)],
)
def test_python_numbers_take_the_dtype_where_it_holds_their_kind(dtype, value):
    array = cg.TensorArray(dtype, 1, ()).write(0, value).stack()
    assert array.dtype == np.dtype(dtype) and array[0] == value
    assert cg.TensorArray("float32").unstack(X).stack().dtype == np.float32
