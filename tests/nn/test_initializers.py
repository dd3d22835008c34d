"""First values by the names of `jax.nn.initializers`: JAX's numbers for the same key, traced or not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.nn import initializers

SHAPES = [(4, 3), (3, 4), (3, 2, 5)]
# Of those that take more than a dtype.
ARGUMENTS = {"constant": (2.5,), "variance_scaling": (0.7, "fan_geo_avg", "normal"), "orthogonal": (2.0, -2)}


@in_turn("name, dtype", [n for n in initializers.__all__ if n != "Initializer"], ["float32", "float64"])
def test_the_numbers_are_those_of_jax(name, dtype):
    def drawn(library, key, shape):
        make = getattr(library.nn.initializers, name)
        draw = make if name in ("zeros", "ones") else make(*ARGUMENTS.get(name, ()))
        return draw(key, shape, np.dtype(dtype))

    with jax.enable_x64(True):
        shapes = SHAPES[2:] if name == "delta_orthogonal" else SHAPES
        # One program: by itself each op would be compiled for each shape.
        theirs = jax.jit(lambda key: [drawn(jax, key, shape) for shape in shapes])(jax.random.key(3))
        for shape, expected in zip(shapes, map(np.asarray, theirs), strict=True):
            for traced in (False, True):
                fn = lambda key, shape=shape: drawn(cg, key, shape)
                # One of the shapes in machine code.
                with cg.options(engine="native" if traced and shape == shapes[0] else "reference"):
                    found = np.asarray((cg.function(fn) if traced else fn)(cg.random.key(3)))
                assert found.dtype == expected.dtype == dtype and found.shape == shape
                np.testing.assert_allclose(found, expected, rtol=0, atol=5e-7 if dtype == "float32" else 1e-14)


def test_every_initializer_of_jax_is_there():
    assert {n for n in dir(jax.nn.initializers) if not n.startswith("_")} == set(initializers.__all__)


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg", "fan_geo_avg"])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "truncated_normal"])
def test_variance_scaling_with_axes_of_its_own(mode, distribution):
    settings = {"in_axis": (0, 1), "out_axis": 3, "batch_axis": 2}
    with jax.enable_x64(True):
        expected = jax.nn.initializers.variance_scaling(1.5, mode, distribution, **settings, dtype=jnp.float64)(
            jax.random.key(1), (2, 3, 4, 5)
        )
    found = initializers.variance_scaling(1.5, mode, distribution, **settings)(cg.random.key(1), (2, 3, 4, 5))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_unfitting_arguments_are_named():
    key = cg.random.key(0)
    with pytest.raises(UserInputError, match="there is no such mode"):
        initializers.variance_scaling(1.0, "fan", "normal")
    with pytest.raises(UserInputError, match="there is no such distribution"):
        initializers.variance_scaling(1.0, "fan_in", "gauss")
    for make in (initializers.he_normal, initializers.orthogonal):
        with pytest.raises(ShapeError, match="too few axes"):
            make()(key, (3,))
    for shape in ((3, 3), (2, 3, 2)):
        with pytest.raises(ShapeError, match="not that of a kernel"):
            initializers.delta_orthogonal()(key, shape)
