"""Elementwise ops, each with its facts: operands broadcast as in NumPy, dtypes are equal (the frontend promotes).

Names are NumPy's. Dividing by zero, overflow and the like follow IEEE 754 and raise nothing. Where a function has a
kink, its derivative is the mean of both sides (maximum, minimum, abs), as in JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, computed_dtype, dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.ir.op import Trait, Use
from ctrlgrad.ir.types import TensorType, broadcast_shapes
from ctrlgrad.ops.term import TensorRule, Term, declared, emit, require_kind, where
from ctrlgrad.records import record

# Functions that NumPy lacks, as formulas: read by NumPy for arrays, and by the plan for the numbers of machine code.
#
# A formula uses operators, comparisons and `Functions`, so that it holds for both. Float16 is computed in float32.


class Formula(Protocol):
    """A function of values of any kind."""

    def __call__(self, x: Any, of: Functions) -> Any: ...


@record
class Functions:
    """Functions that a formula is built from, for values of one kind."""

    # float32; else float64.
    is_single: bool
    log: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """With these coefficients, highest power first."""
    value: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


# M. Giles, "Approximating the erfinv function" (GPU Computing Gems, Jade edition, 2012).
_SINGLE_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_SINGLE_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
_DOUBLE_CENTRE = (
    -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
    -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
    -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
    1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
    -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352, -0.00074070253416626697512,
    -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356,
)  # fmt: skip
_DOUBLE_TAIL = (
    2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
    1.5027403968909827627e-06, -4.013867526981545969e-06, 2.9234449089955446044e-06, 1.2475304481671778723e-05,
    -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
    0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
    0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
)  # fmt: skip
_DOUBLE_END = (
    -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09, -3.7894654401267369937e-09,
    7.6157012080783393804e-09, -1.4960026627149240478e-08, 2.9147953450901080826e-08, -6.7711997758452339498e-08,
    2.2900482228026654717e-07, -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
    7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833622122026, 1.0103004648645343977,
    4.8499064014085844221,
)  # fmt: skip


def erfinv(x: Any, of: Functions) -> Any:
    """The inverse of the error function: infinite at -1 and 1, NaN beyond; x times a polynomial in log(1 - x^2)."""
    # Both differences are exact where x is near an end, as 1 - x * x is not.
    w = 0.0 - of.log((1.0 - x) * (1.0 + x))
    if of.is_single:
        centre = _polynomial(w - 2.5, _SINGLE_CENTRE)
        factor = of.where(w < 5.0, centre, _polynomial(of.sqrt(w) - 3.0, _SINGLE_TAIL))
    else:
        root = of.sqrt(w)
        tail = of.where(w < 16.0, _polynomial(root - 3.25, _DOUBLE_TAIL), _polynomial(root - 5.0, _DOUBLE_END))
        factor = of.where(w < 6.25, _polynomial(w - 3.125, _DOUBLE_CENTRE), tail)
    # No x but 1 and -1 gives a larger w than 37.
    return of.where(w > 40.0, x * math.inf, x * factor)


FORMULAS: dict[str, Formula] = {"erfinv": erfinv}


def of_arrays(formula: Formula) -> Callable[[Any], Any]:
    """A formula as a function of floating-point arrays, with a result of their dtype."""

    def function(x: Any) -> Any:
        wide = x.astype(computed_dtype(x.dtype))
        return formula(wide, Functions(wide.dtype == np.float32, np.log, np.sqrt, np.where)).astype(x.dtype)

    return function


BOOL = np.dtype(bool)


def broadcast(operation: str, types: Sequence[TensorType], dtype: np.dtype) -> TensorType:
    """The type of an elementwise result."""
    shape = broadcast_shapes([t.shape for t in types])
    if shape is None:
        raise ShapeError(
            f"{operation}: the operands' shapes do not broadcast",
            expected="dimensions that are equal or 1, aligned at the right",
            got=" and ".join(str(t) for t in types),
            hint="add dimensions of size 1 where they are missing: x[:, None], or numpy.expand_dims",
        )
    return TensorType(dtype, shape)


def same_dtype(operation: str, types: Sequence[TensorType]) -> np.dtype:
    dtypes = {t.dtype for t in types}
    if len(dtypes) != 1:
        raise TypeMismatchError(
            f"{operation}: the operands' dtypes differ",
            expected="one dtype",
            got=" and ".join(str(t) for t in types),
            hint="cast them first, with .astype",
        )
    return dtypes.pop()


def _rule(name: str, kinds: str, result: np.dtype | None) -> TensorRule:
    def infer(attrs: Attributes, *types: TensorType) -> TensorType:
        dtype = same_dtype(name, types)
        require_kind(name, kinds, types)
        return broadcast(name, types, dtype if result is None else result)

    return infer


# A map from a tangent `t` of one operand to that of the result `z`: `(t, z, *operands)`.
Partial = Callable[..., Term]


@record
class Facts:
    """Facts about an elementwise op, in one entry that all stages read if they need no more than this."""

    # Its partial derivatives, None for an operand without one. Being diagonal, each is its own transpose, so both modes
    # use it. Empty where no operand has one; None where its rule is written out in `gradients.rules`.
    partials: tuple[Partial | None, ...] | None
    # NumPy's function.
    numpy: Callable[..., Any]
    # JAX's, by its name in the package `jax`.
    jax: str


FACTS: dict[str, Facts] = {}


def add(
    name: str,
    arity: int,
    infer: TensorRule,
    partials: tuple[Partial | None, ...] | None,
    *,
    numpy: Callable[..., Any] | None = None,
    jax: str = "",
    total: Trait | None = None,
    cheap: bool = True,
    traits: Sequence[Trait] = (),
    attributes: type[Attributes] = Attributes,
) -> None:
    """Declare an op with its facts; NumPy and `jax.numpy` have it by its name unless something else is said.

    Not cheap is what takes several times as long as `exp`: its results are saved for the backward side.
    """
    kinds = [Trait.ELEMENTWISE, *([Trait.CHEAP] if cheap else ()), *([total] if total is not None else ())]
    declared(name, arity, *kinds, *traits, attributes=attributes)(infer)
    FACTS[name] = Facts(partials, numpy or getattr(np, name), jax or f"numpy.{name}")


def _unary(name: str, kinds: str, partial: Partial, **others: Any) -> None:
    add(name, 1, _rule(name, kinds, None), (partial,), total=Trait.TOTAL, **others)


def _binary(name: str, kinds: str, *partials: Partial | None, **others: Any) -> None:
    add(name, 2, _rule(name, kinds, None), partials, total=Trait.TOTAL_IF_STATIC, **others)


def _without_derivative(arity: int, kinds: str, names: str, result: np.dtype | None = None) -> None:
    total = Trait.TOTAL if arity == 1 else Trait.TOTAL_IF_STATIC
    for name in names.split():
        add(name, arity, _rule(name, kinds, result), (), total=total)


INEXACT, REAL, NUMERIC, ANY = "fc", "iuf", "iufc", "biufc"
SINGULAR = (Trait.SINGULAR,)


def _sigmoid(x: Any) -> Any:
    wide = x.astype(computed_dtype(x.dtype))
    half = wide.dtype.type(0.5)
    return (np.tanh(wide * half) * half + half).astype(x.dtype)


_unary("negative", NUMERIC, lambda t, z, x: -t, traits=(Trait.BOUNDED,))
_unary("square", NUMERIC, lambda t, z, x: t * (2 * x))
_unary("reciprocal", INEXACT, lambda t, z, x: -t * (z * z), traits=SINGULAR)
_unary("sqrt", INEXACT, lambda t, z, x: t * (0.5 / z), traits=SINGULAR)
_unary("exp", INEXACT, lambda t, z, x: t * z, traits=SINGULAR)
_unary("exp2", "f", lambda t, z, x: t * (z * math.log(2)), traits=SINGULAR)
_unary("expm1", INEXACT, lambda t, z, x: t * (z + 1), traits=SINGULAR)
_unary("log", INEXACT, lambda t, z, x: t / x, traits=SINGULAR)
_unary("log1p", INEXACT, lambda t, z, x: t / (x + 1), traits=SINGULAR)
_unary("log2", INEXACT, lambda t, z, x: t / (x * math.log(2)), traits=SINGULAR)
_unary("log10", INEXACT, lambda t, z, x: t / (x * math.log(10)), traits=SINGULAR)
_unary("sin", INEXACT, lambda t, z, x: t * emit("cos", x))
_unary("cos", INEXACT, lambda t, z, x: -t * emit("sin", x))
_unary("tan", INEXACT, lambda t, z, x: t * (1 + z * z))
_unary("sinh", INEXACT, lambda t, z, x: t * emit("cosh", x), traits=SINGULAR)
_unary("cosh", INEXACT, lambda t, z, x: t * emit("sinh", x), traits=SINGULAR)
_unary("tanh", INEXACT, lambda t, z, x: t * (1 - z * z))
_unary("arcsin", INEXACT, lambda t, z, x: t / emit("sqrt", 1 - x * x), traits=SINGULAR)
_unary("arccos", INEXACT, lambda t, z, x: -t / emit("sqrt", 1 - x * x), traits=SINGULAR)
_unary("arctan", INEXACT, lambda t, z, x: t / (1 + x * x))
_unary("arcsinh", INEXACT, lambda t, z, x: t / emit("sqrt", 1 + x * x))
# Two quotients, not one by a product: at 1 the second derivative of that is 0 times infinity.
_unary("arccosh", INEXACT, lambda t, z, x: t / emit("sqrt", x - 1) / emit("sqrt", x + 1), traits=SINGULAR)
_unary("arctanh", INEXACT, lambda t, z, x: t / (1 - x * x), traits=SINGULAR)
_unary("sigmoid", INEXACT, lambda t, z, x: t * (z * (1 - z)), numpy=_sigmoid, jax="nn.sigmoid")
_unary(
    "erfinv",
    "f",
    lambda t, z, x: t * (emit("exp", z * z) * (math.sqrt(math.pi) / 2)),
    traits=SINGULAR,
    cheap=False,
    numpy=of_arrays(FORMULAS["erfinv"]),
    jax="scipy.special.erfinv",
)

_binary("add", NUMERIC, lambda t, z, x, y: t, lambda t, z, x, y: t, traits=(Trait.BOUNDED,))
_binary("subtract", NUMERIC, lambda t, z, x, y: t, lambda t, z, x, y: -t, traits=(Trait.BOUNDED,))
_binary("multiply", NUMERIC, lambda t, z, x, y: t * y, lambda t, z, x, y: t * x, traits=(Trait.PRODUCT,))
_binary("divide", INEXACT, lambda t, z, x, y: t / y, lambda t, z, x, y: -(t / y) * z, traits=SINGULAR)


def _times(x: Term, y: Term) -> Term:
    return emit("strong_multiply", x, y)


# x y, and 0 where x is 0, whatever y is. What it is for, `ctrlgrad.gradients.strong_zeros` tells.
_binary(
    "strong_multiply",
    INEXACT,
    lambda t, z, x, y: _times(t, y),
    lambda t, z, x, y: _times(x, t),
    numpy=lambda x, y: np.where(x == 0, np.zeros_like(x), x * y),
    jax="numpy.multiply",
    traits=(Trait.PRODUCT, Trait.SELECTS),
)


def _power_base(t: Term, z: Term, x: Term, y: Term) -> Term:
    """y x^(y-1), and 0 for y = 0 at x = 0. For y = 0 elsewhere x^-1 stays: further derivatives need it."""
    base = where(y.equals(0), where(x.equals(0), 1, x), x)
    return t * (y * base ** (y - 1))


def _power_exponent(t: Term, z: Term, x: Term, y: Term) -> Term:
    """x^y log x, and 0 at x = 0."""
    return t * (z * emit("log", where(x.equals(0), 1, x)))


_binary("power", INEXACT, _power_base, _power_exponent, cheap=False, traits=SINGULAR)


def _share(x: Term, y: Term, chosen: Term) -> Term:
    """1 where x is chosen, 0 where y is, 1/2 where they are equal."""
    like = x.equals(y)
    return where(like, 0.5, emit("cast", chosen, dtype=x.dtype))


def _of_zeros(of_numbers: Any, of_signs: Any) -> Any:
    """An extreme of two; of two zeros -0 is the smaller one, which NumPy leaves to the processor."""

    def extreme(x: Any, y: Any) -> Any:
        found = of_numbers(x, y)
        if dtype_kind(found.dtype) != "f" or found.all():
            return found
        signed = np.where(of_signs(np.signbit(x), np.signbit(y)), found.dtype.type(-0.0), found.dtype.type(0.0))
        return np.where(found == 0, signed, found)[()]

    return extreme


_binary(
    "maximum",
    REAL,
    lambda t, z, x, y: t * _share(x, y, x > y),
    lambda t, z, x, y: t * _share(y, x, y > x),
    numpy=_of_zeros(np.maximum, np.logical_and),
    traits=(Trait.BOUNDED, Trait.SELECTS),
)
_binary(
    "minimum",
    REAL,
    lambda t, z, x, y: t * _share(x, y, x < y),
    lambda t, z, x, y: t * _share(y, x, y < x),
    numpy=_of_zeros(np.minimum, np.logical_or),
    traits=(Trait.BOUNDED, Trait.SELECTS),
)
# x - y * floor(x / y), with the quotient that the value is of: that of 1 and -inf is -1.
_binary("remainder", REAL, lambda t, z, x, y: t, lambda t, z, x, y: -t * emit("floor_divide", x, y), traits=SINGULAR)


def _part_of_angle(t: Term, other: Term, this: Term) -> Term:
    """other / (other**2 + this**2), with the square of the smaller over the larger, which does not overflow."""
    wide = emit("abs", other) > emit("abs", this)
    larger, smaller = where(wide, other, this), where(wide, this, other)
    ratio = smaller / larger
    return t * (where(wide, 1, ratio) / larger / (1 + ratio * ratio))


_binary(
    "arctan2",
    "f",
    lambda t, z, y, x: _part_of_angle(t, x, y),
    lambda t, z, y, x: -_part_of_angle(t, y, x),
    traits=SINGULAR,
)


def _part_of_hypot(t: Term, z: Term, x: Term) -> Term:
    """x / z, and 0 at the tip of the cone, with derivatives of 0 there as abs has."""
    at_tip = z.equals(0)
    return t * (where(at_tip, 0, x) / where(at_tip, 1, z))


_binary("hypot", "f", lambda t, z, x, y: _part_of_hypot(t, z, x), lambda t, z, x, y: _part_of_hypot(t, z, y))
# The second operand counts by its sign alone.
_binary("copysign", "f", lambda t, z, x, y: t * (emit("copysign", 1, x) * emit("copysign", 1, y)), None)


def _softmax_of_two(t: Term, x: Term, y: Term) -> Term:
    """sigmoid(x - y): exp(x - z) would have the rounding errors of a large z. 0 of two -inf, and 1 of two inf."""
    return t * emit("sigmoid", x - where(x.equals(y), where(emit("isinf", x), 0, y), y))


_binary(
    "logaddexp",
    "f",
    lambda t, z, x, y: _softmax_of_two(t, x, y),
    lambda t, z, x, y: _softmax_of_two(t, y, x),
    cheap=False,
)

# Of complex numbers, the sign varies continuously: the frontend divides by the modulus.
_without_derivative(1, REAL, "sign")
_without_derivative(1, "f", "floor ceil trunc rint")
_without_derivative(1, "f", "signbit", BOOL)
_without_derivative(1, INEXACT, "isnan isinf isfinite", BOOL)
_without_derivative(1, "b", "logical_not")
_without_derivative(2, REAL, "floor_divide")
_without_derivative(2, "f", "nextafter")
_without_derivative(2, "b", "logical_and logical_or logical_xor")
_without_derivative(2, ANY, "equal not_equal", BOOL)
_without_derivative(2, "biuf", "less less_equal greater greater_equal", BOOL)
# Bits of integers; booleans have the logical ops.
_without_derivative(1, "iu", "bitwise_invert")
_without_derivative(2, "iu", "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift")
# A negative exponent is an error at run time, so this is not total, unlike `power`.
add("integer_power", 2, _rule("integer_power", "iu", None), (), numpy=np.power, jax="numpy.power")


def _same_width(name: str, kind: str, result: str) -> TensorRule:
    """From a dtype of a kind to the one of another kind that is as wide."""

    def infer(attrs: Attributes, x: TensorType) -> TensorType:
        require_kind(name, kind, [x])
        if x.dtype.itemsize == 1:
            raise TypeMismatchError(
                f"{name}: no floats are as wide", expected="integers of 16, 32 or 64 bits", got=str(x)
            )
        return TensorType(np.dtype(f"{result}{x.dtype.itemsize}"), x.shape)

    return infer


def _view(kind: str) -> Callable[[Any], Any]:
    return lambda x: np.asarray(x).view(f"{kind}{x.dtype.itemsize}")


def _infer_bits_to_bfloat16(attrs: Attributes, x: TensorType) -> TensorType:
    require_kind("bits_to_bfloat16", "iu", [x])
    if x.dtype.itemsize != 2:
        raise TypeMismatchError("bits_to_bfloat16: not as wide", expected="integers of 16 bits", got=str(x))
    return TensorType(BFLOAT16, x.shape)


# The bits of a float as an unsigned integer, and back, of signed ones too: as a float of NumPy's, or as bfloat16.
_BITS = "lax.bitcast_convert_type"
add("float_to_bits", 1, _same_width("float_to_bits", "f", "u"), (), numpy=_view("u"), jax=_BITS, total=Trait.TOTAL)
add("bits_to_float", 1, _same_width("bits_to_float", "iu", "f"), (), numpy=_view("f"), jax=_BITS, total=Trait.TOTAL)
add(
    "bits_to_bfloat16",
    1,
    _infer_bits_to_bfloat16,
    (),
    numpy=lambda x: np.asarray(x).view(BFLOAT16),
    jax=_BITS,
    total=Trait.TOTAL,
)


def _infer_abs(attrs: Attributes, x: TensorType) -> TensorType:
    dtype = np.dtype(x.dtype.type(0).real.dtype) if dtype_kind(x.dtype) == "c" else x.dtype
    return TensorType(dtype, x.shape)


def _infer_where(attrs: Attributes, condition: TensorType, a: TensorType, b: TensorType) -> TensorType:
    if condition.dtype != BOOL:
        raise TypeMismatchError(
            "where: the condition is not boolean", expected="bool", got=str(condition), hint="compare: x != 0"
        )
    return broadcast("where", (condition, a, b), same_dtype("where", (a, b)))


@declared("cast", 1, Trait.ELEMENTWISE, Trait.TOTAL, Trait.CHEAP, attributes=attributes.Cast)
def _infer_cast(attrs: attributes.Cast, x: TensorType) -> TensorType:
    return TensorType(attrs.dtype, x.shape)


add("abs", 1, _infer_abs, None, total=Trait.TOTAL)
_CHOSEN = (None, lambda t, z, c, x, y: where(c, t, 0), lambda t, z, c, x, y: where(c, 0, t))
add("where", 3, _infer_where, _CHOSEN, total=Trait.TOTAL_IF_STATIC, traits=(Trait.BOUNDED, Trait.SELECTS))
# The identity whose derivative is zero.
declared("stop_gradient", 1, Trait.TOTAL, Trait.VIEW, Trait.CHEAP, Trait.SHAPE_OF_FIRST, uses=(Use.PASS,))(
    lambda attrs, x: x
)
