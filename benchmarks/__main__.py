"""Compare ctrlgrad with its peers: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.case import Case
from benchmarks.catalogue import PEERS, cases
from benchmarks.machine import description, header
from benchmarks.measure import measure
from benchmarks.process import Failure, Surroundings, Worker
from benchmarks.report import Report, has_matplotlib, table

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = {"jax": ["jax", "jaxlib"], "tensorflow": ["tensorflow-cpu"]}
CORES = 2


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times every case for ctrlgrad and its peers in turn, each system in a process of its own. "
        "What they compute is compared first.",
    )
    parser.add_argument("--only", nargs="+", metavar="CASE", help="names of cases, or patterns such as 'lstm-*'")
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="NAME", help=f"from {', '.join(PEERS)}")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds per case (default 7)")
    parser.add_argument("--engine", default="native", help="ctrlgrad's engine (default native)")
    parser.add_argument("--cores", type=int, default=CORES, help=f"cores for each system (default {CORES})")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds one request may take (default 600)")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="the Python of a peer")
    parser.add_argument(
        "--gradbench-tool",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a peer in the cases gradbench-*: a program that speaks the protocol of GradBench's tools over its "
        "standard input and output, and times its runs itself",
    )
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that everything runs and agrees")
    parser.add_argument("--output", type=Path, metavar="STEM", help="write STEM.json, .txt and .png; see below")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.epilog = "Without --output, results go to benchmarks/results/comparison; with --only or --tiny, nowhere."
    parsed = parser.parse_args(arguments)
    if parsed.repeats < 1 or parsed.cores < 1:
        parser.error("--repeats and --cores must be 1 or more")
    wrong = [x for x in parsed.python if x.partition("=")[0] not in (*PEERS, "ctrlgrad") or not x.partition("=")[2]]
    if wrong:
        parser.error(f"--python takes PEER=PATH, not {wrong[0]!r}")
    tools = [x.partition("=")[::2] for x in parsed.gradbench_tool]
    names = [name for name, _ in tools]
    if not all(name and command for name, command in tools):
        parser.error(f"--gradbench-tool takes NAME=COMMAND, not {parsed.gradbench_tool}")
    if len({*names, "ctrlgrad", *PEERS}) < len(names) + 1 + len(PEERS):
        parser.error(f"--gradbench-tool takes an unused name, not {names}")
    return parsed


def pairs(items: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE items as a dictionary."""
    return dict(item.split("=", 1) for item in items)


def select(every: Sequence[Case], only: Sequence[str] | None, peers: Sequence[str] | None) -> list[Case]:
    """The cases that a pattern names, with the entries of the chosen peers."""
    chosen = [c for c in every if only is None or any(fnmatch.fnmatch(c.name, pattern) for pattern in only)]
    left_out = set() if peers is None else set(PEERS) - set(peers)
    return [replace(c, entries=tuple(e for e in c.entries if e.system not in left_out)) for c in chosen]


def versions_of(peers: Sequence[str], surroundings: Surroundings) -> dict[str, str]:
    """The versions that are installed, asked from each peer's own Python."""
    found: dict[str, str] = {}
    for peer in peers:
        with Worker(surroundings, peer, Path()) as worker:
            for package in PACKAGES.get(peer, [peer]):
                try:
                    found |= worker.ask("versions", packages=[package])["versions"]
                except Failure:
                    found[package] = "not installed"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    every = cases(options.engine, options.tiny, pairs(options.gradbench_tool))
    chosen = select(every, options.only, options.peers)
    if options.list:
        print("\n".join(f"{case.name:32} {case.title}" for case in every))
        return 0
    if not chosen:
        print(f"no case is named {' or '.join(options.only)}; --list prints the names", file=sys.stderr)
        return 2
    output = options.output
    if output is None and options.only is None and not options.tiny:
        output = RESULTS / "comparison"
    surroundings = Surroundings(options.cores, options.patience, pairs(options.python), sys.executable)
    settings = {name: getattr(options, name) for name in ("engine", "repeats", "cores", "tiny")}
    used = [peer for peer in PEERS if any(e.system == peer for c in chosen for e in c.entries)]
    report = Report(description(), settings, versions_of(used, surroundings), [])
    console = Console(width=160, record=True)
    console.print(header(options.engine), ", ".join(f"{name} {found}" for name, found in report.versions.items()))
    for case in chosen:
        with console.status("") as status:
            outcomes = measure(case, surroundings, options.repeats, status.update)
        report.cases.append((case, outcomes))
        console.print(table(case, outcomes))
        written = report.save(output, console.export_text(clear=False)) if output is not None else []
    for path in written:
        print(f"wrote {path}")
    if written and not has_matplotlib():
        print("no picture: matplotlib is not installed")
    broken = [o for _, found in report.cases for o in found if o.failure and not o.failure.is_absence]
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
