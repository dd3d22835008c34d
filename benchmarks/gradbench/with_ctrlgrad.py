"""GradBench's modules as programs of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.gradbench.__main__ import module_of
from benchmarks.gradbench.ba import Sparse
from benchmarks.gradbench.inputs import make
from benchmarks.program import Program
from ctrlgrad import tree


def evaluation(module: str, function: str, size: Mapping[str, Any], engine: str = "native") -> Program:
    """One function of a module. The engine is that of the modules themselves, so it must be the native one."""
    if engine != "native":
        raise ValueError(f"the modules of GradBench run on the native engine, not on {engine!r}")
    found = module_of(module).functions[function]
    arguments = found.prepare(make(module, size))
    return Program(lambda: found.compute(*arguments), read)


def read(result: Any) -> dict[str, np.ndarray]:
    """The numbers, one array after another; of a sparse matrix its values."""
    if isinstance(result, Sparse):
        result = result.values
    return {"numbers": np.concatenate([np.ravel(x) for x in tree.leaves(result)])}
