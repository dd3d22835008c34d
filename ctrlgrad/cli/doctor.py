"""`ctrlgrad doctor`: what is installed, on which machine, where code is kept, and whether each engine works."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import ctrlgrad as cg
from ctrlgrad.engines import ENGINES
from ctrlgrad.engines.cuda.cupy_library import device_count
from ctrlgrad.engines.native import objects, target
from ctrlgrad.errors import CtrlgradError, UserInputError
from ctrlgrad.mpi.launch import FAILED

# Optional requirements of an engine: without it, it cannot work, and nothing is wrong.
OPTIONAL = {"cuda": "cupy"}
_UNLIMITED = 400


@dataclass(frozen=True)
class Finding:
    """A line of the report; `is_wrong` where something that is there does not work."""

    what: str
    found: str
    is_wrong: bool = False


def examine_and_report() -> None:
    """Print what is found, and exit with code 1 where something does not work."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNLIMITED)
    failed = False
    for title, findings in (("installed", packages()), ("machine", machine()), ("engines", engines())):
        table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for head in (title, ""):
            table.add_column(head, overflow="fold")
        for finding in findings:
            table.add_row(Text(finding.what), Text(finding.found, style="bold red" if finding.is_wrong else ""))
            failed |= finding.is_wrong
        console.print(table)
    if failed:
        raise typer.Exit(FAILED)


def packages() -> Iterator[Finding]:
    """The library and what it requires, then the packages of its extras, with their versions."""
    yield Finding("ctrlgrad", f"{cg.__version__} in {Path(cg.__file__).parent}")
    yield Finding("Python", f"{platform.python_version()} ({platform.python_implementation()})")
    extras: dict[str, list[str]] = {}
    for text in importlib.metadata.requires("ctrlgrad") or []:
        name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", text)
        extras.setdefault(name, [])
        if extra:
            extras[name].append(extra[1])
        else:
            extras[name].insert(0, "")
    for name, wanted in sorted(extras.items(), key=lambda item: ("" not in item[1], item[0])):
        is_required = "" in wanted
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            named = ", ".join(x for x in wanted if x)
            yield Finding(name, "missing" if is_required else f"not installed (extra {named})", is_required)


def machine() -> Iterator[Finding]:
    """Processor, BLAS, GPU, and where compiled code is kept."""
    yield Finding("system", f"{platform.system()} {platform.release()}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    vectors = f"vectors of {8 * target.host().vector_bytes} bits"
    yield Finding("processor", f"{processor()}, {cores} cores, {vectors}")
    yield Finding("threads of large products", os.environ.get("CTRLGRAD_THREADS", "as many as cores"))
    yield Finding("BLAS of NumPy", blas())
    yield Finding("GPU", gpu())
    yield cache()


def processor() -> str:
    """Name that the system gives it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def blas() -> str:
    """With which the reference engine multiplies; the native engine's products are its own."""
    config: Any = np.show_config(mode="dicts")
    found = config.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()


def gpu() -> str:
    """Device on which the engine "cuda" would run."""
    try:
        count = device_count()
    except UserInputError as error:
        return f"none: {error.args[0]}"
    return f"{count} of CUDA"


def cache() -> Finding:
    """The folder of compiled code."""
    path = objects.directory()
    if path is None:
        return Finding("compiled code", "not kept: there is no home directory")
    if not path.exists():
        return Finding("compiled code", f"{path}: nothing yet")
    problem = objects.unsafe(path)
    if problem is not None:
        return Finding("compiled code", str(problem), is_wrong=True)
    files = [file for file in path.iterdir() if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return Finding("compiled code", f"{path}: {len(files)} files, {size / 2**20:.1f} MiB")


def engines() -> Iterator[Finding]:
    """A small gradient on each, and the time of its first call."""
    for engine in ENGINES:
        if engine == "auto":
            continue
        begun = time.perf_counter()
        try:
            found = float(cg.function(cg.grad(_root), engine=engine)(4.0))
        except CtrlgradError as error:
            package = OPTIONAL.get(engine)
            yield Finding(engine, str(error.args[0]), is_wrong=package is None or _is_installed(package))
            continue
        seconds = time.perf_counter() - begun
        if abs(found - 0.25) < 1e-9:
            yield Finding(engine, f"works (first call {seconds:.2f} s)")
        else:
            yield Finding(engine, f"a wrong gradient: {found!r} for 0.25", is_wrong=True)


def _root(a: Any) -> Any:
    return cg.while_loop(lambda x: abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), a)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


__all__ = ["examine_and_report"]
