"""Another tool for GradBench as a program of a comparison: a process that is sent messages, and times its own runs."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gradbench.__main__ import module_of
from benchmarks.gradbench.inputs import example
from benchmarks.process import Failure
from benchmarks.program import Program


class Tool:
    """The eval's end of the protocol: one JSON object a line to the tool, answered by one line.

    The tool's process ends with the one that started it.
    """

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._sent = 0
        self.ask("start", eval="comparison")

    def ask(self, kind: str, **message: Any) -> dict[str, Any]:
        """The answer to a message.

        Raises:
            Failure: The tool ended, or answered another message.
        """
        number, self._sent = self._sent, self._sent + 1
        line = self._exchange(json.dumps({"id": number, "kind": kind, **message}))
        if not line:
            raise Failure("failed", f"{kind}: the tool ended, code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("id") != number:
            raise Failure("failed", f"{kind}: message {number} was answered by {line[:200]!r}")
        return answer

    def _exchange(self, line: str) -> str:
        """Send a line to the tool and return its answer; an empty text if the tool has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._process.stdout.readline()


@dataclass
class TimedRuns:
    """Runs of one function of a module on one input, timed by the tool.

    A tool may start anew for each message. So that only the first run of all finds nothing prepared, as in the other
    systems, a later message asks for a run more than those that count, and its first one does not.
    """

    tool: Tool
    # The module and the function.
    names: Mapping[str, str]
    given: Mapping[str, Any]
    uncounted: int = 0

    def __call__(self, times: int) -> tuple[Any, list[float]]:
        """The answer, and the seconds of each of so many runs."""
        asked = times + self.uncounted
        answer = self.tool.ask("evaluate", **self.names, input={**self.given, "min_runs": asked, "min_seconds": 0})
        if not answer["success"]:
            said = str(answer.get("error", ""))
            last_line = said.strip().rpartition("\n")[2]
            raise Failure("failed", f"evaluate: {last_line}", said)
        seconds = [t["nanoseconds"] / 1e9 for t in answer["timings"] if t["name"] == "evaluate"]
        if len(seconds) < asked:
            raise Failure("failed", f"evaluate: the tool was asked for {asked} runs, and timed {len(seconds)}")
        counted = seconds[self.uncounted :]
        self.uncounted = 1
        return answer["output"], counted


def evaluation(command: str, module: str, function: str, tiny: bool = False) -> Program:
    """One function of a module, by the tool that a command starts."""
    tool = Tool(command)
    defined = tool.ask("define", module=module)
    if not defined["success"]:
        raise Failure("not offered", f"the tool does not define {module}", str(defined.get("error", "")))
    runs = TimedRuns(tool, {"module": module, "function": function}, example(module, tiny))
    numbers = module_of(module).functions[function].numbers
    return Program(lambda: runs(1)[0], lambda answer: {"numbers": numbers(answer)}, timed_runs=runs)
