"""What the native engine's tests share: which loops ran compiled, and which did not, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("numba")

from ctrlgrad.engines.native.loop import NativeLoop, Plan
from ctrlgrad.ir import Node


@dataclass
class Plans:
    """The plans that were asked for, by loop: a plan, or why there is none."""

    by_loop: dict[Node, Plan | str] = field(default_factory=dict)

    @property
    def native(self) -> list[Plan]:
        return [plan for plan in self.by_loop.values() if isinstance(plan, Plan)]

    @property
    def reasons(self) -> list[str]:
        return [plan for plan in self.by_loop.values() if isinstance(plan, str)]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plans]:
    """Notes what is planned during a test; `by_loop` may be emptied."""
    found = Plans()
    plan = NativeLoop.plan

    def noted(self: NativeLoop, values: Sequence[Any]) -> Plan | str:
        found.by_loop[self.node] = plan(self, values)
        return found.by_loop[self.node]

    monkeypatch.setattr(NativeLoop, "plan", noted)
    yield found
