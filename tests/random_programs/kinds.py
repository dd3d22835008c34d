"""Kind of a random program's variable: its dtype and its shape, as far as they are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctrlgrad.dtypes import dtype_kind


@dataclass(frozen=True)
class Unknown:
    """A dimension whose size is known at run time only. Two dimensions of one name have one size.

    `filled`: the size is at least one. `grown`: the size comes from a slice, a concatenation or a loop; two grown
    dimensions are never joined, so that sizes add up and do not multiply. `told`: the shape alone does not tell the
    size, which is a number; results of branches may then not be of other sizes.
    """

    name: str
    filled: bool = False
    grown: bool = False
    told: bool = False


Dim = int | Unknown


@dataclass(frozen=True)
class Float:
    """A float64 tensor."""

    dims: tuple[Dim, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.dims)

    @property
    def is_filled(self) -> bool:
        """Return true if there is at least one element."""
        return all(map(is_filled, self.dims))


@dataclass(frozen=True)
class Int:
    """An integer scalar, at least 0 and at most 3."""


@dataclass(frozen=True)
class Bool:
    """A boolean scalar."""


@dataclass(frozen=True)
class Array:
    """A `TensorArray` of floats. `size`: None for one that grows; an Unknown for a traced size."""

    element: tuple[Dim, ...]
    size: Dim | None
    filled: bool

    @property
    def can_stack(self) -> bool:
        """Return true if rows have a known shape even without any row."""
        return self.filled or Float(self.element).is_static


@dataclass(frozen=True)
class Typed:
    """A tensor of known shape and of another dtype than float64.

    Floats and the parts of complex numbers stay within [-2, 2]; integers are any, and wrap around.
    """

    dims: tuple[int, ...]
    dtype: str

    @property
    def family(self) -> str:
        """NumPy's letter: b, i, u, f or c."""
        return dtype_kind(np.dtype(self.dtype))

    @property
    def is_narrow(self) -> bool:
        """Return true if the dtype rounds more coarsely than float64."""
        return self.dtype in ("float16", "bfloat16", "float32", "complex64")


@dataclass(frozen=True)
class Key:
    """A key of random numbers."""


Kind = Float | Int | Bool | Array | Typed | Key
SCALAR = Float()


@dataclass(frozen=True)
class Variable:
    name: str
    kind: Kind


def fits(target: Kind, given: Kind, free: frozenset[str] = frozenset(), *, unknown_only: bool = False) -> bool:
    """Return true if a value may stand where a target is declared; dimensions named in `free` may have any size.

    With `unknown_only`, a free dimension takes unknown sizes alone that are not told.
    """
    if isinstance(target, Float) and isinstance(given, Float):
        return target.rank == given.rank and all(
            (not unknown_only or (isinstance(d, Unknown) and not d.told))
            if isinstance(t, Unknown) and t.name in free
            else _same(t, d)
            for t, d in zip(target.dims, given.dims, strict=True)
        )
    if isinstance(target, Array) and isinstance(given, Array):
        return (
            len(target.element) == len(given.element)
            and all(_same(t, d) for t, d in zip(target.element, given.element, strict=True))
            and _same_size(target.size, given.size)
            and (given.filled or not target.filled)
        )
    if isinstance(target, Typed):
        return target == given
    return type(target) is type(given)


def _same(target: Dim, given: Dim) -> bool:
    if isinstance(target, Unknown) and isinstance(given, Unknown):
        return target.name == given.name
    return target == given


def _same_size(target: Dim | None, given: Dim | None) -> bool:
    return target is given if target is None or given is None else _same(target, given)


def without(kind: Float, axis: int) -> Float:
    """A kind less one of its axes."""
    return Float(kind.dims[:axis] + kind.dims[axis + 1 :])


def is_grown(kind: Float) -> bool:
    """Return true if a dimension grows."""
    return any(isinstance(d, Unknown) and d.grown for d in kind.dims)


def is_filled(dim: Dim) -> bool:
    """Return true if a dimension is at least one."""
    return dim > 0 if isinstance(dim, int) else dim.filled


def dtype_text(dtype: str) -> str:
    """A dtype as text; NumPy has no name for bfloat16."""
    return f'np.dtype("{dtype}")' if dtype == "bfloat16" else f"np.{dtype}"


def shape_text(dims: tuple[Dim, ...]) -> str:
    """A shape as text, None for what is unknown."""
    return "(" + "".join(f"{d if isinstance(d, int) else None}, " for d in dims).rstrip() + ")"
