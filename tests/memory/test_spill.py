"""The spill file: bytes come back, or an error says which are lost; the file is removed however its owner ends."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlgrad.errors import BlockLostError, ExecutionError, TierRefusedError, UserInputError
from ctrlgrad.memory.devices.spill import COLUMNS, PREFIX, Extent, SpillFile, checksum, remove_leftovers
from ctrlgrad.memory.pool import FreeList, Range

PAGE = 4096


def bytes_of(seed: int, nbytes: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def back(file: SpillFile, extent: Extent, nbytes: int) -> np.ndarray:
    data = np.zeros(nbytes, np.uint8)
    file.read(extent, memoryview(data))
    return data


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# The free list.


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=60))
def test_ranges_never_overlap_and_free_neighbours_join(steps: list[tuple[bool, int]]) -> None:
    """Ranges never overlap and free neighbours join, by comparison with a model that has one owner for each granule."""
    free = FreeList(granule=16)
    free.add(Range(0, 64 * 16))
    taken: list[Range] = []
    for take, number in steps:
        if take:
            found = free.take(number)
            if found is None:
                assert all(r.nbytes < free.rounded(number) for r in free.ranges)
                continue
            assert found.nbytes == free.rounded(number) >= number
            taken.append(found)
        elif taken:
            free.add(taken.pop(number % len(taken)))
        owners = sorted(taken + free.ranges)
        assert [r.offset for r in owners] == [0, *(r.end for r in owners[:-1])]
        assert owners[-1].end == 64 * 16
        assert all(a.end < b.offset for a, b in zip(free.ranges, free.ranges[1:], strict=False))
    for given_back in taken:
        free.add(given_back)
    assert free.ranges == [Range(0, 64 * 16)]


# Bytes.


def test_bytes_come_back(tmp_path: Path) -> None:
    file = SpillFile(tmp_path, piece_bytes=1000)
    sizes = [0, 1, 999, 1000, 1001, 5000]
    extents = [file.allocate(size) for size in sizes]
    for number, (size, extent) in enumerate(zip(sizes, extents, strict=True)):
        file.write(extent, memoryview(bytes_of(number, size)))
    for number, (size, extent) in enumerate(zip(sizes, extents, strict=True)):
        np.testing.assert_array_equal(back(file, extent, size), bytes_of(number, size))
    # Read fewer bytes than were written: the last piece is checked as a whole.
    np.testing.assert_array_equal(back(file, extents[-1], 1500), bytes_of(5, 5000)[:1500])
    file.close()


def test_places_are_used_again_and_the_file_grows_in_steps(tmp_path: Path) -> None:
    file = SpillFile(tmp_path, step_bytes=8 * PAGE)
    assert files(tmp_path) == []
    extents = [file.allocate(2 * PAGE) for _ in range(4)]
    assert file.size == 8 * PAGE
    file.free(extents[1])
    assert file.allocate(PAGE + 1).place == extents[1].place
    # No page is free at the end of the file, so it grows by one step of eight for six pages.
    assert file.allocate(6 * PAGE).place == Range(8 * PAGE, 6 * PAGE)
    assert file.size == 16 * PAGE
    # For twelve pages two are free at the end, and ten are missing.
    assert file.allocate(12 * PAGE).place == Range(14 * PAGE, 12 * PAGE)
    assert file.size == 26 * PAGE == os.stat(str(file.path)).st_size
    # Preallocated: the blocks of the disk are reserved, not only the length.
    assert os.stat(str(file.path)).st_blocks * 512 >= 26 * PAGE
    file.close()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_use_loses_no_byte(data: st.DataObject) -> None:
    file = SpillFile(step_bytes=4 * PAGE, piece_bytes=700)
    live: dict[int, tuple[Extent, int]] = {}
    for step in range(data.draw(st.integers(0, 25))):
        if live and data.draw(st.booleans()):
            seed = data.draw(st.sampled_from(sorted(live)))
            extent, size = live.pop(seed)
            np.testing.assert_array_equal(back(file, extent, size), bytes_of(seed, size))
            file.free(extent)
        else:
            size = data.draw(st.integers(0, 3 * PAGE))
            extent = file.allocate(size)
            file.write(extent, memoryview(bytes_of(step, size)))
            live[step] = (extent, size)
    for seed, (extent, size) in live.items():
        np.testing.assert_array_equal(back(file, extent, size), bytes_of(seed, size))
    file.close()


# Faults.


@pytest.mark.parametrize("rows", [0, 1, 2, 16])
@pytest.mark.parametrize("more", [0, 1, 8])
def test_a_checksum_sees_changed_and_swapped_bytes(rows: int, more: int) -> None:
    """A checksum sees a changed bit, swapped words and swapped sectors, in whole rows of words and behind them."""
    data = bytes_of(1, 8 * COLUMNS * rows + more)
    found = checksum(memoryview(data))
    for place in sorted({0, data.nbytes // 2, data.nbytes - 1}) if data.nbytes else ():
        data[place] ^= 4
        assert checksum(memoryview(data)) != found
        data[place] ^= 4
    for size in (8, 512, PAGE):
        if 2 * size <= data.nbytes:
            swapped = data.copy()
            swapped[:size], swapped[-size:] = data[-size:], data[:size]
            assert checksum(memoryview(swapped)) != found
    assert checksum(memoryview(data)) == found


def test_changed_bytes_are_found(tmp_path: Path) -> None:
    file = SpillFile(tmp_path, piece_bytes=1000)
    file.allocate(PAGE)
    extent = file.allocate(3000)
    file.write(extent, memoryview(bytes_of(1, 3000)))
    with open(str(file.path), "r+b") as other:
        other.seek(PAGE + 2500)
        other.write(bytes([bytes_of(1, 3000)[2500] ^ 1]))
    np.testing.assert_array_equal(back(file, extent, 2000), bytes_of(1, 3000)[:2000])
    with pytest.raises(BlockLostError, match=f"{file.path}: 1000 bytes at offset {PAGE + 2000} have changed") as caught:
        back(file, extent, 3000)
    assert "expected: checksum" in str(caught.value)
    assert "got: checksum" in str(caught.value)
    with pytest.raises(BlockLostError, match="have changed"):
        back(file, extent, 2100)
    file.close()


def test_a_shortened_file_and_a_read_past_the_end(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    extent = file.allocate(100)
    file.write(extent, memoryview(bytes_of(1, 100)))
    with pytest.raises(BlockLostError, match="read past what was written"):
        back(file, extent, 101)
    os.truncate(str(file.path), 10)
    with pytest.raises(BlockLostError, match="it ends at offset 10"):
        back(file, extent, 100)
    file.close()


def test_a_read_error_names_file_and_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpillFile(tmp_path)
    extent = file.allocate(100)
    file.write(extent, memoryview(bytes_of(1, 100)))

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", broken)
        with pytest.raises(BlockLostError, match=f"{file.path}: 100 bytes cannot be read at offset 0"):
            back(file, extent, 100)
        patched.setattr(os, "pwrite", broken)
        with pytest.raises(ExecutionError, match="100 bytes cannot be written at offset 0"):
            file.write(extent, memoryview(bytes_of(1, 100)))
    np.testing.assert_array_equal(back(file, extent, 100), bytes_of(1, 100))
    file.close()


def test_short_writes_and_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpillFile(tmp_path)
    extent = file.allocate(1000)
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, part, offset: write(fd, part[:300], offset))
    monkeypatch.setattr(os, "preadv", lambda fd, parts, offset: read(fd, [parts[0][:170]], offset))
    file.write(extent, memoryview(bytes_of(1, 1000)))
    np.testing.assert_array_equal(back(file, extent, 1000), bytes_of(1, 1000))
    file.close()


def test_a_refusal_by_the_system_and_what_is_there_stays(tmp_path: Path) -> None:
    """If the system refuses a larger file, its contents stay. The limit on a file's size stands for a full disk."""
    file = SpillFile(tmp_path, step_bytes=16 * PAGE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * PAGE, before[1]))
    try:
        # The system refuses a step of sixteen pages but grants the four that are needed.
        extent = file.allocate(4 * PAGE)
        file.write(extent, memoryview(bytes_of(1, 4 * PAGE)))
        with pytest.raises(TierRefusedError, match="the file has its largest size") as caught:
            file.allocate(2 * PAGE)
        assert file.size == 4 * PAGE == os.stat(str(file.path)).st_size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    text = str(caught.value)
    assert str(file.path) in text
    assert f"{2 * PAGE} bytes more than the {4 * PAGE}" in text
    assert "free bytes on the disk" in text
    assert "ulimit -f" in text
    np.testing.assert_array_equal(back(file, extent, 4 * PAGE), bytes_of(1, 4 * PAGE))
    file.allocate(2 * PAGE)
    file.close()


def test_a_full_disk_in_the_middle_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may be full in the middle of a write, because some filesystems grant room that they do not have."""
    file = SpillFile(tmp_path, piece_bytes=100)
    extent = file.allocate(1000)
    write = os.pwrite

    def full(descriptor: int, part: memoryview, offset: int) -> int:
        if offset >= 500:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, part, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TierRefusedError, match=r"the disk is full: .*No space left on device") as caught:
        file.write(extent, memoryview(bytes_of(1, 1000)))
    assert "a folder on a larger disk" in str(caught.value)
    file.close()


# The file.


def test_the_file_is_private_exclusive_and_gone_after_close(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    file.allocate(10)
    assert file.path is not None
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.path.name.startswith(f"{PREFIX}{os.getpid()}-")
    file.close()
    file.close()
    assert (files(tmp_path), file.path) == ([], None)
    with pytest.raises(ExecutionError, match="is closed"):
        file.allocate(10)


def test_the_file_is_gone_when_its_owner_is_collected(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    file.allocate(10)
    assert len(files(tmp_path)) == 1
    del file
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for name, problem in (("missing", "No such file or directory"), ("plain", "it is no folder")):
        with pytest.raises(UserInputError, match=f"cannot be used: {tmp_path / name}") as caught:
            SpillFile(tmp_path / name)
        assert f"got: {problem}" in str(caught.value)


NOT_OURS = """
import os, sys
from ctrlgrad import memory
from ctrlgrad.errors import UserInputError
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    with memory.budget(device=100, disk=sys.argv[1]):
        pass
except UserInputError as error:
    print(error)
"""


def test_a_folder_that_this_user_cannot_write() -> None:
    """A folder without write permission fails when the budget is entered, not at the first eviction."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        done = subprocess.run([sys.executable, "-c", NOT_OURS, folder], capture_output=True, text=True, check=False)
    assert f"cannot be used: {folder}" in done.stdout, done.stderr
    assert "got: this user cannot write there" in done.stdout


def test_two_files_in_one_folder(tmp_path: Path) -> None:
    one, two = SpillFile(tmp_path), SpillFile(tmp_path)
    first, second = one.allocate(10), two.allocate(10)
    one.write(first, memoryview(bytes_of(1, 10)))
    two.write(second, memoryview(bytes_of(2, 10)))
    assert SpillFile(tmp_path).removed == []
    two.close()
    np.testing.assert_array_equal(back(one, first, 10), bytes_of(1, 10))
    one.close()
    assert files(tmp_path) == []


def test_strangers_files_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "mine.txt")
    (tmp_path / f"{PREFIX}folder").mkdir()
    (tmp_path / f"{PREFIX}1-1-1").write_bytes(b"left")
    os.mkfifo(tmp_path / f"{PREFIX}pipe")
    assert remove_leftovers(tmp_path) == [tmp_path / f"{PREFIX}1-1-1"]
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert len(files(tmp_path)) == 4


def test_a_file_taken_for_a_leftover_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctrlgrad.memory.devices import spill

    lock, removed = spill._lock, []

    def late(descriptor: int) -> bool:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        return lock(descriptor)

    monkeypatch.setattr(spill, "_lock", late)
    file = SpillFile(tmp_path)
    extent = file.allocate(10)
    assert len(removed) == 1
    assert file.path is not None
    assert file.path.exists()
    file.write(extent, memoryview(bytes_of(1, 10)))
    file.close()
