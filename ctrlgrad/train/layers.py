"""The kinds of layers that a character model is made of: the recurrent cells of `ctrlgrad.nn`, and a decoder's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import random
from ctrlgrad.advice import check_choice, explains_calls
from ctrlgrad.errors import UserInputError
from ctrlgrad.nn import CELLS, Cell, gelu, gru_init, softmax
from ctrlgrad.nn.layers import fan_in


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer to the model: `init(key, inputs, hidden, dtype)` makes its parameters, `start(lines, hidden, steps,
    dtype)` its state before the first of so many steps, and `step(params, state, x)` the next state, a tuple whose
    first entry is the output `[lines, hidden]`.
    """

    init: Callable[..., Any]
    start: Callable[[int, int, Any, Any], Any]
    step: Callable[[Any, Any, Any], Any]
    peak_learning_rate: float
    # The hidden size is a multiple of this.
    multiple: int = 1


def _torch_gru_init(key: Any, inputs: int, hidden: int, dtype: Any) -> Any:
    """Parameters of `gru_cell` with `bn`: the form of PyTorch's `nn.GRU`, to which a trained model can be exported."""
    return {**gru_init(key, inputs, hidden, dtype), "bn": np.zeros(hidden, dtype)}


def _recurrent(cell: Cell) -> Layer:
    return Layer(cell.init, lambda lines, hidden, steps, dtype: cell.start(lines, hidden, dtype), cell.step, 1e-2)


# Layer of a decoder that reads one symbol at a time: attention to the keys and values so far, kept in a cache.

HEADS = 4
# Of this the hidden size is a multiple: the rotation by position takes the features of each head in pairs.
MULTIPLE = 2 * HEADS
_WAVELENGTH = 10000.0


def decoder_init(key: Any, inputs: int, hidden: int, dtype: Any) -> Any:
    """Parameters of `decoder_step`; `in` is there where the inputs are of another width than the layer."""
    keys = random.split(key, 5)
    params = {
        "qkv": fan_in(keys[0], (hidden, 3 * hidden), dtype),
        "out": fan_in(keys[1], (hidden, hidden), dtype),
        "wide": fan_in(keys[2], (hidden, 2 * hidden), dtype),
        "b": np.zeros(2 * hidden, dtype),
        "narrow": fan_in(keys[3], (2 * hidden, hidden), dtype),
        "norms": np.ones((2, hidden), dtype),
    }
    return params if inputs == hidden else {"in": fan_in(keys[4], (inputs, hidden), dtype), **params}


def decoder_start(batch: int, hidden: int, steps: Any, dtype: Any = np.float32) -> Any:
    """The state before the first step: the output, how many steps there were, and an empty cache for so many."""
    empty = cnp.zeros((steps, batch, HEADS, hidden // HEADS), dtype)
    return np.zeros((batch, hidden), dtype), 0, empty, empty


def decoder_step(params: Any, state: Any, x: Any) -> Any:
    """One step: `x` `[batch, inputs]` attends to itself and to all steps before; the new state's first entry is the
    layer's output.

        x' = x + out(attention(norm(x)))    output = x' + narrow(gelu(wide(norm(x')) + b))

    Sources: Vaswani et al. 2017, "Attention is all you need"; the norms, before each part, are those of Zhang and
    Sennrich 2019, "Root mean square layer normalization"; the rotation by position of Su et al. 2021, "RoFormer".
    """
    _, t, keys, values = state
    if "in" in params:
        x = x @ params["in"]
    query, key, value = _heads(_norm(params["norms"][0], x) @ params["qkv"])
    keys, values = keys.at[t].set(_rotated(key, t)), values.at[t].set(value)
    query = _rotated(query, t) * (query.shape[-1] ** -0.5)
    scores = (keys * query).sum(axis=-1)
    is_past = cnp.arange(keys.shape[0]) <= t
    weights = softmax(cnp.where(is_past[:, None, None], scores, np.asarray(-1e30, scores.dtype)), axis=0)
    found = (weights[..., None] * values).sum(axis=0)
    x = x + found.reshape(x.shape) @ params["out"]
    output = x + gelu(_norm(params["norms"][1], x) @ params["wide"] + params["b"]) @ params["narrow"]
    return output, t + 1, keys, values


def _norm(scale: Any, x: Any) -> Any:
    return scale * x / cnp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)


def _heads(x: Any) -> list[Any]:
    """The three parts of `[batch, 3 * hidden]`, each `[batch, HEADS, features]`."""
    batch, width = x.shape
    return [part.reshape(batch, HEADS, width // 3 // HEADS) for part in cnp.split(x, 3, axis=1)]


def _rotated(x: Any, t: Any) -> Any:
    """Pairs of features, turned by angles in proportion to the position: products tell how far apart two are."""
    half = x.shape[-1] // 2
    wide = np.float64 if x.dtype == np.float64 else np.float32
    angle = cnp.asarray(t).astype(wide) * (_WAVELENGTH ** (-np.arange(half) / half)).astype(wide)
    cos, sin = cnp.cos(angle).astype(x.dtype), cnp.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return cnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


LAYERS = {name: _recurrent(cell) for name, cell in CELLS.items()}
LAYERS["gru"] = _recurrent(replace(CELLS["gru"], init=_torch_gru_init))
LAYERS["transformer"] = Layer(decoder_init, decoder_start, decoder_step, 3e-3, MULTIPLE)


# Weights of recurrent layers by the names, orders and layouts of PyTorch's `nn.LSTM`, `nn.GRU` and `nn.RNN`.


# The order of the gates here, by PyTorch's: input, forget, candidate, output and reset, update, candidate.
_GATES = {"lstm": (0, 1, 3, 2), "gru": (0, 1, 2), "rnn": (0,)}


def _reordered(kind: str, w: np.ndarray) -> np.ndarray:
    """The gates along the last axis in the other library's order; the LSTM's exchange is its own inverse."""
    return np.concatenate([np.split(w, len(_GATES[kind]), axis=-1)[gate] for gate in _GATES[kind]], axis=-1)


@explains_calls
def to_torch(kind: str, layers: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """A `state_dict` of NumPy arrays for PyTorch's `nn.LSTM`, `nn.GRU` or `nn.RNN` of as many layers.

    PyTorch's GRU applies the reset gate after the candidate's product. Only parameters with `bn`, which ask for that
    form here too (`ctrlgrad.nn.gru_cell`), compute the same there. Its `nn.GRU` updates by `(1 - z) n + z h`, as here.

    Args:
        kind: "lstm", "gru" or "rnn".
        layers: the parameters of `ctrlgrad.nn` for each layer, the lowest first.

    Raises `UserInputError` for another kind, and for a GRU without `bn`.

    >>> import ctrlgrad as cg
    >>> state = to_torch("lstm", cg.nn.LSTM(3, 4).init(cg.random.key(0)))
    >>> {name: w.shape for name, w in state.items()}
    {'weight_ih_l0': (16, 3), 'weight_hh_l0': (16, 4), 'bias_ih_l0': (16,), 'bias_hh_l0': (16,)}
    """
    check_choice("train.to_torch", "kind", kind, _GATES)
    found = {}
    for number, layer in enumerate(layers):
        wx, wh, b = (np.asarray(layer[name]) for name in ("wx", "wh", "b"))
        b_hidden = np.zeros_like(b)
        if kind == "gru":
            if "bn" not in layer:
                raise UserInputError(
                    "train.to_torch: this GRU has no counterpart in PyTorch",
                    expected="parameters with bn: the reset gate is applied after the candidate's product",
                    got=", ".join(layer),
                    hint="train with {**params, 'bn': zeros(hidden)}, and export that",
                )
            wh = np.concatenate([wh, np.asarray(layer["wn"])], axis=1)
            b_hidden = np.concatenate([np.zeros(2 * len(layer["bn"]), b.dtype), np.asarray(layer["bn"])])
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        for name, w in zip(names, (wx, wh, b, b_hidden), strict=True):
            found[f"{name}_l{number}"] = np.ascontiguousarray(_reordered(kind, w).T)
    return found


@explains_calls
def from_torch(kind: str, state: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
    """Parameters of `ctrlgrad.nn` for each layer of a `state_dict` of PyTorch's `nn.LSTM`, `nn.GRU` or `nn.RNN`.

    Args:
        kind: "lstm", "gru" or "rnn" (with tanh).
        state: tensors on the CPU or arrays by name; names of other modules are passed over. One direction, with biases.

    Raises `UserInputError` for another kind, and where a layer's names are missing.

    >>> import ctrlgrad as cg
    >>> layers = cg.nn.LSTM(3, 4).init(cg.random.key(0))
    >>> back = from_torch("lstm", to_torch("lstm", layers))
    >>> bool((back[0]["wx"] == layers[0]["wx"]).all())
    True
    """
    check_choice("train.from_torch", "kind", kind, _GATES)
    layers: list[dict[str, np.ndarray]] = []
    while f"weight_ih_l{len(layers)}" in state:
        names = [f"{name}_l{len(layers)}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        missing = [name for name in names if name not in state]
        if missing or f"{names[0]}_reverse" in state:
            raise UserInputError(
                "train.from_torch: the layer cannot be read",
                expected="one direction, with biases",
                got=f"no {', '.join(missing)}" if missing else f"{names[0]}_reverse",
                hint="of a bidirectional layer pass each direction by itself",
            )
        wx, wh, b, b_hidden = (_reordered(kind, np.asarray(state[name]).T) for name in names)
        if kind != "gru":
            layers.append({"wx": wx, "wh": wh, "b": b + b_hidden})
            continue
        wide = 2 * wh.shape[0]
        b = b + np.concatenate([b_hidden[:wide], np.zeros_like(b_hidden[wide:])])
        layers.append({"wx": wx, "wh": wh[:, :wide].copy(), "b": b, "wn": wh[:, wide:].copy(), "bn": b_hidden[wide:]})
    if not layers:
        raise UserInputError(
            "train.from_torch: no layer is named",
            expected="names such as weight_ih_l0, as in the state_dict of the recurrent module itself",
            got=", ".join(list(state)[:4]) or "nothing",
            hint="model.lstm.state_dict(), not model.state_dict()",
        )
    return layers
