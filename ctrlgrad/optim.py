"""Optimisers: pure functions on pytrees of NumPy arrays, or of arrays on a card.

An `Optimiser` has `init(params) -> state` and `update(grads, state, params) -> (params, state)`. Nothing is changed
in place, so the old parameters and state stay valid, and a state is a pytree of arrays that can be stored. Where a
gradient lies on a card (`engine="cuda"`), an update is one graph there, and so are its results. In a traced function
an update is recorded: it may stand in a loop, and be differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.engines.device_array import DeviceArray
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.frontend.checks import same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.function import function
from ctrlgrad.options import default_float
from ctrlgrad.source import here


@dataclass(frozen=True, slots=True)
class Optimiser:
    """See the module's docstring."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


def global_norm(grads: Any) -> float:
    """The Euclidean norm of all leaves taken as one vector, summed in float64.

    >>> global_norm({"a": np.array([3.0]), "b": np.array([[4.0]])})
    5.0
    """
    if _is_traced(grads):
        return _norm(grads)  # type: ignore[no-any-return]
    if _on_card(grads):
        return float(_NORM_ON_CARD(grads))
    return float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in tree.leaves(grads))))


def _norm(grads: Any) -> Any:
    return np.sqrt(sum(np.sum(np.square(g.astype(np.float64))) for g in tree.leaves(grads)))


def _clipped(grads: Any, limit: Any) -> Any:
    norm = _norm(grads)
    scale = np.where(norm <= limit, 1.0, limit / norm)
    return tree.map(lambda g: g * scale.astype(g.dtype), grads)


_NORM_ON_CARD, _CLIPPED_ON_CARD = function(_norm, engine="cuda"), function(_clipped, engine="cuda")


def _on_card(*pytrees: Any) -> bool:
    return any(isinstance(leaf, DeviceArray) for leaf in tree.leaves(pytrees))


def _is_traced(*pytrees: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree.leaves(pytrees))


def _arrays(x: Any) -> Any:
    """The pytree with arrays in place of Python numbers."""
    return tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else np.asarray(leaf, default_float()), x)


def _check(grads: Any, state: Any, params: Any) -> None:
    """Refuse what is no state, and gradients that are not like the parameters."""
    if not isinstance(state, dict) or set(state) != {"step", "mean", "square"}:
        raise UserInputError(
            "adam: the second argument of update is no state of adam",
            source=here(),
            expected="update(grads, state, params), with a state that init or update returned",
            got=f"a dict of {', '.join(map(repr, state))}" if isinstance(state, dict) else type(state).__name__,
            hint="state = optimiser.init(params); params, state = optimiser.update(grads, state, params)",
        )
    wanted, treedef = tree.flatten(params)
    for label, given in (("the gradients", grads), ("the state", state["mean"])):
        leaves, given_treedef = tree.flatten(given)
        same_structure("adam", here(), ("the parameters", label), (wanted, treedef), (leaves, given_treedef))
        for x, y, path in zip(wanted, leaves, tree.paths(treedef), strict=True):
            if any(
                isinstance(m, int) and isinstance(n, int) and m != n for m, n in zip(x.shape, y.shape, strict=False)
            ) or (len(x.shape) != len(y.shape)):
                raise ShapeError(
                    f"adam: the shapes of the parameters and of {label} differ",
                    source=here(),
                    expected=f"params{path}: {tuple(x.shape)}",
                    got=f"{tuple(y.shape)}",
                    hint="gradients and state are those of these very parameters",
                )


def clip_by_global_norm(grads: Any, limit: float) -> Any:
    """The gradients, scaled down to norm `limit` where theirs is larger; their direction stays.

    Source: Pascanu, Mikolov and Bengio 2013, "On the difficulty of training recurrent neural networks".

    >>> clip_by_global_norm([np.array([3.0, 4.0])], 1.0)
    [array([0.6, 0.8])]
    """
    if _is_traced(grads, limit):
        return _clipped(grads, limit)
    if _on_card(grads):
        return _CLIPPED_ON_CARD(grads, limit)
    norm = global_norm(grads)
    if norm <= limit:
        return grads
    return tree.map(lambda g: g * g.dtype.type(limit / norm), grads)


def adam(
    learning_rate: float | Callable[[Any], Any], beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Optimiser:
    """Adam with bias correction; `learning_rate` is a number or a function of the step (0 for the first).

    The state is `{"step", "mean", "square"}`: an int64 scalar and two pytrees like the parameters, of their dtypes.
    In a traced function the step is traced, and so is what `learning_rate` gets.
    Source: Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.

    >>> optimiser = adam(0.1)
    >>> params = {"w": np.array([1.0, -1.0])}
    >>> params, state = optimiser.update({"w": np.array([2.0, -3.0])}, optimiser.init(params), params)
    >>> params["w"].round(6)
    array([ 0.9, -0.9])
    """

    def init(params: Any) -> Any:
        zeros = tree.map(FUNCTIONS["zeros_like"] if _is_traced(params) else np.zeros_like, _arrays(params))
        return {"step": np.zeros((), np.int64), "mean": zeros, "square": zeros}

    def following(grads: Any, mean: Any, square: Any, params: Any, factor: Any, least: Any) -> tuple[Any, Any, Any]:
        def next_mean(m: Any, g: Any) -> Any:
            return m + g.dtype.type(1 - beta1) * (g - m)

        def next_square(v: Any, g: Any) -> Any:
            return v + g.dtype.type(1 - beta2) * (g * g - v)

        def next_param(p: Any, m: Any, v: Any) -> Any:
            return p - factor.astype(p.dtype) * m / (np.sqrt(v) + least.astype(p.dtype))

        mean = tree.map(next_mean, mean, grads)
        square = tree.map(next_square, square, grads)
        return tree.map(next_param, params, mean, square), mean, square

    following_on_card = function(following, engine="cuda")

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        grads, params = _arrays(grads), _arrays(params)
        _check(grads, state, params)
        is_traced = _is_traced(grads, state, params)
        before = state["step"] if is_traced else int(state["step"])
        rate = learning_rate(before) if callable(learning_rate) else learning_rate
        step = state["step"] + 1 if is_traced else np.asarray(state["step"] + 1)
        # Both corrections in one factor, and epsilon scaled with them: one division per parameter.
        unbias = np.sqrt(1 - beta2**step)
        factor, least = rate * unbias / (1 - beta1**step), epsilon * unbias
        if not is_traced:
            factor, least = np.float64(factor), np.float64(least)
        compute = following_on_card if _on_card(grads, params) and not is_traced else following
        params, mean, square = compute(grads, state["mean"], state["square"], params, factor, least)
        return params, {"step": step, "mean": mean, "square": square}

    return Optimiser(init, update)


def warmup_cosine(peak: float, steps: int, warmup: int) -> Callable[[Any], Any]:
    """A learning rate that rises linearly to `peak` in `warmup` steps and falls along a cosine to a tenth of it.

    Source: Loshchilov and Hutter 2017, "SGDR: stochastic gradient descent with warm restarts", without restarts.

    >>> rate = warmup_cosine(1.0, 110, 10)
    >>> rate(0), rate(9), round(rate(109), 6)
    (0.1, 1.0, 0.1)
    """

    def rate(step: Any) -> Any:
        if _is_traced(step):
            falling = np.minimum(1.0, (step + 1 - warmup) / max(1, steps - warmup))
            low = peak * (0.1 + 0.45 * (1 + np.cos(np.pi * falling)))
            return np.where(step < warmup, peak * (step + 1) / max(1, warmup), low)
        if step < warmup:
            return peak * (step + 1) / warmup
        progress = (step + 1 - warmup) / max(1, steps - warmup)
        return peak * float(0.1 + 0.45 * (1 + np.cos(np.pi * min(1.0, progress))))

    return rate
