"""Makes a function of a rewritten definition: same name, arguments, defaults, globals and closure as the original.

The code is compiled under the original's file name, each instruction at the line that it was made from, so
tracebacks, errors and debuggers show the user's own source.
"""

from __future__ import annotations

import ast
from types import CellType, CodeType, FunctionType
from typing import Any

from malt.pyct import anno, ast_util

_OUTER, _INNER = "outer_factory__", "inner_factory__"


class Factory:
    """Compiled code of a rewritten function; `bind` makes functions of it, one for each closure."""

    def __init__(self, statement: ast.stmt, name: str, own: set[str], fn: FunctionType) -> None:
        """`own`: the names of the functions and classes that the original defines inside of itself."""
        module = _with_lines(_wrapped(statement, name, fn.__code__.co_freevars), fn.__code__.co_firstlineno)
        code = compile(module, fn.__code__.co_filename, "exec", flags=0, dont_inherit=True)
        namespace: dict[str, Any] = {}
        exec(code, namespace)
        inner: FunctionType = namespace[_OUTER]()
        self.code = _renamed(inner.__code__, name, fn.__code__, own)
        self.name = name

    def bind(self, fn: FunctionType, runtime: Any) -> FunctionType:
        """The rewritten function over the globals, closure and defaults of `fn`."""
        cells: dict[str, CellType] = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in self.code.co_freevars)
        make = FunctionType(self.code, fn.__globals__, _INNER, None, closure)
        compiled: FunctionType = make(runtime)
        compiled.__name__, compiled.__qualname__, compiled.__module__ = fn.__name__, fn.__qualname__, fn.__module__
        compiled.__doc__, compiled.__annotations__ = fn.__doc__, fn.__annotations__
        compiled.__defaults__, compiled.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
        compiled.__dict__.update(fn.__dict__)
        return compiled


def _wrapped(statement: ast.stmt, name: str, free: tuple[str, ...]) -> list[ast.stmt]:
    """Two functions around the definition: one that makes `free` closure variables, one that passes `ag__` in."""
    text = f"def {_OUTER}():\n"
    text += "".join(f"    {variable} = None\n" for variable in free)
    text += f"    def {_INNER}(ag__):\n        pass\n        return {name}\n    return {_INNER}\n"
    outer = ast.parse(text).body[0]
    assert isinstance(outer, ast.FunctionDef)
    inner = outer.body[-2]
    assert isinstance(inner, ast.FunctionDef)
    inner.body[0] = statement
    return [outer]


def _with_lines(statements: list[ast.stmt], first: int) -> ast.Module:
    """The tree written out and parsed again, which makes it well-formed, with the original line at each node."""
    for statement in statements:
        ast.fix_missing_locations(statement)
    module = ast.parse("\n".join(ast.unparse(statement) for statement in statements))
    lines: dict[int, int] = {}
    for before, after in ast_util.parallel_walk(statements, module.body):
        if isinstance(before, ast.AST):
            origin = anno.getanno(before, anno.Basic.ORIGIN, default=None)
            if origin is not None:
                lines[id(after)] = origin.loc.lineno
    for statement in module.body:
        _place(statement, first, lines)
    return module


def _place(node: ast.AST, line: int, lines: dict[int, int]) -> None:
    line = lines.get(id(node), line)
    if "lineno" in node._attributes:
        # Columns of -1 say that there are none.
        node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
        node.col_offset = node.end_col_offset = -1  # type: ignore[attr-defined]
    for child in ast.iter_child_nodes(node):
        _place(child, line, lines)


def _renamed(code: CodeType, name: str, original: CodeType, own: set[str]) -> CodeType:
    """The factory's code with the names of the original, also for the functions that were made of its blocks."""

    def rename(inner: CodeType, co_name: str, qualname: str) -> CodeType:
        constants = []
        for constant in inner.co_consts:
            if isinstance(constant, CodeType):
                if constant.co_name in own:
                    inside = constant.co_name, f"{qualname}.<locals>.{constant.co_name}"
                else:
                    inside = co_name, qualname
                constant = rename(constant, *inside)
            constants.append(constant)
        return inner.replace(co_name=co_name, co_qualname=qualname, co_consts=tuple(constants))

    constants = [
        rename(c, original.co_name, original.co_qualname) if isinstance(c, CodeType) else c for c in code.co_consts
    ]
    return code.replace(co_consts=tuple(constants))
