"""`ctrlgrad demo`: every recipe runs, shows what it claims, and draws it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ctrlgrad.demos import catalogue, decoding, rollouts

ROOT = Path(__file__).resolve().parents[2]


def numbers(line: str) -> list[float]:
    """All numbers in a line, as they stand there."""
    return [float(x) for x in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?", line)]


def learns_and_reads_no_padding(lines):
    (first, last, _), (with_gradient, before_end) = map(numbers, lines[1:])
    assert last < 0.1 * first
    assert with_gradient == before_end > 0


def finds_both_gradients(lines):
    assert all(numbers(line)[0] < 1e-9 for line in lines[1:])


def predicts_the_difference(lines):
    (*_, difference), (*_, predicted) = numbers(lines[1]), numbers(lines[2])
    assert abs(difference) > 0.004
    assert abs(predicted - difference) < 0.0003


def counts(lines):
    _, right, total = numbers(lines[1])
    assert right == total == 10


def learns_to_stand(lines):
    first, last, _ = numbers(lines[1])
    assert last > 4 * first


def adds_up_to_one(lines):
    assert numbers(lines[1])[-1] < 1e-12


def slides_as_far_as_the_formula(lines):
    slope, formula = numbers(lines[1])[0], numbers(lines[2])[0]
    assert abs(slope / formula - 1) < 0.01


CLAIMS = {
    "variable_length": learns_and_reads_no_padding,
    "implicit_layers": finds_both_gradients,
    "adaptive_solvers": predicts_the_difference,
    "decoding": counts,
    "rollouts": learns_to_stand,
    "alignments": adds_up_to_one,
    "contacts": slides_as_far_as_the_formula,
}


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_a_demo_shows_what_it_claims_and_draws_it(command, tmp_path, name):
    picture = tmp_path / "picture.png"
    done = command("demo", name, "--out", picture)
    assert done.exit_code == 0, done.output
    *lines, last = done.stdout.splitlines()
    assert last == f"the picture is {picture}"
    CLAIMS[name](lines)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_lies_where_the_command_runs(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("demo", "alignments").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["alignments.png"]


def test_without_a_name_the_demos_are_listed(command):
    listed = command("demo").stdout
    assert [line.split()[0] for line in listed.splitlines() if not line.startswith("  ")] == list(catalogue.NAMES)


def test_an_unknown_name_is_an_error_that_lists_the_demos(command):
    done = command("demo", "contact")
    assert done.exit_code == 2
    assert "there is no such demo" in done.stderr and "'rollouts' or 'alignments' or 'contacts'" in done.stderr


def test_a_missing_matplotlib_is_told(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = command("demo", "alignments", "--out", tmp_path / "picture.png")
    assert done.exit_code == 2
    assert "probabilities of a time" in done.stdout  # what it found is shown all the same
    assert "pip install -e '.[plot]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_told(command, tmp_path):
    done = command("demo", "alignments", "--out", tmp_path / "nowhere" / "picture.png")
    assert done.exit_code == 2
    assert "the picture cannot be written" in done.stderr


def test_each_recipe_is_a_demo_and_shows_its_source():
    pages = {path.stem: path.read_text() for path in (ROOT / "docs/recipes").glob("*.md") if path.stem != "index"}
    for name in ("optax", "saving"):  # recipes of other libraries
        pages.pop(name)
    assert set(pages) == set(catalogue.NAMES)
    for name, page in pages.items():
        source = (ROOT / f"ctrlgrad/demos/{name}.py").read_text()
        assert f"`ctrlgrad demo {name}`" in page
        shown = page.split(f"```{{literalinclude}} ../../ctrlgrad/demos/{name}.py\n")[1:]
        assert shown
        for options in shown:
            # Where Sphinx finds no such line it shows nothing.
            for marker in re.findall(r'^:(?:start-at|end-before): "?(.*?)"?$', options.split("```")[0], re.MULTILINE):
                assert source.count(marker) == 1, (name, marker)


def test_a_demo_that_learns_begins_where_it_is_bad():
    """The claims above are of what was learned: without it they do not hold."""
    with pytest.raises(AssertionError):
        counts(decoding.show(updates=1).lines)
    with pytest.raises(AssertionError):
        learns_to_stand(rollouts.show(updates=1).lines)
