"""The ops on a stack that has a length of its own for each row.

A read, push, pop or write costs a row of each example, as it does without rows: the buffer is updated in place and
doubles when it is full. Ghosts (see `lanes`) read what the row they follow has, and write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.batching.lanes import Guard, Ragged, Rows, choose_rows, common, greatest, of_one_size, set_apart
from ctrlgrad.batching.stacks import FIRST_CAPACITY, unguarded
from ctrlgrad.ir import INDEX, Builder
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ops.term import Term, choose, constant, emit, reshape, zeros
from ctrlgrad.records import record

Sizes = Sequence[int | Term]
_ELEMENTS = "the elements of a TensorArray"


@record
class RaggedOps:
    """The ops on one ragged stack, emitted into `builder`. Ghosts read what the row they follow has, write nothing."""

    builder: Builder
    rows: Rows
    stack: Ragged

    def __post_init__(self) -> None:
        if None in self.stack.element.shape:
            self.rows.require_one_size()

    @property
    def buffer(self) -> Term:
        return Term(self.builder, self.stack.buffer)

    @property
    def lengths(self) -> Term:
        """Every row's own length."""
        return Term(self.builder, self.stack.lengths)

    @property
    def guard(self) -> Guard | None:
        return self.stack.guard

    @property
    def capacity(self) -> Term:
        return emit("dim", self.buffer, axis=1)

    @property
    def sizes(self) -> list[int | Term]:
        return self.buffer.dims[2:]

    def _with(self, buffer: Term, lengths: Term) -> RaggedOps:
        stack = Ragged(self.builder, buffer.value, lengths.value, self.stack.element, self.guard)
        return RaggedOps(self.builder, self.rows, stack)

    def length(self) -> Term:
        """The length that each row sees."""
        if self.guard is None:
            return self.lengths
        return emit("getitem", self.lengths, Term(self.builder, self.guard.source), key=(DYNAMIC,))

    def with_capacity(self, needed: Term, sizes: Sizes | None, *, exact: bool = False) -> RaggedOps:
        """With a capacity of `needed`, or more where it has that already or may grow ahead of time (not `exact`).

        `sizes` of an element settle those that are not known yet.
        """
        buffer, capacity = self.buffer, self.capacity
        short = needed > capacity
        # Doubled and some more: by powers of two all rows would come to lie in the same few sets of a cache.
        add = needed - capacity if exact else emit("maximum", capacity + FIRST_CAPACITY, needed - capacity)
        dims = self.sizes

        def keep(inner: Builder) -> list[Term]:
            return [Term(inner, buffer.value)]

        def grow(inner: Builder) -> list[Term]:
            old, more = Term(inner, buffer.value), Term(inner, add.value)
            sizes = [Term(inner, d.value) if isinstance(d, Term) else d for d in dims]
            blank = zeros(inner, old.dtype, [self.rows.count(inner), old.dim(1) + more, *sizes])
            # By an index array, not by a slice: its bounds are sizes, and where this is batched in its turn such
            # sizes may have come to lie in rows of their own.
            own = emit("iota", emit("dim", old, axis=1), shape=(None,))
            key = (slice(None), DYNAMIC, *[slice(None)] * (old.rank - 2))
            return [emit("additem" if old.tensor.is_differentiable else "setitem", blank, old, own, key=key)]

        def first(inner: Builder) -> list[Term]:
            given = [Term(inner, d.value) if isinstance(d, Term) else d for d in sizes or ()]
            capacity = Term(inner, needed.value) + (0 if exact else FIRST_CAPACITY)
            return [zeros(inner, buffer.dtype, [self.rows.count(inner), capacity, *given])]

        if None not in self.stack.element.shape:
            (grown,) = choose(self.builder, short, [keep, grow])
        elif sizes is None:
            return self
        else:
            many, empty = (emit("cast", c, dtype=INDEX.dtype) for c in (short, capacity.equals(0)))
            (grown,) = choose(self.builder, emit("maximum", many, 2 * empty), [keep, grow, first])
        return self._with(grown, self.lengths)

    def _place(self, index: Term) -> Term:
        """Indices as given, as positions from the start; out of range of the buffer where they are of the length."""
        length = self.length()
        index = _as_index(index)
        position = emit("where", index < 0, index + length, index)
        inside = emit("logical_and", emit("greater_equal", position, _zero(position)), position < length)
        return emit("where", inside, position, self.capacity)

    def _masked(self, place: Term) -> Term:
        """Slot that each row writes to; ghosts write to the last slot, which is never read."""
        if self.guard is None:
            return place
        last = constant(self.builder, -1, place.dtype)
        return emit("where", Term(self.builder, self.guard.mask), place, last)

    def _key(self) -> Key:
        return (DYNAMIC, DYNAMIC, *[slice(None)] * (self.buffer.rank - 2))

    def _get(self, place: Term) -> Term:
        source = self.rows.iota(self.builder) if self.guard is None else Term(self.builder, self.guard.source)
        return emit("getitem", self.buffer, source, place, key=self._key())

    def _store(self, place: Term, value: Term) -> RaggedOps:
        own = self.rows.iota(self.builder)
        return self._with(set_apart(self.buffer, self._shaped(value), (own, place), self._key()), self.lengths)

    def _added(self, place: Term, value: Term) -> RaggedOps:
        own = self.rows.iota(self.builder)
        buffer = emit("additem", self.buffer, self._shaped(value), own, place, key=self._key())
        return self._with(buffer, self.lengths)

    def _shaped(self, value: Term) -> Term:
        """The value, an error at run time where its sizes are not those of the other slots."""
        if None not in self.stack.element.shape:
            return value
        return of_one_size(value, dict(enumerate(self.sizes, 1)), _ELEMENTS)

    def _longer(self, where: Term | None, by: int) -> Term:
        """The lengths, changed in the rows that take part (and in which `where` holds)."""
        mask = None if self.guard is None else Term(self.builder, self.guard.mask)
        if where is not None:
            mask = where if mask is None else emit("logical_and", mask, where)
        if mask is None:
            return self.lengths + by
        return self.lengths + emit("cast", mask, dtype=INDEX.dtype) * by

    def push(self, value: Term) -> RaggedOps:
        ready = self.with_capacity(greatest(self.lengths) + 2, value.dims[1:])
        stored = ready._store(ready._masked(ready.lengths), value)
        return stored._with(stored.buffer, self._longer(None, 1))

    def _allocated(self, sizes: Sizes | None) -> RaggedOps:
        """With a slot for every index below the lengths: so it is already where the element's sizes are known."""
        return self.with_capacity(greatest(self.lengths) + 1, sizes) if None in self.stack.element.shape else self

    def pop(self, sizes: Sizes | None) -> tuple[RaggedOps, Term]:
        ready = self._allocated(sizes)
        value = ready._get(ready._place(ready.length() - 1 + emit("cast", ready.length().equals(0), dtype=INDEX.dtype)))
        return ready._with(ready.buffer, self._longer(None, -1)), value

    def read(self, index: Term, sizes: Sizes | None) -> Term:
        ready = self._allocated(sizes)
        return ready._get(ready._place(index))

    def write(self, index: Term, value: Term, grow: bool) -> RaggedOps:
        sizes = value.dims[1:]
        ready = self.with_capacity(greatest(self.lengths) + 2, sizes) if grow else self._allocated(sizes)
        place, lengths = ready._place(index), self.lengths
        if grow:
            length = ready.length()
            at_end = _as_index(index).equals(length)
            place = emit("where", at_end, length, place)
            lengths = self._longer(at_end, 1)
        stored = ready._store(ready._masked(place), value)
        return stored._with(stored.buffer, lengths)

    def add(self, index: Term, value: Term) -> RaggedOps:
        ready = self._allocated(value.dims[1:])
        return ready._added(ready._masked(ready._place(index)), value)

    def clear(self, index: Term) -> RaggedOps:
        place = self._masked(self._place(index))
        zero = constant(self.builder, 0, self.buffer.dtype)
        if None not in self.stack.element.shape:
            own = self.rows.iota(self.builder)
            return self._with(emit("setitem", self.buffer, zero, own, place, key=self._key()), self.lengths)
        buffer = self.buffer

        def keep(inner: Builder) -> list[Term]:
            """Nothing was ever stored where the sizes are not known yet."""
            return [Term(inner, buffer.value)]

        def clear(inner: Builder) -> list[Term]:
            at, blank = Term(inner, place.value), Term(inner, zero.value)
            stored = Term(inner, buffer.value)
            return [emit("setitem", stored, blank, self.rows.iota(inner), at, key=self._key())]

        (cleared,) = choose(self.builder, self.capacity > 0, [keep, clear])
        return self._with(cleared, self.lengths)

    def resize(self, lengths: Term) -> RaggedOps:
        """Resize each row's stack to these lengths; new slots hold zeros."""
        ready = self.with_capacity(greatest(lengths) + 1, None)
        mask = None if self.guard is None else Term(self.builder, self.guard.mask)
        lengths = _as_index(lengths)
        return ready._with(ready._blanked(), lengths if mask is None else emit("where", mask, lengths, ready.lengths))

    def total(self, other: RaggedOps) -> RaggedOps:
        """Slot by slot; the shorter counts as zeros above its end."""
        a, b = (RaggedOps(self.builder, self.rows, unguarded(x.stack, self.builder)) for x in (self, other))
        a, b = _alike(a, b)
        longest = emit("maximum", a.lengths, b.lengths)
        return a._with(a._blanked() + b._blanked(), longest)

    def _blanked(self) -> Term:
        """The buffer with zeros at and above each row's length."""
        slots = emit("iota", self.capacity, shape=(None,))
        below = slots < emit("expand_dims", self.lengths, axes=(1,))
        rank = self.buffer.rank
        if rank > 2:
            below = emit("expand_dims", below, axes=tuple(range(2, rank)))
        return emit("where", below, self.buffer, constant(self.builder, 0, self.buffer.dtype))

    def to_tensor(self, size: int | None, sizes: Sizes | None) -> Term:
        """`[rows, slots, *element]`; an error at run time where the rows' lengths differ."""
        if size is None:
            self.rows.require_one_size()
        length: int | Term = common(self.length(), "the length of a TensorArray") if size is None else size
        ready = self._allocated(sizes)
        seen = unguarded(ready.stack, self.builder)
        buffer = Term(self.builder, seen.buffer)
        bound, operands = (DYNAMIC, [length]) if isinstance(length, Term) else (length, [])
        key = (slice(None), slice(None, bound), *[slice(None)] * (buffer.rank - 2))
        cut = emit("getitem", buffer, *operands, key=key)
        return reshape(cut, [self.rows.count(self.builder), length, *buffer.dims[2:]])


def _alike(a: RaggedOps, b: RaggedOps) -> tuple[RaggedOps, RaggedOps]:
    """Two stacks of the same rows, with one capacity."""
    capacity = emit("maximum", a.capacity, b.capacity)
    return a.with_capacity(capacity, b.sizes, exact=True), b.with_capacity(capacity, a.sizes, exact=True)


def _as_index(x: Term) -> Term:
    return x if x.dtype.name == "int64" else emit("cast", x, dtype=INDEX.dtype)


def _zero(x: Term) -> Term:
    return constant(x.builder, 0, x.dtype)


def merged(mask: Term, a: Ragged, b: Ragged, rows: Rows) -> Ragged:
    """Row by row the stack a or b."""
    builder = mask.builder
    left, right = _alike(RaggedOps(builder, rows, a), RaggedOps(builder, rows, b))
    sizes = dict(enumerate(right.sizes, 2)) if None in a.element.shape else {}
    buffer = choose_rows(mask, of_one_size(left.buffer, sizes, _ELEMENTS), right.buffer)
    lengths = emit("where", mask, left.lengths, right.lengths)
    return Ragged(builder, buffer.value, lengths.value, a.element, b.guard)
