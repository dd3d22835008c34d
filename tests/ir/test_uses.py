"""Uses of operands that each op declares agree with the reference engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from op_cases import MAKERS, OpCase, cases_of

from ctrlgrad.engines.reference import REFERENCE, Run, run_graph
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import OPS, Graph, Op, StackType, Use

DTYPES = ("float64", "int64")


def run(graph: Graph, operands: Sequence[Any]) -> list[Any]:
    return list(run_graph(graph, copy.deepcopy(list(operands)), Run()))


def results(case: OpCase) -> list[Any]:
    return run(case.graph(), case.operands)


def with_operand(case: OpCase, position: int, x: Any) -> OpCase:
    return replace(case, operands=(*case.operands[:position], x, *case.operands[position + 1 :]))


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    return np.array_equal(a, b)


def sizes(x: Any) -> Any:
    return list(map(sizes, x)) if isinstance(x, list) else np.shape(x)


def other_elements(x: Any) -> Any:
    return [other_elements(row) for row in x] if isinstance(x, list) else np.asarray(x) + np.asarray(x).dtype.type(1)


def using(*uses: Use) -> list[Any]:
    """The ops that use an operand so, each with the positions of such operands and its cases."""
    found = [(OPS[name], cases_of(name, DTYPES)) for name in MAKERS if OPS[name].has_use(*uses)]
    return [pytest.param(op, cases, id=op.name) for op, cases in found if any(used(op, c, *uses) for c in cases)]


def used(op: Op, case: OpCase, *uses: Use) -> list[int]:
    return [i for i in range(len(case.operands)) if op.use(i) in uses]


Check = Callable[[Op, list[OpCase]], None]
CHECKS: list[tuple[tuple[Use, ...], Check]] = []


def each_op(*uses: Use) -> Callable[[Check], Check]:
    """The test of each op that uses an operand so."""

    def test(check: Check) -> Check:
        CHECKS.append((uses, check))
        return pytest.mark.parametrize(("op", "cases"), using(*uses))(check)

    return test


def test_of_an_op_the_first_operand_alone_is_changed() -> None:
    assert [op for op in OPS.values() if any(use.changes for use in (*op.uses[1:], op.further))] == []


def test_declared_updates_match_in_place_kernels() -> None:
    """A callback is none: its kernel is beside them because it is told of the run."""
    assert {name for name, op in OPS.items() if op.updates} == set(REFERENCE.in_place) - {"callback"}


@each_op(Use.PUSH)
def test_a_push_puts_one_row_at_the_end(op: Op, cases: list[OpCase]) -> None:
    for case in cases:
        before, (after, *_) = case.operands[0], results(case)
        assert len(after) == len(before) + 1 and is_same(after[:-1], before)


@each_op(Use.POP)
def test_a_pop_takes_the_row_at_the_end(op: Op, cases: list[OpCase]) -> None:
    for case in cases:
        assert is_same(results(case)[0], case.operands[0][:-1])


@each_op(Use.UPDATE)
def test_an_update_is_no_mere_push_or_pop(op: Op, cases: list[OpCase]) -> None:
    changed = [(case.operands[0], results(case)[0]) for case in cases]
    assert all(case.graph().outputs[0].type == case.types[0] for case in cases)
    assert not all(is_same(a, b) for a, b in changed)
    if isinstance(cases[0].types[0], StackType):
        assert not all(len(b) == len(a) + 1 and is_same(a, b[:-1]) for a, b in changed)
        assert not all(is_same(a[:-1], b) for a, b in changed)


@each_op(Use.PASS)
def test_passed_operands_are_unchanged(op: Op, cases: list[OpCase]) -> None:
    assert all(is_same(results(case)[0], case.operands[0]) for case in cases)


@each_op(Use.MEASURE)
def test_a_measure_depends_on_sizes_alone(op: Op, cases: list[OpCase]) -> None:
    for case in cases:
        assert is_same(results(with_operand(case, 0, other_elements(case.operands[0]))), results(case))


@each_op(Use.VALUE)
def test_results_of_sizes_alone_do_not_use_values(op: Op, cases: list[OpCase]) -> None:
    cases = [case for case in cases if case.operands and not case.regions and case.graph().outputs]
    if op.use(0) is Use.VALUE and cases:
        assert any(depends_on_elements(case) for case in cases)


def depends_on_elements(case: OpCase) -> bool:
    x, expected = np.asarray(case.operands[0]), results(case)
    others = [~x] if x.dtype.kind == "b" else [x + x.dtype.type(1), x.dtype.type(3) - x, np.zeros_like(x)]
    if x.dtype.kind == "f":
        others += [np.full_like(x, np.nan), np.full_like(x, np.inf)]
    return any(not is_same(results_or_none(with_operand(case, 0, other)), expected) for other in others)


def results_or_none(case: OpCase) -> list[Any]:
    try:
        return results(case)
    except (CtrlgradError, ValueError, IndexError, ArithmeticError):
        return []


@each_op(Use.READ)
def test_a_read_depends_on_elements(op: Op, cases: list[OpCase]) -> None:
    others = [results(with_operand(case, 0, other_elements(case.operands[0]))) for case in cases]
    assert not all(is_same(a, results(case)) for a, case in zip(others, cases, strict=True))


@each_op(Use.READ, Use.MEASURE)
def test_read_operands_are_unchanged(op: Op, cases: list[OpCase]) -> None:
    for case in cases:
        operands = copy.deepcopy(list(case.operands))
        run_graph(case.graph(), list(operands), Run())
        assert is_same(operands, list(case.operands))
        assert not any(isinstance(v.type, StackType) for v in case.graph().outputs)


def test_a_stack_is_looked_at_or_becomes_a_stack() -> None:
    for case in (case for op in MAKERS for case in cases_of(op, DTYPES)):
        for node in case.graph().nodes:
            stacks = [i for i, v in enumerate(node.operands) if isinstance(v.type, StackType)]
            gives_one = any(isinstance(v.type, StackType) for v in node.results)
            if stacks and not node.regions and node.results:
                assert any(node.op.use(i).observes for i in stacks) != gives_one, node


@each_op(Use.INDEX, Use.SIZE)
def test_indices_and_sizes_are_integers_and_other_operands_need_not_be(op: Op, cases: list[OpCase]) -> None:
    told = [case.operands[i] for case in cases for i in used(op, case, Use.INDEX, Use.SIZE)]
    assert {np.asarray(x).dtype.kind for x in told} <= {"i", "u"}
    for position in {i for case in cases for i in used(op, case, Use.VALUE)}:
        kinds = {np.asarray(case.operands[position]).dtype.kind for case in cases if position < len(case.operands)}
        assert "f" in kinds


def sizes_beside(case: OpCase, position: int) -> Any:
    """The sizes of the results where a number among the operands is one less; None where there are none then."""
    try:
        return sizes(results(with_operand(case, position, case.operands[position] - 1)))
    except (CtrlgradError, ValueError, IndexError):
        return None


@each_op(Use.INDEX)
def test_an_index_says_where_and_not_how_large(op: Op, cases: list[OpCase]) -> None:
    told = [(case, i) for case in cases for i in used(op, case, Use.INDEX)]
    assert any(sizes_beside(case, i) == sizes(results(case)) for case, i in told)


@each_op(Use.SIZE)
def test_a_size_says_how_large(op: Op, cases: list[OpCase]) -> None:
    for case in cases:
        if op.use(0) is Use.READ:
            # Of rows that are there the sizes are known.
            _, *rows = case.operands[0]
            case = with_operand(case, 0, [*rows, None])
        for i in used(op, case, Use.SIZE):
            assert sizes_beside(case, i) != sizes(results(case))


# A wrong declaration, and the test that finds it.


def checks_of(op: str) -> Iterator[tuple[str, Callable[[], None]]]:
    for check in (
        test_of_an_op_the_first_operand_alone_is_changed,
        test_declared_updates_match_in_place_kernels,
        test_a_stack_is_looked_at_or_becomes_a_stack,
    ):
        yield check.__name__, check
    for uses, check in CHECKS:
        for found in using(*uses):
            if found.id == op:
                yield check.__name__, partial(check, *found.values)


WRONG = [
    ("stack_push", (Use.UPDATE, Use.VALUE), "test_an_update_is_no_mere_push_or_pop"),
    ("stack_push", (Use.POP, Use.VALUE), "test_a_pop_takes_the_row_at_the_end"),
    ("stack_push", (Use.READ, Use.VALUE), "test_declared_updates_match_in_place_kernels"),
    ("stack_push", (Use.PUSH, Use.PUSH), "test_of_an_op_the_first_operand_alone_is_changed"),
    ("stack_push", (Use.PUSH, Use.INDEX), "test_indices_and_sizes_are_integers_and_other_operands_need_not_be"),
    ("stack_pop", (Use.PUSH,), "test_a_push_puts_one_row_at_the_end"),
    ("stack_pop", (Use.UPDATE,), "test_an_update_is_no_mere_push_or_pop"),
    ("stack_pop", (Use.VALUE,), "test_declared_updates_match_in_place_kernels"),
    ("stack_write", (Use.PUSH, Use.INDEX, Use.VALUE), "test_a_push_puts_one_row_at_the_end"),
    (
        "stack_write",
        (Use.UPDATE, Use.VALUE, Use.INDEX),
        "test_indices_and_sizes_are_integers_and_other_operands_need_not_be",
    ),
    ("stack_clear", (Use.UPDATE, Use.SIZE), "test_a_size_says_how_large"),
    ("stack_resize", (Use.UPDATE, Use.INDEX), "test_an_index_says_where_and_not_how_large"),
    ("stack_read", (Use.VALUE, Use.INDEX), "test_a_stack_is_looked_at_or_becomes_a_stack"),
    ("stack_read", (Use.MEASURE, Use.INDEX), "test_a_measure_depends_on_sizes_alone"),
    ("stack_clear", (Use.PASS, Use.INDEX), "test_passed_operands_are_unchanged"),
    ("stack_length", (Use.READ,), "test_a_read_depends_on_elements"),
    ("stack_length", (Use.UPDATE,), "test_declared_updates_match_in_place_kernels"),
    ("stack_sum", (Use.READ, Use.READ), "test_read_operands_are_unchanged"),
    ("setitem", (Use.VALUE, Use.VALUE), "test_declared_updates_match_in_place_kernels"),
    ("dim", (), "test_results_of_sizes_alone_do_not_use_values"),
    ("dim", (Use.READ,), "test_a_read_depends_on_elements"),
]


@pytest.mark.parametrize(("op", "uses", "found_by"), WRONG)
def test_a_wrong_declaration_is_found(op: str, uses: tuple[Use, ...], found_by: str) -> None:
    right = OPS[op].uses
    found = set()
    try:
        object.__setattr__(OPS[op], "uses", uses)
        for name, check in checks_of(op):
            try:
                check()
            except AssertionError:
                found.add(name)
    finally:
        object.__setattr__(OPS[op], "uses", right)
    assert found_by in found
