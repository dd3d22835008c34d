"""Objects and memory that calls of `to_jax` leave: `python -m tests.leaks --count 100000`, from the repository's root.

A compiled gradient with a loop, and now and then one outside of `jit`, are called so often. Counted are Python's
objects, programs, JAX's arrays and the process's memory, after a tenth of the calls and at the end.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import ctrlgrad as cg
from ctrlgrad.interop.engine_primitive import JaxProgram


@dataclass(frozen=True)
class Alive:
    """Objects and memory of the process; `kibibytes` is None where the system does not report it."""

    objects: int
    programs: int
    arrays: int
    kibibytes: int | None

    @classmethod
    def now(cls) -> Alive:
        gc.collect()
        objects = gc.get_objects()
        programs = sum(isinstance(x, JaxProgram) for x in objects)
        return cls(len(objects), programs, len(jax.live_arrays()), _kibibytes())

    def __sub__(self, other: Alive) -> Alive:
        both = None not in (self.kibibytes, other.kibibytes)
        more = (self.kibibytes or 0) - (other.kibibytes or 0) if both else None
        return Alive(self.objects - other.objects, self.programs - other.programs, self.arrays - other.arrays, more)


def _kibibytes() -> int | None:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), None)


def growth(count: int) -> Alive:
    """Growth over a number of calls, beyond the first tenth of them."""
    f = cg.to_jax(lambda a: cg.while_loop(lambda x: x > 1.0, lambda x: 0.5 * x, a))
    compiled: Any = jax.jit(jax.grad(f))

    def calls(count: int) -> None:
        for k in range(count):
            compiled(3.0).block_until_ready()
            if k % 20 == 0:
                jax.grad(f)(3.0)

    calls(count // 10)
    before = Alive.now()
    calls(count)
    return Alive.now() - before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.leaks", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--engine", choices=("reference", "native"), default="native")
    arguments = parser.parse_args()
    with cg.options(engine=arguments.engine):
        print(f"{arguments.count} calls leave {growth(arguments.count)}")


if __name__ == "__main__":
    main()
