"""What the native engine's tests share: which loops ran compiled, and which did not, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from ctrlgrad.ir import Node

if TYPE_CHECKING:
    from ctrlgrad.engines.native.loop import NativeLoop, Plan


@dataclass
class Plans:
    """The plans that were asked for, by loop: a plan, or why there is none."""

    by_loop: dict[Node, Plan | str] = field(default_factory=dict)
    # The generated code of all plans, whatever the sizes were.
    sources: set[str] = field(default_factory=set)

    @property
    def native(self) -> list[Plan]:
        return [plan for plan in self.by_loop.values() if not isinstance(plan, str)]

    @property
    def reasons(self) -> list[str]:
        return [plan for plan in self.by_loop.values() if isinstance(plan, str)]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plans]:
    """Notes what is planned during a test."""
    from ctrlgrad.engines.native.loop import NativeLoop

    found = Plans()
    plan = NativeLoop.plan

    def noted(self: NativeLoop, values: Sequence[Any]) -> Plan | str:
        made = found.by_loop[self.node] = plan(self, values)
        if not isinstance(made, str):
            found.sources.add(made.program.source)
        return made

    monkeypatch.setattr(NativeLoop, "plan", noted)
    yield found


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The sources that are compiled during a test, in which none is at hand."""
    from ctrlgrad.engines.native import compiler

    found: list[str] = []
    make = compiler._compiled_now

    def noted(source: str) -> Any:
        found.append(source)
        return make(source)

    monkeypatch.setattr(compiler, "_compiled_now", noted)
    monkeypatch.setattr(compiler, "_from_disk", lambda source: None)
    monkeypatch.setattr(compiler, "find", lambda source: None)
    monkeypatch.setattr(compiler, "_FUNCTIONS", {})
    yield found
