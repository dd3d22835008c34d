"""Op names in product code: each is declared. A list kept by hand cannot hold one that does not exist, or no longer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ctrlgrad.batching.batcher import BATCH
from ctrlgrad.dataflow.graph import PRIMITIVES
from ctrlgrad.engines.reference.table import IN_PLACE, PURE
from ctrlgrad.gradients.table import ELEMENTWISE, FORWARD, LINEAR, NOT_DIFFERENTIABLE, REVERSE
from ctrlgrad.ir import OPS, Use
from ctrlgrad.ir.control import REGION_OPS
from ctrlgrad.plan.lowering.lower import RULES

ROOT = Path(__file__).resolve().parent.parent
Scope = ast.FunctionDef | ast.Lambda | ast.Module


def strings(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield from inner.value.split()


def is_op_name(node: ast.AST, locals: set[str]) -> bool:
    """Return true if an expression is `node.op.name`, or a variable that holds it."""
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
    for names in comparisons(source):
        yield from names


@cache
def comparisons(source: str) -> tuple[list[str], ...]:
    """The names in each comparison, cached because several tests read the same modules."""
    return tuple(found_comparisons(source))


def found_comparisons(source: str) -> Iterator[list[str]]:
    if "op.name" not in source and "OPS[" not in source:
        return
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
                yield list(strings(n.slice))
            if any(is_op_name(side, named) for side in sides):
                constant = (x for side in sides if isinstance(side, ast.Name) for x in constants.get(side.id, []))
                yield [*(x for side in sides for x in strings(side)), *constant]


def test_every_name_that_is_compared_with_an_op_is_declared() -> None:
    found, unknown = 0, []
    for folder in ("ctrlgrad", "gradients", "stacks", "memory"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            names = list(compared(path.read_text(encoding="utf-8")))
            found += len(names)
            unknown += [f"{path.relative_to(ROOT).as_posix()}: {name}" for name in names if name not in KNOWN]
    assert unknown == []
    assert found > 200


# Ops that change or observe a stack or an array, as declared.
VERSIONED = {name for name, op in OPS.items() if op.use(0).changes or op.use(0).observes}


def listed(source: str) -> set[str]:
    """The names of such ops that a module lists, to compare with the name of an op; with a push or a pop it is one."""
    found = set()
    for names in comparisons(source):
        if len(set(names)) > 1:
            found |= VERSIONED & set(names)
        found |= {name for name in names if name in OPS and OPS[name].has_use(Use.PUSH, Use.POP)}
    return found


def test_no_list_of_ops_by_what_they_do_to_a_stack_is_kept_beside_their_declarations() -> None:
    for folder in ("ctrlgrad", "gradients", "stacks", "memory"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            # The one that makes a node of the op.
            made = {"stack_pop"} if path.name == "regions.py" else set()
            assert listed(path.read_text(encoding="utf-8")) <= made, path


@pytest.mark.parametrize(
    "source",
    [
        "def f(node):\n    return node.op.name in ('stack_write', 'stack_add')",
        "LIST = {'sum', 'setitem'}\ndef f(node):\n    name = node.op.name\n    return name in LIST",
        "PART = {'stack_read'}\nLIST = PART | {'sum'}\ndef f(node):\n    return node.op.name not in LIST",
        "def f(node):\n    match node.op.name:\n        case 'getitem' | 'sum':\n            return 1",
        "def f(node):\n    return node.op.name == 'stack_push'",
    ],
)
def test_a_list_of_such_ops_is_seen(source: str) -> None:
    assert listed(source) != set()


def families(source: str) -> Iterator[str]:
    """The strings by which a module tells several ops by how their names begin or end."""
    if "startswith" not in source and "endswith" not in source:
        return
    for n in ast.walk(ast.parse(source)):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in ("startswith", "endswith"):
            for text in (text for argument in n.args for text in strings(argument)):
                if text and sum(getattr(name, n.func.attr)(text) for name in OPS) > 1:
                    yield text


def test_op_names_do_not_contain_their_family() -> None:
    for folder in ("ctrlgrad", "gradients", "stacks", "memory"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            assert list(families(path.read_text(encoding="utf-8"))) == [], path


@pytest.mark.parametrize("test", ["op.name.startswith('stack')", "name.endswith(('_equal', '_not'))"])
def test_a_test_of_a_part_of_a_name_is_seen(test: str) -> None:
    assert list(families(f"def f(op, name):\n    return {test}")) != []


def sliced(source: str) -> Iterator[str]:
    """Slices by how many captures there are."""
    if "capture" not in source:
        return
    for n in ast.walk(ast.parse(source)):
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice):
            bounds = [x for x in (n.slice.lower, n.slice.upper) if x is not None]
            if any("capture" in ast.unparse(x) for x in bounds):
                yield ast.unparse(n)


# The views of ops with regions, and their attributes.
VIEWS = {"ctrlgrad/ir/control.py", "ctrlgrad/ir/attributes.py"}


def test_the_parts_of_loops_branches_and_calls_are_told_apart_in_one_place() -> None:
    for folder in ("ctrlgrad", "gradients", "stacks", "memory"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.relative_to(ROOT).as_posix() not in VIEWS:
                source = path.read_text(encoding="utf-8")
                assert list(sliced(source)) == [], path
                assert set(compared(source)) & REGION_OPS == set(), path


@pytest.mark.parametrize(
    "slice",
    ["node.operands[: node.attrs.captures]", "xs[attributes.Loop.of(node).captures :]", "xs[len(loop.captures) :]"],
)
def test_a_slice_by_captures_is_seen(slice: str) -> None:
    assert list(sliced(f"def f(node, xs):\n    return {slice}")) != []


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
