"""Transformations of gradients: their type, how a leafwise rule becomes one, how they are composed and applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ctrlgrad import tree
from ctrlgrad.engines.device_array import DeviceArray
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.checks import same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.function import function
from ctrlgrad.options import default_float
from ctrlgrad.source import here


class GradientTransformation(NamedTuple):
    """A pair of functions: `init(params) -> state` and `update(grads, state, params) -> (updates, state)`.

    >>> from ctrlgrad.optim import sgd
    >>> init, update = sgd(0.5)
    >>> updates, state = update([np.array([2.0])], init([np.array([1.0])]))
    >>> updates
    [array([-1.])]
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]

    def __reduce__(self) -> Any:
        raise TypeMismatchError(
            "pickle: an optimiser is a pair of functions, which have no pickled form",
            got="a GradientTransformation",
            hint="store its state, a pytree of arrays, and make the optimiser anew with the same arguments",
        )


class EmptyState(NamedTuple):
    """State of a transformation that remembers nothing."""


def _on_card(*pytrees: Any) -> bool:
    return any(isinstance(leaf, DeviceArray) for leaf in tree.leaves(pytrees))


def is_traced(*pytrees: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree.leaves(pytrees))


def arrays(x: Any) -> Any:
    """Pytree with arrays in place of Python numbers."""
    return tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else np.asarray(leaf, default_float()), x)


def zeros_like(params: Any, dtype: Any = None, value: float = 0.0) -> Any:
    """Pytree of arrays like the parameters, filled with a value."""
    full = FUNCTIONS["full_like"] if is_traced(params) else np.full_like
    return tree.map(lambda p: full(p, value, dtype=dtype or p.dtype), arrays(params))


def count_of(state: Any) -> Any:
    """Number of updates so far: an int, or traced."""
    return state.count if isinstance(state.count, Tensor) else int(state.count)


def _next(count: Any) -> Any:
    if isinstance(count, Tensor):
        following: Tensor = count + np.int32(1)  # type: ignore[operator]
        return following
    return np.asarray(min(count + 1, np.iinfo(np.int32).max), np.int32)


def number(x: Any, like: Any) -> Any:
    """A number in the dtype of an array."""
    return x.astype(like.dtype) if isinstance(x, Tensor | np.ndarray | np.generic) else like.dtype.type(x)


def cast(pytree: Any, dtype: Any) -> Any:
    return pytree if dtype is None else tree.map(lambda x: x.astype(dtype), pytree)


def _shaped_alike(operation: str, wanted: tuple[str, Any], given: tuple[str, Any]) -> None:
    """Refuse two pytrees that differ in structure or shapes."""
    (label, one), (other_label, other) = wanted, given
    (leaves, treedef), (others, other_treedef) = tree.flatten(one), tree.flatten(other)
    same_structure(operation, here(), (label, other_label), (leaves, treedef), (others, other_treedef))
    for x, y, path in zip(leaves, others, tree.paths(treedef), strict=True):
        sizes = zip(x.shape, y.shape, strict=False)
        if len(x.shape) != len(y.shape) or any(isinstance(m, int) and isinstance(n, int) and m != n for m, n in sizes):
            raise ShapeError(
                f"{operation}: the shapes of {label} and of {other_label} differ",
                expected=f"{label}{path}: {tuple(x.shape)}",
                got=f"{tuple(y.shape)}",
                hint="gradients, state and updates are those of the very parameters that init got",
            )


# A stage's leafwise work: (updates, state, params, numbers) to (updates, state).
Follow = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


def stage(
    name: str,
    kind: Any,
    init: Callable[[Any], Any],
    follow: Follow,
    numbers: Callable[[Any], Any] = lambda state: (),
    needs_params: bool = False,
) -> GradientTransformation:
    """A transformation of one kind of state.

    `numbers(state)` computes scalars that depend on the count alone: on the host, where the state is no traced one, so
    that a schedule may be any Python function, and every step on a card runs the same graph.
    """
    follow_on_card = function(follow, engine="cuda")
    # A tuple has a method named count: the fields tell, not an attribute.
    fields = [field for field in kind._fields if field != "count"]
    is_counting = "count" in kind._fields

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not isinstance(state, kind):
            raise UserInputError(
                f"{name}: the second argument of update is no state of {name}",
                source=here(),
                expected="update(grads, state, params), with a state that init or update returned",
                got=type(state).__name__,
                hint="state = optimiser.init(params); updates, state = optimiser.update(grads, state, params)",
            )
        if needs_params and params is None:
            raise UserInputError(
                f"{name}: update needs the parameters",
                source=here(),
                expected="update(grads, state, params)",
                got="update(grads, state)",
                hint="weight decay is a share of the parameters: pass them as the third argument",
            )
        updates, params = arrays(updates), None if params is None else arrays(params)
        if params is not None:
            _shaped_alike(name, ("the parameters", params), ("the gradients", updates))
        for field in fields:
            _shaped_alike(name, ("the gradients", updates), ("the state", getattr(state, field)))
        traced = is_traced(updates, state, params)
        given = numbers(state)
        if not traced:
            given = tree.map(np.float64, given)
        rest = state._replace(count=None) if is_counting else state
        compute = follow_on_card if not traced and _on_card(updates, state, params) else follow
        updates, rest = compute(updates, rest, params if needs_params else None, given)
        return updates, rest._replace(count=_next(count_of(state))) if is_counting else rest

    return GradientTransformation(init, update)


def no_state(params: Any) -> EmptyState:
    return EmptyState()


def zero_count() -> np.ndarray:
    return np.zeros((), np.int32)


def _added(params: Any, updates: Any) -> Any:
    return tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)


_ADDED_ON_CARD = function(_added, engine="cuda")


def apply_updates(params: Any, updates: Any) -> Any:
    """Return the parameters plus the updates, each of its parameter's dtype.

    Raises `TypeMismatchError` or `ShapeError` where the two pytrees differ.

    >>> apply_updates({"w": np.array([1.0])}, {"w": np.array([-0.25])})
    {'w': array([0.75])}
    """
    params, updates = arrays(params), arrays(updates)
    _shaped_alike("optim.apply_updates", ("the parameters", params), ("the updates", updates))
    add = _ADDED_ON_CARD if _on_card(params, updates) and not is_traced(params, updates) else _added
    return add(params, updates)


def norm(grads: Any) -> Any:
    return np.sqrt(sum(np.sum(np.square(g.astype(np.float64))) for g in tree.leaves(grads)))


_NORM_ON_CARD = function(norm, engine="cuda")


def global_norm(grads: Any) -> Any:
    """Return the Euclidean norm of all leaves taken as one vector, summed in float64.

    >>> global_norm({"a": np.array([3.0]), "b": np.array([[4.0]])})
    5.0
    """
    if is_traced(grads):
        return norm(grads)
    if _on_card(grads):
        return float(_NORM_ON_CARD(grads))
    return float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in tree.leaves(arrays(grads)))))


def identity() -> GradientTransformation:
    """A transformation that returns the gradients as they are.

    >>> identity().update([np.array([3.0])], identity().init(None))[0]
    [array([3.])]
    """
    return GradientTransformation(no_state, lambda updates, state, params=None: (updates, state))


def chain(*transformations: GradientTransformation) -> GradientTransformation:
    """Apply transformations one after the other; the state is a tuple of their states.

    A member is anything with `init` and `update`, such as one of Optax's own.

    >>> from ctrlgrad.optim import clip, scale
    >>> halved = chain(scale(0.5), clip(1.0))
    >>> halved.update([np.array([1.0, 5.0])], halved.init([np.zeros(2)]))[0]
    [array([0.5, 1. ])]
    """

    def init(params: Any) -> Any:
        return tuple(t.init(params) for t in transformations)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not isinstance(state, tuple) or len(state) != len(transformations):
            raise UserInputError(
                "optim.chain: the second argument of update is no state of this chain",
                source=here(),
                expected=f"update(grads, state, params), with a tuple of {len(transformations)} states",
                got=f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__,
                hint="state = optimiser.init(params); updates, state = optimiser.update(grads, state, params)",
            )
        states = []
        for transformation, before in zip(transformations, state, strict=True):
            updates, after = transformation.update(updates, before, params)
            states.append(after)
        return updates, tuple(states)

    return GradientTransformation(init, update)
