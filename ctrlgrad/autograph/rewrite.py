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
from malt.pyct.static_analysis import activity, annos, liveness, reaching_definitions, reaching_fndefs

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


class _ControlFlow(control_flow.ControlFlowTransformer):  # type: ignore[misc]
    """malt's; each statement says at last which variables it assigns itself.

    Those that are live neither before nor behind it are none of its state. Where an inner `if` alone assigns one, its
    functions share it with the function around, as `nonlocal`.
    """

    def visit_If(self, node: ast.If) -> Any:
        return _assigning(super().visit_If(node), node, annos.NodeAnno.BODY_SCOPE, annos.NodeAnno.ORELSE_SCOPE)

    def visit_While(self, node: ast.While) -> Any:
        return _assigning(super().visit_While(node), node, annos.NodeAnno.BODY_SCOPE)

    def visit_For(self, node: ast.For) -> Any:
        return _assigning(super().visit_For(node), node, annos.NodeAnno.BODY_SCOPE)


def _assigning(statements: list[Any], node: ast.stmt, *scopes: Any) -> list[Any]:
    """The statements that stand for a node, the last of which is its call, with one more argument."""
    bound = {str(name) for scope in scopes for name in anno.getanno(node, scope).bound if not name.is_composite()}
    names: list[ast.expr] = [ast.Constant(name) for name in sorted(bound)]
    statements[-1].value.args.append(ast.Tuple(names, ast.Load()))
    return statements


def _control_flow(node: Any, context: Any) -> Any:
    graphs = cfg.build(node)
    node = activity.resolve(qual_names.resolve(node), context, None)
    for analysis in (reaching_definitions, reaching_fndefs, liveness):
        node = analysis.resolve(node, context, graphs)
    return _ControlFlow(context).visit(node)


_PASSES: tuple[Callable[[Any, Any], Any], ...] = (
    functions.transform,
    break_statements.transform,
    continue_statements.transform,
    return_statements.transform,
    lambda node, context: _Calls(context).visit(qual_names.resolve(node)),
    _control_flow,
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
