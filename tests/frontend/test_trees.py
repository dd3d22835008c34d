"""Pytrees: `ctrlgrad.tree` agrees with `jax.tree`; classes that say how they are made, here or to JAX, are nodes."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
import textwrap
from collections import namedtuple
from collections.abc import Callable
from dataclasses import asdict
from operator import add
from typing import Any

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree, tree_util
from ctrlgrad.errors import CtrlgradError, TypeMismatchError, UserInputError

X = np.arange(1.0, 4.0)
State = collections.namedtuple("State", ["count", "mu"])
NESTED = {"b": (1.0, [2.0, None]), "a": State(3.0, {"w": 4.0})}


@tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    b: Any
    power: int = dataclasses.field(default=1, metadata={"static": True})

    def __call__(self, x: Any) -> Any:
        return (self.w * x) ** self.power + self.b


@jax.tree_util.register_pytree_node_class
class OfJax:
    """A node of JAX's registry alone."""

    def __init__(self, w: Any, flag: bool) -> None:
        self.w, self.flag = w, flag

    def tree_flatten(self) -> Any:
        return (self.w,), self.flag

    @classmethod
    def tree_unflatten(cls, flag: bool, children: Any) -> OfJax:
        return cls(*children, flag)


@dataclasses.dataclass
class DataOfJax:
    w: Any
    inner: Any
    n: int


jax.tree_util.register_dataclass(DataOfJax, ["w", "inner"], ["n"])


def test_the_functions_are_those_of_jax() -> None:
    ours, theirs = tree, jax.tree
    assert ours.leaves(NESTED) == theirs.leaves(NESTED)
    assert ours.map(lambda x: x * 2, NESTED) == theirs.map(lambda x: x * 2, NESTED)
    assert ours.map(lambda x, y: (x, y), [1, 2], [{"a": 3}, 4]) == theirs.map(
        lambda x, y: (x, y), [1, 2], [{"a": 3}, 4]
    )
    is_pair = lambda x: isinstance(x, tuple)
    assert ours.leaves(NESTED, is_leaf=is_pair) == theirs.leaves(NESTED, is_leaf=is_pair)
    assert ours.map(str, NESTED, is_leaf=is_pair) == theirs.map(str, NESTED, is_leaf=is_pair)
    add = lambda a, b: a + b
    assert ours.reduce(add, NESTED) == theirs.reduce(add, NESTED) == 10.0
    assert ours.reduce(add, NESTED, 5.0) == theirs.reduce(add, NESTED, 5.0) == 15.0
    for flags in ({"a": True, "b": [1]}, {"a": 0, "b": [1]}, ()):
        assert ours.all(flags) == theirs.all(flags)
    found, treedef = ours.flatten(NESTED)
    assert ours.structure(NESTED) == treedef and ours.unflatten(treedef, found) == NESTED
    rows = [{"a": 1, "b": (2,)}, {"a": 3, "b": (4,)}]
    for inner in (rows[0], None):
        given = [ours.structure([0, 0]), None if inner is None else ours.structure(inner)]
        wanted = [theirs.structure([0, 0]), None if inner is None else theirs.structure(inner)]
        assert ours.transpose(*given, rows) == theirs.transpose(*wanted, rows)
    paths = [tuple(_raw(key) for key in path) for path, _ in jax.tree.leaves_with_path(NESTED)]
    assert [path for path, _ in ours.leaves_with_path(NESTED)] == [_positions(path) for path in paths]
    marked = ours.map_with_path(lambda path, x, y: (path[0], x, y), NESTED, NESTED)
    assert marked["b"][0] == ("b", 1.0, 1.0)


def _raw(key: Any) -> Any:
    return getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))


def _positions(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fields of a named tuple are positions here."""
    return tuple(State._fields.index(key) if key in State._fields else key for key in path)


def test_a_registered_dataclass_goes_everywhere() -> None:
    layer = Layer(2.0, 1.0, 2)
    loss = lambda p, x: cnp.sum(p(x))
    found = cg.grad(loss)(layer, X)
    assert isinstance(found, Layer) and found.power == 2
    np.testing.assert_allclose([found.w, found.b], [(2 * 2.0 * X * X).sum(), 3.0])
    carried = cg.function(lambda p: cg.fori_loop(0, 3, lambda i, p: tree.map(lambda x: x * 2.0, p), p))(layer)
    assert (float(carried.w), float(carried.b), carried.power) == (16.0, 8.0, 2)
    mapped = cg.vmap(lambda p: p(1.0))(Layer(X, X, 2))
    np.testing.assert_allclose(mapped, X * X + X)
    assert cg.cond(True, lambda: layer, lambda: Layer(0.0, 0.0, 2)).power == 2


def test_a_static_field_is_part_of_the_signature() -> None:
    f = cg.function(lambda p, x: p(x))
    assert [float(f(Layer(2.0, 1.0, n), 3.0)) for n in (1, 2, 1)] == [7.0, 37.0, 7.0]
    assert f.traces == 2


def test_fields_by_name_as_in_jax() -> None:
    @dataclasses.dataclass
    class Part:
        x: Any
        name: str = ""
        cached: Any = None

    tree.register_dataclass(Part, data_fields=["x"], meta_fields=["name"], drop_fields=["cached"])
    found = tree.map(lambda x: x + 1, Part(1, "p", "kept nowhere"))
    assert found == Part(2, "p", None)
    assert tree.structure(Part(1, "p")) != tree.structure(Part(1, "q"))


def test_classes_registered_with_jax_are_nodes() -> None:
    given = {"m": [OfJax(X, True), OfJax(2.0 * X, False)], "d": DataOfJax(3.0, OfJax(X, True), 2)}
    assert [np.shape(x) for x in tree.leaves(given)] == [np.shape(x) for x in jax.tree.leaves(given)]
    doubled = tree.map(lambda x: x * 2, given)
    assert doubled["m"][1].flag is False and doubled["d"].n == 2 and isinstance(doubled["d"].inner, OfJax)
    loss = lambda p: cnp.sum(p["m"][0].w * p["m"][1].w) * p["d"].w ** p["d"].n if p["m"][0].flag else 0.0
    ours, theirs = cg.grad(loss)(given), jax.grad(lambda p: loss_of_jax(p))(given)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def loss_of_jax(p: Any) -> Any:
    return jax.numpy.sum(p["m"][0].w * p["m"][1].w) * p["d"].w ** p["d"].n


def test_metadata_that_differ_are_another_structure() -> None:
    assert tree.structure(OfJax(1.0, True)) == tree.structure(OfJax(2.0, True))
    assert tree.structure(OfJax(1.0, True)) != tree.structure(OfJax(1.0, False))
    with pytest.raises(TypeMismatchError, match="different pytrees"):
        cg.while_loop(lambda p: p.w < 3.0, lambda p: OfJax(p.w + 1.0, not p.flag), OfJax(0.0, True))


def test_two_classes_of_one_name_are_named_as_such() -> None:
    other = collections.namedtuple("State", ["count", "mu"])
    with pytest.raises(
        TypeMismatchError, match=r"the carry and the body's result are of two classes of one name, each a State"
    ):
        cg.while_loop(lambda s: s[0] < 3, lambda s: other(s[0] + 1, s[1]), State(0, 1.0))


def test_the_names_of_tree_util_are_those_of_jax() -> None:
    def results(util: Any) -> list[Any]:
        leaves, treedef = util.tree_flatten(NESTED)
        return [
            leaves,
            util.tree_unflatten(treedef, leaves),
            util.tree_leaves(NESTED),
            util.tree_map(lambda x, y: x - 2 * y, NESTED, NESTED),
            util.tree_reduce(lambda x, y: x * y, NESTED),
            util.tree_all(NESTED),
            util.tree_structure(NESTED) == treedef,
            util.Partial(max, 3.0)(4.0),
        ]

    assert results(cg.tree_util) == results(jax.tree_util)
    assert all(hasattr(jax.tree_util, name) for name in cg.tree_util.__all__)


def test_errors_name_fields_as_they_are_written() -> None:
    with pytest.raises(CtrlgradError) as caught:
        cg.grad(lambda p: p[0].w)([Layer(1, 1.0)])
    assert "p[0].w" in str(caught.value)
    with pytest.raises(CtrlgradError) as caught:
        cg.while_loop(lambda p: p.inner["x"].w < 3.0, lambda p: DataOfJax(p.w, {"x": OfJax(X, True)}, 2),
                      DataOfJax(1.0, {"x": OfJax(1.0, True)}, 2))  # fmt: skip
    assert ".inner['x']" in str(caught.value)


def test_jax_is_not_loaded_for_it() -> None:
    program = """
        import dataclasses, sys
        from ctrlgrad import tree
        class Plain: pass
        assert len(tree.leaves([Plain(), 1.0])) == 2
        assert "jax" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


class _Twice:
    pass


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: tree.register_dataclass(_Twice), "it is no dataclass"),
        (lambda: tree.register_dataclass(Layer), "the class cannot be registered"),
        (lambda: tree.register_dataclass(Layer, data_fields=["w"], meta_fields=["c"]), "the fields do not fit"),
        (lambda: tree.register_pytree_node(3, list, list), "the class cannot be registered"),
        (lambda: tree.map(lambda x, y: x, {"a": 1}, {"b": 1}), "tree.map: the pytrees have different structures"),
        (lambda: tree.transpose(tree.structure([0]), tree.structure((0,)), [[1]]), "tree.transpose"),
    ],
)
def test_mistakes_are_named(mistake: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        mistake()
    assert caught.value.source is not None and caught.value.source.file == __file__
    assert caught.value.expected is not None and caught.value.got is not None


# The rest of `jax.tree` and `jax.tree_util`: keys of paths, classes with named children, structures of structures.


KeyedState = namedtuple("State", "x y")
NESTED_KEYS = {"w": [1.0, (2.0,)], "s": KeyedState(3.0, None), "n": {4: 5.0}}


def test_every_name_of_jax_is_there() -> None:
    missing = {"default_registry", "flatten_one_level", "flatten_one_level_with_keys", "is_tree_node"}
    public = lambda module: {name for name in dir(module) if not name.startswith("_")}
    assert public(jax.tree_util) - set(tree_util.__all__) == missing
    assert public(jax.tree) <= set(tree.__all__)


def test_paths_and_their_text_are_those_of_jax() -> None:
    ours, theirs = tree_util.tree_leaves_with_path(NESTED_KEYS), jax.tree_util.tree_leaves_with_path(NESTED_KEYS)
    assert [x for _, x in ours] == [x for _, x in theirs]
    for (path, _), (wanted, _) in zip(ours, theirs, strict=True):
        assert [(type(k).__name__, asdict(k)) for k in path] == [
            (type(k).__name__, {n: getattr(k, n) for n in ("key", "idx", "name") if hasattr(k, n)}) for k in wanted
        ]
        for options in ({}, {"simple": True, "separator": "/"}):
            text = jax.tree_util.keystr(wanted, **options)
            assert tree_util.keystr(path, **options) == tree_util.keystr(wanted, **options) == text
    marked = tree_util.tree_map_with_path(lambda path, x, y: (tree_util.keystr(path), x + y), NESTED_KEYS, NESTED_KEYS)
    assert marked == jax.tree_util.tree_map_with_path(
        lambda path, x, y: (jax.tree_util.keystr(path), x + y), NESTED_KEYS, NESTED_KEYS
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
