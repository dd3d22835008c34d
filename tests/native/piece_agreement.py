"""Make a piece, and compare its results with the reference engine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from instruments.comparing import assert_same

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.engines.native.pieces import Piece, compile_piece
from ctrlgrad.engines.reference import REFERENCE, Run, interpret
from ctrlgrad.ir import Graph


def graph_of(fn: Callable[..., Any], *args: Any) -> Graph:
    return cg.function(fn).graph(*args)


def piece_of(graph: Graph) -> Piece:
    """A piece whose parts are compiled when they first run."""
    piece = compile_piece(graph)
    assert piece is not None
    return piece


def by_reference(graph: Graph, args: Sequence[Any]) -> list[Any]:
    return interpret(graph, args, Run(), REFERENCE)


def assert_agrees(fn: Callable[..., Any], *args: Any, rtol: float = 1e-11) -> None:
    """Run a function as a piece and on the reference engine: the results agree, and the arguments stay unchanged."""
    graph = graph_of(fn, *args)
    leaves = [np.asarray(x) if np.ndim(x) else np.asarray(x)[()] for x in tree.leaves(args)]
    before = [x.copy() for x in leaves]
    with np.errstate(all="ignore"):
        piece = piece_of(graph)
        for _ in range(2):
            assert_same(piece(list(leaves), Run()), by_reference(graph, leaves), rtol)
    for x, old in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(x, old)
