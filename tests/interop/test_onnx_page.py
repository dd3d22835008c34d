"""The page on ONNX's operators: what it says is so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The version of ONNX whose operators the page lists.
LISTED = "1.23"


@pytest.mark.skipif(not onnx.__version__.startswith(LISTED + "."), reason=f"the page lists the operators of {LISTED}")
def test_the_table_of_operators_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("build_onnx_operators", DOCS / "build_onnx_operators.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "onnx_operators.md").read_text() == module.text(), (
        "run: python docs/build_onnx_operators.py > docs/onnx_operators.md"
    )
