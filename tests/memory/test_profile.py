"""The profile: exact numbers of recordings made by hand, and traces and pictures of runs on the simulated device."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.simulated import SimulatedDevice

from ctrlgrad.memory import Budget, Manager
from ctrlgrad.memory.devices.streams import PassedEvent
from ctrlgrad.memory.profile.pictures import ROWS, Profile, format_page, timeline, trace, write_plot
from ctrlgrad.memory.profile.records import (
    BlockEntry,
    BytesInUse,
    Computed,
    Copied,
    Drop,
    Evict,
    FellBack,
    Open,
    Phase,
    Recompute,
    Recording,
    Stalled,
    TimedAction,
)
from ctrlgrad.memory.profile.summary import Fallback, Peak, Route, Stall, summarize, usages

BLOCK = 8000
LOOP = "while_loop at model.py:12"


# Numbers.


def computed(start: float, end: float, phase: Phase, chunk: int = -1, again: bool = False) -> Computed:
    return Computed("compute", "step", PassedEvent(start), PassedEvent(end), phase, LOOP, chunk, again)


def copied(start: float, end: float, block: int, way: str, nbytes: int = BLOCK) -> Copied:
    stream, source, target = {
        "out": ("out", "device", "host"),
        "in": ("in", "host", "device"),
        "spill": ("disk", "host", "disk"),
    }[way]
    return Copied(stream, "h", PassedEvent(start), PassedEvent(end), block, source, target, nbytes)


def recorded() -> Profile:
    """A recording of two blocks: one is copied out and back, one stays. Each phase has a stall, the second one
    inside a computation."""
    made = Profile()
    made.devices[1] = "simulated"
    made.tiers[1] = (("device", 20_000), ("host", None))
    made.computed += [computed(0, 2, "forward", 0), computed(3, 5, "forward", 1), computed(6, 10, "backward")]
    made.computed += [computed(10, 11, "backward", 0, again=True), computed(11, 12, "backward")]
    made.stalled += [
        Stalled("compute", "x", PassedEvent(2), PassedEvent(3), "forward", "no room"),
        Stalled("compute", "x", PassedEvent(8), PassedEvent(9), "backward", "on its way"),
        Stalled("compute", "x", PassedEvent(9), PassedEvent(9), "backward", "no time at all"),
    ]
    made.copied += [copied(1, 3, 1, "out"), copied(3, 4, 1, "spill"), copied(8, 9.5, 1, "in")]
    made.in_use += [BytesInUse(time, 1, "device", n) for time, n in ((0, 8000), (0, 16_000), (4, 16_000), (5, 8000))]
    made.in_use += [BytesInUse(0, 1, "host", 0), BytesInUse(1, 1, "host", 8000)]
    made.blocks += [
        BlockEntry(1, "h (model.py:14)", LOOP, 0, BLOCK, 2, "copy", "the link can hide its copy"),
        BlockEntry(2, "h (model.py:14)", LOOP, 1, BLOCK, 5, "keep", "it fits"),
    ]
    made.actions += [
        TimedAction(6, 1, Open(2, 5)),
        TimedAction(8, 1, Open(1, 6)),
        TimedAction(10, 1, Recompute(1, 0, 0)),
    ]
    refused = "h: no room in the next tier: the disk is full\n  expected: 1 byte"
    made.fell_back += [FellBack(2, 1, refused), FellBack(3, 1, refused), FellBack(7, 1, "h: its copy was lost")]
    return made


def test_the_numbers_of_a_recording() -> None:
    found = recorded().summary()
    assert (found.devices, found.seconds) == (("simulated",), 12.0)
    # A stall inside a computation does not count as computation.
    assert (found.forward_seconds, found.backward_seconds) == (4.0, 5.0)
    assert (found.stalled("forward"), found.stalled("backward"), found.elsewhere) == (1.0, 1.0, 1.0)
    assert (found.recomputed_chunks, found.recomputed_seconds) == (1, 1.0)
    assert found.routes == (
        Route("device", "host", 1, BLOCK, 2.0, 1.0),
        Route("host", "disk", 1, BLOCK, 1.0, 1.0),
        Route("host", "device", 1, BLOCK, 1.5, 0.5),
    )
    assert (found.routes[0].rate, found.routes[0].hidden) == (4000.0, 0.5)
    assert found.stalls == (Stall("forward", "no room", 1, 1.0), Stall("backward", "on its way", 1, 1.0))
    refused = "h: no room in the next tier: the disk is full\n  expected: 1 byte"
    assert found.fallbacks == (Fallback(refused, 2), Fallback("h: its copy was lost", 1))
    assert found.peaks == (Peak("device", 16_000, 20_000), Peak("host", 8000, None))
    assert [(v.policy, v.blocks, v.nbytes, v.out_bytes, v.in_bytes) for v in found.values] == [
        ("copy", 1, BLOCK, BLOCK, BLOCK),
        ("keep", 1, BLOCK, 0, 0),
    ]


def test_dropped_blocks_are_told() -> None:
    made = recorded()
    made.actions += [TimedAction(5, 1, Drop(1, 1, (2,))), TimedAction(9, 1, Drop(1, 1, (2,)))]
    assert [(v.policy, v.dropped) for v in made.summary().values] == [("copy", 0), ("keep", 1)]


def test_the_text() -> None:
    assert (
        str(recorded())
        == """\
memory on simulated
  12.0 s in all: computing 4.0 s forward, 5.0 s backward; stalled 1.0 s forward, 1.0 s backward; 1.0 s elsewhere
  computed again: 1 chunk in 1.0 s, part of the times above
peak bytes
  device: 15.6 KiB of 19.5 KiB
  host: 7.8 KiB, no limit
copies
  device to host: 7.8 KiB in 1 copy, 4.00 kB/s, 50% of their time hidden behind computation
  host to disk: 7.8 KiB in 1 copy, 8.00 kB/s, 100% of their time hidden behind computation
  host to device: 7.8 KiB in 1 copy, 5.33 kB/s, 33% of their time hidden behind computation
stalls
  forward: 1.0 s in 1 wait: no room
  backward: 1.0 s in 1 wait: on its way
otherwise than planned
  2 times: h: no room in the next tier: the disk is full
    expected: 1 byte
  1 time: h: its copy was lost
loops
  while_loop at model.py:12: pushed 15.6 KiB: 7.8 KiB kept, 7.8 KiB copied, 0 bytes computed again; 2.5 s of copies \
hidden, 0 us stalled
pushed values
  h (model.py:14) in while_loop at model.py:12: 7.8 KiB in 1 block
    swapped: 7.8 KiB out, 7.8 KiB in (the link can hide its copy)
  h (model.py:14) in while_loop at model.py:12: 7.8 KiB in 1 block
    kept (it fits)"""
    )


class Untimed:
    """An event of a device without timestamps."""

    time = None

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def join(self) -> None:
        pass


def test_without_times_there_are_bytes() -> None:
    made = Recording()
    made.devices[1] = "cuda:0"
    made.tiers[1] = (("device", None), ("host", None))
    made.computed.append(Computed("compute", "step", Untimed(), Untimed(), "forward", LOOP, 0))
    made.copied.append(Copied("out", "h", Untimed(), Untimed(), 1, "device", "host", BLOCK))
    made.stalled.append(Stalled("compute", "x", Untimed(), Untimed(), "forward", "no room"))
    found = summarize(made)
    assert found.routes == (Route("device", "host", 1, BLOCK, None, None),)
    assert found.stalls == (Stall("forward", "no room", 1, None),)
    assert "no times were taken" in str(found)
    assert "7.8 KiB in 1 copy, ?, ? of their time hidden" in str(found)
    assert slices(trace(made)) == []


def test_an_empty_recording() -> None:
    assert str(Profile()).splitlines() == [
        "memory on no device: nothing was recorded",
        "  no times were taken",
        "peak bytes",
        *("copies", "  none", "stalls", "  none", "otherwise than planned", "  nothing"),
        *("loops", "  none pushed", "pushed values", "  none"),
    ]


# Runs.


def run(
    *,
    blocking: bool = False,
    chunks: int = 16,
    rate: float = 2e7,
    host: int | None = None,
    disk: bool = False,
) -> Profile:
    """A loop that pushes a block in each chunk and reads them back, under a budget of eight blocks."""
    capacities = {"device": 1 << 30, "host": 1 << 30} | ({"disk": 1 << 30} if disk else {})
    device = SimulatedDevice(
        capacities, bandwidth_out=rate, bandwidth_in=rate, disk_bandwidth=rate, blocking=blocking, seed=3
    )
    recording, wrong = Profile(), []
    manager = Manager(device, Budget(device=8 * BLOCK, host=host), recording)
    loop = manager.loop(LOOP, swap=True)
    blocks = []

    def check(array: Any, number: int) -> Callable[[], None]:
        return lambda: wrong.extend(x for x in array if x != number)

    for number in range(chunks):
        chunk = loop.begin()
        block = chunk.block((BLOCK // 8,), np.dtype(float), "h (model.py:14)")
        with manager.recorder.running(LOOP, "forward", LOOP, chunk.index):
            array = block.array
            device.run(5e-4, lambda array=array, number=number: array.fill(number))
        chunk.seal(seconds=5e-4)
        blocks.append(block)
    loop.finish()
    for number, block in reversed(list(enumerate(blocks))):
        array = block.open()
        with manager.recorder.running(LOOP, "backward"):
            device.run(1e-3, check(array, number))
        block.close()
        block.free()
    device.compute.record().wait()
    manager.close()
    assert wrong == []
    return recording


RUNS: dict[str, dict[str, Any]] = {
    "a fast link": {},
    "a slow link": {"rate": 6e6},
    "three tiers": {"disk": True, "host": 6 * BLOCK},
    "the host computes": {"blocking": True, "rate": 1e7},
}


@pytest.fixture(params=RUNS, scope="module")
def recording(request: pytest.FixtureRequest) -> Profile:
    return run(**RUNS[request.param])


def slices(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in made["traceEvents"] if event["ph"] == "X"]


def test_slices_of_a_row_never_overlap(recording: Profile, tmp_path: Path) -> None:
    recording.write_trace(tmp_path / "trace.json")
    made = json.loads((tmp_path / "trace.json").read_text())
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in slices(made):
        rows[event["tid"]].append(event)
    assert set(rows) >= {ROWS["compute"], ROWS["out"], ROWS["in"]}
    for events in rows.values():
        # Nanoseconds are exact here, unlike microseconds as floats.
        spans = sorted((round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in events)
        assert all(start < end for start, end in spans)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    named = {e["tid"]: e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"}
    assert named == {number: row for row, number in ROWS.items()}


def test_stalls_are_slices(recording: Profile) -> None:
    stalls = [event for event in slices(trace(recording)) if event["cat"] == "stall"]
    seconds = sum(event["dur"] for event in stalls) / 1e6
    found = recording.summary()
    assert seconds == pytest.approx(found.stalled("forward") + found.stalled("backward"), abs=1e-8)
    assert all(event["args"]["cause"] for event in stalls)


def test_counters_never_pass_the_budget(recording: Profile) -> None:
    made = trace(recording)
    limits = made["otherData"]["limits"]
    assert limits["device"] == 8 * BLOCK
    peaks = {peak.tier: peak.nbytes for peak in recording.summary().peaks}
    highest: dict[str, int] = defaultdict(int)
    for event in made["traceEvents"]:
        if event["ph"] == "C":
            tier = event["name"].removesuffix(" bytes")
            assert limits[tier] is None or event["args"]["bytes"] <= limits[tier]
            highest[tier] = max(highest[tier], event["args"]["bytes"])
    assert highest == peaks
    assert peaks["device"] == 8 * BLOCK


def around(made: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """The slice that contains an arrow's point."""
    (found,) = [s for s in slices(made) if s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]]
    return found


def test_arrows_lead_from_push_to_pop_through_the_copies(recording: Profile) -> None:
    made = trace(recording)
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in made["traceEvents"]:
        if event["ph"] in "stf":
            arrows[event["id"]].append(event)
    assert len(arrows) == len(recording.blocks)
    blocks = {note.block: note for note in recording.blocks}
    for points in arrows.values():
        assert [p["ph"] for p in points] == ["s", *"t" * (len(points) - 2), "f"]
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(points))
        first, *copies, last = [around(made, point) for point in points]
        note = blocks[points[0]["args"]["block"]]
        assert (first["cat"], first["args"]["chunk"]) == ("forward", note.chunk)
        assert last["cat"] == "backward"
        assert [c["args"]["block"] for c in copies] == [note.block] * len(copies)
        # All copies of the block that were done when it was read; a copy out may end later, unused.
        moves = [c for c in recording.copied if c.block == note.block]
        early = [c for c in moves if c.end is not None and microseconds(c.end) <= points[-1]["ts"]]
        assert [c["args"]["to"] for c in copies] == [c.target for c in early]
        assert {c.target for c in moves if c not in early} <= {"host", "disk"}
    evicted = {t.action.block for t in recording.actions if isinstance(t.action, Evict) and t.action.level == 0}
    assert evicted
    for points in arrows.values():
        if points[0]["args"]["block"] in evicted:
            assert len(points) >= 4


def microseconds(moment: float) -> float:
    """Microseconds of a time in the run; the trace starts at 0, like the run."""
    return round(moment * 1e9) / 1e3


def test_arrows_lead_through_a_recomputation() -> None:
    made = recorded()
    made.copied.clear()
    made.actions[1] = TimedAction(10.5, 1, Open(1, 6))
    flow = next(flow for flow in timeline(made).flows if flow.block == 1)
    assert [(stop.part.category, stop.part.start, stop.part.end) for stop in flow.stops] == [
        ("forward", 0, 2),
        ("recompute", 10, 11),
        ("backward", 11, 12),
    ]


def test_a_block_that_nobody_reads_has_no_arrow() -> None:
    made = recorded()
    del made.actions[0]
    assert [flow.block for flow in timeline(made).flows] == [1]


def test_copies_beside_a_slow_computation_are_hidden_and_others_are_not() -> None:
    fast, slow = run(rate=1e9).summary(), run(rate=2e6).summary()
    assert {route.hidden for route in fast.routes} == {1.0}
    assert fast.stalls == ()
    assert all(route.hidden is not None and route.hidden < 0.7 for route in slow.routes)
    assert slow.stalled("forward") > slow.forward_seconds
    assert {stall.phase for stall in slow.stalls} == {"forward", "backward"}
    for found, rate in ((fast, 1e9), (slow, 2e6)):
        assert all(route.rate == pytest.approx(rate) for route in found.routes)


def test_the_picture(recording: Profile, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib.image")
    write_plot(recording, tmp_path / "picture.png")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
    pixels = matplotlib.imread(tmp_path / "picture.png")[..., :3]
    # One panel for each tier that held a block.
    tiers = sum(usage.peak > 0 for usage in usages(recording))
    assert pixels.shape[1] == 1320
    assert 120 * (2.2 * tiers + 1) < pixels.shape[0] < 120 * (2.2 * (tiers + 1) + 1)
    # The colour of computation is there, and the colour of stalls if there were any.
    assert has(pixels, "#4878a8")
    assert has(pixels, "#c8352b") == bool(recording.summary().stalls)


def has(pixels: np.ndarray, color: str) -> bool:
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    return bool((np.abs(np.round(pixels * 255) - wanted).max(axis=-1) <= 1).sum() > 50)


def test_the_picture_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot(Profile(), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_the_picture_marks_what_was_done_otherwise_than_planned(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib.image")
    black = []
    for name in ("without", "with"):
        made = recorded()
        # A fallback in the middle of the backward computation, which its mark covers in part.
        made.fell_back = [FellBack(7, 1, "h: its copy was lost")] if name == "with" else []
        write_plot(made, tmp_path / f"{name}.png")
        pixels = matplotlib.imread(tmp_path / f"{name}.png")[..., :3]
        black.append(int((pixels.max(axis=-1) < 0.05).sum()))
    assert black[1] > black[0] + 100


def test_the_page_holds_what_is_drawn(recording: Profile) -> None:
    page = format_page(recording)
    data = json.loads(re.findall(r"^const data = (.*);$", page, re.MULTILINE)[0])
    used = [usage for usage in usages(recording) if usage.peak]
    assert [tier["name"] for tier in data["tiers"]] == [usage.name for usage in used]
    assert [tier["peak"] for tier in data["tiers"]] == [usage.peak for usage in used]
    assert len(data["parts"]) == len(timeline(recording).parts)
    assert all(0 <= part["start"] <= part["end"] <= data["end"] for part in data["parts"])
    assert re.findall(r"https?://[^\"]*", page) == ["http://www.w3.org/2000/svg"]


def test_no_name_on_the_page_ends_its_script_or_keeps_it_from_ending() -> None:
    name = "<!-- <script> </script> TITLE DATA"
    made = recorded()
    made.devices[1] = name
    made.stalled += [Stalled("compute", name, PassedEvent(13), PassedEvent(14), "backward", name)]
    page = format_page(made)
    data = re.findall(r"^const data = (.*);$", page, re.MULTILINE)[0]
    assert "<" not in data and name in str(json.loads(data))
    assert page.count("<script>") == page.count("</script>") == 1 and "<!--" not in page
    assert f"<h1>Memory: {html.escape(name)}</h1>" in page


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_browser_draws_the_page(recording: Profile, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    recording.write_page(page)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split("<script>")[0]
    assert shown.count('class="tier"') == sum(usage.peak > 0 for usage in usages(recording))
    assert shown.count('class="part"') == len(timeline(recording).parts)
