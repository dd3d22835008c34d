"""The elementary functions in CUDA C++, printed from the expressions that the processor's code is printed from too.

So card and processor have one definition, with the accuracy that `ctrlgrad.plan.elementary` states. Arguments that an
expression does not hold for (angles above 1e5) go to CUDA's own functions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.cuda.expressions import Statements, function_name, statements
from ctrlgrad.plan.elementary.table import Elementary, elementary


def definitions(functions: Iterable[Elementary]) -> str:
    """The text of functions and of those that they call, each before its use."""
    ordered: dict[str, Elementary] = {}

    def put(function: Elementary) -> None:
        for inner in _called(function):
            put(inner)
        ordered.setdefault(function_name(function.name, function.dtype), function)

    for function in functions:
        put(function)
    return "".join(map(_definition, ordered.values()))


def _called(function: Elementary) -> list[Elementary]:
    found = list(_statements(function.name, function.dtype.name).functions)
    if function.library is not None and dtype_kind(function.dtype) != "f":
        found.append(elementary(function.library, function.dtype))
    return found


@functools.cache
def _statements(name: str, dtype: str) -> Statements:
    expression = elementary(name, np.dtype(dtype)).expression
    return statements(expression, lambda instruction: f"x{instruction.value}")


def _definition(function: Elementary) -> str:
    body, dtype = _statements(function.name, function.dtype.name), function.dtype.name
    result, *beyond = body.outputs
    given = [f"x{k}" for k in range(function.arity)]
    lines = list(body.lines)
    if beyond:
        assert function.library is not None
        outside = (
            function.library if dtype_kind(function.dtype) == "f" else function_name(function.library, function.dtype)
        )
        lines.append(f"if ({beyond[0]}) return {outside}({', '.join(given)});")
    head = f"{dtype} {function_name(function.name, function.dtype)}({', '.join(f'{dtype} {x}' for x in given)})"
    return "\n".join([f"__device__ inline {head} {{", *lines, f"return {result};", "}\n"])
