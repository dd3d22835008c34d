"""What a loop, a branch or a call of a random program can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from random_programs import parts  # noqa: F401  (fills the table of operations)
from random_programs.arrays import push
from random_programs.kinds import SCALAR, Array, Bool, Dim, Float, Int, Kind, Unknown, Variable, fits, shape_text
from random_programs.operations import OPERATIONS
from random_programs.program import (
    Branch,
    Call,
    Carried,
    Collected,
    For,
    Parameter,
    Row,
    Scan,
    Structure,
    While,
)
from random_programs.writer import DEEPEST, HIGH, Writer

FORMS = ("tuple", "dict", "nested", "bare")
_LINES = [function for lots, function in OPERATIONS for _ in range(lots)]


def write_statements(w: Writer, most: int) -> None:
    """Some statements, each drawn by itself so that any one of them may vanish in shrinking."""
    for _ in range(most):
        if not w.draw(_statement(w)):
            break


@st.composite
def _statement(draw: Callable[[st.SearchStrategy[Any]], Any], w: Writer) -> bool:
    """Write one statement, or say that the block ends here."""
    if draw(st.integers(0, 11)) == 0 or w.left <= 0:
        return False
    w.left -= 1
    if w.depth < DEEPEST and w.number(0, 9) >= (6 if w.depth < 2 else 7):
        w.choose(CONSTRUCTS)(w)
    elif not w.choose(_LINES)(w):
        OPERATIONS[0][1](w)
    return True


def structure(w: Writer) -> Structure:
    return Structure(w.choose(FORMS))  # type: ignore[arg-type]


# Results of a block.


def value_of(w: Writer, kind: Kind, free: frozenset[str] = frozenset(), *, unknown_only: bool = False) -> str:
    """An operand of a kind: a literal, a visible variable, or one more line on such a variable."""
    if kind == SCALAR and w.chance(12):
        return str(w.choose((0.5, -0.25, 1.0)))
    if isinstance(kind, Int) and w.chance(8):
        return str(w.number(0, 3))
    if isinstance(kind, Bool) and w.chance(8):
        return str(w.choose((False, True)))
    found = w.pick(lambda k: fits(kind, k, free, unknown_only=unknown_only))
    assert found is not None, f"nothing visible is of the kind {kind}"
    if isinstance(found.kind, Float) and not w.chance(3):
        return moved(w, found.name, found.kind)
    if isinstance(found.kind, Array) and found.kind.size is None and not w.chance(3):
        return push(w, found.name, found.kind) or found.name
    return found.name


def moved(w: Writer, name: str, kind: Float) -> str:
    """A line that changes a float by another one of its kind or a scalar."""
    other = w.floats(lambda k: k == kind)
    by = other[0] if other is not None and other[0] != name and w.chance(2) else w.scalar()
    text = w.choose(("np.sin({0} + 0.5 * {1})", "({0} + {1}) * 0.5", "{0} * np.cos({1})", "np.tanh({0} - {1} * {0})"))
    return w.line(kind, "update", text.format(name, by)).name


# Carries.


@dataclass
class Slot:
    """A carried value while its loop is written. `collects`: it only takes pushes, and starts without an element."""

    carried: Carried
    kind: Kind
    free: frozenset[str] = frozenset()
    collects: bool = False


def _slots(w: Writer, fewest: int, *, free: bool = True) -> list[Slot]:
    slots = []
    for _ in range(w.number(fewest, 3)):
        slots.append(_slot(w, free))
    if w.chance(5):
        slots.append(_collecting(w))
    return slots


def _slot(w: Writer, free: bool) -> Slot:
    literal = w.number(0, 11)
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
    """A TensorArray that learns its element from the body."""
    found = w.floats(lambda k: k.rank < 2 and k.is_static)
    element = SCALAR.dims if found is None else found[1].dims
    carried = Carried(w.fresh("c"), 'cg.TensorArray("float64", rewritable=True)', "", "[]")
    return Slot(carried, Array(element, None, False), collects=True)


def _enter(w: Writer, slots: Sequence[Slot]) -> None:
    for slot in slots:
        if not slot.collects:
            w.declare(slot.kind, slot.carried.inner)


def _next(w: Writer, slot: Slot) -> str:
    """What the body gives for a carried value."""
    if slot.collects:
        assert isinstance(slot.kind, Array)
        array = slot.carried.inner
        name = push(w, array, slot.kind)
        # Where nothing visible is an element, its element is a scalar.
        return name or w.line(slot.kind, "push", f"{array}.push(0.5)", f"written({array}, len({array}), 0.5)").name
    return value_of(w, slot.kind, slot.free)


def _leave(w: Writer, slots: Sequence[Slot]) -> tuple[Carried, ...]:
    """Declare what the loop leaves behind."""
    carry = []
    for slot in slots:
        carry.append(replace(slot.carried, out=_declare_out(w, slot.kind, slot.free)))
    return tuple(carry)


def _declare_out(w: Writer, kind: Kind, free: frozenset[str]) -> str:
    """A result; each of its free dimensions has a size of its own from here on."""
    if isinstance(kind, Float) and free:
        dims = [w.unknown(filled=False) if isinstance(d, Unknown) and d.name in free else d for d in kind.dims]
        kind = Float(tuple(dims))
    return w.declare(kind)


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
            w.choose(_LINES)(w)
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
        _enter(w, everything)
        write_statements(w, 4)
        if style == "budget":
            step = f"{first} + 0.45 + 0.2 * np.sin({w.scalar()})"
            following = [w.line(SCALAR, "step", step).name]
        else:
            following = [w.line(Int(), "step", f"{first} + 1").name]
        if style == "flag":
            test = w.below(w.scalar(), str(w.choose(HIGH)))
            following.append(w.line(Bool(), "logic", f"np.logical_and({test}, {first} < 2)").name)
        results = _pass_around(w, slots, [_next(w, slot) for slot in slots])
        body = w.finished(following + results)
    if style == "budget":
        # Outside of its loop the budget would leave the bounds: it is seen through a sine.
        out = w.fresh("v")
        carry = (replace(control[0].carried, out=out), *_leave(w, slots))
        w.statements.append(While(carry, structure(w), condition, body))
        w.line(SCALAR, "unary", f"np.sin({out})")
    else:
        w.statements.append(While(_leave(w, everything), structure(w), condition, body))


def fori_loop(w: Writer) -> None:
    lower, upper = w.choose(("0", "0", "1")), w.integer()
    slots = _slots(w, 1)
    index = w.fresh("i")
    with w.block():
        w.declare(Int(), index)
        _enter(w, slots)
        write_statements(w, 4)
        body = w.finished(_pass_around(w, slots, [_next(w, slot) for slot in slots]))
    w.statements.append(For(index, lower, upper, _leave(w, slots), structure(w), body))


def scan(w: Writer) -> None:
    found = w.floats(lambda k: k.rank > 0)
    rows: list[tuple[str, Float]] = [] if found is None else [found]
    length: str | None = None
    leading: Dim
    if found is None or w.chance(6):
        rows, name = [], w.int_variable()
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
        _enter(w, slots)
        for name, kind in inner:
            w.declare(kind, name)
        outside = len(w.visible)
        write_statements(w, 4)
        results = _pass_around(w, slots, [_next(w, slot) for slot in slots])
        if form in ("scan", "map"):
            most = w.number(1 if form == "map" or not slots else 0, 2)
            collected = [_collect(w, outside) for _ in range(most)]
            results += [c.out for c, _ in collected]
        body = w.finished(results)
    carry = _leave(w, slots)
    outs = tuple(Collected(w.declare(Float((leading, *kind.dims))), shape_text(kind.dims)) for _, kind in collected)
    pairs = tuple(Row(name, source) for (name, _), (source, _) in zip(inner, rows, strict=True))
    w.statements.append(Scan(form, pairs, length, reverse, carry, structure(w), outs, body))  # type: ignore[arg-type]


def _collect(w: Writer, outside: int) -> tuple[Collected, Float]:
    """A value to collect: its shape is known, so that rows have it even where there are none."""
    found = w.floats(lambda k: k.rank < 3 and k.is_static)
    if found is None:
        return Collected(w.scalar(), ""), SCALAR
    return Collected(value_of(w, found[1]), ""), found[1]


# Branches and calls.


def branch(w: Writer) -> None:
    form = w.choose(("cond", "switch", "case"))
    count = 2 if form == "cond" else w.number(1 if form == "switch" else 2, 3)
    selectors = [w.integer()] if form == "switch" else [w.boolean() for _ in range(count - 1)]
    parameters = [] if form == "case" else _parameters(w, 0)
    targets = [_target(w) for _ in range(w.number(1, 3))]
    blocks = []
    for _ in range(count):
        with w.block():
            for parameter, kind in parameters:
                w.declare(kind, parameter.inner)
            write_statements(w, 4)
            blocks.append(w.finished([value_of(w, kind, free, unknown_only=True) for kind, free in targets]))
    outs = tuple(_declare_out(w, kind, free) for kind, free in targets)
    w.statements.append(
        Branch(form, tuple(selectors), tuple(p for p, _ in parameters), structure(w), tuple(blocks), outs)  # type: ignore[arg-type]
    )


def _target(w: Writer) -> tuple[Kind, frozenset[str]]:
    """A kind for a branch's result: that of something visible. Branches may give different unknown sizes."""
    found = w.pick(lambda k: True)
    assert found is not None
    kind = found.kind
    if isinstance(kind, Float) and not kind.is_static and w.chance(2):
        return kind, frozenset(d.name for d in kind.dims if isinstance(d, Unknown))
    return kind, frozenset()


def _parameters(w: Writer, fewest: int) -> list[tuple[Parameter, Kind]]:
    found: list[Variable | None] = [w.pick(lambda k: True) for _ in range(w.number(fewest, 2))]
    return [(Parameter(w.fresh("p"), v.name), v.kind) for v in found if v is not None]


def call(w: Writer) -> None:
    form = w.choose(("plain", "function", "checkpoint"))
    parameters = _parameters(w, 1)
    with w.block():
        for parameter, kind in parameters:
            w.declare(kind, parameter.inner)
        write_statements(w, 4)
        found = [v for v in (w.pick(lambda k: True) for _ in range(w.number(1, 2))) if v is not None]
        block = w.finished([v.name for v in found])
    outs = tuple(w.declare(v.kind) for v in found)
    w.statements.append(Call(form, tuple(p for p, _ in parameters), structure(w), block, outs))  # type: ignore[arg-type]


CONSTRUCTS: tuple[Callable[[Writer], None], ...] = (
    fori_loop,
    while_loop,
    while_loop,
    branch,
    scan,
    scan,
    fori_loop,
    branch,
    while_loop,
    call,
)
