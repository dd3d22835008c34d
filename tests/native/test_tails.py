"""Remainders of vectors have the bits of whole vectors, and nothing out of bounds is read or written."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine, target
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.engines.native.nests import KernelWriter, cannot_fail
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.decisions import with_vectors
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel
from ctrlgrad.plan.vectors import vectors_of
from tests.plan.plans import plan_of

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 50, 100, 101)
DTYPES = ("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64")


@pytest.fixture(params=[16, 32, 64], ids=lambda n: f"{n} bytes")
def vector_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> int:
    """Compile for vectors of another processor: LLVM splits them into several of this one's, or uses a part of one."""
    monkeypatch.setattr(target.Target, "vector_bytes", property(lambda _: request.param))
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    return int(request.param)


def elementwise(x: Any, y: Any) -> Any:
    """Elementwise functions long enough for masks, with an elementary function, a comparison and a broadcast number."""
    if x.dtype.kind == "b":
        return x | y, x & ~y
    if x.dtype.kind == "f":
        return cnp.exp(-x * x) * y + cnp.log1p(abs(y)) * x[0], x > y
    t = x * y - x
    for _ in range(4):
        t = (t ^ x) * y + (t & y) - (x | t)
    return t, x > y


def arrays(dtype: str, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [(3 * rng.normal(size=n) + shift).astype(dtype) for shift in (0, 1)]


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_element_has_the_bits_that_it_has_in_a_whole_vector(dtype: str, is_known: bool, vector_bytes: int) -> None:
    spec = cg.TensorSpec((None,), dtype)
    given: dict[str, Any] = {} if is_known else {"signature": (spec, spec)}
    function = cg.function(elementwise, engine="native", **given)
    x, y = arrays(dtype, 192)
    whole = function(x, y)
    for n in LENGTHS[1::4] if is_known else LENGTHS:
        for found, expected in zip(function(x[:n].copy(), y[:n].copy()), whole, strict=True):
            np.testing.assert_array_equal(found, expected[:n], strict=True)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("dtype", ["bool", "int16", "int32", "float32", "float64"])
def test_reductions_take_the_elements_that_there_are(dtype: str, is_known: bool, vector_bytes: int) -> None:
    """Reductions ignore masked lanes: operands are all negative, all positive, or ones, so such a lane would change
    the result."""

    def reduce(x: Any) -> Any:
        if dtype == "bool":
            return cnp.all(x, axis=-1), cnp.sum(x, axis=-1), cnp.any(~x, axis=-1)
        y = cnp.exp(x) if x.dtype.kind == "f" else x
        least = cnp.min(abs(x) if x.dtype.kind == "f" else -x, axis=-1)
        return cnp.max(x, axis=-1), least, cnp.prod(x // x, axis=-1), cnp.sum(y, axis=-1)

    signature = (cg.TensorSpec((None, None), dtype),)
    function = cg.function(reduce, engine="native", **({} if is_known else {"signature": signature}))
    for n in LENGTHS[3::4] if is_known else LENGTHS:
        for rows in (1, 6):
            x = np.ones((rows, n), bool) if dtype == "bool" else -np.arange(1, rows * n + 1).reshape(rows, n) % 90 - 91
            x = x.astype(dtype)
            with cg.options(engine="reference"):
                expected = reduce(x)
            # A product along an axis of unknown size is a loop; exp(-91) is subnormal in float32.
            with cg.options(flush_subnormals=False):
                found = function(x)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_written_beyond_the_end(dtype: str, vector_bytes: int) -> None:
    """Nothing is written out of bounds: a loop writes slices of an array, and the rest stays unchanged."""

    def fill(x: Any, n: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return cnp.at(x)[i, 1:8].set(x[i + 1, 1:8] if dtype == "bool" else x[i, 1:8] * x[i + 1, 1:8])

        return cg.fori_loop(0, n, body, x)

    x = arrays(dtype, 50)[1].reshape(5, 10)
    with cg.options(engine="reference"):
        expected = fill(x, 3)
    np.testing.assert_array_equal(cg.function(fill, engine="native")(x, 3), expected, strict=True)


@pytest.mark.parametrize("n", [3, 13, 50, None])
def test_no_element_is_computed_on_its_own(n: int | None) -> None:
    """A kernel calls its elementary function on vectors only."""

    def rows(x: Any) -> Any:
        return cnp.sum(cnp.exp(x) + x, axis=1)

    plan = plan_of(rows, np.ones((4, n or 7)), signature=(cg.TensorSpec((4, n)),))
    (kernel,) = (step for step in walk(plan.body) if isinstance(step, Kernel))
    writer = Writer()
    nothing: list[Any] = [lambda _: "%a", lambda _: "%r", lambda s: str(s.factor) if s.is_known else "%n"]
    KernelWriter(writer, kernel, *nothing, cannot_fail, vectors_of(kernel, 32, False)).write()
    assert set(re.findall(r"@cg_exp_\w+", writer.function("void @f()"))) == {f"@cg_exp_float64_v{4 if n == 3 else 8}"}


@pytest.mark.parametrize("count", [*range(1, 40), 67])
def test_functions_of_what_functions_give_are_computed_in_pairs_of_vectors(count: int) -> None:
    """Nested elementary functions are computed for pairs of vectors, at sizes known to the text and at sizes of the
    run."""
    x = np.linspace(-3.0, 3.0, count, dtype="float32")
    fn = lambda x: cnp.tanh(cnp.exp(-x) * x) + x
    unknown = cg.function(fn, engine="native", signature=(cg.TensorSpec((None,), "float32"),))
    expected = cg.function(fn, engine="reference")(x)
    for found in (cg.function(fn, engine="native")(x), unknown(x)):
        np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.parametrize(("size", "apart", "nested"), [(16, 4, 8), (32, 16, 16), (64, 16, 32)])
def test_pairs_of_vectors(size: int, apart: int, nested: int) -> None:
    """Elements of a call: those of two registers if functions wait for each other, and with AVX2 for all functions."""

    def vectors(fn: Any) -> set[str]:
        x = np.ones(64, "float32")
        graph = optimised_graph(cg.function(fn).graph(x))
        text = PlanWriter(with_vectors(engine.plan_of(graph, engine.shapes_of(graph, [x])), size)).function("plan")
        return set(re.findall(r"cg_tanh_float32_v(\d+)", text))

    assert vectors(lambda x: cnp.tanh(x) + cnp.exp(x)) == {str(apart)}
    assert vectors(lambda x: cnp.tanh(cnp.exp(x))) == {str(nested)}


BACKWARDS = {
    "added": lambda x: x[..., ::-1] == x,
    "by twos": lambda x: x[..., ::-2],
    "cut": lambda x: cnp.where(x[..., -2:1:-1] == x[..., 1:-2], x[..., -2:1:-1], x[..., 1:-2]),
    "beside positions": lambda x: cnp.where(cnp.arange(x.shape[-1]) > 3, x[..., ::-1], x),
    "largest": lambda x: cnp.max(cnp.where(x == 3, x, x)[..., ::-1], axis=-1),
    "in place": lambda x: cg.fori_loop(0, 3, lambda i, x: cnp.where(x[..., ::-1] == x, x, x[..., ::-1]), x),
    "functions": lambda x: cnp.floor(cnp.exp(x[..., ::-1].astype("float64"))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BACKWARDS)
def test_reads_from_the_last_element_to_the_first(name: str, dtype: str) -> None:
    """Views of stride -1 are vectors with their lanes turned round, at known sizes and at sizes of the run."""
    fn = BACKWARDS[name]
    unknown = cg.function(fn, engine="native", signature=(cg.TensorSpec((None, None), dtype),))
    for rows, n in ((1, 4), (2, 7), (1, 9), (3, 16), (1, 33), (2, 67)):
        x = (np.arange(rows * n).reshape(rows, n) * 37 % 11).astype(dtype)
        expected = cg.function(fn, engine="reference")(x)
        for found in (cg.function(fn, engine="native")(x), unknown(x)):
            np.testing.assert_array_equal(found, expected, strict=True)
