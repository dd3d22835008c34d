"""The table of JAX's primitives and what `ctrlgrad.from_jax` does with each.

python docs/build_jax_primitives.py > docs/jax_primitives.md
"""

from __future__ import annotations

import jax.extend.core.primitives as exported

import ctrlgrad.interop.engine_primitive
import ctrlgrad.interop.from_jax  # noqa: F401  (fills the table)
from ctrlgrad.interop.primitives import REFUSED, TABLE


def names() -> list[str]:
    """The primitives that JAX exports."""
    return sorted({getattr(exported, name).name for name in dir(exported) if name.endswith("_p")})


def state(name: str) -> str:
    """State of a primitive: read, refused or not yet."""
    if name in TABLE:
        return "read"
    return f"refused: {REFUSED[name]}" if name in REFUSED else "not yet"


def text() -> str:
    """The whole page."""
    listed = names()
    states = {name: state(name) for name in listed}
    counts = {kind: sum(s.split(":")[0] == kind for s in states.values()) for kind in ("read", "refused", "not yet")}
    further = sorted((set(TABLE) | set(REFUSED)) - set(listed))
    lines = [
        "# JAX's primitives",
        "",
        "Made by `python docs/build_jax_primitives.py > docs/jax_primitives.md`: what `ctrlgrad.from_jax` does with an",
        "equation of each primitive that `jax.extend.core.primitives` exports. What is not read is an error that names",
        "the primitive and the line; `ctrlgrad.interop.jax_primitive(name)` says what a primitive is.",
        "",
        f"Of {len(listed)} primitives {counts['read']} are read, {counts['refused']} are refused, since they have no",
        f"meaning outside of JAX, and {counts['not yet']} are not there yet.",
        "",
        "| primitive | state |",
        "| --- | --- |",
        *(f"| `{name}` | {states[name]} |" for name in listed),
        "",
        "Further primitives, of JAX's inside, its older versions, and Equinox:",
        "",
        "| primitive | state |",
        "| --- | --- |",
        *(f"| `{name}` | {state(name)} |" for name in further),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(text(), end="")
