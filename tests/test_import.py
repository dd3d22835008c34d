"""`import ctrlgrad` loads little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("llvmlite", "cupy", "jax", "matplotlib", "hypothesis", "torch", "tensorflow")

SCRIPT = f"""
import sys, time
start = time.perf_counter()
import ctrlgrad
seconds = time.perf_counter() - start
print(f"import ctrlgrad: {{seconds:.3f}} s", file=sys.stderr)
print(",".join(name for name in {HEAVY!r} if name in sys.modules))
"""


def test_import_loads_no_heavy_package(tmp_path) -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    print(result.stderr.strip())
    assert result.stdout.strip() == ""


def test_a_function_is_found_under_its_name_whoever_has_imported_its_module() -> None:
    script = (
        "import importlib, ctrlgrad as cg, ctrlgrad.interop\n"
        "names = 'from_jax to_jax to_torch from_onnx from_torch'.split()\n"
        "for name in names: importlib.import_module(f'ctrlgrad.interop.{name}')\n"
        "print(all(callable(getattr(space, name)) for space in (cg, cg.interop) for name in names))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "True", found.stderr


FIRST_CALL = """
import sys
import numpy as np
import ctrlgrad as cg
import ctrlgrad.numpy as cnp

def log_sum_exp(x):
    largest = cnp.max(x)
    return cnp.log(cnp.sum(cnp.exp(x - largest))) + largest

def root(x):
    return cnp.sum(cg.fori_loop(0, 9, lambda i, y: 0.5 * (y + x / y), x))

before = set(sys.modules)
cg.function({function}, engine="native")(np.linspace(1.0, 2.0, 100))
print(sorted(set(sys.modules) - before))
rare = "products factor_calls product_calls sessions failures short_rows".split()
print([name for name in rare if "ctrlgrad.engines.native." + name in sys.modules])
"""


@pytest.mark.parametrize("function", ["log_sum_exp", "cg.grad(root)"])
def test_a_first_call_loads_what_it_needs(function: str, tmp_path: Path) -> None:
    """Of llvmlite the library alone, not what writes LLVM's text; of the engine nothing, which is there, and nothing of
    what writes other programs."""
    environment = {**os.environ, "CTRLGRAD_CACHE_DIR": str(tmp_path), "CTRLGRAD_QUICK_CODE": "1"}
    environment.pop("CTRLGRAD_CHECK_PLANS", None)
    script = FIRST_CALL.format(function=function)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr
    loaded, rare = found.stdout.splitlines()
    assert loaded == "['llvmlite', 'llvmlite._version', 'llvmlite.utils']"
    assert rare == "[]"


# Run twice with one cache: what each process loads of the native engine besides what an import does.
FROM_CACHE = """
import sys
from pathlib import Path

import pytest
import numpy as np
import ctrlgrad as cg

def plain(x):
    return cg.while_loop(lambda x: x < 100.0, lambda x: x * x, x)

def elementary(x):
    return cg.numpy.exp(x) @ x if {product} else cg.numpy.exp(x)

print(cg.function({name}, engine="native")(np.full({shape}, 1.5)).shape)
parts = "products.library products.pool factor_calls sessions".split()
print([part for part in parts if "ctrlgrad.engines.native." + part in sys.modules])
"""


@pytest.mark.parametrize(
    ("name", "product", "shape", "loaded"),
    [
        ("plain", False, (), []),
        ("elementary", False, (64,), []),
        ("elementary", True, (8, 8), ["products.library", "products.pool"]),
    ],
    ids=["nothing", "an elementary function", "a product"],
)
def test_a_plan_from_the_cache_loads_what_its_code_calls(
    name: str, product: bool, shape: tuple[int, ...], loaded: list[str], tmp_path: Path
) -> None:
    script = FROM_CACHE.format(name=name, product=product, shape=shape)
    environment = {**os.environ, "CTRLGRAD_CACHE_DIR": str(tmp_path / "cache"), "CTRLGRAD_QUICK_CODE": "1"}
    environment.pop("CTRLGRAD_CHECK_PLANS", None)
    for _ in range(2):
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[1] == repr(loaded)
