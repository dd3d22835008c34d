"""Cases of the ops that compute on arrays: elementwise ones, reductions, scans, products, factorisations."""

from __future__ import annotations

import itertools

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import OPS, Trait
from op_cases.case import DTYPES, Maker, OpCase, matrices, numbers, small

_SHAPES = ((), (3,), (2, 1, 3), (0,))
_PAIRS = (((), ()), ((2, 1), (3,)), ((), (3,)), ((2, 2), (2, 2)), ((0,), (1,)))
# The second operand is a count of bits, or an exponent that may not be negative.
_COUNTED = ("bitwise_left_shift", "bitwise_right_shift", "integer_power")


def _unary(op: str) -> Maker:
    return lambda dtype: [OpCase(op, (numbers(dtype, *shape),)) for shape in _SHAPES]


def _binary(op: str) -> Maker:
    second = small if op in _COUNTED else numbers
    return lambda dtype: [OpCase(op, (numbers(dtype, *a), second(dtype, *b, seed=1))) for a, b in _PAIRS]


def _where(dtype: str) -> list[OpCase]:
    return [
        OpCase("where", (numbers("bool", *a), numbers(dtype, *b, seed=1), numbers(dtype, *a, seed=2)))
        for a, b in _PAIRS
    ]


def _cast(dtype: str) -> list[OpCase]:
    # NumPy leaves the result undefined for a number outside the target's range.
    whole = dtype_kind(np.dtype(dtype)) in "fc"
    made = small if whole else numbers
    return [OpCase("cast", (made(dtype, *s),), {"dtype": np.dtype(d)}) for d in DTYPES for s in ((), (3,))]


MAKERS: dict[str, Maker] = {}
for _op in OPS.values():
    if Trait.ELEMENTWISE in _op.traits:
        MAKERS[_op.name] = _unary(_op.name) if _op.arity == 1 else _binary(_op.name)
MAKERS |= {"where": _where, "cast": _cast}

_REDUCED = (((), ()), ((5,), (0,)), ((2, 3, 4), (1,)), ((2, 3, 4), (0, 2)), ((2, 3), ()), ((0, 3), (1,)))
_EMPTIED = ((0, 3), (0,))


def _reduction(op: str) -> Maker:
    over = _REDUCED if op in ("max", "min") else (*_REDUCED, _EMPTIED)

    def cases(dtype: str) -> list[OpCase]:
        return [
            OpCase(op, (numbers(dtype, *shape),), {"axes": axes, "keepdims": keepdims})
            for shape, axes in over
            for keepdims in (False, True)
        ]

    return cases


def _extreme(op: str) -> Maker:
    def cases(dtype: str) -> list[OpCase]:
        return [
            OpCase(op, (numbers(dtype, *shape),), {"axes": axes, "keepdims": keepdims})
            for shape, axes in (((5,), (0,)), ((2, 3, 4), (1,)), ((0, 3), (1,)))
            for keepdims in (False, True)
        ]

    return cases


def _scan(op: str) -> Maker:
    def cases(dtype: str) -> list[OpCase]:
        return [
            OpCase(op, (numbers(dtype, *shape),), {"axis": axis, "reverse": reverse})
            for shape, axis in (((5,), 0), ((2, 3), 1), ((0, 3), 0))
            for reverse in (False, True)
        ]

    return cases


def _fft(dtype: str) -> list[OpCase]:
    return [
        OpCase("fft", (numbers(dtype, 2, 3),), {"axis": axis, "inverse": inverse})
        for axis in (0, 1)
        for inverse in (False, True)
    ]


def _rfft(dtype: str) -> list[OpCase]:
    return [
        OpCase("rfft", (numbers(dtype, *shape),), {"axis": axis, "size": shape[axis]})
        for shape in ((2, 3), (4, 1))
        for axis in (0, 1)
    ]


def _irfft(dtype: str) -> list[OpCase]:
    return [
        OpCase("irfft", (numbers(dtype, *shape),), {"axis": axis, "size": size})
        for shape, axis, size in (((2, 3), 1, 4), ((2, 3), 1, 5), ((2, 3), 0, 2), ((2, 3), 0, 3), ((1, 3), 0, 1))
    ]


def _argsort(dtype: str) -> list[OpCase]:
    return [
        OpCase("argsort", (numbers(dtype, *shape),), {"axis": axis, "descending": descending})
        for shape, axis in (((5,), 0), ((2, 3), 1), ((0,), 0))
        for descending in (False, True)
    ]


def _top_k(dtype: str) -> list[OpCase]:
    return [
        OpCase("top_k", (numbers(dtype, *shape),), {"axis": axis, "count": count})
        for shape, axis, count in (((5,), 0, 2), ((2, 3), 1, 3), ((3, 2), 0, 1), ((2, 0), 1, 0))
    ]


def _searchsorted(dtype: str) -> list[OpCase]:
    row = np.sort(numbers(dtype, 5))
    return [
        OpCase("searchsorted", (row, numbers(dtype, *shape, seed=1)), {"side": side})
        for shape in _SHAPES
        for side in ("left", "right")
    ]


def _nonzero(dtype: str) -> list[OpCase]:
    return [OpCase("nonzero", (numbers(dtype, *shape),)) for shape in _SHAPES[1:]]


MAKERS |= {op: _reduction(op) for op in ("sum", "prod", "max", "min", "any", "all")}
MAKERS |= {op: _extreme(op) for op in ("argmax", "argmin")}
MAKERS |= {op: _scan(op) for op in ("cumsum", "cumprod")}
MAKERS |= {
    "fft": _fft,
    "rfft": _rfft,
    "irfft": _irfft,
    "argsort": _argsort,
    "top_k": _top_k,
    "searchsorted": _searchsorted,
    "nonzero": _nonzero,
}


def _matmul(dtype: str) -> list[OpCase]:
    pairs = (((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 2), (2, 2)), ((2, 1, 2, 3), (2, 3, 2)), ((2, 0), (0, 3)))
    return [OpCase("matmul", (numbers(dtype, *a), numbers(dtype, *b, seed=1))) for a, b in pairs]


def _of_matrices(op: str) -> Maker:
    return lambda dtype: [OpCase(op, (matrices(dtype, *shape),)) for shape in ((2, 2), (2, 3, 3), (0, 2, 2))]


def _of_tall(op: str) -> Maker:
    return lambda dtype: [*_of_matrices(op)(dtype), OpCase(op, (numbers(dtype, 3, 2),))]


def _pinv(dtype: str) -> list[OpCase]:
    real = np.zeros(0, dtype).real.dtype.name
    shapes = (((3, 2), ()), ((2, 2, 3), (2,)), ((2, 3, 2), ()))
    return [OpCase("pinv", (numbers(dtype, *a), np.full(b, 0.3, real)[()])) for a, b in shapes]


def _solve(dtype: str) -> list[OpCase]:
    pairs = (((2, 2), (2, 2)), ((2, 3, 3), (3, 1)), ((3, 3), (2, 3, 2)), ((0, 2, 2), (2, 1)))
    return [OpCase("solve", (matrices(dtype, *a), matrices(dtype, *b[:-1], b[-2])[..., : b[-1]])) for a, b in pairs]


def _triangular_solve(dtype: str) -> list[OpCase]:
    forms = itertools.product((True, False), (True, False))
    return [
        OpCase("triangular_solve", case.operands, {"lower": lower, "unit_diagonal": unit})
        for case, (lower, unit) in zip(_solve(dtype), forms, strict=True)
    ]


def _adjugate_along(dtype: str) -> list[OpCase]:
    return [OpCase("adjugate_along", (matrices(dtype, *s), numbers(dtype, *s, seed=1))) for s in ((2, 2), (2, 3, 3))]


_SQUARE = "cholesky det adjugate logabsdet det_sign eigenvalues eigenvectors general_eigenvalues general_eigenvectors"
MAKERS |= {op: _of_matrices(op) for op in _SQUARE.split()}
MAKERS |= {op: _of_tall(op) for op in ("orthonormal", "singular_values", "singular_vectors")}
MAKERS |= {"pinv": _pinv}
MAKERS |= {"matmul": _matmul, "solve": _solve, "triangular_solve": _triangular_solve, "adjugate_along": _adjugate_along}
