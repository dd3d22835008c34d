"""JAX's settings that decide what a program means."""

from __future__ import annotations

import contextlib
import importlib
from contextlib import AbstractContextManager
from typing import Any

import jax

# In `jax` itself since JAX 0.8.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64


def has_x64() -> bool:
    """Return true if JAX has 64-bit types now."""
    config: Any = jax.config
    return bool(config.jax_enable_x64)


def x64_as(on: bool) -> AbstractContextManager[Any]:
    """64-bit types in JAX, or none, for a block."""
    return contextlib.nullcontext() if has_x64() == on else _enable_x64(on)
