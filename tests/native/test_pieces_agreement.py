"""Pieces agree with the reference engine: the corpus, random programs, random chains of ops by dtype, all layouts.

`everywhere` also puts parts into every region of graphs with loops and branches. CTRLGRAD_PIECES_RANDOM_PROGRAMS is the
number of random programs (20). First derivatives of the corpus and the first random programs run in machine code; the
rest is run by checked execution, which needs no compilation.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.part_plans import interpreted_parts
from instruments.tables import programs_at_orders
from native.piece_agreement import assert_agrees
from programs import Program
from random_programs.engines import Settings, judge
from random_programs.expected import UnsuitableError
from random_programs.generate import generate

import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native.parts import parted
from ctrlgrad.engines.native.pieces import with_parts
from ctrlgrad.engines.reference import REFERENCE, Run, interpret
from ctrlgrad.ir import Graph, Node

RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_PIECES_RANDOM_PROGRAMS", "20"))
PER_TEST, COMPILED = 10, 10


# Whole programs, parts in every region.


def everywhere(graph: Graph) -> Graph:
    """The graph with parts wherever an op has a native form, in all of its regions."""

    def deep(node: Node) -> Node:
        return replace(node, regions=tuple(everywhere(region) for region in node.regions))

    whole = Graph(graph.inputs, tuple(map(deep, graph.nodes)), graph.outputs, graph.name)
    return parted(whole) or whole


def run_everywhere(graph: Graph, leaves: Sequence[Any]) -> list[Any]:
    return interpret(everywhere(graph), leaves, Run(), with_parts(REFERENCE))


@programs_at_orders(0, 1, 2, share=(0, 3))
def test_corpus(program: Program, order: int, parts_run: list[Graph]) -> None:
    graph, leaves = program.graph(order), program.leaves
    before = [x.copy() for x in leaves]
    with nullcontext() if order == 1 else interpreted_parts():
        found = run_everywhere(graph, leaves)
    assert_same(found, program.expected(order))
    for x, old in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(x, old)


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // PER_TEST)))
def test_random_programs(part: int, parts_run: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLGRAD_QUICK_CODE", "1")

    def by_pieces(settings: Settings, graph: Graph, arguments: Sequence[Any], draw: random.Random) -> list[Any]:
        return run_everywhere(graph, arguments)

    examined = 0
    numbers = range(part * PER_TEST, (part + 1) * PER_TEST)
    with nullcontext(parts_run) if numbers[0] < COMPILED else interpreted_parts() as ran:
        for number in numbers:
            with suppress(UnsuitableError):
                judge(generate(number), Settings(orders=1), chosen=by_pieces)
                examined += 1
    assert examined >= 3 and ran


# Random chains of elementwise ops, by dtype.

DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64", "complex64", "complex128")
UNARY = {
    "b": (cnp.logical_not,),
    "i": (cnp.negative, cnp.abs, cnp.sign, cnp.square),
    "u": (cnp.square, cnp.sign),
    "f": (cnp.tanh, cnp.exp, cnp.sqrt, cnp.log, cnp.negative, cnp.abs, cnp.floor, cnp.sin, cnp.reciprocal),
    "c": (cnp.exp, cnp.negative, cnp.conj, cnp.sqrt),
}
BINARY = {
    "b": (cnp.logical_and, cnp.logical_or, cnp.equal),
    "i": (cnp.add, cnp.subtract, cnp.multiply, cnp.maximum, cnp.bitwise_and, cnp.floor_divide),
    "u": (cnp.add, cnp.subtract, cnp.multiply, cnp.minimum, cnp.bitwise_xor),
    "f": (cnp.add, cnp.subtract, cnp.multiply, cnp.divide, cnp.maximum, cnp.minimum, cnp.arctan2),
    "c": (cnp.add, cnp.subtract, cnp.multiply),
}
SHAPES = {
    "one shape": [(3, 4)] * 3,
    "broadcast": [(3, 4), (4,), (3, 1)],
    "with a number": [(3, 4), (), (1, 1)],
    "no elements": [(0, 4), (4,), (1, 1)],
    "numbers": [(), (), ()],
    "one element": [(1,), (1, 1), ()],
}


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers of all magnitudes: integers that wrap around; floats with NaN, infinities and zeros of both signs."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)[()]
    if kind in "iu":
        limits = np.iinfo(dtype)
        return (
            rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)[()]
            if shape
            else np.dtype(dtype).type(3)
        )
    found = np.asarray(rng.normal(size=shape) * 3)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    if kind == "f":
        where = rng.random(found.shape) < 0.2
        found[where] = rng.choice(special, int(where.sum()))
    else:
        found = found + 1j * rng.normal(size=shape)
    return found.astype(dtype)[()]


def chain(number: int, dtype: str) -> Callable[..., tuple[Any, ...]]:
    """A random straight-line function of three arrays with several results."""
    kind = np.dtype(dtype).kind

    def fn(*args: Any) -> tuple[Any, ...]:
        rng = np.random.default_rng(number)
        values = list(args)
        for _ in range(8):
            taken = [values[rng.integers(len(values))] for _ in range(2)]
            if rng.random() < 0.4:
                values.append(UNARY[kind][rng.integers(len(UNARY[kind]))](taken[0]))
            else:
                values.append(BINARY[kind][rng.integers(len(BINARY[kind]))](*taken))
            if rng.random() < 0.3 and kind != "c":
                values.append(cnp.where(cnp.less(taken[0], taken[1]), taken[0], values[-1]))
        return values[-1], values[-3], values[5], cnp.sum(values[-2])

    return fn


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_random_chains(dtype: str, shapes: str, parts_run: list[Graph]) -> None:
    for number in range(4):
        rng = np.random.default_rng(number)
        args = [drawn(rng, shape, dtype) for shape in SHAPES[shapes]]
        assert_agrees(chain(number, dtype), *args, rtol=1e-4 if dtype in ("float32", "complex64") else 1e-10)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "in columns": lambda x: np.asfortranarray(x),
    "one element seen as many": lambda x: np.broadcast_to(x[0, 0], x.shape),
    "one row seen as many": lambda x: np.broadcast_to(x[0], x.shape),
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


def test_operands_lie_anyhow(parts_run: list[Graph]) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 5, 5))
    for name, layout in LAYOUTS.items():
        assert_agrees(lambda a, b: ((a * b + a) @ b, a.T - b, a[1:3] * b[:2], a + b), layout(x), y)
        assert parts_run, name
