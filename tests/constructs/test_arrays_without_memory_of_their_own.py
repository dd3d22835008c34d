"""Gradients of loops at arrays that are views, of other arrays or of memory that is no array's."""

import mmap

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import ctrlgrad as cg

X = np.linspace(-1.0, 1.0, 12)


def of_a_map():
    memory = mmap.mmap(-1, X.nbytes)
    memory[:] = X.tobytes()
    return np.frombuffer(memory).reshape(3, 4)


ARRAYS = {
    "sliding_window_view": lambda: sliding_window_view(X, 4),
    "as_strided": lambda: as_strided(X, (5, 4), (8, 16)),
    "broadcast_to": lambda: np.broadcast_to(X[:4], (9, 4)),
    "reversed": lambda: X[::-2],
    "bytes": lambda: np.frombuffer(X.tobytes()),
    "memoryview": lambda: np.asarray(memoryview(X)),
    "mmap": of_a_map,
    "JAX's memory": lambda: np.asarray(pytest.importorskip("jax").numpy.asarray(X)),
}


def loss(w, x):
    def body(c):
        return c[0] + 1, np.tanh(c[1] * w) + x

    return cg.while_loop(lambda c: c[0] < 5, body, (0, x))[1].sum()


@pytest.mark.parametrize("engine", ["native", "reference", "dataflow"])
@pytest.mark.parametrize("name", ARRAYS)
def test_gradients_of_loops_at_views_are_those_at_copies(name, engine):
    view = ARRAYS[name]()
    copy = np.array(view)
    with cg.options(engine=engine):
        for found, wanted in zip(
            cg.grad(loss, argnums=(0, 1))(view, view), cg.grad(loss, argnums=(0, 1))(copy, copy), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-13)
