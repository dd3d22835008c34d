"""Floats of a routine that is being written: Python's operators write LLVM's instructions."""

from __future__ import annotations

from ctrlgrad.engines.native.products.function import Function
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.text import constant


class Scalar:
    """A value in a register."""

    __slots__ = ("f", "real", "text")

    def __init__(self, f: Function, real: Real, value: str | float) -> None:
        self.f, self.real = f, real
        self.text = value if isinstance(value, str) else constant(float(real.dtype.type(value)), real.dtype)

    def like(self, value: Scalar | float) -> Scalar:
        return value if isinstance(value, Scalar) else Scalar(self.f, self.real, value)

    def _made(self, instruction: str, other: Scalar | float) -> Scalar:
        found = self.f.op(f"{instruction} {self.real.scalar} {self.text}, {self.like(other).text}")
        return Scalar(self.f, self.real, found)

    def __add__(self, other: Scalar | float) -> Scalar:
        return self._made("fadd", other)

    def __sub__(self, other: Scalar | float) -> Scalar:
        return self._made("fsub", other)

    def __mul__(self, other: Scalar | float) -> Scalar:
        return self._made("fmul", other)

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return self._made("fdiv", other)

    def __neg__(self) -> Scalar:
        return Scalar(self.f, self.real, self.f.op(f"fneg {self.real.scalar} {self.text}"))

    def _of(self, function: str, *others: Scalar) -> Scalar:
        t = self.real.scalar
        given = ", ".join(f"{t} {x.text}" for x in (self, *others))
        return Scalar(self.f, self.real, self.f.op(f"call {t} @llvm.{function}.{self.real.name}({given})"))

    def __abs__(self) -> Scalar:
        return self._of("fabs")

    def sqrt(self) -> Scalar:
        return self._of("sqrt")

    def signed(self, other: Scalar) -> Scalar:
        """The modulus with the sign of another number."""
        return self._of("copysign", other)

    def test(self, relation: str, other: Scalar | float) -> str:
        """A comparison: `relation` is LLVM's (oeq, olt, ole, ogt, oge, one)."""
        return self.f.op(f"fcmp {relation} {self.real.scalar} {self.text}, {self.like(other).text}")

    def chosen(self, condition: str, other: Scalar | float) -> Scalar:
        """Select this number where the condition holds, else the other one."""
        found = self.f.select(condition, self.real.scalar, self.text, self.like(other).text)
        return Scalar(self.f, self.real, found)


class Place:
    """A float in memory, or a variable of the routine."""

    __slots__ = ("_address", "f", "real")

    def __init__(self, f: Function, real: Real, address: str) -> None:
        self.f, self.real, self._address = f, real, address

    @property
    def value(self) -> Scalar:
        return Scalar(self.f, self.real, self.real.element(self.f, self._address))

    @value.setter
    def value(self, new: Scalar | float) -> None:
        self.real.put(
            self.f, new.text if isinstance(new, Scalar) else Scalar(self.f, self.real, new).text, self._address
        )


def variable(f: Function, real: Real, first: Scalar | float) -> Place:
    place = Place(f, real, f.alloca(real.scalar, real.bytes))
    place.value = first
    return place
