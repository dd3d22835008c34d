"""Comparisons of a size, a count or a number of threads with a constant, found in the source by its syntax.

A comparison is `a < CONSTANT` in Python (any order relation), `f.test("slt", a, CONSTANT)` of a writer of machine code,
and `min`, `max`, `smaller`, `larger` with a constant. A constant is a number other than -1, 0 and 1, which are not
thresholds, or a name in capitals.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "ctrlgrad/engines/native",
    "ctrlgrad/engines/block_kernels.py",
    "ctrlgrad/plan",
    "ctrlgrad/runtime",
    "stacks",
    "memory",
)
_LIMITING = ("test", "min", "max", "smaller", "larger")
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True)
class Threshold:
    """`text` is the comparison as Python writes it; `constants` are the numbers and names in it."""

    file: str
    text: str
    constants: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The file and the constants: the comparison may be worded anew."""
        return self.file, " ".join(dict.fromkeys(self.constants))

    def numbers(self) -> Iterator[int]:
        """The sizes that the comparison is about: a number of bytes is one of elements of 8 and of 4 bytes, too."""
        module: Any = importlib.import_module(_module(self.file))
        for name in self.constants:
            value = ast.literal_eval(name) if name[0].isdigit() else _value(module, name)
            if isinstance(value, int):
                yield from (value, value // 8, value // 4) if "BYTES" in name or "IT_LIES" in name else (value,)


def thresholds() -> list[Threshold]:
    paths = [ROOT / place for place in PLACES]
    return [found for path in paths for file in sorted(path.rglob("*.py")) or [path] for found in _found(file)]


def _found(file: Path) -> Iterator[Threshold]:
    for node in ast.walk(ast.parse(file.read_text())):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare) and any(isinstance(op, _ORDER) for op in node.ops):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and _called(node) in _LIMITING:
            operands = [x for x in node.args if not isinstance(x, ast.GeneratorExp)]
        constants = [name for operand in operands for name in _constants(operand)]
        if constants:
            yield Threshold(str(file.relative_to(ROOT)), ast.unparse(node), tuple(constants))


def _called(node: ast.Call) -> str:
    called = node.func
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def _constants(node: ast.expr) -> list[str]:
    if isinstance(node, ast.BinOp):
        return [*_constants(node.left), *_constants(node.right)]
    if isinstance(node, ast.Constant):
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        return [repr(node.value)] if is_number and node.value not in (-1, 0, 1) else []
    name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    last = name.rpartition(".")[2].lstrip("_")
    return [name] if len(last) > 1 and last.isupper() else []


def _value(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _module(file: str) -> str:
    path = file.removeprefix("ctrlgrad/").removesuffix(".py").removesuffix("/__init__")
    return "ctrlgrad." + path.replace("/", ".")
