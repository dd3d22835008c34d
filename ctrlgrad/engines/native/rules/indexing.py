"""Indexing in generated code: views by scalars and fixed slices, gathering and scattering by arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad.engines.native.frames import broadcast
from ctrlgrad.engines.native.layout import ONE, ZERO, NotNative, Ref, Size, Sizes, Splat, plus, times
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.rules.table import give, rule
from ctrlgrad.ir import Node, StackType, TensorType, Value
from ctrlgrad.ops.indexing import Key, fill, indexed_shape, is_advanced


def _basic_view(e: RegionWriter, node: Node, x: Ref, key: Key, indices: Sequence[Value]) -> Ref:
    """`x[key]` by scalars and slices with fixed bounds."""
    offset, shape, strides, axis = x.offset, [], [], 0
    for item in fill(key, indices):
        if item is None:
            shape.append(ONE)
            strides.append(ZERO)
            continue
        stride, size = x.strides[axis], x.shape[axis]
        if isinstance(item, slice):
            start, length, step = _slice(item, size)
            offset = plus(offset, times(start, stride) if step >= 0 or stride == ZERO else f"({start}) * {stride}")
            shape.append(length)
            strides.append(stride * Size(step))
        elif isinstance(item, int):
            place = str(item) if item >= 0 else f"({size} - {-item})"
            offset = plus(offset, place if stride == ONE else f"{place} * {stride}" if stride != ZERO else "0")
        else:
            offset = plus(offset, times(e.checked_index(node, axis, e.number(item), str(size)), stride))
        axis += 1
    if not offset.isidentifier() and not offset.isdigit():
        name = e.fresh("o")
        e.line(f"{name} = {offset}")
        offset = name
    return Ref(x.base, offset, tuple(shape), tuple(strides), x.dtype)


def _slice(item: slice, size: Size) -> tuple[str, Size, int]:
    """Start, length and step of a slice whose bounds are numbers."""
    parts = (item.start, item.stop, item.step)
    if any(isinstance(p, Value) for p in parts):
        raise NotNative("a slice whose bounds depend on data")
    if parts[:2] == (None, None) and item.step in (None, 1):
        return "0", size, 1
    if parts == (None, None, -1):
        return f"{size} - 1", size, -1
    if size.names:
        raise NotNative("a slice along an axis of unknown size")
    numbers = range(*item.indices(size.factor))
    return str(numbers.start), Size(len(numbers)), numbers.step


@rule("getitem")
def _getitem(e: RegionWriter, node: Node) -> None:
    x, *indices = node.operands
    key = node.attrs["key"]
    if is_advanced(key, [v.type for v in indices]):
        _gather(e, node)
        return
    source = e.tensor(x)
    if isinstance(source, Splat):
        for axis, v in _scalar_indices(key, indices):
            e.checked_index(node, axis, e.number(v), str(source.shape[axis]))
        give(e, node.result, Splat(source.scalar, e.shapes.sizes(node.result)))
        return
    view = _basic_view(e, node, source, key, indices)
    view = Ref(view.base, view.offset, e.shapes.sizes(node.result), view.strides, view.dtype)
    if view.shape and _is_overwritten(e, node):
        view = e.copied(view)
    if node.attrs.get("last_use") and e.may_write(x):
        e.last_uses.add(node.result)
    give(e, node.result, view)


def _is_overwritten(e: RegionWriter, node: Node) -> bool:
    """Whether the array that a view is taken of is updated later in this region: then the view is copied."""
    following = False
    for other in e.frame.graph.nodes:
        if other is node:
            following = True
        elif following and other.op.name in ("setitem", "additem") and other.operands[0] is node.operands[0]:
            return True
    return False


def _scalar_indices(key: Key, indices: Sequence[Value]) -> list[tuple[int, Value]]:
    found, axis = [], 0
    for item in fill(key, indices):
        if isinstance(item, Value):
            found.append((axis, item))
        axis += item is not None
    return found


@rule("setitem", "additem")
def _update(e: RegionWriter, node: Node) -> None:
    x, value, *indices = node.operands
    key = node.attrs["key"]
    given = e.tensor(value)
    e.flush()
    target = _updatable(e, node, x)
    if isinstance(given, Ref) and given.base == target.base:
        given = e.copied(given)
    if is_advanced(key, [v.type for v in indices]):
        _scatter(e, node, target, given)
    else:
        part = _basic_view(e, node, target, key, indices)
        _combine(e, node, part, given)
    give(e, node.result, target)


def _updatable(e: RegionWriter, node: Node, x: Value) -> Ref:
    """The array of x itself where nothing else reads it any more, else a copy.

    What the update itself reads of that array, its value or its indices, is read before anything is written.
    """
    item = e.tensor(x)
    frame = e.frame
    if (
        isinstance(item, Ref)
        and x in frame.own
        and item.is_contiguous
        and not e.others_read(item.base, Counter(node.operands))
    ):
        frame.targets.pop(node.result, None)
        frame.own.add(node.result)
        return item
    target = e.place(node.result)
    e.copy(item, target)
    return target


def _combine(e: RegionWriter, node: Node, part: Ref, given: Ref | Splat) -> None:
    seen = given if isinstance(given, Splat) else broadcast(given, part.shape)
    if not part.shape:
        value = seen.scalar.text if isinstance(seen, Splat) else e.load(seen, seen.offset)
        if node.op.name == "additem":
            value = f"{e.load(part, part.offset)} + {value}"
        e.put(part, part.offset, value)
        return
    with e.nest(part.shape, [seen, part]) as (index, element):
        value = element(0)
        if node.op.name == "additem":
            value = f"{e.load(part, index(1))} + {value}"
        e.line(f"put({part.base}, {index(1)}, {e.stored(value, part.dtype)})")


def _advanced(
    e: RegionWriter, node: Node, x: Ref, key: Key, indices: Sequence[Value], region: Sizes
) -> tuple[list[Any], list[Any]]:
    """For each axis of x how it is indexed, and which result axes each part takes; `_places` reads them."""
    filled = list(fill(key, indices))
    if any(item is None for item in filled):
        raise NotNative("indexing by arrays together with new axes")
    arrays = [k for k, item in enumerate(filled) if isinstance(item, Value | int)]
    adjacent = arrays[-1] - arrays[0] + 1 == len(arrays)
    rank = max(item.tensor.rank for item in filled if isinstance(item, Value))
    first = arrays[0] if adjacent else 0
    slices = [k for k, item in enumerate(filled) if isinstance(item, slice)]
    before = [k for k in slices if k < first] if adjacent else []
    axes: list[Any] = []
    place = len(before) if adjacent else 0
    joined = list(range(place, place + rank))
    rest = [a for a in range(len(region)) if a not in joined]
    for item in filled:
        if isinstance(item, slice):
            start, _, step = _slice(item, x.shape[len(axes)])
            axes.append(("slice", rest.pop(0), start, step))
        else:
            axes.append(("array", joined, item, 0))
    return axes, joined


def _each_place(
    e: RegionWriter,
    node: Node,
    x: Ref,
    key: Key,
    indices: Sequence[Value],
    region: Sizes,
    body: Callable[[str, list[str]], None],
) -> None:
    """Loops over a region of x that arrays index; `body` is given the place in x and the counters.

    Indices that lie in x itself are copied first: `body` may write there.
    """
    axes, _ = _advanced(e, node, x, key, indices, region)
    refs = {item: e.ref(item) for kind, _, item, _ in axes if isinstance(item, Value) and item.tensor.rank}
    refs = {item: e.copied(ref) if ref.base == x.base else ref for item, ref in refs.items()}
    numbers = {item: e.number(item) for kind, _, item, _ in axes if isinstance(item, Value) and not item.tensor.rank}
    depth = e.depth
    counters = []
    for size in region:
        counter = e.fresh("i")
        e.line(f"for {counter} in range({size}):")
        e.depth += 1
        counters.append(counter)
    offset = x.offset
    for axis, (kind, where, item, step) in enumerate(axes):
        if kind == "slice":
            place = counters[where] if (item, step) == ("0", 1) else f"({item} + {counters[where]} * {step})"
        elif isinstance(item, int):
            place = str(item) if item >= 0 else f"({x.shape[axis]} - {-item})"
        else:
            text = numbers.get(item) or _read_index(e, refs[item], [counters[k] for k in where])
            place = e.checked_index(node, axis, text, str(x.shape[axis]))
        stride = x.strides[axis]
        if stride != ZERO:
            offset = plus(offset, place if stride == ONE else f"{place} * {stride}")
    body(offset, counters)
    e.depth = depth


def _read_index(e: RegionWriter, ref: Ref, counters: Sequence[str]) -> str:
    offset = ref.offset
    mine = counters[len(counters) - len(ref.shape) :]
    for counter, size, stride in zip(mine, ref.shape, ref.strides, strict=True):
        if size != ONE:
            offset = plus(offset, times(counter, stride))
    return e.load(ref, offset)


def _at(ref: Ref, counters: Sequence[str]) -> str:
    offset = ref.offset
    for counter, stride in zip(counters, ref.strides, strict=True):
        offset = plus(offset, times(counter, stride))
    return offset


def _gather(e: RegionWriter, node: Node) -> None:
    x, *indices = node.operands
    source, shape = e.ref(x), e.shapes.sizes(node.result)
    e.flush()
    target = e.place(node.result)

    def move(place: str, counters: list[str]) -> None:
        e.put(target, _at(target, counters), e.load(source, place))

    _each_place(e, node, source, node.attrs["key"], indices, shape, move)
    e.frame.items[node.result] = target


def _scatter(e: RegionWriter, node: Node, target: Ref, given: Ref | Splat) -> None:
    x, _, *indices = node.operands
    types = [_typed(e, v) for v in (x, *indices)]
    found = indexed_shape(types[0].shape, node.attrs["key"], types[1:])
    region = tuple(e.shapes.dims.size(None, n) for n in found)  # type: ignore[arg-type]
    region = tuple(_known_size(e, node, n, size) for n, size in zip(found, region, strict=True))
    seen = given if isinstance(given, Splat) else broadcast(given, region)

    def move(place: str, counters: list[str]) -> None:
        text = seen.scalar.text if isinstance(seen, Splat) else e.load(seen, _at(seen, counters))
        if node.op.name == "additem":
            text = f"{e.load(target, place)} + {text}"
        e.put(target, place, text)

    _each_place(e, node, target, node.attrs["key"], indices, region, move)


def _known_size(e: RegionWriter, node: Node, found: int | None, size: Size) -> Size:
    """A size as the operands write it, if one of them has it."""
    assert found is not None
    for v in node.operands:
        if isinstance(v.type, StackType):
            continue
        for n, own in zip(e.shapes.found[v], e.shapes.sizes(v), strict=True):
            if n == found:
                return own
    return size


def _typed(e: RegionWriter, value: Value) -> Any:
    return TensorType(value.tensor.dtype, e.shapes.found[value])


@rule("concat")
def _concat(e: RegionWriter, node: Node) -> None:
    parts = [e.tensor(v) for v in node.operands]
    whole = e.joined(node)
    for position, part in enumerate(parts):
        target = e.part(node, whole, position)
        if isinstance(part, Ref) and (part.base, part.offset, part.strides) == (
            target.base,
            target.offset,
            target.strides,
        ):
            continue
        e.copy(part, target)
    e.frame.items[node.result] = whole
