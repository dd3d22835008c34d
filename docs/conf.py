"""The site: `sphinx-build -W -b html docs build/site`, with the extra `docs` installed.

The notebooks are shown with the outputs that are committed; `tests/test_notebooks.py` executes them and compares.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

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
# The theme shows it at the top of each page.
html_title = f"ctrlgrad {release}"
html_static_path = ["pictures"]
html_show_sourcelink = False


def shorten_listings(app: Sphinx, doctree: nodes.document) -> None:
    """Show the programs of recipes without annotations of `Any` and without imports for the command line."""
    if not app.env.docname.startswith("recipes/"):
        return
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "python":
            text = re.sub(r": Any\b|\s*-> Any\b", "", block.astext())
            text = re.sub(r"^from (__future__|typing|ctrlgrad\.demos)\b.*\n", "", text, flags=re.MULTILINE)
            text = re.sub(r"\n{4,}", "\n\n\n", text).strip("\n")
            block.children.clear()
            block += nodes.Text(text)
            block.rawsource = text


def setup(app: Sphinx) -> None:
    """Register the functions that change pages."""
    app.connect("doctree-read", shorten_listings)


def bring_notebooks() -> None:
    """Sphinx reads pages from its own folder alone: a copy of the notebooks lies there while it does."""
    copies = HERE / "notebooks"
    shutil.rmtree(copies, ignore_errors=True)
    shutil.copytree(HERE.parent / "notebooks", copies, ignore=shutil.ignore_patterns("*.py", "__pycache__"))


bring_notebooks()
