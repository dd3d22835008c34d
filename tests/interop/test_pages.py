"""The pages on JAX: what they say is so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The version of JAX whose primitives the page lists.
LISTED = "0.10"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_jax_primitives", DOCS / "build_jax_primitives.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not jax.__version__.startswith(LISTED + "."), reason=f"the page lists the primitives of {LISTED}")
def test_the_table_of_primitives_is_up_to_date() -> None:
    text = load().text()
    assert text.count("| read |") > 150
    assert (DOCS / "jax_primitives.md").read_text() == text, (
        "run: python docs/build_jax_primitives.py > docs/jax_primitives.md"
    )


def test_the_page_on_while_loops_bears_jaxs_words() -> None:
    title = (DOCS / "jax_while_loop.md").read_text().splitlines()[0].removeprefix("# ")
    with pytest.raises(ValueError) as raised:
        jax.grad(lambda x: jax.lax.while_loop(lambda x: x < 3, lambda x: 2 * x, x))(jnp.float32(1))
    assert str(raised.value) == title
