"""The other end of `worker.py`: a process of a system, started in an environment that is the same for all of them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent

THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


class Failure(Exception):
    """A system did not do what it was asked for."""

    def __init__(
        self,
        status: Literal["not installed", "not offered", "failed", "timed out", "disagrees"],
        text: str,
        details: str = "",
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.details = details

    @property
    def is_absence(self) -> bool:
        """True if there was nothing to run; False if something went wrong."""
        return self.status in ("not installed", "not offered")


@dataclass(frozen=True)
class Surroundings:
    """Settings that all processes of a comparison share."""

    cores: int
    # Seconds that one request may take.
    patience: float
    # The Python of a system, where it is not the one that runs the comparison.
    pythons: Mapping[str, str]
    python: str

    def environment(self, cache: Path, has_cache: bool) -> dict[str, str]:
        """The variables of a process: its number of threads, and where compiled code is kept between processes."""
        counts = dict.fromkeys(THREAD_COUNTS, str(self.cores))
        quiet = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        kept = {
            "XDG_CACHE_HOME": str(cache),
            "CTRLGRAD_CACHE_DIR": str(cache / "ctrlgrad"),
            "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
            "JAX_ENABLE_COMPILATION_CACHE": "true" if has_cache else "false",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        # Installed packages have their modules compiled. Where Python may not keep those of a checkout, each process
        # would compile them again, and a first call would be measured with that.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return inherited | counts | quiet | kept


class Worker:
    """A process of one system. Use it as a context manager."""

    def __init__(self, surroundings: Surroundings, system: str, cache: Path, has_cache: bool = False) -> None:
        self.patience = surroundings.patience
        python = surroundings.pythons.get(system, surroundings.python)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", str(surroundings.cores)],
            cwd=ROOT,
            env=surroundings.environment(cache, has_cache),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            Failure: the request failed, took too long, or the process ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self.patience)
        except queue.Empty:
            self.close()
            raise Failure("timed out", f"{do}: no answer within {self.patience:.0f} s") from None
        except BrokenPipeError:
            line = None
        if line is None:
            raise Failure("failed", f"{do}: the process ended, code {self._process.wait()}", self._last_words())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise Failure(reply["status"], reply["error"], reply["details"])
        return reply

    def _last_words(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")[-4000:]

    def close(self) -> None:
        """End the process, and what it started."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._complaints.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
