"""Lanes: the forms in which a value of the unbatched graph is held while the graph is batched.

A tensor is `Same` for all rows, or `Batched` with the rows along axis 0. A stack is

- `Same` or `Fresh` (new, nothing emitted yet),
- `Uniform`: one stack whose elements have a leading batch axis; all rows have pushed equally often, or
- `Ragged`: a tensor `[rows, capacity, *element]` and a length per row. Its last slot is never a row's own: writes of
  rows that must not write land there. Slots at or above a row's length have no meaning.

**Guards.** When only some rows take part (the remaining ones take another branch, or have left the loop), the rest are
*ghosts* of a row that takes part: they see exactly the values of that row, and write nothing. So a ghost's values are
always values that a real row computes anyway: no NaN, no index out of range, and a cotangent of zero stays zero. A
guard holds the rows that take part (`mask`), and for each row the row that it follows (`source`, itself if it takes
part). A lane that entered from outside the guarded region holds every row's own value, and its guard; it is redirected
when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ctrlgrad.ir import INDEX, Builder, Node, StackType, TensorType, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC, Key, NamedAxis
from ctrlgrad.ops.term import Term, broadcast_to, constant, emit, ensure_sizes, reshape
from ctrlgrad.records import record

_ONE_SIZE = "give all rows the largest size and fill the shorter ones up, or reduce each row inside vmap"


@record(eq=False)
class Guard:
    """Rows that take part, `bool[rows]`, and for each row the one that it follows, `i64[rows]`."""

    mask: Value
    source: Value
    # The row that all ghosts follow, if it is one for all.
    first: Value | None = None
    _composed: dict[Guard, Guard] = field(default_factory=dict, repr=False)

    def inside(self, builder: Builder, outer: Guard | None) -> Guard:
        """Compose this guard, of a region that `builder` makes, with the guard `outer` that a value already has."""
        if outer is None:
            return self
        if outer not in self._composed:
            mask = builder.emit("logical_and", [outer.mask, self.mask])
            source = builder.emit("getitem", [outer.source, self.source], {"key": (DYNAMIC,)})
            self._composed[outer] = Guard(mask, source)
        return self._composed[outer]


class SizesMayDiffer(Exception):
    """Some rows may need an array of another size than the rest; raised if `Rows.one_size` forbids that."""


@record
class Rows:
    """The batch axis: how many rows, as an int, or as a scalar of the outermost graph.

    With `one_size`, what holds only if sizes do not differ from row to row is refused when it is batched
    (`SizesMayDiffer`) rather than when it runs. `nested` are the batch axes flattened into one, outermost first.
    """

    size: int | Value
    one_size: bool = False
    nested: tuple[int | Value, ...] = ()
    # Name of each of the axes in collectives over it.
    names: tuple[NamedAxis | None, ...] = (None,)
    # True if only some rows take part.
    guarded: bool = False
    # Kinds of a loop's carries, by the node and the lanes of its operands. An outer loop asks again with each guess at
    # its own carries: without this cache the cost doubles with each level of nested loops.
    carried: dict[tuple[Node, tuple[Any, ...]], list[int]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def axes(self) -> tuple[int | Value, ...]:
        """The sizes of the batch axes that the user sees."""
        return self.nested or (self.size,)

    def require_one_size(self) -> None:
        """Called where rows that need different sizes would be an error at run time."""
        if self.one_size:
            raise SizesMayDiffer

    @property
    def static(self) -> int | None:
        return self.size if isinstance(self.size, int) else None

    def count(self, builder: Builder) -> int | Term:
        return self.size if isinstance(self.size, int) else Term(builder, self.size)

    def of(self, t: TensorType) -> TensorType:
        """The type with a batch axis in front."""
        return TensorType(t.dtype, (self.static, *t.shape))

    def iota(self, builder: Builder) -> Term:
        """0, 1, ... for each row."""
        if isinstance(self.size, int):
            return Term(builder, builder.emit("iota", (), {"shape": (self.size,)}))
        return Term(builder, builder.emit("iota", [self.size], {"shape": (None,)}))

    def spread(self, x: Term) -> Term:
        """x repeated for each row."""
        return broadcast_to(x, [self.count(x.builder), *x.dims])


@record(eq=False, frozen=False)
class Same:
    """A tensor or stack that is the same for all rows."""

    builder: Builder
    value: Value
    # Forms that the value was already converted to, in its own builder: a cache, so that a loop converts it once.
    forms: dict[str, Lane] = field(default_factory=dict, repr=False)


@record(eq=False, frozen=False)
class Fresh:
    """A stack of zeros whose node is emitted when it is known which kind it has to be."""

    builder: Builder
    size: Value | None
    attrs: attributes.NewStack
    forms: dict[str, Lane] = field(default_factory=dict, repr=False)

    @property
    def element(self) -> TensorType:
        element = attributes.NewStack.of(self).element
        assert isinstance(element, TensorType)
        return element


@record(eq=False, frozen=False)
class Batched:
    """A tensor with the rows along axis 0; with a guard, `value` holds every row's own.

    `updated` is the first value that this one was made of by updates that left the ghosts' rows as they were.
    """

    builder: Builder
    value: Value
    guard: Guard | None = None
    updated: Value | None = None
    _redirected: Value | None = field(default=None, repr=False)

    def seen(self) -> Value:
        """Each row's value as the row sees it: its own, or for a ghost that of the row it follows."""
        if self.guard is None:
            return self.value
        if self._redirected is None:
            self._redirected = redirect(Term(self.builder, self.value), self.guard).value
        return self._redirected

    def followed_by(self, builder: Builder, value: Value) -> Batched:
        """The lane of a value of `builder` that is this one with elements updated, but not those of ghosts."""
        return Batched(builder, value, self.guard, self.updated or self.value)

    def keeps(self, before: Batched) -> bool:
        """Return True where ghosts still have their rows of `before`, which may be made by such updates itself."""
        mine, its = {self.value, self.updated or self.value}, {before.value, before.updated or before.value}
        return self.guard is not None and not mine.isdisjoint(its)


@record(eq=False, frozen=False)
class Uniform:
    """A stack with batched elements; with a guard, they hold every row's own.

    `marked`: each slot knows whether it was written. One that comes from a stack that all rows shared does not: its
    slots all count as written.
    """

    builder: Builder
    value: Value
    guard: Guard | None = None
    marked: bool = False
    forms: dict[str, Lane] = field(default_factory=dict, repr=False)

    @property
    def element(self) -> TensorType:
        """Element type of one row."""
        assert isinstance(self.value.type, StackType)
        t = self.value.type.element
        return TensorType(t.dtype, t.shape[1:])


@record(eq=False, frozen=False)
class Ragged:
    """A stack of its own length per row: `buffer[rows, capacity, *element]`, `lengths[rows]`."""

    builder: Builder
    buffer: Value
    lengths: Value
    element: TensorType
    guard: Guard | None = None


Lane = Same | Fresh | Batched | Uniform | Ragged


def redirect(x: Term, guard: Guard) -> Term:
    """Each row's value, ghosts given that of the row they follow, without a derivative."""
    key = (DYNAMIC, *[slice(None)] * (x.rank - 1))
    builder = x.builder
    still = emit("stop_gradient", x) if x.tensor.is_differentiable else x
    # If all ghosts follow one row, it is read once, and the elements of the real rows stay where they are.
    followed = emit("getitem", still, Term(builder, guard.first or guard.source), key=key)
    return choose_rows(Term(builder, guard.mask), x, followed)


def choose_rows(mask: Term, a: Term, b: Term) -> Term:
    """Row by row a or b, of equal rank."""
    axes = tuple(range(1, a.rank))
    return emit("where", emit("expand_dims", mask, axes=axes) if axes else mask, a, b)


def choose_rows_of_one_size(mask: Term, a: Term, b: Term, *, of: str) -> Term:
    """Row by row a or b, whose sizes must be equal: there is no array of rows of different sizes, and a size of 1 would
    be repeated to meet another one. `of` says in the error what they are the sizes of."""
    return choose_rows(mask, of_one_size(a, dict(enumerate(b.dims[1:], 1)), of), b)


def of_one_size(x: Term, sizes: Mapping[int, int | Term], of: str) -> Term:
    """Require sizes along axes of x, those of other rows; a different size is an error at run time."""
    return ensure_sizes(x, sizes, f"vmap: the size of {of} differs from row to row", _ONE_SIZE)


def fit(x: Term, t: TensorType) -> Term:
    """x with the sizes that t knows and x's type does not."""
    if t.accepts(x.type):
        return x
    return reshape(x, [x.dim(axis) if d is None else d for axis, d in enumerate(t.shape)])


def greatest(x: Term) -> Term:
    """The greatest of `x[rows]`, sizes or lengths; 0 without rows.

    `all_rows` says that any greater number would do as well: where this graph is batched in its turn, the greatest
    of all rows of all batches is taken, so that a size stays one for all.
    """
    some = emit("concat", x, Term(x.builder, x.builder.constant([0], x.dtype)), axis=0)
    return emit("max", some, axes=(0,), keepdims=False, all_rows=True)


def common(x: Term, of: str) -> Term:
    """The size that all rows of `x[rows]` hold; `of` says in the error, where they differ, what it is the size of."""
    return emit("common_size", x if x.dtype.name == "int64" else emit("cast", x, dtype=INDEX.dtype), what=of)


def set_apart(x: Term, value: Term, indices: Sequence[Term], key: Key) -> Term:
    """`setitem` at positions of which none stands twice, so that its derivative need not look for the last one.

    Adding to zeros instead of writing lets the cotangent of a written row cost that row, not the array.
    """
    if not x.tensor.is_differentiable:
        return emit("setitem", x, value, *indices, key=key)
    cleared = emit("setitem", x, constant(x.builder, nothing(x), x.dtype), *indices, key=key)
    return emit("additem", cleared, value, *indices, key=key)


def nothing(x: Term) -> complex:
    """The number that changes no bit of what it is added to: a negative zero for floats."""
    if not x.tensor.is_differentiable:
        return 0
    return complex(-0.0, -0.0) if x.dtype.kind == "c" else -0.0
