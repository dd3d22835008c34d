"""The table of ATen's core operators and what `ctrlgrad.from_torch` does with each.

python docs/build_torch_operators.py > docs/torch_operators.md
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._decomp import decomposition_table

from ctrlgrad.interop.torch.entries import REFUSED, TABLE, find
from ctrlgrad.interop.torch.module import HIGHER

DECOMPOSED = "read through PyTorch's decomposition"


def core() -> dict[str, Any]:
    """The operators that PyTorch calls core, by name and overload."""
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            plain, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(torch.ops.aten, plain), overload or "default", None)
            if op is not None and torch.Tag.core in op.tags:
                found[name.removeprefix("aten::")] = op
    return dict(sorted(found.items()))


def state(name: str, op: Any) -> str:
    """State of an operator: read, decomposed or refused."""
    plain = name.split(".")[0]
    reason = REFUSED.get(name) or REFUSED.get(plain)
    if reason is not None:
        return f"refused: {reason}"
    if find(op) is not None or plain in ("sym_size", "sym_numel", "_local_scalar_dense"):
        return "read"
    return DECOMPOSED if op in decomposition_table else "not yet"


def text() -> str:
    """The whole page."""
    states = {name: state(name, op) for name, op in core().items()}
    counts = Counter(s.split(":")[0] for s in states.values())
    known = {name.split(".")[0] for name in states}
    further = sorted({name for name in TABLE if name.split(".")[0] not in known})
    lines = [
        "# PyTorch's operators",
        "",
        "Made by `python docs/build_torch_operators.py > docs/torch_operators.md`: what `ctrlgrad.from_torch` does",
        "with each operator of ATen that PyTorch calls core. What is not read is an error that names the operator and",
        "the line.",
        "",
        f"Of {len(states)} operators {counts['read']} are read, {counts[DECOMPOSED]} are read",
        f"through PyTorch's decomposition of them, {counts['refused']} are refused, and {counts['not yet']} are not",
        "there yet. Operators that are not core are read through PyTorch's decompositions too, where it has one.",
        "",
        "| operator | state |",
        "| --- | --- |",
        *(f"| `{name}` | {found} |" for name, found in states.items()),
        "",
        "Further operators, which PyTorch would take apart:",
        "",
        ", ".join(f"`{name}`" for name in further) + ".",
        "",
        "Operators that own graphs: " + ", ".join(f"`{name}`" for name in sorted(HIGHER)) + ".",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(text(), end="")
