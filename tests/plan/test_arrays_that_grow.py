"""Arrays that double when they are full, as the stacks of lanes under `vmap` do: an iteration costs rows, not whole
arrays.

Checked execution counts the work: elements that are copied, and points of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.natively import run_natively
from instruments.plan_data import Data
from instruments.plan_machine import _Machine, execute
from plan.plans import graph_of, placed, reference_kernel

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.ir import Graph
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Array, Branch, Kernel, Loop, Plan, Step
from ctrlgrad.transforms import grad

LANES = np.linspace(0.1, 0.2, 5)


def steps_of(slow: int) -> np.ndarray:
    """Trip count of each lane: 0 in one, `slow` in another."""
    return np.array([2, slow, 0, 3, 1])


def chain(x: Any, k: Any) -> Any:
    return cg.while_loop(lambda s: s[1] < k, lambda s: (np.sin(s[0]) * x + s[0], s[1] + 1), (x, 0))[0]


def vectors(x: Any, k: Any) -> Any:
    body = lambda s: (np.sin(s[0]) * x + s[0][::-1], s[1] + 1)
    return cg.while_loop(lambda s: s[1] < k, body, (cnp.stack([x, 2.0 * x]), 0))[0].sum()


def branches(x: Any, k: Any) -> Any:
    def body(s: Any) -> Any:
        y, t = s
        return cg.cond(y > 0.15, lambda: np.sin(y) * x, lambda: y * y + x), t + 1

    return cg.while_loop(lambda s: s[1] < k, body, (x, 0))[0]


def nest(x: Any, k: Any) -> Any:
    """A nest whose inner trip count depends on data and whose outer trip count is the same in all lanes."""
    return cg.fori_loop(0, 3, lambda _, y: np.sin(chain(y, k)), x)


def inner_loops(x: Any, k: Any) -> Any:
    return cg.while_loop(lambda s: s[1] < k, lambda s: (np.sin(chain(s[0], s[1] % 3) * x), s[1] + 1), (x, 0))[0]


def slope(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Derivative of one lane's function (see `traced`)."""
    return lambda x, k: cg.vjp(lambda x: fn(x, k), x)[1](1.0)[0]


def of_each_lane(fn: Callable[..., Any], order: int = 1) -> Callable[..., Any]:
    for _ in range(order):
        fn = slope(fn)
    return cg.vmap(fn)


def of_all_lanes(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Gradient of the lanes' gradients, in which every lane has stacks of its own."""
    return lambda x, k: cg.grad(lambda x: cg.vmap(slope(fn))(x, k).sum())(x)


def doubled_where_it_is_full(x: Any, k: Any) -> Any:
    """User code that adds rows to a buffer, and replaces a full buffer by one of twice the length."""

    def body(s: Any) -> Any:
        rows, t = s
        full = t >= rows.shape[0]
        rows = cg.cond(full, lambda: cnp.concat([rows, cnp.zeros_like(rows)]), lambda: rows)
        return cnp.at(rows)[t].set(np.sin(x[0] * t)), t + 1

    return cg.while_loop(lambda s: s[1] < k[1], body, (x * 1.0, 0))[0].sum()


PROGRAMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "chain": (of_each_lane(chain), None),
    "chain_second_order": (of_each_lane(chain, 2), None),
    "chain_of_all": (of_all_lanes(chain), None),
    "branches_of_all": (of_all_lanes(branches), None),
    "vectors": (of_each_lane(vectors), None),
    "branches": (of_each_lane(branches), None),
    "nest": (of_each_lane(nest), None),
    "inner_loops": (of_each_lane(inner_loops), None),
    "doubled_where_it_is_full": (doubled_where_it_is_full, (cg.TensorSpec((None,)), cg.TensorSpec((5,), "int64"))),
}


def counted(patch: pytest.MonkeyPatch, plan: Plan, arguments: list[Any]) -> int:
    """Count the elements and points that checked execution visits."""
    found = 0
    copied, computed = Data.copied, _Machine.computed

    def copies(self: Any, array: Array, source: Any, target: Any) -> None:
        nonlocal found
        found += self.size(array.count)
        copied(self, array, source, target)

    def computes(self: Any, step: Step, reads: Any, writes: Any) -> None:
        nonlocal found
        if isinstance(step, Kernel):
            found += math.prod(self.shape(step.space))
        computed(self, step, reads, writes)

    with patch.context() as patched:
        patched.setattr(Data, "copied", copies)
        patched.setattr(_Machine, "computed", computes)
        execute(plan, arguments, reference_kernel, rows_per_block=16)
    return found


def traced(name: str) -> Graph:
    """The graph in which `vmap` batches loops that are reversed already, so every lane has stacks of its own.

    The same happens where a callback sees cotangents.
    """
    fn, signature = PROGRAMS[name]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grad, "is_batched_first", lambda graph: False)
        return graph_of(fn, LANES, steps_of(5), signature=signature)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_iteration_costs_rows(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    graph = traced(name)
    plan = placed(graph, [LANES, steps_of(5)])
    once, often = (counted(monkeypatch, plan, [LANES, steps_of(slow)]) for slow in (60, 240))
    assert often < 5 * once


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_iteration_copies_what_grows(name: str) -> None:
    """No iteration copies a growing array: the branch that enlarges it gives its memory away, and nothing else moves
    it."""
    graph = traced(name)
    plan = placed(graph, [LANES, steps_of(5)])
    late = {buffer.number for buffer in plan.buffers if not buffer.is_known_at_entry}
    loops = [step for step in plan.body.steps if isinstance(step, Loop)]
    assert loops and late
    for loop in loops:
        assert not [m for m in loop.body.moves if m.target.number in late]
    moves = [m for b in walk(plan.body) if isinstance(b, Branch) for block in b.blocks for m in block.moves]
    grown = [m for m in moves if m.target.number in late]
    assert all(m.exchanges for m in grown)


def test_rows_lie_an_odd_number_of_lines_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows lie an odd number of cache lines apart: by powers of two, the same slot of all lanes would share a few
    cache sets."""
    plan = placed(traced("chain"), [LANES, steps_of(5)])
    capacities, computed = set(), _Machine.computed

    def computes(self: Any, step: Step, reads: Any, writes: Any) -> None:
        if isinstance(step, Kernel) and len(step.space) == 2:
            capacities.add(self.shape(step.space)[1])
        computed(self, step, reads, writes)

    monkeypatch.setattr(_Machine, "computed", computes)
    execute(plan, [LANES, steps_of(60)], reference_kernel, rows_per_block=16)
    assert capacities == {8, 24, 56, 120}


@pytest.mark.parametrize("name", PROGRAMS)
def test_native_agrees(name: str) -> None:
    """The native engine agrees with the reference engine before, when and after arrays are full."""
    graph = traced(name)
    for slow in (0, 7, 8, 9, 40):
        arguments = [LANES, steps_of(slow)]
        expected = run_graph(graph, arguments)
        found = run_natively(graph, arguments)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10, atol=1e-13)


def test_a_loop_in_a_branch_gives_an_array_of_a_size_of_its_own() -> None:
    """A loop in a branch returns an array of a size of its own. Found: the branch's result was sought among the
    loop's results by identity, though its size is a register."""

    def grown(x: Any, limit: Any) -> Any:
        step = lambda i, y: cg.scan(lambda none, row: ((), row * 1.5), (), y)[1]
        return cg.cond(cnp.sum(x) < limit, lambda: cg.fori_loop(0, 2, step, x), lambda: cnp.sin(x))

    x, signature = np.array([-0.2, 0.4, 0.3]), [cg.TensorSpec((None,)), cg.TensorSpec(())]
    native = cg.function(grown, signature=signature, engine="native")
    np.testing.assert_allclose(native(x, 9.0), x * 2.25, rtol=1e-15)
    np.testing.assert_allclose(native(x, -9.0), np.sin(x), rtol=1e-14)
