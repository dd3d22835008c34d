"""ONNX operators that arrange, index and sample arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.onnx.layers import cubic
from ctrlgrad.interop.onnx.operators import TABLE, Node, dtype_of, entry, known_shape, recorded

# Sequences, which are lists here, and optionals, which are a value or None.


TABLE |= {
    ("", "SequenceConstruct"): lambda node, *xs: list(xs),
    ("", "SequenceEmpty"): lambda node: [],
    ("", "SequenceLength"): lambda node, xs: np.int64(len(xs)),
    ("", "Optional"): lambda node, x=None: x,
    ("", "OptionalHasElement"): lambda node, x=None: np.bool_(x is not None),
    ("", "Concat"): lambda node, *xs: cnp.concatenate(xs, node.get("axis", 1)),
    ("", "Expand"): lambda node, x, shape: cnp.broadcast_to(x, tuple(aligned(cnp.shape(x), sizes(node, 1)))),
}


@entry("SequenceAt")
def _at(node: Node, xs: list[Any], place: Any) -> Any:
    known = node.known(1)
    if known is not None:
        return xs[int(known.reshape(()))]
    # Elements of one shape are rows.
    return cnp.stack(xs)[place]


@entry("SequenceInsert")
def _insert(node: Node, xs: list[Any], x: Any, place: Any = None) -> Any:
    at = len(xs) if place is None else int(node.value(2).reshape(()))
    at = at + len(xs) if at < 0 else at
    return [*xs[:at], x, *xs[at:]]


@entry("SequenceErase")
def _erase(node: Node, xs: list[Any], place: Any = None) -> Any:
    at = (len(xs) - 1 if place is None else int(node.value(1).reshape(()))) % len(xs)
    return [*xs[:at], *xs[at + 1 :]]


@entry("ConcatFromSequence")
def _concat_sequence(node: Node, xs: list[Any]) -> Any:
    axis = node.get("axis")
    return cnp.stack(xs, axis) if node.get("new_axis", 0) else cnp.concatenate(xs, axis)


@entry("SplitToSequence")
def _split_to_sequence(node: Node, x: Any, lengths: Any = None) -> Any:
    axis = node.get("axis", 0) % x.ndim
    size = x.shape[axis]
    if lengths is None:
        rows = cnp.split(x, size, axis) if size else []
        return list(rows) if node.get("keepdims", 1) else [cnp.squeeze(row, axis) for row in rows]
    given = node.value(1)
    if given.ndim == 0:
        step = int(given)
        return list(cnp.split(x, list(range(step, size, step)), axis))
    return list(cnp.split(x, np.cumsum(given)[:-1].tolist(), axis))


@entry("OptionalGetElement")
def _get(node: Node, x: Any = None) -> Any:
    if x is None:
        raise node.unsupported("the optional is empty")
    return x


# `GridSample`: an image at places between its pixels, with derivatives by the image and by the places.


_OLD_NAMES = {"bilinear": "linear", "bicubic": "cubic"}


def _reflected(x: Any, low: float, high: float) -> Any:
    """Numbers thrown back by two mirrors, as often as they pass one."""
    width = high - low
    if not width:
        return cnp.zeros_like(x)
    turns = cnp.remainder(x - np.asarray(low, x.dtype), np.asarray(2 * width, x.dtype))
    return np.asarray(low, x.dtype) + cnp.where(turns > width, np.asarray(2 * width, x.dtype) - turns, turns)


def _taps(node: Node, places: Any, size: int) -> list[tuple[Any, Any]]:
    """Along an axis the pixels that count for each place, -1 to 1 from end to end, and their weights."""
    mode, padding = (node.get("mode", "linear"), node.get("padding_mode", "zeros"))
    mode, is_aligned = _OLD_NAMES.get(mode, mode), bool(node.get("align_corners", 0))
    of = places.dtype.type
    x = (places + of(1)) * of(size - 1) / of(2) if is_aligned else ((places + of(1)) * of(size) - of(1)) / of(2)
    edges = (0.0, size - 1.0) if is_aligned else (-0.5, size - 0.5)
    x = cnp.rint(x) if mode == "nearest" else x
    if padding == "border":
        x = cnp.clip(x, of(0), of(size - 1))
    elif padding == "reflection":
        x = _reflected(x, *edges)
    first = cnp.floor(x)
    f, one = x - first, of(1)
    if mode == "nearest":
        weights = [cnp.ones_like(f)]
    elif mode == "linear":
        weights = [one - f, f]
    else:
        weights = [cubic(d, -0.75) for d in (f + one, f, one - f, of(2) - f)]
    before = 1 if mode == "cubic" else 0
    found = []
    for k, weight in enumerate(weights):
        i = first + of(k - before)
        if padding == "reflection":
            i = _reflected(i, *edges)
        elif padding == "zeros":
            weight = cnp.where((i >= 0) & (i < size), weight, cnp.zeros_like(weight))
        found.append((cast(cnp.clip(i, of(0), of(size - 1)), np.int64), weight))
    return found


@entry("GridSample")
def _grid_sample(node: Node, x: Any, grid: Any) -> Any:
    sizes, batch, channels = x.shape[2:], x.shape[0], x.shape[1]
    # Places are given with the last axis first.
    taps = [_taps(node, grid[..., -1 - axis], n) for axis, n in enumerate(sizes)]
    flat = cnp.reshape(x, (batch, channels, math.prod(sizes)))
    count = math.prod(grid.shape[1:-1])
    total = None
    for corner in itertools.product(*taps):
        index, weight = corner[0]
        for (i, w), n in zip(corner[1:], sizes[1:], strict=True):
            index, weight = index * n + i, weight * w
        index = cnp.broadcast_to(cnp.reshape(index, (batch, 1, count)), (batch, channels, count))
        part = cnp.take_along_axis(flat, index, 2) * cast(cnp.reshape(weight, (batch, 1, count)), x.dtype)
        total = part if total is None else total + part
    return cnp.reshape(total, (batch, channels, *grid.shape[1:-1]))


# Gathers and scatters.


def _counted(places: Any, size: int | Any) -> Any:
    """Places counted from the front: negative ones count from the end."""
    return cnp.where(places < 0, places + np.asarray(size, places.dtype), places)


@entry("Gather")
def _gather(node: Node, x: Any, places: Any) -> Any:
    axis = node.get("axis", 0) % x.ndim
    if isinstance(x, np.ndarray | np.generic) and isinstance(places, np.ndarray | np.generic):
        return np.take(np.asarray(x), np.asarray(places), axis)
    return cnp.take(recorded(x), _counted(places, cnp.shape(x)[axis]), axis=axis)


@entry("GatherElements")
def _gather_elements(node: Node, x: Any, places: Any) -> Any:
    axis = node.get("axis", 0) % x.ndim
    return recorded(x)[_grid(_counted(places, cnp.shape(x)[axis]), axis)]


def _grid(places: Any, axis: int) -> tuple[Any, ...]:
    """An index for every axis: `places` along one, each element's own place along the remaining axes."""
    shape = places.shape
    own = [np.arange(n).reshape([n if b == a else 1 for b in range(len(shape))]) for a, n in enumerate(shape)]
    return tuple(places if a == axis else own[a] for a in range(len(shape)))


@entry("GatherND")
def _gather_nd(node: Node, x: Any, places: Any) -> Any:
    batch, depth = node.get("batch_dims", 0), places.shape[-1]
    key: list[Any] = []
    rank = places.ndim - 1
    for a in range(batch):
        key.append(np.arange(x.shape[a]).reshape([-1 if b == a else 1 for b in range(rank)]))
    key += [_counted(places[..., d], cnp.shape(x)[batch + d]) for d in range(depth)]
    return recorded(x)[tuple(key)]


def _scattered(node: Node, x: Any, key: tuple[Any, ...], updates: Any) -> Any:
    spot = cnp.at(recorded(x))[key]
    how = {"none": spot.set, "add": spot.add, "mul": spot.multiply, "max": spot.max, "min": spot.min}
    return how[node.get("reduction", "none")](updates)


@entry("Scatter", "ScatterElements")
def _scatter_elements(node: Node, x: Any, places: Any, updates: Any) -> Any:
    axis = node.get("axis", 0) % x.ndim
    return _scattered(node, x, _grid(_counted(places, cnp.shape(x)[axis]), axis), updates)


@entry("ScatterND")
def _scatter_nd(node: Node, x: Any, places: Any, updates: Any) -> Any:
    depth = places.shape[-1]
    key = tuple(_counted(places[..., d], cnp.shape(x)[d]) for d in range(depth))
    return _scattered(node, x, key, updates)


@entry("TensorScatter")
def _tensor_scatter(node: Node, past: Any, update: Any, starts: Any = None) -> Any:
    """A cache that is written to from a place of each row on."""
    axis = node.get("axis", -2) % past.ndim
    size, count, rows = past.shape[axis], update.shape[axis], past.shape[0]
    starts = np.zeros(rows, np.int64) if starts is None else starts
    places = cnp.expand_dims(starts, 1) + np.arange(count)
    if node.get("mode", "linear") == "circular":
        places = cnp.remainder(places, size)
    moved, new = cnp.moveaxis(past, axis, 1), cnp.moveaxis(update, axis, 1)
    key = (np.arange(rows)[:, None], places)
    return cnp.moveaxis(cnp.at(recorded(moved))[key].set(new), 1, axis)


@entry("OneHot")
def _one_hot(node: Node, places: Any, depth: Any, values: Any) -> Any:
    count = int(node.value(1).reshape(()))
    axis = node.get("axis", -1)
    axis = axis + places.ndim + 1 if axis < 0 else axis
    places = cnp.expand_dims(_counted(cast(places, np.int64), count), axis)
    classes = np.arange(count).reshape([-1 if a == axis else 1 for a in range(places.ndim)])
    return cnp.where(places == classes, values[1], values[0])


@entry("Compress")
def _compress(node: Node, x: Any, condition: Any) -> Any:
    axis = node.get("axis")
    known = node.known(1)
    if axis is None:
        x, axis = cnp.reshape(x, (-1,)), 0
    places = cnp.nonzero(condition)[0] if known is None else np.nonzero(known)[0]
    return cnp.take(x, places, axis=axis)


# Operators that make and arrange arrays.


def sizes(node: Node, i: int) -> list[Any]:
    """The numbers of an input that is a shape: known ones, or as many traced scalars as it has elements."""
    known = node.known(i)
    if known is not None:
        return [int(n) for n in known.reshape(-1)]
    x = node.inputs[i]
    (count,) = known_shape(x)
    if count is None:
        node.value(i)
        return []
    return [x[k] for k in range(count)]


def axes_of(node: Node, rank: int, i: int | None = 1) -> tuple[int, ...] | None:
    """The axes of a node, as an attribute or, in later versions, as an input; None where it names none."""
    axes = node.get("axes")
    if axes is None and i is not None and i < len(node.inputs) and node.inputs[i] is not None:
        axes = [int(n) for n in node.value(i).reshape(-1)]
    return None if axes is None else tuple(axis % rank for axis in axes)


def shape_of(x: Any) -> Any:
    """The shape of an array, as one of int64."""
    if None not in known_shape(x):
        return np.array(x.shape, np.int64)
    return cnp.stack([cast(n, np.int64) for n in x.shape])


@entry("Constant")
def _constant(node: Node) -> Any:
    (name,) = (name for name, value in node.attributes.items() if value is not None)
    value = node.attributes[name]
    if name in ("value_string", "value_strings"):
        raise node.unsupported("strings have no arrays and no derivatives here")
    dtype = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    return np.asarray(value, dtype.get(name))


@entry("ConstantOfShape")
def _constant_of_shape(node: Node, shape: Any) -> Any:
    value = node.get("value")
    number = np.zeros((), np.float32) if value is None else np.reshape(value, ())
    return cnp.broadcast_to(number, tuple(sizes(node, 0)))


@entry("Shape")
def _shape(node: Node, x: Any) -> Any:
    start, end = node.get("start", 0), node.get("end")
    return shape_of(x)[slice(*slice(start, end).indices(x.ndim))]


@entry("Size")
def _size(node: Node, x: Any) -> Any:
    return cnp.prod(shape_of(x), dtype=np.int64) if x.ndim else np.int64(1)


@entry("Reshape")
def _reshape(node: Node, x: Any, shape: Any = None) -> Any:
    wanted: list[Any] = node.get("shape") if shape is None else sizes(node, 1)
    if not node.get("allowzero", 0):
        own = cnp.shape(x)
        wanted = [own[i] if isinstance(n, int) and n == 0 else n for i, n in enumerate(wanted)]
    return cnp.reshape(x, tuple(wanted))


@entry("Flatten")
def _flatten(node: Node, x: Any) -> Any:
    axis = node.get("axis", 1)
    own = cnp.shape(x)
    axis = axis + x.ndim if axis < 0 else axis
    first: Any = 1
    for n in own[:axis]:
        first = first * n
    if 0 in own:
        return cnp.reshape(x, (first, int(np.prod(own[axis:]))))
    return cnp.reshape(x, (first, -1))


@entry("Transpose")
def _transpose(node: Node, x: Any) -> Any:
    order = node.get("perm")
    return cnp.transpose(x, tuple(range(x.ndim))[::-1] if order is None else tuple(order))


@entry("Squeeze")
def _squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    chosen = axes_of(node, x.ndim)
    return cnp.squeeze(x, chosen if chosen is not None else tuple(i for i, n in enumerate(x.shape) if n == 1))


@entry("Unsqueeze")
def _unsqueeze(node: Node, x: Any, axes: Any = None) -> Any:
    count = len(node.get("axes") or node.value(1).reshape(-1)) if axes is not None or node.get("axes") else 0
    return cnp.expand_dims(x, axes_of(node, x.ndim + count) or ())


def aligned(known: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """The sizes that an array of one shape has once it is broadcast with another."""
    rank = max(len(known), len(wanted))
    mine, others = [1] * (rank - len(known)) + list(known), [1] * (rank - len(wanted)) + list(wanted)
    return [a if isinstance(b, int) and b == 1 else b for a, b in zip(mine, others, strict=True)]


@entry("Tile")
def _tile(node: Node, x: Any, repeats: Any, axis: Any = None) -> Any:
    if axis is not None:
        counts = [1] * x.ndim
        counts[int(node.value(2))] = int(node.value(1))
        return cnp.tile(x, tuple(counts))
    return cnp.tile(x, tuple(int(n) for n in node.value(1)))


@entry("Slice")
def _slice(node: Node, x: Any, *bounds: Any) -> Any:
    if node.version < 10:
        starts, ends = node.get("starts"), node.get("ends")
        axes, steps = node.get("axes"), None
    else:
        starts, ends = sizes(node, 1), sizes(node, 2)
        given = [int(n) for n in node.value(3)] if len(bounds) > 2 and bounds[2] is not None else None
        axes, steps = given, [int(n) for n in node.value(4)] if len(bounds) > 3 and bounds[3] is not None else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    key: list[Any] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = known_shape(x)[axis]
        if isinstance(start, int) and isinstance(end, int) and size is not None:
            # Ends beyond an array are its ends, those before it too.
            first, last = _bound(start, size, step), _bound(end, size, step)
            key[axis] = slice(first, None if last < 0 else last, step)
        else:
            start, end = (_traced_bound(n, size, x, axis) for n in (start, end))
            key[axis] = slice(start, end, step)
    plain = all(isinstance(n, int | None) for k in key for n in (k.start, k.stop))
    return (x if plain else recorded(x))[tuple(key)]


def _bound(n: int, size: int, step: int) -> int:
    n = n + size if n < 0 else n
    return min(max(n, 0), size) if step > 0 else min(max(n, -1), size - 1)


def _traced_bound(n: Any, size: int | None, x: Any, axis: int) -> Any:
    """A bound of a slice, clipped to 0 to the size; a known bound that is certainly inside stays unchanged."""
    if isinstance(n, int) and n == 0:
        return 0
    most = cnp.shape(x)[axis] if size is None else size
    n = cnp.asarray(n)
    return cnp.clip(cnp.where(n < 0, n + most, n), 0, most)


@entry("Split")
def _split(node: Node, x: Any, lengths: Any = None) -> Any:
    axis, size = node.get("axis", 0) % x.ndim, x.shape[node.get("axis", 0)]
    given = node.get("split") if lengths is None else [int(n) for n in node.value(1)]
    if given is None:
        count = node.get("num_outputs") or node.outputs
        most = -(-size // count)
        given = [max(0, min(most, size - i * most)) for i in range(count)]
    return tuple(cnp.split(x, np.cumsum(given)[:-1].tolist(), axis))


@entry("Pad")
def _pad(node: Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    given = (node.get("pads") or node.get("paddings")) if pads is None else [int(n) for n in node.value(1)]
    chosen = range(x.ndim) if axes is None else [int(n) % x.ndim for n in node.value(3)]
    widths = [(0, 0)] * x.ndim
    half = len(given) // 2
    for k, axis in enumerate(chosen):
        widths[axis] = (given[k], given[half + k])
    if any(n < 0 for pair in widths for n in pair):
        # Negative widths cut off.
        ends = [None if b >= 0 else b for _, b in widths]
        x = x[tuple(slice(max(0, -a), end) for (a, _), end in zip(widths, ends, strict=True))]
    widths = [(max(0, a), max(0, b)) for a, b in widths]
    mode = node.get("mode", "constant")
    if mode != "constant":
        return cnp.pad(x, widths, {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])
    filler = np.asarray(node.get("value", 0), x.dtype) if value is None else cnp.reshape(value, ())
    if isinstance(filler, Tensor):
        inside = cnp.pad(cnp.ones(x.shape, np.bool_), widths)
        return cnp.where(inside, cnp.pad(x, widths), filler)
    return cnp.pad(x, widths, constant_values=filler)


@entry("Range")
def _range(node: Node, start: Any, limit: Any, delta: Any) -> Any:
    known = [node.known(i) for i in range(3)]
    if not any(n is None for n in known):
        first, last, step = (np.reshape(np.asarray(n), ()) for n in known)
        count = max(0, int(np.ceil((last.astype(np.float64) - first) / step)))
        return (first + np.arange(count) * step).astype(first.dtype)
    # As many as a run finds.
    span = cast(limit, np.float64) - cast(start, np.float64)
    count = cast(cnp.maximum(cnp.ceil(span / cast(delta, np.float64)), 0.0), np.int64)
    return start + cast(cnp.arange(0, count, 1), start.dtype) * delta


@entry("EyeLike")
def _eye_like(node: Node, x: Any) -> Any:
    number = node.get("dtype")
    rows, columns = x.shape
    return np.eye(rows, columns, node.get("k", 0), x.dtype if number is None else dtype_of(number))


@entry("Trilu")
def _trilu(node: Node, x: Any, k: Any = None) -> Any:
    offset = 0 if k is None else int(node.value(1))
    return (cnp.triu if node.get("upper", 1) else cnp.tril)(x, offset)


@entry("DepthToSpace")
def _depth_to_space(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        parts, order = (n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        parts, order = (n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3)
    return cnp.reshape(cnp.transpose(cnp.reshape(x, parts), order), (n, c // b**2, h * b, w * b))


@entry("SpaceToDepth")
def _space_to_depth(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    parts = cnp.reshape(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return cnp.reshape(cnp.transpose(parts, order), (n, c * b**2, h // b, w // b))


@entry("ReverseSequence")
def _reverse_sequence(node: Node, x: Any, lengths: Any) -> Any:
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    moved = cnp.moveaxis(x, (time, batch), (0, 1))
    return cnp.moveaxis(reversed_rows(moved, lengths), (0, 1), (time, batch))


def reversed_rows(x: Any, lengths: Any) -> Any:
    """x[time, batch, ...] with the first lengths[b] steps of each row b in reverse."""
    steps = np.arange(x.shape[0])[:, None]
    places = cnp.where(steps < lengths, lengths - 1 - steps, steps)
    return cnp.take_along_axis(x, cnp.reshape(places, (*places.shape, *[1] * (x.ndim - 2))), axis=0)


TABLE["", "Identity"] = lambda node, x: x


# Steps of optimisers, of the domain ai.onnx.preview.training: of each of several arrays alike.


_DOMAIN = "ai.onnx.preview.training"


def _each(inputs: Sequence[Any], kinds: int, step: Callable[..., Sequence[Any]]) -> tuple[Any, ...]:
    """The results of a step for arrays that are given kind by kind, in the same order."""
    count = len(inputs) // kinds
    found = [step(*inputs[i::count]) for i in range(count)]
    return tuple(x for kind in zip(*found, strict=True) for x in kind)


def _numbers(node: Node, x: Any, **defaults: float) -> list[Any]:
    return [np.asarray(node.get(name, value), x.dtype) for name, value in defaults.items()]


@entry("Adagrad", domain=_DOMAIN)
def _adagrad(node: Node, rate: Any, t: Any, *inputs: Any) -> Any:
    def step(x: Any, g: Any, squares: Any) -> tuple[Any, Any]:
        decay, small, norm = _numbers(node, x, decay_factor=0.0, epsilon=1e-6, norm_coefficient=0.0)
        g = norm * x + g
        squares = squares + g * g
        return x - (rate / (1 + t.astype(x.dtype) * decay)).astype(x.dtype) * g / (cnp.sqrt(squares) + small), squares

    return _each(inputs, 3, step)


@entry("Adam", domain=_DOMAIN)
def _adam(node: Node, rate: Any, t: Any, *inputs: Any) -> Any:
    def step(x: Any, g: Any, mean: Any, squares: Any) -> tuple[Any, Any, Any]:
        names = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
        alpha, beta, small, norm, after = _numbers(node, x, **names)
        g, count = norm * x + g, t.astype(x.dtype)
        mean, squares = alpha * mean + (1 - alpha) * g, beta * squares + (1 - beta) * g * g
        corrected = cnp.sqrt(1 - beta**count) / cnp.where(t > 0, 1 - alpha**count, 1)
        speed = (rate * cnp.where(t > 0, corrected, 1)).astype(x.dtype)
        return (1 - after) * (x - speed * mean / (cnp.sqrt(squares) + small)), mean, squares

    return _each(inputs, 4, step)


@entry("Momentum", domain=_DOMAIN)
def _momentum(node: Node, rate: Any, t: Any, *inputs: Any) -> Any:
    def step(x: Any, g: Any, v: Any) -> tuple[Any, Any]:
        alpha, beta, norm = _numbers(node, x, alpha=0.0, beta=0.0, norm_coefficient=0.0)
        g = norm * x + g
        v = alpha * v + cnp.where(t > 0, beta, np.ones_like(beta)) * g
        along = g + alpha * v if node.get("mode") == "nesterov" else v
        return x - rate.astype(x.dtype) * along, v

    return _each(inputs, 3, step)
