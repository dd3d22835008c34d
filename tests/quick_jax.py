"""How JAX compiles in half of the time: what tests compile is small and runs once.

XLA reads the environment variable once, when JAX starts, and ends the process where it does not know a flag. So only
those are set that stand in the installed library.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import threading
from pathlib import Path

FLAGS = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_enable_concurrency_optimized_scheduler": "false",
    "xla_embed_ir_in_executable": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}


def set_flags() -> None:
    """Set the flags for this process and those that it starts, unless `XLA_FLAGS` is set already."""
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = " ".join(f"--{name}={value}" for name, value in FLAGS.items() if _is_known(name))


def _is_known(flag: str) -> bool:
    """Whether the largest library of jaxlib, which holds the compiler, names a flag."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or spec.origin is None:
        return False
    library = max(Path(spec.origin).parent.glob("*.so"), key=lambda path: path.stat().st_size, default=None)
    if library is None:
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(flag.encode()) >= 0


def share_contexts() -> None:
    """One context of MLIR for all programs of a thread: to make one takes a quarter of the time of a small program.

    A program that is compiled while another one is lowered has a context of its own, as the module around it would
    become part of it.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    made, kept = mlir.make_ir_context, threading.local()

    def is_lowering() -> bool:
        try:
            return ir.Context.current is not None
        except ValueError:
            return False

    def context() -> object:
        if is_lowering():
            return made()
        if not hasattr(kept, "context"):
            kept.context = made()
        return kept.context

    mlir.make_ir_context = context
