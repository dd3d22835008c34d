"""How each op that is not elementwise is written in generated code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.native.emit import Emitter, Item, StackState, broadcast, makes_memory, uses_of
from ctrlgrad.engines.native.expressions import literal, type_name
from ctrlgrad.engines.native.layout import (
    ONE,
    ZERO,
    NotNative,
    Ref,
    Scalar,
    Size,
    Sizes,
    Splat,
    plus,
    product,
    row_major,
    times,
)
from ctrlgrad.engines.native.program import Entry, Status
from ctrlgrad.ir import Graph, Node, StackType, Value
from ctrlgrad.ops.indexing import DYNAMIC, Key, fill, is_advanced

Rule = Callable[[Emitter, Node], None]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _give(e: Emitter, value: Value, item: Item) -> None:
    """Record what stands for a value; a reference to one element becomes a scalar."""
    if isinstance(item, Ref) and not item.shape:
        item = e.scalar(e.load(item, item.offset), item.dtype)
    elif isinstance(item, Splat) and not item.shape:
        item = item.scalar
    e.frame.items[value] = item


# Constants and views.


@_rule("constant")
def _constant(e: Emitter, node: Node) -> None:
    value = node.attrs["value"]
    if value.ndim == 0:
        _give(e, node.result, Scalar(literal(value), value.dtype))
    elif value.size and (value == value.flat[0]).all():
        _give(e, node.result, Splat(Scalar(literal(value.flat[0]), value.dtype), e.shapes.sizes(node.result)))
    else:
        _give(e, node.result, e.constant(value, e.shapes.sizes(node.result)))


@_rule("dim")
def _dim(e: Emitter, node: Node) -> None:
    (x,) = node.operands
    _give(e, node.result, Scalar(f"int64({e.shapes.sizes(x)[node.attrs['axis']]})", np.dtype(np.int64)))


@_rule("stop_gradient", "barrier", "watch", "forget_sizes")
def _same(e: Emitter, node: Node) -> None:
    e.frame.items[node.result] = e.item(node.operands[0])


def _viewed(e: Emitter, node: Node, view: Callable[[Ref, Sizes], Ref | None]) -> None:
    """A view: the same memory with other strides; a scalar that fills a tensor stays one."""
    shape = e.shapes.sizes(node.result)
    x = e.tensor(node.operands[0])
    if isinstance(x, Splat):
        _give(e, node.result, Splat(x.scalar, shape))
        return
    found = view(x, shape)
    _give(e, node.result, found if found is not None else _reshaped_copy(e, x, shape))


def _reshaped_copy(e: Emitter, x: Ref, shape: Sizes) -> Ref:
    copy = e.copied(x)
    return Ref(copy.base, copy.offset, shape, row_major(shape), copy.dtype)


@_rule("transpose")
def _transpose(e: Emitter, node: Node) -> None:
    axes = node.attrs["axes"]
    _viewed(e, node, lambda x, shape: Ref(x.base, x.offset, shape, tuple(x.strides[a] for a in axes), x.dtype))


@_rule("broadcast_to")
def _broadcast_to(e: Emitter, node: Node) -> None:
    _viewed(e, node, broadcast)


@_rule("expand_dims")
def _expand_dims(e: Emitter, node: Node) -> None:
    new = {a % node.result.tensor.rank for a in node.attrs["axes"]}

    def view(x: Ref, shape: Sizes) -> Ref:
        old = iter(x.strides)
        return Ref(x.base, x.offset, shape, tuple(ZERO if a in new else next(old) for a in range(len(shape))), x.dtype)

    _viewed(e, node, view)


@_rule("squeeze")
def _squeeze(e: Emitter, node: Node) -> None:
    over = {a % node.operands[0].tensor.rank for a in node.attrs["axes"]}
    _viewed(
        e,
        node,
        lambda x, shape: Ref(
            x.base, x.offset, shape, tuple(s for a, s in enumerate(x.strides) if a not in over), x.dtype
        ),
    )


@_rule("flip")
def _flip(e: Emitter, node: Node) -> None:
    axes = node.attrs["axes"]
    over = {a % node.operands[0].tensor.rank for a in axes}

    def view(x: Ref, shape: Sizes) -> Ref:
        offset = x.offset
        for a in over:
            if x.strides[a] != ZERO:
                offset = plus(offset, f"({x.shape[a]} - 1) * {x.strides[a]}")
        strides = tuple(-s if a in over else s for a, s in enumerate(x.strides))
        return Ref(x.base, offset, shape, strides, x.dtype)

    _viewed(e, node, view)


@_rule("reshape")
def _reshape(e: Emitter, node: Node) -> None:
    def view(x: Ref, shape: Sizes) -> Ref | None:
        if x.is_contiguous:
            return Ref(x.base, x.offset, shape, row_major(shape), x.dtype)
        return None

    _viewed(e, node, view)


@_rule("iota")
def _iota(e: Emitter, node: Node) -> None:
    target = e.place(node.result)
    (size,) = e.shapes.sizes(node.result)
    counter = e.fresh("i")
    with e.block(f"for {counter} in range({size}):"):
        e.put(target, plus(target.offset, times(counter, target.strides[0])), counter)
    e.frame.items[node.result] = target


# Indexing.


def _basic_view(e: Emitter, node: Node, x: Ref, key: Key, indices: Sequence[Value]) -> Ref:
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


@_rule("getitem")
def _getitem(e: Emitter, node: Node) -> None:
    x, *indices = node.operands
    key = node.attrs["key"]
    if is_advanced(key, [v.type for v in indices]):
        _gather(e, node)
        return
    source = e.tensor(x)
    if isinstance(source, Splat):
        for axis, v in _scalar_indices(key, indices):
            e.checked_index(node, axis, e.number(v), str(source.shape[axis]))
        _give(e, node.result, Splat(source.scalar, e.shapes.sizes(node.result)))
        return
    view = _basic_view(e, node, source, key, indices)
    view = Ref(view.base, view.offset, e.shapes.sizes(node.result), view.strides, view.dtype)
    if view.shape and _is_overwritten(e, node):
        view = e.copied(view)
    _give(e, node.result, view)


def _is_overwritten(e: Emitter, node: Node) -> bool:
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


@_rule("setitem", "additem")
def _update(e: Emitter, node: Node) -> None:
    x, value, *indices = node.operands
    key = node.attrs["key"]
    given = e.tensor(value)
    e.flush()
    target = _updatable(e, node, x)
    if is_advanced(key, [v.type for v in indices]):
        _scatter(e, node, target, given)
    else:
        part = _basic_view(e, node, target, key, indices)
        _combine(e, node, part, given)
    e.frame.items[node.result] = target
    e.frame.own.add(node.result)


def _updatable(e: Emitter, node: Node, x: Value) -> Ref:
    """The array of x itself where nothing else reads it any more, else a copy."""
    item = e.tensor(x)
    frame = e.frame
    if (
        isinstance(item, Ref)
        and x in frame.own
        and item.is_contiguous
        and frame.remaining[x] == 0
        and not e._others_read(item.base, None)
    ):
        frame.targets.pop(node.result, None)
        return item
    target = e.place(node.result)
    e.copy(item, target)
    return target


def _combine(e: Emitter, node: Node, part: Ref, given: Ref | Splat) -> None:
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


def _advanced(e: Emitter, node: Node, x: Ref, key: Key, indices: Sequence[Value], region: Sizes) -> tuple[list[Any], list[Any]]:
    """For each axis of x how it is indexed, and which result axes each part takes; `_places` reads them."""
    filled = list(fill(key, indices))
    if any(item is None for item in filled):
        raise NotNative("indexing by arrays together with new axes")
    arrays = [k for k, item in enumerate(filled) if isinstance(item, Value) or isinstance(item, int)]
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


def _each_place(e: Emitter, node: Node, x: Ref, key: Key, indices: Sequence[Value], region: Sizes, body: Callable[[str, list[str]], None]) -> None:
    """Loops over a region of x that arrays index; `body` is given the place in x and the counters."""
    axes, _ = _advanced(e, node, x, key, indices, region)
    refs = {item: e.ref(item) for kind, _, item, _ in axes if isinstance(item, Value) and item.tensor.rank}
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


def _read_index(e: Emitter, ref: Ref, counters: Sequence[str]) -> str:
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


def _gather(e: Emitter, node: Node) -> None:
    x, *indices = node.operands
    source, shape = e.ref(x), e.shapes.sizes(node.result)
    e.flush()
    target = e.place(node.result)

    def move(place: str, counters: list[str]) -> None:
        e.put(target, _at(target, counters), e.load(source, place))

    _each_place(e, node, source, node.attrs["key"], indices, shape, move)
    e.frame.items[node.result] = target


def _scatter(e: Emitter, node: Node, target: Ref, given: Ref | Splat) -> None:
    x, value, *indices = node.operands
    types = [_typed(e, v) for v in (x, *indices)]
    from ctrlgrad.ops.indexing import indexed_shape

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


def _known_size(e: Emitter, node: Node, found: int | None, size: Size) -> Size:
    """A size as the operands write it, if one of them has it."""
    assert found is not None
    for v in node.operands:
        if isinstance(v.type, StackType):
            continue
        for n, own in zip(e.shapes.found[v], e.shapes.sizes(v), strict=True):
            if n == found:
                return own
    return size


def _typed(e: Emitter, value: Value) -> Any:
    from ctrlgrad.ir import TensorType

    return TensorType(value.tensor.dtype, e.shapes.found[value])


@_rule("concat")
def _concat(e: Emitter, node: Node) -> None:
    parts = [e.tensor(v) for v in node.operands]
    whole = e._joined(node)
    for position, part in enumerate(parts):
        target = e._part(node, whole, position)
        if isinstance(part, Ref) and (part.base, part.offset, part.strides) == (target.base, target.offset, target.strides):
            continue
        e.copy(part, target)
    e.frame.items[node.result] = whole


# Reductions.


def _reduced_axes(node: Node) -> set[int]:
    rank = node.operands[0].tensor.rank
    axes = node.attrs["axes"]
    return set(range(rank)) if axes is None else {a % rank for a in axes}


def _identity(name: str, dtype: np.dtype) -> str:
    if name in ("sum", "any"):
        return literal(dtype.type(0))
    if name in ("prod", "all"):
        return literal(dtype.type(1))
    if dtype.kind == "b":
        return str(name == "min")
    if dtype.kind == "f":
        return literal(dtype.type(-np.inf if name == "max" else np.inf))
    limits = np.iinfo(dtype)
    return literal(dtype.type(limits.min if name == "max" else limits.max))


def _step(name: str, total: str, x: str, dtype: np.dtype) -> str:
    if name in ("any", "all"):
        return f"{total} {'or' if name == 'any' else 'and'} {x}"
    if dtype.kind == "b":
        return f"{total} {'or' if name == 'max' else 'and'} {x}"
    if name in ("sum", "prod"):
        text = f"{total} {'+' if name == 'sum' else '*'} {x}"
    else:
        function = {"max": "maximum", "min": "minimum"}[name]
        text = f"{function if dtype.kind == 'f' else 'integer_' + function}({total}, {x})"
    return f"{type_name(dtype)}({text})" if dtype.kind in "iuf" else text


def _reduce(e: Emitter, node: Node, name: str, over: set[int], result: Value) -> None:
    """Fold the axes in `over`; the result's memory has the other axes in their order."""
    x = e.tensor(node.operands[0])
    shape = x.shape
    if isinstance(x, Splat):
        x = e.copied(x)
    dtype = result.tensor.dtype
    kept = [a for a in range(len(shape)) if a not in over]
    if not kept:
        _give(e, result, _reduce_all(e, name, x, dtype, e.shapes.sizes(result)))
        return
    target = e.place(result)
    own = [s for s, n in zip(target.strides, target.shape, strict=True)]
    strides = dict(zip(kept, _kept_strides(node, target, kept, shape, own), strict=True))
    flat = Ref(target.base, target.offset, tuple(shape[a] for a in kept), tuple(strides[a] for a in kept), dtype)
    if max(over, default=-1) > max(kept):
        _reduce_rows(e, name, x, flat, kept, sorted(over))
    else:
        e.copy(Splat(Scalar(_identity(name, dtype), dtype), flat.shape), flat)
        everywhere = Ref(flat.base, flat.offset, shape, tuple(strides.get(a, ZERO) for a in range(len(shape))), dtype)
        order = [a for a in range(len(shape)) if a in over] + kept
        x_, y_ = (_permuted(r, order) for r in (x, everywhere))
        with e.nest(x_.shape, [x_, y_]) as (index, element):
            value = _step(name, e.load(y_, index(1)), element(0), dtype)
            e.line(f"put({y_.base}, {index(1)}, {e.stored(value, dtype)})")
    e.frame.items[result] = target


def _kept_strides(node: Node, target: Ref, kept: Sequence[int], shape: Sizes, own: Sequence[Size]) -> list[Size]:
    """The strides of the result along the operand's axes that are kept."""
    if len(target.shape) == len(kept):
        return list(own)
    if len(target.shape) == len(shape):
        return [own[a] for a in kept]
    lead = len(shape) - len(target.shape)
    return [own[a - lead] for a in kept]


def _permuted(ref: Ref, order: Sequence[int]) -> Ref:
    return Ref(ref.base, ref.offset, tuple(ref.shape[a] for a in order), tuple(ref.strides[a] for a in order), ref.dtype)


def _reduce_all(e: Emitter, name: str, x: Ref, dtype: np.dtype, shape: Sizes) -> Item:
    total = e.fresh("v")
    e.line(f"{total} = {_identity(name, dtype)}")
    if name == "sum" and dtype.kind == "f" and x.is_contiguous:
        e.line(f"{total} = sum_of(shifted({x.base}, {x.offset}), {product(x.shape)}, {total})")
    else:
        with e.nest(x.shape, [x]) as (_, element):
            e.line(f"{total} = {_step(name, total, element(0), dtype)}")
    scalar = Scalar(total, dtype)
    return Splat(scalar, shape) if shape else scalar


def _reduce_rows(e: Emitter, name: str, x: Ref, target: Ref, kept: Sequence[int], over: Sequence[int]) -> None:
    """The last axes are folded: one total per row."""
    rows = Ref(x.base, x.offset, target.shape, tuple(x.strides[a] for a in kept), x.dtype)
    inner_shape, inner_strides = tuple(x.shape[a] for a in over), tuple(x.strides[a] for a in over)
    with e.nest(target.shape, [rows, target]) as (index, _):
        start, end = index(0), index(1)
        row = Ref(x.base, start, inner_shape, inner_strides, x.dtype)
        item = _reduce_all(e, name, row, target.dtype, ())
        assert isinstance(item, Scalar)
        e.line(f"put({target.base}, {end}, {e.stored(item.text, target.dtype)})")


@_rule("sum", "prod", "max", "min", "any", "all")
def _reduction(e: Emitter, node: Node) -> None:
    _reduce(e, node, node.op.name, _reduced_axes(node), node.result)


@_rule("sum_to")
def _sum_to(e: Emitter, node: Node) -> None:
    x = node.operands[0]
    shape, wanted = e.shapes.sizes(x), e.shapes.sizes(node.result)
    lead = len(shape) - len(wanted)
    over = set(range(lead)) | {lead + a for a, d in enumerate(wanted) if d == ONE and shape[lead + a] != ONE}
    if not over:
        e.frame.items[node.result] = e.item(x)
        return
    _reduce(e, node, "sum", over, node.result)


@_rule("argmax", "argmin")
def _arg_extreme(e: Emitter, node: Node) -> None:
    x = e.ref(node.operands[0])
    axis = node.attrs["axes"][0] % len(x.shape)
    kept = [a for a in range(len(x.shape)) if a != axis]
    shape = e.shapes.sizes(node.result)
    sign = ">" if node.op.name == "argmax" else "<"
    target = e.place(node.result) if shape else None
    kept_shape = tuple(x.shape[a] for a in kept)
    rows = Ref(x.base, x.offset, kept_shape, tuple(x.strides[a] for a in kept), x.dtype)
    tensors = [rows]
    if target is not None:
        own = target.strides if len(shape) == len(kept) else tuple(target.strides[a] for a in kept)
        tensors.append(Ref(target.base, target.offset, kept_shape, own, target.dtype))
    best, place = e.fresh("v"), e.fresh("v")
    if target is None:
        e.line(f"{place} = 0")
    with e.nest(kept_shape, tensors) as (index, _):
        start = index(0)
        e.line(f"{best} = {e.load(rows, start)}")
        e.line(f"{place} = 0")
        counter, value = e.fresh("i"), e.fresh("v")
        with e.block(f"for {counter} in range(1, {x.shape[axis]}):"):
            e.line(f"{value} = {e.load(rows, plus(start, times(counter, x.strides[axis])))}")
            # The first NaN wins, as in NumPy.
            nan = f" or ({value} != {value} and {best} == {best})" if x.dtype.kind == "f" else ""
            with e.block(f"if {value} {sign} {best}{nan}:"):
                e.line(f"{best} = {value}")
                e.line(f"{place} = {counter}")
        if target is not None:
            e.line(f"put({target.base}, {index(1)}, {place})")
    e.frame.items[node.result] = target if target is not None else Scalar(place, np.dtype(np.int64))


@_rule("cumsum", "cumprod")
def _cumulative(e: Emitter, node: Node) -> None:
    x = e.ref(node.operands[0])
    axis = node.attrs["axis"] % len(x.shape)
    target = e.place(node.result)
    kept = [a for a in range(len(x.shape)) if a != axis]
    shape = tuple(x.shape[a] for a in kept)
    sides = [Ref(r.base, r.offset, shape, tuple(r.strides[a] for a in kept), r.dtype) for r in (x, target)]
    total, name = e.fresh("v"), "sum" if node.op.name == "cumsum" else "prod"
    with e.nest(shape, sides) as (index, _):
        start, end = index(0), index(1)
        e.line(f"{total} = {_identity(name, x.dtype)}")
        counter = e.fresh("i")
        size = x.shape[axis]
        order = f"range({size} - 1, -1, -1)" if node.attrs["reverse"] else f"range({size})"
        with e.block(f"for {counter} in {order}:"):
            value = e.load(x, plus(start, times(counter, x.strides[axis])))
            e.line(f"{total} = {_step(name, total, value, x.dtype)}")
            e.put(target, plus(end, times(counter, target.strides[axis])), total)
    e.frame.items[node.result] = target


# Matrix products.


@_rule("matmul")
def _matmul(e: Emitter, node: Node) -> None:
    a, b = (e.ref(v) for v in node.operands)
    dtype = node.result.tensor.dtype
    target = e.place(node.result)
    if not _is_matrix(target):
        target = e.temporary(target.shape, dtype)
    a, b = (x if _is_matrix(x) else e.copied(x) for x in map(_as_matrix, (a, b)))
    batch = target.shape[:-2]
    sides = [broadcast(Ref(x.base, x.offset, x.shape, x.strides, x.dtype), (*batch, *x.shape[-2:])) for x in (a, b)]
    with e.nest(batch, [_leading(x) for x in (*sides, target)]) as (index, _):
        places = [index(k) for k in range(3)]
        _product(e, a, b, target, places)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    e.notes.append(f"matrix product [{m}, {k}] @ [{k}, {n}] of {dtype.name}" + (f" for each of {product(batch)}" if batch else ""))
    e.frame.items[node.result] = target


def _leading(x: Ref) -> Ref:
    return Ref(x.base, x.offset, x.shape[:-2], x.strides[:-2], x.dtype)


def _as_matrix(x: Ref) -> Ref:
    """With strides that fit along axes of size 1, where any would do."""
    (height, width), (down, across) = x.shape[-2:], x.strides[-2:]
    if width == ONE:
        across = ONE
        down = ONE if height == ONE else down
    elif height == ONE:
        down = width if across == ONE else ONE
    return Ref(x.base, x.offset, x.shape, (*x.strides[:-2], down, across), x.dtype)


def _is_matrix(x: Ref) -> bool:
    """Whether the last two axes are a matrix as BLAS knows it, in rows or in columns."""
    rows, columns = x.strides[-2:]
    return (columns == ONE and _is_leading(rows, x.shape[-1])) or (rows == ONE and _is_leading(columns, x.shape[-2]))


def _is_leading(stride: Size, width: Size) -> bool:
    """Whether a stride is no less than a width, for every size that the names may stand for."""
    if stride.factor <= 0:
        return False
    rest = list(stride.names)
    for name in width.names:
        if name not in rest:
            return False
        rest.remove(name)
    return stride.factor >= width.factor


def _product(e: Emitter, a: Ref, b: Ref, c: Ref, places: Sequence[str]) -> None:
    """One product of matrices. Row-major C = A B is column-major C^T = B^T A^T."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if c.dtype.kind not in "fc":
        _plain_product(e, a, b, c, places)
        return
    kind = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}[c.dtype.name]
    if kind not in e._routines:
        name = f"{kind}gemm"
        e.header.append(f"{name} = {e.entry(Entry('routine', name=name))}")
        e._routines[kind] = name
    given = []
    for ref, place in zip((b, a), (places[1], places[0]), strict=True):
        rows, columns = ref.strides[-2:]
        in_rows = columns == ONE and _is_leading(rows, ref.shape[-1])
        given.append((ord("N") if in_rows else ord("T"), f"shifted({ref.base}, {place})", rows if in_rows else columns))
    (tb, pb, ldb), (ta, pa, lda) = given
    one, zero = literal(c.dtype.type(1)), literal(c.dtype.type(0))
    e.line(
        f"gemm({e._routines[kind]}, {tb}, {ta}, {n}, {m}, {k}, {one}, {pb}, {ldb}, {pa}, {lda}, {zero}, "
        f"shifted({c.base}, {places[2]}), {c.strides[-2]})"
    )


def _plain_product(e: Emitter, a: Ref, b: Ref, c: Ref, places: Sequence[str]) -> None:
    i, j, k, total = e.fresh("i"), e.fresh("i"), e.fresh("i"), e.fresh("v")
    with e.block(f"for {i} in range({a.shape[-2]}):"), e.block(f"for {j} in range({b.shape[-1]}):"):
        e.line(f"{total} = {literal(c.dtype.type(0))}")
        with e.block(f"for {k} in range({a.shape[-1]}):"):
            left = e.load(a, plus(plus(places[0], times(i, a.strides[-2])), times(k, a.strides[-1])))
            right = e.load(b, plus(plus(places[1], times(k, b.strides[-2])), times(j, b.strides[-1])))
            e.line(f"{total} = {type_name(c.dtype)}({total} + {left} * {right})")
        e.put(c, plus(plus(places[2], times(i, c.strides[-2])), times(j, c.strides[-1])), total)


# Stacks.


def _state(e: Emitter, value: Value) -> StackState:
    item = e.frame.items[value]
    if not isinstance(item, StackState) or item.version is not value:
        raise NotNative("a stack is used after it was changed")
    return item


def _changed(e: Emitter, state: StackState, value: Value) -> None:
    state.version = value
    e.frame.items[value] = state


@_rule("stack_push")
def _push(e: Emitter, node: Node) -> None:
    s, value = node.operands
    state = _state(e, s)
    if node in e.in_slot:
        if state.use.marks:
            e.line(f"put(M{state.number}, {state.count}, uint8(1))")
    else:
        if e.in_loop:
            e.fail(f"{state.count} >= {state.capacity}", Status.FULL_INSIDE, str(state.number))
        _write_slot(e, state, state.count, value)
    e.line(f"{state.count} += 1")
    _changed(e, state, node.result)


def _write_slot(e: Emitter, state: StackState, index: str, value: Value) -> None:
    if not state.use.element:
        slot = Ref(state.base, index, (), (), state.use.dtype)
        e.put(slot, index, e.number(value))
    else:
        item = e.tensor(value)
        if state.use.mode == "whole":
            e.flush()
        e.copy(item, e.slot(state, index))
    if state.use.marks:
        e.line(f"put(M{state.number}, {index}, uint8(1))")


@_rule("stack_pop")
def _pop(e: Emitter, node: Node) -> None:
    state = _state(e, node.operands[0])
    if e.in_loop or e.in_branch:
        e.fail(f"{state.count} <= 0", Status.EMPTY_INSIDE, str(state.number))
    elif state.use.mode == "whole":
        e.fail(f"{state.count} <= 0", Status.OUT_OF_RANGE, str(e.site(node)), "int64(0)", "int64(0)")
    e.line(f"{state.count} -= 1")
    _changed(e, state, node.results[0])
    _give(e, node.results[1], _row(e, state, state.count))


def _row(e: Emitter, state: StackState, index: str) -> Item:
    """A row of a stack, copied where a later op could change it."""
    if not state.use.element:
        return e.scalar(e.load(Ref(state.base, index, (), (), state.use.dtype), index), state.use.dtype)
    row = e.slot(state, index)
    return e.copied(row) if state.use.mode == "whole" else row


@_rule("stack_read")
def _read(e: Emitter, node: Node) -> None:
    state = _state(e, node.operands[0])
    index = e.checked_index(node, 0, e.number(node.operands[1]), state.count)
    _give(e, node.result, _row(e, state, index))


@_rule("stack_write")
def _write(e: Emitter, node: Node) -> None:
    s, where, value = node.operands
    state = _state(e, s)
    given, index = e.number(where), e.fresh("q")
    e.line(f"{index} = int64({given})")
    if node.attrs["grow"]:
        if e.in_loop:
            full = f"{index} == {state.count} and {state.count} >= {state.capacity}"
            e.fail(full, Status.FULL_INSIDE, str(state.number))
        with e.block(f"if {index} == {state.count}:"):
            e.line(f"{state.count} += 1")
            if state.use.marks:
                e.line(f"put(M{state.number}, {index}, uint8(0))")
    place = e.checked_index(node, 0, index, state.count)
    if node.attrs.get("once"):
        e.fail(f"fetch(M{state.number}, {place}) != 0", Status.WRITTEN_TWICE, str(e.site(node)), place)
    _write_slot(e, state, place, value)
    _changed(e, state, node.result)


@_rule("stack_add")
def _add(e: Emitter, node: Node) -> None:
    s, where, value = node.operands
    state = _state(e, s)
    given = e.tensor(value)
    e.flush()
    index = e.checked_index(node, 0, e.number(where), state.count)
    slot = e.slot(state, index) if state.use.element else Ref(state.base, index, (), (), state.use.dtype)
    _combine_into(e, slot, given)
    _changed(e, state, node.result)


def _combine_into(e: Emitter, slot: Ref, given: Ref | Splat) -> None:
    if not slot.shape:
        assert isinstance(given, Splat)
        e.put(slot, slot.offset, f"{e.load(slot, slot.offset)} + {given.scalar.text}")
        return
    with e.nest(slot.shape, [given, slot]) as (index, element):
        e.line(f"put({slot.base}, {index(1)}, {e.load(slot, index(1))} + {element(0)})")


@_rule("stack_clear")
def _clear(e: Emitter, node: Node) -> None:
    state = _state(e, node.operands[0])
    e.flush()
    index = e.checked_index(node, 0, e.number(node.operands[1]), state.count)
    zero = Scalar(literal(state.use.dtype.type(0)), state.use.dtype)
    if state.use.element:
        e.copy(Splat(zero, state.use.element), e.slot(state, index))
    else:
        e.put(Ref(state.base, index, (), (), state.use.dtype), index, zero.text)
    if state.use.marks:
        e.line(f"put(M{state.number}, {index}, uint8(0))")
    _changed(e, state, node.result)


@_rule("stack_resize")
def _resize(e: Emitter, node: Node) -> None:
    """Cut off; or longer, by rows of zeros."""
    state = _state(e, node.operands[0])
    e.flush()
    length, slot, element = e.fresh("q"), e.fresh("i"), product(state.use.element)
    e.line(f"{length} = int64({e.number(node.operands[1])})")
    e.fail(f"{length} > {state.capacity}", Status.FULL_INSIDE, str(state.number))
    with e.block(f"for {slot} in range({times(state.count, element)}, {times(length, element)}):"):
        e.line(f"put({state.base}, {slot}, {literal(state.use.dtype.type(0))})")
    if state.use.marks:
        with e.block(f"for {slot} in range({state.count}, {length}):"):
            e.line(f"put(M{state.number}, {slot}, uint8(0))")
    e.line(f"{state.count} = {length}")
    _changed(e, state, node.result)


@_rule("stack_length")
def _length(e: Emitter, node: Node) -> None:
    state = _state(e, node.operands[0])
    e.frame.items[node.result] = e.scalar(state.count, np.dtype(np.int64))


# Loops and branches.


def _passed(e: Emitter, operands: Sequence[Value], inputs: Sequence[Value]) -> dict[Value, Item]:
    """What a region inside sees of the values around it."""
    items: dict[Value, Item] = {}
    for outer, inner in zip(operands, inputs, strict=True):
        item = e.item(outer)
        if isinstance(item, StackState):
            item = _state(e, outer)
        items[inner] = item
    return items


@_rule("cond")
def _cond(e: Emitter, node: Node) -> None:
    e.flush()
    selector = e.number(node.operands[0])
    passed = [_passed(e, node.operands[1:], region.inputs) for region in node.regions]
    is_bool = node.operands[0].tensor.dtype.kind == "b"
    order = [1, 0] if is_bool else list(range(len(node.regions)))
    targets: list[Ref | str | None] = []
    for v in node.results:
        if isinstance(v.type, StackType):
            targets.append(None)
        elif v.tensor.rank == 0:
            targets.append(e.fresh("v"))
        else:
            targets.append(e.place(v))
    before = {id(item): item.version for items in passed for item in items.values() if isinstance(item, StackState)}
    results: list[StackState | None] = [None] * len(node.results)
    e.in_branch += 1
    for number, k in enumerate(order):
        last = number == len(order) - 1
        head = "else:" if last else f"if {selector}:" if is_bool else f"{'el' if number else ''}if {selector} <= {k}:"
        if len(order) == 1:
            head = "if True:"
        with e.block(head):
            _branch(e, node.regions[k], passed[k], targets, before, results)
    e.in_branch -= 1
    for v, target, state in zip(node.results, targets, results, strict=True):
        if state is not None:
            _changed(e, state, v)
        elif isinstance(target, Ref):
            e.frame.items[v] = target
        else:
            assert isinstance(target, str)
            e.frame.items[v] = Scalar(target, v.tensor.dtype)


def _branch(
    e: Emitter,
    region: Graph,
    passed: dict[Value, Item],
    targets: Sequence[Ref | str | None],
    before: dict[int, Value],
    results: list[StackState | None],
) -> None:
    items = dict(passed)
    for v, item in passed.items():
        if isinstance(item, StackState):
            item.version = v
    wanted: dict[Value, Callable[[], Ref | None]] = {}
    for out, target in zip(region.outputs, targets, strict=True):
        if isinstance(target, Ref) and out not in wanted and out not in region.inputs:
            wanted[out] = _fixed(target)
    frame = e.region(region, items, wanted)
    e.run(frame)
    for position, (out, target) in enumerate(zip(region.outputs, targets, strict=True)):
        item = e.item(out)
        if isinstance(item, StackState):
            if item.version is not out or (results[position] is not None and results[position] is not item):
                raise NotNative("the branches change stacks in different ways")
            results[position] = item
        elif isinstance(target, str):
            assert isinstance(item, Scalar)
            dtype = out.tensor.dtype
            text = f"{type_name(dtype)}({item.text})" if dtype.kind in "iuf" else item.text
            e.line(f"{target} = {text}")
        else:
            assert isinstance(target, Ref) and isinstance(item, Ref | Splat)
            e.copy(item, Ref(target.base, target.offset, item.shape, target.strides, target.dtype))
    stacks = [item for item in passed.values() if isinstance(item, StackState)]
    kept = {id(r) for r in results if r is not None}
    for item in stacks:
        if id(item) not in kept and item.version not in passed:
            raise NotNative("a branch changes a stack and does not yield it")
    e.leave()


def _fixed(ref: Ref) -> Callable[[], Ref | None]:
    return lambda: ref


@_rule("while")
def _while(e: Emitter, node: Node) -> None:
    e.flush()
    cond, body = node.regions
    captures = node.attrs["captures"]
    passed = _passed(e, node.operands, body.inputs)
    carries = body.inputs[captures:]
    names = [e.fresh("w") for _ in carries]
    scalars, items = [f"s_{n}" for n in names], dict(passed)
    finals: list[Item | None] = []
    for v, name, initial in zip(carries, names, node.operands[captures:], strict=True):
        item = passed[v]
        if isinstance(item, StackState):
            finals.append(None)
        elif isinstance(item, Scalar):
            text = f"{type_name(item.dtype)}({item.text})" if item.dtype.kind in "iuf" else item.text
            e.line(f"s_{name} = {text}")
            items[v] = Scalar(f"s_{name}", item.dtype)
            finals.append(items[v])
        else:
            items[v] = _carried_array(e, v, name, e.tensor(initial))
            finals.append(items[v])
    trips, maximum = e.fresh("v"), node.attrs.get("maximum_iterations")
    e.line(f"{trips} = 0")
    e.in_loop += 1
    e.inner.append((node, trips))
    with e.block("while True:"):
        for v, name in zip(carries, names, strict=True):
            if isinstance(items[v], Ref):
                e.line(f"A_{name} = pointer_{v.tensor.dtype.name}(a_{name})")
                e.line(f"B_{name} = pointer_{v.tensor.dtype.name}(b_{name})")
        _inner_test(e, cond, [items[v] for v in body.inputs])
        if maximum is not None:
            e.fail(f"{trips} == {maximum}", Status.TOO_MANY_ITERATIONS, str(e.site(node)))
        for v in carries:
            item = items[v]
            if isinstance(item, StackState):
                item.version = v
        swapped = e.carried_region(
            body, [items[v] for v in body.inputs], captures, [f"A_{n}" for n in names], [f"B_{n}" for n in names], scalars
        )
        for i in swapped:
            e.line(f"a_{names[i]}, b_{names[i]} = b_{names[i]}, a_{names[i]}")
        e.line(f"{trips} += 1")
    e.in_loop -= 1
    e.inner.pop()
    for v, name, final, inner in zip(node.results, names, finals, carries, strict=True):
        item = items[inner]
        if isinstance(item, StackState):
            _changed(e, item, v)
        elif isinstance(final, Ref):
            # The pointers are set at the head of each iteration, so after the last they are those of the result.
            e.frame.items[v] = final
            e.frame.own.add(v)
        else:
            assert final is not None
            e.frame.items[v] = e.scalar(final.text, v.tensor.dtype) if isinstance(final, Scalar) else final


def _carried_array(e: Emitter, value: Value, name: str, initial: Ref | Splat) -> Ref:
    shape, dtype = e.shapes.sizes(value), value.tensor.dtype
    for letter in "ab":
        place = e.entry(Entry("temporary", dtype=dtype, size=product(shape)))
        e.header.append(f"{letter}_{name} = {place}")
    e.line(f"A_{name} = pointer_{dtype.name}(a_{name})")
    current = Ref(f"A_{name}", "0", shape, row_major(shape), dtype)
    e.copy(initial, current)
    return current


def _inner_test(e: Emitter, cond: Graph, items: Sequence[Item]) -> None:
    seen: dict[Value, Item] = {}
    for v, item in zip(cond.inputs, items, strict=True):
        if isinstance(item, StackState):
            item = StackState(item.number, item.use, v)
        seen[v] = item
    frame = e.region(cond, seen, {})
    e.run(frame)
    test = e.number(cond.outputs[0])
    e.leave()
    with e.block(f"if not ({test}):"):
        e.line("break")


__all__ = ["DYNAMIC", "RULES", "makes_memory", "uses_of"]
