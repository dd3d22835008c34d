"""Branches and calls of random programs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

from random_programs.constructs import (
    CONSTRUCTS,
    as_it_is,
    construct,
    declare_out,
    structure,
    value_of,
    write_statements,
)
from random_programs.kinds import (
    SCALAR,
    Array,
    Bool,
    Dim,
    Float,
    Int,
    Kind,
    Typed,
    Unknown,
    Variable,
    is_filled,
    shape_text,
    without,
)
from random_programs.program import Block, Branch, Call, Parameter, Structure
from random_programs.writer import DEEPEST, Writer

_LITERALS = {SCALAR: ("0.5", "-0.25", "1.0"), Int(): ("0", "2", "3"), Bool(): ("True", "False")}


# Of a checkpoint, what else is kept.
POLICIES = ("", "", "dots_saveable", "everything_saveable", "nothing_saveable", "dots_with_no_batch_dims_saveable")


@construct(2)
def branch(w: Writer) -> None:
    form = w.choose(("cond", "switch", "case"))
    count = 2 if form == "cond" else w.number(1 if form == "switch" else 2, 3)
    # Beyond the last branch at times, or before the first.
    places = ("{0}", "{0}", "{0} - 1", "{0} * 2 - 3")
    switch = form == "switch"
    selectors = [w.choose(places).format(w.integer())] if switch else [w.boolean() for _ in range(count - 1)]
    parameters = [] if form == "case" else _parameters(w, 0)
    styles = ("full", "full", "empty", "constant", "alike") if "branches" in w.features else ("full",)
    style = w.choose(styles)
    if style == "constant":
        targets = [(w.choose(tuple(_LITERALS)), frozenset[str]()) for _ in range(w.number(1, 2))]
    else:
        targets = [_target(w) for _ in range(w.number(1, 3))]
    blocks: list[Block] = []
    for _ in range(count):
        if style == "alike" and blocks:
            # Names end with their function, so the same text may stand in each.
            blocks.append(blocks[0])
            continue
        with w.block():
            for parameter, kind in parameters:
                w.declare(kind, parameter.inner)
            if style == "empty":
                results = [as_it_is(w, kind, free, unknown_only=True) for kind, free in targets]
            elif style == "constant":
                results = [w.choose(_LITERALS[kind]) for kind, _ in targets]
            else:
                write_statements(w, 4)
                results = [value_of(w, kind, free, unknown_only=True) for kind, free in targets]
            blocks.append(w.finished(results))
    outs = tuple(declare_out(w, kind, free) for kind, free in targets)
    w.statements.append(
        Branch(form, tuple(selectors), tuple(p for p, _ in parameters), structure(w), tuple(blocks), outs)  # type: ignore[arg-type]
    )


def _target(w: Writer) -> tuple[Kind, frozenset[str]]:
    """A kind for a branch's result: that of something visible. Branches may give different unknown sizes."""
    found = w.pick(lambda k: True)
    assert found is not None
    kind = found.kind
    if isinstance(kind, Float) and not kind.is_static and w.chance(2) and not w.fixed:
        return kind, frozenset(d.name for d in kind.dims if isinstance(d, Unknown) and not d.told)
    return kind, frozenset()


def _parameters(w: Writer, fewest: int) -> list[tuple[Parameter, Kind]]:
    found: list[Variable | None] = [w.pick(lambda k: True) for _ in range(w.number(fewest, 2))]
    return [(Parameter(w.fresh("p"), v.name), v.kind) for v in found if v is not None]


@construct(1)
def call(w: Writer) -> None:
    form = w.choose(("plain", "function", "checkpoint", "checkpoint"))
    parameters = _parameters(w, 1)
    with w.block():
        for parameter, kind in parameters:
            w.declare(kind, parameter.inner)
        write_statements(w, 4)
        found = [v for v in (w.pick(lambda k: True) for _ in range(w.number(1, 2))) if v is not None]
        block = w.finished([v.name for v in found])
    outs = tuple(w.declare(v.kind) for v in found)
    policy = w.choose(POLICIES) if form == "checkpoint" else ""
    made = tuple(p for p, _ in parameters)
    w.statements.append(Call(form, made, structure(w), block, outs, policy=policy))  # type: ignore[arg-type]


def _floats(w: Writer) -> list[tuple[Parameter, Float]]:
    """One or two parameters that are differentiated, of known shapes; none where there is no such float."""
    found = [f for f in (w.floats(lambda k: k.is_static) for _ in range(w.number(1, 2))) if f is not None]
    return [(Parameter(w.fresh("p"), name), kind) for name, kind in found]


@construct(1)
def custom_rule(w: Writer) -> None:
    """A function with a rule of its own, which sees nothing but its parameters."""
    parameters = _floats(w)
    if "rules" not in w.features or not parameters:
        call(w)
        return
    jvp = w.forward or not w.chance(2)
    form: Literal["custom_jvp", "custom_vjp"] = "custom_jvp" if jvp else "custom_vjp"
    rule: Literal["later", "kept", "pushed", "linearized", "pulled twice"]
    rule = w.choose(("pushed", "linearized", "pulled twice") if jvp else ("later", "kept"))  # type: ignore[assignment]
    with w.hidden(), w.block(), w.forward_mode() if jvp else nullcontext():
        for parameter, kind in parameters:
            w.declare(kind, parameter.inner)
        if w.depth < DEEPEST and w.chance(2):
            # A derivative of straight lines leaves no stacks for the rule to hand on.
            w.choose(CONSTRUCTS)(w)
        write_statements(w, 3)
        found = [w.any_float() for _ in range(w.number(1, 2))]
        block = w.finished([name for name, _ in found])
    outs = tuple(w.declare(kind) for _, kind in found)
    w.statements.append(Call(form, tuple(p for p, _ in parameters), structure(w), block, outs, rule=rule))


@construct(2)
def derivative(w: Writer) -> None:
    """The gradient of a scalar of a block, or the derivative of a float of it along directions.

    The twin differentiates with concrete values, so it knows all sizes.
    """
    parameters = _floats(w)
    if "gradients" not in w.features or w.cuts or not parameters:
        call(w)
        return

    def is_usable(kind: Kind) -> bool:
        return not isinstance(kind, Array) and (not isinstance(kind, Float) or kind.is_static)

    form: Literal["grad", "jvp", "linearize"] = w.choose(("grad", "grad", "jvp", "linearize"))  # type: ignore[assignment]
    directions = [] if form == "grad" else [_direction(w, kind) for _, kind in parameters]
    # Forward mode has no use of a function with a rule for reverse mode alone.
    forward = nullcontext() if form == "grad" else w.forward_mode()
    with w.hidden(is_usable), w.block(), w.fixed_sizes(), forward:
        for parameter, kind in parameters:
            w.declare(kind, parameter.inner)
        outside = tuple(v.name for v in w.visible[: -len(parameters)])
        write_statements(w, 2)
        if form == "grad":
            names = [w.any_float()[0] for _ in range(2)]
            result = w.line(SCALAR, "sum", f"np.sum(np.sin({names[0]})) * 0.5 + np.cos(np.sum({names[1]})) * 0.3").name
            kinds: list[Float] = [kind for _, kind in parameters]
        else:
            found = w.floats(lambda k: k.is_static)
            assert found is not None
            result, kinds = found[0], [found[1]]
        block = w.finished([result])
    outs = tuple(w.fresh("g") for _ in kinds)
    made = tuple(p for p, _ in parameters)
    w.statements.append(Call(form, made, Structure("bare"), block, outs, visible=outside, directions=tuple(directions)))
    for out, kind in zip(outs, kinds, strict=True):
        # A derivative may be of any size: it is seen through a bounded function.
        w.line(kind, f"{form} inside", f"np.sin({out})")


def _direction(w: Writer, kind: Float) -> str:
    """Any visible float of the kind."""
    found = w.floats(lambda k: k == kind)
    assert found is not None
    return found[0]


@construct(1)
def vmap(w: Writer) -> None:
    """A block for the rows of one or two tensors, and what it gives of known shape."""
    leading = w.floats(lambda k: k.rank > 0 and is_filled(k.dims[0]))
    if "vmap" not in w.features or leading is None:
        call(w)
        return
    size = leading[1].dims[0]
    parameters: list[tuple[Parameter, Kind]] = [_row(w, *leading, size)]
    more = w.floats(lambda k: size in k.dims)
    if more is not None and w.chance(2):
        parameters.append(_row(w, *more, size))
    if w.chance(3):
        shared = w.pick(lambda k: isinstance(k, Float | Int | Bool))
        if shared is not None:
            parameters.append((Parameter(w.fresh("p"), shared.name), shared.kind))

    def can_return(kind: Kind) -> bool:
        if isinstance(kind, Float):
            return kind.is_static and kind.rank < 3
        return isinstance(size, int) and isinstance(kind, Int | Bool | Typed)

    with w.hidden(lambda kind: not isinstance(kind, Array)), w.block(), w.fixed_sizes():
        for parameter, kind in parameters:
            w.declare(kind, parameter.inner)
        if w.depth < DEEPEST and w.chance(3):
            custom_rule(w)
        write_statements(w, 4)
        found = [v for v in (w.pick(can_return) for _ in range(w.number(1, 2))) if v is not None]
        if not found:
            found = [w.line(SCALAR, "sum", f"np.sin(np.sum({parameters[0][0].inner}))")]
        block = w.finished([v.name for v in found])
    outs, rows, axes = [], [], []
    for variable in found:
        kind = variable.kind
        axes.append(w.choose((0, 0, kind.rank)) if isinstance(kind, Float) else 0)
        if isinstance(kind, Float):
            outs.append(w.declare(Float((*kind.dims[: axes[-1]], size, *kind.dims[axes[-1] :]))))
            rows.append(shape_text(kind.dims))
            continue
        assert isinstance(size, int)
        if isinstance(kind, Typed):
            outs.append(w.declare(Typed((size, *kind.dims), kind.dtype)))
            rows.append(shape_text(kind.dims))
        else:
            outs.append(w.declare(Typed((size,), "int64" if isinstance(kind, Int) else "bool")))
            rows.append("()")
    made = tuple(p for p, _ in parameters)
    w.statements.append(Call("vmap", made, structure(w), block, tuple(outs), tuple(rows), tuple(axes)))


def _row(w: Writer, name: str, kind: Float, size: Dim) -> tuple[Parameter, Kind]:
    """A parameter for the rows along an axis of this size."""
    axis = w.choose([axis for axis, dim in enumerate(kind.dims) if dim == size])
    return Parameter(w.fresh("p"), name, mapped=True, axis=axis), without(kind, axis)
