"""Launches of steps other than groups: views, numbers, products, updates, and stacks in their three forms.

Ops in `SINGLE` need no loop: they also run one by one, as launch lists of their own (`ctrlgrad.engines.cuda.kernels`).

A stack that a body carries is pushed on or popped off (a `StackValue`), or its rows are read and written by index
(a `TableValue`). A stack that begins within an iteration is made of an array or by a known number of pushes (a
`LocalStack`). Its form follows from its use: a table where it is read by index, else rows to pop off, or an array.
A stack that an inner loop carries has the same form in all of its iterations.

The rows of a table lie in one array, beside a mark for each: true if it was written. An unwritten row holds zeros, so
it is read and added to like any other. An index that goes by steps makes a row a part of the array, whose address
moves; any other index is resolved on the card. Where rows may be written once, the card notes in the run's flag a row
that is written again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ctrlgrad.engines.cuda.indexing import Chosen, chosen, gather, scatter
from ctrlgrad.engines.cuda.kernel import C_TYPES, KernelText, is_fusible, op_text
from ctrlgrad.engines.cuda.placement import is_integer
from ctrlgrad.engines.cuda.prepared.model import (
    BOOL,
    INT64,
    Affine,
    CannotPrepare,
    Converted,
    Fixed,
    Operand,
    Rows,
    Shape,
    SizesDoNotFit,
    View,
    word_view,
    wrapped,
)
from ctrlgrad.engines.cuda.prepared.reading import (
    Computed,
    LocalStack,
    Numbers,
    Reading,
    StackValue,
    TableValue,
    Unusable,
    Values,
    broadcast,
    broadcast_shape,
    part,
    viewed,
)
from ctrlgrad.engines.cuda.products import PRODUCT_DTYPES, is_one_product, layout, too_large
from ctrlgrad.engines.cuda.program import NodeStep
from ctrlgrad.engines.cuda.reductions import (
    REDUCTIONS,
    SCANS,
    node_text,
    reduced_shape,
    scan,
    summed_axes,
)
from ctrlgrad.engines.cuda.sites import Site
from ctrlgrad.engines.reference.array_kernels import require_sizes
from ctrlgrad.engines.sizes_of_a_run import require_types
from ctrlgrad.ir import Node, StackType, TensorType, attributes
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.types import Shape as KnownShape

# The mark of a row that was written.
WRITTEN = Fixed(BOOL, np.True_)


def marks_of(table: TableValue) -> View | Fixed:
    return WRITTEN if table.marks is None else table.marks


def as_array(reading: Reading, stack: object) -> View:
    """All rows of a stack."""
    if isinstance(stack, TableValue):
        return stack.rows
    if not isinstance(stack, LocalStack):
        raise CannotPrepare("a stack is read as an array that was not made inside")
    count = stack.length.constant
    if stack.length != Affine(count) or count <= 0:
        raise CannotPrepare("how many rows a stack has is not known")
    if stack.number is not None:
        lengths = reading.listing.lengths
        lengths[stack.number] = max(count, lengths.get(stack.number, 0))
    return part(stack.rows, (slice(0, count),))[0]


def as_table(reading: Reading, stack: object) -> TableValue:
    if isinstance(stack, TableValue):
        return stack
    if not isinstance(stack, LocalStack):
        raise CannotPrepare("a stack that grows or shrinks is read by index")
    return TableValue(as_array(reading, stack), None)


def own_table(reading: Reading, slot: int) -> TableValue:
    """The table in a slot as one that the step may overwrite."""
    table, launches = as_table(reading, reading.value(slot)), reading.launches
    rows = launches.updated(table.rows)
    marks = launches.copy(WRITTEN, table.rows.shape[:1]) if table.marks is None else launches.updated(table.marks)
    return TableValue(rows, marks)


def as_popped(reading: Reading, stack: object) -> LocalStack:
    """As one whose rows are popped off."""
    if isinstance(stack, LocalStack) and stack.number is None:
        return stack
    rows = as_array(reading, stack)
    return LocalStack(rows, Affine(rows.shape[0]))


# Rows of a new stack, as long as it is not known how many it will have.
MANY = 1 << 20


def pushed(reading: Reading, slot: int, shape: Shape, dtype: np.dtype) -> tuple[View, object]:
    """Push a row on the stack in a slot: the view to write, and the stack with it."""
    stack, used_again = reading.value(slot), "a stack is used again that was pushed on"
    after: object
    # The rows of two stacks would lie in one place.
    if isinstance(stack, LocalStack | StackValue) and _is_used_again(reading, stack):
        raise CannotPrepare(used_again)
    reading.values[slot] = Unusable(used_again)
    if isinstance(stack, LocalStack):
        if stack.number is None:
            raise CannotPrepare("a stack is pushed on and popped off")
        row, after = _row(reading, stack, stack.length), replace(stack, length=stack.length.plus(Affine(1)))
        if (row.shape, row.dtype) != (shape, dtype):
            raise CannotPrepare("rows of one stack differ in shape")
    else:
        before = _carried(stack)
        row = _carried_row(reading, before, before.length, shape, dtype, True)
        after = replace(before, length=before.length.plus(Affine(1)))
    return row, after


def _push(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """Of a number, on a stack of the host's: else a kernel writes the row."""
    value = reading.operand(step.operands[1])
    row, after = pushed(reading, step.operands[0], (), step.node.operands[1].tensor.dtype)
    reading.launches.copied(value, row)
    return (after,)


def _pop(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    stack, element = reading.value(step.operands[0]), step.node.results[1].tensor
    shape = _known(element.shape, step.node)
    if isinstance(stack, LocalStack | TableValue):
        stack = as_popped(reading, stack)
    last = (stack if isinstance(stack, LocalStack) else _carried(stack)).length.plus(Affine(1), -1)
    after = replace(stack, length=last)
    if isinstance(stack, LocalStack):
        return after, _row(reading, stack, last)
    row = _carried_row(reading, stack, last, shape, element.dtype, False)
    if stack.is_on_host and element.dtype == INT64:
        return after, reading.stored(row, reading.listing.number())
    return after, row


def _carried(value: object) -> StackValue:
    if not isinstance(value, StackValue):
        raise CannotPrepare("a stack is read in another way than it was made")
    return value


def _carried_row(
    reading: Reading, stack: StackValue, number: Affine, shape: Shape, dtype: np.dtype, pushes: bool
) -> View:
    """View of one row, which is pushed or popped."""
    reading.listing.row_type(stack.position, (shape, dtype), pushes)
    row = View.whole(Rows(stack.position), dtype, shape)
    moved = number.times(row.size * dtype.itemsize)
    return replace(row, offset=moved.constant, moved=replace(moved, constant=0))


def _row(reading: Reading, stack: LocalStack, index: Affine) -> View:
    """One row of an array."""
    if not index.is_moving and index.constant < 0:
        raise CannotPrepare("more rows are popped than there are")
    return _part(reading, stack.rows, (index,))


def _is_used_again(reading: Reading, stack: LocalStack | StackValue) -> bool:
    """Return true if a stack is read after the current step."""
    same = [n for n, x in reading.values.items() if isinstance(x, type(stack)) and _place(x) == _place(stack)]
    if any(reading.last.get(n, -1) > reading.position for n in same):
        return True
    return reading.outside is not None and _is_used_again(reading.outside, stack)


def _place(stack: LocalStack | StackValue) -> int | None:
    return stack.number if isinstance(stack, LocalStack) else stack.position


# Stacks that begin and end within an iteration.


def _new(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    (stack,) = step.node.results
    assert isinstance(stack.type, StackType)
    element = stack.type.element
    if step.operands and reading.value(step.operands[0]) != Affine(0):
        return (_blank(reading, reading.value(step.operands[0]), _known(element.shape, step.node), element.dtype),)
    number = reading.listing.stacks = reading.listing.stacks + 1
    count = reading.listing.rates.lengths.get(number, MANY)
    rows = reading.launches.buffer((count, *_known(element.shape, step.node)), element.dtype)
    return (LocalStack(rows, Affine(0), number),)


def _blank(reading: Reading, size: object, shape: Shape, dtype: np.dtype) -> TableValue:
    """A table of which no row was written."""
    if not isinstance(size, Affine) or size.is_moving or size.constant <= 0:
        raise CannotPrepare("how many rows a stack has is not known")
    rows = reading.launches.copy(Fixed(dtype, dtype.type(0)), (size.constant, *shape))
    return TableValue(rows, reading.launches.copy(Fixed(BOOL, np.False_), rows.shape[:1]))


def _from_tensor(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    rows = reading.view(step.operands[0])
    return (LocalStack(rows, Affine(rows.shape[0])),)


def _to_tensor(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    rows = as_array(reading, reading.value(step.operands[0]))
    # The rows are about to be overwritten, so they are copied first.
    return (reading.launches.copy(rows) if reading.is_updated(rows) else rows,)


def _known(shape: KnownShape, node: Node) -> Shape:
    if None in shape:
        raise CannotPrepare(f"a size of {node.op.name} is not known")
    return tuple(d for d in shape if d is not None)


def read(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    table, index = as_table(reading, reading.value(step.operands[0])), reading.index(step.operands[1])
    row = _taken(reading, table.rows, [index], step.node)
    return (row if _is_index(index) else _kept(reading, row),)


def write(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    how = attributes.Write.of(step.node)
    if how.grow:
        raise CannotPrepare("an array that may grow is written")
    value, index = reading.operand(step.operands[2]), reading.index(step.operands[1])
    table = own_table(reading, step.operands[0])
    assert table.marks is not None
    if how.once:
        _check(reading, _taken(reading, table.marks, [index], step.node), index, len(table), step.node)
    _require_dtype(value, table)
    _put(reading, table.rows, [index], value, step.node)
    _put(reading, table.marks, [index], WRITTEN, step.node)
    return (table,)


def add(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    value, index = reading.operand(step.operands[2]), reading.index(step.operands[1])
    table = own_table(reading, step.operands[0])
    assert table.marks is not None
    _require_dtype(value, table)
    dtype = table.rows.dtype
    _put(reading, table.rows, [index], value, step.node, op_text("add", [dtype, dtype], dtype))
    _put(reading, table.marks, [index], WRITTEN, step.node)
    return (table,)


def clear(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """The row is zeros again, and may be written again."""
    index, table = reading.index(step.operands[1]), own_table(reading, step.operands[0])
    assert table.marks is not None
    dtype = table.rows.dtype
    _put(reading, table.rows, [index], Fixed(dtype, dtype.type(0)), step.node)
    _put(reading, table.marks, [index], Fixed(BOOL, np.False_), step.node)
    return (table,)


def both(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """The sum of two tables."""
    a, b = (as_table(reading, reading.value(slot)) for slot in step.operands)
    if a.rows.shape != b.rows.shape:
        raise CannotPrepare("stacks are added that differ in shape")
    rows = _of_both(reading, "add", a.rows, b.rows)
    if a.marks is None or b.marks is None:
        return (TableValue(rows, None),)
    return (TableValue(rows, _of_both(reading, "logical_or", a.marks, b.marks)),)


def _of_both(reading: Reading, name: str, a: View, b: View) -> View:
    found = reading.launches.buffer(a.shape, a.dtype)
    reading.launches.kernel(op_text(name, [a.dtype, b.dtype], a.dtype), a.shape, [a, b], [found])
    return found


def length(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    stack = reading.value(step.operands[0])
    return (stack.length if isinstance(stack, LocalStack) else Affine(len(as_table(reading, stack))),)


def _require_dtype(value: Operand, table: TableValue) -> None:
    if value.dtype != table.rows.dtype:
        raise CannotPrepare("a row is converted when it is written")


def _check(reading: Reading, mark: View, index: Affine | View, size: int, node: Node) -> None:
    """Note a row that is written again: what is noted first stays."""
    around = reading.launches.around(node)
    assert isinstance(around.site, Site)
    numbers, words = Numbers(reading.launches), [part(around.flag, (n,))[0] for n in range(3 + len(around.noted))]
    is_first = f"{numbers.read(mark)} & ({numbers.read(words[0])} == int64(0))"
    site, its, *noted = (numbers.read(x) for x in (around.site, index, *map(word_view, around.noted)))
    found = [f"int64({x})" for x in (site, its, size, *noted)]
    values = zip(words, found, strict=True)
    numbers.write({word: f"np_select({is_first}, {x}, {numbers.read(word)})" for word, x in values})


def matmul(at: Values, step: NodeStep) -> tuple[object, ...]:
    """`numpy.matmul`."""
    return (_product(at, *(_factor_of(at, slot) for slot in step.operands)),)


def product_sum(at: Values, step: NodeStep) -> tuple[object, ...]:
    """Add a product to the first operand, in place where no later step reads that operand."""
    total, *factors = step.operands
    a, b = (_factor_of(at, slot) for slot in factors)
    _check_sizes(a, b, ())
    out = at.own(total)
    if a.size and b.size:
        at.launches.product(_factor(at, a), _factor(at, b), out, True)
    return (out,)


def _factor_of(at: Values, slot: int) -> View:
    view = at.view(slot)
    if view.dtype.name not in PRODUCT_DTYPES:
        raise CannotPrepare(f"a product of {view.dtype}")
    return view


def _product(at: Values, a: View, b: View) -> View:
    if is_one_product(a.shape, b.shape) and a.size:
        # One product of all rows.
        found = _product(at, at.launches.reshaped(a, (-1, a.shape[-1])), b)
        return viewed(found, lambda x: x.reshape(*a.shape[:-1], b.shape[-1]))
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    _check_sizes(a, b, batch)
    out = at.launches.buffer((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    if not out.size or not a.shape[-1]:
        at.launches.copied(Fixed(out.dtype, out.dtype.type(0)), out)
        return out
    if not batch:
        at.launches.product(_factor(at, a), _factor(at, b), out, False)
        return out
    a, b = (_factor(at, _listed(at, broadcast(x, batch + x.shape[-2:]))) for x in (a, b))
    at.launches.product(a, b, viewed(out, lambda x: x.reshape(-1, *x.shape[-2:])), False)
    return out


def _check_sizes(a: View, b: View, batch: tuple[int, ...]) -> None:
    if a.shape[-1] != b.shape[-2]:
        raise SizesDoNotFit(f"{a.shape[-1]} columns of the left factor, {b.shape[-2]} rows of the right one")
    if (reason := too_large(a.shape, b.shape, math.prod(batch))) is not None:
        raise SizesDoNotFit(reason)


def _listed(at: Values, view: View) -> View:
    """Matrices along one axis: where they lie, if they are equally far apart."""
    return at.launches.reshaped(view, (-1, *view.shape[-2:]))


def _factor(at: Values, view: View) -> View:
    """Matrices where their address stays and the library can read them."""
    found = layout(view.shape[-2:], view.strides[-2:], view.dtype.itemsize)
    if found is not None and not view.is_moving and all(step >= 0 for step in view.strides):
        return view
    # A copy of a transposed matrix is the transposed of a copy: the library reads it as it would have read the matrix.
    is_transposed = found is not None and found[0] == 1
    copied = at.launches.copy(_transposed(view) if is_transposed else view)
    return _transposed(copied) if is_transposed else copied


def _transposed(view: View) -> View:
    return viewed(view, lambda x: x.swapaxes(-1, -2))


# Ops of launch lists, which read a body; and ops that also run by themselves (`ctrlgrad.engines.cuda.kernels`). They
# list launches and give the values of the results.
Op = Callable[[Reading, NodeStep], tuple[object, ...]]
Single = Callable[[Values, NodeStep], tuple[object, ...]]


# Numbers of the host.


def _stepped(node: Node, operands: Sequence[object]) -> Affine | None:
    """Result of an op on integers that go by whole steps, where it goes by whole steps too; else None."""
    known = [x for x in operands if isinstance(x, Affine)]
    if len(known) != len(operands) or node.op.name not in _STEPPED:
        return None
    return _STEPPED[node.op.name](node, *known)


def _multiple(node: Node, a: Affine, b: Affine) -> Affine | None:
    for x, y in ((a, b), (b, a)):
        if not y.is_moving:
            return x.times(y.constant)
    return None


_STEPPED: dict[str, Callable[..., Affine | None]] = {
    "add": lambda node, a, b: a.plus(b),
    "subtract": lambda node, a, b: a.plus(b, -1),
    "multiply": _multiple,
    "negative": lambda node, a: a.times(-1),
    "cast": lambda node, a: a if is_integer(node.result) else None,
}


def computed(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """An op on numbers of the host: one that goes by steps again, or a number that the card computes."""
    operands = [reading.value(slot) for slot in step.operands]
    found = _stepped(step.node, operands) or _converted(step.node, operands)
    if found is not None:
        return (found,)
    if not is_fusible(step.node):
        raise CannotPrepare(f"{step.node.op.name} on the host")
    return (Computed(step.node, tuple(operands)),)


def _converted(node: Node, operands: Sequence[object]) -> Converted | Fixed | None:
    """One that goes by steps, in another dtype."""
    if node.op.name != "cast" or not isinstance(operands[0], Affine):
        return None
    number, dtype = operands[0], node.result.tensor.dtype
    if dtype.name not in C_TYPES:
        return None
    return (
        Converted(number, dtype) if number.is_moving else Fixed(dtype, np.int64(wrapped(number.constant)).astype(dtype))
    )


def _same(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    return (reading.value(step.operands[0]),)


# Views.


def _shape(at: Values, step: NodeStep, says: type[attributes.Shape] = attributes.Shape) -> Shape:
    """The shape that a node says, with sizes of the run."""
    shape = says.of(step.node).shape
    sizes = iter(step.operands[len(step.operands) - shape.count(None) :])
    return tuple(at.size(next(sizes)) if d is None else d for d in shape)


def _ensure_sizes(at: Values, step: NodeStep) -> tuple[object, ...]:
    view = at.view(step.operands[0])
    require_sizes(step.node, view.shape, _shape(at, step, attributes.Required))
    return (view,)


def _viewing(of: Callable[[Node, np.ndarray], np.ndarray]) -> Single:
    return lambda at, step: (viewed(at.view(step.operands[0]), lambda x: of(step.node, x)),)


def _flipped(node: Node, x: np.ndarray) -> np.ndarray:
    axes = attributes.Axes.of(node).axes
    # Of an array of rank 0 NumPy's is a number, which lies elsewhere.
    return np.flip(x, axes) if axes else x


def _broadcast(at: Values, step: NodeStep) -> tuple[object, ...]:
    return (broadcast(at.view(step.operands[0]), _shape(at, step)),)


def _reshape(at: Values, step: NodeStep) -> tuple[object, ...]:
    return (at.launches.reshaped(at.view(step.operands[0]), _shape(at, step)),)


def _key(at: Values, node: Node, slots: Sequence[int]) -> list[object]:
    """A key with the numbers and the indices of the run in it."""
    rest = iter(slots)

    def bound(x: object) -> object:
        return at.size(next(rest)) if x is DYNAMIC else x

    key: list[object] = []
    for item in attributes.Index.of(node).key:
        if isinstance(item, slice):
            key.append(slice(bound(item.start), bound(item.stop), bound(item.step)))
        else:
            key.append(at.index(next(rest)) if item is DYNAMIC else item)
    return key


def _part(at: Values, x: View, key: Sequence[object]) -> View:
    """Part of an array that a key without indices of the card selects."""
    found, bounds = part(x, key)
    at.bounds += bounds
    return found


def _is_index(item: object) -> bool:
    return isinstance(item, View)


def _getitem(at: Values, step: NodeStep) -> tuple[object, ...]:
    x, key = at.view(step.operands[0]), _key(at, step.node, step.operands[1:])
    found = _taken(at, x, key, step.node)
    return (found if any(map(_is_index, key)) else _kept(at, found),)


def _kept(at: Values, view: View) -> View:
    """The view, or a copy where it is about to be overwritten."""
    return at.launches.copy(view) if at.is_updated(view) else view


def _taken(at: Values, x: View, key: Sequence[object], node: Node) -> View:
    """The elements that a key selects, in place, or gathered if an index is on the card."""
    if not any(map(_is_index, key)):
        return _part(at, x, key)
    its = _chosen(at, x, key)
    found = at.launches.buffer(its.shape, its.whole.dtype)
    at.launches.items += gather(its, found, at.launches.around(node))
    return found


def _put(
    at: Values, whole: View, key: Sequence[object], value: Operand, node: Node, text: KernelText | None = None
) -> None:
    """Write a value, or what `text` computes of what is there and a value, where a key selects."""
    if any(map(_is_index, key)):
        its, found = _chosen(at, whole, key), value if isinstance(value, View) else at.launches.copy(value)
        _require_fit(its.shape, found)
        at.launches.items += scatter(its, found, text, at.launches.around(node))
        return
    place = _part(at, whole, key)
    _require_fit(place.shape, value)
    if text is None:
        at.launches.copied(value, place)
    else:
        at.launches.kernel(text, place.shape, [place, value], [place])


def _chosen(at: Values, x: View, key: Sequence[object]) -> Chosen:
    return chosen(len(x.shape), key, _is_index, lambda basic: _part(at, x, basic))


# Launches.


def _update(name: str | None) -> Single:
    """A part of an array is written, or added to, in place."""

    def op(at: Values, step: NodeStep) -> tuple[object, ...]:
        first, value_slot, *rest = step.operands
        key, value = _key(at, step.node, rest), at.operand(value_slot)
        whole = at.own(first)
        text = None if name is None else op_text(name, [whole.dtype] * 2, whole.dtype)
        _put(at, whole, key, value, step.node, text)
        return (whole,)

    return op


def _require_fit(shape: Shape, value: Operand) -> None:
    """A value must broadcast to the part that it is written to: no kernel looks."""
    given = value.shape if isinstance(value, View) else ()
    if broadcast_shape(shape, given) != shape:
        raise SizesDoNotFit(f"a value of shape {given} for a part of shape {shape}")


def _reduction(at: Values, step: NodeStep) -> tuple[object, ...]:
    """Reduction that is not fused."""
    view, node = at.view(step.operands[0]), step.node
    if node.op.name == "sum_to":
        shape = _shape(at, step)
        axes = summed_axes(view.shape, shape)
    else:
        axes, shape = attributes.Axes.of(node).axes, reduced_shape(node, view.shape)
        # Of no elements there is no extreme.
        require_types(node, [TensorType(view.dtype, view.shape)])
    if not axes:
        return (view,)
    text = node_text(node)
    out = at.launches.buffer(shape, np.dtype(text.results[0].dtype))
    at.launches.reduction(text, view.shape, axes, [view], [], [out])
    return (out,)


def _scan(at: Values, step: NodeStep) -> tuple[object, ...]:
    view, node = at.view(step.operands[0]), step.node
    axis, backwards = attributes.Axis.of(node).axis, attributes.Scan.of(node).reverse
    out = at.launches.buffer(view.shape, view.dtype)
    seen = [viewed(x, lambda a: np.flip(a, axis)) if backwards else x for x in (view, out)]
    x, result = seen
    launches = at.launches
    launches.items += scan(node_text(node), x.shape, axis, [x], [result], launches.access, launches.buffer)
    return (out,)


def _concat(at: Values, step: NodeStep) -> tuple[object, ...]:
    """One array written part by part: parts of one shape are outputs of the kernels that make them."""
    given = ((slot, at.operand(slot)) for slot in step.operands)
    parts = [x if isinstance(x, View) and not x.size else at.view(slot) for slot, x in given]
    axis, first = attributes.Axis.of(step.node).axis, parts[0].shape
    ends = list(itertools.accumulate(view.shape[axis] for view in parts))
    whole = at.launches.buffer((*first[:axis], ends[-1], *first[axis + 1 :]), parts[0].dtype)
    for view, end in zip(parts, ends, strict=True):
        place, _ = part(whole, (*(slice(None),) * axis, slice(end - view.shape[axis], end)))
        if view.shape != place.shape:
            raise SizesDoNotFit(f"a part of shape {view.shape} beside one of shape {first}")
        if view.size:
            at.launches.copied(view, place)
    return (whole,)


SINGLE: dict[str, Single] = {
    "transpose": _viewing(lambda node, x: np.transpose(x, attributes.Axes.of(node).axes)),
    "expand_dims": _viewing(lambda node, x: np.expand_dims(x, attributes.Axes.of(node).axes)),
    "squeeze": _viewing(lambda node, x: np.squeeze(x, attributes.Axes.of(node).axes)),
    "flip": _viewing(_flipped),
    "broadcast_to": _broadcast,
    "reshape": _reshape,
    "getitem": _getitem,
    "setitem": _update(None),
    "additem": _update("add"),
    **dict.fromkeys((*REDUCTIONS, "sum_to"), _reduction),
    **dict.fromkeys(SCANS, _scan),
    "concat": _concat,
    "matmul": matmul,
    "ensure_sizes": _ensure_sizes,
}
OPS: dict[str, Op] = {
    **SINGLE,
    **dict.fromkeys(("stop_gradient", "barrier", "watch", "forget_sizes"), _same),
    "stack_new": _new,
    "stack_from_tensor": _from_tensor,
    "stack_to_tensor": _to_tensor,
    "stack_push": _push,
    "stack_pop": _pop,
    "stack_read": read,
    "stack_write": write,
    "stack_add": add,
    "stack_clear": clear,
    "stack_sum": both,
    "stack_length": length,
}
