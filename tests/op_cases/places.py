"""Cases of ops that move elements: shapes and sizes, reads and updates by index, stacks; and of those with regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.ir import INDEX, Builder, Graph, TensorType, Value
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ops.arrays import fill
from op_cases.case import Maker, OpCase, counting, index, numbers, type_of

_ALL = slice(None)


def _each(op: str, calls: Sequence[tuple[tuple[int, ...], dict[str, Any]]]) -> Maker:
    """Calls of one operand: its shape, and the attributes."""
    return lambda dtype: [OpCase(op, (numbers(dtype, *shape),), attrs) for shape, attrs in calls]


def _sized(op: str, calls: Sequence[tuple[tuple[int, ...], tuple[int | None, ...], tuple[int, ...]]]) -> Maker:
    """Calls with the template of a shape: the operand's shape, the template, and what fills it."""

    def cases(dtype: str) -> list[OpCase]:
        known = [OpCase(op, (numbers(dtype, *shape), *map(np.int64, dims)), {"shape": to}) for shape, to, dims in calls]
        shape, to, dims = next(call for call in calls if call[2])
        # Sizes of every dtype that counts.
        return [
            *known,
            *(
                OpCase(op, (numbers(dtype, *shape), *map(np.dtype(d).type, dims)), {"shape": to})
                for d in counting(dtype)
            ),
        ]

    return cases


def _constant(dtype: str) -> list[OpCase]:
    return [OpCase("constant", (), {"value": np.asarray(numbers(dtype, *shape))}) for shape in ((), (2, 3), (0,))]


def _iota(dtype: str) -> list[OpCase]:
    if np.dtype(dtype).kind not in "iu":
        return []
    return [OpCase("iota", (), {"shape": (3,)}), OpCase("iota", (np.dtype(dtype).type(4),), {"shape": (None,)})]


def _concat(dtype: str) -> list[OpCase]:
    shapes = (((2, 1), (2, 3)), ((2, 2), (2, 2)), ((2, 0), (2, 1)))
    return [OpCase("concat", (numbers(dtype, *a), numbers(dtype, *b, seed=1)), {"axis": 1}) for a, b in shapes]


def _pure_callback(dtype: str) -> list[OpCase]:
    def doubled(x: Any) -> list[Any]:
        return [x, np.stack([x, x])]

    results = (TensorType(np.dtype(dtype), (2,)), TensorType(np.dtype(dtype), (2, 2)))
    return [OpCase("pure_callback", (numbers(dtype, 2),), {"fn": doubled, "label": "x", "results": results})]


def _common_size(dtype: str) -> list[OpCase]:
    return [OpCase("common_size", (np.full(n, 3, dtype),), {"what": "a size"}) for n in (0, 2)]


def _ensure_sizes(dtype: str) -> list[OpCase]:
    said = {"problem": "another size", "hint": "look at it"}
    return [
        OpCase("ensure_sizes", (numbers(dtype, 0, 3),), {"axes": (1,), "shape": (3,), **said}),
        OpCase("ensure_sizes", (numbers(dtype, 2, 3), np.int64(2)), {"axes": (0, 1), "shape": (None, 3), **said}),
        *(
            OpCase("ensure_sizes", (numbers(dtype, 2), np.dtype(d).type(2)), {"axes": (0,), "shape": (None,), **said})
            for d in counting(dtype)
        ),
    ]


MAKERS: dict[str, Maker] = {
    "constant": _constant,
    "iota": _iota,
    "common_size": _common_size,
    "dim": _each("dim", [((3,), {"axis": 0}), ((2, 0, 3), {"axis": 1})]),
    "forget_sizes": _each("forget_sizes", [((2, 3), {"axes": (1,)}), ((), {"axes": ()})]),
    "ensure_sizes": _ensure_sizes,
    "reshape": _sized(
        "reshape", [((2, 3), (3, 2), ()), ((), (1, 1), ()), ((0, 2), (2, 0), ()), ((2, 3), (None, 2), (3,))]
    ),
    "broadcast_to": _sized(
        "broadcast_to", [((3, 1), (2, 3, 4), ()), ((), (2, 2), ()), ((1,), (0,), ()), ((3,), (None, 3), (2,))]
    ),
    "sum_to": _sized("sum_to", [((2, 3), (3,), ()), ((2, 3), (2, 1), ()), ((2, 3), (), ()), ((2, 3), (None,), (3,))]),
    "transpose": _each("transpose", [((2, 3), {"axes": (1, 0)}), ((2, 3, 1), {"axes": (1, 2, 0)}), ((), {"axes": ()})]),
    "expand_dims": _each("expand_dims", [((2, 3), {"axes": (0, 2)}), ((), {"axes": (0,)})]),
    "squeeze": _each("squeeze", [((1, 3, 1), {"axes": (0, 2)}), ((1,), {"axes": (0,)})]),
    "flip": _each("flip", [((2, 3), {"axes": (0, 1)}), ((3,), {"axes": (0,)}), ((), {"axes": ()})]),
    "concat": _concat,
    **{op: _each(op, [((), {}), ((2, 3), {})]) for op in ("stop_gradient", "barrier")},
    "watch": _each("watch", [(shape, {"fn": print, "label": "x"}) for shape in ((), (2, 3))]),
    "pure_callback": _pure_callback,
    "callback": _each("callback", [((2,), {"fn": lambda values, iterations: None, "label": "x"})]),
}

_ROWS = index(0, 2, -1)
_KEYS: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((1, _ALL), ()),
    ((_ALL, slice(None, None, -1)), ()),
    ((slice(0, 2), None, slice(1, None, 2)), ()),
    ((2, -1), ()),
    ((DYNAMIC, _ALL), (index(-2),)),
    ((DYNAMIC, DYNAMIC), (index(1), index(3))),
    ((DYNAMIC, _ALL), (_ROWS,)),
    ((_ALL, DYNAMIC), (index(0, 0, 1, dtype="uint8"),)),
    ((DYNAMIC, DYNAMIC), (_ROWS, _ROWS)),
    ((slice(DYNAMIC, DYNAMIC), _ALL), (index(1), index(3))),
]


def _keyed(op: str) -> Maker:
    def cases(dtype: str) -> list[OpCase]:
        x = numbers(dtype, 3, 4)
        calls = [*_KEYS, *(((DYNAMIC, _ALL), (index(1, dtype=d),)) for d in counting(dtype))]
        if op == "getitem":
            return [OpCase(op, (x, *indices), {"key": key}) for key, indices in calls]
        made = []
        for key, indices in calls:
            shape = np.shape(x[fill(key, indices)])
            made.append(OpCase(op, (x, numbers(dtype, *shape, seed=1), *indices), {"key": key}))
        return [*made, OpCase(op, (x, numbers(dtype, seed=1)), {"key": (_ALL, 0)})]

    return cases


MAKERS |= {op: _keyed(op) for op in ("getitem", "setitem", "additem")}


def _rows(dtype: str, *shape: int) -> list[Any]:
    return [numbers(dtype, *shape, seed=n) for n in (3, 4, 5)]


def _stacked(op: str, *further: Callable[[str, tuple[int, ...]], Any], **attrs: Any) -> Maker:
    """Calls on a stack of scalars and one of rows."""

    def cases(dtype: str) -> list[OpCase]:
        made = []
        for shape in ((), (2,)):
            made.append(OpCase(op, (_rows(dtype, *shape), *(f(dtype, shape) for f in further)), attrs))
        return made

    return cases


def _at(n: int, dtype: str = "int64") -> Callable[[str, tuple[int, ...]], Any]:
    return lambda _, shape: index(n, dtype=dtype)


def _value(dtype: str, shape: tuple[int, ...]) -> Any:
    return numbers(dtype, *shape, seed=6)


def _read_by_each(dtype: str) -> list[OpCase]:
    return [case for d in counting(dtype) for case in _stacked("stack_read", _at(1, d))(dtype)]


def _together(*makers: Maker) -> Maker:
    return lambda dtype: [case for maker in makers for case in maker(dtype)]


def _new(dtype: str) -> list[OpCase]:
    element = TensorType(np.dtype(dtype), (2,))
    return [OpCase("stack_new", (), {"element": element}), OpCase("stack_new", (index(2),), {"element": element})]


def _from_tensor(dtype: str) -> list[OpCase]:
    return [OpCase("stack_from_tensor", (numbers(dtype, *shape),)) for shape in ((3,), (3, 2), (0, 2))]


def _parts(dtype: str) -> list[Any]:
    return [numbers(dtype, n, 2, seed=n) for n in (1, 3, 2)]


def _on_parts(op: str) -> Maker:
    def cases(dtype: str) -> list[OpCase]:
        joined = op == "stack_concat"
        counts, size = ((index(1, 3, 2),), {"size": None}) if joined else ((), {})
        return [OpCase(op, (_parts(dtype), *counts), {"axis": 0, **size}, unknown={0: (None, 2)})]

    return cases


def _split(dtype: str) -> list[OpCase]:
    element = TensorType(np.dtype(dtype), (None, 2))
    return [OpCase("stack_split", (numbers(dtype, 6, 2), index(1, 3, 2)), {"axis": 0, "element": element})]


MAKERS |= {
    "stack_new": _new,
    "stack_push": _stacked("stack_push", _value),
    "stack_pop": _stacked("stack_pop"),
    "stack_read": _together(_read_by_each, _stacked("stack_read", _at(-1))),
    "stack_write": _together(
        _stacked("stack_write", _at(1), _value, grow=False), _stacked("stack_write", _at(3, "uint8"), _value, grow=True)
    ),
    "stack_add": _together(_stacked("stack_add", _at(1), _value), _stacked("stack_add", _at(-1), _value)),
    "stack_clear": _stacked("stack_clear", _at(1)),
    "stack_resize": _together(_stacked("stack_resize", _at(2)), _stacked("stack_resize", _at(5, "uint16"))),
    "stack_sum": lambda dtype: [OpCase("stack_sum", (_rows(dtype, 2), _rows(dtype, 2)[:2]))],
    "stack_length": _stacked("stack_length"),
    "stack_to_tensor": _together(_stacked("stack_to_tensor", size=None), _stacked("stack_to_tensor", size=3)),
    "stack_from_tensor": _from_tensor,
    "stack_rows": _on_parts("stack_rows"),
    "stack_concat": _on_parts("stack_concat"),
    "stack_split": _split,
}


def _region(types: Sequence[Any], outputs: Callable[[Builder, list[Value]], Sequence[Value]]) -> Graph:
    builder = Builder()
    inputs = [builder.input(t) for t in types]
    return builder.finish(outputs(builder, inputs))


def _while(dtype: str) -> list[OpCase]:
    """A counter, and a carry that changes places with another."""
    operands = (index(0), numbers(dtype, 2), numbers(dtype, 2, seed=1))
    types = [type_of(x) for x in operands]
    cond = _region(types, lambda b, v: [b.emit("less", [v[0], b.constant(3, INDEX.dtype)])])
    body = _region(types, lambda b, v: [b.emit("add", [v[0], b.constant(1, INDEX.dtype)]), v[2], v[1]])
    return [OpCase("while", operands, {"captures": 0}, (cond, body))]


def _cond(dtype: str) -> list[OpCase]:
    """Chosen by a bool, or by an integer of any dtype."""
    choices = [np.bool_(True), *(index(1, dtype=d) for d in counting(dtype))]
    x, y = numbers(dtype, 2), numbers(dtype, 2, seed=1)
    types = [type_of(x), type_of(y)]
    branches = (_region(types, lambda b, v: v), _region(types, lambda b, v: v[::-1]))
    return [OpCase("cond", (chosen, x, y), {}, branches) for chosen in choices]


def _call(dtype: str) -> list[OpCase]:
    x = numbers(dtype, 2)
    region = _region([type_of(x)], lambda b, v: [v[0], b.emit("dim", v, {"axis": 0})])
    return [OpCase("call", (x,), {"kind": "checkpoint", "captures": 0}, (region,))]


MAKERS |= {"while": _while, "cond": _cond, "call": _call}
