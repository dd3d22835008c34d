"""A case of an op, and the numbers that cases use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Builder, Graph, StackType, TensorType, Value, verify
from ctrlgrad.ir.types import Shape

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = ("bool", *INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128")
# A dtype of each kind, for what hardly depends on it.
FEW_DTYPES = ("bool", "int8", "uint64", "float32", "complex128")


@dataclass(frozen=True)
class OpCase:
    """One op on arrays; a list of arrays stands for a stack."""

    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    regions: tuple[Graph, ...] = ()
    # Shapes that the graph does not know: an operand's position to its declared shape.
    unknown: Mapping[int, Shape] = field(default_factory=dict)

    @property
    def types(self) -> list[Any]:
        return [type_of(x, self.unknown.get(position)) for position, x in enumerate(self.operands)]

    def emit(self, builder: Builder, operands: Sequence[Value]) -> tuple[Value, ...]:
        return builder.emit_all(self.op, operands, self.attrs, regions=self.regions)

    def graph(self) -> Graph:
        """Its results, for its operands."""
        builder = Builder(name=self.op)
        inputs = [builder.input(t) for t in self.types]
        return verify(builder.finish(self.emit(builder, inputs)))

    @property
    def is_accepted(self) -> bool:
        """Return true if the op's type rule accepts the operands."""
        builder = Builder()
        try:
            self.emit(builder, [builder.input(t) for t in self.types])
        except CtrlgradError:
            return False
        return True

    def __str__(self) -> str:
        attrs = ", ".join(f"{name}={value}" for name, value in self.attrs.items())
        return f"{self.op}({', '.join(map(str, self.types))}{'; ' + attrs if attrs else ''})"


# The cases of an op whose operands, as far as they may be of any dtype, are of the one given.
Maker = Callable[[str], list[OpCase]]


def type_of(x: Any, shape: Shape | None = None) -> TensorType | StackType:
    if isinstance(x, list):
        element = type_of(x[0], shape)
        assert isinstance(element, TensorType)
        return StackType(element)
    return TensorType(np.asarray(x).dtype, np.shape(x) if shape is None else shape)


def numbers(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Ordinary numbers, integers with their dtype's limits among them."""
    rng = np.random.default_rng([seed, *shape])
    kind = dtype_kind(np.dtype(dtype))
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)[()]
    if kind in "iu":
        limits = np.iinfo(dtype)
        found = rng.integers(-5 if kind == "i" else 0, 7, shape).astype(dtype)
        if found.size > 3:
            found.flat[seed % 2], found.flat[2 + seed % 2] = limits.max, limits.min
        return found[()]
    real = rng.normal(size=shape) * 2
    return (real + 1j * rng.normal(size=shape) if kind == "c" else real).astype(dtype)[()]


def small(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Whole numbers from 0 to 6 for any dtype: exponents, counts of bits, what every dtype holds."""
    return np.random.default_rng([seed, 1, *shape]).integers(0, 7, shape).astype(dtype)[()]


def matrices(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Positive definite matrices, far from singular."""
    base = numbers("complex128" if dtype_kind(np.dtype(dtype)) == "c" else "float64", *shape, seed=seed)
    return (base @ np.conj(np.swapaxes(base, -1, -2)) + 3 * np.eye(shape[-1])).astype(dtype)


def counting(dtype: str) -> tuple[str, ...]:
    """The dtypes of indices and sizes beside operands of a dtype: all of them beside one, for brevity."""
    return INTEGERS if dtype == "float64" else ("int64",)


def index(*values: int, dtype: str = "int64") -> Any:
    return np.asarray(values[0] if len(values) == 1 else values, dtype)[()]
