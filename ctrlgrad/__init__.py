"""ctrlgrad differentiates programs with data-dependent control flow.

    import ctrlgrad as cg
    import ctrlgrad.numpy as cnp

Write loops and branches with `while_loop`, `cond` and their kin; `grad` and `vjp` give programs whose loops run
backwards. See the README for a tour.
"""

import importlib
import importlib.util
from typing import Any

if importlib.util.find_spec("ctrlgrad.gradients") is None:
    raise ImportError(
        "ctrlgrad is not installed in a way that finds its parts `gradients`, `stacks` and `memory`, which lie\n"
        "beside the folder `ctrlgrad` in a checkout. Install the checkout with `pip install -e .`, or start Python\n"
        "elsewhere: after a plain install, Python started in the checkout finds its folder `ctrlgrad` first."
    )

from ctrlgrad.collector import kept_objects

with kept_objects():
    from ctrlgrad import dataflow, debug, memory, numpy, tree, tree_util
    from ctrlgrad.advice import no_such_name
    from ctrlgrad.dataflow import device
    from ctrlgrad.engines.device_array import DeviceArray
    from ctrlgrad.errors import CtrlgradError, GradientMismatch
    from ctrlgrad.errors import install as _install
    from ctrlgrad.frontend.apply import float0
    from ctrlgrad.frontend.branches import case, cond, switch
    from ctrlgrad.frontend.host_calls import pure_callback
    from ctrlgrad.frontend.loops import associative_scan, foldl, foldr, fori_loop, map, scan, unknown_dims, while_loop
    from ctrlgrad.frontend.tensor_array import TensorArray
    from ctrlgrad.function import Function, function
    from ctrlgrad.numpy import ndarray as Array
    from ctrlgrad.options import options
    from ctrlgrad.signature import TensorSpec
    from ctrlgrad.transforms.checkpoint import checkpoint, checkpoint_policies
    from ctrlgrad.transforms.custom_calls import closure_convert, custom_gradient, custom_jvp, custom_vjp
    from ctrlgrad.transforms.grad import (
        grad,
        hessian,
        jacfwd,
        jacrev,
        jvp,
        linear_transpose,
        linearize,
        stop_gradient,
        value_and_grad,
        vjp,
    )
    from ctrlgrad.transforms.implicit import custom_linear_solve, custom_root
    from ctrlgrad.transforms.tracing import eval_shape
    from ctrlgrad.transforms.vmap import custom_vmap, vmap

_install()

# As they are called in JAX.
jit = function
remat = checkpoint
jacobian = jacrev

__version__ = "0.1.0"

# Modules and functions that build on the names above, loaded when first used.
_LAZY = {
    "ad_checkpoint": ("ctrlgrad.ad_checkpoint", None),
    "custom_batching": ("ctrlgrad.custom_batching", None),
    "custom_derivatives": ("ctrlgrad.custom_derivatives", None),
    "check_grads": ("ctrlgrad.verify", "check_grads"),
    "from_jax": ("ctrlgrad.interop", "from_jax"),
    "from_onnx": ("ctrlgrad.interop", "from_onnx"),
    "from_torch": ("ctrlgrad.interop", "from_torch"),
    "interop": ("ctrlgrad.interop", None),
    "lax": ("ctrlgrad.lax", None),
    "nn": ("ctrlgrad.nn", None),
    "train": ("ctrlgrad.train", None),
    "optim": ("ctrlgrad.optim", None),
    "random": ("ctrlgrad.random", None),
    "scipy": ("ctrlgrad.scipy", None),
    "to_jax": ("ctrlgrad.interop", "to_jax"),
    "to_torch": ("ctrlgrad.interop", "to_torch"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise no_such_name("ctrlgrad", name, {**globals(), **_LAZY})
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


__all__ = [
    "Array", "CtrlgradError", "DeviceArray", "Function", "GradientMismatch", "TensorArray", "TensorSpec",
    "ad_checkpoint", "associative_scan", "case", "check_grads", "checkpoint", "checkpoint_policies",
    "closure_convert", "cond", "custom_batching", "custom_derivatives", "custom_gradient", "custom_jvp",
    "custom_linear_solve", "custom_root", "custom_vjp", "custom_vmap", "dataflow", "debug", "device", "eval_shape",
    "float0", "foldl", "foldr", "fori_loop", "from_jax", "from_onnx", "from_torch", "function", "grad", "hessian",
    "interop", "jacfwd", "jacobian", "jacrev", "jit", "jvp", "lax", "linear_transpose", "linearize", "map", "memory",
    "nn", "numpy", "optim", "options", "pure_callback", "random", "remat", "scan", "scipy", "stop_gradient",
    "switch", "to_jax", "to_torch", "tree", "tree_util", "unknown_dims", "value_and_grad", "vjp", "vmap",
    "while_loop",
]  # fmt: skip
