"""Statements in loops of random programs: a carried value used as it is, and new ones computed before it.

An engine that lets the new value take the old one's memory must know every reader of the old one, of whatever kind and
however late; so here the readers are all that do not compute element by element: writes, gathers, products, branches,
inner loops, arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from random_programs.arrays import push
from random_programs.kinds import SCALAR, Array, Float, Int, Typed, Variable, is_filled, without
from random_programs.numbers import same_kind
from random_programs.operations import broadcast, operation
from random_programs.parts import place_in
from random_programs.program import Block, Branch, Carried, For, Structure
from random_programs.writer import Writer

_EARLY = ("{0} * 0.5", "np.sin({0})", "{0} * 0.8 + 0.1", "np.tanh({0}) - 0.2", "0.9 - {0} * {0} * 0.4", "-{0}")


def early(w: Writer, carry: Variable) -> str | None:
    """A line that computes a carry's next value from the old one alone, element by element."""
    if isinstance(carry.kind, Float):
        return w.line(carry.kind, "carry computed first", w.choose(_EARLY).format(carry.name)).name
    if isinstance(carry.kind, Int):
        return w.line(Int(), "carry computed first", f"({carry.name} + 1) % 4").name
    return same_kind(w, carry.name, carry.kind) if isinstance(carry.kind, Typed) else None


@operation(12)
def bare_use(w: Writer) -> bool:
    carries = [v for v in w.carried if isinstance(v.kind, Float)]
    if "bare" not in w.features or not carries:
        return False
    return use(w, w.choose(carries[::-1]))


def use(w: Writer, carry: Variable) -> bool:
    """A statement that reads a carry as it is, if one fits."""
    kind = carry.kind
    return isinstance(kind, Float) and any(w.choose(_USES)(w, carry.name, kind) for _ in range(3))


def _other(w: Writer, wanted: Callable[[Float], bool]) -> tuple[str, Float] | None:
    """A float: half of the time a carried one."""
    carries = [v for v in w.carried if isinstance(v.kind, Float) and wanted(v.kind)]
    if carries and w.chance(2):
        found = w.choose(carries[::-1])
        assert isinstance(found.kind, Float)
        return found.name, found.kind
    return w.floats(wanted)


def _written(w: Writer, c: str, kind: Float) -> bool:
    """Into a row or column of another tensor."""
    column = kind.rank == 1 and w.chance(2)
    if column:
        found = _other(w, lambda k: k.rank == 2 and k.dims[:1] == kind.dims and is_filled(k.dims[1]))
    else:
        found = _other(w, lambda k: k.rank > 0 and is_filled(k.dims[0]) and _is_row(kind, without(k, 0)))
    if found is None:
        return False
    x, target = found
    if column:
        key, plain_key = ":, 0", "(slice(None), 0)"
    else:
        key = plain_key = place_in(w, x, target)
    how = w.choose(("set", "add"))
    scale = " * 0.5" if how == "add" else ""
    traced = f"cnp.at({x})[{key}].{how}({c}){scale}"
    w.line(target, f"bare carry: at {how}", traced, f'updated({x}, {plain_key}, {c}, "{how}"){scale}')
    return True


def _is_row(kind: Float, row: Float) -> bool:
    return broadcast(row, kind) == row


def _into_array(w: Writer, c: str, kind: Float) -> bool:
    found = w.pick(lambda k: isinstance(k, Array) and k.element == kind.dims)
    if found is None or not isinstance(found.kind, Array):
        return False
    name, array = found.name, found.kind
    if not array.filled or (array.size is None and w.chance(2)):
        return array.size is None and push(w, name, array) is not None
    w.line(array, "bare carry: write", f"{name}.write(0, {c})", f"written({name}, 0, {c})")
    return True


def _target(w: Writer, c: str, kind: Float) -> bool:
    """A part of it replaced or added to."""
    if not kind.rank or not is_filled(kind.dims[0]):
        return False
    row = without(kind, 0)
    value = _other(w, lambda k: _is_row(k, row))
    operand = "0.25" if value is None else value[0]
    place = place_in(w, c, kind)
    form = w.choose(("set", "add", "scatter"))
    if form == "scatter":
        place, form = f"(np.arange(2) + {place}) % {c}.shape[0]", "add"
    scale = " * 0.5" if form == "add" else ""
    traced = f"cnp.at({c})[{place}].{form}({operand} * 1.0){scale}"
    w.line(kind, f"bare carry: updated by {form}", traced, f'updated({c}, {place}, {operand}, "{form}"){scale}')
    return True


def _gathered(w: Writer, c: str, kind: Float) -> bool:
    if not kind.rank or not is_filled(kind.dims[0]):
        return False
    place = place_in(w, c, kind)
    form = w.choose(("index", "take", "along", "reversed", "rolled"))
    if form == "index":
        w.line(without(kind, 0), "bare carry: row", f"{c}[{place}]")
    elif form == "take":
        text = f"np.take({c}, (np.arange(3) + {place}) % {c}.shape[0], axis=0)"
        w.line(Float((3, *kind.dims[1:])), "bare carry: take", text)
    elif form == "along" and kind.is_static and kind.rank < 3:
        n, *rest = kind.dims
        indices = f"(np.arange({n}) + {place}) % {n}"
        if rest:
            indices = f"np.broadcast_to(({indices})[:, None], {(n, *rest)})"
        w.line(kind, "bare carry: take_along_axis", f"np.take_along_axis({c}, {indices}, axis=0)")
    elif form == "rolled":
        w.line(kind, "bare carry: concatenate", f"np.concatenate([{c}[1:], {c}[:1]])")
    else:
        w.line(kind, "bare carry: reversed", f"{c}[::-1]")
    return True


def _branched_on(w: Writer, c: str, kind: Float) -> bool:
    """Given by a branch as it is, or used in one."""
    other = _other(w, lambda k: k == kind)
    assert other is not None
    alone = w.chance(3)
    test = w.integer() if alone else w.boolean()
    blocks = []
    for operand in (c,) if alone else (other[0], c):
        with w.block():
            result = operand if w.chance(2) else w.line(kind, "update", f"np.sin({operand})").name
            blocks.append(w.finished([result]))
    if w.chance(2):
        blocks.reverse()
    out = w.declare(kind)
    note = "bare carry: branched on"
    form: Literal["switch", "cond"] = "switch" if alone else "cond"
    w.statements.append(Branch(form, (test,), (), Structure("bare"), tuple(blocks), (out,), note))
    return True


def _by_constants(w: Writer, c: str, kind: Float) -> bool:
    """Changed by a number that a branch chooses, which needs nothing of it."""
    test = w.below(f"np.sum({c})", "0.13") if w.chance(2) else w.boolean()
    blocks = tuple(Block((), (number,)) for number in ("-0.5", "0.5"))
    chosen = w.declare(SCALAR)
    w.statements.append(Branch("cond", (test,), (), Structure("bare"), blocks, (chosen,), "bare carry: branched on"))
    w.line(kind, "update", f"{c} * 0.7 + {chosen} * 0.3")
    return True


def _captured(w: Writer, c: str, kind: Float) -> bool:
    """By an inner loop, which reads a row of it or gives all of it."""
    found = _other(w, lambda k: _is_row(kind, k) or (kind.rank > 0 and without(kind, 0) == k))
    start, carried = (c, kind) if found is None else found
    with w.block():
        inner, index = w.fresh("c"), w.fresh("i")
        w.declare(carried, inner)
        w.declare(Int(), index)
        if not _is_row(kind, carried):
            if not is_filled(kind.dims[0]):
                return False
            text = f"{inner} * 0.5 + {c}[{index} % {c}.shape[0]] * 0.4"
        else:
            text = f"np.sin({inner} + {c})"
        result = w.line(carried, "update", text).name
        body = w.finished([c if carried == kind and w.chance(3) else result])
    count = w.choose(("2", w.integer()))
    loop = Carried(inner, start, w.declare(carried))
    w.statements.append(For(index, "0", count, (loop,), Structure("bare"), body, "bare carry: captured by a loop"))
    return True


def _carried_inside(w: Writer, c: str, kind: Float) -> bool:
    """Start an inner loop from it."""
    with w.block():
        inner, index = w.fresh("c"), w.fresh("i")
        w.declare(kind, inner)
        result = w.line(kind, "update", w.choose(_EARLY).format(inner)).name
        body = w.finished([result])
    count = w.choose(("2", w.integer()))
    loop = Carried(inner, c, w.declare(kind))
    w.statements.append(For(index, "0", count, (loop,), Structure("bare"), body, "bare carry: carried by a loop"))
    return True


def _in_a_library_call(w: Writer, c: str, kind: Float) -> bool:
    n = kind.dims[0] if kind.rank in (1, 2) else None
    if not isinstance(n, int) or not kind.is_static:
        return False
    form = w.choose(("solve", "product", "product with itself"))
    if form == "product with itself":
        # Of no rows it is a matrix of zeros, or zero.
        size = kind.dims[1:]
        w.line(Float((*size, *size)), "bare carry: product", f"np.sin(np.transpose({c}) @ {c} * 0.4)")
        return True
    if form == "solve" and not n:
        return False
    matrix = f"np.linalg.solve(np.eye({n}) * 3.0 + 0.5, {c})"
    if form == "product":
        matrix = f"(np.eye({n}) * 0.5 + 0.1) @ {c}"
    w.line(kind, f"bare carry: {form}", f"{matrix} * 0.9")
    return True


def _reduced(w: Writer, c: str, kind: Float) -> bool:
    w.line(SCALAR, "bare carry: sum", f"np.sum({c}) * 0.05")
    return True


_USES: tuple[Callable[[Writer, str, Float], bool], ...] = (
    _written,
    _written,
    _target,
    _gathered,
    _gathered,
    _into_array,
    _into_array,
    _branched_on,
    _by_constants,
    _captured,
    _carried_inside,
    _in_a_library_call,
    _reduced,
)
