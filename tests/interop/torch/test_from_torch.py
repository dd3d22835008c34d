"""`from_torch`: modules of PyTorch under this library's transforms, judged by PyTorch's own values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("malt")
from interop.torch.random_modules import judge  # noqa: E402
from interop.torch.torch_modules import (  # noqa: E402
    AdaptiveComputation,
    BeamSearch,
    Decoder,
    Equilibrium,
    NeuralOde,
    Tagger,
    Translator,
)
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from torch._higher_order_ops.map import map as map_rows  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import ctrlgrad as cg  # noqa: E402
from ctrlgrad.errors import CtrlgradError, TracingError, UnsupportedPrimitiveError, UserInputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:torch.*",
    "ignore::FutureWarning:torch.*",
    "ignore:.*LeafSpec",
    "ignore:The .grad attribute",
)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    torch.manual_seed(0)
    with cg.options(engine="reference"):
        yield


RNG = np.random.default_rng(0)
WORDS, TAGS = RNG.integers(0, 20, (3, 7)), RNG.integers(0, 4, (3, 7))
LENGTHS = np.array([4, 7, 2])
for _row, _n in enumerate(LENGTHS):
    TAGS[_row, _n:] = -100
SENTENCES = RNG.integers(0, 9, (2, 5))

MODULES: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "tagger of packed sentences": (Tagger, (WORDS, LENGTHS, TAGS)),
    "translator with attention": (Translator, (SENTENCES, SENTENCES[:, ::-1].copy())),
    "neural ODE with adaptive steps": (NeuralOde, (RNG.normal(size=3),)),
    "deep equilibrium": (Equilibrium, (RNG.normal(size=(2, 4)),)),
    "adaptive computation time": (AdaptiveComputation, (RNG.normal(size=(4, 3)),)),
}


def tensors(args: tuple[Any, ...]) -> list[Any]:
    return [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args]


def loss(y: Any) -> Any:
    return (y * y).sum()


def gradients(module: Any) -> dict[str, np.ndarray]:
    return {n: p.grad.numpy() for n, p in module.named_parameters()}


@pytest.mark.parametrize("name", MODULES)
def test_values_and_gradients_are_those_of_pytorch(name: str) -> None:
    make, args = MODULES[name]
    module = make().double()
    f = cg.from_torch(module)
    value, found = cg.value_and_grad(lambda p: loss(f(p, *args)))(f.params)
    expected = loss(module(*tensors(args)))
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-10)
    for key, gradient in gradients(module).items():
        np.testing.assert_allclose(found[key], gradient, rtol=1e-8, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("name", ["neural ODE with adaptive steps", "deep equilibrium", "adaptive computation time"])
def test_second_derivatives_are_those_of_pytorch(name: str) -> None:
    """The gradient of the squared length of the gradient."""
    make, args = MODULES[name]
    module = make().double()
    f = cg.from_torch(module)
    first = cg.grad(lambda p: loss(f(p, *args)))
    found = cg.grad(lambda p: sum(loss(g) for g in first(p).values()))(f.params)
    params = list(module.parameters())
    once = torch.autograd.grad(loss(module(*tensors(args))), params, create_graph=True)
    twice = torch.autograd.grad(sum(loss(g) for g in once), params)
    for (key, _), gradient in zip(module.named_parameters(), twice, strict=True):
        np.testing.assert_allclose(found[key], gradient.numpy(), rtol=1e-7, atol=1e-9, err_msg=key)


def test_greedy_decoding_says_the_words_that_pytorch_says() -> None:
    module = Decoder(Translator()).double()
    f = cg.from_torch(module)
    for seed in range(3):
        source = np.random.default_rng(seed).integers(0, 9, (1, 5))
        words, count = f(f.params, source)
        expected, expected_count = module(torch.from_numpy(source))
        assert (words.tolist(), int(count)) == (expected.tolist(), expected_count)


def test_beam_search_finds_the_words_and_scores_that_pytorch_finds() -> None:
    module = BeamSearch().double()
    f = cg.from_torch(module)
    state = np.random.default_rng(1).normal(size=(1, 5))
    words, scores = f(f.params, state)
    expected, expected_scores = module(torch.from_numpy(state))
    assert words.tolist() == expected.tolist()
    np.testing.assert_allclose(scores, expected_scores.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize("part", range(4))
def test_random_modules_have_the_gradients_of_pytorch(part: int, tmp_path: Path) -> None:
    judged = [judge(seed, tmp_path) for seed in range(1000 + 5 * part, 1005 + 5 * part)]
    assert sum(judged) >= 2


class Normalised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.norm(self.lin(x)).tanh()


@pytest.mark.parametrize("captured", [False, True])
def test_buffers_that_change_are_results(captured: bool) -> None:
    module, x = Normalised().double(), RNG.normal(size=(5, 3))
    f = cg.from_torch(module, x) if captured else cg.from_torch(module)
    assert (f.program is not None) == captured
    result, buffers = f(f.params, x)
    again = f({**f.params, **f.buffers, **buffers}, x)[1]
    for found in (buffers, again):
        expected = module(torch.from_numpy(x))
        np.testing.assert_allclose(result, expected.detach().numpy(), rtol=1e-9)
        for name, b in module.named_buffers():
            np.testing.assert_allclose(found[name], b.numpy(), rtol=1e-9, err_msg=name)
    module.eval()
    assert cg.from_torch(module)(f.params, x).shape == (5, 4)


def test_parameters_share_their_memory_with_the_module() -> None:
    module = torch.nn.Linear(2, 1).double()
    f = cg.from_torch(module)
    with torch.no_grad():
        module.weight.fill_(3.0)
        module.bias.zero_()
    assert f(f.params, np.ones(2)).tolist() == [6.0]


def test_one_captured_graph_serves_all_sizes_that_are_left_open() -> None:
    module, x = torch.nn.LSTM(3, 4, batch_first=True).double(), RNG.normal(size=(2, 5, 3))
    shapes = {"input": {0: torch.export.Dim("batch")}}
    f = cg.from_torch(module, x, dynamic_shapes=shapes)
    for sizes in ((2, 5, 3), (4, 5, 3), (7, 5, 3)):
        x = RNG.normal(size=sizes)
        outputs, (h, _) = f(f.params, x)
        expected, (expected_h, _) = module(torch.from_numpy(x))
        np.testing.assert_allclose(outputs, expected.detach().numpy(), rtol=1e-9)
        np.testing.assert_allclose(h, expected_h.detach().numpy(), rtol=1e-9)
    assert f.traces <= 2


def loops_of_pytorch(x: Any) -> Any:
    """PyTorch's own loops and branches."""
    (y,) = torch.while_loop(lambda y: y.sum() < 10, lambda y: (y * 1.5 + x.abs(),), (x * x,))
    return torch.cond(y.max() > 4, lambda y: y.sin(), lambda y: y * 2, (y,)).sum()


@pytest.mark.parametrize("captured", [False, True])
def test_loops_and_branches_of_pytorch(captured: bool) -> None:
    x = np.array([0.5, -0.3, 1.2])
    f = cg.from_torch(loops_of_pytorch, *([x] if captured else []))
    y = x * x
    while y.sum() < 10:
        y = y * 1.5 + abs(x)
    expected = np.sin(y).sum() if y.max() > 4 else 2 * y.sum()
    np.testing.assert_allclose(f(x), expected, rtol=1e-10)
    cg.check_grads(f, (x,), order=2)


def scanned(x: Any) -> Any:
    """A recurrence over rows, whose carry multiplies them."""

    def step(carry: Any, row: Any) -> Any:
        new = torch.tanh(carry * row + 0.5 * row)
        return new, new * carry

    last, rows = scan(step, torch.ones(3, dtype=torch.float64), x)
    return (last * rows.sum(0)).sum() + (rows**2).sum()


def scanned_by_pairs(x: Any) -> Any:
    """Running products of x[4, 3]."""
    return (associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic") ** 2).sum()


def mapped(x: Any) -> Any:
    """A product that all rows share."""
    return (map_rows(lambda row, w: torch.sin(row * w).exp(), x, x[0] ** 2) * x).sum()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("fn", [scanned, scanned_by_pairs, mapped])
def test_scans_and_maps_to_second_order(fn: Callable[..., Any], captured: bool) -> None:
    """PyTorch judges value and gradient. Twice it loses terms without a word, so differences of its gradient judge."""
    x, v = RNG.normal(size=(2, 4, 3))

    def by_pytorch(at: np.ndarray) -> tuple[float, np.ndarray]:
        given = torch.tensor(at, requires_grad=True)
        value = fn(given)
        return value.item(), torch.autograd.grad(value, given)[0].numpy()

    f = cg.from_torch(fn, *([x] if captured else []))
    value, gradient = cg.value_and_grad(f)(x)
    expected, first = by_pytorch(x)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, first, rtol=1e-10)
    h = 1e-5
    slope = (by_pytorch(x + h * v)[1] - by_pytorch(x - h * v)[1]) / (2 * h)
    np.testing.assert_allclose(cg.grad(lambda x: (cg.grad(f)(x) * v).sum())(x), slope, rtol=1e-6, atol=1e-7)
    cg.check_grads(f, (x,), order=2)


def written_in_place(x: Any) -> Any:
    out = torch.zeros(3, 3, dtype=torch.float64)
    out[1] = x * 2
    out[:, 2].add_(1.0)
    turned = out.t()
    turned[0] += x
    out.diagonal().mul_(2.0)
    out.view(-1)[4:6] = x[:2] * x[1:]
    return out


def test_writes_through_a_view_are_seen_by_all_views() -> None:
    x = RNG.normal(size=3)
    given = torch.tensor(x, requires_grad=True)
    expected = written_in_place(given)
    f, weights = cg.from_torch(written_in_place), RNG.normal(size=(3, 3))
    (expected * torch.from_numpy(weights)).sum().backward()
    np.testing.assert_allclose(f(x), expected.detach().numpy())
    np.testing.assert_allclose(cg.grad(lambda x: (f(x) * weights).sum())(x), given.grad.numpy(), rtol=1e-10)


def test_no_grad_and_detach_stop_the_gradient() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            y = x * x
        return (y * x + x.detach() * 3).sum()

    assert cg.grad(cg.from_torch(f))(np.array([2.0])).tolist() == [4.0]


def test_a_drop_in_module_trains_as_the_module_does() -> None:
    module = Normalised()
    twin = Normalised()
    twin.load_state_dict(module.state_dict())
    ours = cg.to_torch(cg.from_torch(module))
    assert list(ours.state_dict()) == list(twin.state_dict())
    for trained in (ours, twin):
        torch.manual_seed(1)
        optimiser = torch.optim.SGD(trained.parameters(), lr=0.5, momentum=0.9)
        for _ in range(3):
            optimiser.zero_grad()
            F.mse_loss(trained(torch.randn(6, 3)), torch.ones(6, 4)).backward()
            optimiser.step()
    for (name, a), b in zip(ours.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    assert ours.eval().training is module.training is module.norm.training is False
    torch.testing.assert_close(ours(torch.ones(2, 3)), twin.eval()(torch.ones(2, 3)), rtol=1e-4, atol=1e-5)


def test_a_drop_in_module_under_gradgradcheck() -> None:
    ours = cg.to_torch(cg.from_torch(Equilibrium(3).double()))
    x = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ours, (x,))
    assert torch.autograd.gradgradcheck(ours, (x,))


def uses_random_numbers(x: Any) -> Any:
    return x + torch.randn(3)


def uses_dropout(x: Any) -> Any:
    return F.dropout(x, 0.5, training=True)


def asks_for_numbers(x: Any) -> Any:
    return torch.tensor(x.tolist())


def changes_what_is_outside(x: Any) -> Any:
    total = torch.zeros(3, dtype=torch.float64)
    while x.sum() < 10:
        x = x * 2
        total.add_(x)
    return total


REFUSED: dict[str, tuple[Callable[..., Any], type[CtrlgradError], str]] = {
    "random numbers": (uses_random_numbers, UnsupportedPrimitiveError, "randn"),
    "dropout without a key": (uses_dropout, UnsupportedPrimitiveError, "dropout_key"),
    "numbers of a tensor": (asks_for_numbers, TracingError, "tolist"),
    "in place from inside a loop": (changes_what_is_outside, TracingError, "add_"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unreadable_functions_are_refused_by_name_and_line(name: str) -> None:
    fn, error, word = REFUSED[name]
    with pytest.raises(error, match=word) as found:
        cg.from_torch(fn)(np.ones(3))
    assert "test_from_torch.py" in str(found.value)


class Stacked(torch.nn.Module):
    """Dropout of a layer, between the layers of an LSTM, and of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 4, num_layers=2, dropout=0.4).double()

    def forward(self, x: Any) -> Any:
        h = self.lstm(F.dropout(x, 0.3))[0]
        return (F.scaled_dot_product_attention(h, h, h, dropout_p=0.2) ** 2).sum()


@pytest.mark.parametrize("captured", [False, True])
def test_dropout_draws_by_a_key_and_is_differentiated_through_its_masks(captured: bool) -> None:
    x, keys = RNG.normal(size=(2, 5, 3)), cg.random.split(cg.random.key(0))
    f = cg.from_torch(Stacked(), *([torch.tensor(x)] if captured else []))
    values = [float(f(f.params, x, dropout_key=key)) for key in (keys[0], keys[0], keys[1])]
    assert values[0] == values[1] != values[2] and f.traces == 1
    weights = {name: f.params[name] for name in ("lstm.weight_hh_l0", "lstm.weight_ih_l1")}
    cg.check_grads(lambda ws, x: f({**f.params, **ws}, x, dropout_key=keys[0]), (weights, x), order=2)


def test_masks_of_dropout_are_distributed_as_in_pytorch() -> None:
    """Each operator draws masks of its own; channels go as a whole in `dropout2d`."""

    def masks(x: Any) -> Any:
        return F.dropout(x, 0.2), F.dropout(x, 0.2), F.dropout2d(x, 0.5), F.alpha_dropout(x, 0.3, training=True)

    first, second, channels, alpha = cg.from_torch(masks)(np.ones((50, 40, 3, 5)), dropout_key=cg.random.key(0))
    for found in (first, second):
        assert set(np.unique(found)) == {0.0, 1.25} and abs(np.mean(found == 0) - 0.2) < 0.015  # 6 deviations
    assert abs(np.mean((first == 0) & (second == 0)) - 0.04) < 0.008
    assert (channels == channels[:, :, :1, :1]).all() and abs(np.mean(channels == 0) - 0.5) < 0.06
    np.testing.assert_allclose(np.unique(alpha), np.unique(F.alpha_dropout(torch.ones(2000).double(), 0.3, True)))
    assert cg.from_torch(lambda x: F.dropout(x, 1.0))(np.ones(3), dropout_key=cg.random.key(0)).tolist() == [0, 0, 0]


def dropout_in_a_loop(x: Any) -> Any:
    while x.sum() < 10:
        x = F.dropout(x, 0.1) + 1
    return x


def test_dropout_inside_of_a_loop_is_refused() -> None:
    with pytest.raises(UnsupportedPrimitiveError, match="each iteration would draw the same"):
        cg.from_torch(dropout_in_a_loop)(np.ones(3), dropout_key=cg.random.key(0))


class Remembers(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        self.last = x * 2
        return self.last.sum()


def test_a_tensor_that_is_left_in_an_attribute_is_refused() -> None:
    module = Remembers()
    with pytest.raises(TracingError, match="attribute 'last'"):
        cg.from_torch(module)({}, np.ones(3))
    assert not hasattr(module, "last")


def test_parameters_are_asked_for_by_name() -> None:
    f = cg.from_torch(torch.nn.Linear(2, 1))
    with pytest.raises(UserInputError, match="without its parameters"):
        f(np.ones(2, np.float32))
    with pytest.raises(UserInputError, match="no bias"):
        f({"weight": f.params["weight"]}, np.ones(2, np.float32))


NEED_SIZES: dict[str, Any] = {
    "max_pool1d": lambda x: F.max_pool1d(x[None, None], 1).sum(),
    "split": lambda x: sum(part.sum() for part in x.split(2)),
    "roll": lambda x: x.roll(1).sum(),
    "pad": lambda x: F.pad(x, (0, 8 - x.size(0))).sum(),
    "a comparison": lambda x: x.sum() if x.size(0) > 4 else x.sum() * 1.0,
    "a view that is changed": lambda x: x.clone().split(1)[0].mul_(1.0)[0] - 1 + x.sum(),
}


@pytest.mark.parametrize("name", NEED_SIZES)
def test_a_function_that_needs_sizes_in_pytorch_is_traced_once_for_each(name: str) -> None:
    """PyTorch's errors for symbols are of many types; none is a fault of the user's."""
    inner = cg.from_torch(NEED_SIZES[name])
    fn = cg.function(lambda x: inner(x))
    for n in (3, 4, 5, 6):
        assert fn(np.ones(n)) == n
    assert fn.traces == 5
