"""Layers by PyTorch's names: an object holds the sizes and options, and its parameters are a separate pytree.

`layer.init(key)` makes the parameters, and `layer(params, x)` applies them. Nothing is stored in the object, so that
gradients, optimisers and checkpoints take the parameters as any other pytree:

    >>> layer = Linear(3, 2)
    >>> params = layer.init(cg.random.key(0))
    >>> layer(params, np.ones((5, 3))).shape, sorted(params)
    ((5, 2), ['b', 'w'])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import random
from ctrlgrad.advice import no_such_attribute
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.loops import while_loop
from ctrlgrad.frontend.tensor_array import TensorArray
from ctrlgrad.nn.layers import (
    CELLS,
    Params,
    State,
    check_key,
    differ,
    dot_product_attention,
    embedding,
    fan_in,
    layer_norm,
)
from ctrlgrad.ops.term import require_integers
from ctrlgrad.options import default_float


def _fits(operation: str, x: Any, size: int, least: int = 1) -> Any:
    """The input as an array; raises `ShapeError` where its last axis is not `size`."""
    x = cnp.asarray(x)
    if x.ndim < least or differ(x.shape[-1:], (size,)):
        raise ShapeError(
            f"{operation}: the input does not fit the layer",
            expected=f"a last axis of {size}" + (f", of {least} axes or more" if least > 1 else ""),
            got=str(tuple(x.shape)),
            hint=f"the layer was made for {size} features: they are the last axis",
        )
    return x


def _lengths(operation: str, lengths: Any, xs: Any) -> Any:
    """The lengths of sequences `[time, batch, features]` as an array; raises where they are of something else."""
    lengths = cnp.asarray(lengths)
    require_integers(operation, "the lengths", lengths.dtype)
    batch = tuple(xs.shape[1:-1])
    if lengths.ndim and (lengths.ndim != len(batch) or differ(lengths.shape, batch)):
        raise ShapeError(
            f"{operation}: the lengths do not fit the sequences",
            expected=f"a length for each sequence of the batch, {list(batch)}: the sequences are [time, batch, inputs]",
            got=f"lengths {list(lengths.shape)} for sequences {list(xs.shape)}",
            hint="of sequences [batch, time, inputs]: ctrlgrad.numpy.swapaxes(xs, 0, 1)",
        )
    if isinstance(lengths, np.ndarray) and isinstance(xs.shape[0], int) and lengths.size:
        least, most = int(lengths.min()), int(lengths.max())
        if least < 0 or most > xs.shape[0]:
            raise ShapeError(
                f"{operation}: a length is not within the sequences",
                expected=f"0 <= length <= {xs.shape[0]}, the number of steps",
                got=str(least if least < 0 else most),
                hint="of sequences [batch, time, inputs]: ctrlgrad.numpy.swapaxes(xs, 0, 1)",
            )
    return lengths


class Layer:
    """An object without parameters of its own: an attribute of another library's layers is an error with advice."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_attribute("a layer", self, name)


@dataclass(frozen=True)
class Linear(Layer):
    """`x w + b`, with `w` `[inputs, outputs]` and `b` `[outputs]`; `x` is `[..., inputs]`.

    >>> layer = Linear(3, 2, bias=False)
    >>> layer({"w": cnp.ones((3, 2))}, cnp.ones(3))
    array([3., 3.])
    """

    inputs: int
    outputs: int
    bias: bool = True

    def init(self, key: Any, dtype: Any = None) -> Params:
        """Parameters, uniform in plus or minus `1 / sqrt(inputs)`; `b` is zero."""
        check_key("nn.Linear", key)
        params = {"w": fan_in(key, (self.inputs, self.outputs), dtype)}
        return {**params, "b": cnp.zeros(self.outputs, dtype)} if self.bias else params

    def __call__(self, params: Params, x: Any) -> Any:
        y = _fits("nn.Linear", x, self.inputs) @ params["w"]
        return y + params["b"] if self.bias else y


@dataclass(frozen=True)
class Embedding(Layer):
    """Rows of a table `[words, features]` at integers: `[*ids.shape, features]`.

    >>> layer = Embedding(10, 4)
    >>> layer(layer.init(random.key(0)), cnp.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    words: int
    features: int

    def init(self, key: Any, dtype: Any = None) -> Params:
        """Parameters `table`, normal with standard deviation 1."""
        check_key("nn.Embedding", key)
        shape = (self.words, self.features)
        return {"table": random.normal(key, shape, default_float() if dtype is None else dtype)}

    def __call__(self, params: Params, ids: Any) -> Any:
        return embedding(params["table"], ids)


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Mean 0 and variance 1 along the last axis, times `scale` plus `bias`, each `[features]`.

    >>> layer = LayerNorm(2)
    >>> layer(layer.init(random.key(0)), cnp.array([1.0, 3.0])).round(3)
    array([-1.,  1.])
    """

    features: int
    epsilon: float = 1e-5

    def init(self, key: Any = None, dtype: Any = None) -> Params:
        """Parameters: scale 1 and bias 0; the key is not used."""
        return {"scale": cnp.ones(self.features, dtype), "bias": cnp.zeros(self.features, dtype)}

    def __call__(self, params: Params, x: Any) -> Any:
        x = _fits("nn.LayerNorm", x, self.features)
        return layer_norm(x, params["scale"], params["bias"], epsilon=self.epsilon)


@dataclass(frozen=True)
class MultiHeadAttention(Layer):
    """Attention of `heads` heads over `features` in all; parameters are `query`, `key`, `value` and `out`, each as of
    `Linear`.

    Source: Vaswani et al. 2017, "Attention is all you need".

    >>> layer = MultiHeadAttention(8, 2)
    >>> layer(layer.init(random.key(0)), cnp.ones((5, 3, 8)), is_causal=True).shape
    (5, 3, 8)
    """

    features: int
    heads: int
    bias: bool = True

    def __post_init__(self) -> None:
        if self.heads < 1 or self.features % self.heads:
            raise UserInputError(
                "nn.MultiHeadAttention: the heads do not divide the features",
                expected=f"a number of heads that divides {self.features}",
                got=str(self.heads),
                hint="each head has features / heads of them",
            )

    def init(self, key: Any, dtype: Any = None) -> Params:
        """Parameters of the four products."""
        check_key("nn.MultiHeadAttention", key)
        layer = Linear(self.features, self.features, self.bias)
        keys = random.split(key, 4)
        return {name: layer.init(k, dtype) for name, k in zip(("query", "key", "value", "out"), keys, strict=True)}

    def __call__(
        self,
        params: Params,
        query: Any,
        key: Any = None,
        value: Any = None,
        *,
        mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """The attention of `query` `[batch, queries, features]` to `key` and `value` `[batch, keys, features]`.

        All may lack the batch. `key` is `query` where it is not given, and `value` is `key`; `mask` is as of
        `dot_product_attention`.
        """
        key = query if key is None else key
        value = key if value is None else value
        layer = Linear(self.features, self.features, self.bias)

        def split(name: str, x: Any) -> Any:
            y = layer(params[name], _fits("nn.MultiHeadAttention", x, self.features, 2))
            return y.reshape(*y.shape[:-1], self.heads, self.features // self.heads)

        found = dot_product_attention(
            split("query", query), split("key", key), split("value", value), mask=mask, is_causal=is_causal
        )
        return layer(params["out"], found.reshape(*found.shape[:-2], self.features))


@dataclass(frozen=True)
class RecurrentLayers(Layer):
    """Layers of a cell of `CELLS`, run over sequences of which each has its own length."""

    inputs: int
    hidden: int
    layers: int = 1
    kind = ""

    def init(self, key: Any, dtype: Any = None) -> list[Params]:
        """Parameters: those of the cell for each layer."""
        check_key(f"nn.{type(self).__name__}", key)
        sizes = [self.inputs] + [self.hidden] * (self.layers - 1)
        keys = random.split(key, self.layers)
        return [CELLS[self.kind].init(k, n, self.hidden, dtype) for k, n in zip(keys, sizes, strict=True)]

    def __call__(
        self, params: list[Params], xs: Any, lengths: Any = None, state: Any = None
    ) -> tuple[Any, list[State]]:
        """Run over a sequence; returns the outputs of the last layer and the state of every layer.

        Args:
            params: of `init`.
            xs: `[time, batch, inputs]`, or `[time, inputs]`.
            lengths: integers `[batch]`, or a scalar: how many steps of each sequence count. A state stays as it was
                after the last one, outputs beyond it are 0, and the loop ends with the longest sequence. Traced lengths
                above the number of steps count as that number.
            state: for each layer the cell's state; zeros where it is not given.

        Returns:
            `[time, batch, hidden]` (or `[time, hidden]`) and a list of states.

        Raises `TypeMismatchError` for parameters that are not of `init` and for lengths that are no integers,
        `ShapeError` for sequences or lengths that do not fit.
        """
        operation = f"nn.{type(self).__name__}"
        if not isinstance(params, list | tuple) or not all(isinstance(layer, dict) for layer in params):
            raise TypeMismatchError(
                f"{operation}: the first argument is not the layer's parameters",
                expected=f"a list of {self.layers} dicts of arrays, as `init` makes it",
                got=type(params).__name__,
                hint="params = layer.init(key), then layer(params, xs, lengths)",
            )
        xs = _fits(operation, xs, self.inputs, 2)
        cell, dtype, steps = CELLS[self.kind], params[0]["wh"].dtype, xs.shape[0]
        shape = (*xs.shape[1:-1], self.hidden)
        if state is None:
            state = [tuple(cnp.zeros(shape, dtype) for _ in range(cell.states)) for _ in params]
        lengths = None if lengths is None else _lengths(operation, lengths, xs)

        def step(carry: Any) -> Any:
            t, states, outputs = carry
            x, after = xs[t], []
            is_running = None if lengths is None else cnp.expand_dims(t < lengths, -1)
            for layer, before in zip(params, states, strict=True):
                found = cell.step(layer, before, x)
                x = found[0]
                if is_running is not None:
                    found = tuple(cnp.where(is_running, new, old) for new, old in zip(found, before, strict=True))
                after.append(found)
            x = x if is_running is None else cnp.where(is_running, x, 0)
            return t + 1, after, outputs.write(t, x)

        last = steps if lengths is None else cnp.minimum(cnp.max(lengths), steps)
        outputs = TensorArray(dtype, size=steps, element_shape=shape)
        first = (0, [tuple(s) for s in state], outputs)
        _, states, outputs = while_loop(lambda carry: carry[0] < last, step, first, name=self.kind)
        return outputs.stack(), states


@dataclass(frozen=True)
class RNN(RecurrentLayers):
    """Layers of `rnn_cell` over sequences `[time, batch, inputs]`.

    >>> layer = RNN(3, 4)
    >>> outputs, [(h,)] = layer(layer.init(random.key(0)), cnp.ones((7, 2, 3)))
    >>> outputs.shape, h.shape
    ((7, 2, 4), (2, 4))
    """

    kind = "rnn"


@dataclass(frozen=True)
class GRU(RecurrentLayers):
    """Layers of `gru_cell` over sequences `[time, batch, inputs]`.

    >>> layer = GRU(3, 4, layers=2)
    >>> params, x = layer.init(random.key(0)), cnp.ones((7, 2, 3))
    >>> outputs, states = layer(params, x, lengths=cnp.array([7, 5]))
    >>> outputs.shape, len(states), outputs[6, 1]
    ((7, 2, 4), 2, array([0., 0., 0., 0.]))
    """

    kind = "gru"


@dataclass(frozen=True)
class LSTM(RecurrentLayers):
    """Layers of `lstm_cell` over sequences `[time, batch, inputs]`, each as long as `lengths` says.

    >>> layer = LSTM(3, 4)
    >>> outputs, [(h, c)] = layer(layer.init(random.key(0)), cnp.ones((7, 3)))
    >>> outputs.shape, c.shape
    ((7, 4), (4,))
    """

    kind = "lstm"


__all__ = ["GRU", "LSTM", "RNN", "Embedding", "LayerNorm", "Linear", "MultiHeadAttention"]
