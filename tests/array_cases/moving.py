"""Shapes, joins, indexing, creations, updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from array_cases.case import EMPTY, I3, IDX, IDX2, ONE, T3, T4, A, Case, K, M, N, V, case
from array_cases.running import data


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
