"""Control flow in JAX: both forms compute what the reference engine computes, and JAX's gradients are right."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ctrlgrad.engines.reference import run_graph
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import apply, apply_all
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, Graph, StackType, TensorType, close, verify
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.verify.check import sample, slope
from ctrlgrad.verify.jax_judge import JaxDerivative, JaxJudge
from ctrlgrad.verify.jax_translation import translate

F8 = np.float64


def graph_of(fn: Callable[..., Any], *arguments: Any, unknown: bool = False) -> Graph:
    """Trace a function of tensors; with `unknown`, no dimension is known."""
    b = Builder()
    with trace.recording(b):
        types = [TensorType(x.dtype, (None,) * x.ndim if unknown else x.shape) for x in map(np.asarray, arguments)]
        results = fn(*(Tensor(b, b.input(t)) for t in types))
        return verify(b.finish([r.value for r in (results if isinstance(results, tuple) else (results,))]))


def loop(
    cond: Callable[..., Any], body: Callable[..., Any], *init: Any, types: Sequence[Any] = ()
) -> tuple[Tensor, ...]:
    """A `while` node straight into the graph, with carries of the given types where they are not the initial ones'."""
    outer = trace.current()
    assert outer is not None
    start = [x if isinstance(x, Tensor) else Tensor(outer, outer.constant(x)) for x in init]
    carried = [t or x.type for t, x in zip(types or [None] * len(start), start, strict=True)]
    regions = [region(fn, carried) for fn in (cond, body)]
    closed = close(regions)
    attrs = {"captures": len(closed.captures)}
    values = outer.emit_all("while", [*closed.captures, *(x.value for x in start)], attrs, regions=closed.regions)
    return tuple(Tensor(outer, v) for v in values)


def choose(selector: Tensor, branches: Sequence[Callable[[], Any]]) -> Any:
    outer = trace.current()
    assert outer is not None
    closed = close([region(fn, ()) for fn in branches])
    values = outer.emit_all("cond", [selector.value, *closed.captures], regions=closed.regions)
    results = tuple(Tensor(outer, v) for v in values)
    return results if len(results) > 1 else results[0]


def region(fn: Callable[..., Any], types: Sequence[Any]) -> Graph:
    b = Builder(trace.current(), "region")
    with trace.recording(b):
        results = fn(*(Tensor(b, b.input(t)) for t in types))
        results = results if isinstance(results, tuple) else (results,)
        return b.finish([(r if isinstance(r, Tensor) else Tensor(b, b.constant(r))).value for r in results])


def op(name: str, *operands: Any, **attrs: Any) -> Any:
    return apply(name, operands, attrs)


def add(a: Any, b: Any) -> Any:
    return op("add", a, b)


def mul(a: Any, b: Any) -> Any:
    return op("multiply", a, b)


def total(x: Any, axes: tuple[int, ...] = (0,)) -> Any:
    return op("sum", x, axes=axes, keepdims=False)


def less(a: Any, b: Any) -> Any:
    return op("less", a, b)


def stack_of(element: tuple[int | None, ...]) -> Tensor:
    return op_in_trace("stack_new", element=TensorType(F8, element))


def op_in_trace(name: str, **attrs: Any) -> Tensor:
    """An op without operands: `apply` would compute it at once."""
    builder = trace.current()
    assert builder is not None
    return Tensor(builder, builder.emit(name, (), attrs))


# Programs: scalar functions of a vector x of length 3, and of an integer n.


def plain_loop(x: Any, n: Any) -> Any:
    _, y = loop(lambda i, y: less(i, n), lambda i, y: (add(i, 1), op("sin", mul(y, x))), 0, x)
    return total(y)


def until_large(x: Any, n: Any) -> Any:
    (y,) = loop(lambda y: less(total(mul(y, y)), 50.0), lambda y: add(mul(y, 1.3), op("cos", x)), x)
    return total(mul(y, y))


def nested_with_inner_counts_from_data(x: Any, n: Any) -> Any:
    def outer(i: Any, y: Any) -> Any:
        bound = add(i, op("cast", op("trunc", mul(op("abs", total(y)), 2.0)), dtype=np.dtype(np.int64)))
        _, z = loop(lambda j, z: less(j, bound), lambda j, z: (add(j, 1), op("tanh", add(mul(z, x), 0.3))), 0, y)
        return add(i, 1), add(z, x)

    _, y = loop(lambda i, y: less(i, n), outer, 0, x)
    return total(mul(y, y))


def no_nan_from_steps_after_the_end(x: Any, n: Any) -> Any:
    """Inner loops of lengths 0 to n - 1; one step more than a loop takes would have an infinite derivative."""

    def outer(i: Any, y: Any) -> Any:
        def inner(j: Any, left: Any, z: Any) -> Any:
            return add(j, 1), op("subtract", left, 1.0), add(z, mul(total(x), op("sqrt", left)))

        start = op("cast", i, dtype=np.dtype(F8))
        _, _, z = loop(lambda j, left, z: less(j, i), inner, 0, start, 0.0)
        return add(i, 1), add(y, mul(z, z))

    _, y = loop(lambda i, y: less(i, n), outer, 0, 0.0)
    return y


def branch_in_a_loop(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        big = less(0.5, op("abs", total(y)))
        return add(i, 1), choose(big, [lambda: mul(op("exp", y), x), lambda: op("sin", add(y, x))])

    _, y = loop(lambda i, y: less(i, n), body, 0, x)
    return total(mul(y, y))


def switch_with_a_branch_never_taken(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        which = op("remainder", i, 2)
        # The third branch would give an infinite derivative: it never runs.
        never = lambda: op("sqrt", op("subtract", y, y))
        return add(i, 1), choose(which, [lambda: mul(y, x), lambda: op("cos", y), never])

    _, y = loop(lambda i, y: less(i, n), body, 0, x)
    return total(choose(op("add", n, 7), [lambda: y, lambda: op("tanh", y)]))


def rows_collected_and_read_back(x: Any, n: Any) -> Any:
    def push(i: Any, y: Any, s: Any) -> Any:
        return add(i, 1), op("sin", add(y, x)), op("stack_push", s, mul(y, y))

    _, y, s = loop(lambda i, y, s: less(i, n), push, 0, x, stack_of((3,)))

    def pop(i: Any, z: Any, s: Any) -> Any:
        s, row = apply_two("stack_pop", s)
        return add(i, 1), add(mul(z, 0.5), row), s

    rows = op("stack_to_tensor", s, size=None)
    half = op("floor_divide", n, 2)
    _, z, s = loop(lambda i, z, s: less(i, half), pop, 0, y, s)
    length = op("cast", op("stack_length", s), dtype=np.dtype(F8))
    return add(mul(total(z), length), total(mul(rows, rows), (0, 1)))


def apply_two(name: str, *operands: Any) -> tuple[Any, Any]:
    first, second = apply_all(name, list(operands), {})
    return first, second


def array_written_and_read(x: Any, n: Any) -> Any:
    table = op("stack_new", n, element=TensorType(F8, (3,)))

    def body(i: Any, s: Any) -> Any:
        before = op("stack_read", s, op("subtract", i, 1))
        return add(i, 1), op("stack_write", s, i, op("sin", add(before, x)), grow=False)

    _, s = loop(lambda i, s: less(i, n), body, 0, table)
    return total(op("stack_read", s, -1))


def window_that_moves(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        window = op("getitem", y, i, add(i, 2), key=(slice(DYNAMIC, DYNAMIC),))
        start = op("subtract", 1, i)
        y = op("additem", y, mul(window, window), start, add(start, 2), key=(slice(DYNAMIC, DYNAMIC),))
        return add(i, 1), op("setitem", y, op("sin", window), i, add(i, 2), key=(slice(DYNAMIC, DYNAMIC),))

    _, y = loop(lambda i, y: less(i, 2), body, 0, x)
    return total(mul(y, y))


def sizes_from_values(x: Any, n: Any) -> Any:
    """The head of x of length n - 2 and an iota of n: sizes that the graph does not know."""
    size = op("subtract", n, 2)
    head = op("getitem", x, size, key=(slice(None, DYNAMIC),))
    weights = op("cast", op("iota", n, shape=(None,)), dtype=np.dtype(F8))
    column = op("reshape", head, size, shape=(None, 1))
    spread = op("broadcast_to", column, size, n, shape=(None, None))
    return total(mul(op("sin", spread), weights), (0, 1))


def carry_that_grows(x: Any, n: Any) -> Any:
    grows = TensorType(F8, (None,))

    def body(i: Any, y: Any) -> Any:
        return add(i, 1), op("concat", y, op("sin", mul(y, 0.7)), axis=0)

    _, y = loop(lambda i, y: less(i, n), body, 0, x, types=(None, grows))
    return total(mul(y, y))


def ragged_elements(x: Any, n: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        head = op("getitem", x, i, key=(slice(None, DYNAMIC),))
        return add(i, 1), op("stack_push", s, mul(head, head))

    _, s = loop(lambda i, s: less(i, 4), body, 0, stack_of((None,)))
    return add(total(op("stack_read", s, 1)), total(op("sin", op("stack_read", s, 3))))


SCANS = [
    plain_loop,
    until_large,
    nested_with_inner_counts_from_data,
    no_nan_from_steps_after_the_end,
    branch_in_a_loop,
    switch_with_a_branch_never_taken,
    rows_collected_and_read_back,
    array_written_and_read,
    window_that_moves,
    sizes_from_values,
]
UNROLLED = [carry_that_grows, ragged_elements]
X = np.array([0.4, 1.1, -0.6])
N = np.asarray(5)


def differences(graph: Graph, direction: np.ndarray) -> float:
    s = slope(lambda t: sample(graph, [X + t * direction, N]), 0.05, 1e-15)
    assert s.error < 1e-9
    return s.value


V, W = np.array([0.3, -1.2, 0.5]), np.array([1.0, 0.4, -0.2])


@functools.cache
def judged_by(program: Callable[..., Any], form: Any) -> tuple[Graph, JaxJudge, list[JaxDerivative]]:
    """A program's graph, its judge, and by that the derivatives of first and, along V, of second order."""
    graph = graph_of(program, X, N)
    judge = JaxJudge(graph, [X, N], [0], form)
    return graph, judge, judge.derivatives([(V,)])


@pytest.mark.parametrize("form", ["scan", "unrolled"])
@pytest.mark.parametrize("program", SCANS)
def test_value_and_gradient(program: Callable[..., Any], form: Any) -> None:
    graph, _, (judged, _) = judged_by(program, form)
    (expected,) = run_graph(graph, [X, N])
    assert judged.form == form
    np.testing.assert_allclose(judged.value, expected, rtol=1e-13)
    for direction in np.eye(3):
        np.testing.assert_allclose(judged.gradient[0] @ direction, differences(graph, direction), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("program", SCANS)
def test_both_forms_and_both_modes_agree_to_second_order(program: Callable[..., Any]) -> None:
    (_, scan, (_, second)), (_, _, (_, of_unrolled)) = (judged_by(program, form) for form in ("scan", "unrolled"))
    np.testing.assert_allclose(of_unrolled.gradient[0], second.gradient[0], rtol=1e-11, atol=1e-11)
    _, along = scan.directional((W,), [(V,)])
    np.testing.assert_allclose(along, second.gradient[0] @ W, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("program", UNROLLED)
def test_sizes_that_change_are_unrolled(program: Callable[..., Any]) -> None:
    graph = graph_of(program, X, N)
    (expected,) = run_graph(graph, [X, N])
    judged = JaxJudge(graph, [X, N], [0]).derivative()
    assert judged.form == "unrolled"
    np.testing.assert_allclose(judged.value, expected, rtol=1e-13)
    for direction in np.eye(3):
        np.testing.assert_allclose(judged.gradient[0] @ direction, differences(graph, direction), rtol=1e-7)
    with pytest.raises(UserInputError, match="no form with fixed sizes"):
        translate(graph, [X, N], "scan")


@pytest.mark.parametrize("program", [plain_loop, until_large, branch_in_a_loop])
@pytest.mark.parametrize("form", ["scan", "unrolled"])
def test_unknown_dimensions(program: Callable[..., Any], form: Any) -> None:
    known, unknown = (graph_of(program, X, N, unknown=u) for u in (False, True))
    assert unknown.inputs[0].tensor.shape == (None,)
    expected = translate(known, [X, N], form)(X, N)
    np.testing.assert_allclose(translate(unknown, [X, N], form)(X, N), expected, rtol=1e-14)


@pytest.mark.parametrize("form", ["scan", "unrolled"])
def test_zero_iterations_give_the_initial_carry(form: Any) -> None:
    none = np.asarray(0)
    graph = graph_of(plain_loop, X, none)
    judged = JaxJudge(graph, [X, none], [0], form).derivative()
    np.testing.assert_array_equal(judged.value, X.sum())
    np.testing.assert_array_equal(judged.gradient[0], np.ones(3))


def test_one_and_two_dimensional_arrays_keep_float32() -> None:
    x = X.astype(np.float32)
    graph = graph_of(lambda x: total(op("sin", mul(x, x))), x)
    judged = JaxJudge(graph, [x], [0]).derivative()
    assert judged.value.dtype == judged.gradient[0].dtype == np.float32


def test_the_users_jax_setting_stays() -> None:
    import jax
    import jax.numpy as jnp

    before = jax.config.jax_enable_x64
    JaxJudge(graph_of(plain_loop, X, N), [X, N], [0]).derivative()
    assert jax.config.jax_enable_x64 == before
    assert jnp.zeros(1, float).dtype == (np.float64 if before else np.float32)


def test_stacks_are_joined_through_regions() -> None:
    """One capacity for a stack on its way through two loops; one of its own for another stack."""

    def two(x: Any, n: Any) -> Any:
        def push(i: Any, s: Any) -> Any:
            return add(i, 1), op("stack_push", s, x)

        _, long = loop(lambda i, s: less(i, n), push, 0, stack_of((3,)))
        _, long = loop(lambda i, s: less(i, 3), push, 0, long)
        short = op("stack_push", stack_of((3,)), x)
        return add(total(op("stack_read", long, 0)), total(op("stack_read", short, 0)))

    graph = graph_of(two, X, N)
    capacity = translate(graph, [X, N]).recording.capacity
    by_value = {v: capacity[v] for node in graph.nodes for v in node.results if isinstance(v.type, StackType)}
    assert sorted(by_value.values()) == [1, 1, 8, 8, 8]
