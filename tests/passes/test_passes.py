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
from ctrlgrad.ir import Builder, TensorType, attributes, verify, walk
from ctrlgrad.passes import OPTIMISATIONS, fold, optimise, remove_dead_code, sink_slices
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
    with pytest.raises(UserInputError, match="there is no pass 'fly'"), without_passes("fly"):
        pass


def test_constants_are_folded_to_the_end() -> None:
    """What is computed from a folded constant is one too, and so is what a product with 1 leaves."""
    builder = Builder(name="chain")
    x = builder.input(TensorType(np.dtype(np.float64), ()))
    one, two = (builder.constant(np.float64(n)) for n in (1.0, 2.0))
    four = builder.emit("add", [builder.emit("multiply", [two, one]), two])
    graph = builder.finish([builder.emit("multiply", [x, builder.emit("sqrt", [four])])])
    folded = remove_dead_code(fold(graph))
    assert [node.op.name for node in folded.nodes] == ["constant", "multiply"]
    assert attributes.Constant.of(folded.nodes[0]).value == 2.0


def test_a_slice_of_one_row_that_leaves_none() -> None:
    """A size of 1 that nothing was broadcast from is cut like any other."""
    x = normal(1, 1, 4)
    graph = Case(lambda x: (x + x * 2.0)[1:] * 1.5, (x,), sink_slices).graph()
    (found,) = run_on("reference", sink_slices(graph), [x])
    assert found.shape == (0, 4)


def test_a_read_comes_before_the_update_of_what_it_reads() -> None:
    """Otherwise each iteration copies the array, and its gradient makes one as large."""

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
