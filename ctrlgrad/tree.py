"""Pytrees, by optree: nested tuples, lists, dicts, named tuples, dataclasses registered by their owners.

None is a node without leaves. Classes registered globally with optree work too.

    >>> from ctrlgrad import tree
    >>> leaves, treedef = tree.flatten({"w": [1.0, 2.0], "b": 3.0})
    >>> leaves, tree.unflatten(treedef, leaves)
    ([3.0, 1.0, 2.0], {'w': [1.0, 2.0], 'b': 3.0})
    >>> tree.map(lambda x, y: x + y, (1, [2]), (10, [20]))
    (11, [22])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import optree

NAMESPACE = "ctrlgrad"
TreeDef = optree.PyTreeSpec


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeDef]:
    """The leaves of a pytree, and how they are put together.

    >>> flatten({"w": [1.0, 2.0], "b": 3.0})[0]
    [3.0, 1.0, 2.0]
    """
    leaves, treedef = optree.tree_flatten(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    return leaves, treedef


def unflatten(treedef: TreeDef, leaves: Sequence[Any]) -> Any:
    """The pytree of these leaves.

    >>> leaves, treedef = flatten((1.0, [2.0]))
    >>> unflatten(treedef, [10.0, 20.0])
    (10.0, [20.0])
    """
    return optree.tree_unflatten(treedef, leaves)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a pytree.

    >>> leaves({"w": [1.0, 2.0], "b": None})
    [1.0, 2.0]
    """
    return flatten(tree)[0]


def map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply a function leaf by leaf, to several pytrees of one structure at once.

    >>> map(abs, {"w": [-1.0], "b": 2.0})
    {'w': [1.0], 'b': 2.0}
    """
    return optree.tree_map(fn, tree, *rest, namespace=NAMESPACE)


class Partial(functools.partial):  # type: ignore[type-arg]
    """A partial function call that is a pytree: its bound arguments are leaves, the function is structure.

    >>> scaled = Partial(lambda w, x: w * x, 3.0)
    >>> scaled(2.0), map(lambda w: 10.0 * w, scaled)(2.0)
    (6.0, 60.0)
    """


def _parts(partial: Partial) -> tuple[Any, Any]:
    return (partial.args, partial.keywords), partial.func


optree.register_pytree_node(
    Partial, _parts, lambda func, bound: Partial(func, *bound[0], **bound[1]), namespace=NAMESPACE
)


def paths(treedef: TreeDef) -> list[str]:
    """How to reach each leaf, as text to append to a name: `[0]['h']`; empty for a lone leaf."""
    return ["".join(f"[{key!r}]" for key in path) for path in treedef.paths()]


def names(treedef: TreeDef, root: str) -> list[str]:
    """A short name per leaf for printed graphs: the last keys of its path, or `root` and its position."""
    result = []
    for path in treedef.paths():
        words = [str(key) for key in path if not str(key).isdigit()]
        digits = "".join(str(key) for key in path if str(key).isdigit())
        result.append("_".join(words) + digits if words else root + digits)
    return result


__all__ = ["Partial", "flatten", "leaves", "map", "unflatten"]
