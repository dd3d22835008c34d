"""Op names in product code: each is declared. A list kept by hand cannot hold one that does not exist, or no longer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from op_cases import MAKERS, cases_of

from ctrlgrad.batching.table import BATCH
from ctrlgrad.dataflow.graph import PRIMITIVES
from ctrlgrad.engines.reference.table import IN_PLACE, PURE
from ctrlgrad.gradients.table import ELEMENTWISE, FORWARD, LINEAR, NOT_DIFFERENTIABLE, REVERSE
from ctrlgrad.ir import OPS, TensorType, Trait
from ctrlgrad.plan.lowering.lower import RULES

ROOT = Path(__file__).resolve().parent.parent
Scope = ast.FunctionDef | ast.Lambda | ast.Module


def strings(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield from inner.value.split()


def is_op_name(node: ast.AST, locals: set[str]) -> bool:
    """Whether an expression is `node.op.name`, or a variable that was given it."""
    if isinstance(node, ast.Name):
        return node.id in locals
    return isinstance(node, ast.Attribute) and node.attr == "name" and ast.unparse(node.value).split(".")[-1] == "op"


def pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def compared(source: str) -> Iterator[str]:
    """The strings that a module compares with the name of an op: itself, or in a collection of the module."""
    tree = ast.parse(source)
    constants: dict[str, list[str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                for name, value in pairs(target, statement.value):
                    if isinstance(name, ast.Name):
                        known = (x for n in ast.walk(value) if isinstance(n, ast.Name) for x in constants.get(n.id, []))
                        constants[name.id] = [*strings(value), *known]
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for scope in (tree, *functions):
        named = {
            target.id
            for n in ast.walk(scope)
            if isinstance(n, ast.Assign) and scope is not tree
            for whole in n.targets
            for target, value in pairs(whole, n.value)
            if isinstance(target, ast.Name) and is_op_name(value, set())
        }
        for n in ast.walk(scope):
            sides: list[ast.expr] = []
            if isinstance(n, ast.Compare):
                sides = [n.left, *n.comparators]
            elif isinstance(n, ast.Match) and is_op_name(n.subject, named):
                sides = [
                    n.subject,
                    *(v.value for case in n.cases for v in ast.walk(case) if isinstance(v, ast.MatchValue)),
                ]
            elif isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id == "OPS":
                yield from strings(n.slice)
            if any(is_op_name(side, named) for side in sides):
                for side in sides:
                    yield from strings(side)
                    if isinstance(side, ast.Name):
                        yield from constants.get(side.id, [])


def test_every_name_that_is_compared_with_an_op_is_declared() -> None:
    found, unknown = 0, []
    for folder in ("ctrlgrad", "gradients", "stacks", "memory"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            names = list(compared(path.read_text(encoding="utf-8")))
            found += len(names)
            unknown += [f"{path.relative_to(ROOT).as_posix()}: {name}" for name in names if name not in KNOWN]
    assert unknown == []
    assert found > 200


# Beside the ops of `OPS`: the primitives of the dataflow runtime, and a node that stands for one compiled function.
KNOWN = {*OPS, *PRIMITIVES, "part"}


@pytest.mark.parametrize(
    "source",
    [
        "def f(node):\n    return node.op.name == 'sort'",
        "def f(node):\n    name, x = node.op.name, 1\n    return name in ('sum', 'sort')",
        "LIST = frozenset({'sum', 'sort'})\ndef f(node):\n    return node.op.name in LIST",
        "PART = {'sort'}\nLIST = PART | {'sum'}\ndef f(node):\n    name = node.op.name\n    return name not in LIST",
        "def f(node):\n    match node.op.name:\n        case 'sum' | 'sort':\n            return 1",
        "LIST = 'sum sort'.split()\ndef f(node):\n    return node.op.name in LIST",
        "x = OPS['sort']",
    ],
)
def test_a_name_that_is_not_declared_is_seen(source: str) -> None:
    assert "sort" in list(compared(source))


@pytest.mark.parametrize(
    "table",
    [BATCH, PURE, IN_PLACE, ELEMENTWISE, FORWARD, LINEAR, NOT_DIFFERENTIABLE, REVERSE, RULES],
    ids=["batching", "pure", "in place", "elementwise", "forward", "linear", "not differentiable", "reverse", "plan"],
)
def test_tables_have_entries_of_declared_ops_alone(table: object) -> None:
    assert set(table) - set(OPS) == set()  # type: ignore[call-overload]


@pytest.mark.parametrize("op", sorted(name for name, op in OPS.items() if Trait.SHAPE_OF_FIRST in op.traits))
def test_an_op_that_declares_the_shape_of_its_first_operand_has_it(op: str) -> None:
    assert op in MAKERS
    for case in cases_of(op):
        graph = case.graph()
        result, first = graph.outputs[0].tensor, graph.inputs[0].tensor
        assert result.accepts(TensorType(result.dtype, first.shape)), case
