"""Every op that plans leave to reference kernels, with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from instruments.natively import run_natively
from plan.plans import executed, placed

from ctrlgrad.errors import ExecutionError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import OPS, Builder, Graph, TensorType, Trait
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.lowering.lower import RULES, WITH_OTHERS
from ctrlgrad.plan.model import Outside

REGIONS = {"while", "cond", "call"}
OUTSIDE = {
    "callback": "calls Python",
    "pure_callback": "calls Python",
    "adjugate_along": "singular value decomposition",
    "general_eigenvalues": "LAPACK",
    "general_eigenvectors": "LAPACK",
    "stack_sum": "both stacks as a whole, by blocks, with the marks of rows that were never written",
    "stack_split": "rows that differ in shape, made from an array",
}


def test_every_other_op_has_a_native_form() -> None:
    elementwise = {name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits}
    mapped = {name for name, op in OPS.items() if Trait.MAPPED in op.traits}
    assert OPS.keys() - RULES.keys() - WITH_OTHERS.keys() - elementwise - REGIONS - mapped == OUTSIDE.keys()


def common_size() -> Graph:
    builder = Builder(name="sizes")
    sizes = builder.input(TensorType(np.dtype(np.int64), (None,)))
    return builder.finish([builder.emit("common_size", (sizes,), {"what": "the size"})])


@pytest.mark.parametrize("sizes", [[2, 2, 2], [0, 0], [3], []])
def test_a_size_that_all_rows_have_in_common_needs_no_call_of_python(sizes: list[int]) -> None:
    graph, arguments = common_size(), [np.array(sizes, np.int64)]
    assert not any(isinstance(step, Outside) for step in walk(placed(graph, arguments).body))
    (found,), (expected,) = run_natively(graph, arguments), run_on("reference", graph, arguments)
    assert found == expected == executed(graph, arguments)[0]


def test_sizes_that_differ_from_row_to_row_are_the_reference_engines_error() -> None:
    messages = []
    for engine in ("reference", "native"):
        with pytest.raises(ExecutionError, match="differs from row to row") as found:
            run_on(engine, common_size(), [np.array([1, 2])])
        messages.append(str(found.value))
    assert messages[0] == messages[1]
