"""The site: `sphinx-build -W -b html docs build/site`, with the extra `docs` installed.

The notebooks are shown with the outputs that are committed; `tests/test_notebooks.py` executes them and compares.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import ctrlgrad

HERE = Path(__file__).resolve().parent

project = "ctrlgrad"
author = "The ctrlgrad developers"
project_copyright = "The ctrlgrad developers"
release = version = ctrlgrad.__version__

extensions = ["myst_nb"]
exclude_patterns = ["*.py"]
# A reference to nothing is a warning, and with -W an error.
nitpicky = True
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "ctrlgrad"
html_static_path = ["pictures"]
html_show_sourcelink = False


def bring_notebooks() -> None:
    """Sphinx reads pages from its own folder alone: a copy of the notebooks lies there while it does."""
    copies = HERE / "notebooks"
    shutil.rmtree(copies, ignore_errors=True)
    shutil.copytree(HERE.parent / "notebooks", copies, ignore=shutil.ignore_patterns("*.py", "__pycache__"))


bring_notebooks()
