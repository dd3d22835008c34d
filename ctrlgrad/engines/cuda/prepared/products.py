"""Products in a prepared body, as cuBLAS takes them: matrices where they lie, or copies of them."""

from __future__ import annotations

import math

import numpy as np

from ctrlgrad.engines.cuda.prepared.model import CannotPrepare
from ctrlgrad.engines.cuda.prepared.operands import View
from ctrlgrad.engines.cuda.prepared.reading import Reading
from ctrlgrad.engines.cuda.prepared.views import broadcast, reshaped, viewed
from ctrlgrad.engines.cuda.products import PRODUCT_DTYPES, is_one_product, layout, too_large
from ctrlgrad.engines.cuda.program import NodeStep


def matmul(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """`numpy.matmul`: by the same rules as `ctrlgrad.engines.cuda.products.product`."""
    a, b = (_numbers(reading, slot) for slot in step.operands)
    return (_product(reading, a, b),)


def product_sum(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """Add a product to the first operand, in place where no later step reads that operand."""
    total, *factors = step.operands
    a, b = (_factor(reading, _numbers(reading, slot)) for slot in factors)
    _check_sizes(a, b, ())
    out = reading.own(total, factors)
    reading.launches.product(a, b, out, True)
    return (out,)


def _numbers(reading: Reading, slot: int) -> View:
    view = reading.view(slot)
    if view.dtype.name not in PRODUCT_DTYPES:
        raise CannotPrepare(f"a product of {view.dtype}")
    if not view.size:
        raise CannotPrepare("a product without elements")
    return view


def _product(reading: Reading, a: View, b: View) -> View:
    if len(a.shape) == 1:
        found = _product(reading, viewed(a, lambda x: x[None]), b)
        return viewed(found, lambda x: x[..., 0, :])
    if len(b.shape) == 1:
        found = _product(reading, a, viewed(b, lambda x: x[:, None]))
        return viewed(found, lambda x: x[..., 0])
    if is_one_product(a.shape, b.shape):
        # One product of all rows.
        found = _product(reading, reading.launches.reshaped(a, (-1, a.shape[-1])), b)
        return viewed(found, lambda x: x.reshape(*a.shape[:-1], b.shape[-1]))
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    _check_sizes(a, b, batch)
    out = reading.launches.buffer((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    if not batch:
        reading.launches.product(_factor(reading, a), _factor(reading, b), out, False)
        return out
    a, b = (_factor(reading, _listed(reading, broadcast(x, batch + x.shape[-2:]))) for x in (a, b))
    reading.launches.product(a, b, viewed(out, lambda x: x.reshape(-1, *x.shape[-2:])), False)
    return out


def _check_sizes(a: View, b: View, batch: tuple[int, ...]) -> None:
    # Step by step there is an error.
    if (reason := too_large(a.shape, b.shape, math.prod(batch))) is not None:
        raise CannotPrepare(reason)


def _listed(reading: Reading, view: View) -> View:
    """Matrices along one axis: where they lie, if they are equally far apart."""
    found = reshaped(view, (-1, *view.shape[-2:]))
    return reading.launches.reshaped(view, (-1, *view.shape[-2:])) if found is None else found


def _factor(reading: Reading, view: View) -> View:
    """Matrices where their address stays and the library can read them."""
    found = layout(view.shape[-2:], view.strides[-2:], view.dtype.itemsize)
    if found is not None and not view.is_moving and all(step >= 0 for step in view.strides):
        return view
    # A copy of a transposed matrix is the transposed of a copy: the library reads it as it would have read the matrix.
    is_transposed = found is not None and found[0] == 1
    copied = reading.launches.copy(_transposed(view) if is_transposed else view)
    return _transposed(copied) if is_transposed else copied


def _transposed(view: View) -> View:
    return viewed(view, lambda x: x.swapaxes(-1, -2))
