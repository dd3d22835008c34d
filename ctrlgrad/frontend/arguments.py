"""Names of the leaves of a function's arguments, made of its parameters, for graphs and errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree


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
