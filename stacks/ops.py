"""The ops on stacks. A stack is a run-time list of tensors; the gradient transform's stacks and the user's
`TensorArray` are one thing. All ops are functional: an update returns the new stack (in place where the old
one is dead).

A slot that was never written holds zeros. Where the element type has unknown dimensions, the ops that may
meet such a slot take its sizes as further operands (all of them or none; without them it is an error).
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir import INDEX, StackType, TensorType, Trait, Type, Use, attributes, declare
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.types import Dim, RegionType
from ctrlgrad.ops.term import require_kind, scalar_index, stack, template, tensors

# One number per slot.
ROW_COUNTS = TensorType(INDEX.dtype, (None,))


def _element(operation: str, s: StackType, value: Type) -> None:
    if not s.element.accepts(value):
        raise TypeMismatchError(f"{operation}: the value is not an element", expected=str(s.element), got=str(value))


def _sizes(operation: str, s: StackType, dims: Sequence[Type]) -> None:
    if dims:
        template(operation, s.element.shape, dims)


def _infer_new(operands: Sequence[Type], attrs: attributes.NewStack, regions: Sequence[RegionType]) -> Sequence[Type]:
    for size in operands:
        scalar_index("stack_new", "the size", size)
    return (StackType(attrs.element),)


def _infer_push(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    s = stack("stack_push", operands[0])
    _element("stack_push", s, operands[1])
    return (s,)


def _infer_pop(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    s = stack("stack_pop", operands[0])
    _sizes("stack_pop", s, operands[1:])
    return (s, s.element)


def _infer_read(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    s = stack("stack_read", operands[0])
    scalar_index("stack_read", "the index", operands[1])
    _sizes("stack_read", s, operands[2:])
    return (s.element,)


def _infer_update(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    s = stack("stack_write", operands[0])
    scalar_index("stack_write", "the index", operands[1])
    _element("stack_write", s, operands[2])
    return (s,)


def _numbers(operation: str, s: StackType) -> None:
    """Require elements that add up: `add` takes no booleans."""
    require_kind(operation, "iufc", (s.element,))


def _infer_add(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    _numbers("stack_add", stack("stack_add", operands[0]))
    return _infer_update(operands, attrs, regions)


def _infer_clear(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    scalar_index("stack_clear", "the index", operands[1])
    return (stack("stack_clear", operands[0]),)


def _infer_resize(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    scalar_index("stack_resize", "the length", operands[1])
    return (stack("stack_resize", operands[0]),)


def _infer_sum(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    if operands[0] != operands[1]:
        raise TypeMismatchError("stack_sum: types differ", expected=str(operands[0]), got=str(operands[1]))
    s = stack("stack_sum", operands[0])
    _numbers("stack_sum", s)
    return (s,)


def _infer_length(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    stack("stack_length", operands[0])
    return (INDEX,)


def _infer_to_tensor(operands: Sequence[Type], attrs: attributes.Rows, regions: Sequence[RegionType]) -> Sequence[Type]:
    s = stack("stack_to_tensor", operands[0])
    _sizes("stack_to_tensor", s, operands[1:])
    return (TensorType(s.element.dtype, (attrs.size, *s.element.shape)),)


def _infer_from_tensor(operands: Sequence[Type], attrs: Attributes, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("stack_from_tensor", operands)
    if x.rank == 0:
        raise ShapeError("stack_from_tensor: a scalar has no rows", expected="rank 1 or more", got=str(x))
    return (StackType(TensorType(x.dtype, x.shape[1:])),)


def _axis(operation: str, element: TensorType, axis: int) -> None:
    if not 0 <= axis < element.rank:
        problem = f"{operation}: the elements have no axis {axis}"
        raise ShapeError(problem, expected=f"elements of rank {axis + 1} or more", got=str(element))


def _without(element: TensorType, axis: int, size: Dim) -> TensorType:
    """An element with another size along an axis."""
    return TensorType(element.dtype, (*element.shape[:axis], size, *element.shape[axis + 1 :]))


def _row_counts(operation: str, counts: Type) -> None:
    if counts != ROW_COUNTS and not (isinstance(counts, TensorType) and ROW_COUNTS.accepts(counts)):
        raise TypeMismatchError(f"{operation}: the row counts", expected=str(ROW_COUNTS), got=str(counts))


def _infer_rows(operands: Sequence[Type], attrs: attributes.Axis, regions: Sequence[RegionType]) -> Sequence[Type]:
    s = stack("stack_rows", operands[0])
    _axis("stack_rows", s.element, attrs.axis)
    return (ROW_COUNTS,)


def _infer_concat(operands: Sequence[Type], attrs: attributes.Concat, regions: Sequence[RegionType]) -> Sequence[Type]:
    s = stack("stack_concat", operands[0])
    axis = attrs.axis
    _axis("stack_concat", s.element, axis)
    _row_counts("stack_concat", operands[1])
    if operands[2:]:
        template("stack_concat", _without(s.element, axis, 0).shape, operands[2:])
    return (_without(s.element, axis, attrs.size),)


def _infer_split(operands: Sequence[Type], attrs: attributes.Split, regions: Sequence[RegionType]) -> Sequence[Type]:
    (x,) = tensors("stack_split", operands[:1])
    axis, element = attrs.axis, attrs.element
    _axis("stack_split", x, axis)
    _row_counts("stack_split", operands[1])
    if not _without(element, axis, None).accepts(_without(x, axis, None)):
        raise TypeMismatchError("stack_split: the parts are not elements", expected=str(element), got=str(x))
    return (StackType(element),)


# `paired`: created by the gradient transform; the verifier then proves that its pops mirror its pushes.
declare("stack_new", None, _infer_new, Trait.STACK, Trait.CHEAP, attributes=attributes.NewStack, further=Use.SIZE)
declare("stack_push", 2, _infer_push, Trait.STACK, uses=(Use.PUSH, Use.VALUE))
declare("stack_pop", None, _infer_pop, Trait.STACK, uses=(Use.POP,), further=Use.SIZE)
declare("stack_read", None, _infer_read, Trait.STACK, uses=(Use.READ, Use.INDEX), further=Use.SIZE)
# `grow`: whether writing at the length appends a slot; otherwise that index is out of range. `once`: whether
# writing a slot that was written already is an error; left out, it is none.
_CHANGED_SLOT = (Use.UPDATE, Use.INDEX, Use.VALUE)
declare("stack_write", 3, _infer_update, Trait.STACK, attributes=attributes.Write, uses=_CHANGED_SLOT)
# Adds to a slot; the gradient of a read.
declare("stack_add", 3, _infer_add, Trait.STACK, Trait.WHOLE, uses=_CHANGED_SLOT)
# Makes a slot zero again; the gradient of a write.
declare("stack_clear", 2, _infer_clear, Trait.STACK, uses=(Use.UPDATE, Use.INDEX))
# Cut off at a length, or made longer by slots that were never written; the gradient of a write that appends.
declare("stack_resize", 2, _infer_resize, Trait.STACK, uses=(Use.UPDATE, Use.SIZE))
# Slot by slot; the shorter one counts as zeros above its end.
declare("stack_sum", 2, _infer_sum, Trait.STACK)
declare("stack_length", 1, _infer_length, Trait.STACK, Trait.TOTAL, Trait.CHEAP, uses=(Use.MEASURE,))
# `size`: the number of rows where it is known, else None.
declare(
    "stack_to_tensor",
    None,
    _infer_to_tensor,
    Trait.STACK,
    Trait.WHOLE,
    attributes=attributes.Rows,
    uses=(Use.READ,),
    further=Use.SIZE,
)
declare("stack_from_tensor", 1, _infer_from_tensor, Trait.STACK, Trait.TOTAL)
# Elements of different sizes along `axis`: how many rows each has there, all of them joined along it, and the
# reverse of that. The operands of a concat are the stack, those counts (they size the slots that were never
# written), and further unknown sizes as everywhere. `size`: of the result along the axis, where it is known.
declare("stack_rows", 1, _infer_rows, Trait.STACK, attributes=attributes.Axis, uses=(Use.MEASURE,))
declare(
    "stack_concat",
    None,
    _infer_concat,
    Trait.STACK,
    Trait.WHOLE,
    attributes=attributes.Concat,
    uses=(Use.READ,),
    further=Use.SIZE,
)
declare("stack_split", 2, _infer_split, Trait.STACK, attributes=attributes.Split, uses=(Use.VALUE, Use.SIZE))
