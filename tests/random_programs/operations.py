"""Lines of random programs, first half: arithmetic, reductions and products; and the table of all.

A function writes one line, or says False where nothing visible fits. `parts` and `arrays` add theirs.

Bounds: every operation takes values within [-2, 2] to values within [-2, 2].
"""

from __future__ import annotations

from collections.abc import Callable

from random_programs.kinds import Bool, Dim, Float, Int, is_grown, without
from random_programs.writer import THRESHOLDS, Writer

Operation = Callable[[Writer], bool]
# Each with the number of lots it has in the draw.
OPERATIONS: list[tuple[int, Operation]] = []


def operation(lots: int) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        OPERATIONS.append((lots, function))
        return function

    return register


_UNARY = (
    "np.sin({0})",
    "np.cos({0})",
    "np.tanh({0})",
    "{0} * 0.8",
    "-{0}",
    "np.exp(-{0} * {0})",
    "0.9 * np.sqrt({0} * {0} + 0.5)",
    "np.log({0} * {0} + 1.2)",
    "1.0 / ({0} * {0} + 0.7)",
    "0.5 * {0} ** 2",
    "0.25 * {0} ** 3",
    "np.arctan({0})",
    "0.5 * np.sinh({0})",
    "np.expm1({0} * 0.5)",
    "np.log1p({0} * {0})",
    "np.square({0}) * 0.5",
)
_BINARY = (
    "({0} + {1}) * 0.5",
    "({0} - {1}) * 0.5",
    "{0} * {1} * 0.5",
    "{0} / ({1} * {1} + 1.0)",
    "np.sin({0} + {1})",
    "np.arctan2({0}, {1} * {1} + 1.0) * 0.7",
    "np.tanh({0} * {1})",
    "np.hypot({0}, {1} * {1} + 0.5) * 0.4",
    "np.logaddexp({0}, {1}) * 0.7",
    "({0} * {0} + 0.5) ** ({1} * 0.5) * 0.4",
)


@operation(8)
def unary(w: Writer) -> bool:
    x, kind = w.any_float()
    w.line(kind, "unary", w.choose(_UNARY).format(x))
    return True


def broadcast(a: Float, b: Float) -> Float | None:
    """The kind of an elementwise result; None where the two do not fit or it is not certain."""
    dims: list[Dim] = []
    rank = max(a.rank, b.rank)
    for d, e in zip((1,) * (rank - a.rank) + a.dims, (1,) * (rank - b.rank) + b.dims, strict=True):
        if d != e and 1 not in (d, e):
            return None
        dims.append(e if d == 1 else d)
    return Float(tuple(dims))


def _pair(w: Writer) -> tuple[str, str, Float]:
    """Two floats that broadcast, and the result's kind."""
    x, kind = w.any_float()
    other = w.floats(lambda k: broadcast(kind, k) is not None)
    assert other is not None
    result = broadcast(kind, other[1])
    assert result is not None
    return x, other[0], result


@operation(12)
def binary(w: Writer) -> bool:
    x, y, kind = _pair(w)
    w.line(kind, "binary", w.choose(_BINARY).format(x, y))
    return True


@operation(1)
def maximum(w: Writer) -> bool:
    x, y, kind = _pair(w)
    # Shifted: two names may hold one value.
    w.line(kind, "maximum", f"np.maximum({x}, {y} - 0.11) * 0.9", f"maximum({x}, {y} - 0.11) * 0.9")
    return True


@operation(2)
def where(w: Writer) -> bool:
    x, y, kind = _pair(w)
    if w.chance(2):
        w.line(kind, "where", f"np.where({w.boolean()}, {x}, {y})")
    else:
        threshold = w.choose(THRESHOLDS)
        text = "np.where({2}({0}, {3}), {0}, {1})"
        w.line(kind, "where", text.format(x, y, "np.less", threshold), text.format(x, y, "less", threshold))
    return True


@operation(2)
def with_constant_array(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0 and k.is_static)
    if found is None:
        return False
    x, kind = found
    size = kind.dims[-1]
    assert isinstance(size, int)
    values = ", ".join(str(w.choose((0.5, -0.7, 1.1, 0.0))) for _ in range(size))
    w.line(kind, "constant array", f"np.sin({x} * np.array([{values}]))")
    return True


@operation(3)
def with_integer(w: Writer) -> bool:
    name = w.int_variable()
    if name is None:
        return False
    x, kind = w.any_float()
    w.line(kind, "integer times float", f"{x} * {name} * 0.3")
    return True


@operation(4)
def integers(w: Writer) -> bool:
    name = w.int_variable()
    if name is None or w.chance(4):
        x = w.scalar()
        count = f"1.6 + 1.5 * np.sin({x})"
        w.line(Int(), "floor of a float", f"np.floor({count}).astype(np.int64)", f"floored({count})")
        return True
    other = w.integer()
    text = w.choose(("({0} + 1) % 4", "({0} + {1}) % 4", "({0} * {1}) % 4", "3 - {0}", "{0} // 2"))
    w.line(Int(), "integer arithmetic", text.format(name, other))
    return True


@operation(2)
def booleans(w: Writer) -> bool:
    name = w.boolean()
    other = w.pick(lambda kind: isinstance(kind, Bool))
    if other is None or w.chance(2):
        w.line(Bool(), "logic", f"np.logical_not({name})")
    else:
        w.line(Bool(), "logic", f"np.{w.choose(('logical_and', 'logical_or', 'logical_xor'))}({name}, {other.name})")
    return True


@operation(1)
def integer_where(w: Writer) -> bool:
    name = w.int_variable()
    if name is None:
        return False
    w.line(Int(), "where", f"np.where({w.boolean()}, {name}, {w.integer()})")
    return True


# Reductions and products.


@operation(4)
def reduction(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0)
    if found is None:
        return False
    x, kind = found
    axis = w.number(0, kind.rank - 1)
    forms = ("sum", "all", "keepdims", "mean", "max", "prod", "cumsum", "logsumexp")
    # A sum along the middle axis of three, of the products of rows.
    form = w.choose((*forms, "between") if kind.rank == 2 else forms)
    if (form in ("mean", "max", "logsumexp") and not kind.is_filled) or (form == "max" and kind.dims[axis] == 1):
        form = "sum"
    if form == "sum":
        w.line(without(kind, axis), form, f"np.sin(np.sum({x}, axis={axis}))")
    elif form == "all":
        w.line(Float(), "sum of all", f"np.cos(np.sum({x}))")
    elif form == "keepdims":
        dims = kind.dims[:axis] + (1,) + kind.dims[axis + 1 :]
        w.line(Float(dims), "sum with keepdims", f"np.sin(np.sum({x}, axis={axis}, keepdims=True))")
    elif form == "mean":
        w.line(without(kind, axis), form, f"np.mean({x}, axis={axis})")
    elif form == "max":
        w.line(without(kind, axis), form, f"np.max({x}, axis={axis})", f"largest({x}, {axis})")
    elif form == "prod":
        w.line(without(kind, axis), form, f"np.tanh(np.prod({x} * 0.6, axis={axis}))")
    elif form == "between":
        dims = (kind.dims[1], kind.dims[1])
        w.line(Float(dims), "sum between", f"np.sin(np.sum({x}.T[:, :, None] * {x}[None] * 0.4, axis=1))")
    elif form == "cumsum":
        w.line(kind, form, f"np.sin(np.cumsum({x}, axis={axis}))")
    else:
        traced = f"np.tanh(cnp.logsumexp({x}, axis={axis}))"
        w.line(without(kind, axis), form, traced, f"np.tanh(np.log(np.sum(np.exp({x}), axis={axis})))")
    return True


@operation(2)
def product(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank > 0)
    if found is None:
        return False
    x, kind = found
    other = w.floats(lambda k: 1 <= k.rank <= 2 and k.dims[-2 if k.rank == 2 else 0] == kind.dims[-1])
    if other is None:
        return False
    y, right = other
    w.line(Float(kind.dims[:-1] + right.dims[1:]), "matmul", f"np.sin({x} @ {y} * 0.4)")
    return True


@operation(1)
def outer(w: Writer) -> bool:
    vectors = [w.floats(lambda k: k.rank == 1) for _ in range(2)]
    if vectors[0] is None or vectors[1] is None:
        return False
    (x, a), (y, b) = vectors[0], vectors[1]
    if is_grown(a) and is_grown(b):
        return False
    w.line(Float(a.dims + b.dims), "outer product", f"{x}[:, None] * {y}[None, :] * 0.5")
    return True


@operation(1)
def sorting(w: Writer) -> bool:
    found = w.floats(lambda k: k.rank == 1 and k.is_static)
    if found is None:
        return False
    w.line(found[1], "sort", f"np.sort({found[0]})", f"ordered({found[0]})")
    return True
