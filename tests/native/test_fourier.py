"""Real Fourier transforms agree with NumPy at every size, thread count and norm, and their derivatives are exact."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference.linalg_kernels import LEAST_ELEMENTS

SIZES = (1, 2, 3, 4, 7, 8)


def filtered(lib: Any, n: int, norm: str) -> Any:
    """A function of real numbers and of a half spectrum that uses every real transform."""

    def f(x: Any, z: Any) -> Any:
        spectrum = lib.fft.rfft(x, n, norm=norm) * z + lib.fft.ihfft(x, n, norm=norm)
        return lib.sum(lib.fft.irfft(spectrum, n, norm=norm) ** 3) + lib.sum(lib.fft.hfft(spectrum * z, n) ** 2)

    return f


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_derivatives_of_real_transforms(n: int, norm: str) -> None:
    """Derivatives of real transforms agree with JAX and with differences, at even and odd sizes: some elements of a
    half spectrum stand for two, some for one."""
    rng = np.random.default_rng(n)
    x, z = rng.normal(size=5), rng.normal(size=n // 2 + 1) + 1j * rng.normal(size=n // 2 + 1)
    ours, theirs = filtered(cnp, n, norm), filtered(jnp, n, norm)
    with jax.enable_x64(True):
        for k in (0, 1):
            np.testing.assert_allclose(cg.grad(ours, k)(x, z), jax.grad(theirs, k)(x, z), rtol=1e-9, atol=1e-12)
    cg.check_grads(lambda x, re, im: ours(x, cnp.make_complex(re, im)), (x, z.real, z.imag), order=2)


def test_real_transforms_of_rows() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 6))
    rows = cg.vmap(cg.vmap(lambda r: cnp.fft.irfft(cnp.fft.rfft(r) * 2.0, 6)))(x)
    np.testing.assert_allclose(rows, 2 * x, atol=1e-12)
    turned = cg.function(lambda x: cnp.fft.irfft(cnp.fft.rfft(x, axis=1) * 2.0, 4, axis=1))(x)
    np.testing.assert_allclose(turned, 2 * x, atol=1e-12)


@in_turn("threads, dtype", ["1", "2", "3", "7", "16", "64"], ["float32", "float64"])
def test_sizes_beside_the_work_of_a_thread(threads: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLGRAD_THREADS", threads)
    tolerance = 2e-5 if dtype == "float32" else 1e-11
    f = cg.function(lambda x: (cnp.fft.rfft(x), cnp.fft.irfft(cnp.fft.rfft(x), x.shape[-1]), cnp.fft.fft(x)))
    for count in (1, 2, 16):
        for size in (count * LEAST_ELEMENTS + d for d in (-1, 0, 1)):
            for shape in ((size,), (2, size // 2)):
                x = np.random.default_rng(0).normal(size=shape).astype(dtype)
                half, back, whole = f(x)
                assert half.dtype == whole.dtype == np.result_type(dtype, np.complex64) and back.dtype == dtype
                scale = np.sqrt(size)
                np.testing.assert_allclose(half / scale, np.fft.rfft(x) / scale, atol=tolerance)
                np.testing.assert_allclose(whole / scale, np.fft.fft(x) / scale, atol=tolerance)
                np.testing.assert_allclose(back, x, atol=tolerance)
