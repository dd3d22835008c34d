"""`python -m tests.random_programs --engine native --count 20000 --seed 1 --jobs 2`, from the repository's root.

Exits with 1 if a program failed. Each failure is shown shrunk, as source with its arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# Programs are small: threads of the linear algebra library would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# As pytest's `pythonpath` in setup.cfg: what tests share is imported by its own name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quick_jax import set_flags

set_flags()

from random_programs.campaign import ATTEMPTS, Batch, Outcome, run_batches  # noqa: E402  (JAX reads its flags once)
from random_programs.checks import Rotation  # noqa: E402
from random_programs.engines import ENGINES, Settings  # noqa: E402
from random_programs.writer import FEATURES  # noqa: E402


def main() -> int:
    arguments = _parser().parse_args()
    settings = Settings(arguments.engine, arguments.orders, not arguments.compiled, arguments.budget, arguments.threads)
    rotation = Rotation(arguments.all_every, arguments.jax_every, arguments.jax_form)
    features = frozenset(FEATURES if arguments.features is None else filter(None, arguments.features.split(",")))
    if unknown := features - set(FEATURES):
        print(f"there is no feature {', '.join(sorted(unknown))}; there are {', '.join(FEATURES)}", file=sys.stderr)
        return 2
    batches = []
    for first in range(arguments.first, arguments.first + arguments.count, arguments.batch):
        count = min(arguments.batch, arguments.first + arguments.count - first)
        batches.append(Batch(arguments.seed, first, count, settings, rotation, features, arguments.attempts))
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
    parser.add_argument("--engine", choices=ENGINES, default="reference", help="who is judged (default reference)")
    parser.add_argument("--count", type=int, default=1000, help="programs in all (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same programs (default 0)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first program (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--batch", type=int, default=50, help="programs per report (default 50)")
    parser.add_argument("--features", help=f"of {','.join(FEATURES)} (default all)")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help=f"to shrink a program (default {ATTEMPTS})")
    one = parser.add_argument_group("an engine that is compared with the reference engine")
    one.add_argument("--orders", type=int, default=2, choices=(1, 2, 3), help="value, gradient, second (default 2)")
    one.add_argument("--budget", action="store_true", help="again within less and less memory")
    one.add_argument("--threads", action="store_true", help="native, machine: kernels in parts, in any order")
    how = one.add_mutually_exclusive_group()
    how.add_argument("--checked", action="store_true", help="native: plans are judged before they run (default)")
    how.add_argument("--compiled", action="store_true", help="native: plans run unjudged")
    other = parser.add_argument_group("the reference engine, compared with the plain twin, differences and JAX")
    other.add_argument("--all-every", type=int, default=8, help="one in so many has all modes (default 8)")
    other.add_argument("--jax-every", type=int, default=1, help="JAX judges one in so many, 0: none (default 1)")
    other.add_argument(
        "--jax-form", choices=("auto", "scan", "unrolled"), default="auto", help="how JAX runs loops (default auto)"
    )
    return parser


def summary(outcome: Outcome) -> str:
    """Text of the judgements."""
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
