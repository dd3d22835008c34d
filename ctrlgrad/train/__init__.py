"""Training: runs of any loss with checkpoints (`Trainer`), and models of a text (the command `ctrlgrad train`).

In order: `settings` (the options of a run on a text), `corpus` (text to symbols), `model` (the loss and the sampler,
written with the public names), `trainer` (the steps), `own` (`Trainer`), `text` (a text as the trainer's data, and
runs that were read), `checkpoint`, `metrics` (files of a run), `verification` (the first gradient against JAX).
"""

from ctrlgrad.train.checkpoint import State
from ctrlgrad.train.metrics import Step
from ctrlgrad.train.own import Result, Trainer, read_params
from ctrlgrad.train.settings import Settings
from ctrlgrad.train.text import Trained, load
from ctrlgrad.train.torch_names import from_torch, to_torch
from ctrlgrad.train.trainer import Interrupted

__all__ = [
    "Interrupted", "Result", "Settings", "State", "Step", "Trained", "Trainer", "from_torch", "load", "read_params",
    "to_torch",
]  # fmt: skip
