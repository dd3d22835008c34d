"""The tool for GradBench: its protocol, and every module's values and derivatives."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gradbench import ba, gmm, ht
from benchmarks.gradbench.__main__ import MODULES, Tool, module_of
from benchmarks.gradbench.inputs import SIZES, make
from benchmarks.gradbench.with_ctrlgrad import evaluation

ROOT = Path(__file__).resolve().parent.parent.parent
FUNCTIONS = [(m, f) for m in MODULES if m in SIZES for f in module_of(m).functions]
RUNS = {"min_runs": 2, "min_seconds": 0}


def value(module: str, function: str, given: Any) -> Any:
    found = module_of(module).functions[function]
    return found.finish(found.compute(*found.prepare(given)))


def numbers(module: str, function: str) -> np.ndarray:
    program = evaluation(module, function, tiny=True)
    return program.read(program.step())["numbers"]


def test_the_protocol_over_pipes() -> None:
    messages = [
        {"id": 0, "kind": "start", "eval": "hello"},
        {"id": 1, "kind": "define", "module": "hello"},
        {"id": 2, "kind": "evaluate", "module": "hello", "function": "square", "input": 3.0},
        {"id": 3, "kind": "evaluate", "module": "hello", "function": "double", "input": 9.0},
        {"id": 4, "kind": "analysis", "of": 3, "valid": True},
        {"id": 5, "kind": "define", "module": "no such module"},
    ]
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.gradbench"],
        input="".join(json.dumps(m) + "\n" for m in messages),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    assert [a["id"] for a in answers] == [0, 1, 2, 3, 4, 5]
    start, define, square, double, analysis, unknown = answers
    assert start["tool"] == "ctrlgrad"
    assert define["success"] and [t["name"] for t in define["timings"]] == ["compile square", "compile double"]
    assert (square["output"], double["output"]) == (9.0, 18.0)
    assert [t["name"] for t in double["timings"]] == ["evaluate"]
    assert analysis == {"id": 4}
    assert not unknown["success"] and "there are ba, det" in unknown["error"]


def test_a_session_of_every_module_over_pipes() -> None:
    """As GradBench's evals hold it: a description beside an input that says how often to run, and what became of it."""
    messages: list[dict[str, Any]] = [{"kind": "start", "eval": "all of them", "config": {}}]
    for module in MODULES:
        messages.append({"kind": "define", "module": module})
        given = make(module, SIZES[module][1]) | RUNS if module in SIZES else 3.0
        for function in module_of(module).functions:
            shared = {"module": module, "function": function, "description": "small"}
            messages.append({"kind": "evaluate", "input": given} | shared)
            messages.append({"kind": "analysis", "of": len(messages) - 1, "valid": True})
    messages = [{"id": number} | message for number, message in enumerate(messages)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gradbench"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as tool:
        assert tool.stdin is not None and tool.stdout is not None
        for message in messages:
            # The other end waits for an answer before it goes on.
            tool.stdin.write(json.dumps(message) + "\n")
            tool.stdin.flush()
            answer = json.loads(tool.stdout.readline())
            assert answer["id"] == message["id"]
            if message["kind"] in ("define", "evaluate"):
                assert answer["success"], answer["error"]
                assert all(isinstance(timing["nanoseconds"], int) for timing in answer["timings"])
            if message["kind"] == "evaluate":
                names = [timing["name"] for timing in answer["timings"]]
                assert names == (["evaluate"] if message["module"] == "hello" else ["warmup", "evaluate", "evaluate"])
                assert answer["output"] == value(message["module"], message["function"], message["input"])
        tool.stdin.close()
        assert tool.stdout.read() == "" and tool.wait() == 0


def test_runs_are_timed_one_by_one_after_one_that_may_compile() -> None:
    tool = Tool()
    tool.answer({"id": 0, "kind": "define", "module": "lse"})
    given = {"x": [0.0, math.log(3.0)], "min_runs": 3, "min_seconds": 0}
    answer = tool.answer({"id": 1, "kind": "evaluate", "module": "lse", "function": "gradient", "input": given})
    assert [t["name"] for t in answer["timings"]] == ["warmup", "evaluate", "evaluate", "evaluate"]
    np.testing.assert_allclose(answer["output"], [0.25, 0.75])


def test_an_input_that_fails_is_answered() -> None:
    tool = Tool()
    tool.answer({"id": 0, "kind": "define", "module": "hello"})
    answer = tool.answer({"id": 1, "kind": "evaluate", "module": "hello", "function": "cube", "input": 1.0})
    assert not answer["success"] and "KeyError" in answer["error"]


@pytest.mark.parametrize("module", ["ode", "llsq", "lstm", "gmm"])
def test_another_size_needs_no_other_graph(module: str) -> None:
    made, small, _ = SIZES[module]
    for name in module_of(module).functions:
        value(module, name, module_of(module).example)
    for name in module_of(module).functions:
        value(module, name, made(**small))
    computed = [f.compute for f in module_of(module).functions.values()]
    assert [f.traces for f in ([gmm.VALUE, gmm.GRADIENT] if module == "gmm" else computed)] == [1, 1]


@pytest.mark.parametrize(("module", "function"), FUNCTIONS, ids=lambda x: x)
def test_values_and_derivatives_are_those_of_jax(module: str, function: str) -> None:
    with_jax = pytest.importorskip("benchmarks.gradbench.with_jax", reason="JAX is not installed")
    found = numbers(module, function)
    if (module, function) not in with_jax.FUNCTIONS:
        # JAX reverses no loop of unknown length: forward mode finds the same.
        assert module in ("particle", "saddle") and function[0] == "r"
        function = "f" + function[1]
    program = with_jax.evaluation(module, function, tiny=True)
    np.testing.assert_allclose(found, program.read(program.step())["numbers"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("module", "primal", "derivative", "key"),
    [
        ("ode", "primal", "gradient", "x"),
        ("llsq", "primal", "gradient", "x"),
        ("lse", "primal", "gradient", "x"),
        ("det", "primal", "gradient", "A"),
    ],
)
def test_gradients_are_those_of_finite_differences(module: str, primal: str, derivative: str, key: str) -> None:
    given = make(module, SIZES[module][1])
    gradient = np.asarray(value(module, derivative, given))
    step = 1e-5
    for k in range(len(given[key])):
        sides = []
        for sign in (1.0, -1.0):
            moved = [x + sign * step * (i == k) for i, x in enumerate(given[key])]
            sides.append(np.ravel(value(module, primal, given | {key: moved}))[-1])
        assert gradient[k] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-6, abs=1e-8)


def test_the_gradient_of_the_lstm_is_that_of_finite_differences() -> None:
    given = make("lstm", SIZES["lstm"][1])
    rng = np.random.default_rng(1)
    directions = {name: rng.normal(size=np.shape(given[name])) for name in ("main_params", "extra_params")}
    gradient = np.asarray(value("lstm", "jacobian", given))
    expected = gradient @ np.concatenate([d.ravel() for d in directions.values()])
    step = 1e-6
    up, down = (
        value("lstm", "objective", given | {n: (np.asarray(given[n]) + s * d).tolist() for n, d in directions.items()})
        for s in (step, -step)
    )
    assert (up - down) / (2 * step) == pytest.approx(expected, rel=1e-7)


def test_every_mode_finds_the_control_and_the_saddle_point() -> None:
    for mode in ("ff", "fr", "rf", "rr"):
        assert value("particle", mode, {"w": 0.0}) == pytest.approx(0.20719187464861, rel=1e-9)
        np.testing.assert_allclose(value("saddle", mode, {"start": [1.0, 1.0]}), [8.2463248261403e-06] * 4, rtol=1e-9)


def test_a_hand_without_coordinates_of_its_own() -> None:
    given = ht.example(us=False)
    error, jacobian = value("ht", "objective", given), np.asarray(value("ht", "jacobian", given))
    assert jacobian.shape == (len(error), ht.THETA)
    step = 1e-6
    for k in (0, 7, 8, 25):
        sides = [
            np.asarray(value("ht", "objective", given | {"theta": list(theta)}))
            for theta in (given["theta"] + s * step * np.eye(ht.THETA)[k] for s in (1.0, -1.0))
        ]
        np.testing.assert_allclose((sides[0] - sides[1]) / (2 * step), jacobian[:, k], rtol=1e-6, atol=1e-7)


def test_the_sparse_jacobian_of_bundle_adjustment_says_where_its_values_belong() -> None:
    given = ba.prepare(ba.MODULE.example)
    cameras, points, weights = given[:3]
    sparse = ba.jacobian(*given)
    sizes = [cameras.size, points.size, weights.size]
    dense = np.zeros((3 * len(weights), sum(sizes)))
    for row in range(len(dense)):
        entries = slice(sparse.rows[row], sparse.rows[row + 1])
        dense[row, sparse.columns[entries]] = sparse.values[entries]
    direction, step = np.random.default_rng(0).normal(size=sum(sizes)), 1e-6

    def moved(by: float) -> np.ndarray:
        parts = np.split(by * direction, np.cumsum(sizes)[:2])
        free = [x + part.reshape(x.shape) for x, part in zip(given[:3], parts, strict=True)]
        of_features, of_weights = ba.ERRORS(*free, *given[3:])
        return np.append(of_features.ravel(), of_weights)

    np.testing.assert_allclose((moved(step) - moved(-step)) / (2 * step), dense @ direction, rtol=1e-6, atol=1e-8)
    shown = ba.jacobian_as_json(sparse)
    assert shown["vals"][:-1] == sparse.values[:30].tolist() and shown["vals"][-1] == sparse.values[-1]
    assert shown["cols"][:15] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 22, 23, 24, 31]


def test_the_constant_of_the_mixture_is_the_log_of_the_wishart_density() -> None:
    # One component in one dimension: a gamma density.
    gamma, m = 0.7, 2
    assert gmm.prior_constant(1, 1, gamma, m) == pytest.approx(
        (m + 2) * math.log(gamma / math.sqrt(2.0)) - math.lgamma(0.5 * (m + 2))
    )


def test_modules_are_all_there() -> None:
    assert set(SIZES) | {"hello"} == set(MODULES)
    for name in MODULES:
        assert value(name, next(iter(module_of(name).functions)), module_of(name).example) is not None


def test_a_hand_has_the_fields_that_tools_read() -> None:
    """C++ tools stop at an input that lacks one, though nothing here reads all of them."""
    model = ht.example()["data"]["model"]
    lists = ("bone_names", "parents", "base_relatives", "inverse_base_absolutes")
    assert {len(model[name]) for name in lists} == {model["bone_count"]}
    assert set(model) == {*lists, "bone_count", "base_positions", "weights", "triangles", "is_mirrored"}
