"""A graph on one device of the processor runs as one plan of the native engine; all other graphs have an executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad import dataflow, execution
from ctrlgrad.dataflow import Recorder

X = np.linspace(0.5, 1.0, 8)


def descent(*devices: str | None) -> Any:
    """Value and gradient of a loop whose ops go to these devices in turn."""

    def loss(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y = carry
            for name in devices:
                with cg.device(name):
                    y = cg.numpy.sin(y) * x
            return i + 1, y

        return cg.numpy.sum(cg.while_loop(lambda carry: carry[0] < 5, body, (0, x))[1])

    return cg.function(cg.value_and_grad(loss), engine="dataflow")


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that an executor has run."""
    found: list[Any] = []
    run = execution.run_dataflow
    monkeypatch.setattr(execution, "run_dataflow", lambda graph, *rest: (found.append(graph), run(graph, *rest))[1])
    return found


@pytest.mark.parametrize(
    ("devices", "settings", "has_executor"),
    [
        ((None,), {}, False),
        (("cpu:0",), {}, False),
        (("cpu:3", None), {}, False),
        (("cpu:0", "cpu:1"), {}, True),
        (("sim:0",), {}, True),
        ((None,), {"loops": "lowered"}, True),
        ((None,), {"loops": "whole"}, True),
        ((None,), {"parallel_iterations": 2}, True),
        ((None,), {"recorder": Recorder()}, True),
        ((None,), {"order": 1}, True),
    ],
)
def test_what_needs_an_executor(
    executed: list[Any], devices: tuple[str | None, ...], settings: dict[str, Any], has_executor: bool
) -> None:
    with dataflow.settings(loops=None), dataflow.settings(**settings):
        found = descent(*devices)(X)
    assert bool(executed) == has_executor
    expected = cg.function(descent(*devices).fn, engine="reference")(X)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_with_check_nans_the_executor_looks_at_every_op(executed: list[Any]) -> None:
    with dataflow.settings(loops=None), cg.options(check_nans=True):
        descent(None)(X)
    assert executed
