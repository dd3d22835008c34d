"""The site's pages and the README: what they show is what happens.

`pytest tests/test_pages.py --update-golden` writes what the examples print into the pages; read the difference.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import jax
import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# The pages of `reference` are made from docstrings, whose examples run where they stand; of notebooks there is a copy.
MADE = {"reference", "notebooks"}
PAGES = [ROOT / "README.md"] + sorted(p for p in DOCS.rglob("*.md") if p.parent.name not in MADE)
FENCE = re.compile(r"^ *```.*$", re.MULTILINE)
# The site's text column holds so many characters of code.
WIDEST = 88
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def identified(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


class Runner(doctest.DocTestRunner):
    """Runs the examples and keeps what those print that should print something else."""

    def __init__(self) -> None:
        super().__init__(optionflags=OPTIONS)
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


def examples(path: Path) -> doctest.DocTest:
    """The examples of a page: a fence around them is no part of what they print."""
    text = FENCE.sub("", path.read_text())
    return doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, path.stem, str(path), 0)


@pytest.mark.parametrize("path", [p for p in PAGES if ">>> " in p.read_text()], ids=identified)
def test_a_page_prints_what_it_says(path: Path, update_golden: bool) -> None:
    for needed in ("torch", "optax"):
        if re.search(rf"import .*\b{needed}\b|from {needed} import", path.read_text()):
            pytest.importorskip(needed)
    runner = Runner()
    # Whatever a test before this one has said to JAX. A page may say otherwise, which a context would hide.
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        outcome = runner.run(examples(path))
    finally:
        jax.config.update("jax_enable_x64", before)
    if update_golden:
        assert outcome.failed == len(runner.printed), "an example raises"
        path.write_text(updated(path.read_text(), runner.printed))
    else:
        assert outcome.attempted > 0 and outcome.failed == 0


@pytest.mark.parametrize("path", PAGES, ids=identified)
def test_python_on_a_page_is_run(path: Path) -> None:
    """A block of Python must be a session: other blocks are not run."""
    blocks = re.findall(r"^```(?:python|pycon|py)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    assert [block for block in blocks if ">>> " not in block] == []


@pytest.mark.parametrize("path", [p for p in PAGES if "\n|" in p.read_text()], ids=identified)
def test_the_rows_of_a_table_have_as_many_cells_as_its_head(path: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE)
    for table in tables:
        cells = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert set(cells) == {cells[0]}, table


@pytest.mark.parametrize("path", PAGES, ids=identified)
def test_code_fits_into_the_text_column(path: Path) -> None:
    # CI reads the README's test command as one line.
    text = re.sub(r"<!-- test command -->\n```sh\n.*\n", "```sh\n", path.read_text())
    blocks = re.findall(r"^ *```.*?\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    assert [line for block in blocks for line in block.splitlines() if len(line) > WIDEST] == []


@pytest.mark.parametrize("path", [p for p in PAGES if "{literalinclude}" in p.read_text()], ids=identified)
def test_listings_are_cut_where_the_page_says(path: Path) -> None:
    for name, options in re.findall(r"{literalinclude} (\S+)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        listing = (path.parent / name).read_text()
        cuts = re.findall(r"^:(?:start-at|end-before): \"?(.*?)\"?$", options, re.MULTILINE)
        assert [cut for cut in cuts if cut not in listing] == []


def test_ci_finds_the_test_command() -> None:
    after = (ROOT / "README.md").read_text().split("<!-- test command -->\n```sh\n")
    assert len(after) == 2
    command, fence = after[1].splitlines()[:2]
    assert "pytest" in command and fence == "```"
