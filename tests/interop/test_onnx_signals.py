"""ONNX's spectra, windows, images, dropout and sequences of different lengths, and their derivatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import ctrlgrad as cg
from ctrlgrad.errors import UnsupportedPrimitiveError
from tests.onnx_models import model, random


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


def one(call: str, shape: str, *, out: int = 3, known: str = "") -> Any:
    sizes = ", ".join("abcdefg"[:out])
    return model(f"g (double[{shape}] x) => (double[{sizes}] y) <{known}> {{ y = {call} }}", version=20)


LINEAR_MAPS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dft of real numbers": (one("DFT <onesided = 1> (x)", "2, 6, 1"), (2, 6, 1)),
    "dft, longer": (one("DFT (x, n, axis)", "2, 5, 2", known="int64 n = {7}, int64 axis = {-2}"), (2, 5, 2)),
    "dft of one side of complex numbers": (one("DFT <onesided = 1> (x)", "2, 6, 2"), (2, 6, 2)),
    "inverse dft": (one("DFT <inverse = 1> (x)", "2, 6, 2"), (2, 6, 2)),
    "inverse dft of one side": (one("DFT <inverse = 1, onesided = 1> (x)", "2, 4, 2"), (2, 4, 2)),
    "short transforms": (
        one("STFT (x, step, w)", "1, 9, 1", out=4, known="int64 step = {2}, double[4] w = {0.1, 1.0, 0.7, 0.2}"),
        (1, 9, 1),
    ),
    "short transforms without a window": (
        one("STFT <onesided = 0> (x, step, , n)", "1, 9, 2", out=4, known="int64 step = {2}, int64 n = {4}"),
        (1, 9, 2),
    ),
    "unpooling": (
        one(
            "MaxUnpool <kernel_shape = [2], strides = [2]> (x, i, s)",
            "1, 1, 3",
            known="int64[1, 1, 3] i = {1, 2, 5}, int64[3] s = {1, 1, 8}",
        ),
        (1, 1, 3),
    ),
    "columns to an image": (
        one(
            "Col2Im <pads = [1, 0, 1, 0], dilations = [1, 2]> (x, image, block)",
            "1, 4, 8",
            out=4,
            known="int64[2] image = {3, 4}, int64[2] block = {2, 2}",
        ),
        (1, 4, 8),
    ),
    **{
        f"{mode} resizing by {place}": (
            one(
                f'Resize <mode = "{mode}", coordinate_transformation_mode = "{place}", antialias = {int(thin)},'
                f" exclude_outside = {int(mode == 'cubic')}> (x, , s)",
                "1, 5, 4",
                known="float[3] s = {1.0, 1.6, 0.5}",
            ),
            (1, 5, 4),
        )
        for mode, place, thin in (
            ("nearest", "half_pixel", False),
            ("linear", "align_corners", False),
            ("linear", "pytorch_half_pixel", True),
            ("cubic", "half_pixel_symmetric", True),
            ("cubic", "asymmetric", False),
        )
    },
}


@pytest.mark.parametrize("name", LINEAR_MAPS)
def test_a_linear_map_has_itself_for_a_derivative(name: str) -> None:
    f, shape = LINEAR_MAPS[name]
    x = random(*shape)
    assert f(x).size and np.abs(f(x)).max() > 0
    cg.check_grads(f, (x,), modes=("rev", "fwd"), against=("finite_differences",))


def test_unpooling_inverts_pooling_and_so_do_the_gradients() -> None:
    f = model(
        """g (double[1, 2, 4, 5] x) => (double[a, b, c, d] y, int64[a, b, e, f] i) {
            z, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2], dilations = [1, 2]> (x)
            y = MaxUnpool <kernel_shape = [2, 4], strides = [2, 1]> (z, i)
        }"""
    )
    x = np.random.default_rng(3).permutation(40).reshape(1, 2, 4, 5) / 7 + 1
    y, places = f(x)
    kept = np.zeros(x.size, bool)
    kept[places.ravel()] = True
    assert y.shape == x.shape and places.shape == (1, 2, 2, 2)
    assert sorted(y[y != 0]) == sorted(x.ravel()[kept])
    gradient = cg.grad(lambda x: (f(x)[0] ** 2).sum())(x)
    np.testing.assert_allclose(gradient.ravel(), np.where(kept, 2 * x.ravel(), 0))


DROPOUT = """g (double[3, 4] x, double ratio) => (double[3, 4] y, bool[3, 4] kept) <bool on = {{1}}> {{
    y, kept = Dropout {seed} (x, ratio, on)
}}"""


def test_dropout_with_a_seed_drops_the_same_elements_each_time_and_has_derivatives() -> None:
    f, x = model(DROPOUT.format(seed="<seed = 3>")), random(3, 4)
    y, kept = f(x, 0.25)
    assert kept.tolist() == (np.random.RandomState(3).uniform(size=(3, 4)) >= 0.25).tolist()
    np.testing.assert_allclose(y, np.where(kept, x / 0.75, 0))
    gradient = cg.grad(lambda x: (f(x, 0.25)[0] * x).sum())(x)
    np.testing.assert_allclose(gradient, np.where(kept, 2 * x / 0.75, 0))
    with pytest.raises(UnsupportedPrimitiveError, match="give the node a seed"):
        model(DROPOUT.format(seed=""))(x, 0.25)


SCAN = """g (int64[3] lengths, double[3] s, double[3, 5] xs) => (double[3] last, double[3, 5] rows) {{
    last, rows = Scan <num_scan_inputs = 1, directions = [{backwards}], body = step (double a, double x)
            => (double b, double row) {{
        b = Add (a, x)
        row = Mul (a, x)
    }}> (lengths, s, xs)
}}"""


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_over_sequences_of_different_lengths_stops_at_the_end_of_each(backwards: int) -> None:
    f = model(SCAN.format(backwards=backwards), version=8)
    lengths, s, xs = np.array([5, 2, 0]), random(3), random(3, 5, seed=1)
    last, rows = f(lengths, s, xs)
    for n, a, x, end, row in zip(lengths, s, xs, last, rows, strict=True):
        given = x[:n][::-1] if backwards else x[:n]
        np.testing.assert_allclose(end, a + given.sum())
        np.testing.assert_allclose(row[:n], np.cumsum([a, *given])[:-1] * given)
        assert not row[n:].any()
    cg.check_grads(lambda s, xs: f(lengths, s, xs), (s, xs), modes=("rev", "fwd"), against=("finite_differences",))


PADDINGS = ("zeros", "border", "reflection")


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("padding", "aligned"), [(padding, i % 2) for i, padding in enumerate(PADDINGS)])
def test_an_image_between_its_pixels_has_derivatives_by_the_places_too(mode: str, padding: str, aligned: int) -> None:
    f = model(
        f"""g (double[2, 1, 3, 4] x, double[2, 2, 3, 2] places) => (double[a, b, c, d] y) {{
            y = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = {aligned}> (x, places)
        }}""",
        version=20,
    )
    x, places = random(2, 1, 3, 4), 1.3 * np.random.default_rng(5).uniform(-1, 1, (2, 2, 3, 2))
    cg.check_grads(f, (x, places), modes=("rev", "fwd"), against=("finite_differences",))
