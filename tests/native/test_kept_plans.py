"""Plans on disk: which graphs share one, that it is the plan that would be made, and what is not taken from there."""

from __future__ import annotations

import ast
import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same_bits
from instruments.tables import programs_at_orders, some
from programs import BY_NAME, PROGRAMS, Program

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import without_passes
from ctrlgrad.engines.native import ahead, engine, kept_plans, kept_records, target
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.engines.native.kept_plans import version
from ctrlgrad.engines.native.objects import DiskCache, ObjectCode
from ctrlgrad.errors import IndexOutOfRangeError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph
from ctrlgrad.ir.caching import Recent
from ctrlgrad.ir.interning import fingerprint
from ctrlgrad.plan import planning
from ctrlgrad.plan.model import Plan
from ctrlgrad.plan.printer import format_plan

# Programs with ops that are lowered by a graph of their own (argsort, searchsorted), whose nodes are no one's else.
NOT_KEPT = ("reductions_in_the_body", "sorted_and_taken_back_in_a_loop")


NO_PLAN = kept_records.written(("no plan",), kept_records.Vocabulary({}, {}))


@pytest.fixture(name="kept_plans")
def plans_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for entries, in a process that has compiled nothing."""
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path / "entries"))
    forget(monkeypatch)
    return tmp_path / "entries"


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are made during a test."""
    found: list[Plan] = []
    plan_of = planning.plan_of
    monkeypatch.setattr(planning, "plan_of", lambda *given: (found.append(made := plan_of(*given)), made)[1])
    return found


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process were new: machine code is on disk alone."""
    monkeypatch.setattr(engine, "_FUNCTIONS", Recent(engine.FUNCTIONS))


def key_of(graph: Graph, leaves: Any) -> str:
    key = kept_plans.key_of(graph, (engine.shapes_of(graph, leaves),))
    assert key is not None
    return key


def printed(plan: Plan) -> str:
    """The plan's text and the text of its code."""
    return format_plan(plan) + PlanWriter(plan, target.host().vector_bytes).function("plan")


def test_of_two_plans_that_print_differently_the_keys_differ(kept_plans: Path, request: pytest.FixtureRequest) -> None:
    texts: dict[str, str] = {}
    programs = some(PROGRAMS, 60, request.config)
    for number, program in enumerate(programs):
        graph = program.graph(number % 2)
        if fingerprint(graph) is None:
            continue
        key = key_of(graph, program.leaves)
        text = printed(engine.plan_of(graph, engine.shapes_of(graph, program.leaves)))
        assert texts.setdefault(key, text) == text
    assert len(set(texts.values())) == len(texts) > len(programs) - 16


@pytest.mark.parametrize(
    "other",
    [
        lambda x: cnp.sum(x * 2.5, axis=1),
        lambda x: cnp.sum(x * 2.0, axis=0),
        lambda x: cnp.sum(x * np.float32(2.0), axis=1) + 0.0,
        lambda x: cnp.sum(x * cnp.asarray([2.0, 2.0, 2.0]), axis=1),
        lambda y: cnp.sum(y * 2.0, axis=1),
        lambda x: cnp.sum(cnp.roll(x, 1) * 2.0, axis=1),
    ],
)
def test_what_a_graph_says_is_in_its_key(other: Callable[..., Any]) -> None:
    x = np.ones((2, 3))
    one = cg.function(lambda x: cnp.sum(x * 2.0, axis=1), name="f").graph(x)
    assert fingerprint(one) == fingerprint(cg.function(lambda x: cnp.sum(x * 2.0, axis=1), name="f").graph(x))
    assert fingerprint(one) != fingerprint(cg.function(other, name="f").graph(x))
    assert fingerprint(one) != fingerprint(cg.function(lambda x: cnp.sum(x * 2.0, axis=1), name="f").graph(x[:, :1]))


def test_large_constants_are_told_apart() -> None:
    numbers = np.arange(5000.0)
    other = numbers.copy()
    other[4321] = -1.0
    graphs = [cg.function(lambda x, c=c: x + cnp.asarray(c), name="f").graph(0.5) for c in (numbers, other)]
    assert fingerprint(graphs[0]) != fingerprint(graphs[1])


def test_the_sizes_that_are_known_are_in_the_key(kept_plans: Path) -> None:
    spec = cg.TensorSpec((None, None), np.float64)
    graph = cg.function(lambda x: cnp.sum(x, axis=0), signature=(spec,)).graph(np.ones((2, 3)))
    keys = [key_of(graph, [np.ones(shape)]) for shape in ((2, 3), (3, 2), (3, 3), (1, 3), (0, 3))]
    assert keys[0] == keys[1] and len(set(keys)) == 4


@programs_at_orders(0, 1, 2, share=(1, 3))
def test_a_plan_comes_back_as_it_was(kept_plans: Path, program: Program, order: int) -> None:
    graph = program.graph(order)
    if fingerprint(graph) is None:
        return
    plan = engine.plan_of(graph, engine.shapes_of(graph, program.leaves))
    kept = engine.KeptPlan(plan, engine.Code("name", ("cg_exp_float64",)))
    engine.kept_plans.write("0" * 64, graph, kept)
    found = engine.kept_plans.read("0" * 64, graph)
    if program.name in NOT_KEPT:
        assert found is None
        return
    assert found is not None and found.code == kept.code
    assert printed(found.plan) == printed(plan)
    assert [site.node for site in found.plan.sites] == [site.node for site in plan.sites]


@pytest.mark.parametrize("name", ["lstm", "branch_in_a_loop", "nested_data_dependent_counts", "unknown_size"])
def test_a_new_process_makes_no_plan_and_no_code(
    name: str, kept_plans: Path, planned: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, compiled, found = BY_NAME[name], target.compiled, []
    texts: list[str] = []
    monkeypatch.setattr(
        target, "compiled", lambda text, *how, **more: (texts.append(text), compiled(text, *how, **more))[1]
    )
    for _ in range(2):
        forget(monkeypatch)
        found.append(run_on("native", program.traced_again(1), program.leaves))
    assert len(planned) == len([text for text in texts if "@plan(" in text]) == 1
    assert_same_bits(*found)


def test_errors_name_the_code_as_it_is_now(
    kept_plans: Path, planned: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(lines: int) -> Callable[..., Any]:
        """The same function, so many lines further down in its file."""
        names: dict[str, Any] = {}
        text = "\n" * lines + "def f(x, i):\n    return x[i]\n"
        exec(compile(text, "moved.py", "exec"), names)
        return names["f"]

    for lines in (0, 40):
        forget(monkeypatch)
        f = cg.function(moved(lines), engine="native")
        assert f(np.arange(3.0), 1) == 1.0
        with pytest.raises(IndexOutOfRangeError) as caught:
            f(np.arange(3.0), 7)
        assert f"moved.py:{lines + 2}" in "".join(traceback.format_exception(caught.value))
    assert len(planned) == 1


def test_other_passes_are_another_plan(kept_plans: Path, planned: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    for without in ((), ("fuse",)):
        with without_passes(*without):
            for _ in range(2):
                assert run_on("native", BY_NAME["lstm"].traced_again(0), BY_NAME["lstm"].leaves)
    assert len(planned) == 2


@pytest.mark.parametrize("bytes_", [b"", b"no plan", b"{}\n", NO_PLAN])
def test_an_entry_that_holds_no_plan_is_made_anew(
    bytes_: bytes, kept_plans: Path, planned: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = BY_NAME["lstm"]
    first = run_on("native", program.traced_again(0), program.leaves)
    (plan_entry,) = [path for path in kept_plans.iterdir() if b'"kept_plans.KeptPlan"' in path.read_bytes()]
    DiskCache(kept_plans).write(plan_entry.stem, ObjectCode((), (version() or b"") + b"\n" + bytes_))
    forget(monkeypatch)
    assert_same_bits(first, run_on("native", program.traced_again(0), program.leaves))
    assert len(planned) == 2 and b'"kept_plans.KeptPlan"' in plan_entry.read_bytes()


def test_a_plan_that_other_modules_made_is_made_anew(
    kept_plans: Path, planned: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, found = BY_NAME["lstm"], []
    for made_by in (b"one", b"one", b"another", b"another", None, None, b"another"):
        forget(monkeypatch)
        monkeypatch.setattr(engine.kept_plans, "version", lambda made_by=made_by: made_by)
        run_on("native", program.traced_again(0), program.leaves)
        found.append(len(planned))
    assert found == [1, 1, 2, 2, 3, 4, 4]


def test_a_first_call_waits_neither_for_the_disk_nor_for_the_reading_of_modules(
    kept_plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_off: list[Callable[[], None]] = []
    versions: list[bool] = []
    version = engine.kept_plans.version
    monkeypatch.setattr(engine.kept_plans, "version", lambda: (versions.append(True), version())[1])
    monkeypatch.setattr(ahead, "put_off", put_off.append)
    forget(monkeypatch)
    run_on("native", BY_NAME["lstm"].traced_again(1), BY_NAME["lstm"].leaves)
    assert not versions and not list(kept_plans.iterdir())
    for work in put_off:
        work()
    assert versions and len(list(kept_plans.iterdir())) == len(put_off)


def test_a_plan_whose_code_is_gone_is_compiled_again(
    kept_plans: Path, planned: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = BY_NAME["branch_in_a_loop"]
    first = run_on("native", program.traced_again(1), program.leaves)
    for path in kept_plans.iterdir():
        if b'"kept_plans.KeptPlan"' not in path.read_bytes():
            path.unlink()
    forget(monkeypatch)
    assert_same_bits(first, run_on("native", program.traced_again(1), program.leaves))
    assert len(planned) == 1


def test_a_graph_with_a_callback_is_not_kept(kept_plans: Path) -> None:
    seen: list[float] = []

    def f(x):
        cg.debug.callback(lambda v, at: seen.append(float(v)), x)
        return x * 2.0

    step = cg.function(f, engine="native")
    assert fingerprint(step.graph(1.0)) is None
    assert step(1.5) == 3.0 and seen == [1.5]


def test_all_that_plans_and_their_text_follow_from_is_in_the_key() -> None:
    """What makes graphs and plans, and what that imports; but for what says how errors look, what a record is,
    and what a fork waits for."""
    waiting, found = ["ctrlgrad.passes", "ctrlgrad.plan.planning", "ctrlgrad.engines.native.emit"], {}
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = module_file(name)
            waiting += imported(found[name])
    others = {name for name, path in found.items() if str(path) not in kept_plans.modules()}
    assert len(found) > 80 and others == {
        f"ctrlgrad.{name}" for name in ("errors", "files", "forks", "records", "source")
    }


def imported(path: Path) -> list[str]:
    """The package's modules that a module imports when it is imported itself."""
    names: list[str] = []
    for item in ast.parse(path.read_text()).body:
        if isinstance(item, ast.ImportFrom) and (item.module or "").startswith("ctrlgrad."):
            names += [str(item.module), *(f"{item.module}.{each.name}" for each in item.names)]
    return [name for name in names if module_file(name).name != ""]


def module_file(name: str) -> Path:
    """The file of a module; an empty path where a name is none."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    return Path(found.origin if found is not None and found.origin else "")
