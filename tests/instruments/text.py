"""A kernel's statements as Python, which they are too, with NumPy's functions under the names of the preamble's."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from types import CodeType
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelText
from instruments.kernel_functions import MEANING

_STATEMENT = re.compile(r"(?:(?P<dtype>\w+) )?(?P<name>\w+) = (?P<value>.+);")


def run_text(text: KernelText, inputs: Sequence[Any], before: Sequence[Any] = ()) -> list[np.ndarray]:
    """The outputs of a kernel's text, each of the shape that its statement gives. `before` are the outputs so far."""
    named = [*zip(text.inputs, inputs, strict=True), *zip(text.outputs, before, strict=False)]
    names: dict[str, Any] = {p.name: x for p, x in named}
    dtypes = {p.name: p.dtype for p in text.outputs}
    for name, dtype, value in _statements(text.operation):
        names[name] = np.asarray(eval(value, MEANING, names)).astype(dtype or dtypes[name])
    return [names[p.name] for p in text.outputs]


@functools.cache
def _statements(operation: str) -> list[tuple[str, str | None, CodeType]]:
    """Of each statement the name that it defines, the dtype that it declares, and its value as Python.

    Kept, since a loop launches a kernel again and again.
    """
    found = []
    for line in operation.split("\n"):
        statement = _STATEMENT.fullmatch(line)
        assert statement is not None, line
        found.append((statement["name"], statement["dtype"], compile(statement["value"], "<kernel>", "eval")))
    return found


__all__ = ["run_text"]
