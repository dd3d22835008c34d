"""Lines of random programs that hold a construct of their own: a loop over rows, a solver, a derivative.

Their bodies have few forms; what stands around them has any. In the twin an array is a list, and a derivative is
another mode's, of concrete values.
"""

from __future__ import annotations

from collections.abc import Callable

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

    def loop(name: str, new: str, write: Callable[[str], str], read: str) -> str:
        body = f"lambda t, c: ({write('c[1] * 0.7')}, np.sin(c[1] * 0.8 + {read} * 0.5), c[0])"
        return f"{name}{body}, ({new}, {x}, {new}))"

    trips = str(size) if w.chance(2) else f"{_trips(w)} % {size + 1}"
    new = f'cg.TensorArray("float64", size={size}, element_shape={shape})'
    traced = loop(f"cg.fori_loop(0, {trips}, ", new, lambda v: f"c[0].write({place}, {v})", f"{seen}.read({at})")
    lists = f"[np.zeros({shape})] * {size}"
    plain = loop(f"looped({trips}, ", lists, lambda v: f"written(c[0], {place}, {v})", f"{seen}[{at}]")
    form = w.choose(("stack", "gather", "read", "concat", "carry"))
    if form == "carry":
        w.line(kind, "written once: carry", f"{traced}[1]", f"{plain}[1]")
    elif form == "read":
        which, slot = w.choose((0, 2)), w.number(0, size - 1)
        w.line(kind, "written once: read", f"{traced}[{which}].read({slot})", f"{plain}[{which}][{slot}]")
    elif form == "gather":
        slots = f"np.array([1, 0, 1]) * {_trips(w)} % {size}"
        w.line(
            Float((3, *kind.dims)),
            "written once: gather",
            f"{traced}[0].gather({slots})",
            f"np.stack({plain}[0])[{slots}]",
        )
    elif form == "concat" and kind.rank and isinstance(kind.dims[0], int):
        dims = (kind.dims[0] * size, *kind.dims[1:])
        w.line(Float(dims), "written once: concat", f"{traced}[0].concat()", f"np.concatenate({plain}[0])")
    else:
        w.line(Float((size, *kind.dims)), "written once: stack", f"{traced}[0].stack()", f"np.stack({plain}[0])")
    return True


@operation(4)
def ragged(w: Writer) -> bool:
    """Rows of several lengths, pushed or written in a loop and joined or read behind it."""
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if found is None or w.fixed:
        return False
    x, kind = found
    row, trips = without(kind, 0), _trips(w)
    cut = w.choose(
        (f"{x}[t % {x}.shape[0]:]", f"{x}[:t % {x}.shape[0]]", f"np.concatenate([{x}[t % {x}.shape[0]:], {x}])")
    )

    def body(push: str) -> str:
        part = f"np.sin({cut} + c[1])"
        return f"lambda t, c: ({push.format(part)}, np.tanh(c[1] * 0.6 + np.sum({cut} * c[1], axis=0) * 0.3))"

    push = w.choose(("c[0].push({0})", "c[0].write(c[0].size(), {0})"))
    shape = shape_text((w.unknown(filled=False), *kind.dims[1:]))
    new = f'cg.TensorArray("float64", element_shape={shape}, rewritable={w.chance(2)})'
    traced = f"cg.fori_loop(0, {trips}, {body(push)}, ({new}, {x}[0]))"
    plain = f"looped({trips}, {body('written(c[0], len(c[0]), {0})')}, ([], {x}[0]))"
    if w.chance(3):
        w.line(row, "ragged: carry", f"{traced}[1]", f"{plain}[1]")
    else:
        joined = Float((w.unknown(filled=False), *kind.dims[1:]))
        w.line(joined, "ragged: concat", f"{traced}[0].concat()", f"np.concatenate([{x}[:0], *{plain}[0]])")
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
    left = w.unknown(filled=False)
    if form == "rows" and kind.rank > 1 and is_filled(kind.dims[1]) and kind.rank == 2:
        text = f"{x}[{{0}}({x}[:, 0], {threshold})]"
        w.line(Float((left, *kind.dims[1:])), "mask of rows", text.format("np.less"), text.format("less"))
    elif form == "places" and kind.rank == 1:
        text = f"{x}[np.nonzero({{0}}({x}, {threshold}))[0]] * 0.9"
        w.line(Float((left,)), "places of a mask", text.format("np.less"), text.format("less"))
    elif form == "set":
        value = w.scalar()
        plain = f'updated({x}, less({x}, {threshold}), {value}, "set")'
        w.line(kind, "at set of a mask", f"cnp.at({x})[np.less({x}, {threshold})].set({value})", plain)
    else:
        text = f"{x}[{{0}}({x}, {threshold})]"
        w.line(Float((left,)), "mask of elements", text.format("np.less"), text.format("less"))
    return True


@operation(3)
def beyond_an_axis(w: Writer) -> bool:
    """Places of which some lie outside: they are filled, clipped or dropped."""
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if found is None:
        return False
    x, kind = found
    places = f"(np.array([1, 5, -1, -7]) + {_trips(w)})"
    form = w.choose(("fill", "clip", "drop", "clipped add"))
    if form in ("fill", "clip"):
        more = ", fill_value=0.5" if form == "fill" else ""
        traced = f'cnp.at({x})[{places}].get(mode="{form}"{more})'
        w.line(Float((4, *kind.dims[1:])), f"get: {form}", traced, f'beyond({x}, {places}, "{form}")')
    else:
        mode = "drop" if form == "drop" else "clip"
        other = w.floats(lambda k: k == without(kind, 0))
        value = f"{'0.25' if other is None else other[0]} * 0.3"
        traced = f'cnp.at({x})[{places}].add({value}, mode="{mode}")'
        w.line(kind, f"at add: {mode}", f"np.sin({traced})", f'np.sin(added_beyond({x}, {places}, {value}, "{mode}"))')
    return True


@operation(3)
def solved(w: Writer) -> bool:
    """A root that a loop finds, or a linear equation, whose derivative is that of the equation."""
    x, kind = w.any_float()
    other = w.floats(lambda k: k == kind)
    assert other is not None
    y = other[0]
    if w.chance(2):
        equation = f"lambda z: z - 0.4 * np.sin(z + {y}) - {x} * 0.5"
        known = "lambda f, z: cg.fori_loop(0, 50, lambda t, z: z - f(z), z)"
        until = "lambda f, z: cg.while_loop(lambda z: np.any(np.abs(f(z)) > 1e-14), lambda z: z - f(z), z)"
        solver = known if w.chance(2) else until
        tangent = "lambda g, b: b / g(np.ones_like(b))"
        plain = f"looped(50, lambda t, z: 0.4 * np.sin(z + {y}) + {x} * 0.5, {x})"
        w.line(kind, "custom_root", f"cg.custom_root({equation}, cg.stop_gradient({x}), {solver}, {tangent})", plain)
    else:
        solver, symmetric = "lambda mv, b: b / mv(np.ones_like(b))", w.chance(2)
        more = "symmetric=True" if symmetric else f"transpose_solve={solver}"
        traced = f"cg.custom_linear_solve(lambda v: v * (1.7 + np.sin({y})), {x}, {solver}, {more})"
        w.line(kind, "custom_linear_solve", traced, f"{x} / (1.7 + np.sin({y}))")
    return True


@operation(4)
def jacobian(w: Writer) -> bool:
    """All derivatives of a loop at once, of first or second order, or the transpose of a linear one."""
    found = w.floats(lambda k: k.rank < 2 and k.is_static)
    if "gradients" not in w.features or w.cuts or found is None:
        return False
    x, kind = found
    other = w.floats(lambda k: k == kind)
    assert other is not None
    y, trips = other[0], _trips(w)
    loop = f"cg.fori_loop(0, {trips}, lambda t, c: np.sin(c * 0.9 + {y}) - np.mean(c * c) * 0.1, z)"
    if not kind.is_filled:
        loop = loop.replace(" - np.mean(c * c) * 0.1", "")
    form = w.choose(("jacrev", "jacfwd", "hessian", "transpose"))
    if form == "transpose":
        linear = f"lambda z: cg.fori_loop(0, {trips}, lambda t, c: c * {y} * 0.5 + np.flip(c) * 0.3, z)"
        if not kind.rank:
            linear = linear.replace("np.flip(c)", "c")
        traced = f"cg.linear_transpose({linear}, {x})({x})[0]"
        w.line(
            kind, "linear_transpose", f"np.sin({traced})", f"np.sin(here(lambda z: cg.vjp({linear}, z)[1](z)[0], {x}))"
        )
    elif form == "hessian":
        scalar = f"lambda z: np.sum({loop} ** 2)"
        plain = f"here(cg.jacfwd(cg.jacfwd({scalar})), {x})"
        w.line(Float(kind.dims * 2), form, f"np.sin(cg.hessian({scalar})({x}))", f"np.sin({plain})")
    else:
        judge = "jacfwd" if form == "jacrev" else "jacrev"
        plain = f"here(cg.{judge}(lambda z: {loop}), {x})"
        w.line(Float(kind.dims * 2), form, f"np.sin(cg.{form}(lambda z: {loop})({x}))", f"np.sin({plain})")
    return True


@operation(2)
def across_rows(w: Writer) -> bool:
    """A loop of each row that looks at all rows."""
    found = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if "vmap" not in w.features or found is None:
        return False
    x, kind = found
    row = 'np.sin(c) - cg.lax.pmean(c, "rows") * 0.3'
    trips = _trips(w)
    traced = f'cg.vmap(lambda r: cg.fori_loop(0, {trips}, lambda t, c: {row}, r), axis_name="rows")({x})'
    plain = f"looped({trips}, lambda t, c: np.sin(c) - np.mean(c, axis=0) * 0.3, {x})"
    w.line(kind, "vmap with a name", traced, plain)
    return True
