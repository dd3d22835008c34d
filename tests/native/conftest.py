"""Fixtures of the native engine's tests: how code is compiled, and a log of requests."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from instruments.tables import are_whole

from ctrlgrad.engines.native import ahead
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.products.library import Products, products
from ctrlgrad.engines.native.runtime import Frame


@pytest.fixture(autouse=True)
def checked_and_optimised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose per test whether plans are checked before they run, and how their code is compiled.

    Of a parametrized test's points, one in three runs checked plans and another one in three runs optimised code,
    chosen by the point's name; with `-m "long or not long"` every point has both. A test without parameters always runs
    optimised code.
    """
    turn = zlib.crc32(request.node.name.encode()) % 3
    if are_whole(request.config) or turn == 0:
        monkeypatch.setenv("CTRLGRAD_CHECK_PLANS", "1")
    if are_whole(request.config) or turn == 1 or not hasattr(request.node, "callspec"):
        monkeypatch.delenv("CTRLGRAD_QUICK_CODE")


@pytest.fixture(autouse=True)
def kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write objects to the disk at once instead of after a delay."""
    monkeypatch.setattr(ahead, "put_off", lambda work: work())


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Log of the requests that compiled code makes during a test."""
    found: list[Request] = []
    serve = Frame.serve

    def noted(self: Frame, request: int, a: int, b: int) -> None:
        found.append(Request(request))
        serve(self, request, a, b)

    monkeypatch.setattr(Frame, "serve", noted)
    return found


@pytest.fixture
def native() -> Iterator[Products]:
    """The process's product routines; the number of threads is restored after the test."""
    found = products()
    before = found.threads
    yield found
    found.set_threads(before)
