"""Declarations of loops, branches, calls, callbacks and collectives."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, TypeRule, Use, declare
from ctrlgrad.ir.types import BOOL, INDEX, RegionType, TensorType, Type, join
from ctrlgrad.ops.term import axes, declared, scalar_index


def _accept(what: str, declared: Sequence[Type], given: Sequence[Type]) -> None:
    if len(declared) != len(given):
        raise TypeMismatchError(f"{what}: wrong number of values", expected=str(len(declared)), got=str(len(given)))
    for position, (d, g) in enumerate(zip(declared, given, strict=True)):
        if not d.accepts(g):
            raise TypeMismatchError(f"{what}: value {position} has another type", expected=str(d), got=str(g))


def _infer_while(operands: Sequence[Type], attrs: attributes.Loop, regions: Sequence[RegionType]) -> Sequence[Type]:
    cond, body = regions
    _, carry = attrs.split(body.inputs)
    _accept("while: operands", body.inputs, operands)
    _accept("while: inputs of the cond", body.inputs, cond.inputs)
    _accept("while: result of the cond", [BOOL], cond.outputs)
    _accept("while: result of the body", carry, body.outputs)
    return carry


def _infer_cond(operands: Sequence[Type], attrs: attributes.Branch, regions: Sequence[RegionType]) -> Sequence[Type]:
    selector, *rest = operands
    if selector != BOOL:
        scalar_index("cond", "the selector", selector)
    elif len(regions) != 2:
        raise TypeMismatchError("cond: a bool selects one of two branches", got=f"{len(regions)} branches")
    results = list(regions[0].outputs)
    for number, region in enumerate(regions):
        _accept(f"cond: inputs of branch {number}", region.inputs, rest)
        if len(region.outputs) != len(results):
            raise TypeMismatchError("cond: the branches yield different numbers of values")
        for position, output in enumerate(region.outputs):
            joined = join(results[position], output)
            if joined is None:
                raise TypeMismatchError(
                    f"cond: the branches differ in result {position}", expected=str(results[position]), got=str(output)
                )
            results[position] = joined
    return results


declare("while", None, _infer_while, attributes=attributes.Loop)
declare("cond", None, _infer_cond, attributes=attributes.Branch)


# `call`: a function that stays whole, because its derivative or its batching is not that of its nodes.
#
# The operands are the captured outer values and then the inputs of the function. Region 0 computes the results.
# The attribute `kind` names the rule:
#
# - "checkpoint": the derivative of region 0. The backward pass recomputes the inside instead of saving it, except for
#   the values that the attribute `policy` names.
# - "custom_jvp", "custom_vjp": the derivative is the attribute `rule`, an `ir.rules.Forward` or `Reverse`. Its graphs
#   are traced at differentiation.
# - "custom_vmap": the derivative of region 0. The attribute `rule`, an `ir.rules.Batching`, says how the call is
#   batched; the derivative of that is how the derivative is batched.
# - "rows": the derivative of region 1, which computes one row of region 0: a row along axis 0 of the operands at
#   `mapped` and of all results. So a batched function can be batched again over both axes at once.
# - "derivative": region 0 yields a derivative of region 1 along seeds, which are the last operands, by the attribute
#   `rule`, an `ir.rules.Derivative`. To batch the call, region 1 is batched first, and differentiated after that.
#
# Before a graph runs, `ctrlgrad.passes.dead_code` replaces the node by region 0.


KINDS = ("checkpoint", "custom_vjp", "custom_jvp", "custom_vmap", "rows", "derivative")


def _infer_call(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    declared = regions[0].inputs
    if len(declared) != len(operands) or not all(d.accepts(t) for d, t in zip(declared, operands, strict=True)):
        raise TypeMismatchError(
            "call: the operands do not fit", expected=", ".join(map(str, declared)), got=", ".join(map(str, operands))
        )
    return regions[0].outputs


declare("call", None, _infer_call, attributes=attributes.Call)


# The type rule of the identity, on a tensor or a stack.
_first: TypeRule = lambda operands, attrs, regions: operands[:1]

# The identity, which no pass sees through: what is computed again from it is not merged with what was computed before.
# One that has a name marks a value for the policies of checkpoints.
# The name of a barrier that `check_nans="gradients"` looks at.
COTANGENT = "a cotangent"
_SAME = (Trait.VIEW, Trait.SHAPE_OF_FIRST)
declare("barrier", 1, _first, *_SAME, attributes=attributes.Barrier, uses=(Use.PASS,))


# Ops that call the user's Python while a graph runs.
#
# `callback` passes its operands to its attribute `fn(values, iterations)`: arrays, and the number of the current
# iteration of each loop around the node, the outermost first. `watch` is the identity; in reverse mode its cotangent
# goes to such a callback. `pure_callback` computes its results with a user's function without effects: the function may
# be called more often than the program reaches the op, or not at all if nothing uses the results.


declare("callback", None, lambda operands, attrs, regions: (), Trait.EFFECT, attributes=attributes.Hook)
declare("pure_callback", None, lambda operands, attrs, regions: attrs.results, attributes=attributes.HostCall)
declare("watch", 1, _first, *_SAME, attributes=attributes.Hook, uses=(Use.PASS,))


# Collectives: what rows of a mapped function that has given its axis a name tell each other.
#
# Each is what one row has of it. They are there in graphs that are being mapped alone: batching
# (`batching/collectives.py`) puts sums, transposes and gathers over the batch axis in their place. With x_i the operand
# and y_i the result in row i:
#
#     psum          y_i = sum over j of x_j
#     all_gather    y_i[j] = x_j
#     psum_scatter  y_i = sum over j of x_j[i]       the transpose of all_gather
#     all_to_all    y_i[j] = x_j[i]                  its own transpose
#     ppermute      y_i = x_j, where j sends to i    its transpose sends back
#     axis_index    y_i = i


@declared("all_gather", 1, Trait.MAPPED, Trait.TOTAL, attributes=attributes.CollectiveAlong)
def _infer_gather(attrs: attributes.CollectiveAlong, x: TensorType) -> TensorType:
    (axis,) = axes("all_gather", (attrs.axis,), x.rank + 1)
    return TensorType(x.dtype, (*x.shape[:axis], attrs.size, *x.shape[axis:]))


def _row_axis(op: str, attrs: attributes.CollectiveAlong, x: TensorType) -> int:
    """Axis of the operand that has an element for each row."""
    (axis,) = axes(op, (attrs.axis,), x.rank)
    if None not in (attrs.size, x.shape[axis]) and x.shape[axis] != attrs.size:
        raise ShapeError(
            f"{op}: the axis has not as many elements as there are rows",
            expected=f"{attrs.size} elements on axis {axis}",
            got=str(x),
            hint="reshape it so that one axis has an element for each row",
        )
    return axis


@declared("psum_scatter", 1, Trait.MAPPED, Trait.TOTAL, attributes=attributes.CollectiveAlong)
def _infer_scatter(attrs: attributes.CollectiveAlong, x: TensorType) -> TensorType:
    axis = _row_axis("psum_scatter", attrs, x)
    return TensorType(x.dtype, (*x.shape[:axis], *x.shape[axis + 1 :]))


@declared("all_to_all", 1, Trait.MAPPED, Trait.TOTAL, attributes=attributes.CollectiveAlong)
def _infer_exchange(attrs: attributes.CollectiveAlong, x: TensorType) -> TensorType:
    _row_axis("all_to_all", attrs, x)
    return x


declared("psum", 1, Trait.MAPPED, Trait.TOTAL, attributes=attributes.Collective)(lambda attrs, x: x)
declared("ppermute", 1, Trait.MAPPED, Trait.TOTAL, attributes=attributes.Permutation)(lambda attrs, x: x)
declared("axis_index", 0, Trait.MAPPED, Trait.TOTAL, attributes=attributes.Collective)(lambda attrs: INDEX)
