"""`to_torch` and `from_torch` under a budget: values, gradients, errors, and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad import memory
from ctrlgrad.errors import MemoryBudgetError

torch = pytest.importorskip("torch")

X = np.linspace(0.0, 1.0, 2000)


def flow(x: Any) -> Any:
    return cg.fori_loop(0, 60, lambda i, x: x + 0.01 * np.sin(x), x)


def by_torch(x: Any) -> Any:
    for _ in range(60):
        x = x + 0.01 * torch.sin(x)
    return x


def value_and_slope(fn: Any) -> tuple[np.ndarray, np.ndarray]:
    x = torch.tensor(X, requires_grad=True)
    y = fn(x)
    y.sum().backward()
    return y.detach().numpy(), x.grad.numpy()


EXPECTED = value_and_slope(by_torch)


def assert_right(found: Any) -> None:
    for a, b in zip(found, EXPECTED, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.fixture(scope="module")
def own() -> Any:
    return cg.to_torch(flow)


def least_of(own: Any) -> int:
    return memory.plan(lambda: value_and_slope(own)).least


def test_gradients_of_to_torch_in_the_least_budget(own: Any) -> None:
    least = least_of(own)
    assert least < 60 * X.nbytes / 4
    for limit in (least, 2 * least, "1 GiB"):
        with memory.budget(device=limit):
            assert_right(value_and_slope(own))
    with memory.budget(device=least - 1), pytest.raises(MemoryBudgetError):
        value_and_slope(own)
    assert_right(value_and_slope(own))


def test_a_backward_pass_behind_its_budget_and_a_second_one(own: Any) -> None:
    x = torch.tensor(X, requires_grad=True)
    with memory.budget(device="64 KiB"):
        y = own(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * EXPECTED[1], rtol=1e-12)


def test_second_derivatives_of_to_torch_in_a_budget(own: Any) -> None:
    def second(fn: Any) -> Any:
        x = torch.tensor(X, requires_grad=True)
        (slope,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        return torch.autograd.grad((slope * slope).sum(), x)[0].numpy()

    with memory.budget(device="256 KiB"):
        np.testing.assert_allclose(second(own), second(by_torch), rtol=1e-11)


def test_threads_of_to_torch_are_not_refused_in_the_least_budget_of_one(own: Any) -> None:
    """Once rows were read behind the turn of their call, and a third of the calls failed."""

    def work() -> None:
        for _ in range(4):
            assert_right(value_and_slope(own))

    with memory.budget(device=least_of(own)), ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(copy_context().run, work) for _ in range(4)]:
            future.result(timeout=300)


def test_gradients_through_a_module_of_torch_in_a_budget() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)).double()
    net = cg.from_torch(module)
    slope = cg.grad(lambda x: cg.fori_loop(0, 20, lambda i, c: net(net.params, c), x).sum())
    x = np.linspace(-1.0, 1.0, 80).reshape(10, 8)
    given = torch.tensor(x, requires_grad=True)
    y = given
    for _ in range(20):
        y = module(y)
    y.sum().backward()
    with memory.budget(device=memory.plan(slope, x).least):
        np.testing.assert_allclose(slope(x), given.grad.numpy(), rtol=1e-10, atol=1e-14)
    with memory.budget(device=500), pytest.raises(MemoryBudgetError):
        slope(x)
