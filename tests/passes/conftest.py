"""What the tests of passes share: small products count as heavy ones."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _every_product_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrlgrad.passes.heavy.HEAVY", 1)
