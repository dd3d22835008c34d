"""`to_torch(from_torch(module))` replaces the module: training, state, copies, dtypes, `torch.compile`, budgets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("malt")
from interop.torch.torch_modules import AdaptiveComputation, Equilibrium, NeuralOde, Tagger, Translator  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import ctrlgrad as cg  # noqa: E402
from ctrlgrad.errors import UserInputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    torch.manual_seed(0)
    with cg.options(engine="reference"):
        yield


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 4, bias=False)  # a bias before the normalisation has no gradient but rounding
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.norm(self.lin(x)).tanh()


class Dropped(Normalised):
    def forward(self, x: Any) -> Any:
        return self.drop(super().forward(x))


def pair(make: Callable[[], Any] = Normalised) -> tuple[Any, Any]:
    """A module run by this library, and its twin run by PyTorch."""
    module = make()
    return cg.to_torch(cg.from_torch(module)), copy.deepcopy(module)


def trained(model: Any, optimiser: Callable[..., Any], steps: int = 3) -> dict[str, Any]:
    torch.manual_seed(1)
    using = optimiser(model.parameters())
    for _ in range(steps):
        using.zero_grad()
        F.mse_loss(model(torch.randn(6, 3)), torch.ones(6, 4)).backward()
        using.step()
    return dict(model.state_dict())


def near(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for name, x in found.items():
        torch.testing.assert_close(x, expected[name], rtol=1e-4, atol=1e-5, msg=name)


OPTIMISERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.9),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.1),
    "adam, fused": lambda ps: torch.optim.Adam(ps, lr=0.1, fused=True),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_it_trains_as_the_module_does(name: str) -> None:
    ours, twin = pair()
    near(trained(ours, OPTIMISERS[name]), trained(twin, OPTIMISERS[name]))


def test_lbfgs_evaluates_it_several_times_a_step() -> None:
    ours, twin = pair(lambda: nn.Linear(3, 1))
    x = torch.randn(8, 3)
    for model in (ours, twin):
        using = torch.optim.LBFGS(model.parameters(), max_iter=5)

        def closure(model: Any = model, using: Any = using) -> Any:
            using.zero_grad()
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            loss.backward()
            return loss

        using.step(closure)
    near(ours.state_dict(), twin.state_dict())


def test_training_and_evaluation_are_those_of_the_module() -> None:
    ours, twin = pair()
    trained(ours, OPTIMISERS["sgd"])
    module = ours._of.module
    assert ours.eval().training is module.training is module.norm.training is False
    twin.load_state_dict(ours.state_dict())
    before, x = copy.deepcopy(ours.state_dict()), torch.randn(2, 3)
    torch.testing.assert_close(ours(x), twin.eval()(x), rtol=1e-4, atol=1e-5)
    near(ours.state_dict(), before)
    torch.testing.assert_close(ours.train()(x), twin.train()(x), rtol=1e-4, atol=1e-5)
    near(ours.state_dict(), twin.state_dict())


def test_dropout_in_training_draws_by_the_generator_and_passes_in_evaluation() -> None:
    ours, twin = pair(lambda: nn.Dropout(0.25))
    x = torch.ones(200, 300, requires_grad=True)

    def drawn(seed: int) -> Any:
        torch.manual_seed(seed)
        return ours(x)

    first = drawn(5)
    assert torch.equal(first, drawn(5)) and not torch.equal(first, ours(x))
    assert first.unique().tolist() == twin(x).unique().tolist()
    assert abs((first == 0).double().mean().item() - 0.25) < 0.01  # 5 standard deviations
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient, first.detach())
    state = torch.get_rng_state()
    assert torch.equal(ours.eval()(x), x) and torch.equal(torch.get_rng_state(), state)


def test_checkpointed_dropout_goes_backwards_through_the_same_mask() -> None:
    ours, _ = pair(Dropped)
    x = torch.randn(6, 3, requires_grad=True)
    found = []
    for through in (ours, lambda x: torch.utils.checkpoint.checkpoint(ours, x, use_reentrant=False)):
        torch.manual_seed(2)
        found.append(torch.autograd.grad((through(x) ** 2).sum(), x)[0])
    torch.testing.assert_close(*found)


def test_state_goes_both_ways() -> None:
    ours, twin = pair()
    trained(twin, OPTIMISERS["sgd"])
    assert ours.load_state_dict(twin.state_dict()).missing_keys == []
    near(ours.state_dict(), twin.state_dict())
    x = torch.randn(5, 3)
    torch.testing.assert_close(ours(x), twin(x), rtol=1e-4, atol=1e-5)
    ours.load_state_dict({k: torch.zeros_like(x) for k, x in ours.state_dict().items()}, assign=True)
    assert ours.eval()(x).abs().sum() == 0
    with pytest.raises(RuntimeError, match="Missing key"):
        ours.load_state_dict({})


def test_a_copy_is_trained_by_itself() -> None:
    ours, twin = pair()
    ours(torch.randn(6, 3))
    twin(torch.randn(6, 3))
    before = copy.deepcopy(ours.state_dict())
    other = copy.deepcopy(ours)
    trained(other, OPTIMISERS["sgd"])
    near(ours.state_dict(), before)
    twin.load_state_dict(before)
    near(other.state_dict(), trained(twin, OPTIMISERS["sgd"]))


def test_dtypes_change_as_those_of_the_module() -> None:
    ours, twin = pair()
    x = torch.randn(5, 3)
    ours(x), twin(x)
    assert ours.to(torch.float64) is ours
    found, expected = ours(x.double()), twin.double()(x.double())
    assert found.dtype == torch.float64 == ours.lin.weight.dtype
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert ours.half()(x.half()).dtype == torch.float16


def test_parameters_that_are_frozen_tied_and_replaced() -> None:
    ours, twin = pair(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)))
    x = torch.randn(4, 3)
    for model in (ours, twin):
        model(x)
        model.get_submodule("2").weight = model.get_submodule("0").weight
        model.get_submodule("0").bias.requires_grad_(False)
        model(x).sum().backward()
        assert model.get_submodule("0").bias.grad is None and len(list(model.parameters())) == 3
    torch.testing.assert_close(
        ours.get_submodule("0").weight.grad, twin.get_submodule("0").weight.grad, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("inside", [False, True])
def test_torch_compile_around_it_does_no_harm(inside: bool) -> None:
    ours, twin = pair()

    def around(model: Any) -> Any:
        return lambda x: model(x * 2).sin() + 1

    calls = [around(m) if inside else m for m in (ours, twin)]
    compiled = torch.compile(calls[0], backend="eager")
    for n in (6, 4):
        x = torch.randn(n, 3)
        found, expected = compiled(x), calls[1](x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        found.sum().backward()
        expected.sum().backward()
    near(*({name: p.grad for name, p in m.named_parameters()} for m in (ours, twin)))
    near(ours.state_dict(), twin.state_dict())


def test_functional_call_and_vmap_over_parameters() -> None:
    ours, twin = pair(lambda: nn.Linear(3, 1))
    x = torch.randn(5, 3)
    many = {name: torch.stack([p, 2 * p]).detach() for name, p in twin.named_parameters()}
    loss = lambda model: lambda ps: torch.func.functional_call(model, ps, (x,)).pow(2).sum()
    found, expected = (torch.func.vmap(torch.func.grad(loss(m)))(many) for m in (ours, twin))
    near(found, expected)


def test_a_budget_bounds_what_the_loop_of_an_lstm_saves() -> None:
    module, x = nn.LSTM(3, 4).double(), torch.randn(300, 2, 3, dtype=torch.float64)
    found = []
    with cg.options(engine="native"):
        for budget in ({}, {"memory_budget": "40KiB"}):
            module.zero_grad()
            model = cg.to_torch(cg.from_torch(module), **budget)
            y = model(x)[0].pow(2).sum()
            y.backward()
            found.append({"value": y.detach(), **{n: p.grad.clone() for n, p in module.named_parameters()}})
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=1e-12, atol=1e-12, msg=name)


def test_threads_share_a_module() -> None:
    from concurrent.futures import ThreadPoolExecutor

    ours, twin = pair(lambda: nn.Linear(3, 1))

    def gradient(n: int) -> Any:
        with cg.options(engine="reference"):
            x = torch.full((2, 3), float(n), requires_grad=True)
            return torch.autograd.grad(ours(x).pow(2).sum(), x)[0]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradient, range(12)))
    for n, g in enumerate(found):
        x = torch.full((2, 3), float(n), requires_grad=True)
        torch.testing.assert_close(g, torch.autograd.grad(twin(x).pow(2).sum(), x)[0], rtol=1e-4, atol=1e-5)


WORDS = torch.tensor([[1, 4, 2, 5], [3, 0, 2, 2]])
CHECKED: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "tagger": (lambda: Tagger(6, 3, 2), (WORDS, torch.tensor([4, 2]), WORDS % 3)),
    "translator": (lambda: Translator(6, 3), (WORDS, WORDS.flip(1))),
    "neural ODE": (NeuralOde, (torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64),)),
    "equilibrium": (lambda: Equilibrium(3), (torch.tensor([[0.3, -0.2, 0.5]], dtype=torch.float64),)),
    "adaptive computation": (AdaptiveComputation, (torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3),)),
    "gru": (lambda: nn.Sequential(nn.GRU(2, 3), First()), (torch.linspace(-1, 1, 8, dtype=torch.float64).view(4, 2),)),
}


class First(nn.Module):
    def forward(self, xs: Any) -> Any:
        return xs[0]


@pytest.mark.parametrize("name", CHECKED)
def test_gradcheck_and_gradgradcheck_of_parameters(name: str) -> None:
    make, args = CHECKED[name]
    ours = cg.to_torch(cg.from_torch(make().double()))
    names = [n for n, _ in ours.named_parameters()]
    given = [p.detach().clone().requires_grad_() for p in ours.parameters()]

    def call(*ps: Any) -> Any:
        return torch.func.functional_call(ours, dict(zip(names, ps, strict=True)), args)

    assert torch.autograd.gradcheck(call, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, given, fast_mode=True)


def test_gradcheck_and_gradgradcheck_of_an_argument() -> None:
    ours = cg.to_torch(cg.from_torch(Equilibrium(3).double()))
    x = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ours, (x,))
    assert torch.autograd.gradgradcheck(ours, (x,))


def test_a_packed_sequence_among_the_arguments_is_explained() -> None:
    ours = pair(lambda: nn.GRU(3, 4))[0]
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(7, 2, 3), [7, 4])
    with pytest.raises(UserInputError, match=r"test_drop_in[^$]*try: call pack_padded_sequence\(x, lengths\) in"):
        ours(packed)
