"""Device kernels of the ops, step by step; importing this module fills the table `DEVICE`.

An entry takes the node and returns a function of the run's context and the operands; it gives the result, or a tuple
of results. It may empty the list of operands: an operand taken off the list may be overwritten if it has no other
reference. Elementwise ops are parts of generated kernels instead. An op that launch lists know too (`prepared.ops`) is
a launch list of its own (`Single`), which runs at once. An op without entry goes through the host by the reference
engine's kernel.

The reference engine checks an index that is on the host. An index on the device is checked there, by the kernels that
use it (`indexing`): the read or update goes on with another element, and the error is raised at the next place where
the host waits for the device anyway (a loop's predicate, the end of the run). It names the index, the line, and the
iterations (`sites`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, computed_dtype, dtype_kind
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.indexing import Surroundings
from ctrlgrad.engines.cuda.kernel import KernelLaunch, KernelText, op_text
from ctrlgrad.engines.cuda.prepared import ops
from ctrlgrad.engines.cuda.prepared.entries import product_parameters
from ctrlgrad.engines.cuda.prepared.launches import FLAG, Launches, part
from ctrlgrad.engines.cuda.prepared.model import (
    INT64,
    Affine,
    Become,
    Buffer,
    Fixed,
    Flag,
    Given,
    Item,
    Operand,
    ProductLaunch,
    Source,
    View,
)
from ctrlgrad.engines.cuda.prepared.reading import Values
from ctrlgrad.engines.cuda.products import PRODUCT_DTYPES
from ctrlgrad.engines.cuda.program import NodeStep
from ctrlgrad.engines.cuda.sites import Site
from ctrlgrad.engines.cuda.stacks import DeviceRows, DeviceStack, Stack, own_array
from ctrlgrad.engines.reference import Run, stack_kernels
from ctrlgrad.engines.reference.array_kernels import require_sizes
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.engines.reference.kernels import IN_PLACE
from ctrlgrad.engines.reference.table import own_stack
from ctrlgrad.ir import Node, StackType, TensorType, Use, attributes
from ctrlgrad.ops.arrays import fill

Kernel = Callable[[Context, list[Any]], Any]
Factory = Callable[[Node], Kernel]

DEVICE: dict[str, Factory] = {}


class _Launches(Launches):
    """Launches outside of loops: an index that is out of range is noted with the node's site alone."""

    def around(self, node: Node) -> Surroundings:
        return Surroundings(self._access, self.buffer, FLAG, Site(node, ()))


class Single(Values):
    """A launch list that runs once, on arrays: operands by slot, host numbers among them.

    Args:
        copies: true if a step from here on may overwrite the operands, so that no result is a view.
    """

    def __init__(self, context: Context, operands: Mapping[int, Any], copies: bool = False) -> None:
        self._context, self._copies = context, copies
        self._memory: dict[Source, Any] = {}
        # False if the list depends on a number that was read from the device.
        self.can_repeat = True
        super().__init__({slot: self.given(slot, x) for slot, x in operands.items()}, _Launches())

    def given(self, slot: int, x: Any) -> object:
        """Describe an operand: an array, which is uploaded if it is on the host, or a number."""
        if self._context.library.is_array(x) or np.ndim(x):
            x = self._context.on_device(x)
            self._memory[Given(slot)] = x
            return View(Given(slot), x.dtype, tuple(x.shape), tuple(x.strides))
        return Affine(int(x)) if x.dtype == INT64 else Fixed(x.dtype, x)

    def hold(self, operands: Mapping[int, Any]) -> None:
        """Run the list on other operands of the same kinds."""
        context = self._context
        arrays = {slot: x for slot, x in operands.items() if context.library.is_array(x) or np.ndim(x)}
        self._memory |= {Given(slot): context.on_device(x) for slot, x in arrays.items()}

    def size(self, slot: int) -> int:
        found = self.value(slot)
        if isinstance(found, Affine):
            return found.constant
        self.can_repeat = self.can_repeat and not isinstance(found, View)
        return self._context.number(self._array(found) if isinstance(found, View) else found.value)

    def index(self, slot: int) -> Affine | View:
        found = self.value(slot)
        return Affine(int(found.value)) if isinstance(found, Fixed) else found

    def is_updated(self, view: View) -> bool:
        return self._copies

    def run(self) -> None:
        """Put the launches on the stream."""
        for item in self.launches.items:
            self._run(item)

    def _run(self, item: Item) -> None:
        context = self._context
        if isinstance(item, Become):
            self._memory[item.after.source] = self._owned(item.before)
        elif isinstance(item, ProductLaunch):
            context.counts.products += 1
            place = lambda view: context.library.address(self._held(view)) + view.offset
            context.library.multiply(product_parameters(item, place, context.precision))
        else:
            assert isinstance(item, KernelLaunch)
            arguments = tuple(map(self._argument, item.arguments))
            numbers = tuple(context.site(x.node) if isinstance(x, Site) else x for x in item.numbers)
            context.launch(replace(item, arguments=arguments, numbers=numbers))

    def _owned(self, view: View) -> Any:
        """Array that a launch may overwrite: the operand itself if nothing else holds it, else a copy."""
        array, was_copied = own_array([self._memory.pop(view.source)], self._context.library)
        self._context.counts.calls += was_copied
        if replace(view, strides=tuple(array.strides)).is_contiguous or not view.size:
            return array
        self._context.counts.calls += 1
        return self._context.xp.ascontiguousarray(array)

    def _argument(self, x: Operand) -> Any:
        if isinstance(x, View):
            # Sizes and strides are parameters of a kernel: of the array itself only the address matters.
            return self._array(x) if x.offset else self._held(x)
        assert isinstance(x, Affine | Fixed)
        return np.int64(x.constant) if isinstance(x, Affine) else x.dtype.type(x.value)

    def _held(self, view: View) -> Any:
        """The array that a view is of."""
        source = view.source
        if source not in self._memory:
            if isinstance(source, Flag):
                return self._context.index_flag()
            assert isinstance(source, Buffer)
            self._memory[source] = self._context.library.empty(*self.launches.buffers[source.number])
        return self._memory[source]

    def _array(self, view: View) -> Any:
        array = self._held(view)
        if not view.offset and (view.shape, view.strides) == (tuple(array.shape), tuple(array.strides)):
            return array
        return self._context.library.strided(array, view.shape, view.strides, view.offset)

    def result(self, value: object) -> Any:
        """A value after the run: an array, or anything else as it is."""
        return self._array(value) if isinstance(value, View) else value


class Lists:
    """Launch lists of one step: a list depends on dtypes, sizes and strides of arrays, and on host numbers."""

    MOST = 16

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Launches, dict[int, Any]]] = {}

    def single(
        self, context: Context, operands: Mapping[int, Any], make: Callable[[Single], None], copies: bool = False
    ) -> Single:
        """The list for some operands; `make` lists it, and sets values, where it is not known."""
        is_array = context.library.is_array
        kinds = [
            (x.dtype, x.shape, x.strides if is_array(x) else None) if x.ndim or is_array(x) else (x.dtype, x.tobytes())
            for x in operands.values()
        ]
        key = tuple(kinds)
        if (known := self._known.get(key)) is not None:
            single = Single(context, {}, copies)
            single.launches, values = known
            single.values = dict(values)
            single.hold(operands)
            return single
        single = Single(context, operands, copies)
        make(single)
        if single.can_repeat:
            if len(self._known) >= self.MOST:
                self._known.clear()
            self._known[key] = single.launches, dict(single.values)
        return single


def at_once(op: ops.Single, node: Node, copies: bool = False) -> Kernel:
    """Kernel of a node whose op lists its launches; they run at once."""
    lists = Lists()

    def kernel(context: Context, operands: list[Any]) -> Any:
        def make(single: Single) -> None:
            step = NodeStep(node, kernel, tuple(range(len(operands))), ())
            (single.values[-1],) = op(single, step)

        try:
            single = lists.single(context, dict(enumerate(operands)), make, copies)
        except IndexError as error:
            if context.speculation is None or not node.op.has_use(Use.READ):
                raise
            failure = explained(error, node)
            assert isinstance(failure, Exception)
            context.speculation.fail(failure)
            return _blank(context, node, operands[0])
        operands.clear()
        single.run()
        return single.result(single.values[-1])

    return kernel


def _blank(context: Context, node: Node, x: Any) -> Any:
    """Zeros in place of a read that would fail, in an iteration that may lie past its loop's end."""
    roomy = tuple(max(size, 1) for size in x.shape)
    key = fill(attributes.Index.of(node).key, [0] * (len(node.operands) - 1))
    found, _ = part(View(Given(0), x.dtype, roomy, (0,) * len(roomy)), key)
    context.counts.calls += 1
    return context.xp.zeros(found.shape, x.dtype)


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


def computed(context: Context, text: KernelText, shape: tuple[int, ...], dtype: np.dtype, *operands: Any) -> Any:
    """An array that a kernel computes of arrays that broadcast to its shape."""
    single = Single(context, dict(enumerate(operands)))
    found = single.launches.buffer(shape, dtype)
    single.launches.kernel(text, shape, [single.operand(slot) for slot in range(len(operands))], [found])
    single.run()
    return single.result(found)


def added(context: Context, a: Any, b: Any) -> Any:
    """The sum of two arrays of one dtype."""
    text = op_text("add", [a.dtype, b.dtype], a.dtype)
    return computed(context, text, np.broadcast_shapes(a.shape, b.shape), a.dtype, a, b)


def converted(context: Context, x: Any, dtype: np.dtype) -> Any:
    """An array in another dtype, or as it is."""
    if x.dtype == dtype:
        return x
    return computed(context, op_text("cast", [x.dtype], dtype), tuple(x.shape), dtype, x)


def _sortable(context: Context, x: Any) -> Any:
    """An array that the library sorts: it cannot sort bfloat16."""
    return converted(context, x, computed_dtype(x.dtype)) if x.dtype == BFLOAT16 else x


def _comparable(context: Context, x: Any) -> Any:
    """An array whose elements the library tells apart: subnormal numbers are zero for it, but for those of float64."""
    return converted(context, x, np.dtype(np.float64)) if dtype_kind(x.dtype) == "f" else x


def _iota(node: Node) -> Kernel:
    shape = attributes.Shape.of(node).shape
    return call(lambda context, dims: context.xp.arange(filled_shape(context, shape, dims)[0], dtype=np.int64))


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


def _matmul(node: Node) -> Kernel:
    if node.result.tensor.dtype.name in PRODUCT_DTYPES:
        return at_once(ops.matmul, node)
    return call(lambda context, operands: context.xp.matmul(*map(context.on_device, operands)))


DEVICE |= {name: partial(at_once, op) for name, op in ops.SINGLE.items()}
DEVICE |= dict.fromkeys(("stop_gradient", "barrier", "watch", "forget_sizes"), _same)
DEVICE |= {
    "matmul": _matmul,
    "ensure_sizes": _ensure_sizes,
    "iota": _iota,
    "argsort": _argsort,
    "top_k": _top_k,
    "searchsorted": _searchsorted,
    "nonzero": _nonzero,
    "fft": _fft,
    "rfft": _real_fft,
    "irfft": _real_fft,
}


def element_of(node: Node) -> TensorType:
    """The element type of a stack op's stack."""
    return next(v.type.element for v in (*node.operands, *node.results) if isinstance(v.type, StackType))


class _OnDevice:
    """Functions of arrays for the reference engine's kernels of stacks, counted; sizes that they ask for are read."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def zeros(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        self._context.counts.calls += 1
        return self._context.xp.zeros(shape, dtype)

    def stack(self, rows: list[Any]) -> Any:
        self._context.counts.calls += 1
        return self._context.xp.stack(rows)

    def concatenate(self, parts: list[Any], axis: int) -> Any:
        self._context.counts.calls += 1
        return self._context.xp.concatenate(parts, axis)

    def add(self, a: Any, b: Any) -> Any:
        return added(self._context, a, b)


@dataclass(frozen=True)
class _Size:
    """A size, which is read from the device where it is needed."""

    context: Context
    x: Any

    def __int__(self) -> int:
        return self.context.number(self.x)


def _sizes(context: Context, dims: Sequence[Any]) -> list[_Size]:
    return [_Size(context, x) for x in dims]


def own_device_stack(context: Context, dtype: np.dtype, operands: list[Any]) -> Stack:
    """Take the first operand off as a stack on the device that may be changed."""
    if not isinstance(operands[0], DeviceStack | DeviceRows):
        operands[0] = context.stack_on_device(operands[0], dtype)
    stack: Stack = own_stack(operands)
    return stack


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
        stack = own_device_stack(context, element_of(node).dtype, operands)
        value = context.on_device(operands[0])
        context.counts.calls += 1
        put(context, stack, value.shape, value.dtype)[...] = value
        commit(stack)
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
    def kernel(context: Context, operands: list[Any]) -> Any:
        arguments = [own_device_stack(context, element_of(node).dtype, operands), *_sizes(context, operands)]
        return stack_kernels.pop(node, _OnDevice(context))(arguments, context.run)

    return kernel


def _read(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, index, *dims = operands
        row = stack_kernels.read(node, _OnDevice(context))(stack, context.number(index), *_sizes(context, dims))
        return context.on_device(row)

    return kernel


# Makes a kernel of the reference engine, which calls functions of arrays.
_Making = Callable[[Node, _OnDevice], Callable[[list[Any], Run], Any]]


def _plain(name: str) -> _Making:
    """One that calls none."""
    return lambda node, xp: IN_PLACE[name](node)


def _update(make: _Making) -> Factory:
    """Writes and the like: the reference engine's kernel on a list of rows."""

    def factory(node: Node) -> Kernel:
        def kernel(context: Context, operands: list[Any]) -> Any:
            arguments: list[Any] = [as_list(own_device_stack(context, element_of(node).dtype, operands))]
            index, *values = operands
            arguments += [np.int64(context.number(index)), *map(context.on_device, values)]
            del values
            operands.clear()
            return make(node, _OnDevice(context))(arguments, context.run)

        return kernel

    return factory


def _sum(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        a, b = (as_list(context.stack_on_device(s, element_of(node).dtype)) for s in operands)
        return DeviceRows(stack_kernels.both(a, b, _OnDevice(context)))

    return kernel


def _to_tensor(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, *dims = operands
        stack = context.stack_on_device(stack, element_of(node).dtype)
        if not isinstance(stack, DeviceStack) or not len(stack):
            return stack_kernels.to_tensor(node, _OnDevice(context))(list(stack), *_sizes(context, dims))
        if len(stack.blocks) == 1:
            return stack.used(stack.blocks[0])
        context.counts.calls += 1
        return joined(context, stack)

    return kernel


def joined(context: Context, stack: DeviceStack) -> Any:
    """All rows in one array."""
    if not stack.is_managed:
        return context.xp.concatenate([stack.used(block) for block in stack.blocks])
    # A block at a time: there may be room for one alone.
    joined = context.library.empty((len(stack), *stack.blocks[0].storage.shape[1:]), stack.dtype)
    context.counts.calls += stack.copy_to(joined)
    return joined


def _from_tensor(node: Node) -> Kernel:
    return lambda context, operands: DeviceStack.of(context.library, context.on_device(operands[0]))


def _rows(node: Node) -> Kernel:
    rows = stack_kernels.rows(node)
    return lambda context, operands: context.on_device(rows(operands[0]))


def _concat_stacks(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        stack, rows, *dims = operands
        stack = as_list(context.stack_on_device(stack, element_of(node).dtype))
        (counts,) = context.on_host(rows)
        return stack_kernels.concat(node, _OnDevice(context))(stack, counts, *_sizes(context, dims))

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
DEVICE |= {name: _update(_plain(name)) for name in ("stack_write", "stack_clear", "stack_resize")}
DEVICE["stack_add"] = _update(stack_kernels.add)
DEVICE["stack_sum"] = _sum
DEVICE["stack_to_tensor"] = _to_tensor
DEVICE["stack_from_tensor"] = _from_tensor
DEVICE["stack_rows"] = _rows
DEVICE["stack_concat"] = _concat_stacks
DEVICE["stack_split"] = _split
