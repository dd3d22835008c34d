"""Lowering of the syntax that malt does not know, or does not lower to Python's exact meaning, before malt runs.

In: the tree of a function as parsed. Out: a tree in which

- comparisons with several operators, `in` and `is` are calls of `ag__.chain`, `ag__.contains` and `ag__.is_`, so that
  each operand is evaluated once;
- `assert` is a call of `ag__.assert_stmt`; what `raise` raises goes through `ag__.raised`, and `except` begins with
  `ag__.handled`;
- `for` and `while` have no `else`;
- `match` is `if` and `else`, and an assignment `:=` that its statement evaluates first is a statement before it;
- `super()` names its class and object;
- annotations are gone: they would be evaluated where their names may not exist.

Line numbers are kept. What cannot be lowered is `Unconvertible`, with the line.
"""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

# The syntax tree of a function, found in its source file by the position of its code.
#
# The tree keeps the line and column numbers of the file, so everything made of it can be traced back. A lambda is
# told from other lambdas on the same line by the columns that its instructions come from.


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


N = TypeVar("N", bound=ast.AST)


def canonical(definition: Definition) -> Definition:
    """The tree with malt's blind spots lowered; works in place."""
    return _Canonical().visit(definition)  # type: ignore[no-any-return]


def _at(place: ast.AST, node: N) -> N:
    """A new node and all below it that has no line yet, at the line of another."""
    for part in ast.walk(node):
        if isinstance(part, ast.expr | ast.stmt | ast.arg | ast.keyword) and not hasattr(part, "lineno"):
            ast.copy_location(part, place)
    return node


def _runtime(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("ag__", ast.Load()), name, ast.Load())


def _thunk(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]), body)


class _Canonical(ast.NodeTransformer):
    def __init__(self) -> None:
        self.first_argument: list[str | None] = []
        self.loops = self.matches = 0

    def _refuse(self, node: ast.AST, what: str) -> Unconvertible:
        return Unconvertible(f"{what} (line {getattr(node, 'lineno', '?')}) cannot be converted")

    # Functions.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        arguments = node.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in given:
            if argument is not None:
                argument.annotation = None
        node.returns = None
        return self._inside(node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self._inside(node)

    def _inside(self, node: ast.FunctionDef | ast.Lambda) -> Any:
        arguments = (*node.args.posonlyargs, *node.args.args)
        found = list(ast.walk(node))
        outside = next((part for part in found if isinstance(part, ast.Global)), None)
        if outside is not None and any(isinstance(part, ast.For | ast.While) for part in found):
            # A loop carries local variables: a value of one iteration would stay in the global after the trace.
            raise self._refuse(outside, f"global {', '.join(outside.names)}, beside a loop,")
        self.first_argument.append(arguments[0].arg if arguments else None)
        self.generic_visit(node)
        self.first_argument.pop()
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            if not self.first_argument or self.first_argument[-1] is None:
                raise self._refuse(node, "super() in a function without arguments")
            node.args = [ast.Name("__class__", ast.Load()), ast.Name(self.first_argument[-1], ast.Load())]
        return _at(node, node)

    # Comparisons.

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) > 1:
            arguments = [node.left]
            for op, right in zip(node.ops, node.comparators, strict=True):
                arguments += [ast.Constant(type(op).__name__), _thunk(right)]
            return _at(node, ast.Call(_runtime("chain"), arguments, []))
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            name = "contains" if isinstance(node.ops[0], ast.In) else "not_contains"
            return _at(node, ast.Call(_runtime(name), [node.left, node.comparators[0]], []))
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            name = "is_" if isinstance(node.ops[0], ast.Is) else "is_not"
            return _at(node, ast.Call(_runtime(name), [node.left, node.comparators[0]], []))
        return node

    # Statements.

    def visit_Raise(self, node: ast.Raise) -> Any:
        self.generic_visit(node)
        if node.exc is not None:
            node.exc = ast.Call(_runtime("raised"), [node.exc], [])
        return _at(node, node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        self.generic_visit(node)
        node.body.insert(0, _at(node.body[0], ast.Expr(ast.Call(_runtime("handled"), [], []))))
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        self.generic_visit(node)
        if not __debug__:
            return node
        message = ast.Tuple([node.msg] if node.msg else [], ast.Load())
        return _at(node, ast.Expr(ast.Call(_runtime("assert_stmt"), [node.test, _thunk(message)], [])))

    def visit_For(self, node: ast.For) -> Any:
        return self._loop(node)

    def visit_While(self, node: ast.While) -> Any:
        node.test, assigned = _without_assignments(node.test)
        if not assigned:
            return self._loop(node)
        node.body = [_BeforeContinue(assigned).visit(statement) for statement in node.body]
        node.body += copy.deepcopy(assigned)
        return self._behind(assigned, self._loop(node))

    def visit_If(self, node: ast.If) -> Any:
        node.test, assigned = _without_assignments(node.test)
        return self._behind(assigned, self.generic_visit(node))

    def visit_Return(self, node: ast.Return) -> Any:
        return self._of_value(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        return self._of_value(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        return self._of_value(node)

    def _of_value(self, node: Any) -> Any:
        """A statement that evaluates its value first."""
        assigned: list[ast.stmt] = []
        if node.value is not None:
            node.value, assigned = _without_assignments(node.value)
        return self._behind(assigned, self.generic_visit(node))

    def _behind(self, assigned: list[ast.stmt], found: Any) -> Any:
        """Statements that have been visited, behind the assignments taken out of them."""
        found = found if isinstance(found, list) else [found]
        return [*map(self.generic_visit, assigned), *found] if assigned else found if len(found) > 1 else found[0]

    def visit_Match(self, node: ast.Match) -> Any:
        """Rewrite `match` as `if` and `else` on a variable that holds the subject."""
        self.matches += 1
        name = f"subject__{self.matches}"
        otherwise: list[ast.stmt] = []
        for case in reversed(node.cases):
            otherwise = self._case(case, name, otherwise)
        start = ast.Assign([ast.Name(name, ast.Store())], node.subject)
        found: list[Any] = []
        for statement in [_at(node, start), *(_at(node, statement) for statement in otherwise)]:
            visited = self.visit(statement)
            found += visited if isinstance(visited, list) else [visited]
        return found

    def _case(self, case: ast.match_case, name: str, otherwise: list[ast.stmt]) -> list[ast.stmt]:
        test, capture = self._pattern(case.pattern, name)
        bind: list[ast.stmt] = []
        if capture is not None:
            bind = [ast.Assign([ast.Name(capture, ast.Store())], ast.Name(name, ast.Load()))]
        if test is None:
            body = [ast.If(case.guard, case.body, otherwise)] if case.guard else case.body
            return [*bind, *body]
        if case.guard is None:
            return [ast.If(test, [*bind, *case.body], otherwise)]
        if bind:
            raise self._refuse(case.pattern, "a `case` with both `as` and a guard")
        return [ast.If(ast.BoolOp(ast.And(), [test, case.guard]), case.body, otherwise)]

    def _pattern(self, pattern: ast.pattern, name: str) -> tuple[ast.expr | None, str | None]:
        """The test of a pattern (None if everything matches), and the variable that takes the subject."""
        subject = ast.Name(name, ast.Load())
        if isinstance(pattern, ast.MatchValue):
            return ast.Compare(subject, [ast.Eq()], [pattern.value]), None
        if isinstance(pattern, ast.MatchSingleton):
            return ast.Compare(subject, [ast.Is()], [ast.Constant(pattern.value)]), None
        if isinstance(pattern, ast.MatchAs):
            return (self._pattern(pattern.pattern, name)[0] if pattern.pattern else None), pattern.name
        if isinstance(pattern, ast.MatchOr):
            tests = [self._pattern(choice, name)[0] for choice in pattern.patterns]
            if None not in tests:
                return ast.BoolOp(ast.Or(), [test for test in tests if test is not None]), None
        raise self._refuse(pattern, "a `case` other than values, `|`, a name and `_`")

    def _loop(self, node: ast.For | ast.While) -> Any:
        """`else` becomes `if` on a variable that every `break` of the loop sets."""
        if not node.orelse:
            return self.generic_visit(node)
        self.loops += 1
        name = f"broken__{self.loops}"
        orelse, node.orelse = node.orelse, []
        node.body = [_MarkBreaks(name).visit(statement) for statement in node.body]
        start = ast.Assign([ast.Name(name, ast.Store())], ast.Constant(False))
        test = ast.UnaryOp(ast.Not(), ast.Name(name, ast.Load()))
        end = ast.If(test, orelse, [])
        return [_at(node, start), self.generic_visit(node), self.visit(_at(orelse[0], end))]

    # Statements and expressions that are refused.

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        raise self._refuse(node, "an assignment inside an expression, `:=`, that is not evaluated first")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        raise self._refuse(node, "`async def`")

    def visit_TryStar(self, node: ast.AST) -> Any:
        raise self._refuse(node, "`except*`")


# The operand that each kind of expression evaluates first.
_FIRST = {
    ast.Attribute: "value",
    ast.BinOp: "left",
    ast.BoolOp: "values",
    ast.Call: "args",
    ast.Compare: "left",
    ast.IfExp: "test",
    ast.Subscript: "value",
    ast.Tuple: "elts",
    ast.UnaryOp: "operand",
}


def _without_assignments(expression: ast.expr) -> tuple[ast.expr, list[ast.stmt]]:
    """The expression after the assignment `:=` that it evaluates first, and the statements of that assignment.

    Moving any other `:=` before the statement could change what is evaluated before it.
    """
    if isinstance(expression, ast.NamedExpr):
        value, assigned = _without_assignments(expression.value)
        assign = _at(expression, ast.Assign([expression.target], value))
        return _at(expression, ast.Name(expression.target.id, ast.Load())), [*assigned, assign]
    name = _FIRST.get(type(expression))
    if name is None:
        return expression, []
    if isinstance(expression, ast.Call):
        # The function is evaluated before its arguments: it may be a name, or one of a module, that none of them sets.
        called = expression.func.value if isinstance(expression.func, ast.Attribute) else expression.func
        set_inside = {part.target.id for part in ast.walk(expression) if isinstance(part, ast.NamedExpr)}
        if not isinstance(called, ast.Name) or called.id in set_inside:
            return expression, []
    first = getattr(expression, name)
    if not isinstance(first, list):
        value, assigned = _without_assignments(first)
        setattr(expression, name, value)
        return expression, assigned
    assigned = []
    if first:
        first[0], assigned = _without_assignments(first[0])
    return expression, assigned


class _BeforeContinue(ast.NodeTransformer):
    """Repeats statements before each `continue` of one loop, those of loops and functions inside it left alone."""

    def __init__(self, statements: list[ast.stmt]) -> None:
        self.statements = statements

    def visit_Continue(self, node: ast.Continue) -> Any:
        return [*copy.deepcopy(self.statements), node]

    def _left_alone(self, node: ast.AST) -> Any:
        return node

    visit_For = visit_While = visit_FunctionDef = visit_ClassDef = _left_alone


class _MarkBreaks(ast.NodeTransformer):
    """Sets a variable before each `break` of one loop, those of loops inside it left alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Break(self, node: ast.Break) -> Any:
        assign = ast.Assign([ast.Name(self.name, ast.Store())], ast.Constant(True))
        marked = ast.If(ast.Constant(True), [assign, node], [])
        return _at(node, marked)

    def _inner_loop(self, node: ast.For | ast.While) -> Any:
        node.orelse = [self.visit(statement) for statement in node.orelse]
        return node

    def visit_For(self, node: ast.For) -> Any:
        return self._inner_loop(node)

    def visit_While(self, node: ast.While) -> Any:
        return self._inner_loop(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node
