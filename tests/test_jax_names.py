"""`docs/jax_names.md` says which of JAX's names there are here, and is what its script makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import jax
import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
# The version of JAX whose names the page lists.
LISTED = "0.10"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_jax_names", DOCS / "build_jax_names.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not jax.__version__.startswith(LISTED + "."), reason=f"the page lists the names of JAX {LISTED}")
def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "jax_names.md").read_text() == load().text(), (
        "run: python docs/build_jax_names.py > docs/jax_names.md"
    )


@pytest.mark.parametrize("name", load().MODULES.values())
def test_exported_names_exist(name: str) -> None:
    module = importlib.import_module(name)
    assert [x for x in module.__all__ if not hasattr(module, x)] == []
    assert len(set(module.__all__)) == len(module.__all__)
