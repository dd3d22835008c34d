"""The cases in order: single mechanisms, an LSTM's step beside its peers, then long sequences."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import benchmarks.cuda
from benchmarks.agreement import difference
from benchmarks.cuda import scalar
from benchmarks.cuda.lstm import (
    LAUNCHING,
    LENGTHS,
    SIZES,
    TINY,
    TINY_LENGTHS,
    WAYS,
    Layer,
    of_ctrlgrad,
    of_jax,
    of_torch,
)
from benchmarks.cuda.mechanisms import all_checks
from benchmarks.cuda.results import WIDTH, Check, Results, Row
from benchmarks.machine import description
from benchmarks.recurrent.inputs import sequence
from ctrlgrad.engines.cuda.cupy_library import cupy_library
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.memory.devices.device import Device

# How far an LSTM's loss and gradients may be from those that they are held against, in float32.
TOLERANCE = 1e-3

HOSTED = "numbers on the host"

Devices = Callable[[], Mapping[str, Device]]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    text = (benchmarks.cuda.__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=text)
    parser.add_argument(
        "--output", type=Path, metavar="STEM", help="write STEM.json and STEM.txt, after each case anew"
    )
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="timed runs of each (default 7)")
    parser.add_argument("--budget", default="128 MiB", metavar="SIZE", help="of the device (default 128 MiB)")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="T", help=f"iterations (default {LENGTHS})")
    parser.add_argument("--seconds", type=float, metavar="N", help="begin no case after so many (default: no end)")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that everything runs")
    return parser.parse_args(arguments)


def device_name(library: ArrayLibrary) -> str:
    """What the card is called."""
    runtime = getattr(getattr(library.xp, "cuda", None), "runtime", None)
    return library.name if runtime is None else str(runtime.getDeviceProperties(0)["name"].decode())


class Run:
    """The cases of a run, one after the other; results are written after each."""

    def __init__(self, options: argparse.Namespace, library: ArrayLibrary, devices: Devices | None) -> None:
        self.options, self.library, self._devices = options, library, devices
        self.sizes = TINY if options.tiny else SIZES
        self._end = None if options.seconds is None else time.perf_counter() + options.seconds
        with library.running():
            name = device_name(library)
        self.results = Results(description(), name, options.budget)
        self.console = Console(width=WIDTH)

    def devices(self) -> Mapping[str, Device] | None:
        return None if self._devices is None else self._devices()

    def case(self, rows: list[Any], row: Any, measure: Callable[[], Any]) -> Any:
        """Add a row that measuring fills in, or which says why it could not be measured; what measuring gives."""
        rows.append(row)
        found = None
        if self._end is not None and time.perf_counter() > self._end:
            row.note = f"left out: {self.options.seconds:g} seconds were over"
        else:
            try:
                found = measure()
            except Exception as error:
                # The other cases are worth their time all the more.
                traceback.print_exc()
                problem = str(error).partition("\n")[0]
                row.has_failed, row.note = True, f"failed: {type(error).__name__}: {problem}"
        outside = getattr(self.library, "bytes_beside_pools", None)
        if isinstance(row, Row) and outside is not None:
            row.beside_bytes = outside()
        self.console.print(f"{row.name}: {row.note}".rstrip(": "), markup=False)
        self.results.write(self.options.output)
        return found

    def checks(self) -> None:
        for name, make in all_checks(self.library, self.devices, self.options.tiny):
            check = Check(name)
            found = self.case(self.results.checks, check, partial(_filled, check, make))
            assert found is None

    def step(self, size: Sequence[int]) -> None:
        """A training step by each way to launch, in a budget, and by its peers."""
        options = self.options
        rows = self.results.group(f"LSTM training step, (T, batch, input, hidden) = {tuple(size)}")
        expected: list[Any] = []

        def held() -> list[Any]:
            if not expected:
                expected.extend(Layer(size).on_the_processor(sequence(size)))
            return expected

        for name, launching in LAUNCHING.items():
            row = Row(f"no budget, {name}", size[0])
            with launching():
                self.case(rows, row, partial(self._measured, row, size, "no budget", held))
        row = Row("budget, as the planner likes", size[0])
        self.case(rows, row, partial(self._measured, row, size, row.name, held))
        for name, measure in (("torch.nn.LSTM", of_torch), ("jax.lax.scan", of_jax)):
            row = Row(name, size[0])
            self.case(rows, row, partial(measure, row, size, options.repeats))

    def scalar(self) -> None:
        """The gradient of a loop over one number."""
        options, rows = self.options, self.results.group("gradient of a loop over one number, the end depends on it")
        on_host, on_card = (scalar.TINY,) * 2 if options.tiny else (scalar.ON_HOST, scalar.ON_CARD)
        for name, length in ((HOSTED, on_host), ("numbers on the card", on_card)):
            row, repeats = Row(name, length), options.repeats if name == HOSTED else 1
            self.case(rows, row, partial(scalar.of_ctrlgrad, row, self.library, repeats, name != HOSTED))
        row = Row("jax.lax.scan", on_card)
        self.case(rows, row, partial(scalar.of_jax, row, 1))

    def lengths(self) -> None:
        options = self.options
        rows = self.results.group(f"time per iteration by length, device budget {options.budget}")
        for length in options.lengths or (TINY_LENGTHS if options.tiny else LENGTHS):
            first: list[Any] = []
            for way in WAYS:
                row, size = Row(way, length), (length, *self.sizes[0][1:])
                found = self.case(rows, row, partial(self._measured, row, size, way, lambda first=first: first))
                first = first or found or []

    def _measured(self, row: Row, size: Sequence[int], way: str, held: Callable[[], list[Any]]) -> list[Any]:
        """Measure a row, and compare its results with those of the first row, if there are any."""
        options = self.options
        found = of_ctrlgrad(row, self.library, size, way, options.budget, options.repeats, self.devices())
        if found and (expected := held()):
            here, there = ({str(n): np.asarray(x) for n, x in enumerate(xs)} for xs in (found, expected))
            row.difference, which = difference(here, there)
            if not row.difference <= TOLERANCE:
                row.has_failed, row.note = True, f"result {which} differs by more than {TOLERANCE:.0e}"
        return found


def _filled(check: Check, make: Callable[[], Check]) -> None:
    vars(check).update(vars(make()))


def main(
    arguments: Sequence[str] | None = None, library: ArrayLibrary | None = None, devices: Devices | None = None
) -> int:
    """Measure and print; 1 where a case has failed. A test gives a library and devices in the place of the card's."""
    run = Run(parse(arguments), library or cupy_library(), devices)
    run.console.print(run.results.title(), markup=False)
    try:
        run.checks()
        for size in run.sizes:
            run.step(size)
        run.scalar()
        run.lengths()
    finally:
        for table in run.results.tables():
            run.console.print(table)
        if run.options.output is not None:
            print(f"wrote {run.options.output}.json and .txt")
    return int(run.results.has_failed)


if __name__ == "__main__":
    sys.exit(main())
