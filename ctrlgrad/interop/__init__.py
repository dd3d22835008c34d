"""Programs of JAX, PyTorch and ONNX as functions of this library, and functions of this library in JAX and PyTorch.

The modules, in reading order:

    from_jax, primitives  a jaxpr read equation by equation, and the table of JAX's primitives
    array_rules           primitives on arrays
    custom_rules          primitives that call functions: user rules, control flow, mapped axes
    avals                 JAX's types, arguments, errors and settings
    to_jax                a function of this library as one of JAX
    engine_primitive      a graph as one primitive of JAX, which this library's engines run
    program               a graph as data of another framework's transforms
    from_torch, to_torch  functions and modules of PyTorch; `torch` has the reader
    from_onnx             models of ONNX; `onnx` has the reader
    windows               convolutions, pooling and normalisation in the layout of ONNX and PyTorch

>>> import jax, numpy as np, ctrlgrad as cg
>>> def root(a):
...     step = lambda x: 0.5 * (x + a / x)
...     return jax.lax.while_loop(lambda x: abs(x * x - a) > 1e-6, step, a)
>>> round(float(cg.grad(cg.from_jax(root))(np.float32(4.0))), 5)
0.25
>>> round(float(jax.grad(cg.to_jax(cg.from_jax(root)))(4.0)), 5)
0.25
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

# Module of each name, and the package that it needs. None of them is needed for another.
_LAZY = {
    "from_onnx": ("ctrlgrad.interop.from_onnx", None),
    "from_jax": ("ctrlgrad.interop.from_jax", "jax"),
    "from_torch": ("ctrlgrad.interop.from_torch", None),
    # From the module that brings the library's own entries: what a user says replaces them.
    "jax_primitive": ("ctrlgrad.interop.from_jax", "jax"),
    "onnx_op": ("ctrlgrad.interop.onnx.operators", None),
    "to_jax": ("ctrlgrad.interop.to_jax", "jax"),
    "to_torch": ("ctrlgrad.interop.to_torch", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ctrlgrad.interop' has no attribute {name!r}")
    module_name, package = _LAZY[name]
    if package is not None and importlib.util.find_spec(package) is None:
        raise ImportError(
            f"ctrlgrad.interop.{name} needs {package}, which is not installed: pip install -e '.[{package}]'"
        )
    value = getattr(importlib.import_module(module_name), name)
    globals()[name] = value
    return value


class _Interop(ModuleType):
    """Module type that keeps a function from being replaced by the submodule of its name, in any order of imports."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _LAZY or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Interop


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = ["from_jax", "from_onnx", "from_torch", "jax_primitive", "onnx_op", "to_jax", "to_torch"]
