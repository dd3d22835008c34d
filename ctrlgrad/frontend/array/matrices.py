"""The names of `ctrlgrad.numpy.linalg`: the Array API's linear algebra, and NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ctrlgrad.advice import no_such_name
from ctrlgrad.errors import ShapeError
from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array import decompositions
from ctrlgrad.frontend.array.decompositions import *
from ctrlgrad.frontend.array.decompositions import matrices
from ctrlgrad.frontend.array.elementwise import conjugate, divide, multiply, real, subtract
from ctrlgrad.frontend.array.linalg import matmul as matmul
from ctrlgrad.frontend.array.linalg import outer as outer
from ctrlgrad.frontend.array.linalg import tensordot as tensordot
from ctrlgrad.frontend.array.linalg import vecdot as vecdot
from ctrlgrad.frontend.array.manipulation import matrix_transpose as matrix_transpose
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.array.ranges import diagonal as _diagonal
from ctrlgrad.frontend.array.reduction import sum as _sum
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function, publish

# Eigenvalues and eigenvectors of matrices that need not be hermitian.


class EigResult(NamedTuple):
    """Result of `eig`: x @ eigenvectors = eigenvectors @ diag(eigenvalues)."""

    eigenvalues: Any
    eigenvectors: Any


@array_function()
def eig(x: Any, /) -> EigResult:
    """Eigenvalues [..., n], in no order that is stated, and eigenvectors as columns: [..., n, n].

    Args:
        x: [..., n, n]. Of matrices that are hermitian `eigh` is faster and more exact.

    Both are complex, of real matrices too (NumPy gives real ones where all eigenvalues happen to be real). A column has
    norm 1, and its largest component is real. Derivatives exist where the eigenvalues are distinct; those of the
    vectors are along this scaling.

    >>> cnp.linalg.eig([[0.0, 1.0], [-1.0, 0.0]]).eigenvalues
    array([0.+1.j, 0.-1.j])
    """
    x = matrices("eig", x, square=True)
    return EigResult(apply("general_eigenvalues", [x]), apply("general_eigenvectors", [x]))


@array_function()
def eigvals(x: Any, /) -> Any:
    """The eigenvalues of `eig` alone.

    >>> cnp.linalg.eigvals([[2.0, 1.0], [0.0, 1.0]])
    array([2.+0.j, 1.+0.j])
    """
    return apply("general_eigenvalues", [matrices("eigvals", x, square=True)])


# Least squares, condition numbers, and products of several matrices, composed of the functions above.


@array_function()
def lstsq(a: Any, b: Any, rcond: Any = None) -> tuple[Any, Any, Any, Any]:
    """The x of least norm among those for which |b - a x| is least; as `jax.numpy.linalg.lstsq`.

    Args:
        a: [m, n].
        b: [m] or [m, k].
        rcond: singular values up to rcond times the largest count as zero; max(m, n) * eps where it is None.

    Returns:
        (x, squares, rank, singular values): x is [n] or [n, k]; the squares of what is left over, [1] or [k], are there
        whatever the rank is, so that their shape is known. The derivative is the one along matrices of the same rank.

    Raises:
        ShapeError: `a` is no matrix, `b` is of another rank than 1 or 2, or has other rows.

    >>> a = [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]
    >>> x, squares, rank, s = cnp.linalg.lstsq(a, [1.0, 3.0, 5.0])
    >>> np.round(x, 6), int(rank)
    (array([1., 2.]), 2)
    """
    a, b = same_dtype("lstsq", (operand("lstsq", a), operand("lstsq", b)))
    if rank_of(a) != 2 or rank_of(b) not in (1, 2):
        raise ShapeError(
            "lstsq: not a matrix and one or several right sides",
            expected="[m, n] and [m] or [m, k]",
            got=f"{shown(a)} and {shown(b)}",
            hint="ctrlgrad.vmap solves for many matrices",
        )
    sides = expanded(b, [1]) if rank_of(b) == 1 else b
    x = matmul(pinv(a, rtol=rcond), sides)
    left = subtract(sides, matmul(a, x))
    squares = total(real(multiply(conjugate(left), left)), 0)
    return (squeezed(x, [1]) if rank_of(b) == 1 else x), squares, matrix_rank(a, rtol=rcond), svdvals(a)


@array_function(of=operand)
def cond(x: Any, p: Any = None) -> Any:
    """Condition number |x| |x^-1| in the norm that `p` names; as `numpy.linalg.cond`.

    Args:
        x: [..., m, n]; square unless p is None, 2 or -2.
        p: None or 2: the largest singular value over the smallest, -2: the other way round; or a norm's name.

    >>> float(cnp.linalg.cond([[2.0, 0.0], [0.0, 0.5]]))
    4.0
    """
    if p in (None, 2, -2):
        values = svdvals(x)
        largest, smallest = values[..., 0], values[..., -1]
        return divide(smallest, largest) if p == -2 else divide(largest, smallest)
    return multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))


@array_function()
def multi_dot(arrays: Sequence[Any]) -> Any:
    """The product of several matrices in the order of least work; as `numpy.linalg.multi_dot`.

    The first and the last may be vectors. Where a size is unknown they are multiplied from the left.

    >>> cnp.linalg.multi_dot([[1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [3.0, 4.0]])
    array(11.)
    """
    factors = [operand("multi_dot", x) for x in arrays]
    if len(factors) < 2:
        raise ShapeError("multi_dot: not several matrices", expected="two or more", got=str(len(factors)))
    ranks = [rank_of(x) for x in factors]
    if any(rank != 2 for rank in ranks[1:-1]) or any(rank not in (1, 2) for rank in ranks):
        raise ShapeError(
            "multi_dot: not a row of matrices",
            expected="matrices, and vectors at the ends alone",
            got=", ".join(map(shown, factors)),
            hint="use matmul for batches of matrices",
        )
    drop = ([0] if ranks[0] == 1 else []) + ([1] if ranks[-1] == 1 else [])
    factors[0] = expanded(factors[0], [0]) if ranks[0] == 1 else factors[0]
    factors[-1] = expanded(factors[-1], [1]) if ranks[-1] == 1 else factors[-1]
    return squeezed(_product(factors, _splits([*(shape_of(x)[0] for x in factors), shape_of(factors[-1])[1]])), drop)


def _splits(sizes: Sequence[int | None]) -> np.ndarray:
    """Best split of the factors i to j: the matrix chain of Cormen et al., "Introduction to Algorithms"."""
    count, known = len(sizes) - 1, [n for n in sizes if n is not None]
    split, work = np.zeros((count, count), int), np.zeros((count, count))
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            if len(known) < len(sizes):
                split[i, j] = j - 1
                continue
            costs = [work[i, k] + work[k + 1, j] + known[i] * known[k + 1] * known[j + 1] for k in range(i, j)]
            best = int(np.argmin(costs))
            split[i, j], work[i, j] = i + best, costs[best]
    return split


def _product(factors: Sequence[Any], split: np.ndarray, first: int = 0, last: int | None = None) -> Any:
    last = len(factors) - 1 if last is None else last
    if first == last:
        return factors[first]
    middle = int(split[first, last])
    return matmul(_product(factors, split, first, middle), _product(factors, split, middle + 1, last))


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of matrices [..., m, n], `offset` above the main one: [..., k].

    >>> cnp.linalg.diagonal([[1, 2], [3, 4]])
    array([1, 4])
    """
    x = operand("diagonal", x)
    check_rank("diagonal", x, 2)
    return _diagonal(x, offset, rank_of(x) - 2, rank_of(x) - 1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum of the diagonal of matrices [..., m, n]: [...].

    >>> print(cnp.linalg.trace([[1, 2], [3, 4]]))
    5
    """
    return _sum(diagonal(x, offset=offset), -1, dtype)


def __getattr__(name: str) -> Any:
    raise no_such_name("ctrlgrad.numpy.linalg", name, globals())


_IMPORTED = ["matmul", "matrix_transpose", "outer", "tensordot", "vecdot"]
publish(__name__, "EigResult", more=[*vars(decompositions)["__all__"], *_IMPORTED])
