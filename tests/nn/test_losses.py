import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError
from ctrlgrad.nn import cross_entropy, softmax_cross_entropy


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


def test_targets_that_do_not_count_may_be_no_classes():
    logits = np.random.default_rng(2).standard_normal((4, 3))
    targets = np.array([2, -100, 0, -100])
    ours = lambda x, t: cross_entropy(x, t, where=t != -100)
    for value_and_grad in (cg.value_and_grad(ours), cg.function(cg.value_and_grad(ours))):
        value, gradient = value_and_grad(logits, targets)
        expected, slope = cg.value_and_grad(cross_entropy)(logits[::2], targets[::2])
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(gradient[::2], slope, rtol=1e-12)
        assert not gradient[1::2].any()


@pytest.mark.parametrize("wrap", [lambda f: f, cg.function], ids=["eager", "compiled"])
@pytest.mark.parametrize("target", [3, -1, -100])
def test_a_target_that_is_no_class_is_refused(wrap, target):
    with pytest.raises(IndexOutOfRangeError, match=r"test_losses\.py"):
        wrap(cross_entropy)(np.zeros((2, 3)), np.array([1, target]))


def test_a_mask_of_another_shape_is_named():
    with pytest.raises(ShapeError, match="the mask does not fit the targets"):
        cross_entropy(np.zeros((7, 4, 3)), np.zeros((7, 4), int), where=np.ones((4, 7), bool))
