"""Pytrees by the names of `jax.tree_util`: what `ctrlgrad.tree` has, with `tree_` before the functions of trees.

>>> from ctrlgrad import tree_util
>>> tree_util.tree_map(lambda x, y: x + y, (1, [2]), (10, [20]))
(11, [22])
"""

from ctrlgrad.tree import (
    Partial,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
)
from ctrlgrad.tree import TreeDef as PyTreeDef
from ctrlgrad.tree import all as tree_all
from ctrlgrad.tree import flatten as tree_flatten
from ctrlgrad.tree import flatten_with_path as tree_flatten_with_path
from ctrlgrad.tree import leaves as tree_leaves
from ctrlgrad.tree import leaves_with_path as tree_leaves_with_path
from ctrlgrad.tree import map as tree_map
from ctrlgrad.tree import map_with_path as tree_map_with_path
from ctrlgrad.tree import reduce as tree_reduce
from ctrlgrad.tree import structure as tree_structure
from ctrlgrad.tree import transpose as tree_transpose
from ctrlgrad.tree import unflatten as tree_unflatten

__all__ = [
    "Partial",
    "PyTreeDef",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "tree_all",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
]
