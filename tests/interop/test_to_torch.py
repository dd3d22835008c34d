"""`to_torch`: functions of this library under PyTorch's autograd and `torch.func`."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import ctrlgrad as cg  # noqa: E402
import ctrlgrad.numpy as cnp  # noqa: E402
from ctrlgrad.errors import TracingError, TypeMismatchError, UserInputError  # noqa: E402
from ctrlgrad.interop.torch.function import Residuals, TorchProgram  # noqa: E402

# Warnings that PyTorch raises about itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*", "ignore::FutureWarning:torch.*")


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


def root(a: Any) -> Any:
    """Newton's iteration: how often it runs depends on its argument."""
    return cg.while_loop(lambda x: (abs(x * x - a) > 1e-13 * a).any(), lambda x: 0.5 * (x + a / x), a)


def rnn(params: Any, inputs: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = cnp.tanh(params["w"] @ h + params["u"] * x)
        return h, h.sum()

    return cg.scan(cell, cnp.zeros(3), inputs)[1]


def pair(x: Any, y: Any) -> Any:
    """Two results, one of which does not depend on x."""
    return cnp.sin(x) * y.sum(), y * y


def complex_pair(x: Any, y: Any) -> Any:
    return x * y * x, cnp.abs(x), cnp.conj(y) * x


def tensor(*numbers: Any, dtype: Any = torch.float64, grad: bool = True) -> Any:
    return torch.tensor(numbers, dtype=dtype, requires_grad=grad)


def random(*shape: int, seed: int = 0, grad: bool = True) -> Any:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape), requires_grad=grad)


CASES = {
    "loop": (root, lambda: (tensor(4.0, 9.0),)),
    "pair": (pair, lambda: (random(2), random(2, seed=1))),
    "complex": (
        complex_pair,
        lambda: (tensor(1 + 2j, 3 - 1j, dtype=torch.complex128), tensor(1 - 2j, 2j, dtype=torch.complex128)),
    ),
    "recurrent": (
        lambda w, u, inputs: rnn({"w": w, "u": u}, inputs),
        lambda: (random(3, 3), random(3, seed=1), random(4, seed=2)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives_agree_with_differences_in_both_modes(name: str) -> None:
    fn, arguments = CASES[name]
    assert gradcheck(cg.to_torch(fn), arguments(), check_forward_ad=True)
    assert gradgradcheck(cg.to_torch(fn), arguments(), check_fwd_over_rev=True, check_rev_over_rev=True)


def test_a_third_derivative() -> None:
    a = tensor(4.0)
    y = cg.to_torch(root)(a).sum()
    for expected in (0.25, -1 / 32, 3 / 256):
        (y,) = torch.autograd.grad(y, a, create_graph=True)
        assert y.item() == pytest.approx(expected)


def test_transforms_of_torch_func_in_any_order() -> None:
    a = tensor(4.0, 9.0, grad=False)
    one, many = cg.to_torch(lambda x: root(x)), cg.to_torch(root)
    by_hand = torch.diag(-0.25 * a**-1.5)
    total: Any = lambda x: many(x).sum()
    func = torch.func
    for hessian in (func.hessian(total), func.jacrev(func.grad(total)), func.jacfwd(func.jacfwd(total))):
        torch.testing.assert_close(hessian(a), by_hand)
    torch.testing.assert_close(func.vmap(func.grad(one))(a), 0.5 * a**-0.5)
    torch.testing.assert_close(func.vmap(func.grad(func.grad(one)))(a), -0.25 * a**-1.5)
    torch.testing.assert_close(func.grad(lambda x: func.vmap(one)(x).sum())(a), 0.5 * a**-0.5)
    torch.testing.assert_close(func.jvp(many, (a,), (torch.ones_like(a),))[1], 0.5 * a**-0.5)


def test_vmap_over_other_axes_and_unmapped_arguments() -> None:
    x, y = random(3, 4, grad=False), random(3, seed=1, grad=False)
    f = cg.to_torch(lambda x, y: (x * y, cnp.dot(x, y)))
    product, dots = torch.func.vmap(f, in_dims=(-1, None))(x, y)
    torch.testing.assert_close(product, (x * y[:, None]).T)
    torch.testing.assert_close(dots, x.T @ y)


def test_pytrees_dtypes_and_values_that_are_no_arrays() -> None:
    f = cg.to_torch(
        lambda d, n, s=1.0: {
            "sum": cnp.sum(d["x"] * s) * n,
            "place": cnp.argmax(abs(d["x"])),
            "none": None,
            "x": d["x"],
        }
    )
    x = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    out = f({"x": x}, 3, s=0.5)
    assert out["sum"].dtype == torch.float32 and out["place"].dtype == torch.int64 and out["none"] is None
    assert not out["place"].requires_grad and out["sum"].item() == 22.5
    out["sum"].backward()
    assert x.grad.tolist() == [[1.5] * 2] * 3
    for dtype in (torch.float16, torch.float64, torch.int32, torch.bool, torch.complex64):
        assert f({"x": torch.ones(2, dtype=dtype)}, 1)["x"].dtype == dtype
    assert f({"x": np.ones(2, np.float32)}, 1)["x"].dtype == torch.float32
    assert f({"x": torch.ones(1).expand(5)}, 2)["x"].tolist() == [1.0] * 5


def test_bfloat16_is_read_in_place_and_stays_what_it_is() -> None:
    x = torch.ones(4, dtype=torch.bfloat16)[::2].requires_grad_()
    y = cg.to_torch(lambda x: cg.while_loop(lambda y: y.sum() < 10, lambda y: 1.5 * y * x, x))(x)
    y.sum().backward()
    # 1.5**4 x**5, whose slope is 25.3125: of two numbers as near the even one.
    assert y.dtype == x.grad.dtype == torch.bfloat16
    assert y.tolist() == [5.0625] * 2 and x.grad.tolist() == [25.25] * 2


def test_conjugated_and_negated_views_are_read_as_they_are() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    assert cg.to_torch(lambda x: x * 1)(z.conj()).tolist() == [1 - 2j, 3 + 1j]
    assert cg.to_torch(lambda x: x * 1)(z.conj().imag).tolist() == [-2.0, 1.0]


def test_arguments_are_read_in_place_and_results_share_no_memory_with_them() -> None:
    seen = []
    x = torch.ones(3)
    f = cg.to_torch(lambda x: x)
    run = TorchProgram.run

    def watched(self: TorchProgram, *arrays: Any) -> Any:
        seen.extend(arrays)
        return run(self, *arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchProgram, "run", watched)
        y = f(x)
    assert np.shares_memory(seen[0], x.numpy())
    y += 1
    assert x.tolist() == [1.0] * 3


def test_only_what_requires_a_gradient_gets_one() -> None:
    x, y = tensor(2.0), tensor(3.0, grad=False)
    first, second = cg.to_torch(lambda x, y: (x * y, y * 3))(x, y)
    (first + 0 * second).backward()
    assert x.grad.tolist() == [3.0] and y.grad is None


def test_sizes_that_depend_on_data_and_new_sizes_without_new_traces() -> None:
    f = cg.to_torch(lambda x: cnp.sort(x)[cnp.sum(x < 0) :])
    assert f(tensor(1.0, -2.0, 3.0, grad=False)).tolist() == [1.0, 3.0]
    for n in (5, 6, 7, 8):
        x = random(n)
        (gradient,) = torch.autograd.grad(f(x).sum(), x)
        assert gradient.tolist() == (x > 0).double().tolist()
    assert f.traces == 2


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Log of the runs of programs."""
    found: list[str] = []

    def watch(name: str) -> None:
        method = getattr(TorchProgram, name)

        def watched(self: TorchProgram, *args: Any) -> Any:
            found.append(f"{name} {self}")
            return method(self, *args)

        monkeypatch.setattr(TorchProgram, name, watched)

    for name in ("run", "run_and_keep", "run_backward"):
        watch(name)
    return found


def kept() -> int:
    gc.collect()
    return sum(type(x) is Residuals for x in gc.get_objects())


def test_without_gradients_nothing_is_kept(runs: list[str]) -> None:
    f, before = cg.to_torch(root), kept()
    y = f(tensor(4.0, grad=False))
    with torch.no_grad():
        z = f(tensor(4.0))
    assert runs == ["run root"] * 2 and kept() == before and not y.requires_grad and not z.requires_grad


def test_the_forward_pass_runs_once_and_its_residuals_go_with_backward(runs: list[str]) -> None:
    f, a, before = cg.to_torch(root), tensor(4.0), kept()
    y = f(a).sum()
    assert kept() == before + 1
    y.backward()
    assert runs == ["run_and_keep root", "run_backward root"] and kept() == before
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_graph_that_is_retained_is_pulled_back_again(runs: list[str]) -> None:
    a = tensor(4.0)
    y = cg.to_torch(root)(a).sum()
    for _ in range(2):
        y.backward(retain_graph=True)
    assert runs == ["run_and_keep root", *["run_backward root"] * 2] and a.grad.tolist() == pytest.approx([0.5])


def test_torch_checkpoint_keeps_nothing_and_runs_the_forward_pass_again(runs: list[str]) -> None:
    f, a, before = cg.to_torch(root), tensor(4.0), kept()
    y = checkpoint(f, a, use_reentrant=False).sum()
    assert kept() == before
    y.backward()
    assert runs == ["run_and_keep root", "run_and_keep root", "run_backward root"] and a.grad.tolist() == pytest.approx(
        [0.25]
    )


def test_an_argument_that_was_changed_in_place_is_refused() -> None:
    a = tensor(4.0)
    b = a * 1
    y = cg.to_torch(root)(b)
    b += 1
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()


def test_an_optimiser_of_torch_trains_a_loop_of_ours_inside_of_its_network() -> None:
    model = cg.to_torch(rnn)
    params = {"w": random(3, 3), "u": random(3, seed=1)}
    head = torch.nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        head.weight.fill_(0.5)
        head.bias.fill_(0.0)
    inputs = random(5, seed=2, grad=False)
    optimiser = torch.optim.Adam([*params.values(), *head.parameters()], lr=0.05)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = ((head(model(params, inputs)[:, None])[:, 0] - inputs.flip(0)) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


def test_eight_threads_share_a_function() -> None:
    f = cg.to_torch(root)

    def gradient(n: int) -> float:
        # Options belong to a thread.
        with cg.options(engine="reference"):
            a = tensor(float(n + 2))
            f(a).sum().backward()
            return float(a.grad)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(gradient, range(32)))
    assert found == pytest.approx([0.5 / np.sqrt(n + 2) for n in range(32)])


def test_compiled_code_agrees() -> None:
    with cg.options(engine="native"):
        assert gradcheck(cg.to_torch(root), (tensor(4.0, 9.0),))
        hessian = torch.func.hessian(lambda x: cg.to_torch(root)(x).sum())
        assert hessian(tensor(4.0, grad=False)).item() == pytest.approx(-1 / 32)


@pytest.mark.parametrize(
    ("argument", "error", "text"),
    [
        (lambda: torch.ones(2).to_sparse(), TypeMismatchError, "to_dense"),
        (lambda: torch.ones(2, device="meta"), UserInputError, "lies on meta"),
        (lambda: torch.ones(2).to(torch.float8_e5m2), TypeMismatchError, "float8_e5m2"),
        (lambda: [[], {1}], TypeMismatchError, "set"),
    ],
)
def test_unreadable_arguments_are_refused(argument: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        cg.to_torch(lambda x: x)(argument())


def test_a_module_that_holds_a_function_is_copied_with_its_own_parameters() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(2.0))
            self.times = cg.to_torch(self.product)

        def product(self, x: Any, w: Any) -> Any:
            return x * w * float(self.w.detach())

        def forward(self, x: Any) -> Any:
            return self.times(x, self.w)

    module = Scaled()
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.w.fill_(3.0)
    assert (module(torch.tensor(1.0)).item(), other(torch.tensor(1.0)).item()) == (4.0, 9.0)
    other(torch.tensor(1.0)).backward()
    assert other.w.grad is not None and other.w.grad.item() == 3.0 and module.w.grad is None


def test_a_module_of_pytorch_is_no_function_of_this_library() -> None:
    with pytest.raises(UserInputError, match=r"to_torch\(ctrlgrad\.from_torch\(module\)\)"):
        cg.to_torch(torch.nn.Linear(2, 3))


def test_a_traced_tensor_is_refused() -> None:
    with pytest.raises(TracingError, match="call the function itself"):
        cg.function(lambda x: cg.to_torch(root)(x))(2.0)


def test_a_vectorised_backward_of_the_old_kind_names_the_new_one() -> None:
    with pytest.raises(TracingError, match="jacrev"):
        torch.autograd.functional.jacobian(cg.to_torch(root), tensor(4.0), vectorize=True)


CALLS = {
    "function": lambda t: cg.function(lambda x: x * 2)(t),
    "grad": lambda t: cg.grad(lambda x: (x * x).sum())(t),
    "vjp": lambda t: cg.vjp(lambda x: x * 2, t)[0],
    "jvp": lambda t: cg.jvp(lambda x: x * x, (t,), (t * 0 + 1,))[1],
    "vmap": lambda t: cg.vmap(lambda x: x * 2)(t),
    "while_loop": lambda t: cg.while_loop(lambda x: x.sum() < 5, lambda x: x * 2, t),
    "add": lambda t: cnp.add(t, t),
}


@pytest.mark.parametrize("name", CALLS)
def test_tensors_are_arrays_to_the_functions_of_this_library(name: str) -> None:
    call: Any = CALLS[name]
    found = call(torch.tensor([1.0, 2.0]))
    assert isinstance(found, np.ndarray) and found.dtype == np.float32 and found.tolist() == [2.0, 4.0]
    with pytest.raises(TypeMismatchError, match="to_torch"):
        call(torch.tensor([1.0, 2.0], requires_grad=True))


def test_jax_is_not_needed() -> None:
    script = (
        "import sys; sys.modules['jax'] = None\n"
        "import torch, ctrlgrad as cg\n"
        "x = torch.tensor(3.0, requires_grad=True)\n"
        "with cg.options(engine='reference'): cg.to_torch(lambda x: x * x)(x).backward()\n"
        "print(float(x.grad))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "6.0", found.stderr


@pytest.mark.parametrize("size", [3, 2000])
def test_a_captured_array_that_is_changed_in_place_is_read_anew(size: int) -> None:
    """Small ones are compared with what they were, and large ones, which `ctrlgrad.function` has as inputs."""
    weights = np.ones(size)
    f = cg.to_torch(lambda x: (x * weights).sum())
    x = torch.ones(size, dtype=torch.float64, requires_grad=True)
    assert float(f(x).detach()) == size
    weights[0] = 3.0
    assert float(f(x).detach()) == size + 2.0
    f(x).backward()
    assert float(x.grad[0]) == 3.0
    traces = f.traces
    f(x)
    assert f.traces == traces
