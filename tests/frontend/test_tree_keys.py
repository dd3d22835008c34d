"""The rest of `jax.tree` and `jax.tree_util`: keys of paths, classes with named children, structures of structures."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from dataclasses import asdict
from operator import add
from typing import Any

import jax
import pytest

import ctrlgrad as cg
from ctrlgrad import tree, tree_util
from ctrlgrad.errors import UserInputError

State = namedtuple("State", "x y")
NESTED = {"w": [1.0, (2.0,)], "s": State(3.0, None), "n": {4: 5.0}}


def test_every_name_of_jax_is_there() -> None:
    missing = {"default_registry", "flatten_one_level", "flatten_one_level_with_keys", "is_tree_node"}
    public = lambda module: {name for name in dir(module) if not name.startswith("_")}
    assert public(jax.tree_util) - set(tree_util.__all__) == missing
    assert public(jax.tree) <= set(tree.__all__)


def test_paths_and_their_text_are_those_of_jax() -> None:
    ours, theirs = tree_util.tree_leaves_with_path(NESTED), jax.tree_util.tree_leaves_with_path(NESTED)
    assert [x for _, x in ours] == [x for _, x in theirs]
    for (path, _), (wanted, _) in zip(ours, theirs, strict=True):
        assert [(type(k).__name__, asdict(k)) for k in path] == [
            (type(k).__name__, {n: getattr(k, n) for n in ("key", "idx", "name") if hasattr(k, n)}) for k in wanted
        ]
        for options in ({}, {"simple": True, "separator": "/"}):
            text = jax.tree_util.keystr(wanted, **options)
            assert tree_util.keystr(path, **options) == tree_util.keystr(wanted, **options) == text
    marked = tree_util.tree_map_with_path(lambda path, x, y: (tree_util.keystr(path), x + y), NESTED, NESTED)
    assert marked == jax.tree_util.tree_map_with_path(
        lambda path, x, y: (jax.tree_util.keystr(path), x + y), NESTED, NESTED
    )


def test_classes_with_named_children() -> None:
    @tree_util.register_pytree_with_keys_class
    class Pair:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

        def tree_flatten_with_keys(self) -> Any:
            # Keys of either library are taken.
            return ((tree_util.GetAttrKey("a"), self.a), (jax.tree_util.GetAttrKey("b"), self.b)), "metadata"

        @classmethod
        def tree_unflatten(cls, metadata: str, children: Any) -> Any:
            assert metadata == "metadata"
            return cls(*children)

    assert tree.leaves_with_path(Pair(1, [2])) == [(("a",), 1), (("b", 0), 2)]
    assert [tree_util.keystr(p) for p, _ in tree_util.tree_leaves_with_path(Pair(1, [2]))] == [".a", ".b[0]"]
    found = cg.grad(lambda p: p.a * p.b[0] ** 2)(Pair(2.0, [3.0]))
    assert isinstance(found, Pair) and (float(found.a), float(found.b[0])) == (9.0, 12.0)

    class Plain:
        def __init__(self, x: Any) -> None:
            self.x = x

    tree.register_pytree_node(Plain, lambda p: ((p.x,), None), lambda _, xs: Plain(*xs))
    assert [tree_util.keystr(p) for p, _ in tree_util.tree_leaves_with_path(Plain(1))] == ["[<flat index 0>]"]


def test_static_classes_and_fields_are_structure() -> None:
    @tree_util.register_static
    class Mode(str):
        __slots__ = ()

    @tree.register_dataclass
    @dataclasses.dataclass
    class Norm:
        scale: Any
        power: int = tree.static(default=2)

    f = cg.function(lambda x, mode, norm: norm.scale * x**norm.power if mode == "power" else x)
    assert float(f(3.0, Mode("power"), Norm(2.0))) == 18.0
    assert float(f(3.0, Mode("none"), Norm(2.0))) == 3.0
    assert float(f(3.0, Mode("power"), Norm(2.0, 1))) == 6.0
    assert f.traces == 3 and tree.leaves((Mode("a"), Norm(1.0))) == [1.0]


def test_broadcast_and_reduce_as_jax() -> None:
    prefix, full = (1, 2, (3, 4)), (0, {"a": 0, "b": None}, ([0], 0))
    assert tree.broadcast(prefix, full) == jax.tree.broadcast(prefix, full)
    letters = ["a", ("b", "c"), {"x": "d"}, "e"]
    assert tree.reduce_associative(add, letters) == jax.tree.reduce_associative(add, letters) == "abcde"
    assert tree.reduce_associative(add, (), identity=0) == 0
    with pytest.raises(UserInputError, match="has no leaves"):
        tree.reduce_associative(add, ())
    with pytest.raises(UserInputError, match="different structures"):
        tree.broadcast((1, 2), (0,))


def test_structures_of_structures() -> None:
    parts = [tree_util.tree_structure(x) for x in (1.0, [2.0, None], None)]
    whole = tree_util.treedef_tuple(parts)
    assert whole == tree_util.tree_structure((1.0, [2.0, None], None))
    assert tree_util.treedef_children(whole) == parts
    assert [tree_util.treedef_is_leaf(part) for part in parts] == [True, False, False]
    assert tree_util.all_leaves([1.0, "a"]) and not tree_util.all_leaves([1.0, None])
    assert tree_util.all_leaves([[1.0]], is_leaf=lambda x: isinstance(x, list))
