"""Conversion of Python functions: a function given by the user at once, the functions it calls when they are called.

The user's own functions, lambdas, methods and callable objects are converted. So are user functions that are passed on
to ctrlgrad (`ctrlgrad.grad(f)`, `ctrlgrad.scan(f, ...)`) or to `map` and `filter`. The library, NumPy, the standard
library and installed packages are called as they are; so is a function that cannot be converted (a generator, for
example), and errors from inside it say so. A `ctrlgrad.function` decides for itself.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

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
from malt.pyct import anno, ast_util, cfg, naming, origin_info, qual_names, transformer
from malt.pyct.static_analysis import activity, annos, liveness, reaching_definitions, reaching_fndefs

from ctrlgrad import forks, source
from ctrlgrad.autograph import branches, iteration, loops, values
from ctrlgrad.autograph.canonical import Definition, Unconvertible, canonical, parse
from ctrlgrad.autograph.iteration import OVERLOADS
from ctrlgrad.autograph.values import is_traced, number, plain, represented
from ctrlgrad.errors import CtrlgradError, TracingError, UserInputError
from ctrlgrad.source import here

# Compilation of a rewritten definition, with the original's name, arguments, defaults, globals and closure.
#
# The code is compiled under the original's file name, each instruction at the line that it was made from, so
# tracebacks, errors and debuggers show the user's own source.


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


# malt's passes over a canonical tree: every statement and operator that decides something becomes a call.
#
# `return`, `break` and `continue` become flags; `if`, `while` and `for` become calls of `ag__.if_stmt` and so on over
# the variables that are live across them; `and`, `or`, `not` and conditional expressions calls with their operands
# as functions; calls of functions become `ag__.converted_call`; reads of variables `ag__.ld`.


# Functions that inspect the frame of their caller; the user's code must call them directly.
_FRAME_READERS = frozenset({"globals", "locals", "vars", "dir", "eval", "exec", "super", "breakpoint"})


class _ConditionalExpressions(conditional_expressions.ConditionalExpressionTransformer):  # type: ignore[misc]
    """malt's transformer, extended to nested conditional expressions."""

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
    """Add to the call that replaces a statement the names of the variables that the statement assigns."""
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
    # The defaults are those of the function itself.
    arguments = definition.args
    arguments.defaults = [ast.copy_location(ast.Constant(None), x) for x in arguments.defaults]
    arguments.kw_defaults = [x and ast.copy_location(ast.Constant(None), x) for x in arguments.kw_defaults]
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


F = TypeVar("F", bound=Callable[..., Any])

_CONVERTED = "__ctrlgrad_converted__"
# Attribute of a function of another library that holds its counterpart here.
_INSTEAD = "__ctrlgrad_call__"
# Built-in functions that need concrete numbers; the other replaced ones iterate over rows.
_NUMBERS = (int, float, complex)
_OF_NUMBERS = (bool, range, min, max, all, any)

_factories: WeakKeyDictionary[CodeType, Factory | Unconvertible] = WeakKeyDictionary()
_lock = forks.recursive_lock()


def convert(fn: Callable[..., Any]) -> Callable[..., Any]:
    """See `ctrlgrad.autograph.convert`."""
    if isinstance(fn, functools.partial):
        return functools.partial(convert(fn.func), *fn.args, **fn.keywords)
    if isinstance(fn, MethodType):
        return MethodType(convert(fn.__func__), fn.__self__)
    if not isinstance(fn, FunctionType):
        call = inspect.getattr_static(type(fn), "__call__", None)
        if isinstance(call, FunctionType) and not source.is_own(call.__code__.co_filename):
            return MethodType(convert(call), fn)
        if type(fn).__module__.split(".")[0] == "ctrlgrad":
            raise _refused(fn, _OWN, _INSIDE)
        raise _refused(fn, "it is not written in Python as a function")
    if source.is_own(fn.__code__.co_filename):
        raise _refused(fn, _OWN, _INSIDE)
    try:
        return _converted(fn)
    except Unconvertible as reason:
        raise _refused(fn, str(reason)) from reason


_OWN = "it is a function of ctrlgrad's own, which calls yours"
_INSIDE = "convert yours, and pass that on: ctrlgrad.grad(ctrlgrad.function(f, autograph=True))"


def _refused(fn: Any, reason: str, hint: str | None = None) -> UserInputError:
    code = getattr(fn, "__code__", None)
    return UserInputError(
        f"autograph cannot convert {getattr(fn, '__qualname__', None) or repr(fn)}",
        source=source.Source(code.co_filename, code.co_firstlineno, code.co_qualname) if code else here(),
        expected="a Python function with `if`, `while`, `for` and expressions",
        got=reason,
        hint=hint
        or "move that part into a function of its own, or write it with ctrlgrad.cond and ctrlgrad.while_loop",
    )


def _converted(fn: FunctionType) -> FunctionType:
    """The function with its control flow rewritten. The code is made once, and bound to each closure."""
    if hasattr(fn, _CONVERTED):
        return fn
    with _lock:
        factory = _factories.get(fn.__code__)
        if factory is None:
            try:
                definition, text = parse(fn)
                own = {node.name for node in ast.walk(definition) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
                file = fn.__code__.co_filename
                statement, name = rewrite(canonical(definition), text, file, _namespace(fn))
                factory = Factory(statement, name, own, fn)
            except Unconvertible as reason:
                factory = reason
            _factories[fn.__code__] = factory
    if isinstance(factory, Unconvertible):
        raise factory
    return artifact(factory.bind(fn, RUNTIME))


def _namespace(fn: FunctionType) -> dict[str, Any]:
    """The names that the function sees outside of itself."""
    names = dict(fn.__globals__)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # assigned later
            names[name] = None
    return names


def artifact(fn: F) -> F:
    """Mark a function as converted."""
    setattr(fn, _CONVERTED, True)
    return fn


def converted_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, scope: Any = None) -> Any:
    """`fn(*args, **kwargs)` with `fn` converted, if it is the user's."""
    kwargs = kwargs or {}
    if isinstance(fn, FunctionType) and hasattr(fn, _INSTEAD):
        fn, args = getattr(fn, _INSTEAD), _with_converted_functions(args)
    if isinstance(fn, functools.partial):
        return converted_call(fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
    if isinstance(fn, type | BuiltinFunctionType):
        if fn in OVERLOADS:
            if fn in _NUMBERS:
                return OVERLOADS[fn](*map(number, args), **kwargs)
            if fn in _OF_NUMBERS:
                return represented(OVERLOADS[fn](*map(plain, args), **kwargs))
            return OVERLOADS[fn](*args, **kwargs)
        if fn in (map, filter):
            args = _with_converted_functions(args)
        return fn(*args, **kwargs)
    target = fn
    if isinstance(fn, MethodType):
        target, args = fn.__func__, (fn.__self__, *args)
    elif not isinstance(fn, FunctionType):
        call = inspect.getattr_static(type(fn), "__call__", None)
        if not isinstance(call, FunctionType) or not is_users(call):
            return fn(*args, **kwargs)
        target, args = call, (fn, *args)
    if not isinstance(target, FunctionType) or hasattr(target, _CONVERTED):
        return target(*args, **kwargs)
    if not is_users(target):
        if source.is_own(target.__code__.co_filename):
            args = _with_converted_functions(args)
            kwargs = dict(zip(kwargs, _with_converted_functions(tuple(kwargs.values())), strict=True))
        return target(*args, **kwargs)
    try:
        target = _converted(target)
    except Unconvertible as reason:
        try:
            return target(*args, **kwargs)
        except CtrlgradError as error:
            error.notes.append(f"in {target.__qualname__}, which autograph runs as it is: {reason}")
            raise
    return target(*args, **kwargs)


def is_users(fn: FunctionType) -> bool:
    """Return true if a function is the user's own: not the library's, the standard library's or a package's."""
    file = fn.__code__.co_filename
    return source.is_users(file) and file != "<string>"


def _with_converted_functions(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_converted_argument, values))


def _converted_argument(x: Any) -> Any:
    """A function of the user that is passed on, converted; also in a list of functions."""
    if isinstance(x, list | tuple) and type(x) in (list, tuple):
        if not any(isinstance(item, FunctionType | MethodType) for item in x):
            return x
        return type(x)(map(_converted_argument, x))
    fn = x.__func__ if isinstance(x, MethodType) else x
    if not isinstance(fn, FunctionType) or not is_users(fn):
        return x
    try:
        converted = _converted(fn)
    except Unconvertible:
        return x
    return MethodType(converted, x.__self__) if isinstance(x, MethodType) else converted


class FunctionScope(values.Scope):
    """The block around the body of a converted function."""

    def __init__(self, name: str, scope_name: str, options: Any) -> None:
        self.name = name

    def ret(self, value: Any, did_return: Any) -> Any:
        """The result of a function with `return` statements inside of control flow."""
        if isinstance(value, values.UndefinedReturnValue):
            return None
        if is_traced(did_return) and value is not None:
            raise TracingError(
                f"autograph: {self.name} returns a value on some paths only",
                expected="a `return` with a value at the end of every path, because which one is taken is known only\n"
                "when the program runs",
                got="a path that ends without `return`, where Python would return None",
                hint="add a `return` at the end of the function",
            )
        return value


def with_function_scope(body: Callable[[FunctionScope], Any], scope_name: str, options: Any) -> Any:
    """The body of a converted lambda."""
    with FunctionScope("lambda", scope_name, options) as scope:
        return body(scope)


# Names that generated code finds under `ag__`.
_OF_VALUES = "Undefined UndefinedReturnValue ld ldu raised handled"
_OF_BRANCHES = "if_stmt if_exp and_ or_ not_ chain contains not_contains assert_stmt is_ is_not"
RUNTIME = SimpleNamespace(
    STD=None,
    FunctionScope=FunctionScope,
    with_function_scope=with_function_scope,
    converted_call=converted_call,
    autograph_artifact=artifact,
    for_stmt=iteration.for_stmt,
    while_stmt=loops.while_stmt,
    **{name: getattr(values, name) for name in _OF_VALUES.split()},
    **{name: getattr(branches, name) for name in _OF_BRANCHES.split()},
)
