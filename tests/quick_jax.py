"""Settings that halve JAX's compile time: the programs of tests are small and run once.

XLA reads the environment variable once, when JAX starts, and ends the process if it does not know a flag. Versions
differ in their flags, so a child process asks the installed one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

FLAGS = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_enable_concurrency_optimized_scheduler": "false",
    "xla_embed_ir_in_executable": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}


# Makes XLA read its flags: the least of it that does.
_READ_FLAGS = "from jaxlib.xla_client import CompileOptions; CompileOptions()"


def set_flags() -> None:
    """Set the flags for this process and those that it starts, unless `XLA_FLAGS` is set already."""
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = " ".join(known([f"--{name}={value}" for name, value in FLAGS.items()]))


def known(flags: list[str]) -> list[str]:
    """The flags that the installed XLA knows; none without JAX, or if it ends for a reason that is not a flag.

    A child takes a quarter of a second, and names every unknown flag at once.
    """
    while flags:
        command, environment = [sys.executable, "-c", _READ_FLAGS], {**os.environ, "XLA_FLAGS": " ".join(flags)}
        child = subprocess.run(command, env=environment, capture_output=True, text=True)
        if child.returncode == 0:
            break
        named = child.stderr.split()
        rest = [flag for flag in flags if flag not in named]
        flags = rest if len(rest) < len(flags) else []
    return flags


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
