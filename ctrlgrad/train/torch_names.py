"""Weights of recurrent layers by the names, orders and layouts of PyTorch's `nn.LSTM`, `nn.GRU` and `nn.RNN`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.errors import UserInputError

# The order of the gates here, by PyTorch's: input, forget, candidate, output and reset, update, candidate.
_GATES = {"lstm": (0, 1, 3, 2), "gru": (0, 1, 2), "rnn": (0,)}


def _reordered(kind: str, w: np.ndarray) -> np.ndarray:
    """The gates along the last axis in the other library's order; the LSTM's exchange is its own inverse."""
    return np.concatenate([np.split(w, len(_GATES[kind]), axis=-1)[gate] for gate in _GATES[kind]], axis=-1)


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
