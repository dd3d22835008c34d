"""Windows that are promised to lie inside: XLA checks none, reads them moved inside and drops what is written.

So a read that breaks its promise is not the transpose of a write that does, and JAX takes the one as the derivative of
the other all the same: cotangents of broken reads are dropped, tangents are read. Two functions of what stands in the
windows do this, each the rule of the other's transpose: what is read passes `read`, what is written `written`.
"""

from __future__ import annotations

from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.transforms.custom_vjp import custom_vjp


@custom_vjp
def read(values: Any, inside: Any) -> Any:
    """The values as they are; of their cotangents, those inside."""
    return values


@custom_vjp
def written(values: Any, inside: Any) -> Any:
    """The values inside, and zeros; the cotangents as they are."""
    return cnp.where(inside, values, cnp.zeros_like(values))


read.defjvp(lambda primals, tangents: (read(*primals), read(tangents[0], primals[1])))
read.defvjp(lambda values, inside: (read(values, inside), inside), lambda inside, ct: (written(ct, inside), None))
written.defjvp(lambda primals, tangents: (written(*primals), written(tangents[0], primals[1])))
written.defvjp(lambda values, inside: (written(values, inside), inside), lambda inside, ct: (read(ct, inside), None))

__all__ = ["read", "written"]
