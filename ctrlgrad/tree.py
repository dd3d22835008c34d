"""Pytrees: nested tuples, lists, dicts, named tuples, and classes that say how they are made; as `jax.tree`.

None is a node without leaves. A class is a pytree node that was registered here (`register_dataclass`,
`register_pytree_node`, `register_pytree_node_class`), with optree (in its global namespace or in `ctrlgrad`), or, where
JAX is loaded, with JAX: modules of Equinox, structs of Flax.

    >>> from ctrlgrad import tree
    >>> leaves, treedef = tree.flatten({"w": [1.0, 2.0], "b": 3.0})
    >>> leaves, tree.unflatten(treedef, leaves)
    ([3.0, 1.0, 2.0], {'w': [1.0, 2.0], 'b': 3.0})
    >>> tree.map(lambda x, y: x + y, (1, [2]), (10, [20]))
    (11, [22])
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import optree

from ctrlgrad.errors import UserInputError

# Classes as nodes of pytrees: how they are registered, and those that this library brings along. All of it is public
# in `ctrlgrad.tree`.


NAMESPACE = "ctrlgrad"
C = TypeVar("C", bound=type)


def plain_key(key: Any, default: Any) -> Any:
    """The field's name, key or position of one of JAX's keys or of `tree_util`'s; the default for any other object."""
    for name in ("name", "key", "idx"):
        if hasattr(key, name):
            return getattr(key, name)
    return default


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Hashable]],
    unflatten_func: Callable[[Any, Any], Any],
) -> None:
    """Make a class a pytree node; as `jax.tree_util.register_pytree_node`.

    Args:
        flatten_func: gives (children, metadata) of an instance; metadata are compared and hashed.
        unflatten_func: makes an instance of (metadata, children).

    Raises:
        UserInputError: the class is registered already, or is none.

    >>> from ctrlgrad import tree
    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> flatten_pair = lambda p: ((p.a, p.b), None)
    >>> register_pytree_node(Pair, flatten_pair, lambda _, children: Pair(*children))
    >>> tree.leaves(tree.map(lambda x: 2 * x, Pair(1, 2)))
    [2, 4]
    """
    _registered("register_pytree_node", nodetype, flatten_func, unflatten_func)


def _registered(operation: str, nodetype: Any, flatten_func: Any, unflatten_func: Any) -> None:
    register: Any = optree.register_pytree_node
    try:
        register(nodetype, flatten_func, unflatten_func, namespace=NAMESPACE)
    except (TypeError, ValueError) as error:
        raise UserInputError(
            f"tree.{operation}: the class cannot be registered",
            expected="a class that is no pytree node yet",
            got=str(error),
            hint="register a class once, where it is defined",
        ) from error


def register_pytree_node_class(cls: C) -> C:
    """Make a class a pytree node by its methods `tree_flatten` and `tree_unflatten`; a decorator, as JAX's.

    >>> from ctrlgrad import tree
    >>> @register_pytree_node_class
    ... class Box:
    ...     def __init__(self, x):
    ...         self.x = x
    ...     def tree_flatten(self):
    ...         return (self.x,), None
    ...     @classmethod
    ...     def tree_unflatten(cls, metadata, children):
    ...         return cls(*children)
    >>> tree.leaves(Box([1, 2]))
    [1, 2]
    """
    methods: Any = cls
    _registered("register_pytree_node_class", cls, methods.tree_flatten, methods.tree_unflatten)
    return cls


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Hashable]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Hashable]] | None = None,
) -> None:
    """As `register_pytree_node`, for children that have names; as `jax.tree_util.register_pytree_with_keys`.

    Args:
        flatten_with_keys: gives ((key, child) for each child, metadata) of an instance. A key is a string, an int, or
            one of `tree_util`'s or JAX's keys.
        flatten_func: accepted for JAX's sake.

    Raises:
        UserInputError: the class is registered already, or is none.

    >>> from ctrlgrad import tree
    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> flatten_pair = lambda p: ((("a", p.a), ("b", p.b)), None)
    >>> register_pytree_with_keys(Pair, flatten_pair, lambda _, xs: Pair(*xs))
    >>> tree.leaves_with_path(Pair(1, [2]))
    [(('a',), 1), (('b', 0), 2)]
    """

    def to_children(x: Any) -> tuple[list[Any], Hashable, tuple[Any, ...]]:
        keyed, metadata = flatten_with_keys(x)
        pairs = list(keyed)
        return [child for _, child in pairs], metadata, tuple(plain_key(k, k) for k, _ in pairs)

    _registered("register_pytree_with_keys", nodetype, to_children, unflatten_func)


def register_pytree_with_keys_class(cls: C) -> C:
    """As `register_pytree_node_class`, by a method `tree_flatten_with_keys` in the place of `tree_flatten`.

    >>> from ctrlgrad import tree
    >>> @register_pytree_with_keys_class
    ... class Box:
    ...     def __init__(self, x):
    ...         self.x = x
    ...     def tree_flatten_with_keys(self):
    ...         return (("x", self.x),), None
    ...     @classmethod
    ...     def tree_unflatten(cls, metadata, children):
    ...         return cls(*children)
    >>> tree.leaves_with_path(Box(1))
    [(('x',), 1)]
    """
    methods: Any = cls
    register_pytree_with_keys(cls, methods.tree_flatten_with_keys, methods.tree_unflatten)
    return cls


def register_static(cls: C) -> C:
    """Make a class a pytree node without leaves: its instances are structure, compared and hashed; a decorator.

    >>> from ctrlgrad import tree
    >>> @register_static
    ... class Mode(str):
    ...     pass
    >>> fast, slow = Mode("fast"), Mode("slow")
    >>> tree.leaves((fast, 1.0)), tree.structure(fast) == tree.structure(slow)
    ([1.0], False)
    """
    _registered("register_static", cls, lambda x: ((), x), lambda x, _: x)
    return cls


def static(**kwargs: Any) -> Any:
    """A field of a dataclass that is structure, not a child; it takes what `dataclasses.field` takes.

    >>> from ctrlgrad import tree
    >>> import dataclasses
    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Norm:
    ...     scale: float
    ...     axis: int = static(default=-1)
    >>> tree.leaves(Norm(2.0))
    [2.0]
    """
    return dataclasses.field(metadata={"static": True, **(kwargs.pop("metadata", None) or {})}, **kwargs)


def register_dataclass(
    nodetype: C | None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Any:
    """Make a dataclass a pytree node of its fields; a decorator too, as `jax.tree_util.register_dataclass`.

    Args:
        data_fields: the fields that are children; by default all remaining fields.
        meta_fields: those that are part of the structure, compared and hashed; by default those declared as
            `dataclasses.field(metadata={"static": True})`.
        drop_fields: those that are left to their defaults.

    Raises:
        UserInputError: the class is no dataclass, or the fields are not its fields.

    >>> import dataclasses, ctrlgrad as cg
    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Line:
    ...     slope: float
    ...     power: int = dataclasses.field(metadata={"static": True})
    >>> cg.grad(lambda line, x: line.slope * x**line.power)(Line(2.0, 3), 2.0)
    Line(slope=array(8.), power=3)
    """
    if nodetype is None:
        return functools.partial(
            register_dataclass, data_fields=data_fields, meta_fields=meta_fields, drop_fields=drop_fields
        )
    if not isinstance(nodetype, type) or not dataclasses.is_dataclass(nodetype):
        raise UserInputError(
            "tree.register_dataclass: it is no dataclass",
            expected="a class with @dataclass",
            got=repr(nodetype),
            hint="write @register_dataclass above @dataclass; register_pytree_node is for other classes",
        )
    fields = {f.name: f for f in dataclasses.fields(nodetype) if f.init and f.name not in drop_fields}
    if meta_fields is None:
        chosen = set(data_fields) if data_fields is not None else None
        meta_fields = [
            name for name, f in fields.items() if (f.metadata.get("static") if chosen is None else name not in chosen)
        ]
    if data_fields is None:
        data_fields = [name for name in fields if name not in meta_fields]
    data, meta = tuple(data_fields), tuple(meta_fields)
    if sorted((*data, *meta)) != sorted(fields):
        raise UserInputError(
            "tree.register_dataclass: the fields do not fit the dataclass",
            expected=f"each of {', '.join(fields)} once, in data_fields or in meta_fields",
            got=f"data_fields={list(data)}, meta_fields={list(meta)}",
            hint="drop_fields names those that are left to their defaults",
        )

    def to_children(x: Any) -> tuple[list[Any], tuple[Any, ...], tuple[str, ...]]:
        return [getattr(x, name) for name in data], tuple(getattr(x, name) for name in meta), data

    def of_children(values: tuple[Any, ...], children: Iterable[Any]) -> Any:
        return nodetype(**dict(zip(data, children, strict=True)), **dict(zip(meta, values, strict=True)))

    _registered("register_dataclass", nodetype, to_children, of_children)
    return nodetype


class Partial(functools.partial):  # type: ignore[type-arg]
    """A partial function call that is a pytree: its bound arguments are leaves, the function is structure.

    >>> from ctrlgrad import tree
    >>> scaled = Partial(lambda w, x: w * x, 3.0)
    >>> scaled(2.0), tree.map(lambda w: 10.0 * w, scaled)(2.0)
    (6.0, 60.0)
    """


_register: Any = optree.register_pytree_node
_register(
    Partial,
    lambda p: ((p.args, p.keywords), p.func),
    lambda func, bound: Partial(func, *bound[0], **bound[1]),
    namespace=NAMESPACE,
)


class Aside:
    """A leaf that no graph has, as a pytree node without leaves; unflattened, it is the leaf again."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf


_register(Aside, lambda aside: ((), aside), lambda aside, _: aside.leaf, namespace=NAMESPACE)

TreeDef = optree.PyTreeSpec
IsLeaf = Callable[[Any], bool] | None
Path = tuple[Any, ...]
_MISSING: Any = object()
# Types that are known to be leaves without a question to JAX.
_LEAVES = frozenset([bool, int, float, complex, str, bytes])
# Classes that were registered from JAX's registry.
_OF_JAX: set[type] = set()


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeDef]:
    """The leaves of a pytree, and how they are put together.

    Args:
        is_leaf: whether a node counts as a leaf as it is.

    >>> flatten({"w": [1.0, 2.0], "b": 3.0})[0]
    [3.0, 1.0, 2.0]
    """
    leaves, treedef = optree.tree_flatten(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    # JAX's registry is asked once for a class: then optree knows it.
    while "jax.tree_util" in sys.modules and _register_nodes(leaves, is_leaf):
        leaves, treedef = optree.tree_flatten(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    return leaves, treedef


def _register_nodes(leaves: Iterable[Any], is_leaf: IsLeaf) -> bool:
    """Register with optree the classes of leaves that are nodes to JAX; whether there were any."""
    found = False
    for leaf in leaves:
        kind = type(leaf)
        if kind in _LEAVES or hasattr(kind, "__array__") or (is_leaf is not None and is_leaf(leaf)):
            continue
        found = _register_as_in_jax(leaf) or found
    return found


def _register_as_in_jax(x: Any) -> bool:
    """Register the class of x as JAX flattens it, by one level, with JAX's public functions."""
    jax = sys.modules["jax.tree_util"]
    if jax.all_leaves([x]):
        return False

    def to_children(node: Any) -> tuple[list[Any], Any, tuple[Any, ...]]:
        found, treedef = jax.tree_flatten_with_path(node, is_leaf=lambda child: child is not node)
        keys = (path[0] for path, _ in found)
        return [child for _, child in found], treedef, tuple(plain_key(key, n) for n, key in enumerate(keys))

    # One leaf of this class before it may have registered it.
    if type(x) not in _OF_JAX:
        register: Any = optree.register_pytree_node
        register(type(x), to_children, jax.tree_unflatten, namespace=NAMESPACE)
        _OF_JAX.add(type(x))
    return True


def unflatten(treedef: TreeDef, leaves: Sequence[Any]) -> Any:
    """The pytree of these leaves.

    >>> leaves, treedef = flatten((1.0, [2.0]))
    >>> unflatten(treedef, [10.0, 20.0])
    (10.0, [20.0])
    """
    return treedef.unflatten(leaves)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a pytree.

    >>> leaves({"w": [1.0, 2.0], "b": None})
    [1.0, 2.0]
    """
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf = None) -> TreeDef:
    """Structure of a pytree: its containers, without its leaves.

    >>> structure((1.0, [2.0])) == structure((3.0, [4.0]))
    True
    """
    return flatten(tree, is_leaf)[1]


def map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply a function leaf by leaf, to several pytrees of one structure at once.

    The first pytree determines the leaves: subtrees of the further ones in their places are passed on as they are.

    Raises:
        UserInputError: a further pytree has another structure.

    >>> map(abs, {"w": [-1.0], "b": 2.0})
    {'w': [1.0], 'b': 2.0}
    """
    first, treedef = flatten(tree, is_leaf)
    return unflatten(treedef, [fn(*given) for given in zip(first, *_parts("map", treedef, rest), strict=True)])


def _parts(operation: str, treedef: TreeDef, rest: Sequence[Any]) -> list[list[Any]]:
    """Return the subtrees of further pytrees in place of the leaves of the first."""
    try:
        return [treedef.flatten_up_to(other) for other in rest]
    except (ValueError, TypeError) as error:
        raise UserInputError(
            f"tree.{operation}: the pytrees have different structures",
            expected=str(treedef),
            got=str(error),
            hint="the same containers with the same keys; what stands for a leaf of the first may be a pytree",
        ) from error


def flatten_with_path(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[tuple[Path, Any]], TreeDef]:
    """As `flatten`, each leaf with its path: the keys, positions and fields that lead to it.

    >>> flatten_with_path({"w": [1.0, 2.0]})[0]
    [(('w', 0), 1.0), (('w', 1), 2.0)]
    """
    found, treedef = flatten(tree, is_leaf)
    return list(zip(treedef.paths(), found, strict=True)), treedef


def leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[Path, Any]]:
    """The leaves of a pytree, each with its path.

    >>> leaves_with_path(({"b": 3.0},))
    [((0, 'b'), 3.0)]
    """
    return flatten_with_path(tree, is_leaf)[0]


def map_with_path(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """As `map`; the function takes the path of the leaf first.

    >>> map_with_path(lambda path, x: f"{path[0]}: {x}", {"w": 1.0, "b": 2.0})
    {'w': 'w: 1.0', 'b': 'b: 2.0'}
    """
    first, treedef = flatten(tree, is_leaf)
    given = zip(treedef.paths(), first, *_parts("map_with_path", treedef, rest), strict=True)
    return unflatten(treedef, [fn(*arguments) for arguments in given])


def reduce(fn: Callable[[Any, Any], Any], tree: Any, initializer: Any = _MISSING, is_leaf: IsLeaf = None) -> Any:
    """The leaves put together from the left by a function of two.

    >>> reduce(lambda total, x: total + x, {"w": [1.0, 2.0], "b": 3.0}, 0.0)
    6.0
    """
    start = () if initializer is _MISSING else (initializer,)
    return functools.reduce(fn, leaves(tree, is_leaf), *start)


def reduce_associative(
    operation: Callable[[Any, Any], Any], tree: Any, *, identity: Any = _MISSING, is_leaf: IsLeaf = None
) -> Any:
    """The leaves put together by an associative function of two, neighbours first: in as few rounds as there can be.

    Raises:
        UserInputError: a pytree without leaves, and no `identity`.

    >>> reduce_associative(lambda x, y: x + y, [1, (2, 3), [4, 5, 6]])
    21
    """
    found = leaves(tree, is_leaf)
    if not found and identity is _MISSING:
        raise UserInputError(
            "tree.reduce_associative: the pytree has no leaves",
            expected="one leaf at least, or identity=",
            got=str(structure(tree)),
            hint="say what the result is then: identity=0.0",
        )
    while len(found) > 1:
        pairs = [operation(x, y) for x, y in zip(found[::2], found[1::2], strict=False)]
        found = pairs if len(found) % 2 == 0 else [*pairs, found[-1]]
    return found[0] if found else identity


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """A pytree of the structure of `full_tree`: each leaf of `prefix_tree` is repeated for all leaves below it.

    Raises:
        UserInputError: the first is no prefix of the second.

    >>> broadcast((1, 2), (0, {"a": 0, "b": [0]}))
    (1, {'a': 2, 'b': [2]})
    """
    values, prefix = flatten(prefix_tree, is_leaf)
    (parts,) = _parts("broadcast", prefix, [full_tree])
    filled = [map(lambda _, x=x: x, part, is_leaf=is_leaf) for x, part in zip(values, parts, strict=True)]
    return unflatten(prefix, filled)


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Return true if all leaves are true.

    >>> all((True, [True, False])), all(())
    (False, True)
    """
    return not [x for x in leaves(tree, is_leaf) if not x]


def transpose(outer_treedef: TreeDef, inner_treedef: TreeDef | None, pytree_to_transpose: Any) -> Any:
    """A pytree of pytrees turned inside out.

    Args:
        outer_treedef: the outer structure of `pytree_to_transpose`.
        inner_treedef: the structure of each of its parts; None: that of the first.

    Raises:
        UserInputError: the pytree is not made of the two.

    >>> outer, inner = structure([0, 0]), structure({"a": 0, "b": 0})
    >>> transpose(outer, inner, [{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    {'a': [1, 3], 'b': [2, 4]}
    """
    (parts,) = _parts("transpose", outer_treedef, [pytree_to_transpose])
    if inner_treedef is None:
        inner_treedef = structure(parts[0]) if parts else structure(None)
    rows = _parts("transpose", inner_treedef, parts)
    return unflatten(inner_treedef, [unflatten(outer_treedef, column) for column in zip(*rows, strict=True)])


def paths(treedef: TreeDef) -> list[str]:
    """Path to each leaf, as text to append to a name: `[0]['h'].w`; empty for a lone leaf."""
    return [accessor.codify("") for accessor in treedef.accessors()]


def names(treedef: TreeDef, root: str) -> list[str]:
    """A short name per leaf for printed graphs: the last keys of its path, or `root` and its position."""
    result = []
    for path in treedef.paths():
        words = [str(key) for key in path if not str(key).isdigit()]
        digits = "".join(str(key) for key in path if str(key).isdigit())
        result.append("_".join(words) + digits if words else root + digits)
    return result


__all__ = [
    "Partial", "all", "broadcast", "flatten", "flatten_with_path", "leaves", "leaves_with_path", "map",
    "map_with_path", "reduce", "reduce_associative", "register_dataclass", "register_pytree_node",
    "register_pytree_node_class", "register_pytree_with_keys", "register_pytree_with_keys_class", "register_static",
    "static", "structure", "transpose", "unflatten",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
