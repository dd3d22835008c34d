"""Launch lists of single steps are kept by the kinds of their operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn, StandInArray
from instruments.stand_in_runs import on_reference

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.kernels import Lists, Single
from ctrlgrad.engines.cuda.program import Context


def parts(x: Any, i: Any, scale: Any) -> Any:
    turned = (x.T @ x)[i:, ::-1] * scale
    return cnp.sum(cnp.sin(turned), axis=0), cnp.at(turned)[0].set(scale)


def test_a_list_is_used_again_for_operands_of_its_kinds(monkeypatch: Any) -> None:
    """Other values of the device, sizes, layouts and host numbers, in turn, give their own results."""
    signature = (cg.TensorSpec((None, 4)), cg.TensorSpec((), "int64"), cg.TensorSpec(()))
    x = np.linspace(-1.0, 1.0, 12).reshape(3, 4)
    graph = cg.function(parts, signature=signature).graph(x, np.int64(1), 2.0)
    library, optimised, listed = StandIn(), optimised_graph(graph, is_for_gpu=True), []
    init = Single.__init__
    monkeypatch.setattr(
        Single, "__init__", lambda self, c, operands, *a: (listed.append(len(operands)), init(self, c, operands, *a))[1]
    )

    def run(x: np.ndarray, i: int, scale: float) -> int:
        listed.clear()
        arguments = [x, np.int64(i), np.float64(scale)]
        found = run_with(Context(library), optimised, [StandInArray(x), *arguments[1:]])
        assert_same(found, on_reference(graph, arguments), 1e-12)
        return sum(map(bool, listed))

    assert run(x, 1, 2.0) > 0
    assert run(x + 1, 1, 2.0) == 0
    assert run(x, 2, 2.0) > 0 and run(x, 1, 3.0) > 0
    assert run(np.asfortranarray(x), 1, 2.0) >= 0
    assert run(np.linspace(0.0, 1.0, 20).reshape(5, 4), 1, 2.0) > 0
    assert run(x, 1, 2.0) == 0


@pytest.mark.parametrize(("kinds", "again"), [(15, 0), (16, 0), (17, 1)])
def test_so_many_lists_are_kept(kinds: int, again: int) -> None:
    """Just below, at and above the limit: only beyond it is the first list made again."""
    context, lists, made = Context(StandIn()), Lists(), []

    def make(single: Single) -> None:
        made.append(single)

    for size in (*range(1, kinds + 1), 1):
        lists.single(context, {0: StandInArray(np.zeros(size))}, make)
    assert Lists.MOST == 16 and len(made) == kinds + again
