"""`docs/reference` is what `docs/build_api.py` makes, and says something with an example of every public function."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ctrlgrad

DOCS = Path(__file__).resolve().parent.parent / "docs"
# It waits for a person at a terminal.
WITHOUT_EXAMPLE = {"ctrlgrad.debug.breakpoint"}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_api", DOCS / "build_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build_api = load()
FUNCTIONS = [
    (f"{module_name}.{name}", module, value)
    for module_name, module in build_api.modules()
    for name, value in build_api.members(module)
    if inspect.isfunction(value) and build_api.is_documented(value)
]


def lines_of_examples(module: ModuleType) -> str:
    """The code of all examples in the docstrings of a public module's functions and classes."""
    docstrings = [inspect.getdoc(value) or "" for _, value in build_api.members(module)]
    return "\n".join(re.findall(r"^(?:>>>|\.\.\.) .*$", "\n".join(docstrings), re.MULTILINE))


def is_numpys(full_name: str, value: Any) -> bool:
    """Return true if NumPy documents a function of this name that does the same."""
    space, name = full_name.rsplit(".", 1)
    where = {"ctrlgrad.numpy": np, "ctrlgrad.numpy.linalg": np.linalg, "ctrlgrad.numpy.fft": np.fft}.get(space)
    return where is not None and hasattr(where, name)


def test_the_pages_are_up_to_date() -> None:
    committed = {path.name: path.read_text() for path in build_api.FOLDER.glob("*.md")}
    stale = [name for name, text in build_api.pages().items() if committed.pop(name, None) != text]
    assert (stale, list(committed)) == ([], []), "run: python docs/build_api.py"


def test_every_public_name_is_in_them() -> None:
    pages = build_api.pages()
    page = pages["ctrlgrad.md"].splitlines()
    for name in ctrlgrad.__all__:
        value = getattr(ctrlgrad, name)
        if isinstance(value, ModuleType):
            assert pages[f"ctrlgrad.{name}.md"].startswith(f"# ctrlgrad.{name}\n")
        elif build_api.is_documented(value):
            assert f"## {name}" in page
        else:
            assert any(f"`{name}`" in line for line in page), name
    further = {"nn": "gru_cell", "numpy.linalg": "solve", "numpy.fft": "rfft", "optim": "adam", "debug": "print"}
    assert [name for name, of in further.items() if f"\n## {of}\n" not in pages[f"ctrlgrad.{name}.md"]] == []


@pytest.mark.parametrize(("name", "module", "value"), FUNCTIONS, ids=[name for name, *_ in FUNCTIONS])
def test_a_public_function_is_documented_by_example(name: str, module: ModuleType, value: Any) -> None:
    """In its own docstring, or in that of a function beside it that it is used with."""
    docstring = inspect.getdoc(value) or ""
    assert docstring
    if is_numpys(name, value) or name in WITHOUT_EXAMPLE:
        return
    used = re.search(rf"\b{value.__name__}\(", lines_of_examples(module))
    assert ">>> " in docstring or used, f"{name} has no example"


def test_nothing_on_the_pages_changes_from_run_to_run() -> None:
    assert not re.search(r"0x[0-9a-f]{6}|<(function|class|object|module) ", "\n".join(build_api.pages().values()))
