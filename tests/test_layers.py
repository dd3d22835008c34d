"""Imports go down only: the layers of the design, checked on the source of every module."""

from __future__ import annotations

import ast
import configparser
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Part of the package -> its layer. A part is what follows `ctrlgrad.` up to the next dot.
LAYERS = {
    "advice": 0,
    "blocks": 0,
    "collector": 0,
    "dtypes": 0,
    "errors": 0,
    "files": 0,
    "forks": 0,
    "records": 0,
    "source": 0,
    "threads": 0,
    "tree": 0,
    "tree_util": 0,
    "ir": 1,
    "memory": 1,
    "mpi": 1,
    "ops": 2,
    "stacks": 2,
    "gradients": 3,
    "batching": 3,
    "passes": 4,
    "plan": 4,
    "runtime": 4,
    "engines": 5,
    "dataflow": 5,
    "options": 5,
    "execution": 5,
    "frontend": 5,
    "autograph": 5,
    "function": 6,
    "signature": 6,
    "transforms": 6,
    "debug": 6,
    "ad_checkpoint": 6,
    "custom_batching": 6,
    "custom_derivatives": 6,
    "": 6,  # ctrlgrad/__init__.py
    "numpy": 6,
    "scipy": 7,
    "lax": 7,
    "nn": 7,
    "random": 7,
    "optim": 7,
    "train": 7,
    "verify": 7,
    "interop": 7,
    "demos": 7,
    "cli": 7,
}

# The highest layer that the parts of a layer may import, and single parts beyond it.
CEILING = {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 2, 6: 6, 7: 6}
FURTHER = {
    "stacks": {"ops"},
    "runtime": {"passes"},
    "dataflow": {"engines", "passes", "runtime"},
    # A graph on the engine of a name: above all engines.
    "execution": {"passes", "plan", "runtime", "engines", "dataflow"},
    "engines": {"passes", "plan", "runtime"},
    "plan": {"passes"},
    "options": {"engines", "gradients"},
    # Outside of a trace an array function computes at once, by the engine that the options name.
    "frontend": {"passes", "execution", "options"},
    "autograph": {"frontend"},
    "lax": {"scipy"},
    # The table of ops in JAX is read by a judge and by functions on their way to JAX.
    "interop": {"lax", "nn", "random", "scipy", "verify"},
    "nn": {"lax", "random", "scipy"},
    "random": {"scipy"},
    "train": {"nn", "optim", "random", "verify"},
    "demos": {"scipy"},
    "cli": {"nn", "optim", "train", "verify", "interop", "demos"},
}

# Packages that only the named part may import, each where it is adapted.
ADAPTED = {
    "jax": {"verify", "interop"},
    "malt": {"autograph"},
    "llvmlite": {"engines"},
    "cupy": {"memory", "engines"},
    "mpi4py": {"mpi"},
    "torch": {"interop"},
    "tensorflow": {"interop"},
    "matplotlib": {"train", "cli", "memory"},
    "rich": {"train", "cli", "memory"},
    "typer": {"cli"},
    "safetensors": {"train", "nn", "interop"},
    "ml_dtypes": {"dtypes"},
}

# Tables of lower parts into which a part may write when it is imported: the declarations of ops, and the array
# functions and the namespace that tensors find by name.
TABLES = {
    "ops": {"declare"},
    "stacks": {"declare"},
    "numpy": {"array_function", "FUNCTIONS"},
}
# Functions that change nothing but what they are given: a class, a function, the module that calls them.
PURE = {"record", "block", "explains_calls", "explain_calls", "custom_jvp", "custom_vjp", "publish", "check_choice"}


@dataclass(frozen=True)
class Import:
    """One name that a module imports, and where."""

    importer: str
    imported: str
    place: str


def modules() -> dict[str, Path]:
    """Every module of the package by its full name."""
    found = {}
    folders = {"ctrlgrad": "ctrlgrad", **{n: f"ctrlgrad.{n}" for n in ("gradients", "stacks", "memory")}}
    for folder, prefix in folders.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [prefix, *path.relative_to(ROOT / folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@functools.cache
def import_statements(source: str) -> list[ast.Import | ast.ImportFrom]:
    """Kept, since two tests look through all modules."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(name: str, source: str, known: frozenset[str], place: str = "") -> Iterator[Import]:
    """Every import statement, those inside functions too; `from package import module` counts as the module."""
    for node in import_statements(source):
        where = f"{place or name}:{node.lineno}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, where)
        else:
            assert node.level == 0, f"{where}: relative import"
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield Import(name, module if module in known else str(node.module), where)


def part_of(module: str) -> str:
    """`ir` for `ctrlgrad.ir.graph`; empty for `ctrlgrad` itself."""
    return (module.split(".") + [""])[1]


def complaint(found: Import) -> str | None:
    """The fault of an import, or None."""
    importer = part_of(found.importer)
    package = found.imported.split(".")[0]
    if package in ADAPTED and importer not in ADAPTED[package]:
        return f"{found.place}: {package} is imported outside of {', '.join(sorted(ADAPTED[package]))}"
    if package in ("gradients", "stacks", "memory"):
        return f"{found.place}: {package} must be imported as ctrlgrad.{package}"
    if package != "ctrlgrad":
        return None
    imported = part_of(found.imported)
    if imported == importer:
        return None
    if LAYERS[imported] <= CEILING[LAYERS[importer]] or imported in FURTHER.get(importer, set()):
        return None
    return f"{found.place}: {importer or 'ctrlgrad'} (layer {LAYERS[importer]}) imports {found.imported}"


def test_every_part_has_a_layer() -> None:
    assert {part_of(name) for name in modules()} <= set(LAYERS)


def test_imports_go_down_only() -> None:
    files = modules()
    found = []
    for name, path in files.items():
        found += imports(name, path.read_text(), frozenset(files), str(path.relative_to(ROOT)))
    assert len(found) > 100
    assert [text for text in map(complaint, found) if text] == []


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("ctrlgrad.ir.graph", "from ctrlgrad.ops import traits"),
        ("ctrlgrad.ops.arrays", "def f():\n    from ctrlgrad import frontend"),
        ("ctrlgrad.frontend.tensor", "import ctrlgrad"),
        ("ctrlgrad.frontend.tensor", "import ctrlgrad.gradients.table"),
        ("ctrlgrad.engines.auto", "from ctrlgrad.frontend.tensor import Tensor"),
        ("ctrlgrad.ir.op", "if TYPE_CHECKING:\n    from ctrlgrad.stacks.saving import Scope"),
        ("ctrlgrad.gradients.table", "from ctrlgrad.frontend.tensor import Tensor"),
        ("ctrlgrad.transforms", "from ctrlgrad.verify import check_grads"),
        ("ctrlgrad.transforms", "import jax.numpy"),
        ("ctrlgrad.gradients.table", "from stacks import ops"),
        ("ctrlgrad.nn.layers", "from ctrlgrad.cli import main"),
    ],
)
def test_an_upward_import_is_seen(importer: str, statement: str) -> None:
    known = frozenset(modules())
    assert [complaint(found) for found in imports(importer, statement, known)] != [None]


def in_circles(imported: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves, directly or through another module."""

    def behind(name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            for other in imported[waiting.pop()] - found:
                found.add(other)
                waiting.append(other)
        return found

    return {name for name in imported if name in behind(name)}


def test_no_imports_in_circles() -> None:
    """Imports that only type checkers see count too."""
    files = modules()
    imported = {
        name: {found.imported for found in imports(name, path.read_text(), frozenset(files))} & set(files) - {name}
        for name, path in files.items()
    }
    assert in_circles(imported) == set()


def test_a_circle_is_seen() -> None:
    source = {
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ctrlgrad import b",
        "b": "def f():\n    import ctrlgrad.c",
        "c": "from ctrlgrad.a import f",
        "d": "from ctrlgrad import a",
    }
    known = frozenset(f"ctrlgrad.{name}" for name in source)
    imported = {
        f"ctrlgrad.{n}": {found.imported for found in imports(f"ctrlgrad.{n}", text, known)} & known
        for n, text in source.items()
    }
    assert in_circles(imported) == {"ctrlgrad.a", "ctrlgrad.b", "ctrlgrad.c"}


def registrations(name: str, source: str) -> Iterator[str]:
    """Changes that a module makes in another part on import: calls, decorators and assignments to its items."""
    body = ast.parse(source).body
    origin = {
        alias.asname or alias.name: str(node.module)
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in body:
        changed: list[ast.expr] = []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            changed = [node.value.func]
        elif isinstance(node, ast.Assign):
            changed = [x.value for x in node.targets if isinstance(x, ast.Subscript | ast.Attribute)]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            changed = [x.func if isinstance(x, ast.Call) else x for x in node.decorator_list]
        for x in changed:
            while isinstance(x, ast.Attribute):
                x = x.value
            module = origin.get(x.id, "") if isinstance(x, ast.Name) else ""
            if module.startswith("ctrlgrad.") and part_of(module) != part_of(name):
                yield x.id  # type: ignore[attr-defined]


def test_nothing_registers_itself_with_a_part_below() -> None:
    found = {
        (part_of(name), what)
        for name, path in modules().items()
        for what in registrations(name, path.read_text())
        if what not in TABLES.get(part_of(name), set()) | PURE
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "from ctrlgrad.frontend.apply import set_evaluator\nset_evaluator(print)",
        "from ctrlgrad.gradients import calls\ncalls.set_batch(print)",
        "from ctrlgrad.frontend.functions import FUNCTIONS\nFUNCTIONS['x'] = print",
        "from ctrlgrad.frontend.functions import array_function\n@array_function('x')\ndef f(): ...",
    ],
)
def test_a_registration_is_seen(source: str) -> None:
    assert list(registrations("ctrlgrad.transforms.grad", source)) != []


def test_modules_stay_readable() -> None:
    """A file of more than 800 lines has more than one subject. A list of names, one a line, is one line of reading."""
    listed = re.compile(r' +"?\w+"?,')
    files = modules() | {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("*.py")}
    lines = {
        name: sum(not listed.fullmatch(line) for line in path.read_text().splitlines()) for name, path in files.items()
    }
    assert {name: n for name, n in lines.items() if n > 800} == {}


def test_tests_find_each_other_by_the_settings_alone() -> None:
    """`pythonpath` in setup.cfg; only programs that start by themselves say where they lie."""
    starts = {ROOT / f"tests/{name}/__main__.py" for name in ("random_jaxprs", "random_programs", "size_sweep")}
    starts.add(ROOT / "tests/mpi/test_dataflow_ranks.py")
    edits = re.compile(r"sys\.path\.(insert|append)\(")
    found = [path for path in (ROOT / "tests").rglob("*.py") if edits.search(path.read_text())]
    assert set(found) <= starts, found


def test_setup_lists_every_package() -> None:
    """Packages are listed one by one; one that is forgotten is missing from every installation."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    assert set(setup["options"]["packages"].split()) == packages
