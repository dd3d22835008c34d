"""What is converted, and when: a function given by the user at once, what it calls as it is called.

The user's own functions, lambdas, methods and callable objects are converted, and so are those of them that are
passed on to ctrlgrad (`ctrlgrad.grad(f)`, `ctrlgrad.scan(f, ...)`) or to `map` and `filter`. The library, NumPy, the
standard library and installed packages are called as they are; so is a function that cannot be converted (a
generator, for example), and errors from inside it say so. A `ctrlgrad.function` decides for itself.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ctrlgrad import forks, source
from ctrlgrad.autograph import branches, iteration, logic, loops, raising, undefined
from ctrlgrad.autograph.canonical import canonical
from ctrlgrad.autograph.compile import Factory
from ctrlgrad.autograph.overloads import OVERLOADS
from ctrlgrad.autograph.parse import Unconvertible, parse
from ctrlgrad.autograph.rewrite import rewrite
from ctrlgrad.autograph.truth import is_traced, plain, represented
from ctrlgrad.errors import CtrlgradError, TracingError, UserInputError
from ctrlgrad.source import here

F = TypeVar("F", bound=Callable[..., Any])

_CONVERTED = "__ctrlgrad_converted__"
# An attribute of a function of another library: the function that stands for it here.
_INSTEAD = "__ctrlgrad_call__"
# Built-in functions that want the numbers themselves; the rest of those that are replaced go through rows.
_OF_NUMBERS = (int, float, complex, bool, range, min, max, all, any)

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
                factory = _factory(fn)
            except Unconvertible as reason:
                factory = reason
            _factories[fn.__code__] = factory
    if isinstance(factory, Unconvertible):
        raise factory
    return artifact(factory.bind(fn, RUNTIME))


def _factory(fn: FunctionType) -> Factory:
    definition, text = parse(fn)
    own = {node.name for node in ast.walk(definition) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    file = fn.__code__.co_filename
    statement, name = rewrite(canonical(definition), text, file, _namespace(fn))
    return Factory(statement, name, own, fn)


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
        return _call_as_it_is(target, args, kwargs, reason)
    return target(*args, **kwargs)


def is_users(fn: FunctionType) -> bool:
    """Whether a function is the user's own: not the library's, the standard library's or a package's."""
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


def _call_as_it_is(fn: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], reason: Unconvertible) -> Any:
    try:
        return fn(*args, **kwargs)
    except CtrlgradError as error:
        error.notes.append(f"in {fn.__qualname__}, which autograph runs as it is: {reason}")
        raise


class FunctionScope:
    """The block around the body of a converted function."""

    def __init__(self, name: str, scope_name: str, options: Any) -> None:
        self.name = name

    def __enter__(self) -> FunctionScope:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def ret(self, value: Any, did_return: Any) -> Any:
        """The result of a function with `return` statements inside of control flow."""
        if isinstance(value, undefined.UndefinedReturnValue):
            return None
        if is_traced(did_return) and value is not None:
            raise TracingError(
                f"autograph: {self.name} returns a value on some paths only",
                source=here(),
                expected="a `return` with a value at the end of every path, because which one is taken is known only\n"
                "when the program runs",
                got="a path that ends without `return`, where Python would return None",
                hint="add a `return` at the end of the function",
            )
        return value


def with_function_scope(body: Callable[[FunctionScope], Any], scope_name: str, options: Any) -> Any:
    """The body of a converted lambda."""
    return body(FunctionScope("lambda", scope_name, options))


# What generated code finds under the name `ag__`.
RUNTIME = SimpleNamespace(
    STD=None,
    FunctionScope=FunctionScope,
    with_function_scope=with_function_scope,
    converted_call=converted_call,
    autograph_artifact=artifact,
    Undefined=undefined.Undefined,
    UndefinedReturnValue=undefined.UndefinedReturnValue,
    ld=undefined.ld,
    ldu=undefined.ldu,
    if_stmt=branches.if_stmt,
    if_exp=branches.if_exp,
    while_stmt=loops.while_stmt,
    for_stmt=iteration.for_stmt,
    and_=logic.and_,
    or_=logic.or_,
    not_=logic.not_,
    chain=logic.chain,
    contains=logic.contains,
    not_contains=logic.not_contains,
    assert_stmt=logic.assert_stmt,
    is_=logic.is_,
    is_not=logic.is_not,
    raised=raising.raised,
    handled=raising.handled,
)
