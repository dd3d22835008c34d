"""Lines of random programs: moved elements, products of rearranged views, convolutions, systems."""

from __future__ import annotations

from random_programs.kinds import SCALAR, Float, is_filled
from random_programs.operations import operation
from random_programs.writer import Writer


@operation(3)
def arranging(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0 and k.is_filled)
    if found is None:
        return False
    x, kind = found
    axis, name = w.number(0, kind.rank - 1), w.int_variable()
    form = w.choose(
        ("roll", "roll by data", "padded", "repeated", "tiled", "triangle", "diagonal", "last axis backwards")
    )
    if form == "roll by data" and name is not None:
        w.line(kind, form, f"np.roll({x}, {name}, axis={axis})")
    elif form == "padded" and kind.rank == 1:
        # The size decides which elements wrap around.
        mode = w.choose(("constant", "edge", "wrap") if kind.is_static else ("constant", "edge"))
        w.line(kind, form, f'np.pad({x}, (1, 2), mode="{mode}")[{w.number(0, 3)}:][:{x}.shape[0]]')
    elif form == "repeated":
        w.line(kind, form, f"np.repeat({x}, 2, axis=0)[1::2]")
    elif form == "tiled" and kind.rank == 1:
        w.line(kind, form, f"np.tile({x}, 2)[1::2]" if w.chance(2) else f"np.tile({x}, 3)[::3]")
    elif form == "triangle" and kind.rank > 1:
        w.line(kind, form, f"np.{w.choose(('tril', 'triu'))}({x}, {w.number(-1, 1)})")
    elif form == "diagonal" and kind.rank == 2 and kind.dims[0] == kind.dims[1]:
        w.line(Float(kind.dims[:1]), form, f"np.diagonal({x})")
    elif form == "last axis backwards":
        w.line(kind, form, f"{x}[..., ::-1]")
    else:
        w.line(kind, "roll", f"np.roll({x}, {w.choose((1, -1, 2))}, axis={axis})")
    return True


@operation(2)
def at_same_places(w: Writer) -> bool:
    """Updates of which several meet at one place, in an order that matters to none of them."""
    found = w.floats(lambda k: k.rank == 1 and is_filled(k.dims[0]))
    if found is None:
        return False
    x, kind = found
    other = w.floats(lambda k: k.rank == 1 and k.dims[0] == 3)
    values = "np.array([0.5, -0.7, 0.9])" if other is None else other[0]
    name = w.int_variable() or "1"
    how = w.choose(("add", "multiply", "max", "min"))
    key = f"(np.array([0, {w.number(0, 1)}, 2]) * {name}) % {x}.shape[0]"
    given = f"{values} * 0.3 + 0.05" if how == "add" else f"{values} * 0.8 + 0.011"
    plain = f'at_places({x}, {key}, {given}, "{how}")'
    w.line(kind, f"at {how} of same places", f"np.sin(cnp.at({x})[{key}].{how}({given}))", f"np.sin({plain})")
    return True


@operation(3)
def product_of_views(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank == 2)
    if found is None:
        return False
    x, kind = found
    rows, columns = kind.dims
    form = w.choose(("by its transpose", "of transposes", "backwards", "einsum", "of three", "batched", "strided"))
    if form == "of transposes":
        other = w.floats(lambda k: k.rank == 2 and k.dims[1] == rows)
        y = other if other is not None else (f"{x}.T", Float((columns, rows)))
        w.line(Float((columns, y[1].dims[0])), f"product {form}", f"np.sin({x}.T @ {y[0]}.T * 0.3)")
    elif form == "backwards":
        w.line(Float((rows, rows)), f"product {form}", f"np.sin({x}[::-1] @ {x}[:, ::-1].T * 0.3)")
    elif form == "einsum":
        w.line(Float((columns,)), f"product {form}", f'np.tanh(np.einsum("ij,ik->j", {x}, {x}) * 0.2)')
    elif form == "of three":
        w.line(kind, f"product {form}", f"np.sin({x} @ ({x}.T @ {x}) * 0.1)")
    elif form == "batched":
        left = f"np.stack([{x}, {x}[::-1] * 0.5])"
        w.line(Float((2, rows, rows)), f"product {form}", f"np.sin({left} @ np.swapaxes({left}, 1, 2) * 0.3)")
    elif form == "strided" and isinstance(rows, int):
        half = (rows + 1) // 2
        w.line(Float((half, half)), f"product {form}", f"np.sin({x}[::2] @ {x}[::2].T * 0.3)")
    else:
        w.line(Float((rows, rows)), "product by its transpose", f"np.sin({x} @ {x}.T * 0.3)")
    return True


@operation(2)
def convolution(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank in (1, 2) and k.is_filled and k.is_static)
    if found is None:
        return False
    x, kind = found
    other = w.floats(lambda k: k.rank == kind.rank and k.is_filled and k.is_static)
    assert other is not None
    y = other[0]
    if kind.rank == 1:
        size = max(int(d) for d in (*kind.dims, *other[1].dims) if isinstance(d, int))
        w.line(Float((size,)), "convolve", f'np.sin(np.convolve({x}, {y}, mode="same") * 0.3)')
    else:
        traced = f'cg.lax.conv({x}[None, None], {y}[None, None], (1, 1), "SAME")[0, 0]'
        w.line(kind, "conv", f"np.sin({traced} * 0.3)", f"np.sin(correlated({x}, {y}) * 0.3)")
    return True


@operation(2)
def system(w: Writer) -> bool:
    """Linear algebra with a matrix far from any that is singular; its results are bounded like other values."""
    found = w.floats(lambda k: k.rank == 2 and k.is_filled and k.is_static)
    if found is None:
        return False
    x, kind = found
    size = kind.dims[0]
    assert isinstance(size, int)
    matrix = w.line(Float((size, size)), "matrix", f"np.sin({x} @ {x}.T * 0.3) * 0.3 + {size + 1.0} * np.eye({size})")
    a, square = matrix.name, matrix.kind
    form = w.choose(("solve", "inv", "det", "cholesky", "triangular", "qr"))
    if form == "solve":
        w.line(kind, form, f"np.linalg.solve({a}, {x})")
    elif form == "inv":
        w.line(square, form, f"np.linalg.inv({a})")
    elif form == "det":
        w.line(SCALAR, form, f"np.sin(np.linalg.slogdet({a})[1] + np.linalg.det({a} * 0.2))")
    elif form == "cholesky":
        w.line(square, form, f"np.linalg.cholesky({a}) * 0.5")
    elif form == "qr":
        w.line(square, form, f"np.linalg.qr({a})[0]")
    else:
        lower, unit, turned = (w.choose((True, False)) for _ in range(3))
        settings = f"trans={int(turned)}, lower={lower}, unit_diagonal={unit}"
        part, inner = ("tril", -1) if lower else ("triu", 1)
        read = f"(np.{part}({a}, {inner}) + np.eye({size}))" if unit else f"np.{part}({a})"
        # With ones on its diagonal the triangle is as small as they are, so that the solution is bounded.
        scaled = f"({a} * 0.5)" if unit else a
        traced = f"cg.scipy.linalg.solve_triangular({scaled}, {x}, {settings})"
        w.line(kind, form, traced, f"np.linalg.solve({read.replace(a, scaled)}{'.T' if turned else ''}, {x})")
    # The matrix itself leaves the bounds: later lines must not use it.
    w.visible.remove(matrix)
    return True
