"""`python -m tests.random_programs --count 20000 --seed 1 --jobs 2`, from the repository's root.

Exits with 1 if a program failed. Each failure is shown shrunk, as source with its arguments.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

# The tests' folder, as in conftest.py: the package is imported by its own name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quick_jax import set_flags

set_flags()

from random_programs.campaign import Batch, Outcome, run_batches  # noqa: E402  (JAX reads its flags once)
from random_programs.checks import Rotation  # noqa: E402


def main() -> int:
    arguments = _parser().parse_args()
    sizes = [arguments.batch] * (arguments.count // arguments.batch)
    if arguments.count % arguments.batch:
        sizes.append(arguments.count % arguments.batch)
    first = arguments.seed * 1_000_000
    rotation = Rotation(arguments.all_every, arguments.jax_every, arguments.jax_form)
    batches = [Batch(first + i, n, rotation) for i, n in enumerate(sizes)]
    total, began = Outcome(), time.monotonic()
    for done, outcome in enumerate(run_batches(batches, arguments.jobs), 1):
        total.add(outcome)
        for failure in outcome.failures:
            print(f"\nFAILED, {failure}", flush=True)
        passed = f"{total.examined}/{arguments.count} programs, {len(total.failures)} failures"
        print(f"{done}/{len(batches)} batches: {passed}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(summary(total))
    return 1 if total.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs in all (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same programs (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--batch", type=int, default=50, help="programs per run of Hypothesis (default 50)")
    parser.add_argument("--all-every", type=int, default=8, help="one in so many has all modes (default 8)")
    parser.add_argument("--jax-every", type=int, default=1, help="JAX judges one in so many, 0: none (default 1)")
    parser.add_argument(
        "--jax-form", choices=("auto", "scan", "unrolled"), default="auto", help="how JAX runs loops (default auto)"
    )
    return parser


def summary(outcome: Outcome) -> str:
    """What was judged, as text."""
    lines = [
        f"{outcome.examined} programs judged, {len(outcome.failures)} failures",
        f"{outcome.seconds:.0f} s of processor time",
        f"{outcome.iterations} loop iterations; not judged: "
        + (", ".join(f"{n} ({why})" for why, n in outcome.unsuitable.most_common()) or "none"),
        "nesting: " + ", ".join(f"{n} of depth {depth}" for depth, n in sorted(outcome.depths.items())),
        "comparisons: " + ", ".join(f"{n} by {judge}" for judge, n in outcome.compared.most_common()),
        "programs with: " + ", ".join(f"{label} {n}" for label, n in outcome.contents.most_common()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
