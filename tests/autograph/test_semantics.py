"""Statements that stay Python, statements that are converted, and converted functions in the rest of the library."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ir import Graph


def ops(graph: Graph) -> list[str]:
    """The names of the graph's ops, those of regions too."""
    names = []
    for node in graph.nodes:
        names.append(node.op.name)
        for region in node.regions:
            names += ops(region)
    return names


# Python stays Python.


def test_python_conditions_leave_no_trace() -> None:
    def fn(x, flag, names=("a", "b")):
        total = x
        n = 0
        while n < 3:
            n += 1
            if flag and n == 2:
                continue
            if "b" not in names or not flag:
                break
            total = total * 2 if n > 1 else total + 1
        for name in names:
            if name == "b":
                return total
        return -total

    traced = cg.function(lambda x: fn(x, True), autograph=True)
    assert {"while", "cond"}.isdisjoint(ops(traced.graph(1.0)))
    assert float(traced(1.0)) == fn(1.0, True)


def test_and_or_keep_pythons_values_and_laziness() -> None:
    seen: list[str] = []

    def note(value):
        seen.append(repr(value))
        return value

    def fn(x):
        a = note(0) or note("right") or note("never")
        b = note([]) and note("never")
        c = None or x
        d = note(1) < note(2) < note(0) < note(5)
        return c, a == "right", b == [], d

    result = cg.function(fn, autograph=True)(2.0)
    assert [x.item() for x in result] == [2.0, True, True, False]
    assert seen == ["0", "'right'", "[]", "1", "2", "0"]


def test_short_circuit_on_none() -> None:
    def fn(x, limit=None):
        if limit is not None and x > limit:
            return limit
        return x * 2

    traced = cg.function(fn, autograph=True)
    assert float(traced(3.0)) == 6.0
    assert float(traced(3.0, 2.0)) == 2.0


def test_laziness_on_tensors_guards_what_can_fail() -> None:
    def fn(xs, n):
        return n < 3 and xs[n] > 0.5

    traced = cg.function(fn, autograph=True)
    xs = np.array([0.0, 0.2, 0.9])
    assert [bool(traced(xs, n)) for n in (0, 2, 7)] == [False, True, False]
    assert "cond" in ops(traced.graph(xs, 0))
    assert ops(cg.function(lambda x, y: x > 0 and y > 0, autograph=True).graph(1.0, 2.0)).count("logical_and") == 1


def test_assert_on_python_values() -> None:
    def fn(x):
        assert x.ndim == 1, f"rank {x.ndim}"
        return x

    assert cg.function(fn, autograph=True)(np.ones(2)).shape == (2,)
    with pytest.raises(AssertionError, match="rank 0"):
        cg.function(fn, autograph=True)(1.0)


def test_unbound_variables_are_pythons_error() -> None:
    def fn(x, flag=False):
        if flag:
            y = x
        return y

    with pytest.raises(UnboundLocalError, match="'y'"):
        cg.function(fn, autograph=True)(1.0)


# The graphs.


def test_only_what_changes_is_carried() -> None:
    def fn(x, w):
        kept, n = w * 2, 0
        scale = 3.0
        while x < 10.0:
            x = x + kept * scale
            n += 1
        return x, n, kept

    graph = cg.function(fn, autograph=True).graph(1.0, 2.0)
    (loop,) = (node for node in graph.nodes if node.op.name == "while")
    assert len(loop.results) == 2


def test_numbers_do_not_widen() -> None:
    def fn(x):
        y, n = x, 0
        total = 0.0
        while n < 3 and y < 100:
            y = y * 1.5 + n
            total = total + y
            n += 1
        for i in range(n):
            y = y + i
        return y, total, y * n

    x = np.float32(1.0)
    plain = fn(x)
    for got, expected in zip(cg.function(fn, autograph=True)(x), plain, strict=True):
        assert got.dtype == expected.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_number_that_becomes_an_array_is_one_from_the_start() -> None:
    def fn(x, n):
        y = 1.0
        for _ in range(n):
            y = y * np.float64(1.5)
        return y * x

    assert cg.function(fn, autograph=True)(np.float32(2.0), 3).dtype == fn(np.float32(2.0), 3).dtype == np.float64


def test_flags_that_are_decided_cost_nothing() -> None:
    """`return` at the end of both branches leaves one `cond`, and no flag."""

    def fn(x):
        if x > 0:
            return x * 2
        return x * 3

    assert ops(cg.function(fn, autograph=True).graph(1.0)).count("cond") == 1


def test_constructs_and_python_give_the_same_loop() -> None:
    def plain(x):
        n = 0
        while x > 1.0:
            x = x / 2
            n += 1
        return x, n

    def with_constructs(x):
        return cg.while_loop(lambda c: c[0] > 1.0, lambda c: (c[0] / 2, c[1] + 1), (x, 0))

    one, two = cg.function(plain, autograph=True).graph(9.0), cg.function(with_constructs).graph(9.0)
    assert sorted(ops(one)) == sorted(ops(two))


def test_traced_break_out_of_a_python_range_is_a_loop() -> None:
    def fn(x):
        for _ in range(1000):
            x = 0.5 * (x + 2.0 / x)
            if abs(x * x - 2.0) < 1e-12:
                break
        return x

    graph = cg.function(fn, autograph=True).graph(1.0)
    assert ops(graph).count("while") == 1 and len(ops(graph)) < 60


# Converted statements.


def _halve(x):
    return x / 2 if x > 1 else x


def _with_if(x, y):
    if x > y:
        return x - y
    return x * y


def test_functions_passed_to_the_library_are_converted() -> None:
    def step(c, x):
        return (_with_if(c, x), c)

    def fn(x, xs):
        slope = cg.grad(_with_if)(x, 0.3)
        total, _ = cg.scan(step, x, xs)
        chosen = cg.switch(1, [_halve, lambda v: v if v > 9 else -v], x)
        return slope, total, chosen, cg.while_loop(lambda v: v > 1, _halve, x)

    xs = np.array([0.2, 3.0, 0.4])
    slope, total, chosen, halved = cg.function(fn, autograph=True)(5.0, xs)
    c = 5.0
    for x in xs:
        c = _with_if(c, x)
    assert (float(slope), float(chosen), float(halved)) == (1.0, -5.0, 0.625)
    assert float(total) == pytest.approx(c)


def test_nested_functions_of_the_library() -> None:
    @cg.function(autograph=True)
    def inner(x):
        while x > 1:
            x = x / 3
        return x

    def fn(x):
        @cg.function
        def local(v):
            return v * 2 if v > 0.5 else v

        return inner(x) + local(inner(x * 2))

    def plain(x):
        def third(v):
            while v > 1:
                v = v / 3
            return v

        y = third(x * 2)
        return third(x) + (y * 2 if y > 0.5 else y)

    assert float(cg.function(fn, autograph=True)(4.0)) == pytest.approx(plain(4.0))


def _newton(a):
    x = a
    while abs(x * x - a) > 1e-13:
        x = 0.5 * (x + a / x)
    return x


def test_every_transform_takes_an_autographed_function() -> None:
    root = cg.function(_newton, autograph=True)
    assert float(cg.grad(root)(2.0)) == pytest.approx(0.5 / np.sqrt(2))
    assert float(cg.function(cg.grad(root))(2.0)) == pytest.approx(0.5 / np.sqrt(2))
    assert float(cg.grad(cg.grad(root))(2.0)) == pytest.approx(-0.25 * 2**-1.5)
    assert float(cg.jvp(root, (2.0,), (1.0,))[1]) == pytest.approx(0.5 / np.sqrt(2))
    assert float(cg.jvp(cg.grad(root), (2.0,), (1.0,))[1]) == pytest.approx(-0.25 * 2**-1.5)
    assert float(root(2.0)) == pytest.approx(np.sqrt(2))


def test_forward_and_jax() -> None:
    fn = cg.function(_newton, autograph=True)
    cg.check_grads(fn, [np.array(3.0)], order=2, modes=("rev", "fwd"))


def test_two_lambdas_on_a_line_and_closures() -> None:
    up, down = (lambda x: x + 1 if x > 0 else x), (lambda x: x - 1 if x > 0 else x)
    both = [cg.function(f, autograph=True) for f in (up, down)]
    assert [float(f(2.0)) for f in both] == [3.0, 1.0]

    def maker(k):
        return lambda x: x * k if x > 0 else -x * k

    made = [cg.function(maker(k), autograph=True) for k in (2.0, 3.0)]
    assert [float(f(-1.0)) for f in made] == [2.0, 3.0]


class Layer:
    """A base whose method decides on its argument."""

    def __init__(self, w: float) -> None:
        self.w = w

    def __call__(self, x: Any) -> Any:
        return self.w * x if x > 0 else x

    @staticmethod
    def bound(x: Any) -> Any:
        return x if x < 3 else x * 0 + 3.0


class Deeper(Layer):
    @cg.function(autograph=True)
    def traced(self, x: NotANameAnywhere, *, k: int = 2) -> Any:  # type: ignore[name-defined]  # noqa: F821
        y: float = 1.0
        if x > 0:
            y = super().__call__(x) * k
        return self.bound(y)


def test_methods_objects_partials_and_keywords() -> None:
    assert float(cg.function(Layer(2.0), autograph=True)(3.0)) == 6.0
    assert float(cg.function(Layer(2.0).__call__, autograph=True)(-3.0)) == -3.0
    deeper = Deeper(0.5)
    assert [float(deeper.traced(1.0)), float(deeper.traced(9.0)), float(deeper.traced(4.0, k=1))] == [1.0, 3.0, 2.0]
    add = cg.function(functools.partial(_with_if, y=2.0), autograph=True)
    assert [float(add(5.0)), float(add(1.0))] == [3.0, 2.0]


def test_a_converted_function_is_its_original_to_others() -> None:
    def fn(x, *, k=3):
        """Doc."""
        return x * k if x > 0 else x

    made = cg.function(fn, autograph=True)
    inner = made.fn
    assert (inner.__name__, inner.__qualname__, inner.__doc__) == (fn.__name__, fn.__qualname__, "Doc.")
    assert inner.__kwdefaults__ == {"k": 3} and inner.__code__.co_filename == __file__
    assert inner(2.0) == 6.0, "on Python values it runs as Python"


def test_trace_count_does_not_grow_with_calls() -> None:
    fn = cg.function(_newton, autograph=True)
    for a in (2.0, 3.0, 5.0):
        assert float(fn(a)) == pytest.approx(np.sqrt(a))
    assert fn.traces == 1


def test_rows_of_many_lengths_are_traced_twice() -> None:
    def fn(xs):
        total = 0.0
        for x in xs:
            if x > 0.5:
                total = total + x
        return total

    traced = cg.function(fn, autograph=True)
    for n in range(8):
        xs = np.linspace(0.0, 1.0, n)
        assert float(traced(xs)) == pytest.approx(fn(xs))
    assert traced.traces == 2


def test_from_several_threads() -> None:
    results: dict[int, float] = {}

    def work(k: int) -> None:
        results[k] = float(cg.function(_newton, autograph=True)(float(k)))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == pytest.approx({k: k**0.5 for k in range(1, 6)})


def test_tensor_arrays_in_python_loops() -> None:
    def fn(x, limit):
        rows = cg.TensorArray(np.float64)
        while x < limit:
            rows = rows.push(x)
            x = x * 1.7
        return cnp.sum(rows.stack() ** 2)

    def plain(x, limit):
        total = 0.0
        while x < limit:
            total += x * x
            x = x * 1.7
        return total

    traced = cg.function(fn, autograph=True)
    assert float(traced(0.3, 5.0)) == pytest.approx(plain(0.3, 5.0))
    assert float(cg.grad(traced)(0.3, 5.0)) == pytest.approx(2 * plain(0.3, 5.0) / 0.3)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
def test_a_python_counter_is_compared_with_integer_arrays(dtype: str) -> None:
    def fn(n):
        i = 0
        while i < n:
            i += 1
        return i

    assert int(cg.function(fn, autograph=True)(np.array(5, dtype))) == 5
