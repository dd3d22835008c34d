"""Derivatives of stack ops. The cotangent of a stack is a stack: push and pop are each other's transpose."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.gradients.table import jointly_linear, not_differentiable, reverse, reverse_into, reverse_joint
from ctrlgrad.ir import StackType, TensorType
from ctrlgrad.ops.term import Term, emit, emit_all

not_differentiable("stack_new stack_length stack_rows")


def _sizes(element: Term, lead: int = 0) -> list[Term]:
    """The unknown sizes of an element, for ops that may meet a slot that was never written."""
    return [d for d in element.dims[lead:] if isinstance(d, Term)]


# (stack, value) = pop(stack'): the cotangent of the value is pushed on that of the stack.
jointly_linear("stack_pop", (0,))
reverse("stack_pop", lambda ct, out, s, *sizes: emit("stack_push", ct[0], ct[1]))
jointly_linear("stack_push", None)
reverse_joint("stack_push", lambda ct, out, s, value: emit_all("stack_pop", ct, *_sizes(value)))
jointly_linear("stack_read", (0,))
reverse_into("stack_read", lambda acc, ct, out, s, i, *sizes: emit("stack_add", acc, i, ct))
jointly_linear("stack_write", (0, 2))


def _write(ct: Term, out: Term, s: Term, i: Term, value: Term, grow: bool, once: bool = False) -> Sequence[Term | None]:
    """The slot's cotangent is read before it is cleared, so that clearing can happen in place.

    The cotangent of what a write made longer is longer than that of what was written to, so its last slot goes.
    """
    given = emit("stack_read", ct, i, *_sizes(value))
    if not grow:
        rest = emit("stack_clear", ct, i)
    elif once:  # Every slot is written already, so what is allowed is to append: the index is the old length.
        rest = emit("stack_resize", ct, i)
    else:
        rest = emit("stack_resize", emit("stack_clear", ct, i), s.length())
    return [rest, None, given]


reverse_joint("stack_write", _write)
jointly_linear("stack_add", (0, 2))
reverse(
    "stack_add",
    lambda ct, out, s, i, value: ct,
    None,
    lambda ct, out, s, i, value: emit("stack_read", ct, i, *_sizes(value)),
)
jointly_linear("stack_clear", (0,))
reverse("stack_clear", lambda ct, out, s, i: emit("stack_clear", ct, i), None)
jointly_linear("stack_resize", (0,))
reverse("stack_resize", lambda ct, out, s, length: emit("stack_resize", ct, s.length()), None)
jointly_linear("stack_sum", None)
reverse("stack_sum", lambda ct, out, a, b: ct, lambda ct, out, a, b: ct)
jointly_linear("stack_to_tensor", (0,))
reverse("stack_to_tensor", lambda ct, out, s, *sizes, size: emit("stack_from_tensor", ct))


def _from_tensor(ct: Term, out: Term, x: Term) -> Term:
    return emit("stack_to_tensor", ct, *_sizes(x, 1), size=x.tensor.shape[0])


jointly_linear("stack_from_tensor", (0,))
reverse("stack_from_tensor", _from_tensor)
jointly_linear("stack_concat", (0,))


def _concat(ct: Term, out: Term, s: Term, rows: Term, *sizes: Term, axis: int, size: int | None) -> Term:
    assert isinstance(s.type, StackType)
    return emit("stack_split", ct, rows, axis=axis, element=s.type.element)


def _split(ct: Term, out: Term, x: Term, rows: Term, axis: int, element: TensorType) -> Term:
    others = [d for d in (*x.dims[:axis], *x.dims[axis + 1 :]) if isinstance(d, Term)]
    return emit("stack_concat", ct, rows, *others, axis=axis, size=x.tensor.shape[axis])


reverse("stack_concat", _concat, None)
jointly_linear("stack_split", (0,))
reverse("stack_split", _split, None)
