"""Products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import TABLE, Node, entry, plain

TABLE["", "MatMul"] = plain(cnp.matmul)


@entry("Gemm")
def _gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    a = cnp.transpose(a) if node.get("transA", 0) else a
    b = cnp.transpose(b) if node.get("transB", 0) else b
    product = cnp.matmul(a, b)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    product = product if alpha == 1 else np.asarray(alpha, product.dtype) * product
    if c is None:
        return product
    return product + (c if beta == 1 else np.asarray(beta, product.dtype) * c)


@entry("Einsum")
def _einsum(node: Node, *xs: Any) -> Any:
    return cnp.einsum(node.get("equation"), *xs)


@entry("MatMulInteger")
def matmul_integer(node: Node, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """The product of whole numbers without their zero points: int32."""
    wide_a, wide_b = cast(a, np.int32), cast(b, np.int32)
    if a_zero is not None:
        wide_a = wide_a - by_row(cast(a_zero, np.int32))
    if b_zero is not None:
        wide_b = wide_b - cast(b_zero, np.int32)
    return cnp.matmul(wide_a, wide_b)


def by_row(parameter: Any) -> Any:
    """A scale or zero point of a left operand, one number or one for each row, so that it broadcasts with it."""
    return cnp.expand_dims(parameter, -1) if parameter.ndim == 1 and parameter.shape[0] > 1 else parameter
