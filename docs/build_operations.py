"""The table of operations in the documentation, made from the registry and the tables keyed by it.

python docs/build_operations.py > docs/operations.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.batching import BATCH
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.gradients import forward  # noqa: F401  (fills the tables)
from ctrlgrad.gradients.table import ELEMENTWISE, FORWARD, LINEAR, NOT_DIFFERENTIABLE, REFUSED, REVERSE
from ctrlgrad.ir import BOOL, INDEX, OPS, Op, StackType, TensorType, Trait, Type
from ctrlgrad.ir.attributes import NamedAxis
from ctrlgrad.ir.control import REGION_OPS

_DTYPES = {
    "bool": np.dtype(bool),
    "int": np.dtype(np.int64),
    "float": np.dtype(np.float64),
    "complex": np.dtype(np.complex128),
}

_X = "x"


@dataclass(frozen=True)
class _Sample:
    """Operands and attributes that fit an op: `_X` stands for a tensor of the dtype that is tried."""

    operands: Sequence[Type | str] = (_X,)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (2, 2)


_SLICES = {"key": (slice(None), slice(None))}
_ROWS = NamedAxis("rows", 0)
_ALONG = {"rows": _ROWS, "axis": 0, "size": 2}
_AXES = {"axes": (0,), "keepdims": False}
_SAMPLES: dict[str, _Sample] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"), _Sample(attrs=_AXES)),
    **dict.fromkeys(("cumsum", "cumprod"), _Sample(attrs={"axis": 0, "reverse": False})),
    **dict.fromkeys(("reshape", "broadcast_to", "sum_to"), _Sample(attrs={"shape": (2, 2)})),
    "ensure_sizes": _Sample(attrs={"axes": (0,), "shape": (2,), "problem": "another shape", "hint": "look at it"}),
    **dict.fromkeys(("setitem", "additem"), _Sample((_X, _X), _SLICES)),
    "dim": _Sample(attrs={"axis": 0}),
    "argsort": _Sample(attrs={"axis": 0, "descending": False}),
    "top_k": _Sample(attrs={"axis": 0, "count": 1}),
    "fft": _Sample(attrs={"axis": 0, "inverse": False}),
    "rfft": _Sample(attrs={"axis": 0, "size": 2}),
    "irfft": _Sample(attrs={"axis": 0, "size": 2}),
    **dict.fromkeys(("matmul", "solve", "adjugate_along"), _Sample((_X, _X))),
    "triangular_solve": _Sample((_X, _X), {"lower": True, "unit_diagonal": False}),
    "concat": _Sample((_X, _X), {"axis": 0}),
    "common_size": _Sample(attrs={"what": "a size"}, shape=(2,)),
    "watch": _Sample(attrs={"fn": print, "label": "x"}),
    "flip": _Sample(attrs={"axes": (0,)}),
    "forget_sizes": _Sample(attrs={"axes": (0,)}),
    "expand_dims": _Sample(attrs={"axes": (0,)}),
    "squeeze": _Sample(attrs={"axes": (0,)}, shape=(1, 2)),
    "transpose": _Sample(attrs={"axes": (1, 0)}),
    "getitem": _Sample(attrs=_SLICES),
    "where": _Sample((BOOL, _X, _X)),
    "cast": _Sample(attrs={"dtype": np.dtype(np.float64)}),
    "searchsorted": _Sample((_X, _X), {"side": "left"}, shape=(2,)),
    "pinv": _Sample((_X, TensorType(np.dtype(np.float64)))),
    "bits_to_bfloat16": _Sample((TensorType(np.dtype(np.int16)),)),
    "iota": _Sample((INDEX,)),
    "axis_index": _Sample(()),
    "psum": _Sample(attrs={"rows": _ROWS}),
    **dict.fromkeys(("all_gather", "psum_scatter", "all_to_all"), _Sample(attrs=_ALONG)),
    "ppermute": _Sample(attrs={"rows": _ROWS, "sources": (1, 0)}),
    "constant": _Sample(()),
    "callback": _Sample(()),
    "pure_callback": _Sample((), {"fn": print, "label": "x", "results": ()}),
}


def accepted_dtypes(op: Op) -> tuple[str, ...] | None:
    """The classes of dtypes that an op's type rule takes; None where it takes no tensor of a free choice."""
    if op.name in REGION_OPS or Trait.STACK in op.traits:
        return None
    sample = _SAMPLES.get(op.name, _Sample((_X,) * (op.arity or 1)))
    if _X not in sample.operands:
        return None
    return tuple(name for name, dtype in _DTYPES.items() if _fits(op, sample, dtype))


def _fits(op: Op, sample: _Sample, dtype: np.dtype) -> bool:
    types: list[Type] = []
    for operand in sample.operands:
        is_type = isinstance(operand, TensorType | StackType)
        types.append(operand if is_type else TensorType(dtype, sample.shape))  # type: ignore[arg-type]
    attrs = op.attributes(sample.attrs)
    try:
        op.infer(types, attrs, ())
    except CtrlgradError:
        return False
    return True


def _derivative(name: str) -> tuple[str, str]:
    """Kinds of derivative of an op, in forward mode and in reverse mode."""
    if name in REGION_OPS:
        # Each transform has a file for them.
        return "by region", "by region"
    if name in REFUSED:
        return "refused", "refused"
    if name in NOT_DIFFERENTIABLE:
        return "none", "none"
    if name in ELEMENTWISE:
        return "elementwise", "elementwise"
    return ("linear" if name in LINEAR else "rule" if name in FORWARD else "missing"), (
        "rule" if name in REVERSE else "missing"
    )


def rows() -> list[tuple[str, ...]]:
    """A row per op: name, forward, reverse, batching, dtypes."""
    result: list[tuple[str, ...]] = []
    for name in sorted(OPS):
        dtypes = accepted_dtypes(OPS[name])
        batching = "rule" if name in BATCH else "missing"
        result.append((f"`{name}`", *_derivative(name), batching, "-" if dtypes is None else ", ".join(dtypes)))
    return result


def table() -> str:
    """The page, in Markdown."""
    lines = [
        "# Operations",
        "",
        "Every op of the graph. *Forward* and *reverse* say where its derivative comes from: the partial derivatives",
        "of an elementwise op, the op itself where it is linear (its transpose in reverse), a rule of its own, or the",
        "derivative of its regions. *none* means that the result carries no derivative: it is an integer or a boolean,",
        "or piecewise constant; *refused*, that none is known, and asking for it is an error. The dtypes are those",
        "that the op's type rule takes; a dash stands for no free choice.",
        "",
        "This page is made by `python docs/build_operations.py`.",
        "",
        "| op | forward | reverse | batching | dtypes |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
