"""Rules of every memory device; run on the simulated one, the CPU, CUDA's fake, and a real card in `tests/gpu`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ctrlgrad.errors import ExecutionError
from ctrlgrad.memory.devices.device import Device, Event, Piece

BYTES = np.dtype("u1")


@dataclass(frozen=True)
class Machine:
    """A device, and how to compute on its arrays in the order of the compute stream, without blocking."""

    device: Device
    # Set the elements of an array; the last argument's elements must not change afterwards.
    assign: Callable[[Any, np.ndarray], None]
    # The elements of an array as they are now in the order of the stream; a list that is filled by then.
    collect: Callable[[Any, list[np.ndarray]], None]


def pattern(seed: int, nbytes: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def bytes_come_back_from_every_tier(machine: Machine) -> None:
    """Out, to disk where there is one, and back, with events between streams and no wait of the host."""
    device = machine.device
    sizes = [1, 4096, 10_000]
    path = [0, 1, 2, 1, 0] if len(device.tiers) == 3 else [0, 1, 0]
    found: list[np.ndarray] = []
    for seed, nbytes in enumerate(sizes):
        pieces = [device.tiers[level].allocate(nbytes) for level in path]
        machine.assign(device.array(pieces[0], [nbytes], BYTES), pattern(seed, nbytes))
        last = device.compute.record()
        for source, target, level, before in zip(pieces, pieces[1:], path[1:], path, strict=False):
            stream = device.disk if 2 in (level, before) else (device.out if level == 1 else device.into)
            stream.wait(last)
            device.copy(source, target, nbytes, stream)
            last = stream.record()
        device.compute.wait(last)
        machine.collect(device.array(pieces[-1], [nbytes], BYTES), found)
        device.compute.record().wait()
        for piece, level in zip(pieces, path, strict=True):
            device.tiers[level].free(piece)
    for seed, nbytes in enumerate(sizes):
        np.testing.assert_array_equal(found[seed], pattern(seed, nbytes))


def a_part_is_copied(machine: Machine) -> None:
    device = machine.device
    block, landing = (device.tiers[0].allocate(100) for _ in range(2))
    backup = device.tiers[1].allocate(100)
    for piece, value in ((block, 1), (landing, 2)):
        machine.assign(device.array(piece, [100], BYTES), np.full(100, value, np.uint8))
    device.out.wait(device.compute.record())
    device.copy(block, backup, 60, device.out)
    device.into.wait(device.out.record())
    device.copy(backup, landing, 60, device.into)
    device.compute.wait(device.into.record())
    found: list[np.ndarray] = []
    machine.collect(device.array(landing, [100], BYTES), found)
    device.compute.record().wait()
    assert found[0].tolist() == [1] * 60 + [2] * 40


def arrays_are_views(machine: Machine) -> None:
    device = machine.device
    piece = device.tiers[0].allocate(50)
    machine.assign(device.array(piece, [2, 3], np.dtype("i8")), np.arange(6).reshape(2, 3))
    found: list[np.ndarray] = []
    for shape, dtype in (([6], "i8"), ([4], "i4"), ([], "i8"), ([0, 7], "f4"), ([], "?")):
        array = device.array(piece, shape, np.dtype(dtype))
        assert (array.shape, array.dtype) == (tuple(shape), np.dtype(dtype))
        machine.collect(array, found)
    device.compute.record().wait()
    assert [a.tolist() for a in found] == [[0, 1, 2, 3, 4, 5], [0, 0, 1, 0], 0, [], False]


def events_are_ordered(machine: Machine) -> None:
    device = machine.device
    before = device.now()
    events: list[Event] = []
    block, backup = (tier.allocate(1 << 16) for tier in device.tiers[:2])
    for _ in range(5):
        device.copy(block, backup, 1 << 16, device.out)
        events.append(device.out.record())
    events[-1].wait()
    assert all(event.is_done() for event in events)
    times = [event.time for event in events]
    if times[0] is not None:
        assert sorted(times) == times
        # Two clocks are matched: to microseconds, unless the host was stopped just then.
        assert before - 0.1 <= times[0]
        assert times[-1] <= device.now() + 0.1
    else:
        assert times == [None] * 5
    assert [s.name for s in (device.compute, device.out, device.into, device.disk)] == ["compute", "out", "in", "disk"]


@dataclass
class _Pushed:
    """A block of the model of a stack: its contents, and where they are."""

    seed: int
    nbytes: int
    backup: Piece
    copied: Event
    resident: Piece | None = None
    found: list[np.ndarray] = field(default_factory=list)


def blocks_in_a_ring_keep_their_bytes(machine: Machine, seed: int, rounds: int = 40) -> None:
    """Random pushes and pops of a stack with three slots on the device, ordered by events alone.

    A slot is written by the computation, copied out, and used again for another block as soon as the events allow.
    """
    device, choose = machine.device, random.Random(seed)
    near, far = device.tiers[0], device.tiers[1]
    nbytes = 5000
    slots = [near.allocate(nbytes) for _ in range(3)]
    # Steps of other streams that must precede a slot's next use.
    free_after: list[list[Event]] = [[] for _ in slots]
    stack: list[_Pushed] = []
    popped: list[_Pushed] = []
    for number in range(rounds):
        turn = number % len(slots)
        if stack and choose.random() < 0.4:
            block = stack.pop()
            for event in [block.copied, *free_after[turn]]:
                device.into.wait(event)
            device.copy(block.backup, slots[turn], nbytes, device.into)
            landed = device.into.record()
            device.compute.wait(landed)
            machine.collect(device.array(slots[turn], [nbytes], BYTES), block.found)
            free_after[turn] = [device.compute.record()]
            popped.append(block)
        else:
            for event in free_after[turn]:
                device.compute.wait(event)
            machine.assign(device.array(slots[turn], [nbytes], BYTES), pattern(number, nbytes))
            backup = far.allocate(nbytes)
            device.out.wait(device.compute.record())
            device.copy(slots[turn], backup, nbytes, device.out)
            copied = device.out.record()
            free_after[turn] = [copied]
            stack.append(_Pushed(number, nbytes, backup, copied))
    for stream in (device.out, device.into, device.compute):
        stream.record().wait()
    assert popped
    for block in popped:
        np.testing.assert_array_equal(block.found[0], pattern(block.seed, nbytes))
    for block in stack + popped:
        far.free(block.backup)


def two_do_not_disturb_each_other(one: Machine, two: Machine) -> None:
    pieces = []
    for value, machine in enumerate((one, two)):
        block, backup = (tier.allocate(1000) for tier in machine.device.tiers[:2])
        machine.assign(machine.device.array(block, [1000], BYTES), np.full(1000, value, np.uint8))
        machine.device.out.wait(machine.device.compute.record())
        machine.device.copy(block, backup, 1000, machine.device.out)
        pieces.append((block, backup))
    one.device.out.record().wait()
    one.device.close()
    block, backup = pieces[1]
    two.device.into.wait(two.device.out.record())
    two.device.copy(backup, block, 1000, two.device.into)
    two.device.compute.wait(two.device.into.record())
    found: list[np.ndarray] = []
    two.collect(two.device.array(block, [1000], BYTES), found)
    two.device.compute.record().wait()
    assert found[0].tolist() == [1] * 1000


def a_closed_device_refuses_copies(machine: Machine) -> None:
    device = machine.device
    block, backup = (tier.allocate(1000) for tier in device.tiers[:2])
    device.copy(block, backup, 1000, device.out)
    device.close()
    device.close()
    with pytest.raises(ExecutionError, match="closed"):
        device.copy(block, backup, 1000, device.out)


def only_neighbours_are_copied_to(machine: Machine) -> None:
    device = machine.device
    one, two = (device.tiers[0].allocate(10) for _ in range(2))
    with pytest.raises(Exception, match="copy"):
        device.copy(one, two, 10, device.out)


RULES = (
    bytes_come_back_from_every_tier,
    a_part_is_copied,
    arrays_are_views,
    events_are_ordered,
    a_closed_device_refuses_copies,
    only_neighbours_are_copied_to,
)
