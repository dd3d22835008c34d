"""Features of the constructs that `jax.lax` lacks, and the arguments that each construct refuses."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError, ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.verify.jax_translation import x64

X = np.array([0.5, -1.0, 2.0])

both_ways = pytest.mark.parametrize("way", [lambda f: f, cg.function], ids=["at once", "traced"])


# case and folds: as in TensorFlow.


def sign(x):
    return cg.case([(x > 1.0, lambda: x * x), (x > 0.0, lambda: x), (x < -1.0, lambda: -x)], default=lambda: 7.0 * x)


@both_ways
@pytest.mark.parametrize("x, value", [(3.0, 9.0), (0.5, 0.5), (-3.0, 3.0), (-0.5, -3.5)])
def test_case_takes_the_first_condition_that_holds(way, x, value):
    assert float(way(sign)(x)) == value


@pytest.mark.parametrize("x, slope", [(3.0, 6.0), (0.5, 1.0), (-3.0, -1.0), (-0.5, 7.0)])
def test_the_derivative_of_a_case_is_that_of_the_branch_it_took(x, slope):
    assert float(cg.grad(sign)(x)) == slope
    assert float(cg.jvp(sign, (x,), (1.0,))[1]) == slope


def test_case_without_a_default_takes_the_last_function():
    f = cg.function(lambda x: cg.case([(x > 1.0, lambda: 1.0), (x > 2.0, lambda: 2.0)]))
    assert [float(f(x)) for x in (3.0, 0.0)] == [1.0, 2.0]


def test_branches_that_are_not_taken_are_not_computed():
    """An index out of range in them does no harm."""
    far = cg.function(lambda x, i: cg.switch(i, [lambda: x[0], lambda: cnp.take(x, i * 100, axis=0)]))
    assert float(far(X, 0)) == 0.5
    with pytest.raises(CtrlgradError, match="out of"):
        far(X, 1)


@both_ways
def test_folds_go_from_the_first_row_and_from_the_last(way):
    digits = np.array([1.0, 2.0, 3.0])
    assert float(way(lambda xs: cg.foldl(lambda t, x: 10 * t + x, xs, 0.0))(digits)) == 123.0
    assert float(way(lambda xs: cg.foldr(lambda t, x: 10 * t + x, xs, 0.0))(digits)) == 321.0


@pytest.mark.parametrize("fold, reverse", [(cg.foldl, False), (cg.foldr, True)])
def test_folds_over_pytrees_are_scans(fold, reverse):
    xs = {"a": X, "b": np.arange(6.0).reshape(3, 2)}

    def f(carry, row):
        return np.sin(carry) + row["a"] * row["b"]

    def jax_f(carry, row):
        return jax.numpy.sin(carry) + row["a"] * row["b"], None

    with x64():
        expected, _ = jax.lax.scan(jax_f, np.ones(2), xs, reverse=reverse)
        expected = np.asarray(expected)
    np.testing.assert_allclose(cg.function(lambda xs: fold(f, xs, np.ones(2)))(xs), expected, rtol=1e-14)
    cg.check_grads(lambda xs: fold(f, xs, np.ones(2)), (xs,), order=2, modes=("rev", "fwd"))


# Carries whose shape changes.


def doubled(x, n):
    """x, then twice as long at each iteration."""

    def body(carry):
        i, y = carry
        return i + 1, cnp.concat([y, cnp.sin(y) * 2.0])

    return cg.while_loop(lambda c: c[0] < n, body, (0, cg.unknown_dims(x)))[1]


def test_a_carry_that_grows():
    f = cg.function(doubled)
    for n in (0, 1, 3):
        expected = X
        for _ in range(n):
            expected = np.concatenate([expected, 2.0 * np.sin(expected)])
        np.testing.assert_allclose(f(X, n), expected, rtol=1e-15)
    assert f.traces == 1


def test_derivatives_of_a_carry_that_grows():
    report = cg.check_grads(doubled, (X, 3), order=2, modes=("rev", "fwd"))
    assert any(row.judge == "jax (unrolled)" for row in report.rows)
    np.testing.assert_allclose(cg.jacfwd(doubled)(X, 2), cg.jacrev(doubled)(X, 2), rtol=1e-14)


def test_a_carry_that_shrinks_to_nothing():
    def body(carry):
        y, total = carry
        return y[1:], total + y[0] * cnp.sum(y)

    f = lambda x: cg.while_loop(lambda c: c[0].shape[0] > 0, body, (cg.unknown_dims(x), 0.0))[1]
    expected = sum(X[i] * X[i:].sum() for i in range(3))
    assert float(cg.function(f)(X)) == pytest.approx(expected, rel=1e-15)
    cg.check_grads(f, (X,), order=2, modes=("rev", "fwd"))


def test_a_carry_of_another_shape_without_leave_says_how():
    with pytest.raises(TypeMismatchError, match="unknown_dims"):
        cg.function(lambda x: cg.while_loop(lambda y: cnp.sum(y) < 9.0, lambda y: cnp.concat([y, y]), x))(X)


def test_unknown_dims_of_an_axis_that_does_not_exist():
    with pytest.raises(ShapeError, match="axis"):
        cg.function(lambda x: cg.unknown_dims(x, 1))(X)


def test_unknown_dims_of_an_axis_that_is_named_twice():
    """By its number and from the end: it is one axis."""
    x = np.ones((2, 3))
    found = cg.function(lambda x: cg.unknown_dims(x, (0, -2)) * 1.0).graph(x).outputs[0].tensor.shape
    assert found == (None, 3)
    np.testing.assert_array_equal(cg.unknown_dims(x, (1, 0, -1)), x)


def test_a_branch_gives_what_counts_as_unknown_outside_of_a_trace():
    """As found by a random program, in a loop that runs when it is met: an array that `unknown_dims` marked there."""
    marked = cg.unknown_dims(X)

    def body(t, y):
        return cg.cond(y[0] < 0.5, lambda: marked * 1.0, lambda: cg.switch(t, [lambda: marked, lambda: y * 0.5]))

    with cg.options(engine="reference"):
        expected = cg.function(lambda x: cg.fori_loop(0, 3, body, cg.unknown_dims(x)))(X)
    np.testing.assert_array_equal(cg.fori_loop(0, 3, body, marked), expected)
    longer = cg.unknown_dims(np.ones(5))
    with pytest.raises(ShapeError, match="the branches' results differ"):
        cg.fori_loop(0, 2, lambda t, y: cg.cond(t < 1, lambda: y, lambda: longer), marked)


# maximum_iterations.


@both_ways
def test_a_loop_within_its_maximum(way):
    f = lambda x: cg.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, x, maximum_iterations=4)
    assert float(way(f)(1.0)) == 16.0 and float(cg.grad(f)(1.0)) == 16.0


@both_ways
@pytest.mark.parametrize("maximum", [0, 3])
def test_a_loop_beyond_its_maximum(way, maximum):
    f = lambda x: cg.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, x, maximum_iterations=maximum, name="doubling")
    for run in (way(f), cg.value_and_grad(f), lambda x: cg.jvp(f, (x,), (1.0,))):
        with pytest.raises(MaximumIterationsError, match=f"after maximum_iterations={maximum} ") as caught:
            run(1.0)
        assert "test_loops_and_branches.py" in str(caught.value)


@pytest.mark.parametrize("maximum", [-1, 2.5, "3"])
def test_a_maximum_that_makes_no_sense(maximum):
    with pytest.raises(UserInputError, match="maximum_iterations"):
        cg.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, 1.0, maximum_iterations=maximum)


# Refused when the program is written.


@both_ways
@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda x: cg.switch(0, []), "no branches"),
        (lambda x: cg.switch(0.5, [lambda: x]), "integer"),
        (lambda x: cg.switch(0, [lambda: x, lambda: (x, x)]), r"result of branch 1\[1\]"),
        (lambda x: cg.switch(1, [lambda: x, lambda: x[:2]]), r"branch 0 returns f64\[3\], branch 1 returns f64\[2\]"),
        (lambda x: cg.case([]), "no pairs"),
        (lambda x: cg.case([(True, lambda: x), (x, lambda: x)]), "condition 1 is not a boolean"),
        (lambda x: cg.case([(True, 1.0)]), "case: the function of entry 0 is not a function"),
        (lambda x: cg.case([(x[0] > 0, lambda: x)], default=x), "case: default is not a function"),
        (lambda x: cg.map(lambda row: row, x[0]), "rank 1"),
        (lambda x: cg.scan(lambda c, row: c, 0.0, x), "pair"),
        (lambda x: cg.scan(lambda c, row: (c, row), 0.0), "length"),
        (lambda x: cg.scan(lambda c, row: (c, None), 0.0, (x, x[:2])), "leading dimensions"),
        (lambda x: cg.scan(lambda c, row: (c, None), 0.0, x, length=4), "leading dimensions"),
        (lambda x: cg.scan(lambda c, row: ((c, c), None), 0.0, x), "pytrees"),
        (lambda x: cg.foldl(lambda c, row: (c, row), x, 0.0), "pytrees"),
        (lambda x: cg.fori_loop(True, 3, lambda i, y: y, x), "real scalar"),
        (lambda x: cg.while_loop(lambda y: y, lambda y: y, x), "boolean scalar"),
    ],
)
def test_mistakes_say_what_is_wrong(way, wrong, words):
    with pytest.raises(CtrlgradError, match=words):
        way(lambda x: wrong(x))(X)
