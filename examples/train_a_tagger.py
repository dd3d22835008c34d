"""A tagger of ragged sequences, trained by `ctrlgrad.train.Trainer`: a model and a loss of one's own.

Each number of a sequence is tagged by whether the numbers before it, itself included, add up to more than zero: the
model has to remember. The run leaves its metrics, a figure and its checkpoints in the folder that is named behind the
command (or a temporary one). Where it was stopped there, the same command goes on to the numbers of an unbroken run.

    python examples/train_a_tagger.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad import nn, optim, train

gru, out = nn.GRU(1, 16), nn.Linear(16, 2)


def loss(params: Any, xs: Any, lengths: Any, tags: Any) -> Any:
    """Cross entropy of the tags `[time, batch]`, as far as each sequence goes."""
    outputs, _ = gru(params["gru"], xs[:, :, None], lengths)
    is_there = np.arange(xs.shape[0])[:, None] < lengths
    return nn.cross_entropy(out(params["out"], outputs), tags, where=is_there)


def batch(step: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(step)
    xs, lengths = rng.standard_normal((20, 32)), rng.integers(5, 21, 32)
    return xs, lengths, (np.cumsum(xs, axis=0) > 0).astype(int)


def main() -> int:
    keys = cg.random.split(cg.random.key(0))
    params = {"gru": gru.init(keys[0]), "out": out.init(keys[1])}
    optimiser = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(optim.cosine_decay_schedule(0.02, 300)))
    folder, validation = Path(*sys.argv[1:] or [tempfile.mkdtemp()]), [batch(10**6 + n) for n in range(4)]
    resume = (folder / "checkpoint.safetensors").exists()
    result = train.Trainer(
        loss, params, optimiser, batch, steps=300, out=folder, validation=validation, resume=resume
    ).run()
    print(f"cross entropy {result.validation:.3f} after {result.steps} steps; in {folder}")
    return 0 if result.validation < 0.3 else 1


if __name__ == "__main__":
    sys.exit(main())
