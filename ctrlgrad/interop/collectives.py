"""Collectives: reductions over rows of `jax.vmap`, and programs that are written for several devices and run on one.

`jax.vmap(axis_name=...)` turns the name in `psum` into the number of an axis. A name that is left belongs to a mesh,
and meshes of more than one device are refused, so that its axis has size 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad import lax
from ctrlgrad.interop.primitives import REFUSED, TABLE, Equation, entry, plain, unsupported

REFUSED |= dict.fromkeys(
    ("all_gather", "all_to_all", "axis_index", "ppermute", "ragged_all_to_all"), "it speaks of several devices"
)


def _over_rows(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(equation: Equation, *operands: Any) -> list[Any]:
        axes = tuple(axis for axis in equation.params["axes"] if isinstance(axis, int))
        return [reduce(x, axes) if axes else x for x in operands]

    return reduced


TABLE |= dict.fromkeys(("psum", "psum2", "psum_invariant"), _over_rows(lax.reduce_sum))
TABLE |= {"pmax": _over_rows(lax.reduce_max), "pmin": _over_rows(lax.reduce_min)}
# Annotations of how values vary from device to device.
TABLE |= dict.fromkeys(("pbroadcast", "pcast", "pvary"), plain(lambda *operands: list(operands)))


@entry("shard_map")
def _shard_map(equation: Equation, *operands: Any) -> Any:
    """Read a program for the devices of a mesh that has one device."""
    if (size := equation.params["mesh"].size) != 1:
        raise unsupported(equation, f"its mesh has {size} devices", "give it a mesh of one device")
    return equation.read(equation.params["jaxpr"], *operands)
