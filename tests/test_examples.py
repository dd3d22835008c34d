"""The programs in `examples/` run by the command that they name, and find their own results right."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# One thread: the arrays are small, and other tests run beside.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def run(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(path)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    done = run(path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_docstring_names_the_command(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert docstring.endswith(f"python examples/{path.name}")


def test_an_example_can_fail(tmp_path: Path) -> None:
    """An example sees a derivative that is wrong by a hundredth where every value is right."""
    example = str(ROOT / "examples" / "ctc_loss.py")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import runpy\n"
        "import ctrlgrad as cg, ctrlgrad.numpy as cnp\n"
        "right = cnp.log_softmax\n"
        "cnp.log_softmax = lambda x, axis: right(x, axis=axis) + 0.01 * (x - cg.stop_gradient(x))\n"
        f"runpy.run_path({example!r}, run_name='__main__')\n"
    )
    done = run(wrong)
    assert done.returncode == 1
    assert done.stderr == "the loop disagrees with the sum over alignments\n"


def test_the_site_lists_every_example() -> None:
    listed = re.findall(r"examples/(\w+\.py)\)", (ROOT / "docs" / "examples.md").read_text())
    assert sorted(set(listed)) == [path.name for path in EXAMPLES]
