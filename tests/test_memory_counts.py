"""A gradient's pushes and bytes are counted, and memory grows by them alone.

Times are no matter here; `benchmarks/rows.py` measures them.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from programs import BY_NAME, PROGRAMS, Program

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.engines.reference import Counters, Run, run_graph
from ctrlgrad.ir import Graph, StackType, TensorType, Value, walk


def count(graph: Graph, *args: Any) -> Counters:
    """The counters of one run."""
    run = Run()
    run_graph(graph, [np.asarray(leaf) for leaf in tree.leaves(args)], run)
    return run.counters


def gradient_graph(fn: Callable[..., Any], *args: Any, argnums: Any = 0) -> Graph:
    return cg.function(cg.grad(fn, argnums=argnums)).graph(*args)


def peak_bytes(graph: Graph, *args: Any) -> int:
    """The most that one run held at once, beyond what was held before it."""
    arguments = [np.asarray(leaf) for leaf in tree.leaves(args)]
    run_graph(graph, arguments)
    tracemalloc.start()
    try:
        run_graph(graph, arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Per program of the corpus.


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_every_push_is_popped(program: Program) -> None:
    """Saved values are popped, each exactly once; so is the cotangent of what the program itself pushes."""
    counters = count(program.graph(1), *program.args)
    assert counters.pushes == counters.pops


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_a_forward_run_saves_nothing(program: Program) -> None:
    graph = program.graph()
    assert all(node.op.name != "stack_pop" for node in walk(graph))
    collected = {"scan_over_pytrees", "scan_in_reverse", "scan_in_a_scan", "embedding_and_einsum"}
    collected |= {"rows_collected_from_an_unknown_size", "edit_distance_with_a_row_that_grows_in_a_scan"}
    collected |= {"steps_with_a_hessian_in_a_scan", "a_scalar_as_a_row_in_an_inner_loop"}
    # These push themselves.
    collected |= {"a_write_that_appends", "a_write_that_appends_to_a_rewritable_array", "writes_that_append_in_a_loop"}
    assert (count(graph, *program.args).pushes > 0) == (program.name in collected)


# Pushes in the whole run of a program's gradient: what the derivative needs, once, and nothing else.
PUSHES = {
    "swapped_carries": 0,  # linear
    "zero_iterations": 0,
    "zero_gradient": 0,
    "branch_with_different_captures": 0,  # outside of a loop nothing is stacked
    "unused_output": 4,  # y
    "integer_carry": 5,  # the integer total as a float
    "boolean_carry": 5,  # y; the flag changes in every iteration
    "aliased_carry": 2 * 4,  # both carries: they part after one iteration
    "early_exit": 9,  # y
    "maximum_not_reached": 4,  # y
    "loop_in_a_branch": 5 + 1,  # z, and the number of iterations in the branch that was taken
    "row_reads": 5,  # the state; the index is recomputed
    "row_writes": 4,  # y; the index is recomputed
    "tensor_array_slot_written_twice": 7,  # y
    "tensor_array_of_unknown_size": 6,  # y
}


@pytest.mark.parametrize("name", PUSHES)
def test_pushes_of_a_program(name: str) -> None:
    program = BY_NAME[name]
    graph = gradient_graph(_sum_of(program), *program.args, argnums=program.argnums)
    assert count(graph, *program.args).pushes == PUSHES[name]


def _sum_of(program: Program) -> Callable[..., Any]:
    return lambda *args: sum(cnp.sum(leaf) for leaf in tree.leaves(program.fn(*args)))


# Values that are never pushed.


def test_a_linear_loop_pushes_nothing() -> None:
    def f(x, w, n):
        return cnp.sum(cg.fori_loop(0, n, lambda i, y: 0.5 * y + w, x))

    args = (np.ones(3), np.ones(3), np.int64(10))
    assert count(gradient_graph(f, *args, argnums=(0, 1)), *args).pushes == 0


def test_a_loop_invariant_matrix_is_not_pushed() -> None:
    """y -> tanh(W y): per iteration the state is pushed, never W."""

    def f(w, y, n):
        return cnp.sum(cg.fori_loop(0, n, lambda i, y: cnp.tanh(w @ y), y))

    size, n = 20, 50
    args = (np.eye(size) * 0.5, np.ones(size), np.int64(n))
    counters = count(gradient_graph(f, *args, argnums=(0, 1)), *args)
    assert n * size * 8 <= counters.pushed_bytes <= 2 * (n + 1) * size * 8


def test_a_value_computed_from_invariants_alone_is_not_pushed() -> None:
    """exp(W) and its transpose are the same in every iteration, though the body computes them."""

    def f(w, y, n):
        return cnp.sum(cg.fori_loop(0, n, lambda i, y: cnp.exp(w).T @ y, y))

    size, n = 20, 50
    args = (np.eye(size) * 0.01, np.ones(size), np.int64(n))
    counters = count(gradient_graph(f, *args, argnums=(0, 1)), *args)
    assert counters.pushed_bytes <= (n + 1) * size * 8


def test_the_counter_is_not_pushed() -> None:
    """The index of `xs[t]` and the factor `t` follow from the iteration: no integer is pushed."""

    def f(xs, w, n):
        def step(c):
            i, h = c
            return i + 1, 0.5 * h + xs[n - 1 - i] * w * (2 * i + 1)

        return cnp.sum(cg.while_loop(lambda c: c[0] < n, step, (0, cnp.zeros(4)))[1])

    args = (np.ones((10, 4)), np.float64(0.3), np.int64(10))
    graph = gradient_graph(f, *args, argnums=0)
    assert count(graph, *args).pushes == 0
    with_w = gradient_graph(f, *args, argnums=(0, 1))
    pushed = [node.operands[1].type for node in walk(with_w) if node.op.name == "stack_push"]
    assert all(isinstance(t, TensorType) and t.dtype.kind == "f" for t in pushed)


def test_only_the_trip_count_of_an_inner_loop_is_pushed() -> None:
    """A linear inner loop whose count depends on data: one integer per outer iteration."""

    def f(x, n):
        def outer(i, y):
            return cg.while_loop(lambda z: z < 10.0 * (i + 1), lambda z: 1.5 * z + 0.1, y)

        return cg.fori_loop(0, n, outer, x)

    args = (np.float64(1.0), np.int64(6))
    counters = count(gradient_graph(f, *args), *args)
    assert counters.pushes == 6
    assert counters.pushed_bytes == 6 * 8


def test_a_count_that_follows_from_a_bound_is_not_pushed() -> None:
    """The inner loop runs i + 1 times and ends with a counter that is used: both follow from i."""

    def f(x, w, n):
        def outer(i, y):
            k, y = cg.while_loop(lambda c: c[0] <= i, lambda c: (c[0] + 1, c[1] * w + 0.1), (0, y))
            return y * k

        return cg.fori_loop(0, n, outer, x)

    args = (np.float64(1.0), np.float64(0.9), np.int64(6))
    assert count(gradient_graph(f, *args), *args).pushes == 0
    # 1 + 2 + ... + 6 values of y in the inner loop; of the outer one what the inner ones begin with is among them.
    assert count(gradient_graph(f, *args, argnums=1), *args).pushes == 21
    assert cg.check_grads(lambda x, w: f(x, w, 6), args[:2], order=2).ok


@pytest.mark.parametrize("form", ["negated", "multiplied", "truth"])
def test_alternating_signs_are_not_pushed(form: str) -> None:
    """An alternating series: the sign follows from the number of the iteration, whatever it starts with."""
    flip = {"negated": lambda s: -s, "multiplied": lambda s: s * -1.0, "truth": lambda s: ~s}[form]

    def f(x, start, n):
        def step(i, c):
            total, sign = c
            term = cnp.where(sign, x, -x) if form == "truth" else sign * x
            return total + term * (i + 1), flip(sign)

        return cg.fori_loop(0, n, step, (0.0, start > 0.0 if form == "truth" else start))[0]

    for start in (1.0, -2.0):
        args = (np.float64(0.8), np.float64(start), np.int64(7))
        assert count(gradient_graph(f, *args), *args).pushes == 0
        assert cg.check_grads(partial(f, start=start, n=7), args[:1], order=2).ok
        if form != "truth":
            assert cg.check_grads(lambda x, s: f(x, s, 7), args[:2], order=2).ok


def test_only_the_predicate_of_a_linear_branch_is_pushed() -> None:
    def f(x, n):
        return cg.fori_loop(0, n, lambda i, y: cg.cond(y > 1.0, lambda y: 0.3 * y, lambda y: 1.7 * y + 0.1, y), x)

    args = (np.float64(0.8), np.int64(10))
    counters = count(gradient_graph(f, *args), *args)
    assert counters.pushes == 10
    assert counters.pushed_bytes == 10


def test_a_branch_pushes_only_when_it_is_taken() -> None:
    """One side runs in every fifth iteration and saves what its own loop ended with; the predicate is recomputed."""

    def f(x, n):
        def far(y):
            z = cg.while_loop(lambda z: z < 4.0, lambda z: 1.5 * z + 0.1, y)
            return 0.1 * z * z

        return cg.fori_loop(0, n, lambda i, y: cg.cond(i % 5 == 0, far, lambda y: 0.9 * y, y), x)

    args = (np.float64(0.8), np.int64(20))
    counters = count(gradient_graph(f, *args), *args)
    assert counters.pushes_by_node
    assert set(counters.pushes_by_node.values()) == {4}


def test_values_of_unrequested_gradients_are_not_saved() -> None:
    """dy/dx of y -> w y + sin(v) needs w alone; dy/dw would need every y."""

    def f(x, w, v, n):
        return cg.fori_loop(0, n, lambda i, y: w * y + cnp.sin(v * i), x)

    args = (np.float64(0.8), np.float64(0.9), np.float64(0.1), np.int64(20))
    assert count(gradient_graph(f, *args, argnums=0), *args).pushes == 0
    assert count(gradient_graph(f, *args, argnums=1), *args).pushes == 20
    assert count(gradient_graph(f, *args, argnums=(0, 1)), *args).pushes == 20


@pytest.mark.parametrize("name", ["exp", "tanh", "power", "logaddexp"])
def test_functions_much_slower_than_exp_are_saved(name: str) -> None:
    """Both the carry and a function of it are wanted, which follows from the carry."""
    functions = {"power": lambda x: x**1.7, "logaddexp": lambda x: cnp.logaddexp(x, 1.0)}
    function = functions.get(name) or getattr(cnp, name)

    def loss(x: Any) -> Any:
        return cg.fori_loop(0, 3, lambda _, x: cnp.sin(x) * cnp.cos(function(x)), x)

    assert count(gradient_graph(loss, 0.5), 0.5).pushes == 3 * (2 if name in functions else 1)


def test_shapes_are_saved_instead_of_values() -> None:
    """A mean's gradient needs its operand's size; never the operand."""
    spec = (cg.TensorSpec((None,), np.float64), cg.TensorSpec((), np.int64))

    def f(x, n):
        return cg.fori_loop(0, n, lambda i, y: y * 0.5 + cnp.mean(x + y), cnp.sum(x))

    graph = cg.function(cg.grad(f), signature=spec).graph(np.ones(7), np.int64(5))
    pushed = [node.operands[1].type for node in walk(graph) if node.op.name == "stack_push"]
    assert all(isinstance(t, TensorType) and t.rank == 0 for t in pushed)
    assert count(graph, np.ones(7), np.int64(5)).pushed_bytes <= 5 * 8


# Memory.


def _tanh_loop(w: Any, y: Any, n: Any) -> Any:
    return cnp.sum(cg.fori_loop(0, n, lambda i, y: cnp.tanh(y * w), y))


def test_peak_memory_grows_by_the_pushed_values_alone() -> None:
    size = 4000
    args = (np.full(size, 0.9), np.linspace(0.0, 1.0, size))
    graph = gradient_graph(_tanh_loop, *args, np.int64(1), argnums=(0, 1))
    short, long = ((*args, np.int64(n)) for n in (20, 60))
    grown = peak_bytes(graph, *long) - peak_bytes(graph, *short)
    pushed = count(graph, *long).pushed_bytes - count(graph, *short).pushed_bytes
    assert pushed >= 40 * size * 8
    assert abs(grown - pushed) <= 0.05 * pushed


def test_peak_memory_of_a_loop_without_pushes_does_not_grow() -> None:
    def f(x, n):
        return cnp.sum(cg.fori_loop(0, n, lambda i, y: cnp.flip(y) * 0.9 + cnp.sum(y) / 1e4, x))

    x = np.ones(4000)
    graph = gradient_graph(f, x, np.int64(1))
    assert peak_bytes(graph, x, np.int64(200)) <= peak_bytes(graph, x, np.int64(20)) + x.nbytes


def _mostly_cut(w: Any, v: Any, n: Any) -> Any:
    """A scalar recurrence in w, driven by a vector that evolves behind `stop_gradient`."""

    def step(carry: Any) -> Any:
        i, y, v = carry
        v = cg.stop_gradient(cnp.sin(v * 3.0) * cnp.cos(v) + 0.1)
        return i + 1, 0.9 * y + w * cnp.mean(v), v

    return cg.while_loop(lambda c: c[0] < n, step, (0, 0.0, v))[1]


def test_a_long_loop_pushes_only_what_is_not_cut() -> None:
    """2,000 iterations, one number each; the vectors behind `stop_gradient` leave nothing."""
    w, v, n = np.float64(0.5), np.linspace(0.0, 1.0, 10), 2_000
    graph = gradient_graph(_mostly_cut, w, v, np.int64(1))
    run = Run()
    tracemalloc.start()
    try:
        (gradient,) = run_graph(graph, [w, v, np.int64(n)], run)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert run.counters.pushes == n
    assert run.counters.pushed_bytes == 8 * n
    # A pushed number is a scalar object of 32 bytes and a reference to it; a list grows by an eighth at a time.
    assert peak <= n * (32 + 8 * 9 / 8) + 2**17
    means, u = [], v
    for _ in range(n):
        u = np.sin(u * 3.0) * np.cos(u) + 0.1
        means.append(np.mean(u))
    np.testing.assert_allclose(gradient, np.sum(np.array(means[-1000:]) * 0.9 ** np.arange(999, -1, -1.0)), rtol=1e-9)


def test_a_long_loop_that_is_cut_whole_pushes_nothing() -> None:
    def f(x, n):
        def step(carry):
            i, y, z = carry
            return i + 1, cg.stop_gradient(cnp.sin(y) * y), z * 0.999

        _, y, z = cg.while_loop(lambda c: c[0] < n, step, (0, x, x))
        return y + z

    graph = gradient_graph(f, np.float64(0.5), np.int64(1))
    assert count(graph, np.float64(0.5), np.int64(4_000)).pushes == 0
    assert peak_bytes(graph, np.float64(0.5), np.int64(4_000)) < 2**16


# Rows: a loop that touches one row per iteration copies no array.


def _read(xs: Any, ys: Any) -> Any:
    return cnp.sum(cg.fori_loop(0, xs.shape[0], lambda t, h: 0.9 * h + cnp.sin(xs[t]), cnp.zeros(4)))


def _scan(xs: Any, ys: Any) -> Any:
    return cnp.sum(cnp.sin(cg.scan(lambda h, x: (0.9 * h + x, h), cnp.zeros(4), xs)[1]))


def _set(xs: Any, ys: Any) -> Any:
    return cnp.sum(cg.fori_loop(0, xs.shape[0], lambda t, ys: ys.at[t].set(cnp.sin(xs[t])), ys) ** 2)


def _add(xs: Any, ys: Any) -> Any:
    return cnp.sum(cg.fori_loop(0, xs.shape[0], lambda t, ys: ys.at[t].add(cnp.sin(xs[t])), ys) ** 2)


def _array(xs: Any, ys: Any) -> Any:
    n = xs.shape[0]
    rows = cg.fori_loop(0, n, lambda t, a: a.write(t, cnp.sin(xs[t])), cg.TensorArray(np.float64, element_shape=(4,)))
    return cnp.sum(cg.fori_loop(0, n, lambda t, h: 0.9 * h + rows.read(n - 1 - t), cnp.zeros(4)))


ROW_LOOPS = {"read": _read, "scan": _scan, "set": _set, "add": _add, "array": _array}


def _row_graph(kind: str, order: int, n: int) -> tuple[Graph, tuple[Any, ...]]:
    fn: Callable[..., Any] = ROW_LOOPS[kind]
    args = (np.linspace(0.0, 1.0, 4 * n).reshape(n, 4), np.zeros((n, 4)))
    for level in range(order):
        inner = fn if level == 0 else (lambda xs, ys, g=fn: sum(cnp.sum(cnp.sin(x)) for x in g(xs, ys)))
        fn = cg.grad(inner, argnums=(0, 1))
    return cg.function(fn).graph(*args), args


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("kind", ROW_LOOPS)
def test_bytes_copied_per_row_do_not_depend_on_the_number_of_rows(kind: str, order: int) -> None:
    per_row = []
    for n in (100, 1000):
        graph, args = _row_graph(kind, order, n)
        per_row.append(count(graph, *args).copied_bytes / n)
    assert per_row[1] <= per_row[0] + 1.0


@pytest.mark.parametrize("which", [0, 1])
def test_one_of_several_results_is_overwritten_where_it_lies(which: int) -> None:
    def f(p: Any, x: Any) -> Any:
        both = cg.cond(p, lambda: (x * 2.0, x + 1.0), lambda: (x + 3.0, x * 5.0))
        return both[which].at[0].set(7.0), both[1 - which][1]

    args = (np.True_, np.ones(5))
    assert count(cg.function(f).graph(*args), *args).copied_bytes == 0


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("kind", ROW_LOOPS)
def test_no_loop_body_makes_an_array_of_all_rows(kind: str, order: int) -> None:
    """In a body, a result as large as the array comes only from an update that may happen in place."""
    n = 100
    graph, _ = _row_graph(kind, order, n)
    updates = {"setitem", "additem", "while", "cond"}
    for loop in (node for node in walk(graph) if node.op.name == "while"):
        for node in walk(loop.regions[1]):
            large = any(isinstance(v.type, TensorType) and n in v.type.shape for v in node.results)
            whole_stack = node.op.name in ("stack_to_tensor", "stack_from_tensor", "stack_sum")
            assert not whole_stack, f"{node.op.name} in a loop body"
            assert not large or node.op.name in updates, f"{node.op.name} makes {node.results[0].type} in a loop body"


# These programs need an array as it was before an update: it must be copied.
NEED_THE_OLD_ARRAY = {
    "tensor_array_updated_two_ways",
    "a_write_that_appends",
    "a_write_that_appends_to_a_rewritable_array",
    "a_write_that_appends_to_rows",
    "writes_that_append_in_a_loop",
    "a_captured_array_that_is_written_to_and_not_carried",
}


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name not in NEED_THE_OLD_ARRAY], ids=repr)
def test_a_stack_is_read_before_it_is_updated(program: Program, order: int) -> None:
    """A stack that is looked at after an update took it would be copied whole, in every iteration."""
    graph = program.graph(order)
    for inner in (graph, *(region for node in walk(graph) for region in node.regions)):
        taken: set[Value] = set()
        for node in inner.nodes:
            assert not taken.intersection(node.operands), f"{node.op.name} looks at a stack that was updated before"
            if not node.op.use(0).observes:
                taken |= {v for v in node.operands if isinstance(v.type, StackType)}


@pytest.mark.parametrize("kind", ROW_LOOPS)
def test_stacks_of_rows_hold_rows(kind: str) -> None:
    """No stack of the gradient has an element as large as the array."""
    graph, _ = _row_graph(kind, 1, 100)
    for node in walk(graph):
        for value in node.results:
            assert not (isinstance(value.type, StackType) and 100 in value.type.element.shape)
