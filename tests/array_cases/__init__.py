"""Calls of array functions, written once for `numpy` and `ctrlgrad.numpy`; `CASES` has all of them."""

from array_cases.case import Case
from array_cases.computing import activations, contractions, products, reductions
from array_cases.further import arranged, chosen, counted, numerical, padded, several
from array_cases.moving import creations, indexing, joins, shapes, updates

CASES = [
    *reductions(),
    *products(),
    *contractions(),
    *shapes(),
    *joins(),
    *indexing(),
    *creations(),
    *activations(),
    *updates(),
    *arranged(),
    *chosen(),
    *counted(),
    *numerical(),
    *padded(),
    *several(),
]

__all__ = ["CASES", "Case"]
