"""PyTorch's tensors as NumPy's arrays and back, over the same memory."""

from __future__ import annotations

import numpy as np
import torch

from ctrlgrad.dtypes import BFLOAT16, NAMES
from ctrlgrad.errors import TracingError, TypeMismatchError, UserInputError
from ctrlgrad.ir import TensorType

# PyTorch's dtypes that exist here.
DTYPES = {getattr(torch, name): np.dtype(name) for name in NAMES}


def readable(name: str, x: torch.Tensor) -> torch.Tensor:
    """The tensor, if an engine can read it. Raises where none can."""
    if x.device.type != "cpu":
        raise UserInputError(
            f"to_torch: {name} is called on a tensor that lies on {x.device}",
            expected="tensors in the processor's memory",
            got=f"{x.dtype}{list(x.shape)} on {x.device}",
            hint="pass tensor.cpu(), and bring results back with .to(device): PyTorch differentiates both",
        )
    if x.layout != torch.strided:
        raise TypeMismatchError(
            f"to_torch: {name} is called on a sparse tensor",
            expected="strided tensors",
            got=str(x.layout),
            hint="pass tensor.to_dense()",
        )
    if x.dtype not in DTYPES:
        raise TypeMismatchError(
            f"to_torch: {name} is called on a tensor of a dtype that is not supported",
            expected=", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES),
            got=str(x.dtype),
            hint="cast it before: tensor.float()",
        )
    return x


def type_of(x: torch.Tensor) -> TensorType:
    return TensorType(DTYPES[x.dtype], tuple(x.shape))


def to_array(x: torch.Tensor) -> np.ndarray:
    """The tensor's own memory as an array."""
    try:
        # PyTorch and NumPy exchange no bfloat16.
        if x.dtype == torch.bfloat16:
            found: np.ndarray = x.detach().view(torch.int16).numpy().view(BFLOAT16)
            return found
        array: np.ndarray = x.numpy(force=True)
    except RuntimeError as error:
        raise TracingError(
            "to_torch: a symbolic tensor has no numbers that an engine could read",
            expected="tensors, and those of the transforms of torch.func",
            got=str(error).splitlines()[0],
            hint="in place of is_grads_batched and vectorize=True use torch.func.vmap, jacrev and jacfwd",
        ) from error
    return array


def to_tensor(x: np.ndarray) -> torch.Tensor:
    """The array's own memory as a tensor; a copy of one that may not be written to, since a tensor may."""
    x = np.asarray(x)
    x = x if x.flags.writeable else x.copy()
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == BFLOAT16 else torch.from_numpy(x)
