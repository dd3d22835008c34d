"""Objects are compiled before their first use, each once, by the first idle thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import ahead, engine, library, target
from ctrlgrad.engines.native.products import library as products_library
from ctrlgrad.engines.native.products.library import Products
from ctrlgrad.engines.native.products.routines import Routines
from ctrlgrad.execution import run_on
from ctrlgrad.ir.caching import Recent

PATIENCE = 60
put_off = ahead.put_off


@pytest.fixture(autouse=True)
def one_more_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ahead, "_most_threads", lambda: 1)
    monkeypatch.setattr(ahead, "_jobs", {})
    yield
    for thread in threading.enumerate():
        if thread.name == "ctrlgrad compiling":
            thread.join(PATIENCE)
    assert ahead._threads == 0


def never() -> str:
    raise AssertionError("made twice")


def waiting(begun: threading.Event, go_on: threading.Event, result: str) -> Callable[[], str]:
    def make() -> str:
        begun.set()
        assert go_on.wait(PATIENCE)
        return result

    return make


def test_another_thread_makes_what_is_prepared() -> None:
    makers: list[threading.Thread] = []
    done = threading.Event()

    def make() -> str:
        makers.append(threading.current_thread())
        done.set()
        return "made"

    ahead.prepare("a", make)
    assert done.wait(PATIENCE)
    assert ahead.made("a", never) == "made"
    assert len(makers) == 1 and makers[0] is not threading.current_thread()
    assert ahead.made("a", lambda: "again") == "again"  # it is not kept


def test_the_caller_makes_other_parts_while_a_thread_makes_its_own() -> None:
    begun, go_on = threading.Event(), threading.Event()
    ahead.prepare("slow", waiting(begun, go_on, "slow"))
    assert begun.wait(PATIENCE)
    makers = []

    def quick() -> str:
        makers.append(threading.current_thread())
        go_on.set()
        return "quick"

    ahead.prepare("quick", quick)
    assert ahead.made("slow", never) == "slow"
    assert ahead.made("quick", never) == "quick"
    assert makers == [threading.current_thread()]


def test_parts_not_begun_are_made_by_the_caller() -> None:
    begun, go_on = threading.Event(), threading.Event()
    ahead.prepare("slow", waiting(begun, go_on, "slow"))
    assert begun.wait(PATIENCE)
    ahead.prepare("other", threading.current_thread)
    ahead.prepare("mine", threading.current_thread)
    assert ahead.made("mine", never) is threading.current_thread()
    go_on.set()
    ahead.made("slow", never), ahead.made("other", never)


def test_an_error_is_told_to_who_asks_for_that_object() -> None:
    begun, go_on = threading.Event(), threading.Event()
    ahead.prepare("slow", waiting(begun, go_on, "slow"))
    assert begun.wait(PATIENCE)

    def failing() -> str:
        go_on.set()
        raise ValueError("this one")

    ahead.prepare("failing", failing)
    assert ahead.made("slow", never) == "slow"
    with pytest.raises(ValueError, match="this one"):
        ahead.made("failing", never)
    assert ahead.made("failing", lambda: "made") == "made"


def test_interrupted_parts_are_made_again() -> None:
    begun, go_on = threading.Event(), threading.Event()
    ahead.prepare("slow", waiting(begun, go_on, "slow"))
    assert begun.wait(PATIENCE)

    def interrupted() -> str:
        raise KeyboardInterrupt

    ahead.prepare("mine", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ahead.made("mine", never)
    go_on.set()
    assert ahead.made("mine", lambda: "made") == "made"
    assert ahead.made("slow", never) == "slow"


def test_a_process_with_one_processor_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_most_threads", lambda: 0)
    ahead.prepare("a", never)
    assert ahead.made("a", threading.current_thread) is threading.current_thread()


def test_postponed_work_is_done_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, done = threading.Event(), threading.Event()
    monkeypatch.setattr(ahead.time, "sleep", lambda seconds: begin.wait(PATIENCE))
    who: list[str] = []
    for last in (False, True):
        put_off(lambda last=last: (who.append(threading.current_thread().name), last and done.set()))  # type: ignore[misc]
    assert not who
    begin.set()
    assert done.wait(PATIENCE)
    assert who == ["ctrlgrad keeping"] * 2
    done.clear()
    put_off(done.set)  # another thread, since the first one is over
    assert done.wait(PATIENCE)


def test_catching_up_waits_for_work_begun_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(ahead, "LATER", 0.0)
    put_off(lambda: (begun.set(), go_on.wait(PATIENCE), over.set()))  # type: ignore[arg-type, return-value]
    assert begun.wait(PATIENCE)
    threading.Timer(0.01, go_on.set).start()
    ahead.catch_up()
    assert over.is_set()


AT_THE_END = """
import os, sys
from ctrlgrad.engines.native import ahead
ahead.LATER = 1000.0
ahead.put_off(lambda: print("kept by", os.getpid() == parent))
parent = os.getpid()
child = os.fork()
if child:
    os.waitpid(child, 0)
"""


def test_the_interpreter_does_what_was_put_off_at_its_end() -> None:
    """At the end of the process the interpreter does the work that was put off; a forked child does not repeat its
    parent's."""
    found = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=PATIENCE)
    assert found.stdout.splitlines() == ["kept by True"], found.stderr


def test_routines_of_a_plan_are_prepared_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that a plan calls is prepared before the first wait: elementary functions, parts of products, and
    the plan."""
    routines, products = Routines(target.host()), products_library.products()
    told: list[tuple[str, str]] = []
    prepare, made = ahead.prepare, ahead.made
    monkeypatch.setattr(ahead, "prepare", lambda key, make: (told.append(("prepare", key)), prepare(key, make))[1])
    monkeypatch.setattr(ahead, "made", lambda key, make: (told.append(("made", key)), made(key, make))[1])
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(engine, "_FUNCTIONS", Recent(engine.FUNCTIONS))
    monkeypatch.setattr(library, "_ADDRESSES", {})
    monkeypatch.setattr(products_library, "_routines", lambda: routines)
    monkeypatch.setattr(products_library, "products", lambda: Products(routines, products.reals))
    x = np.random.default_rng(3).standard_normal((20, 24))
    (found,) = run_on("native", cg.function(lambda x: cnp.tanh(x @ x.T)).graph(x), [x])
    np.testing.assert_allclose(found, np.tanh(x @ x.T), rtol=1e-12)
    first = [what for what, _ in told].index("made")
    prepared, wanted = ({key for what, key in told if what == which} for which in ("prepare", "made"))
    assert prepared == wanted == {key for _, key in told[:first]} and len(prepared) > 4


def test_several_threads_compile_at_once() -> None:
    """Eight threads get the objects that one thread would get; an invalid text fails only for the thread that gave
    it."""
    lines = "".join(f"  %x{k} = mul i64 %x{k - 1}, {k}\n" for k in range(1, 40))
    texts = [f"define i64 @f{n}(i64 %x0) nounwind {{\n{lines}  ret i64 %x39\n}}" for n in range(8)]
    texts[5] = "define i64 @f("
    alone = [target.compiled(text) for text in texts if text != texts[5]]
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(target.compiled, text) for text in texts]
        with pytest.raises(RuntimeError, match="LLVM IR parsing error"):
            found[5].result()
        assert [code.result() for n, code in enumerate(found) if n != 5] == alone
