"""malt's passes over a canonical tree: every statement and operator that decides something becomes a call.

`return`, `break` and `continue` become flags; `if`, `while` and `for` become calls of `ag__.if_stmt` and so on over
the variables that are live across them; `and`, `or`, `not` and conditional expressions calls with their operands
as functions; calls of functions become `ag__.converted_call`; reads of variables `ag__.ld`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from malt.converters import (
    break_statements,
    call_trees,
    conditional_expressions,
    continue_statements,
    control_flow,
    functions,
    logical_expressions,
    return_statements,
    variables,
)
from malt.core import converter, unsupported_features_checker
from malt.pyct import anno, cfg, naming, origin_info, qual_names, transformer
from malt.pyct.static_analysis import activity, reaching_definitions

from ctrlgrad.autograph.parse import Definition, Unconvertible

# These look at the frame that calls them, so they are called where the user calls them.
_FRAME_READERS = frozenset({"globals", "locals", "vars", "dir", "eval", "exec", "super", "breakpoint"})


class _ConditionalExpressions(conditional_expressions.ConditionalExpressionTransformer):  # type: ignore[misc]
    """malt's, for conditional expressions inside of others too."""

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return super().visit_IfExp(self.generic_visit(node))


class _Calls(call_trees.CallTreeTransformer):  # type: ignore[misc]
    """malt's, but for the functions that look at the frame that calls them."""

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id in _FRAME_READERS:
            return self.generic_visit(node)
        return super().visit_Call(node)


_PASSES: tuple[Callable[[Any, Any], Any], ...] = (
    functions.transform,
    break_statements.transform,
    continue_statements.transform,
    return_statements.transform,
    lambda node, context: _Calls(context).visit(qual_names.resolve(node)),
    control_flow.transform,
    lambda node, context: _ConditionalExpressions(context).visit(node),
    logical_expressions.transform,
    variables.transform,
)


def rewrite(definition: Definition, text: str, file: str, namespace: Mapping[str, Any]) -> tuple[ast.stmt, str]:
    """The statement that defines the rewritten function, and the name that it gives it.

    The nodes keep, as annotations of malt, where in `file` they come from.
    """
    first = (
        definition.decorator_list[0] if isinstance(definition, ast.FunctionDef) and definition.decorator_list else None
    )
    origin_info.resolve(definition, text, file, (first or definition).lineno, definition.col_offset)
    namer = naming.Namer(dict(namespace))
    name = namer.new_symbol("ag__" + (definition.name if isinstance(definition, ast.FunctionDef) else "lambda"), ())
    info = transformer.EntityInfo(
        name=name, source_code=text, source_file=file, future_features=(), namespace=dict(namespace)
    )
    context = transformer.Context(info, namer, converter.ProgramContext(options=converter.STANDARD_OPTIONS))
    _erase_defaults(definition.args)
    try:
        node = _analyse(definition, context)
        for transform in _PASSES:
            node = transform(node, context)
    except Exception as error:
        raise Unconvertible(f"{error}" or type(error).__name__) from error
    if isinstance(node, ast.Lambda):
        return ast.Assign(targets=[ast.Name(name, ctx=ast.Store())], value=node), name
    node.name = name
    return node, name


def _analyse(node: Any, context: Any) -> Any:
    unsupported_features_checker.verify(node)
    graphs = cfg.build(node)
    node = qual_names.resolve(node)
    node = activity.resolve(node, context, None)
    node = reaching_definitions.resolve(node, context, graphs)
    anno.dup(node, {anno.Static.DEFINITIONS: anno.Static.ORIG_DEFINITIONS})
    return node


def _erase_defaults(arguments: ast.arguments) -> None:
    """The values of defaults are taken over from the function itself."""
    arguments.defaults = [ast.copy_location(ast.Constant(None), x) for x in arguments.defaults]
    arguments.kw_defaults = [x and ast.copy_location(ast.Constant(None), x) for x in arguments.kw_defaults]
