"""Interpolation, integrals, differences, convolutions, and ranges by ratio."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import apply, cast
from ctrlgrad.frontend.array.creation import ones, zeros
from ctrlgrad.frontend.array.decompositions import svd
from ctrlgrad.frontend.array.elementwise import *
from ctrlgrad.frontend.array.elementwise import abs as absolute
from ctrlgrad.frontend.array.indexing import take
from ctrlgrad.frontend.array.linalg import matmul
from ctrlgrad.frontend.array.manipulation import broadcast_arrays, concatenate, flip, moveaxis, ravel, stack
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.array.ranges import vander
from ctrlgrad.frontend.array.reduction import any as some
from ctrlgrad.frontend.array.reduction import cumsum, trace
from ctrlgrad.frontend.array.reduction import sum as total
from ctrlgrad.frontend.array.sorting import searchsorted
from ctrlgrad.frontend.array.windows import pad
from ctrlgrad.frontend.functions import array_function, publish
from ctrlgrad.frontend.loops import fori_loop, while_loop

# Polynomials as arrays of coefficients, the highest first.


@array_function()
def polyval(p: Any, x: Any) -> Any:
    """A polynomial, its coefficients from the highest, at x; as `numpy.polyval`, by Horner's scheme.

    >>> float(cnp.polyval([1.0, 0.0, -1.0], 3.0))
    8.0
    """
    p, x = operand("polyval", p), operand("polyval", x)
    found = x * 0
    for k in range(known_size("polyval", shape_of(p)[0])):
        found = found * x + p[k]
    return found


@array_function()
def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials; as `numpy.polyadd`.

    >>> cnp.polyadd([1, 2], [3])
    array([1, 5])
    """
    a1, a2 = same_dtype("polyadd", [a1, a2])
    sizes = [known_size("polyadd", shape_of(a)[0]) for a in (a1, a2)]
    return pad(a1, (max(sizes) - sizes[0], 0)) + pad(a2, (max(sizes) - sizes[1], 0))


@array_function()
def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials; as `numpy.polysub`.

    >>> cnp.polysub([1, 2], [3])
    array([ 1, -1])
    """
    return polyadd(a1, -operand("polysub", a2))


@array_function()
def polymul(a1: Any, a2: Any) -> Any:
    """The product of two polynomials; as `numpy.polymul`, leading zeros kept.

    >>> cnp.polymul([1, 1], [1, -1])
    array([ 1,  0, -1])
    """
    return convolve(a1, a2)


@array_function(of=operand)
def polyder(p: Any, m: int = 1) -> Any:
    """The derivative of a polynomial; as `numpy.polyder`.

    >>> cnp.polyder([1, 2, 3])
    array([2, 2])
    """
    for _ in range(whole_number("polyder", "m", m, least=0)):
        size = known_size("polyder", shape_of(p)[0])
        p = p[:-1] * np.arange(size - 1, 0, -1, dtype=dtype_of(p))
    return p


@array_function(of=floats)
def polyint(p: Any, m: int = 1, k: Any = 0) -> Any:
    """The integral of a polynomial, its constants k; as `numpy.polyint`.

    >>> cnp.polyint([2.0, 1.0])
    array([1., 1., 0.])
    """
    m = whole_number("polyint", "m", m, least=0)
    constants = np.broadcast_to(np.asarray(k, dtype_of(p)), (m,))
    for i in range(m):
        size = known_size("polyint", shape_of(p)[0])
        p = concatenate([p / np.arange(size, 0, -1, dtype=dtype_of(p)), constants[i : i + 1]], 0)
    return p


@array_function()
def polydiv(u: Any, v: Any) -> tuple[Any, Any]:
    """The quotient and the remainder of two polynomials; as `jax.numpy.polydiv`, which keeps the size of u.

    >>> cnp.polydiv([1.0, 0.0, -1.0], [1.0, 1.0])
    (array([ 1., -1.]), array([0., 0., 0.]))
    """
    u, v = (floats("polydiv", x) for x in same_dtype("polydiv", [u, v]))
    size, degree = (known_size("polydiv", shape_of(x)[0]) for x in (u, v))
    quotient = []
    for k in range(size - degree + 1):
        factor = u[k] / v[0]
        quotient.append(factor)
        u = u - pad(factor * v, (k, size - degree - k))
    return (stack(quotient) if quotient else zeros(1, dtype_of(u))), u


@array_function()
def poly(seq_of_zeros: Any) -> Any:
    """The polynomial with these zeros, or the characteristic polynomial of a matrix; as `numpy.poly`.

    >>> cnp.poly([1.0, -1.0])
    array([ 1.,  0., -1.])
    """
    given = floats("poly", seq_of_zeros)
    if rank_of(given) == 2:
        # Faddeev and LeVerrier: each coefficient is the trace of a product of matrices.
        size = known_size("poly", shape_of(given)[0])
        unit = np.eye(size, dtype=dtype_of(given))
        coefficients, m = [ones((), dtype_of(given))], unit
        for k in range(1, size + 1):
            product = matmul(given, m)
            coefficients.append(-trace(product) / k)
            m = product + coefficients[-1] * unit
        return stack(coefficients)
    one = ones(1, dtype_of(given))
    found = one
    for k in range(known_size("poly", shape_of(reshaped(given, [times(dims(given))]))[0])):
        found = convolve(found, concatenate([one, -ravel(given)[k : k + 1]]))
    return found


@array_function()
def polyfit(x: Any, y: Any, deg: int, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False) -> Any:
    """The polynomial of degree `deg` next to points by least squares; as `numpy.polyfit`.

    Args:
        x: [n].
        y: [n], or [n, k] for k polynomials at once.
        deg: the degree, a known integer.
        rcond: singular values below this part of the largest one count as zero; n times the precision by default.
        full: return also the sums of squares that are left, the rank, the singular values and rcond.
        w: [n], what each distance is multiplied with.
        cov: return also the covariance of the coefficients, scaled by the residuals unless it is "unscaled".

    >>> cnp.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1).round(6)
    array([2., 1.])
    """
    x, y = (floats("polyfit", v) for v in same_dtype("polyfit", [x, y]))
    order, count = whole_number("polyfit", "deg", deg) + 1, dim(x, 0)
    if rcond is None:
        rcond = count * finfo(dtype_of(x)).eps
    left, right = vander(x, order), y
    if w is not None:
        w = cast(operand("polyfit", w), dtype_of(x))
        left, right = left * w[:, None], right * (w[:, None] if rank_of(y) == 2 else w)
    # Columns of one length make the matrix well conditioned.
    scale = sqrt(total(left * left, 0))
    left = left / scale
    factors = svd(left)
    kept = rcond * factors.S[0] < factors.S
    inverse = where(kept, 1 / where(kept, factors.S, 1), 0)
    columns = right if rank_of(right) == 2 else right[:, None]
    found = matmul(factors.Vh.T, inverse[:, None] * matmul(factors.U.T, columns)) / scale[:, None]
    result = found if rank_of(y) == 2 else found[:, 0]
    if full:
        apart = columns - matmul(left * scale, found)
        return result, total(apart * apart, 0), total(kept), factors.S, rcond
    if not cov:
        return result
    base = matmul(factors.Vh.T * inverse**2, factors.Vh) / (scale[:, None] * scale)
    if cov == "unscaled":
        return result, base
    if isinstance(count, int) and count <= order:
        raise ShapeError(
            "polyfit: too few points to scale the covariance",
            expected=f"more than {order} points",
            got=str(count),
            hint="cov='unscaled'",
        )
    apart = columns - matmul(left * scale, found)
    factor = total(apart * apart, 0) / (count - order)
    return result, (base[:, :, None] * factor if rank_of(y) == 2 else base * factor[0])


# Whole numbers: common divisors, and the bits that they are made of.


# The weights of the bits of a byte, the highest first.
_WEIGHTS = 2 ** np.arange(7, -1, -1)


@array_function()
def gcd(x1: Any, x2: Any) -> Any:
    """The greatest common divisor, 0 of two zeros; as `numpy.gcd`, by Euclid's algorithm in a loop.

    >>> cnp.gcd([12, 7], 18)
    array([6, 1])
    """
    xs = operands("gcd", (x1, x2))
    dtypes = loop_dtypes(np.gcd, xs)
    a, b = broadcast_arrays(*(absolute(cast(x, dtype)) for x, dtype in zip(xs, dtypes, strict=True)))

    def step(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        a, b = pair
        goes_on = b != 0
        return where(goes_on, b, a), where(goes_on, remainder(a, where(goes_on, b, 1)), 0).astype(dtype_of(b))

    return while_loop(lambda pair: some(pair[1] != 0), step, (a, b), name="gcd")[0]


@array_function()
def lcm(x1: Any, x2: Any) -> Any:
    """The least common multiple, 0 where one is 0; as `numpy.lcm`.

    >>> cnp.lcm([4, 7], 6)
    array([12, 42])
    """
    xs = operands("lcm", (x1, x2))
    a, b = (cast(x, dtype) for x, dtype in zip(xs, loop_dtypes(np.lcm, xs), strict=True))
    divisor = gcd(a, b)
    none = divisor == 0
    return absolute(multiply(floor_divide(a, where(none, 1, divisor).astype(dtype_of(a))), b))


@array_function(of=operand)
def bitwise_count(x: Any) -> Any:
    """Number of bits of abs(x) that are set: uint8; as `numpy.bitwise_count`.

    >>> cnp.bitwise_count([7, -8])
    array([3, 1], dtype=uint8)
    """
    if dtype_kind(dtype_of(x)) not in "biu":
        raise TypeMismatchError(
            "bitwise_count: not an integer", expected="integers", got=shown(x), hint="x.astype(int) makes integers"
        )
    n = cast(absolute(x) if dtype_kind(dtype_of(x)) == "i" else x, np.uint64)
    # Sums of neighbouring groups of 1, 2 and 4 bits, each in its place; a product adds up the eight bytes.
    for width, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        kept = np.uint64(mask)
        n = bitwise_and(n, kept) + bitwise_and(bitwise_right_shift(n, np.uint64(width)), kept)
    return cast(bitwise_right_shift(multiply(n, np.uint64(0x0101010101010101)), np.uint64(56)), np.uint8)


def _check_order(operation: str, bitorder: str) -> None:
    check_choice(operation, "bitorder", bitorder, ("big", "little"))


@array_function()
def packbits(x: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements along an axis as the bits of a byte, zeros at the end; as `numpy.packbits`.

    >>> cnp.packbits([1, 0, 1])
    array([160], dtype=uint8)
    """
    _check_order("packbits", bitorder)
    x = truth("packbits", x)
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("packbits", axis, rank_of(x)))
    last = moveaxis(x, axis, -1)
    size = dim(last, -1)
    if isinstance(size, int):
        last = pad(last, [(0, 0)] * (rank_of(x) - 1) + [(0, -size % 8)])
    else:
        last = pad(last, [(0, 0)] * (rank_of(x) - 1) + [(0, 7)])[..., : (size + 7) // 8 * 8]
    groups = reshaped(last, [*dims(last)[:-1], dim(last, -1) // 8, 8])
    weights = _WEIGHTS if bitorder == "big" else _WEIGHTS[::-1]
    return moveaxis(cast(total(groups * weights, -1), np.uint8), -1, axis)


@array_function()
def unpackbits(x: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """The bits of bytes as elements along an axis; as `numpy.unpackbits`, of uint8 alone.

    Args:
        x: uint8, rank 1 or more.
        axis: None flattens.
        count: how many to keep; a negative number leaves as many out, one that is too large fills up with zeros.
        bitorder: "big" has the highest bit first.

    >>> cnp.unpackbits(cnp.asarray([160], cnp.uint8), count=3)
    array([1, 0, 1], dtype=uint8)
    """
    _check_order("unpackbits", bitorder)
    x = operand("unpackbits", x)
    if dtype_of(x) != np.uint8:
        raise TypeMismatchError(
            "unpackbits: not bytes", expected="uint8", got=shown(x), hint="x.astype('uint8') makes bytes"
        )
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of("unpackbits", axis, rank_of(x)))
    last = moveaxis(x, axis, -1)
    weights = (_WEIGHTS if bitorder == "big" else _WEIGHTS[::-1]).astype(np.uint8)
    bits = cast(bitwise_and(apply("expand_dims", [last], {"axes": (rank_of(last),)}), weights) != 0, np.uint8)
    found = reshaped(bits, [*dims(last)[:-1], dim(last, -1) * 8])
    size = dim(found, -1)
    if count is not None and isinstance(size, int) and count > size:
        found = pad(found, [(0, 0)] * (rank_of(x) - 1) + [(0, count - size)])
    elif count is not None:
        found = found[..., :count]
    return moveaxis(found, -1, axis)


# Largest number of terms of a convolution that are unrolled.
_TERMS = 16


@array_function()
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Values between points by straight lines; as `numpy.interp`. Differentiable in all three.

    >>> float(cnp.interp(1.5, [1.0, 2.0], [10.0, 20.0]))
    15.0
    """
    x, xp, fp = floats("interp", x), floats("interp", xp), floats("interp", fp)
    if period is not None:
        order = (xp % period).argsort()
        x, xp, fp = x % period, take(xp % period, order), take(fp, order)
        xp = concatenate([xp[-1:] - period, xp, xp[:1] + period], 0)
        fp = concatenate([fp[-1:], fp, fp[:1]], 0)
    last = dim(xp, 0) - 1
    place = searchsorted(xp, x, side="right")
    place = where(place < 1, 1, where(place > last, last, place))
    low, high = take(xp, place - 1), take(xp, place)
    f_low, f_high = take(fp, place - 1), take(fp, place)
    width = high - low
    found = where(width == 0, f_low, f_low + (x - low) * (f_high - f_low) / where(width == 0, 1.0, width))
    if period is None:
        found = where(x < xp[0], fp[0] if left is None else left, found)
        found = where(x > xp[-1], fp[-1] if right is None else right, found)
    return found


@array_function("trapz", of=floats)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral by the trapezoidal rule; as `numpy.trapezoid`.

    >>> float(cnp.trapezoid(cnp.asarray([1.0, 2.0, 3.0])))
    4.0
    """
    axis = axis_of("trapezoid", axis, rank_of(y))
    y = moveaxis(y, axis, -1)
    width = dx
    if x is not None:
        x = floats("trapezoid", x)
        x = moveaxis(x, axis, -1) if rank_of(x) > 1 else x
        width = x[..., 1:] - x[..., :-1]
    return total(width * (y[..., 1:] + y[..., :-1]), -1) * 0.5


@array_function()
def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """The differences of neighbours in the flattened array; as `numpy.ediff1d`.

    >>> cnp.ediff1d([1, 4, 9])
    array([3, 5])
    """
    x = ravel(operand("ediff1d", x))
    parts = [to_begin, x[1:] - x[:-1], to_end]
    return concatenate([ravel(operand("ediff1d", p)).astype(dtype_of(x)) for p in parts if p is not None], 0)


@array_function()
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Slopes by central differences, one-sided at the ends; as `numpy.gradient` with edge_order 1.

    >>> cnp.gradient(cnp.asarray([1.0, 4.0, 9.0]))
    array([3., 4., 5.])
    """
    if edge_order != 1:
        raise UserInputError(
            "gradient: edge_order 1 alone", expected="1", got=repr(edge_order), hint="leave edge_order out"
        )
    f = floats("gradient", f)
    axes = range(rank_of(f)) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = [axis_of("gradient", a, rank_of(f)) for a in axes]
    spacings = list(varargs) * len(axes) if len(varargs) == 1 else list(varargs) or [1.0] * len(axes)
    found = [_slopes(f, a, h) for a, h in zip(axes, spacings, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


def _slopes(f: Any, axis: int, spacing: Any) -> Any:
    f = moveaxis(f, axis, -1)
    h = operand("gradient", spacing)
    if rank_of(h) == 0:
        inner = (f[..., 2:] - f[..., :-2]) / (2.0 * h)
        first, last = h, h
    else:
        step = h[1:] - h[:-1]
        before, after = step[:-1], step[1:]
        inner = f[..., 2:] * before / after - f[..., :-2] * after / before
        inner = (inner + f[..., 1:-1] * (after / before - before / after)) / (before + after)
        first, last = step[0], step[-1]
    ends = (f[..., 1:2] - f[..., :1]) / first, (f[..., -1:] - f[..., -2:-1]) / last
    return moveaxis(concatenate([ends[0], inner, ends[1]], -1), -1, axis)


@array_function()
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """The convolution of two vectors, the shorter of known size; as `numpy.convolve`.

    >>> cnp.convolve([1.0, 2.0, 3.0], [1.0, 1.0])
    array([1., 3., 5., 3.])
    """
    check_choice("convolve", "mode", mode, ("full", "same", "valid"))
    a, v = same_dtype("convolve", [a, v])
    sizes = [shape_of(x)[0] for x in (a, v)]
    if sizes[0] is not None and (sizes[1] is None or sizes[0] < sizes[1]):
        a, v = v, a
    size = known_size("convolve", shape_of(v)[0])
    count = dim(a, 0)
    padded = pad(a, size - 1)
    full = _sliding(padded, flip(v), count + size - 1, size)
    if mode == "full":
        return full
    if mode == "same":
        return sliced(full, 0, (size - 1) // 2, (size - 1) // 2 + count)
    return sliced(full, 0, size - 1, count)


def _sliding(x: Any, weights: Any, count: Any, size: int) -> Any:
    """Sum of `size` neighbours times weights, at `count` places.

    A loop adds `_TERMS` of them at a time, so that the graph does not grow with `size`.
    """

    def added(found: Any, first: Any, number: int) -> Any:
        for k in range(number):
            part = x[first + k : first + k + count] * weights[first + k]
            found = part if found is None else found + part
        return found

    if size <= 2 * _TERMS or not isinstance(count, int):
        return added(None, 0, size)
    rounds = (size - 1) // _TERMS
    alone = size - rounds * _TERMS
    return fori_loop(0, rounds, lambda i, found: added(found, alone + i * _TERMS, _TERMS), added(None, 0, alone))


@array_function()
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """The correlation of two vectors; as `numpy.correlate`.

    >>> cnp.correlate([1.0, 2.0, 3.0], [1.0, 1.0])
    array([3., 5.])
    """
    a, v = same_dtype("correlate", [a, v])
    v = v.conj() if dtype_kind(dtype_of(v)) == "c" else v
    sizes = shape_of(a)[0], shape_of(v)[0]
    found = convolve(a, flip(v), mode)
    if mode == "same" and None not in sizes and sizes[0] < sizes[1]:  # type: ignore[operator]
        # NumPy centres what the longer one is moved over.
        return flip(convolve(flip(a), v, mode))
    return found


@array_function(of=floats)
def unwrap(p: Any, discont: Any = None, axis: int = -1, period: Any = 2 * np.pi) -> Any:
    """Angles without jumps of more than half a period; as `numpy.unwrap`.

    >>> cnp.unwrap(cnp.asarray([0.0, 6.0])).round(3)
    array([ 0.   , -0.283])
    """
    axis = axis_of("unwrap", axis, rank_of(p))
    p = moveaxis(p, axis, -1)
    step = p[..., 1:] - p[..., :-1]
    half = period / 2
    wrapped = (step + half) % period - half
    wrapped = where((wrapped == -half) & (step > 0), half, wrapped)
    change = where(absolute(step) < (half if discont is None else discont), 0.0, wrapped - step)
    return moveaxis(concatenate([p[..., :1], p[..., 1:] + cumsum(change, -1)], -1), -1, axis)


def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """Numbers at equal ratios between two positive ones; as `numpy.geomspace`.

    >>> cnp.geomspace(1.0, 4.0, 3).round(6)
    array([1., 2., 4.])
    """
    from_, to = floats("geomspace", start), floats("geomspace", stop)
    return logspace(log(from_) / np.log(10.0), log(to) / np.log(10.0), num, endpoint, dtype=dtype, axis=axis)


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """Powers of a base at equal steps of the exponent; as `numpy.logspace`.

    >>> cnp.logspace(0.0, 2.0, 3).round(6)
    array([  1.,  10., 100.])
    """
    start, stop = floats("logspace", start), floats("logspace", stop)
    steps = np.arange(num) / max(num - 1 if endpoint else num, 1)
    steps = reshaped(steps, [num, *[1] * max(rank_of(start), rank_of(stop))])
    found = power(base, start + (stop - start) * steps)
    found = found if dtype is None else cast(found, dtype)
    return moveaxis(found, 0, axis) if axis else found


publish(__name__)
