"""Programs of other frameworks: JAX's as functions of this library, and back.

>>> import jax, numpy as np, ctrlgrad as cg
>>> def root(a):
...     return jax.lax.while_loop(lambda x: abs(x * x - a) > 1e-6, lambda x: 0.5 * (x + a / x), a)
>>> round(float(cg.grad(cg.from_jax(root))(np.float32(4.0))), 5)
0.25
>>> round(float(jax.grad(cg.to_jax(cg.from_jax(root)))(4.0)), 5)
0.25
"""

import importlib.util

if importlib.util.find_spec("jax") is None:
    raise ImportError("ctrlgrad.interop reads programs of JAX, which is not installed: pip install 'ctrlgrad[jax]'")

from ctrlgrad.interop.from_jax import from_jax
from ctrlgrad.interop.primitives import jax_primitive
from ctrlgrad.interop.to_jax import to_jax

__all__ = ["from_jax", "jax_primitive", "to_jax"]
