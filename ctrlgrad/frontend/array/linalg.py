"""Products of vectors and matrices, all on the one op `matmul`."""

from __future__ import annotations

import string
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.elementwise import conjugate, multiply
from ctrlgrad.frontend.array.manipulation import moveaxis, ravel
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.array.ranges import diagonal
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.functions import array_function, publish
from ctrlgrad.ops.linalg import TURN
from ctrlgrad.records import record

# `einsum`: pairwise contractions, in the cheapest order if all sizes are known, else from left to right.


# Contraction of two arrays with named axes, the building block of `einsum` and `tensordot`.


Label = Hashable


@record
class Labelled:
    """An array and one label for each of its axes."""

    array: Any
    labels: tuple[Label, ...]

    def without(self, labels: Sequence[Label]) -> Labelled:
        """Summed over the axes of some labels."""
        axes = tuple(axis for axis, label in enumerate(self.labels) if label in labels)
        if not axes:
            return self
        array = apply("sum", [self.array], {"axes": axes, "keepdims": False})
        return Labelled(array, tuple(label for label in self.labels if label not in labels))

    def with_distinct_labels(self) -> Labelled:
        """The diagonal of axes that share a label."""
        term = self
        while repeated := [label for label in term.labels if term.labels.count(label) > 1]:
            label = repeated[0]
            first = term.labels.index(label)
            second = term.labels.index(label, first + 1)
            rest = tuple(other for axis, other in enumerate(term.labels) if axis not in (first, second))
            term = Labelled(diagonal(term.array, 0, first, second), (*rest, label))
        return term

    def ordered(self, labels: tuple[Label, ...]) -> Any:
        """The array with its axes in the order of `labels`."""
        return transposed(self.array, [self.labels.index(label) for label in labels])

    def sizes(self, labels: Sequence[Label]) -> list[Any]:
        return [dim(self.array, self.labels.index(label)) for label in labels]


def contracted(a: Labelled, b: Labelled, keep: frozenset[Label]) -> Labelled:
    """The product of two terms, summed over every label that is not in `keep`.

    Labels of one term alone are summed first. Shared labels to keep are the product's leading dimensions, where
    sizes broadcast; shared labels to sum are its inner dimension; the remaining labels are rows and columns.
    """
    a = a.without([label for label in a.labels if label not in b.labels and label not in keep])
    b = b.without([label for label in b.labels if label not in a.labels and label not in keep])
    batch = tuple(label for label in a.labels if label in b.labels and label in keep)
    summed = tuple(label for label in a.labels if label in b.labels and label not in keep)
    rows = tuple(label for label in a.labels if label not in b.labels)
    columns = tuple(label for label in b.labels if label not in a.labels)
    labels = (*batch, *rows, *columns)
    if not summed:
        left = expanded(a.ordered((*batch, *rows)), range(len(batch) + len(rows), len(labels)))
        right = expanded(b.ordered((*batch, *columns)), range(len(batch), len(batch) + len(rows)))
        return Labelled(apply("multiply", [left, right]), labels)
    left = _as_matrices(a, batch, rows, summed)
    right = _as_matrices(b, batch, summed, columns)
    product = apply("matmul", [left, right])
    if len(rows) == len(columns) == 1:
        return Labelled(product, labels)
    if len(rows) <= 1 and len(columns) <= 1:
        drop = [] if rows else [len(batch)]
        drop += [] if columns else [len(batch) + 1]
        return Labelled(squeezed(product, drop), labels)
    lead = [dim(product, axis) for axis in range(len(batch))]
    return Labelled(reshaped(product, [*lead, *a.sizes(rows), *b.sizes(columns)]), labels)


def _as_matrices(term: Labelled, batch: tuple[Label, ...], rows: tuple[Label, ...], columns: tuple[Label, ...]) -> Any:
    """The array as [*batch, product of rows, product of columns]."""
    array = term.ordered((*batch, *rows, *columns))
    if len(rows) == len(columns) == 1:
        return array
    if len(rows) <= 1 and len(columns) <= 1:
        new = [] if rows else [len(batch)]
        new += [] if columns else [len(batch) + 1]
        return expanded(array, new)
    return reshaped(array, [*term.sizes(batch), times(term.sizes(rows)), times(term.sizes(columns))])


@array_function()
def einsum(subscripts: str, *arrays: Any, optimize: Any = True) -> Any:
    """Einstein's summation: products of arrays with named axes, summed over the names that the result lacks.

    Args:
        subscripts: as in NumPy: a letter for each axis, operands separated by commas, `...` for the axes
            that broadcast, a letter twice in one operand for its diagonal. Without `->` the result has the letters
            that occur once, in alphabetical order.
        arrays: one for each operand.
        optimize: accepted for NumPy's sake; the order of contraction is always chosen.

    Raises:
        ShapeError: the letters do not fit the arrays, or sizes of one letter differ.

    >>> cnp.einsum("ij,j->i", [[1, 2], [3, 4]], [1, 1])
    array([3, 7])
    """
    if not isinstance(subscripts, str):
        raise TypeMismatchError(
            "einsum: the subscripts are not text", expected='such as "ij,jk->ik"', got=repr(subscripts)
        )
    given = subscripts.replace(" ", "")
    if not arrays or given.partition("->")[0].count(",") != len(arrays) - 1:
        raise ShapeError(
            "einsum: one group of letters for each array", expected=f"{len(arrays)} groups", got=subscripts
        )
    operands = same_dtype("einsum", arrays)
    dtype = dtype_of(operands[0])
    # Sums of small integers are taken in 64 bits, and wrap to the same value.
    wide = np.sum(np.zeros(0, dtype)).dtype if dtype_kind(dtype) in "biu" else dtype
    plan = _parse(given, [rank_of(x) for x in operands])
    terms = [Labelled(cast(x, wide), labels) for x, labels in zip(operands, plan.inputs, strict=True)]
    terms = _without_broadcast_ones(subscripts, terms)
    terms = [term.with_distinct_labels() for term in terms]
    return cast(_contract_all(terms, plan.output).ordered(plan.output), dtype)


@array_function()
def einsum_path(subscripts: str, *arrays: Any, optimize: Any = "greedy") -> tuple[list[Any], str]:
    """The order of contraction that NumPy would choose for arrays of known sizes; as `numpy.einsum_path`.

    >>> cnp.einsum_path("ij,jk->ik", cnp.ones((2, 3)), cnp.ones((3, 4)))[0]
    ['einsum_path', (0, 1)]
    """
    sizes = [[known_size("einsum_path", d) for d in shape_of(x)] for x in same_dtype("einsum_path", arrays)]
    # The sizes alone matter.
    return np.einsum_path(subscripts, *(np.broadcast_to(0.0, size) for size in sizes), optimize=optimize)


@record
class _Plan:
    """The labels of each operand's axes and of the result's. An axis of `...` is labelled by its place from the end."""

    inputs: tuple[tuple[Label, ...], ...]
    output: tuple[Label, ...]


def _parse(given: str, ranks: Sequence[int]) -> _Plan:
    left, arrow, right = given.partition("->")
    inputs = tuple(_labels(given, group, rank) for group, rank in zip(left.split(","), ranks, strict=True))
    everywhere = [label for labels in inputs for label in labels]
    broad = max((-label for label in everywhere if isinstance(label, int)), default=0)
    ellipsis: tuple[Label, ...] = tuple(range(-broad, 0))
    if not arrow:
        letters = sorted(label for label in set(everywhere) if isinstance(label, str) and everywhere.count(label) == 1)
        return _Plan(inputs, (*ellipsis, *letters))
    head, dots, tail = right.partition("...")
    _check_letters(given, head + tail)
    output = (*head, *(ellipsis if dots else ()), *tail)
    if len(set(output)) != len(output) or not set(output) <= set(everywhere):
        raise ShapeError(
            "einsum: a letter of the result is repeated or stands in no operand", got=given, hint="such as 'ij->i'"
        )
    if ellipsis and not dots:
        raise ShapeError("einsum: the result lacks the ... of an operand", got=given, hint="write ... after the -> too")
    return _Plan(inputs, output)


def _labels(given: str, group: str, rank: int) -> tuple[Label, ...]:
    head, dots, tail = group.partition("...")
    _check_letters(given, head + tail)
    broad = rank - len(head) - len(tail)
    if broad < 0 or (broad > 0 and not dots):
        raise ShapeError(
            f"einsum: the group {group!r} does not fit its array",
            expected=f"{len(head) + len(tail)} axes{' or more' if dots else ''}",
            got=f"{rank} axes",
            hint="write a letter for each axis of the array, or ... for the axes in front",
        )
    return (*head, *range(-broad, 0), *tail)


def _check_letters(given: str, letters: str) -> None:
    if any(letter not in string.ascii_letters for letter in letters):
        raise ShapeError("einsum: not a letter", expected="letters, commas, ... and ->", got=given)


def _without_broadcast_ones(subscripts: str, terms: Sequence[Labelled]) -> list[Labelled]:
    """The terms without axes of size 1 that broadcast against another operand's; an error where sizes differ."""
    sizes: dict[Label, set[int | None]] = {}
    for term in terms:
        for label, size in zip(term.labels, shape_of(term.array), strict=True):
            sizes.setdefault(label, set()).add(size)
    for label, found in sizes.items():
        if len(found - {1, None}) > 1:
            raise ShapeError(
                f"einsum: sizes of {label if isinstance(label, str) else '...'} differ",
                expected=f"sizes that are equal or 1, for {subscripts}",
                got=", ".join(shown(term.array) for term in terms),
                hint="a letter stands for axes of one size: transpose an operand with .mT, or use another letter",
            )
    result = []
    for term in terms:
        ones = [
            axis
            for axis, (label, size) in enumerate(zip(term.labels, shape_of(term.array), strict=True))
            if size == 1 and sizes[label] != {1}
        ]
        labels = tuple(label for axis, label in enumerate(term.labels) if axis not in ones)
        result.append(Labelled(squeezed(term.array, ones), labels))
    return result


def _contract_all(terms: list[Labelled], output: tuple[Label, ...]) -> Labelled:
    for places in _path(terms, output):
        chosen = [terms[place] for place in places]
        terms = [term for place, term in enumerate(terms) if place not in places]
        result = chosen[0]
        for position, other in enumerate(chosen[1:], start=1):
            later = [*terms, *chosen[position + 1 :]]
            keep = frozenset(output).union(*(term.labels for term in later))
            result = contracted(result, other, keep)
        terms.append(result)
    (last,) = terms
    return last.without([label for label in last.labels if label not in output])


def _path(terms: Sequence[Labelled], output: tuple[Label, ...]) -> list[tuple[int, ...]]:
    """Plan the contraction: the terms to contract at each step; each step's result goes to the end of the list."""
    if len(terms) == 1:
        return []
    if len(terms) == 2 or any(None in shape_of(term.array) for term in terms):
        return [(0, 1), *((0, count) for count in range(len(terms) - 2, 0, -1))]
    labels = list(dict.fromkeys(label for term in terms for label in term.labels))
    if len(labels) > len(string.ascii_letters):
        return [tuple(range(len(terms)))]
    letters = dict(zip(labels, string.ascii_letters, strict=False))
    groups = ["".join(letters[label] for label in group) for group in (*(term.labels for term in terms), output)]
    # Only the shapes count: arrays of no bytes stand in.
    blanks = [np.broadcast_to(np.float64(0), shape_of(term.array)) for term in terms]  # type: ignore[arg-type]
    path, _ = np.einsum_path(",".join(groups[:-1]) + "->" + groups[-1], *blanks, optimize="greedy")
    return [tuple(step) for step in path[1:]]


def _require_match(operation: str, a: Any, b: Any, axis: int, other: int) -> Any:
    """b, whose axis is as long as one of a: where that is unknown, an error of the run where it is not."""
    one, two = shape_of(a)[axis], shape_of(b)[other]
    problem = f"{operation}: the sizes to sum over differ"
    if one is None or two is None:
        return ensured(b, {other % rank_of(b): dim(a, axis)}, problem, TURN)
    if one != two:
        raise ShapeError(problem, expected=f"{one} on both sides", got=f"{shown(a)} and {shown(b)}", hint=TURN)
    return b


def _pair(operation: str, x1: Any, x2: Any) -> tuple[Any, Any, bool]:
    """Both operands in the dtype to multiply in, and whether they were booleans (numbers meanwhile)."""
    a, b = same_dtype(operation, (x1, x2))
    boolean = dtype_kind(dtype_of(a)) == "b"
    return (cast(a, np.int64), cast(b, np.int64), True) if boolean else (a, b, False)


@array_function()
def matmul(x1: Any, x2: Any) -> Any:
    """The matrix product; leading dimensions broadcast, a vector counts as a row (left) or a column (right).

    Args:
        x1: [..., m, k] or [k].
        x2: [..., k, n] or [k].

    Raises:
        ShapeError: a scalar, or sizes that differ.

    >>> cnp.matmul([[1, 2], [3, 4]], [1, 1])
    array([3, 7])
    """
    a, b, boolean = _pair("matmul", x1, x2)
    one, two = shape_of(a), shape_of(b)
    if not one or not two:
        raise ShapeError("matmul: an operand is a scalar", got=f"{shown(a)} and {shown(b)}", hint="use multiply")
    if one[-1] is not None and two[-2:][0] is not None:
        _require_match("matmul", a, b, -1, max(-2, -len(two)))
    drop = ([-2] if len(one) == 1 else []) + ([-1] if len(two) == 1 else [])
    a = expanded(a, [0]) if len(one) == 1 else a
    b = expanded(b, [1]) if len(two) == 1 else b
    if len(one) > 2 and len(two) <= 2:
        # One large product instead of many small ones.
        *lead, size = dims(a)
        product = apply("matmul", [reshaped(a, [times(lead), size]), b])
        result = reshaped(product, [*lead, dim(b, 1)])
    else:
        result = apply("matmul", [a, b])
    result = squeezed(result, [axis % rank_of(result) for axis in drop])
    return cast(result, np.bool_) if boolean else result


@array_function()
def dot(x1: Any, x2: Any) -> Any:
    """NumPy's dot: the sum over the last axis of x1 and the last but one of x2; with a scalar, the product.

    >>> print(cnp.dot([1, 2], [3, 4]))
    11
    """
    a, b = operand("dot", x1), operand("dot", x2)
    if rank_of(a) == 0 or rank_of(b) == 0:
        return multiply(a, b)
    if rank_of(b) <= 2:
        return matmul(a, b)
    return tensordot(a, b, (rank_of(a) - 1, rank_of(b) - 2))


@array_function()
def vdot(x1: Any, x2: Any) -> Any:
    """The dot product of all elements in one dimension. Complex elements of x1 are conjugated.

    >>> print(cnp.vdot([[1, 2]], [[3, 4]]))
    11
    """
    return matmul(conjugate(ravel(x1)), ravel(x2))


@array_function()
def inner(x1: Any, x2: Any) -> Any:
    """The sum of products over the last axes of both; with a scalar, the product.

    >>> print(cnp.inner([1, 2], [3, 4]))
    11
    """
    a, b = operand("inner", x1), operand("inner", x2)
    if rank_of(a) == 0 or rank_of(b) == 0:
        return multiply(a, b)
    return tensordot(a, b, (rank_of(a) - 1, rank_of(b) - 1))


@array_function()
def outer(x1: Any, x2: Any) -> Any:
    """Every element of x1 times every element of x2: [m, n], both taken as vectors.

    >>> cnp.outer([1, 2], [3, 4])
    array([[3, 4],
           [6, 8]])
    """
    return multiply(expanded(ravel(x1), [1]), expanded(ravel(x2), [0]))


@array_function()
def vecdot(x1: Any, x2: Any, *, axis: int = -1) -> Any:
    """The dot product along one axis; the other axes broadcast. Complex elements of x1 are conjugated.

    >>> cnp.vecdot([[1, 2], [3, 4]], [1, 1])
    array([3, 7])
    """
    a, b, boolean = _pair("vecdot", conjugate(x1), x2)
    if rank_of(a) == 0 or rank_of(b) == 0:
        raise ShapeError(
            "vecdot: an operand is a scalar", got=f"{shown(a)} and {shown(b)}", hint="use multiply for scalars"
        )
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    b = _require_match("vecdot", a, b, -1, -1)
    result = cast(total(multiply(a, b), -1), dtype_of(a))
    return cast(result, np.bool_) if boolean else result


@array_function()
def tensordot(x1: Any, x2: Any, axes: Any = 2) -> Any:
    """The sum of products over pairs of axes.

    Args:
        x1, x2: any shapes.
        axes: how many last axes of x1 meet the first of x2, or a pair: axes of x1, axes of x2.

    >>> cnp.tensordot([[1, 2], [3, 4]], [[1, 0], [0, 1]], 1)
    array([[1, 2],
           [3, 4]])
    """
    a, b, boolean = _pair("tensordot", x1, x2)
    ranks = rank_of(a), rank_of(b)
    if not isinstance(axes, list | tuple):
        count = whole_number("tensordot", "axes", axes)
        if not 0 <= count <= min(ranks):
            raise ShapeError("tensordot: not so many axes", expected=f"at most {min(ranks)}", got=str(axes))
        axes = range(ranks[0] - count, ranks[0]), range(count)
    if len(axes) != 2:
        raise TypeMismatchError(
            "tensordot: axes is a number or a pair", got=str(axes), hint="axes=1, or axes=([1], [0])"
        )
    one, other = (
        axes_in_order("tensordot", list(given) if isinstance(given, range) else given, rank)
        for given, rank in zip(axes, ranks, strict=True)
    )
    if len(one) != len(other):
        raise ShapeError("tensordot: as many axes of each", got=str(axes), hint="such as axes=([0, 1], [0, 1])")
    for i, j in zip(one, other, strict=True):
        b = _require_match("tensordot", a, b, i, j)
    left = [("a", axis) for axis in range(ranks[0])]
    right = [("a", one[other.index(axis)]) if axis in other else ("b", axis) for axis in range(ranks[1])]
    keep = [label for label in left if label[1] not in one] + [label for label in right if label[0] == "b"]
    result = contracted(Labelled(a, tuple(left)), Labelled(b, tuple(right)), frozenset(keep)).ordered(tuple(keep))
    return cast(result, np.bool_) if boolean else result


@array_function()
def matvec(x1: Any, x2: Any) -> Any:
    """The products of matrices [..., m, n] and vectors [..., n]: [..., m]; as `numpy.matvec`.

    >>> cnp.matvec([[1, 2], [3, 4]], [1, 1])
    array([3, 7])
    """
    x2 = operand("matvec", x2)
    found = matmul(x1, expanded(x2, (rank_of(x2),)))
    return squeezed(found, (rank_of(found) - 1,))


@array_function(of=operand)
def vecmat(x1: Any, x2: Any) -> Any:
    """The products of the conjugates of vectors [..., n] and matrices [..., n, m]: [..., m]; as `numpy.vecmat`.

    >>> cnp.vecmat([1, 1], [[1, 2], [3, 4]])
    array([4, 6])
    """
    x1 = conjugate(x1)
    found = matmul(expanded(x1, (rank_of(x1) - 1,)), x2)
    return squeezed(found, (rank_of(found) - 2,))


publish(__name__, "Labelled", "contracted")
