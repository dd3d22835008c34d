"""The driver of compiled loops: chunks, blocks of stacks, running a chunk again, errors, interruption, threads.

In checked mode, but for the threads: the driver is the same there.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from programs import BY_NAME, PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.engines import auto, chunks, run_on
from ctrlgrad.engines.native import execution, loop
from ctrlgrad.engines.native.checked import checked
from ctrlgrad.engines.native.execution import Execution
from ctrlgrad.engines.native.lending import LentStack
from ctrlgrad.engines.native.program import Status
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError
from ctrlgrad.ir import Graph
from ctrlgrad.stacks.blocks import Block, BlockStack
from ctrlgrad.stacks.storage import Resident


@pytest.fixture(autouse=True)
def in_checked_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("parametrize") is None and "compiled" in request.node.name:
        yield
        return
    with checked():
        yield


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one and two iterations."""
    monkeypatch.setattr(execution, "FIRST_ITERATIONS", 1)
    monkeypatch.setattr(loop, "LEAST_ITERATIONS", 1)
    monkeypatch.setattr(loop, "MOST_ITERATIONS", 2)


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> Counter[Status]:
    """Why compiled functions returned, counted."""
    counts: Counter[Status] = Counter()
    call = Execution._call

    def counted(self: Any) -> None:
        call(self)
        counts[Status(int(self.table[1]))] += 1

    monkeypatch.setattr(Execution, "_call", counted)
    return counts


def leaves_of(program: Program) -> list[np.ndarray]:
    return [np.asarray(x) for x in tree.leaves(program.args)]


def graph_of(function: Callable[..., Any], *arguments: Any) -> Graph:
    graph: Graph = cg.function(function).graph(*arguments)
    return graph


def assert_agrees(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    found = run_on("native", graph, arguments)
    for a, b in zip(found, run_on("reference", graph, arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11 * max(1.0, np.max(np.abs(b), initial=0.0)))
    return found


# Chunks.


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_chunks_of_one_and_two_iterations(program: Program, small_chunks: None) -> None:
    assert_agrees(program.traced_again(1), leaves_of(program))


def doubling(x: Any, n: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.sin(c[1]) * 2.0), (0, x))[1]


def test_chunks_grow_to_the_longest(statuses: Counter[Status], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "FIRST_ITERATIONS", 4)
    monkeypatch.setattr(loop, "MOST_ITERATIONS", 16)
    lent = []
    lend = LentStack.lend
    monkeypatch.setattr(LentStack, "lend", lambda self, t, n, blocks: (lent.append(n), lend(self, t, n, blocks))[1])
    gradient = graph_of(cg.grad(doubling), 0.3, 60)
    assert_agrees(gradient, [np.float64(0.3), np.int64(60)])
    # 4 + 8 + 16 + 16 are 44 iterations; the last chunk ends where the condition is false.
    assert lent[:5] == [4, 8, 16, 16, 16]
    assert statuses[Status.LIMIT] >= 4


def test_chunks_are_as_long_as_their_bytes_allow(monkeypatch: pytest.MonkeyPatch, plans: Any) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 30 * 8 * 50)
    x = np.linspace(0.1, 0.9, 50)
    assert_agrees(graph_of(cg.grad(lambda x: np.sum(doubling(x, 70))), x), [x])
    pushing = [plan for plan in plans.native if any(use.mode == "push" for use in plan.program.stacks)]
    assert [(plan.bytes_per_iteration, plan.chunk) for plan in pushing] == [(400, 30)]


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 768, 769])
def test_iterations_at_the_ends_of_chunks(count: int) -> None:
    """Chunks of 256, 512, ... iterations."""
    assert_agrees(graph_of(cg.grad(doubling), 0.3, 3), [np.float64(0.3), np.int64(count)])


def test_no_iterations_return_the_operands(small_chunks: None) -> None:
    x = np.arange(3.0)
    graph = graph_of(lambda x, n: cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2.0), (0, x)), x, 2)
    trips, same = run_on("native", graph, [x, np.int64(0)])
    assert trips == 0 and not np.shares_memory(same, x)
    np.testing.assert_array_equal(same, x)


def test_code_holds_for_every_unknown_size(plans: Any) -> None:
    """Sizes of 2 and more share their code where the same ones are equal."""

    def program(x: Any, w: Any) -> Any:
        return np.sum(cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, np.sin(c[1] @ w) + x), (0, x))[1])

    specs = (cg.TensorSpec((None, None), np.float64), cg.TensorSpec((None, None), np.float64))
    rng = np.random.default_rng(0)
    arguments = [(rng.normal(size=(m, n)), rng.normal(size=(n, n))) for m, n in ((2, 3), (4, 7), (5, 2))]
    graph = cg.function(program, signature=specs).graph(*arguments[0])
    for given in arguments:
        assert_agrees(graph, given)
    assert len(plans.sources) == 1 and not plans.reasons


# Stacks.


def rows_of_an_inner_loop(x: Any, counts: Any) -> Any:
    """Row i of `counts` says how often the inner loop runs in iteration i: as many saved values as its sum."""

    def outer(carry: Any) -> Any:
        i, y = carry
        n = counts[i]
        inner = cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.sin(c[1]) + 0.1 * x), (0, y))
        return i + 1, inner[1]

    return cg.while_loop(lambda c: c[0] < len(counts), outer, (0, x))[1]


def test_a_stack_that_fills_up_inside_an_iteration(statuses: Counter[Status], small_chunks: None) -> None:
    """The second chunk, of two iterations, has room for 8 rows at first; it runs again with 16, 32 and 64 of them."""
    x, counts = np.float64(0.4), np.array([2, 50, 0, 1, 7])
    assert_agrees(graph_of(cg.grad(rows_of_an_inner_loop), x, counts), [x, counts])
    assert statuses[Status.FULL_INSIDE] == 3


def test_a_chunk_that_runs_again_starts_from_the_same_arrays(statuses: Counter[Status], small_chunks: None) -> None:
    """What the first attempt wrote into carried arrays and stacks is undone."""

    def outer(carry: Any) -> Any:
        i, total, rows = carry
        n = 9 * (i % 2)
        body = lambda c: (c[0] + 1, np.sin(c[1]) + 1.0, c[2].push(c[1]))
        _, total, rows = cg.while_loop(lambda c: c[0] < n, body, (0, total.at[i % 3].add(1.0), rows))
        return i + 1, total, rows

    def program(x: Any) -> Any:
        rows = cg.TensorArray(np.float64, element_shape=(3,), rewritable=True).push(x)
        _, total, rows = cg.while_loop(lambda c: c[0] < 6, outer, (0, x, rows))
        return np.sum(total) + np.sum(np.cos(rows.stack()))

    x = np.array([0.1, 0.2, 0.3])
    for function in (program, cg.grad(program)):
        assert_agrees(graph_of(function, x), [x])
    assert statuses[Status.FULL_INSIDE] >= 2


def scan_of_scans(x: Any) -> Any:
    """Each row of x is scanned; what an inner scan yields lives for one iteration of the outer one."""

    def outer(total: Any, row: Any) -> Any:
        total, squares = cg.scan(lambda h, v: (np.tanh(0.9 * h + v), h * v), total, row)
        return total, np.sum(squares * squares)

    total, sums = cg.scan(outer, 0.1, x)
    return total + np.sum(sums)


def test_a_stack_of_one_iteration_outgrows_its_rows(statuses: Counter[Status], plans: Any) -> None:
    """200 rows where fewer are lent at first: the chunk runs again with more, forward and backward."""
    x = np.random.default_rng(0).normal(size=(3, 200))
    assert_agrees(graph_of(cg.grad(scan_of_scans), x), [x])
    assert not plans.reasons and len(plans.native) == 2
    assert statuses[Status.FULL_INSIDE] == 2


@pytest.fixture
def split_stacks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Loops get their stacks in blocks of one and two rows; counts the blocks that were joined."""
    counts: Counter[str] = Counter()
    begin, join = Execution.__init__, BlockStack._join

    def split(whole: BlockStack) -> BlockStack:
        rows, blocks, start = np.array(whole.tensor()), [], 0
        while start < len(rows):
            count = min(1 + len(blocks) % 2, len(rows) - start)
            blocks.append(Block(Resident(rows[start : start + count].copy()), count))
            start += count
        return BlockStack(whole.dtype, whole.shape, blocks, written=whole.written)

    def begun(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        for stack in self.stacks.values():
            stack.stack = split(stack.stack)

    def joined(self: BlockStack, number: int) -> None:
        counts["joined"] += 1
        join(self, number)

    monkeypatch.setattr(Execution, "__init__", begun)
    monkeypatch.setattr(BlockStack, "_join", joined)
    return counts


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_blocks_that_no_chunk_fits(program: Program, split_stacks: Counter[str]) -> None:
    assert_agrees(program.traced_again(1), leaves_of(program))


def test_a_pop_that_crosses_blocks_joins_them(split_stacks: Counter[str], statuses: Counter[Status]) -> None:
    x, counts = np.float64(0.4), np.array([2, 5, 0, 1, 7])
    assert_agrees(graph_of(cg.grad(rows_of_an_inner_loop), x, counts), [x, counts])
    assert statuses[Status.EMPTY] and statuses[Status.EMPTY_INSIDE] and split_stacks["joined"]


# Errors: the text is the reference engine's, with the line and the iteration.


def read(x: Any, n: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + x[c[0]]), (0, 0.0))[1]


def read_a_row(x: Any, n: Any) -> Any:
    rows = np.reshape(x, (-1, 2))
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + rows[c[0]]), (0, np.zeros(2)))[1]


def read_below(x: Any, n: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + x[-c[0]]), (0, 0.0))[1]


def write(x: Any, n: Any) -> Any:
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1].at[c[0]].set(2.0)), (0, x))[1]


def gather(x: Any, n: Any) -> Any:
    offsets = np.array([0, 1])
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + x[c[0] + offsets]), (0, np.zeros(2)))[1]


def read_in_a_branch(x: Any, n: Any) -> Any:
    def body(c: Any) -> Any:
        i, y = c
        return i + 1, y + cg.cond(i > 2, lambda: x[2 * i], lambda: 1.0)

    return cg.while_loop(lambda c: c[0] < n, body, (0, 0.0))[1]


def read_in_an_inner_loop(x: Any, n: Any) -> Any:
    def body(c: Any) -> Any:
        i, y = c
        inner = cg.while_loop(lambda d: d[0] < i, lambda d: (d[0] + 1, d[1] + x[d[0] + i]), (0, y))
        return i + 1, inner[1]

    return cg.while_loop(lambda c: c[0] < n, body, (0, 0.0))[1]


def read_an_array(x: Any, n: Any) -> Any:
    rows = cg.TensorArray(np.float64, size=4, element_shape=()).unstack(x[:4])
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + rows.read(c[0])), (0, 0.0))[1]


def write_an_array(x: Any, n: Any) -> Any:
    rows = cg.TensorArray(np.float64, size=4, element_shape=())
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1].write(c[0], x[0])), (0, rows))[1].stack()


def write_twice(x: Any, n: Any) -> Any:
    rows = cg.TensorArray(np.float64, size=4, element_shape=())
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1].write(c[0] % 3, x[0])), (0, rows))[1].stack()


def too_many(x: Any, n: Any) -> Any:
    return cg.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + x[0]), (0, 0.0), maximum_iterations=4, name="short"
    )[1]


def too_many_inside(x: Any, n: Any) -> Any:
    def body(c: Any) -> Any:
        i, y = c
        inner = cg.while_loop(lambda d: d[0] < i, lambda d: (d[0] + 1, d[1] + x[0]), (0, y), maximum_iterations=4)
        return i + 1, inner[1]

    return cg.while_loop(lambda c: c[0] < n, body, (0, 0.0))[1]


FAILING = (
    read,
    read_a_row,
    read_below,
    write,
    gather,
    read_in_a_branch,
    read_in_an_inner_loop,
    read_an_array,
    write_an_array,
    write_twice,
    too_many,
    too_many_inside,
)


def error_of(engine: str, graph: Graph, arguments: Sequence[Any]) -> CtrlgradError:
    with pytest.raises(CtrlgradError) as caught:
        run_on(engine, graph, arguments)
    return caught.value


def assert_same_error(graph: Graph, arguments: Sequence[Any], engine: str = "native") -> None:
    found, expected = error_of(engine, graph, arguments), error_of("reference", graph, arguments)
    assert str(found) == str(expected)
    assert type(found) is type(expected)
    assert "test_driver.py" in str(found)


@pytest.mark.parametrize("function", FAILING)
@pytest.mark.parametrize("chunks", ["long", "short"])
def test_errors(function: Callable[..., Any], chunks: str, request: pytest.FixtureRequest, plans: Any) -> None:
    if chunks == "short":
        request.getfixturevalue("small_chunks")
    x = np.linspace(0.1, 0.9, 8)
    assert_same_error(graph_of(function, x, 3), [x, np.int64(20)])
    assert plans.native and not plans.reasons


@pytest.mark.parametrize("function", FAILING)
def test_errors_of_a_loop_that_is_differentiated(function: Callable[..., Any]) -> None:
    x = np.linspace(0.1, 0.9, 8)
    gradient = graph_of(cg.grad(lambda x, n: np.sum(np.sin(function(x, n)))), x, 3)
    assert_same_error(gradient, [x, np.int64(20)])


def test_errors_name_the_iteration_where_a_loop_moves_to_machine_code_on_its_way(
    monkeypatch: pytest.MonkeyPatch, plans: Any
) -> None:
    """Which is looked at every 8 iterations."""
    monkeypatch.setattr(auto, "LOOK", 1e-9)
    monkeypatch.setattr(auto, "WORTH", 0.0)
    begun = []
    run = loop.Plan.run
    monkeypatch.setattr(loop.Plan, "run", lambda plan, *given: (begun.append(given[-1]), run(plan, *given))[1])
    x = np.linspace(0.1, 0.9, 11)
    graph = graph_of(read, x, 3)
    assert_same_error(graph, [x, np.int64(20)], "auto")
    assert begun == [8] and plans.native


@pytest.mark.parametrize("count", [0, 3, 4])
def test_the_maximum_is_no_error_where_the_condition_is_false_there(count: int, small_chunks: None) -> None:
    x = np.linspace(0.1, 0.9, 8)
    assert_agrees(graph_of(too_many, x, 3), [x, np.int64(count)])


@pytest.mark.parametrize("length", [1, 4, 256, 257])
def test_the_maximum_is_exact(length: int, plans: Any) -> None:
    def program(n: Any) -> Any:
        return cg.while_loop(lambda i: i < n, lambda i: i + 1, 0, maximum_iterations=length)

    graph = graph_of(program, 3)
    assert run_on("native", graph, [np.int64(length)]) == [length]
    with pytest.raises(MaximumIterationsError, match=f"after maximum_iterations={length} iterations"):
        run_on("native", graph, [np.int64(length + 1)])
    assert plans.native


# Interruption and threads.


def test_ctrl_c_between_chunks_leaves_everything_as_it_was(small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = BY_NAME["lstm"]
    graph, leaves = program.traced_again(1), leaves_of(program)
    before = [x.copy() for x in leaves]
    expected = run_on("native", graph, leaves)
    call, calls = Execution._call, []

    def interrupted(self: Any) -> None:
        call(self)
        calls.append(self)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Execution, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_on("native", graph, leaves)
    for x, old in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(x, old)
    for a, b in zip(run_on("native", graph, leaves), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_threads_compiled(plans: Any) -> None:
    """Several threads run one compiled loop at once, each on arguments of its own."""
    function = cg.function(cg.grad(lambda x: np.sum(doubling(x, 300))), engine="native")
    points = [np.linspace(0.1, 0.9, 5) + k / 50 for k in range(24)]
    expected = [function(x) for x in points]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(function, points * 4))
    for a, b in zip(found, expected * 4, strict=True):
        np.testing.assert_array_equal(a, b)
    assert plans.native


def test_plans_are_kept_for_the_sizes_met_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MOST_PLANS", 3)
    specs = (cg.TensorSpec((None,), "float64"),)
    graph = cg.function(lambda x: cg.fori_loop(0, 2, lambda i, c: c * 2, x), signature=specs).graph(np.ones(3))
    (node,) = [node for node in graph.nodes if node.op.name == "while"]
    native = loop.NativeLoop(node)

    def plan(length: int) -> Any:
        values = {"float64": np.ones(length), "int64": np.int64(2)}
        return native.plan([values[v.tensor.dtype.name] for v in node.operands])

    first = plan(2)
    for length in range(3, 40):
        plan(length)
        assert plan(2) is first
        assert len(native.plans) <= 3
