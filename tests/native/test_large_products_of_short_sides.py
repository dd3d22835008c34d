"""Large products with a side shorter than the number of their parts, which once divided by zero.

Each number of threads and each vector width runs in a process of its own; an end by a signal fails the test.
"""

from __future__ import annotations

import os
import subprocess
import sys

from instruments.machines import THREADS, VECTOR_BITS
from instruments.tables import in_turn

SCRIPT = """
import numpy as np
import ctrlgrad as cg

rng = np.random.default_rng(0)
for dtype in (np.float64, np.float32):
    tolerance = 1e-9 if dtype == np.float64 else 1e-3

    def same(name, fn, *shapes):
        given = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
        found = np.asarray(cg.function(fn, engine="native")(*given))
        expected = np.asarray(fn(*[x.astype(np.float64) for x in given]))
        wrong = np.abs(found - expected).max() / max(np.abs(expected).max(), 1)
        assert wrong < tolerance, (name, shapes, dtype, wrong)

    same("4 rows by 4 columns", lambda x, y: x @ y, (4, 100_000), (100_000, 4))
    for n in (524_287, 524_288, 524_289, 2_000_000):
        same("dot", lambda x: x @ x, n)
        same("vdot", lambda x: np.vdot(x, x), n)
    same("einsum to a number", lambda x, y: np.einsum("ij,ij->", x, y), (800, 700), (800, 700))
    same("cov", lambda x: np.cov(x), (3, 200_000))
    same("normal equations", lambda a, b: np.linalg.solve(a.T @ a, a.T @ b), (200_000, 3), (200_000,))
    # Sides about the number of parts: at most four of a thread.
    for side in (1, 3, 4, 5, 8, 12, 28, 63, 64, 65, 255, 256, 257):
        k = (1 << 21) // side
        same("short columns", lambda x, y: x @ y, (side, k), (k, 1))
        same("short rows", lambda x, y: x @ y, (1, k), (k, side))
        if side < 64:
            same("both short", lambda x, y: x.T @ y, (k // side, side), (k // side, side))
    w, x, y = (rng.standard_normal(s).astype(dtype) for s in ((64, 10), (4096, 64), (4096, 10)))
    gradient = cg.function(cg.grad(lambda w: ((x @ w - y) ** 2).sum()), engine="native")(w)
    expected = 2 * x.astype(np.float64).T @ (x.astype(np.float64) @ w - y)
    assert np.abs(gradient - expected).max() / np.abs(expected).max() < tolerance
print("done")
"""


@in_turn("threads, bits", THREADS, VECTOR_BITS)
def test_sides_shorter_than_the_number_of_parts(threads: int, bits: int) -> None:
    variables = {**os.environ, "CTRLGRAD_THREADS": str(threads), "CTRLGRAD_VECTOR_BITS": str(bits)}
    command = [sys.executable, "-c", SCRIPT]
    found = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
