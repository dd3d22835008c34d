"""Activations, layers, recurrent cells and losses: functions on pytrees of parameters, which keys make.

`functions` has activations by the names of `jax.nn`, and losses; `initializers` first values; `layers` norms, dropout,
embeddings, recurrent cells and attention; `modules` layers by PyTorch's names.

>>> cell = lstm_init(cg.random.key(0), 3, 4)
>>> h, c = lstm_cell(cell, (np.zeros(4), np.zeros(4)), np.ones(3))
>>> h.shape
(4,)
"""

from typing import Any

from ctrlgrad.advice import explain_calls, no_such_name
from ctrlgrad.nn import functions, initializers, layers, modules
from ctrlgrad.nn.functions import *
from ctrlgrad.nn.layers import *
from ctrlgrad.nn.modules import *

__all__ = ["initializers"]
__all__ += functions.__all__
__all__ += layers.__all__
__all__ += modules.__all__
explain_calls(globals(), __all__)


def __getattr__(name: str) -> Any:
    raise no_such_name("ctrlgrad.nn", name, globals())


def __dir__() -> list[str]:
    return sorted(__all__)
