"""Ops in loops: the cases of `rule_cases`, elementwise ops on each dtype, products of every size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.natively import run_natively
from instruments.tables import in_turn
from rule_cases import CASES, Case

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.execution import run_on
from ctrlgrad.ir import OPS, Graph, Node, attributes


def in_a_loop(case: Case, dtype: Any) -> Callable[..., Any]:
    """A scalar of the case's results, summed over two iterations with slightly different arguments."""

    def loss(*args: Any) -> Any:
        results = case.fn(*args)
        results = results if isinstance(results, tuple) else (results,)
        return sum(cnp.sum(cnp.sin(cnp.real(r) * (0.7 + k))) for k, r in enumerate(results)).astype(dtype)

    def function(*args: Any) -> Any:
        def body(carry: Any) -> Any:
            i, total = carry
            return i + 1, total + loss(*(x * (1 + i / 64).astype(dtype) for x in args))

        return cg.while_loop(lambda carry: carry[0] < 2, body, (0, np.zeros((), dtype)))[1]

    return function


# A case's value, its gradient, and its gradient in single precision: dtype and order.
FORMS = {"value": ("float64", 0), "gradient": ("float64", 1), "in single": ("float32", 1)}


@cache
def graph_of(name: str, dtype: Any, order: int) -> Graph:
    case = CASES[name]
    args = [x.astype(dtype) for x in case.args]
    function = in_a_loop(case, dtype)
    if order:
        function = cg.grad(function, argnums=tuple(range(len(args))))
    specs = tuple(cg.TensorSpec((None,) * x.ndim, dtype) for x in args) if case.unknown else None
    graph: Graph = cg.function(function, signature=specs).graph(*args)
    return graph


@in_turn("name, form", list(CASES), list(FORMS))
def test_case(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, order = FORMS[form]
    if (dtype, order) != ("float64", 1):
        # The gradient contains the value's ops and is compiled with optimisations, so the other forms need none.
        monkeypatch.setenv("CTRLGRAD_QUICK_CODE", "1")
    graph = graph_of(name, np.dtype(dtype), order)
    args = [x.astype(dtype) for x in CASES[name].args]
    found = run_natively(graph, args)
    assert_same(found, run_on("reference", graph, args), 1e-11 if dtype == "float64" else 2e-5)


# Elementwise ops on each dtype, as arrays and as scalars.

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = ["bool", *INTEGERS, "float32", "float64", "complex64", "complex128"]
ARITHMETIC = [cnp.add, cnp.subtract, cnp.multiply]
COMPARISONS = [cnp.less, cnp.less_equal, cnp.greater, cnp.greater_equal, cnp.equal, cnp.not_equal]
BITS = [cnp.bitwise_and, cnp.bitwise_or, cnp.bitwise_xor]
LOGIC = [cnp.logical_and, cnp.logical_or, cnp.logical_xor]
ORDERED = [cnp.maximum, cnp.minimum, cnp.floor_divide, cnp.remainder]
REDUCTIONS = [cnp.sum, cnp.prod, cnp.max, cnp.min, cnp.argmax, cnp.argmin, cnp.any, cnp.all]


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of operands that cover every special value of a dtype; shift counts are in range."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        values = np.array([True, False])
    elif kind in "iu":
        limits = np.iinfo(dtype)
        values = np.array([0, 1, 2, 3, 7, limits.max, limits.max - 1, limits.min, limits.min + 1], dtype)
        if kind == "i":
            values = np.concatenate([values, np.array([-1, -2, -7], dtype)])
    elif kind == "f":
        values = np.array([0.0, -0.0, 1.0, -2.5, 3.0, 1e30, np.inf, -np.inf, np.nan], dtype)
    else:
        values = np.array([0, 1, -2.5 + 0.5j, 3j, complex(np.inf, 1), complex(1, np.nan)], dtype)
    pairs = np.array(list(product(values, values)), dtype)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def functions(dtype: str) -> list[Callable[[Any, Any], Any]]:
    """Functions of two operands of a dtype, by its kind."""
    kind = np.dtype(dtype).kind
    two = [*LOGIC, cnp.equal, cnp.not_equal]
    one: list[Any] = [cnp.logical_not]
    if kind == "b":
        two += [*BITS]
        one += [cnp.bitwise_invert]
    else:
        two += ARITHMETIC
        one += [cnp.negative, cnp.square, cnp.abs]
    if kind in "iu":
        last = np.dtype(dtype).type(np.iinfo(dtype).bits - 1)
        two += [*COMPARISONS, *BITS, *ORDERED, lambda x, y: x << (y & last), lambda x, y: x >> (y & last)]
        one += [cnp.sign, cnp.bitwise_invert]
    if kind == "f":
        two += [*COMPARISONS, *ORDERED, cnp.divide, cnp.copysign]
        one += [cnp.sign, cnp.isnan, cnp.isinf, cnp.isfinite, cnp.signbit, cnp.floor, cnp.ceil, cnp.trunc, cnp.round]
    if kind == "c":
        one += [cnp.real, cnp.imag, cnp.conj]
    casts = [d for d in DTYPES if d != dtype and (kind in "biu" or np.dtype(d).kind in ("fc" if kind == "f" else "c"))]
    return [
        *two,
        *(lambda x, y, f=f: f(x) for f in one),
        *(lambda x, y, d=d: x.astype(d) for d in casts),
        lambda x, y: cnp.where(y == y, x, y),
    ]


def all_at_once(computed: Sequence[Callable[[Any, Any], Any]]) -> Callable[..., Any]:
    """A loop that computes every function in its second iteration, from operands that it carries."""

    def function(x: Any, y: Any) -> Any:
        zeros = tuple(cnp.zeros_like(f(x, y)) for f in computed)

        def body(carry: Any) -> Any:
            i, x, y, *_ = carry
            # A selection by the carried number keeps the operands from being seen as invariant.
            x, y = cnp.where(i < 5, x, y), cnp.where(i < 5, y, x)
            return (i + 1, x, y, *(f(x, y) for f in computed))

        return cg.while_loop(lambda carry: carry[0] < 2, body, (0, x, y, *zeros))[3:]

    return function


def assert_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compare exactly, except for the last digit of floats."""
    for a, b in zip(found, expected, strict=True):
        dtype = np.asarray(b).dtype
        assert np.asarray(a).dtype == dtype
        np.testing.assert_allclose(a, b, rtol=np.finfo(dtype).eps if dtype.kind in "fc" else 0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_of_arrays(dtype: str) -> None:
    x, y = operands(dtype)
    graph = cg.function(all_at_once(functions(dtype))).graph(x, y)
    found = run_natively(graph, [x, y])
    assert_equal(found, run_on("reference", graph, [x, y]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_of_scalars(dtype: str) -> None:
    computed = functions(dtype)
    x, y = operands(dtype)
    graph = cg.function(all_at_once(computed)).graph(x[0], y[0])
    for pair in zip(x, y, strict=True):
        found = run_natively(graph, list(pair))
        assert_equal(found, run_on("reference", graph, list(pair)))


@pytest.mark.parametrize("count", [-1, 0, 7, 8, 36, 64, 100])
def test_shifts_by_any_count(count: int) -> None:
    """A shift by the width or more leaves nothing but the sign, as in NumPy."""
    x, y = np.array([100, -100, 1, -1], np.int8), np.full(4, count, np.int8)
    graph = cg.function(all_at_once([cnp.bitwise_left_shift, cnp.bitwise_right_shift])).graph(x, y)
    assert_equal(run_natively(graph, [x, y]), run_on("reference", graph, [x, y]))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.startswith("complex")])
def test_reductions_of_a_dtype(dtype: str) -> None:
    """Reductions along each axis, and along all axes."""
    x = operands(dtype)[0][:4].reshape(2, 2)
    computed = [lambda x, y, f=f, axis=axis: f(x, axis=axis) for f in REDUCTIONS for axis in (0, 1)]
    computed += [lambda x, y, f=f: f(x) for f in REDUCTIONS if f not in (cnp.argmax, cnp.argmin)]
    graph = cg.function(all_at_once(computed)).graph(x, x)
    found = run_natively(graph, [x, x])
    assert_equal(found, run_on("reference", graph, [x, x]))


# Matrix products of every small size, each operand in rows and in columns.


@in_turn("sizes, turned", list(product((0, 1, 3), repeat=3)), ["neither", "left", "right", "both"])
def test_products(sizes: tuple[int, int, int], turned: str) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(sizes)
    left, right = turned in ("left", "both"), turned in ("right", "both")
    a = rng.normal(size=(k, m) if left else (m, k))
    b = rng.normal(size=(n, k) if right else (k, n))

    def function(a: Any, b: Any) -> Any:
        def body(carry: Any) -> Any:
            i, c = carry
            x, y = cnp.sin(a + i), cnp.sin(b + i)
            return i + 1, cnp.sin(c + (x.T if left else x) @ (y.T if right else y))

        return cg.while_loop(lambda carry: carry[0] < 3, body, (0, np.ones((m, n))))[1]

    graph = cg.function(function).graph(a, b)
    found = run_natively(graph, [a, b])
    assert_same(found, run_on("reference", graph, [a, b]), 1e-11)


def test_half_precision() -> None:
    def function(x: Any) -> Any:
        body = lambda carry: (carry[0] + 1, carry[1], cnp.sqrt(carry[1]))
        return cg.while_loop(lambda carry: carry[0] < 2, body, (0, x, cnp.zeros_like(cnp.sqrt(x))))[2]

    x = np.array([1, 4, 9], np.int8)
    graph = cg.function(function).graph(x)
    found = run_natively(graph, [x])
    assert found[0].dtype == np.float16
    np.testing.assert_array_equal(found, run_on("reference", graph, [x]))


@pytest.mark.parametrize("op", ["setitem", "additem"])
@pytest.mark.parametrize("key", [(), (Ellipsis,)])
def test_an_update_of_a_number_in_a_graph_made_by_hand(op: str, key: tuple[Any, ...]) -> None:
    """A graph may hold `x.at[()]` updates, though tracing simplifies them."""
    graph = cg.function(lambda x: cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + 1.5), (0, x))[1]).graph(
        2.0
    )
    (loop,) = (node for node in graph.nodes if node.regions)
    cond, body = loop.regions
    nodes = tuple(
        replace(n, op=OPS[op], attrs=attributes.Index(key=key)) if n.result is body.outputs[1] else n
        for n in body.nodes
    )
    regions = (cond, Graph(body.inputs, nodes, body.outputs, body.name))
    updating = Node(loop.op, loop.operands, loop.results, loop.attrs, regions, loop.source)
    made = Graph(graph.inputs, tuple(updating if n is loop else n for n in graph.nodes), graph.outputs, graph.name)
    (found,) = run_natively(made, [np.float64(2.0)])
    assert found == run_on("reference", made, [np.float64(2.0)])[0] == {"setitem": 1.5, "additem": 6.5}[op]
