"""Programs that begin with ctrlgrad imported end, read and write as in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from instruments import warm


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with warm.server("json") as address:
        yield address


@pytest.fixture
def start(address: str, tmp_path: Path) -> object:
    def started(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        (tmp_path / "program.py").write_text(code)
        command = warm.command(address, str(tmp_path / "program.py"), *arguments)
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **environment}, text=True, **streams)

    return started


SEES = """
import os, sys
in_its_folder = os.path.samefile(os.getcwd(), os.path.dirname(__file__))
print(sys.argv[1:], in_its_folder, os.environ["OF_ITS_OWN"], "json" in sys.modules, input())
print(__name__, file=sys.stderr)
sys.exit(7)
"""


def test_a_program_has_the_arguments_folder_environment_and_files_of_its_relay(start: object) -> None:
    with start(SEES, "a", "b c", OF_ITS_OWN="yes") as process:
        stdout, stderr = process.communicate("typed")
    assert (stdout, stderr, process.returncode) == ("['a', 'b c'] True yes True typed\n", "__main__\n", 7)


def test_an_error_that_nobody_catches_ends_a_program_with_1_and_its_exit_functions_run(start: object) -> None:
    with start("import atexit\natexit.register(print, 'the end')\nprint(1 / 0)") as process:
        stdout, stderr = process.communicate()
    assert (stdout, process.returncode) == ("the end\n", 1) and stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_program_that_is_killed_kills_its_relay(start: object) -> None:
    with start("import os\nos.kill(os.getpid(), 9)") as process:
        assert process.wait(60) == -signal.SIGKILL


WAITS = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda number, frame: (print("told", flush=True), os._exit(3)))
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_signal_at_the_relay_reaches_the_program(start: object) -> None:
    with start(WAITS) as process:
        process.stdout.readline()
        process.terminate()
        stdout, _ = process.communicate(timeout=60)
    assert (stdout, process.returncode) == ("told\n", 3)


def test_a_relay_that_is_killed_takes_its_program_along(start: object) -> None:
    with start(WAITS) as process:
        process.stdout.readline()
        process.kill()
        # The program holds the other end until it is gone.
        assert process.communicate(timeout=60) == ("", "")
