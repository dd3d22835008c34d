"""Transformations of gradients: their type, how a leafwise rule becomes one, how they are composed and applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls, no_such_attribute
from ctrlgrad.dtypes import as_dtype
from ctrlgrad.engines.device_array import DeviceArray
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.checks import same_structure
from ctrlgrad.frontend.functions import FUNCTIONS, publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.function import function
from ctrlgrad.options import default_float
from ctrlgrad.source import here

# Schedules: functions of the number of updates so far, a Python int or traced.


Schedule = Callable[[Any], Any]
ScalarOrSchedule = float | Schedule


def constant_schedule(value: float) -> Schedule:
    """The same number at every step.

    >>> constant_schedule(0.5)(100)
    0.5
    """
    return lambda count: value


def _plain(x: Any) -> Any:
    """A Python float in place of a NumPy one."""
    return float(x) if isinstance(x, np.floating | np.integer) else x


def polynomial_schedule(
    init_value: float, end_value: float, power: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """From `init_value` to `end_value` along a polynomial, in `transition_steps` after `transition_begin`.

    >>> rate = polynomial_schedule(1.0, 0.0, 2, 10)
    >>> rate(0), rate(5), rate(20)
    (1.0, 0.25, 0.0)
    """
    if transition_steps <= 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Any:
        left = 1 - np.minimum(np.maximum(count - begin, 0), transition_steps) / transition_steps
        return _plain((init_value - end_value) * left**power + end_value)

    return schedule


def linear_schedule(init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0) -> Schedule:
    """From `init_value` to `end_value` along a line, in `transition_steps` after `transition_begin`.

    >>> rate = linear_schedule(0.0, 1.0, 10)
    >>> rate(0), rate(5), rate(20)
    (0.0, 0.5, 1.0)
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(
    init_value: float, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """A number that is multiplied by a scale at each boundary.

    >>> rate = piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.1})
    >>> rate(9), rate(10), rate(20)
    (1.0, 0.5, 0.05)
    """
    scales = sorted((boundaries_and_scales or {}).items())
    if any(scale < 0 for _, scale in scales):
        raise UserInputError(
            "optim.piecewise_constant_schedule: a negative scale",
            expected="{step: scale}, no scale below 0",
            got=repr(boundaries_and_scales),
            hint="a scale multiplies the rate: 0.1 is a tenth of it",
        )

    def schedule(count: Any) -> Any:
        value: Any = init_value
        for threshold, scale in scales:
            value = np.where(count < threshold, value, scale * value)
        return _plain(value[()] if isinstance(value, np.ndarray) else value)

    return schedule


def exponential_decay(
    init_value: float,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """`init_value * decay_rate ** (count / transition_steps)` after `transition_begin`, not beyond `end_value`.

    >>> rate = exponential_decay(1.0, 10, 0.5, staircase=True)
    >>> rate(9), rate(10), rate(25)
    (1.0, 0.5, 0.25)
    """
    if transition_steps <= 0 or decay_rate == 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Any:
        power = np.maximum(count - begin, 0) / transition_steps
        value = init_value * decay_rate ** (np.floor(power) if staircase else power)
        if end_value is not None:
            value = (np.maximum if decay_rate < 1.0 else np.minimum)(value, end_value)
        return _plain(value)

    return schedule


def cosine_decay_schedule(init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0) -> Schedule:
    """From `init_value` to `alpha * init_value` along half a cosine, in `decay_steps`.

    Source: Loshchilov and Hutter 2017, "SGDR: stochastic gradient descent with warm restarts", without restarts.

    >>> rate = cosine_decay_schedule(1.0, 10, alpha=0.1)
    >>> rate(0), round(rate(5), 6), rate(20)
    (1.0, 0.55, 0.1)
    """
    if decay_steps <= 0:
        raise UserInputError(
            "optim.cosine_decay_schedule: no steps to decay in",
            expected="decay_steps of 1 or more",
            got=str(decay_steps),
            hint="with a warm-up, decay_steps counts its steps too",
        )

    def schedule(count: Any) -> Any:
        cosine = 0.5 * (1 + np.cos(np.pi * np.minimum(count, decay_steps) / decay_steps))
        return _plain(init_value * ((1 - alpha) * cosine**exponent + alpha))

    return schedule


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Schedules one after the other; each counts from the boundary where it begins.

    >>> rate = join_schedules([constant_schedule(1.0), linear_schedule(1.0, 0.0, 10)], [5])
    >>> rate(4), rate(10)
    (1.0, 0.5)
    """

    def schedule(count: Any) -> Any:
        if not isinstance(count, Tensor):
            past = len([boundary for boundary in boundaries if count >= boundary])
            return schedules[past](count - boundaries[past - 1] if past else count)
        value = schedules[0](count)
        for boundary, following in zip(boundaries, schedules[1:], strict=True):
            since: Any = count - boundary  # type: ignore[operator]
            value = np.where(since < 0, value, following(since))
        return value

    return schedule


def warmup_constant_schedule(init_value: float, peak_value: float, warmup_steps: int) -> Schedule:
    """From `init_value` to `peak_value` along a line, and then the same.

    >>> rate = warmup_constant_schedule(0.0, 1.0, 10)
    >>> rate(5), rate(10), rate(100)
    (0.5, 1.0, 1.0)
    """
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """A line up to `peak_value` in `warmup_steps`, and half a cosine to `end_value` at step `decay_steps`.

    >>> rate = warmup_cosine_decay_schedule(0.0, 1.0, 10, 110, 0.1)
    >>> rate(0), rate(5), rate(10), round(rate(110), 6)
    (0.0, 0.5, 1.0, 0.1)
    """
    alpha = 0.0 if peak_value == 0.0 else end_value / peak_value
    rising = linear_schedule(init_value, peak_value, warmup_steps)
    falling = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return join_schedules([rising, falling], [warmup_steps])


def warmup_exponential_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """A line up to `peak_value` in `warmup_steps`, and then `exponential_decay`.

    >>> rate = warmup_exponential_decay_schedule(0.0, 1.0, 10, 100, 0.5)
    >>> rate(5), rate(10), rate(110)
    (0.5, 1.0, 0.5)
    """
    falling = exponential_decay(peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value)
    return join_schedules([linear_schedule(init_value, peak_value, warmup_steps), falling], [warmup_steps])


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

    def __copy__(self) -> GradientTransformation:
        return self

    def __deepcopy__(self, memo: Any) -> GradientTransformation:
        return self

    def __reduce__(self) -> Any:
        raise TypeMismatchError(
            "pickle: an optimiser is a pair of functions, which have no pickled form",
            got="a GradientTransformation",
            hint="store its state, a pytree of arrays, and make the optimiser anew with the same arguments",
        )


def _missing(optimiser: GradientTransformation, name: str) -> Any:
    raise no_such_attribute("an optimiser", optimiser, name)


# Not in the class: type checkers would take every attribute.
setattr(GradientTransformation, "__getattr__", _missing)  # noqa: B010


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
    kept = None if dtype is None else as_dtype("optim", dtype)
    return tree.map(lambda p: full(p, value, dtype=kept or p.dtype), arrays(params))


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


# Update of one leaf: (updates, state, params, numbers) to (updates, state).
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

    @explains_calls
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not isinstance(state, kind):
            raise UserInputError(
                f"{name}: the second argument of update is no state of {name}",
                expected="update(grads, state, params), with a state that init or update returned",
                got=type(state).__name__,
                hint="state = optimiser.init(params); updates, state = optimiser.update(grads, state, params)",
            )
        if needs_params and params is None:
            raise UserInputError(
                f"{name}: update needs the parameters",
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


def global_norm(updates: Any) -> Any:
    """Return the Euclidean norm of all leaves taken as one vector, summed in float64.

    >>> global_norm({"a": np.array([3.0]), "b": np.array([[4.0]])})
    5.0
    """
    if is_traced(updates):
        return norm(updates)
    if _on_card(updates):
        return float(_NORM_ON_CARD(updates))
    return float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in tree.leaves(arrays(updates)))))


def identity() -> GradientTransformation:
    """A transformation that returns the gradients unchanged.

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

    @explains_calls
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not isinstance(state, tuple) or len(state) != len(transformations):
            raise UserInputError(
                "optim.chain: the second argument of update is no state of this chain",
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


_HELPERS = "arrays cast count_of is_traced no_state norm number stage zero_count zeros_like"
publish(__name__, *_HELPERS.split(), more=["ScalarOrSchedule", "Schedule"])
