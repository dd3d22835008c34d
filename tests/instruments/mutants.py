"""Mistakes that tests of the CUDA engine make on purpose: each is a function that patches it, and runs show which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Graph
from instruments.comparing import assert_same
from instruments.order import Judge
from instruments.recorded import recorded_run
from instruments.stand_in_runs import on_reference, on_stand_in


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mistake: what is shown without one is the test's own."""


def shows(monkeypatch: pytest.MonkeyPatch, graph: Graph, arguments: Sequence[Any]) -> bool:
    """Return true if a run of a graph, or one under a budget, shows the mutant.

    The run fails, gives different results, or is right by luck only.
    """
    expected = on_reference(graph, arguments)
    try:
        assert_same(on_stand_in(graph, arguments).results, expected, 1e-9)
        results, entries, _ = recorded_run(monkeypatch, graph, arguments, 1 << 20, 0.5)
        assert_same(results, expected, 1e-9)
        Judge().judge(entries)
    except (AssertionError, CtrlgradError, IndexError):
        return True
    return False


__all__ = ["nothing", "shows"]
