"""Lines of random programs: shapes, slices, indices, indexed updates."""

from __future__ import annotations

from random_programs.kinds import Dim, Float, Unknown, is_filled, without
from random_programs.operations import broadcast, operation
from random_programs.slices import part_along_axes
from random_programs.writer import Writer


@operation(3)
def reshaping(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0)
    if found is None:
        return False
    x, kind = found
    unknown = sum(isinstance(d, Unknown) for d in kind.dims)
    form = w.choose(("transpose", "flip", "flatten", "expand", "broadcast", "swap"))
    if form == "flip":
        axis = w.number(0, kind.rank - 1)
        w.line(kind, form, f"np.flip({x}, axis={axis})")
    elif form == "flatten" and unknown <= 1:
        total = 1
        for d in kind.dims:
            total *= d if isinstance(d, int) else 1
        dim: Dim = total if not unknown else w.unknown(filled=kind.is_filled)
        w.line(Float((dim,)), form, f"np.reshape({x}, (-1,))")
    elif form == "expand" and kind.rank < 3:
        axis = w.number(0, kind.rank)
        w.line(Float(kind.dims[:axis] + (1,) + kind.dims[axis:]), form, f"np.expand_dims({x}, {axis})")
    elif form == "broadcast" and kind.rank < 2 and kind.is_static:
        w.line(Float((2, *kind.dims)), form, f"np.broadcast_to({x}, {(2, *kind.dims)})")
    elif form == "swap" and kind.rank > 1:
        dims = (kind.dims[1], kind.dims[0], *kind.dims[2:])
        w.line(Float(dims), form, f"np.swapaxes({x}, 0, 1)")
    else:
        w.line(Float(kind.dims[::-1]), "transpose", f"np.transpose({x})")
    return True


@operation(2)
def joining(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0)
    if found is None:
        return False
    x, kind = found
    other = w.floats(lambda k: k.rank == kind.rank and k.dims[1:] == kind.dims[1:])
    assert other is not None
    y, more = other
    both = (kind.dims[0], more.dims[0])
    if all(isinstance(d, int) for d in both):
        size: Dim = sum(d for d in both if isinstance(d, int))
        if isinstance(size, int) and size > 6:
            return False
    elif all(isinstance(d, Unknown) and d.grown for d in both):
        return False
    else:
        size = w.unknown(filled=kind.is_filled or more.is_filled)
    w.line(Float((size, *kind.dims[1:])), "concatenate", f"np.concatenate([{x}, {y}])")
    return True


@operation(2)
def stacking(w: Writer) -> bool:
    x, kind = w.any_float()
    other = w.floats(lambda k: k == kind)
    assert other is not None
    if kind.rank > 1:
        return False
    axis = w.number(0, kind.rank)
    dims = kind.dims[:axis] + (2,) + kind.dims[axis:]
    w.line(Float(dims), "stack", f"np.stack([{x}, {other[0]}], axis={axis})")
    return True


@operation(2)
def forgetting(w: Writer) -> bool:
    """Count a known size as unknown: the start of a carry whose shape changes."""
    found = w.floats(lambda k: k.rank == 1 and k.is_static and is_filled(k.dims[0]))
    if found is None or w.fixed:
        return False
    kind = Float((w.unknown(filled=True, told=True),))
    w.line(kind, "unknown_dims", f"cg.unknown_dims({found[0]})", f"{found[0]} * 1.0")
    return True


# Parts.


@operation(4)
def slicing(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0)
    if found is None:
        return False
    x, kind = found
    first, rest = kind.dims[0], kind.dims[1:]
    form = w.choose(("index", "last", "tail", "backwards", "column", "strided", "dynamic", "window"))
    name = None if w.fixed else w.int_variable()
    if form in ("index", "last") and not is_filled(first):
        form = "backwards"
    if form == "index":
        w.line(Float(rest), "static index", f"{x}[0]")
    elif form == "last":
        w.line(Float(rest), "static index", f"{x}[-1]")
    elif form == "column" and kind.rank > 1 and is_filled(kind.dims[-1]):
        w.line(Float(kind.dims[:-1]), "static index", f"{x}[..., 0]")
    elif form == "tail" and (isinstance(first, Unknown) or first > 1):
        dim: Dim = w.unknown(filled=False) if isinstance(first, Unknown) else first - 1
        w.line(Float((dim, *rest)), "slice", f"{x}[1:]")
    elif form == "strided" and isinstance(first, int):
        w.line(Float(((first + 1) // 2, *rest)), "slice", f"{x}[::2]")
    elif form == "dynamic" and name is not None:
        w.line(Float((w.unknown(filled=False), *rest)), "dynamic slice", f"{x}[{name}:]")
    elif form == "window" and name is not None:
        w.line(Float((w.unknown(filled=False), *rest)), "dynamic slice", f"{x}[{name}:{name} + 2]")
    else:
        w.line(kind, "slice", f"{x}[::-1]")
    return True


def place_in(w: Writer, x: str, kind: Float) -> str:
    """A valid index of a tensor's first axis, static or traced."""
    name = w.int_variable()
    if name is None or w.chance(3):
        return "0"
    return f"{name} % {x}.shape[0]"


@operation(4)
def indexing(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if found is None:
        return False
    x, kind = found
    form = w.choose(("row", "row", "element", "column", "gather"))
    place = place_in(w, x, kind)
    if form == "element" and kind.rank > 1 and is_filled(kind.dims[1]):
        w.line(Float(kind.dims[2:]), "traced index", f"{x}[{place}, -1]")
    elif form == "column" and kind.rank > 1 and kind.dims[1] == 2:
        w.line(without(kind, 1), "traced index", f"{x}[:, {place.replace('shape[0]', 'shape[1]')}]")
    elif form == "gather":
        w.line(Float((3, *kind.dims[1:])), "gather", f"{x}[(np.arange(3) + {place}) % {x}.shape[0]]")
    else:
        w.line(Float(kind.dims[1:]), "traced index", f"{x}[{place}]")
    return True


@operation(1)
def broadcasting(w: Writer) -> bool:
    """A size that only a run knows to be 1 meets another one."""
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    name = None if w.fixed else w.int_variable()
    if found is None or name is None:
        return False
    x, kind = found
    place = f"{name} % {x}.shape[0]"
    row, text = f"{x}[{place}:{place} + 1]", w.choose(("({0} + {1}) * 0.5", "np.tanh({1} * {0})"))
    if w.chance(2) and kind.dims[0] != 1:
        w.line(kind, "broadcast row", text.format(row, x))
    else:
        rest = Float((w.unknown(filled=True), *kind.dims[1:]))
        w.line(rest, "broadcast row", text.format(row, f"{x}[{place}:]"))
    return True


@operation(4)
def pooling(w: Writer) -> bool:
    """Parts of other sizes in each iteration, of which a gradient needs what is dear to compute again."""
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if found is None or w.fixed:
        return False
    x, kind = found
    rest, trips = Float(kind.dims[1:]), w.number(0, 4)
    form = w.choose(("rest", "before", "joined", "growing"))
    if form == "growing":
        grown = "np.concatenate([c[0], np.tanh(c[0][-1:] + c[1])])"
        body = f"lambda t, c: ({grown}, c[1] * 0.5 + np.mean(np.sin(c[0]) ** 2, axis=0) * 0.5)"
        traced = f"cg.fori_loop(0, {trips}, {body}, (cg.unknown_dims({x}, 0), {x}[0]))[1]"
        w.line(rest, "loop over a growing carry", traced, f"looped({trips}, {body}, ({x}, {x}[0]))[1]")
        return True
    if form == "before":
        # There are no rows at first.
        pooled = f"np.sum(np.sin(np.cumsum({x}[:t % {x}.shape[0]] * c, axis=0)) ** 2, axis=0) * 0.1"
    else:
        parts = f"np.tanh(np.cumsum({x}[t % {x}.shape[0]:] * c, axis=0))"
        if form == "joined":
            parts = f"np.concatenate([{parts}, {x}[:t % {x}.shape[0]]])"
        pooled = f"np.mean({parts} ** 2, axis=0) * 0.5"
    body = f"lambda t, c: c * 0.5 + {pooled}"
    w.line(rest, "loop over parts", f"cg.fori_loop(0, {trips}, {body}, {x}[0])", f"looped({trips}, {body}, {x}[0])")
    return True


@operation(4)
def updating(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if found is None:
        return False
    x, kind = found
    row = without(kind, 0)
    value = w.floats(lambda k: broadcast(row, k) == row)
    how = w.choose(("set", "add"))
    form = w.choose(("row", "row", "slice", "gather"))
    if form == "slice":
        key = "1:"
    elif form == "gather" and how == "add":
        key = f"(np.arange(2) + {place_in(w, x, kind)}) % {x}.shape[0]"
    else:
        key = place_in(w, x, kind)
    operand = value[0] if value is not None and not w.chance(5) else "0.25"
    if how == "add":
        operand = f"{operand} * 0.3"
    plain_key = "slice(1, None)" if key == "1:" else key
    # A sum may leave the bounds: halve it.
    scale = " * 0.5" if how == "add" else ""
    traced = f"cnp.at({x})[{key}].{how}({operand}){scale}"
    w.line(kind, f"at {how}", traced, f'updated({x}, {plain_key}, {operand}, "{how}"){scale}')
    return True


def overwritten(w: Writer, x: str, kind: Float) -> str:
    """A line that replaces or halves a part of a tensor, at any place; the rest stays as it is."""
    place, row = place_in(w, x, kind), without(kind, 0)
    form = w.choose(("row", "row", "last", "slice", "halved", "twice", "along axes"))
    if form == "along axes":
        part = part_along_axes(w, x, kind)
        text = w.choose(("0.25", "{0} * -0.5", "np.sum({0}) * 0.05")).format(f"{x}[{part.key}]")
        plain = f'updated({x}, {part.argument}, {text}, "set")'
        return w.line(kind, "part written", f"cnp.at({x})[{part.key}].set({text})", plain).name
    if form in ("halved", "twice"):
        key = place if form == "halved" else f"(np.array([0, 1, 0]) + {place}) % {x}.shape[0]"
        factor = -0.5 if form == "halved" else -0.25
        text = f"{x}[{key}] * {factor}"
        return w.line(kind, "part added", f"cnp.at({x})[{key}].add({text})", f'updated({x}, {key}, {text}, "add")').name
    value = w.floats(lambda k: broadcast(row, k) == row)
    operand = value[0] if value is not None and not w.chance(5) else "0.25"
    key = {"row": place, "last": "-1", "slice": "1:"}[form]
    plain_key = "slice(1, None)" if form == "slice" else key
    traced = f"cnp.at({x})[{key}].set({operand})"
    return w.line(kind, "part written", traced, f'updated({x}, {plain_key}, {operand}, "set")').name


@operation(2)
def cutting(w: Writer) -> bool:
    if not w.cuts:
        return False
    x, kind = w.any_float()
    w.line(kind, "stop_gradient", f"cg.stop_gradient({x})", x)
    return True
