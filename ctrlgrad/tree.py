"""Pytrees, by optree: nested tuples, lists, dicts, named tuples, dataclasses registered by their owners.

None is a node without leaves. Classes registered globally with optree work too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree

NAMESPACE = "ctrlgrad"
TreeDef = optree.PyTreeSpec


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeDef]:
    leaves, treedef = optree.tree_flatten(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    return leaves, treedef


def unflatten(treedef: TreeDef, leaves: Sequence[Any]) -> Any:
    return optree.tree_unflatten(treedef, leaves)


def leaves(tree: Any) -> list[Any]:
    return flatten(tree)[0]


def map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply a function leaf by leaf."""
    return optree.tree_map(fn, tree, *rest, namespace=NAMESPACE)


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
