"""Lines of random programs: parts along any axes, read, replaced and added to.

`parts` has those of the first axis. An axis may be cut to any part of it, with steps and backwards, by numbers that are
known or at a place that the run knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from random_programs.kinds import Dim, Float, is_filled
from random_programs.operations import broadcast, operation
from random_programs.writer import Writer


@dataclass(frozen=True)
class _Cut:
    """Part of an axis: the text of its key, as an index and as an argument of a call, and the size left.

    None for `size` where the axis goes.
    """

    key: str
    argument: str
    size: Dim | None


def _cut(w: Writer, x: str, kind: Float, axis: int) -> _Cut:
    """A part of an axis; all of it where nothing is drawn."""
    dim = kind.dims[axis]
    form = w.choose(("all", "all", "tail", "but the last", "middle", "strided", "backwards", "index", "one", "place"))
    least = dim if isinstance(dim, int) else 0
    name = w.int_variable()
    if form in ("index", "one", "place") and is_filled(dim):
        at = "-1"
        if form == "place" and name is not None:
            at = f"{name} % {x}.shape[{axis}]"
        elif form == "one":
            return _Cut("0:1", "slice(0, 1)", 1 if isinstance(dim, int) else w.unknown(filled=True))
        return _Cut(at, at, None)
    if form == "tail" and least != 1:
        return _Cut("1:", "slice(1, None)", _less(w, dim, 1))
    if form == "but the last" and least != 1:
        return _Cut(":-1", "slice(None, -1)", _less(w, dim, 1))
    if form == "middle" and least not in (1, 2):
        return _Cut("1:-1", "slice(1, -1)", _less(w, dim, 2))
    if form == "strided":
        return _Cut("::2", "slice(None, None, 2)", _half(w, dim))
    if form == "backwards":
        return _Cut("::-1", "slice(None, None, -1)", dim)
    return _Cut(":", "slice(None)", dim)


def _less(w: Writer, dim: Dim, by: int) -> Dim:
    return max(dim - by, 0) if isinstance(dim, int) else w.unknown(filled=False)


def _half(w: Writer, dim: Dim) -> Dim:
    return (dim + 1) // 2 if isinstance(dim, int) else w.unknown(filled=dim.filled)


@dataclass(frozen=True)
class Part:
    """A part of a tensor: the text of its key, as an index and as an argument of a call, and what it is."""

    key: str
    argument: str
    kind: Float


def part_along_axes(w: Writer, x: str, kind: Float) -> Part:
    """All of it where nothing is drawn."""
    cuts = [_cut(w, x, kind, axis) for axis in range(kind.rank)]
    arguments = ", ".join(c.argument for c in cuts)
    left = Float(tuple(c.size for c in cuts if c.size is not None))
    return Part(", ".join(c.key for c in cuts), f"({arguments},)", left)


@operation(3)
def cutting_out(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0)
    if found is None:
        return False
    x, kind = found
    part = part_along_axes(w, x, kind)
    w.line(part.kind, "part along axes", f"{x}[{part.key}] * 0.9")
    return True


@operation(4)
def changing_a_part(w: Writer) -> bool:
    """The value is a number, a tensor that fits, or what lies there."""
    found = w.floats(lambda k: k.rank > 0)
    if found is None:
        return False
    x, kind = found
    part = part_along_axes(w, x, kind)
    value = w.choose(("0.25", "itself", "scalar", "other", "like"))
    operand = "0.25"
    if value == "itself":
        operand = w.choose(("np.cos({0}[{1}])", "{0}[{1}] * 0.5", "np.sin({0})[{1}]")).format(x, part.key)
    elif value == "scalar":
        operand = w.scalar()
    elif value == "other":
        other = w.floats(lambda k: broadcast(part.kind, k) == part.kind)
        operand = "0.25" if other is None else other[0]
    elif value == "like":
        # The same part of another tensor.
        other = w.floats(lambda k: k == kind)
        assert other is not None
        operand = f"{other[0]}[{part.key}]"
    how = w.choose(("set", "set", "add", "multiply", "max"))
    label = f"part along axes: {how}"
    there = f"{x}[{part.argument}]"
    traced = f"cnp.at({x})[{part.key}].{how}"
    if how == "add":
        w.line(kind, label, f"{traced}({operand}) * 0.5", f'updated({x}, {part.argument}, {operand}, "add") * 0.5')
    elif how == "multiply":
        w.line(
            kind,
            label,
            f"{traced}({operand}) * 0.5",
            f'updated({x}, {part.argument}, {there} * {operand}, "set") * 0.5',
        )
    elif how == "max":
        # Shifted: two names may hold one value.
        given = f"{operand} - 0.11"
        w.line(
            kind,
            label,
            f"{traced}({given}) * 0.9",
            f'updated({x}, {part.argument}, maximum({there}, {given}), "set") * 0.9',
        )
    else:
        w.line(kind, label, f"{traced}({operand})", f'updated({x}, {part.argument}, {operand}, "set")')
    return True


@operation(2)
def moving_window(w: Writer) -> bool:
    """A window of a known size at a place that the run knows, moved so that it lies inside: read, or replaced."""
    found = w.floats(lambda k: k.rank > 0 and k.is_static and k.is_filled)
    name = w.int_variable()
    if found is None or name is None:
        return False
    x, kind = found
    dims = [d for d in kind.dims if isinstance(d, int)]
    sizes = tuple(w.number(1, min(d, 3)) for d in dims)
    starts = [w.choose((name, f"{name} - 1", "0")) for _ in dims]
    # A negative one counts from the end.
    inside = [f"min({s} + {d} * ({s} < 0), {d - n})" for s, d, n in zip(starts, dims, sizes, strict=True)]
    windows = ", ".join(f"slice({s}, {s} + {n})" for s, n in zip(inside, sizes, strict=True))
    at = f"({', '.join(starts)},)"
    if w.chance(2):
        value = w.floats(lambda k: k.dims == sizes)
        update, plain = "", ""
        if value is not None:
            update = plain = f"{value[0]} * 1.0"
        else:
            text = w.scalar()
            update = f"np.broadcast_to({text}, {sizes})"
            plain = text
        traced = f"cg.lax.dynamic_update_slice({x}, {update}, {at})"
        w.line(kind, "moving window replaced", traced, f'updated({x}, ({windows},), {plain}, "set")')
    else:
        traced = f"cg.lax.dynamic_slice({x}, {at}, {sizes}) * 0.9"
        w.line(Float(sizes), "moving window", traced, f"{x}[{windows}] * 0.9")
    return True


@operation(2)
def element_by_two_places(w: Writer) -> bool:
    """One element, or one of each row, at places that the run knows."""
    found = w.floats(lambda k: k.rank == 2 and k.is_filled)
    name = w.int_variable()
    if found is None or name is None:
        return False
    x, kind = found
    other = w.integer()
    row, column = f"{name} % {x}.shape[0]", f"({name} + {other}) % {x}.shape[1]"
    form = w.choose(("read", "write", "of each row", "columns", "write of each row"))
    rows = kind.dims[0]
    if form == "write":
        value = w.scalar()
        plain = f'updated({x}, ({row}, {column}), {value}, "set")'
        w.line(kind, "element written", f"cnp.at({x})[{row}, {column}].set({value})", plain)
    elif form == "columns":
        places = f"(np.arange(2) + {name}) % {x}.shape[1]"
        w.line(Float((rows, 2)), "columns gathered", f"np.take({x}, {places}, axis=1)")
    elif form in ("of each row", "write of each row") and isinstance(rows, int):
        key = f"np.arange({rows}), (np.arange({rows}) + {name}) % {x}.shape[1]"
        if form == "of each row":
            w.line(Float((rows,)), "element of each row", f"{x}[{key}]")
        else:
            plain = f'updated({x}, ({key}), 0.4, "add") * 0.8'
            w.line(kind, "element of each row added to", f"cnp.at({x})[{key}].add(0.4) * 0.8", plain)
    else:
        w.line(Float(), "element read", f"{x}[{row}, {column}]")
    return True
