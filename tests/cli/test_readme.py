"""What the README shows is what happens. `pytest tests/cli/test_readme.py --update-golden` writes it anew."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"


class Runner(doctest.DocTestRunner):
    """Runs the examples and keeps what those print that should print something else."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: dict[doctest.Example, str] = {}

    def report_failure(self, out: Any, test: doctest.DocTest, example: doctest.Example, got: str) -> None:
        self.printed[example] = got
        super().report_failure(out, test, example, got)


def updated(text: str, printed: dict[doctest.Example, str]) -> str:
    lines = text.splitlines(keepends=True)
    for example, got in sorted(printed.items(), key=lambda item: -item[0].lineno):
        first = example.lineno + example.source.count("\n")
        lines[first : first + example.want.count("\n")] = [got]
    return "".join(lines)


def test_the_tour_prints_what_the_readme_says(update_golden: bool):
    text = README.read_text()
    runner = Runner()
    outcome = runner.run(doctest.DocTestParser().get_doctest(text, {}, "README", str(README), 0))
    if update_golden:
        README.write_text(updated(text, runner.printed))
    else:
        assert outcome.attempted >= 6 and outcome.failed == 0


def test_ci_finds_the_test_command():
    text = README.read_text()
    after = text.split("<!-- test command -->\n```sh\n")
    assert len(after) == 2
    command, fence = after[1].splitlines()[:2]
    assert "pytest" in command and fence == "```"
