"""Fixtures of the tests of array functions."""

from __future__ import annotations

import pytest

from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.frontend import apply


@pytest.fixture
def evaluated_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the types of values computed outside a trace against their ops' type rules."""
    monkeypatch.setattr(
        apply, "run_on", lambda engine, graph, arrays, nans: run_graph(graph, arrays, Run(check_types=True))
    )
