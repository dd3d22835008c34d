"""Names of `jax.numpy` give JAX's values, and its derivatives by both modes; by rows they are those of each row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_cases.running import data

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TracingError

A, B, V, W = data("float64", (3, 4)), data("float64", (4, 3)), data("float64", (5,)), data("float64", (5,), 1)
SQUARE = data("float64", (3, 3))
N, J = np.array([4, 0, 7, 4, 2, 7]), np.array([7, 9, 2, 2, 5])
BITS = data("bool", (2, 11))
ROWS = np.array([[1.0, 2.0], [0.0, 3.0], [1.0, 2.0], [0.0, 1.0]])
NANS = np.array([1.0, np.nan, 3.0, 1.0, np.nan])
Z = data("complex128", (5,))


@pytest.fixture(autouse=True)
def _in_double_precision_by_reference() -> Iterator[None]:
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def same(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def pads(mode: str, **options: Any) -> Callable[..., Any]:
    return lambda xp, x: xp.pad(x, ((2, 3), (0, 5)), mode, **options)


# A call written once for both modules, and its arrays.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "apply_over_axes": (lambda xp, x: xp.apply_over_axes(xp.sum, x, (0, 1)), (A,)),
    "apply_along_axis": (lambda xp, x: xp.apply_along_axis(lambda row: xp.outer(row, row[:2]), 0, x), (A,)),
    "array_equiv": (lambda xp, x: xp.array_equiv(x, x[0]), (A,)),
    "bitwise_count": (lambda xp, i: (xp.bitwise_count(i), xp.bitwise_count(-i.astype("int8"))), (N,)),
    "divmod": (lambda xp, x, y: xp.divmod(x, y), (V, W)),
    "extract": (lambda xp, x: xp.extract(x > 0, x, size=4, fill_value=9.0), (V,)),
    "compress": (lambda xp, x: xp.compress(x[0] > 0, x, axis=1, size=3), (A,)),
    "choose wrap": (lambda xp, i, x: xp.choose(i % 7 - 3, list(x), mode="wrap"), (N[:4], A)),
    "fill_diagonal": (lambda xp, x, y: xp.fill_diagonal(x, y[:2], inplace=False), (SQUARE, V)),
    "flatnonzero": (lambda xp, x: xp.flatnonzero(x > 0, size=9, fill_value=-1), (A,)),
    "argwhere": (lambda xp, x: xp.argwhere(x > 0, size=4), (A,)),
    "frexp": (lambda xp, x: xp.frexp(x * 100), (np.append(V, [0.0, 1.0, 0.5, 4.0, 1e-300]),)),
    "gcd": (lambda xp, i, j: (xp.gcd(i, j), xp.lcm(i, j)), (N[:5] - 4, J)),
    "histogram2d": (lambda xp, x, y: xp.histogram2d(x, y, 3, weights=x * x), (V, W)),
    "histogramdd": (lambda xp, x: xp.histogramdd(x, (2, 3, 2), [(-2, 2)] * 3, density=True), (B,)),
    "i0": (lambda xp, x: xp.i0(x * 4), (np.append(V, [0.0, 8.0]),)),
    "intersect1d": (lambda xp, i, j: xp.intersect1d(i, j, size=4), (N, J)),
    "intersect1d indices": (lambda xp, i, j: xp.intersect1d(i, j, return_indices=True, size=2), (N, J)),
    "kaiser": (lambda xp, x: xp.kaiser(7, x[0]), (V**2,)),
    "lexsort": (lambda xp, i, j: xp.lexsort((i[:5], j)), (N, J)),
    "mask_indices": (lambda xp, x: x[xp.mask_indices(3, xp.tril)], (SQUARE,)),
    "matvec": (lambda xp, x, y: (xp.matvec(x, y), xp.vecmat(x[0], y)), (A[:, :3], SQUARE)),
    "nanprod": (lambda xp, x: xp.nanprod(x), (NANS,)),
    "nonzero": (lambda xp, x: xp.nonzero(x > 0, size=3, fill_value=(7, 8)), (A,)),
    "packbits": (lambda xp, b: [xp.packbits(b, a, o) for a in (None, 0, 1) for o in ("big", "little")], (BITS,)),
    "place": (lambda xp, x, y: xp.place(x, x > 0, y[:3], inplace=False), (A, V)),
    "poly": (lambda xp, x: xp.poly(x), (V,)),
    "polydiv": (lambda xp, x, y: xp.polydiv(x, y[:3]), (V, W)),
    "polyfit": (lambda xp, x, y: xp.polyfit(x, y, 2), (V, W)),
    "polyfit weights": (lambda xp, x, y, w: xp.polyfit(x, y, 1, w=w * w, cov=True), (V, W, V[::-1].copy())),
    "put": (lambda xp, x, y: xp.put(x, np.array([0, -1, 7, 40]), y[:2], inplace=False), (A, V)),
    "put clip": (lambda xp, x, y: xp.put(x, np.array([0, 40]), y, "clip", inplace=False), (A, V)),
    "put wrap": (lambda xp, x, y: xp.put(x, np.array([1, 14]), y, "wrap", inplace=False), (A, V)),
    "r_": (lambda xp, x, y: (xp.r_[x, 0.0, y], xp.r_["0,2", x, y], xp.r_["1,2,0", x, y], xp.r_[0:3]), (V, W)),
    "c_": (lambda xp, x, y: (xp.c_[x, y], xp.c_[x[None], y[None]]), (V, W)),
    "repeat": (lambda xp, x, i: xp.repeat(x, i[:5], total_repeat_length=9), (V, N % 3)),
    "setdiff1d": (lambda xp, i, j: (xp.setdiff1d(i, j, size=4), xp.setdiff1d(i, j, True, size=4)), (N, J)),
    "setxor1d": (lambda xp, i, j: xp.setxor1d(i, j, size=7), (N, J)),
    "sort_complex": (lambda xp, z: xp.sort_complex(xp.round(z)), (Z,)),
    "sort of complex numbers": (lambda xp, z: (xp.sort(xp.round(z)), xp.argsort(xp.round(z))), (Z,)),
    "spacing": (lambda xp, x: xp.spacing(xp.round(x * 9)), (np.append(V, 0.0),)),
    "union1d": (lambda xp, i, j: (xp.union1d(i, j, size=9), xp.union1d(i, j, size=3, fill_value=5)), (N, J)),
    "unique": (lambda xp, x: xp.unique(x, True, True, True, size=4), (N,)),
    "unique, fewer": (lambda xp, x: xp.unique(x, True, True, True, size=2), (N,)),
    "unique, filled": (lambda xp, x: xp.unique(x, True, True, True, size=6, fill_value=-1), (N,)),
    "unique rows": (lambda xp, x: xp.unique(x, True, True, True, axis=0, size=4), (ROWS,)),
    "unique columns": (lambda xp, x: xp.unique(x, axis=1, size=2), (ROWS[:, [0, 0, 1]],)),
    "unique nan": (lambda xp, x: (xp.unique(x, size=4), xp.unique(x, equal_nan=False, size=5)), (NANS,)),
    "unique of complex numbers": (lambda xp, z: xp.unique(xp.round(z), size=4), (Z,)),
    "unique_all": (lambda xp, x: tuple(xp.unique_all(x, size=5)), (N,)),
    "ufunc.reduce": (
        lambda xp, x: (
            xp.subtract.reduce(x),
            xp.logaddexp.reduce(x, axis=None, keepdims=True),
            xp.logaddexp2.reduce(x, axis=1, initial=0.5, where=x > 0),
            xp.add.reduce(x, axis=1, initial=2.0, where=x > 0),
            xp.multiply.reduce(x, axis=-1, keepdims=True),
        ),
        (A,),
    ),
    "ufunc.accumulate": (
        lambda xp, x: [f.accumulate(x, axis=1) for f in (xp.add, xp.multiply, xp.maximum, xp.subtract, xp.logaddexp)],
        (A,),
    ),
    "ufunc.outer": (lambda xp, x, y: (xp.logaddexp.outer(x, y), xp.add.outer(x, y[0])), (A, V)),
    "ufunc.at": (
        lambda xp, x, y: (
            xp.add.at(x, np.array([0, 2, 0]), y[:3], inplace=False),
            xp.negative.at(x, np.array([0, 3]), inplace=False),
            xp.logaddexp.at(x, np.array([0, 0, 4]), y[:3], inplace=False),
        ),
        (V, W),
    ),
    "ufunc.reduceat": (
        lambda xp, x: [f.reduceat(x, np.array([0, 2, 1, 3]), axis=1) for f in (xp.add, xp.multiply, xp.maximum)],
        (A,),
    ),
    "sum where": (
        lambda xp, x: [
            getattr(xp, name)(x, axis=1, where=x > -1, keepdims=name == "sum")
            for name in ("sum", "prod", "mean", "var", "std")
        ],
        (A,),
    ),
    "max where": (lambda xp, x: (xp.max(x, where=x < 0, initial=-9.0), xp.min(x, 0, initial=0.3)), (A,)),
    "all where": (lambda xp, x: (xp.all(x > 0, where=x > 0), xp.any(x > 0, 1, where=x < 0)), (A,)),
    "sum initial": (lambda xp, x: (xp.sum(x, 0, initial=3.0), xp.prod(x, initial=2)), (A,)),
    "nansum where": (
        lambda xp, x: [
            getattr(xp, name)(x, where=np.array([True, True, True, False, True]))
            for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd")
        ],
        (NANS,),
    ),
    "nanmax where": (lambda xp, x: (xp.nanmax(x, initial=2.0, where=x > 1), xp.nanmin(x, initial=2.0)), (NANS,)),
    "vectorize": (
        lambda xp, x, y: (
            xp.vectorize(lambda a, b: xp.where(a > b, a * b, a))(x, y[:4]),
            xp.vectorize(lambda a, b: a @ b, signature="(n),(n)->()")(x, y[:4]),
            xp.vectorize(lambda a, k: a[k:] * 2, excluded=(1,), signature="(n)->(m)")(x, 2),
        ),
        (A, V),
    ),
    "frompyfunc": (
        lambda xp, x, y: (
            [f(x, y) for f in [xp.frompyfunc(lambda a, b: xp.sin(a) * b, 2, 1)]]
            + [xp.frompyfunc(lambda a, b: a * b + 1, 2, 1).reduce(x)]
        ),
        (V, W),
    ),
    "round of complex numbers": (lambda xp, z: xp.round(z * 10, 1), (Z,)),
    "linspace step": (lambda xp, x: xp.linspace(x[0], x[1], 4, retstep=True), (V,)),
    "unpackbits": (
        lambda xp, i: [xp.unpackbits(i, 0, n, o) for n in (None, 5, -3, 99) for o in ("big", "little")],
        (N.astype(np.uint8) * 31,),
    ),
    "where": (lambda xp, x: xp.where(x > 0, size=3), (A,)),
    "pad edge": (pads("edge"), (A,)),
    "pad linear_ramp": (pads("linear_ramp", end_values=((1, 2), (3, 4))), (A,)),
    "pad maximum": (pads("maximum", stat_length=2), (A,)),
    "pad mean": (pads("mean"), (A,)),
    "pad median": (pads("median", stat_length=3), (A,)),
    "pad minimum": (pads("minimum"), (A,)),
    "pad reflect": (pads("reflect"), (A,)),
    "pad reflect odd": (pads("reflect", reflect_type="odd"), (A,)),
    "pad symmetric": (pads("symmetric"), (A,)),
    "pad symmetric odd": (pads("symmetric", reflect_type="odd"), (A,)),
    "pad wrap": (pads("wrap"), (A,)),
    "pad of integers": (lambda xp, i: (xp.pad(i, 3, "mean"), xp.pad(i, 3, "median")), (N,)),
    "pad by a function": (
        lambda xp, x: xp.pad(x, 1, lambda row, width, axis, options: xp.cumsum(row) + axis),
        (A,),
    ),
}


def weighed(xp: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """One number of all results that are floats, each element weighing differently."""

    def number(*arrays: Any) -> Any:
        parts = jax.tree.leaves(call(xp, *arrays), is_leaf=lambda x: hasattr(x, "dtype"))
        floats = [x for x in parts if np.dtype(x.dtype).kind == "f"]
        return sum((xp.sum(x.ravel() * np.cos(np.arange(x.size))) for x in floats), xp.zeros(()))

    return number


# JAX has to know the numbers to know the sizes.
OP_BY_OP = {"mask_indices"}


def compiled(label: str, judge: Callable[..., Any]) -> Callable[..., Any]:
    """All that JAX says of a case in one program: by itself each of its ops would be compiled."""
    return judge if label in OP_BY_OP else jax.jit(judge)


def of_floats(label: str) -> tuple[tuple[int, ...], tuple[np.ndarray, ...], Callable[..., Any]]:
    """Positions and values of a case's float arrays, and a wrapper that makes a function of all arrays one of these."""
    arrays = CASES[label][1]
    places = tuple(place for place, x in enumerate(arrays) if x.dtype.kind == "f")

    def function(fn: Callable[..., Any], convert: Callable[[Any], Any] = np.asarray) -> Callable[..., Any]:
        return lambda *xs: fn(*(xs[places.index(k)] if k in places else convert(x) for k, x in enumerate(arrays)))

    return places, tuple(arrays[place] for place in places), function


@functools.cache
def judged(label: str) -> tuple[Any, Any, Any]:
    """JAX's values of a case and, where it is differentiable, the gradient and what is pushed along `directions`."""
    call, _ = CASES[label]
    places, floats, function = of_floats(label)
    fn, loss = function(lambda *xs: call(jnp, *xs), jnp.asarray), function(weighed(jnp, call), jnp.asarray)

    def judge(*xs: Any) -> tuple[Any, Any, Any]:
        if label not in DIFFERENTIABLE:
            return fn(*xs), None, None
        return fn(*xs), *jax.value_and_grad(loss, argnums=tuple(range(len(places))))(*xs)

    values, lost, gradient = compiled(label, judge)(*floats)
    if gradient is None:
        return values, None, None
    slope = sum(float(np.sum(np.asarray(g) * d)) for g, d in zip(gradient, directions(floats), strict=True))
    return values, gradient, (lost, slope)


def directions(floats: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.sin(1.0 + np.arange(x.size)).reshape(x.shape) for x in floats)


@pytest.mark.parametrize("label", CASES)
def test_values(label: str) -> None:
    call, arrays = CASES[label]
    expected, _, _ = judged(label)
    same(cg.function(lambda *xs: call(cnp, *xs))(*arrays), expected)
    same(call(cnp, *(cnp.asarray(x) for x in arrays)), expected)


# JAX has no derivative of these.
NO_DERIVATIVE = {"spacing"}
DIFFERENTIABLE = [
    label
    for label, (_, arrays) in CASES.items()
    if label not in NO_DERIVATIVE and any(x.dtype.kind == "f" for x in arrays)
]


@pytest.mark.parametrize("label", DIFFERENTIABLE)
def test_derivatives(label: str) -> None:
    call, arrays = CASES[label]
    places, floats, function = of_floats(label)
    ours = weighed(cnp, call)
    _, gradient, pushed = judged(label)
    same(cg.grad(ours, argnums=places)(*arrays), gradient, 1e-8)
    same(cg.jvp(function(ours), floats, directions(floats)), pushed, 1e-8)


@pytest.mark.parametrize("label", CASES)
def test_by_rows(label: str) -> None:
    call, arrays = CASES[label]
    batch = tuple(np.stack([x, np.roll(x, 1), x[::-1]]) for x in arrays)
    found = cg.vmap(lambda *xs: call(cnp, *xs))(*batch)
    rows = [cg.function(lambda *xs: call(cnp, *xs))(*(x[k] for x in batch)) for k in range(3)]
    same(found, jax.tree.map(lambda *xs: np.stack(xs), *rows), 1e-9)


def test_fill_diagonal_wraps_as_numpys() -> None:
    for shape in ((5, 2), (2, 5), (3, 3, 3)):
        for wrap in (False, True):
            expected = np.zeros(shape)
            np.fill_diagonal(expected, [1.0, 2.0], wrap=wrap)
            np.testing.assert_array_equal(cnp.fill_diagonal(np.zeros(shape), [1.0, 2.0], wrap), expected)


def test_the_characteristic_polynomial_has_derivatives() -> None:
    cg.check_grads(lambda x: cnp.poly(x), (SQUARE,))


def test_limits_of_floats_are_pythons_numbers() -> None:
    for dtype in (np.float32, np.float64, np.complex64):
        ours, theirs = cnp.finfo(dtype), np.finfo(dtype)
        for name in ("eps", "max", "min", "smallest_normal", "tiny"):
            assert type(getattr(ours, name)) is float and getattr(ours, name) == float(getattr(theirs, name))
        assert (ours.bits, ours.dtype, ours.precision) == (theirs.bits, theirs.dtype, theirs.precision)


def test_grids_and_broadcast_arrays_are_lists() -> None:
    assert type(cnp.meshgrid(V, V)) is list and type(cnp.broadcast_arrays(V, 1.0)) is list
    same(cnp.meshgrid(V, W[:2], sparse=True), jnp.meshgrid(V, W[:2], sparse=True))


def test_the_sign_of_a_complex_zero_has_no_signs() -> None:
    found = cnp.sign(np.array([complex(-0.0, -0.0), complex(0.0, -0.0)]))
    assert not np.signbit(found.real).any() and not np.signbit(found.imag).any()


def test_derivatives_of_nanvar_are_finite_beside_nan() -> None:
    found = cg.grad(lambda x: cnp.nanvar(x) + cnp.nanstd(x))(NANS)
    assert np.isfinite(found).all() and (found[np.isnan(NANS)] == 0).all()


def test_names_that_change_an_array_in_place_do_not() -> None:
    for name, args in {"put": (0, 1.0), "place": (A > 0, 1.0), "fill_diagonal": (1.0,)}.items():
        with pytest.raises(TracingError, match=f"{name}: arrays do not change in place"):
            getattr(cnp, name)(A, *args, inplace=True)


@pytest.mark.parametrize("label", ["pad reflect odd", "unique", "polyfit", "ufunc.reduce", "i0", "histogram2d"])
def test_in_machine_code(label: str) -> None:
    call, arrays = CASES[label]
    with cg.options(engine="native"):
        found = cg.function(lambda *xs: call(cnp, *xs))(*arrays)
    same(found, cg.function(lambda *xs: call(cnp, *xs))(*arrays))
