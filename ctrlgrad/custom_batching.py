"""Functions that say themselves how they are batched, under the names of `jax.custom_batching`."""

from __future__ import annotations

from ctrlgrad.transforms.vmap import custom_vmap, sequential_vmap

__all__ = ["custom_vmap", "sequential_vmap"]


def __dir__() -> list[str]:
    return sorted(__all__)
