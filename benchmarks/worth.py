"""Worth of each pass over graphs and plans: a benchmark where it fires, with the pass and without it.

`python -m benchmarks.worth` prints the table of `docs/performance.md`; with `--write` it goes there. `tests/benchmarks`
checks that the table has a row for each pass of the code, and that the pass changes the plan of the benchmark that its
row names. Both sides run in turn, each in processes of its own with an empty cache, and the best processor times count.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Entry
from benchmarks.catalogue import cases
from benchmarks.process import ROOT, Surroundings, Worker
from benchmarks.program import Program
from ctrlgrad import passes
from ctrlgrad.engines.native import engine
from ctrlgrad.ir import interning
from ctrlgrad.ir.caching import Recent
from ctrlgrad.plan import planning
from ctrlgrad.plan.model import Plan
from ctrlgrad.plan.printer import format_plan

PAGE = ROOT / "docs" / "performance.md"
HEAD = "| pass | benchmark | warm | first call |"
# Seconds of later runs of a process.
STEADY = 0.5

LSTM = "lstm-concat-200x64x128x256"
# For each pass the benchmark that shows it.
SHOWN = {
    "count_outside": "lstm-checkpoint",
    "remove_dead_code": "runge-kutta",
    "forward_results": "runge-kutta",
    "know_counts": "swaps",
    "read_first": "swaps",
    "hoist_invariants": "kalman",
    "merge_common": "runge-kutta",
    "join_updates": "tagger",
    "sink_slices": "alignment",
    "split_products": "lstm-concat-50x1x32x64",
    "distribute": "matrix-vector",
    "accumulate": "matrix-vector",
    "fuse": "ray-marching",
    "contract": "neural-ode",
    "lay_out_columns": "gradbench-kmeans-dir",
    "pack_constants": LSTM,
}


def names_of_passes() -> list[str]:
    """All passes, over graphs and then over plans."""
    tables = (*passes.SIMPLIFICATIONS, *passes.OPTIMISATIONS)
    return list(dict.fromkeys([*(name for name, _ in tables), *planning.PASSES]))


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Passes are left out of what is traced and planned in this context. Graphs of earlier calls are not found."""
    before = passes.SIMPLIFICATIONS, passes.OPTIMISATIONS, planning.PASSES
    passes.SIMPLIFICATIONS, passes.OPTIMISATIONS = (
        tuple(one for one in table if one[0] not in names) for table in before[:2]
    )
    planning.PASSES = tuple(name for name in before[2] if name not in names)
    families, interning._FAMILIES = interning._FAMILIES, Recent(interning.MOST)
    try:
        yield
    finally:
        passes.SIMPLIFICATIONS, passes.OPTIMISATIONS, planning.PASSES = before
        interning._FAMILIES = families


def built(program: str, arguments: dict[str, Any]) -> Program:
    module, _, function = program.partition(":")
    return getattr(importlib.import_module(module), function)(**arguments)  # type: ignore[no-any-return]


def left_out(program: str, arguments: dict[str, Any], names: Sequence[str]) -> Program:
    """A benchmark's program, each step of which leaves passes out."""
    made = built(program, arguments)

    def step() -> Any:
        with without(*names):
            return made.step()

    return replace(made, step=step)


class _Planned(BaseException):
    """A program has asked for machine code of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


def plan_text(case: Case, *names: str) -> str:
    """The first plan that a benchmark needs, as text, without some passes. It is neither compiled nor run."""

    def planned(plan: Plan) -> Any:
        raise _Planned(plan)

    entry = case.entries[0]
    # Functions of a module know the calls of earlier programs: the modules are imported anew.
    package = entry.program.partition(":")[0].rpartition(".")[0]
    known = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(f"{package}.")}
    compiled, engine.compiled = engine.compiled, planned
    try:
        with without(*names):
            built(entry.program, dict(entry.arguments)).step()
    except _Planned as found:
        return format_plan(found.plan)
    finally:
        engine.compiled = compiled
        sys.modules.update(known)
    raise AssertionError(f"{case.name} has made no plan: all that it needs is compiled already")


@functools.cache
def by_name() -> dict[str, Case]:
    return {case.name: case for case in cases("native")}


def counted() -> list[Case]:
    """Benchmarks of one program each, whose functions are traced anew whenever they are built."""
    folders = ("benchmarks.small", "benchmarks.recurrent", "benchmarks.loops", "benchmarks.runge_kutta")
    aside = ("first-call-", "scaling-", "memory", "compilation", "kept-bytes", "busy", "lengths", "products-")
    found = [case for case in by_name().values() if case.entries[0].program.startswith(folders)]
    return [case for case in found if not case.name.startswith(aside)]


def measured(entry: Entry, names: Sequence[str], surroundings: Surroundings) -> tuple[float, float]:
    """Processor seconds of the first run in a new process, and of the best later one."""
    with tempfile.TemporaryDirectory() as cache, Worker(surroundings, "ctrlgrad", Path(cache)) as worker:
        arguments = {"program": entry.program, "arguments": dict(entry.arguments), "names": list(names)}
        worker.ask("build", program="benchmarks.worth:left_out", arguments=arguments)
        (first,) = worker.ask("run", times=1)["processor_seconds"]
        (once,) = worker.ask("run", times=1)["processor_seconds"]
        later = worker.ask("run", times=min(max(int(STEADY / once), 3), 2000))["processor_seconds"]
        return first, min(once, *later)


def row(name: str, rounds: int) -> str:
    """A row of the table: times without the pass over times with it."""
    case, surroundings = by_name()[SHOWN[name]], Surroundings(2, 600.0, {}, sys.executable)
    best: dict[bool, tuple[float, float]] = {}
    for _ in range(rounds):
        for is_off in (False, True):
            found = measured(case.entries[0], [name] if is_off else [], surroundings)
            best[is_off] = tuple(map(min, found, best.get(is_off, found)))  # type: ignore[assignment]
    first, warm = (off / on for off, on in zip(best[True], best[False], strict=True))
    return f"| `{name}` | {case.name} | {warm:.2f} | {first:.2f} |"


def shown_rows(page: str) -> dict[str, str]:
    """The benchmark of each row of the table on a page, by pass."""
    table = page.partition(HEAD)[2].partition("\n\n")[0].strip().splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {name.strip("`"): benchmark for name, benchmark, *_ in cells}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worth", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PASS", choices=names_of_passes(), default=names_of_passes())
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds per pass (default 5)")
    parser.add_argument("--write", action="store_true", help="write the rows to docs/performance.md")
    parser.add_argument("--count", action="store_true", help="print only in which benchmarks each pass fires")
    options = parser.parse_args(arguments)
    if options.count:
        texts = {case.name: plan_text(case) for case in counted()}
        for name in options.only:
            fires = [case.name for case in counted() if plan_text(case, name) != texts[case.name]]
            print(f"{name}: {len(fires)} of {len(texts)}: {', '.join(fires)}", flush=True)
        return
    for name in options.only:
        found, page = row(name, options.rounds), PAGE.read_text(encoding="utf-8")
        print(found, flush=True)
        if options.write:
            before, _, after = page.partition(f"| `{name}` | {shown_rows(page)[name]} |")
            PAGE.write_text(f"{before}{found}\n{after.partition(chr(10))[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
