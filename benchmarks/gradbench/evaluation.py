"""Functions of a GradBench module, from decoded JSON to JSON, compiled and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad as cg

Input = Mapping[str, Any]
Timing = dict[str, Any]


def identity(x: Any) -> Any:
    return x


def as_list(array: Any) -> Any:
    """An array as JSON has it."""
    return array.tolist()


def flat(answer: Any) -> np.ndarray:
    """The numbers of an answer as JSON has it, one after another, those of an object by its sorted names."""
    parts = [answer[name] for name in sorted(answer)] if isinstance(answer, Mapping) else [answer]
    return np.concatenate([np.ravel(np.array(part, np.float64)) for part in parts])


@dataclass(frozen=True)
class Evaluation:
    """One function of a module.

    Only `compute` is timed. It takes what `prepare` makes of the input, and `finish` makes JSON of what it returns.
    Of that, `numbers` makes all the numbers that were computed, those too that the answer leaves out as repeated.
    """

    compute: Callable[..., Any]
    prepare: Callable[[Any], tuple[Any, ...]]
    finish: Callable[[Any], Any] = as_list
    numbers: Callable[[Any], np.ndarray] = flat


@dataclass(frozen=True)
class Module:
    """The functions of a GradBench module by their names, and a small input that they can be compiled with."""

    functions: Mapping[str, Evaluation]
    example: Any


def compile_module(module: Module) -> list[Timing]:
    """Run every function on the module's example: what they need is then compiled."""
    timings = []
    for name, function in module.functions.items():
        given = function.prepare(module.example)
        start = time.perf_counter_ns()
        function.compute(*given)
        timings.append({"name": f"compile {name}", "nanoseconds": time.perf_counter_ns() - start})
    return timings


def evaluate(function: Evaluation, given: Any) -> dict[str, Any]:
    """The output for an input, and the timings that the protocol asks for.

    A first run, on its own under "warmup", compiles what these sizes need beyond what the example did.
    """
    is_repeated = isinstance(given, Mapping) and "min_runs" in given
    arguments = function.prepare(given)
    timings: list[Timing] = []
    if is_repeated:
        _timed("warmup", function, arguments, timings)
    least, seconds = (given["min_runs"], given["min_seconds"]) if is_repeated else (1, 0.0)
    elapsed = runs = 0
    while runs < least or elapsed < seconds * 1e9:
        result = _timed("evaluate", function, arguments, timings)
        elapsed, runs = elapsed + timings[-1]["nanoseconds"], runs + 1
    return {"output": function.finish(result), "timings": timings}


def _timed(name: str, function: Evaluation, arguments: tuple[Any, ...], timings: list[Timing]) -> Any:
    start = time.perf_counter_ns()
    result = function.compute(*arguments)
    timings.append({"name": name, "nanoseconds": time.perf_counter_ns() - start})
    return result


def compiled(function: Callable[..., Any], *given: int | str | tuple[int, ...]) -> Any:
    """A `cg.function` of float64 arrays, each given by its rank, where it may have any sizes, or by its shape; "n" is
    an integer."""
    return cg.function(function, signature=[_spec(one) for one in given])


def _spec(given: int | str | tuple[int, ...]) -> Any:
    if isinstance(given, tuple):
        return cg.TensorSpec(given)
    if isinstance(given, int):
        return cg.TensorSpec((None,) * given)
    # "n" is one integer, "nn" a vector of them, and so on.
    return cg.TensorSpec((None,) * (len(given) - 1), "int64")
