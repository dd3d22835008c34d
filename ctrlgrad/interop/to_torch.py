"""`to_torch`: a function of this library as one of PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ctrlgrad.advice import explains_calls
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.checks import check_function
from ctrlgrad.memory.sizes import parse_size

if TYPE_CHECKING:
    from ctrlgrad.interop.torch.function import DropIn, TorchFunction


@explains_calls
def to_torch(fn: Callable[..., Any], *, memory_budget: str | int | None = None) -> TorchFunction | DropIn:
    """A function of this library as one of PyTorch: autograd and `torch.func` take it, at any order and in both modes.

    It is traced once for each structure, dtypes and ranks of the arguments, as by `ctrlgrad.function`, and run by the
    engine that `ctrlgrad.options` names. Tensors go in and come out without copies. `backward()` uses what the forward
    pass has kept; a backward pass that is to be differentiated itself (`create_graph=True`, `torch.func.hessian`)
    computes the forward pass again. Tensors that require no gradient cost nothing more than the run.

    Args:
        fn: takes and returns pytrees of arrays. Tensors, NumPy's arrays and floats among the arguments are traced;
            Python integers, booleans, strings and functions reach it as they are. It should be pure. Or a module that
            `from_torch` has read.
        memory_budget: bytes that the loops of a run may take for what they save, as `ctrlgrad.memory.budget` takes
            them. The backward pass then computes the forward pass again, within them.

    Returns:
        A function of the same arguments, whose results are tensors of the dtypes that `fn` gives them. For a module
        that `from_torch` has read a `torch.nn.Module` with its parameters, buffers and `state_dict`, to be used in its
        place: it runs machine code, and its loops are differentiated in reverse at any order.

    Raises (when called):
        ImportError: PyTorch is not installed; at once.
        UserInputError: `fn` is a module of PyTorch; at once.
        UserInputError: a tensor lies on a GPU.
        TypeMismatchError: a tensor of a dtype that is not supported, a sparse one, an argument that is no array and has
            no hash.
        TracingError: an argument is a traced tensor of this library.

    >>> import torch, ctrlgrad as cg
    >>> @cg.to_torch
    ... def root(a):
    ...     step = lambda x: 0.5 * (x + a / x)
    ...     return cg.while_loop(lambda x: abs(x * x - a) > 1e-12, step, a)
    >>> a = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    >>> root(a).backward()
    >>> a.grad
    tensor(0.2500, dtype=torch.float64)
    >>> torch.func.grad(torch.func.grad(root))(a.detach())
    tensor(-0.0312, dtype=torch.float64)
    """
    check_function("to_torch", fn)
    if importlib.util.find_spec("torch") is None:
        raise ImportError("ctrlgrad.to_torch needs PyTorch, which is not installed: pip install -e '.[torch]'")
    from ctrlgrad.interop.torch.function import DropIn, TorchFunction
    from ctrlgrad.interop.torch.module import FromTorch

    if hasattr(fn, "named_parameters"):
        raise UserInputError(
            "to_torch: this is a module of PyTorch already",
            expected="a function of this library, or a module that from_torch has read",
            got=type(fn).__name__,
            hint="ctrlgrad.to_torch(ctrlgrad.from_torch(module)) runs it by this library, in its place",
        )
    budget = parse_size(memory_budget)
    return DropIn(fn, budget) if isinstance(fn, FromTorch) and fn.module is not None else TorchFunction(fn, budget)
