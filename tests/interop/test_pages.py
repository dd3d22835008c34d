"""The pages on JAX: what they say is so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The version of JAX whose primitives the page lists.
LISTED = "0.10"


@pytest.mark.skipif(not jax.__version__.startswith(LISTED + "."), reason=f"the page lists the primitives of {LISTED}")
def test_the_table_of_primitives_is_up_to_date() -> None:
    # In a process of its own: tests and examples add primitives to the table.
    text = subprocess.check_output([sys.executable, DOCS / "build_jax_primitives.py"], text=True)
    assert text.count("| read |") > 150
    assert (DOCS / "jax_primitives.md").read_text() == text, (
        "run: python docs/build_jax_primitives.py > docs/jax_primitives.md"
    )


def test_the_page_on_while_loops_bears_jaxs_words() -> None:
    title = (DOCS / "jax_while_loop.md").read_text().splitlines()[0].removeprefix("# ")
    with pytest.raises(ValueError) as raised:
        jax.grad(lambda x: jax.lax.while_loop(lambda x: x < 3, lambda x: 2 * x, x))(jnp.float32(1))
    assert str(raised.value) == title
