"""Checkpointing: the choice between saving and recomputing values for a derivative; as `jax.ad_checkpoint`."""

from __future__ import annotations

from typing import Any

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array.promote import operand
from ctrlgrad.transforms.checkpoint import check_name, checkpoint, checkpoint_policies


@explains_calls
def checkpoint_name(x: Any, name: str) -> Any:
    """The same pytree of arrays, whose values `checkpoint_policies` know by `name`; as JAX's.

    >>> policy = cg.checkpoint_policies.save_only_these_names("hidden")
    >>> layer = lambda x: np.sin(checkpoint_name(np.exp(x), "hidden"))
    >>> f = cg.checkpoint(layer, policy=policy)
    >>> bool(np.isclose(cg.grad(f)(0.5), np.cos(np.exp(0.5)) * np.exp(0.5)))
    True
    """
    check_name("checkpoint_name", name)
    return tree.map(lambda leaf: apply("barrier", [operand("checkpoint_name", leaf)], {"name": name}), x)


__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies"]


def __dir__() -> list[str]:
    return sorted(__all__)
