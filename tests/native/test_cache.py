"""Compiled loops on disk: who may read and write them, when they hold, and that using them loads no compiler."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from llvmlite import binding

from ctrlgrad.engines.native import cache, compiler, elementary, elementary_table, object_code
from ctrlgrad.engines.native.object_code import CannotLoad, ObjectCode

SOURCE = "def loop(t):\n    t[1] = t[0] + 1\n"
OTHER = "def loop(t):\n    t[1] = t[0] + 2\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for entries, in a process that has compiled nothing and said nothing."""
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path / "entries"))
    forget_process(monkeypatch)
    monkeypatch.setattr(cache, "_SAID", set())
    return tmp_path / "entries"


def forget_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_FUNCTIONS", {})


def no_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "_compiled_now", refuse)


def result(source: str) -> int:
    table = np.array([41, 0])
    compiled = compiler.compiled(source)
    assert callable(compiled)
    compiled(table)
    return int(table[1])


def entry_of(source: str) -> Path:
    place, key = cache.directory(), cache.key_of(source)
    assert place is not None and key is not None
    return place / f"{key}.obj"


# Writing and reading.


def test_an_entry_serves_the_next_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not compiler.is_cached(SOURCE)
    assert result(SOURCE) == 42
    assert [p.name for p in folder.iterdir()] == [entry_of(SOURCE).name]
    forget_process(monkeypatch)
    no_compiling(monkeypatch)
    assert compiler.is_cached(SOURCE) and not compiler.is_cached(OTHER)
    assert result(SOURCE) == 42


def test_nobody_else_may_read_or_write(folder: Path) -> None:
    before = os.umask(0)
    try:
        result(SOURCE)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entry_of(SOURCE).stat().st_mode & 0o777 == 0o600


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
    data[-1000] ^= 1
    path.write_bytes(data)


def _of_another_source(path: Path) -> None:
    result(OTHER)
    path.write_bytes(entry_of(OTHER).read_bytes())


def _parts(path: Path) -> ObjectCode:
    header, code = path.read_bytes().split(b"\n", 1)
    return ObjectCode(json.loads(header)["symbol"], code)


def _pass_off(path: Path, code: ObjectCode) -> None:
    path.write_bytes(cache._header(path.stem, code) + code.code)


def _other_symbol(path: Path) -> None:
    """Whole, by its checksum, but without the function that it names."""
    _pass_off(path, ObjectCode("nothing", _parts(path).code))


def _writable_by_others(path: Path) -> None:
    """Whole, and another source's code; what speaks against it is its mode."""
    result(OTHER)
    _pass_off(path, _parts(entry_of(OTHER)))
    path.chmod(0o666)


def _link(path: Path) -> None:
    """Likewise; what speaks against it is that it lies elsewhere."""
    elsewhere = path.parent.parent / "elsewhere"
    _writable_by_others(path)
    path.chmod(0o600)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _fifo(path: Path) -> None:
    """Opened to be read, it would wait for a writer."""
    path.unlink()
    os.mkfifo(path, 0o600)


def _link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.parent.parent / "fifo", 0o600)
    path.unlink()
    path.symlink_to(path.parent.parent / "fifo")


def _socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as end:
        place = os.open(path.parent, os.O_RDONLY)  # the path of a socket may have 107 characters
        end.bind(f"/proc/self/fd/{place}/s")
        os.close(place)
    (path.parent / "s").rename(path)


DAMAGE = [
    _truncate,
    _cut_in_the_header,
    _empty,
    _garbage,
    _nested,
    _flip,
    _of_another_source,
    _other_symbol,
    _writable_by_others,
    _link,
    _fifo,
    _link_to_a_fifo,
    pytest.param(_socket, marks=pytest.mark.skipif(sys.platform != "linux", reason="by way of /proc"), id="_socket"),
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_what_is_not_whole_or_not_ours_is_made_again(damage, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result(SOURCE)
    good = json.loads(entry_of(SOURCE).read_bytes().split(b"\n")[0])
    damage(entry_of(SOURCE))
    forget_process(monkeypatch)
    assert result(SOURCE) == 42
    assert not entry_of(SOURCE).is_symlink()
    assert entry_of(SOURCE).stat().st_mode & 0o777 == 0o600
    again = json.loads(entry_of(SOURCE).read_bytes().split(b"\n")[0])
    assert again.keys() == good.keys() and again["key"] == good["key"]
    forget_process(monkeypatch)
    no_compiling(monkeypatch)
    assert result(SOURCE) == 42


def test_a_folder_in_the_place_of_an_entry_is_left_alone(folder: Path, monkeypatch, caplog) -> None:
    """All goes on without the entry, and no descriptor is left open."""
    result(SOURCE)
    entry_of(SOURCE).unlink()
    (entry_of(SOURCE) / "inside").mkdir(parents=True)
    forget_process(monkeypatch)
    with caplog.at_level(logging.INFO, "ctrlgrad"):
        assert result(SOURCE) == 42
    assert [p.name for p in folder.iterdir()] == [entry_of(SOURCE).name]
    assert (entry_of(SOURCE) / "inside").is_dir()
    assert "compiled loops are not kept on disk: Is a directory" in caplog.text
    place, key = cache.open_cache(), cache.key_of(SOURCE)
    assert place is not None and key is not None
    before = os.open(os.devnull, os.O_RDONLY)
    assert place.read(key) is None
    after = os.open(os.devnull, os.O_RDONLY)
    os.close(before)
    os.close(after)
    assert after == before + 1


def test_an_entry_passed_off_is_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the mode and the place alone for which `_writable_by_others` and `_link` are refused."""
    result(SOURCE)
    _writable_by_others(entry_of(SOURCE))
    entry_of(SOURCE).chmod(0o600)
    forget_process(monkeypatch)
    assert result(SOURCE) == 43


def test_no_byte_may_change() -> None:
    entry = ObjectCode("symbol", bytes(range(256)))
    data = cache._header("a" * 64, entry) + entry.code
    assert cache._parsed("a" * 64, data) == entry
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert cache._parsed("a" * 64, changed) is None
        assert cache._parsed("a" * 64, data[:place]) is None
    assert cache._parsed("a" * 64, data + b"x") is None


# Directories.


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_write_is_refused(mode: int, folder: Path, monkeypatch, caplog) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with caplog.at_level(logging.INFO, "ctrlgrad"):
        assert result(SOURCE) == 42
        assert result(OTHER) == 43
    assert not list(folder.iterdir())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"compiled loops are not kept on disk: {folder} is not safe\n"
        "  expected: a directory that belongs to you and that only you may write to, since what lies there is run\n"
        f"  got: a directory of mode {mode:04o}\n"
        f"  try: chmod 700 {folder}, or name another directory in CTRLGRAD_CACHE_DIR"
    )


def test_entries_in_a_directory_that_others_may_write_are_not_read(folder: Path, monkeypatch) -> None:
    result(SOURCE)
    folder.chmod(0o707)
    forget_process(monkeypatch)
    assert not compiler.is_cached(SOURCE)


def test_a_directory_of_another_user_is_refused(folder: Path, monkeypatch, caplog) -> None:
    folder.mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert result(SOURCE) == 42
    assert not list(folder.iterdir())
    (record,) = caplog.records
    assert f"got: a directory of the user with number {owner}" in record.getMessage()


def test_without_a_place_all_goes_on(tmp_path: Path, monkeypatch, caplog) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(cache, "_SAID", set())
    forget_process(monkeypatch)
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path / "file" / "inside"))
    with caplog.at_level(logging.INFO, "ctrlgrad"):
        assert result(SOURCE) == 42
    (record,) = caplog.records
    assert record.levelno == logging.INFO and "Not a directory" in record.getMessage()


def test_a_place_that_cannot_be_written_is_still_read(folder: Path, monkeypatch, caplog) -> None:
    result(SOURCE)
    forget_process(monkeypatch)
    really = os.open

    def read_only(path, flags: int, *rest, **named) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system", str(path))
        return really(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only)
    with caplog.at_level(logging.INFO, "ctrlgrad"):
        assert result(OTHER) == 43
    assert [r.getMessage() for r in caplog.records] == [
        f"compiled loops are not kept on disk: Read-only file system: {folder}"
    ]
    no_compiling(monkeypatch)
    assert result(SOURCE) == 42


def test_where_entries_lie(tmp_path: Path, monkeypatch) -> None:
    for name in ("CTRLGRAD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.directory() == tmp_path / ".cache" / "ctrlgrad"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.directory() == tmp_path / ".cache" / "ctrlgrad"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.directory() == Path("/xdg/ctrlgrad")
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", "/own")
    assert cache.directory() == Path("/own")
    for name in ("CTRLGRAD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert cache.directory() is None
    assert cache.open_cache() is None


# Keys.

CHANGES = {
    "versions": ("metadata.version", lambda name: "0.0"),
    "processor": ("binding.get_host_cpu_name", lambda: "another"),
    "features": ("binding.get_host_cpu_features", lambda: type("Features", (), {"flatten": lambda self: "+none"})()),
    "triple": ("binding.get_process_triple", lambda: "another-triple"),
    "ingredients": ("INGREDIENTS", cache.INGREDIENTS[:-1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_key_changes_with(change: str, monkeypatch) -> None:
    name, value = CHANGES[change]
    cache._fixed_surroundings.cache_clear()
    before = cache.key_of(SOURCE)
    with monkeypatch.context() as patch:
        patch.setattr(f"ctrlgrad.engines.native.cache.{name}", value)
        cache._fixed_surroundings.cache_clear()
        assert cache.key_of(SOURCE) != before
    cache._fixed_surroundings.cache_clear()
    assert cache.key_of(SOURCE) == before


def test_the_key_changes_with_source_and_settings(monkeypatch) -> None:
    before = cache.key_of(SOURCE)
    assert before is not None and re.fullmatch("[0-9a-f]{64}", before)
    assert cache.key_of(OTHER) != before
    monkeypatch.setenv("NUMBA_OPT", "1")
    assert cache.key_of(SOURCE) != before


def test_the_key_covers_all_that_makes_a_source_into_code() -> None:
    """What `compiler` imports when it compiles, and what that imports."""
    folder = Path(compiler.__file__).parent
    found, left = set(), ["pipeline", "elementary", "machine", "scalars"]
    while left:
        name = left.pop()
        found.add(name)
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ctrlgrad.engines.native"):
                tail = node.module.removeprefix("ctrlgrad.engines.native").strip(".")
                left += [n for n in ([tail] if tail else [a.name for a in node.names]) if n not in found]
    assert found | {"compiler"} == set(cache.INGREDIENTS)


def test_the_table_without_functions_says_what_the_kernels_say() -> None:
    told = {key: (k.name, k.max_ulp, k.limit, k.vectorises) for key, k in elementary_table.KERNELS.items()}
    assert told == {key: (k.name, k.max_ulp, k.limit, k.vectorises) for key, k in elementary.KERNELS.items()}


# Room.


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    disk = cache.DiskCache(tmp_path)
    keys = [digit * 64 for digit in "0123"]
    for age, key in enumerate(keys):
        disk.write(key, ObjectCode("f", bytes(1000)))
        os.utime(disk.file(key), (1000 + age, 1000 + age))
    (tmp_path / "notes.txt").write_bytes(bytes(5000))
    (tmp_path / f"{keys[0]}.{'a' * 16}.tmp").touch()
    os.utime(tmp_path / f"{keys[0]}.{'a' * 16}.tmp", (1, 1))
    assert disk.read(keys[0]) is not None
    size = disk.file(keys[0]).stat().st_size
    disk.make_room(2 * size)
    assert {p.name for p in tmp_path.iterdir()} == {f"{keys[0]}.obj", f"{keys[3]}.obj", "notes.txt"}


# Objects.


def _object(ir: str) -> bytes:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    return machine.emit_object(binding.parse_assembly(ir))


CALLING = """
declare i32 @{name}()
define i32 @f(ptr %result, ptr %exception, ptr %table) {{
  %status = call i32 @{name}()
  ret i32 %status
}}
"""


def test_an_object_that_needs_numbas_own_functions_is_refused() -> None:
    import numba  # noqa: F401 - makes its functions known to LLVM

    assert binding.address_of_symbol("numba_gil_ensure") is not None
    with pytest.raises(CannotLoad):
        object_code.loaded(ObjectCode("f", _object(CALLING.format(name="numba_gil_ensure"))))
    object_code.loaded(ObjectCode("f", _object(CALLING.format(name="getpid"))))


def test_a_status_is_not_overlooked() -> None:
    run = object_code.loaded(ObjectCode("f", _object(CALLING.format(name="getpid"))))
    with pytest.raises(RuntimeError, match="raised an exception"):
        run(np.zeros(1, np.int64))


def test_what_cannot_be_loaded_alone_runs_by_numba_and_is_not_kept(folder: Path, monkeypatch, caplog) -> None:
    def refuse(code: ObjectCode) -> None:
        raise CannotLoad("for a reason")

    monkeypatch.setattr(compiler, "loaded", refuse)
    with caplog.at_level(logging.INFO, "ctrlgrad"):
        assert result(SOURCE) == 42
    assert not folder.exists() or not list(folder.iterdir())
    assert "a compiled loop is not kept on disk: for a reason" in [r.getMessage() for r in caplog.records]


# Processes.

PROGRAM = """
import sys
import numpy as np
import ctrlgrad as cg
import ctrlgrad.numpy as cnp

def loss(w, n):
    def body(s):
        i, x = s
        return i + 1, cnp.tanh(x @ w) + cnp.sin(x) % 0.5
    return cnp.sum(cg.while_loop(lambda s: s[0] < n, body, (0, np.ones((3, 4))))[1])

value, gradient = cg.function(cg.value_and_grad(loss), engine="native")(np.eye(4) * 0.5, 5)
print("numba" in sys.modules, repr(float(value)), gradient.tobytes().hex())
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "CTRLGRAD_CACHE_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _said(process: subprocess.Popen[str]) -> list[str]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and not errors, errors
    return out.split()


def test_two_processes_at_once_and_a_third_without_numba(tmp_path: Path) -> None:
    both = [_start(tmp_path / "entries") for _ in range(2)]
    first, second = (_said(process) for process in both)
    assert first == second and first[0] == "True"
    names = {p.suffix for p in (tmp_path / "entries").iterdir()}
    assert names == {".obj"}
    third = _said(_start(tmp_path / "entries"))
    assert third == ["False", *first[1:]]
