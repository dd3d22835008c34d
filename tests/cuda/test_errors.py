"""A distributed loop fails on the device as the loop that the user wrote does: the same error and iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn, StandInArray
from passes.test_errors import CASES, graph_of, normal

import ctrlgrad as cg
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.engines.cuda.kernels import DEVICE
from ctrlgrad.engines.reference import REFERENCE
from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import walk


@pytest.mark.parametrize("kinds", ["", "f", "if"], ids=["on the host", "floats", "on the device"])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("function", "kind"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_the_error_of_the_plain_loop(
    function: Callable[..., Any], kind: type[ExecutionError], order: int, kinds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctrlgrad.passes.heavy.HEAVY", 1)
    monkeypatch.setattr("ctrlgrad.passes.heavy.WORTH_INSIDE", 1)
    library = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: library)
    arguments = (normal(0, 7, 2, 4), normal(1, 4, 3), np.int64(9))
    graph = graph_of(function, order, arguments)
    assert any("chunks_of" in node.attrs.given() for node in walk(optimised_graph(graph, is_for_gpu=True)))
    with pytest.raises(kind) as plain:
        run_on("reference", graph, arguments)
    given = [StandInArray(np.array(x)) if x.dtype.kind in kinds else x for x in arguments]
    with pytest.raises(kind) as found:
        run_on("cuda", graph, given)
    assert str(found.value) == str(plain.value)
    assert type(found.value) is type(plain.value)
    assert found.value.source == plain.value.source
    assert found.value.__cause__ is not None


def test_ops_that_elements_make_fail_run_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of the card would give some number for an integer's negative power."""
    library = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: library)
    assert "integer_power" not in DEVICE
    arguments = (np.arange(1, 4), np.array([2, -1, 0]))
    graph = cg.function(lambda x, n: x**n).graph(*arguments)
    errors = []
    for engine, given in (("reference", arguments), ("cuda", [StandInArray(x) for x in arguments])):
        with pytest.raises(ExecutionError) as found:
            run_on(engine, graph, given)
        errors.append(str(found.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("engine", ["reference", "cuda"])
def test_an_index_error_of_the_library_itself_is_no_advice_about_an_index(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an error keeps its type and text. Once the message said that the user's index was out of range."""
    library = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: library)

    def broken(values: list[Any]) -> Any:
        return values[len(values)]

    for table in (REFERENCE.pure, DEVICE):
        monkeypatch.setitem(table, "argsort", lambda node: lambda *operands: broken(list(operands)))
    graph = cg.function(lambda x: cg.fori_loop(0, 3, lambda i, y: y + np.argsort(y), x)).graph(np.ones(3))
    with pytest.raises(IndexError, match="list index out of range") as found:
        run_on(engine, graph, [np.ones(3) if engine == "reference" else StandInArray(np.ones(3))])
    assert not isinstance(found.value, CtrlgradError)
    assert any("in argsort, at: " in note for note in found.value.__notes__)
