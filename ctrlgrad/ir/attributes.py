"""Attributes of nodes: one frozen dataclass per family of ops, named by the op's declaration.

A field without a default must be given. Notes that one stage leaves for a later one (`chunk`, `counts_down`, `paired`,
...) are ordinary fields. `attributes.Axis.of(node).axis` reads a field, and fails if the node is of another family;
`dataclasses.replace` makes a changed copy. The builder makes attributes from names and values; the verifier checks
both.
"""

from __future__ import annotations

import cmath
import enum
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir.types import Shape as Sizes
from ctrlgrad.ir.types import TensorType
from ctrlgrad.records import record

T = TypeVar("T")


class Dynamic(enum.Enum):
    """The placeholder for an operand in an index key."""

    DYNAMIC = "?"

    def __repr__(self) -> str:
        return "?"


DYNAMIC = Dynamic.DYNAMIC
Item = int | slice | None | Dynamic
Key = tuple[Item, ...]


class _Node(Protocol):
    @property
    def attrs(self) -> Any: ...


@record(kw_only=True)
class Attributes:
    """Base of all attributes; most ops have none."""

    @classmethod
    def of(cls, node: _Node) -> Self:
        """Return the attributes of a node, which must be of this family."""
        found = node.attrs
        assert isinstance(found, cls), f"{node} has {type(found).__name__}, no {cls.__name__}"
        return found

    @classmethod
    def find(cls, node: _Node) -> Self | None:
        """Return the attributes of a node; None if it is of another family."""
        found = node.attrs
        return found if isinstance(found, cls) else None

    def given(self) -> dict[str, Any]:
        """The fields that have no default, or another value."""
        values = ((f, getattr(self, f.name)) for f in fields(self))
        return {f.name: value for f, value in values if value is not f.default}

    def shown(self) -> dict[str, Any]:
        """The fields that printed text tells of."""
        quiet = {f.name: f.metadata["quiet"] for f in fields(self) if "quiet" in f.metadata}
        given = ((name, value) for name, value in self.given().items() if value is not None)
        return {name: v for name, v in given if quiet.get(name) is not ... and not (name in quiet and v == quiet[name])}

    def complaint(self) -> tuple[str, str, str] | None:
        """The first field whose value has another kind than declared: its name, the declared kind, and the value."""
        family: Any = type(self)
        for name, declared, fits in _kinds(family):
            value = getattr(self, name)
            if not fits(value):
                return name, declared, repr(value)
        return None


_Fits = Callable[[Any], bool]


@functools.cache
def _kinds(family: type[Attributes]) -> tuple[tuple[str, str, _Fits], ...]:
    """Each field's name, its declared kind, and its test of a value. Cached: the verifier asks for every node."""
    hints = typing.get_type_hints(family)
    return tuple((f.name, str(f.type), _kind(hints[f.name])) for f in fields(family))


def _kind(hint: Any) -> _Fits:
    """Return the test of a value against a declared field type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (types.UnionType, typing.Union):
        parts = tuple(map(_kind, inner))
        return lambda value: any(fits(value) for fits in parts)
    if origin is Literal:
        return lambda value: value in inner
    if origin is tuple:
        element = _kind(inner[0])
        return lambda value: isinstance(value, tuple) and all(map(element, value))
    if origin is Callable or hint is Callable:
        return callable
    if hint is int:
        return lambda value: isinstance(value, numbers.Integral) and not isinstance(value, bool)
    expected = hint if origin is None else origin
    return lambda value: isinstance(value, expected)


def _hidden(default: Any) -> Any:
    """A field that printed text never shows."""
    return field(default=default, metadata={"quiet": ...})


def _quiet(value: Any) -> Any:
    """A field that must be given, and that printed text shows where it has another value."""
    return field(metadata={"quiet": value})


@record(kw_only=True)
class Constant(Attributes):
    # Its elements lie by rows: engines count their places by the shape alone.
    value: np.ndarray
    # Another trace of the function had another value here: an input of the compiled graph (see `ir/interning.py`).
    varies: bool = _hidden(False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", np.asarray(self.value, order="C"))

    @property
    def is_finite(self) -> bool:
        """False if an element is infinite or NaN. A trace copies it, which takes longer than to look."""
        value = self.value
        if dtype_kind(value.dtype) not in "fc":
            return True
        if value.size == 1:
            return cmath.isfinite(value.item())
        # The sum of squares takes half the time; where it overflows, each element is looked at.
        if value.dtype.char in "fd" and math.isfinite(np.vdot(value, value)):
            return True
        return bool(np.isfinite(value).all())


@record(kw_only=True)
class Cast(Attributes):
    dtype: np.dtype


@record(kw_only=True)
class Axis(Attributes):
    """An axis, counted from the front."""

    axis: int


@record(kw_only=True)
class Scan(Axis):
    # Accumulate from the end: the transpose of the forward accumulation.
    reverse: bool = _quiet(False)


@record(kw_only=True)
class Order(Axis):
    # Sort from the largest down.
    descending: bool


@record(kw_only=True)
class Selection(Axis):
    # Number of elements along the axis.
    count: int


@record(kw_only=True)
class Transform(Axis):
    inverse: bool


@record(kw_only=True)
class RealTransform(Axis):
    """Transform between `size` real numbers along an axis and their first size // 2 + 1 frequencies."""

    size: int


@record(kw_only=True)
class Axes(Attributes):
    """Axes, counted from the front."""

    axes: tuple[int, ...]


@record(kw_only=True)
class Reduction(Axes):
    keepdims: bool = _quiet(False)
    # In a mapped function: reduce over all rows, so that each row has the same result.
    all_rows: bool = False


@record(kw_only=True)
class Product(Attributes):
    # The bits of a row do not depend on how many rows there are; nor those of a sum that the product is added to on how
    # its terms are divided among several such products.
    in_order: bool = False


@record(kw_only=True)
class Shape(Attributes):
    """A shape, with operands for its unknown dimensions; see `ctrlgrad.ops.term.template`."""

    shape: Sizes


@record(kw_only=True)
class Required(Shape):
    """Sizes that the operand must have along some axes, and the parts of the error for any other size."""

    axes: tuple[int, ...]
    problem: str
    hint: str


@record(kw_only=True)
class Index(Attributes):
    """Items in the order of the axes: an int, a slice, None (a new axis) or `DYNAMIC`."""

    key: Key


@record(kw_only=True)
class Described(Attributes):
    # Text for the operand in errors.
    what: str


@record(kw_only=True)
class Search(Attributes):
    # "left": before equal elements; "right": behind them.
    side: Literal["left", "right"]


@record(kw_only=True)
class Answer(Attributes):
    """Attributes of a matrix op that fails on some operands: `or_nan` gives NaN for these, in place of an error."""

    or_nan: bool = False


@record(kw_only=True)
class Triangle(Answer):
    """Triangle of a matrix that is read; with `unit_diagonal` the diagonal counts as ones and is not read."""

    lower: bool
    unit_diagonal: bool


@record(kw_only=True)
class Hook(Attributes):
    """A function of the user that sees values while a graph runs."""

    fn: Callable[..., Any] = field(metadata={"quiet": ...})
    label: str


@record(kw_only=True)
class HostCall(Hook):
    """A function of the user that computes: from arrays to a sequence of arrays of the stated types.

    `vmap_method` says how rows reach it, as in `ctrlgrad.pure_callback`.
    """

    results: tuple[TensorType, ...]
    vmap_method: str | None = None


class _Capturing:
    """Base for ops whose first operands, and first inputs of their regions, are captures."""

    __slots__ = ()
    captures: int

    def split(self, operands: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
        """Split values that correspond to the operands, or to a region's inputs, into captures and the rest."""
        return operands[: self.captures], operands[self.captures :]


@record(kw_only=True)
class Loop(_Capturing, Attributes):
    """Options of a loop from the user, and notes on it from passes."""

    maximum_iterations: int | None = None
    parallel_iterations: int | None = None
    swap_memory: bool | None = None
    checkpoint: bool | int | None = None
    name: str | None = None
    # Number of the operands that are captures: every iteration sees the same value.
    captures: int = _hidden(0)
    # True if the first carry starts as the number of iterations, and is the number of those left.
    counts_down: bool = _hidden(False)
    # For the inner of two loops that a loop was split into: the most iterations that it runs.
    chunk: int | None = None
    # For the outer one: the same number.
    chunks_of: int | None = None


@record(kw_only=True)
class Branch(Attributes):
    """No fields. The first operand selects a region; the remaining operands are the inputs of each region."""


@record
class NamedAxis:
    """The rows of a mapped function that has given them a name; `level` tells apart those of one name."""

    name: Hashable
    # Number of named axes around it.
    level: int

    def __repr__(self) -> str:
        return repr(self.name)


@record(kw_only=True)
class Barrier(Attributes):
    # Name of the value, by which the policy of a checkpoint refers to it.
    name: str | None = None


# The name of a barrier behind an input that stands for a constant which is not finite (see `ir/interning.py`).
NOT_FINITE = "not finite"


class Saveable(enum.Enum):
    """Kinds of values inside a checkpoint that its derivative may save."""

    VALUES = "all values but those of these names"
    NAMES = "the values of these names"
    OTHER_NAMES = "the values of other names"
    PRODUCTS = "products"
    UNBATCHED_PRODUCTS = "products of matrices"


@record
class Saving:
    """Values inside a checkpoint that are saved where its derivative uses them."""

    kind: Saveable
    names: tuple[str, ...] = ()


@record(kw_only=True)
class Call(_Capturing, Attributes):
    """See `ctrlgrad.ops.control`."""

    kind: str
    captures: int = _hidden(0)
    # Kind "rows": operands with one row for each row of the results.
    mapped: tuple[int, ...] = ()
    # Kind "rows": name of the mapped axis, if it has one.
    rows: NamedAxis | None = None
    # Kind "checkpoint": values that are saved all the same.
    policy: tuple[Saving, ...] = ()
    # Kinds with a user's rule: traces the graphs of the rule lazily.
    rule: Any = None


@record(kw_only=True)
class NewStack(Attributes):
    element: TensorType
    # Made by the gradient transform: the verifier proves that its pops mirror its pushes.
    paired: bool = _hidden(False)


@record(kw_only=True)
class Write(Attributes):
    # True if a write at the length appends a slot; otherwise that index is out of range.
    grow: bool = _quiet(False)
    # True if a second write to a slot is an error.
    once: bool = False


@record(kw_only=True)
class Rows(Attributes):
    # Number of rows, if known.
    size: int | None


@record(kw_only=True)
class Concat(Axis):
    # Size of the result along the axis, where it is known.
    size: int | None


@record(kw_only=True)
class Split(Axis):
    element: TensorType


@record(kw_only=True)
class Collective(Attributes):
    """Over the rows of a mapped function."""

    rows: NamedAxis


@record(kw_only=True)
class CollectiveAlong(Collective):
    """Attributes of a collective along an axis that has an element for each row."""

    axis: int = _quiet(0)
    # Number of rows, if known.
    size: int | None


@record(kw_only=True)
class Permutation(Collective):
    # For each row that from which it gets its value; -1 for one that gets zeros.
    sources: tuple[int, ...]


NO_ATTRS = Attributes()

# Names and values, or the attributes themselves: what the builder takes.
Given = Mapping[str, Any] | Attributes
