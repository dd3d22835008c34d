"""Each pass on a program that shows what it does: text before and after, and the same values within rounding.

`pytest tests/passes --update-golden` writes `tests/golden/passes/NAME.txt` anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from passes.pass_cases import CASES, DISTRIBUTED, Case, normal

import ctrlgrad as cg
from ctrlgrad.engines import without_passes
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import UserInputError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import verify, walk
from ctrlgrad.passes import OPTIMISATIONS, optimise, remove_dead_code, sink_slices
from ctrlgrad.plan import PASSES as PLAN_PASSES

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "passes"


@pytest.mark.parametrize("name", CASES)
def test_text_before_and_after(name: str, update_golden: bool) -> None:
    case = CASES[name]
    before = case.graph()
    after = remove_dead_code(case.run(before))
    text = f"Before {name}.\n\n{before}\n\nAfter it (and after dead code is removed).\n\n{after}\n"
    path = GOLDEN / f"{name}.txt"
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert str(before) != str(after)


@pytest.mark.parametrize("name", CASES)
def test_values_stay(name: str) -> None:
    case = CASES[name]
    before = case.graph()
    after = case.run(before)
    verify(after, name)
    for a, b in zip(run_on("reference", before, case.leaves), run_on("reference", after, case.leaves), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("case", DISTRIBUTED)
@pytest.mark.parametrize("name", sorted({name for name, _ in OPTIMISATIONS} | set(PLAN_PASSES)))
def test_a_pass_can_be_left_out(name: str, case: str) -> None:
    graph = CASES[case].graph()
    assert str(optimise(graph, {name})) != str(optimise(graph)) or name != "distribute"
    leaves = CASES[case].leaves
    with without_passes(name):
        found = run_on("auto", graph, leaves)
    for a, b in zip(run_on("reference", graph, leaves), found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


def test_a_pass_that_does_not_exist() -> None:
    with pytest.raises(UserInputError, match="there is no such pass"), without_passes("fly"):
        pass


def test_a_slice_of_one_row_that_leaves_none() -> None:
    """A slice that leaves no rows: a size of 1 that nothing was broadcast from is cut like any other size."""
    x = normal(1, 1, 4)
    graph = Case(lambda x: (x + x * 2.0)[1:] * 1.5, (x,), sink_slices).graph()
    (found,) = run_on("reference", sink_slices(graph), [x])
    assert found.shape == (0, 4)


def test_a_read_comes_before_the_update_of_what_it_reads() -> None:
    """A read comes before the update of its array; otherwise each iteration would copy the array."""

    def reads_after_writing(x: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            array, y = carry
            written = array.write(i, x[i])
            changed = y.at[i].set(x[i] * 2.0)
            return written.write(0, array.read(0)), changed.at[0].set(y[0] + y[i])

        array = cg.TensorArray("float64", size=x.shape[0], element_shape=(), rewritable=True)
        array, y = cg.fori_loop(0, x.shape[0], body, (array, x))
        return np.sum(np.sin(array.stack())) + np.sum(np.sin(y))

    def copied(n: int) -> int:
        x = normal(1, n)
        run = Run()
        run_graph(cg.function(cg.grad(reads_after_writing)).graph(x), [x], run)
        return run.counters.copied_bytes

    # A few whole arrays before and after the loops, none inside.
    assert copied(400) < 12 * 400 * 8
    body = walk(cg.function(cg.grad(reads_after_writing)).graph(normal(1, 4)))
    assert not [n for n in body if n.op.name == "stack_sum"]
    assert cg.check_grads(reads_after_writing, (normal(2, 5),), order=2).ok


def test_of_loops_that_are_the_same_one_is_differentiated() -> None:
    def power(x: Any) -> Any:
        return cg.fori_loop(0, 3, lambda _, y: y * np.sin(x), x)

    def loops(function: Any) -> int:
        return len([n for n in walk(cg.function(function).graph(2.0)) if n.op.name == "while"])

    def squared(x: Any) -> Any:
        return power(x) * power(x)

    assert loops(squared) == 1
    assert loops(cg.grad(squared)) == loops(cg.grad(power))
    assert cg.check_grads(squared, (0.7,), order=2).ok


def test_a_function_of_a_loop_and_its_derivative_in_two_directions_runs_the_loop_once_more() -> None:
    def total(x: Any, y: Any) -> Any:
        return cg.fori_loop(0, 3, lambda _, z: cg.cond(z < 5.0, lambda: z * x, lambda: np.sin(z)), 1.0) + np.sin(y)

    def along_y(x: Any, y: Any) -> Any:
        return tuple(cg.jvp(lambda y: total(x, y), (y,), (d,)) for d in (1.0, 2.0))

    graph = cg.function(along_y).graph(0.5, 0.3)
    assert len([n for n in walk(graph) if n.op.name == "while"]) == 1
    for engine in ("reference", "native"):
        found = cg.function(along_y, engine=engine)(0.5, 0.3)
        np.testing.assert_allclose(found[1][1], 2.0 * np.cos(0.3), rtol=1e-14)
        np.testing.assert_allclose(found[0][0], 0.125 + np.sin(0.3), rtol=1e-14)


def test_loops_with_effects_stay_two(capfd: pytest.CaptureFixture[str]) -> None:
    def noted(x: Any) -> Any:
        def body(_: Any, y: Any) -> Any:
            cg.debug.print("{}", y)
            return y * x

        return cg.fori_loop(0, 2, body, x)

    cg.function(lambda x: noted(x) + noted(x), engine="reference")(3.0)
    printed = capfd.readouterr()
    assert len((printed.out + printed.err).split()) == 4


def test_loops_that_promise_to_end_stay_as_many_as_promise_otherwise() -> None:
    def body(most: int) -> Any:
        return lambda x: cg.while_loop(lambda y: y < 9.0, lambda y: y + x, x, maximum_iterations=most)

    def loops(*most: int) -> int:
        graph = cg.function(lambda x: sum(body(m)(x) for m in most)).graph(2.0)
        return len([n for n in walk(graph) if n.op.name == "while"])

    assert (loops(7, 7), loops(7, 8)) == (1, 2)
