"""Nodes that become one kernel, and the places of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn
from instruments.stand_in_runs import launching_of, on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, place
from ctrlgrad.engines.cuda.regions import LIMITS, RegionPlan, node_of
from ctrlgrad.ir import Graph
from ctrlgrad.plan.model import Kernel, Step


def order_of(graph: Graph) -> list[str]:
    """The ops in the order of execution, those of a kernel in brackets."""
    places = place(graph, [HOST if v.tensor.rank == 0 else DEVICE for v in graph.inputs])
    return [_text(step) for step in RegionPlan(graph, places).steps]


def _text(step: Step) -> str:
    if isinstance(step, Kernel):
        return f"[{' '.join(node.op.name for node in step.nodes)}]"
    return node_of(step).op.name


def test_a_group_goes_on_past_what_does_not_need_it() -> None:
    def fn(x: Any, a: Any) -> Any:
        y = np.tanh(x)
        return np.sin(y), a @ a, y * x

    graph = cg.function(fn).graph(np.ones(3), np.ones((2, 2)))
    assert order_of(graph) == ["matmul", "[tanh sin multiply]"]


def test_values_read_outside_close_a_group() -> None:
    def fn(x: Any) -> Any:
        y = np.tanh(x)
        return (y - np.sum(y)) * 2.0

    assert order_of(cg.function(fn).graph(np.ones(3))) == ["[tanh sum]", "[subtract multiply]"]


def test_shapes_have_groups_of_their_own() -> None:
    def fn(x: Any, y: Any) -> Any:
        a, b = np.tanh(x), np.sin(y)
        return a * 2.0, b * 3.0, np.exp(a), np.exp(b)

    graph = cg.function(fn).graph(np.ones(3), np.ones((2, 3)))
    assert order_of(graph) == ["[tanh multiply exp]", "[sin multiply exp]"]


def test_an_update_in_place_comes_after_the_kernels_that_read() -> None:
    def fn(x: Any) -> Any:
        x = x * 2.0
        y = np.tanh(x)
        return x.at[0].set(0.0), y

    assert order_of(cg.function(fn).graph(np.ones(3))) == ["[multiply tanh]", "setitem"]


def test_parts_are_written_where_they_are_joined() -> None:
    def fn(x: Any) -> Any:
        return cnp.concat([np.tanh(x), np.sin(x)], axis=1), np.cos(x)

    x = np.arange(6.0).reshape(2, 3)
    graph = cg.function(fn).graph(x)
    assert order_of(graph) == ["[tanh sin concat cos]"]
    ran = on_stand_in(graph, [x])
    assert_same(ran.results, on_reference(graph, [x]))
    assert ran.counts.launches == 2  # with the copy of x to the device


def test_a_product_that_is_added() -> None:
    def fn(a: Any, b: Any, c: Any) -> Any:
        return c + a @ b, np.tanh(a @ c + b)

    args = [np.random.default_rng(k).normal(size=(3, 3)) for k in range(3)]
    graph = cg.function(fn).graph(*args)
    # The sum that a kernel reads stays in it.
    assert order_of(graph) == ["add", "matmul", "[add tanh]"]
    ran = on_stand_in(graph, args)
    assert_same(ran.results, on_reference(graph, args))
    # The sum is not made in an argument: that is copied.
    assert (ran.counts.products, ran.counts.calls) == (2, 1)


def rotated(z: Any, angle: Any) -> Any:
    turned = z * np.exp(1j * angle) + (2.0 - 0.5j)
    return cnp.real(turned) + cnp.imag(turned), np.conj(turned)


def halved(x: Any, scale: Any) -> Any:
    y = np.tanh(x * scale) + np.float16(0.1)
    return y, y.astype(np.float32) * 3.0, y > 0


@pytest.mark.parametrize("angle", [np.float64(0.3), np.complex128(0.2 - 0.7j)])
def test_complex_numbers_are_in_kernels_part_by_part(angle: Any) -> None:
    z = np.array([1 + 2j, -0.5j, 3.0])
    graph = cg.function(rotated).graph(z, angle)
    ran = on_stand_in(graph, [z, angle])
    assert_same(ran.results, on_reference(graph, [z, angle]))
    assert ran.counts.kernels == 1 and ran.counts.launches == 2  # with the copy of z to the device


def test_half_floats_are_in_kernels() -> None:
    """Each operation is rounded to half, as in NumPy."""
    x, scale = np.linspace(-2, 2, 9).astype(np.float16), np.float16(1.3)
    graph = cg.function(halved).graph(x, scale)
    library = StandIn()
    ran = on_stand_in(graph, [x, scale], library=library)
    assert_same(ran.results, on_reference(graph, [x, scale]))
    assert ran.counts.kernels == 1 and ran.counts.launches == 2
    (text,) = library.texts
    assert "float16 v0 = float32(a0) * float32(s0);" in str(text)


def test_pushed_carries_are_written_once() -> None:
    """The carry is read in the stack's slot."""

    def loss(x: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, x: np.tanh(x), x).sum()

    x, library = np.arange(3.0), StandIn()
    graph = cg.function(cg.grad(loss)).graph(x)
    ran = on_stand_in(graph, [x], library=library)
    assert_same(ran.results, on_reference(graph, [x]))
    assert [len(text.outputs) for text in library.texts if "tanh" in text.operation] == [1]


def test_sizes_that_turn_out_different() -> None:
    """The sizes at run time decide whether nodes of unknown sizes form one kernel."""

    def fn(x: Any, y: Any) -> Any:
        z = np.tanh(y)
        return x * 2.0 + z, z * 3.0

    spec = cg.TensorSpec((None,))
    graph = cg.function(fn, signature=(spec, spec)).graph(spec, spec)
    kernels = []
    for sizes in ((5, 5), (5, 1), (1, 5)):
        args = [np.arange(1.0, n + 1.0) for n in sizes]
        ran = on_stand_in(graph, args)
        assert_same(ran.results, on_reference(graph, args))
        kernels.append(ran.counts.kernels)
    assert kernels[0] == 1 and kernels[1] > 1 and kernels[2] > 1


@pytest.mark.parametrize("sizes", [(5, 5), (5, 1)])
def test_loops_over_unknown_sizes_are_launch_lists(sizes: tuple[int, int]) -> None:
    """The list of a run has the sizes of the run, equal or not."""

    def fn(x: Any, y: Any) -> Any:
        return cg.fori_loop(0, 6, lambda i, x: np.tanh(x) * 0.5 + np.sin(y) * i, x)

    spec = cg.TensorSpec((None,))
    graph = cg.function(fn, signature=(spec, spec)).graph(spec, spec)
    args = [np.arange(1.0, n + 1.0) for n in sizes]
    ran = on_stand_in(graph, args)
    assert_same(ran.results, on_reference(graph, args))
    said = launching_of(graph, args)
    assert said and all(text.startswith("from a list") for text in said)


def test_sizes_that_do_not_fit_are_the_nodes_error() -> None:
    spec = cg.TensorSpec((None,))
    graph = cg.function(lambda x, y: np.tanh(x) + y, signature=(spec, spec)).graph(spec, spec)
    for engine in (on_reference, on_stand_in):
        try:
            engine(graph, [np.ones(2), np.ones(3)])
        except cg.CtrlgradError as error:
            assert error.problem.startswith("add: the operands' shapes do not broadcast")
        else:
            raise AssertionError("no error")


def test_an_extreme_of_no_elements_is_the_nodes_error() -> None:
    """Of several reductions in one kernel the error names the one without a result, and its line."""

    def fn(x: Any) -> Any:
        largest = cnp.max(x)
        return largest, cnp.sum(x)

    graph = cg.function(fn, signature=(cg.TensorSpec((None,)),)).graph(cg.TensorSpec((None,)))
    told = []
    for engine in (on_reference, on_stand_in):
        with pytest.raises(cg.CtrlgradError) as error:
            engine(graph, [np.zeros(0)])
        told.append((type(error.value), str(error.value)))
    assert told[0] == told[1] and told[0][1].startswith("max: no elements along a reduced axis")


def test_more_than_a_kernel_takes() -> None:
    """Many operands are several kernels."""

    def fn(xs: list[Any]) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = total + np.tanh(x)
        return total

    xs = [np.full(3, float(k)) for k in range(60)]
    graph = cg.function(fn).graph(xs)
    ran = on_stand_in(graph, xs)
    assert_same(ran.results, on_reference(graph, xs))
    assert 2 <= ran.counts.kernels <= 4


def many_operands(x: Any, others: list[Any]) -> Any:
    """23 operands, and then a node with two more: 25 at once would be too many."""
    total = x
    for other in others[:22]:
        total = total + other
    return np.where(others[22] > 0.0, total, others[23]) if len(others) > 22 else total


def many_results(x: Any, others: list[Any]) -> Any:
    """Each of 40 values is a result."""
    return [x * float(k) for k in range(40)]


def many_writes(x: Any, others: list[Any]) -> Any:
    """20 pushes and then 8 parts of one array."""
    array = cg.TensorArray("float64", element_shape=(3,))
    parts = [x * float(k) for k in range(20)]
    for k, part in enumerate(parts):
        array = array.write(k, part)
    return array.stack(), cnp.concat([np.sin(part) for part in parts[:8]])


@pytest.mark.parametrize("function", [many_operands, many_results, many_writes])
def test_no_kernel_has_more_arguments_than_fit(function: Callable[..., Any]) -> None:
    x, others = np.arange(3.0), [np.full(3, float(k)) for k in range(24)]
    graph = cg.function(function).graph(x, others)
    leaves = [x, *others]
    library = StandIn()
    ran = on_stand_in(graph, leaves, library=library)
    assert_same(ran.results, on_reference(graph, leaves))
    assert ran.counts.kernels == 2
    for text in library.texts:
        assert len(text.inputs) <= LIMITS.reads and len(text.outputs) <= LIMITS.writes


def test_equal_groups_share_a_kernel() -> None:
    def fn(x: Any) -> Any:
        y = np.tanh(x) * 2.0
        y = np.tanh(y + np.sum(y)) * 2.0
        return np.tanh(y + np.sum(y)) * 2.0

    library = StandIn()
    ran = on_stand_in(cg.function(fn).graph(np.ones(3)), [np.ones(3)], library=library)
    assert (ran.counts.kernels, len(library.texts), len(library.reductions)) == (3, 1, 2)


def test_the_report() -> None:
    def fn(x: Any) -> Any:
        x = cnp.linalg.solve(np.eye(3), x[:, None])[:, 0]
        return cg.while_loop(lambda x: np.sum(x) > 1.0, lambda x: x * 0.5, x)

    graph = optimised_graph(cg.function(fn).graph(np.ones(3)), is_for_gpu=True)
    report = explain_on(StandIn(), graph, [np.ones(3)])
    text = str(report)
    assert "through the host, for want of a device kernel: solve" in text
    assert "cuda, its predicate is read before each iteration" in text
    assert text.startswith(f"one run: {report.counts['launches']} launches, ")
    assert "float64 v0 = a0 * float64(0.5);" in text
    assert "reduced from r0 = float64(0.0) to (float64 q0) by\n" in text
