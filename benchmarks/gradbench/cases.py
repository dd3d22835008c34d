"""GradBench's modules as cases of the comparison; for each the function and its derivative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.case import Case, Entry, Goal

# The functions that JAX has too.
FUNCTIONS = {
    "ode": ("primal", "gradient"),
    "llsq": ("primal", "gradient"),
    "lse": ("primal", "gradient"),
    "det": ("primal", "gradient"),
    "lstm": ("objective", "jacobian"),
    "gmm": ("objective", "jacobian"),
    "kmeans": ("cost", "dir"),
    "ba": ("objective", "jacobian"),
    "ht": ("objective", "jacobian"),
    "particle": ("ff", "fr", "rf", "rr"),
    "saddle": ("ff", "fr", "rf", "rr"),
}
# Loops of unknown length are reversed by ctrlgrad alone.
ALONE = {(module, mode) for module in ("particle", "saddle") for mode in ("rf", "rr")}
# Where ctrlgrad is meant to be ahead; elsewhere it is meant to take no more than 1.5 times as long as a peer.
AHEAD = ("lstm", "ode", "particle", "saddle")


def gradbench_cases(engine: str, tiny: bool, tools: Mapping[str, str]) -> Iterator[Case]:
    """The modules run on the native engine alone. `tools`: the commands of other tools for GradBench, by names."""
    if engine != "native":
        return
    for module, functions in FUNCTIONS.items():
        for function in functions:
            arguments: dict[str, Any] = {"module": module, "function": function, "tiny": tiny}
            program = "benchmarks.gradbench.with_{}:evaluation"
            entries = [Entry("ctrlgrad", "ctrlgrad", program.format("ctrlgrad"), arguments)]
            goal = Goal("ratio", "at least", 1.0 if module in AHEAD else 1 / 1.5)
            if (module, function) not in ALONE:
                entries.append(Entry("jax", "jax", program.format("jax"), arguments, goal=goal))
            for name, command in tools.items():
                entries.append(Entry(name, "tool", program.format("tool"), arguments | {"command": command}, goal=goal))
            title = f"GradBench, module {module}: {function}"
            yield Case(f"gradbench-{module}-{function}", title, "call", tuple(entries), tolerance=1e-8)
