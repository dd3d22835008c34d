"""Helpers for tests of mistakes: the line that the error must show, the text that it must have, and ways to call.

A comment `# <- mark` names the line that an error must show. After every mistake correct calls still work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ctrlgrad as cg
from ctrlgrad.errors import (
    CtrlgradError,
)
from ctrlgrad.frontend import trace


@dataclass(frozen=True)
class Mistakes:
    """The mistakes of a file: `mistake(kind, mark, *parts)`."""

    file: Path

    def line_of(self, mark: str) -> int:
        """The line of the file that ends with `# <- mark`."""
        (line,) = [n for n, text in enumerate(self.file.read_text().splitlines(), 1) if text.endswith(f"# <- {mark}")]
        return line

    @contextmanager
    def __call__(self, kind: type[CtrlgradError], mark: str, *parts: str) -> Iterator[None]:
        """The block raises `kind` at the marked line with all five parts and `parts` in its text; then all works on."""
        with pytest.raises(kind) as caught:
            yield
        error, text = caught.value, str(caught.value)
        assert f"{self.file.name}:{self.line_of(mark)} " in text, text
        for label in ("problem", "expected", "got", "hint"):
            assert getattr(error, label), f"no {label} in:\n{text}"
        assert "expected: " in text and "got: " in text and "try: " in text
        for part in parts:
            assert part in text, f"{part!r} is not in:\n{text}"
        assert trace.current() is None
        correct_calls_work()


def correct_calls_work() -> None:
    def f(x: Any) -> Any:
        return cg.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, x)

    assert float(f(3.0)) == 12.0
    assert float(cg.function(f)(3.0)) == 12.0
    assert float(cg.grad(f)(3.0)) == 4.0


def traced(fn: Callable[..., Any], *args: Any) -> Any:
    return cg.function(fn)(*args)


def differentiated(fn: Callable[..., Any], *args: Any) -> Any:
    # With the value: a gradient alone does not run what it has no need of, mistakes included.
    return cg.value_and_grad(fn)(*args)


def eager(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


ways = pytest.mark.parametrize("way", [eager, traced, differentiated])
