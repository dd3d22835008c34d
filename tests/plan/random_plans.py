"""Graphs of random programs: of the program, its gradient, and the gradient of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from random_programs.program import Program
from random_programs.running import LimitError, TooLongError, plain_run, signature, traced_function

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.engines import optimised_graph
from ctrlgrad.ir import Graph


def graphs_of(program: Program, orders: int = 3) -> Iterator[tuple[Graph, list[Any]]]:
    """Optimised graphs with arguments for them; none of a program that does nothing or takes too long."""
    try:
        plain_run(program)
    except (TooLongError, LimitError):
        return
    values = [a.value for a in program.arguments]
    floats = tuple(k for k, value in enumerate(values) if value.dtype == np.float64)
    fn = traced_function(program)
    for _ in range(orders):
        yield optimised_graph(cg.function(fn, signature=signature(program)).graph(*values)), values
        if not floats:
            return
        fn = cg.grad(_total(fn), argnums=floats)


def _total(fn: Any) -> Any:
    def total(*args: Any) -> Any:
        return sum((np.sum(np.sin(x)) for x in tree.leaves(fn(*args)) if x.dtype == np.float64), 0.0)

    return total
