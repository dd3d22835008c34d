"""The table of JAX's names and what there is of them here.

python docs/build_jax_names.py > docs/jax_names.md
"""

from __future__ import annotations

import importlib
from types import ModuleType

# JAX's module -> ours.
MODULES = {
    "jax.numpy": "ctrlgrad.numpy",
    "jax.nn": "ctrlgrad.nn",
    "jax.lax": "ctrlgrad.lax",
    "jax.scipy.special": "ctrlgrad.scipy.special",
    "jax.scipy.linalg": "ctrlgrad.scipy.linalg",
    "jax.random": "ctrlgrad.random",
}


def names(module: ModuleType) -> list[str]:
    """The public names of one of JAX's modules, without its primitives and submodules."""
    return sorted(
        name
        for name in dir(module)
        if not name.startswith("_") and not name.endswith("_p") and not isinstance(getattr(module, name), ModuleType)
    )


def present(name: str, ours: ModuleType) -> bool:
    """True if a module offers a name; names that the module imports for its own use do not count."""
    return name in getattr(ours, "__all__", ())


def text() -> str:
    """The whole page."""
    lines = [
        "# JAX's names",
        "",
        "Made by `python docs/build_jax_names.py > docs/jax_names.md`: which names of JAX's modules there are here.",
        "",
    ]
    parts, counts = [], ["| JAX | here | names | there |", "| --- | --- | --- | --- |"]
    for theirs, ours in MODULES.items():
        module = importlib.import_module(ours)
        listed = names(importlib.import_module(theirs))
        there = [name for name in listed if present(name, module)]
        absent = [name for name in listed if name not in there]
        counts.append(f"| `{theirs}` | `{ours}` | {len(listed)} | {len(there)} |")
        parts += [f"## {theirs}", "", "There:", *_wrapped(there), "", "Not there:", *_wrapped(absent), ""]
    return "\n".join([*lines, *counts, "", *parts]).rstrip() + "\n"


def _wrapped(listed: list[str]) -> list[str]:
    """Names in lines of a readable length."""
    lines = [""]
    for name in listed:
        word = f"`{name}`"
        if lines[-1] and len(lines[-1]) + len(word) > 116:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


if __name__ == "__main__":
    print(text(), end="")
