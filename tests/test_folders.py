"""Each folder's `__init__.py` says what the folder contains, in a docstring of a page at most."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [
    path.parent
    for part in ("ctrlgrad", "gradients", "stacks", "memory")
    for path in sorted((ROOT / part).rglob("__init__.py"))
]


def modules(folder: Path) -> set[str]:
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", FOLDERS[1:], ids=lambda folder: str(folder.relative_to(ROOT)))
def test_docstring_of_a_folder_names_its_modules(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert len(docstring.splitlines()) <= 60
    words = set(re.findall(r"\w+", docstring))
    assert modules(folder) <= words, modules(folder) - words
    # Names in the left column of a list of modules.
    columns = re.findall(r"^ {4}((?:[a-z_]+, )*[a-z_]+)(?= {2}|$)", docstring, re.MULTILINE)
    listed = {name for column in columns for name in column.split(", ")}
    assert listed <= modules(folder), listed - modules(folder)


def test_architecture_page_names_the_folders() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    parts = {f"{folder.name}/" for folder in FOLDERS if folder.parent in (ROOT, ROOT / "ctrlgrad")} - {"ctrlgrad/"}
    assert [part for part in sorted(parts) if part not in page] == []
