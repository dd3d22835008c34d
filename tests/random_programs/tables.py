"""Loops of random programs: arrays of rows that a loop inside carries, reads and writes by index.

An array is made before the outer loop or anew in each of its iterations; the outer loop carries it too, or begins with
the same one each time. What it was before is read behind the loop inside now and then.
"""

from __future__ import annotations

from random_programs.constructs import construct, structure, write_statements
from random_programs.kinds import SCALAR, Array, Float, Int, shape_text
from random_programs.loops import fori_loop
from random_programs.program import Carried, For
from random_programs.writer import DEEPEST, Writer


@construct(2)
def rows_in_a_loop(w: Writer) -> None:
    if w.depth + 1 >= DEEPEST:
        fori_loop(w)
        return
    found = w.floats(lambda k: k.rank < 2 and k.is_static)
    x, kind = (w.scalar(), SCALAR) if found is None else found
    size, where = w.number(2, 4), w.choose(("carried", "anew", "captured"))
    first = None if where == "anew" else _made(w, x, kind, size)
    value, rows, index = w.fresh("c"), w.fresh("c"), w.fresh("i")
    array = Array(kind.dims, size, True)
    with w.block():
        w.declare(Int(), index)
        w.declare(kind, value)
        if where == "carried":
            w.declare(array, rows)
        start = {"carried": rows, "captured": first or ""}.get(where) or _made(w, value, kind, size)
        after, left = _inside(w, index, value, start, kind, size)
        if w.chance(2):
            after = _read(w, after, start, kind, index, size)
        if where != "carried":
            after = _read(w, after, left, kind, index, size)
        write_statements(w, 1)
        body = w.finished([after, left][: 1 + (where == "carried")])
    carry = [Carried(value, x, w.declare(kind))]
    if where == "carried":
        assert first is not None
        carry.append(Carried(rows, first, w.declare(array)))
    count = w.choose(("3", "2", w.integer()))
    w.statements.append(For(index, "0", count, tuple(carry), structure(w), body, f"rows in a loop: {where}"))
    if where == "carried":
        _read(w, carry[0].out, carry[1].out, kind, "1", size)


def _made(w: Writer, x: str, kind: Float, size: int) -> str:
    """An array of which one row is written, or all are."""
    shape, array = shape_text(kind.dims), Array(kind.dims, size, True)
    traced = f'cg.TensorArray("float64", size={size}, element_shape={shape}, rewritable=True)'
    if w.chance(3):
        both = ", ".join(f"{x} * {k + 1}.0" for k in range(size))
        return w.line(array, "unstack", f"{traced}.unstack(np.stack([{both}]))", f"list(np.stack([{both}]))").name
    name = w.line(array, "new array", traced, f"[np.zeros({shape})] * {size}").name
    place = w.number(0, size - 1)
    return w.line(array, "write", f"{name}.write({place}, {x})", f"written({name}, {place}, {x})").name


def _inside(w: Writer, outer: str, x: str, rows: str, kind: Float, size: int) -> tuple[str, str]:
    """A loop that writes rows and reads some; what it leaves."""
    array = Array(kind.dims, size, True)
    value, inner, index = w.fresh("c"), w.fresh("c"), w.fresh("i")
    with w.block():
        w.declare(Int(), index)
        w.declare(kind, value)
        w.declare(array, inner)
        place = w.choose((f"{index} % {size}", f"({index} + {outer}) % {size}", f"{index} * {index} % {size}"))
        after = value
        if w.chance(2):
            after = _read(w, after, inner, kind, place, size)
        plain = f"written({inner}, {place}, {value})"
        written = w.line(array, "write", f"{inner}.write({place}, {value})", plain).name
        if w.chance(2):
            after = _read(w, after, w.choose((written, inner)), kind, outer, size)
        after = w.line(kind, "binary", f"np.sin({after}) * 0.8 + 0.1").name
        body = w.finished([after, written])
    carry = tuple(Carried(a, b, w.declare(k)) for a, b, k in ((value, x, kind), (inner, rows, array)))
    count = w.choose(("2", "3", "4"))
    w.statements.append(For(index, "0", count, carry, structure(w), body))
    return carry[0].out, carry[1].out


def _read(w: Writer, x: str, rows: str, kind: Float, index: str, size: int) -> str:
    """A value with a row of an array, or the sum of all, added to it."""
    if w.chance(3):
        shape = shape_text(kind.dims)
        read, plain = f"np.sum({rows}.stack(), axis=0)", f"np.sum(stacked({rows}, {shape}), axis=0)"
    else:
        read, plain = f"{rows}.read({index} % {size})", f"{rows}[{index} % {size}]"
    return w.line(kind, "read", f"np.tanh({x} * 0.6 + {read} * 0.3)", f"np.tanh({x} * 0.6 + {plain} * 0.3)").name


__all__ = ["rows_in_a_loop"]
