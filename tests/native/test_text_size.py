"""Size of the text for LLVM, whose compile time grows with it: no redundant lines, and repeated code only once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine, target
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.runtime import Frame
from ctrlgrad.plan.decisions import with_vectors
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Plan, Pop, Push

RNG = np.random.default_rng(11)


def plan_of(fn: Callable[..., Any], *args: Any) -> Plan:
    graph = optimised_graph(cg.function(fn).graph(*args))
    return engine.plan_of(graph, engine.shapes_of(graph, args))


def text_of(plan: Plan) -> str:
    """The text for a machine with vectors of 32 bytes."""
    return PlanWriter(with_vectors(plan, 32)).function("plan")


def lstm(wx: Any, wh: Any, b: Any, xs: Any) -> Any:
    def body(t: Any, carry: Any) -> Any:
        h, c, total = carry
        i, f, g, o = cnp.split(xs[t] @ wx + h @ wh + b, 4, axis=1)
        c = cnp.sigmoid(f) * c + cnp.sigmoid(i) * cnp.tanh(g)
        h = cnp.sigmoid(o) * cnp.tanh(c)
        return h, c, total + cnp.sum(h * h)

    zeros = np.zeros((xs.shape[1], wh.shape[0]))
    return cg.fori_loop(0, xs.shape[0], body, (zeros, zeros, 0.0))[2]


def layers(a: Any, w: Any) -> Any:
    """Two layers that differ only in their arrays."""
    return cnp.tanh(cnp.tanh(a @ w) @ w)


def saving(x: Any, w: Any) -> Any:
    """A loop that saves a row and its product with a matrix in each iteration."""
    return cnp.sum(cg.fori_loop(0, 6, lambda _, x: cnp.sin(cnp.tanh(x) @ w), x))


A, W = RNG.standard_normal((9, 24)), RNG.standard_normal((24, 24)) / 5


def test_the_gradient_of_an_lstm_takes_few_lines() -> None:
    wx, wh, b, xs = (RNG.standard_normal(shape) for shape in ((24, 128), (32, 128), (128,), (10, 16, 24)))
    text = text_of(plan_of(cg.grad(lstm, argnums=(0, 1, 2)), wx, wh, b, xs))
    # 1,757 lines and 229 blocks when this was written; a quarter more would cost a quarter of LLVM's time.
    assert text.count("\n") < 2200
    assert len(re.findall(r"^[\w.]+:$", text, re.MULTILINE)) < 285


def test_loops_leave_nothing_to_strength_reduction() -> None:
    """LLVM's loop strength reduction, its costliest search here, finds nothing to change in loops with many
    addresses."""
    x, w = RNG.standard_normal((5, 9, 33)), RNG.standard_normal((9, 33))
    fn = lambda x, w: cnp.sum(cg.fori_loop(0, 5, lambda t, c: cnp.tanh(c + x[t]) * w, w) + x[:, 3, 0][:, None, None])
    module = binding.parse_assembly(text_of(plan_of(cg.grad(fn), x, w)))
    target.host()
    machine = binding.Target.from_default_triple().create_target_machine()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options())
    prepare, reduce = binding.create_new_module_pass_manager(), binding.create_new_module_pass_manager()
    prepare.add_sroa_pass()
    prepare.add_instruction_combine_pass()
    prepare.add_simplify_cfg_pass()
    prepare.add_loop_simplify_pass()
    prepare.add_lcssa_pass()
    prepare.run(module, builder)
    before = str(module)
    reduce.add_loop_strength_reduce_pass()
    reduce.run(module, builder)
    assert before.count(" phi ") > 9 and str(module) == before


def test_bools_and_integers_are_reduced_by_no_shuffles() -> None:
    n, x = RNG.integers(0, 9, 64), RNG.random(64) < 0.5
    text = text_of(plan_of(lambda n, x: (cnp.any(x), cnp.all(x), cnp.sum(n), cnp.max(n), cnp.min(n)), n, x))
    assert "shufflevector" not in text and text.count("bitcast") == 2
    assert len(re.findall(r"= call i64 @llvm.vector.reduce.(add|smax|smin)", text)) == 3


def test_words_of_stacks_are_near_only_where_loops_use_them() -> None:
    """Words of stacks are cached in registers only in functions whose loops use them, since each request reloads
    them."""

    def branch(xs: Any) -> Any:
        return cnp.sum(cg.vmap(lambda x: cg.cond(x > 0.5, cnp.sin, lambda x: 0.5 * x * x, x))(xs))

    def loop(xs: Any) -> Any:
        return cg.while_loop(lambda x: x < 100.0, lambda x: x * x + 1.0, xs[0])

    kept = {}
    for name, fn in (("branch", branch), ("loop", loop)):
        plan = plan_of(cg.grad(fn), np.linspace(0.0, 1.0, 16))
        assert () in plan.rows.values()
        kept[name] = len(plan.near)
    assert kept["branch"] == 0 < kept["loop"]


@pytest.mark.parametrize("n", [16, 32, 48, 64, 40, 33])
def test_a_loop_without_iterations_is_not_written(n: int) -> None:
    x = RNG.standard_normal((9, n))
    plan = plan_of(lambda x: (cnp.sum(x * x, axis=1), cnp.max(x, axis=1)), x)
    text = text_of(plan)
    loops = re.findall(
        r"store i64 (\d+), ptr (%e\d+)\n  br .*\n.*\n  (%\d+) = load i64, ptr \2\n.*slt i64 \3, (\d+)", text
    )
    assert loops and all(int(start) < int(end) for start, _, _, end in loops)


def test_an_address_is_computed_once_in_a_turn() -> None:
    """An address is computed once an iteration, for a vector's load and store and for arrays of one shape."""
    plan = plan_of(lambda x, y: cg.fori_loop(0, 3, lambda _, x: x * y + x / y - y, x), A[:, :23], A[:, 1:].copy())
    for block in re.split(r"^[\w.]+:$", text_of(plan), flags=re.MULTILINE):
        addresses = re.findall(r"= (getelementptr (?:double|float), .*)$", block, re.MULTILINE)
        assert len(addresses) == len(set(addresses))


def test_kernels_that_repeat_are_one_function() -> None:
    text = text_of(plan_of(layers, A, W))
    assert len(re.findall(r"^define internal void @nest", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^  call void @nest0\(", text, re.MULTILINE)) == 2
    expected = np.tanh(np.tanh(A @ W) @ W)
    np.testing.assert_allclose(cg.function(layers, engine="native")(A, W), expected, rtol=1e-12)


def test_a_kernel_that_is_alone_stays_where_it_is() -> None:
    assert "@nest" not in text_of(plan_of(lambda a, w: cnp.tanh(a @ w) @ w, A, W))


def test_kernels_that_may_fail_or_are_small_stay_where_they_are() -> None:
    def reads(x: Any, at: Any) -> Any:
        first = x[at] @ W
        return first[at] @ W

    at = np.arange(9)
    assert "@nest" not in text_of(plan_of(reads, A, at))
    small = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 3))
    assert "@nest" not in text_of(plan_of(layers, *small))


def test_pushes_and_pops_of_rows_are_calls() -> None:
    plan = plan_of(cg.grad(saving), A, W)
    steps, text = list(walk(plan.body)), text_of(plan)
    pushes, pops = (sum(isinstance(step, kind) for step in steps) for kind in (Push, Pop))
    assert pushes and pops
    assert text.count("call ptr @room2(") == pushes
    assert text.count("call ptr @last(") == pops
    assert text.count("define internal ptr @room2(") == text.count("define internal ptr @last(") == 1


def test_pushes_and_pops_of_numbers_are_written_where_they_are() -> None:
    """Pushes and pops of numbers are inlined, because their words are kept in registers."""
    text = text_of(plan_of(cg.grad(lambda x: cg.while_loop(lambda x: x < 9.0, lambda x: x * x, x)), 1.1))
    assert "@room" not in text and "@last" not in text and "@begin" not in text


@pytest.mark.parametrize("request_", [Request.NEW_STACK, Request.FULL, Request.GROW_SCRATCH])
def test_an_error_in_what_shared_code_asks_for_ends_the_run(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wanted(Exception):
        pass

    serve, fails = Frame.serve, True

    def failing(frame: Frame, request: int, a: int, b: int) -> None:
        if request == request_ and fails:
            raise Wanted
        serve(frame, request, a, b)

    monkeypatch.setattr(Frame, "serve", failing)
    graph = optimised_graph(cg.function(cg.grad(saving)).graph(A, W))
    patterns = engine.Patterns(graph)
    with pytest.raises(Wanted):
        patterns.run([A, W])
    fails = False
    (found,) = patterns.run([A, W])
    np.testing.assert_allclose(found, cg.function(cg.grad(saving), engine="reference")(A, W), rtol=1e-10)


EMPTY: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rows summed": (lambda x: cnp.sum(cnp.sin(x), axis=0), (0,)),
    "columns summed": (lambda x: cnp.sum(x, axis=1), (0,)),
    "elements": (lambda x: cnp.sin(x).T * 2, (0, 3)),
    "differentiated": (lambda x: cg.grad(lambda x: cnp.sum(cnp.sum(x * x, axis=0)))(x), (0,)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_long_axis_beside_one_of_no_elements_is_a_loop(name: str) -> None:
    """A long axis beside an empty one is a loop. Found: each position was printed, 2,800,000 of them, which took
    minutes."""
    fn, rest = EMPTY[name]
    few, many = (text_of(plan_of(fn, np.zeros((n, *rest)))) for n in (300, 3000))
    assert len(many) < len(few) + 100
    assert cg.function(fn, engine="native")(np.zeros((3000, *rest))).shape == np.shape(fn(np.zeros((3000, *rest))))
