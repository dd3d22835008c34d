"""Derivative rules of elementwise, shape, reduction, sorting, indexing and stack operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.gradients.adjoint import Primal
from ctrlgrad.gradients.table import (
    elementwise,
    forward,
    jointly_linear,
    linear,
    not_differentiable,
    refuse,
    reverse,
    reverse_into,
    reverse_joint,
    reverse_variadic,
)
from ctrlgrad.ir import INDEX, StackType, TensorType, Value
from ctrlgrad.ir.attributes import DYNAMIC, Key, NamedAxis
from ctrlgrad.ops.arrays import is_advanced
from ctrlgrad.ops.elementwise import FACTS
from ctrlgrad.ops.term import (
    Term,
    broadcast_to,
    constant,
    emit,
    emit_all,
    ensure_sizes,
    reshape,
    same_size,
    sum_to,
    transpose,
    where,
    zeros,
)
from ctrlgrad.records import record
from ctrlgrad.stacks.saving import Scope

# Derivatives of elementwise ops, from the facts that stand with their declarations.


for _name, _facts in FACTS.items():
    if _facts.partials:
        elementwise(_name, *_facts.partials)
    elif _facts.partials is not None:
        not_differentiable(_name)
# The identity whose derivative is zero.
not_differentiable("stop_gradient")


# Derivatives of ops between complex numbers and their parts.
#
# Cotangents of complex values follow JAX: a cotangent c and a tangent t pair as Re(c t), without conjugation. A
# holomorphic op then multiplies both by the same derivative, and an op that is linear over the complex numbers is
# transposed, not adjoined. The gradient of a real f(x + iy) is df/dx - i df/dy.


def conj(x: Term) -> Term:
    """The conjugate; x itself where it is real."""
    return emit("conj", x) if dtype_kind(x.dtype) == "c" else x


def as_complex(x: Term, like: Term) -> Term:
    return x if x.dtype == like.dtype else emit("cast", x, dtype=like.dtype)


linear("conj", lambda ct, x: emit("conj", ct))
# Re(c Re t), Re(c Im t) = Re(-i c t), for real c.
linear("real", lambda ct, x: as_complex(ct, x))
linear("imag", lambda ct, x: as_complex(ct, x) * -1j)


jointly_linear("complex", None)
# Re(c (s + it)) = Re(c) s - Im(c) t.
reverse_joint(
    "complex", lambda ct, out, re, im: (sum_to(emit("real", ct), re.dims), sum_to(-emit("imag", ct), im.dims))
)


def _direction(x: Term, out: Term) -> Term:
    """conj(x) / abs(x), and 0 at 0: two quotients of reals, since 1 / abs(x) overflows where abs(x) is subnormal."""
    size = where(out.equals(0), 1, out)
    return emit("complex", emit("real", x) / size, -emit("imag", x) / size)


def _push_abs(tangents: Sequence[Term], out: Term, x: Term, **attrs: Any) -> Term:
    if dtype_kind(x.dtype) != "c":
        return tangents[0] * emit("sign", x)
    return emit("real", tangents[0] * _direction(x, out))


def _pull_abs(ct: Term, out: Term, x: Term) -> Term:
    if dtype_kind(x.dtype) != "c":
        return ct * emit("sign", x)
    return as_complex(ct, x) * _direction(x, out)


forward("abs", _push_abs)
reverse("abs", _pull_abs)


# Derivatives of ops that move elements. All are linear; each line is the transpose of an op.


not_differentiable("constant dim iota common_size")

linear("forget_sizes", lambda ct, x, axes: ensure_sizes(ct, {a: x.dim(a) for a in axes}))


def _ensure_sizes(
    ct: Term, x: Term, *dims: Term, shape: Sequence[int | None], axes: Sequence[int], problem: str, hint: str
) -> Term:
    """The cotangent, which has the sizes of the operand and those that were required: it may know either alone."""
    given = iter(dims)
    required = {a: next(given) if d is None else d for a, d in zip(axes, shape, strict=True)}
    return ensure_sizes(ensure_sizes(ct, required, problem, hint), {a: x.dim(a) for a in axes}, problem, hint)


linear("ensure_sizes", _ensure_sizes)
linear("reshape", lambda ct, x, *dims, shape: reshape(ct, x.dims))
linear("broadcast_to", lambda ct, x, *dims, shape: sum_to(ct, x.dims))
linear("sum_to", lambda ct, x, *dims, shape: broadcast_to(ct, x.dims))
linear("transpose", lambda ct, x, axes: transpose(ct, [axes.index(axis) for axis in range(len(axes))]))
linear("expand_dims", lambda ct, x, axes: emit("squeeze", ct, axes=axes))
linear("squeeze", lambda ct, x, axes: emit("expand_dims", ct, axes=axes))
linear("flip", lambda ct, x, axes: emit("flip", ct, axes=axes))


linear("cast", lambda ct, x, dtype: emit("cast", ct, dtype=x.dtype))


def _concat(ct: Term, out: Term, *parts: Term, axis: int) -> list[Term]:
    """The parts of the cotangent, which has the sizes of all parts beside the axis that they are joined along."""
    told = [parts[0].dim(a) if d is None else d for a, d in enumerate(ct.tensor.shape)]
    for part in parts:
        sizes = {a: d for a, d in enumerate(part.dims) if a != axis and not same_size(told[a], d)}
        ct = ensure_sizes(ct, sizes, "concat: sizes differ", "arrays may differ only in the axis they are joined along")
    found = []
    start: int | Term = 0
    for part in parts:
        stop = start + part.dim(axis)
        found.append(slice_along(ct, axis, start, stop))
        start = stop
    return found


jointly_linear("concat", None)
reverse_joint("concat", _concat)


def slice_along(x: Term, axis: int, start: int | Term, stop: int | Term) -> Term:
    """`x[..., start:stop, ...]` along one axis; the bounds are not negative."""
    bounds = [start, stop]
    dynamic = [b for b in bounds if isinstance(b, Term)]
    first, last = (DYNAMIC if isinstance(b, Term) else b for b in bounds)
    key = tuple(slice(first, last, None) if i == axis else slice(None) for i in range(x.rank))
    return emit("getitem", x, *dynamic, key=key)


# Derivatives of reductions and scans. `axes` are counted from the front and sorted.


# Products of integers: those of floats are multiplied pair by pair.
not_differentiable("argmax argmin any all prod cumprod")


def _spread(ct: Term, x: Term, axes: tuple[int, ...], keepdims: bool) -> Term:
    """Restore axes of size 1 that a reduction over `axes` dropped."""
    return ct if keepdims or not axes else emit("expand_dims", ct, axes=axes)


linear("sum", lambda ct, x, axes, keepdims: broadcast_to(_spread(ct, x, axes, keepdims), x.dims))


def _extreme(ct: Term, out: Term, x: Term, axes: tuple[int, ...], keepdims: bool) -> Term:
    """The cotangent, shared evenly by the elements that equal the extreme."""
    ct, out = (_spread(v, x, axes, keepdims) for v in (ct, out))
    hits = emit("cast", x.equals(out), dtype=x.dtype)
    return hits * (ct / emit("sum", hits, axes=axes, keepdims=True))


def _push_extreme(tangents: Sequence[Term], out: Term, x: Term, axes: tuple[int, ...], keepdims: bool) -> Term:
    """The mean tangent of the elements that equal the extreme."""
    hits = emit("cast", x.equals(_spread(out, x, axes, keepdims)), dtype=x.dtype)
    total, count = (emit("sum", v, axes=axes, keepdims=keepdims) for v in (hits * tangents[0], hits))
    return total / count


forward("max", _push_extreme)
forward("min", _push_extreme)
reverse("max", _extreme)
reverse("min", _extreme)


linear("cumsum", lambda ct, x, axis, reverse: emit("cumsum", ct, axis=axis, reverse=not reverse))


# Orders and positions are integers: sorted values get their derivative from the `getitem` that reads them.


not_differentiable("argsort top_k searchsorted nonzero")


# Derivatives of indexed reads and updates.


jointly_linear("getitem", (0,))


def _getitem(acc: Term, ct: Term, out: Term, x: Term, *indices: Term, key: Any) -> Term:
    # A key adds axes to a number at most: then the part is the whole.
    return emit("additem", acc, ct, *indices, key=key) if x.rank else acc + reshape(ct, [])


reverse_into("getitem", _getitem)


def _additem(position: int, ct: Term, out: Term, x: Term, value: Term, *indices: Term, key: Any) -> Term | None:
    if position == 0:
        return ct
    if position == 1:
        return sum_to(emit("getitem", ct, *indices, key=key), value.dims)
    return None


jointly_linear("additem", (0, 1))
reverse_variadic("additem", _additem)


def _setitem(ct: Term, out: Term, x: Term, value: Term, *indices: Term, key: Any) -> Sequence[Term | None]:
    """Give no cotangent to the replaced elements. The read precedes the clearing, which can then happen in place."""
    read = emit("getitem", ct, *indices, key=key)
    if is_advanced(key, [i.type for i in indices]):
        kept = _is_kept(out, indices, key)
        read = read if kept is None else where(kept, read, 0)
    given = sum_to(read, value.dims)
    cleared = emit("setitem", ct, constant(ct.builder, 0, ct.dtype), *indices, key=key)
    return [cleared, given, *(None for _ in indices)]


@record
class _Places:
    """Places that index arrays name in an array: a number for each, and where their axes stand in `x[key]`."""

    numbers: Term
    at: int
    after: int

    @staticmethod
    def of(x: Term, indices: Sequence[Term], key: Key) -> _Places:
        given, rest, axis, first = iter(indices), 0, 0, 0
        places: list[int] = []
        numbers: Term | None = None
        for position, item in enumerate(key):
            if item is None or isinstance(item, slice):
                bounds = () if item is None else (item.start, item.stop, item.step)
                for _ in range(bounds.count(DYNAMIC)):
                    next(given)
                rest += 1
            else:
                first = first if places else rest
                places.append(position)
            if item is DYNAMIC:
                number, size = emit("cast", next(given), dtype=INDEX.dtype), x.dim(axis)
                number = where(number < 0, number + size, number)
                numbers = number if numbers is None else numbers * size + number
            axis += item is not None
        assert numbers is not None
        at = first if places[-1] - places[0] + 1 == len(places) else 0
        return _Places(numbers, at, rest - at)

    def beside_slices(self, mask: Term) -> Term:
        """A mask for each of the numbers, as it meets `x[key]`."""
        return reshape(mask, [*[1] * self.at, *self.numbers.dims, *[1] * self.after])


# Up to so many places each is compared with each.
FEW_PLACES = 32


def _is_kept(out: Term, indices: Sequence[Term], key: Key) -> Term | None:
    """Mark the last value written to each place that index arrays name twice; None where no place is named twice.

    The cost follows the number of values written, not the array's size."""
    if _differ(out, indices, key):
        return None
    places = _Places.of(out, indices, key)
    count: int | Term = 1
    for d in places.numbers.dims:
        count = d * count if isinstance(d, Term) else count * d
    numbers = reshape(places.numbers, [count])
    if isinstance(count, int) and count <= FEW_PLACES:
        later = constant(out.builder, np.triu(np.ones((count, count), bool), 1))
        same = emit("expand_dims", numbers, axes=(1,)).equals(emit("expand_dims", numbers, axes=(0,)))
        again = emit("any", emit("logical_and", same, later), axes=(1,), keepdims=False)
        return places.beside_slices(emit("logical_not", again))
    # A stable order keeps the last of equal numbers last.
    order = emit("argsort", numbers, axis=0, descending=False)
    ordered = emit("getitem", numbers, order, key=(DYNAMIC,))
    sizes, shape = ([count.value], (None,)) if isinstance(count, Term) else ([], (count,))
    position = Term(out.builder, out.builder.emit("iota", sizes, {"shape": shape}))
    last = (count if isinstance(count, Term) else constant(out.builder, count, np.int64)) - 1
    following = emit("getitem", ordered, emit("minimum", position + 1, last), key=(DYNAMIC,))
    is_last = emit("logical_or", emit("not_equal", following, ordered), position.equals(last))
    none = zeros(out.builder, np.dtype(bool), [count])
    return places.beside_slices(emit("setitem", none, is_last, order, key=(DYNAMIC,)))


def _differ(x: Term, indices: Sequence[Term], key: Key) -> bool:
    """Return True where index arrays plainly name each place once: along each of their axes one of them counts."""
    joined: set[int] = set()
    told: set[int] = set()
    given, axis = iter(indices), 0
    for item in key:
        if isinstance(item, slice):
            for _ in range((item.start, item.stop, item.step).count(DYNAMIC)):
                next(given)
        elif item is DYNAMIC:
            index = next(given)
            axes = {a - index.rank for a, d in enumerate(index.tensor.shape) if d != 1}
            joined |= axes
            values = _offsets(index.scope, index.forward) if isinstance(index, Primal) else None
            if values is not None and len(np.unique(values)) == values.size and _fits(values, x.tensor.shape[axis]):
                told |= axes
        axis += item is not None
    return joined <= told


def _fits(values: np.ndarray, size: int | None) -> bool:
    """Return True where no two values are as far from each other as the two numbers of one place, i and i - size."""
    return not values.size or (size is not None and int(values.max()) - int(values.min()) < size)


def _offsets(scope: Scope, value: Value) -> np.ndarray | None:
    """The elements of an index array, less a number that is added to all of them; None where they are not known."""
    known = scope.number(value)
    node = scope.producers.get(value)
    if known is not None:
        return known
    if node is None or dtype_kind(value.tensor.dtype) != "i":
        return None
    if node.op.name == "iota" and not node.operands:
        return np.arange(math.prod(n for n in value.tensor.shape if n is not None))
    if node.op.name in ("reshape", "expand_dims", "cast"):
        return _offsets(scope, node.operands[0])
    if node.op.name in ("add", "subtract"):
        array, number = node.operands
        if array.tensor.rank == 0 and node.op.name == "add":
            array, number = number, array
        return _offsets(scope, array) if number.tensor.rank == 0 else None
    return None


jointly_linear("setitem", (0, 1))
reverse_joint("setitem", _setitem)


# Derivatives of stack ops. The cotangent of a stack is a stack: push and pop are each other's transpose.


not_differentiable("stack_new stack_length stack_rows")


def _sizes(value: Term, s: Term) -> list[int | Term]:
    """A value's sizes along the axes that a stack's element leaves open, for ops that may meet an unwritten slot."""
    assert isinstance(s.type, StackType)
    return [value.dim(axis) for axis, d in enumerate(s.type.element.shape) if d is None]


def _open(rows: Term) -> list[Term]:
    """The unknown sizes of the rows of a tensor."""
    return [d for d in rows.dims[1:] if isinstance(d, Term)]


# (stack, value) = pop(stack'): the cotangent of the value is pushed on that of the stack.
jointly_linear("stack_pop", (0,))
reverse("stack_pop", lambda ct, out, s, *sizes: emit("stack_push", ct[0], ct[1]))
jointly_linear("stack_push", None)
reverse_joint("stack_push", lambda ct, out, s, value: emit_all("stack_pop", ct, *_sizes(value, s)))
jointly_linear("stack_read", (0,))
# A slot that was written has no tangent where what was written has none: its size is that of the value.
forward("stack_read", lambda tangents, out, s, i, *sizes: emit("stack_read", tangents[0], i, *_sizes(out, s)))
reverse_into("stack_read", lambda acc, ct, out, s, i, *sizes: emit("stack_add", acc, i, ct))
jointly_linear("stack_write", (0, 2))


def _write(ct: Term, out: Term, s: Term, i: Term, value: Term, grow: bool, once: bool = False) -> Sequence[Term | None]:
    """The slot's cotangent is read before it is cleared, so that clearing can happen in place.

    The cotangent of what a write made longer is longer than that of what was written to, so its last slot goes.
    """
    given = emit("stack_read", ct, i, *_sizes(value, s))
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
    lambda ct, out, s, i, value: emit("stack_read", ct, i, *_sizes(value, s)),
)
jointly_linear("stack_clear", (0,))
reverse("stack_clear", lambda ct, out, s, i: emit("stack_clear", ct, i), None)
jointly_linear("stack_resize", (0,))
reverse("stack_resize", lambda ct, out, s, length: emit("stack_resize", ct, s.length()), None)
jointly_linear("stack_sum", None)
reverse("stack_sum", lambda ct, out, a, b: ct, lambda ct, out, a, b: ct)


def _push_to_tensor(tangents: Sequence[Term], out: Term, s: Term, *sizes: Term, size: int | None) -> Term:
    assert isinstance(s.type, StackType)
    left = [out.dim(axis + 1) for axis, d in enumerate(s.type.element.shape) if d is None]
    return emit("stack_to_tensor", tangents[0], *left, size=size)


jointly_linear("stack_to_tensor", (0,))
forward("stack_to_tensor", _push_to_tensor)
reverse("stack_to_tensor", lambda ct, out, s, *sizes, size: emit("stack_from_tensor", ct))


jointly_linear("stack_from_tensor", (0,))
reverse("stack_from_tensor", lambda ct, out, x: emit("stack_to_tensor", ct, *_open(x), size=x.tensor.shape[0]))
jointly_linear("stack_concat", (0,))


def _concat_stacks(ct: Term, out: Term, s: Term, rows: Term, *sizes: Term, axis: int, size: int | None) -> Term:
    assert isinstance(s.type, StackType)
    return emit("stack_split", ct, rows, axis=axis, element=s.type.element)


def _split(ct: Term, out: Term, x: Term, rows: Term, axis: int, element: TensorType) -> Term:
    others = [d for d in (*x.dims[:axis], *x.dims[axis + 1 :]) if isinstance(d, Term)]
    return emit("stack_concat", ct, rows, *others, axis=axis, size=x.tensor.shape[axis])


reverse("stack_concat", _concat_stacks, None)
jointly_linear("stack_split", (0,))
reverse("stack_split", _split, None)


# The Fourier transform is linear over the complex numbers, and its matrix is symmetric: its own transpose.


linear("fft", lambda ct, x, axis, inverse: emit("fft", ct, axis=axis, inverse=inverse))


# Transforms of N real numbers leave out the conjugates of the elements between the first and, for even N, the one at
# N / 2. So the transpose of `rfft` is `irfft` of the conjugate with those elements halved, and the transpose of `irfft`
# is the conjugate of `rfft` with them doubled.


def _weighted(ct: Term, axis: int, size: int, weight: float) -> Term:
    """The conjugate of a half spectrum, whose elements that stand for two are multiplied by a weight."""
    weights = np.ones(size // 2 + 1, ct.dtype)
    weights[1 : (size + 1) // 2] = weight
    return emit("conj", ct) * constant(ct.builder, weights.reshape([-1] + [1] * (ct.tensor.rank - 1 - axis)))


linear("rfft", lambda ct, x, axis, size: emit("irfft", _weighted(ct, axis, size, 0.5), axis=axis, size=size))
linear("irfft", lambda ct, x, axis, size: _weighted(emit("rfft", ct, axis=axis, size=size), axis, size, 2.0))


# Derivatives of collectives, which are linear: a cotangent goes back to the rows that it came from.


not_differentiable("axis_index")

linear("psum", lambda ct, x, rows: emit("psum", ct, rows=rows))
linear("all_gather", lambda ct, x, **attrs: emit("psum_scatter", ct, **attrs))
linear("psum_scatter", lambda ct, x, **attrs: emit("all_gather", ct, **attrs))
linear("all_to_all", lambda ct, x, **attrs: emit("all_to_all", ct, **attrs))


def _ppermute(ct: Term, x: Term, rows: NamedAxis, sources: tuple[int, ...]) -> Term:
    back = [-1] * len(sources)
    for target, source in enumerate(sources):
        if source >= 0:
            back[source] = target
    return emit("ppermute", ct, rows=rows, sources=tuple(back))


linear("ppermute", _ppermute)


# Derivatives of identities: a watched value's cotangent is shown on its way back; a barrier changes nothing.


not_differentiable("callback")
refuse("pure_callback", "give the function around it a rule, with ctrlgrad.custom_jvp or ctrlgrad.custom_vjp")


def _watch(ct: Term, out: Term, x: Term, fn: Callable[..., Any], label: str) -> Term:
    ct.builder.emit_all("callback", [ct.value], {"fn": fn, "label": label})
    return ct


linear("barrier", lambda ct, x, name=None: ct)
jointly_linear("watch", (0,))
reverse("watch", _watch)
