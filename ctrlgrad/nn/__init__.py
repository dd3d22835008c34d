"""Activations, layers, recurrent cells and losses, as plain functions on pytrees of parameters."""

from ctrlgrad.nn import activations, attention, initializers, layers
from ctrlgrad.nn.activations import *
from ctrlgrad.nn.attention import *
from ctrlgrad.nn.cells import CELLS, Cell, gru_cell, gru_init, lstm_cell, lstm_init, rnn_cell, rnn_init
from ctrlgrad.nn.init import orthogonal, uniform_fan_in
from ctrlgrad.nn.layers import *
from ctrlgrad.nn.losses import softmax_cross_entropy

__all__ = [
    "CELLS",
    "Cell",
    "gru_cell",
    "gru_init",
    "initializers",
    "lstm_cell",
    "lstm_init",
    "orthogonal",
    "rnn_cell",
    "rnn_init",
    "softmax_cross_entropy",
    "uniform_fan_in",
]
__all__ += activations.__all__
__all__ += attention.__all__
__all__ += layers.__all__
