"""Every place of a module's text where a thread waits, and the module without it.

A wait is a call of a method that makes a stream or the host wait, or that puts an event behind work; what a wait is for
is not known here. A look is a question whether something is over: without it the answer is always yes.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

_WAITS = {"wait", "wait_event", "follow", "synchronize", "_synchronize", "join", "launch_host_func"}
_LOOKS = {"is_done", "done"}


@dataclass(frozen=True)
class Site:
    """A wait in a function of a module: its place in the text, and what stands there."""

    module: ModuleType
    function: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.module.__name__.removeprefix('ctrlgrad.')}.{self.function}: {self.text}"


def sites(module: ModuleType) -> list[Site]:
    """Waits in the order of the text, without functions that contain further waits."""
    found: list[Site] = []

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        inner = names
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = (*names, node.name)
        if names and _is_wait(node):
            assert isinstance(node, ast.expr)
            found.append(Site(module, ".".join(names), ast.unparse(node), node.lineno, node.col_offset))
            return
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(_tree(module), ())
    return found


@functools.cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _is_wait(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if isinstance(node.func.value, ast.Constant):
            return False  # the parts of a text are joined
        # An event that is put behind work on a stream that it is told; one that is given back is no wait by itself.
        return node.func.attr in _WAITS | {"is_done"} or (node.func.attr == "record" and bool(node.args))
    return isinstance(node, ast.Attribute) and node.attr == "done" and isinstance(node.ctx, ast.Load)


class _Without(ast.NodeTransformer):
    def __init__(self, site: Site) -> None:
        self.site = site

    def visit(self, node: ast.AST) -> Any:
        if _is_wait(node) and (node.lineno, node.col_offset) == (self.site.line, self.site.column):  # type: ignore[attr-defined]
            assert isinstance(node, ast.expr)
            name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else "done"
            return ast.copy_location(ast.Constant(True if name in _LOOKS else None), node)
        return super().visit(node)


def without(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """Have the function do without the wait."""
    tree = _Without(site).visit(ast.parse(inspect.getsource(site.module)))
    code = compile(ast.fix_missing_locations(tree), site.module.__file__ or "", "exec")
    found = next(c for c in _codes(code) if c.co_qualname.replace(".<locals>", "") == site.function)
    # The names up to a function within a function are those of the outer one.
    function = _function(site.module, found.co_qualname.split(".<locals>")[0])
    outer = next(c for c in _codes(code) if c.co_qualname == function.__qualname__)
    monkeypatch.setattr(function, "__code__", outer)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _function(module: ModuleType, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    found = found.fget if isinstance(found, property) else found
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType)
    return found


__all__ = ["Site", "sites", "without"]
