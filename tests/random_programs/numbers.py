"""Lines of random programs: tensors of other dtypes (integers, bools, complex and narrow floats).

Floats and the parts of complex numbers stay within [-2, 2]; integers wrap around. What is complex is differentiated;
what is narrow is only where the program is `coarse`, and is cut off otherwise.
"""

from __future__ import annotations

from random_programs.kinds import Bool, Float, Int, Typed, dtype_text
from random_programs.operations import operation
from random_programs.writer import Writer

INTEGERS = ("int8", "int32", "int64", "uint8", "int16", "uint16", "uint32", "uint64")
NARROW = ("float16", "float32", "bfloat16")


@operation(7)
def casting(w: Writer) -> bool:
    """From a float, and between dtypes."""
    if "dtypes" not in w.features:
        return False
    form = w.choose(("complex", "narrow", "bool", "integer", "between"))
    if form == "between":
        return _between(w)
    found = w.floats(lambda k: k.is_static)
    if found is None:
        return False
    x, kind = found
    dims = tuple(d for d in kind.dims if isinstance(d, int))
    if form == "complex":
        other = w.floats(lambda k: k == kind)
        assert other is not None
        w.line(Typed(dims, "complex128"), "complex numbers", f"{x} + 1j * {other[0]}")
    elif form == "narrow":
        dtype = w.choose(NARROW)
        name = dtype_text(dtype)
        cut = x if w.coarse else f"cg.stop_gradient({x})"
        w.line(Typed(dims, dtype), f"to {dtype}", f"cnp.astype({cut} * 1.0, {name})", f"cast({x}, {name})")
    elif form == "bool":
        w.line(Typed(dims, "bool"), "to bool", f"np.less({x}, 0.13)", f"less({x}, 0.13)")
    else:
        factor = w.int_variable()
        if factor is None:
            return False
        dtype = w.choose(INTEGERS)
        size = dims[-1] if dims else 1
        values = f"(np.arange({size}) * 37 + {factor} * 29)"
        text = f"np.broadcast_to({values}, {(*dims[:-1], size)}).astype(np.{dtype})"
        w.line(Typed((*dims[:-1], size), dtype), f"to {dtype}", text)
    return True


def _between(w: Writer) -> bool:
    found = w.typed(lambda k: k.family in "biu")
    if found is None:
        return False
    x, kind = found
    dtype = w.choose((*INTEGERS, "bool", "float64"))
    if dtype == "float64":
        text = f"np.sin({x}.astype(np.float64))"
        w.line(Float(kind.dims), "to float64", text, f"np.sin(cast({x}, np.float64))")
    else:
        w.line(Typed(kind.dims, dtype), f"to {dtype}", f"{x}.astype(np.{dtype})", f"cast({x}, np.{dtype})")
    return True


_SAME = {
    "i": (
        "{0} + {1}",
        "{0} * {1}",
        "{0} - {1}",
        "np.maximum({0}, {1})",
        "{0} & {1}",
        "{0} ^ {1}",
        "-{0}",
        "{0} // 3",
        "{0} << 3",
        "{0} >> 1",
        "{0} << ({1} & 7)",
        "{0} >> ({1} & 7)",
        "~{0}",
        "{0} % 7",
        "np.abs({0})",
        "{0} // ({1} | 1)",
        "{0} % ({1} | 1)",
    ),
    "b": ("np.logical_and({0}, {1})", "np.logical_xor({0}, {1})", "np.logical_not({0})", "{0} | {1}"),
    "f": ("np.sin({0} + {1})", "({0} - {1}) * 0.5", "{0} * {1} * 0.5", "np.cos({0})", "np.tanh({0}) * {1}"),
    "c": (
        "({0} + {1}) * 0.5",
        "{0} * {1} * 0.25",
        "np.conj({0})",
        "{0} * 0.6j",
        "({0} - np.conj({1})) * 0.5",
        "np.exp({0} * 0.3j)",
    ),
}
_SAME["u"] = tuple(text for text in _SAME["i"] if not text.startswith("-"))


def same_kind(w: Writer, name: str, kind: Typed) -> str:
    """A line that gives the kind again."""
    other = w.typed(lambda k: k == kind)
    text = w.choose(_SAME[kind.family]).format(name, other[0] if other is not None else name)
    return w.line(kind, f"{kind.dtype} arithmetic", text, _plain(kind, text)).name


def _plain(kind: Typed, text: str) -> str:
    """The twin's form of it: NumPy promotes its own numbers of bfloat16 beside Python's."""
    return f"cast({text}, {dtype_text(kind.dtype)})" if kind.dtype == "bfloat16" else text


@operation(18)
def arithmetic(w: Writer) -> bool:
    found = w.typed()
    if found is None:
        return False
    x, kind = found
    form = w.choose(
        ("same", "same", "reduction", "reduction", "out", "out", "where", "row", "update", "cumsum", "matmul")
    )
    if form == "reduction" and kind.dims:
        return _reduction(w, x, kind)
    if form == "where":
        other = w.typed(lambda k: k == kind)
        assert other is not None
        w.line(kind, "where of another dtype", f"np.where({w.boolean()}, {x}, {other[0]})")
    elif form in ("row", "update") and kind.dims and kind.dims[0]:
        _part(w, x, kind, form)
    elif form == "cumsum" and kind.dims and kind.family in "iu":
        text = f"np.cumsum({x}, axis=0, dtype=np.{kind.dtype})"
        w.line(kind, "cumsum of integers", text)
    elif form == "matmul" and len(kind.dims) == 1 and kind.family != "b":
        other = w.typed(lambda k: k == kind)
        assert other is not None
        if kind.family in "fc":
            size = max(kind.dims[0], 1)
            text = f"{x} @ {other[0]} * {0.25 / size}"
            w.line(Typed((), kind.dtype), f"matmul of {kind.dtype}", text, _plain(kind, text))
        else:
            w.line(Typed((), kind.dtype), f"matmul of {kind.dtype}", f"{x} @ {other[0]}")
    elif form == "matmul" and len(kind.dims) == 2 and kind.family in "fc" and kind.dtype != "bfloat16":
        rows, columns = kind.dims
        result = Typed((rows, rows), kind.dtype)
        w.line(result, f"matmul of {kind.dtype}", f"{x} @ {x}[::-1].T * {0.25 / max(columns, 1)}")
    elif form == "out":
        return _out(w, x, kind)
    else:
        same_kind(w, x, kind)
    return True


def _reduction(w: Writer, x: str, kind: Typed) -> bool:
    axis = w.number(0, len(kind.dims) - 1)
    rest = kind.dims[:axis] + kind.dims[axis + 1 :]
    if kind.family == "b":
        form = w.choose(("any", "all", "sum"))
        result = Typed(rest, "int64" if form == "sum" else "bool")
        w.line(result, f"{form} of bools", f"np.{form}({x}, axis={axis})")
    elif kind.family in "iu":
        form = w.choose(("sum", "prod", "typed", "typed", "max", "argmax"))
        wide = "uint64" if kind.family == "u" else "int64"
        if form in ("max", "argmax") and not kind.dims[axis]:
            form = "sum"
        if form == "typed":
            w.line(Typed(rest, kind.dtype), "sum in a dtype", f"np.sum({x}, axis={axis}, dtype=np.{kind.dtype})")
        else:
            dtype = {"max": kind.dtype, "argmax": "int64"}.get(form, wide)
            w.line(Typed(rest, dtype), f"{form} of integers", f"np.{form}({x}, axis={axis})")
    else:
        size = max(kind.dims[axis], 1)
        text = f"np.sum({x} * {1.0 / size}, axis={axis})"
        w.line(Typed(rest, kind.dtype), f"sum of {kind.dtype}", text, _plain(kind, text))
    return True


def _part(w: Writer, x: str, kind: Typed, form: str) -> None:
    name = w.int_variable()
    place = f"{name} % {kind.dims[0]}" if name is not None else "0"
    row = Typed(kind.dims[1:], kind.dtype)
    value = w.typed(lambda k: k == row)
    if form == "row":
        w.line(row, "row of another dtype", f"{x}[{place}]")
        return
    # Its own first row where there is no other: one array twice among the operands.
    operand = f"{x}[0]" if value is None else value[0]
    how = w.choose(("set", "add")) if kind.family in "iu" else "set"
    traced = f"cnp.at({x})[{place}].{how}({operand})"
    w.line(kind, f"at {how} of another dtype", traced, f'updated({x}, {place}, {operand}, "{how}")')


def _out(w: Writer, x: str, kind: Typed) -> bool:
    """To a float, an integer or a bool of the base kinds."""
    if kind.family == "c":
        part = Typed(kind.dims, "float32") if kind.is_narrow else Float(kind.dims)
        if w.chance(3):
            w.line(part, "absolute values", f"np.abs({x} + 3.0) * 0.35")
        else:
            w.line(part, "part of complex numbers", f"np.{w.choose(('real', 'imag'))}({x})")
    elif kind.family == "f":
        if not w.coarse:
            w.line(Typed(kind.dims, "bool"), "compare narrow floats", f"np.less({x}, 5.0)")
            return True
        w.line(Float(kind.dims), "to float64", f"{x}.astype(np.float64)", f"cast({x}, np.float64)")
    elif kind.family == "b":
        other = w.floats(lambda k: k.dims == kind.dims)
        if other is not None:
            w.line(other[1], "where by a tensor of bools", f"np.where({x}, {other[0]}, 0.5)")
        elif not kind.dims:
            w.line(Bool(), "bool of a tensor", f"np.logical_and({x}, True)")
        else:
            w.line(Bool(), "any of all", f"np.any({x})")
    elif kind.dims:
        w.line(Int(), "sum of integers", f"(np.sum({x}) % 4).astype(np.int64)", f"cast(np.sum({x}) % 4, np.int64)")
    else:
        w.line(Int(), "integer of a dtype", f"({x} % 4).astype(np.int64)", f"cast({x} % 4, np.int64)")
    return True
