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

`stages` has the type of a transformation and how they are composed, `scaling` single transformations and optimisers.
Schedules are functions of the number of updates so far: a Python int, or traced where the state is.
"""

from __future__ import annotations

from typing import Any

from ctrlgrad.advice import no_such_name
from ctrlgrad.frontend.functions import publish
from ctrlgrad.optim.scaling import *
from ctrlgrad.optim.stages import *

publish(__name__, "Any", "no_such_name", is_facade=True)


def __getattr__(name: str) -> Any:
    raise no_such_name("ctrlgrad.optim", name, globals())
