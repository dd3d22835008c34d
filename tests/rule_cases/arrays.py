"""Ops that reduce, order, move and index elements, and stacks."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from rule_cases.case import DIFFERENCES, JAX, Case, normal

A, V = normal(4, 3, 4), normal(5, 4)
ZEROS = np.array([[0.0, 2.0, 1.5], [3.0, 0.0, 0.0], [-1.0, 0.5, 2.0]])
REPEATED = np.array([2, 0, 2, 1, 2])

CASES: dict[str, Case] = {
    "sum": Case(lambda x: cnp.sum(x * x, axis=1), (A,)),
    "sum of one": Case(lambda x: cnp.sum(x * x, axis=0, keepdims=True), (A[:1],)),
    "sum of none": Case(lambda x: cnp.sum(x[:0], axis=0) + cnp.sum(x * x, axis=0), (A,)),
    "mean unknown": Case(lambda x: cnp.mean(x * x, axis=1), (A,), unknown=True),
    "var": Case(lambda x: cnp.var(x, axis=0, correction=1), (A,)),
    "max": Case(lambda x: cnp.max(x * x, axis=1), (A,)),
    "min unknown": Case(lambda x: cnp.min(x * x, axis=(0, 1)), (A,), unknown=True),
    "max at ties": Case(lambda x: cnp.max(x, axis=1) ** 2, (np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]),), JAX),
    "prod": Case(lambda x: cnp.prod(x, axis=1), (A,)),
    "prod at zeros": Case(lambda x: (cnp.prod(x, axis=0), cnp.prod(x, axis=1)), (ZEROS,)),
    "prod at zeros, unknown": Case(lambda x: (cnp.prod(x, axis=0), cnp.prod(x, axis=1)), (ZEROS,), unknown=True),
    "prod of one": Case(lambda x: cnp.prod(x * x, axis=0), (A[:1],), unknown=True),
    "prod of none": Case(lambda x: cnp.prod(x[:0], axis=0) * cnp.sum(x * x), (A,), unknown=True),
    "cumsum": Case(lambda x: cnp.cumsum(x * x, axis=1), (A,)),
    "cumprod at zeros": Case(lambda x: cnp.cumprod(x, axis=1), (ZEROS,)),
    "cumprod at zeros, unknown": Case(lambda x: cnp.cumprod(x, axis=0), (ZEROS,), unknown=True),
    "diff": Case(lambda x: cnp.diff(x * x, 2), (A,), unknown=True),
    "sort": Case(lambda x: cnp.sort(x * x, axis=0, descending=True), (A,)),
    "sort unknown": Case(lambda x: cnp.sort(x**3), (A,), unknown=True),
    "unique": Case(lambda x: cnp.unique_values(cnp.concat([x, x])) ** 2, (V,), DIFFERENCES),
    "mask": Case(lambda x: x[x > 0] ** 2, (A,), DIFFERENCES),
    "mask replaced": Case(lambda x: x.at[x > 0].set(x[x > 0] ** 2), (A,), DIFFERENCES),
    "mask set": Case(lambda x: x.at[x > 0].set(x[0, 0] ** 2), (A,), DIFFERENCES),
    "where positions": Case(lambda x: x[cnp.nonzero(x > 0)] ** 2, (A,), DIFFERENCES),
    "repeat by counts": Case(lambda x: cnp.repeat(x**2, (x > 0) + 1, axis=0), (V,)),
    "reshape": Case(lambda x: (x * x).reshape(2, -1), (A,)),
    "reshape unknown": Case(lambda x: (x * x).reshape(2, -1), (A,), unknown=True),
    "broadcast_to": Case(lambda x: cnp.broadcast_to(x * x, (2, 3, 4)), (A[:, :1],)),
    "broadcast_to unknown": Case(lambda x, y: cnp.broadcast_to(x, y.shape) * y, (V, A), unknown=True),
    "transpose": Case(lambda x: cnp.transpose(x * x), (A,)),
    "expand and squeeze": Case(lambda x: cnp.squeeze(cnp.expand_dims(x, 1) ** 2, 1), (A,)),
    "flip": Case(lambda x: cnp.flip(x, 1) * x, (A,)),
    "concat": Case(lambda x, y: cnp.concat([x, y[None], x], 0) ** 2, (A, V)),
    "concat unknown": Case(lambda x, y: cnp.concat([x, y[None], x], 0) ** 2, (A, V), unknown=True),
    "getitem": Case(lambda x: x[1:, ::2] ** 2, (A,)),
    "getitem repeated": Case(lambda x: x[REPEATED, 1] ** 2, (A,)),
    "take_along_axis": Case(lambda x: cnp.take_along_axis(x, cnp.argsort(x), -1) ** 3, (A,)),
    "set": Case(lambda x, y: x.at[1].set(y * y) ** 2, (A, V)),
    "set repeated": Case(lambda x, y: x.at[REPEATED].set(y * y) ** 2, (V, normal(6, 5))),
    "add repeated": Case(lambda x, y: x.at[REPEATED].add(y * y) ** 2, (V, normal(6, 5))),
    "multiply repeated": Case(lambda x, y: x.at[REPEATED].multiply(y), (V, normal(6, 5))),
    "max repeated": Case(lambda x, y: x.at[REPEATED].max(y) ** 2, (V, normal(6, 5))),
    "min repeated": Case(lambda x, y: x.at[REPEATED].min(y) ** 2, (V, normal(6, 5))),
    "matmul": Case(lambda x, y: x @ y, (A, normal(7, 4, 2))),
    "matmul batched": Case(lambda x, y: x @ y, (normal(7, 2, 1, 3, 2), normal(8, 3, 2, 2))),
    "matmul unknown": Case(lambda x, y: x @ y, (normal(7, 1, 3, 2), normal(8, 2, 2, 2)), unknown=True),
    "matmul of nothing": Case(lambda x, y: x[:, :0] @ y[:0] + x @ y, (A, normal(7, 4, 2))),
    "einsum": Case(lambda x, y: cnp.einsum("ij,jk,k->ik", x, y, y[0]), (A, normal(7, 4, 2))),
    "tensordot": Case(lambda x: cnp.tensordot(x, x, 2), (A,)),
}


def _rows(x: Any) -> Any:
    """A loop that writes, reads, adds to and overwrites rows."""
    rows = cg.TensorArray(x.dtype, 3, (4,), rewritable=True)

    def body(i: Any, rows: Any) -> Any:
        return rows.write(i, x[i] * cnp.sin(x[i])).write(0, x[i])

    rows = cg.fori_loop(0, 3, body, rows)
    return cg.fori_loop(0, 3, lambda i, total: total + rows.read(i) * rows.read(0), x[0]) + rows.stack() ** 2


def _grown(x: Any) -> Any:
    """Rows collected by a loop of unknown length."""
    rows = cg.TensorArray(x.dtype, element_shape=(4,)).unstack(x)
    return cg.scan(lambda c, i: (c * rows.read(i), cnp.sin(c)), x[0], np.arange(3))[1] + rows.stack()


def _two_ways(x: Any) -> Any:
    """One array of rows, changed in two ways."""
    rows = cg.TensorArray(x.dtype, element_shape=(4,), rewritable=True).unstack(x * x)
    return rows.write(0, x[1]).stack() * rows.write(1, x[0] ** 3).stack()


def _parts(x: Any) -> Any:
    """Rows of different lengths, joined."""
    parts = cg.TensorArray(x.dtype, element_shape=(None,))
    for length in (1, 3, 2):
        parts = parts.push(cg.unknown_dims(x[:length] ** 2, 0))
    return parts.concat() * x[0]


CASES["TensorArray used twice"] = Case(_two_ways, (A,))
CASES["TensorArray of parts"] = Case(_parts, (V,))
CASES["rows of a TensorArray"] = Case(_rows, (A,))
CASES["rows taken apart"] = Case(_grown, (A,))
