"""`ctrlgrad.numpy` against NumPy: at once, traced with known and unknown sizes, through NumPy's protocols."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import (
    CtrlgradError,
    ExecutionError,
    IndexOutOfRangeError,
    ShapeError,
    TracingError,
    TypeMismatchError,
)
from ctrlgrad.frontend import apply
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recording
from ctrlgrad.ir import Builder, Graph, StackType, TensorType, verify

TOLERANCE = {"float16": 3e-3, "float32": 2e-5, "float64": 1e-12, "complex128": 1e-12, "complex64": 2e-5}


@pytest.fixture(autouse=True)
def _evaluate_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed outside a trace has the types that its ops infer."""
    monkeypatch.setattr(
        apply, "run_on", lambda engine, graph, arrays, nans: run_graph(graph, arrays, Run(check_types=True))
    )


def leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def trace(fn: Callable[..., Any], arrays: Sequence[Any], unknown: bool = False) -> Graph:
    """The graph of fn; with `unknown`, every size is. A Python number becomes a weak input."""
    builder = Builder()
    tensors = []
    for array in arrays:
        weak = isinstance(array, bool | int | float) and not isinstance(array, np.generic)
        a = np.asarray(array)
        shape = (None,) * a.ndim if unknown else a.shape
        tensors.append(Tensor(builder, builder.input(TensorType(a.dtype, shape)), weak))
    with recording(builder):
        outputs = [value_in(builder, leaf) for leaf in leaves(fn(*tensors))]
    graph = builder.finish(outputs)
    verify(graph)
    return graph


def run(fn: Callable[..., Any], arrays: Sequence[Any], unknown: bool = False) -> list[Any]:
    return run_graph(trace(fn, arrays, unknown), [np.asarray(a) for a in arrays], Run(check_types=True))


def reference(fn: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return leaves(fn(*arrays))


def assert_same(actual: Sequence[Any], expected: Sequence[Any], label: str) -> None:
    assert len(actual) == len(expected), label
    for a, e in zip(actual, expected, strict=True):
        a, e = np.asarray(a), np.asarray(e)
        assert a.dtype == e.dtype, f"{label}: {a.dtype}, expected {e.dtype}"
        assert a.shape == e.shape, f"{label}: {a.shape}, expected {e.shape}"
        tolerance = TOLERANCE.get(e.dtype.name, 0)
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance, err_msg=label)


def data(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return (rng.normal(size=shape) * 2).astype(dtype)


# Elementwise functions: every dtype, what NumPy refuses is refused.

DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64", "complex128"]
UNARY = """exp expm1 log log1p log2 log10 sqrt sin cos tan sinh cosh tanh arcsin arccos arctan asin acos atan square
sign negative positive abs absolute fabs floor ceil trunc rint isnan isinf isfinite logical_not""".split()  # noqa: SIM905
# NumPy takes these; no op does.
REFUSED = {("rint", "complex128")}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str) -> None:
    x = data(dtype, (3, 4))
    if np.dtype(dtype).kind == "f":
        x[0, 0], x[0, 1], x[0, 2] = np.nan, np.inf, 0
    ours, theirs = getattr(cnp, name), getattr(np, name)
    try:
        expected = reference(theirs, [x])
        refused = (name, dtype) in REFUSED
    except TypeError:
        refused = True
    if refused:
        for call in (lambda: ours(x), lambda: run(ours, [x])):
            with pytest.raises(TypeMismatchError) as caught:
                call()
            assert caught.value.source.file == __file__
        return
    assert_same([ours(x)], expected, "eager")
    assert_same(run(ours, [x]), expected, "traced")
    assert_same(run(ours, [x], unknown=True), expected, "unknown sizes")
    assert_same(run(theirs, [x]), expected, "protocol")


@pytest.mark.parametrize("decimals", [-1, 0, 2])
def test_round(decimals: int) -> None:
    x = data("float64", (5,)) * 100
    assert_same(run(lambda t: cnp.round(t, decimals), [x]), [np.round(x, decimals)], "traced")
    assert_same(run(lambda t: np.round(t, decimals), [x]), [np.round(x, decimals)], "protocol")
    assert_same(run(lambda t: t.round(decimals), [x]), [np.round(x, decimals)], "method")


ARITHMETIC = """add subtract multiply divide floor_divide remainder maximum minimum arctan2 logaddexp equal not_equal
less less_equal greater greater_equal logical_and logical_or logical_xor""".split()  # noqa: SIM905
OPERANDS = [*(data(d, (3,), 1) for d in DTYPES), True, 3, 2.5]


# NumPy orders complex numbers too; the library does not.
ORDERED = {"maximum", "minimum", "less", "less_equal", "greater", "greater_equal"}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_binary_promotes_as_numpy(name: str) -> None:
    ours, theirs = getattr(cnp, name), getattr(np, name)
    checked = 0
    for left in [data(d, (2, 3), 2) for d in DTYPES]:
        for right in OPERANDS:
            if name in ORDERED and any(np.asarray(x).dtype.kind == "c" for x in (left, right)):
                continue
            for pair in ((left, right), (right, left)):
                label = f"{name}({', '.join(repr(np.asarray(x).dtype) for x in pair)})"
                try:
                    expected = reference(theirs, pair)
                except TypeError:
                    with pytest.raises(TypeMismatchError):
                        run(ours, pair)
                    continue
                assert_same([ours(*pair)], expected, label + " eager")
                assert_same(run(ours, pair), expected, label + " traced")
                assert_same(run(lambda x, y=pair[1]: theirs(x, y), pair[:1]), expected, label + " protocol, constant")
                checked += 1
    assert checked > 100


def test_binary_with_unknown_sizes_broadcasts() -> None:
    x, y = data("float64", (4, 1)), data("float64", (3,))
    for name in ARITHMETIC:
        ours, theirs = getattr(cnp, name), getattr(np, name)
        assert_same(run(ours, [x, y], unknown=True), reference(theirs, [x, y]), name)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("symbol", OPERATORS)
def test_operators_keep_python_numbers_weak(symbol: str) -> None:
    f = OPERATORS[symbol]
    x = np.array([1.5, 2.5], np.float32)
    for a, b in [(2.0, 3.0), (3, 2.0), (2.0, 3)]:
        # A Python number made of two must not widen float32.
        assert_same(run(lambda s, t, y: f(s, t) * y, [a, b, x]), [np.asarray(f(a, b) * x)], "weak")
    assert_same(run(lambda y: f(y, 2), [x]), [f(x, 2)], "right number")
    assert_same(run(lambda y: f(2, y), [x]), [f(2, x)], "left number")
    assert_same(run(lambda y: f(x, y), [x]), [f(x, x)], "left array")


def test_functions_make_arrays_of_python_numbers_as_numpy_does() -> None:
    x = np.ones(2, np.float32)
    for f in (
        lambda xp, s: xp.exp(s),
        lambda xp, s: xp.maximum(s, 1.0),
        lambda xp, s: xp.reshape(s, (1,)),
        lambda xp, s: xp.sum(s),
    ):
        expected = f(np, 2.0) * x
        assert expected.dtype == np.float64
        assert_same(run(lambda s, y, f=f: f(cnp, s) * y, [2.0, x]), [expected], "strong")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 8, 13, 0.5, 2.0, -1.0, 1.7, np.float64(2)])
def test_power_with_a_constant(dtype: str, exponent: Any) -> None:
    x = np.abs(data(dtype, (3, 2))) + np.asarray(1, dtype)
    x = x.astype(dtype)
    # numpy.power, not `**`, whose shortcut for booleans squared differs from it.
    expected = reference(lambda a: np.power(a, exponent), [x])
    assert_same(run(lambda a: a**exponent, [x]), expected, "operator")
    assert_same(run(lambda a: cnp.power(a, exponent), [x], unknown=True), expected, "unknown sizes")
    assert_same(run(lambda a: np.power(a, exponent), [x]), expected, "protocol")
    assert_same([cnp.pow(x, exponent)], expected, "eager")


def test_power_lowers_to_products() -> None:
    x = np.array([0.0, -2.0])

    def ops(exponent: Any) -> list[str]:
        return [node.op.name for node in trace(lambda a: a**exponent, [x]).nodes]

    assert ops(2) == ["square"]
    assert ops(3) == ["square", "multiply"]
    assert ops(4.0) == ["square", "square"]
    assert ops(0.5) == ["sqrt"]
    assert ops(-1) == ["reciprocal"]
    assert "power" in ops(2.5) and "power" in ops(9)


def test_power_of_arrays() -> None:
    x, y = np.abs(data("float64", (3, 1))), data("float64", (2,))
    assert_same(run(lambda a, b: a**b, [x, y]), [x**y], "traced")
    assert_same(run(lambda b: 2.0**b, [y]), [2.0**y], "number to array")
    assert_same([cnp.power(np.array([1, 2]), np.array([3, 4]))], [np.array([1, 16])], "eager integers")


# Everything else: one table.

XP = Any


@dataclass(frozen=True)
class Case:
    """A call written once for both modules; `arrays` are its traced operands."""

    label: str
    call: Callable[..., Any]
    arrays: tuple[Any, ...]
    # What to expect where NumPy has no such function.
    expected: Callable[..., Any] | None = None
    unknown: bool = True
    protocol: bool = True


A, B, V = data("float64", (3, 4)), data("float32", (4, 2)), data("float64", (4,))
T3, T4 = data("float32", (2, 3, 4)), data("float64", (2, 3, 4, 5))
I3, U3, M = data("int32", (3, 4)), data("uint8", (3, 4)), data("bool", (3, 4))
EMPTY = np.zeros((0, 4))
K, N, ONE = np.int64(2), np.int64(3), np.float64(1.5)
# Index operands.
IDX, IDX2 = np.array([2, 0, -1]), np.array([[0, 1], [1, 0]])


def case(label: str, call: Callable[..., Any], *arrays: Any, **options: Any) -> Case:
    return Case(label, call, arrays, **options)


def reductions() -> list[Case]:
    cases = []
    for name in ("sum", "prod", "mean", "var", "std", "max", "min", "any", "all"):
        for x in (A, T3, I3, U3, M, data("float16", (3, 4)), data("int8", (2, 3, 4))):
            for axis in (None, 0, -1, (0, 1)):
                for keep in (False, True):
                    cases.append(
                        case(
                            f"{name}-{x.dtype}{x.ndim}-{axis}-{keep}",
                            lambda xp, t, name=name, axis=axis, keep=keep: getattr(xp, name)(
                                t, axis=axis, keepdims=keep
                            ),
                            x,
                        )
                    )
        cases.append(case(f"{name}-no-axes", lambda xp, t, name=name: getattr(xp, name)(t, axis=()), A))
    for name in ("sum", "prod", "mean", "any", "all"):
        cases.append(case(f"{name}-empty", lambda xp, t, name=name: getattr(xp, name)(t, axis=0), EMPTY))
    for name in ("argmax", "argmin"):
        for x in (A, I3, M):
            for axis in (None, 0, -1):
                for keep in (False, True):
                    cases.append(
                        case(
                            f"{name}-{x.dtype}-{axis}-{keep}",
                            lambda xp, t, name=name, axis=axis, keep=keep: getattr(xp, name)(
                                t, axis=axis, keepdims=keep
                            ),
                            x,
                        )
                    )
    for name in ("cumsum", "cumprod"):
        for x in (A, I3, M, U3):
            for axis in (None, 0, -1):
                cases.append(
                    case(
                        f"{name}-{x.dtype}-{axis}",
                        lambda xp, t, name=name, axis=axis: getattr(xp, name)(t, axis=axis),
                        x,
                    )
                )
    cases += [
        case("sum-dtype", lambda xp, t: xp.sum(t, dtype=np.float32), I3),
        case("mean-dtype", lambda xp, t: xp.mean(t, 0, np.float32), I3),
        case("var-ddof", lambda xp, t: xp.var(t, axis=0, ddof=1), A),
        case("std-correction", lambda xp, t: xp.std(t, axis=0, correction=1), A),
        case("var-complex", lambda xp, t: xp.var(t, axis=0), data("complex128", (3, 2))),
        case("amax", lambda xp, t: xp.amax(t, 0), A),
        case("amin", lambda xp, t: xp.amin(t, 0), A),
        case("trace", lambda xp, t: xp.trace(t), I3),
        case("trace-offset", lambda xp, t: xp.trace(t, 1), A),
        case("prod-5", lambda xp, t: xp.prod(t, 0), data("float64", (5, 2))),
        case("prod-7", lambda xp, t: xp.prod(t, 0), data("float64", (7, 2))),
    ]
    return cases


def products() -> list[Case]:
    shapes = [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4, 2)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (4,))]
    shapes += [((5, 2, 3, 4), (2, 4, 6)), ((3, 4), (2, 4, 5)), ((4,), (2, 4, 5)), ((2, 1, 3, 4), (1, 5, 4, 2))]
    shapes += [((0, 4), (4, 2)), ((3, 0), (0, 2)), ((2, 3, 0), (0, 2))]
    cases = [
        case(f"matmul-{a}-{b}-{d}", lambda xp, x, y: xp.matmul(x, y), data(d, a), data("float32", b))
        for a, b in shapes
        for d in ("float32", "float64", "int32")
    ]
    cases += [
        case("matmul-bool", lambda xp, x, y: xp.matmul(x, y), M, M.T.copy()),
        case("matmul-int8", lambda xp, x, y: xp.matmul(x, y), data("int8", (3, 4)), data("int8", (4, 2))),
        case("operator-matmul", lambda xp, x, y: x @ y, A, B),
        case("T", lambda xp, x: x.T @ x, A),
        case("mT", lambda xp, x: x.mT, T3),
    ]
    for a, b in [((), (3,)), ((4,), (4,)), ((3, 4), (4,)), ((3, 4), (4, 2)), ((2, 3, 4), (5, 4, 2)), ((4,), (5, 4, 2))]:
        cases.append(case(f"dot-{a}-{b}", lambda xp, x, y: xp.dot(x, y), data("float64", a), data("float64", b)))
    for a, b in [((), (3,)), ((4,), (4,)), ((3, 4), (2, 4)), ((2, 3, 4), (5, 4))]:
        cases.append(case(f"inner-{a}-{b}", lambda xp, x, y: xp.inner(x, y), data("float64", a), data("float64", b)))
    cases += [
        case("vdot", lambda xp, x, y: xp.vdot(x, y), A, A + 1),
        case("outer", lambda xp, x, y: xp.outer(x, y), A, V),
        case("vecdot", lambda xp, x, y: xp.vecdot(x, y), A, V),
        case("vecdot-axis", lambda xp, x, y: xp.vecdot(x, y, axis=0), A, A),
        case("vecdot-int8", lambda xp, x, y: xp.vecdot(x, y), data("int8", (3, 4)), data("int8", (4,))),
        case("tensordot-0", lambda xp, x, y: xp.tensordot(x, y, 0), A, V),
        case("tensordot-1", lambda xp, x, y: xp.tensordot(x, y, 1), A, B),
        case("tensordot-2", lambda xp, x, y: xp.tensordot(x, y), T3, T4[0]),
        case("tensordot-pairs", lambda xp, x, y: xp.tensordot(x, y, ([2, 0], [2, 0])), T3, T4),
        case("tensordot-int", lambda xp, x, y: xp.tensordot(x, y, (0, 1)), A, T3),
    ]
    return cases


EINSUM = [
    ("ij,jk->ik", (3, 4), (4, 2)),
    ("ij,kj->ik", (3, 4), (2, 4)),
    ("ij,jk", (3, 4), (4, 2)),
    ("ji", (3, 4)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iij->ij", (3, 3, 2)),
    ("iii->i", (3, 3, 3)),
    ("ij->", (3, 4)),
    ("ij->j", (3, 4)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("bij,bjk->bik", (5, 3, 4), (5, 4, 2)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("abc,cd->abd", (2, 3, 4), (4, 5)),
    ("abcd,cdef->abef", (2, 3, 4, 5), (4, 5, 6, 2)),
    ("abc,dcb->da", (2, 3, 4), (5, 4, 3)),
    ("ij,j->i", (3, 4), (4,)),
    ("ijk,k->", (2, 3, 4), (4,)),
    ("ij,kl->ij", (3, 4), (2, 5)),
    ("ij,jk,kl->il", (3, 4), (4, 2), (2, 5)),
    ("i,ij,j->", (3,), (3, 4), (4,)),
    ("bi,bj,bk->ijk", (5, 2), (5, 3), (5, 4)),
    ("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("...ij,...jk->...ik", (5, 3, 4), (4, 2)),
    ("...ij,...jk->...ik", (5, 1, 3, 4), (6, 4, 2)),
    ("...ij,jk", (5, 3, 4), (4, 2)),
    ("i...->...", (3, 4, 2)),
    ("...,...", (3, 4), (4,)),
    ("...i->i...", (2, 3, 4)),
    ("ij,ij->ij", (1, 3), (2, 3)),
    ("ij,jk->ik", (3, 0), (0, 2)),
    (" i j , j k -> i k ", (3, 4), (4, 2)),
]


def contractions() -> list[Case]:
    cases = []
    for subscripts, *shapes in EINSUM:
        for dtype in ("float64", "int8"):
            arrays = [data(dtype, shape, position) for position, shape in enumerate(shapes)]
            cases.append(case(f"einsum {subscripts} {dtype}", lambda xp, *xs, s=subscripts: xp.einsum(s, *xs), *arrays))
    cases.append(case("einsum mixed", lambda xp, x, y: xp.einsum("ij,jk", x, y), A, B))
    cases.append(case("einsum bool", lambda xp, x, y: xp.einsum("ij,kj->ik", x, y), M, M))
    return cases


def shapes() -> list[Case]:
    return [
        case("reshape", lambda xp, x: xp.reshape(x, (4, 3)), A),
        case("reshape--1", lambda xp, x: xp.reshape(x, (2, -1)), A),
        case("reshape-flat", lambda xp, x: xp.reshape(x, -1), T3),
        case(
            "reshape-traced",
            lambda xp, x, n: xp.reshape(x, (n, -1)),
            A,
            N,
            protocol=False,
            expected=lambda x, n: x.reshape(n, -1),
        ),
        case("reshape-own", lambda xp, x: xp.reshape(x, (x.shape[0] * x.shape[1], x.shape[2])), T3),
        case("reshape-method", lambda xp, x: x.reshape(2, 6), A),
        case("reshape-method-tuple", lambda xp, x: x.reshape((2, -1)), A),
        case("reshape-empty", lambda xp, x: xp.reshape(x, (2, 0)), EMPTY),
        case("ravel", lambda xp, x: xp.ravel(x), A),
        case("flatten", lambda xp, x: x.flatten(), T3),
        case("transpose", lambda xp, x: xp.transpose(x), T3),
        case("transpose-axes", lambda xp, x: xp.transpose(x, (1, 2, 0)), T3),
        case("transpose-method", lambda xp, x: x.transpose(1, 0, 2), T3),
        case("permute_dims", lambda xp, x: xp.permute_dims(x, (2, 0, 1)), T3),
        case("matrix_transpose", lambda xp, x: xp.matrix_transpose(x), T3),
        case("swapaxes", lambda xp, x: xp.swapaxes(x, 0, -1), T3),
        case("moveaxis", lambda xp, x: xp.moveaxis(x, 0, -1), T3),
        case("moveaxis-2", lambda xp, x: xp.moveaxis(x, (0, 1), (-1, 0)), T4),
        case("expand_dims", lambda xp, x: xp.expand_dims(x, 1), A),
        case("expand_dims-2", lambda xp, x: xp.expand_dims(x, (0, -1)), A),
        case("squeeze", lambda xp, x: xp.squeeze(x), A[None, :, None], unknown=False),
        case("squeeze-axis", lambda xp, x: xp.squeeze(x, (0, -2)), A[None, :, None]),
        case("flip", lambda xp, x: xp.flip(x), T3),
        case("flip-axis", lambda xp, x: xp.flip(x, (0, -1)), T3),
        case("broadcast_to", lambda xp, x: xp.broadcast_to(x, (2, 3, 4)), A),
        case("broadcast_arrays", lambda xp, x, y: xp.broadcast_arrays(x, y), A[:, :1], V),
        case("broadcast_arrays-3", lambda xp, x, y, z: xp.broadcast_arrays(x, y, z), A[:1], A[:, :1], V),
        case("tile", lambda xp, x: xp.tile(x, 2), A),
        case("tile-2", lambda xp, x: xp.tile(x, (2, 1, 3)), A),
        case("tile-short", lambda xp, x: xp.tile(x, (2,)), T3),
        case("repeat", lambda xp, x: xp.repeat(x, 3), A),
        case("repeat-axis", lambda xp, x: xp.repeat(x, 2, axis=1), A),
        case("repeat-0", lambda xp, x: xp.repeat(x, 0, axis=1), A),
        case("repeat-each", lambda xp, x: xp.repeat(x, [1, 0, 2], axis=0), A, unknown=False),
        case("roll", lambda xp, x: xp.roll(x, 2), A),
        case("roll-axis", lambda xp, x: xp.roll(x, -1, axis=1), A),
        case("roll-far", lambda xp, x: xp.roll(x, 13, axis=0), A),
        case("roll-axes", lambda xp, x: xp.roll(x, (1, -2), axis=(0, 1)), A),
        case("roll-tuple", lambda xp, x: xp.roll(x, (1, 2), axis=0), A),
        case("roll-traced", lambda xp, x, n: xp.roll(x, n, axis=1), A, N),
        case("roll-empty", lambda xp, x: xp.roll(x, 1, axis=0), EMPTY),
        case("pad", lambda xp, x: xp.pad(x, 1), A),
        case("pad-pairs", lambda xp, x: xp.pad(x, ((1, 0), (0, 2))), A),
        case("pad-value", lambda xp, x: xp.pad(x, (1, 2), constant_values=7), I3),
        case("pad-values", lambda xp, x: xp.pad(x, 1, constant_values=((1, 2), (3, 4))), I3),
        case("tril", lambda xp, x: xp.tril(x), A),
        case("tril-k", lambda xp, x: xp.tril(x, -1), T3),
        case("triu", lambda xp, x: xp.triu(x), A),
        case("triu-k", lambda xp, x: xp.triu(x, 2), T3),
        case("diagonal", lambda xp, x: xp.diagonal(x), A),
        case("diagonal-offset", lambda xp, x: xp.diagonal(x, -1), A),
        case("diagonal-right", lambda xp, x: xp.diagonal(x, 2), A),
        case("diagonal-none", lambda xp, x: xp.diagonal(x, 9), A),
        case("diagonal-axes", lambda xp, x: xp.diagonal(x, 1, 0, 2), T3),
        case("shape", lambda xp, x: xp.shape(x), A),
        case("ndim", lambda xp, x: xp.ndim(x), A),
        case("size", lambda xp, x: xp.size(x), T3),
        case("size-axis", lambda xp, x: xp.size(x, 1), T3),
        case("astype", lambda xp, x: x.astype(np.int32), A),
        case("astype-function", lambda xp, x: xp.astype(x, np.float16), A),
        case("astype-bool", lambda xp, x: x.astype(bool), A),
        case("copy", lambda xp, x: xp.copy(x), A),
        case("clip", lambda xp, x: xp.clip(x, -1, 1), A),
        case("clip-one", lambda xp, x: xp.clip(x, None, 0.5), A),
        case("clip-method", lambda xp, x: x.clip(0, 2), I3),
        case("clip-arrays", lambda xp, x, lo: xp.clip(x, lo, 3.0), I3, V),
        case("conj", lambda xp, x: xp.conj(x), A),
        case("real", lambda xp, x: xp.real(x), A),
    ]


def joins() -> list[Case]:
    return [
        case("concatenate", lambda xp, x, y: xp.concatenate([x, y]), A, I3),
        case("concatenate-axis", lambda xp, x, y: xp.concatenate((x, y), axis=-1), A, A),
        case("concat-none", lambda xp, x, y: xp.concat([x, y], axis=None), A, V),
        case("concat-constant", lambda xp, x: xp.concat([x, np.ones((1, 4), np.float32)]), A),
        case("stack", lambda xp, x, y: xp.stack([x, y]), A, I3),
        case("stack-axis", lambda xp, x, y: xp.stack([x, y], axis=-1), A, A),
        case("stack-scalars", lambda xp, x, y: xp.stack([x, y]), ONE, K),
        case("vstack", lambda xp, x, y: xp.vstack([x, y]), A, V),
        case("hstack", lambda xp, x, y: xp.hstack([x, y]), A, A),
        case("hstack-1", lambda xp, x, y: xp.hstack([x, y]), V, V),
        case("split", lambda xp, x: xp.split(x, 2, axis=1), A),
        case("split-places", lambda xp, x: xp.split(x, [1, 3], axis=1), A),
        case("split-overlap", lambda xp, x: xp.split(x, [3, 2, 9], axis=1), A),
        case("split-empty", lambda xp, x: xp.split(x, 3), EMPTY),
        case("array_split", lambda xp, x: xp.array_split(x, 3, axis=1), A),
        case("array_split-many", lambda xp, x: xp.array_split(x, 5), A),
        case("unstack", lambda xp, x: xp.unstack(x, axis=1), A, unknown=False),
        case("where", lambda xp, c, x, y: xp.where(c, x, y), M, A, V),
        case("where-numbers", lambda xp, c, x: xp.where(c, x, 0), M, I3),
        case("where-float32", lambda xp, c, x: xp.where(c, x, -np.inf), M, data("float32", (3, 4))),
        case("where-int-condition", lambda xp, c, x: xp.where(c, x, 1.5), I3, A),
        case("isclose", lambda xp, x, y: xp.isclose(x, y), A, A + 1e-9),
        case(
            "isclose-special",
            lambda xp, x, y: xp.isclose(x, y),
            np.array([np.inf, np.nan, 1, np.inf]),
            np.array([np.inf, np.nan, np.inf, -np.inf]),
        ),
        case(
            "isclose-nan",
            lambda xp, x, y: xp.isclose(x, y, equal_nan=True),
            np.array([np.nan, 1.0]),
            np.array([np.nan, 2.0]),
        ),
        case("isclose-ints", lambda xp, x, y: xp.isclose(x, y), I3, I3 + 1),
        case("allclose", lambda xp, x, y: xp.allclose(x, y), A, A + 1e-12),
        case("allclose-not", lambda xp, x, y: xp.allclose(x, y), A, A + 1),
        case("array_equal", lambda xp, x, y: xp.array_equal(x, y), A, A.copy()),
        case("array_equal-not", lambda xp, x, y: xp.array_equal(x, y), A, A + M),
        case("array_equal-shape", lambda xp, x, y: xp.array_equal(x, y), A, A[:2]),
        case("array_equal-rank", lambda xp, x, y: xp.array_equal(x, y), A, V),
        case("bitwise_and", lambda xp, x, y: (x & y, x | y, x ^ y, ~x), M, ~M),
        case(
            "bitwise",
            lambda xp, x, y: (xp.bitwise_and(x, y), xp.bitwise_or(x, True), xp.invert(x), xp.bitwise_not(x)),
            M,
            ~M,
        ),
    ]


def indexing() -> list[Case]:
    keys: dict[str, Any] = {
        "int": 1,
        "negative": -1,
        "ints": (1, 2),
        "np-int": np.int32(1),
        "0-d": np.array(2),
        "slice": slice(1, None),
        "slices": (slice(None, 2), slice(None, None, 2)),
        "reversed": (slice(None, None, -1), slice(3, 0, -2)),
        "out-of-range-slice": slice(1, 100),
        "ellipsis": (..., 1),
        "only-ellipsis": ...,
        "empty": (),
        "none": (None, slice(None), None, 1),
        "list": [2, 0, 0],
        "empty-list": [],
        "array": IDX,
        "array-int32": np.array([0, 1], np.int32),
        "array-2d": IDX2,
        "arrays": (IDX, np.array([1, 2, 3])),
        "broadcast": (IDX[:, None], np.array([1, 2])),
        "array-slice": (IDX, slice(1, 3)),
        "slice-array": (slice(1, 3), IDX),
        "array-int": (IDX, 1),
        "separated": (IDX, None, 1),
        "mask": M,
        "mask-axis": np.array([True, False, True]),
        "mask-second": (slice(None), np.array([True, False, True, True])),
        "mask-int": (np.array([True, False, True]), 1),
        "mask-none": np.zeros(3, bool),
    }
    cases = [case(f"getitem-{name}", lambda xp, x, key=key: x[key], A) for name, key in keys.items()]
    cases += [
        case("getitem-3d", lambda xp, x: x[1, ..., None, [0, 2]], T3),
        case("getitem-3d-separated", lambda xp, x: x[IDX2, :, IDX2], T3),
        case("getitem-3d-int-separated", lambda xp, x: x[0, :, IDX], T3),
        case("getitem-traced-scalar", lambda xp, x, i: x[i], A, K),
        case("getitem-traced-scalars", lambda xp, x, i: x[i, i], A, K),
        case("getitem-traced-array", lambda xp, x, i: x[i], A, IDX),
        case("getitem-traced-mixed", lambda xp, x, i, j: x[i, j], A, IDX, K),
        case("getitem-traced-uint", lambda xp, x, i: x[i], A, np.array([1, 2], np.uint8)),
        case("getitem-traced-slice", lambda xp, x, i: x[:i], A, K),
        case("getitem-traced-bounds", lambda xp, x, i, j: x[0, i:j:1], A, np.int64(1), N),
        case("getitem-traced-step", lambda xp, x, i: x[:, ::i], A, K),
        case("getitem-traced-list", lambda xp, x, i: x[:, [0, i]], A, K, protocol=False),
        case("take", lambda xp, x, i: xp.take(x, i), A, IDX2),
        case("take-axis", lambda xp, x, i: xp.take(x, i, axis=1), A, IDX2),
        case("take-scalar", lambda xp, x, i: xp.take(x, i, axis=0), A, K),
        case("take-list", lambda xp, x: x.take([0, 1], axis=1), A),
        case(
            "take_along_axis", lambda xp, x, i: xp.take_along_axis(x, i, axis=1), A, np.array([[0, -1], [2, 2], [1, 3]])
        ),
        case("take_along_axis-0", lambda xp, x, i: xp.take_along_axis(x, i, axis=0), A, np.array([[0, 2, 1, 0]])),
        case("take_along_axis-none", lambda xp, x, i: xp.take_along_axis(x, i, axis=None), A, IDX),
        case("take_along_axis-3", lambda xp, x, i: xp.take_along_axis(x, i, axis=1), T3, np.argsort(T3, 1)),
        case("take_along_axis-broadcast", lambda xp, x, i: xp.take_along_axis(x, i, axis=1), A, np.array([[3, 1]])),
    ]
    return cases


def creations() -> list[Case]:
    made = {"protocol": False}
    return [
        case("zeros_like", lambda xp, x: xp.zeros_like(x), A),
        case("ones_like", lambda xp, x: xp.ones_like(x, dtype=np.int32), A),
        case("full_like", lambda xp, x: xp.full_like(x, 3), I3),
        case("full_like-shape", lambda xp, x: xp.full_like(x, 3, shape=(2,)), I3),
        case("empty_like", lambda xp, x: xp.empty_like(x), A, expected=lambda x: np.zeros_like(x)),
        case("zeros", lambda xp, n: xp.zeros((n, 2)), N, **made),
        case("ones", lambda xp, n: xp.ones(n, np.float32), N, **made),
        case("full", lambda xp, n, v: xp.full((2, n), v), N, ONE, **made),
        case("full-array", lambda xp, v: xp.full((2, 4), v), V, **made),
        case("arange", lambda xp, n: xp.arange(n), N, **made),
        case("arange-2", lambda xp, a, b: xp.arange(a, b), K, np.int64(7), **made),
        case("arange-none", lambda xp, a, b: xp.arange(b, a), K, np.int64(7), **made),
        case("arange-step", lambda xp, a, b: xp.arange(a, b, 3), K, np.int64(9), **made),
        case("arange-down", lambda xp, a, b: xp.arange(b, a, -2), K, np.int64(9), **made),
        case("arange-float", lambda xp, a: xp.arange(0.0, a, 0.4), ONE, **made),
        case("arange-dtype", lambda xp, n: xp.arange(n, dtype=np.float32), N, **made),
        case("linspace", lambda xp, a: xp.linspace(a, 7.0, 5), ONE, **made),
        case("linspace-open", lambda xp, a: xp.linspace(a, 7.0, 4, endpoint=False), ONE, **made),
        case("linspace-arrays", lambda xp, a: xp.linspace(a, 1.0, 3, axis=-1), V, **made),
        case("linspace-one", lambda xp, a: xp.linspace(a, 1.0, 1), ONE, **made),
        case("eye", lambda xp, n: xp.eye(n), N, **made),
        case("eye-k", lambda xp, n: xp.eye(n, 4, k=1, dtype=np.int32), N, **made),
        case("array-nested", lambda xp, x, y: xp.array([[x, 1.0], [2, y]]), ONE, K, **made),
        case("asarray-dtype", lambda xp, x: xp.asarray(x, dtype=np.float32), A, **made),
    ]


def _softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def activations() -> list[Case]:
    ours = {"protocol": False}
    big = A * 400
    return [
        case("sigmoid", lambda xp, x: xp.sigmoid(x), big, expected=lambda x: 0.5 + 0.5 * np.tanh(x / 2), **ours),
        case("sigmoid-int", lambda xp, x: xp.sigmoid(x), I3, expected=lambda x: 1 / (1 + np.exp(-x)), **ours),
        case("relu", lambda xp, x: xp.relu(x), A, expected=lambda x: np.maximum(x, 0), **ours),
        case("relu-int", lambda xp, x: xp.relu(x), I3, expected=lambda x: np.maximum(x, 0), **ours),
        case("softmax", lambda xp, x: xp.softmax(x), big, expected=_softmax, **ours),
        case("softmax-f32", lambda xp, x: xp.softmax(x, axis=1), T3, expected=lambda x: _softmax(x, 1), **ours),
        case("log_softmax", lambda xp, x: xp.log_softmax(x), A, expected=lambda x: np.log(_softmax(x)), **ours),
        case("logsumexp", lambda xp, x: xp.logsumexp(x), A, expected=lambda x: np.log(np.exp(x).sum()), **ours),
        case(
            "logsumexp-axis",
            lambda xp, x: xp.logsumexp(x, axis=0, keepdims=True),
            big,
            expected=lambda x: np.logaddexp.reduce(x, 0, keepdims=True),
            **ours,
        ),
        case(
            "logsumexp-inf",
            lambda xp, x: xp.logsumexp(x, axis=1),
            np.array([[-np.inf, -np.inf], [-np.inf, 3], [np.inf, 0], [np.nan, 0]]),
            expected=lambda x: np.array([-np.inf, 3, np.inf, np.nan]),
            **ours,
        ),
        case(
            "softmax-inf",
            lambda xp, x: xp.softmax(x),
            np.array([-np.inf, 0.0, 0.0]),
            expected=lambda x: np.array([0, 0.5, 0.5]),
            **ours,
        ),
        case("stop_gradient", lambda xp, x: xp.stop_gradient(x), A, expected=lambda x: x, **ours),
    ]


def updates() -> list[Case]:
    def put(x: Any, key: Any, value: Any, op: Any = None) -> Any:
        x = x.copy()
        if op is None:
            x[key] = value
        elif op is np.add:
            np.add.at(x, key, value)
        else:
            x[key] = op(x[key], value)
        return x

    ours = {"protocol": False}
    return [
        case("at-set", lambda xp, x: xp.at(x)[1].set(7), A, expected=lambda x: put(x, 1, 7), **ours),
        case(
            "at-set-part",
            lambda xp, x: xp.at(x)[1:, 0].set(7.5),
            A,
            expected=lambda x: put(x, (slice(1, None), 0), 7.5),
            **ours,
        ),
        case(
            "at-set-traced",
            lambda xp, x, i, v: xp.at(x)[i].set(v),
            A,
            K,
            V,
            expected=lambda x, i, v: put(x, i, v),
            **ours,
        ),
        case(
            "at-set-array",
            lambda xp, x, i: xp.at(x)[i, 1].set(0),
            A,
            IDX,
            expected=lambda x, i: put(x, (i, 1), 0),
            **ours,
        ),
        case("at-set-mask", lambda xp, x: xp.at(x)[M].set(0), A, expected=lambda x: put(x, M, 0), **ours),
        case(
            "at-add",
            lambda xp, x, v: xp.at(x)[..., 1:].add(v),
            A,
            N,
            expected=lambda x, v: put(x, (..., slice(1, None)), v, np.add),
            **ours,
        ),
        case(
            "at-add-repeated",
            lambda xp, x: xp.at(x)[[0, 0, 2]].add(1),
            I3,
            expected=lambda x: put(x, [0, 0, 2], 1, np.add),
            **ours,
        ),
        case(
            "at-add-slice",
            lambda xp, x, i: xp.at(x)[:i].add(1),
            A,
            K,
            expected=lambda x, i: put(x, slice(None, i), 1, np.add),
            **ours,
        ),
        case(
            "at-multiply",
            lambda xp, x: xp.at(x)[1].multiply(2),
            A,
            expected=lambda x: put(x, 1, 2, np.multiply),
            **ours,
        ),
        case(
            "at-min",
            lambda xp, x, i: xp.at(x)[i, :2].min(0),
            A,
            K,
            expected=lambda x, i: put(x, (i, slice(2)), 0, np.minimum),
            **ours,
        ),
        case("at-max-mask", lambda xp, x: xp.at(x)[M].max(0), A, expected=lambda x: put(x, M, 0, np.maximum), **ours),
        case("at-none", lambda xp, x: xp.at(x)[None, 1].set(0), A, expected=lambda x: put(x, 1, 0), **ours),
        case(
            "at-float32",
            lambda xp, x, v: xp.at(x)[0].set(v),
            data("float32", (3, 4)),
            V,
            expected=lambda x, v: put(x, 0, v),
            **ours,
        ),
    ]


CASES = [
    *reductions(),
    *products(),
    *contractions(),
    *shapes(),
    *joins(),
    *indexing(),
    *creations(),
    *activations(),
    *updates(),
]


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.label)
def test_function(c: Case) -> None:
    before = [np.array(a) for a in c.arrays]
    expected = reference(c.expected or (lambda *xs: c.call(np, *xs)), c.arrays)
    ours = lambda *xs: c.call(cnp, *xs)
    assert_same(leaves(ours(*c.arrays)), expected, "eager")
    assert_same(run(ours, c.arrays), expected, "traced")
    if c.unknown:
        assert_same(run(ours, c.arrays, unknown=True), expected, "unknown sizes")
    if c.protocol:
        assert_same(run(lambda *xs: c.call(np, *xs), c.arrays), expected, "protocol")
    for a, b in zip(c.arrays, before, strict=True):
        np.testing.assert_array_equal(a, b, err_msg="an operand was changed")


# What is known of a result's shape.

STATIC: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int | None, ...]]] = {
    "reshape -1": (lambda x: x.reshape(-1, 2), ((None, 4),), (None, 2)),
    "reshape known": (lambda x: x.reshape(2, -1), ((3, 4),), (2, 6)),
    "roll traced": (lambda x, n: cnp.roll(x, n, 0), ((3, 4), ()), (3, 4)),
    "sum": (lambda x: cnp.sum(x, 0), ((None, 4),), (4,)),
    "broadcast": (lambda x, y: x + y, ((None, 4), (3, 1)), (3, 4)),
    "matmul": (lambda x, y: x @ y, ((None, 3, 4), (4, 5)), (None, 3, 5)),
    "einsum": (lambda x, y: cnp.einsum("bij,bjk->bki", x, y), ((None, 3, 4), (None, 4, 5)), (None, 5, 3)),
    "split": (lambda x: cnp.split(x, 2, 1)[0], ((None, 4),), (None, 2)),
    "tile": (lambda x: cnp.tile(x, (2, 1)), ((None, 4),), (None, 4)),
    "pad": (lambda x: cnp.pad(x, 1), ((None, 4),), (None, 6)),
    "mask": (lambda x: x[np.array([True, False, True])], ((None, 4),), (2, 4)),
    "take_along_axis": (lambda x: cnp.take_along_axis(x, np.zeros((3, 1), int), 1), ((3, None),), (3, 1)),
    "softmax": (lambda x: cnp.softmax(x), ((None, 4),), (None, 4)),
    "tril": (lambda x: cnp.tril(x), ((3, None),), (3, None)),
}


@pytest.mark.parametrize("name", STATIC)
def test_known_sizes_stay_known(name: str) -> None:
    fn, shapes, expected = STATIC[name]
    builder = Builder()
    dtypes = [np.int64 if shape == () else np.float64 for shape in shapes]
    tensors = [Tensor(builder, builder.input(TensorType(d, s))) for d, s in zip(dtypes, shapes, strict=True)]
    with recording(builder):
        assert fn(*tensors).type.shape == expected


def test_known_sizes_need_no_dim() -> None:
    for fn in (
        lambda x: x.reshape(2, -1),
        lambda x: cnp.mean(x, 0),
        lambda x: cnp.tile(x, 2),
        lambda x: cnp.split(x, 2, 1)[1],
    ):
        names = {node.op.name for node in trace(fn, [A]).nodes}
        assert "dim" not in names, names


def test_product_of_floats_is_a_tree() -> None:
    nodes = trace(lambda x: cnp.prod(x), [data("float64", (64,))]).nodes
    assert [n.op.name for n in nodes].count("multiply") == 6
    unknown = trace(lambda x: cnp.prod(x), [data("float64", (64,))], unknown=True).nodes
    assert "prod" not in {n.op.name for n in (*nodes, *unknown)}
    assert "prod" in {n.op.name for n in trace(lambda x: cnp.prod(x), [data("int64", (64,))]).nodes}


def test_matmul_with_a_matrix_is_one_matrix_product() -> None:
    (product,) = [n for n in trace(lambda x, y: x @ y, [T3, data("float32", (4, 5))]).nodes if n.op.name == "matmul"]
    assert [v.tensor.shape for v in product.operands] == [(6, 4), (4, 5)]


def test_einsum_contracts_in_the_cheaper_order() -> None:
    arrays = [data("float64", s) for s in ((2, 50), (50, 50), (50, 1))]
    graph = trace(lambda *xs: cnp.einsum("ij,jk,kl->il", *xs), arrays)
    first = next(n for n in graph.nodes if n.op.name == "matmul")
    assert {v.tensor.shape for v in first.operands} <= {(50, 50), (50, 1), (1, 50), (2, 50), (50, 2)}
    shapes = [n.result.tensor.shape for n in graph.nodes if n.op.name == "matmul"]
    assert len(shapes) == 2 and (50, 50) not in shapes


def test_creation_with_known_sizes_is_concrete_inside_a_trace() -> None:
    builder = Builder()
    x = Tensor(builder, builder.input(TensorType(np.float64, (3, 4))))
    with recording(builder):
        for made in (
            cnp.zeros(3),
            cnp.ones_like(x),
            cnp.arange(3),
            cnp.eye(2),
            cnp.full((2,), 1.0),
            cnp.linspace(0, 1, 3),
        ):
            assert type(made) is np.ndarray
    assert not builder.nodes


def test_every_name_is_public_and_documented() -> None:
    assert len(set(cnp.__all__)) == len(cnp.__all__)
    for name in cnp.__all__:
        thing = getattr(cnp, name)
        if callable(thing) and not isinstance(thing, type) and thing.__module__.startswith("ctrlgrad"):
            assert thing.__doc__ and ">>>" in thing.__doc__, name


def test_namespace() -> None:
    builder = Builder()
    x = Tensor(builder, builder.input(TensorType(np.float64, (3,))))
    assert x.__array_namespace__() is cnp
    assert FUNCTIONS["__namespace__"]() is cnp
    assert cnp.finfo(x).bits == 64 and cnp.iinfo(np.int8).max == 127
    with recording(builder):
        assert cnp.result_type(x, np.float32) == np.float64 == np.result_type(x, np.float32)


def test_ufunc_reduce() -> None:
    assert_same(run(lambda x: np.add.reduce(x), [A]), [np.add.reduce(A)], "add.reduce")
    assert_same(run(lambda x: np.maximum.reduce(x, axis=1), [A]), [A.max(1)], "maximum.reduce")


def test_nodes_carry_the_users_line() -> None:
    graph = trace(lambda x: cnp.logsumexp(x), [A])
    assert {node.source.file for node in graph.nodes if node.source} == {__file__}


# Mistakes: one clear error each, with this file.

F = np.zeros((3, 4))
BAD: dict[str, tuple[type[CtrlgradError], str, Callable[..., Any], tuple[Any, ...]]] = {
    "shapes do not broadcast": (ShapeError, "broadcast", lambda x, y: x + y, (A, data("float64", (3,)))),
    "text operand": (TypeMismatchError, "not an array", lambda x: cnp.add(x, "a"), (A,)),
    "object list": (TypeMismatchError, "not supported", lambda x: cnp.add(x, ["a"]), (A,)),
    "ragged list": (ShapeError, "ragged", lambda x: cnp.add(x, [[1], [1, 2]]), (A,)),
    "number too large": (TypeMismatchError, "does not fit", lambda x: x + 300, (U3,)),
    "boolean minus": (TypeMismatchError, "subtract", lambda x: x - x, (M,)),
    "boolean negative": (TypeMismatchError, "negative", lambda x: -x, (M,)),
    "float bits": (TypeMismatchError, "bitwise_and", lambda x: x & 1, (A,)),
    "float invert": (TypeMismatchError, "invert", lambda x: ~x, (A,)),
    "shift of booleans": (TypeMismatchError, "shift", lambda x: x << 1.5, (M,)),
    "negative integer power": (TypeMismatchError, "negative integer power", lambda x: x**-1, (I3,)),
    "integer reciprocal": (TypeMismatchError, "reciprocal", lambda x: cnp.reciprocal(x), (I3,)),
    "complex to real": (TypeMismatchError, "complex", lambda x: x.astype(float), (data("complex128", (2,)),)),
    "complex order": (TypeMismatchError, "maximum", lambda x: cnp.maximum(x, x), (data("complex128", (2,)),)),
    "where without a value": (TypeMismatchError, "x and y", lambda x: np.where(x, 1.0), (M,)),
    "axis out of range": (ShapeError, "axis 2", lambda x: cnp.sum(x, 2), (A,)),
    "axis twice": (ShapeError, "twice", lambda x: cnp.sum(x, (0, -2)), (A,)),
    "axis not an integer": (TypeMismatchError, "not an integer", lambda x: cnp.sum(x, 0.5), (A,)),
    "traced axis": (TracingError, "index", lambda x, n: cnp.sum(x, n), (A, K)),
    "max of nothing": (ShapeError, "no elements", lambda x: cnp.max(x, 0), (EMPTY,)),
    "argmax of nothing": (ShapeError, "no elements", lambda x: cnp.argmax(x), (EMPTY,)),
    "sort of complex": (TypeMismatchError, "no order", lambda x: cnp.sort(x), (data("complex128", (2,)),)),
    "sort of a scalar": (ShapeError, "scalar", lambda x: cnp.sort(x), (ONE,)),
    "searchsorted side": (TypeMismatchError, "side", lambda x: cnp.searchsorted(x, x, side="up"), (V,)),
    "solve not square": (ShapeError, "not square", lambda x: cnp.linalg.solve(x, x), (A,)),
    "inv of a vector": (ShapeError, "rank 2", lambda x: cnp.linalg.inv(x), (V,)),
    "qr mode": (TypeMismatchError, "reduced", lambda x: cnp.linalg.qr(x, mode="complete"), (A,)),
    "svd full": (TypeMismatchError, "full_matrices", lambda x: cnp.linalg.svd(x, full_matrices=True), (A,)),
    "half precision": (TypeMismatchError, "half", lambda x: cnp.linalg.det(x), (np.eye(2, dtype=np.float16),)),
    "norm order": (TypeMismatchError, "unknown norm", lambda x: cnp.linalg.matrix_norm(x, ord=3), (A,)),
    "cross size": (ShapeError, "three elements", lambda x: cnp.linalg.cross(x, x), (A,)),
    "fft norm": (TypeMismatchError, "unknown norm", lambda x: cnp.fft.fft(x, norm="half"), (V,)),
    "fft of nothing": (ShapeError, "no elements", lambda x: cnp.fft.fft(x, axis=0), (EMPTY,)),
    "rfft of complex": (TypeMismatchError, "complex", lambda x: cnp.fft.rfft(x), (data("complex128", (2,)),)),
    "make_complex of complex": (TypeMismatchError, "complex", lambda x: cnp.make_complex(x, x), (1j * V,)),
    "meshgrid of matrices": (ShapeError, "vectors", lambda x: cnp.meshgrid(x), (A,)),
    "repeat traced counts": (ShapeError, "each element", lambda x, n: cnp.repeat(x, n, axis=0), (A, np.array([1, 2]))),
    "cumulative_sum axis": (ShapeError, "axis is needed", lambda x: cnp.cumulative_sum(x), (A,)),
    "matmul sizes": (ShapeError, "sizes to sum over", lambda x, y: x @ y, (A, A)),
    "matmul vector": (ShapeError, "sizes to sum over", lambda x, y: x @ y, (A, data("float64", (3,)))),
    "matmul scalar": (ShapeError, "scalar", lambda x: cnp.matmul(x, 2.0), (A,)),
    "tensordot axes": (ShapeError, "not so many", lambda x: cnp.tensordot(x, x, 3), (A,)),
    "tensordot sizes": (ShapeError, "sizes to sum over", lambda x: cnp.tensordot(x, x, 1), (A,)),
    "einsum sizes": (ShapeError, "sizes of j", lambda x: cnp.einsum("ij,jk", x, x), (A,)),
    "einsum rank": (ShapeError, "does not fit", lambda x: cnp.einsum("ijk->i", x), (A,)),
    "einsum groups": (ShapeError, "one group", lambda x: cnp.einsum("ij,jk->ik", x), (A,)),
    "einsum result": (ShapeError, "stands in no operand", lambda x: cnp.einsum("ij->ik", x), (A,)),
    "einsum letters": (ShapeError, "not a letter", lambda x: cnp.einsum("i1->i", x), (A,)),
    "einsum lists": (TypeMismatchError, "not text", lambda x: cnp.einsum(x, [0, 1]), (A,)),
    "reshape count": (ShapeError, "number of elements", lambda x: x.reshape(5), (A,)),
    "reshape -1": (ShapeError, "no size fits", lambda x: x.reshape(5, -1), (A,)),
    "reshape two": (ShapeError, "at most one", lambda x: x.reshape(-1, -1), (A,)),
    "reshape float": (TypeMismatchError, "not an integer", lambda x: x.reshape(2.0, -1), (A,)),
    "reshape order": (TypeMismatchError, "C order", lambda x: cnp.reshape(x, -1, order="F"), (A,)),
    "transpose axes": (ShapeError, "one entry", lambda x: x.transpose(0), (A,)),
    "broadcast_to": (ShapeError, "broadcast_to", lambda x: cnp.broadcast_to(x, (5, 4)), (A,)),
    "squeeze": (ShapeError, "size 1", lambda x: cnp.squeeze(x, 0), (A,)),
    "negative size": (ShapeError, "negative", lambda x: cnp.broadcast_to(x, (-1, 4)), (A,)),
    "concat sizes": (ShapeError, "sizes differ", lambda x, y: cnp.concat([x, y]), (A, B)),
    "concat ranks": (ShapeError, "ranks differ", lambda x, y: cnp.concat([x, y]), (A, V)),
    "concat scalars": (ShapeError, "scalars", lambda x: cnp.concat([x, x]), (ONE,)),
    "concat nothing": (TypeMismatchError, "one array or more", lambda x: cnp.concat([]), (A,)),
    "stack shapes": (ShapeError, "sizes differ", lambda x: cnp.stack([x, x[:2]]), (A,)),
    "split unequal": (ShapeError, "not equal", lambda x: cnp.split(x, 2), (A,)),
    "split none": (ShapeError, "at least one", lambda x: cnp.split(x, 0), (A,)),
    "pad mode": (TypeMismatchError, "constant", lambda x: np.pad(x, 1, mode="edge"), (A,)),
    "pad negative": (ShapeError, "width", lambda x: cnp.pad(x, -1), (A,)),
    "pad form": (ShapeError, "form", lambda x: cnp.pad(x, ((1, 1), (1, 1), (1, 1))), (A,)),
    "roll shifts": (ShapeError, "shifts", lambda x: cnp.roll(x, (1, 2, 3), (0, 1)), (A,)),
    "index too many": (ShapeError, "more items", lambda x: x[0, 0, 0], (A,)),
    "index two ellipses": (ShapeError, "more than one", lambda x: x[..., ...], (A,)),
    "index range": (IndexOutOfRangeError, "out of range", lambda x: x[3], (A,)),
    "index array range": (IndexOutOfRangeError, "out of range", lambda x: x[:, [0, 4]], (A,)),
    "index float": (TypeMismatchError, "not an index", lambda x: x[1.0], (A,)),
    "index float array": (TypeMismatchError, "not an index", lambda x: x[np.array([1.0])], (A,)),
    "index traced float": (TypeMismatchError, "not an index", lambda x: x[x], (A,)),
    "index text": (TypeMismatchError, "not an index", lambda x: x["a"], (A,)),
    "mask shape": (ShapeError, "another shape", lambda x: x[np.array([True, False])], (A,)),
    "slice bound": (TypeMismatchError, "bound", lambda x: x[1.5:], (A,)),
    "slice traced bound": (TypeMismatchError, "bound", lambda x, i: x[i:], (A, ONE)),
    "slice step": (ShapeError, "step is zero", lambda x: x[::0], (A,)),
    "take float": (TypeMismatchError, "not integers", lambda x: cnp.take(x, x), (A,)),
    "take_along_axis rank": (ShapeError, "ranks differ", lambda x: cnp.take_along_axis(x, [0], 1), (A,)),
    "at dtype": (TypeMismatchError, "dtype", lambda x: cnp.at(x)[0].set(1.5), (I3,)),
    "at shape": (ShapeError, "does not fit", lambda x, v: cnp.at(x)[0].set(v), (A, data("float64", (3,)))),
    "item assignment": (TracingError, "item assignment", lambda x: x.__setitem__(0, 1), (A,)),
    "arange array": (ShapeError, "scalars", lambda x: cnp.arange(x), (V,)),
    "traced linspace": (TracingError, "index", lambda n: cnp.linspace(0.0, 1.0, n), (K,)),
    "repeat counts": (ShapeError, "one count", lambda x: cnp.repeat(x, [1, 2], axis=0), (A,)),
}


@pytest.mark.parametrize("name", BAD)
def test_mistake(name: str) -> None:
    kind, text, fn, arrays = BAD[name]
    with pytest.raises(kind, match=text) as caught:
        trace(fn, arrays)
    assert caught.value.source.file == __file__


def test_a_stack_is_not_an_array() -> None:
    builder = Builder()
    s = Tensor(builder, builder.input(StackType(TensorType(np.float64, ()))))
    with recording(builder), pytest.raises(TypeMismatchError, match="TensorArray"):
        cnp.exp(s)


LATE: dict[str, tuple[type[CtrlgradError], Callable[..., Any], tuple[Any, ...]]] = {
    "index": (IndexOutOfRangeError, lambda x, i: x[i], (A, np.int64(7))),
    "mask size": (ExecutionError, lambda x: x[np.array([True, False])], (A,)),
    "split": (ExecutionError, lambda x: cnp.split(x, 2), (A,)),
    "reshape": (ExecutionError, lambda x: x.reshape(5, -1), (A,)),
    "broadcast": (ExecutionError, lambda x, y: x + y, (A, data("float64", (3,)))),
}


@pytest.mark.parametrize("name", LATE)
def test_mistake_that_only_a_run_shows(name: str) -> None:
    kind, fn, arrays = LATE[name]
    graph = trace(fn, arrays, unknown=True)
    with pytest.raises(kind) as caught:
        run_graph(graph, arrays)
    assert caught.value.source.file == __file__


def test_squeeze_of_an_unknown_size_asks_for_the_axis() -> None:
    with pytest.raises(ShapeError, match="might be 1"):
        trace(lambda x: cnp.squeeze(x), [A], unknown=True)


def test_the_method_at() -> None:
    expected = A.copy()
    expected[1] += 2
    assert_same(run(lambda x: x.at[1].add(2), [A]), [expected], "x.at")


def test_an_update_at_once_leaves_the_operand() -> None:
    x = np.zeros(3)
    y = cnp.at(x)[1].set(5.0)
    assert x.tolist() == [0, 0, 0] and y.tolist() == [0, 5, 0]


def test_comparison_with_a_number_outside_the_dtype() -> None:
    for number in (-1, 256, 300):
        assert_same(run(lambda x, n=number: x < n, [U3]), [number > U3], str(number))
        assert_same(run(lambda x, n=number: n == x, [U3]), [number == U3], str(number))
