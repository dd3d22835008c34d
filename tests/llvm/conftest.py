"""What tests of compiled plans share: every plan that they run is checked first."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def checked_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLGRAD_CHECK_PLANS", "1")
