"""Training: runs of any loss with checkpoints (`Trainer`), and models of a text (the command `ctrlgrad train`).

The modules, in reading order:

    settings             options of a run on a text
    corpus               text to symbols, and its parts for training and validation
    model, layers        the loss and the sampler of a character model; its kinds of layers, also by PyTorch's names
    trainer, own         the steps of a run, and `Trainer`, a run of a user's own loss
    text                 a text as the trainer's data, and runs that were read
    folder               the folder of a run, held by one process
    checkpoint, metrics  the state on disk, and figures of a run
    ranks                one run on several processes
    verification         the first gradient against JAX
"""

from ctrlgrad.train.checkpoint import State
from ctrlgrad.train.layers import from_torch, to_torch
from ctrlgrad.train.metrics import Step
from ctrlgrad.train.own import Result, Trainer, read_params
from ctrlgrad.train.settings import Settings
from ctrlgrad.train.text import Trained, load
from ctrlgrad.train.trainer import Interrupted

__all__ = [
    "Interrupted", "Result", "Settings", "State", "Step", "Trained", "Trainer", "from_torch", "load", "read_params",
    "to_torch",
]  # fmt: skip
