"""The syntax tree of a function, found in its source file by the position of its code.

The tree keeps the line and column numbers of the file, so everything made of it can be traced back. A lambda is
told from other lambdas on the same line by the columns that its instructions come from.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import CodeType, FunctionType

Definition = ast.FunctionDef | ast.Lambda


class Unconvertible(Exception):
    """A function cannot be converted; the message says why."""


def parse(fn: FunctionType) -> tuple[Definition, str]:
    """A fresh tree of the function's definition, and the text of its file."""
    code = fn.__code__
    text = "".join(linecache.getlines(code.co_filename, fn.__globals__))
    # Every `eval` and `exec` has this name; from Python 3.13 on the text kept under it is that of `python -c`.
    if not text or code.co_filename == "<string>":
        raise Unconvertible("its source code cannot be read (it must be in a file or a notebook cell)")
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise Unconvertible(f"its source file has changed or is no Python: {error}") from error
    found = list(_candidates(module, code))
    if len(found) > 1:
        found = _innermost(found, code)
    if len(found) != 1:
        raise Unconvertible("its definition is not found in its source file, which has changed since it was imported")
    return found[0], text


def _candidates(module: ast.Module, code: CodeType) -> Iterator[Definition]:
    for node in ast.walk(module):
        if (
            isinstance(node, ast.AsyncFunctionDef)
            and _first_line(node) == code.co_firstlineno
            and node.name == code.co_name
        ):
            raise Unconvertible("it is a coroutine")
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name and _first_line(node) == code.co_firstlineno:
            yield node
        if isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            yield node


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _innermost(candidates: list[Definition], code: CodeType) -> list[Definition]:
    """From several lambdas on a line, select the smallest that spans the code's instructions and has its arguments."""
    positions = [[n or 0 for n in position] for position in code.co_positions() if None not in position]
    # Instructions that stand for no text of the user's have an empty span.
    spans = [((a, b), (c, d)) for a, c, b, d in positions if (a, b) != (c, d)]
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def fits(node: Definition) -> bool:
        a = node.args
        names = tuple(x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs))
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        return names == arguments and all(start <= first and last <= end for first, last in spans)

    def size(node: Definition) -> tuple[int, int]:
        return ((node.end_lineno or 0) - node.lineno, (node.end_col_offset or 0) - node.col_offset)

    fitting = sorted(filter(fits, candidates), key=size)
    return fitting[:1]
