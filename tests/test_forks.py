"""A process that forks while its other threads are in the middle of something: the child goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctrlgrad import forks
from ctrlgrad.ir.caching import Recent

PATIENCE = 60

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")


def true_in_child(claim: Callable[[], bool]) -> bool:
    """Return true if a claim holds in a forked child, which lives for `PATIENCE` at most."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        os._exit(0 if claim() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextmanager
def another_thread_in(block: Any) -> Iterator[threading.Event]:
    """While another thread is in a block, which it leaves when the event is set."""
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with block:
            inside.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(PATIENCE)
    try:
        yield leave
    finally:
        leave.set()
        thread.join(PATIENCE)


@pytest.mark.parametrize("make", [forks.lock, forks.recursive_lock])
def test_locks_of_another_thread_are_free_in_the_child_alone(make: Callable[[], Any]) -> None:
    one = make()
    with another_thread_in(one):
        assert true_in_child(lambda: one.acquire(blocking=False))
        assert not one.acquire(blocking=False)


def test_locks_of_the_forking_thread_stay_its_own() -> None:
    one = forks.recursive_lock()

    def is_released_as_often_as_it_was_taken() -> bool:
        one.release()
        held = one._is_owned()
        one.release()
        return held and not one._is_owned()

    with one, one:
        assert true_in_child(is_released_as_often_as_it_was_taken)


def test_a_fork_waits_for_a_block_that_must_not_be_cut() -> None:
    over = []

    @contextmanager
    def block() -> Iterator[None]:
        with forks.undivided():
            yield
            over.append(True)

    with another_thread_in(block()) as leave:
        threading.Timer(0.05, leave.set).start()
        assert true_in_child(lambda: over == [True])


def test_a_thread_forks_in_such_a_block_of_its_own_and_enters_others_behind_it() -> None:
    def enters() -> bool:
        with forks.undivided():
            return True

    with forks.undivided():
        assert true_in_child(enters)
    assert true_in_child(enters) and enters()
    with another_thread_in(forks.undivided()) as leave:
        leave.set()


def test_the_child_makes_what_another_thread_was_making() -> None:
    kept: Recent[str, str] = Recent(4)
    making, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=kept.get, args=("a", lambda: (making.set(), go_on.wait(PATIENCE), "by the thread")[2])
    )
    thread.start()
    assert making.wait(PATIENCE)
    assert true_in_child(lambda: kept.get("a", lambda: "by the child") == "by the child" and len(kept) == 1)
    go_on.set()
    assert kept.get("a", lambda: "by who asked second") == "by the thread"
    thread.join(PATIENCE)


def test_one_of_many_threads_makes_what_they_ask_for_and_after_an_error_the_next_one() -> None:
    kept: Recent[str, int] = Recent(4)
    meeting, made, found = threading.Barrier(8), [], []

    def make() -> int:
        made.append(True)
        if len(made) < 3:
            raise ValueError("not this time")
        return len(made)

    def ask() -> None:
        meeting.wait(PATIENCE)
        try:
            found.append(kept.get("a", make))
        except ValueError:
            found.append(0)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(found) == [0, 0, 3, 3, 3, 3, 3, 3] and len(made) == 3


def test_an_attribute_is_computed_once_and_no_thread_waits_for_another() -> None:
    inside, go_on, computed = threading.Event(), threading.Event(), []

    class Holder:
        def __init__(self, waits: bool) -> None:
            self.waits = waits

        @forks.once
        def value(self) -> int:
            computed.append(self.waits)
            if self.waits:
                inside.set()
                assert go_on.wait(PATIENCE)
            return 7

    slow, quick = Holder(True), Holder(False)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert inside.wait(PATIENCE)
    assert (quick.value, quick.value, computed) == (7, 7, [True, False])
    go_on.set()
    thread.join(PATIENCE)
    assert slow.value == 7 and len(computed) == 2


FIRST_CALLS = """
import faulthandler, os, random, sys, threading, time
import numpy as np
import ctrlgrad as cg
import ctrlgrad.numpy as cnp

def call(k):
    def loop(x):
        body = lambda i, y: cnp.tanh(y @ y * (k + 1.5) + x) + cnp.exp(-y * k)
        return cnp.sum(cg.fori_loop(0, 3, body, x))
    cg.function(cg.grad(loop))(np.full((6, 6), 0.01 * k))

def call_many(n):
    for k in range(1, 100):
        call(1000 * n + k)

for n in (1, 2):
    threading.Thread(target=call_many, args=(n,), daemon=True).start()
for pause in (0.0, 0.02, 0.1, 0.3):
    time.sleep(pause)
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        call(-5)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
sys.stdout.write("done")
sys.stdout.flush()
os._exit(0)
"""


def test_a_process_forks_while_its_threads_make_first_calls(tmp_path: Path) -> None:
    """Found: the child waited for ever for modules that other threads were importing, and for their locks."""
    environment = {**os.environ, "CTRLGRAD_CACHE_DIR": str(tmp_path), "CTRLGRAD_QUICK_CODE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, env=environment, timeout=5 * PATIENCE
    )
    assert found.stdout == "done", found.stderr


HALF_IMPORTED = """
import faulthandler, os, sys, threading, types
import ctrlgrad
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

begun, go_on = threading.Event(), threading.Event()

class Slow(MetaPathFinder, Loader):
    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name == "ctrlgrad.slow" else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        begun.set()
        go_on.wait()
        module.value = 7

sys.meta_path.insert(0, Slow())
threading.Thread(target=lambda: __import__("ctrlgrad.slow"), daemon=True).start()
begun.wait()
threading.Timer(0.3, go_on.set).start()
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    from ctrlgrad.slow import value
    import ctrlgrad.interop  # another import: the lock of all imports is free
    os._exit(value)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
import ctrlgrad.interop
sys.stdout.write("done")
"""


def test_a_fork_waits_for_the_end_of_another_threads_import(tmp_path: Path) -> None:
    """Found: the child waited for ever for the lock of a module that another thread of the parent was importing."""
    environment = {**os.environ, "CTRLGRAD_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", HALF_IMPORTED], capture_output=True, text=True, env=environment, timeout=5 * PATIENCE
    )
    assert found.stdout == "done", found.stderr


def test_a_fork_does_not_wait_for_an_import_that_waits_for_it(tmp_path: Path) -> None:
    """The import ends only after the fork, which goes on after its longest wait."""
    text = HALF_IMPORTED.replace("threading.Timer(0.3, go_on.set).start()", "ctrlgrad.forks._PATIENCE = 0.2")
    text = (
        text[: text.index("child = os.fork()")]
        + """
child = os.fork()
if child == 0:
    os._exit(7)
go_on.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
from ctrlgrad.slow import value
sys.stdout.write(str(value))
"""
    )
    environment = {**os.environ, "CTRLGRAD_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=environment, timeout=5 * PATIENCE
    )
    assert found.stdout == "7", found.stderr


FORK_BY_AN_IMPORTER = """
import os, sys
import ctrlgrad
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

class Forks(MetaPathFinder, Loader):
    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name == "ctrlgrad.forks_itself" else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        child = os.fork()
        if child == 0:
            import ctrlgrad.interop
            os._exit(7)
        module.code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

sys.meta_path.insert(0, Forks())
from ctrlgrad.forks_itself import code
sys.stdout.write(str(code))
"""


def test_a_module_forks_while_it_is_imported() -> None:
    found = subprocess.run(
        [sys.executable, "-c", FORK_BY_AN_IMPORTER], capture_output=True, text=True, timeout=5 * PATIENCE
    )
    assert found.stdout == "7", found.stderr
