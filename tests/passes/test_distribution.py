"""Loop distribution: the ops that leave a loop, the length of chunks, and unchanged results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.checked import checked
from passes.pass_cases import CASES, DISTRIBUTED, LAYER, Case, loops, normal, recurrent_layer

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import without_passes
from ctrlgrad.errors import MaximumIterationsError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Builder, Graph, TensorType, attributes, count_ops, verify, walk
from ctrlgrad.passes import CHUNK_BYTES, OPTIMISATIONS, distribute, heavy, optimise


def chunks(graph: Graph) -> set[int]:
    """The chunk lengths of distributed loops."""
    loops = filter(None, map(attributes.Loop.find, walk(graph)))
    return {loop.chunk for loop in loops if loop.chunk is not None}


def test_a_distributed_layer_computes_its_products_by_the_chunk() -> None:
    """Of the products with xs and of the weights' gradients none is left in a loop over iterations."""
    graph = distribute(CASES["distribute"].graph(), 3)
    assert [count_ops(n.regions[1])["matmul"] for n in loops(graph, "chunk")] == [1, 1]
    once = [sum(m.op.name == "matmul" for m in n.regions[1].nodes) for n in loops(graph, "chunks_of")]
    assert once == [1, 2]


def test_weights_and_rows_are_multiplied_by_the_chunk() -> None:
    """The gradient of the weights leaves the loop; one product and the sum of the bias stay."""
    graph = optimise(CASES["distribute_bias_and_rows"].graph())
    _, chunk = loops(graph, "chunks_of")
    _, iterations = loops(graph, "chunk")
    inside = count_ops(iterations.regions[1])
    assert (inside["matmul"], inside["sum_to"], inside["additem"]) == (1, 1, 1)
    once = [n.op.name for n in chunk.regions[1].nodes if n.op.name in ("matmul", "sum")]
    assert once == ["matmul"]


def test_loops_inside_are_distributed_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration of the gradient leaves two products of 2x4x3 and 2x3x3 multiplications, and the forward loop one."""
    graph = CASES["distribute_inside"].graph()

    def inside(worth: int) -> list[int]:
        monkeypatch.setattr("ctrlgrad.passes.heavy.WORTH_INSIDE", worth)
        outer = [n for n in distribute(graph, 2).nodes if "chunks_of" in n.attrs.given()]
        return [len(loops(n.regions[1], "chunks_of")) for n in outer]

    assert inside(24) == [1, 1]
    assert inside(25) == [0, 1]
    assert inside(42) == [0, 1]
    assert inside(43) == [0, 0]
    # Values of a loop that stays whole do not make chunks shorter.
    sizes = {
        attributes.Loop.of(n).chunk
        for n in walk(distribute(graph, chunk_bytes=160 * 100))
        if "chunk" in n.attrs.given()
    }
    assert sizes == {128}


def test_loops_inside_keep_a_budget(tmp_path: Path) -> None:
    """Chunks of an inner loop lie within a chunk of the outer loop, and are swapped or recomputed like other chunks."""
    case = CASES["distribute_inside"]
    arguments = (np.concatenate([case.arguments[0]] * 6), *case.arguments[1:])
    graph = Case(case.function, arguments, case.run, gradient=True, first=1).graph()
    expected = run_on("reference", graph, arguments)
    with cg.memory.budget("9 KiB", disk=tmp_path) as session:
        found = run_on("native", graph, arguments)
        stats = session.manager("cpu").stats
    assert stats.bytes_out > 0 or stats.recomputed_chunks > 0
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


@pytest.mark.parametrize("name", DISTRIBUTED)
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 6, 7])
def test_any_number_of_iterations_and_any_chunk(name: str, steps: int) -> None:
    case = CASES[name]
    arguments = (case.arguments[0][:steps], *case.arguments[1:])
    graph = optimise(Case(case.function, arguments, case.run, gradient=True, first=case.first).graph(), {"distribute"})
    expected = run_on("reference", graph, arguments)
    for chunk in (1, 3, 64):
        for a, b in zip(expected, run_on("reference", verify(distribute(graph, chunk)), arguments), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14, err_msg=f"chunks of {chunk}")


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_second_derivatives_of_distributed_loops(name: str) -> None:
    """Second derivatives agree on both engines, in chunks of 8 iterations and of many."""
    case = CASES[name]
    xs, *others = case.arguments
    arguments = (np.concatenate([xs, 0.5 * xs[::-1]]), *others)
    argnums = tuple(range(case.first, len(arguments)))

    def slope(*values: Any) -> Any:
        return sum(cnp.sum(np.sin(g)) for g in cg.grad(case.function, argnums=argnums)(*values))

    graph = Case(slope, arguments, case.run, gradient=True, first=case.first).graph()
    expected = run_on("reference", graph, arguments)
    for chunk_bytes in (0, CHUNK_BYTES):
        distributed = verify(optimise(graph, chunk_bytes=chunk_bytes))
        assert len(loops(distributed, "chunks_of")) >= 3
        for engine in ("reference", "native"):
            with checked(), without_passes(*(name for name, _ in OPTIMISATIONS)):
                found = run_on(engine, distributed, arguments)
            for a, b in zip(expected, found, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12 * np.max(np.abs(a)))


@pytest.mark.parametrize(
    ("chunk_bytes", "chunk"),
    # An iteration collects 8 numbers of an input, 6 of a carry and 6 cotangents; 160 bytes.
    [(0, 8), (160 * 8, 8), (160 * 100, 64), (160 * 128, 128), (CHUNK_BYTES - 1, 4096), (CHUNK_BYTES, 4096)],
)
def test_a_chunk_has_the_bytes_that_it_is_given(chunk_bytes: int, chunk: int) -> None:
    graph = CASES["distribute"].graph()
    found = optimise(graph, chunk_bytes=chunk_bytes)
    assert chunks(found) == {chunk}
    assert str(found) == str(optimise(graph, chunk_bytes=chunk_bytes))


def test_chunks_of_wide_rows_have_16_iterations_by_default() -> None:
    arguments = (normal(0, 3, 2, 40_000), normal(1, 40_000, 3), normal(2, 3, 3))
    graph = Case(recurrent_layer, arguments, distribute, gradient=True, first=1).graph()
    for chunk_bytes, chunk in ((CHUNK_BYTES, 16), (CHUNK_BYTES - 1, 16), (CHUNK_BYTES // 4, 8)):
        found = distribute(graph, chunk_bytes=chunk_bytes)
        assert chunks(found) == {chunk}


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


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 6, 7])
@pytest.mark.parametrize("maximum", [0, 1, 3, 5, 6, 7, 9])
def test_loops_with_a_maximum_keep_it(steps: int, maximum: int) -> None:
    def bounded(xs: Any, w: Any, n: Any) -> Any:
        body = lambda c: (c[0] + 1, np.tanh(c[1] + xs[c[0]] @ w))
        start = (0, np.zeros((2, 3)))
        return cnp.sum(cg.while_loop(lambda c: c[0] < n, body, start, maximum_iterations=maximum)[1])

    arguments = (normal(0, 7, 2, 4), normal(1, 4, 3), np.int64(steps))
    graph = cg.function(cg.grad(bounded, argnums=(0, 1))).graph(*arguments)
    distributed = verify(distribute(graph, 3))
    assert len(loops(distributed, "chunks_of")) == 2
    outcomes: list[Any] = []
    for each in (graph, distributed):
        try:
            outcomes.append(run_on("reference", each, arguments))
        except MaximumIterationsError as error:
            outcomes.append(error)
    if steps > maximum:
        assert all(isinstance(o, MaximumIterationsError) for o in outcomes)
    else:
        for a, b in zip(*outcomes, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14)


def test_rows_of_another_number_in_each_iteration() -> None:
    """Rows of a different number in each iteration are joined: the factors of a product may have any number of rows."""

    def triangle(xs: Any, ys: Any) -> Any:
        body = lambda c: (c[0] + 1, c[1] + xs[: c[0] + 1].T @ np.tanh(ys[: c[0] + 1]))
        return cg.while_loop(lambda c: c[0] < xs.shape[0], body, (0, np.zeros((3, 2))))[1]

    arguments = (normal(0, 7, 3), normal(1, 7, 2))
    graph = Case(triangle, arguments, distribute).graph()
    assert loops(distribute(graph, 3), "chunks_of")
    (expected,) = run_on("reference", graph, arguments)
    with checked():
        for engine in ("reference", "native"):
            (found,) = run_on(engine, verify(distribute(graph, 3)), arguments)
            np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("unknown", range(16))
def test_products_of_rows_whose_sizes_are_not_known(unknown: int) -> None:
    """Any of the four sizes of a product of rows may be unknown, its columns too."""

    def columns(xs: Any, w: Any) -> Any:
        return cg.scan(lambda c, x: (c + cnp.sum(np.sin(x @ w)), c), 0.0, xs)

    loss = lambda xs, w: cnp.sum(cnp.cos(columns(xs, w)[1]))
    arguments = (normal(0, 5, 2, 3), normal(1, 3, 4))
    known = [bool(unknown >> bit & 1) for bit in range(4)]
    sizes = [size if known else None for size, known in zip((5, 2, 3, 4), known, strict=True)]
    specs = (cg.TensorSpec(tuple(sizes[:3]), "float64"), cg.TensorSpec((sizes[2], sizes[3]), "float64"))
    for function in (loss, cg.grad(loss, argnums=(0, 1))):
        graph = cg.function(function, signature=specs).graph(*arguments)
        distributed = verify(distribute(graph, 3))
        assert loops(distributed, "chunks_of")
        with checked():
            found = run_on("reference", distributed, arguments)
        for a, b in zip(run_on("reference", graph, arguments), found, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("rows", "unknown"), [(1, False), (3, False), (1, True), (3, True)])
def test_batches_of_products_leave_the_loop(rows: int, unknown: bool) -> None:
    """A batch of layers, each with weights of its own: the weights' gradients are products of all iterations."""

    def layers(xs: Any, w: Any) -> Any:
        def body(c: Any) -> Any:
            return c[0] + 1, np.tanh(xs[c[0]] @ w + c[1])

        return cnp.sum(cg.while_loop(lambda c: c[0] < xs.shape[0], body, (0, xs[0] @ w))[1])

    arguments = (normal(0, 7, 2, rows, 4), normal(1, 2, 4, 5))
    time, columns = (None, None) if unknown else (7, 5)
    specs = (cg.TensorSpec((time, 2, rows, 4), "float64"), cg.TensorSpec((2, 4, columns), "float64"))
    graph = cg.function(cg.grad(layers, argnums=1), signature=specs).graph(*arguments)
    expected = run_on("reference", graph, arguments)
    for chunk in (1, 3, 64):
        distributed = verify(distribute(graph, chunk))
        assert [count_ops(n.regions[1])["matmul"] for n in loops(distributed, "chunk")] == [0]
        for engine in ("reference", "native"):
            with checked():
                found = run_on(engine, distributed, arguments)
            for a, b in zip(expected, found, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14, err_msg=f"chunks of {chunk}")


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 4, None), (2, None, 5)),
        ((2, 4, None), (2, 3, 5)),
        ((2, 4, 3), (2, None, 5)),
        ((None, 4, 3), (None, 3, 5)),
        ((4, 3), (2, 3, 5)),
    ],
)
def test_batches_of_unknown_number_or_terms_stay(shapes: Any) -> None:
    builder = Builder()
    builder.emit("matmul", [builder.input(TensorType(np.dtype("f8"), shape)) for shape in shapes])
    with heavy.weighing(False):
        assert not heavy.pays_as_sum(builder.nodes[0])
        assert not heavy.pays_as_rows(builder.nodes[0])


@pytest.mark.parametrize(
    ("pays", "left", "right", "least"),
    [
        # Right factors of 64 x 256 float32 lie in a near cache, of 256 x 512 they do not.
        (heavy.pays_as_rows, lambda b: (b, 64), (64, 256), 2),
        (heavy.pays_as_rows, lambda b: (b, 256), (256, 512), 42),
        (heavy.pays_as_sum, lambda b: (64, b), lambda b: (b, 256), 4),
        (heavy.pays_as_sum, lambda b: (256, b), lambda b: (b, 512), 56),
    ],
)
def test_products_leave_up_to_the_batch_that_costs_as_much(
    pays: Any, left: Any, right: Any, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heavy, "STACKED", 24)
    monkeypatch.setattr(heavy, "STACKED_OF_FAR", 6)
    found = []
    for b in (1, least, least + 1):
        builder = Builder()
        shapes = left(b), right(b) if callable(right) else right
        a, c = (builder.input(TensorType(np.dtype("f4"), shape)) for shape in shapes)
        product = builder.emit("matmul", [a, c])
        (node,) = builder.nodes
        assert node.result is product
        found.append(pays(node))
        with heavy.weighing(False):
            assert pays(node)
    assert found == [True, True, False]
