"""The contraction of two arrays with named axes: the step that `einsum` and `tensordot` are made of."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array.dims import dim, expanded, reshaped, squeezed, times, transposed
from ctrlgrad.frontend.array.ranges import diagonal
from ctrlgrad.records import record

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
    sizes broadcast; shared labels to sum are its inner dimension; the others are rows and columns.
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
