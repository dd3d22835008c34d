"""GradBench's modules as programs of a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gradbench.__main__ import module_of
from benchmarks.gradbench.ba import Sparse
from benchmarks.gradbench.inputs import example
from benchmarks.program import Program
from ctrlgrad import tree


def evaluation(module: str, function: str, tiny: bool = False) -> Program:
    """One function of a module."""
    found = module_of(module).functions[function]
    arguments = found.prepare(example(module, tiny))
    return Program(lambda: found.compute(*arguments), read)


def read(result: Any) -> dict[str, np.ndarray]:
    """The numbers, one array after another; of a sparse matrix its values."""
    if isinstance(result, Sparse):
        result = result.values
    return {"numbers": np.concatenate([np.ravel(x) for x in tree.leaves(result)])}
