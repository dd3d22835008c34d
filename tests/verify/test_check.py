"""`check_grads`: right derivatives pass, wrong ones of every kind are caught by each judge alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
import ctrlgrad.verify
from ctrlgrad.errors import GradientMismatch
from ctrlgrad.gradients import table
from ctrlgrad.verify import GradientReport, check_grads
from ctrlgrad.verify.check import Sample, compare, slope
from ctrlgrad.verify.jax_judge import JIT_DIFFERS
from ctrlgrad.verify.jax_translation import Translation
from ctrlgrad.verify.report import Row

# Slopes by finite differences: as exact as their own error estimate says, on one side of every jump.


SMOOTH: list[tuple[Callable[[np.float64], np.float64], float]] = [
    (lambda t: np.sin(1.0 + t), np.cos(1.0)),
    (lambda t: np.exp(3.0 * (1.0 + t)), 3.0 * np.exp(3.0)),
    (lambda t: (1.0 + t) ** 7, 7.0),
    (lambda t: np.sin(50.0 * (1.0 + t)), 50.0 * np.cos(50.0)),
    (lambda t: 1e6 + t, 1.0),
]


def slope_of(function: Callable[[np.float64], np.float64], path: Callable[[float], int] = lambda t: 0):
    centre = abs(float(function(np.float64(0.0))))
    return slope(lambda t: Sample(float(function(np.float64(t))), path(t)), 0.1, 4e-16 * centre)


@pytest.mark.parametrize(("function", "exact"), SMOOTH)
def test_smooth_functions(function: Callable[[np.float64], np.float64], exact: float) -> None:
    s = slope_of(function)
    assert s.is_conclusive
    assert abs(s.value - exact) <= 10.0 * s.error
    assert s.error <= 1e-8 * max(abs(exact), 1.0)


def test_a_singularity_nearby_shortens_the_step() -> None:
    with np.errstate(all="ignore"):
        s = slope_of(lambda t: np.log(0.01 + t))
    assert s.step < 0.01
    assert abs(s.value - 100.0) < 1e-6


def test_steps_that_leave_the_path_are_not_used() -> None:
    """A jump at 0.003: without the path, the larger steps would see it."""
    s = slope_of(lambda t: np.sin(t) + (5.0 if t > 0.003 else 0.0), path=lambda t: int(t > 0.003))
    assert s.is_conclusive
    assert s.step <= 0.003
    assert abs(s.value - 1.0) < 1e-9


def test_a_larger_step_back_on_the_path_is_not_used_either() -> None:
    """The path differs only for distances around 0.02: what lies beyond it is not extrapolated through it."""
    s = slope_of(lambda t: np.sin(t), path=lambda t: int(0.02 < abs(t) < 0.03))
    assert s.step < 0.02
    assert abs(s.value - 1.0) < 1e-9


def test_a_jump_at_the_point_itself_is_not_conclusive() -> None:
    s = slope_of(lambda t: np.sin(t), path=lambda t: int(t > 0.0))
    assert not s.is_conclusive
    assert np.isnan(s.value)
    assert s.reason == "every step changes a trip count or a branch"


def test_without_an_answer_there_is_a_reason() -> None:
    with np.errstate(all="ignore"):
        assert slope_of(np.sqrt).reason == "the function is not finite nearby"
        assert slope_of(lambda t: np.log(t - 1.0)).reason == "the function is not finite here"
    assert slope_of(np.sin).reason == ""


@pytest.mark.parametrize(("left", "right"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 2.5)])
def test_a_kink_is_told_by_half_the_distance_of_the_one_sided_slopes(left: float, right: float) -> None:
    s = slope_of(lambda t: np.sin(t) + (right if t > 0 else left) * np.exp(t) - (right if t > 0 else left))
    assert s.value == pytest.approx(1.0 + (left + right) / 2.0, abs=1e-2)
    assert s.kink == pytest.approx((right - left) / 2.0, rel=0.05)


@pytest.mark.parametrize("function", [f for f, _ in SMOOTH] + [lambda t: t**4, lambda t: t**3, lambda t: 0.0 * t])
def test_a_smooth_function_has_no_kink(function: Callable[[np.float64], np.float64]) -> None:
    assert slope_of(function).kink == 0.0


def test_noise_is_part_of_the_error() -> None:
    rng = np.random.default_rng(0)
    s = slope(lambda t: Sample(float(np.sin(t) + 1e-6 * rng.standard_normal())), 0.1, 1e-6)
    assert abs(s.value - 1.0) <= 10.0 * s.error
    assert s.error >= 1e-5


X = np.array([0.3, 0.5, -0.3])
W = np.array([[0.5, -0.2, 0.1], [0.3, 0.9, -0.4], [-0.6, 0.2, 0.7]])
JUDGES = ["finite_differences", "jax"]


def program(params: Any, n: Any) -> Any:
    """A loop with a branch in it; a dict of results of several shapes and dtypes."""

    def body(carry: Any) -> Any:
        i, y = carry
        y = cg.cond(np.sum(y) > 0.4, lambda: np.tanh(y @ params["w"]), lambda: y * 1.7 + params["x"])
        return i + 1, y

    i, y = cg.while_loop(lambda c: c[0] < n, body, (0, params["x"]))
    return {"count": i, "y": y, "total": np.sum(y * y)}


ARGS = ({"w": W, "x": X}, 4)


def test_right_derivatives_pass_to_second_order() -> None:
    report = check_grads(program, ARGS, order=2)
    assert report.ok and report.failures == ()
    assert [(r.path, r.order, r.mode, r.judge) for r in report.rows] == [
        ("value", 0, "", "jax (scan)"),
        *((path, 1, "rev", judge) for judge in ("jax (scan)", "finite differences") for path in paths()),
        *((path, 2, "rev over rev", judge) for judge in ("jax (scan)", "finite differences") for path in paths()),
    ]
    for row in report.rows:
        assert row.relative < (1e-12 if row.judge == "jax (scan)" else 1e-9)
        assert row.tolerance < (1e-6 if row.order < 2 else 1e-5) * max(row.scale, 1.0)


def paths() -> tuple[str, str]:
    return "args[0]['w']", "args[0]['x']"


def test_the_report_is_the_same_each_time_and_reads_as_a_table() -> None:
    first, second = (str(check_grads(program, ARGS, against=["finite_differences"], seed=3)) for _ in range(2))
    assert first == second
    lines = first.split("\n")
    assert " ".join(lines[0].split()) == "argument order mode judge absolute error relative error tolerance"
    assert lines[1].startswith("args[0]['w']  1      rev   finite differences")
    assert all(line.endswith("  ok") for line in lines[1:])


def test_forward_mode_and_both_mixtures() -> None:
    report = check_grads(program, ARGS, order=2, modes=("rev", "fwd"), against=["jax"])
    assert {r.mode for r in report.rows if r.order == 2} == {
        "rev over rev",
        "rev over fwd",
        "fwd over rev",
        "fwd over fwd",
    }


def test_third_order() -> None:
    def quartic(x: Any) -> Any:
        return cg.fori_loop(0, 2, lambda i, y: y * y, x)

    report = check_grads(quartic, (np.array([0.7, -1.1]),), order=3)
    assert {r.mode for r in report.rows if r.order == 3} == {"rev over rev over rev"}


def test_float32_gets_wider_tolerances() -> None:
    args = ({"w": W.astype(np.float32), "x": X.astype(np.float32)}, 4)
    wide = check_grads(program, args)
    narrow = check_grads(program, ARGS)
    for a, b in zip(wide.rows, narrow.rows, strict=True):
        assert a.tolerance / b.tolerance > 1e2
        assert a.tolerance < 0.02 * a.scale


def test_ill_conditioned_programs_get_wider_tolerances() -> None:
    """A chaotic map: each of 30 iterations about doubles the influence of the last bit."""

    def logistic(x: Any) -> Any:
        return cg.fori_loop(0, 30, lambda i, y: 3.99 * y * (1.0 - y), x)

    def shrinking(x: Any) -> Any:
        return cg.fori_loop(0, 30, lambda i, y: 0.9 * y, x)

    (_, chaotic) = check_grads(logistic, (np.array(0.3),), against=["jax"]).rows
    (_, tame) = check_grads(shrinking, (np.array(0.3),), against=["jax"]).rows
    assert chaotic.tolerance / chaotic.scale > 3.0 * tame.tolerance / tame.scale


def test_python_numbers_and_other_leaves() -> None:
    def scaled(x: Any, s: Any, mode: str) -> Any:
        assert mode == "sum"
        return np.sum(x * s)

    report = check_grads(scaled, (X.astype(np.float32), 2.0, "sum"))
    assert [r.path for r in report.rows if r.judge == "finite differences"] == ["args[0]", "args[1]"]


def test_declared_unknown_dimensions_stay_unknown() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(x.type.shape)
        return cg.while_loop(lambda y: np.sum(y * y) < 20.0, lambda y: y + np.sin(y), x)

    check_grads(cg.function(f, signature=[cg.TensorSpec((None,), "float64")]), (X,))
    assert set(seen) == {(None,)}


# Wrong derivatives.


def scaled(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(g * (1.0 + 1e-5) for g in gradients)


def one_element_off(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return (gradients[0] + np.array([[0.0] * 3, [0.0, 1e-5, 0.0], [0.0] * 3]), gradients[1])


def one_leaf_forgotten(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return (gradients[0], gradients[1] * 0.0)


def transposed(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return (gradients[0].T, gradients[1])


def not_a_number(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return (gradients[0], gradients[1] * np.nan)


def injected(wrong: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[..., Any]:
    return lambda fn, wrt: lambda *inputs: wrong(cg.grad(fn, wrt)(*inputs))


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("wrong", [scaled, one_element_off, one_leaf_forgotten, transposed, not_a_number])
def test_a_wrong_gradient_is_caught(wrong: Any, judge: str) -> None:
    report = compare(program, ARGS, gradient=injected(wrong), against=[judge])
    failing = {row.path for row in report.failures}
    assert (
        failing
        == {
            scaled: {*paths()},
            one_element_off: {paths()[0]},
            one_leaf_forgotten: {paths()[1]},
            transposed: {paths()[0]},
            not_a_number: {paths()[1]},
        }[wrong]
    )


@pytest.mark.parametrize("judge", JUDGES)
def test_a_gradient_that_cannot_be_differentiated_again_is_caught_at_second_order(judge: str) -> None:
    report = compare(program, ARGS, gradient=injected(cg.stop_gradient), against=[judge], order=2)
    assert {(row.path, row.order) for row in report.failures} == {(path, 2) for path in paths()}


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch, judge: str, dtype: str) -> None:
    def f(x: Any) -> Any:
        return cg.while_loop(lambda y: np.sum(y * y) < 20.0, lambda y: y + np.sin(y), x)

    x = np.abs(X).astype(dtype)
    check_grads(f, (x,), against=[judge])
    monkeypatch.setitem(table.REVERSE, "sin", table.REVERSE["tanh"])
    with pytest.raises(GradientMismatch) as caught:
        check_grads(f, (x,), against=[judge])
    message = str(caught.value)
    assert "check_grads: 1 of" in message
    assert "WRONG" in message and "args[0]" in message


def test_a_wrong_forward_rule_is_caught_in_forward_mode_alone() -> None:
    wrong = lambda fn, primals, tangents: (None, 1.001 * cg.jvp(fn, primals, tangents)[1])
    report = compare(program, ARGS, gradient=cg.grad, jvp=wrong, modes=("rev", "fwd"))
    assert {row.mode for row in report.failures} == {"fwd"}
    assert len(report.failures) == 4


# Functions that a judge cannot judge.


def jump(x: Any) -> Any:
    return cg.cond(np.sum(x) > 0.0, lambda: np.sum(x), lambda: 3.0 * np.sum(x))


def doubled(x: Any) -> Any:
    """At 1 every step to the left or the right changes the trip count."""
    return cg.while_loop(lambda y: y < 8.0, lambda y: y * 2.0, x)


def relu(x: Any) -> Any:
    return np.sum(cnp.where(x > 0.0, x, 0.0))


@pytest.mark.parametrize("modes", [("rev",), ("fwd",)])
@pytest.mark.parametrize(("f", "x"), [(jump, np.zeros(2)), (doubled, np.array(1.0))])
def test_differences_that_change_the_path_are_not_judged(f: Any, x: Any, modes: Any) -> None:
    report = check_grads(f, (x,), modes=modes)
    assert report.ok and not report.failures
    (row,) = report.not_judged
    assert row.judge == "finite differences" and not row.ok
    assert row.note == "every step changes a trip count or a branch"
    assert report.summary == "2 of 3 comparisons agree, 1 could not be judged"
    assert str(report).endswith("not judged: every step changes a trip count or a branch")


def test_a_report_in_which_nothing_was_judged_is_an_error() -> None:
    with pytest.raises(GradientMismatch, match="no derivative could be judged: 1 of 1 comparisons could not") as caught:
        check_grads(jump, (np.zeros(2),), against=["finite_differences"])
    assert "not judged: every step changes a trip count or a branch" in str(caught.value)
    assert "away from where a trip count" in str(caught.value)


def test_the_value_alone_is_no_derivative_judged() -> None:
    value = Row("value", 0, "", "jax (scan)", 0.0, 1.0, 1e-9)
    unjudged = Row("args[0]", 1, "rev", "jax (scan)", float("nan"), 0.0, 1e-9, is_judged=False)
    assert not GradientReport((value, unjudged)).ok


@pytest.mark.parametrize(("f", "x"), [(jump, np.zeros(2)), (doubled, np.array(1.0))])
def test_a_wrong_gradient_where_differences_cannot_judge_is_caught_by_jax(f: Any, x: Any) -> None:
    report = compare(f, (x,), gradient=injected(scaled))
    assert [row.judge for row in report.failures] == ["jax (scan)"] and len(report.not_judged) == 1
    assert report.summary == "1 of 3 comparisons disagree, 1 could not be judged"


def test_another_argument_is_judged_all_the_same() -> None:
    f = lambda x, y: doubled(x) * y
    right = compare(f, (1.0, 0.7), gradient=cg.grad, against=["finite_differences"])
    assert right.ok and [row.path for row in right.not_judged] == ["args[0]"]
    wrong = compare(f, (1.0, 0.7), gradient=injected(one_leaf_forgotten), against=["finite_differences"])
    assert [row.path for row in wrong.failures] == ["args[1]"]


def test_where_the_function_is_not_finite_differences_cannot_judge() -> None:
    report = check_grads(lambda x: np.sqrt(x), (np.array(0.0),), order=2, modes=("rev", "fwd"))
    assert report.ok
    assert {row.note for row in report.not_judged} >= {"the function is not finite nearby"}
    assert all(np.isfinite(row.tolerance) for row in report.rows if row.is_judged)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_gradient_that_is_not_finite_where_the_judge_is_finite_is_wrong(judge: str) -> None:
    for value in (np.nan, np.inf):
        to = lambda gradients, value=value: tuple(g * value for g in gradients)
        report = compare(lambda x: np.sum(np.exp(x)), (X,), gradient=injected(to), against=[judge])
        assert [row.path for row in report.failures] == ["args[0]"], value


def test_elements_of_which_jax_has_no_derivative_are_not_judged() -> None:
    """JAX's derivative of the norm at zero is NaN, and so is this library's; a single such row does not count."""
    f = lambda x, y: np.sqrt(np.sum(x * x)) + np.sum(y * y)
    report = compare(f, (np.zeros(2), X), gradient=cg.grad, against=["jax"])
    (row,) = report.not_judged
    assert report.ok and row.path == "args[0]" and row.note == "JAX's own result is NaN"
    some = lambda x: np.sum(np.sqrt(x * x))
    wrong = lambda gradients: (gradients[0] + np.array([0.0, 1e-5]),)
    assert check_grads(some, (np.array([0.0, 1.0]),), against=["jax"]).rows[1].note.endswith("NaN in 1 of 2 elements")
    assert compare(some, (np.array([0.0, 1.0]),), gradient=injected(wrong), against=["jax"]).failures


def test_at_a_kink_differences_judge_between_the_one_sided_derivatives() -> None:
    """The gradient taken at the kink of relu is 0; the differences on both sides average to 1/2."""
    report = check_grads(relu, (np.array(0.0),), order=1)
    (row,) = report.not_judged
    assert report.ok and row.judge == "finite differences"
    assert row.note == "a kink: one-sided derivatives 1.0e+00 apart"
    beyond = lambda gradients: (gradients[0] + 1.1,)
    report = compare(relu, (np.array(0.0),), gradient=injected(beyond), against=["finite_differences"])
    assert len(report.failures) == 1


def test_differences_that_are_less_exact_than_the_derivative_cannot_judge() -> None:
    """In float32 the last digits of a million are a sixteenth: the slope, 1, drowns in them."""
    f = lambda x: 1e6 + x
    x = np.array(0.5, np.float32)
    report = check_grads(f, (x,))
    (row,) = report.not_judged
    assert report.ok and row.judge == "finite differences" and "the differences are uncertain by" in row.note
    wrong = lambda gradients: (1e5 * gradients[0],)
    assert compare(f, (x,), gradient=injected(wrong), against=["finite_differences"]).failures


def test_masks_are_judged_by_jax() -> None:
    """As found: KeyError, since the number of elements depends on data; op by op it is known."""
    inside = lambda x: np.sum(np.sin(x[x < 0.1]))
    looped = lambda x: cg.fori_loop(0, 3, lambda t, c: c * 0.5 + np.sum(x[x < c]), x[0])
    for f in (inside, looped):
        report = check_grads(f, (np.array([0.3, -0.5, 0.05]),), order=2, modes=("rev", "fwd"))
        assert report.ok and {row.judge for row in report.rows} == {"jax (unrolled)", "finite differences"}


def _signs(x: Any) -> Any:
    given = cg.TensorSpec((3,), np.float64)
    return np.sum(x * cg.pure_callback(np.sign, given, cg.stop_gradient(x)))


def _of_a_second_derivative(x: Any) -> Any:
    slope = cg.grad(lambda y: np.sum(np.sin(cg.grad(lambda z: np.linalg.det(np.outer(z, z) + np.eye(3)))(y))))
    return np.sum(slope(x))


@pytest.mark.parametrize(("f", "op"), [(_signs, "pure_callback"), (_of_a_second_derivative, "adjugate_along")])
def test_an_op_that_jax_has_no_form_of_leaves_the_other_judge(f: Callable[[Any], Any], op: str) -> None:
    """As found: KeyError."""
    x = np.array([1.0, -0.4, 0.7])
    report = check_grads(f, (x,))
    assert report.ok and f"JAX has no form of {op} at " in report.not_judged[0].note
    with pytest.raises(GradientMismatch, match=f"JAX has no form of {op}"):
        check_grads(f, (x,), against=("jax",))


def test_own_tolerances_finer_than_the_differences_are_not_judged_by_them() -> None:
    """But a difference that the estimated error does not explain is wrong."""
    options = {"against": ["finite_differences"], "rtol": 1e-16, "atol": 0.0}
    report = compare(program, ARGS, gradient=cg.grad, **options)
    assert not report.failures and len(report.not_judged) == 2
    assert {row.path for row in compare(program, ARGS, gradient=injected(scaled), **options).failures} == {*paths()}


def test_where_jit_changes_the_numbers_of_jax_jax_without_jit_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jitted JAX that computes wrong numbers is no failure; a gradient that both disagree with is one."""
    compiled = Translation.run

    def wrong(self: Translation, function: Callable[..., Any], *arguments: Any) -> Any:
        shift = 0.0 if jax.config.jax_disable_jit else 0.1  # type: ignore[attr-defined]
        return jax.tree.map(lambda x: x + shift, compiled(self, function, *arguments))

    monkeypatch.setattr(Translation, "run", wrong)
    report = check_grads(program, ARGS, order=2, modes=("rev", "fwd"), against=["jax"])
    assert {row.note for row in report.rows} == {JIT_DIFFERS} and JIT_DIFFERS in str(report)
    halved = injected(lambda found: tuple(0.5 * g for g in found))
    assert compare(program, ARGS, gradient=halved, against=["jax"]).failures


def test_own_tolerances_are_used_as_they_are() -> None:
    wrong = injected(scaled)
    assert compare(program, ARGS, gradient=wrong, against=["jax"], rtol=1e-4).ok
    report = compare(program, ARGS, gradient=wrong, against=["jax"], rtol=1e-6, atol=1e-9)
    assert not report.ok
    for row in report.rows:
        assert row.tolerance == pytest.approx(1e-9 + 1e-6 * row.scale)


# Independence.


def test_importing_the_judges_does_not_import_jax() -> None:
    script = "import sys, ctrlgrad.verify; print('jax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_the_judges_know_nothing_of_the_derivative_rules() -> None:
    """Only `check` may reach the library's derivatives, by the public names that are being judged.

    `originals` recognises the calls that a derivative makes of a call, and none of its numbers.
    """
    judges = [p for p in Path(ctrlgrad.verify.__file__).parent.glob("*.py") if p.name != "originals.py"]
    for path in judges:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                assert "ctrlgrad" not in names or path.name == "check.py", path.name
            assert not any(name.startswith("ctrlgrad.gradients") for name in names), path.name
