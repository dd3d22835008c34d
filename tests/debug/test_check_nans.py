"""`check_nans=True` names the op that made the first NaN or Inf: its line, the derivative, each loop and iteration."""

from __future__ import annotations

import linecache
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import NonFiniteError


class Culprit(NamedTuple):
    """Parts of an error: the text of the line, the derivative's order, the loops with their iterations."""

    line: str
    derivative: str
    loops: list[tuple[int, str]]
    text: str


def culprit(fn: Any, *args: Any) -> Culprit:
    with cg.options(check_nans=True), pytest.raises(NonFiniteError) as caught:
        fn(*args)
    error = caught.value
    of = re.search(r"^  at: .* \((its [a-z ]+|order \d+)\)$", str(error), re.M)
    loops = [re.match(r"in iteration (\d+) of the (.*)", note) for note in error.notes]
    return Culprit(
        linecache.getline(error.source.file, error.source.line).strip(),
        of[1] if of else "",
        [(int(found[1]), found[2].split(" at ")[0]) for found in loops],
        str(error),
    )


def test_a_value_outside_of_loops():
    def f(x):
        y = x - 1.0
        return np.log(y) * 2.0  # the culprit

    found = culprit(cg.function(f), 0.5)
    assert found.line.endswith("# the culprit") and found.derivative == "" and found.loops == []
    assert "log makes a NaN" in found.text
    assert culprit(cg.function(f), 1.0).text.startswith("log makes an Inf")


def test_nothing_is_said_where_all_is_finite_or_the_option_is_off():
    f = cg.function(lambda x: np.log(x - 1.0))
    with cg.options(check_nans=True):
        assert float(f(2.0)) == 0.0
    assert np.isnan(f(0.5))


def test_a_nan_that_was_given_is_nobodys_fault():
    with cg.options(check_nans=True):
        assert np.isnan(cg.function(lambda x: np.sin(x) * 2.0)(np.nan))


def test_the_iteration_of_a_loop():
    def f(x):
        def body(y):
            z = y - 1.0
            return np.sqrt(z)  # the culprit

        return cg.while_loop(lambda y: y > -5.0, body, x, name="shrinking")

    values = [30.0]
    while values[-1] >= 1.0:
        values.append(np.sqrt(values[-1] - 1.0))
    found = culprit(cg.function(f), 30.0)
    assert found.line.endswith("# the culprit") and found.loops == [(len(values) - 1, "shrinking")]


def nested(x):
    """The inner loop's log fails at j = 2 of i = 3."""

    def outer(c):
        i, y = c

        def inner(c):
            j, z = c
            return j + 1, z + np.log((i - 3.0) ** 2 + (j - 2.0) ** 2)  # the culprit

        _, y = cg.while_loop(lambda c: c[0] < 4, inner, (0, y), name="inner")
        return i + 1, y

    return cg.while_loop(lambda c: c[0] < 5, outer, (0, x), name="outer")[1]


def test_the_iterations_of_nested_loops():
    found = culprit(cg.function(nested), 0.0)
    assert found.line.endswith("# the culprit") and sorted(found.loops) == [(2, "inner"), (3, "outer")]
    assert found.derivative == "" and "makes an Inf" in found.text


def root(x, last=5):
    """sqrt's derivative is infinite where i == 3; its value is not."""

    def body(i, y):
        return y + np.sqrt(x * (i - 3.0) ** 2)  # the culprit

    return cg.fori_loop(0, last, body, 0.0)


def test_a_gradient_is_told_from_a_value():
    with cg.options(check_nans=True):
        assert float(cg.function(root)(4.0)) == 2.0 * (3 + 2 + 1 + 0 + 1)
        assert np.isfinite(cg.grad(lambda x: root(x, last=3))(4.0))
    found = culprit(cg.grad(root), 4.0)
    assert found.line.endswith("# the culprit") and found.derivative == "its gradient"
    assert [i for i, _ in found.loops] == [3]
    assert "makes a" in found.text


def test_forward_mode_names_the_line_and_the_iteration_too():
    found = culprit(lambda x: cg.jvp(root, (x,), (1.0,)), 4.0)
    assert found.line.endswith("# the culprit") and [i for i, _ in found.loops] == [3]


def test_a_gradient_in_nested_loops():
    def f(x):
        def outer(i, y):
            def inner(j, z):
                return z + np.sqrt(x * ((i - 1.0) ** 2 + (j - 2.0) ** 2))  # the culprit

            return cg.fori_loop(0, 4, inner, y)

        return cg.fori_loop(0, 3, outer, 0.0)

    found = culprit(cg.grad(f), 2.0)
    assert found.line.endswith("# the culprit") and found.derivative == "its gradient"
    assert [i for i, _ in found.loops] == [2, 1]


def test_a_second_derivative():
    """x^1.5 at 0: the value and the gradient are 0, the second derivative is infinite."""

    def f(x):
        return cg.fori_loop(0, 3, lambda i, y: y + (x * (i - 1.0)) ** 1.5 * i, 0.0)  # the culprit

    with cg.options(check_nans=True):
        assert float(cg.grad(lambda x: f(x))(0.0)) == 0.0
    found = culprit(cg.grad(cg.grad(f)), 0.0)
    assert found.line.endswith("# the culprit") and found.derivative.startswith("its ")
    assert len(found.loops) == 1


@pytest.mark.parametrize("x, fails", [(1.0, False), (-1.0, True)])
def test_only_the_branch_that_is_taken_counts(x, fails):
    def f(x):
        return cg.cond(
            x > 0.0,
            lambda: np.sqrt(x),
            lambda: np.sqrt(x) * 2.0,  # the culprit
        )

    def in_a_loop(x):
        return cg.fori_loop(0, 3, lambda i, y: y + f(x * (i + 1)), 0.0)

    for fn, loops in ((f, []), (in_a_loop, [0])):
        if fails:
            found = culprit(cg.function(fn), x)
            assert found.line.endswith("# the culprit") and [i for i, _ in found.loops] == loops
        else:
            with cg.options(check_nans=True):
                assert np.isfinite(cg.function(fn)(x)) and np.isfinite(cg.grad(fn)(x))


def test_the_gradient_of_a_branch():
    def f(x):
        return cg.fori_loop(
            0,
            4,
            lambda i, y: cg.cond(
                i == 2,
                lambda: y + np.sqrt(x),  # the culprit
                lambda: y * x + 1.0,
            ),
            0.0,
        )

    found = culprit(cg.grad(f), 0.0)
    assert found.line.endswith("# the culprit") and found.derivative == "its gradient"
    assert [i for i, _ in found.loops] == [2]


def test_elements_of_an_array_and_complex_numbers():
    assert "log makes an Inf" in culprit(cg.function(lambda x: cnp.log(x)), np.array([1.0, 0.0, 2.0])).text
    assert "divide makes a NaN" in culprit(cg.function(lambda x: x / x), np.array([1.0 + 1.0j, 0.0])).text


def test_outside_of_a_trace_too():
    assert culprit(lambda x: cg.fori_loop(0, 3, lambda i, y: y / (1.0 - i), x), 1.0).loops[0][0] == 1


@pytest.mark.parametrize("engine", ["reference", "dataflow"])
def test_the_op_whose_derivative_it_is_and_its_value(engine):
    with cg.options(engine=engine):
        found = culprit(cg.grad(root), 4.0)
        assert found.text.splitlines()[0].endswith(": the derivative of sqrt at 0")
        # The rule of arccos has 1 - x * x, not x: what is named is x.
        found = culprit(cg.value_and_grad(lambda x: np.sum(np.arccos(x))), np.array([0.5, 1.0, 0.25]))
        assert found.text.splitlines()[0].endswith(": the derivative of arccos at 1")
        # Where the value is needed nowhere, what the backward node was given says enough.
        found = culprit(cg.grad(np.log), 0.0)
        assert ": the derivative of log" in found.text and "divide(1, 0)" in found.text
    assert "the derivative" not in culprit(cg.function(np.log), 0.0).text.splitlines()[0]


def test_two_ops_on_the_line_with_different_values_are_not_mixed_up():
    found = culprit(cg.grad(lambda x: np.sqrt(x) + np.sqrt(x - 1.0)), 1.0)
    assert found.text.splitlines()[0].endswith(": the derivative of sqrt")


@pytest.mark.parametrize("engine", ["reference", "dataflow"])
def test_backward_iterations_are_numbered_as_forward(engine):
    with cg.options(engine=engine):
        assert "which runs backwards; numbered as forwards" in culprit(cg.grad(root), 4.0).text
        assert "backwards" not in culprit(cg.function(nested), 0.0).text
