"""Date, processor and versions, which every table of measurements names beside its numbers."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import ctrlgrad


def header(engine: str) -> str:
    """One line for the top of a table."""
    found = description()
    versions = f"Python {found['python']}, NumPy {found['numpy']}, ctrlgrad {found['ctrlgrad']}"
    return f"{found['date']}, {found['processor']}, {found['cores']} cores, {versions}, {engine} engine"


def description() -> dict[str, Any]:
    """The machine and the versions, as they go into a file of results; memory in bytes, None where unknown."""
    return {
        "date": str(datetime.datetime.now(datetime.UTC).date()),
        "processor": _processor(),
        "cores": _cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        "system": f"{platform.system()} {platform.release()}",
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ctrlgrad": ctrlgrad.__version__,
        "commit": _commit(),
        "llvmlite": _version("llvmlite"),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with a plus where files differ from it."""
    root = Path(__file__).resolve().parent.parent
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    command = [git, "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())
