"""What the tests of plans share: which parts of pieces ran, what was compiled, and that it is checked first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ctrlgrad.engines.native.products.library import Products, products
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import Graph

if TYPE_CHECKING:
    from ctrlgrad.plan.model import Plan


@pytest.fixture(autouse=True)
def checked_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan is judged before it runs, in machine code as users get it."""
    monkeypatch.setenv("CTRLGRAD_CHECK_PLANS", "1")
    monkeypatch.delenv("CTRLGRAD_QUICK_CODE")


@pytest.fixture
def parts_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Graph]]:
    """Every part of a piece counts as paying during a test; notes which ran as plans, once per run."""
    from ctrlgrad.engines.native import parts, pieces

    found: list[Graph] = []
    planned = pieces._planned

    def noted(graph: Graph, values: list[Any]) -> list[Any] | None:
        try:
            results = planned(graph, values)
        except ExecutionError:
            found.append(graph)
            raise
        if results is not None:
            found.append(graph)
        return results

    monkeypatch.setattr(parts, "gain", lambda part: 1.0)
    monkeypatch.setattr(pieces, "_planned", noted)
    yield found


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """The plans that machine code is asked for during a test."""
    from ctrlgrad.engines.native import engine

    found: list[Plan] = []
    compiled = engine.compiled
    monkeypatch.setattr(engine, "compiled", lambda plan: (found.append(plan), compiled(plan))[1])
    yield found


@pytest.fixture
def native() -> Iterator[Products]:
    """The process's routines; what a test makes of the number of threads is undone."""
    found = products()
    before = found.threads
    yield found
    found.set_threads(before)
