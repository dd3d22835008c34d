"""The two ops that own regions.

`while`: operands are loop-invariant captures, `captures` of them, then the initial carry. Region 0, the cond,
and region 1, the body, both take (captures, carry); the cond yields a bool scalar, the body the next carry.
The results are the last carry. Runs the body as long as the cond yields true. `counts_down` marks a
reversed loop: its first carry starts as the number of iterations.

`cond`: operand 0 is a bool scalar (regions: false, true) or an integer scalar (region i for i, clamped to
the range); the others are every region's inputs. The results are what the chosen region yields.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.op import declare
from ctrlgrad.ir.types import BOOL, RegionType, Type, join
from ctrlgrad.ops.checks import scalar_index


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
                    f"cond: the branches differ in result {position}",
                    expected=str(results[position]),
                    got=str(output),
                )
            results[position] = joined
    return results


declare("while", None, _infer_while, attributes=attributes.Loop)
declare("cond", None, _infer_cond, attributes=attributes.Branch)
