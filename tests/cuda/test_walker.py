"""The walker of a launch list: Python has a turn if the list waits for the card repeatedly."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ctrlgrad.engines.cuda.prepared import walker


def asking(is_over: bool = False) -> walker.Counts:
    """Go through a list that asks the card whether it goes on, which says no, or never does."""
    library = ctypes.CDLL(None)
    # Machine code in the places of the driver's: what compares equal words answers 0, as what has copied them does.
    same, nothing = (ctypes.cast(its, ctypes.c_void_p).value or 0 for its in (library.memcmp, library.abs))
    words = np.zeros(16, np.int64)
    host, card = words[:1], words[1:2]
    read, switch, entries = words[2:4], words[4:6], words[6:10]
    read[:] = host.ctypes.data, card.ctypes.data
    switch[:] = host.ctypes.data, 1 if is_over else -1
    entries[:] = walker.READ, read.ctypes.data, walker.SWITCH, switch.ctypes.data
    functions = walker.Functions(nothing, nothing, same, nothing)
    return walker.run(entries.ctypes.data, 0, 2, functions, 0)


def test_a_word_is_read_and_says_where_to_go() -> None:
    assert asking(is_over=True) == walker.Counts(reads=1)


def launching() -> walker.Counts:
    """Go through a list that launches without end."""
    nothing = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0
    words = np.zeros(16, np.int64)
    again, entries = words[8:10], words[10:14]
    again[:] = words.ctypes.data, -1
    entries[:] = walker.KERNEL, words.ctypes.data, walker.SWITCH, again.ctypes.data
    return walker.run(entries.ctypes.data, 0, 2, walker.Functions(*[nothing] * 4), 0)


def interrupted(way: str) -> None:
    """In a process of its own, which would go on for ever."""
    walker._compiled()
    # Where the process was begun in the background of a shell, the signal is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        asking() if way == "asking" else launching()
    print("interrupted")


@pytest.mark.parametrize("way", ["asking", "launching"])
def test_an_interrupt_ends_a_list_that_goes_on_for_ever(way: str) -> None:
    """`raise_signal` in another thread only notes the signal: Python's main thread raises it when it has a turn."""
    ran = subprocess.run([sys.executable, Path(__file__), way], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr


if __name__ == "__main__":
    interrupted(sys.argv[1])
