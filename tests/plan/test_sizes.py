"""A plan finds out which run-time sizes are equal, and is then as good as a plan for known sizes."""

from __future__ import annotations

import numpy as np
import pytest
from instruments.natively import run_natively
from plan.plans import graph_of, plan_of

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.lowering.state import Cut
from ctrlgrad.plan.model import Guard, Kernel, Plan
from ctrlgrad.plan.sizes import Size

ANY = cg.TensorSpec((None,))


def kernels(plan: Plan) -> int:
    return sum(isinstance(step, Kernel) for step in walk(plan.body))


def size_guards(plan: Plan) -> int:
    return sum(isinstance(step, Guard) and step.status == "size" for step in walk(plan.body))


def neighbours(x):
    """A loop that joins slices of its carry."""
    return cg.fori_loop(0, 3, lambda _, y: y + 0.1 * cnp.concat([x[:1], x[1:] * y[:-1]]), x)


def centred(x):
    return cg.fori_loop(0, 3, lambda _, y: y.at[1:-1].add(0.1 * (y[2:] - 2.0 * y[1:-1] + y[:-2])), x)


def scaled(x):
    return cg.fori_loop(0, 3, lambda _, y: cnp.sin(y * x) / cnp.sum(y * y), x)


@pytest.mark.parametrize("fn", [neighbours, centred, scaled])
@pytest.mark.parametrize("order", [0, 1])
def test_a_loop_over_unknown_sizes_has_no_more_kernels_than_one_over_known_sizes(fn, order: int) -> None:
    x = np.linspace(0.1, 0.9, 7)
    unknown, known = plan_of(fn, x, order=order, signature=(ANY,)), plan_of(fn, x, order=order)
    assert kernels(unknown) <= kernels(known)
    assert size_guards(unknown) == 0


@pytest.mark.parametrize("fn", [neighbours, centred, scaled])
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_every_length_gives_what_the_reference_engine_gives(fn, order: int, length: int) -> None:
    x = np.linspace(0.1, 0.9, length)
    if fn is neighbours or length > 2:
        graph = graph_of(fn, x, order=order, signature=(ANY,))
        (found,) = run_natively(graph, [x])
        expected = fn
        for _ in range(order):
            expected = cg.grad(lambda x, inner=expected: cnp.sum(cnp.sin(inner(x))))
        with cg.options(engine="reference"):
            np.testing.assert_allclose(found, cg.function(expected)(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "key", [slice(1, None), slice(None, 2), slice(-2, None), slice(None, -1), slice(1, -2), slice(3, -3)], ids=str
)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 8])
def test_a_slice_by_fixed_numbers_is_that_of_python(key: slice, length: int) -> None:
    x = np.arange(float(length))
    (found,) = run_natively(graph_of(lambda x: 2.0 * x[key], x, signature=(ANY,)), [x])
    np.testing.assert_array_equal(found, 2.0 * x[key])


@pytest.mark.parametrize("n", [0, 1, 3, 9])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_the_two_cuts_of_a_size_are_all_of_it(n: int, at: int) -> None:
    least, rest = Cut("least", Size(n), at), Cut("rest", Size(n), at)
    assert least.joins(rest) and not least.joins(least)
    sizes = [cut.known for cut in (least, rest)]
    assert sizes == [Size(min(n, at)), Size(max(n - at, 0))]
    assert Cut("least", Size(1, ("n",)), 0).known == Size(0)
    assert Cut("rest", Size(1, ("n",)), 0).known == Size(1, ("n",))


def test_sizes_that_change_from_iteration_to_iteration_come_from_their_stack() -> None:
    """Sizes that change between iterations are saved on a stack; the first pushed size does not stand for the later
    ones."""

    def grown(x):
        def outer(_, total):
            def inner(k, carry):
                y, total = carry
                y = cnp.concat([y, y[:1]])
                return y, total + cnp.sum(cnp.sin(y * x[0]) * y)

            return cg.fori_loop(0, 3, inner, (cg.unknown_dims(x, 0), total))[1]

        return cg.fori_loop(0, 2, outer, 0.0)

    x = np.linspace(0.1, 0.9, 4)
    (found,) = run_natively(graph_of(grown, x, order=1, signature=(ANY,)), [x])
    with cg.options(engine="reference"):
        np.testing.assert_allclose(found, cg.grad(lambda x: cnp.sin(grown(x)))(x), rtol=1e-9)


def test_a_size_that_differs_from_call_to_call_of_an_inner_loop_comes_from_its_stack() -> None:
    def rows(xs, n):
        def body(t, total):
            part = xs[: cnp.minimum(t + 1, n)]
            return total + cnp.sum(cnp.exp(part * total) * part)

        return cg.fori_loop(0, n, body, 0.1)

    xs = np.linspace(-0.2, 0.1, 5)
    (found,) = run_natively(graph_of(rows, xs, np.int64(5), order=1), [xs, np.int64(5)])
    with cg.options(engine="reference"):
        np.testing.assert_allclose(found, cg.grad(lambda x: cnp.sin(rows(x, 5)))(xs), rtol=1e-9)
