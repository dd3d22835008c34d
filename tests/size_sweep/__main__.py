"""`python -m tests.size_sweep --count 20000 --seed 1 --jobs 2`, from the repository's root.

Exits with 1 if a program failed. Each failure is shown with its program and the command that runs it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

# Before NumPy is imported: its threads would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# As pytest's `pythonpath` in setup.cfg: what tests share is imported by its own name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quick_jax import set_flags

set_flags()

from size_sweep.forms import FORMS  # noqa: E402  (JAX reads its flags once)
from size_sweep.sweep import Outcome, sweep  # noqa: E402


def main() -> int:
    arguments = _parser().parse_args()
    names = tuple(name for name in FORMS if arguments.forms is None or name.rstrip("0123456789") in arguments.forms)
    widths = tuple(int(bits) for bits in arguments.bits.split(","))
    outcome, shown, began = Outcome(), 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ctrlgrad-sweep-") as folder:
        os.environ.setdefault("CTRLGRAD_CACHE_DIR", folder)
        for outcome in sweep(arguments.seed, arguments.first, arguments.count, arguments.jobs, widths, names):
            for failure in outcome.failures[shown:]:
                print(f"\nFAILED, {failure}", flush=True)
            shown = len(outcome.failures)
            passed = f"{outcome.judged}/{arguments.count} programs, {shown} failures"
            print(f"{passed}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            if shown and arguments.until_found:
                break
    for what in (outcome.compared, outcome.forms, outcome.machines):
        print(", ".join(f"{name} {n}" for name, n in what.most_common()))
    print(f"{outcome.judged} programs judged, {len(outcome.failures)} failures")
    return 1 if outcome.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.size_sweep", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs in all (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same programs (default 0)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first program (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--bits", default="128,256,512", help="widths of vectors, at most the processor's own")
    parser.add_argument(
        "--forms", nargs="*", help=f"of {', '.join(dict.fromkeys(n.rstrip('0123456789') for n in FORMS))}"
    )
    parser.add_argument("--until-found", action="store_true", help="end at the first failure")
    return parser


if __name__ == "__main__":
    sys.exit(main())
