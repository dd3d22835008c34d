"""Activations, layers, recurrent cells and losses: functions on pytrees of parameters, which keys make.

>>> cell = lstm_init(cg.random.key(0), 3, 4)
>>> h, c = lstm_cell(cell, (np.zeros(4), np.zeros(4)), np.ones(3))
>>> h.shape
(4,)
"""

from typing import Any

from ctrlgrad.frontend.advice import no_such_name
from ctrlgrad.nn import activations, attention, initializers, layers, modules
from ctrlgrad.nn.activations import *
from ctrlgrad.nn.attention import *
from ctrlgrad.nn.cells import CELLS, Cell, gru_cell, gru_init, lstm_cell, lstm_init, rnn_cell, rnn_init
from ctrlgrad.nn.layers import *
from ctrlgrad.nn.losses import cross_entropy, ctc_loss, softmax_cross_entropy
from ctrlgrad.nn.modules import *

__all__ = [
    "CELLS",
    "Cell",
    "cross_entropy",
    "ctc_loss",
    "gru_cell",
    "gru_init",
    "initializers",
    "lstm_cell",
    "lstm_init",
    "rnn_cell",
    "rnn_init",
    "softmax_cross_entropy",
]
__all__ += activations.__all__
__all__ += attention.__all__
__all__ += layers.__all__
__all__ += modules.__all__


def __getattr__(name: str) -> Any:
    raise no_such_name("ctrlgrad.nn", name, globals())


def __dir__() -> list[str]:
    return sorted(__all__)
