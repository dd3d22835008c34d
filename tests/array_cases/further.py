"""Functions composed of other functions: arranging, choosing, statistics, numerics."""

from __future__ import annotations

from typing import Any

import numpy as np

from array_cases.case import I3, T3, T4, U3, A, Case, M, V, case
from array_cases.running import data

W = data("float64", (5,))
NANS = np.where(np.arange(12).reshape(3, 4) % 5 == 1, np.nan, A)
POINTS = np.array([0.0, 0.5, 1.5, 4.0])
INFINITE = np.array([np.nan, np.inf, -np.inf, 1.0])
MODES = ("full", "same", "valid")
COUNTS = np.array([0, 3, 1, 1, 2])


def arranged() -> list[Case]:
    fixed = {"unknown": False}
    return [
        case("diag", lambda xp, x: xp.diag(x), V),
        case("diag-k", lambda xp, x: (xp.diag(x, 1), xp.diag(x, -2)), V),
        case("diag-of-matrix", lambda xp, x: xp.diag(x, 1), A),
        case("diagflat", lambda xp, x: xp.diagflat(x), A),
        case("atleast_1d", lambda xp, x, y: xp.atleast_1d(x, y), np.float64(2.0), A),
        case("atleast_2d", lambda xp, x: xp.atleast_2d(x), V),
        case("atleast_3d", lambda xp, x, y: xp.atleast_3d(x, y), V, A),
        case("column_stack", lambda xp, x, y: xp.column_stack((x, y)), V, A.T),
        case("dstack", lambda xp, x: xp.dstack((x, x)), A, **fixed),
        case("hsplit", lambda xp, x: xp.hsplit(x, 2), A, **fixed),
        case("vsplit", lambda xp, x: xp.vsplit(x, 3), A, **fixed),
        case("dsplit", lambda xp, x: xp.dsplit(x, [1, 2]), T3, **fixed),
        case("block", lambda xp, x, y: xp.block([[x, x], [y, y]]), A, V[None], **fixed),
        case("append", lambda xp, x, y: xp.append(x, y), A, V),
        case("append-axis", lambda xp, x, y: xp.append(x, y, axis=0), A, A),
        case("insert", lambda xp, x: xp.insert(x, 1, 9.0), A, **fixed),
        case("insert-several", lambda xp, x: xp.insert(x, [1, 3], [9.0, 8.0]), V, **fixed),
        case("insert-axis", lambda xp, x, y: xp.insert(x, 2, y, axis=0), A, V, **fixed),
        case("insert-columns", lambda xp, x: xp.insert(x, [0, 2], 5.0, axis=1), A, **fixed),
        case("delete", lambda xp, x: xp.delete(x, 1), A, **fixed),
        case("delete-several", lambda xp, x: xp.delete(x, [0, -1], axis=1), A, **fixed),
        case("fliplr", lambda xp, x: xp.fliplr(x), A),
        case("flipud", lambda xp, x: xp.flipud(x), A),
        case("rot90", lambda xp, x: [xp.rot90(x, k) for k in (0, 1, 2, 3)], A),
        case("rollaxis", lambda xp, x: xp.rollaxis(x, 2, 1), T3),
        case("resize", lambda xp, x: xp.resize(x, (3, 5)), V, **fixed),
        case("kron", lambda xp, x, y: xp.kron(x, y), A, V),
        case("vander", lambda xp, x: xp.vander(x, 3, increasing=True), V),
    ]


# Each mode of pad with its options.
PADS = {
    "edge": {},
    "linear_ramp": {"end_values": (1, -4)},
    "maximum": {},
    "mean": {"stat_length": 2},
    "median": {},
    "minimum": {"stat_length": (1, 3)},
    "reflect": {},
    "reflect odd": {"reflect_type": "odd"},
    "symmetric": {},
    "symmetric odd": {"reflect_type": "odd"},
    "wrap": {},
    "constant": {"constant_values": (3, 4)},
}


def padded() -> list[Case]:
    cases = []
    for x in (A, I3, T3[:1, :1]):
        for widths in ((1, 3), (7, 9), [(0, 2), (1, 0), (2, 2)][: x.ndim], {-1: 2}):
            for name, options in PADS.items():
                mode = name.split()[0]
                cases.append(
                    case(
                        f"pad-{name}-{x.dtype}-{widths}",
                        lambda xp, t, w=widths, m=mode, o=options: xp.pad(t, w, m, **o),
                        x,
                        unknown=name in ("edge", "constant", "linear_ramp", "maximum"),
                    )
                )

    def fill(row: Any, width: Any, axis: int, options: Any) -> None:
        row[: width[0]], row[row.size - width[1] :] = options["low"], axis

    by_numpys = case("pad-function", lambda xp, x: xp.pad(np.ones((2, 3)), 2, fill, low=5.0) + x, V[0])
    return [*cases, by_numpys]


def several() -> list[Case]:
    fixed = {"unknown": False}
    return [
        case("array_equiv", lambda xp, x: (xp.array_equiv(x, x[:1]), xp.array_equiv(x, x[:2])), A * 0, **fixed),
        case("poly-matrix", lambda xp, x: xp.poly(x @ x.T), A, **fixed),
        case("polyfit-cov", lambda xp, x, y: xp.polyfit(x, y, 1, cov="unscaled"), W, W[::-1].copy(), **fixed),
        case("polyfit-several", lambda xp, x, y: xp.polyfit(x, y, 1), V, T4[0, 0, :, :3], **fixed),
        case("unique-rows", lambda xp, x: xp.unique(x, axis=0, return_counts=True), I3 % 2, protocol=False, **fixed),
        case("unique-nan", lambda xp, x: xp.unique(x, return_inverse=True), NANS),
        case("unique-of-none", lambda xp, x: xp.unique(x, return_counts=True), np.zeros((0, 2))),
        case("union1d", lambda xp, x, y: xp.union1d(x, y), I3, COUNTS.astype(np.int32)),
        case("intersect1d", lambda xp, x, y: xp.intersect1d(x, y, return_indices=True), I3, COUNTS.astype(np.int32)),
        case("setdiff1d", lambda xp, x, y: xp.setdiff1d(x, y), I3, COUNTS.astype(np.int32)),
        case("setxor1d", lambda xp, x, y: xp.setxor1d(x, y), I3, COUNTS.astype(np.int32)),
        case("nanmean-where", lambda xp, x: xp.nanmean(x, 0, where=NANS > -9), NANS),
        case("linspace-step", lambda xp, x, y: xp.linspace(x[0], y[0], 5, retstep=True), V, W),
        case("round-complex", lambda xp, z: xp.round(z, 1), data("complex128", (3, 2))),
        case("histogram2d", lambda xp, x: xp.histogram2d(x[0], x[1], 3), A, **fixed),
        case("i0", lambda xp, x: xp.i0(x * 9), A),
        case("lexsort", lambda xp, x: xp.lexsort((x, x % 2)), I3, unknown=False),
        case("frexp-edges", lambda xp, x: xp.frexp(x), np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -3.0])),
        case("spacing", lambda xp, x: xp.spacing(x), np.array([1.0, -1.0, 0.0, 1e300])),
        case("gcd", lambda xp, x, y: (xp.gcd(x, y), xp.lcm(x, y)), I3, U3 + 1),
        case("packbits", lambda xp, x: xp.packbits(x, axis=1), M),
    ]


def chosen() -> list[Case]:
    return [
        case("argwhere", lambda xp, x: xp.argwhere(x), M),
        case("flatnonzero", lambda xp, x: xp.flatnonzero(x), M),
        case("extract", lambda xp, m, x: xp.extract(m, x), M, A),
        case("compress", lambda xp, x: xp.compress([True, False, True], x, axis=0), A),
        case("select", lambda xp, x: xp.select([x < 0, x > 0.5], [x * 2, x + 1], 7.0), A),
        case("piecewise", lambda xp, x: xp.piecewise(x, [x < 0, x > 0.5], [lambda x: x * 2, 3.0, lambda x: -x]), A),
        case("unravel_index", lambda xp, i: xp.unravel_index(i, (3, 4)), np.array([0, 5, 11])),
        case("diag_indices_from", lambda xp, x: xp.diag_indices_from(x), A[:, :3]),
        case("tril_indices_from", lambda xp, x: xp.tril_indices_from(x, 1), A, unknown=False),
        case("triu_indices_from", lambda xp, x: xp.triu_indices_from(x), A, unknown=False),
    ]


def counted() -> list[Case]:
    quantiles = [0.0, 0.3, 0.5, 1.0]
    return [
        case("ptp", lambda xp, x: xp.ptp(x, 1), A),
        case("average", lambda xp, x: xp.average(x, 0), A),
        case("average-weights", lambda xp, x, w: xp.average(x, 1, w, returned=True), A, V**2),
        case("median", lambda xp, x: (xp.median(x), xp.median(x, 0)), A),
        case("median-keepdims", lambda xp, x: xp.median(x, (0, 2), keepdims=True), T3),
        case("quantile", lambda xp, x: xp.quantile(x, quantiles, 1), A),
        case("quantile-all", lambda xp, x: xp.quantile(x, 0.3, keepdims=True), A),
        *(
            case(f"quantile-{m}", lambda xp, x, m=m: xp.quantile(x, quantiles, 0, method=m), A)
            for m in ("lower", "higher", "nearest", "midpoint")
        ),
        case("percentile", lambda xp, x: xp.percentile(x, [10, 90], 1), A),
        case("quantile-nan", lambda xp, x: xp.quantile(x, 0.5, 0), NANS),
        case("nanquantile", lambda xp, x: xp.nanquantile(x, quantiles, 1), NANS),
        case("nanpercentile", lambda xp, x: xp.nanpercentile(x, 30), NANS),
        case("nanmedian", lambda xp, x: xp.nanmedian(x, 0), NANS),
        case("cov", lambda xp, x: xp.cov(x), A),
        case("cov-weights", lambda xp, x, w: xp.cov(x, aweights=w, bias=True), A, V**2),
        case("cov-2", lambda xp, x, y: xp.cov(x, y, ddof=0), V, V[::-1].copy()),
        case("corrcoef", lambda xp, x: xp.corrcoef(x), A),
        case("digitize", lambda xp, x: xp.digitize(x, POINTS), A),
        case("isin", lambda xp, x: xp.isin(x, [1, 2, 5]), I3),
        case("isin-not", lambda xp, x, y: xp.isin(x, y, invert=True), I3, COUNTS.astype(np.int32)),
        case("histogram", lambda xp, x: xp.histogram(x, 4), A),
        case("histogram-range", lambda xp, x: xp.histogram(x, 3, (-1.0, 1.0), density=True), A),
        case("histogram_bin_edges", lambda xp, x: xp.histogram_bin_edges(x, 5), A),
        *(
            case(name, lambda xp, x, name=name: (getattr(xp, name)(x), getattr(xp, name)(x, 1, keepdims=True)), NANS)
            for name in ("nansum", "nanmean", "nanmax", "nanmin", "nanvar", "nanstd", "nanargmax", "nanargmin")
        ),
        case(
            "nan_to_num", lambda xp, x: xp.nan_to_num(x, nan=2.0, posinf=5.0), np.array([np.nan, np.inf, -np.inf, 1.0])
        ),
        case("nancumsum", lambda xp, x: xp.nancumsum(x, 1), NANS),
        case("nancumprod", lambda xp, x: xp.nancumprod(x, 0), NANS),
    ]


def numerical() -> list[Case]:
    fixed = {"unknown": False}
    return [
        case("interp", lambda xp, x: xp.interp(x, POINTS, POINTS**2), A * 3),
        case("interp-ends", lambda xp, x, f: xp.interp(x, POINTS, f, left=-1.0, right=9.0), A * 3, V),
        case("interp-period", lambda xp, x: xp.interp(x, POINTS, POINTS**2, period=5.0), A * 3),
        case("trapezoid", lambda xp, x: xp.trapezoid(x, dx=0.5, axis=0), A),
        case("trapezoid-x", lambda xp, x, y: xp.trapezoid(x, y), A, POINTS),
        case("ediff1d", lambda xp, x: xp.ediff1d(x, to_end=[7.0], to_begin=1.0), A),
        case("gradient", lambda xp, x: xp.gradient(x), A),
        case("gradient-axis", lambda xp, x: xp.gradient(x, 0.5, axis=1), A),
        case("gradient-uneven", lambda xp, x, h: xp.gradient(x, h, axis=1), A, POINTS),
        *(case(f"convolve-{m}", lambda xp, x, y, m=m: xp.convolve(x, y, m), W, V[:3], **fixed) for m in MODES),
        *(case(f"correlate-{m}", lambda xp, x, y, m=m: xp.correlate(x, y, m), W, V, **fixed) for m in MODES),
        case(
            "correlate-short",
            lambda xp, x, y: [xp.correlate(x, y, m) for m in MODES],
            V[:3],
            W,
            **fixed,
        ),
        case("polyval", lambda xp, p, x: xp.polyval(p, x), V, A, **fixed),
        case("polyadd", lambda xp, p, q: (xp.polyadd(p, q), xp.polysub(p, q), xp.polymul(p, q)), V, W, **fixed),
        case("polyder", lambda xp, p: [xp.polyder(p, 2), xp.polyint(p), xp.polyint(p, 2, 3.0)], V, **fixed),
        case("unwrap", lambda xp, x: xp.unwrap(x), A * 9),
        case("fmax", lambda xp, x, y: (xp.fmax(x, y), xp.fmin(x, y)), NANS, NANS[::-1].copy()),
        case("cbrt", lambda xp, x: xp.cbrt(x), A * 100),
        case("sinc", lambda xp, x: xp.sinc(x), np.array([0.0, 1e-6, 0.3, -2.5])),
        case("deg2rad", lambda xp, x: (xp.deg2rad(x), xp.rad2deg(x), xp.radians(x), xp.degrees(x)), A),
        case("fmod", lambda xp, x, y: xp.fmod(x, y), A * 9, V),
        case("fmod-integers", lambda xp, x: xp.fmod(x, 3), I3 - 2),
        case("heaviside", lambda xp, x: xp.heaviside(x, 0.5), np.array([-1.0, 0.0, 2.0, np.nan])),
        case("logaddexp2", lambda xp, x, y: xp.logaddexp2(x, y), A, V),
        case("float_power", lambda xp, x: xp.float_power(x, 3), I3),
        case(
            "isneginf", lambda xp, x: (xp.isneginf(x), xp.isposinf(x)), np.array([-np.inf, np.inf, 1.0]), protocol=False
        ),
        case("isreal", lambda xp, x: (xp.isreal(x), xp.iscomplex(x)), np.array([1 + 2j, 3 + 0j])),
        case("modf", lambda xp, x: xp.modf(x), A * 9),
        case("ldexp", lambda xp, x: xp.ldexp(x, 3), A),
    ]
