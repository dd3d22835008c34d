"""`call`: a function kept whole because its derivative is not that of its nodes.

Operands are the function's inputs, the outer values that it captures first. Region 0 computes the results.
Its attribute `kind` says what its derivative is:

- "checkpoint": that of region 0, whose inside is computed again in the backward pass instead of saved, apart from the
  values that its attribute `policy` names;
- "custom_jvp", "custom_vjp": what its attribute `rule` says, an `ir.rules.Forward` or `Reverse`, whose graphs are
  made when a derivative is asked for;
- "custom_vmap": that of region 0; what its attribute `rule` says, an `ir.rules.Batching`, is how it is batched, and its
  derivative by the derivative of that;
- "rows": that of region 1, which computes one row of region 0: of the operands at `mapped`, and of all
  results, a row along axis 0. So a batched function that is batched once more can be batched over both at once;
- "gradient": that of region 0, which yields what region 1 does, then its cotangents, as its attribute `rule` makes
  them, an `ir.rules.Gradient`. Batched, region 1 is batched, and its gradient taken after that.

Before a graph runs, `ctrlgrad.passes.inline_calls` puts region 0 in the place of the node.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, Use, declare
from ctrlgrad.ir.types import RegionType, Type

KINDS = ("checkpoint", "custom_vjp", "custom_jvp", "custom_vmap", "rows", "gradient")


def _infer_call(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    declared = regions[0].inputs
    if len(declared) != len(operands) or not all(d.accepts(t) for d, t in zip(declared, operands, strict=True)):
        raise TypeMismatchError(
            "call: the operands do not fit",
            expected=", ".join(map(str, declared)),
            got=", ".join(map(str, operands)),
        )
    return regions[0].outputs


declare("call", None, _infer_call, attributes=attributes.Call)


def _infer_barrier(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    return (operands[0],)


# The identity, which no pass sees through: what is computed again from it is not merged with what was computed before.
# One that has a name marks a value for the policies of checkpoints.
# The name of a barrier that `check_nans="gradients"` looks at.
COTANGENT = "a cotangent"
declare("barrier", 1, _infer_barrier, Trait.VIEW, Trait.SHAPE_OF_FIRST, attributes=attributes.Barrier, uses=(Use.PASS,))
