"""The watch by itself: plain processes, with no mpirun that would end them, and no MPI."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from ctrlgrad.errors import ExecutionError
from ctrlgrad.mpi.launch import Watch

# Rank 0 leaves in a file what it broadcasts. Every rank says that it is ready, and waits to be ended.
PROGRAM = """
import os, sys, threading, time
from pathlib import Path
from ctrlgrad.mpi.launch import Ending, Watch

rank, size, path, what = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

def broadcast(data):
    if data is not None:
        path.with_suffix(".new").write_bytes(data)
        path.with_suffix(".new").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return path.read_bytes()

watch = Watch(rank, size)
watch.start(broadcast, is_one_host=True)
watch.catch_signals()
print("ready", flush=True)
if what == "fail" and rank == 1:
    watch.fail(Ending("Error", "out of luck", 7))
if what == "fork" and rank == 1 and os.fork() == 0:
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    time.sleep(10)
    os._exit(0)
if what == "close":
    watch.close()
else:
    time.sleep(60)
"""


@pytest.fixture
def processes(tmp_path):
    started = []

    def start(size, what):
        for rank in range(size):
            command = [sys.executable, "-c", PROGRAM, str(rank), str(size), str(tmp_path / "told"), what]
            started.append(subprocess.Popen(command, stdout=-1, stderr=-1, text=True))
        for process in started:
            # Where one rank fails at once, the remaining ranks may end before they report it.
            assert process.stdout.readline() == "ready\n" or what == "fail", process.stderr.read()
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(processes):
    """The exit codes of processes that end within the time that is promised, and all that they print."""
    texts = [process.communicate(timeout=5)[1] for process in processes]
    return [process.returncode for process in processes], "".join(texts)


@pytest.mark.parametrize("dead", [0, 2])
def test_a_death_ends_the_others_and_is_told_once(processes, dead):
    ranks = processes(3, "wait")
    os.kill(ranks[dead].pid, signal.SIGKILL)
    codes, text = ended(ranks)
    assert codes == [-9 if rank == dead else 1 for rank in range(3)]
    assert text == f"Error: rank {dead} of 3 has died; all ranks stop\n  try: start the program again\n"


def test_a_child_of_a_dead_rank_does_not_hide_its_death(processes):
    ranks = processes(2, "fork")
    os.kill(ranks[1].pid, signal.SIGKILL)
    assert ranks[0].wait(timeout=5) == 1


def test_rank_0_that_ends_before_all_are_connected_is_not_said_to_have_died():
    """Another rank may have ended first, which made the launcher end rank 0."""
    server = socket.create_server(("127.0.0.1", 0))
    told = bytes(16) + f"127.0.0.1 {server.getsockname()[1]}".encode()
    failures = []

    def connect():
        try:
            Watch(1, 3).start(lambda data: told, is_one_host=True)
        except ExecutionError as error:
            failures.append(str(error))

    thread = threading.Thread(target=connect)
    thread.start()
    peer, _ = server.accept()
    server.close()
    assert len(peer.recv(20, socket.MSG_WAITALL)) == 20
    peer.close()
    thread.join(10)
    assert len(failures) == 1 and "a rank ended before all ranks were connected" in failures[0]


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_signal_at_one_rank_stops_all(processes, rank, number):
    ranks = processes(2, "wait")
    ranks[rank].send_signal(number)
    codes, text = ended(ranks)
    assert codes == [130, 130] and text.count("Stopped: by Ctrl-C") == 1


def test_a_failure_ends_all_with_its_code(processes):
    codes, text = ended(processes(3, "fail"))
    assert codes == [7, 7, 7] and text == "Error: on rank 1: out of luck\n"


def test_the_end_of_all_is_no_death(processes):
    codes, text = ended(processes(3, "close"))
    assert codes == [0, 0, 0] and text == ""


def test_ranks_of_several_machines_connect_by_host_name():
    told = []
    ready = threading.Event()

    def broadcast(data):
        if data is not None:
            told.append(data)
            ready.set()
        assert ready.wait(10)
        return told[0]

    watches = [Watch(rank, 2) for rank in range(2)]
    for method, arguments in (("start", (broadcast, False)), ("close", ())):
        threads = [threading.Thread(target=getattr(watch, method), args=arguments) for watch in watches]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive()
    assert not told[0][16:].startswith(b"127.0.0.1")
