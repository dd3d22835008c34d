"""The shipped package: its names, its metadata, and the recipe for conda-forge."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from types import ModuleType

import ctrlgrad

ROOT = Path(__file__).resolve().parent.parent
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
RECIPE = (ROOT / "packaging" / "recipe.yaml").read_text()


def test_dir_shows_public_names_alone() -> None:
    assert dir(ctrlgrad) == sorted([*ctrlgrad.__all__, "__version__"])
    modules = [getattr(ctrlgrad, name) for name in ctrlgrad.__all__]
    public = [module for module in modules if isinstance(module, ModuleType)]
    inside = [ctrlgrad.numpy.fft, ctrlgrad.numpy.linalg, ctrlgrad.scipy.linalg, ctrlgrad.scipy.special]
    for module in [ctrlgrad, *public, *inside]:
        assert all(hasattr(module, name) for name in dir(module))
        if module is not ctrlgrad:
            assert dir(module) == sorted(module.__all__), module.__name__


def test_the_version_is_said_once_and_the_same() -> None:
    said = re.search(r'^  version: "(.+)"$', RECIPE, re.MULTILINE)
    assert said is not None
    assert ctrlgrad.__version__ == SETUP["metadata"]["version"] == said[1]


def test_the_recipe_requires_what_the_package_does() -> None:
    run = RECIPE.split("  run:\n")[1].split("\n\n")[0]
    required = [line.strip().removeprefix("- ").replace(" ", "") for line in run.splitlines()]
    assert required[0] == "python>=${{python_min}}"
    assert sorted(required[1:]) == sorted(SETUP["options"]["install_requires"].split())


def test_the_source_distribution_takes_every_folder() -> None:
    """Folders outside the package must be named in MANIFEST.in, except `build` and hidden ones."""
    named = set(re.findall(r"^graft (\S+)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE))
    ours = {path.parent.name for path in ROOT.glob("*/*") if path.suffix in {".py", ".md", ".ipynb", ".yaml"}}
    packaged = {"ctrlgrad", "gradients", "stacks", "memory"}
    assert {name for name in ours - packaged - {"build", "runs"} if not name.startswith(".")} <= named
    assert all((ROOT / name).is_dir() for name in named)
