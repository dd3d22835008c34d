"""The function `vmap`: axes, pytrees, composition, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batching.rows import CLOSE, by_hand, check, unknown_sizes

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError, ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.ir import count_ops
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel, Loop

RNG = np.random.default_rng(7)
A = RNG.standard_normal((3, 4))
B = RNG.standard_normal((4, 3))


def test_axes_of_arguments() -> None:
    f = lambda a, b: a * b.sum()
    for axes in ((0, 1), (0, -1), (-2, 1)):
        front = tuple(a % 2 for a in axes)
        np.testing.assert_allclose(cg.vmap(f, in_axes=axes)(A, B), by_hand(f, A, B, axes=front), **CLOSE)


def test_an_unmapped_argument_is_shared() -> None:
    f = lambda a, w: a @ w
    np.testing.assert_allclose(cg.vmap(f, in_axes=(0, None))(A, B), A @ B, **CLOSE)
    graph = cg.vmap(f, in_axes=(0, None)).graph(A, B)
    (product,) = [n for n in graph.nodes if n.op.name == "matmul"]
    assert [v.tensor.shape for v in product.operands] == [(3, 4), (4, 3)]


def test_axes_of_results() -> None:
    f = lambda a: {"row": a * 2, "sum": a.sum()}
    out = cg.vmap(f, out_axes={"row": -1, "sum": 0})(A)
    np.testing.assert_array_equal(out["row"], (A * 2).T)
    np.testing.assert_allclose(out["sum"], A.sum(1), **CLOSE)


def test_pytrees_of_axes() -> None:
    f = lambda p, x: (p["w"] @ x + p["b"], p["n"])
    p = {"w": RNG.standard_normal((4, 2, 3)), "b": np.ones(2), "n": np.arange(3)}
    y, n = cg.vmap(f, in_axes=({"w": 0, "b": None, "n": None}, 1), out_axes=(0, None))(p, RNG.standard_normal((3, 4)))
    assert y.shape == (4, 2)
    np.testing.assert_array_equal(n, p["n"])


def test_keyword_arguments_are_mapped_over_axis_0() -> None:
    np.testing.assert_array_equal(cg.vmap(lambda a, k: a + k)(A, k=np.arange(3.0)), A + np.arange(3.0)[:, None])


def test_a_result_that_does_not_depend_on_rows_is_repeated() -> None:
    once = cg.vmap(lambda a, s: s * 2, in_axes=(0, None), out_axes=1)(A, np.arange(2.0))
    np.testing.assert_array_equal(once, np.array([[0.0] * 3, [2.0] * 3]))
    np.testing.assert_array_equal(cg.vmap(lambda a: 1.5)(A), [1.5] * 3)
    assert unknown_sizes(cg.vmap(lambda a: cnp.arange(2)), A).shape == (3, 2)


def test_outer_values_are_shared() -> None:
    f = lambda w: cg.vmap(lambda a: cnp.tanh(a @ w))(A).sum()
    g = lambda w: cnp.tanh(A @ w).sum()
    w = RNG.standard_normal(4)
    np.testing.assert_allclose(cg.grad(f)(w), cg.grad(g)(w), **CLOSE)


def test_different_unknown_sizes_are_an_error_when_it_runs() -> None:
    f = cg.function(
        cg.vmap(lambda a, b: a + b), signature=[cg.TensorSpec((None,), "float64"), cg.TensorSpec((None,), "float64")]
    )
    np.testing.assert_array_equal(f(np.arange(3.0), np.arange(3.0)), [0.0, 2.0, 4.0])
    with pytest.raises(ShapeError, match="vmap: the mapped axes have different sizes"):
        f(np.arange(3.0), np.arange(1.0))


def test_sizes_have_two_graphs_at_most(compilations: list[Any]) -> None:
    f = cg.vmap(lambda x: cg.while_loop(lambda y: y < 10.0, lambda y: y * 2, x))
    for n in range(1, 30):
        assert f(np.arange(1.0, n + 1)).shape == (n,)
    # Of one lane, of three, and of any number but one.
    assert len(compilations) <= 3


def test_dtypes_are_kept() -> None:
    for dtype in (np.float32, np.float64, np.int32, bool, np.complex128):
        x = np.ones((2, 3), dtype)
        branch = lambda v: cg.cond(abs(v[0]) > 0, lambda: v, lambda: v[::-1])
        assert cg.vmap(branch)(x).dtype == dtype


def test_a_shared_loop_stays_unmasked() -> None:
    f = lambda x: cg.fori_loop(0, 5, lambda i, y: cnp.sin(y * i), x)
    ops = count_ops(cg.vmap(f).graph(np.ones(3)))
    assert ops["where"] == ops["any"] == 0 and ops["while"] == 1


def test_a_loop_runs_as_long_as_its_longest_row() -> None:
    f = lambda n: cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + 2.0), (0, 0.0), maximum_iterations=4)
    steps, total = cg.vmap(f)(np.array([4, 0, 2]))
    np.testing.assert_array_equal(steps, [4, 0, 2])
    np.testing.assert_array_equal(total, [8.0, 0.0, 4.0])
    with pytest.raises(ExecutionError, match="maximum_iterations=4"):
        cg.vmap(f)(np.array([4, 5]))


def test_a_nan_of_one_row_stays_in_its_row() -> None:
    f = lambda x: cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, cnp.log(c[1]) + 1.0), (0, x))[1]
    x = np.array([1.5, -1.0, 2.0])
    np.testing.assert_array_equal(np.isnan(cg.vmap(f)(x)), [False, True, False])
    np.testing.assert_array_equal(np.isnan(cg.grad(lambda x: cg.vmap(f)(x).sum())(x)), [False, True, False])


def test_an_index_out_of_range_in_an_active_row_is_still_an_error() -> None:
    items = lambda i: cnp.arange(3.0) + 0.0 * i
    f = lambda i: cg.while_loop(lambda c: c[0] < i, lambda c: (c[0] + 1, c[1] + items(i)[c[0]]), (0, 0.0))[1]
    np.testing.assert_array_equal(cg.function(cg.vmap(f))(np.array([0, 3, 1])), [0.0, 3.0, 0.0])
    with pytest.raises(IndexOutOfRangeError, match="out of bounds"):
        cg.vmap(f)(np.array([0, 4]))


def test_reading_past_a_rows_own_end_is_an_error() -> None:
    def f(n: Any, at: Any) -> Any:
        array = cg.TensorArray("float64", element_shape=())
        return cg.fori_loop(0, n, lambda i, a: a.push(1.0 * i), array).read(at)

    np.testing.assert_array_equal(cg.vmap(f)(np.array([2, 5]), np.array([-1, 4])), [1.0, 4.0])
    with pytest.raises(IndexOutOfRangeError):
        cg.vmap(f)(np.array([2, 5]), np.array([3, 4]))


def test_stacks_of_different_lengths_are_no_array() -> None:
    def f(n: Any) -> Any:
        array = cg.TensorArray("float64", element_shape=())
        return cg.fori_loop(0, n, lambda i, a: a.push(1.0 * i), array).stack()

    np.testing.assert_array_equal(cg.vmap(f)(np.array([2, 2])), [[0.0, 1.0]] * 2)
    with pytest.raises(ExecutionError, match="the length of a TensorArray differs from row to row") as caught:
        cg.vmap(f)(np.array([2, 2, 5]))
    assert caught.value.source.file == __file__
    assert caught.value.got == "2 in row 0, 5 in row 2" and caught.value.expected and caught.value.hint


def test_sizes_that_differ_from_row_to_row_are_no_array() -> None:
    np.testing.assert_array_equal(cg.vmap(lambda n: cnp.arange(n))(np.array([3, 3])), [[0, 1, 2]] * 2)
    with pytest.raises(ExecutionError, match="a size differs from row to row") as caught:
        cg.vmap(lambda n: cnp.arange(n))(np.array([3, 4]))
    assert caught.value.source.file == __file__


def test_an_array_that_outgrows_its_capacity() -> None:
    def f(x: Any) -> Any:
        array = cg.TensorArray("float64", element_shape=(2,))
        push = lambda c: (c[0] + 1, c[1].push(cnp.stack([c[0] * x, x])))
        _, array = cg.while_loop(lambda c: c[0] < 20 * x, push, (0.0, array))
        return cg.fori_loop(0, array.size(), lambda i, y: cnp.sin(y + array.read(i).sum()), x)

    check(f, np.array([0.1, 2.0, 1.3]))
    check(lambda row: cg.vmap(f)(row).sum(), np.array([[0.1, 2.0], [1.3, 0.7]]), order=1)


def test_elements_of_a_size_that_is_not_known() -> None:
    def f(x: Any) -> Any:
        array = cg.TensorArray("float64", element_shape=(None,))
        push = lambda c: (c[0] + 1, c[1].push(c[0] * x))
        _, array = cg.while_loop(lambda c: c[0] < 12 * x[0], push, (0.0, array))
        read = lambda i, y: cnp.sin(y + (array.read(i) ** 2).sum())
        return cg.fori_loop(0, array.size(), read, x[1])

    check(f, RNG.uniform(0.1, 1.0, (4, 3)))


def test_a_carry_that_grows() -> None:
    """A shape that changes from iteration to iteration, the same way for all rows."""

    def f(x: Any) -> Any:
        grow = lambda y: cnp.concatenate([y, cnp.sin(y[-1:] * 1.1)])
        start = (cg.unknown_dims(cnp.stack([x, x])), x)
        return cg.fori_loop(0, 3, lambda i, c: (grow(c[0]), c[1] + (c[0] ** 2).sum()), start)[1]

    check(f, np.array([0.5, 1.5]))


def test_a_carry_that_grows_in_each_row_as_far_as_another_does_not_is_an_error() -> None:
    def f(x: Any) -> Any:
        grow = lambda c: (c[0] + 1, cnp.concatenate([c[1], c[1][-1:] * x]))
        return cg.while_loop(lambda c: c[0] < x, grow, (0, cg.unknown_dims(cnp.stack([x, x]))))[1].sum()

    np.testing.assert_allclose(cg.vmap(f)(np.array([1.5, 1.7])), by_hand(f, np.array([1.5, 1.7])), **CLOSE)
    with pytest.raises(ShapeError, match="the size of what a loop carries differs from row to row"):
        cg.vmap(f)(np.array([1.5, 3.7]))


def test_nested_vmap_of_gradients_of_loops_longer_than_a_buffer() -> None:
    f = lambda x, n: cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, cnp.sin(c[1] * 1.1 + x)), (0, x))[1]
    x, n = RNG.uniform(0.2, 1.0, (2, 3)), np.array([[0, 20, 7], [11, 3, 40]])
    each = np.stack([by_hand(cg.grad(f), *row) for row in zip(x, n, strict=True)])
    twice = cg.vmap(cg.vmap(cg.grad(f)))
    np.testing.assert_allclose(twice(x, n), each, **CLOSE)
    np.testing.assert_allclose(unknown_sizes(twice, x, n), each, **CLOSE)
    shared = cg.vmap(cg.vmap(cg.grad(f), in_axes=(0, None)), in_axes=(None, 0))(x[0], n[0])
    np.testing.assert_allclose(shared, [by_hand(lambda v, k=k: cg.grad(f)(v, k), x[0]) for k in n[0]], **CLOSE)
    across = cg.vmap(cg.vmap(cg.grad(f), in_axes=(None, 0)), in_axes=(0, None))(x[0], n[0])
    np.testing.assert_allclose(across, shared.T, **CLOSE)
    thrice = cg.vmap(cg.vmap(cg.vmap(cg.grad(f))), in_axes=(None, 0))
    np.testing.assert_allclose(cg.function(thrice)(x, np.stack([n, n + 1]))[0], each, **CLOSE)


def test_a_row_costs_a_row_in_loops_of_each_rows_own_length() -> None:
    def f(xs: Any, n: Any) -> Any:
        array = cg.TensorArray("float64", element_shape=())
        body = lambda c: (c[0] + 1, c[1].push(cnp.sin(xs[c[0]] * c[2])), c[2] * 0.9)
        _, array, y = cg.while_loop(lambda c: c[0] < n, body, (0, array, xs[0]))
        return cg.fori_loop(0, array.size(), lambda i, y: y * 0.9 + array.read(i), y)

    for g in (cg.vmap(f), cg.vmap(cg.grad(f)), cg.grad(lambda xs, n: cg.vmap(f)(xs, n).sum())):
        copied = []
        for length in (400, 800):
            arguments = [RNG.uniform(size=(3, length)), np.array([length, length // 2, 0])]
            run = Run()
            run_graph(g.graph(*arguments), arguments, run)
            copied.append(run.counters.copied_bytes)
        assert copied[1] < 2.2 * copied[0]


def test_switch_of_each_rows_own() -> None:
    def f(x: Any) -> Any:
        which = cnp.floor(x * 3).astype(int)
        return cg.switch(which, [lambda v: cnp.sqrt(0.4 - v), lambda v: cnp.log(v) * v, lambda v: 1 / (v - 0.5)], x)

    check(f, np.array([0.1, 0.9, 0.45, 2.5, 0.2]))


def test_maps_and_folds() -> None:
    f = lambda x: cg.map(lambda v: cg.while_loop(lambda y: y < 2.0, lambda y: y * y + 0.5, v), x).sum()
    check(f, RNG.uniform(0.2, 2.5, (3, 4)))


def test_gradients_per_example() -> None:
    loss = lambda w, x, y: cnp.square(cnp.tanh(x @ w) - y).mean()
    w, x, y = RNG.standard_normal((4, 2)), RNG.standard_normal((5, 3, 4)), RNG.standard_normal((5, 3, 2))
    each = cg.vmap(cg.grad(loss), in_axes=(None, 0, 0))(w, x, y)
    assert each.shape == (5, 4, 2)
    np.testing.assert_allclose(each, by_hand(cg.grad(loss), w, x, y, axes=(None, 0, 0)), **CLOSE)


def test_jacobian_by_vmap_of_a_pullback() -> None:
    f = lambda x: cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, cnp.sin(c[1]) * x[::-1]), (0, x))[1]
    x = RNG.uniform(0.5, 1.0, 3)

    def jacobian(x: Any) -> Any:
        _, pullback = cg.vjp(f, x)
        return cg.vmap(lambda ct: pullback(ct)[0])(cnp.eye(3))

    columns = [cg.jvp(f, (x,), (e,))[1] for e in np.eye(3)]
    np.testing.assert_allclose(cg.function(jacobian)(x), np.stack(columns, 1), **CLOSE)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: cg.vmap(lambda a, b: a)(A, B), ShapeError, "different sizes"),
        (lambda: cg.vmap(lambda a: a, in_axes=2)(A), ShapeError, "in_axes 2 is out of range"),
        (lambda: cg.vmap(lambda a: a)(1.0), ShapeError, "in_axes 0 is out of range"),
        (lambda: cg.vmap(lambda a: a, in_axes=None)(A), UserInputError, "no argument is mapped"),
        (lambda: cg.vmap(lambda: 1.0)(), UserInputError, "no argument is mapped"),
        (lambda: cg.vmap(lambda a: a, in_axes=(0, 0))(A), UserInputError, "in_axes does not fit the call"),
        (lambda: cg.vmap(lambda a: a, in_axes="0")(A), UserInputError, "no axis"),
        (lambda: cg.vmap(lambda a: a, in_axes=(True,))(A), UserInputError, "no axis"),
        (lambda: cg.vmap(lambda a: a[0], in_axes=([0, 1],))([A]), UserInputError, "in_axes does not fit the argument"),
        (lambda: cg.vmap(lambda a: a, out_axes=(0, 0))(A), UserInputError, "out_axes does not fit the result"),
        (lambda: cg.vmap(lambda a: a, out_axes=5)(A), ShapeError, "out_axes 5 is out of range"),
        (lambda: cg.vmap(lambda a: a, out_axes=None)(A), TypeMismatchError, "differs from row to row"),
        (lambda: cg.vmap(lambda a: "x")(A), TypeMismatchError, "not an array"),
        (lambda: cg.vmap(lambda a: a)(object()), TypeMismatchError, "not"),
        (lambda: cg.vmap(lambda a: cg.TensorArray("float64").unstack(a))(A), TypeMismatchError, "TensorArray"),
        (lambda: cg.vmap(lambda a: cg.TensorArray("float64", 2, ()))(A), TypeMismatchError, "TensorArray"),
        (lambda: cg.vmap(lambda a, n: a[:n])(A, np.arange(3)), TypeMismatchError, "slice's bound"),
    ],
)
def test_bad_input_says_where(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        call()
    if "object" not in repr(call) and caught.value.source is not None:
        assert caught.value.source.file == __file__


def test_checkpoints() -> None:
    step = cg.checkpoint(lambda x, i: cnp.log(cnp.exp(x) + i))
    f = lambda x: cg.while_loop(lambda c: c[0] < 3 * x, lambda c: (c[0] + 1, step(c[1], c[0])), (0.0, x))[1]
    check(f, np.array([0.1, 2.0, 1.3]))


def test_reverse_rules_of_the_user() -> None:
    @cg.custom_vjp
    def clipped(x: Any, w: Any) -> Any:
        return x * w

    clipped.defvjp(lambda x, w: (x * w, (x, w)), lambda r, ct: (cnp.clip(ct * r[1], -1.0, 1.0), ct * r[0] * 2))
    f = lambda x, w: cg.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1, clipped(c[1], w)), (0.0, x))[1]
    x, w = np.array([0.3, 1.5, 2.5]), np.array([0.5, 2.0, 3.0])
    for argnums in (0, 1):
        g = cg.grad(f, argnums)
        np.testing.assert_allclose(cg.vmap(g)(x, w), by_hand(g, x, w), **CLOSE)
        np.testing.assert_allclose(cg.vmap(g, in_axes=(0, None))(x, 2.0), by_hand(g, x, w * 0 + 2.0), **CLOSE)
        total = cg.grad(lambda x, w: cg.vmap(f)(x, w).sum(), argnums)
        np.testing.assert_allclose(total(x, w), by_hand(g, x, w), **CLOSE)
    shared = cg.grad(lambda w: cg.vmap(f, in_axes=(0, None))(x, w).sum())(2.0)
    np.testing.assert_allclose(shared, by_hand(cg.grad(f, 1), x, w * 0 + 2.0).sum(), **CLOSE)


def test_forward_rules_of_the_user() -> None:
    @cg.custom_jvp
    def doubled(x: Any) -> Any:
        return cnp.sin(x)

    doubled.defjvp(lambda primals, tangents: (cnp.sin(primals[0]), 2 * cnp.cos(primals[0]) * tangents[0]))
    f = lambda x: cg.fori_loop(0, 3, lambda i, y: doubled(y), x)
    x, t = np.array([0.3, 1.5, 2.5]), np.ones(3)
    np.testing.assert_allclose(cg.vmap(cg.grad(f))(x), by_hand(cg.grad(f), x), **CLOSE)
    np.testing.assert_allclose(cg.jvp(cg.vmap(f), (x,), (t,))[1], by_hand(cg.grad(f), x), **CLOSE)
    np.testing.assert_allclose(cg.grad(lambda x: cg.vmap(f)(x).sum())(x), by_hand(cg.grad(f), x), **CLOSE)


# A slot that is written twice.


def _slots(size: int | None = 3) -> cg.TensorArray:
    return cg.TensorArray("float64", size, ())


WRITTEN_TWICE = {
    "one after the other": lambda x: _slots().write(0, x).write(0, 2.0 * x),
    "in a loop": lambda x: cg.fori_loop(0, 4, lambda i, a: a.write(i % 3, x * i), _slots()),
    "in a loop that makes the array longer": lambda x: cg.fori_loop(0, 4, lambda i, a: a.write(i - i, x), _slots(None)),
    "in a loop in a loop": lambda x: cg.fori_loop(
        0, 2, lambda i, a: cg.fori_loop(0, 2, lambda j, b: b.write(j, x), a), _slots()
    ),
    "after rows of a tensor": lambda x: _slots().unstack(cnp.stack([x, x])).write(1, x),
}
WRITTEN_ONCE = {
    "in a loop": lambda x: cg.fori_loop(0, 3, lambda i, a: a.write(i, x * i), _slots()),
    "after a value that all rows share": lambda x: cg.fori_loop(
        1, 3, lambda i, a: a.write(i, x), _slots().write(0, 1.0)
    ),
    "in one of two branches": lambda x: cg.cond(
        np.True_, lambda: _slots().write(1, 1.0).write(0, x), lambda: _slots()
    ).write(2, x),
}


@pytest.mark.parametrize("name", WRITTEN_TWICE)
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_a_slot_that_is_written_twice_is_refused_as_it_is_without_rows(name: str, engine: str) -> None:
    one = lambda x: np.sum(WRITTEN_TWICE[name](x).stack() ** 2)
    for f, x in ((one, 1.0), (cg.vmap(one), np.ones(2)), (cg.vmap(cg.grad(one)), np.ones(2))):
        with pytest.raises(ExecutionError, match=r"slot . is written twice"):
            cg.function(f, engine=engine)(x)


@pytest.mark.parametrize("name", WRITTEN_ONCE)
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_slots_that_are_written_once_are_not_refused(name: str, engine: str) -> None:
    one, xs = lambda x: np.sum(WRITTEN_ONCE[name](x).stack() ** 2), np.array([1.0, 2.0])
    for f in (one, cg.grad(one)):
        expected = [float(f(x)) for x in xs]
        np.testing.assert_allclose(cg.function(cg.vmap(f), engine=engine)(xs), expected)


def test_rows_that_are_done_leave_the_others_to_vectors() -> None:
    """Finished rows read their values once for all: then the loop's arrays are updated in place, in vectors."""

    def root(a):
        def improve(c):
            i, x = c
            return i + 1, x - (x * x - a) / (2.0 * x)

        return cg.while_loop(lambda c: (cnp.abs(c[1] * c[1] - a) > 1e-10) & (c[0] < 50), improve, (0, a))[1]

    a = np.linspace(0.5, 9.0, 40)
    graph = optimised_graph(cg.function(cg.vmap(root)).graph(a))
    plan = engine.plan_of(graph, engine.shapes_of(graph, [a]))
    (loop,) = (step for step in walk(plan.body) if isinstance(step, Loop))
    kernels = [step for step in loop.body.steps if isinstance(step, Kernel)]
    assert not any(operand.gathered for kernel in kernels for operand in kernel.operands)
    assert not loop.body.moves
    np.testing.assert_allclose(cg.vmap(root)(a), np.sqrt(a), rtol=1e-9)


def test_unmapped_leaves_need_not_be_arrays():
    apply_to = lambda f, x: f["scale"](x)
    with cg.options(engine="reference"):
        found = cg.vmap(apply_to, in_axes=(None, 0))({"scale": lambda x: x * 2}, np.arange(3.0))
        assert found.tolist() == [0.0, 2.0, 4.0]
        with pytest.raises(TypeMismatchError, match="a leaf is not an array or a number"):
            cg.vmap(apply_to)({"scale": lambda x: x * 2}, np.arange(3.0))
