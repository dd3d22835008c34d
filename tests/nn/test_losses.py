import numpy as np

import ctrlgrad as cg
from ctrlgrad.nn import softmax_cross_entropy


def test_it_is_minus_the_logarithm_of_the_softmax():
    logits = np.random.default_rng(0).standard_normal((5, 4))
    targets = np.array([0, 3, 1, 1, 2])
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax_cross_entropy(logits, targets), -np.log(p[np.arange(5), targets]), rtol=1e-12)


def test_large_logits_do_not_overflow():
    np.testing.assert_allclose(
        softmax_cross_entropy(np.array([[1000.0, -1000.0], [1000.0, -1000.0]]), np.array([0, 1])), [0.0, 2000.0]
    )


def test_its_gradient_is_softmax_minus_one_hot():
    logits = np.random.default_rng(1).standard_normal((3, 4))
    targets = np.array([2, 0, 3])
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    grads = cg.grad(lambda x: softmax_cross_entropy(x, targets).sum())(logits)
    np.testing.assert_allclose(grads, p - np.eye(4)[targets], rtol=1e-12, atol=1e-15)
