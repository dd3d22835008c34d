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
from ctrlgrad.engines.cuda.indexing import Surroundings
from ctrlgrad.engines.cuda.kernel import KernelLaunch, KernelText, op_text
from ctrlgrad.engines.cuda.prepared import ops
from ctrlgrad.engines.cuda.prepared.entries import product_parameters
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
from ctrlgrad.engines.cuda.prepared.reading import FLAG, Launches, Values
from ctrlgrad.engines.cuda.products import PRODUCT_DTYPES
from ctrlgrad.engines.cuda.program import Context, NodeStep
from ctrlgrad.engines.cuda.sites import Site
from ctrlgrad.engines.cuda.stacks import DeviceRows, DeviceStack, own_array
from ctrlgrad.engines.reference.kernels import IN_PLACE
from ctrlgrad.engines.reference.stack_kernels import OF_ROWS
from ctrlgrad.ir import Node, StackType, TensorType, Use, attributes

Kernel = Callable[[Context, list[Any]], Any]
Factory = Callable[[Node], Kernel]

DEVICE: dict[str, Factory] = {}


class _Launches(Launches):
    """Launches outside of loops: an index that is out of range is noted with the node's site alone."""

    def around(self, node: Node) -> Surroundings:
        return Surroundings(self.access, self.buffer, FLAG, Site(node, ()))


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

        single = lists.single(context, dict(enumerate(operands)), make, copies)
        operands.clear()
        single.run()
        return single.result(single.values[-1])

    return kernel


def filled_shape(context: Context, shape: Sequence[int | None], dims: Sequence[Any]) -> tuple[int, ...]:
    """A shape template, its unknown dimensions filled; a size that is on the device is read."""
    rest = iter(context.on_host(*dims))
    return tuple(int(next(rest)) if d is None else d for d in shape)


def _of_library(fn: Callable[..., Any]) -> Factory:
    """Kernels that call the library, counted; `fn` takes the node, the context and arrays on the device."""

    def factory(node: Node) -> Kernel:
        def kernel(context: Context, operands: list[Any]) -> Any:
            context.counts.calls += 1
            return fn(node, context, *map(context.on_device, operands))

        return kernel

    return factory


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

    def kernel(context: Context, dims: list[Any]) -> Any:
        context.counts.calls += 1
        return context.xp.arange(filled_shape(context, shape, dims)[0], dtype=np.int64)

    return kernel


def _same(node: Node) -> Kernel:
    return lambda context, operands: operands[0]


def _argsort(node: Node, context: Context, x: Any) -> Any:
    x, axis = _sortable(context, x), attributes.Axis.of(node).axis
    if attributes.Order.of(node).descending:
        return _descending(context, x, axis)
    return context.xp.argsort(x, axis=axis, kind="stable")


def _descending(context: Context, x: Any, axis: int) -> Any:
    """The ascending order of the flipped elements, flipped: equal elements keep their order."""
    xp = context.xp
    return x.shape[axis] - 1 - xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)


def _top_k(node: Node, context: Context, x: Any) -> Any:
    axis, count = attributes.Axis.of(node).axis, attributes.Selection.of(node).count
    if x.shape[axis] < count:
        raise ValueError("fewer elements than are selected")
    return _descending(context, _sortable(context, x), axis)[(*[slice(None)] * axis, slice(0, count))]


def _searchsorted(node: Node, context: Context, *operands: Any) -> Any:
    side = attributes.Search.of(node).side
    return context.xp.searchsorted(*(_comparable(context, x) for x in operands), side=side)


def _nonzero(node: Node, context: Context, x: Any) -> Any:
    # The library waits for the device here: the size of the result depends on data.
    context.counts.reads += 1
    return context.xp.stack(context.xp.nonzero(converted(context, x, np.dtype(bool))))


def _fft(node: Node, context: Context, x: Any) -> Any:
    axis, fft = attributes.Axis.of(node).axis, context.xp.fft
    is_inverse = attributes.Transform.of(node).inverse
    found = fft.ifft(x, axis=axis, norm="forward") if is_inverse else fft.fft(x, axis=axis)
    return found.astype(node.result.tensor.dtype, copy=False)


def _real_fft(node: Node, context: Context, x: Any) -> Any:
    given, fft = attributes.RealTransform.of(node), context.xp.fft
    is_inverse = node.op.name == "irfft"
    found = fft.irfft(x, given.size, axis=given.axis, norm="forward") if is_inverse else fft.rfft(x, axis=given.axis)
    return found.astype(node.result.tensor.dtype, copy=False)


def _matmul(node: Node) -> Kernel:
    if node.result.tensor.dtype.name in PRODUCT_DTYPES:
        return at_once(ops.matmul, node)
    return _of_library(lambda node, context, a, b: context.xp.matmul(a, b))(node)


DEVICE |= {name: partial(at_once, op) for name, op in ops.SINGLE.items()}
DEVICE |= dict.fromkeys(("stop_gradient", "barrier", "watch", "forget_sizes"), _same)
DEVICE |= {
    "matmul": _matmul,
    "iota": _iota,
    "argsort": _of_library(_argsort),
    "top_k": _of_library(_top_k),
    "searchsorted": _of_library(_searchsorted),
    "nonzero": _of_library(_nonzero),
    "fft": _of_library(_fft),
    "rfft": _of_library(_real_fft),
    "irfft": _of_library(_real_fft),
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


def _new(node: Node) -> Kernel:
    element = element_of(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        size = context.number(operands[0]) if operands else 0
        return DeviceRows([None] * size) if size else DeviceStack(context.library, element.dtype)

    return kernel


def _by_reference(node: Node) -> Kernel:
    """The reference engine's kernel of an op on stacks. The host waits for indices, and for sizes that are needed."""
    name, dtype = node.op.name, element_of(node).dtype

    def kernel(context: Context, operands: list[Any]) -> Any:
        for n, v in enumerate(node.operands):
            use = node.op.use(n)
            if isinstance(v.type, StackType):
                operands[n] = context.stack_on_device(operands[n], dtype)
                if use in (Use.UPDATE, Use.VALUE) and isinstance(operands[n], DeviceStack):
                    operands[n] = DeviceRows(operands[n])
            elif use is Use.SIZE and not v.tensor.rank:
                operands[n] = _Size(context, operands[n])
            elif use in (Use.SIZE, Use.INDEX):
                (operands[n],) = context.on_host(operands[n])
            else:
                operands[n] = context.on_device(operands[n])
        found = OF_ROWS[name](node, _OnDevice(context))
        if name in IN_PLACE:
            return found(operands, context.run)
        result = found(*operands)
        return DeviceRows(result) if isinstance(node.result.type, StackType) else context.on_device(result)

    return kernel


def _to_tensor(node: Node) -> Kernel:
    by_reference = _by_reference(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        stack = operands[0] = context.stack_on_device(operands[0], element_of(node).dtype)
        if not isinstance(stack, DeviceStack) or not len(stack):
            return by_reference(context, operands)
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


DEVICE |= dict.fromkeys(OF_ROWS, _by_reference)
DEVICE |= {
    "stack_new": _new,
    "stack_to_tensor": _to_tensor,
    "stack_from_tensor": _from_tensor,
    "stack_split": _split,
}
