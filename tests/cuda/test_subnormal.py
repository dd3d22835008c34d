"""Subnormal float32 numbers are numbers: no kernel, and no function of the library, takes them for zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in
from instruments.subnormal import X, computed, gradients

import ctrlgrad as cg

W = np.float32(0.5)


@pytest.mark.parametrize("function", [computed, gradients])
@pytest.mark.parametrize("kinds", ["", "f"])
def test_as_on_the_processor(function: Any, kinds: str) -> None:
    graph = cg.function(function).graph(X, W)
    for found, expected in zip(on_stand_in(graph, [X, W], kinds).results, on_reference(graph, [X, W]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
    assert "subnormal" not in str(graph)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("name", ["nonzero", "add", "tanh", "__mul__", "__lt__"])
def test_subnormal_operands_that_the_library_flushes_are_refused(name: str, dtype: str) -> None:
    library = StandIn()
    with library.running():
        x = library.upload(np.ones(3).astype(dtype))
        with pytest.raises(AssertionError, match="takes subnormal numbers for zero"):
            if name.startswith("__"):
                getattr(x, name)(x)
            else:
                getattr(library.xp, name)(*[x] * (1 + (name == "add")))
