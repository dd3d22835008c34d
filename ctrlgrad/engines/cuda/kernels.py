"""Device kernels of the ops, step by step; importing this module fills the table `DEVICE`.

An entry takes the node and returns a function of the run's context and the operands; it gives the result, or a tuple
of results. It may empty the list of operands: an operand taken off the list may be overwritten if it has no other
reference. Elementwise ops are parts of generated kernels instead. An op without entry goes through the host by the
reference engine's kernel.

The reference engine checks an index that is on the host. An index on the device is checked there, by the kernels that
use it (`indexing`): the read or update goes on with another element, and the error is raised at the next place where
the host waits for the device anyway (a loop's predicate, the end of the run). It names the index, the line, and the
iterations (`sites`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, computed_dtype, dtype_kind
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.indexing import Chosen, Surroundings, chosen, gather, scatter
from ctrlgrad.engines.cuda.kernel import Access, KernelText, binary_text, cast_text, copy_text
from ctrlgrad.engines.cuda.program import scalar
from ctrlgrad.engines.cuda.reduction_kernels import ReductionText
from ctrlgrad.engines.cuda.reductions import (
    REDUCTIONS,
    SCANS,
    check_elements,
    compute,
    cumulate,
    node_text,
    reduce,
    reduced_shape,
    summed_axes,
)
from ctrlgrad.engines.cuda.stacks import DeviceRows, DeviceStack, Stack, own_array, own_stack
from ctrlgrad.engines.reference.array_kernels import require_sizes
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.engines.reference.kernels import IN_PLACE, PURE
from ctrlgrad.engines.reference.stack_kernels import never_written
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import Node, StackType, TensorType, attributes
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ops.arrays import fill

Kernel = Callable[[Context, list[Any]], Any]
Factory = Callable[[Node], Kernel]

DEVICE: dict[str, Factory] = {}


def filled_shape(context: Context, shape: Sequence[int | None], dims: Sequence[Any]) -> tuple[int, ...]:
    """A shape template, its unknown dimensions filled; a size that is on the device is read."""
    rest = iter(context.on_host(*dims))
    return tuple(int(next(rest)) if d is None else d for d in shape)


def call(fn: Callable[[Context, list[Any]], Any]) -> Kernel:
    """A kernel that calls a function of the library, counted."""

    def kernel(context: Context, operands: list[Any]) -> Any:
        context.counts.calls += 1
        return fn(context, operands)

    return kernel


def added(context: Context, a: Any, b: Any) -> Any:
    """The sum of two arrays of one dtype."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    found = context.library.empty(shape, a.dtype)
    compute(context, binary_text("add", a.dtype), shape, [a, b], [found])
    return found


def add_to(context: Context, x: Any, value: Any) -> None:
    """`x += value`, which is an array or a number of the dtype."""
    compute(context, binary_text("add", x.dtype), tuple(x.shape), [x, value], [x])


def converted(context: Context, x: Any, dtype: np.dtype) -> Any:
    """An array in another dtype, or as it is."""
    if x.dtype == dtype:
        return x
    found = context.library.empty(tuple(x.shape), dtype)
    compute(context, cast_text(x.dtype, dtype), tuple(x.shape), [x], [found])
    return found


def _matmul(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        a, b = map(context.on_device, operands)
        context.counts.products += 1
        return context.library.matmul(a, b, context.precision)

    return kernel


def add_product(context: Context, operands: list[Any]) -> Any:
    """A product added to the first operand, in place where nothing else holds that."""
    operands[0] = context.on_device(operands[0])
    total, copied = own_array(operands, context.library)
    context.counts.calls += copied
    context.counts.products += 1
    a, b = map(context.on_device, operands)
    context.library.add_product(total, a, b, context.precision)
    return total


def _sortable(context: Context, x: Any) -> Any:
    """An array that the library sorts: it cannot sort bfloat16."""
    return converted(context, x, computed_dtype(x.dtype)) if x.dtype == BFLOAT16 else x


def _comparable(context: Context, x: Any) -> Any:
    """An array whose elements the library tells apart: subnormal numbers are zero for it, but for those of float64."""
    return converted(context, x, np.dtype(np.float64)) if dtype_kind(x.dtype) == "f" else x


def _reduction(node: Node) -> Kernel:
    """Kernel of a reduction that is not fused."""
    axes, text = attributes.Axes.of(node).axes, node_text(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = context.on_device(operands[0])
        check_elements(node, x.shape, axes)
        return _reduced(context, text, x, axes, reduced_shape(node, x.shape)) if axes else x

    return kernel


def _reduced(context: Context, text: ReductionText, x: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    (written,) = text.results
    result = context.library.empty(shape, np.dtype(written.dtype))
    reduce(context, text, tuple(x.shape), axes, [x], [], [result])
    return result


def _scan(node: Node) -> Kernel:
    axis, backwards, text = attributes.Axis.of(node).axis, attributes.Scan.of(node).reverse, node_text(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = context.on_device(operands[0])
        result = context.library.empty(tuple(x.shape), x.dtype)
        seen = [context.xp.flip(a, axis) if backwards else a for a in (x, result)]
        cumulate(context, text, axis, *seen)
        return result

    return kernel


def _sum_to(node: Node) -> Kernel:
    text = node_text(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, *dims = operands
        shape = filled_shape(context, attributes.Shape.of(node).shape, dims)
        x = context.on_device(x)
        axes = summed_axes(x.shape, shape)
        return _reduced(context, text, x, axes, shape) if axes else x

    return kernel


def _concat(node: Node) -> Kernel:
    """Parts that are written one by one: those of one shape are outputs of the kernels that make them."""
    axis, dtype = attributes.Axis.of(node).axis, node.result.tensor.dtype
    text = copy_text(dtype, dtype)

    def kernel(context: Context, operands: list[Any]) -> Any:
        parts = [context.on_device(x) for x in operands]
        first, ends = parts[0].shape, list(itertools.accumulate(x.shape[axis] for x in parts))
        whole = context.library.empty((*first[:axis], ends[-1], *first[axis + 1 :]), dtype)
        for part, end in zip(parts, ends, strict=True):
            if (*part.shape[:axis], *part.shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]):
                raise ValueError(f"a part of shape {part.shape} beside one of shape {first}")
            place = whole[(*(slice(None),) * axis, slice(end - part.shape[axis], end))]
            compute(context, text, tuple(part.shape), [part], [place])
        return whole

    return kernel


def _iota(node: Node) -> Kernel:
    shape = attributes.Shape.of(node).shape
    return call(lambda context, dims: context.xp.arange(filled_shape(context, shape, dims)[0], dtype=np.int64))


def _shaped(name: str) -> Factory:
    """An op that gives its operand another shape, without touching data where the library can."""

    def factory(node: Node) -> Kernel:
        def kernel(context: Context, operands: list[Any]) -> Any:
            x, *dims = operands
            shape = filled_shape(context, attributes.Shape.of(node).shape, dims)
            return getattr(context.xp, name)(context.on_device(x), shape)

        return kernel

    return factory


def _view(name: str, attribute: str) -> Factory:
    def factory(node: Node) -> Kernel:
        given = getattr(node.attrs, attribute)
        return lambda context, operands: getattr(context.xp, name)(context.on_device(operands[0]), given)

    return factory


def _same(node: Node) -> Kernel:
    return lambda context, operands: operands[0]


def _ensure_sizes(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        x, *dims = operands
        require_sizes(node, np.shape(x), filled_shape(context, attributes.Required.of(node).shape, dims))
        return x

    return kernel


def _argsort(node: Node) -> Kernel:
    axis, descending = attributes.Axis.of(node).axis, attributes.Order.of(node).descending

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = _sortable(context, context.on_device(operands[0]))
        return _descending(context, x, axis) if descending else context.xp.argsort(x, axis=axis, kind="stable")

    return call(kernel)


def _descending(context: Context, x: Any, axis: int) -> Any:
    """The ascending order of the flipped elements, flipped: equal elements keep their order."""
    xp = context.xp
    return x.shape[axis] - 1 - xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)


def _top_k(node: Node) -> Kernel:
    axis, count = attributes.Axis.of(node).axis, attributes.Selection.of(node).count
    first = (*[slice(None)] * axis, slice(0, count))

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = _sortable(context, context.on_device(operands[0]))
        if x.shape[axis] < count:
            raise ValueError("fewer elements than are selected")
        return _descending(context, x, axis)[first]

    return call(kernel)


def _searchsorted(node: Node) -> Kernel:
    side = attributes.Search.of(node).side

    def kernel(context: Context, operands: list[Any]) -> Any:
        return context.xp.searchsorted(*(_comparable(context, context.on_device(x)) for x in operands), side=side)

    return call(kernel)


def _nonzero(node: Node) -> Kernel:
    # The library waits for the device here: the size of the result depends on data.
    def kernel(context: Context, operands: list[Any]) -> Any:
        context.counts.reads += 1
        return context.xp.stack(context.xp.nonzero(converted(context, context.on_device(operands[0]), np.dtype(bool))))

    return call(kernel)


def _fft(node: Node) -> Kernel:
    axis, dtype, inverse = (
        attributes.Axis.of(node).axis,
        node.result.tensor.dtype,
        attributes.Transform.of(node).inverse,
    )

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, fft = context.on_device(operands[0]), context.xp.fft
        found = fft.ifft(x, axis=axis, norm="forward") if inverse else fft.fft(x, axis=axis)
        return found.astype(dtype, copy=False)

    return call(kernel)


def _real_fft(node: Node) -> Kernel:
    given, dtype = attributes.RealTransform.of(node), node.result.tensor.dtype

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, fft = context.on_device(operands[0]), context.xp.fft
        if node.op.name == "rfft":
            return fft.rfft(x, axis=given.axis).astype(dtype, copy=False)
        return fft.irfft(x, given.size, axis=given.axis, norm="forward").astype(dtype, copy=False)

    return call(kernel)


_IDENTITIES = ("stop_gradient", "barrier", "watch", "forget_sizes")
_VIEWS: dict[str, str] = {"transpose": "axes", "expand_dims": "axes", "squeeze": "axes", "flip": "axes"}

DEVICE["matmul"] = _matmul
DEVICE |= dict.fromkeys(REDUCTIONS, _reduction)
DEVICE |= dict.fromkeys(SCANS, _scan)
DEVICE |= {name: _shaped(name) for name in ("reshape", "broadcast_to")}
DEVICE |= {name: _view(name, attribute) for name, attribute in _VIEWS.items()}
DEVICE |= dict.fromkeys(_IDENTITIES, _same)
DEVICE |= {
    "ensure_sizes": _ensure_sizes,
    "sum_to": _sum_to,
    "concat": _concat,
    "iota": _iota,
    "argsort": _argsort,
    "top_k": _top_k,
    "searchsorted": _searchsorted,
    "nonzero": _nonzero,
    "fft": _fft,
    "rfft": _real_fft,
    "irfft": _real_fft,
}


_ARRAY = Access(())


def _filled(context: Context, node: Node, x: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The key for the library: bounds of slices and scalar indices as numbers, arrays on the device, all checked."""
    rest = iter(operands)

    def part(item: Any) -> Any:
        return context.number(next(rest)) if item is DYNAMIC else item

    key: list[Any] = []
    for item in attributes.Index.of(node).key:
        if isinstance(item, slice):
            key.append(slice(part(item.start), part(item.stop), part(item.step)))
        elif item is DYNAMIC:
            index = next(rest)
            key.append(index if context.library.is_array(index) else int(index))
        else:
            key.append(item)
    axis = 0
    for item in key:
        if isinstance(item, int) and not -x.shape[axis] <= item < x.shape[axis]:
            raise IndexError(f"index {item} is out of bounds for axis {axis} with size {x.shape[axis]}")
        axis += item is not None
    return tuple(key)


def _has_index(context: Context, key: Sequence[Any]) -> bool:
    """Return true if an index is on the device."""
    return any(context.library.is_array(item) for item in key)


def _chosen(context: Context, x: Any, key: Sequence[Any]) -> Chosen:
    return chosen(x.ndim, key, context.library.is_array, lambda basic: x[(*basic, ...)])


def _launch(context: Context, node: Node, its: Chosen, launches: Callable[[Surroundings], Iterator[Any]]) -> None:
    """Put a read or an update on the stream; nothing where there is no index."""
    if 0 in its.index_shape:
        return
    around = Surroundings(lambda _: _ARRAY, context.library.empty, context.index_flag(), context.site(node))
    for launch in launches(around):
        context.launch(launch)


def is_view(node: Node) -> bool:
    """Return true if a read by this key may be a view: no index array takes part. A read by a scalar on the device is
    a copy."""
    return not any(isinstance(v.type, TensorType) and v.tensor.rank for v in node.operands[1:])


def _getitem(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        x = context.on_device(operands[0])
        try:
            key = _filled(context, node, x, operands[1:])
        except IndexError as error:
            if context.speculation is None:
                raise
            found = explained(error, node)
            assert isinstance(found, Exception)
            context.speculation.fail(found)
            return _blank(context, node, x, operands[1:])
        if not _has_index(context, key):
            return x[key]
        its = _chosen(context, x, key)
        found = context.library.empty(its.shape, x.dtype)
        _launch(context, node, its, lambda around: gather(its, found, around))
        return found

    return kernel


def _blank(context: Context, node: Node, x: Any, indices: Sequence[Any]) -> Any:
    """Zeros in place of a read that would fail, in an iteration that may lie past its loop's end."""
    roomy = np.broadcast_to(np.zeros((), bool), tuple(max(size, 1) for size in x.shape))
    first = fill(attributes.Index.of(node).key, [0] * len(indices))
    shape = roomy[tuple(0 if isinstance(item, int) else item for item in first)].shape
    context.counts.calls += 1
    return context.xp.zeros(shape, x.dtype)


def _updating(write: Callable[[Context, Node, Any, Any, Any], None]) -> Factory:
    """An op that writes to a part of its first operand: `write(context, node, x, key, value)`."""

    def factory(node: Node) -> Kernel:
        def kernel(context: Context, operands: list[Any]) -> Any:
            x = _owned(context, operands)
            value, *indices = operands
            try:
                write(context, node, x, _filled(context, node, x, indices), value)
            except ValueError:
                # The error is about all operands.
                operands.insert(0, x)
                raise
            return x

        return kernel

    return factory


def _set(context: Context, node: Node, x: Any, key: Any, value: Any) -> None:
    if _has_index(context, key):
        _scatter(context, node, x, key, value, None)
    else:
        context.counts.calls += 1
        x[key] = _scalar_or_array(context, value)


def _add(context: Context, node: Node, x: Any, key: Any, value: Any) -> None:
    if _has_index(context, key):
        _scatter(context, node, x, key, value, binary_text("add", node.result.tensor.dtype))
        return
    # With an ellipsis, the element of a scalar index is a view too.
    row = x[(*key, ...)]
    _require_fit(row.shape, value)
    add_to(context, row, scalar(_scalar_or_array(context, value).astype(x.dtype, copy=False)))


def _scatter(context: Context, node: Node, x: Any, key: Sequence[Any], value: Any, text: KernelText | None) -> None:
    its, value = _chosen(context, x, key), context.on_device(value)
    _require_fit(its.shape, value)
    _launch(context, node, its, lambda around: scatter(its, value, text, around))


def _require_fit(shape: Sequence[int], value: Any) -> None:
    """A value must broadcast to the part that it is written to: no kernel looks."""
    if np.broadcast_shapes(tuple(shape), np.shape(value)) != tuple(shape):
        raise ValueError(f"a value of shape {np.shape(value)} for a part of shape {tuple(shape)}")


def _owned(context: Context, operands: list[Any]) -> Any:
    """Take the first operand off as an array on the device that may be overwritten."""
    if not context.library.is_array(operands[0]):
        operands[0] = context.on_device(operands[0])
    x, copied = own_array(operands, context.library)
    context.counts.calls += copied
    return x


def _scalar_or_array(context: Context, value: Any) -> Any:
    return value if isinstance(value, np.generic) else context.on_device(value)


DEVICE["getitem"] = _getitem
DEVICE["setitem"] = _updating(_set)
DEVICE["additem"] = _updating(_add)


def element_of(node: Node) -> TensorType:
    """The element type of a stack op's stack."""
    return next(v.type.element for v in (*node.operands, *node.results) if isinstance(v.type, StackType))


def _zeros(context: Context, element: TensorType, dims: Sequence[Any]) -> Any:
    if not element.is_static and not dims:
        raise never_written(element)
    context.counts.calls += 1
    return context.xp.zeros(filled_shape(context, element.shape, dims), element.dtype)


def own_device_stack(context: Context, node: Node, operands: list[Any]) -> Stack:
    """Take the first operand off as a stack on the device that may be changed."""
    if not isinstance(operands[0], DeviceStack | DeviceRows):
        operands[0] = context.stack_on_device(operands[0], element_of(node).dtype)
    return own_stack(operands)


def as_list(stack: Stack) -> list[Any]:
    """A stack as a list of rows, the stack itself where it is one."""
    return DeviceRows(stack) if isinstance(stack, DeviceStack) else stack


def _new(node: Node) -> Kernel:
    element = element_of(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        size = context.number(operands[0]) if operands else 0
        return DeviceRows([None] * size) if size else DeviceStack(context.library, element.dtype)

    return kernel


def _push(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        stack = own_device_stack(context, node, operands)
        value = context.on_device(operands[0])
        context.counts.calls += 1
        put(context, stack, value.shape, value.dtype)[...] = value
        commit(stack)
        context.run.counters.pushed(node, value)
        return stack

    return kernel


def put(context: Context, stack: Stack, shape: Sequence[int], dtype: np.dtype) -> Any:
    """Writable array for the next row of a stack."""
    if isinstance(stack, DeviceStack):
        # The ellipsis makes a view of a scalar's slot.
        return stack.slot(shape)
    stack.append(context.library.empty(shape, dtype))
    return stack[-1]


def commit(stack: Stack) -> None:
    """The row has been written."""
    if isinstance(stack, DeviceStack):
        stack.commit()


def _pop(node: Node) -> Kernel:
    element = element_of(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack = own_device_stack(context, node, operands)
        if not len(stack):
            raise ExecutionError("stack: popped more values than were pushed")
        value = stack.pop()
        context.run.counters.popped(node)
        return stack, _zeros(context, element, operands) if value is None else value

    return kernel


def _read(node: Node) -> Kernel:
    element = element_of(node)
    checked = PURE["stack_read"](node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, index, *dims = operands
        # Of a list of positions the reference engine's kernel takes the one that is meant, or raises its error.
        position = checked(range(len(stack)), context.number(index))
        value = stack.row(position) if isinstance(stack, DeviceStack) else stack[position]
        return _zeros(context, element, dims) if value is None else context.on_device(value)

    return kernel


def _update(name: str) -> Any:
    """Writes and the like: the reference engine's kernel on a list of rows."""

    def factory(node: Node) -> Kernel:
        host = IN_PLACE[name](node)

        def kernel(context: Context, operands: list[Any]) -> Any:
            rows = as_list(own_device_stack(context, node, operands))
            index, *values = operands
            arguments = [rows, np.int64(context.number(index)), *map(context.on_device, values)]
            del rows, values
            operands.clear()
            return host(arguments, context.run)

        return kernel

    return factory


def _add_row(node: Node) -> Kernel:
    checked = PURE["stack_read"](node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        rows = as_list(own_device_stack(context, node, operands))
        index, value = operands
        position = checked(range(len(rows)), context.number(index))
        rows[position] = _both(context, rows[position], context.on_device(value))
        return rows

    return kernel


def _both(context: Context, a: Any, b: Any) -> Any:
    """The sum of two rows, of which those that were never written are None."""
    return b if a is None else a if b is None else added(context, a, b)


def _sum(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        a, b = (as_list(context.stack_on_device(s, element_of(node).dtype)) for s in operands)
        rows = itertools.zip_longest(a, b)
        return DeviceRows(_both(context, x, y) for x, y in rows)

    return kernel


def _to_tensor(node: Node) -> Kernel:
    element = element_of(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, *dims = operands
        stack = context.stack_on_device(stack, element.dtype)
        if not len(stack):
            known = element.shape if element.is_static else _zeros(context, element, dims).shape
            context.counts.calls += 1
            return context.xp.zeros((0, *known), element.dtype)
        if isinstance(stack, DeviceStack) and len(stack.blocks) == 1:
            return stack.rows(stack.blocks[0])
        context.counts.calls += 1
        if isinstance(stack, DeviceStack):
            return joined(context, stack)
        known = next((v.shape for v in stack if v is not None), None)
        blank = None
        if any(v is None for v in stack):
            blank = _zeros(context, element if known is None else TensorType(element.dtype, known), dims)
        return context.xp.stack([blank if v is None else v for v in stack])

    return kernel


def joined(context: Context, stack: DeviceStack) -> Any:
    """All rows in one array."""
    if not stack.is_managed:
        return context.xp.concatenate([stack.rows(block) for block in stack.blocks])
    # A block at a time: there may be room for one alone.
    joined = context.library.empty((len(stack), *stack.blocks[0].shape), stack.dtype)
    place = 0
    for block in stack.blocks:
        context.counts.calls += 1
        joined[place : place + block.count] = stack.rows(block)
        place += block.count
    stack.rest()
    return joined


def _from_tensor(node: Node) -> Kernel:
    return lambda context, operands: DeviceStack.of(context.library, context.on_device(operands[0]))


def _rows(node: Node) -> Kernel:
    element, axis = element_of(node), attributes.Axis.of(node).axis

    def kernel(context: Context, operands: list[Any]) -> Any:
        sizes = [(_zeros(context, element, ()) if v is None else v).shape[axis] for v in operands[0]]
        return context.on_device(np.array(sizes, np.int64))

    return kernel


def _concat_stacks(node: Node) -> Kernel:
    element, axis = element_of(node), attributes.Axis.of(node).axis

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, rows, *dims = operands
        stack = as_list(context.stack_on_device(stack, element.dtype))
        (counts,) = context.on_host(rows)
        known = next((v.shape for v in stack if v is not None), None)
        if known is None:
            blank = TensorType(element.dtype, (*element.shape[:axis], 0, *element.shape[axis + 1 :]))
            known = _zeros(context, blank, dims).shape

        def zeros(n: int) -> Any:
            context.counts.calls += 1
            return context.xp.zeros((*known[:axis], n, *known[axis + 1 :]), element.dtype)

        parts = [zeros(int(n)) if v is None else v for v, n in zip(stack, counts, strict=True)]
        context.counts.calls += 1
        return context.xp.concatenate(parts, axis) if parts else zeros(0)

    return kernel


def _split(node: Node) -> Kernel:
    axis = attributes.Axis.of(node).axis

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, rows = operands
        ends = np.cumsum(context.on_host(rows)[0])
        x = context.on_device(x)
        lead = (slice(None),) * axis
        starts = [0, *map(int, ends[:-1])]
        # Views: they keep the whole alive, and are copied where they are updated.
        return DeviceRows(x[(*lead, slice(a, int(b)))] for a, b in zip(starts, ends, strict=False))

    return kernel


DEVICE["stack_new"] = _new
DEVICE["stack_push"] = _push
DEVICE["stack_pop"] = _pop
DEVICE["stack_read"] = _read
DEVICE |= {name: _update(name) for name in ("stack_write", "stack_clear", "stack_resize")}
DEVICE["stack_add"] = _add_row
DEVICE["stack_sum"] = _sum
DEVICE["stack_to_tensor"] = _to_tensor
DEVICE["stack_from_tensor"] = _from_tensor
DEVICE["stack_rows"] = _rows
DEVICE["stack_concat"] = _concat_stacks
DEVICE["stack_split"] = _split
