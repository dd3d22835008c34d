"""docs/torch_operators.md says what `from_torch` does with each operator."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

DOCS = Path(__file__).resolve().parents[3] / "docs"


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_torch_operators", DOCS / "build_torch_operators.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_table_says() -> None:
    if torch.__version__.split("+")[0] != "2.13.0":
        pytest.skip("the page lists the operators of PyTorch 2.13.0")
    assert builder().text() == (DOCS / "torch_operators.md").read_text()


def test_no_core_operator_is_without_a_state() -> None:
    made = builder()
    assert [name for name, op in made.core().items() if made.state(name, op) == "not yet"] == []
