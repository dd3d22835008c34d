"""Values that the gradient of a mapped loop saves per iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ir import walk


def test_a_matrix_of_each_row_that_a_loop_captures_is_not_pushed() -> None:
    """Rows that are done see another row's matrix: which one follows from the mask, so the mask is saved."""

    def f(a: Any, x: Any) -> Any:
        body = lambda c: (c[0] + 1, cnp.tanh(a @ c[1] * 0.3) + x * 0.1)
        return cg.while_loop(lambda c: c[0] < 4 * x[0], body, (0.0, x))[1].sum()

    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((5, 16, 16)), rng.uniform(0.2, 1.8, (5, 16))
    graph = cg.grad(lambda a, x: cg.vmap(f)(a, x).sum(), (0, 1)).graph(a, x)
    pushed = [node.operands[1].tensor for node in walk(graph) if node.op.name == "stack_push"]
    assert sorted(np.prod(t.shape, dtype=int) * t.dtype.itemsize for t in pushed) == [5, 8, 5 * 16 * 8, 5 * 16 * 8]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_rule_that_pulls_back_through_a_loop_hands_its_stacks_on_by_rows(steps: int) -> None:
    """The backward rule calls `vjp` of a loop: under `vmap` the stacks of that derivative hold a row of each lane."""

    def looped(x: Any) -> Any:
        return cg.fori_loop(0, steps, lambda _, y: np.sin(y + 0.5 * np.sin(np.sum(y))), x)

    ruled = cg.custom_vjp(looped)
    ruled.defvjp(lambda x: (looped(x), x), lambda x, ct: cg.vjp(looped, x)[1](ct))
    xs = np.linspace(-1.0, 1.5, 12).reshape(4, 3)
    found = cg.vmap(cg.grad(lambda x: np.sum(ruled(x))))(xs)
    cg.check_grads(lambda x: np.sum(looped(x)), (xs[1],), order=1)
    np.testing.assert_allclose(found, [cg.grad(lambda x: np.sum(looped(x)))(x) for x in xs], rtol=1e-12)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("outer", ["second", "jacobian"])
def test_the_second_derivative_of_rows_of_a_rule_that_pulls_back_through_a_loop(outer: str, steps: int) -> None:
    def looped(x: Any) -> Any:
        return cg.fori_loop(0, steps, lambda _, y: np.sin(y) * x, x)

    ruled = cg.custom_vjp(looped)
    ruled.defvjp(lambda x: (looped(x), x), lambda x, ct: cg.vjp(looped, x)[1](ct))

    def second(f: Any) -> Any:
        slope = cg.grad(lambda x: np.sum(np.sin(f(x)) * x))
        return cg.jacrev(slope) if outer == "jacobian" else cg.grad(lambda x: np.sum(np.sin(slope(x))))

    xs = np.linspace(-1.0, 1.5, 6).reshape(2, 3)
    found = cg.vmap(second(ruled))(xs)
    np.testing.assert_allclose(found, [second(looped)(x) for x in xs], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(cg.vmap(second(looped))(xs), found, rtol=1e-12, atol=1e-14)
