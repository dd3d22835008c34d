"""Fixtures of the dataflow engine's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from instruments.cards import COPIES, Cards, registered


@pytest.fixture(params=COPIES, ids=["instant", "by the clock", "slow"])
def cards(request: pytest.FixtureRequest) -> Iterator[Cards]:
    found = Cards(request.param)
    with registered(found.libraries):
        yield found
    for library in found.libraries.values():
        library.copier().close()
