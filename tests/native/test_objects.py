"""Objects on disk: who may read and write them, when they are valid, and how they are linked."""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import gc
import json
import logging
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from instruments.comparing import assert_same_bits
from instruments.machines import VECTOR_BITS
from programs import BY_NAME

import ctrlgrad as cg
from ctrlgrad.engines.native import engine, llvm, objects, target
from ctrlgrad.engines.native.objects import CannotLoad, ObjectCode
from ctrlgrad.engines.native.products import routines
from ctrlgrad.execution import run_on
from ctrlgrad.ir.caching import Recent

TEXT = "define i64 @f(i64 %x) {\n %y = add i64 %x, 1\n ret i64 %y\n}\n"
OTHER = TEXT.replace("1", "2")
INTEGER = ctypes.c_int64


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for entries, in a process that has not warned yet."""
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path / "entries"))
    monkeypatch.setattr(objects, "_SAID", set())
    return tmp_path / "entries"


def key_of(text: str) -> str:
    key = objects.key_of([text], [])
    assert key is not None
    return key


def entry_of(text: str) -> Path:
    place = objects.directory()
    assert place is not None
    return place / f"{key_of(text)}.obj"


def result(text: str, *, compile_it: bool = True) -> int:
    """The result of the text's function for 41, linked from disk or compiled; compiling must be allowed by
    `compile_it`."""

    def make() -> ObjectCode:
        assert compile_it, "compiled again"
        return ObjectCode(("f",), target.compiled(text))

    code = objects.library(key_of(text), make)
    return call(code["f"])


def call(address: int) -> int:
    return int(ctypes.CFUNCTYPE(INTEGER, INTEGER)(address)(41))


# Writing and reading.


def test_an_entry_serves_the_next_process(folder: Path) -> None:
    assert result(TEXT) == 42
    assert [p.name for p in folder.iterdir()] == [entry_of(TEXT).name]
    assert result(TEXT, compile_it=False) == 42
    with pytest.raises(AssertionError, match="compiled again"):
        result(OTHER, compile_it=False)


SLOPE = """
import numpy as np, ctrlgrad as cg
def f(w, x):
    step = lambda s: s * cg.cond(s[0] > 2.0, lambda: w, lambda: w + 1.0)
    return cg.while_loop(lambda s: (s < 9.0).all(), step, x).sum()
cg.function(cg.grad(f), engine="native")(np.float64(1.5), np.ones(3))
"""


def test_a_later_process_prints_the_same_text_and_compiles_nothing(folder: Path) -> None:
    def files(seed: str) -> dict[str, int]:
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", SLOPE], env=environment, check=True)
        return {path.name: path.stat().st_ino for path in folder.iterdir()}

    assert files("1") == files("2") != {}


def test_nobody_else_may_read_or_write(folder: Path) -> None:
    before = os.umask(0)
    try:
        result(TEXT)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entry_of(TEXT).stat().st_mode & 0o777 == 0o600


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 100)


def _nested(path: Path) -> None:
    path.write_bytes(b"[" * 4000 + b"\n")


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def _of_another_text(path: Path) -> None:
    result(OTHER)
    path.write_bytes(entry_of(OTHER).read_bytes())


def _parts(path: Path) -> ObjectCode:
    header, code = path.read_bytes().split(b"\n", 1)
    return ObjectCode(tuple(json.loads(header)["symbols"]), code)


def _pass_off(path: Path, code: ObjectCode) -> None:
    path.write_bytes(objects._header(path.stem, code) + code.code)


def _other_symbol(path: Path) -> None:
    """An entry with a valid checksum, without the function that it names."""
    _pass_off(path, ObjectCode(("nothing",), _parts(path).code))


def _no_object(path: Path) -> None:
    """An entry with a valid checksum, whose bytes are no object."""
    _pass_off(path, ObjectCode(("f",), b"\x7fELF" + bytes(300)))


def _writable_by_others(path: Path) -> None:
    """An entry with a valid checksum and another text's code; its mode is the only fault."""
    result(OTHER)
    _pass_off(path, _parts(entry_of(OTHER)))
    path.chmod(0o666)


def _link(path: Path) -> None:
    """An entry with a valid checksum and another text's code; its place behind a link is the only fault."""
    elsewhere = path.parent.parent / "elsewhere"
    _writable_by_others(path)
    path.chmod(0o600)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


DAMAGE = [
    _truncate,
    _cut_in_the_header,
    _empty,
    _garbage,
    _nested,
    _flip,
    _of_another_text,
    _other_symbol,
    _no_object,
    _writable_by_others,
    _link,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_damaged_or_foreign_files_are_made_again(damage, folder: Path) -> None:
    result(TEXT)
    good = json.loads(entry_of(TEXT).read_bytes().split(b"\n")[0])
    damage(entry_of(TEXT))
    assert result(TEXT) == 42
    assert not entry_of(TEXT).is_symlink()
    assert entry_of(TEXT).stat().st_mode & 0o777 == 0o600
    again = json.loads(entry_of(TEXT).read_bytes().split(b"\n")[0])
    assert again.keys() == good.keys() and again["key"] == good["key"]
    assert result(TEXT, compile_it=False) == 42


def test_an_entry_passed_off_is_run(folder: Path) -> None:
    """An entry with another text's code runs, so `_writable_by_others` and `_link` are refused for mode and place
    alone."""
    result(TEXT)
    _writable_by_others(entry_of(TEXT))
    entry_of(TEXT).chmod(0o600)
    assert result(TEXT) == 43


def test_no_byte_may_change() -> None:
    entry = ObjectCode(("one", "two"), bytes(range(256)))
    data = objects._header("a" * 64, entry) + entry.code
    assert objects._parsed("a" * 64, data) == entry
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert objects._parsed("a" * 64, changed) is None
        assert objects._parsed("a" * 64, data[:place]) is None
    assert objects._parsed("a" * 64, data + b"x") is None


def test_the_oldest_and_the_abandoned_make_room(folder: Path) -> None:
    result(TEXT)
    result(OTHER)
    os.utime(entry_of(TEXT), (1, 1))
    abandoned = folder / f"{'0' * 64}.{'1' * 16}.tmp"
    abandoned.write_bytes(b"")
    os.utime(abandoned, (1, 1))
    foreign = folder / "notes.obj"
    foreign.write_bytes(bytes(100))
    objects.DiskCache(folder).make_room(entry_of(OTHER).stat().st_size)
    assert {p.name for p in folder.iterdir()} == {entry_of(OTHER).name, "notes.obj"}


# Directories.


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_write_is_refused(mode: int, folder: Path, caplog) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with caplog.at_level(logging.INFO, "ctrlgrad"):
        assert result(TEXT) == 42
        assert result(OTHER) == 43
    assert not list(folder.iterdir())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"compiled code is not kept on disk: {folder} is not safe\n"
        "  expected: a directory that belongs to you and that only you may write to, since what lies there is run\n"
        f"  got: a directory of mode {mode:04o}\n"
        f"  try: chmod 700 {folder}, or name another directory in CTRLGRAD_CACHE_DIR"
    )


def test_entries_in_a_directory_that_others_may_write_are_not_read(folder: Path) -> None:
    result(TEXT)
    folder.chmod(0o707)
    with pytest.raises(AssertionError, match="compiled again"):
        result(TEXT, compile_it=False)


def test_a_directory_of_another_user_is_refused(folder: Path, monkeypatch, caplog) -> None:
    folder.mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert result(TEXT) == 42
    assert not list(folder.iterdir())
    (record,) = caplog.records
    assert f"got: a directory of the user with number {owner}" in record.getMessage()


def test_without_a_place_all_goes_on(tmp_path: Path, monkeypatch, caplog) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(objects, "_SAID", set())
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path / "file" / "inside"))
    with caplog.at_level(logging.INFO, "ctrlgrad"):
        assert result(TEXT) == 42
    (record,) = caplog.records
    assert record.levelno == logging.INFO and "Not a directory" in record.getMessage()


def test_a_place_that_cannot_be_written_is_still_read(folder: Path, monkeypatch, caplog) -> None:
    result(TEXT)
    really = os.open

    def read_only(path, flags: int, *rest, **named) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system", str(path))
        return really(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only)
    with caplog.at_level(logging.INFO, "ctrlgrad"):
        assert result(OTHER) == 43
    assert [r.getMessage() for r in caplog.records] == [
        f"compiled code is not kept on disk: Read-only file system: {folder}"
    ]
    assert result(TEXT, compile_it=False) == 42


def test_where_entries_lie(tmp_path: Path, monkeypatch) -> None:
    for name in ("CTRLGRAD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert objects.directory() == tmp_path / ".cache" / "ctrlgrad"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert objects.directory() == tmp_path / ".cache" / "ctrlgrad"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert objects.directory() == Path("/xdg/ctrlgrad")
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", "/own")
    assert objects.directory() == Path("/own")
    for name in ("CTRLGRAD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert objects.directory() is None
    assert objects.open_cache() is None


# Keys.


@pytest.mark.parametrize("field", ["triple", "processor", "features"])
def test_the_key_changes_with_the(field: str, monkeypatch) -> None:
    before, changed = key_of(TEXT), dataclasses.replace(target.host(), **{field: "another"})
    monkeypatch.setattr(target, "host", lambda: changed)
    assert key_of(TEXT) != before


def test_the_key_changes_with_text_compiler_and_the_modules_that_print(tmp_path: Path, monkeypatch) -> None:
    before = key_of(TEXT)
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert key_of(TEXT) == before != key_of(OTHER)
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("a = 1")
    two.write_text("a = 2")
    keys = {objects.key_of([TEXT], [str(path)]) for path in (one, two)}
    assert len(keys | {before, None}) == 4
    assert objects.key_of([TEXT], [str(tmp_path / "gone.py")]) is None
    monkeypatch.setattr(llvm.functions(), "version", "0.0")
    assert key_of(TEXT) != before


def test_the_key_of_a_routine_has_every_module_that_its_text_is_made_of() -> None:
    """Bytes of a thread's scratch, say, follow from limits of the lowering: an object with fewer is not valid."""
    folder = Path(routines.__file__).parent
    # Of these no text comes, or they are in each key.
    besides = {"ctrlgrad", "ctrlgrad.dtypes", "ctrlgrad.errors", "ctrlgrad.forks", "ctrlgrad.records"}
    besides |= {objects.__name__, target.__name__}
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ctrlgrad"):
                inside = {f"{node.module}.{alias.name}" for alias in node.names} & sys.modules.keys()
                found |= inside or {node.module}
    files = {sys.modules[name].__file__ for name in found - besides}
    assert len(files) > 20 and files <= {*routines._FILES}, files - {*routines._FILES}


# Linking.


HALVES = """
import numpy as np
import ctrlgrad as cg

halves = np.arange(65536, dtype=np.uint16).view(np.float16)
double, twice, back = cg.function(lambda x: (x.astype("float64"), x + x, x.astype("float32").astype("float16")))(halves)
np.testing.assert_array_equal(double, halves.astype(float))
with np.errstate(all="ignore"):
    np.testing.assert_array_equal(twice, halves + halves)
np.testing.assert_array_equal(back, halves)
"""


@pytest.mark.parametrize("bits", VECTOR_BITS)
def test_half_floats_with_vectors_of_a_width(bits: int) -> None:
    """An x86 processor with vectors of 128 bits has no F16C: conversions are calls that the linker must find."""
    variables = {**os.environ, "CTRLGRAD_VECTOR_BITS": str(bits)}
    found = subprocess.run([sys.executable, "-c", HALVES], env=variables, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr


def test_an_object_calls_what_it_is_linked_with(folder: Path) -> None:
    inner = objects.loaded(ObjectCode(("f",), target.compiled(TEXT)))
    text = "declare i64 @inner(i64)\ndefine i64 @g(i64 %x) {\n %y = call i64 @inner(i64 %x)\n ret i64 %y\n}\n"
    code = ObjectCode(("g",), target.compiled(text))
    outer = objects.loaded(code, {"inner": inner["f"]})
    assert call(outer["g"]) == 42
    with pytest.raises(CannotLoad, match="symbols"):
        objects.loaded(code)


def test_text_that_is_no_module_is_refused() -> None:
    with pytest.raises(RuntimeError, match="LLVM IR parsing error"):
        target.compiled("define i64 @f(")


@pytest.mark.parametrize("name", ["lstm", "branch_in_a_loop", "nested_data_dependent_counts"])
def test_quick_code_gives_the_same_bits(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code compiled without LLVM's optimisations is stored apart and gives the same bits."""
    program, found, levels = BY_NAME[name], [], []
    compiled = target.compiled

    def noted(text: str, *args: Any, **options: Any) -> bytes:
        if "@plan(" in text:  # leaves out the text that all programs share
            levels.append(options["level"])
        return compiled(text, *args, **options)

    monkeypatch.setattr(target, "compiled", noted)
    monkeypatch.setattr(engine, "_FUNCTIONS", Recent(engine.FUNCTIONS))
    for quick in ("", "1"):
        monkeypatch.setenv("CTRLGRAD_QUICK_CODE", quick)
        leaves = program.leaves
        found.append(run_on("native", program.traced_again(1), leaves))
    assert levels == [target.GOOD, target.QUICK]
    assert_same_bits(*found)


# Lifetime of loaded code.


@pytest.mark.skipif(sys.platform != "linux", reason="mappings are counted as Linux lists them")
def test_code_that_nobody_holds_leaves_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MOST_UNUSED", 5)
    code = ObjectCode(("f",), target.compiled(TEXT))
    kept = objects.loaded(code).kept()["f"]
    held = objects.loaded(code)
    before = mappings()
    for _ in range(50):
        objects.loaded(code)
    assert mappings() < before + 50
    assert call(held["f"]) == call(kept) == 42
    del held
    objects.loaded(code)
    assert len(objects._UNUSED) <= 6


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_machine_code_goes_with_its_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[objects.Loaded] = weakref.WeakSet()
    right = objects.loaded

    def loaded(given: ObjectCode, uses: Any = None) -> objects.Loaded:
        found = right(given, uses)
        alive.add(found)
        return found

    monkeypatch.setattr(objects, "loaded", loaded)
    monkeypatch.setattr(engine, "_FUNCTIONS", Recent(2))
    last = None
    for n in range(6):
        last = cg.function(lambda x, n=n: x * (n + 0.5), engine="native")
        assert last(2.0) == 2 * n + 1.0
        gc.collect()
        assert len(alive) <= 3
    assert last is not None and last(4.0) == 22.0
