"""`from_torch`: a function or module of PyTorch as a function of this library."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ctrlgrad.advice import explains_calls
from ctrlgrad.frontend.checks import check_function

if TYPE_CHECKING:
    from ctrlgrad.interop.torch.module import FromTorch


@explains_calls
def from_torch(fn: Callable[..., Any], *example_args: Any, dynamic_shapes: Any = None) -> FromTorch:
    """A function or module of PyTorch as a function of this library; `grad`, `vmap` and `jvp` take it, at any order.

    Its code is run on traced tensors, once for each structure, dtypes and sizes of the arguments, and read operator by
    operator (docs/torch_operators.md). Python's loops and branches that depend on tensors become loops and branches of
    the graph, so they are differentiated in reverse, compiled, and served by budgets. Recurrent networks become one
    loop. `with torch.no_grad()` and `detach()` stop the gradient.

    Args:
        fn: a `torch.nn.Module` or a function of tensors.
        example_args: arguments for which `torch.export` captures the program at once. It is read where it can be
            captured and the sizes of a call fit; otherwise the code is run as above.
        dynamic_shapes: as `torch.export.export` takes it: sizes that are left open, so that one graph serves all.

    Returns:
        For a module a function of `(params, *args)`: `.params` holds its parameters by name, over the same memory, and
        `.buffers` its buffers, which may be passed among the parameters. Where buffers change (batch normalisation in
        training) the result is `(result, buffers)`. For a function a function of the same arguments. Either takes
        `dropout_key=` too, a key of `ctrlgrad.random`: the same key gives the same masks of dropout. Results are
        NumPy's arrays, or traced tensors inside of a trace.

    Raises:
        ImportError: PyTorch is not installed.
        UnsupportedPrimitiveError (when called): an operator has no translation, or draws random numbers
            for which there is no key.
        TracingError (when called): a tensor from outside is changed in place inside of a traced loop, or Python asks
            for a number that is not known.

    >>> import torch, numpy as np, ctrlgrad as cg
    >>> class Root(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a = torch.nn.Parameter(torch.tensor(4.0, dtype=torch.float64))
    ...     def forward(self, x):
    ...         while abs(x * x - self.a) > 1e-12:
    ...             x = 0.5 * (x + self.a / x)
    ...         return x
    >>> f = cg.from_torch(Root())
    >>> gradient = cg.grad(f)(f.params, np.float64(1.0))
    >>> round(float(gradient["a"]), 6)
    0.25
    """
    if importlib.util.find_spec("torch") is None:
        raise ImportError("ctrlgrad.from_torch needs PyTorch, which is not installed: pip install -e '.[torch]'")
    check_function("from_torch", fn)
    from ctrlgrad.interop.torch.module import FromTorch

    return FromTorch(fn, example_args, dynamic_shapes)
