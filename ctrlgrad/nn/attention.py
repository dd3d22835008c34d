"""Attention, whole or one step at a time with the keys and values of the steps before in a cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import finfo
from ctrlgrad.errors import ShapeError
from ctrlgrad.lax.indexing import dynamic_update_slice_in_dim

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

    >>> dot_product_attention(np.ones((2, 1, 4)), np.ones((3, 1, 4)), np.ones((3, 1, 5))).shape
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
        pair = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
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
    shape = (batch, length, heads, features)
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


__all__ = ["attend", "attention_cache", "dot_product_attention"]
