"""Signature of a call: the tree of the arguments, their types, and values that are no arrays.

Calls of one signature share a graph. `Signature` holds the traces of a key, a `Concrete` for each set of sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.dtypes import as_dtype
from ctrlgrad.engines.device_array import DeviceArray
from ctrlgrad.errors import TracingError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import float0
from ctrlgrad.frontend.checks import check_function, how_to_pass
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.watched import Watched
from ctrlgrad.ir import Graph, TensorType, Type
from ctrlgrad.ir.caching import Cache
from ctrlgrad.options import default_float
from ctrlgrad.passes import simplify
from ctrlgrad.passes.dead_code import without_calls
from ctrlgrad.records import record


@record
class TensorSpec:
    """The declared type of an argument: a shape (None for an unknown dimension) and a dtype.

    The dtype is float64 unless `options(default_float=)` says otherwise.

    >>> cg.TensorSpec((None, 3), "float32").type
    TensorType(dtype=dtype('float32'), shape=(None, 3))
    """

    shape: Sequence[int | None]
    dtype: Any = field(default_factory=default_float)

    def __post_init__(self) -> None:
        is_shape = isinstance(self.shape, Sequence) and not isinstance(self.shape, str)
        if not is_shape or any(not isinstance(n, int | np.integer | None) for n in self.shape):
            raise UserInputError(
                "TensorSpec: not a shape",
                expected="a tuple of ints, None for an unknown dimension",
                got=repr(self.shape),
                hint="the shape comes first: TensorSpec((None, 3), 'float32')",
            )
        as_dtype("TensorSpec", self.dtype)

    @property
    def type(self) -> TensorType:
        return TensorType(as_dtype("TensorSpec", self.dtype), tuple(self.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)


@record
class Static:
    """An argument that is no array: part of the signature. Compared by its value and its type."""

    value: Any
    kind: type


@record
class Key:
    """Key of a signature: calls with equal keys share a graph, up to the sizes of dimensions."""

    treedef: Any
    leaves: tuple[Any, ...]
    engine: str
    options: tuple[Any, ...]


@record(frozen=False)
class Concrete:
    """A traced signature: the types it accepts, its graph, and how its results are put together."""

    types: tuple[Type, ...]
    graph: Graph
    treedef: tree.TreeDef
    # The graph that runs, which other traces may share, and the values of its further inputs.
    program: Graph
    captured: list[np.ndarray]
    # Python state that the function read besides its arguments.
    watched: Watched
    # The results that stand for arrays of float0.
    float0: frozenset[int] = frozenset()

    @property
    def simplified(self) -> Graph:
        """The graph as it would run, with its constants in it."""
        return simplified(self.graph)

    def unflatten(self, results: Sequence[Any]) -> Any:
        if self.float0:
            results = [np.zeros(np.shape(x), float0) if i in self.float0 else x for i, x in enumerate(results)]
        if self.treedef.is_leaf():
            return results[0]
        return tree.unflatten(self.treedef, results)

    def accepts(self, types: Sequence[Type]) -> bool:
        return all(mine.accepts(its) for mine, its in zip(self.types, types, strict=True))


_SIMPLIFIED: Cache[None, Graph] = Cache(1)


def simplified(graph: Graph) -> Graph:
    """A graph as an engine runs it."""
    return _SIMPLIFIED.get(graph, None, lambda: simplify(without_calls(graph)))


@record(frozen=False)
class Signature:
    """All that was traced for one key. `exact_only`: the function needs to know its sizes."""

    variants: list[Concrete] = field(default_factory=list)
    exact_only: bool = False
    refused: TracingError | None = None


def static(leaf: Any) -> Static:
    """A leaf of the arguments that is no array. Raises `TypeMismatchError` where it cannot be compared."""
    if isinstance(leaf, Static):
        return leaf
    if isinstance(leaf, Tensor):
        raise TracingError(
            "a traced tensor reached a function outside of its trace",
            expected="arrays and numbers",
            got=repr(leaf),
            hint="return the value from the traced function, and pass on what that returns",
        )
    require_hash(
        leaf,
        "an argument is neither an array nor hashable",
        "pytrees of arrays and numbers; other leaves are part of the signature and must be hashable",
        lambda: f"{how_to_pass(leaf)};\nor make the object hashable, or use it from outside",
    )
    return Static(leaf, type(leaf))


def require_hash(x: Any, complaint: str, expected: str, hint: Callable[[], str]) -> None:
    """Refuse an object that cannot be part of a signature."""
    try:
        hash(x)
    except (TypeError, ValueError) as error:
        raise TypeMismatchError(complaint, expected=expected, got=type(x).__name__, hint=hint()) from error


def require_numbers(leaves: Sequence[Any]) -> None:
    """Refuse declared types among the arguments of a call."""
    declared = next((x for x in leaves if isinstance(x, TensorSpec)), None)
    if declared is not None:
        raise TypeMismatchError(
            "a function is called on a declared type, which has no numbers",
            expected="arrays and numbers",
            got=repr(declared),
            hint="ctrlgrad.eval_shape(f, ...) and f.graph(...) take types: what is returned, and what would run",
        )


def donated_positions(args: Sequence[Any], argnums: Sequence[int], arrays: Sequence[Any]) -> frozenset[int]:
    """The positions among all arrays of a call of those on a card in the positional arguments that are donated."""
    if not argnums:
        return frozenset()
    donated = tree.leaves([args[n] for n in argnums if -len(args) <= n < len(args)])
    chosen = {id(x) for x in donated if isinstance(x, DeviceArray)}
    return frozenset(n for n, x in enumerate(arrays) if id(x) in chosen)


def python_values_static(pytree: Any) -> Any:
    """The pytree with its Python integers and booleans marked as part of the signature: they reach the function as
    they are, so that `if` and `range` work on them."""
    return tree.map(lambda x: Static(x, type(x)) if type(x) in (bool, int) else x, pytree)


class StaticArguments:
    """The arguments of a function that are part of its signature, by `static_argnums` and `static_argnames`.

    A parameter that one of the two names is static however it is passed, as for `jax.jit`.
    """

    def __init__(self, operation: str, fn: Callable[..., Any], argnums: Any, argnames: Any) -> None:
        check_function(operation, fn)
        self.operation = operation
        self.numbers = _several(operation, "static_argnums", argnums, int)
        self.names = _several(operation, "static_argnames", argnames, str)
        try:
            parameters = [*inspect.signature(fn).parameters.values()]
        except (TypeError, ValueError):
            return
        self._check_names(parameters)
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._check_numbers(positional)
        numbers = {n % len(positional) for n in self.numbers}
        named = {positional.index(name) for name in self.names if name in positional}
        self.names = (*self.names, *(positional[n] for n in sorted(numbers)))
        self.numbers = (*self.numbers, *sorted(named - numbers))

    def _check_names(self, parameters: Sequence[inspect.Parameter]) -> None:
        known = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        wrong = [name for name in self.names if name not in known]
        if wrong and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise UserInputError(
                f"{self.operation}: static_argnames names a parameter that the function does not have",
                expected="of " + (", ".join(map(repr, known)) or "none: it has no parameters"),
                got=", ".join(map(repr, wrong)),
                hint="name parameters of the function that is passed",
            )

    def _check_numbers(self, positional: Sequence[str]) -> None:
        wrong = [n for n in self.numbers if not -len(positional) <= n < len(positional)]
        if wrong:
            raise UserInputError(
                f"{self.operation}: static_argnums is out of range",
                expected=f"positions among the {len(positional)} parameters: {', '.join(positional) or 'none'}",
                got=", ".join(map(str, wrong)),
                hint="static_argnums counts from 0",
            )

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def mark(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the static ones marked: each a leaf. Their values must be hashable."""
        chosen = {n % len(args) for n in self.numbers if -len(args) <= n < len(args)}
        return (
            tuple(self._marked(x) if n in chosen else x for n, x in enumerate(args)),
            {name: self._marked(x) if name in self.names else x for name, x in kwargs.items()},
        )

    def _marked(self, x: Any) -> Static:
        require_hash(
            x,
            f"{self.operation}: a static argument is not hashable",
            "a number, a string, a tuple or another value that can be compared and hashed",
            lambda: "arrays are no static arguments; a list may be passed as a tuple",
        )
        return x if isinstance(x, Static) else Static(x, type(x))


def _several(operation: str, name: str, given: Any, kind: type) -> tuple[Any, ...]:
    """One or several, or None for none, as a tuple."""
    found = () if given is None else (given,) if isinstance(given, kind) else tuple(given)
    if any(not isinstance(x, kind) or isinstance(x, bool) for x in found):
        raise UserInputError(
            f"{operation}: {name} names no arguments",
            expected=f"one {kind.__name__} or several",
            got=repr(given),
            hint=f"{name}=" + ("0, or (0, 2)" if kind is int else "'training', or ('training', 'steps')"),
        )
    return found
