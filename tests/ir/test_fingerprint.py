"""Fingerprints: equal for graphs that say the same, and different for all that a graph can say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ir.interning import fingerprint


@pytest.mark.parametrize(
    "other",
    [
        lambda x: cnp.sum(x * 2.5, axis=1),
        lambda x: cnp.sum(x * 2.0, axis=0),
        lambda x: cnp.sum(x * np.float32(2.0), axis=1) + 0.0,
        lambda x: cnp.sum(x * cnp.asarray([2.0, 2.0, 2.0]), axis=1),
        lambda y: cnp.sum(y * 2.0, axis=1),
        lambda x: cnp.sum(cnp.roll(x, 1) * 2.0, axis=1),
    ],
)
def test_each_part_of_a_graph_changes_its_fingerprint(other: Callable[..., Any]) -> None:
    x = np.ones((2, 3))
    one = cg.function(lambda x: cnp.sum(x * 2.0, axis=1), name="f").graph(x)
    assert fingerprint(one) == fingerprint(cg.function(lambda x: cnp.sum(x * 2.0, axis=1), name="f").graph(x))
    assert fingerprint(one) != fingerprint(cg.function(other, name="f").graph(x))
    assert fingerprint(one) != fingerprint(cg.function(lambda x: cnp.sum(x * 2.0, axis=1), name="f").graph(x[:, :1]))


def test_large_constants_are_told_apart() -> None:
    numbers = np.arange(5000.0)
    other = numbers.copy()
    other[4321] = -1.0
    graphs = [cg.function(lambda x, c=c: x + cnp.asarray(c), name="f").graph(0.5) for c in (numbers, other)]
    assert fingerprint(graphs[0]) != fingerprint(graphs[1])


def test_a_graph_with_a_callback_has_no_fingerprint() -> None:
    def f(x: Any) -> Any:
        cg.debug.callback(lambda values, iterations: None, x)
        return x * 2.0

    assert fingerprint(cg.function(f).graph(1.0)) is None
