"""Files read by name: a FIFO, a folder or a device in the place of one is refused at once."""

import os
import re
import signal
from pathlib import Path

import pytest

from ctrlgrad.cli.programs import _arrays, load_target
from ctrlgrad.dataflow import join_traces
from ctrlgrad.engines.native.objects import DiskCache
from ctrlgrad.errors import UserInputError
from ctrlgrad.files import open_file, read_file
from ctrlgrad.train import checkpoint, corpus, metrics

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("ctrlgrad", "gradients", "memory", "stacks")
# Files of the system or of the installation.
OWN = {
    "ctrlgrad/cli/doctor.py": 'Path("/proc/cpuinfo").read_text()',
    "ctrlgrad/interop/engine_primitive.py": "header.read_text()",
}

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "fifo.py"
    os.mkfifo(path)
    return path


@pytest.fixture(autouse=True)
def ended():
    """An alarm, so that a call that waits for ever fails."""

    def fail(*_):
        raise AssertionError("the call waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_regular_file_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"bytes")
    assert read_file(tmp_path / "file") == b"bytes"


def test_irregular_files_are_refused(fifo, tmp_path):
    for path in (fifo, "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            read_file(path)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")


def test_a_link_is_followed_only_where_it_may_be(tmp_path):
    (tmp_path / "file").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_file(tmp_path / "link") == b"bytes"
    with pytest.raises(OSError):
        open_file(tmp_path / "link", follow=False)


def test_a_fifo_in_the_cache_is_a_damaged_entry(tmp_path):
    os.mkfifo(tmp_path / "key.obj")
    assert DiskCache(tmp_path).read("key") is None
    assert not (tmp_path / "key.obj").exists()


READERS = {
    "checkpoint": checkpoint.read,
    "metrics": metrics.read,
    "text": lambda path: corpus.load(path, 1),
    "arrays": _arrays,
    "program": lambda path: load_target("verify", f"{path}:f"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_fifo_is_refused_by_name(name, fifo):
    with pytest.raises(UserInputError, match="not a regular file"):
        READERS[name](fifo)


def test_a_fifo_is_no_trace(fifo, tmp_path):
    with pytest.raises(OSError, match="not a regular file"):
        join_traces([fifo], tmp_path / "joined.json")


def test_a_fifo_is_no_model(fifo):
    pytest.importorskip("onnx")
    from ctrlgrad import from_onnx

    with pytest.raises(OSError, match="not a regular file"):
        from_onnx(fifo)


def test_no_other_module_opens_a_file_to_read_it():
    reads = re.compile(r"[\w.]*(?:\([^()]*\))?\.read_(?:text|bytes)\([^()]*\)|(?<![\w.])open\([^()]*\"rb?\"[^()]*\)")
    found = {}
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            calls = [call for call in reads.findall(path.read_text()) if name != "ctrlgrad/files.py"]
            if calls:
                found[name] = ", ".join(calls)
    assert found == OWN
