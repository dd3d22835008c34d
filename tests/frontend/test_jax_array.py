"""Objects that stand for an array, as JAX lets them say by `__jax_array__`, are operands."""

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp


class Parameter:
    """As those of Flax and paramax: a pytree node with one array, used as that array."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return 2.0 * self.value


cg.tree.register_pytree_node(Parameter, lambda p: ((p.value,), None), lambda _, children: Parameter(*children))
X = np.arange(4.0).reshape(2, 2)


def test_of_known_numbers():
    assert np.array_equal(cnp.asarray(Parameter(X)), 2 * X)
    assert np.array_equal(cnp.matmul(Parameter(X), Parameter(X)), 4 * X @ X)
    assert np.array_equal(cnp.add(1, Parameter(X)), 1 + 2 * X)


def test_of_traced_tensors():
    f = lambda p, x: cnp.sum(cnp.matmul(p, x) + cnp.exp(p)) + cnp.sum(x * p) + cnp.sum(p - x)
    wanted = lambda v, x: cnp.sum(cnp.matmul(2 * v, x) + cnp.exp(2 * v)) + cnp.sum(x * 2 * v) + cnp.sum(2 * v - x)
    with cg.options(engine="reference"):
        found = cg.function(cg.grad(f, argnums=(0, 1)))(Parameter(X), X + 1)
        expected = cg.grad(wanted, argnums=(0, 1))(X, X + 1)
    np.testing.assert_allclose(found[0].value, expected[0], rtol=1e-14)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-14)
