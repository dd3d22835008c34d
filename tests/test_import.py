"""`import ctrlgrad` loads little."""

from __future__ import annotations

import subprocess
import sys

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
        "names = 'from_jax to_jax to_torch from_onnx'.split()\n"
        "for name in names: importlib.import_module(f'ctrlgrad.interop.{name}')\n"
        "print(all(callable(getattr(space, name)) for space in (cg, cg.interop) for name in names))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "True", found.stderr
