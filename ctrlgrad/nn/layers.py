"""Layers without a state of their own: norms, dropout, tables of embeddings, products of scaled blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.nn.activations import standardize
from ctrlgrad.options import default_float
from ctrlgrad.random.basic import uniform
from ctrlgrad.source import here


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
        raise UserInputError("nn.dropout: not a probability", source=here(), expected="0 <= rate <= 1", got=str(rate))
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

    >>> scaled_matmul(np.ones((1, 1, 4)), np.ones((1, 1, 4)), np.full((1, 1, 2), 2.0), np.ones((1, 1, 2)))
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


__all__ = ["dropout", "embedding", "layer_norm", "rms_norm", "scaled_matmul"]
