"""Elementwise ops as text for kernels, from the text that the CPU's code generator has for them.

`ctrlgrad.engines.native.expressions` is the one table of what an elementwise op computes. Its text is Python's. Here
`a if c else b` becomes `np_select(c, a, b)`, `and`, `or` and `not` become `&`, `|` and a comparison, functions get the
names of `functions`; what is left reads the same in CUDA C++ and in Python: typed calls such as `float32(x)`,
operators, comparisons.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from ctrlgrad.engines.cuda.functions import C_TYPES, FUNCTIONS
from ctrlgrad.engines.native.expressions import expression, literal, type_name
from ctrlgrad.engines.native.layout import NotNative
from ctrlgrad.ir import Node, TensorType, Trait, Value

# Whole numbers up to here are written into a kernel; others are passed to it.
_LARGEST_LITERAL = 2**31 - 1


def has_kernel_type(value: Value) -> bool:
    """Whether kernels compute with a value's dtype: bools, integers, single and double floats."""
    return isinstance(value.type, TensorType) and (value.type.dtype.kind == "b" or value.type.dtype.name in C_TYPES)


def is_fusible(node: Node) -> bool:
    """Whether a node can be a part of a kernel."""
    if Trait.ELEMENTWISE not in node.op.traits or not all(map(has_kernel_type, (*node.operands, *node.results))):
        return False
    try:
        kernel_expression(node, [f"a{i}" for i in range(len(node.operands))])
    except NotNative:
        return False
    return True


def kernel_expression(node: Node, args: Sequence[str]) -> str:
    """The value of an elementwise node's element, from names of its operands'. Raises `NotNative`."""
    return translated(expression(node, args))


def translated(text: str) -> str:
    """An expression of the CPU's, as kernels have it. Raises `NotNative`.

    >>> translated("float32(arctan2(a, b)) if not c else float32(0.5)")
    'np_select(c == false, float32(atan2(a, b)), float32(0.5))'
    """
    return ast.unparse(_Translation().visit(ast.parse(text, mode="eval")))


def kernel_literal(value: np.ndarray) -> str | None:
    """A scalar constant as text; None where it must be passed as an argument."""
    kind = value.dtype.kind
    if kind == "b":
        return "true" if bool(value) else "false"
    if kind in "iu" and abs(int(value)) > _LARGEST_LITERAL:
        return None
    if value.dtype.name not in C_TYPES or (kind == "f" and not np.isfinite(value)):
        return None
    return literal(value)


class _Translation(ast.NodeTransformer):
    """From Python's expression to one that CUDA C++ reads alike."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._call("np_select", [self.visit(node.test), self.visit(node.body), self.visit(node.orelse)])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        left, right = (self.visit(value) for value in node.values)
        return ast.BinOp(left, ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return ast.Compare(operand, [ast.Eq()], [ast.Name("false", ast.Load())])
        return ast.UnaryOp(node.op, operand)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name not in C_TYPES:
            if name not in FUNCTIONS:
                raise NotNative(f"{name} has no form in a kernel")
            name = FUNCTIONS[name]
        return self._call(name, [self.visit(argument) for argument in node.args])

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        raise NotNative("complex numbers have no form in a kernel")

    @staticmethod
    def _call(name: str, arguments: list[ast.expr]) -> ast.expr:
        return ast.Call(ast.Name(name, ast.Load()), arguments, [])


__all__ = ["has_kernel_type", "is_fusible", "kernel_expression", "kernel_literal", "translated", "type_name"]
