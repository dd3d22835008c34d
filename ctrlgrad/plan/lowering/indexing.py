"""Reads and updates at indices. Numbers and slices make a view; arrays of indices make addresses inside a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from ctrlgrad.ir import Node, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.plan.expression import BOOL, ExpressionBuilder, Number, select
from ctrlgrad.plan.lowering.broadcasting import joined_shape, reach, spread
from ctrlgrad.plan.lowering.moving import cut, flipped
from ctrlgrad.plan.lowering.state import INDEX, Cut, Splat, State, Tensor, parts_of
from ctrlgrad.plan.model import Check, Guard, Kernel, Operand, Register, View, Write
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes, product
from ctrlgrad.records import record


@record(frozen=False)
class Indexed:
    """`array[key]`: a view at its numbers and slices, moved by arrays of indices along some axes."""

    offset: tuple[Size, ...]
    # The axes of the result that slices and new axes make: size and stride.
    plain: list[tuple[Size, Size]] = field(default_factory=list)
    # Arrays of indices: each with the size and stride of its axis, and the axis.
    arrays: list[tuple[Tensor, Size, Size, int]] = field(default_factory=list)
    # Where the axes of the arrays stand among the plain ones.
    at: int = 0
    joined: Sizes = ()

    @property
    def shape(self) -> Sizes:
        sizes = [size for size, _ in self.plain]
        return (*sizes[: self.at], *self.joined, *sizes[self.at :])

    def strides(self) -> Sizes:
        """Of the plain axes; 0 along those of the arrays, which move the address by themselves."""
        strides = [stride for _, stride in self.plain]
        return (*strides[: self.at], *(ZERO for _ in self.joined), *strides[self.at :])

    def indices_over(self, state: State, tensor: Tensor) -> Tensor:
        """An array of indices over the result's space."""
        tensor = spread(state, tensor, self.joined)
        behind = len(self.plain) - self.at
        if isinstance(tensor, Splat):
            return Splat(tensor.numbers, self.shape, tensor.dtype)
        strides = (*(ZERO for _ in range(self.at)), *tensor.strides, *(ZERO for _ in range(behind)))
        return View(tensor.array, tensor.offset, self.shape, strides)


def resolve(state: State, view: View, key: Sequence[Any], operands: Sequence[Value]) -> Indexed:
    """Resolve a key with these operands on a view."""
    rest = iter(operands)
    filled: list[Any] = []
    for item in key:
        if item is Ellipsis:
            named = sum(other is not None and other is not Ellipsis for other in key)
            filled += [[None, None, None]] * (len(view.shape) - named)
        elif item is DYNAMIC:
            filled.append(next(rest))
        elif isinstance(item, slice):
            filled.append([next(rest) if part is DYNAMIC else part for part in (item.start, item.stop, item.step)])
        else:
            filled.append(item)
    advanced = any(isinstance(item, Value) and item.tensor.rank > 0 for item in filled)
    found, axis = Indexed(view.offset), 0
    places: list[int] = []
    for position, item in enumerate(filled):
        if item is None:
            found.plain.append((ONE, ZERO))
            continue
        size, stride = view.shape[axis], view.strides[axis]
        if isinstance(item, list):
            _slice(state, found, view, axis, item)
        else:
            if advanced:
                if not places:
                    found.at = len(found.plain)
                places.append(position)
            if isinstance(item, Value) and item.tensor.rank:
                found.arrays.append((state.tensor(item), size, stride, axis))
            elif isinstance(item, Value):
                register = checked(state, state.index(item), size, axis)
                found.offset = (*found.offset, state.size_of(register) * stride)
            else:
                if size.is_known and -size.factor <= item < size.factor:
                    at = Size(item % size.factor)
                else:
                    at = state.size_of(checked(state, state.number(item), size, axis))
                found.offset = (*found.offset, at * stride)
        axis += 1
    if places and places[-1] - places[0] + 1 != len(places):
        found.at = 0
    if found.arrays:
        shapes = [t.shape for t, *_ in found.arrays]
        found.joined = joined_shape(state, shapes, [None] * max(map(len, shapes)))
    return found


def checked(state: State, index: Register, size: Size, axis: int) -> Register:
    """A position from the start: negative indices count from the end; one out of range ends the run."""
    known = state.size_of(index)
    if known.is_known and size.is_known and 0 <= known.factor < size.factor:
        return index
    bound = state.size_register(size)
    wrapped = state.compute([index, bound], INDEX, lambda i, n: select(i < 0, i + n, i))
    holds = state.compute([wrapped, bound], BOOL, lambda i, n: (i >= 0) & (i < n))
    state.emit(Guard(holds, "index", state.site(axis), index, size))
    return wrapped


def _slice(state: State, found: Indexed, view: View, axis: int, parts: list[Any]) -> None:
    size, stride = view.shape[axis], view.strides[axis]
    start, stop, step = parts
    if (start, stop, step) in ((None, None, None), (None, None, 1)):
        found.plain.append((size, stride))
        return
    if (start, stop, step) == (None, None, -1):
        turned = flipped(View(view.array, (), view.shape, view.strides), axis)
        found.offset = (*found.offset, *turned.offset)
        found.plain.append((size, turned.strides[axis]))
        return
    if size.is_known and not any(isinstance(p, Value) for p in parts):
        numbers = range(*slice(start, stop, step).indices(size.factor))
        if len(numbers):
            found.offset = (*found.offset, Size(numbers[0]) * stride)
        found.plain.append((Size(len(numbers)), Size(numbers.step) * stride))
        return
    cuts = _cuts(state, size, start, stop) if step in (None, 1) else None
    if cuts is not None:
        found.offset = (*found.offset, cuts[0] * stride)
        found.plain.append((cuts[1], stride))
        return
    first, length, step_size = _bounds(state, size, start, stop, step)
    found.offset = (*found.offset, state.size_of(first) * stride)
    found.plain.append((state.size_of(length), step_size * stride))


def _cuts(state: State, size: Size, start: Any, stop: Any) -> tuple[Size, Size] | None:
    """Start and length of a slice, where each is one cut of the size; else None."""
    if isinstance(start, Value) or isinstance(stop, Value):
        return _parts(state, size, start, stop)
    start = start or 0
    first = cut(state, Cut("least", size, start)) if start >= 0 else cut(state, Cut("rest", size, -start))
    if stop is None:
        return first, cut(state, Cut("rest", size, start) if start >= 0 else Cut("least", size, -start))
    if stop < 0 <= start:
        return first, cut(state, Cut("rest", size, start - stop))
    return (first, cut(state, Cut("least", size, stop))) if start == 0 else None


def _parts(state: State, size: Size, start: Any, stop: Any) -> tuple[Size, Size] | None:
    """Start and length as `_cuts`, of a slice with traced bounds: the slices that take a concatenation apart again."""

    def bound(part: Any, default: Size) -> Size:
        if isinstance(part, Value):
            return state.size_of(state.index(part))
        return default if part is None else Size(part)

    first, last = bound(start, Size(0)), bound(stop, size)
    part = state.cut_of.get(last if first == Size(0) else first)
    if first == Size(0) and (last == size or (part is not None and part.size == size)):
        return first, last
    if last == size and part is not None and part.size == size:
        return first, cut(state, Cut("rest" if part.part == "least" else "least", size, part.at))
    return None


def _bounds(state: State, size: Size, start: Any, stop: Any, step: Any) -> tuple[Register, Register, Size]:
    """Python's rules for a slice: where it starts, how many elements it has, and its step."""
    n = state.size_register(size)

    def register(part: Any) -> Register:
        return state.index(part) if isinstance(part, Value) else state.number(part)

    by = state.number(1) if step is None else register(step)
    step_size = state.size_of(by)

    def clipped(part: Any, default: Any) -> Register:
        def clip(x: Number, n: Number, by: Number) -> Number:
            x = select(x < 0, x + n, x)
            low = select(by < 0, x.builder.constant(-1, INDEX), 0)
            high = select(by < 0, n - 1, n)
            return select(x < low, low, select(x > high, high, x))

        if part is None:
            return state.compute([n, by], INDEX, default)
        return state.compute([register(part), n, by], INDEX, clip)

    first = clipped(start, lambda n, by: select(by < 0, n - 1, n - n))
    last = clipped(stop, lambda n, by: select(by < 0, n - n - 1, n))

    def length(a: Number, b: Number, by: Number) -> Number:
        forwards = (b - a + by - 1).binary("divide", by)
        backwards = (a - b - by - 1).binary("divide", -by)
        count = select(by < 0, backwards, forwards)
        return select(count < 0, count - count, count)

    count = state.compute([first, last, by], INDEX, length)
    return first, count, step_size


# Reads.


def getitem(state: State, node: Node) -> None:
    tensor = state.tensor(node.operands[0])
    if isinstance(tensor, Splat) and not any(v.tensor.rank for v in node.operands[1:]):
        # Only the shape matters, and that no index is out of range.
        view = View(state.array(tensor.dtype, tensor.shape), (), tensor.shape, tuple(ZERO for _ in tensor.shape))
        found = resolve(state, view, attributes.Index.of(node).key, node.operands[1:])
        rank = node.result.tensor.rank
        state.items[node.result] = Splat(tensor.numbers, found.shape, tensor.dtype) if rank else tensor.numbers
        return
    view = state.in_memory(tensor)
    found = resolve(state, view, attributes.Index.of(node).key, node.operands[1:])
    if not found.arrays:
        result = View(view.array, found.offset, found.shape, found.strides())
        state.items[node.result] = result if node.result.tensor.rank else state.load(result)
        return
    array = state.array(view.dtype, found.shape)
    _check_beside_no_elements(state, found, node)
    _Gather(state, found).read(node, view, array)
    state.items[node.result] = array.view


class _Gather:
    """A kernel whose addresses depend on arrays of indices."""

    def __init__(self, state: State, found: Indexed) -> None:
        self.state, self.found = state, found
        self.builder = ExpressionBuilder()
        self.operands: list[Operand] = []
        self.numbers: list[Register] = []
        self.positions: list[Number] = []
        self.outputs: list[Number] = []
        self.checks: list[Check] = []
        for tensor, size, _, axis in found.arrays:
            self._position(tensor, size, axis)

    def leaf(self, tensor: Tensor, part: int = 0) -> Number:
        dtype = parts_of(tensor.dtype)[part]
        if isinstance(tensor, Splat):
            register = tensor.numbers[part]
            if register not in self.numbers:
                self.numbers.append(register)
            return self.builder.emit("scalar", (), dtype, self.numbers.index(register))
        self.operands.append(Operand(tensor))
        return self.builder.emit("load", (), dtype, (len(self.operands) - 1, part))

    def output(self, number: Number) -> int:
        self.outputs.append(number)
        return len(self.outputs) - 1

    def _position(self, tensor: Tensor, size: Size, axis: int) -> None:
        """An index of this point, counted from the start, and the check that it is in range."""
        given = self.leaf(self.found.indices_over(self.state, tensor)).convert(INDEX)
        bound = self.leaf(Splat((self.state.size_register(size),), (), INDEX))
        wrapped = select(given < 0, given + bound, given)
        inside = (wrapped >= 0) & (wrapped < bound)
        self.checks.append(Check(self.output(inside), self.state.site(axis), self.output(given), size))
        # A point that is out of range reads somewhere safe: the check ends the run afterwards.
        self.positions.append(select(inside, wrapped, 0))

    @property
    def gathered(self) -> Sizes:
        return tuple(stride for _, _, stride, _ in self.found.arrays)

    def kernel(self, node: Node, *writes: Write) -> Kernel:
        return Kernel(
            self.found.shape,
            tuple(self.operands),
            tuple(self.numbers),
            self.builder.finish(*self.outputs),
            writes,
            tuple(self.checks),
            (node,),
        )

    def read(self, node: Node, view: View, array: Any) -> None:
        moved = View(view.array, self.found.offset, self.found.shape, self.found.strides())
        self.operands.append(Operand(moved, self.gathered))
        place = len(self.operands) - 1
        outputs = tuple(
            self.output(self.builder.emit("load", self.positions, dtype, (place, part)))
            for part, dtype in enumerate(parts_of(view.dtype))
        )
        self.state.emit(self.kernel(node, Write(array.view, outputs)))

    def write(self, node: Node, target: View, value: Tensor, base: Any, how: Any) -> None:
        outputs = tuple(self.output(self.leaf(value, part)) for part in range(len(parts_of(value.dtype))))
        indices = tuple(self.output(p) for p in self.positions)
        self.state.emit(self.kernel(node, Write(target, outputs, how, base, indices, self.gathered)))

    def check(self, node: Node) -> None:
        """Only that each index is in range."""
        self.state.emit(self.kernel(node))


def _check_beside_no_elements(state: State, found: Indexed, node: Node) -> None:
    """Indices are in range also where slices beside them leave no element, so that no point of the kernel asks."""
    count = product(size for size, _ in found.plain)
    if count.is_known and count != ZERO:
        return
    plain: list[tuple[Size, Size]] = []
    if not count.is_known:
        # An axis of one point where there is no element, of none otherwise.
        register = state.compute([state.size_register(count)], INDEX, lambda n: select(n < 1, n + 1, n - n))
        plain.append((state.size_of(register), ZERO))
    _Gather(state, replace(found, plain=plain, at=len(plain))).check(node)


# Updates.


def setitem(state: State, node: Node) -> None:
    _update(state, node, "store")


def additem(state: State, node: Node) -> None:
    _update(state, node, "sum")


def _update(state: State, node: Node, how: Any) -> None:
    base = state.dense(state.tensor(node.operands[0]))
    value = state.tensor(node.operands[1])
    result = state.array(base.dtype, base.shape)
    found = resolve(state, result.view, attributes.Index.of(node).key, node.operands[2:])
    for size, wanted in zip(value.shape, found.shape[len(found.shape) - len(value.shape) :], strict=True):
        reach(state, size, wanted)
    if isinstance(value, View) and value.array == base and node.result.tensor.rank:
        # Of its own elements: what is written is read first, so that the rest need not be copied.
        value = state.copied(value).view
    value = spread(state, value, found.shape)
    target = View(result, found.offset, found.shape, found.strides())
    if found.arrays:
        _check_beside_no_elements(state, found, node)
        _Gather(state, found).write(node, target, value, base, how)
    else:
        state.write(target, value, base, how)
    if node.result.tensor.rank:
        state.items[node.result] = result.view
    else:
        state.items[node.result] = state.load(result.view)
