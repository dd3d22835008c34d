"""Vector forms of kernels are in the plan's text, for each width of registers; the checker rejects each wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plan.plans import plan_of

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.decisions import with_vectors
from ctrlgrad.plan.model import FlatRows, Plan, RowsAcross, ShortRows
from ctrlgrad.plan.printer import format_plan

WIDTHS = (16, 32, 64)
ANY = (cg.TensorSpec((None,), "float64"),)
ROWS = np.ones((40, 3))
EXP = lambda x: cnp.exp(x) * cnp.sin(x)
# Of a kernel whose size only the run knows.
CUT = ", at most 256 parts of 256 positions or more along 0"

# Kernels of float64: the program, its argument and signature, and the text for registers of 16, 32 and 64 bytes.
TEXTS: dict[str, tuple[Callable[[Any], Any], np.ndarray, Any, tuple[str, str, str]]] = {
    "few points": (lambda x: x * 2 + 1, np.ones(8), None, (", without loops",) * 3),
    "some points": (
        lambda x: x * 2 + 1,
        np.ones(9),
        None,
        tuple(f", without loops, vectors of {n}" for n in (2, 4, 8)),
    ),
    "a turn": (lambda x: x * 2 + 1, np.ones(512), None, tuple(f", vectors of {n}, 4 a turn" for n in (2, 4, 8))),
    "no turn": (lambda x: x * 2 + 1, np.ones(511), None, tuple(f", vectors of {n}" for n in (2, 4, 8))),
    "a masked rest": (
        EXP,
        np.ones(5),
        ANY,
        tuple(f"{form}{CUT}" for form in (", vectors of 2", *(", vectors of 8, the last one masked",) * 2)),
    ),
    "a sum": (
        lambda x: cnp.sum(x * x),
        np.ones(900),
        None,
        (
            ", vectors of 2, 4 a turn",
            ", vectors of 4, 4 a turn, the last one masked",
            ", vectors of 8, 4 a turn, the last one masked",
        ),
    ),
    "rows end to end": (
        lambda x: x + x[0],
        ROWS,
        None,
        (
            ", vectors of 2, 2 rows end to end as 3 vectors of 2",
            ", vectors of 4, 4 rows end to end as 3 vectors of 4",
            ", vectors of 4, 8 rows end to end as 3 vectors of 8",
        ),
    ),
    "rows side by side": (
        lambda x: cnp.sum(x.T * x.T, axis=1),
        np.ones((5, 40)),
        None,
        tuple(f", {4 * n} rows side by side, 4 short rows together" for n in (2, 4, 8)),
    ),
    "a total of rows": (
        lambda x: cnp.sum(x[:, :9]),
        np.ones((40, 10)),
        None,
        tuple(f", vectors of {n}{', the last one masked' if n > 2 else ''}" for n in (2, 4, 8)),
    ),
    "short rows": (
        lambda x: cnp.sum(x * x, axis=1),
        np.ones((40, 6)),
        None,
        (
            ", vectors of 2, 4 short rows together",
            ", vectors of 4, the last one masked, 4 short rows together",
            ", vectors of 8, the last one masked, 8 short rows together",
        ),
    ),
}


def plans(name: str) -> dict[int, Plan]:
    fn, x, signature, _ = TEXTS[name]
    return {nbytes: with_vectors(plan_of(fn, x, signature=signature), nbytes) for nbytes in WIDTHS}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_says_how_a_kernel_is_vectorised(name: str) -> None:
    found = plans(name)
    for nbytes, expected in zip(WIDTHS, TEXTS[name][3], strict=True):
        (line,) = (line for line in format_plan(found[nbytes]).splitlines() if line.startswith("  kernel ["))
        assert line.partition("]")[2] == expected + " {"
        check(found[nbytes])
    assert "vectors" not in format_plan(with_vectors(found[32], 0))


def test_the_text_says_which_sums_are_in_registers() -> None:
    """Column sums are in memory, a total is in registers, and a total of columns in both."""
    for axis, expected in ((None, ", in registers"), (0, "")):
        plan = with_vectors(plan_of(lambda x, axis=axis: cnp.sum(x * x, axis=axis), ROWS), 32)
        (line,) = (line for line in format_plan(plan).splitlines() if " = dot of " in line)
        assert line.endswith(f"(a1, a1){expected}")


def mutated(plan: Plan, **changes: Any) -> Plan:
    """The plan with other fields of the vector form of its one kernel."""
    ((kernel, found),) = plan.vectors.items()
    return replace(plan, vectors={kernel: replace(found, **changes)})


# Wrong vector forms: the program, the fields that differ, and what the checker says.
MUTANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "three lanes": ("a turn", {"width": 3}, "a vector of 3 elements"),
    "more lanes than a vector": ("a turn", {"width": 8}, "a vector of 8 elements of 4"),
    "a sum that lanes share": ("a sum", {"registers": {}, "in_memory": frozenset({0})}, "lanes of a vector meet"),
    "a sum without a place": ("a sum", {"registers": {}, "width": 1}, "neither in registers nor in memory"),
    "a sum that moves": ("short rows", {"registers": {0: 0}}, "in registers along an axis where its place moves"),
    "a stored array in registers": ("a turn", {"registers": {0: 1}}, "in registers"),
    "masks of small registers": ("a masked rest", {"masks": True, "nbytes": 16}, "no masks"),
    "longer rows": ("rows end to end", {"rows": (FlatRows(4, 4, 4),)}, "rows end to end"),
    "half a row": ("rows end to end", {"rows": (FlatRows(2, 3, 4),)}, "rows end to end"),
    "reduced rows end to end": ("short rows", {"rows": (FlatRows(2, 6, 4),)}, "rows end to end"),
    "rows that are not reduced": ("rows end to end", {"rows": (ShortRows(4, 4, 8, True),)}, "are not reduced"),
    "rows side by side of one result": ("a total of rows", {"rows": (RowsAcross(4, 4, False),)}, "side by side"),
    "rows across that are not reduced": ("rows end to end", {"rows": (RowsAcross(4, 4, False),)}, "are not reduced"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_vector_form_is_rejected(name: str) -> None:
    program, changes, expected = MUTANTS[name]
    with pytest.raises(PlanError, match=expected):
        check(mutated(plans(program)[32], **changes))
