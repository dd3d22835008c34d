"""Optimisers and learning rates with the names, signatures and values of Optax, as pure functions on pytrees.

A `GradientTransformation` has `init(params) -> state` and `update(grads, state, params) -> (updates, state)`; the new
parameters are `apply_updates(params, updates)`. `chain` composes transformations. Nothing is changed in place, and a
state is a pytree of arrays that can be stored, with the fields of Optax's. Leaves are NumPy arrays, arrays on a card
(`engine="cuda"`: each transformation is then one graph there, and so are its results), or traced: an update may stand
in a loop, and be differentiated.

    >>> optimiser = chain(clip_by_global_norm(1.0), adam(0.1))
    >>> params = {"w": np.array([1.0, -1.0])}
    >>> gradient, state = {"w": np.array([2.0, -3.0])}, optimiser.init(params)
    >>> updates, state = optimiser.update(gradient, state, params)
    >>> apply_updates(params, updates)["w"].round(6)
    array([ 0.9, -0.9])

Schedules are functions of the number of updates so far: a Python int, or traced where the state is.
"""

from __future__ import annotations

from typing import Any

from ctrlgrad.advice import explain_calls, no_such_name
from ctrlgrad.optim.scaling import (
    ScaleByAdamState,
    ScaleByLionState,
    ScaleByRmsState,
    ScaleByRmsWithCountState,
    ScaleByRssState,
    ScaleByRStdDevState,
    ScaleByRStdDevWithCountState,
    ScaleByScheduleState,
    TraceState,
    adagrad,
    adam,
    adamw,
    add_decayed_weights,
    clip,
    clip_by_global_norm,
    lion,
    momentum,
    rmsprop,
    scale,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    scale_by_schedule,
    scale_by_stddev,
    sgd,
    trace,
)
from ctrlgrad.optim.stages import (
    EmptyState,
    GradientTransformation,
    ScalarOrSchedule,
    Schedule,
    apply_updates,
    chain,
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    global_norm,
    identity,
    join_schedules,
    linear_schedule,
    piecewise_constant_schedule,
    polynomial_schedule,
    warmup_constant_schedule,
    warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule,
)

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "ScalarOrSchedule",
    "ScaleByAdamState",
    "ScaleByLionState",
    "ScaleByRStdDevState",
    "ScaleByRStdDevWithCountState",
    "ScaleByRmsState",
    "ScaleByRmsWithCountState",
    "ScaleByRssState",
    "ScaleByScheduleState",
    "Schedule",
    "TraceState",
    "adagrad",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip",
    "clip_by_global_norm",
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "global_norm",
    "identity",
    "join_schedules",
    "linear_schedule",
    "lion",
    "momentum",
    "piecewise_constant_schedule",
    "polynomial_schedule",
    "rmsprop",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_schedule",
    "scale_by_stddev",
    "sgd",
    "trace",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
]

explain_calls(globals(), __all__)


def __getattr__(name: str) -> Any:
    raise no_such_name("ctrlgrad.optim", name, globals())


def __dir__() -> list[str]:
    return sorted(__all__)
