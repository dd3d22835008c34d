"""Checks of derivatives that cannot be made as they are asked for, and what is said."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
import ctrlgrad.verify
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.verify import GradientReport, check_grads
from ctrlgrad.verify.check import compare

X = np.array([0.3, 0.5, -0.3])
ARGS = (X,)


def program(x: Any) -> Any:
    return cnp.sum(cg.while_loop(lambda y: cnp.sum(y) < 9.0, lambda y: y * 1.5 + 0.5, x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 0}, "order"),
        ({"order": True}, "order"),
        ({"modes": ("sideways",)}, "modes"),
        ({"modes": "rev"}, "modes"),
        ({"against": ("torch",)}, "against"),
        ({"against": ()}, "against"),
    ],
)
def test_unknown_requests(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=f"check_grads: {message}"):
        check_grads(program, ARGS, **change)


def test_forward_mode_needs_one() -> None:
    with pytest.raises(UserInputError, match="no forward mode"):
        compare(program, ARGS, gradient=cg.grad, jvp=None, modes=("fwd",))


def test_nothing_to_differentiate() -> None:
    with pytest.raises(UserInputError, match="no argument to differentiate"):
        check_grads(lambda n: n * 2, (3,))
    with pytest.raises(UserInputError, match="no result to differentiate"):
        check_grads(lambda x: x > 0.0, (X,))


def test_results_that_cannot_be_checked() -> None:
    with pytest.raises(TypeMismatchError, match=r"args\[0\]\['z'\] cannot be checked"):
        check_grads(lambda p: p["z"], ({"z": X + 1j},))
    with pytest.raises(TypeMismatchError, match="a result cannot be checked"):
        check_grads(lambda x: cg.TensorArray("float64", 2).write(0, x), (X,))


def test_without_jax_finite_differences_judge_alone_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by itself, JAX is missed."""
    monkeypatch.setitem(sys.modules, "jax", None)
    report = check_grads(program, ARGS)
    assert report.ok and 'not judged: JAX is not installed: pip install -e ".[jax]"' in str(report)
    assert {row.judge for row in report.rows if row.is_judged} == {"finite differences"}
    with pytest.raises(UserInputError, match=r'pip install -e "\.\[jax\]"'):
        check_grads(program, ARGS, against=["jax"])
    assert isinstance(check_grads(program, ARGS, against=["finite_differences"]), GradientReport)


def test_a_mode_that_a_custom_rule_lacks_is_not_judged() -> None:
    @cg.custom_vjp
    def square(x: Any) -> Any:
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, ct: (2.0 * x * ct,))
    report = check_grads(lambda x: square(x).sum(), (X,), modes=("rev", "fwd"))
    assert report.ok
    assert [row.mode for row in report.rows if not row.is_judged] == ["fwd"]
    assert "custom_vjp: forward mode needs a forward rule" in str(report)
    # Above order 1, too, where a mode inside of another lacks its rule.
    second = check_grads(lambda x: square(x).sum(), (X,), modes=("rev", "fwd"), order=2)
    assert second.ok
    lacking = {row.mode for row in second.rows if not row.is_judged}
    assert lacking == {"fwd", "rev over fwd", "fwd over fwd"}


def test_jax_judges_a_solver_whose_step_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled without any optimisation, as these tests do it, JAX 0.10 gives NaN for the gradient of this program."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)

    def solve(y: Any, k: Any) -> Any:
        slope = lambda y: np.stack([y[1], -k * np.sin(y[0]) - 0.1 * y[1]])

        def step(carry: Any) -> Any:
            t, y, h, n = carry
            k1 = slope(y)
            k2 = slope(y + h / 2 * k1)
            third = y + h / 6 * (k1 + 4 * k2 + slope(y - h * k1 + 2 * h * k2))
            error = np.max(np.abs(third - (y + h * k2))) + 1e-12
            t, y = cg.cond(error < 1e-3, lambda: (t + h, third), lambda: (t, y))
            factor = np.clip(0.9 * (1e-3 / error) ** 0.33, 0.3, 2.0)
            return t, y, np.minimum(np.minimum(h * factor, 1.0), 2.0 - t + 1e-9), n + 1

        return np.sum(np.sin(cg.while_loop(lambda c: (c[0] < 2.0) & (c[3] < 100), step, (0.0, y, 0.1, 0))[1]))

    assert check_grads(solve, (np.random.default_rng(11).uniform(0.5, 1.0, 2), 0.7), against=["jax"]).ok
