"""Layers as functions of their parameters: norms, dropout, embeddings, recurrent cells, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import random
from ctrlgrad.dtypes import as_dtype, dtype_kind, finfo
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.array.promote import size_argument, whole_number
from ctrlgrad.lax.indexing import dynamic_update_slice_in_dim
from ctrlgrad.nn import initializers
from ctrlgrad.nn.functions import standardize
from ctrlgrad.ops.term import require_integers
from ctrlgrad.options import default_float
from ctrlgrad.random.distributions import uniform


def layer_norm(x: Any, scale: Any = None, bias: Any = None, axis: Any = -1, epsilon: float = 1e-5) -> Any:
    """x with mean 0 and variance 1 along axes, times `scale` plus `bias` where they are given.

    Source: Ba, Kiros and Hinton, "Layer normalization" (2016).

    >>> layer_norm(np.array([1.0, 3.0]), epsilon=0.0)
    array([-1.,  1.])
    """
    found = standardize(x, axis, epsilon=epsilon)
    found = found if scale is None else found * scale
    return found if bias is None else found + bias


def rms_norm(x: Any, scale: Any = None, axis: Any = -1, epsilon: float = 1e-6) -> Any:
    """x with mean square 1 along axes, times `scale` where it is given.

    Source: Zhang and Sennrich, "Root mean square layer normalization" (2019).

    >>> rms_norm(np.array([3.0, 3.0]), epsilon=0.0)
    array([1., 1.])
    """
    x = cnp.asarray(x)
    x = x if dtype_kind(x.dtype) in "fc" else x.astype(default_float())
    found = x / cnp.sqrt(cnp.mean(x * x, axis, keepdims=True) + epsilon)
    return found if scale is None else found * scale


def dropout(key: Any, x: Any, rate: float, *, deterministic: bool = False) -> Any:
    """x with each element set to 0 with probability `rate`, and divided by 1 - rate otherwise.

    Args:
        key: of `ctrlgrad.random.key`.
        deterministic: x as it is, as for evaluation.

    >>> sorted({float(v) for v in dropout(cg.random.key(0), np.ones(20), 0.5)})
    [0.0, 2.0]
    """
    if not 0 <= rate <= 1:
        raise UserInputError("nn.dropout: not a probability", expected="0 <= rate <= 1", got=str(rate))
    x = cnp.asarray(x)
    if deterministic or rate == 0:
        return x
    if rate == 1:
        return cnp.zeros_like(x)
    is_kept = uniform(key, x.shape, np.float32) >= np.float32(rate)
    return cnp.where(is_kept, x / (1 - rate), 0)


def embedding(table: Any, ids: Any) -> Any:
    """The rows of a table `[words, features]` at integers: `[*ids.shape, features]`.

    >>> embedding(np.eye(3), np.array([2, 0]))
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """
    ids = cnp.asarray(ids)
    require_integers("nn.embedding", "the ids", ids.dtype)
    return cnp.take(table, ids, axis=0)


def scaled_matmul(
    lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = np.float32
) -> Any:
    """The product of matrices whose rows are blocks with a scale each; as `jax.nn.scaled_matmul`.

    Args:
        lhs, rhs: `[batch, rows, depth]` and `[batch, columns, depth]`.
        lhs_scales, rhs_scales: `[batch, rows, blocks]` and `[batch, columns, blocks]`; blocks divide the depth.

    Returns:
        `[batch, rows, columns]`.

    >>> a, b = np.ones((2, 1, 1, 4))
    >>> scaled_matmul(a, b, np.full((1, 1, 2), 2.0), np.ones((1, 1, 2)))
    array([[[8.]]], dtype=float32)
    """
    wide = []
    for x, scales in ((lhs, lhs_scales), (rhs, rhs_scales)):
        x, scales = cnp.asarray(x), cnp.asarray(scales)
        if x.ndim != 3 or scales.ndim != 3 or x.shape[-1] % scales.shape[-1]:
            raise ShapeError(
                "nn.scaled_matmul: the scales do not fit",
                expected="[batch, rows, depth] and [batch, rows, blocks], the depth a multiple of the blocks",
                got=f"{tuple(x.shape)} and {tuple(scales.shape)}",
            )
        each = cnp.repeat(scales.astype(preferred_element_type), x.shape[-1] // scales.shape[-1], axis=-1)
        wide.append(x.astype(preferred_element_type) * each)
    return cnp.matmul(wide[0], cnp.matrix_transpose(wide[1]))


# Recurrent cells: pure functions `(params, state, x) -> state`, with functions that initialise their parameters.
#
# `x` is `[inputs]` or `[batch, inputs]`; a state is a tuple of arrays `[hidden]` or `[batch, hidden]`, of which the
# first is the cell's output. Parameters are dicts of arrays: `wx` `[inputs, gates * hidden]`, `wh` `[hidden, gates *
# hidden]` and `b` `[gates * hidden]`, the gates side by side so that one product computes all of them (a GRU's
# candidate has `wn` `[hidden, hidden]` of its own). Their dtype is the default float's where none is given. Without
# `wx` in the parameters, `x` is the product `x wx` itself, `[..., gates * hidden]`: a program may compute those of a
# whole sequence at once.


Params = dict[str, Any]
State = tuple[Any, ...]


def check_key(operation: str, key: Any) -> None:
    """Refuse a generator of NumPy or a bare seed in the place of a key."""
    if isinstance(key, np.random.Generator | np.random.RandomState | int):
        raise TypeMismatchError(
            f"{operation}: the first argument is no key",
            expected="a key of ctrlgrad.random.key, uint32[2]",
            got=f"{key}" if isinstance(key, int) else type(key).__name__,
            hint="ctrlgrad.random.key(seed) makes one, and ctrlgrad.random.split(key) several of it",
        )


def fan_in(key: Any, shape: tuple[int, int], dtype: Any = None) -> Any:
    """A matrix `[inputs, outputs]`, uniform in plus or minus `1 / sqrt(inputs)`.

    >>> fan_in(random.key(0), (4, 3)).shape
    (4, 3)
    """
    bound = 1.0 / np.sqrt(max(1, shape[0]))
    return random.uniform(key, shape, default_float() if dtype is None else dtype, -bound, bound)


def _init(operation: str, key: Any, inputs: int, hidden: int, gates: int, dtype: Any) -> Params:
    """Weights of all gates; an orthogonal block for each gate keeps lengths in the first iterations.

    Source of the blocks: Saxe, McClelland and Ganguli 2014, "Exact solutions to the nonlinear dynamics of learning in
    deep linear neural networks".
    """
    check_key(operation, key)
    dtype = default_float() if dtype is None else as_dtype(operation, dtype)
    first, *keys = random.split(key, gates + 1)
    blocks = [initializers.orthogonal()(k, (hidden, hidden), np.float64).astype(dtype) for k in keys]
    return {
        "wx": fan_in(first, (inputs, gates * hidden), np.float64).astype(dtype),
        "wh": cnp.concatenate(blocks, axis=1),
        "b": cnp.zeros(gates * hidden, dtype),
    }


def _checked(operation: str, params: Params, state: Any, x: Any, names: str) -> tuple[State, Any]:
    """The state and the input of a step as arrays; raises where one does not fit the parameters."""
    names_of = names.split(", ")
    form = f"({names}{',' * (len(names_of) == 1)})"
    if not isinstance(state, tuple | list) or len(state) != len(names_of):
        kind = f"a {type(state).__name__} of {len(state)}" if isinstance(state, tuple | list) else "a single array"
        raise TypeMismatchError(
            f"{operation}: the state is no tuple {form}",
            expected=f"the tuple {form}, as the step returns it",
            got=kind,
            hint=f"state = {form}; cell.start(batch, hidden) of nn.CELLS makes one of zeros",
        )
    x, state = cnp.asarray(x), tuple(cnp.asarray(s) for s in state)
    inputs, hidden = params["wx" if "wx" in params else "b"].shape[0], params["wh"].shape[0]
    states = [(f"the state {name}", array, hidden, "hidden") for name, array in zip(names_of, state, strict=True)]
    for what, array, size, axis in (("the input x", x, inputs, "inputs"), *states):
        if array.ndim not in (1, 2) or differ(array.shape[-1:], (size,)):
            raise ShapeError(
                f"{operation}: {what} does not fit the parameters",
                expected=f"[{axis}] or [batch, {axis}] with {axis} = {size}",
                got=str(tuple(array.shape)),
                hint=f"the parameters are of {inputs} inputs and a state of {hidden}; in a loop the input is x[t]",
            )
        if array.ndim != x.ndim or (x.ndim == 2 and differ(array.shape[:1], x.shape[:1])):
            raise ShapeError(
                f"{operation}: {what} and the input x have different batches",
                expected=f"{(*x.shape[:-1], hidden)}",
                got=str(tuple(array.shape)),
                hint="state and input are both of one sequence, or both of the same batch",
            )
    return state, x


def _product(params: Params, x: Any) -> Any:
    """The gates' part of the input, which may be given as such."""
    return x @ params["wx"] if "wx" in params else x


def differ(sizes: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return true if known sizes are not the expected ones; an unknown size fits any."""
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(sizes, expected, strict=False))


def rnn_init(key: Any, inputs: int, hidden: int, dtype: Any = None) -> Params:
    """Parameters of `rnn_cell`: `wx` `[inputs, hidden]`, `wh` `[hidden, hidden]`, `b` `[hidden]`.

    >>> rnn_init(random.key(0), 3, 4)["wx"].shape
    (3, 4)
    """
    return _init("nn.rnn_init", key, inputs, hidden, 1, dtype)


def rnn_cell(params: Params, state: State, x: Any) -> State:
    """One step of a simple recurrent network: `h' = tanh(x wx + h wh + b)`; the state is `(h,)`.

    Source: Elman 1990, "Finding structure in time".

    >>> (h,) = rnn_cell(rnn_init(random.key(0), 3, 4), (np.zeros((2, 4)),), np.ones((2, 3)))
    >>> h.shape, h.dtype
    ((2, 4), dtype('float64'))
    """
    (h,), x = _checked("nn.rnn_cell", params, state, x, "h")
    return (cnp.tanh(_product(params, x) + h @ params["wh"] + params["b"]),)


def lstm_init(key: Any, inputs: int, hidden: int, dtype: Any = None) -> Params:
    """Parameters of `lstm_cell`; the forget gates start open (bias 1), so that memory lasts from the first step on.

    Source of the bias: Jozefowicz, Zaremba and Sutskever 2015, "An empirical exploration of recurrent network
    architectures".

    >>> lstm_init(random.key(0), 3, 2)["b"]
    array([0., 0., 1., 1., 0., 0., 0., 0.])
    """
    params = _init("nn.lstm_init", key, inputs, hidden, 4, dtype)
    gate = cnp.arange(4 * hidden) // max(1, hidden)
    return {**params, "b": (gate == 1).astype(params["b"].dtype)}


def lstm_cell(params: Params, state: State, x: Any) -> State:
    """One step of a long short-term memory; the state is `(h, c)`, the gates are input, forget, output, candidate.

        i, f, o = sigmoid(...)    g = tanh(...)    c' = f c + i g    h' = o tanh(c')

    Source: Hochreiter and Schmidhuber 1997, "Long short-term memory"; the forget gate is of Gers, Schmidhuber and
    Cummins 2000, "Learning to forget: continual prediction with LSTM".

    >>> zero = np.zeros((2, 4))
    >>> h, c = lstm_cell(lstm_init(random.key(0), 3, 4), (zero, zero), np.ones((2, 3)))
    >>> h.shape, c.shape, h.dtype
    ((2, 4), (2, 4), dtype('float64'))
    """
    (h, c), x = _checked("nn.lstm_cell", params, state, x, "h, c")
    hidden = params["wh"].shape[0]
    z = _product(params, x) + h @ params["wh"] + params["b"]
    gates = cnp.sigmoid(z[..., : 3 * hidden])
    i, f, o = gates[..., :hidden], gates[..., hidden : 2 * hidden], gates[..., 2 * hidden :]
    c = f * c + i * cnp.tanh(z[..., 3 * hidden :])
    return o * cnp.tanh(c), c


def gru_init(key: Any, inputs: int, hidden: int, dtype: Any = None) -> Params:
    """Parameters of `gru_cell`.

    >>> sorted(gru_init(random.key(0), 3, 4))
    ['b', 'wh', 'wn', 'wx']
    """
    params = _init("nn.gru_init", key, inputs, hidden, 3, dtype)
    # The candidate's part of `wh` is a matrix of its own: a slice would be cut, and its gradient padded, every step.
    wh = params["wh"]
    return {**params, "wh": cnp.copy(wh[:, : 2 * hidden]), "wn": cnp.copy(wh[:, 2 * hidden :])}


def gru_cell(params: Params, state: State, x: Any) -> State:
    """One step of a gated recurrent unit; the state is `(h,)`, the gates are reset, update, candidate.

        r, z = sigmoid(...)    n = tanh(x wx + (r h) wn + b)    h' = z h + (1 - z) n

    PyTorch's `nn.GRU` multiplies r after the product, `r (h wn + b_hn)`: parameters that hold `bn` `[hidden]` ask for
    that form, with `bn` in the place of `b_hn`.

    Source: Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation", equations 5 to 8.

    >>> (h,) = gru_cell(gru_init(random.key(0), 3, 4), (np.zeros((2, 4)),), np.ones((2, 3)))
    >>> h.shape, h.dtype
    ((2, 4), dtype('float64'))
    """
    (h,), x = _checked("nn.gru_cell", params, state, x, "h")
    hidden = params["wh"].shape[0]
    from_x = _product(params, x) + params["b"]
    gates = cnp.sigmoid(from_x[..., : 2 * hidden] + h @ params["wh"])
    r, z = gates[..., :hidden], gates[..., hidden:]
    from_h = r * (h @ params["wn"] + params["bn"]) if "bn" in params else (r * h) @ params["wn"]
    n = cnp.tanh(from_x[..., 2 * hidden :] + from_h)
    return (n + z * (h - n),)


@dataclass(frozen=True, slots=True)
class Cell:
    """Interface of a cell of any kind."""

    init: Callable[..., Params]
    step: Callable[[Params, State, Any], State]
    states: int

    def start(self, batch: int | None, hidden: int, dtype: Any = None) -> State:
        """The state before the first step: zeros `[batch, hidden]`, or `[hidden]` where `batch` is None."""
        shape = (hidden,) if batch is None else (batch, hidden)
        return tuple(cnp.zeros(shape, dtype) for _ in range(self.states))


CELLS = {"lstm": Cell(lstm_init, lstm_cell, 2), "gru": Cell(gru_init, gru_cell, 1), "rnn": Cell(rnn_init, rnn_cell, 1)}


# Attention: over whole sequences, or one step at a time with a cache of earlier keys and values.


Cache = dict[str, Any]


def _lengths(lengths: Any, count: int) -> Any:
    """Mask of the positions that lie within each sequence: [batch, count]."""
    return np.arange(count) < cnp.asarray(lengths)[:, None]


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Any = None,
) -> Any:
    """softmax(query key^T scale + bias) value, head by head; as `jax.nn.dot_product_attention`.

    Args:
        query: `[batch, queries, heads, features]`, or without the batch. `key` and `value` are alike, with as many
            keys; their heads divide those of the query.
        bias: added to the logits `[batch, heads, queries, keys]`, to which it broadcasts.
        mask: of the same form: where it is false a key is not looked at.
        scale: 1 / sqrt(features) if not given.
        is_causal: whether a query looks at the keys up to its own place alone.
        query_seq_lengths, key_value_seq_lengths: `[batch]`, how many of the queries and keys count; the result of the
            other queries is 0.
        local_window_size: how far a query looks back and ahead.

    >>> query, key, value = np.ones((2, 1, 4)), np.ones((3, 1, 4)), np.ones((3, 1, 5))
    >>> dot_product_attention(query, key, value).shape
    (2, 1, 5)
    """
    query, key, value = cnp.asarray(query), cnp.asarray(key), cnp.asarray(value)
    if query.ndim == 3:
        bias, mask = (cnp.expand_dims(x, 0) if x is not None and x.ndim == 3 else x for x in (bias, mask))
        return dot_product_attention(
            query[None],
            key[None],
            value[None],
            bias,
            mask,
            scale=scale,
            is_causal=is_causal,
            query_seq_lengths=query_seq_lengths,
            key_value_seq_lengths=key_value_seq_lengths,
            local_window_size=local_window_size,
        )[0]
    if query.shape[2] % key.shape[2]:
        raise ShapeError(
            "nn.dot_product_attention: the keys' heads do not divide the query's",
            expected=f"heads that divide {query.shape[2]}",
            got=str(key.shape[2]),
        )
    groups = query.shape[2] // key.shape[2]
    if groups > 1:
        key, value = cnp.repeat(key, groups, axis=2), cnp.repeat(value, groups, axis=2)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = cnp.einsum("bqhd,bkhd->bhqk", query, key) * factor
    logits = logits if bias is None else logits + bias
    ahead = cnp.arange(key.shape[1])[None] - cnp.arange(query.shape[1])[:, None]
    looked = [] if mask is None else [cnp.asarray(mask)]
    if is_causal:
        looked.append(ahead <= 0)
    if local_window_size is not None:
        sides: Any = (local_window_size,) * 2 if cnp.ndim(local_window_size) == 0 else local_window_size
        pair = [size_argument("nn.dot_product_attention", "local_window_size", n, least=0) for n in sides]
        looked.append((ahead >= -pair[0]) & (ahead <= pair[1]))
    if key_value_seq_lengths is not None:
        looked.append(_lengths(key_value_seq_lengths, key.shape[1])[:, None, None])
    for mask in looked:
        logits = cnp.where(mask, logits, np.asarray(-0.7 * finfo(logits.dtype).max, logits.dtype))
    found = cnp.einsum("bhqk,bkhd->bqhd", cnp.softmax(logits, -1), value)
    if query_seq_lengths is None:
        return found
    return cnp.where(_lengths(query_seq_lengths, query.shape[1])[:, :, None, None], found, 0)


def attention_cache(batch: int, length: int, heads: int, features: int, dtype: Any = np.float32) -> Cache:
    """An empty cache of keys and values for `attend`: for so many steps.

    >>> attention_cache(1, 8, 2, 4)["key"].shape
    (1, 8, 2, 4)
    """
    sizes = {"batch": batch, "length": length, "heads": heads, "features": features}
    shape = [whole_number("nn.attention_cache", what, n, least=0) for what, n in sizes.items()]
    return {"key": np.zeros(shape, dtype), "value": np.zeros(shape, dtype), "length": np.int64(0)}


def attend(
    cache: Cache, query: Any, key: Any, value: Any, *, bias: Any = None, scale: float | None = None
) -> tuple[Any, Cache]:
    """The attention of the next steps to all steps so far and among themselves, and the cache with these steps.

    Args:
        cache: of `attention_cache`, as the carry of a loop.
        query, key, value: `[batch, steps, heads, features]` of the steps that follow those in the cache.

    Returns:
        The result `[batch, steps, heads, features]`, and the new cache. Beyond the cache's length steps are written
        over its last ones.

    >>> cache = attention_cache(1, 8, 2, 4)
    >>> found, cache = attend(cache, *[np.ones((1, 1, 2, 4), np.float32)] * 3)
    >>> found.shape, int(cache["length"])
    ((1, 1, 2, 4), 1)
    """
    query, start = cnp.asarray(query), cnp.asarray(cache["length"])
    keys = dynamic_update_slice_in_dim(cache["key"], key, start, 1)
    values = dynamic_update_slice_in_dim(cache["value"], value, start, 1)
    places = start + np.arange(query.shape[1])
    seen = np.arange(keys.shape[1]) <= places[:, None]
    found = dot_product_attention(query, keys, values, bias, seen, scale=scale)
    return found, {"key": keys, "value": values, "length": start + query.shape[1]}


__all__ = [
    "CELLS", "Cell", "attend", "attention_cache", "dot_product_attention", "dropout", "embedding", "gru_cell",
    "gru_init", "layer_norm", "lstm_cell", "lstm_init", "rms_norm", "rnn_cell", "rnn_init", "scaled_matmul",
]  # fmt: skip
