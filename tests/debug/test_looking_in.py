"""print, callback, breakpoint and watch_cotangent: when they are called, with what, and in which order."""

from __future__ import annotations

import bdb
import io
import pdb
import sys

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TypeMismatchError, UserInputError

both_ways = pytest.mark.parametrize("way", [lambda f: f, cg.function], ids=["at once", "traced"])


def nested(look, n=3):
    """Calls `look(i, j, y)` in the inner of two loops; the inner one runs i + 1 times."""

    def f(x):
        def outer(i, y):
            def inner(c):
                j, z = c
                look(i, j, z)
                return j + 1, z * 2.0

            return cg.while_loop(lambda c: c[0] <= i, inner, (0, y))[1]

        return cg.fori_loop(0, n, outer, x)

    return f


# print.


@both_ways
def test_print_in_nested_loops_in_order_with_iteration_numbers(way, capsys):
    f = nested(lambda i, j, y: cg.debug.print("{iterations} {iteration}: i={} j={j} y={y:.1f}", i, j=j, y=y))
    assert float(way(f)(1.0)) == 64.0
    assert capsys.readouterr().out.splitlines() == [
        "(0, 0) 0: i=0 j=0 y=1.0",
        "(1, 0) 0: i=1 j=0 y=2.0",
        "(1, 1) 1: i=1 j=1 y=4.0",
        "(2, 0) 0: i=2 j=0 y=8.0",
        "(2, 1) 1: i=2 j=1 y=16.0",
        "(2, 2) 2: i=2 j=2 y=32.0",
    ]


def test_prints_stand_in_the_order_of_the_program(capsys):
    def f(x):
        cg.debug.print("before {}", x)
        y = cg.fori_loop(0, 2, lambda i, y: (cg.debug.print("in {iteration}"), y + 1.0)[1], x)
        cg.debug.print("after {}", y)
        return y

    cg.function(f)(1.0)
    assert capsys.readouterr().out.splitlines() == ["before 1.0", "in 0", "in 1", "after 3.0"]


def test_print_happens_at_each_call_and_in_the_forward_part_of_a_gradient(capsys):
    f = cg.function(lambda x: (cg.debug.print("x = {}", x), x * x)[1])
    f(1.0), f(2.0)
    assert capsys.readouterr().out.splitlines() == ["x = 1.0", "x = 2.0"]
    assert float(cg.grad(f)(3.0)) == 6.0
    assert capsys.readouterr().out.splitlines() == ["x = 3.0"]


def test_a_format_that_does_not_fit_is_told_before_it_runs():
    with pytest.raises(UserInputError):
        cg.function(lambda x: (cg.debug.print("{} {}", x), x)[1])(1.0)


# callback.


@both_ways
def test_a_callback_gets_arrays_in_the_structure_that_was_given(way):
    seen = []

    def look(i, j, y):
        cg.debug.callback(lambda values, at: seen.append((at, values)), {"y": y, "ij": (i, j)})

    way(nested(look))(1.0)
    assert [at for at, _ in seen] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert all(isinstance(v["y"], np.ndarray) and v["y"].dtype == np.float64 for _, v in seen)
    assert [(int(v["ij"][0]), int(v["ij"][1])) for _, v in seen] == [at for at, _ in seen]


@both_ways
@pytest.mark.parametrize("x, taken", [(1.0, "positive"), (-1.0, "negative")])
def test_callbacks_in_branches_that_are_not_taken_do_not_run(way, x, taken):
    seen = []

    def note(word, value):
        cg.debug.callback(lambda v, at: seen.append((word, at)), value)
        return value * 2.0

    f = lambda x: cg.cond(x > 0.0, lambda: note("positive", x), lambda: note("negative", x))
    way(f)(x)
    assert seen == [(taken, ())]
    seen.clear()
    way(lambda x: cg.fori_loop(0, 2, lambda i, y: f(y), x))(x)
    assert seen == [(taken, (0,)), (taken, (1,))]
    seen.clear()
    cg.grad(f)(x)
    assert seen == [(taken, ())]


def test_a_switch_calls_back_from_the_branch_it_takes():
    seen = []

    def branch(k):
        return lambda: (cg.debug.callback(lambda v, at: seen.append((k, at)), k), 1.0 * k)[1]

    cg.function(lambda n: cg.fori_loop(0, n, lambda i, y: cg.switch(i % 3, [branch(0), branch(1), branch(2)]), 0.0))(5)
    assert seen == [(i % 3, (i,)) for i in range(5)]


def test_a_callback_may_keep_what_it_gets():
    """Later updates in place do not reach it."""
    seen = []

    def body(i, y):
        cg.debug.callback(lambda v, at: seen.append(v), y)
        return y.at[i].set(7.0)

    cg.function(lambda x: cg.fori_loop(0, 3, body, x))(np.zeros(3))
    assert [v.tolist() for v in seen] == [[0, 0, 0], [7, 0, 0], [7, 7, 0]]


def test_a_callback_is_not_dropped_though_nothing_uses_it():
    seen = []
    f = cg.function(lambda x: (cg.debug.callback(lambda v, at: seen.append(1), x * 3.0), x)[1])
    f(1.0)
    assert seen == [1] and "callback" in str(f.graph(1.0))


def test_an_error_in_a_callback_names_the_line():
    def f(x):
        cg.debug.callback(lambda v, at: {}["missing"], x)  # here
        return x

    with pytest.raises(KeyError, match="missing") as caught:
        cg.function(f)(1.0)
    assert f"test_looking_in.py:{f.__code__.co_firstlineno + 1}" in caught.value.__notes__[0]


# breakpoint.


def test_a_breakpoint_calls_the_hook_of_python_with_values_at_hand(monkeypatch):
    seen = []

    def hook(*args, **kwargs):
        frame = sys._getframe(1)
        seen.append((frame.f_locals["iterations"], float(frame.f_locals["values"]["y"])))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    cg.function(nested(lambda i, j, y: cg.debug.breakpoint(y=y), n=2))(1.0)
    assert seen == [((0, 0), 1.0), ((1, 0), 2.0), ((1, 1), 4.0)]


class Typed(pdb.Pdb):
    """A debugger that is given its commands, and keeps what it prints."""

    def __init__(self, commands):
        self.printed = io.StringIO()
        super().__init__(stdin=io.StringIO(commands), stdout=self.printed, nosigint=True, readrc=False)
        self.use_rawinput = False


def in_the_debugger(monkeypatch, commands):
    """Output of pdb at the first breakpoint of a loop."""
    debugger = Typed(commands)
    monkeypatch.setattr(sys, "breakpointhook", lambda: debugger.set_trace(sys._getframe(1)))

    def body(i, y):
        cg.debug.breakpoint(y=y)  # stops here
        return y * 2.0

    trace = sys.gettrace()
    try:
        cg.function(lambda x: cg.fori_loop(0, 3, body, x))(1.5)
    finally:
        sys.settrace(trace)
        line = body.__code__.co_firstlineno + 1
        assert f"test_looking_in.py({line})body()" in debugger.printed.getvalue()
        assert "# stops here" in debugger.printed.getvalue()
    return debugger.printed.getvalue()


def test_a_breakpoint_stops_at_the_users_line_with_the_names_that_were_given(monkeypatch):
    printed = in_the_debugger(monkeypatch, "p float(y), iterations, nested.__name__\nc\n" + "c\n" * 2)
    assert "(1.5, (0,), 'nested')" in printed


def test_quitting_the_debugger_says_where(monkeypatch):
    with pytest.raises(bdb.BdbQuit, match=r"the debugger was quit, at: .*test_looking_in\.py") as caught:
        in_the_debugger(monkeypatch, "q\n")
    assert any("in iteration 0 of the fori_loop" in note for note in caught.value.__notes__)


# watch_cotangent.


@pytest.mark.parametrize("x", [1.0, np.ones(3)])
@both_ways
def test_a_watch_takes_a_function_and_says_so_at_once(x, way):
    with pytest.raises(TypeMismatchError, match=r"cotangent, iterations[\s\S]*got: str"):
        way(lambda x: cg.debug.watch_cotangent(x, "name"))(x)
    with pytest.raises(TypeMismatchError, match="values, iterations"):
        way(lambda x: cg.debug.callback("name", x))(x)


def watched(seen):
    return lambda ct, at: seen.append((at, float(np.sum(ct))))


def test_a_cotangent_for_each_iteration_from_the_last_to_the_first():
    seen = []

    def f(x):
        return cg.while_loop(lambda y: y < 50.0, lambda y: cg.debug.watch_cotangent(y, watched(seen)) ** 2, x)

    assert float(cg.grad(f)(1.5)) == pytest.approx(16 * 1.5**15, rel=1e-12)
    y = [1.5 ** (2**k) for k in range(5)]
    count = next(k for k in range(5) if y[k] >= 50.0)
    assert [at for at, _ in seen] == [(k,) for k in reversed(range(count))]
    expected = 1.0
    for k in reversed(range(count)):
        expected *= 2.0 * y[k]
        assert dict(seen)[(k,)] == pytest.approx(expected, rel=1e-12)


def test_cotangents_in_nested_loops_name_both_iterations():
    seen = []

    def f(x):
        def outer(i, y):
            def inner(j, z):
                return cg.debug.watch_cotangent(z, watched(seen)) * x

            return cg.fori_loop(0, i + 1, inner, y)

        return cg.fori_loop(0, 3, outer, 1.0)

    assert float(cg.grad(f)(2.0)) == 6 * 2.0**5
    assert seen == [
        ((2, 2), 2.0),
        ((2, 1), 4.0),
        ((2, 0), 8.0),
        ((1, 1), 16.0),
        ((1, 0), 32.0),
        ((0, 0), 64.0),
    ]


def test_a_cotangent_in_the_branch_that_is_taken():
    seen = []

    def f(x):
        def body(i, y):
            return cg.cond(i % 2 == 0, lambda: cg.debug.watch_cotangent(y, watched(seen)) * 2.0, lambda: y * 3.0)

        return cg.fori_loop(0, 4, body, x)

    assert float(cg.grad(f)(1.0)) == 36.0
    assert seen == [((2,), 6.0), ((0,), 36.0)]


def test_watching_changes_nothing():
    seen = []
    f = lambda x: cg.fori_loop(0, 3, lambda i, y: np.sin(cg.debug.watch_cotangent(y, watched(seen))) * x, x)
    plain = lambda x: cg.fori_loop(0, 3, lambda i, y: np.sin(y) * x, x)
    x = np.array([0.3, 0.9])
    total = lambda f: lambda x: cnp.sum(f(x))
    np.testing.assert_array_equal(f(x), plain(x))
    assert seen == []
    np.testing.assert_array_equal(cg.grad(total(f))(x), cg.grad(total(plain))(x))
    assert len(seen) == 3
    np.testing.assert_allclose(cg.hessian(total(f))(x), cg.hessian(total(plain))(x), rtol=1e-13)


def test_a_cotangent_that_nobody_needs_is_not_computed():
    seen = []
    f = lambda x: (cg.debug.watch_cotangent(x * 2.0, watched(seen)), x * 3.0)[1]
    assert float(cg.grad(f)(1.0)) == 3.0 and seen == []
