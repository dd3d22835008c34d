"""Fixtures of the tests of the comparisons."""

from __future__ import annotations

import pytest

from benchmarks import measure


@pytest.fixture(autouse=True)
def for_agreement_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurement whose times do not count: no pauses, one run a turn, and no memory touched beforehand."""
    monkeypatch.setattr(measure, "PAUSE", 0.0)
    monkeypatch.setattr(measure, "MOST_RUNS", 1)
    monkeypatch.setattr(measure, "TOUCHED", 1)
