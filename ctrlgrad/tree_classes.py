"""Classes as nodes of pytrees: how they are registered, and those that this library brings along. All of it is public
in `ctrlgrad.tree`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import optree

from ctrlgrad.errors import UserInputError
from ctrlgrad.source import here

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
    >>> register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda _, children: Pair(*children))
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
            source=here(),
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
    >>> register_pytree_with_keys(Pair, lambda p: ((("a", p.a), ("b", p.b)), None), lambda _, xs: Pair(*xs))
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
    >>> tree.leaves((Mode("fast"), 1.0)), tree.structure(Mode("fast")) == tree.structure(Mode("slow"))
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
            source=here(),
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
            source=here(),
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


def _bound(partial: Partial) -> tuple[Any, Any]:
    return (partial.args, partial.keywords), partial.func


_register: Any = optree.register_pytree_node
_register(Partial, _bound, lambda func, bound: Partial(func, *bound[0], **bound[1]), namespace=NAMESPACE)


class Aside:
    """A leaf that no graph has, as a pytree node without leaves; unflattened, it is the leaf again."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf


_register(Aside, lambda aside: ((), aside), lambda aside, _: aside.leaf, namespace=NAMESPACE)
