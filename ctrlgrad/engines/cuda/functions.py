"""The functions that generated kernels call: what each is called in CUDA C++, and its definition where CUDA has none.

`ctrlgrad.engines.native.expressions` writes an elementwise op as a call of one of these names. Most are functions of
CUDA's own with the same meaning as NumPy's; the others are defined in `PREAMBLE`. `remainder`, say, is another function
in C.

The text is valid CUDA C++, and valid Python too: it has neither C's `?:` nor Python's `if`, but `np_select`.
"""

from __future__ import annotations

# As NumPy has it, under the same name.
_SAME = """exp exp2 expm1 log log1p log2 log10 sqrt sin cos tan tanh sinh cosh floor ceil trunc rint hypot copysign
shifted_left shifted_right unsigned_shifted_right"""

# The name in expressions: the name in kernels.
FUNCTIONS: dict[str, str] = {name: name for name in _SAME.split()} | {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "arctan2": "atan2",
    "power": "pow",
    "abs": "np_abs",
    "maximum": "np_maximum",
    "minimum": "np_minimum",
    "floor_divide": "np_floor_divide",
    "remainder": "np_remainder",
    "logaddexp": "np_logaddexp",
    "isnan": "np_isnan",
    "isinf": "np_isinf",
    "isfinite": "np_isfinite",
    "signbit": "np_signbit",
    "sign": "np_sign",
    "integer_maximum": "np_integer_maximum",
    "integer_minimum": "np_integer_minimum",
    "integer_sign": "np_integer_sign",
    "integer_floor_divide": "np_integer_floor_divide",
    "integer_remainder": "np_integer_remainder",
    "unsigned_floor_divide": "np_unsigned_floor_divide",
    "unsigned_remainder": "np_unsigned_remainder",
}

# The dtypes that kernels compute with, and their C types: in kernels they go by NumPy's names.
C_TYPES: dict[str, str] = {
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
}

_DEFINITIONS = """
template <class A, class B> __device__ inline auto np_select(bool c, A a, B b) -> decltype(c ? A() : B()) {
    return c ? a : b;
}
template <class T> __device__ inline T np_abs(T x) { return x < 0 ? T(-x) : x; }
__device__ inline float np_abs(float x) { return fabsf(x); }
__device__ inline double np_abs(double x) { return fabs(x); }
template <class T> __device__ inline bool np_isnan(T x) { return x != x; }
template <class T> __device__ inline bool np_isinf(T x) { return x == x && x - x != x - x; }
template <class T> __device__ inline bool np_isfinite(T x) { return x - x == x - x; }
template <class T> __device__ inline bool np_signbit(T x) { return copysign(T(1), x) < T(0); }
template <class T> __device__ inline T np_sign(T x) { return x != x ? x : T((x > T(0)) - (x < T(0))); }
template <class T> __device__ inline T np_maximum(T a, T b) { return a >= b || a != a ? a : b; }
template <class T> __device__ inline T np_minimum(T a, T b) { return a <= b || a != a ? a : b; }
// As NumPy computes both: the remainder has the sign of the divisor, and the quotient is a whole number beside it.
template <class T> __device__ inline T np_remainder(T a, T b) {
    T r = fmod(a, b);
    if (b == T(0)) return r;
    if (r == T(0)) return copysign(T(0), b);
    return (b < T(0)) != (r < T(0)) ? r + b : r;
}
template <class T> __device__ inline T np_floor_divide(T a, T b) {
    if (b == T(0)) return a / b;
    T r = fmod(a, b);
    T q = (a - r) / b;
    if (r != T(0) && (b < T(0)) != (r < T(0))) q -= T(1);
    if (q == T(0)) return copysign(T(0), a / b);
    T whole = floor(q);
    return q - whole > T(0.5) ? whole + T(1) : whole;
}
template <class T> __device__ inline T np_logaddexp(T a, T b) {
    if (a == b) return a + log(T(2));
    T d = a - b;
    return d > T(0) ? a + log1p(exp(-d)) : d <= T(0) ? b + log1p(exp(d)) : d;
}
template <class T> __device__ inline T np_integer_maximum(T a, T b) { return a >= b ? a : b; }
template <class T> __device__ inline T np_integer_minimum(T a, T b) { return a <= b ? a : b; }
template <class T> __device__ inline int np_integer_sign(T x) { return (x > T(0)) - (x < T(0)); }
// Division by zero gives 0, as in NumPy; by -1 the negative, which wraps.
template <class T> __device__ inline T np_integer_floor_divide(T a, T b) {
    if (b == T(0)) return T(0);
    if (b == T(-1)) return T(0 - a);
    return T(a / b - ((a % b != 0) && ((a < 0) != (b < 0))));
}
template <class T> __device__ inline T np_integer_remainder(T a, T b) {
    if (b == T(0) || b == T(-1)) return T(0);
    T r = T(a % b);
    return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r;
}
template <class T> __device__ inline T np_unsigned_floor_divide(T a, T b) { return b != 0 ? T(a / b) : T(0); }
template <class T> __device__ inline T np_unsigned_remainder(T a, T b) { return b != 0 ? T(a % b) : T(0); }
// Nothing is left of a number that is shifted by its width or more, or by a negative count, as in NumPy; but its sign.
template <class T> __device__ inline T shifted_left(T a, T b, int bits) {
    return b >= 0 && b < bits ? T((unsigned long long)a << b) : T(0);
}
template <class T> __device__ inline T shifted_right(T a, T b, int bits) {
    return b >= 0 && b < bits ? T(a >> b) : T(a >> (bits - 1));
}
template <class T> __device__ inline T unsigned_shifted_right(T a, T b, int bits) {
    return b < bits ? T(a >> b) : T(0);
}
"""

PREAMBLE = "".join(f"typedef {c} {name};\n" for name, c in C_TYPES.items()) + _DEFINITIONS

__all__ = ["C_TYPES", "FUNCTIONS", "PREAMBLE"]
