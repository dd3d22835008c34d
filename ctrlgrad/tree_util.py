"""Pytrees by the names of `jax.tree_util`: what `ctrlgrad.tree` has, with `tree_` before the functions of trees.

Paths are JAX's here: a key says whether it is of a dict, a sequence or an attribute. Those of `ctrlgrad.tree` are plain
strings and numbers.

>>> from ctrlgrad import tree_util
>>> tree_util.tree_map(lambda x, y: x + y, (1, [2]), (10, [20]))
(11, [22])
>>> leaves = tree_util.tree_leaves_with_path({"w": [1.0, 2.0]})
>>> [tree_util.keystr(path) for path, _ in leaves]
["['w'][0]", "['w'][1]"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import optree

from ctrlgrad.records import record
from ctrlgrad.tree import (
    IsLeaf,
    Partial,
    plain_key,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
)
from ctrlgrad.tree import TreeDef as PyTreeDef
from ctrlgrad.tree import all as tree_all
from ctrlgrad.tree import broadcast as tree_broadcast
from ctrlgrad.tree import flatten as tree_flatten
from ctrlgrad.tree import leaves as tree_leaves
from ctrlgrad.tree import map as tree_map
from ctrlgrad.tree import reduce as tree_reduce
from ctrlgrad.tree import reduce_associative as tree_reduce_associative
from ctrlgrad.tree import structure as tree_structure
from ctrlgrad.tree import transpose as tree_transpose
from ctrlgrad.tree import unflatten as tree_unflatten


@record
class DictKey:
    """The key of a dict's item, in a path."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@record
class SequenceKey:
    """The position of an item of a list or tuple, in a path."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@record
class GetAttrKey:
    """The name of an attribute or of a named tuple's field, in a path."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@record
class FlattenedIndexKey:
    """The position of a child of a class that names no keys, in a path."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyEntry = DictKey | SequenceKey | GetAttrKey | FlattenedIndexKey
KeyPath = tuple[KeyEntry, ...]


def _key(entry: optree.PyTreeEntry) -> KeyEntry:
    if isinstance(entry, optree.NamedTupleEntry):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.index)
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.key)
    return GetAttrKey(entry.entry) if isinstance(entry.entry, str) else FlattenedIndexKey(entry.entry)


def tree_flatten_with_path(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """As `tree_flatten`, each leaf with its path.

    >>> tree_flatten_with_path({"w": [1.0]})[0]
    [((DictKey(key='w'), SequenceKey(idx=0)), 1.0)]
    """
    found, treedef = tree_flatten(tree, is_leaf)
    return list(zip((tuple(map(_key, path)) for path in treedef.accessors()), found, strict=True)), treedef


def tree_leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """The leaves of a pytree, each with its path.

    >>> [keystr(path) for path, _ in tree_leaves_with_path(({"b": 3.0},))]
    ["[0]['b']"]
    """
    return tree_flatten_with_path(tree, is_leaf)[0]


def tree_map_with_path(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """As `tree_map`; the function takes the path of the leaf first.

    >>> tree_map_with_path(lambda path, x: f"{keystr(path)}: {x}", [1.0, 2.0])
    ['[0]: 1.0', '[1]: 2.0']
    """
    found, treedef = tree_flatten_with_path(tree, is_leaf)
    numbers = tree_unflatten(treedef, range(len(found)))
    return tree_map(lambda n, *given: fn(found[n][0], *given), numbers, tree, *rest)


def keystr(keys: Iterable[Any], *, simple: bool = False, separator: str = "") -> str:
    """A path as text.

    Args:
        simple: the keys alone, without brackets and dots.
        separator: what stands between keys.

    >>> path = (DictKey("w"), SequenceKey(0))
    >>> keystr(path), keystr(path, simple=True, separator="/")
    ("['w'][0]", 'w/0')
    """
    return separator.join(str(plain_key(key, key) if simple else key) for key in keys)


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Return true if all items are leaves.

    >>> all_leaves([1.0, 2.0]), all_leaves([1.0, [2.0]])
    (True, False)
    """
    return all(treedef_is_leaf(tree_structure(x, is_leaf)) for x in iterable)


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Return true if a structure is that of a leaf.

    >>> [treedef_is_leaf(tree_structure(x)) for x in (1.0, [1.0], None)]
    [True, False, False]
    """
    return treedef.type is None and treedef.num_leaves == 1


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures of a node's children.

    >>> children = [tree_structure(1.0), tree_structure([2.0])]
    >>> treedef_children(tree_structure((1.0, [2.0]))) == children
    True
    """
    return treedef.children()


def treedef_tuple(treedefs: Sequence[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple whose items have these structures.

    >>> children = [tree_structure(1.0), tree_structure([2.0])]
    >>> treedef_tuple(children) == tree_structure((1.0, [2.0]))
    True
    """
    return tree_structure(tuple(tree_unflatten(t, range(t.num_leaves)) for t in treedefs))


__all__ = [
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "KeyEntry", "KeyPath", "Partial", "PyTreeDef", "SequenceKey",
    "all_leaves", "keystr", "register_dataclass", "register_pytree_node", "register_pytree_node_class",
    "register_pytree_with_keys", "register_pytree_with_keys_class", "register_static", "tree_all", "tree_broadcast",
    "tree_flatten", "tree_flatten_with_path", "tree_leaves", "tree_leaves_with_path", "tree_map",
    "tree_map_with_path", "tree_reduce", "tree_reduce_associative", "tree_structure", "tree_transpose",
    "tree_unflatten", "treedef_children", "treedef_is_leaf", "treedef_tuple",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
