"""The kinds of layers that a character model is made of: the recurrent cells of `ctrlgrad.nn`, and a decoder's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ctrlgrad.nn import CELLS, Cell
from ctrlgrad.train.decoder import MULTIPLE, decoder_init, decoder_start, decoder_step


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


def _recurrent(cell: Cell) -> Layer:
    return Layer(cell.init, lambda lines, hidden, steps, dtype: cell.start(lines, hidden, dtype), cell.step, 1e-2)


LAYERS = {name: _recurrent(cell) for name, cell in CELLS.items()}
LAYERS["transformer"] = Layer(decoder_init, decoder_start, decoder_step, 3e-3, MULTIPLE)
