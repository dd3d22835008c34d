"""Texts of reductions, from expressions of the plan: combination of elements to one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctrlgrad.dtypes import computed_dtype, dtype_kind
from ctrlgrad.engines.cuda.expressions import literal, statements
from ctrlgrad.engines.cuda.functions import KERNEL_DTYPES
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter, element_lines, leaf_of
from ctrlgrad.engines.cuda.reductions.model import POSITION, ReductionText, Result
from ctrlgrad.plan.elementwise import Operand, elementwise_expression, has_expression
from ctrlgrad.plan.expression import ExpressionBuilder, Instruction, Number, select
from ctrlgrad.plan.lowering.state import parts_of
from ctrlgrad.plan.model import Kernel
from ctrlgrad.plan.reductions import neutral_of

_OPS = {"sum": "add", "product": "multiply", "max": "maximum", "min": "minimum"}
_OF_BOOLS = {"max": "logical_or", "min": "logical_and"}

INT64 = np.dtype(np.int64)


def _op(how: str, dtype: np.dtype) -> str:
    return _OF_BOOLS.get(how, "") if dtype.kind == "b" else _OPS[how]


def is_reduced(how: str, dtype: np.dtype) -> bool:
    """Return true if kernels can reduce a dtype in this way."""
    return dtype.name in KERNEL_DTYPES and has_expression(_op(how, dtype), [dtype, dtype], dtype)


@dataclass(frozen=True)
class _Combined:
    """One of the reductions: `how` of numbers of dtypes (two of a complex one)."""

    how: str
    dtypes: tuple[np.dtype, ...]

    @property
    def starts(self) -> list[str]:
        if len(self.dtypes) == 2:
            # A complex number's.
            real = self.dtypes[0].type(self.how == "product")
            return [literal(x, self.dtypes[0]) for x in (real, self.dtypes[0].type(0))]
        (dtype,) = self.dtypes
        return [literal(dtype.type(neutral_of(self.how, dtype)), dtype)]

    def of(self, builder: ExpressionBuilder, x: Sequence[Number], y: Sequence[Number]) -> tuple[Number, ...]:
        its = self.dtypes[0] if len(self.dtypes) == 1 else np.dtype(f"c{2 * self.dtypes[0].itemsize}")
        operands: list[Operand] = [v[0] if len(v) == 1 else (v[0], v[1]) for v in (x, y)]
        found = elementwise_expression(_op(self.how, its), [its, its], its, builder, operands)
        return found if isinstance(found, tuple) else (found,)


def _combination(reductions: Sequence[_Combined]) -> KernelText:
    """All of them at once."""
    dtypes = [dtype for reduction in reductions for dtype in reduction.dtypes]
    builder = ExpressionBuilder()
    x, y = ([builder.emit("load", (), d, (side, k)) for k, d in enumerate(dtypes)] for side in "xy")
    found: list[Number] = []
    for reduction in reductions:
        mine = slice(len(found), len(found) + len(reduction.dtypes))
        found += reduction.of(builder, x[mine], y[mine])
    return _states_text(builder, found, dtypes)


def _states_text(builder: ExpressionBuilder, found: Sequence[Number], dtypes: Sequence[np.dtype]) -> KernelText:
    def leaf(load: Instruction) -> str:
        side, k = load.value
        return f"{side}{k}"

    text = statements(builder.finish(*found), leaf)
    inputs = [Parameter(dtype.name, f"{side}{k}") for side in "xy" for k, dtype in enumerate(dtypes)]
    outputs = [Parameter(dtype.name, f"r{k}") for k, dtype in enumerate(dtypes)]
    lines = [*text.lines, *(f"r{k} = {name};" for k, name in enumerate(text.outputs))]
    return KernelText(tuple(inputs), tuple(outputs), "\n".join(lines), text.functions)


def reduction_text(kernel: Kernel) -> ReductionText:
    """The text of a plan's kernel some of whose writes are reductions, over the same axes.

    Inputs and what is stored are called as in `kernel_text`; results are in the order of the writes.
    """
    text = statements(kernel.expression, leaf_of(kernel))
    dtypes = [kernel.expression.instructions[output].dtype for output in kernel.expression.outputs]
    inputs, stored, lines = element_lines(kernel, text)
    reductions: list[_Combined] = []
    results: list[Result] = []
    states: list[Parameter] = []
    for write in kernel.writes:
        if write.how == "store":
            continue
        numbers = tuple(range(len(states), len(states) + len(write.outputs)))
        for number, output in zip(numbers, write.outputs, strict=True):
            states.append(Parameter(dtypes[output].name, f"e{number}"))
            lines.append(f"e{number} = {text.outputs[output]};")
        reductions.append(_Combined(write.how, tuple(dtypes[output] for output in write.outputs)))
        results.append(Result(write.view.dtype.name, numbers))
    element = KernelText(inputs, (*stored, *states), "\n".join([*text.lines, *lines]), text.functions)
    starts = tuple(start for reduction in reductions for start in reduction.starts)
    return ReductionText(element, _combination(reductions), starts, tuple(results))


def plain_text(how: str, dtype: np.dtype) -> ReductionText:
    """The reduction of one array."""
    builder, parts = ExpressionBuilder(), parts_of(dtype)
    states = tuple(computed_dtype(part) for part in parts)
    loads = [builder.emit("load", (), part, k) for k, part in enumerate(parts)]
    names = [f"{part}(a0)" for part in ("np_real", "np_imag")] if len(parts) == 2 else ["a0"]
    text = statements(
        builder.finish(*(x.convert(s) for x, s in zip(loads, states, strict=True))), lambda load: names[load.value]
    )
    lines = [*text.lines, *(f"e{k} = {name};" for k, name in enumerate(text.outputs))]
    outputs = tuple(Parameter(state.name, f"e{k}") for k, state in enumerate(states))
    element = KernelText((Parameter(dtype.name, "a0"),), outputs, "\n".join(lines))
    reduction = _Combined(how, states)
    results = (Result(dtype.name, tuple(range(len(parts)))),)
    return ReductionText(element, _combination([reduction]), tuple(reduction.starts), results)


def extreme_text(how: str, dtype: np.dtype) -> ReductionText:
    """Position of the first "max" or "min" of one array's elements. A NaN is beyond all numbers, as in NumPy.

    A state is an element and its position; that of no element is -1, which any other comes before.
    """
    builder, state = ExpressionBuilder(), computed_dtype(dtype)
    (x, i), (y, j) = (
        (builder.emit("load", (), state, (side, 0)), builder.emit("load", (), INT64, (side, 1))) for side in "xy"
    )
    beyond, equal = (y > x, x.equals(y)) if how == "max" else (y < x, x.equals(y))
    if dtype_kind(dtype) == "f":
        is_x, is_y = x.differs(x), y.differs(y)
        beyond, equal = (beyond | is_y) & ~is_x, equal | (is_x & is_y)
    is_next = (j >= 0) & ((i < 0) | beyond | (equal & (j < i)))
    combination = _states_text(builder, [select(is_next, y, x), select(is_next, j, i)], [state, INT64])
    inputs = (Parameter(dtype.name, "a0"), POSITION)
    outputs = (Parameter(state.name, "e0"), Parameter("int64", "e1"))
    value = "a0" if state == dtype else f"{state.name}(a0)"
    element = KernelText(inputs, outputs, f"e0 = {value};\ne1 = position;")
    starts = (literal(state.type(0), state), literal(np.int64(-1), INT64))
    return ReductionText(element, combination, starts, (Result("int64", (1,)),))
