"""Reductions, products, contractions, activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from array_cases.case import EMPTY, I3, T3, T4, U3, A, B, Case, M, V, case
from array_cases.running import data


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
