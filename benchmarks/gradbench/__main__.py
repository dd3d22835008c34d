"""The tool's end of GradBench's protocol: one JSON object a line, answered by one line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import ctrlgrad
from benchmarks.gradbench.evaluation import Module, compile_module, evaluate
from benchmarks.worker import bind, own_channel

MODULES = ("ba", "det", "gmm", "hello", "ht", "kmeans", "llsq", "lse", "lstm", "ode", "particle", "saddle")


class Tool:
    """The modules that were defined, and the answers to messages."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] = {}

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        response: dict[str, Any] = {"id": message["id"]}
        if message["kind"] == "start":
            response |= {"tool": "ctrlgrad", "config": {"version": ctrlgrad.__version__, "cores": _cores()}}
        elif message["kind"] in ("define", "evaluate"):
            try:
                response |= {"success": True} | getattr(self, message["kind"])(message)
            except Exception:
                response |= {"success": False, "error": traceback.format_exc()}
        return response

    def define(self, message: Mapping[str, Any]) -> dict[str, Any]:
        name = message["module"]
        if name not in MODULES:
            raise LookupError(f"there is no module {name!r}; there are {', '.join(MODULES)}")
        self.modules[name] = module_of(name)
        return {"timings": compile_module(self.modules[name])}

    def evaluate(self, message: Mapping[str, Any]) -> dict[str, Any]:
        functions = self.modules[message["module"]].functions
        return evaluate(functions[message["function"]], message["input"])


def module_of(name: str) -> Module:
    """The module of a name in `MODULES`."""
    found: Module = import_module(f"benchmarks.gradbench.{name}").MODULE
    return found


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradbench", description=__doc__)
    parser.add_argument("--multithreaded", action="store_true", help="use all cores; without it one core")
    if not parser.parse_args().multithreaded:
        bind(1)
    channel, tool = own_channel(), Tool()
    for line in sys.stdin:
        channel.write(json.dumps(tool.answer(json.loads(line))) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
