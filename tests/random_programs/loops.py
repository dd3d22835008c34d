"""Loops of random programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from random_programs.arrays import push
from random_programs.carries import early, use
from random_programs.constructs import LINES, as_it_is, construct, declare_out, structure, value_of, write_statements
from random_programs.kinds import (
    SCALAR,
    Array,
    Bool,
    Dim,
    Float,
    Int,
    Kind,
    Typed,
    Unknown,
    Variable,
    fits,
    is_filled,
    shape_text,
)
from random_programs.parts import overwritten
from random_programs.program import Branch, Carried, Collected, For, Row, Scan, Structure, While
from random_programs.writer import DEEPEST, HIGH, Writer

T = TypeVar("T")

# Carries.


@dataclass
class Slot:
    """A carried value while its loop is written.

    `collects`: it only takes pushes, and starts without an element. `following`: its next value, where that is known
    before the rest of the body is written.
    """

    carried: Carried
    kind: Kind
    free: frozenset[str] = frozenset()
    collects: bool = False
    following: str | None = None


def _slots(w: Writer, fewest: int, *, free: bool = True) -> list[Slot]:
    slots = []
    for _ in range(w.number(fewest, 3)):
        slots.append(_slot(w, free))
    if w.chance(5) and not w.fixed:
        slots.append(_collecting(w))
    return slots


def _slot(w: Writer, free: bool) -> Slot:
    literal = w.number(0, 11)
    if "dtypes" in w.features and w.chance(5):
        found = w.pick(lambda k: isinstance(k, Typed))
        if found is not None:
            return Slot(Carried(w.fresh("c"), found.name, ""), found.kind)
    if literal >= 9:
        kind: Kind = (SCALAR, Int(), Bool())[literal - 9]
        text = (("0.5", "0.0", "1.5"), ("0", "2", "3"), ("True", "False"))[literal - 9]
        return Slot(Carried(w.fresh("c"), w.choose(text), ""), kind)
    found = w.pick(lambda k: True)
    assert found is not None
    kind, named = found.kind, frozenset[str]()
    if free and isinstance(kind, Float) and not kind.is_static:
        # The carry may change its size where the start has unknown ones.
        dims = tuple(w.unknown(filled=False) if isinstance(d, Unknown) else d for d in kind.dims)
        named = frozenset(d.name for d in dims if isinstance(d, Unknown))
        kind = Float(dims)
    elif isinstance(kind, Array) and kind.filled and kind.size is None and w.chance(2):
        kind = replace(kind, filled=False)
    return Slot(Carried(w.fresh("c"), found.name, ""), kind, named)


def _collecting(w: Writer) -> Slot:
    """A TensorArray that learns its element from the body, which Python may never run."""
    found = w.floats(lambda k: k.rank < 2 and k.is_static)
    element = SCALAR.dims if found is None else found[1].dims
    known = f", element_shape={shape_text(element)}" if w.python else ""
    carried = Carried(w.fresh("c"), f'cg.TensorArray("float64", rewritable=True{known})', "", "[]")
    return Slot(carried, Array(element, None, False), collects=True)


def _enter(w: Writer, slots: Sequence[Slot]) -> None:
    for slot in slots:
        if not slot.collects:
            w.declare(slot.kind, slot.carried.inner)


def _begin(w: Writer, slots: Sequence[Slot]) -> None:
    """Enter a body: some carries pass through it, and some are computed before anything reads the old ones."""
    _enter(w, slots)
    w.carried += [Variable(s.carried.inner, s.kind) for s in slots if not s.collects]
    for slot in slots:
        if slot.collects or slot.free:
            continue
        if "passed" in w.features and w.chance(9):
            slot.following = slot.carried.inner
        elif "bare" in w.features and w.chance(2):
            slot.following = early(w, Variable(slot.carried.inner, slot.kind))


def _results(w: Writer, slots: Sequence[Slot]) -> list[str]:
    """Results of the body for its carries: half of the time the last line before reads one that has its successor."""
    computed = [s for s in slots if s.following not in (None, s.carried.inner)]
    if computed and not w.chance(3):
        slot = w.choose(computed)
        use(w, Variable(slot.carried.inner, slot.kind))
    return _pass_around(w, slots, [_next(w, slot) for slot in slots])


def _next(w: Writer, slot: Slot) -> str:
    """Result of the body for a carried value."""
    if slot.collects:
        assert isinstance(slot.kind, Array)
        array = slot.carried.inner
        name = push(w, array, slot.kind)
        # Where nothing visible is an element, its element is a scalar.
        return name or w.line(slot.kind, "push", f"{array}.push(0.5)", f"written({array}, len({array}), 0.5)").name
    if slot.following is not None:
        return slot.following
    if "bare" in w.features and w.chance(2):
        return as_it_is(w, slot.kind, slot.free)
    return value_of(w, slot.kind, slot.free)


def _leave(w: Writer, slots: Sequence[Slot]) -> tuple[Carried, ...]:
    """Declare what the loop leaves behind."""
    carry = []
    for slot in slots:
        carry.append(replace(slot.carried, out=declare_out(w, slot.kind, slot.free)))
    return tuple(carry)


def _pass_around(w: Writer, slots: Sequence[Slot], results: list[str]) -> list[str]:
    """Now and then two carried values of one kind change places."""
    pairs = [
        (i, j)
        for i in range(len(slots))
        for j in range(i + 1, len(slots))
        if slots[i].kind == slots[j].kind and not slots[i].free and not (slots[i].collects or slots[j].collects)
    ]
    if pairs and w.chance(3):
        i, j = w.choose(pairs)
        results[i], results[j] = results[j], results[i]
    return results


# Loops.


@construct(3)
def while_loop(w: Writer) -> None:
    style = w.choose(("counter", "budget", "both", "flag"))
    control: list[Slot] = []
    if style != "budget":
        control.append(Slot(Carried(w.fresh("c"), "0", ""), Int()))
    if style == "budget":
        control.append(Slot(Carried(w.fresh("c"), w.choose(("0.1", "0.6")), ""), SCALAR))
    if style == "flag":
        control.append(Slot(Carried(w.fresh("c"), w.choose(("True", "True", "True", "False")), ""), Bool()))
    count = w.integer()
    limit = f"({w.scalar()} * 0.3 + 0.7)" if w.chance(2) else str(w.choose((0.9, 0.31, 1.43)))
    slots = _slots(w, 0)
    everything = control + slots
    first = control[0].carried.inner
    with w.block():
        _enter(w, everything)
        if w.chance(4):
            w.choose(LINES)(w)
        if style == "counter":
            result = w.line(Bool(), "compare integers", f"{first} < {count}").name
        elif style == "budget":
            result = w.below(first, limit)
        elif style == "both":
            test = w.below(w.scalar(), str(w.choose(HIGH)))
            result = w.line(Bool(), "logic", f"np.logical_and({test}, {first} < {count})").name
        else:
            result = control[1].carried.inner
        condition = w.finished([result])
    with w.block():
        _enter(w, control)
        _begin(w, slots)
        write_statements(w, 4)
        if style == "budget":
            step = f"{first} + 0.45 + 0.2 * np.sin({w.scalar()})"
            following = [w.line(SCALAR, "step", step).name]
        else:
            following = [w.line(Int(), "step", f"{first} + 1").name]
        if style == "flag":
            test = w.below(w.scalar(), str(w.choose(HIGH)))
            following.append(w.line(Bool(), "logic", f"np.logical_and({test}, {first} < 2)").name)
        body = w.finished(following + _results(w, slots))
    if style == "budget":
        # Outside of its loop the budget would leave the bounds: it is seen through a sine.
        out = w.fresh("v")
        carry = (replace(control[0].carried, out=out), *_leave(w, slots))
        w.statements.append(While(carry, structure(w), condition, body, _maximum(w)))
        w.line(SCALAR, "unary", f"np.sin({out})")
    else:
        w.statements.append(While(_leave(w, everything), structure(w), condition, body, _maximum(w)))


def _maximum(w: Writer) -> int | None:
    """Mostly enough iterations."""
    if "limits" not in w.features or not w.chance(8):
        return None
    return 1 if w.chance(6) else 40


@construct(2)
def fori_loop(w: Writer) -> None:
    lower, upper = w.choose(("0", "0", "1")), w.integer()
    slots = _slots(w, 1)
    index = w.fresh("i")
    with w.block():
        w.declare(Int(), index)
        _begin(w, slots)
        write_statements(w, 4)
        body = w.finished(_results(w, slots))
    w.statements.append(For(index, lower, upper, _leave(w, slots), structure(w), body))


@construct(2)
def cache(w: Writer) -> None:
    """A tensor of which an iteration overwrites parts, some of them in one branch alone, and reads everything."""
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if found is None:
        fori_loop(w)
        return
    start, kind = found
    slots = [Slot(Carried(w.fresh("c"), start, ""), kind), _slot(w, free=False)]
    index = w.fresh("i")
    with w.block():
        w.declare(Int(), index)
        _enter(w, slots)
        w.carried.append(Variable(slots[1].carried.inner, slots[1].kind))
        current = slots[0].carried.inner
        for _ in range(w.number(1, 3)):
            if w.chance(2):
                w.line(SCALAR, "cache: sum", f"np.sin(np.sum({current} * {w.scalar()}))")
            form = w.choose(("line", "line", "branch", "loop"))
            if form == "branch":
                current = _in_one_branch(w, current, kind)
            elif form == "loop" and w.depth < DEEPEST:
                current = _in_a_loop(w, current, kind)
            else:
                current = overwritten(w, current, kind)
        slots[0].following = current
        w.line(SCALAR, "cache: sum", f"np.tanh(np.sum({current} * {current}))")
        write_statements(w, 1)
        body = w.finished([current, _next(w, slots[1])])
    w.statements.append(For(index, "0", w.choose(("3", "2", w.integer())), _leave(w, slots), structure(w), body))


def _in_one_branch(w: Writer, x: str, kind: Float) -> str:
    test = w.boolean()
    blocks = []
    for written in (False, True):
        with w.block():
            result = overwritten(w, x, kind) if written else x
            if w.chance(2):
                w.line(SCALAR, "cache: sum", f"np.cos(np.sum({result}))")
            blocks.append(w.finished([result]))
    if w.chance(2):
        blocks.reverse()
    out = w.declare(kind)
    w.statements.append(Branch("cond", (test,), (), Structure("bare"), tuple(blocks), (out,), "cache: in a branch"))
    return out


def _in_a_loop(w: Writer, x: str, kind: Float) -> str:
    with w.block():
        inner, index = w.fresh("c"), w.fresh("i")
        w.declare(kind, inner)
        w.declare(Int(), index)
        body = w.finished([overwritten(w, inner, kind)])
    loop = Carried(inner, x, w.declare(kind))
    count = w.choose(("2", w.integer()))
    w.statements.append(For(index, "0", count, (loop,), Structure("bare"), body, "cache: in a loop"))
    return loop.out


@construct(2)
def recurrence(w: Writer) -> None:
    """Tensors that are read as they are after their next values were computed: what the last lines read is the old."""
    tensors = [v for v in w.visible if isinstance(v.kind, Float) and v.kind.rank > 0]
    if "bare" not in w.features or not tensors:
        fori_loop(w)
        return
    slots = [Slot(Carried(w.fresh("c"), v.name, ""), v.kind) for v in _some(w, tensors, w.number(1, 3))]
    if w.chance(3):
        slots.append(_slot(w, free=False))
    index = w.fresh("i")
    with w.block():
        w.declare(Int(), index)
        _enter(w, slots)
        w.carried += [Variable(s.carried.inner, s.kind) for s in slots]
        first = [s for position, s in enumerate(slots) if position == 0 or w.chance(2)]
        for slot in first:
            slot.following = early(w, Variable(slot.carried.inner, slot.kind))
        write_statements(w, 1)
        for slot in _some(w, first, w.number(1, 3)):
            use(w, Variable(slot.carried.inner, slot.kind))
        results = [s.following or [v.name for v in w.visible if fits(s.kind, v.kind)][-1] for s in slots]
        body = w.finished(_pass_around(w, slots, results))
    count = w.choose(("2", "3", w.integer()))
    w.statements.append(For(index, "0", count, _leave(w, slots), structure(w), body))


def _some(w: Writer, items: Sequence[T], count: int) -> list[T]:
    """So many of some things, in any order, the last ones first where nothing is drawn."""
    return [w.choose(items[::-1]) for _ in range(count)]


@construct(2)
def scan(w: Writer) -> None:
    found = w.floats(lambda k: k.rank > 0)
    rows: list[tuple[str, Float]] = [] if found is None else [found]
    length: str | None = None
    leading: Dim
    if found is None or w.chance(6):
        rows, name = [], None if w.fixed else w.int_variable()
        length = name or w.choose(("2", "3", "0"))
        leading = int(length) if name is None else w.unknown(filled=False)
    else:
        leading = found[1].dims[0]
        other = w.floats(lambda k: k.rank > 0 and k.dims[0] == leading)
        if other is not None and w.chance(2):
            rows.append(other)
    form = w.choose(("scan", "map", "foldl", "foldr")) if rows else "scan"
    slots = [] if form == "map" else _slots(w, 1 if form != "scan" else 0)
    reverse = form == "scan" and w.chance(3)
    inner = [(w.fresh("v"), Float(kind.dims[1:])) for _, kind in rows]
    collected: list[tuple[Collected, Float]] = []
    with w.block():
        for name, kind in inner:
            w.declare(kind, name)
        _begin(w, slots)
        outside = len(w.visible)
        write_statements(w, 4)
        results = _results(w, slots)
        if form in ("scan", "map"):
            most = w.number(1 if form == "map" or not slots else 0, 2)
            collected = [_collect(w, outside) for _ in range(most)]
            results += [c.out for c, _ in collected]
        body = w.finished(results)
    carry = _leave(w, slots)
    outs = tuple(Collected(w.declare(Float((leading, *kind.dims))), shape_text(kind.dims)) for _, kind in collected)
    pairs = tuple(Row(name, source) for (name, _), (source, _) in zip(inner, rows, strict=True))
    by = {"scan": ", unroll=2", "map": ", batch_size=2"}.get(form, "") if w.chance(4) else ""
    made = Scan(form, pairs, length, reverse, carry, structure(w), outs, body, by)  # type: ignore[arg-type]
    w.statements.append(made)


def _collect(w: Writer, outside: int) -> tuple[Collected, Float]:
    """A value to collect: its shape is known, so that rows have it even where there are none."""
    found = w.floats(lambda k: k.rank < 3 and k.is_static)
    if found is None:
        return Collected(w.scalar(), ""), SCALAR
    if "bare" in w.features and w.chance(2):
        carries = [v for v in w.carried if isinstance(v.kind, Float) and v.kind.rank < 3 and v.kind.is_static]
        if carries:
            carry = w.choose(carries)
            assert isinstance(carry.kind, Float)
            return Collected(carry.name, ""), carry.kind
    return Collected(value_of(w, found[1]), ""), found[1]
