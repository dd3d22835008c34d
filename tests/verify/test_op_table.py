"""The committed table of operations is the one that the registry gives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from ctrlgrad.ir import OPS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "operations.md"
spec = importlib.util.spec_from_file_location("build_operations", DOCS / "build_operations.py")
assert spec is not None and spec.loader is not None
sys.modules["build_operations"] = builder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(builder)
accepted_dtypes, rows, table = builder.accepted_dtypes, builder.rows, builder.table


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == table(), "run: python docs/build_operations.py > docs/operations.md"


def test_nothing_is_missing() -> None:
    assert len(rows()) == len(OPS)
    assert [row for row in rows() if "missing" in row] == []
    assert [name for name, op in OPS.items() if accepted_dtypes(op) == ()] == []


def test_dtypes_are_those_of_the_type_rules() -> None:
    expected = {
        "sin": ("float", "complex"),
        "add": ("int", "float", "complex"),
        "logical_and": ("bool",),
        "bitwise_and": ("int",),
        "where": ("bool", "int", "float", "complex"),
        "max": ("bool", "int", "float"),
        "solve": ("float", "complex"),
        "fft": ("complex",),
        "rfft": ("float",),
        "irfft": ("complex",),
        "real": ("complex",),
        "complex": ("float",),
    }
    assert {name: accepted_dtypes(OPS[name]) for name in expected} == expected
