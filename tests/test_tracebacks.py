"""An error that nothing catches shows the user's frames alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np
import ctrlgrad as cg, ctrlgrad.numpy as cnp

def body(x):
    return cnp.sin(x) + WRONG

def loss(x):
    return cg.while_loop(lambda x: x.sum() < 1.0, body, x).sum()

cg.grad(loss)(np.ones(3))
"""
LIBRARY_MISTAKE = "cnp.ones(4)"
USERS_MISTAKE = "{}['missing']"


def shown(tmp_path: Path, wrong: str, **environment: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("WRONG", wrong))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )
    assert done.returncode == 1
    return done.stderr


def files(text: str) -> list[str]:
    return [line.split('"')[1] for line in text.splitlines() if line.startswith('  File "')]


@pytest.mark.parametrize("wrong", [LIBRARY_MISTAKE, USERS_MISTAKE])
def test_a_traceback_has_the_users_frames_alone(tmp_path: Path, wrong: str) -> None:
    text = shown(tmp_path, wrong)
    assert len(files(text)) >= 3 and {Path(file).name for file in files(text)} == {"program.py"}
    assert "in body" in text


def test_a_cause_within_the_library_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    code = "    match x:\n        case [y]:\n            return y\n    return x\n"
    path.write_text("import ctrlgrad as cg\n@cg.function(autograph=True)\ndef f(x):\n" + code)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert "autograph cannot convert f" in done.stderr
    assert {Path(file).name for file in files(done.stderr)} == {"program.py"} and "Unconvertible" not in done.stderr


def test_the_environment_asks_for_all_frames(tmp_path: Path) -> None:
    text = shown(tmp_path, LIBRARY_MISTAKE, CTRLGRAD_TRACEBACK="full")
    assert any("ctrlgrad" in Path(file).parts for file in files(text))


def test_a_defect_of_the_library_keeps_its_frames(tmp_path: Path) -> None:
    code = "import ctrlgrad.numpy as cnp, ctrlgrad.frontend.array.creation as c\nc.np = None\ncnp.zeros(3)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert any(Path(file).name == "creation.py" for file in files(done.stderr))


def test_another_hook_stays(tmp_path: Path) -> None:
    code = "import sys\nhook = sys.excepthook = lambda *e: None\nimport ctrlgrad\nassert sys.excepthook is hook"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
