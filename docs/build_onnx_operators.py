"""The table of ONNX's operators and what `ctrlgrad.from_onnx` does with each.

python docs/build_onnx_operators.py > docs/onnx_operators.md
"""

from __future__ import annotations

from onnx import defs

import ctrlgrad.interop.onnx.reader  # noqa: F401  (fills the table)
from ctrlgrad.interop.onnx.operators import REFUSED, TABLE


def names() -> list[str]:
    """The operators of ONNX's own domain that are not deprecated."""
    schemas = [s for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated]
    return sorted({s.name for s in schemas})


def state(name: str) -> str:
    """State of an operator: read, refused or not yet."""
    if ("", name) in TABLE:
        return "read"
    if name in REFUSED:
        return f"refused: {REFUSED[name]}"
    schema = defs.get_schema(name)
    return "read as ONNX's function" if schema.has_function or schema.has_context_dependent_function else "not yet"


def text() -> str:
    """The whole page."""
    listed = names()
    states = {name: state(name) for name in listed}
    kinds = ("read", "read as ONNX's function", "refused", "not yet")
    counts = {kind: sum(s.split(":")[0] == kind for s in states.values()) for kind in kinds}
    lines = [
        "# ONNX's operators",
        "",
        "Made by `python docs/build_onnx_operators.py > docs/onnx_operators.md`: what `ctrlgrad.from_onnx` does with a",
        "node of each operator of ONNX's own domain. Many that have no entry of their own are defined by ONNX as a",
        "function of other operators, and read as that. Any other operator is an error that names it and the node;",
        "`ctrlgrad.interop.onnx_op(name, domain)` says what an operator is. Values are booleans, integers, float16,",
        "bfloat16, float32, float64 and complex numbers; strings and floats of 8 and fewer bits are refused.",
        "",
        f"Of {len(listed)} operators {counts['read']} are read, {counts[kinds[1]]} are read as functions,",
        f"{counts['refused']} are refused, and {counts['not yet']} are not there yet.",
        "`python -m tests.onnx_suite` runs ONNX's own tests of them.",
        "",
        "| operator | state |",
        "| --- | --- |",
        *(f"| `{name}` | {states[name]} |" for name in listed),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(text(), end="")
