"""Operators of networks: convolutions, pooling, normalisation, attention, losses, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.loops import scan
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.torch.operators import TABLE, drawn, dropped, entry
from ctrlgrad.interop.windows import Window, normalised, per_channel, transposed_kernels, with_padding
from ctrlgrad.nn.functions import alignment_loss
from ctrlgrad.transforms.vmap import vmap


def _all(values: Any, rank: int) -> tuple[int, ...]:
    """One number for each axis of a window."""
    values = [values] if isinstance(values, int) else list(values)
    return tuple(values * rank if len(values) == 1 else values)


@entry("convolution", "_convolution")
def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Any:
    """A convolution, or the transpose of one; weight[out, in / groups, *window], transposed [in, out / groups, *]."""
    rank = weight.ndim - 2
    if x.ndim == rank + 1:
        return convolution(x[None], weight, bias, stride, padding, dilation, transposed, output_padding, groups)[0]
    stride, padding, dilation = (_all(v, rank) for v in (stride, padding, dilation))
    spread: Any = None
    pads = [(p, p) for p in padding]
    if transposed:
        more = _all(output_padding, rank)
        weight = transposed_kernels(weight, groups)
        spans = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
        pads = [(s - p, s - p + m) for s, p, m in zip(spans, padding, more, strict=True)]
        spread, stride = stride, (1,) * rank
    found = lax.conv_general_dilated(
        x, weight, stride, pads, lhs_dilation=spread, rhs_dilation=dilation, feature_group_count=groups
    )
    return found if bias is None else found + per_channel(bias, found)


def _window(x: Any, sizes: Any, strides: Any, padding: Any, dilation: Any, ceil: bool, rank: int) -> Window:
    sizes, padding = _all(sizes, rank), [(p, p) for p in _all(padding, rank)]
    strides = _all(strides, rank) if strides not in (None, [], ()) else sizes
    return Window.of(sizes, strides, _all(dilation, rank), padding, x.shape[-rank:], ceil)


def _max_pool(rank: int) -> Callable[..., Any]:
    """The maximum of each window and its place in the image; the slope belongs to the first of equals."""

    def fn(x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
        window, lead = _window(x, size, stride, padding, dilation, ceil_mode, rank), x.shape[: x.ndim - rank]
        places, counts = window.places(x.shape[-rank:])
        least = -np.inf if np.dtype(x.dtype).kind == "f" else np.iinfo(x.dtype).min
        numbers = cnp.take(with_padding(x, rank, least), places, axis=-1)
        chosen = cnp.argmax(numbers, axis=-1, keepdims=True)
        found = cnp.take_along_axis(numbers, chosen, axis=-1)[..., 0]
        where = cnp.take_along_axis(cnp.broadcast_to(places, numbers.shape), chosen, axis=-1)[..., 0]
        return cnp.reshape(found, (*lead, *counts)), cnp.reshape(where, (*lead, *counts))

    return fn


def _average_pool(rank: int) -> Callable[..., Any]:
    def fn(
        x: Any,
        size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        window = _window(x, size, stride, padding, 1, ceil_mode, rank)
        total = window.reduce(x, 0, lax.add)
        if divisor_override:
            return total / np.asarray(divisor_override, x.dtype)
        return total / window.counts(x.shape[-rank:], x.dtype, count_include_pad)

    return fn


def _adaptive_average_pool(rank: int) -> Callable[..., Any]:
    """Means over parts as equal as possible: a product with a matrix along each axis."""

    def fn(x: Any, size: Any) -> Any:
        for axis, count in enumerate(_all(size, rank), x.ndim - rank):
            n = x.shape[axis]
            matrix = np.zeros((n, count))
            for i in range(count):
                a, b = i * n // count, -(-(i + 1) * n // count)
                matrix[a:b, i] = 1 / (b - a)
            x = cnp.moveaxis(cnp.matmul(cnp.moveaxis(x, axis, -1), matrix.astype(x.dtype)), -1, axis)
        return x

    return fn


# Normalisation.


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@entry("native_layer_norm")
def _layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    found, mean, _, scale = normalised(x, tuple(range(x.ndim - len(shape), x.ndim)), eps)
    return _affine(found, weight, bias), mean, scale


@entry("native_group_norm")
def _group_norm(x: Any, weight: Any, bias: Any, n: Any, c: Any, hw: Any, groups: int, eps: float) -> Any:
    parts = cnp.reshape(x, (n, groups, -1))
    found, mean, _, scale = normalised(parts, (2,), eps)
    found = cnp.reshape(found, x.shape)
    weight, bias = (None if v is None else per_channel(v, x) for v in (weight, bias))
    return _affine(found, weight, bias), mean[..., 0], scale[..., 0]


@entry("_native_batch_norm_legit_functional", "native_batch_norm", "_native_batch_norm_legit")
def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """The result, the mean and 1 / sqrt(variance) of the batch, and the new running mean and variance."""
    weight, bias = (None if v is None else per_channel(v, x) for v in (weight, bias))
    if not training:
        scale = 1 / cnp.sqrt(var + np.asarray(eps, var.dtype))
        found = (x - per_channel(mean, x)) * per_channel(scale, x)
        none = cnp.zeros((0,), x.dtype)
        return _affine(found, weight, bias), none, none, mean, var
    axes = (0, *range(2, x.ndim))
    found, own, spread, scale = normalised(x, axes, eps)
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    if mean is not None:
        unbiased = cnp.ravel(spread) * (count / (count - 1))
        mean = (1 - momentum) * mean + momentum * cast(cnp.ravel(own), mean.dtype)
        var = (1 - momentum) * var + momentum * cast(unbiased, var.dtype)
    return _affine(found, weight, bias), cnp.ravel(own), cnp.ravel(scale), mean, var


TABLE |= {
    "_native_batch_norm_legit.no_stats": lambda x, w, b, training, momentum, eps: batch_norm(
        x, w, b, None, None, True, momentum, eps
    )[:3],
    "_native_batch_norm_legit_no_training": lambda x, w, b, mean, var, momentum, eps: batch_norm(
        x, w, b, mean, var, False, momentum, eps
    )[:3],
    "max_pool2d_with_indices": _max_pool(2),
    "max_pool3d_with_indices": _max_pool(3),
    "avg_pool1d": _average_pool(1),
    "avg_pool2d": _average_pool(2),
    "avg_pool3d": _average_pool(3),
    "adaptive_avg_pool1d": _adaptive_average_pool(1),
    "_adaptive_avg_pool2d": _adaptive_average_pool(2),
    "_adaptive_avg_pool3d": _adaptive_average_pool(3),
}


@entry("scaled_dot_product_attention")
def attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q k^T scale + attn_mask) v, for q[..., heads, queries, features]."""
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        k, v = (cnp.repeat(y, q.shape[-3] // y.shape[-3], axis=-3) for y in (k, v))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    logits = cnp.matmul(q * factor, cnp.matrix_transpose(k))
    mask = attn_mask
    if is_causal:
        mask = np.tril(np.ones((q.shape[-2], k.shape[-2]), bool))
    if mask is not None and mask.dtype == bool:
        logits = cnp.where(mask, logits, np.asarray(-np.inf, logits.dtype))
    elif mask is not None:
        logits = logits + mask
    weights = dropped("scaled_dot_product_attention", cnp.softmax(logits, axis=-1), dropout_p)
    return cnp.matmul(weights, v)


# As PyTorch calls it on a processor: nothing reads the second result outside of its own reverse mode.
@entry("_scaled_dot_product_flash_attention_for_cpu")
def _attention_as_run(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: Any = None, scale: Any = None
) -> Any:
    return attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale), cnp.zeros(q.shape[:-1], q.dtype)


@entry("_scaled_dot_product_attention_math")
def _attention_math(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Any = None,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    found = attention(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return found, cnp.zeros(q.shape[:-1], q.dtype)


@entry("native_dropout")
def _dropout(x: Any, p: float, train: bool | None = None) -> Any:
    if not train or not p:
        return x, cnp.ones(x.shape, bool)
    if p == 1:
        return cnp.zeros_like(x), cnp.zeros(x.shape, bool)
    kept = drawn("native_dropout", 1 - p, x.shape)
    return cnp.where(kept, x / (1 - p), 0), kept


@entry("bernoulli", "bernoulli.p")
def _bernoulli(x: Any, p: Any = None) -> Any:
    """Ones with probability p, or that of each element of x; of the dtype of x."""
    return cast(drawn("bernoulli", x if p is None else p, x.shape), x.dtype)


# The loss of connectionist temporal classification.


def _whole(operation: str, x: Any) -> np.ndarray:
    if isinstance(x, Tensor):
        raise TracingError(
            f"from_torch: {operation} of targets in one row needs their lengths when it is read",
            expected="lengths that are Python integers, or targets[batch, length]",
            got=repr(x),
            hint="pass the targets padded to one length",
        )
    return np.asarray(x)


@entry("_ctc_loss")
def ctc(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, zero_infinity: bool = False
) -> Any:
    """The loss of each sequence, for log_probs[time, batch, classes]."""
    if targets.ndim == 1:
        ends = np.cumsum(_whole("ctc_loss", target_lengths))
        most = int(max(np.diff(ends, prepend=0), default=0))
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        places = np.minimum(starts[:, None] + np.arange(most), max(int(ends[-1]) - 1, 0))
        targets = cnp.take(targets, places, axis=0)
    lengths, ends = (
        cnp.asarray(np.asarray(x) if isinstance(x, list | tuple) else x) for x in (input_lengths, target_lengths)
    )
    of_one = lambda scores, labels, frames, count: alignment_loss(scores, labels, frames, count, blank)
    loss = vmap(of_one, in_axes=(1, 0, 0, 0))(log_probs, targets, lengths, ends)
    loss = cnp.where(loss == np.inf, 0, loss) if zero_infinity else loss
    # Nothing reads the second result outside of PyTorch's own reverse mode.
    return loss, loss


@entry("ctc_loss")
def _ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:
    if log_probs.ndim == 2:

        def one(x: Any) -> Any:
            return x[None] if hasattr(x, "ndim") and not x.ndim else x

        log_probs, targets = log_probs[:, None], targets[None] if targets.ndim == 1 else targets
        found = _ctc_loss(log_probs, targets, one(input_lengths), one(target_lengths), blank, reduction, zero_infinity)
        return found if reduction else found[0]
    loss, _ = ctc(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    if reduction == 0:
        return loss
    if reduction == 2:
        return cnp.sum(loss)
    count = cnp.asarray(np.asarray(target_lengths) if isinstance(target_lengths, list | tuple) else target_lengths)
    return cnp.mean(loss / cast(cnp.maximum(count, 1), loss.dtype))


# Recurrent networks: `lstm`, `gru`, `rnn_tanh` and `rnn_relu`, one `scan` for each layer and direction.
#
# Weights of a direction are w_ih[gates * hidden, inputs], w_hh[gates * hidden, hidden] and two biases. Nothing is
# made for all steps at once, so that a budget bounds what a long sequence takes. A packed batch is data[numbers,
# inputs] with the count of rows at each step, which falls; it is read as rows of one length that keep their state
# once their sequence has ended.


# A step maps (W x + its bias, the product with the state, a bias, state) to the new state; None where there is none.
Step = Callable[[Any, Any, Any, Sequence[Any]], list[Any]]


def _added(*parts: Any) -> Any:
    """The sum of the parts that are not None."""
    total: Any = None
    for x in parts:
        total = x if total is None else total if x is None else total + x
    return total


def _lstm(given: Any, product: Any, bias: Any, state: Sequence[Any]) -> list[Any]:
    i, f, g, o = cnp.split(_added(given, product, bias), 4, -1)
    c = cnp.sigmoid(f) * state[1] + cnp.sigmoid(i) * cnp.tanh(g)
    return [cnp.sigmoid(o) * cnp.tanh(c), c]


def _gru(given: Any, product: Any, bias: Any, state: Sequence[Any]) -> list[Any]:
    product = product if bias is None else product + bias
    (r, z, n), (hr, hz, hn) = cnp.split(given, 3, -1), cnp.split(product, 3, -1)
    z = cnp.sigmoid(z + hz)
    n = cnp.tanh(n + cnp.sigmoid(r + hr) * hn)
    return [n + z * (state[0] - n)]


def _plain(activation: Callable[[Any], Any]) -> Step:
    return lambda given, product, bias, state: [activation(_added(given, product, bias))]


def _direction(step: Step, x: Any, alive: Any, state: list[Any], weights: Sequence[Any], reverse: bool) -> Any:
    """The outputs for x[time, batch, inputs], and the last state. `alive[time, batch]` says which rows count."""
    w_ih, w_hh, *rest = weights
    biases = rest[:2] if len(rest) >= 2 else [None, None]
    projection = rest[-1] if len(rest) in (1, 3) else None
    is_gru = step is _gru
    # One product for the input and the state, where their parts are added; a GRU looks at them one by one.
    matrix = cnp.transpose(w_hh if is_gru else cnp.concatenate([w_ih, w_hh], 1))
    bias = biases[0] if is_gru or biases[0] is None else biases[0] + biases[1]

    def run(carry: Any, row: Any) -> Any:
        now, counts = row
        if is_gru:
            given = _added(cnp.matmul(now, cnp.transpose(w_ih)), bias)
            new = step(given, cnp.matmul(carry[0], matrix), biases[1], carry)
        else:
            new = step(cnp.matmul(cnp.concatenate([now, carry[0]], -1), matrix), None, bias, carry)
        if projection is not None:
            new[0] = cnp.matmul(new[0], cnp.transpose(projection))
        if counts is None:
            return new, new[0]
        kept = [cnp.where(counts[:, None], a, b) for a, b in zip(new, carry, strict=True)]
        return kept, cnp.where(counts[:, None], new[0], cnp.zeros_like(new[0]))

    last, outputs = scan(run, state, (x, alive), reverse=reverse)
    return outputs, last


def _layers(
    step: Step, states: int, x: Any, alive: Any, start: Sequence[Any], flat: Sequence[Any], settings: Sequence[Any]
) -> tuple[Any, ...]:
    """The outputs of all layers, and the last state of each, in the order of PyTorch."""
    _, layers, dropout, train, bidirectional = settings
    directions = 2 if bidirectional else 1
    count = len(flat) // (layers * directions)
    ends: list[list[Any]] = [[] for _ in range(states)]
    for layer in range(layers):
        found = []
        for side in range(directions):
            k = layer * directions + side
            state = [s[k] for s in start]
            outputs, last = _direction(step, x, alive, state, flat[k * count : (k + 1) * count], side == 1)
            found.append(outputs)
            for collected, s in zip(ends, last, strict=True):
                collected.append(s)
        x = found[0] if directions == 1 else cnp.concatenate(found, -1)
        if train and layer < layers - 1:
            x = dropped("dropout between layers", x, dropout)
    return (x, *(cnp.stack(collected) for collected in ends))


def _network(step: Step, states: int) -> Callable[..., Any]:
    def run(x: Any, second: Any, *more: Any) -> tuple[Any, ...]:
        if not isinstance(second, list | tuple) and second.ndim == 1:
            hx, flat, *settings = more
            start = list(hx) if states == 2 else [hx]
            steps, batch = second.shape[0], start[0].shape[1]
            counts = cast(second, second.dtype)
            alive = cnp.arange(batch) < counts[:, None]
            # Rows of step t stand behind all rows of the steps before it.
            places = (cnp.cumsum(counts) - counts)[:, None] + cnp.arange(batch)
            padded = cnp.take(x, cnp.where(alive, places, 0), axis=0)
            outputs, *ends = _layers(step, states, padded, alive, start, flat, settings)
            flat_outputs = cnp.reshape(outputs, (steps * batch, outputs.shape[-1]))
            order = _packed_places(counts, batch, steps, x.shape[0])
            return (cnp.take(flat_outputs, order, axis=0), *ends)
        hx, flat, *settings, batch_first = second, *more
        start = list(hx) if states == 2 else [hx]
        x = cnp.swapaxes(x, 0, 1) if batch_first else x
        outputs, *ends = _layers(step, states, x, None, start, flat, settings)
        return (cnp.swapaxes(outputs, 0, 1) if batch_first else outputs, *ends)

    return run


def _packed_places(counts: Any, batch: Any, steps: Any, numbers: Any) -> Any:
    """Positions of the rows of a packed batch in [steps * batch]."""
    ends = cnp.cumsum(counts)
    rows = cnp.arange(numbers)
    step = cnp.searchsorted(ends, rows, side="right")
    return step * batch + rows - cnp.take(ends - counts, step, axis=0)


def _cell(step: Step, states: int) -> Callable[..., Any]:
    def run(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        state = list(hx) if states == 2 else [hx]
        given = cnp.matmul(x, cnp.transpose(w_ih))
        found = step(given if b_ih is None else given + b_ih, cnp.matmul(state[0], cnp.transpose(w_hh)), b_hh, state)
        return tuple(found) if states == 2 else found[0]

    return run


_KINDS = {
    "lstm": (_lstm, 2),
    "gru": (_gru, 1),
    "rnn_tanh": (_plain(cnp.tanh), 1),
    "rnn_relu": (_plain(lambda x: cnp.where(x <= 0, cnp.zeros_like(x), x)), 1),
}
TABLE |= {name: _network(*kind) for name, kind in _KINDS.items()}
TABLE |= {f"{name}_cell": _cell(*kind) for name, kind in _KINDS.items()}


# Packing.


def _pack(x: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
    """The numbers of rows of falling lengths, step by step, and how many rows each step has."""
    x = cnp.swapaxes(x, 0, 1) if batch_first else x
    steps, batch = x.shape[:2]
    alive = cnp.arange(steps)[:, None] < lengths
    counts = cnp.sum(cast(alive, lengths.dtype), 1)
    rows = cnp.reshape(x, (steps * batch, *x.shape[2:]))
    order = _packed_places(counts, batch, steps, cnp.sum(lengths))
    return cnp.take(rows, order, axis=0), counts


def _unpack(data: Any, counts: Any, batch_first: bool, padding: Any, total: Any) -> tuple[Any, Any]:
    batch = counts[0]
    alive = cnp.arange(batch) < counts[:, None]
    places = (cnp.cumsum(counts) - counts)[:, None] + cnp.arange(batch)
    found = cnp.take(data, cnp.where(alive, places, 0), axis=0)
    mask = cnp.reshape(alive, (*alive.shape, *[1] * (data.ndim - 1)))
    found = cnp.where(mask, found, cast(cnp.asarray(padding), data.dtype))
    lengths = cnp.sum(cast(alive, counts.dtype), 0)
    return cnp.swapaxes(found, 0, 1) if batch_first else found, lengths


TABLE["_pack_padded_sequence"] = _pack
TABLE["_pad_packed_sequence"] = _unpack
