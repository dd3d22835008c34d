"""The CUDA engine on a real card: what `tests/cuda` holds against a stand-in, held against the reference engine.

`pytest tests/gpu` runs it. Values differ from the CPU's within rounding: products and functions of the card round in
another way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from elementwise_cases import assert_agrees, elementwise_cases
from instruments.comparing import assert_same
from instruments.subnormal import X, computed, gradients
from programs import BY_NAME, PROGRAMS, Program
from rule_cases import CASES

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.cupy_library import CupyLibrary, cupy_library
from ctrlgrad.engines.cuda.engine import explain_on, run_with
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.kernels import computed as computed_by
from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.engines.device_array import DeviceArray
from ctrlgrad.errors import IndexOutOfRangeError, MemoryBudgetError, TierRefusedError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph
from ctrlgrad.runtime import chunks as engine_chunks

# Parts of what takes long since each has kernels of its own: processes share them.
SHARES = 16


@pytest.fixture
def library() -> CupyLibrary:
    return cupy_library()


def run(library: CupyLibrary, graph: Graph, arguments: Any, kinds: str = "") -> tuple[list[Any], Context]:
    """The results, arguments of some dtype kinds being on the device from the start, and the run."""
    context = Context(library)
    with library.running():
        given = [library.upload(x) if np.asarray(x).dtype.kind in kinds else x for x in arguments]
    return run_with(context, optimised_graph(graph, is_for_gpu=True), given), context


@pytest.mark.parametrize("kinds", ["", "biuf"], ids=["on the host", "on the device"])
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_corpus(library: CupyLibrary, program: Program, kinds: str) -> None:
    leaves = program.leaves
    for order in (0, 1, 2):
        graph = program.graph(order)
        found, _ = run(library, graph, leaves, kinds)
        assert_same(found, program.expected(order), 1e-9)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float16", "float32", "float64", "complex64"])
def test_reductions(library: CupyLibrary, dtype: str) -> None:
    """Of a block's elements and of more, over inner and outer axes; twice the same bits."""

    def reduced(x: Any) -> tuple[Any, ...]:
        found = []
        for axis in (None, 0, 1, -1, (0, 2)):
            if x.dtype == bool:
                found += [np.any(x, axis=axis), np.all(x, axis=axis)]
            else:
                found.append(np.sum(x * x, axis=axis))
            if np.dtype(x.dtype).kind in "iuf":
                found += [np.max(x, axis=axis), np.min(x, axis=axis, keepdims=True)]
        return (*found, *((np.argmax(x, axis=1), np.argmin(x, axis=0)) if np.dtype(x.dtype).kind != "c" else ()))

    for shape in ((3, 5, 7), (2, 40_000, 3), (300, 2, 70)):
        x = (np.random.default_rng(0).normal(size=shape) * 2).astype(dtype)
        graph = cg.function(reduced).graph(x)
        (found, _), (again, _) = run(library, graph, [x]), run(library, graph, [x])
        assert_same(found, run_on("reference", graph, [x]), 2e-3 if dtype == "float16" else 1e-5)
        for one, other in zip(found, again, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("steps", [1, 2, 50])
@pytest.mark.parametrize("kinds", ["", "biuf"], ids=["on the host", "on the device"])
def test_prepared_launches(library: CupyLibrary, steps: int, kinds: str) -> None:
    """A recurrent network and its gradients, with blocks of 16, 32 and 64 rows: called twice, as the list is made anew
    and the kernels are not."""

    def loss(w: Any, u: Any, x: Any) -> Any:
        step = lambda t, h: cnp.tanh(x[t] @ w + h @ u) * (1.0 + t * 0.1)
        return cnp.sum(cg.fori_loop(0, steps, step, x[0, :, :4]) ** 2)

    rng = np.random.default_rng(0)
    args = [rng.normal(size=(5, 4)), rng.normal(size=(4, 4)), rng.normal(size=(steps, 3, 5))]
    graph = cg.function(cg.value_and_grad(loss, argnums=(0, 1, 2))).graph(*args)
    for _ in range(2):
        found, context = run(library, graph, args, kinds)
        assert_same(found, run_on("reference", graph, args), 1e-9)
        assert 2 <= context.counts.runs <= 6


@pytest.mark.parametrize("steps", [40, 41, 200])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_graphs(library: CupyLibrary, dtype: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent network and its gradients: each loop is a graph, and has the bits that it has from the list."""

    def loss(w: Any, u: Any, x: Any) -> Any:
        step = lambda t, h: cnp.tanh(x[t] @ w + h @ u) * (0.9 + t * 0.001).astype(dtype)
        return cnp.sum(cg.fori_loop(0, steps, step, x[0, :, :64]) ** 2)

    rng = np.random.default_rng(0)
    args = [rng.normal(size=(65, 64)) / 32, rng.normal(size=(64, 64)) / 32, rng.normal(size=(steps, 32, 65))]
    args = [x.astype(dtype) for x in args]
    graph = cg.function(cg.value_and_grad(loss, argnums=(0, 1, 2))).graph(*args)
    launching = [
        loop.launching for loop in explain_on(library, optimised_graph(graph, is_for_gpu=True), args).all_loops()
    ]
    # Loops over chunks of products run step by step.
    listed = [text for text in launching if text.startswith("from a list")]
    assert len(listed) >= 2 and all(", in a graph" in text and "not in" not in text for text in listed), launching
    found, context = run(library, graph, args)
    assert context.counts.graphs >= len(listed)
    assert_same(found, run_on("reference", graph, args), 1e-9 if dtype == "float64" else 1e-4)
    monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 1 << 62)
    again, context = run(library, graph, args)
    assert not context.counts.graphs
    for x, y in zip(found, again, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("trips", [12, 16, 20, 101, 5000])
def test_graphs_that_ask_a_predicate(library: CupyLibrary, trips: int) -> None:
    """The end of the loop is found on the card; what it saves is what its gradient pops."""

    def loss(x: Any) -> Any:
        body = lambda c: (c[0] - 1.0, np.sin(c[1] * 1.1) + c[1] * 0.5, c[2] + 1)
        _, y, count = cg.while_loop(lambda c: c[0][0] > 0.5, body, (x, x * 0.01, 0))
        return np.sum(y * y) + count

    x = np.array([float(trips), 0.3])
    graph = cg.function(cg.value_and_grad(loss)).graph(x)
    found, context = run(library, graph, [x], "f")
    assert_same(found, run_on("reference", graph, [x]), 1e-9)
    assert (context.counts.graphs > 0) == (trips > 16)
    # For each iteration of the list, to the end of the first block, and at the ends of blocks: 16 rows, 32, 64, ...
    assert context.counts.predicate_reads <= 16 + 16


@pytest.mark.parametrize("name", CASES)
def test_case(library: CupyLibrary, name: str) -> None:
    case = CASES[name]

    def loss(*args: Any) -> Any:
        results = case.fn(*args)
        results = results if isinstance(results, tuple) else (results,)
        return sum(cnp.sum(cnp.sin(cnp.real(r) * (0.7 + k))) for k, r in enumerate(results))

    for dtype, rtol in (("float64", 1e-9), ("float32", 1e-4)):
        args = [x.astype(dtype) for x in case.args]
        specs = tuple(cg.TensorSpec((None,) * x.ndim, dtype) for x in args) if case.unknown else None
        function = cg.value_and_grad(loss, argnums=tuple(range(len(args))))
        graph = cg.function(function, signature=specs).graph(*args)
        assert_same(run(library, graph, args)[0], run_on("reference", graph, args), rtol)


@pytest.mark.parametrize("share", range(SHARES))
def test_every_elementwise_op(library: CupyLibrary, share: int) -> None:
    """The generated text, compiled for the card, for each op and dtype with the dtype's special values."""
    for case in elementwise_cases()[share::SHARES]:
        text: KernelText = case.text
        with library.running():
            inputs = [library.upload(x) for x in case.operands]
            dtype = case.node.result.tensor.dtype
            (found,) = library.read([computed_by(Context(library), text, inputs[0].shape, dtype, *inputs)])
        assert_agrees(case, found)


@pytest.mark.parametrize("function", [computed, gradients])
def test_subnormal_numbers(library: CupyLibrary, function: Callable[..., Any]) -> None:
    """None of them is taken for zero; a few are near the least, which is all that a function may miss them by."""
    graph = cg.function(function).graph(X, np.float32(0.5))
    for kinds in ("", "f"):
        found, _ = run(library, graph, [X, np.float32(0.5)], kinds)
        for x, expected in zip(found, run_on("reference", graph, [X, np.float32(0.5)]), strict=True):
            np.testing.assert_allclose(x, expected, rtol=1e-6, atol=3e-45)


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "float64", "complex64"])
def test_scans(library: CupyLibrary, dtype: str) -> None:
    """By one block a row and by more, along inner and outer axes; twice the same bits."""
    for shape, axis in (((7, 300), 1), ((3, 20_000), 1), ((20_000, 3), 0), ((1 << 20,), 0)):
        x = (np.random.default_rng(0).normal(size=shape) * (2 if dtype == "int32" else 1e-3)).astype(dtype)
        graph = cg.function(lambda x, axis=axis: np.cumsum(x, axis=axis)).graph(x)
        (found, _), (again, _) = run(library, graph, [x]), run(library, graph, [x])
        exact = np.cumsum(x.astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64), axis=axis)
        np.testing.assert_allclose(found[0], exact, rtol=2e-3 if dtype == "float16" else 1e-4, atol=1e-4)
        np.testing.assert_array_equal(found[0], again[0])


def test_graphs_that_are_kept_have_the_same_bits(library: CupyLibrary) -> None:
    """From call to call; where the pool gives other memory they are made again."""

    def loss(w: Any, x: Any) -> Any:
        return np.sum(cg.fori_loop(0, 200, lambda t, h: np.tanh(x[t] + h @ w), x[0] * 0.5) ** 2)

    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(64, 64)).astype("f") / 16, rng.normal(size=(200, 8, 64)).astype("f")
    graph = optimised_graph(cg.function(cg.grad(loss)).graph(w, x), is_for_gpu=True)
    with library.running():
        given = [library.upload(w), library.upload(x)]
    first, *others = (run_with(Context(library), graph, given) for _ in range(6))
    assert_same(first, run_on("reference", graph, [w, x]), 1e-4)
    for found in others:
        np.testing.assert_array_equal(np.asarray(found[0]), np.asarray(first[0]))


def test_as_a_user_calls_it() -> None:
    def loss(x: Any, n: Any) -> Any:
        return np.sum(np.square(cg.fori_loop(0, n, lambda i, x: np.tanh(x) * 1.1, x)))

    x = np.linspace(-1.0, 1.0, 5)
    found = cg.function(cg.grad(loss), engine="cuda")(x, 7)
    assert isinstance(found, DeviceArray)
    np.testing.assert_allclose(np.asarray(found), cg.function(cg.grad(loss), engine="reference")(x, 7), rtol=1e-12)


def test_counts_are_those_of_the_stand_in(library: CupyLibrary) -> None:
    from instruments.stand_in_runs import on_stand_in

    for name in ("lstm", "early_exit", "branch_in_a_loop", "row_writes"):
        program = BY_NAME[name]
        leaves = program.leaves
        _, context = run(library, program.graph(1), leaves)
        assert context.counts == on_stand_in(program.graph(1), leaves).counts


DTYPES = ("int8", "uint64", "float16", "bfloat16", "float32", "float64", "complex128")


@pytest.mark.parametrize("count", [1, 5, 300, 5000])
def test_positions_that_repeat(library: CupyLibrary, count: int) -> None:
    """Few are compared with each other, more are sorted: the bits are those of the reference engine's order."""
    rng = np.random.default_rng(count)
    index, columns = rng.integers(-7, 7, count), rng.integers(-3, 3, (2, 1), np.int32)
    for dtype in DTYPES:
        x, value = (np.abs(rng.normal(size=(n, 3)) * 30).astype(dtype) for n in (7, count))
        fn = lambda x, v, i, j: (x.at[i].add(v), x.at[i].set(v), x.at[i, j].add(v[:, 0]), x[i, j], x[:, j])
        graph = cg.function(fn).graph(x, value, index, columns)
        arguments = [x, value, index, columns]
        assert_same(run(library, graph, arguments)[0], run_on("reference", graph, arguments), 0.0)


@pytest.mark.parametrize("count", [5, 300])
def test_positions_that_repeat_in_a_graph(library: CupyLibrary, count: int) -> None:
    rng = np.random.default_rng(count)
    x, value, index = rng.normal(size=(7, 3)), rng.normal(size=(60, count, 3)), rng.integers(-7, 7, (60, count))

    def loop(x: Any, v: Any, i: Any) -> Any:
        return cg.fori_loop(0, 60, lambda k, c: (c[0].at[i[k]].add(v[k]), c[1].at[i[k]].set(c[0][i[k]])), (x, x))

    graph = cg.function(loop).graph(x, value, index)
    found, context = run(library, graph, [x, value, index])
    assert_same(found, run_on("reference", graph, [x, value, index]), 0.0)
    assert context.counts.graphs
    bad = np.where(np.arange(60)[:, None] == 50, 7, index)
    with pytest.raises(IndexOutOfRangeError, match="index 7 is out of bounds for an axis with size 7"):
        run(library, graph, [x, value, bad])


def test_an_index_out_of_range(library: CupyLibrary) -> None:
    x, index = np.arange(4.0), np.array([1, 7, 2])
    graph = cg.function(lambda x, i: x[i]).graph(x, index)
    with pytest.raises(IndexOutOfRangeError, match="index 7 is out of bounds for an axis with size 4"):
        run(library, graph, [x, index])


def test_a_run_waits_for_arrays_of_other_streams(library: CupyLibrary) -> None:
    import cupy

    graph = cg.function(lambda x: x * 2.0).graph(np.ones(3))
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.zeros(1 << 24)
        for _ in range(50):
            x += 1.0
        (found,) = run_with(Context(library), graph, [x[:3]])
    np.testing.assert_array_equal(found, np.full(3, 100.0))


# Under a budget.


def layer(loop: Callable[..., Any]) -> Any:
    """The gradient of an LSTM layer of 64 units, batch 32, by its weights."""

    def loss(w: Any, xs: Any) -> Any:
        def body(carry: Any) -> Any:
            t, h, c, total = carry
            i, f, g, o = cnp.split(cnp.concat([xs[t], h], axis=1) @ w, 4, axis=1)
            c = cnp.sigmoid(f) * c + cnp.sigmoid(i) * cnp.tanh(g)
            h = cnp.sigmoid(o) * cnp.tanh(c)
            return t + 1, h, c, total + cnp.sum(h * h)

        zeros = np.zeros((32, 64), np.float32)
        return loop(lambda c: c[0] < xs.shape[0], body, (0, zeros, zeros, np.float32(0)))[3]

    return cg.function(cg.value_and_grad(loss), engine="cuda")


def swapping(*args: Any) -> Any:
    return cg.while_loop(*args, swap_memory=True)


def recomputing(*args: Any) -> Any:
    return cg.while_loop(*args, checkpoint=True)


@pytest.fixture
def chunks_of_1_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of the same length with a budget as without: then results are the same bits."""
    monkeypatch.setattr(engine_chunks, "CHUNK_BYTES", 1 << 20)


@pytest.mark.parametrize("loop", [cg.while_loop, swapping, recomputing])
def test_a_long_sequence_under_a_budget(library: CupyLibrary, loop: Callable[..., Any], chunks_of_1_mib: None) -> None:
    rng = np.random.default_rng(0)
    w, xs = rng.normal(size=(96, 256)).astype("f") / 8, rng.normal(size=(2000, 32, 32)).astype("f")
    value, gradient = layer(cg.while_loop)(w, xs)
    limit = xs.nbytes + (16 << 20) + library.workspace_bytes
    for _ in range(2):
        with cg.memory.budget(device=limit) as session:
            found = layer(loop)(w, xs)
            stats = session.manager(library.name).stats
        assert float(found[0]) == float(value)
        np.testing.assert_array_equal(np.asarray(found[1]), np.asarray(gradient))
        assert stats.peak_bytes["device"] <= limit
        if loop is swapping:
            assert stats.bytes_in > 3 * limit and not stats.recomputed_chunks
        if loop is recomputing:
            assert stats.recomputed_chunks and not stats.copies_out


@pytest.mark.parametrize("name", ["lstm", "masked_rnn", "early_exit", "triple_nesting", "soft_sorting_network"])
def test_corpus_in_less_and_less_memory(library: CupyLibrary, name: str) -> None:
    program = BY_NAME[name]
    leaves = program.leaves
    for order in (1, 2):
        graph = program.graph(order)
        expected = run_on("reference", graph, leaves)
        limit = (1 << 20) + library.workspace_bytes
        while limit > library.workspace_bytes:
            try:
                with cg.memory.budget(device=limit) as session:
                    found, _ = run(library, graph, leaves, "f")
                    stats = session.manager(library.name).stats
            except (MemoryBudgetError, TierRefusedError):
                # The other one where kilobytes are left: the pool rounds the states up that chunks run again from.
                break
            assert_same(found, expected, 1e-9)
            assert stats.peak_bytes["device"] <= limit
            rest = min(limit, stats.peak_bytes["device"]) - library.workspace_bytes
            limit = library.workspace_bytes + rest * 3 // 4


def test_the_profile_has_times(library: CupyLibrary) -> None:
    rng = np.random.default_rng(0)
    w, xs = rng.normal(size=(96, 256)).astype("f") / 8, rng.normal(size=(500, 32, 32)).astype("f")
    with cg.memory.profile() as recording, cg.memory.budget(device=xs.nbytes + (16 << 20)):
        layer(swapping)(w, xs)
    assert recording.copied and all(c.start is not None and c.end is not None for c in recording.copied)
    assert {c.phase for c in recording.computed} == {"forward", "backward"}
    assert sum(c.nbytes for c in recording.copied) > 16 << 20


def test_a_graph_in_a_session_may_be_given_arrays_of_other_streams(library: CupyLibrary) -> None:
    import cupy

    graph = cg.function(lambda x: x * 2.0).graph(np.ones(3))
    with cupy.cuda.Stream(non_blocking=True), cg.memory.budget(device="1 GiB"):
        x = cupy.zeros(1 << 24)
        for _ in range(50):
            x += 1.0
        (found,) = run_with(Context(library), graph, [x[:3]])
    np.testing.assert_array_equal(found, np.full(3, 100.0))
