"""`ctrlgrad.numpy` against NumPy: at once, traced with known and unknown sizes, through NumPy's protocols."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_cases import CASES
from array_cases.case import T3, U3, A, Case
from array_cases.running import assert_same, data, leaves, reference, run, trace

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.frontend import apply, array
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recording
from ctrlgrad.ir import Builder, TensorType

pytestmark = pytest.mark.usefixtures("evaluated_by_reference")


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


def test_functions_give_at_once_the_bits_of_their_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(c: Case) -> list[Any]:
        found = leaves(c.call(cnp, *c.arrays))
        arrays = list(map(np.asarray, found))
        return [(type(x), a.dtype, a.shape, a.flags.writeable, a.tobytes()) for x, a in zip(found, arrays, strict=True)]

    made: list[str] = []
    graph_of = apply._graph_of
    monkeypatch.setattr(apply, "_graph_of", lambda op, *rest: (made.append(op), graph_of(op, *rest))[1])
    for c in CASES:
        with monkeypatch.context() as context:
            at_once = facts(c)
            assert made == [], c.label
            context.setattr(apply, "_computes_here", lambda: False)
            assert at_once == facts(c), c.label
            made.clear()


def test_a_reduction_runs_its_function_once_for_a_shape_and_fixed_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    apply_all = apply.apply_all
    monkeypatch.setattr(apply, "apply_all", lambda op, *rest: (made.append(op), apply_all(op, *rest))[1])
    x, y = np.arange(7.0) ** 3, np.arange(14.0).reshape(7, 2)
    for name in ("mean", "var", "std", "prod", "any"):
        fn, numpys = getattr(cnp, name), getattr(np, name)
        for _ in range(2):
            made.clear()
            assert fn(x) == numpys(x) and np.all(fn(y, 0, keepdims=True) == numpys(y, axis=0, keepdims=True))
        assert made == [], name
    # Arguments that are equal and no attributes of a graph; an option that decides the dtype; arrays as arguments.
    assert cnp.sum(y, axis=1).shape == (7,)
    with pytest.raises(cg.errors.TypeMismatchError, match="an axis is not an integer"):
        cnp.sum(y, axis=1.0)
    truths = np.array([True, False, True])
    assert cnp.diff(truths, prepend=1).dtype == np.int64 and cnp.diff(truths, prepend=True).dtype == np.bool_
    whole = np.arange(7)
    assert cnp.mean(whole).dtype == np.float64
    with cg.options(default_float="float32"):
        assert cnp.mean(whole).dtype == np.float32
    assert cnp.mean(whole).dtype == np.float64
    for mask in (x > 9, x < 9):
        assert cnp.mean(x, where=mask) == np.mean(x, where=mask)
    with pytest.raises(cg.errors.CtrlgradError):
        cnp.max(np.zeros(0))


# The known part of a result's shape.

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


def test_a_product_of_no_rows_is_read_at_a_traced_index() -> None:
    x = np.zeros((0, 3))

    def f(x):
        row = cnp.prod(x, axis=0)
        return cg.fori_loop(0, 3, lambda t, total: total + row[t], 0.0)

    assert cg.function(f)(x) == 3.0
    assert cg.grad(f)(x).shape == (0, 3)


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
            assert isinstance(made, np.ndarray)
    assert not builder.nodes


def test_exports_of_array_modules_are_public() -> None:
    # `promote` has the words that the modules share.
    for module in (m for m in pkgutil.iter_modules(array.__path__) if m.name != "promote"):
        offered = getattr(importlib.import_module(f"{array.__name__}.{module.name}"), "__all__", [])
        public = {"decompositions": cnp.linalg, "fourier": cnp.fft, "matrices": cnp.linalg}.get(module.name, cnp)
        assert set(offered) <= set(public.__all__), module.name


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


def test_the_covariance_of_one_variable_is_a_number_and_of_unknown_many_a_matrix() -> None:
    x = np.array([[1.0, 2.0, 4.0]])
    for one in (x, x[0]):
        assert np.shape(cg.function(cnp.cov)(one)) == np.shape(np.cov(one)) == ()
    unknown = cg.function(cnp.cov, signature=[cg.TensorSpec((None, 3), np.float64)])
    np.testing.assert_allclose(unknown(x), [[np.cov(x)]])
