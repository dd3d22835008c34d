"""What a table of measurements must say beside its numbers: when, on what, with which versions."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

import numpy as np

import ctrlgrad


def header() -> str:
    """One line for the top of a table."""
    today = datetime.datetime.now(datetime.UTC).date()
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, ctrlgrad {ctrlgrad.__version__}"
    return f"{today}, {_processor()}, {len(os.sched_getaffinity(0))} cores, {versions}, reference engine"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())
