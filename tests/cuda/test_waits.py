"""Every wait of the card's: without it, a recorded run or a rule of devices says so.

The waits are read from the text of the modules; a module that begins to wait needs scenarios here.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from instruments import recorded
from instruments.comparing import assert_same
from instruments.fake_cupy import Card, install, install_with_arrays
from instruments.order import Entry, Judge
from instruments.recorded import recorded_run
from instruments.recorded_copies import recorded_copies
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference
from instruments.waits import Site, sites, without

import ctrlgrad as cg
from ctrlgrad.engines import cuda
from ctrlgrad.engines.cuda.chunks import _Clock
from ctrlgrad.engines.cuda.copies import Copies
from ctrlgrad.engines.cuda.cupy_library import CupyLibrary
from ctrlgrad.engines.cuda.program import MOST_IN_FLIGHT, Context
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Graph
from ctrlgrad.memory.arena import Mark, Order
from ctrlgrad.memory.devices.cuda import CudaDevice, wait_for
from ctrlgrad.memory.devices.streams import WorkerStream

Scenario = Callable[[pytest.MonkeyPatch, Path], None]
# How long a thread sleeps that is to be late.
LATE = 0.03
MODULES = [found.name for found in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}.")]
MODULES += ["ctrlgrad.memory.devices.cuda", "ctrlgrad.memory.arena"]
SITES = [site for name in MODULES for site in sites(importlib.import_module(name))]
# Waits that no event of CUDA has: tests/memory leave those out.
SITES = [site for site in SITES if site.function.partition(".")[0] not in ("Throttle", "Arena", "EventClock")]


# Recorded runs.


def swapped(x: Any, n: Any) -> Any:
    loop = cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.tanh(c[1]) * 1.1), (0, x), swap_memory=True)
    return np.sum(np.square(loop[1]))


ARGUMENTS = [np.linspace(-1.0, 1.0, 64), np.int64(24)]


def slope() -> Graph:
    return cg.function(cg.grad(swapped)).graph(*ARGUMENTS)


def loop(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """The gradient of a loop whose values leave and come back; the host sees copies done late, or now and then."""
    for haste in (0.0, 0.3):
        results, entries, stats = recorded_run(monkeypatch, slope(), ARGUMENTS, 6 << 10, haste)
        assert_same(results, on_reference(slope(), ARGUMENTS), 1e-11)
        assert stats.copies_out > 2 and stats.bytes_in > 0
        Judge().judge(entries)


def copy_that_fails(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """The last copy in fails, which the host cannot see before it waits."""
    copied: list[int] = []

    def counted(card: Card) -> None:
        runtime = sys.modules["cupy"].cuda.runtime
        copy = runtime.memcpyAsync

        def copy_in(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
            copied.append(kind)
            card.failures = int(kind == runtime.memcpyHostToDevice and copied.count(kind) == fails_at)
            copy(target, source, nbytes, kind, stream)
            card.failures = 0

        runtime.memcpyAsync = copy_in

    fails_at = 0
    recorded_run(monkeypatch, slope(), ARGUMENTS, 6 << 10, 0.0, counted)
    fails_at = copied.count(sys.modules["cupy"].cuda.runtime.memcpyHostToDevice)
    copied.clear()
    results, run = [], recorded.run_with
    monkeypatch.setattr(recorded, "run_with", lambda *given: results.append(run(*given)) or results[-1])
    with pytest.raises(CtrlgradError):
        recorded_run(monkeypatch, slope(), ARGUMENTS, 6 << 10, 0.0, counted)
    # The session's end would say it too.
    assert not results, "a run gave results of a copy that had failed"


def copies(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """Copies of the dataflow engine: out, out and given up, in, in and never used, and slabs that are used again."""
    card = install(monkeypatch)
    card.is_inline, card.haste = True, 0.0
    entries: list[Entry] = []
    card.tell = lambda *entry: entries.append(entry)
    library, copier = recorded_copies(card)
    with library.running():
        first = Copies(library)
        x = copier.computed(library, np.arange(64.0))
        leaving = first.out([x])
        assert not leaving.is_done()
        np.testing.assert_array_equal(leaving.arrays()[0], x.data)
        first.out([x]).abandon()
        for number in range(3):
            landed = first.landed(first.into((64,), x.dtype, lambda slab, n=number: slab.fill(n)))
            assert set(landed.data.tolist()) == {number}
            library.launched([landed], [])
        unused = first.into((64,), x.dtype, lambda slab: slab.fill(4.0))
        first.close()
        again = Copies(library)
        again.landed(again.into((64,), x.dtype, lambda slab: slab.fill(5.0)))
        again.close()
        del unused, landed, x
    assert card.broken == []
    card.tell = lambda *_: None
    Judge().judge(entries)


def callers(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """A run on memory that the caller's stream wrote, and reads and writes afterwards."""
    card, library, cuda = _cupy_library(monkeypatch)
    card.is_inline, card.haste = True, 0.0
    stream = cuda.Stream(non_blocking=True)
    entries: list[Entry] = []
    card.tell = lambda *entry: entries.append(entry)
    with stream:
        memory = cuda.alloc(512)
        span = [(memory.ptr, 512)]
        card.tell("launched", stream, [], span)
        with library.running():
            card.tell("launched", card.stream(), span, span)
        card.tell("launched", stream, span, span)
        del memory
    card.tell = lambda *_: None
    Judge().judge(entries)


def lent(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """Another library's array is held until the work on it is done."""
    card, library, cuda = _cupy_library(monkeypatch)
    caller = cuda.Stream(non_blocking=True)
    cuda.get_current_stream = lambda: card.stream() or caller
    array = type("Lent", (), {"memory": np.arange(3.0)})()
    gone = weakref.ref(array)
    with _held(library._stream):
        with library.running():
            library.lent(array)
        del array
        with library.running():
            pass
        assert gone() is not None


def reads(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """A small one and a large one: the host has them when the stream has."""
    card, library, cuda = _cupy_library(monkeypatch)
    cuda.get_current_stream = card.stream
    for size in (8, 1 << 14):
        # Numbers that no freed memory holds, and that stay alive: what is read early must not be right by chance.
        expected = np.arange(float(size)) + time.perf_counter_ns()
        array = sys.modules["cupy"].asarray(type("Lent", (), {"memory": expected})())
        with library._stream:
            library._stream.put(lambda: time.sleep(LATE))
            found = library.read([array])[0].copy()
        np.testing.assert_array_equal(found, expected)


def stops(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """A run is stopped by a word that is there, and has come to rest then."""
    _, library, cuda = _cupy_library(monkeypatch)
    cuda.get_current_stream = lambda: library._stream
    log: list[str] = []
    with library._stream:
        library._stream.put(lambda: time.sleep(LATE))
        word = library.stopped()
        assert word[0] == 0
        library._stream.put(lambda: (time.sleep(LATE), log.append(f"stopped {word[0]}"), None)[2])
        library.stop(7)
    assert log == ["stopped 7"]


def waiting(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """Until the event is done; what has failed is said."""
    card = install(monkeypatch)
    device, log = CudaDevice(), []
    device.out.raw.put(lambda: (time.sleep(LATE), log.append("a copy"), None)[2])
    wait_for(device.cupy, device.out.record().raw)
    assert log == ["a copy"]
    card.failures = 1
    device.copy(device.memory.allocate(8), device.pinned.allocate(8), 8, device.out)
    with pytest.raises(sys.modules["cupy"].cuda.runtime.CUDARuntimeError):
        wait_for(device.cupy, device.out.record().raw)


def in_flight(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """Few graphs are: the host waits for the first of them before it launches another one."""
    library, marks, seen = StandIn(), iter(range(1 << 20)), list[int]()
    monkeypatch.setattr(library, "mark", lambda: next(marks))
    monkeypatch.setattr(library, "wait", seen.append)
    its = Context(library)
    for _ in range(MOST_IN_FLIGHT + 2):
        its.launched_graph(False)
    its.launched_graph(True)
    assert seen == list(range(MOST_IN_FLIGHT + 3))


def _cupy_library(monkeypatch: pytest.MonkeyPatch) -> tuple[Card, CupyLibrary, Any]:
    card = install_with_arrays(monkeypatch)
    cuda = sys.modules["cupy"].cuda
    cuda.get_current_stream = card.stream  # type: ignore[attr-defined]
    return card, CupyLibrary(sys.modules["cupy"], 0), cuda


# Rules of a device, on streams that are threads.


@contextmanager
def _held(stream: Any) -> Iterator[None]:
    """A stream stands still inside."""
    gate = threading.Event()
    stream.put(lambda: (gate.wait(), None)[1])
    try:
        yield
    finally:
        gate.set()


class _Never:
    """An event that is not done, and that the host must not wait for."""

    def is_done(self) -> bool:
        return False

    def wait(self) -> None:
        raise AssertionError("who looks must not wait")


def events(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """An event is not done before what it is behind, and has no time then."""
    install(monkeypatch)
    device = CudaDevice(timing=True)
    order = Order(SimpleNamespace(log=lambda *_: None))
    begun, clock = device.out.record(), _Clock()
    with _held(device.out.raw):
        event = device.out.record()
        clock.ran(begun, event, 8)
        assert not event.is_done() and event.time is None
        assert clock.per_byte is None and len(clock.waiting) == 1
    event.wait()
    clock.ran(begun, event, 0)
    assert event.is_done() and clock.per_byte is not None
    assert not order.is_done(Mark(1, "out", _Never()))  # type: ignore[arg-type]
    assert order.is_done(Mark(2, "out", event))
    assert event.time is not None and abs(event.time - device.now()) < 600
    device.close()


def held(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """The source of a copy lives until the copy is over, even if its last other reference goes earlier."""
    card = install(monkeypatch)
    device = CudaDevice()
    for let_go in (lambda: None, device.let_go):
        block, backup = device.memory.allocate(4096), device.pinned.allocate(4096)
        with _held(device.out.raw):
            device.copy(block, backup, 4096, device.out)
            copied = device.out.record()
            device.memory.free(block)
            device.memory.cache.clear()
            let_go()
            del block
            gc.collect()
            assert card.device_bytes == 4096
        copied.wait()
        device.let_go()
    device.close()


def closing(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """Not before all streams have come to rest; they may be asked to before."""
    install(monkeypatch)
    device, log = CudaDevice(), []
    ends = {"settled": lambda: Order(SimpleNamespace(log=lambda *_: None)).settle([device.out]), "closed": device.close}
    for name, end in ends.items():
        device.out.raw.put(lambda: (time.sleep(LATE), log.append("a copy"), None)[2])
        end()
        log.append(name)
    assert log == ["a copy", "settled", "a copy", "closed"]


def threads(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The disk's thread and the streams wait for each other, and hear of each other's errors."""
    install(monkeypatch)
    device, log = CudaDevice(directory=folder), []

    def late(name: str) -> Callable[[], None]:
        return lambda: (time.sleep(LATE), log.append(name), None)[2]

    device.disk.put(late("disk"))
    device.into.wait(device.disk.record())
    device.into.raw.put(lambda: log.append("in"))
    device.into.record().wait()
    device.out.raw.put(late("out"))
    device.disk.wait(device.out.record())
    device.disk.put(lambda: log.append("disk again"))
    device.disk.record().wait()
    assert log == ["disk", "in", "out", "disk again"]

    def fail() -> None:
        raise CtrlgradError("the disk is full")

    device.disk.put(fail)
    device.into.wait(device.disk.record())
    event = device.into.record()
    another = WorkerStream("another")
    another.wait(event)
    for failed in (another.record(), event):
        with pytest.raises(CtrlgradError, match="the disk is full"):
            failed.wait()
    another.close()
    device.close()


SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    "chunks": (events,),
    "cupy_library": (callers, lent, reads, stops),
    "engine": (copy_that_fails,),
    "program": (in_flight,),
    "cuda": (events, held, closing, threads, loop, copies, waiting),
    "copies": (copies,),
    "arena": (events, closing, loop),
}
"""By the last name of a module that waits, what is run."""


@pytest.mark.parametrize("scenario", dict.fromkeys(s for found in SCENARIOS.values() for s in found))
def test_sufficient_waits_pass(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, short_chunks: None, tmp_path: Path
) -> None:
    scenario(monkeypatch, tmp_path)


def test_the_modules_that_wait_are_those_that_are_run() -> None:
    assert {site.module.__name__.rpartition(".")[2] for site in SITES} == set(SCENARIOS)
    assert len(SITES) >= 30


@pytest.mark.parametrize("site", SITES, ids=str)
def test_without_a_wait_something_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch, short_chunks: None, tmp_path: Path
) -> None:
    without(monkeypatch, site)
    # On a busy machine this thread may come after one that is late by little.
    for late in (LATE, 10 * LATE, 100 * LATE):
        monkeypatch.setattr(sys.modules[__name__], "LATE", late)
        for scenario in SCENARIOS[site.module.__name__.rpartition(".")[2]]:
            try:
                scenario(monkeypatch, tmp_path)
            except (Exception, pytest.fail.Exception):
                return
    pytest.fail(f"nothing fails without {site}")
