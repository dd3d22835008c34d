"""`ctrlgrad.numpy` has every function of the Array API standard 2024.12, and its newer ones agree with NumPy.

Each call is made at once, traced with known sizes and traced with unknown sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ExecutionError, ShapeError
from ctrlgrad.ops.linalg import signed

# By chapter of the standard. Left out: what hands over memory (from_dlpack), inspects devices
# (__array_namespace_info__), or gives eigenvectors of a dtype that depends on values (no such function in 2024.12).
STANDARD = """
e inf nan newaxis pi
arange asarray empty empty_like eye full full_like linspace meshgrid ones ones_like tril triu zeros zeros_like
astype can_cast finfo iinfo isdtype result_type
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh square sqrt subtract tan tanh trunc
take take_along_axis matmul matrix_transpose tensordot vecdot
broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll squeeze stack tile
unstack
argmax argmin count_nonzero nonzero searchsorted where
unique_all unique_counts unique_inverse unique_values
argsort sort
cumulative_prod cumulative_sum max mean min prod std sum var
all any diff
"""
LINALG = """cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank matrix_transpose
outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm"""
FFT = "fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftfreq rfftfreq fftshift ifftshift"


def test_every_function_of_the_standard_is_there() -> None:
    assert [name for name in STANDARD.split() if not hasattr(cnp, name)] == []
    assert [name for name in LINALG.split() if not hasattr(cnp.linalg, name)] == []
    assert [name for name in FFT.split() if not hasattr(cnp.fft, name)] == []
    assert set(cnp.linalg.__all__) == set(LINALG.split()) | {"cond", "eig", "eigvals", "lstsq", "multi_dot", "norm"}
    assert set(cnp.fft.__all__) == set(FFT.split()) | {"fft2", "ifft2", "rfft2", "irfft2"}
    assert [name for name in cnp.__all__ if not hasattr(cnp, name)] == []


def _data(dtype: Any, *shape: int) -> Any:
    rng = np.random.default_rng([7, *shape])
    if np.dtype(dtype).kind == "b":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 6, shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


A, V, N, B = _data("float64", 3, 4), _data("float64", 6), _data("int64", 3, 4), _data("bool", 3, 4)
Z, Z1, F = _data("complex128", 3, 4), _data("complex64", 5), _data("float32", 3, 4)
TIED = np.array([[3, 1, 3, 2, 1], [0, 0, 5, 5, 0]])
M, ZM = _data("float64", 2, 3, 3), _data("complex128", 2, 3, 3)
SPD = M @ np.swapaxes(M, -1, -2) + np.eye(3)
TALL, WIDE = _data("float64", 2, 4, 3), _data("float32", 2, 3, 4)
SAME = object()


def _abs_all(results: Any) -> tuple[Any, ...]:
    return tuple(np.abs(x) for x in results)


# label: a call for both modules, its arrays, and what NumPy has instead where it differs.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "hypot": (lambda xp, x: xp.hypot(x, x[::-1]), (A,), SAME),
    "copysign": (lambda xp, x: xp.copysign(x, -x[:1]), (F,), SAME),
    "nextafter": (lambda xp, x: xp.nextafter(x, 0.0), (F,), SAME),
    "signbit": (lambda xp, x: xp.signbit(x), (np.array([0.0, -0.0, -1.0]),), SAME),
    "logs": (lambda xp, x: (xp.log2(x), xp.log10(x), xp.exp2(x)), (np.abs(F),), SAME),
    "inverse hyperbolic": (lambda xp, x: (xp.asinh(x), xp.acosh(1 + x * x), xp.atanh(x / 9)), (A,), SAME),
    "complex parts": (lambda xp, z: (xp.real(z), xp.imag(z), xp.conj(z), xp.abs(z), xp.angle(z)), (Z,), SAME),
    "real parts": (lambda xp, x: (xp.real(x), xp.imag(x), xp.conj(x), xp.angle(x)), (A,), SAME),
    "complex sign": (lambda xp, z: xp.sign(z), (np.array([0, 3 + 4j, -2j]),), SAME),
    "make_complex": (
        lambda xp, x: xp.make_complex(x, x[0]),
        (F,),
        lambda x: (x + 1j * x[0]).astype(np.complex64),
    ),
    "bits": (lambda xp, i, j: (i & j, i | j, i ^ j, ~i, i << 2, i >> j), (N, N[::-1] % 3), SAME),
    "bits of booleans": (lambda xp, b, c: (b & c, b | c, b ^ c, ~b), (B, B[::-1]), SAME),
    "bits promote": (lambda xp, i: xp.bitwise_and(i, np.uint8(3)), (N.astype("int16"),), SAME),
    "integer power": (lambda xp, i, j: i**j, (N, N[::-1]), SAME),
    "integer high power": (lambda xp, i: i**13, (N,), SAME),
    "sort": (lambda xp, x: (xp.sort(x), xp.sort(x, axis=0), xp.argsort(x, axis=0, stable=True)), (TIED,), SAME),
    "sort all": (lambda xp, x: xp.sort(x, axis=None), (A,), SAME),
    "sort down": (lambda xp, x: xp.sort(x, descending=True), (TIED,), lambda x: -np.sort(-x)),
    "argsort down": (
        lambda xp, x: xp.argsort(x, descending=True),
        (TIED,),
        lambda x: np.argsort(-x, kind="stable"),
    ),
    "sort nan": (lambda xp, x: xp.sort(x), (np.array([2.0, np.nan, -np.inf, 1.0]),), SAME),
    "sort of none": (lambda xp, x: (xp.sort(x), xp.argsort(x)), (np.zeros((2, 0)),), SAME),
    "searchsorted": (
        lambda xp, x, v: (xp.searchsorted(x, v), xp.searchsorted(x, v, side="right")),
        (np.array([1.0, 2.0, 2.0, 5.0]), np.array([[0.0, 2.0], [5.0, 9.0]])),
        SAME,
    ),
    "searchsorted sorter": (lambda xp, x: xp.searchsorted(x, 0.1, sorter=xp.argsort(x)), (V,), SAME),
    "nonzero": (lambda xp, x: xp.nonzero(x), (N,), SAME),
    "where positions": (lambda xp, x: xp.where(x > 2), (N,), SAME),
    "unique_all": (lambda xp, x: tuple(xp.unique_all(x)), (TIED,), SAME),
    "unique_counts": (lambda xp, x: tuple(xp.unique_counts(x)), (TIED,), SAME),
    "unique_inverse": (lambda xp, x: tuple(xp.unique_inverse(x)), (TIED,), SAME),
    "unique_values": (lambda xp, x: xp.unique_values(x), (np.array([2.0, 1.0, 2.0]),), lambda x: np.unique(x)),
    "unique of none": (lambda xp, x: tuple(xp.unique_all(x)), (np.zeros((0, 2)),), SAME),
    "mask": (lambda xp, x: x[x > 0], (A,), SAME),
    "mask of rows": (lambda xp, x: x[x[:, 0] > 0], (A,), SAME),
    "mask and slice": (lambda xp, x: x[x[:, 0] > 0, 1:], (A,), SAME),
    "mask of columns": (lambda xp, x: x[:, x[0] > 0], (A,), SAME),
    "mask and int": (lambda xp, x: x[x[:, 0] > 0, 1], (A,), SAME),
    "mask of none": (lambda xp, x: x[x > 99], (A,), SAME),
    "count_nonzero": (lambda xp, x: (xp.count_nonzero(x), xp.count_nonzero(x, axis=1)), (N,), SAME),
    "cumulative_sum": (
        lambda xp, x: (xp.cumulative_sum(x, axis=1), xp.cumulative_sum(x, axis=0, include_initial=True)),
        (N,),
        SAME,
    ),
    "cumulative_prod": (lambda xp, x: xp.cumulative_prod(x, axis=1, include_initial=True), (A,), SAME),
    "cumprod": (lambda xp, x: (xp.cumprod(x, axis=0), xp.cumprod(x), xp.cumprod(x[:0], axis=0)), (A,), SAME),
    "prod": (lambda xp, x: (xp.prod(x, axis=0), xp.prod(x), xp.prod(x[:0], axis=0)), (A,), SAME),
    "diff": (lambda xp, x: (xp.diff(x), xp.diff(x, n=2, axis=0), xp.diff(x, n=0)), (N,), SAME),
    "diff of booleans": (lambda xp, x: xp.diff(x), (B,), SAME),
    "diff ends": (lambda xp, x: xp.diff(x, prepend=0, append=x[:, :1]), (A,), SAME),
    "diff of none": (lambda xp, x: xp.diff(x, n=3, axis=0), (A[:2],), SAME),
    "meshgrid": (
        lambda xp, x, i: tuple(xp.meshgrid(x, i[0], 1, indexing="ij")),
        (V, N),
        lambda x, i: tuple(
            np.broadcast_to(np.asarray(g, np.float64), (6, 4, 1)) for g in np.meshgrid(x, i[0], 1, indexing="ij")
        ),
    ),
    "meshgrid xy": (lambda xp, x: tuple(xp.meshgrid(x, x[:2], x[:3])), (V,), SAME),
    "repeat counts": (lambda xp, x, n: xp.repeat(x, n, axis=0), (A, np.array([2, 0, 1])), SAME),
    "solve": (lambda xp, a, b: xp.linalg.solve(a, b), (M, TALL[:, :3]), SAME),
    "solve vector": (lambda xp, a: xp.linalg.solve(a[0], a[1, 0]), (ZM,), SAME),
    "inv": (lambda xp, a: (xp.linalg.inv(a), xp.linalg.det(a)), (ZM,), SAME),
    "integer inv": (lambda xp, a: xp.linalg.inv(a), (np.array([[2, 1], [1, 1]]),), SAME),
    "slogdet": (lambda xp, a: tuple(xp.linalg.slogdet(a)), (M,), SAME),
    "slogdet complex": (lambda xp, a: tuple(xp.linalg.slogdet(a)), (ZM,), SAME),
    "cholesky": (lambda xp, a: (xp.linalg.cholesky(a), xp.linalg.cholesky(a, upper=True)), (SPD,), SAME),
    "qr": (lambda xp, a: tuple(xp.linalg.qr(a)), (TALL,), SAME),
    "qr wide": (lambda xp, a: tuple(xp.linalg.qr(a)), (WIDE,), SAME),
    "eigh": (lambda xp, a: tuple(xp.linalg.eigh(a)), (SPD,), SAME),
    "eigvalsh": (lambda xp, a: xp.linalg.eigvalsh(a), (SPD.astype(np.complex64),), SAME),
    "svd": (lambda xp, a: tuple(xp.linalg.svd(a, full_matrices=False)), (TALL,), lambda a: _signed_svd(a)),
    "svd wide": (lambda xp, a: tuple(xp.linalg.svd(a, full_matrices=False)), (WIDE,), lambda a: _signed_svd(a)),
    "svdvals": (lambda xp, a: xp.linalg.svdvals(a), (ZM,), SAME),
    "pinv": (lambda xp, a: xp.linalg.pinv(a), (TALL,), SAME),
    "pinv rtol": (lambda xp, a: xp.linalg.pinv(a, rtol=0.5), (WIDE,), SAME),
    "matrix_rank": (lambda xp, a: xp.linalg.matrix_rank(a @ np.array([[1.0, 1.0], [2, 2], [0, 0]])), (TALL,), SAME),
    "matrix_power": (lambda xp, a: tuple(xp.linalg.matrix_power(a, n) for n in (-2, 0, 1, 5)), (M,), SAME),
    "integer matrix_power": (lambda xp, a: xp.linalg.matrix_power(a, 5), (np.array([[1, 1], [1, 0]]),), SAME),
    "matrix_norm": (
        lambda xp, a: tuple(xp.linalg.matrix_norm(a, ord=o) for o in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)),
        (TALL,),
        SAME,
    ),
    "matrix_norm keepdims": (lambda xp, a: xp.linalg.matrix_norm(a, keepdims=True), (ZM,), SAME),
    "vector_norm": (
        lambda xp, a: tuple(xp.linalg.vector_norm(a, axis=1, ord=o) for o in (2, 1, 3, 0, -1, np.inf, -np.inf)),
        (ZM,),
        SAME,
    ),
    "vector_norm all": (lambda xp, a: xp.linalg.vector_norm(a, keepdims=True), (WIDE,), SAME),
    "norm": (lambda xp, a: (xp.linalg.norm(a), xp.linalg.norm(a, axis=1), xp.linalg.norm(a, 1, (0, 2))), (M,), SAME),
    "cross": (lambda xp, a: xp.linalg.cross(a, a[::-1]), (M,), SAME),
    "cross axis": (lambda xp, a: xp.linalg.cross(a, a[:, ::-1], axis=0), (N,), SAME),
    "trace": (lambda xp, a: (xp.linalg.trace(a, offset=1), xp.linalg.diagonal(a, offset=-1)), (M,), SAME),
    "vdot": (lambda xp, z: xp.vdot(z, z[::-1]), (Z1,), SAME),
    "vecdot": (lambda xp, z: xp.vecdot(z, z[0]), (Z,), SAME),
    "fft": (lambda xp, z: (xp.fft.fft(z), xp.fft.ifft(z, axis=0), xp.fft.fft(z, n=6, norm="ortho")), (Z,), SAME),
    "fft real": (lambda xp, x: xp.fft.fft(x, n=3, norm="forward"), (F,), SAME),
    "rfft": (lambda xp, x: (xp.fft.rfft(x), xp.fft.rfft(x, n=3), xp.fft.ihfft(x)), (A,), SAME),
    "irfft": (lambda xp, z: (xp.fft.irfft(z), xp.fft.irfft(z, n=5), xp.fft.irfft(z, n=9, axis=0)), (Z,), SAME),
    "hfft": (lambda xp, z: (xp.fft.hfft(z), xp.fft.hfft(z, n=5, norm="ortho")), (Z1,), SAME),
    "fftn": (lambda xp, z: (xp.fft.fftn(z), xp.fft.ifftn(z, s=(2, 3), axes=(0, 1))), (Z,), SAME),
    "rfftn": (lambda xp, x: (xp.fft.rfftn(x), xp.fft.irfftn(xp.fft.rfftn(x))), (A,), SAME),
    "fftshift": (lambda xp, x: (xp.fft.fftshift(x), xp.fft.ifftshift(x, axes=0)), (N,), SAME),
}


def _signed_svd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy's singular vectors in the signs that they have here."""
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    u, v = signed(u, np.swapaxes(vh, -1, -2))
    return u, s, np.swapaxes(v, -1, -2)


def _leaves(result: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in result] if isinstance(result, tuple | list) else [np.asarray(result)]


@pytest.mark.parametrize("label", CALLS)
@pytest.mark.parametrize("way", ["at once", "traced", "unknown sizes"])
def test_agrees_with_numpy(label: str, way: str) -> None:
    call, arrays, instead = CALLS[label]
    with np.errstate(all="ignore"):
        expected = _leaves(call(np, *arrays) if instead is SAME else instead(*arrays))
    fn: Callable[..., Any] = lambda *xs: call(cnp, *xs)
    if way == "traced":
        fn = cg.function(fn)
    elif way == "unknown sizes":
        fn = cg.function(fn, signature=tuple(cg.TensorSpec((None,) * x.ndim, x.dtype) for x in arrays))
    found = _leaves(fn(*arrays))
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        assert (f.dtype, f.shape) == (e.dtype, e.shape)
        single = e.dtype.name in ("float32", "complex64")
        np.testing.assert_allclose(f, e, rtol=2e-4 if single else 1e-9, atol=2e-5 if single else 1e-11)


@pytest.mark.parametrize("method", ["multiply", "min", "max"])
def test_updates_at_repeated_positions(method: str) -> None:
    ufunc = {"multiply": np.multiply, "min": np.minimum, "max": np.maximum}[method]
    places, values = np.array([0, 2, 0]), _data("float64", 3, 4)
    expected = A.copy()
    ufunc.at(expected, places, values)
    for fn in (lambda x: getattr(cnp.at(x)[places], method)(values),):
        np.testing.assert_allclose(fn(A), expected)
        np.testing.assert_allclose(cg.function(fn)(A), expected)


def test_updates_by_a_traced_mask_keep_the_shape() -> None:
    fn = cg.function(lambda x: (x.at[x > 0].set(0.0), x.at[x > 0].add(1.0), x.at[x[:, 0] > 0].max(0.5)))
    assert all(v.type.is_static for v in fn.graph(A).outputs)
    zeroed, added, larger = fn(A)
    np.testing.assert_array_equal(zeroed, np.where(A > 0, 0, A))
    np.testing.assert_array_equal(added, np.where(A > 0, A + 1, A))
    np.testing.assert_array_equal(larger, np.where(A[:, :1] > 0, np.maximum(A, 0.5), A))


def test_a_mask_of_another_size_fails_when_the_program_runs() -> None:
    specs = (cg.TensorSpec((None,), np.float64), cg.TensorSpec((None,), bool))
    fn = cg.function(lambda x, m: x[m], signature=specs)
    with pytest.raises(ShapeError):
        fn(V, np.array([True, False]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: cnp.linalg.inv(x), "Singular"),
        (lambda x: cnp.linalg.cholesky(x - 1), "positive definite"),
        (lambda x: cnp.asarray(x).astype(int) ** (x.astype(int) - 1), "negative integer powers"),
    ],
)
def test_unanswerable_calls_fail_at_run_time(call: Callable[..., Any], text: str) -> None:
    with pytest.raises(ExecutionError, match=text) as caught:
        cg.function(call)(np.zeros((2, 2)))
    assert caught.value.source is not None
    assert caught.value.source.file == __file__


def test_functions_of_numpy_take_traced_tensors() -> None:
    fn = cg.function(
        lambda a: (np.linalg.det(a), np.sort(a), np.linalg.solve(a, a), np.fft.fft(a), np.unique_values(a))
    )
    for f, e in zip(
        fn(M[0]), (np.linalg.det(M[0]), np.sort(M[0]), np.eye(3), np.fft.fft(M[0]), np.unique(M[0])), strict=True
    ):
        np.testing.assert_allclose(f, e, atol=1e-12)
