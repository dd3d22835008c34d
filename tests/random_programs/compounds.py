"""Lines of random programs that hold a construct of their own: a loop over rows, a solver, a derivative.

Their bodies have few forms; what stands around them has any. In the twin an array is a list, and a derivative is
another mode's, of concrete values.
"""

from __future__ import annotations

from random_programs.kinds import Float, is_filled, shape_text, without
from random_programs.operations import operation
from random_programs.writer import THRESHOLDS, Writer


def _trips(w: Writer) -> str:
    """A number of iterations, known or not; it may be zero."""
    return w.int_variable() or w.choose(("2", "3", "0"))


@operation(5)
def written_once(w: Writer) -> bool:
    """An array whose slots are written once each, in some order, and read before and after that."""
    found = w.floats(lambda k: k.rank < 2 and k.is_static)
    if found is None:
        return False
    x, kind = found
    size, shape = w.number(2, 4), shape_text(kind.dims)
    place = w.choose(("t", f"{size - 1} - t", f"(t + 1) % {size}"))
    # The array of the iteration before is read too: it stays as it was.
    seen, at = w.choose(("c[0]", "c[2]")), w.choose((f"(t + {size - 1}) % {size}", f"(t + 1) % {size}", "0"))
    dtype, factor, part = "float64", "0.7", "{0}"
    if w.chance(2):
        dtype, factor, part = "complex128", "(0.6 + 0.4j)", "(lambda z: np.sin(np.real(z) + np.imag(z)))({0})"
    trips = str(size) if w.chance(2) else f"{_trips(w)} % {size + 1}"

    def loop(name: str, new: str, write: str, read: str) -> str:
        body = f"lambda t, c: ({write}, np.sin(c[1] * 0.8 + {part.format(read)} * 0.5), c[0])"
        return f"{name}{trips}, {body}, ({new}, {x}, {new}))"

    new = f'cg.TensorArray("{dtype}", size={size}, element_shape={shape})'
    traced = loop("cg.fori_loop(0, ", new, f"c[0].write({place}, c[1] * {factor})", f"{seen}.read({at})")
    zeros = f'[np.zeros({shape}, "{dtype}")] * {size}'
    plain = loop("looped(", zeros, f"written(c[0], {place}, c[1] * {factor})", f"{seen}[{at}]")
    form = w.choose(("stack", "gather", "read", "concat", "carry"))
    result, dims = (f"{traced}[0].stack()", f"np.stack({plain}[0])"), (size, *kind.dims)
    if form == "carry":
        part, result, dims = "{0}", (f"{traced}[1]", f"{plain}[1]"), kind.dims
    elif form == "read":
        result, dims = (f"{traced}[2].read(1)", f"{plain}[2][1]"), kind.dims
    elif form == "gather":
        slots = f"np.array([1, 0, 1]) * {_trips(w)} % {size}"
        result, dims = (f"{traced}[0].gather({slots})", f"np.stack({plain}[0])[{slots}]"), (3, *kind.dims)
    elif form == "concat" and kind.rank and isinstance(kind.dims[0], int):
        result, dims = (f"{traced}[0].concat()", f"np.concatenate({plain}[0])"), (kind.dims[0] * size, *kind.dims[1:])
    w.line(Float(dims), f"written once: {form}", *(part.format(text) for text in result))
    return True


@operation(4)
def ragged(w: Writer) -> bool:
    """Rows of several lengths, pushed or written in a loop and joined or read behind it."""
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if found is None or w.fixed:
        return False
    x, kind = found
    trips, tail = _trips(w), f"{x}[t % {x}.shape[0]:]"
    cut = w.choose((tail, f"{x}[:t % {x}.shape[0]]", f"np.concatenate([{tail}, {x}])", x))

    def body(push: str) -> str:
        part = f"np.sin({cut} + c[1])"
        return f"lambda t, c: ({push.format(part)}, np.tanh(c[1] * 0.6 + np.sum({cut} * c[1], axis=0) * 0.3))"

    push = w.choose(("c[0].push({0})", "c[0].write(c[0].size(), {0})"))
    left = Float((w.unknown(filled=False), *kind.dims[1:]))
    new = f'cg.TensorArray("float64", element_shape={shape_text(left.dims)}, rewritable={w.chance(2)}).push({x})'
    traced = f"cg.fori_loop(0, {trips}, {body(push)}, ({new}, {x}[0]))"
    plain = f"looped({trips}, {body('written(c[0], len(c[0]), {0})')}, ([{x}], {x}[0]))"
    form = w.choose(("concat", "read", "carry"))
    if form == "carry":
        w.line(without(kind, 0), "ragged: carry", f"{traced}[1]", f"{plain}[1]")
    elif form == "read":
        w.line(left, "ragged: read", f"{traced}[0].read({trips})", f"{plain}[0][{trips}]")
    else:
        w.line(left, "ragged: concat", f"{traced}[0].concat()", f"np.concatenate({plain}[0])")
    return True


@operation(3)
def masked(w: Writer) -> bool:
    """The elements or rows that are below a threshold: as many as the data say."""
    found = w.floats(lambda k: k.rank > 0)
    if found is None or w.fixed:
        return False
    x, kind = found
    threshold = w.choose(THRESHOLDS)
    form = w.choose(("elements", "rows", "places", "set"))
    left = Float((w.unknown(filled=False),))
    text = f"{x}[{{0}}({x}, {threshold})]"
    if form == "rows" and kind.rank == 2 and is_filled(kind.dims[1]):
        left, text = Float((*left.dims, kind.dims[1])), f"{x}[{{0}}({x}[:, 0], {threshold})]"
    elif form == "places" and kind.rank == 1:
        text = f"{x}[np.nonzero({{0}}({x}, {threshold}))[0]] * 0.9"
    elif form == "set":
        value = w.scalar()
        plain = f'updated({x}, less({x}, {threshold}), {value}, "set")'
        w.line(kind, "mask: set", f"cnp.at({x})[np.less({x}, {threshold})].set({value})", plain)
        return True
    w.line(left, f"mask: {form}", text.format("np.less"), text.format("less"))
    return True


@operation(3)
def beyond_an_axis(w: Writer) -> bool:
    """Places of which some lie outside: they are filled, clipped or dropped."""
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if found is None:
        return False
    x, kind = found
    places = f"(np.array([1, 5, -1, -7]) + {_trips(w)})"
    mode = w.choose(("fill", "clip", "drop", "clip and add"))
    if mode in ("fill", "clip"):
        traced = f'cnp.at({x})[{places}].get(mode="{mode}", fill_value=0.5)'
        w.line(Float((4, *kind.dims[1:])), f"beyond: {mode}", traced, f'beyond({x}, {places}, "{mode}")')
    else:
        other = w.floats(lambda k: k == without(kind, 0))
        value = f"{'0.25' if other is None else other[0]} * 0.3"
        traced = f'np.sin(cnp.at({x})[{places}].add({value}, mode="{mode[:4]}"))'
        w.line(kind, f"beyond: {mode}", traced, f'np.sin(beyond({x}, {places}, "{mode}", {value}))')
    return True


@operation(3)
def solved(w: Writer) -> bool:
    """A root that a loop finds, or a linear equation, whose derivative is that of the equation."""
    x, kind = w.any_float()
    other = w.floats(lambda k: k == kind)
    assert other is not None
    y = other[0]
    inverse = "lambda g, b: b / g(np.ones_like(b))"
    if w.chance(2):
        until = "lambda f, z: cg.while_loop(lambda z: np.any(np.abs(f(z)) > 1e-14), lambda z: z - f(z), z)"
        solver = w.choose(("lambda f, z: cg.fori_loop(0, 50, lambda t, z: z - f(z), z)", until))
        equation = f"lambda z: z - 0.4 * np.sin(z + {y}) - {x} * 0.5"
        plain = f"looped(50, lambda t, z: 0.4 * np.sin(z + {y}) + {x} * 0.5, {x})"
        w.line(kind, "custom_root", f"cg.custom_root({equation}, cg.stop_gradient({x}), {solver}, {inverse})", plain)
    else:
        more = w.choose(("symmetric=True", f"transpose_solve={inverse}"))
        traced = f"cg.custom_linear_solve(lambda v: v * (1.7 + np.sin({y})), {x}, {inverse}, {more})"
        w.line(kind, "custom_linear_solve", traced, f"{x} / (1.7 + np.sin({y}))")
    return True


@operation(4)
def jacobian(w: Writer) -> bool:
    """All derivatives of a loop at once, of first or second order, or the transpose of a linear one."""
    found = w.floats(lambda k: k.rank < 2 and k.is_static and k.is_filled)
    if "gradients" not in w.features or w.cuts or found is None:
        return False
    x, kind = found
    other = w.floats(lambda k: k == kind)
    assert other is not None
    y, trips = other[0], _trips(w)
    loop = f"cg.fori_loop(0, {trips}, lambda t, c: np.sin(c * 0.9 + {y}) - np.mean(c * c) * 0.1, z)"
    linear = f"lambda z: cg.fori_loop(0, {trips}, lambda t, c: c * {y} * 0.5 + np.sum(c) * 0.1, z)"
    scalar = f"lambda z: np.sum({loop} ** 2)"
    # How it is computed, and in the twin.
    form, traced, plain = w.choose(
        (
            ("jacrev", f"cg.jacrev(lambda z: {loop})({x})", f"cg.jacfwd(lambda z: {loop})"),
            ("jacfwd", f"cg.jacfwd(lambda z: {loop})({x})", f"cg.jacrev(lambda z: {loop})"),
            ("hessian", f"cg.hessian({scalar})({x})", f"cg.jacfwd(cg.jacfwd({scalar}))"),
            ("transpose", f"cg.linear_transpose({linear}, {x})({x})[0]", f"lambda z: cg.vjp({linear}, z)[1](z)[0]"),
        )
    )
    dims = kind.dims if form == "transpose" else kind.dims * 2
    w.line(Float(dims), form, f"np.sin({traced})", f"np.sin(here({plain}, {x}))")
    return True
