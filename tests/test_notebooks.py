"""The notebooks run from top to bottom, and show what they showed when they were committed.

`pytest tests/test_notebooks.py --update-golden` writes the fresh outputs into the notebooks.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PAGE = FOLDER.parent / "docs" / "notebooks.md"
# Notebooks about another library need it.
ABOUT = {"08_mujoco_mjx": "mujoco.mjx"}


# A notebook runs as in a fresh kernel: no names, and the first cell is number 1.
ANEW = "get_ipython().reset()"


@pytest.fixture(scope="module")
def kernel() -> Iterator[NotebookClient]:
    """One for all notebooks: to start it and to import what they import takes longer than most of them do."""
    new = nbformat.v4.new_notebook()
    with warnings.catch_warnings():
        # Warnings of the Jupyter packages at the start of a kernel do not concern the notebooks.
        warnings.simplefilter("ignore")
        client = NotebookClient(new, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
        with client.setup_kernel():
            yield client


def execute(path: Path, kernel: NotebookClient) -> Any:
    """The notebook with fresh outputs; a cell that raises is an error."""
    kernel.nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ANEW)])
    kernel.execute_cell(kernel.nb.cells[0], 0)
    notebook = kernel.nb = nbformat.read(path, as_version=4)
    kernel.reset_execution_trackers()
    for number, cell in enumerate(notebook.cells):
        kernel.execute_cell(cell, number)
        cell.metadata.pop("execution", None)  # times
    return notebook


def printed(notebook: Any) -> list[str]:
    """The printed text of each code cell."""
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def graphs(notebook: Any) -> list[str]:
    """The printed graphs: in each cell's text from `graph` to the closing brace."""
    found = []
    for text in printed(notebook):
        lines = text.splitlines()
        if "}" in lines and any(line.startswith("graph ") for line in lines):
            first = next(i for i, line in enumerate(lines) if line.startswith("graph "))
            found.append("\n".join(lines[first : lines.index("}") + 1]))
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, kernel: NotebookClient, update_golden: bool) -> None:
    if path.stem in ABOUT:
        pytest.importorskip(ABOUT[path.stem], reason="the library that it is about is not installed")
    committed = nbformat.read(path, as_version=4)
    fresh = execute(path, kernel)
    errors = [output for cell in fresh.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert errors == []
    if update_golden:
        nbformat.write(fresh, path)
        return
    assert all(cell.execution_count for cell in committed.cells if cell.cell_type == "code"), "not executed"
    assert graphs(fresh) == graphs(committed)
    pictures = [output.data.keys() for c in fresh.cells for output in c.get("outputs", []) if "data" in output]
    assert any("image/png" in kinds for kinds in pictures)


def test_there_are_notebooks_and_graphs_in_them() -> None:
    assert NOTEBOOKS
    first = nbformat.read(NOTEBOOKS[0], as_version=4)
    assert [text.split("(")[0] for text in graphs(first)] == [
        "graph grow",
        "graph grow_forward",
        "graph grow_backward",
        "graph grad_grow",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_say_nothing_of_the_machine(path: Path) -> None:
    """No folders of the machine that executed it, no temporary files, no warnings."""
    committed = nbformat.read(path, as_version=4)
    outputs = [output for cell in committed.cells for output in cell.get("outputs", [])]
    texts = [str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", "")) for output in outputs]
    assert [text for text in texts if re.search(r"/(tmp|home|root|work|usr|Users)/|ipykernel_", text)] == []
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


def test_the_site_lists_every_notebook() -> None:
    listed = re.findall(r"\(notebooks/(\w+\.ipynb)\)", PAGE.read_text())
    assert sorted(listed) == [path.name for path in NOTEBOOKS]


def test_the_kernel_is_this_python() -> None:
    """Else the notebooks would be executed with another installation than the one under test."""
    manager = NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3").create_kernel_manager()
    assert manager.kernel_spec is not None and manager.format_kernel_cmd()[0] == sys.executable


def test_a_notebook_starts_anew(kernel: NotebookClient, tmp_path: Path) -> None:
    """A notebook finds no name of the notebook before it, and counts its cells from 1."""
    path = tmp_path / "first.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("left = 1")]), path)
    assert execute(path, kernel).cells[0].execution_count == 1
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("left")]), path)
    with pytest.raises(CellExecutionError, match="name 'left' is not defined"):
        execute(path, kernel)
