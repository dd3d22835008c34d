"""One loop that computes many cases: the engines that compile loops then compile the ops of all of them.

The body runs twice on what it carries: on the cases' operands, then on the same elements in another order. Its forms
say how operands and results lie: see `FORMS`. What a case yields is kept row by row; what it updates goes on to the
next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, computed_dtype, dtype_kind, finfo
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.ir import INDEX, Builder, Graph, StackType, TensorType, Type, Value, verify
from ctrlgrad.ir.attributes import DYNAMIC
from op_cases.case import OpCase

FORMS = {
    "operands apart": "every operand is an array of its own",
    "operands together": "operands of one type are one array",
    "operands read afterwards": "the operands are read once more after the op, whose result may not lie in their place",
    "operands replaced before": "the next turn's operands are computed before the op reads this turn's",
}
TURNS = 2
# Their scalar operands are sizes: those do not change from turn to turn.
_SIZED = ("iota", "reshape", "broadcast_to", "sum_to", "stack_new", "stack_resize")
_UPDATES = ("setitem", "additem")


@dataclass(frozen=True)
class LoopedCases:
    """A graph with one loop, and its arguments."""

    graph: Graph
    arguments: list[Any]

    def fresh(self) -> list[Any]:
        """The arguments again: a stack is a list that a run may change."""
        return [list(x) if isinstance(x, list) else np.array(x) for x in self.arguments]


@dataclass
class _Inputs:
    """Inputs of the loop's regions, with the values that the loop is given for them."""

    values: list[Value] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)

    def add(self, type: Type, given: Any) -> Value:
        self.values.append(Value(type))
        self.given.append(given)
        return self.values[-1]


class _Loop:
    """The loop's body while it is being written."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.body = Builder(name="body")
        self.captures, self.carry = _Inputs(), _Inputs()
        # The next value of each carried value.
        self.next: dict[Value, Value] = {}
        self.turn = self.carry.add(INDEX, np.int64(0))
        self.next[self.turn] = self.body.emit("add", [self.turn, self.body.constant(1, INDEX.dtype)])
        self.is_early = self.body.emit("less", [self.turn, self.body.constant(TURNS + 3, INDEX.dtype)])

    def add(self, case: OpCase) -> None:
        operands: list[Value] = []
        replaced: dict[Value, Value] = {}
        given = list(case.operands)
        if self.form == "operands together":
            given = [_last_alike(case, position) for position in range(len(given))]
        for position, (x, type) in enumerate(zip(given, case.types, strict=True)):
            if _is_size(case, position):
                operands.append(self.captures.add(type, x))
                continue
            alike = [v for p, v in enumerate(operands) if v.type == type and _may_be_one(case, p, position)]
            if self.form == "operands together" and alike:
                operands.append(alike[0])
                continue
            operands.append(self.carry.add(type, x))
            if isinstance(type, TensorType) and type.is_static:
                is_sorted = case.op == "searchsorted" and position == 0
                replaced[operands[-1]] = self.captures.add(type, x if is_sorted else np.flip(x)[()])
        if self.form == "operands replaced before":
            self.replace(replaced)
        results = case.emit(self.body, operands)
        expected = run_graph(case.graph(), [list(x) if isinstance(x, list) else x for x in case.operands])
        for position, (result, found) in enumerate(zip(results, expected, strict=True)):
            if position == 0 and self.is_update(case, result):
                replaced.pop(operands[0], None)
                self.next[operands[0]] = result
            else:
                self.keep(result, () if isinstance(found, list) else np.shape(found))
        if self.form == "operands read afterwards":
            for value in replaced:
                self.keep(value)
        if self.form != "operands replaced before":
            self.replace(replaced)

    def is_update(self, case: OpCase, result: Value) -> bool:
        """Return true if a result replaces the first operand in the next iteration."""
        if isinstance(result.type, StackType):
            return bool(case.operands) and result.type == case.types[0]
        return case.op in _UPDATES and self.form in ("operands apart", "operands together")

    def replace(self, replaced: dict[Value, Value]) -> None:
        """Replace carried values, by an elementwise op that cannot be hoisted from the loop."""
        for value, other in replaced.items():
            self.next[value] = self.body.emit("where", [self.is_early, other, value])

    def keep(self, result: Value, shape: tuple[int, ...] = ()) -> None:
        """Carry a result: as a row of all turns' where its size is known, else the last turn's, of that shape."""
        t = result.type
        if isinstance(t, StackType):
            self.next[self.carry.add(t, [])] = result
        elif t.is_static:
            rows = TensorType(t.dtype, (TURNS, *t.shape))
            kept = self.carry.add(rows, np.zeros((TURNS, *t.shape), t.dtype))
            key = (DYNAMIC, *[slice(None)] * t.rank)
            self.next[kept] = self.body.emit("setitem", [kept, result, self.turn], {"key": key})
        else:
            self.next[self.carry.add(t, np.zeros(shape, t.dtype))] = result

    def finish(self) -> LoopedCases:
        types = [v.type for v in (*self.captures.values, *self.carry.values)]
        carried = [self.next.get(v, v) for v in self.carry.values]
        body = Graph((*self.captures.values, *self.carry.values), tuple(self.body.nodes), tuple(carried), "body")
        cond = Builder(name="cond")
        turn = [cond.input(t) for t in types][len(self.captures.values)]
        condition = cond.finish([cond.emit("less", [turn, cond.constant(TURNS, INDEX.dtype)])])
        whole = Builder(name="looped")
        attrs = {"captures": len(self.captures.values)}
        results = whole.emit_all("while", [whole.input(t) for t in types], attrs, regions=(condition, body))
        return LoopedCases(verify(whole.finish(results)), [*self.captures.given, *self.carry.given])


def looped(cases: Sequence[OpCase], form: str) -> LoopedCases:
    """The loop over cases in one of the `FORMS`."""
    loop = _Loop(form)
    for case in cases:
        loop.add(case)
    return loop.finish()


def _is_size(case: OpCase, position: int) -> bool:
    first = 0 if case.op in ("iota", "stack_new") else 1
    return case.op in _SIZED and position >= first and np.ndim(case.operands[position]) == 0


def _may_be_one(case: OpCase, *positions: int) -> bool:
    """Return true if operands may be one value; indices stay separate."""
    if case.op.startswith("stack_"):
        return all(isinstance(case.operands[p], list) for p in positions)
    return all(p < 2 for p in positions) or case.op not in ("getitem", *_UPDATES)


def _last_alike(case: OpCase, position: int) -> Any:
    """The last operand that may be one with an operand: an exponent is a base too, but not every base an exponent."""
    types = case.types
    alike = [p for p, t in enumerate(types) if t == types[position] and _may_be_one(case, p, position)]
    return case.operands[alike[-1] if alike else position]


def assert_agree(found: Sequence[Any], expected: Sequence[Any], what: str, ulps: int = 64) -> None:
    """Equal dtypes, shapes and values; floats within rounding of the largest of an array."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, list):
            # A slot that was never written holds zeros, and engines may keep them.
            known = [(x, y) for x, y in zip(a, b, strict=True) if x is not None or y is not None]
            whole = [(_or_zeros(x, y), _or_zeros(y, x)) for x, y in known]
            assert_agree([x for x, _ in whole], [y for _, y in whole], what, ulps)
            continue
        dtype = np.asarray(b).dtype
        assert (np.asarray(a).dtype, np.shape(a)) == (dtype, np.shape(b)), what
        if dtype_kind(dtype) not in "fc":
            np.testing.assert_array_equal(a, b, what)
            continue
        # A result computed in another dtype is rounded once more.
        rtol = (ulps if computed_dtype(dtype) == dtype else 2) * float(finfo(dtype).eps)
        a, b = (np.asarray(x, np.float64) if dtype == BFLOAT16 else x for x in (a, b))
        largest = float(np.max(np.abs(np.nan_to_num(b, posinf=0, neginf=0)), initial=0.0))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * largest, err_msg=what)


# A graph with arguments, by an engine.
Engine = Callable[[Graph, Sequence[Any]], Sequence[Any]]


def assert_loop_agrees(engine: Engine, cases: Sequence[OpCase], form: str) -> None:
    """An engine's results for the loop over cases agree with the reference engine's."""
    loop = looped(cases, form)
    found = engine(loop.graph, loop.fresh())
    assert_agree(found, run_graph(loop.graph, loop.fresh()), ", ".join(map(str, cases[:3])))


def assert_each_agrees_in_one_form(engine: Engine, cases: Sequence[OpCase]) -> None:
    """Every case in one of the forms: those of one form are one loop, and so one module where it is compiled."""
    for number, form in enumerate(FORMS):
        if mine := cases[number :: len(FORMS)]:
            assert_loop_agrees(engine, mine, form)


def _or_zeros(x: Any, like: Any) -> Any:
    return np.zeros_like(like) if x is None else x


__all__ = ["FORMS", "LoopedCases", "assert_agree", "assert_each_agrees_in_one_form", "assert_loop_agrees", "looped"]
