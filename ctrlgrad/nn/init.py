"""First values of weight matrices, from a NumPy generator, so that a seed fixes them."""

from __future__ import annotations

from typing import Any

import numpy as np


def uniform_fan_in(rng: np.random.Generator, inputs: int, outputs: int, dtype: Any = np.float32) -> np.ndarray:
    """A matrix `[inputs, outputs]`, uniform in plus or minus `1 / sqrt(inputs)`.

    >>> uniform_fan_in(np.random.default_rng(0), 4, 3).shape
    (4, 3)
    """
    bound = 1.0 / np.sqrt(inputs)
    return rng.uniform(-bound, bound, (inputs, outputs)).astype(dtype)


def orthogonal(rng: np.random.Generator, inputs: int, outputs: int, dtype: Any = np.float32) -> np.ndarray:
    """A matrix `[inputs, outputs]` of orthogonal blocks `[inputs, inputs]`, one for each gate of a cell.

    `outputs` is a multiple of `inputs`. Products with an orthogonal matrix keep lengths, so signals neither vanish
    nor explode in the first iterations (Saxe, McClelland and Ganguli 2014, "Exact solutions to the nonlinear
    dynamics of learning in deep linear neural networks").

    >>> w = orthogonal(np.random.default_rng(0), 3, 6, np.float64)
    >>> bool(np.allclose(w[:, :3] @ w[:, :3].T, np.eye(3)))
    True
    """
    blocks = []
    for _ in range(outputs // inputs):
        q, r = np.linalg.qr(rng.standard_normal((inputs, inputs)))
        # The signs make the factorisation unique, and the matrix uniform over the orthogonal group.
        blocks.append(q * np.sign(np.diag(r)))
    return np.concatenate(blocks, axis=1).astype(dtype)
