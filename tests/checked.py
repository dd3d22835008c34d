"""`checked`: every plan that the native engine makes is judged before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ctrlgrad.plan.checker import check


@contextmanager
def checked() -> Iterator[None]:
    """Within it, a plan in which a read could find another value than it wants is a `PlanError`."""
    from ctrlgrad.engines.llvm import engine

    compiled = engine.compiled

    def judged(plan: Any) -> Any:
        check(plan)
        return compiled(plan)

    engine.compiled = judged
    try:
        yield
    finally:
        engine.compiled = compiled
