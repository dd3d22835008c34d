"""Losses."""

from __future__ import annotations

from typing import Any

import ctrlgrad.numpy as cnp


def softmax_cross_entropy(logits: Any, targets: Any) -> Any:
    """Minus the natural logarithm of the probability that `softmax(logits)` gives to each target.

    `logits` is `[..., classes]`, `targets` integers `[...]` in `0 <= target < classes`; the result is `[...]`, in
    nats, of the logits' dtype. Large logits do not overflow.

    >>> import numpy as np
    >>> softmax_cross_entropy(np.array([[0.0, 0.0]]), np.array([1]))
    array([0.69314718])
    """
    chosen = cnp.take_along_axis(logits, cnp.expand_dims(targets, -1), axis=-1)
    return cnp.logsumexp(logits, axis=-1) - cnp.squeeze(chosen, -1)
