"""What the tests of machine code share: how it is made, which parts of pieces ran, and what was compiled."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from instruments.tables import are_whole

from ctrlgrad.engines.native import ahead
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.products.library import Products, products
from ctrlgrad.engines.native.runtime import Frame
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import Graph


@pytest.fixture(autouse=True)
def checked_and_optimised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are judged before they run, and machine code as users get it.

    Of the points of a table one in three, by its name, has the one and another one in three the other; with
    `-m "long or not long"` all have both. A test that is no table always has code as users get it.
    """
    turn = zlib.crc32(request.node.name.encode()) % 3
    if are_whole(request.config) or turn == 0:
        monkeypatch.setenv("CTRLGRAD_CHECK_PLANS", "1")
    if are_whole(request.config) or turn == 1 or not hasattr(request.node, "callspec"):
        monkeypatch.delenv("CTRLGRAD_QUICK_CODE")


@pytest.fixture(autouse=True)
def kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept on disk some time later is kept at once."""
    monkeypatch.setattr(ahead, "put_off", lambda work: work())


@pytest.fixture
def parts_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Graph]]:
    """Every part of a piece counts as paying during a test; notes which ran as plans, once per run."""
    from ctrlgrad.engines.native import parts, pieces

    found: list[Graph] = []
    planned = pieces._fitting

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
    monkeypatch.setattr(pieces, "_fitting", noted)
    yield found


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What compiled code asks for during a test."""
    found: list[Request] = []
    serve = Frame.serve

    def noted(self: Frame, request: int, a: int, b: int) -> None:
        found.append(Request(request))
        serve(self, request, a, b)

    monkeypatch.setattr(Frame, "serve", noted)
    return found


@pytest.fixture
def native() -> Iterator[Products]:
    """The process's routines; what a test makes of the number of threads is undone."""
    found = products()
    before = found.threads
    yield found
    found.set_threads(before)
