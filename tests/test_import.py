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
