"""Checks of functions, their arguments and their results; differences of two pytrees of types, path by path."""

from __future__ import annotations

import dataclasses
import inspect
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import NumberOverflowError, TracingError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import is_weak, type_of
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import BOOL
from ctrlgrad.source import Source

# Names of the leaves of a function's arguments, made of its parameters, for graphs and errors.


def argument_names(fn: Callable[..., Any], treedef: tree.TreeDef) -> list[str | None]:
    """A name per leaf of `(args, kwargs)`: the parameter's, and the keys inside it."""
    try:
        parameters = [p.name for p in inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    names: list[str | None] = []
    for path in treedef.paths():
        group, *rest = path
        if group == 0 and rest:
            position, *rest = rest
            rest = [parameters[position] if position < len(parameters) else f"x{position}", *rest]
        names.append("_".join(map(str, rest)) or None)
    return names


def argument_paths(fn: Callable[..., Any], treedef: tree.TreeDef) -> list[str]:
    """Return each leaf of `(args, kwargs)` as the user would write it, by the parameters' names: `params['w'][0]`."""
    try:
        parameters = [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    return [_argument_path(accessor, parameters) for accessor in treedef.accessors()]


def _argument_path(accessor: Any, parameters: Sequence[inspect.Parameter]) -> str:
    group, first = accessor.path[:2]
    if group == 1:
        name = str(first)
    else:
        variadic = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), len(parameters))
        if first < variadic:
            name = parameters[first].name
        elif variadic < len(parameters):
            name = f"{parameters[variadic].name}[{first - variadic}]"
        else:
            name = f"argument {first}"
    return name + str(accessor[2:].codify(""))


def check_function(operation: str, fn: Any) -> None:
    """Raise an error unless the argument is callable."""
    if not callable(fn):
        raise UserInputError(
            f"{operation}: the argument is not callable",
            expected="a Python function",
            got=type(fn).__name__,
            hint=f"pass the function itself, ctrlgrad.{operation}(fn), and not what it returns, fn(x)",
        )


def check_callable(operation: str, name: str, fn: Any, arguments: Sequence[str], source: Source | None) -> None:
    """Refuse an argument that is no function, or that does not take these arguments, before it is called."""
    shown = f"a function of {', '.join(arguments)}" if arguments else "a function without arguments"
    if not callable(fn):
        raise TypeMismatchError(
            f"{operation}: {name} is not a function",
            source=source,
            expected=shown,
            got=type(fn).__name__,
            hint=f"pass a function: lambda {', '.join(arguments)}: ..."
            if arguments
            else "pass a function: lambda: value",
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # built-in functions may have none
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeMismatchError(
            f"{operation}: {name} does not take the arguments that it is given",
            source=source,
            expected=shown,
            got=f"{getattr(fn, '__name__', name)}{signature}",
            hint=f"several values are carried as one pytree: lambda {', '.join(arguments)}: ..., with carry = (a, b)"
            if "carry" in arguments
            else f"lambda {', '.join(arguments)}: ..., where iterations are those of the loops around, a tuple of ints"
            if "iterations" in arguments
            else "change its parameters, or the operands",
        ) from error


def check_leaves(what: str, leaves: Sequence[Any], paths: Sequence[str] | None = None) -> None:
    """Refuse results that are no arrays or numbers; the error names the leaf by its path, where there are paths."""
    for position, leaf in enumerate(leaves):
        try:
            type_of(leaf)
        except (NumberOverflowError, TracingError):
            raise
        except (TypeError, ValueError) as error:
            raise TypeMismatchError(
                f"{what}: a leaf is not an array or a number",
                expected="pytrees of arrays, numbers and traced tensors",
                got=("" if paths is None else f"{paths[position]}: ") + f"{reprlib.repr(leaf)}, {type(leaf).__name__}",
                hint=how_to_pass(leaf),
            ) from error


def how_to_pass(x: Any) -> str:
    """Return advice for an object that is no pytree."""
    if own := getattr(type(x), "INSTEAD", ""):
        return str(own)
    if dataclasses.is_dataclass(x):
        return "@ctrlgrad.tree.register_dataclass above its @dataclass makes a pytree of its fields"
    if inspect.isgenerator(x):
        return "a function with `yield` gives a generator: return a list or a tuple of values"
    if callable(x):
        return (
            "keep functions outside, in a closure; of a model of Equinox:\n"
            "params, rest = equinox.partition(model, equinox.is_array); in the function equinox.combine(params, rest)"
        )
    return "keep other objects outside, or make its class a pytree node: ctrlgrad.tree.register_pytree_node"


def check_predicate(what: str, leaves: Sequence[Any], source: Source | None) -> None:
    """Require one bool scalar."""
    if len(leaves) != 1 or not is_array(leaves[0]) or type_of(leaves[0]) != BOOL:
        raise TypeMismatchError(
            f"{what} is not a boolean scalar",
            source=source,
            expected="bool[]",
            got=", ".join(type_name(x) if is_array(x) else f"{type(x).__name__}: {x!r}" for x in leaves) or "nothing",
            hint="compare, or reduce with numpy.any / numpy.all"
            + (", or choose by elements with numpy.where" if what.startswith("cond:") else ""),
        )


def is_array(x: Any) -> bool:
    """Return true if x is an array, a number or a tensor."""
    try:
        type_of(x)
    except (TypeError, ValueError):
        return False
    return True


def type_name(x: Any) -> str:
    """The type as shown in errors; Python numbers are marked."""
    t = type_of(x)
    return f"{t} (a Python number)" if is_weak(x) and not isinstance(x, Tensor) else str(t)


def same_structure(
    operation: str,
    source: Source | None,
    labels: tuple[str, str],
    a: tuple[list[Any], tree.TreeDef],
    b: tuple[list[Any], tree.TreeDef],
) -> None:
    """Raise an error that names every path that only one of two pytrees has."""
    if a[1] == b[1]:
        return
    left = dict(zip(tree.paths(a[1]), a[0], strict=True))
    right = dict(zip(tree.paths(b[1]), b[0], strict=True))
    lines = [
        f"{labels[0]}{path}: {type_name(x)} has no counterpart in {labels[1]}"
        for path, x in left.items()
        if path not in right
    ]
    lines += [
        f"{labels[1]}{path}: {type_name(x)} has no counterpart in {labels[0]}"
        for path, x in right.items()
        if path not in left
    ]
    kinds = _of_other_kinds(labels, a[1], b[1], "")
    if b[1] == tree.flatten(None)[1]:
        hint = "return the value: a function without `return` gives None"
    elif kinds:
        hint = "return containers of the same kinds: (a, b) is a tuple, [a, b] is a list"
    else:
        hint = "return the same containers with the same keys in the same order"
    raise TypeMismatchError(
        f"{operation}: {labels[0]} and {labels[1]} are different pytrees",
        source=source,
        expected=f"the structure of {labels[0]}, {structure(a[1])}",
        got="\n".join([structure(b[1]), *kinds, *lines]),
        hint=hint,
    )


def _of_other_kinds(labels: tuple[str, str], a: tree.TreeDef, b: tree.TreeDef, path: str) -> list[str]:
    """Describe containers that differ in kind or in static fields, even if their children agree."""
    if a == b or a.is_leaf() or b.is_leaf():
        return []
    one, other = (_kind(t) for t in (a, b))
    if one != other:
        return [f"{labels[0]}{path} is {one}, and {labels[1]}{path} is {other}"]
    if a.type is not b.type:
        return [f"{labels[0]}{path} and {labels[1]}{path} are of two classes of one name, each {one}"]
    if a.num_children != b.num_children or a.entries() != b.entries():
        return []
    inside = [
        line
        for entry, x, y in zip(a.entries(), a.children(), b.children(), strict=True)
        for line in _of_other_kinds(labels, x, y, f"{path}[{entry!r}]")
    ]
    if not inside and a.children() == b.children():
        return [f"{labels[0]}{path} and {labels[1]}{path}, each {one}, differ in fields that are no arrays"]
    return inside


def _kind(treedef: tree.TreeDef) -> str:
    name = "None" if treedef.type is type(None) or treedef.type is None else treedef.type.__name__
    return name if name == "None" else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def structure(treedef: tree.TreeDef) -> str:
    """Text of a pytree's containers for errors, with a * for each leaf."""
    if treedef.is_leaf():
        return "*"
    children = [structure(child) for child in treedef.children()]
    if treedef.type in (type(None), None, tuple):
        return "None" if treedef.type is not tuple else f"({', '.join(children)}{',' * (len(children) == 1)})"
    if treedef.type is list:
        return f"[{', '.join(children)}]"
    if treedef.type is dict:
        return f"{{{', '.join(f'{key!r}: {x}' for key, x in zip(treedef.entries(), children, strict=True))}}}"
    return f"{treedef.type.__name__}({', '.join(children)})"
