"""Random programs: the reference engine, a plain twin, all modes, finite differences and JAX agree on them.

CTRLGRAD_RANDOM_PROGRAMS says how many (24), CTRLGRAD_RANDOM_PROGRAMS_JAX of how many JAX judges one (8; 0 for none);
`random_programs.checks` says what is judged of which share. `python -m tests.random_programs` runs any number outside
of pytest, on any engine; each engine's tests run some of their own.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.plan_machine import RunEndedError
from random_programs.campaign import Batch, run_batch
from random_programs.checks import SECOND, Rotation, Share, examine, tells
from random_programs.choices import Choices, shrunk
from random_programs.engines import RUNNERS, Settings
from random_programs.expected import ProgramMismatch, UnsuitableError, describe
from random_programs.generate import generate, write
from random_programs.kinds import SCALAR, Variable
from random_programs.program import Argument, Block, Carried, Line, Program, Structure, While
from random_programs.python_source import python_source
from random_programs.source import plain_source, traced_source
from random_programs.writer import FEATURES

import ctrlgrad as cg
from ctrlgrad.errors import ExecutionError
from ctrlgrad.gradients.table import ELEMENTWISE, REVERSE, ReverseRule
from ctrlgrad.ops.term import Term, emit
from ctrlgrad.verify.check import Slope

PROGRAMS = int(os.environ.get("CTRLGRAD_RANDOM_PROGRAMS", "24"))
JAX_EVERY = int(os.environ.get("CTRLGRAD_RANDOM_PROGRAMS_JAX", "8"))
PER_BATCH = 12

CONSTRUCTS = {"while_loop", "fori_loop", "scan", "scan reversed", "map", "foldl", "foldr", "cond", "switch", "case"}
CALLS = {
    "call plain",
    "call function",
    "call checkpoint",
    "call custom_jvp",
    "call custom_vjp",
    "call vmap",
    "call grad",
    "call jvp",
    "call linearize",
    *(f"rule: {way}" for way in ("later", "kept", "pushed", "linearized", "pulled twice")),
}
BRANCHES = {"switch of one branch", "empty branch", "identical branches", "constant branch"}
CARRIES = {
    "carry passed through",
    "carry computed first",
    "bare carry: at set",
    "bare carry: at add",
    "bare carry: updated by set",
    "bare carry: updated by add",
    "bare carry: row",
    "bare carry: take",
    "bare carry: take_along_axis",
    "bare carry: write",
    "bare carry: solve",
    "bare carry: product",
    "bare carry: branched on",
    "bare carry: captured by a loop",
    "bare carry: carried by a loop",
}
DTYPES = {
    "int8 arithmetic",
    "uint8 arithmetic",
    "int32 arithmetic",
    "bool arithmetic",
    "float16 arithmetic",
    "complex64 arithmetic",
    "complex128 arithmetic",
    "sum in a dtype",
    "at set of another dtype",
}
CHANCES = {"key", "split", "fold_in", "random numbers", "random integer"}
ARRAYS = {"new array", "unstack", "push", "write", "read", "stack of an array"}
# Lines that hold a construct of their own.
COMPOUNDS = {
    *(f"written once: {form}" for form in ("stack", "gather", "read", "concat", "carry")),
    *(f"ragged: {form}" for form in ("concat", "read", "carry")),
    *(f"mask: {form}" for form in ("elements", "rows", "places", "set")),
    *(f"beyond: {mode}" for mode in ("fill", "clip", "drop", "clip and add")),
    *("custom_root", "custom_linear_solve", "jacrev", "jacfwd", "hessian", "transpose"),
    *("rows by several", "checkpoint by a policy", "large array"),
}
PARTS = {"static index", "traced index", "slice", "dynamic slice", "gather", "at set", "at add", "unknown_dims"} | {
    "part along axes",
    "part along axes: set",
    "part along axes: add",
    "part along axes: multiply",
    "part along axes: max",
    "moving window",
    "moving window replaced",
}
OPERATIONS = {"unary", "binary", "sum", "sum between", "matmul", "concatenate", "transpose", "where"}
KINDS = {"integer arithmetic", "floor of a float", "compare floats", "compare integers", "logic", "stop_gradient"}


@pytest.mark.parametrize("part", range(-(-PROGRAMS // PER_BATCH)))
def test_random_programs(part: int) -> None:
    count = min(PER_BATCH, PROGRAMS - part * PER_BATCH)
    outcome = run_batch(Batch(0, part * PER_BATCH, count, rotation=Rotation(jax_every=JAX_EVERY)))
    assert not outcome.failures, outcome.failures[0]
    assert outcome.examined >= count // 2
    assert outcome.compared["the verifier"] >= 4 * outcome.examined


def halving(steps: float = 3.0) -> Program:
    """`while y < 2: y = sin(y) + steps / 3` from x, by hand."""
    condition = Block((Line("b4", "c3 < 2.0", "less(c3, 2.0)", "compare floats"),), ("b4",))
    body = Block((Line("v5", "c3 + np.sin(x1)", "c3 + np.sin(x1)", "update"),), ("v5",))
    loop = While((Carried("c3", "x1", "v6"),), Structure("bare"), condition, body)
    argument = Argument(Variable("x1", SCALAR), np.asarray(0.7))
    return Program((argument,), Block((loop,), ("v6",)), (SCALAR,), cuts=False)


def test_a_program_is_written_in_two_forms() -> None:
    assert traced_source(halving()) == (
        "def program(x1):\n"
        "    def condition1(carry):\n"
        "        c3 = carry\n"
        "        b4 = c3 < 2.0\n"
        "        return b4\n"
        "    def body2(carry):\n"
        "        c3 = carry\n"
        "        v5 = c3 + np.sin(x1)\n"
        "        return v5\n"
        "    result3 = cg.while_loop(condition1, body2, x1)\n"
        "    v6 = result3\n"
        "    return (v6,)\n"
    )
    assert plain_source(halving()) == (
        "def program(x1):\n"
        "    (c3,) = (x1,)\n"
        "    while True:\n"
        "        b4 = less(c3, 2.0)\n"
        "        if not b4:\n"
        "            break\n"
        "        tick()\n"
        "        v5 = c3 + np.sin(x1)\n"
        "        (c3,) = (v5,)\n"
        "    (v6,) = (c3,)\n"
        "    return (v6,)\n"
    )


def test_a_program_is_written_with_pythons_control_flow() -> None:
    assert python_source(halving()) == (
        "def program(x1):\n"
        "    (c3,) = (x1,)\n"
        "    while True:\n"
        "        b4 = c3 < 2.0\n"
        "        if not b4:\n"
        "            break\n"
        "        v5 = c3 + np.sin(x1)\n"
        "        (c3,) = (v5,)\n"
        "    (v6,) = (c3,)\n"
        "    return (v6,)\n"
    )
    assert examine(replace(halving(), python=True), Share(jax="scan")).iterations == 3


def test_every_judge_speaks() -> None:
    verdict = examine(halving(), Share(jax="scan"))
    assert verdict.iterations == 3
    assert set(verdict.compared) == {
        "the plain twin",
        "the verifier",
        "text",
        "forward mode",
        *SECOND,
        "finite differences",
        "jax scan",
        "JAX, first derivative",
        "JAX, second derivative",
    }


def test_every_mode_and_judge_comes_in_turn() -> None:
    rotation = Rotation(all_every=8, jax_every=4)
    shares = [rotation.share(number) for number in range(16)]
    assert [share.second for share in shares[1:8]] == [(SECOND[number % 4],) for number in range(1, 8)]
    assert [number for number, share in enumerate(shares) if share.second == SECOND and share.retraced] == [0, 8]
    assert [number for number, share in enumerate(shares) if share.jax] == [0, 4, 8, 12]


@pytest.mark.parametrize("mode", SECOND)
def test_one_mode_alone_is_judged(mode: str) -> None:
    """By finite differences and by JAX; what cuts gradients, by the next mode and by JAX."""
    compared = examine(halving(), Share((mode,), retraced=False, jax="auto")).compared
    assert compared["finite differences"] == 2 and compared["JAX, second derivative"] > 0
    assert set(SECOND) & set(compared) == {mode}
    cutting = replace(halving(), cuts=True)
    compared = examine(cutting, Share((mode,), retraced=False, jax="auto")).compared
    assert compared["finite differences"] == 0 and compared["JAX, second derivative"] > 0
    assert len(set(SECOND) & set(compared)) == 2


def test_a_wrong_rule_of_one_mode_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ELEMENTWISE, "sin", (_wrong_sine(1e-8),))
    with pytest.raises(ProgramMismatch, match=r"reverse mode: .*\nby forward mode: "):
        examine(halving())


@pytest.mark.parametrize("mode", SECOND)
def test_a_wrong_second_derivative_is_found(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The cosine stands in the first derivative alone: its rule matters to the second."""
    wrong = lambda t, out, x: -t * emit("sin", x) * 1.1
    monkeypatch.setitem(ELEMENTWISE, "cos", (wrong,))
    monkeypatch.setitem(REVERSE, "cos", ReverseRule((wrong,), broadcasts=True))
    for share, judge in ((Share((mode,), False), "finite differences"), (Share((mode,), False, "auto"), "JAX, second")):
        program = halving() if share.jax is None else replace(halving(), cuts=True)
        with pytest.raises(ProgramMismatch, match=f"by {judge}"):
            examine(program, share)


@pytest.mark.parametrize(("error", "judge"), [(1e-4, "finite differences"), (1e-7, "JAX, first derivative")])
def test_a_wrong_rule_of_both_modes_is_found(monkeypatch: pytest.MonkeyPatch, error: float, judge: str) -> None:
    monkeypatch.setitem(ELEMENTWISE, "sin", (_wrong_sine(error),))
    monkeypatch.setitem(REVERSE, "sin", ReverseRule((_wrong_sine(error),), broadcasts=True))
    with pytest.raises(ProgramMismatch, match=f"by {judge}"):
        examine(halving(), Share(jax="unrolled"))


def _wrong_sine(error: float) -> Callable[[Term, Term, Term], Term]:
    return lambda t, out, x: t * emit("cos", x) * (1.0 + error)


def test_a_difference_that_cannot_tell_judges_nothing() -> None:
    """As found: a recurrence whose derivative grows by a factor of 15 in each of 6 iterations."""
    assert not tells(Slope(9029.5, 12063.0, 0.0126))
    assert not tells(Slope(1.0, float("inf"), 0.1))
    assert tells(Slope(9029.5, 1e-3, 0.0126)) and tells(Slope(0.0, 1e-9, 0.1))


def test_a_wrong_program_is_found() -> None:
    """The twin computes something else than the traced form."""
    right = halving()
    line = Line("v7", "np.cos(v6)", "np.cos(v6) * (1.0 + 1e-9)", "unary")
    wrong = Program(right.arguments, Block((*right.body.statements, line), ("v7",)), (SCALAR,), cuts=False)
    with pytest.raises(ProgramMismatch, match="by the plain twin"):
        examine(wrong)


def test_a_near_decision_is_not_judged() -> None:
    """0.7 + 2 sin(0.7) is 1.99: the threshold is 2, so a little more would end the loop an iteration before."""
    start = Argument(Variable("x1", SCALAR), np.asarray(_start_that_meets_the_threshold()))
    near = Program((start,), halving().body, (SCALAR,), cuts=False)
    with pytest.raises(UnsuitableError, match="too near"):
        examine(near)


def _start_that_meets_the_threshold() -> float:
    """The x with x + 2 sin(x) = 2, but for 1e-6."""
    low, high = 0.1, 1.5
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if middle + 2 * np.sin(middle) < 2 else (low, middle)
    return low + 1e-6


def test_programs_hold_every_construct() -> None:
    seen: Counter[str] = Counter()
    depths: set[int] = set()
    sizes: set[bool] = set()
    for number in range(500):
        program = generate(number)
        contents = program.contents()
        depths.add(contents.pop("depth", 0))
        seen.update(contents.keys())
        sizes.add(program.has_unknown_sizes)
    rows = {"vmap along another axis", "vmap to another axis"} | COMPOUNDS
    expected = rows | CONSTRUCTS | CALLS | BRANCHES | ARRAYS | PARTS | OPERATIONS | KINDS | CARRIES | DTYPES | CHANCES
    assert not expected - set(seen)
    assert depths >= {0, 1, 2, 3} and sizes == {False, True}


# Constructs that a feature adds; the remaining features only make more of the existing ones.
ADDED = {
    "bare": CARRIES - {"carry passed through"},
    "rules": {"call custom_jvp", "call custom_vjp", "rule: kept"},
    "gradients": {"call grad", "call jvp", "call linearize", "grad inside", "jvp inside", "linearize inside"},
    "vmap": {"call vmap", "vmap along another axis", "vmap to another axis"},
    "dtypes": DTYPES,
    "zero": {"axis without elements"},
    "large": {"large array"},
    "long": {"long axis"},
    "random": CHANCES,
    "limits": {"maximum_iterations"},
    "python": {"Python's control flow"},
}


@pytest.mark.parametrize("feature", ADDED)
def test_a_feature_can_be_left_out(feature: str) -> None:
    seen: set[str] = set()
    for number in range(60):
        seen |= set(generate(number, frozenset(FEATURES) - {feature}).contents())
    assert not seen & ADDED[feature]


def test_a_seed_says_which_program() -> None:
    for number in range(20):
        assert describe(generate(number)) == describe(generate(number))
    assert describe(generate(1)) != describe(generate(2))


def test_decisions_that_are_repeated_give_the_program_again() -> None:
    choices = Choices(random.Random(7))
    program = write(choices)
    assert describe(write(Choices(None, choices.made))) == describe(program)


def test_a_failing_program_shrinks() -> None:
    """Whatever has a scan shrinks to a scan and little else."""

    def fails(program: Program) -> bool:
        return program.contents()["scan"] > 0

    choices = next(c for c in map(Choices, map(random.Random, range(99))) if fails(write(c)))
    assert describe(shrunk(choices, write, fails)).count("\n") < 50


def _pushed(x: Any) -> Any:
    """`x` as often as it is added up to 2, rows of a `TensorArray`."""
    rows = cg.TensorArray("float64", rewritable=True)
    _, rows = cg.while_loop(lambda s: s[0] < 2.0, lambda s: (s[0] + x, s[1].push(x)), (0.0 * x, rows))
    return rows.stack()


def test_checked_execution_says_what_the_reference_engine_says() -> None:
    """As found: rows of a vmap push 2 and 0 rows, which no engine gives as an array."""
    mapped = cg.function(cg.vmap(_pushed)).graph(np.array([1.0, 2.0]))
    run = lambda *x: RUNNERS["machine"](Settings("machine"), mapped, [np.array(x)], random.Random(0))
    assert run(1.0, 1.0)[0].shape == (2, 2)
    with pytest.raises(ExecutionError, match="vmap: the length of a TensorArray differs from row to row"):
        run(1.0, 2.0)


def test_checked_execution_that_ends_by_itself_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that ends a run which the reference engine completes is wrong."""

    def ended(*_: Any, **__: Any) -> Any:
        raise RunEndedError("size", 8, 0)

    graph = cg.function(np.sin).graph(1.0)
    monkeypatch.setattr("plan.plans.execute", ended)
    with pytest.raises(RunEndedError):
        RUNNERS["machine"](Settings("machine"), graph, [np.float64(1.0)], random.Random(0))
