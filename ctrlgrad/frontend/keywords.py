"""Advice for keywords of other libraries: `adam(lr=...)` names the argument that takes its place."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

_KEY = "parameters are made by layer.init(ctrlgrad.random.key(0))"
# Advice by keyword, for functions without an argument of that name.
_INSTEAD = {
    "lr": "learning_rate={0}",
    "betas": "b1=..., b2=...",
    "beta1": "b1={0}",
    "beta2": "b2={0}",
    "alpha": "decay={0}",
    "epsilon": "eps={0}",
    "weight_decay": "ctrlgrad.optim.adamw(rate, weight_decay={0}), or\n"
    "ctrlgrad.optim.chain(ctrlgrad.optim.add_decayed_weights({0}), optimiser)",
    "maximize": "ctrlgrad.optim.chain(ctrlgrad.optim.scale(-1.0), optimiser)",
    "params": "optimiser.init(params) makes the state",
    "in_features": "inputs={0}",
    "input_size": "inputs={0}",
    "in_size": "inputs={0}",
    "out_features": "outputs={0}",
    "out_size": "outputs={0}",
    "hidden_size": "hidden={0}",
    "num_layers": "layers={0}",
    "use_bias": "bias={0}",
    "num_embeddings": "words={0}",
    "embedding_dim": "features={0}",
    "embedding_size": "features={0}",
    "normalized_shape": "features={0}",
    "shape": "features={0}",
    "embed_dim": "features={0}",
    "query_size": "features={0}",
    "num_heads": "heads={0}",
    "batch_first": "sequences are [time, batch, inputs]: ctrlgrad.numpy.swapaxes(xs, 0, 1)",
    "bidirectional": "call one layer on xs and another one on ctrlgrad.numpy.flip(xs, 0), and join their outputs",
    "dropout": "ctrlgrad.nn.dropout(key, x, {0}) between layers",
    "p": "rate={0}",
    "key": _KEY,
    "rngs": _KEY,
    "device": "arrays lie where they are made; with engine='cuda' results stay on the card",
    "dtype": "layer.init(key, dtype={0})",
    "ignore_index": "where=targets != {0}",
    "reduction": "the mean is returned; ctrlgrad.vmap of the loss gives that of each row",
    "training": "call ctrlgrad.nn.dropout in training only",
    "inplace": "a function returns a new array",
}


def instead_of_keyword(keyword: str, value: Any, known: Sequence[str]) -> str | None:
    """Advice for a keyword that a function with the `known` parameters does not have; None if there is none."""
    hint = _INSTEAD.get(keyword, "").format(repr(value))
    argument = hint.partition("=")[0]
    if hint and not (argument.isidentifier() and argument not in known):
        return hint
    close = difflib.get_close_matches(keyword, known, 1)
    return f"{close[0]}={value!r}" if close else None
