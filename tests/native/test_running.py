"""Runs of plans: the position in an error or a stop, concurrent runs, and objects kept between runs."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine, target
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, MaximumIterationsError, ShapeError
from ctrlgrad.execution import run_on
from ctrlgrad.ir.caching import Recent


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list[str]:
    """The texts compiled during a test, which starts with none."""
    found: list[str] = []
    compile = target.compiled

    def noted(text, *args, **kwargs):
        if "@plan(" in text:
            found.append(text)
        return compile(text, *args, **kwargs)

    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(target, "compiled", noted)
    monkeypatch.setattr(engine, "_FUNCTIONS", Recent(engine.FUNCTIONS))
    return found


# Positions.


def test_callbacks_are_told_the_iterations_forwards_and_backwards() -> None:
    seen: list[tuple[str, tuple[int, ...], float]] = []

    def f(x):
        def outer(i, y):
            def inner(j, z):
                cg.debug.callback(lambda z, at: seen.append(("forward", at, float(z))), z)
                return cg.debug.watch_cotangent(z, lambda ct, at: seen.append(("back", at, float(ct)))) * x

            return cg.fori_loop(0, 2, inner, y)

        return cg.fori_loop(0, 2, outer, x)

    runs = []
    for name in ("native", "reference"):
        seen.clear()
        cg.function(cg.grad(f), engine=name)(1.5)
        runs.append(list(seen))
    assert runs[0] == runs[1]
    assert [at for kind, at, _ in runs[0] if kind == "back"] == [(1, 1), (1, 0), (0, 1), (0, 0)]


def _error(name: str, fn, *args) -> Exception:
    with pytest.raises(Exception) as caught:
        cg.function(fn, engine=name)(*args)
    return caught.value


def _reads(x, n):
    return cg.fori_loop(0, 2, lambda k, s: s + cg.fori_loop(0, n, lambda i, t: t + x[i + k], 0.0), 0.0)


def _gathers(x, n):
    return cg.fori_loop(0, n, lambda i, s: s + cnp.take(x, cnp.arange(3) + i).sum(), 0.0)


def _too_long(x, n):
    def outer(k, s):
        return cg.while_loop(lambda c: c < 10.0 * (k + 1) ** 2, lambda c: c + 1, s, maximum_iterations=12)

    return cg.fori_loop(0, n, outer, 0.0)


def _slots(x, n):
    body = lambda i, array: array.write(i % 2, x[i])
    return cg.fori_loop(0, n, body, cg.TensorArray("float64", 3)).stack()


def _beyond(x, n):
    return cg.fori_loop(0, n, lambda i, array: array.write(i, x[0]), cg.TensorArray("float64", 2)).stack()


def _singular(x, n):
    return cg.fori_loop(0, n, lambda i, y: cnp.linalg.solve(x.reshape(2, 2) * (2 - i), y), cnp.ones(2))


def _unequal(x, n):
    return cg.fori_loop(0, n, lambda i, s: s + (x[: i + 1] + x[: 2 * i + 1]).sum(), 0.0)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (_reads, IndexOutOfRangeError),
        (_gathers, IndexOutOfRangeError),
        (_too_long, MaximumIterationsError),
        (_slots, ExecutionError),
        (_beyond, IndexOutOfRangeError),
        (_singular, ExecutionError),
        (_unequal, ShapeError),
    ],
    ids=lambda x: x.__name__,
)
def test_errors_are_those_of_the_reference_engine(fn, kind) -> None:
    args = (np.array([1.0, 2.0, 3.0, 4.0]), np.int64(4))
    found, expected = _error("native", fn, *args), _error("reference", fn, *args)
    assert type(found) is type(expected) and isinstance(found, kind)
    assert str(found) == str(expected)
    assert getattr(found, "__notes__", None) == getattr(expected, "__notes__", None)


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt("now"), SystemExit(3), GeneratorExit()])
def test_callback_errors_are_raised(error: BaseException) -> None:
    def stop(x, at):
        if at == (2,):
            raise error

    def body(i, x):
        cg.debug.callback(stop, x)
        return x * 2

    with pytest.raises(type(error)) as caught:
        cg.function(lambda x: cg.fori_loop(0, 5, body, x), engine="native")(1.0)
    assert caught.value is error
    assert any("in iteration 2 of the fori_loop" in note for note in error.__notes__)


def test_sizes_that_no_plan_expects_are_broadcast_and_callbacks_are_called_once() -> None:
    """Sizes are compared at run time: a slice has one element or as many as the other operand. A callback runs once."""
    seen: list[int] = []

    def f(x, n):
        def body(i, s):
            cg.debug.callback(lambda i, at: seen.append(int(i)), i)
            return s + (x[:2] + x[: i + 1]).sum()

        return cg.fori_loop(0, n, body, 0.0)

    x = np.arange(1.0, 5.0)
    assert cg.function(f, engine="native")(x, 2) == (x[:2] + x[:1]).sum() + (2 * x[:2]).sum()
    assert seen == [0, 1]


def _slow(x, n):
    def outer(i, c):
        return cg.fori_loop(0, n, lambda j, d: d * 0.999 + 1e-3 * j, c)

    return cg.fori_loop(0, 2, outer, x)


def test_ctrl_c_ends_an_inner_loop_and_says_where_it_was() -> None:
    function = cg.function(_slow, engine="native")
    before = function(1.0, 10)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            timer.start()
            function(1.0, 10**11)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
    place, inner, outer = caught.value.__notes__
    assert place.startswith("in while, at: ")
    assert inner.startswith("in iteration ") and " of the fori_loop" in inner and int(inner.split()[2]) > 0
    assert outer.startswith("in iteration 0 of the fori_loop")
    # The next call is a run like any other.
    assert function(1.0, 10) == before


class _SignalError(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals that wait")
def test_a_second_signal_while_the_first_one_ends_a_loop() -> None:
    """A second signal does not resume a loop that the first one is ending: code without an answer would go on for
    good."""
    numbers = {signal.SIGINT, signal.SIGUSR1}

    def stop(number, frame) -> None:
        raise _SignalError

    def ask_for_both(number, frame) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        for waiting in numbers:
            signal.raise_signal(waiting)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    function = cg.function(lambda x, n: cg.fori_loop(0, n, lambda i, x: x * 0.5 + i, x), engine="native")
    before = function(1.0, 2)
    handlers = {number: signal.signal(number, stop) for number in numbers}
    handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, ask_for_both)
    try:
        with pytest.raises(_SignalError):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            function(1.0, 10**9)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert function(1.0, 2) == before


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer's signals")
def test_a_handler_that_does_not_raise_lets_the_loop_go_on() -> None:
    function, seen = cg.function(_slow, engine="native"), []
    n = 30_000_000
    expected = function(1.0, n)
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        found = function(1.0, n)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen and found == expected


# Plans kept between runs.


def test_several_threads_compile_once_and_run_at_once(compilations: list[str]) -> None:
    def f(x):
        return cnp.sum(cg.fori_loop(0, 200, lambda i, y: cnp.tanh(y * 1.01) + x, x))

    points = [np.linspace(0.1, 0.9, 5) + k / 50 for k in range(16)]
    function = cg.function(cg.grad(f), engine="native")
    function.graph(points[0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(function, points * 3))
    assert len(compilations) == 1
    expected = [cg.function(cg.grad(f), engine="reference")(x) for x in points]
    np.testing.assert_allclose(found, expected * 3, rtol=1e-12)


def test_many_patterns_of_sizes_are_kept_in_a_bounded_number() -> None:
    """Plans for many patterns of sizes are kept in a bounded number: five sizes, any of them equal, 0 or 1."""
    function = cg.function(lambda *xs: sum(x.sum() for x in xs), signature=[cg.TensorSpec((None,), "float64")] * 5)
    graph = function.graph(*[np.ones(2)] * 5)
    for number in range(3 * engine.PATTERNS):
        sizes = [(number // 3**k) % 3 for k in range(5)]
        arguments = [np.ones(n) for n in sizes]
        assert run_on("native", graph, arguments)[0] == sum(sizes)
    assert len(engine.patterns_of(optimised_graph(graph)).programs) == engine.PATTERNS


def test_a_length_more_is_no_other_plan(compilations: list[str]) -> None:
    function = cg.function(cg.grad(lambda x: cnp.sum(cg.scan(lambda h, x: (cnp.tanh(h + x),) * 2, 0.0, x)[1])))
    for length in (3, 4, 7, 100):
        function(np.ones(length))
    # One plan for the first length, one for unknown lengths.
    assert len(compilations) <= 2


def test_a_loop_outside_of_a_function_is_compiled_once(compilations: list[str]) -> None:
    def newton(a, limit):
        return cg.while_loop(
            lambda c: abs(c[0] * c[0] - c[1]) > c[2], lambda c: (0.5 * (c[0] + c[1] / c[0]), *c[1:]), (a, a, limit)
        )[0]

    for a in (2.0, 3.0, 5.0):
        np.testing.assert_allclose(newton(a, 1e-9), np.sqrt(a), rtol=1e-8)
    assert len(compilations) == 1


def test_graphs_that_say_the_same_share_their_code(compilations: list[str]) -> None:
    for _ in range(3):
        assert cg.function(lambda x: cg.fori_loop(0, 4, lambda i, y: 2 * y + i, x), engine="native")(1.0) == 27.0
    assert len(compilations) == 1


def test_of_several_threads_one_makes_what_all_get() -> None:
    recent: Recent[int, object] = Recent(2)
    made = []
    barrier = threading.Barrier(4)

    def make() -> object:
        made.append(object())
        return made[-1]

    def ask() -> object:
        barrier.wait()
        return recent.get(1, make)

    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(ask) for _ in range(4)]]
    assert len(made) == 1 and all(x is made[0] for x in found)


def test_failed_entries_are_retried_and_the_oldest_is_dropped() -> None:
    recent: Recent[int, int] = Recent(2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        recent.get(0, fail)
    for key in (1, 2, 1, 3):
        assert recent.get(key, lambda key=key: key) == key
    assert recent.values() == [1, 3]


# Output of `explain`.


def test_explain_tells_of_kernels_products_pushes_and_what_is_outside() -> None:
    def f(x, w, n):
        def body(i, h):
            a = w + cnp.eye(5) * i
            return cnp.tanh(h @ w) + cnp.linalg.det(a) + cnp.linalg.eigvals(a).real.sum()

        return cg.fori_loop(0, n, body, x).sum()

    report = cg.function(cg.grad(f, argnums=(0, 1))).explain(np.ones((2, 5)), 0.1 * np.ones((5, 5)), 4)
    assert {loop.engine for loop in report.all_loops()} == {"native"}
    forward = report.loops[0]
    assert forward.products == ["product [2,5] @ [5,5]", "det of [5,5]"]
    assert any("tanh" in kernel for kernel in forward.kernels)
    assert forward.bytes_per_iteration == sum(push.nbytes for push in forward.pushes) > 0
    assert dict(forward.ops.items()) == {
        "outside, by the reference engine's kernels, as they have no form in machine code": [
            "general_eigenvectors",
            "general_eigenvalues",
        ]
    }
    text = str(report)
    assert "bytes pushed an iteration" in text and "needed backwards" in text


def sum_of_slices(x, n):
    return cg.fori_loop(0, n, lambda i, s: s + (x[:2] + x[: i + 1]).sum(), 0.0)


def test_explain_tells_of_the_plan_that_holds() -> None:
    """`explain` shows the current plan. The first plan assumed that both slices have one length, and was replaced."""
    report = cg.function(sum_of_slices).explain(np.arange(1.0, 5.0), 2)
    assert [loop.engine for loop in report.loops] == ["native"]
    assert any("add" in kernel for kernel in report.loops[0].kernels)


def test_explain_raises_what_running_raises() -> None:
    with pytest.raises(ShapeError, match="shapes do not broadcast"):
        cg.function(sum_of_slices).explain(np.arange(1.0, 5.0), 3)


def test_a_graph_without_loops_is_machine_code_too() -> None:
    report = cg.function(lambda x: cnp.sin(x) + 1).explain(np.ones(3))
    assert not report.loops and report.outside is not None and report.outside.engine == "native"
    assert report.outside.kernels == ["kernel over [3]: sin, add"]


def test_results_are_arrays_of_their_own() -> None:
    function = cg.function(lambda x, n: (x, x[:n] * 2, x + 1))
    x = np.arange(4.0)
    function(x, 3)
    first = function(x, 2)
    for result in first:
        assert result.base is None and result.flags.owndata and result.flags.writeable
    copies = [result.copy() for result in first]
    function(x + 5, 4)
    for result, copy in zip(first, copies, strict=True):
        np.testing.assert_array_equal(result, copy)


@pytest.mark.parametrize("element_shape", [(), (1,), (2, 3)])
def test_no_rows_are_stacked_to_an_array_of_their_shape(element_shape: tuple[int, ...]) -> None:
    def f(n):
        array = cg.TensorArray("float64", element_shape=element_shape)
        return cg.fori_loop(0, n, lambda i, array: array.push(cnp.ones(element_shape) * i), array).stack()

    function = cg.function(f, engine="native")
    assert function(0).shape == (0, *element_shape)
    assert function(2).shape == (2, *element_shape)


# State that one run leaves for the next.
