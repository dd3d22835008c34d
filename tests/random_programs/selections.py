"""Lines of random programs: selections by order, and scans along an axis."""

from __future__ import annotations

from random_programs.kinds import SCALAR, Float, is_filled
from random_programs.operations import operation
from random_programs.writer import Writer


@operation(3)
def selecting(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0 and isinstance(k.dims[-1], int) and k.dims[-1] > 0)
    if found is None:
        return False
    x, kind = found
    size = kind.dims[-1]
    assert isinstance(size, int)
    form = w.choose(("top_k", "places of top_k", "argsort", "argmax", "median", "clip", "abs", "where of a domain"))
    if form == "top_k":
        count = w.number(1, min(size, 3))
        plain = f"ordered(-{x}, -1)[..., :{count}] * -1.0"
        w.line(Float((*kind.dims[:-1], count)), form, f"cg.lax.top_k({x}, {count})[0]", plain)
    elif form == "places of top_k" and kind.rank == 1:
        count = w.number(1, min(size, 3))
        other = w.floats(lambda k: k.rank > 0 and k.dims[0] == size)
        assert other is not None
        dims = (count, *other[1].dims[1:])
        plain = f"{other[0]}[by_size(-{x})[:{count}]]"
        w.line(Float(dims), form, f"{other[0]}[cg.lax.top_k({x}, {count})[1]]", plain)
    elif form == "argsort":
        text = "np.take_along_axis({0}, {1}({0}{2}), axis=-1)"
        w.line(kind, form, text.format(x, "np.argsort", ", axis=-1"), text.format(x, "by_size", ""))
    elif form == "argmax" and kind.rank == 1:
        w.line(SCALAR, form, f"{x}[np.argmax({x})]", f"{x}[by_size({x})[-1]]")
    elif form == "median":
        w.line(Float(kind.dims[:-1]), form, f"np.median({x}, axis=-1)", f"np.median(ordered({x}, -1), axis=-1)")
    elif form == "clip":
        plain = f"np.clip({x} + 0.0 * (less({x}, 0.53) | less({x}, -0.47)), -0.47, 0.53)"
        w.line(kind, form, f"np.clip({x}, -0.47, 0.53)", plain)
    elif form == "where of a domain":
        text = "np.where({1}({0}, 0.23), {0} * 0.5, np.sqrt(np.where({1}({0}, 0.23), 1.0, {0})))"
        w.line(kind, form, text.format(x, "np.less"), text.format(x, "less"))
    else:
        w.line(kind, "abs", f"np.abs({x} - 0.37) * 0.8", f"np.abs({x} - 0.37 + 0.0 * less({x}, 0.37)) * 0.8")
    return True


_LINEAR = "lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])"


@operation(3)
def going_along(w: Writer) -> bool:
    """Results along an axis, each from those before it."""
    found = w.floats(lambda k: k.rank > 0 and all(map(is_filled, k.dims)))
    if found is None:
        return False
    x, kind = found
    axis = w.number(0, kind.rank - 1)
    # Scans other than sums and products are trees over a known number of elements.
    trees = ("cummax", "cumlogsumexp", "associative_scan") if isinstance(kind.dims[axis], int) else ()
    form = w.choose(("cumprod", "cumsum backwards", *trees))
    if form == "cumprod":
        w.line(kind, form, f"np.tanh(np.cumprod({x} * 0.6, axis={axis}))")
    elif form == "cummax":
        plain = f"np.maximum.accumulate({x} + 0.0 * ordered({x}, {axis}), axis={axis})"
        w.line(kind, form, f"cg.lax.cummax({x}, axis={axis})", plain)
    elif form == "cumlogsumexp":
        plain = f"np.tanh(np.log(np.cumsum(np.exp({x}), axis={axis})))"
        w.line(kind, form, f"np.tanh(cg.lax.cumlogsumexp({x}, axis={axis}))", plain)
    elif form == "associative_scan":
        other = w.floats(lambda k: k == kind)
        assert other is not None
        reverse = w.chance(2)
        pair = f"({x} * 0.4, {other[0]})"
        traced = f"cg.lax.associative_scan({_LINEAR}, {pair}, axis={axis}, reverse={reverse})[1]"
        w.line(kind, form, f"np.sin({traced})", f"np.sin(accumulated({_LINEAR}, {pair}, {axis}, {reverse}))")
    else:
        w.line(kind, form, f"np.sin(np.flip(np.cumsum(np.flip({x}, {axis}), axis={axis}), {axis}))")
    return True
