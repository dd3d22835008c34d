"""Windows by NumPy's names, and the Bessel function that Kaiser's is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import dtype_kind, result_type
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.elementwise import exp, floor, rint, sqrt, where
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.manipulation import moveaxis
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.array.reduction import max as largest
from ctrlgrad.frontend.array.reduction import mean
from ctrlgrad.frontend.array.reduction import min as smallest
from ctrlgrad.frontend.array.statistics import median
from ctrlgrad.frontend.functions import array_function, described, publish
from ctrlgrad.frontend.loops import map as mapped
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float

# Padding: with constants, with elements of the array, or by a function.
#
# The axes are padded one after another, so that a corner is the padding of padding, as in NumPy.


# Mode -> its option, and the default of the option.
OPTIONS: dict[str, dict[str, Any]] = {
    "constant": {"constant_values": 0},
    "edge": {},
    "empty": {},
    "linear_ramp": {"end_values": 0},
    "maximum": {"stat_length": None},
    "mean": {"stat_length": None},
    "median": {"stat_length": None},
    "minimum": {"stat_length": None},
    "reflect": {"reflect_type": "even"},
    "symmetric": {"reflect_type": "even"},
    "wrap": {},
}
_STATISTICS: dict[str, Callable[..., Any]] = {"maximum": largest, "mean": mean, "median": median, "minimum": smallest}


@array_function(of=operand)
def pad(x: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Any:
    """x with a margin; as `numpy.pad`, with all of its modes.

    Args:
        x: any shape. The sizes of the axes must be known for the modes "reflect", "symmetric" and "wrap".
        pad_width: known widths: one int, (before, after), or one such pair for each axis, or a dict from axes to them.
        mode: "constant", "edge", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect", "symmetric", "wrap",
            "empty" (zeros here), or a function `f(row, (before, after), axis, options)` that returns the changed row,
            as in JAX, or changes it in place, as in NumPy, where x is not traced.
        options: `constant_values`, `end_values` and `stat_length` in the forms of `pad_width`, a single value may be
            traced; `reflect_type`, "even" or "odd". For a function whatever it takes.

    Raises:
        UserInputError: an unknown mode or an option that the mode does not have.
        ShapeError: widths of the wrong form, or a margin that would be made of an empty axis.

    >>> cnp.pad([1, 2], (1, 0))
    array([0, 1, 2])
    >>> cnp.pad([1, 2, 3], 2, "reflect")
    array([3, 2, 1, 2, 3, 2, 1])
    """
    rank = rank_of(x)
    widths = _widths(pad_width, rank)
    if callable(mode):
        return _by_function(x, widths, mode, options)
    chosen = _options(mode, options)
    # No value of the margin is read where the mode is "empty".
    name = next(iter(chosen), None)
    pairs = [(None, None)] * rank
    if name in ("constant_values", "end_values", "stat_length"):
        pairs = _value_pairs(name, chosen[name], rank)
    for axis, (before, after) in enumerate(widths):
        if before or after:
            x = _padded(x, axis, (before, after), mode, pairs[axis], chosen.get("reflect_type"))
    return x


def _widths(pad_width: Any, rank: int) -> list[tuple[int, int]]:
    if isinstance(pad_width, Mapping):
        pad_width = [pad_width.get(a, pad_width.get(a - rank, 0)) for a in range(rank)]
        pad_width = [(w, w) if np.ndim(w) == 0 else w for w in pad_width]
    pairs = _pairs("the widths", pad_width, rank)
    if pairs.size and (dtype_kind(pairs.dtype) not in "iu" or (pairs < 0).any()):
        raise ShapeError(
            "pad: a width is not a whole number of zero or more",
            expected="integers of 0 or more",
            got=str(pad_width),
            hint="cut an array by slices: x[1:-1]",
        )
    return [(int(before), int(after)) for before, after in pairs]


def _pairs(what: str, given: Any, rank: int) -> np.ndarray:
    if isinstance(given, Tensor):
        raise TypeMismatchError(
            f"pad: {what} must be known",
            expected="numbers that are known when the function is traced",
            got=repr(given),
            hint="pass them as Python numbers",
        )
    try:
        return np.broadcast_to(np.asarray(given), (rank, 2))
    except ValueError as error:
        raise ShapeError(
            f"pad: {what} are of the wrong form",
            expected=f"one number, (before, after), or {rank} such pairs",
            got=str(given),
        ) from error


def _options(mode: str, given: Mapping[str, Any]) -> dict[str, Any]:
    check_choice("pad", "mode", mode, OPTIONS)
    for name in sorted(given):
        check_choice(f"pad(mode={mode!r})", "option", name, OPTIONS[mode])
    chosen = {**OPTIONS[mode], **given}
    check_choice("pad", "reflect_type", chosen.get("reflect_type", "even"), ("even", "odd"))
    return chosen


def _value_pairs(name: str, given: Any, rank: int) -> list[tuple[Any, Any]]:
    """For each axis what the option says before and after it; a single value may be traced."""
    if given is None or isinstance(given, Tensor):
        return [(given, given)] * rank
    return [(pair[0], pair[1]) for pair in _pairs(f"the {name}", given, rank)]


def _padded(x: Any, axis: int, widths: tuple[int, int], mode: str, values: tuple[Any, Any], kind: Any) -> Any:
    if mode in ("constant", "empty"):
        filled = tuple(_constant(x, axis, w, value) for w, value in zip(widths, values, strict=True))
        return _between(filled, x, axis)
    if shape_of(x)[axis] == 0:
        raise ShapeError(
            f"pad: mode {mode!r} on an empty axis",
            expected="an axis with an element at least",
            got=f"axis {axis} of size 0",
            hint="mode='constant' needs none",
        )
    if mode in ("reflect", "symmetric", "wrap"):
        size = known_size("pad", shape_of(x)[axis])
        places = np.arange(-widths[0], size + widths[1])
        if mode == "wrap":
            return take(x, places % size, axis)
        # A reflection leaves the edge out, a symmetric one repeats it.
        period = size - 1 if mode == "reflect" else size
        if period == 0:
            return take(x, places * 0, axis)
        turn, place = np.divmod(places, period)
        back = period - place if mode == "reflect" else period - 1 - place
        found = take(x, np.where(turn % 2 == 0, place, back), axis)
        return found if kind == "even" else _odd(x, found, axis, turn)
    margins = []
    for side, (width, value) in enumerate(zip(widths, values, strict=True)):
        edge = sliced(x, axis, -1, None) if side else sliced(x, axis, 0, 1)
        if mode in _STATISTICS:
            edge = _statistic(x, axis, side, mode, value)
        ramp = mode == "linear_ramp" and width > 0
        margins.append(_ramp(edge, axis, width, side, value) if ramp else _repeated(edge, axis, width))
    return _between(tuple(margins), x, axis)


def _between(margins: tuple[Any, ...], x: Any, axis: int) -> Any:
    before, after = margins
    return concatenated([part for part in (before, x, after) if shape_of(part)[axis] != 0], axis)


def _constant(x: Any, axis: int, width: int, value: Any) -> Any:
    value = to_dtype("pad", 0 if value is None else value, dtype_of(x))
    return broadcasted(value, [width if a == axis else dim(x, a) for a in range(rank_of(x))])


def _repeated(edge: Any, axis: int, width: int) -> Any:
    return broadcasted(edge, [width if a == axis else dim(edge, a) for a in range(rank_of(edge))])


def _statistic(x: Any, axis: int, side: int, mode: str, length: Any) -> Any:
    """The statistic of the `length` elements next to the margin, or of all; that of integers is rounded."""
    if length is not None:
        if length < 1:
            raise UserInputError("pad: a stat_length below 1", expected="1 or more, or None", got=str(length))
        size = shape_of(x)[axis]
        count = int(length) if size is None else min(int(length), size)
        x = sliced(x, axis, -count, None) if side else sliced(x, axis, 0, count)
    found = _STATISTICS[mode](x, axis, keepdims=True)
    return cast(rint(found) if dtype_kind(dtype_of(x)) in "iu" else found, dtype_of(x))


def _ramp(edge: Any, axis: int, width: int, side: int, end: Any) -> Any:
    """Values from `end` at the outside towards the edge, without the edge itself; integers are rounded down."""
    dtype = dtype_of(edge)
    exact = result_type(dtype, np.float32 if dtype_kind(dtype) in "fc" else np.float64)
    start = to_dtype("pad", end, exact)
    share = np.arange(width) / width
    share = np.reshape(share[::-1] if side else share, _along(axis, width, rank_of(edge)))
    found = start + (cast(edge, exact) - start) * share.astype(np.zeros((), exact).real.dtype)
    return cast(found if dtype_kind(dtype) in "fc" else floor(found), dtype)


def _along(axis: int, size: int, rank: int) -> list[int]:
    return [size if a == axis else 1 for a in range(rank)]


def _odd(x: Any, found: Any, axis: int, turn: np.ndarray) -> Any:
    """Reflected in the edges: each turn adds twice the way from the first element to the last, or its half."""
    first, last = expanded(at_index(x, axis, 0), (axis,)), expanded(at_index(x, axis, -1), (axis,))
    shape = _along(axis, turn.size, rank_of(x))
    dtype = dtype_of(x)
    even = np.reshape(turn % 2 == 0, shape)
    # An even turn is x moved by (last - first) for each turn; an odd one is 2 * edge - x moved likewise.
    steps = np.reshape(turn, shape).astype(dtype)
    moved = (last - first) * np.where(even, steps, steps - 1).astype(dtype)
    sign = np.where(even, 1, -1).astype(dtype)
    return found * sign + (last * 2) * np.where(even, 0, 1).astype(dtype) + moved


def _by_function(x: Any, widths: list[tuple[int, int]], function: Callable[..., Any], options: Any) -> Any:
    """The function on each row along each axis of x with a margin of zeros."""
    for axis, (before, after) in enumerate(widths):
        x = _between((_constant(x, axis, before, 0), _constant(x, axis, after, 0)), x, axis)
    for axis, pair in enumerate(widths):
        last = moveaxis(x, axis, -1)
        rows = reshaped(last, [times(dims(last)[:-1]), dim(last, -1)])

        def one(row: Any, axis: int = axis, pair: tuple[int, int] = pair) -> Any:
            changed = row if isinstance(row, Tensor) else np.array(row)
            result = function(changed, pair, axis, options)
            return changed if result is None else result

        # At once for known numbers, so that a function of NumPy's kind may change a row in place.
        changed = mapped(one, rows) if isinstance(rows, Tensor) else np.stack([one(row) for row in rows])
        x = moveaxis(reshaped(changed, dims(last)), -1, axis)
    return x


# Chebyshev coefficients of exp(-x) i0(x) on [0, 8], and of exp(-x) i0(x) sqrt(x) as a function of 16 / x beyond:
# computed from the power series and the asymptotic one with 75 digits.
NEAR = (
    0.33839763720473803, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764,
    0.04930528423967071, -0.02373741480589947, 0.010546460394594998, -0.004324309995050576,
    0.0016394756169413357, -0.0005763755745385824, 0.00018850288509584165, -5.754195010082104e-05,
    1.6448448070728896e-05, -4.4167383584587505e-06, 1.1173875391201037e-06, -2.670793853940612e-07,
    6.046995022541919e-08, -1.300025009986248e-08, 2.6598237246823866e-09, -5.189795601635263e-10,
    9.675809035373237e-11, -1.7268262914415555e-11, 2.95505266312964e-12, -4.856446783111915e-13,
    7.676185498603463e-14, -1.1685332877849838e-14, 1.7153912841895778e-15, -2.4312797200684995e-16,
    3.330783115560841e-17, -4.414341593589106e-18, 5.583932512740209e-19,
)  # fmt: skip
FAR = (
    0.4022452055070544, 0.0033691164782556943, 6.889758346916825e-05, 2.8913705208347567e-06,
    2.0489185894690638e-07, 2.266668990498178e-08, 3.396232025708386e-09, 4.940602388224974e-10,
    1.1889147107846069e-11, -3.149916527963373e-11, -1.3215811840444411e-11, -1.7941785315052209e-12,
    7.180124451217564e-13, 3.8527783828690237e-13, 1.540086223622408e-14, -4.150569359939181e-14,
    -9.554846849041664e-15, 3.8116814243351245e-15, 1.77256012037355e-15, -3.4255224890000575e-16,
    -2.8275912723664775e-16, 3.4628248226046367e-17, 4.4627353687004704e-17, -4.894951052917917e-18,
    -7.039337842458663e-18, 1.2410185249324504e-18,
)  # fmt: skip


def _series(coefficients: Sequence[float], x: Any) -> Any:
    """The sum of coefficients times Chebyshev polynomials, by Clenshaw's recurrence."""
    now: Any = 0.0
    before: Any = 0.0
    for c in reversed(coefficients[1:]):
        now, before = c + 2.0 * x * now - before, now
    return coefficients[0] + x * now - before


def by_chebyshev(x: Any, near: Sequence[float], far: Sequence[float]) -> Any:
    """A function of numbers from 0 on, by its series on [0, 8] and that in 16 / x, over sqrt(x), beyond."""
    is_near = x <= 8
    inner, outer = where(is_near, x, 8), where(is_near, 8, x)
    return where(is_near, _series(near, inner / 4 - 1), _series(far, 16 / outer - 1) / sqrt(outer))


@array_function(of=floats)
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 0; as `numpy.i0`, and differentiable.

    >>> float(cnp.round(cnp.i0(1.0), 6))
    1.266066
    """
    size = absolute(cast(x, result_type(dtype_of(x), np.float32)))
    return cast(exp(size) * by_chebyshev(size, NEAR, FAR), dtype_of(x))


@array_function()
def kaiser(M: int, beta: Any) -> Any:
    """Kaiser's window of M numbers; as `numpy.kaiser`. `beta` may be traced.

    >>> cnp.kaiser(3, 0.0)
    array([1., 1., 1.])
    """
    beta = operand("kaiser", beta)
    dtype, beta = double_dtype(dtype_of(beta)), cast(beta, np.float64)
    if M <= 1:
        return np.ones(M if M > 0 else 0, dtype)
    half = (M - 1) / 2
    return cast(i0(beta * np.sqrt(1 - ((np.arange(M) - half) / half) ** 2)) / i0(beta), dtype)


def _window(name: str, summary: str, example: str) -> Callable[[int], Any]:
    def function(M: int) -> Any:
        return getattr(np, name)(M).astype(default_float())

    summary = f"{summary} of M numbers of the default dtype; as `numpy.{name}`."
    return array_function()(described(function, name, summary, f"cnp.{example}"))


bartlett = _window("bartlett", "Bartlett's window, a triangle,", "bartlett(3) -> array([0., 1., 0.])")
blackman = _window(
    "blackman", "Blackman's window", "blackman(5).round(2) + 0.0 -> array([0.  , 0.34, 1.  , 0.34, 0.  ])"
)
hamming = _window("hamming", "Hamming's window", "hamming(3) -> array([0.08, 1.  , 0.08])")
hanning = _window("hanning", "Von Hann's window", "hanning(3) -> array([0., 1., 0.])")


publish(__name__, "by_chebyshev")
