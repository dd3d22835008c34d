"""Lines of random programs: TensorArrays. In the twin an array is a list that is never changed."""

from __future__ import annotations

from random_programs.kinds import Array, Dim, Float, is_filled, shape_text
from random_programs.operations import operation
from random_programs.writer import Writer


@operation(4)
def new_array(w: Writer) -> bool:
    form = w.choose(("sized", "growing", "traced size", "unstack"))
    x, kind = w.any_float()
    if form == "unstack" and kind.rank > 0:
        array = Array(kind.dims[1:], None, is_filled(kind.dims[0]))
        w.line(array, "unstack", f'cg.TensorArray("float64", rewritable=True).unstack({x})', f"list({x})")
        return True
    if kind.rank > 1:
        return False
    # Where sizes are fixed, an array has one too.
    form = "sized" if w.fixed else form
    name = w.int_variable()
    shape = shape_text(kind.dims)
    if form in ("growing", "unstack") or not kind.is_static:
        traced = f'cg.TensorArray("float64", element_shape={shape}, rewritable=True)'
        w.line(Array(kind.dims, None, False), "new array", traced, "[]")
    elif form == "sized" or name is None:
        size = w.number(1, 3)
        traced = f'cg.TensorArray("float64", size={size}, element_shape={shape}, rewritable=True)'
        made = w.line(Array(kind.dims, size, True), "new array", traced, f"[np.zeros({shape})] * {size}")
        w.line(made.kind, "write", f"{made.name}.write({size - 1}, {x})", f"written({made.name}, {size - 1}, {x})")
    else:
        array = Array(kind.dims, w.unknown(filled=True, grown=False), True)
        traced = f'cg.TensorArray("float64", size={name} + 1, element_shape={shape}, rewritable=True)'
        w.line(array, "new array", traced, f"[np.zeros({shape})] * ({name} + 1)")
    return True


def push(w: Writer, name: str, kind: Array) -> str | None:
    """A line that adds a row to a growing array."""
    value = w.floats(lambda k: k.dims == kind.element)
    if value is None:
        return None
    form = w.choose((f"{name}.push({value[0]})", f"{name}.write({name}.size(), {value[0]})"))
    grown = Array(kind.element, None, True)
    return w.line(grown, "push", form, f"written({name}, len({name}), {value[0]})").name


@operation(10)
def array_use(w: Writer) -> bool:
    found = w.pick(lambda kind: isinstance(kind, Array))
    if found is None:
        return False
    name, kind = found.name, found.kind
    assert isinstance(kind, Array)
    form = w.choose(("write", "read", "stack", "push"))
    if form == "push" and kind.size is None:
        return push(w, name, kind) is not None
    if form == "stack" and kind.can_stack:
        stack(w, name, kind)
        return True
    if not kind.filled:
        return kind.size is None and push(w, name, kind) is not None
    place = w.int_variable()
    if place is None or w.chance(3):
        index = plain_index = "0"
    else:
        index, plain_index = f"{place} % {name}.size()", f"{place} % len({name})"
    if form == "write":
        value = w.floats(lambda k: k.dims == kind.element)
        if value is not None:
            plain = f"written({name}, {plain_index}, {value[0]})"
            w.line(kind, "write", f"{name}.write({index}, {value[0]})", plain)
            return True
    w.line(Float(kind.element), "read", f"{name}.read({index})", f"{name}[{plain_index}]")
    return True


def stack(w: Writer, name: str, kind: Array) -> str:
    """A line that makes an array one tensor."""
    size: Dim = w.unknown(filled=kind.filled) if not isinstance(kind.size, int) else kind.size
    shape = shape_text(kind.element)
    result = Float((size, *kind.element))
    return w.line(result, "stack of an array", f"{name}.stack()", f"stacked({name}, {shape})").name
