"""Settings of the passes' tests: small products count as heavy, in inner loops too, and all of them leave their
loops."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _every_product_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrlgrad.passes.heavy.HEAVY", 1)
    monkeypatch.setattr("ctrlgrad.passes.heavy.WORTH_INSIDE", 1)
    monkeypatch.setattr("ctrlgrad.passes.heavy.STACKED", 0)
    monkeypatch.setattr("ctrlgrad.passes.heavy.STACKED_OF_FAR", 0)
