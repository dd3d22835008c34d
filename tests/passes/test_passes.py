"""Each pass on a program that shows what it does: text before and after, and the same values within rounding.

`pytest tests/passes --update-golden` writes `tests/golden/passes/NAME.txt` anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.engines import run_on, without_passes
from ctrlgrad.engines.native.checked import checked
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph, count_ops, verify, walk
from ctrlgrad.passes import (
    OPTIMISATIONS,
    distribute,
    fold,
    hoist_invariants,
    join_updates,
    merge_common,
    optimise,
    remove_dead_code,
    sink_slices,
    split_products,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "passes"


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def repeated_terms(x: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, np.sin(c[1]) * np.sin(c[1])), (0, x))[1]


def constant_terms(x: Any) -> Any:
    half = cnp.asarray(1.0) / cnp.asarray(2.0)
    return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 1.0 + (half + half)), (0, x))[1]


def dead_carry(x: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, np.sin(c[1]), c[2] * 2.0), (0, x, x))[1]


def invariant_product(x: Any, w: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, np.tanh((w @ w) @ c[1])), (0, x))[1]


def parts_of_a_product(x: Any, w: Any) -> Any:
    def step(h: Any, _: Any) -> Any:
        z = h @ w
        return np.tanh(z[:, :2]) * z[:, 2:], None

    return cnp.sum(cg.scan(step, x, length=3)[0])


def parts_of_a_sum(x: Any, w: Any, b: Any) -> Any:
    def step(h: Any, _: Any) -> Any:
        z = h @ w + b
        return np.tanh(z[:, :2]) * z[:, 2:], None

    return cnp.sum(cg.scan(step, x, length=3)[0])


def product_over_a_concatenation(xs: Any, w: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        return np.tanh(cnp.concat([x, h], axis=1) @ w), None

    return cnp.sum(cg.scan(step, np.zeros((2, 3)), xs)[0])


def recurrent_layer(xs: Any, w: Any, u: Any) -> Any:
    def step(c: Any) -> Any:
        t, h = c
        return t + 1, np.tanh(xs[t] @ w + h @ u)

    return cnp.sum(cg.while_loop(lambda c: c[0] < xs.shape[0], step, (0, np.zeros((2, 3))))[1])


@dataclass(frozen=True)
class Case:
    """A graph for a pass: of a function, or of its gradient."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    run: Callable[[Graph], Graph]
    gradient: bool = False
    first: int = 0

    def graph(self) -> Graph:
        argnums = tuple(range(self.first, len(self.arguments)))
        function = cg.grad(self.function, argnums=argnums) if self.gradient else self.function
        builder = cg.function(function, name=self.function.__name__)
        builder.graph(*self.arguments)
        ((signature,),) = [known.variants for known in builder._cache.values()]
        return signature.graph if not self.gradient else signature.simplified

    @property
    def leaves(self) -> list[np.ndarray]:
        return [np.asarray(x) for x in tree.leaves(self.arguments)]


@pytest.fixture(autouse=True)
def _every_product_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrlgrad.passes.distribution.HEAVY", 1)


LAYER = (normal(0, 7, 2, 4), normal(1, 4, 3), normal(2, 3, 3))
CASES = {
    "merge_common": Case(repeated_terms, (normal(3),), merge_common),
    "fold": Case(constant_terms, (normal(3),), fold),
    "remove_dead_code": Case(dead_carry, (normal(3),), remove_dead_code),
    "hoist_invariants": Case(invariant_product, (normal(3, 3), normal(4, 3, 3)), hoist_invariants),
    "join_updates": Case(parts_of_a_product, (normal(5, 3, 2), normal(6, 2, 4)), join_updates, gradient=True),
    "sink_slices": Case(parts_of_a_sum, (normal(5, 3, 2), normal(6, 2, 4), normal(9, 4)), sink_slices),
    "split_products": Case(product_over_a_concatenation, (normal(7, 4, 2, 4), normal(8, 7, 3)), split_products),
    "distribute": Case(recurrent_layer, LAYER, partial(distribute, chunk=3), gradient=True, first=1),
}


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


def test_a_distributed_layer_computes_its_products_by_the_chunk() -> None:
    """Of the products with xs and of the weights' gradients none is left in a loop over iterations."""
    graph = distribute(CASES["distribute"].graph(), 3)
    inner = [n for n in walk(graph) if n.op.name == "while" and "chunk" in n.attrs]
    outer = [n for n in walk(graph) if n.op.name == "while" and "chunks_of" in n.attrs]
    assert [count_ops(n.regions[1])["matmul"] for n in inner] == [1, 1]
    assert [sum(m.op.name == "matmul" for m in n.regions[1].nodes) for n in outer] == [1, 2]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_any_number_of_iterations_and_any_chunk(steps: int, chunk: int) -> None:
    case = CASES["distribute"]
    arguments = (case.arguments[0][:steps], *case.arguments[1:])
    graph = Case(recurrent_layer, arguments, case.run, gradient=True, first=1).graph()
    expected = run_on("reference", graph, arguments)
    for a, b in zip(expected, run_on("reference", distribute(graph, chunk), arguments), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", sorted({name for name, _ in OPTIMISATIONS}))
def test_a_pass_can_be_left_out(name: str) -> None:
    graph = CASES["distribute"].graph()
    assert str(optimise(graph, {name})) != str(optimise(graph)) or name != "distribute"
    leaves = CASES["distribute"].leaves
    with without_passes(name):
        found = run_on("auto", graph, leaves)
    for a, b in zip(run_on("reference", graph, leaves), found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


def test_a_pass_that_does_not_exist() -> None:
    with pytest.raises(UserInputError, match="there is no pass 'fly'"), without_passes("fly"):
        pass


def test_a_slice_of_one_row_that_leaves_none() -> None:
    """A size of 1 that nothing was broadcast from is cut like any other."""
    x = normal(1, 1, 4)
    graph = Case(lambda x: (x + x * 2.0)[1:] * 1.5, (x,), sink_slices).graph()
    (found,) = run_on("reference", sink_slices(graph), [x])
    assert found.shape == (0, 4)


def test_a_batched_product_that_is_used_twice_is_not_overwritten() -> None:
    """The recurrent product may be added in place to a row of the batch only where nothing else reads that row."""

    def gated(xs: Any, w: Any, u: Any) -> Any:
        def body(c: Any) -> Any:
            z = xs[c[0]] @ w
            return c[0] + 1, np.tanh(z + c[1] @ u) * z

        return cnp.sum(cg.while_loop(lambda c: c[0] < xs.shape[0], body, (0, np.zeros((2, 3))))[1])

    graph = optimise(Case(gated, LAYER, distribute, gradient=True, first=1).graph())
    with checked():
        found = run_on("native", graph, CASES["distribute"].leaves)
    for a, b in zip(run_on("reference", graph, CASES["distribute"].leaves), found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


def test_loops_with_a_maximum_stay_whole() -> None:
    def bounded(xs: Any, w: Any) -> Any:
        body = lambda c: (c[0] + 1, np.tanh(c[1] + xs[c[0]] @ w))
        return cg.while_loop(lambda c: c[0] < 4, body, (0, np.zeros((2, 3))), maximum_iterations=5)[1]

    graph = Case(bounded, (normal(0, 7, 2, 4), normal(1, 4, 3)), distribute).graph()
    assert str(distribute(graph)) == str(graph)


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
