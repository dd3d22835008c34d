"""Spill files and other processes: leftovers of a killed process, ends without `close`, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ctrlgrad.memory.devices.spill import SpillFile, remove_leftovers

SPILLS_FOREVER = """
import os, sys, threading
import numpy as np
from ctrlgrad.memory.devices.cpu import CpuDevice
device = CpuDevice(sys.argv[1])
block = device.tiers[0].allocate(1 << 20)
far = device.tiers[1].allocate(1 << 20)
device.copy(block, far, 1 << 20, device.out)
device.out.record().wait()
print(device.spill.path, flush=True)
while True:
    device.copy(block, far, 1 << 20, device.out)
    device.out.record().wait()
"""


def test_the_next_start_removes_what_a_killed_process_left_and_nothing_of_a_live_one(tmp_path: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", SPILLS_FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        paths = [Path(child.stdout.readline().strip()) for child in children if child.stdout]
        assert sorted(tmp_path.iterdir()) == sorted(paths)
        # Both processes live, so a start in between removes nothing.
        assert SpillFile(tmp_path).removed == []
        children[0].send_signal(signal.SIGKILL)
        children[0].wait()
        assert paths[0].exists()
        assert SpillFile(tmp_path).removed == [paths[0]]
        assert sorted(tmp_path.iterdir()) == [paths[1]]
    finally:
        for child in children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
    assert remove_leftovers(tmp_path) == [paths[1]]


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "raise KeyboardInterrupt", "del device"])
def test_the_file_is_gone_after_an_exit_without_close(tmp_path: Path, end: str) -> None:
    program = SPILLS_FOREVER.split("while True:")[0] + end
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(str(tmp_path)), done.stderr
    assert not list(tmp_path.iterdir())


FORKS = (
    SPILLS_FOREVER.split("while True:")[0]
    + """
from ctrlgrad.errors import ExecutionError
child = os.fork()
if child == 0:
    refused = 0
    for use in (lambda: device.tiers[1].allocate(1), lambda: device.copy(block, far, 9, device.out)):
        try:
            use()
        except ExecutionError:
            refused += 1
    device.close()
    assert refused == 2
    # A child that ends as a program does, exit functions and all.
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert device.spill.path.exists()
device.copy(far, block, 1 << 20, device.into)
device.into.record().wait()
child = os.fork()
if child == 0:
    # Else the reader of the parent's output waits for the child.
    os.close(1)
    import signal
    signal.pause()
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
)


def test_a_forked_child_neither_uses_nor_removes_nor_locks_its_parents_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    path, child = done.stdout.split()
    try:
        assert done.returncode == -signal.SIGKILL
        # The parent is dead and its child lives, so the file is a leftover.
        assert [str(p) for p in remove_leftovers(tmp_path)] == [path]
    finally:
        os.kill(int(child), signal.SIGKILL)
