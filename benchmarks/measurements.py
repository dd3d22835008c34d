"""First call, later calls and peak memory of the catalogue's programs, in ctrlgrad and in its peers.

`python -m benchmarks.measurements` measures, prints and writes `benchmarks/results/measurements.json` and the page
`docs/measurements.md`, which is made from that file; `tests/benchmarks` compares the two. Each round starts new
processes with empty caches, one system after the other; the best processor times of the rounds count. With `--only` the
named programs alone are measured anew. Each program has its date and its load.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RESULTS, versions_of
from benchmarks.agreement import load, require_agreement
from benchmarks.case import Case, Entry
from benchmarks.catalogue import PEERS, cases
from benchmarks.machine import description
from benchmarks.process import ROOT, Failure, Surroundings, Worker
from benchmarks.report import quantity

FILE = RESULTS / "measurements.json"
PAGE = ROOT / "docs" / "measurements.md"
# Processor seconds of later runs of a process.
STEADY = 0.3
FIGURES = ("first", "warm", "peak")
FOLDERS = ("benchmarks.small", "benchmarks.recurrent", "benchmarks.loops", "benchmarks.runge_kutta")
ASIDE = ("scaling-", "products-", "busy", "memory", "dataflow-")
HEAD = "| program | peer | first call | ratio | later call | ratio | peak memory | ratio |"

TEXT = """# Measurements

Values and gradients of the programs of `benchmarks/`: loops, recurrent networks, and programs from many fields.
`python -m benchmarks.measurements` repeats them all, and `--only NAME` some of them.

- {machine}.
- Peers: {peers}.
- Each system runs in a process of its own on {cores}, with an empty cache; results are compared first.
- Times are processor times of all threads, the best of {rounds}. A *first call* traces, differentiates, compiles and
  runs, imports not counted. PyTorch runs eagerly here and compiles nothing.
- *Peak memory* is the most resident memory of the process, libraries included, from the second call on.
- A ratio is the peer's figure over ctrlgrad's: above 1, ctrlgrad needs less. One below 1 is **bold**.
- The machine was shared: its load was {load}. Ratios from 0.95 to 1.05 say nothing.

{rows}

Geometric means of the ratios: {means}.

Behind by more than 5 %: {behind}.

Left out: {left_out}.
"""


def programs() -> list[Case]:
    """The cases whose first and later runs are timed."""
    return [c for c in cases("native") if _is_program(c)]


def _is_program(case: Case) -> bool:
    is_long = case.measure == "first run" and case.name.removeprefix("first-call-") in _wide()
    is_steady = case.measure == "steady" and not case.name.startswith(ASIDE)
    return (is_steady or is_long) and case.entries[0].program.startswith(FOLDERS)


def _wide() -> list[str]:
    from benchmarks.small.cases import WIDE

    return [small.name for small in WIDE]


def measured(case: Case, peers: Sequence[str], surroundings: Surroundings, rounds: int) -> dict[str, Any]:
    """The record of a program; entries that fail or are not installed are left out, and said to be."""
    entries = _of_one_length([case.entries[0], *(e for e in case.entries[1:] if e.system in peers)])
    found: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="ctrlgrad-measurements-") as name:
            folder = Path(name)
            for entry in entries[number % len(entries) :] + entries[: number % len(entries)]:
                so_far = found.setdefault(entry.label, {"label": entry.label, "system": entry.system})
                if "failure" in so_far:
                    continue
                try:
                    figures = _figures(entry, surroundings, folder)
                    so_far |= {k: min(x, so_far.get(k, x)) for k, x in figures.items()}
                except Failure as failure:
                    so_far["failure"] = failure.text.splitlines()[0][:100]
            _compare(case, entries, folder, found)
    machine = description()
    ordered = [found[e.label] for e in entries]
    return {"name": case.name, "date": machine["date"], "load": round(machine["load"][0], 1), "entries": ordered}


def _of_one_length(entries: list[Entry]) -> list[Entry]:
    """Entries that run as many iterations each: those of a slow peer, where it has fewer."""
    if len({e.units for e in entries}) == 1:
        return entries
    least = min(e.units for e in entries)
    return [replace(e, units=least, arguments={**e.arguments, "n": least}) for e in entries]


def _figures(entry: Entry, surroundings: Surroundings, folder: Path) -> dict[str, float]:
    """Processor seconds of the first and of the best later run of a new process, and its bytes in the later ones."""
    cache = folder / entry.label
    cache.mkdir(mode=0o700)
    with Worker(surroundings, entry.system, cache) as worker:
        worker.ask("build", program=entry.program, arguments=dict(entry.arguments), busy=entry.busy)
        (first,) = worker.ask("run", times=1)["processor_seconds"]
        worker.ask("save", path=str(folder / f"{entry.label}.npz"))
        (once,) = worker.ask("run", times=1)["processor_seconds"]
        count = min(max(math.ceil(STEADY / 3 / max(once, 1e-6)), 1), 2000)
        turns = [worker.ask("run", times=count) for _ in range(3)]
        means = [sum(turn["processor_seconds"]) / count for turn in turns]
        return {
            "first": first,
            "warm": min(once, *means),
            "peak": max(turn["peak_bytes"] + turn["resident_bytes"] for turn in turns),
        }


def _compare(case: Case, entries: Sequence[Entry], folder: Path, found: dict[str, dict[str, Any]]) -> None:
    ours, *others = (e.label for e in entries)
    for label in others:
        if (folder / f"{label}.npz").exists() and "failure" not in found[label]:
            try:
                require_agreement(load(folder / f"{label}.npz"), load(folder / f"{ours}.npz"), ours, case.tolerance)
            except Failure as failure:
                found[label]["failure"] = failure.text


def rows(record: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, tuple[float, float]]]]:
    """Program, peer, and for each figure ctrlgrad's own with the peer's ratio to it."""
    for case in record["programs"]:
        ours, *others = case["entries"]
        for other in (e for e in others if e["system"] != "ctrlgrad"):
            if "failure" not in other and "failure" not in ours:
                yield case["name"], other["label"], {k: (ours[k], other[k] / max(ours[k], 1e-9)) for k in FIGURES}


def page(record: dict[str, Any]) -> str:
    """The page of a results file."""
    lines, behind = [HEAD, "| --- | --- |" + " ---: |" * 6], []
    ratios: dict[tuple[str, str], list[float]] = {}
    for name, peer, figures in rows(record):
        cells = []
        for figure, (own, ratio) in figures.items():
            shown = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
            cells += [quantity(own, figure == "peak"), f"**{shown}**" if ratio < 1 else shown]
            ratios.setdefault((peer.partition(" ")[0], figure), []).append(ratio)
        lines.append(f"| {name} | {peer} | {' | '.join(cells)} |")
        worst = [f"{LABELS[f]} {ratio:.2f}" for f, (_, ratio) in figures.items() if ratio < 0.95]
        behind += [f"{name} and {peer} ({', '.join(worst)})"] if worst else []
    means = [
        f"{peer} {LABELS[figure]} {math.exp(sum(map(math.log, found)) / len(found)):.2f}"
        for (peer, figure), found in ratios.items()
        if all(found)
    ]
    machine, loads = record["machine"], [case["load"] for case in record["programs"]]
    dates = sorted({case["date"] for case in record["programs"]})
    said = f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {machine['processor']}, Python {machine['python']}, "
    said += f"NumPy {machine['numpy']}, ctrlgrad {machine['ctrlgrad']}"
    return TEXT.format(
        machine=said,
        peers=", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        cores="one core" if record["cores"] == 1 else f"{record['cores']} cores",
        rounds="one round" if record["rounds"] == 1 else f"{record['rounds']} rounds",
        load=f"{min(loads):g} to {max(loads):g}",
        rows="\n".join(lines),
        means="; ".join(means),
        behind="; ".join(behind) or "nowhere",
        left_out="; ".join(_left_out(record)) or "nothing",
    )


def _left_out(record: dict[str, Any]) -> Iterator[str]:
    """Programs of peers that failed, or that gave other results."""
    for case in record["programs"]:
        for entry in case["entries"]:
            if "failure" in entry:
                yield f"{case['name']} of {entry['label']}: {entry['failure']}"


LABELS = {"first": "first call", "warm": "later call", "peak": "memory"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measurements", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="PROGRAM", default=["*"], help="names, or patterns such as 'gru-*'"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds per program (default 3)")
    parser.add_argument("--cores", type=int, default=2, help="cores for each system (default 2)")
    parser.add_argument("--output", type=Path, default=FILE, help="the results file")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page")
    options = parser.parse_args(arguments)
    surroundings = Surroundings(options.cores, 600.0, {}, sys.executable)
    record: dict[str, Any] = {"programs": []}
    if options.output.exists() and options.only != ["*"]:
        record = json.loads(options.output.read_text(encoding="utf-8"))
    known = {case["name"]: case for case in record["programs"]}
    versions = record.get("versions", {}) | versions_of(options.peers, surroundings)
    every = programs()
    for case in every:
        if any(fnmatch.fnmatch(case.name, pattern) for pattern in options.only):
            known[case.name] = measured(case, options.peers, surroundings, options.rounds)
            print(json.dumps(known[case.name]), flush=True)
            record = {"machine": description(), "versions": versions}
            record |= {"cores": options.cores, "rounds": options.rounds}
            record["programs"] = [known[c.name] for c in every if c.name in known]
            options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            options.page.write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()
