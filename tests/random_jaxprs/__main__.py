"""`python -m tests.random_jaxprs --count 300 --seed 1`, from the repository's root; exits with 1 if one failed."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# As pytest's `pythonpath` in setup.cfg: what tests share is imported by its own name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quick_jax import set_flags

set_flags()

from random_jaxprs.generate import Program  # noqa: E402  (JAX reads its flags once)
from random_jaxprs.judge import judge  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_jaxprs", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="programs in all (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first program (default 0)")
    parser.add_argument("--engine", choices=("reference", "native"), default="reference")
    parser.add_argument("--back", action="store_true", help="values and gradients through to_jax too")
    arguments = parser.parse_args()
    failures, began = 0, time.monotonic()
    for done, seed in enumerate(range(arguments.seed, arguments.seed + arguments.count)):
        if done and done % 100 == 0:
            print(f"{done} programs, {failures} failures, {time.monotonic() - began:.0f} s", flush=True)
        program = Program(seed)
        try:
            found = [str(wrong) for wrong in judge(program, arguments.engine, arguments.back)]
        except Exception:
            found = [traceback.format_exc()]
        if found:
            failures += 1
            print(f"\nFAILED, {program}", *found, sep="\n", flush=True)
    print(f"{arguments.count} programs, {failures} failures, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
