"""Every elementwise op on every dtype that kernels compute with, and operands with the dtype's special values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, dtype_kind, finfo
from ctrlgrad.engines.cuda.kernel import C_TYPES, KernelText, is_fusible, kernel_text
from ctrlgrad.engines.cuda.placement import DEVICE
from ctrlgrad.engines.cuda.regions import RegionPlan
from ctrlgrad.engines.reference.kernels import PURE
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import OPS, Builder, Graph, Node, TensorType, Trait, attributes
from ctrlgrad.plan.model import Kernel

DTYPES = ("bool", *C_TYPES, "float16", "bfloat16", "complex64", "complex128")
_SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")


@dataclass(frozen=True)
class ElementwiseCase:
    """One op on operands of one dtype."""

    node: Node
    operands: tuple[np.ndarray, ...]

    @property
    def text(self) -> KernelText:
        region = Graph(tuple(dict.fromkeys(self.node.operands)), (self.node,), self.node.results)
        (kernel,) = RegionPlan(region, dict.fromkeys((*region.inputs, self.node.result), DEVICE)).steps
        assert isinstance(kernel, Kernel)
        return kernel_text(kernel)

    def expected(self) -> np.ndarray:
        """By the reference engine's kernel."""
        with np.errstate(all="ignore"):
            return np.asarray(PURE[self.node.op.name](self.node)(*self.operands))

    def __str__(self) -> str:
        target = f" to {attributes.Cast.of(self.node).dtype.name}" if self.node.op.name == "cast" else ""
        return f"{self.node.op.name} of {self.operands[-1].dtype.name}{target}"


def values_of(dtype: str) -> np.ndarray:
    """Special and ordinary values."""
    kind = dtype_kind(np.dtype(dtype))
    if kind == "b":
        return np.array([True, False])
    if kind in "iu":
        limits = np.iinfo(dtype)
        found = [0, 1, 2, 3, 7, 100, limits.max, limits.max - 1, limits.min, limits.min + 1]
        return np.array(found + ([-1, -2, -7] if kind == "i" else []), dtype)
    ordinary = np.random.default_rng(0).normal(size=12) * 3
    if kind == "c":
        # NumPy's treatment of infinite parts is its own.
        return (ordinary + 1j * ordinary[::-1] ** 2).astype(dtype)
    largest = 6e4 if dtype == "float16" else 1e30
    # Fractions over whole numbers, whose quotients lie next to whole numbers.
    return np.array([0.0, -0.0, 0.3, -0.7, 1.0, -2.5, 3.0, largest, np.inf, -np.inf, np.nan, *ordinary], dtype)


def elementwise_cases() -> list[ElementwiseCase]:
    """Each op that can be a part of a kernel, on each dtype that it takes."""
    found = []
    for op, dtype in product([op for op in OPS.values() if Trait.ELEMENTWISE in op.traits], DTYPES):
        for target in DTYPES if op.name == "cast" else [None]:
            case = _case(op.name, op.arity or 0, dtype, target)
            if case is not None and is_fusible(case.node):
                found.append(case)
    return found


def _case(name: str, arity: int, dtype: str, target: str | None) -> ElementwiseCase | None:
    values = values_of(dtype)
    if target is not None and dtype_kind(np.dtype(dtype)) in "fc" and np.dtype(target).kind in "iu":
        # C leaves the result undefined for a number outside the target's range, and so does NumPy.
        with np.errstate(invalid="ignore"):
            values = values[(values.real >= 0) & (values.real < 100)]
    if name in _SHIFTS and dtype_kind(np.dtype(dtype)) in "iu":
        values = values[(values >= 0) & (values <= 100)]
    columns = [np.array(c, dtype) for c in zip(*product(values, repeat=min(arity, 2)), strict=True)]
    if name == "where":
        columns = [np.arange(columns[0].size) % 3 == 0, *columns]
    builder = Builder()
    inputs = [builder.input(TensorType(c.dtype, c.shape)) for c in columns]
    try:
        builder.emit(name, inputs, {} if target is None else {"dtype": np.dtype(target)})
    except CtrlgradError:
        return None
    return ElementwiseCase(builder.nodes[0], tuple(columns))


def assert_agrees(case: ElementwiseCase, found: np.ndarray) -> None:
    """Equal, with the sign of zeros; functions within rounding."""
    expected = case.expected()
    dtype = expected.dtype
    assert found.dtype == dtype, case
    if dtype_kind(dtype) not in "fc":
        np.testing.assert_array_equal(found, expected, str(case))
        return
    eps = float(finfo(dtype).eps)
    if dtype.kind == "c":
        np.testing.assert_allclose(found, expected, 64 * eps, 0, err_msg=str(case))
        return
    if dtype == BFLOAT16:
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    rtol = 4 * eps * (64 if case.node.op.name in ("sinh", "cosh", "power") else 4)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=0, err_msg=str(case))
    if case.node.op.name in ("maximum", "minimum") or (case.node.op.name == "sign" and dtype == BFLOAT16):
        return  # of 0 and -0, NumPy takes either, and the sign of -0 is -0 to ml_dtypes
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]), str(case))
