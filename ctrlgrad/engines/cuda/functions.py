"""CUDA C++ definitions of the functions that kernel statements call, besides C's own.

What the language lacks, or has otherwise than NumPy, is written here; the elementary functions are printed from their
expressions (see `elementary_functions`).
"""

from __future__ import annotations

import re

import numpy as np

# The dtypes of C that kernels compute with, and their C types: in kernels they go by NumPy's names.
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
__device__ inline float np_fma(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double np_fma(double a, double b, double c) { return fma(a, b, c); }
// Towards zero.
template <class T> __device__ inline T np_quotient(T a, T b) { return T(a / b); }
template <class T> __device__ inline T np_remainder(T a, T b) { return T(a % b); }
// Floats beyond an integer's range become the least or the largest one, and NaN becomes 0.
template <class T, class F> __device__ inline T np_saturated(F x, T low, T high) {
    return x != x ? T(0) : x <= F(low) ? low : x >= F(high) ? high : T(x);
}
template <class To, class From> __device__ inline To np_bits(const From& x) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To found;
    for (int k = 0; k < int(sizeof(To)); k++)
        reinterpret_cast<unsigned char*>(&found)[k] = reinterpret_cast<const unsigned char*>(&x)[k];
    return found;
}
"""


def _bits_of(name: str) -> str:
    return f"template <class T> __device__ inline {name} bits_{name}(T x) {{ return np_bits<{name}>(x); }}\n"


def _saturated(name: str) -> str:
    limits = np.iinfo(name)
    # C++ has no literal of the least number.
    low = f"-{limits.max}ll - 1" if limits.min else "0"
    ends = f"{name}({low}), {name}({limits.max}{'ll' if limits.min else 'ull'})"
    return f"template <class F> __device__ inline {name} saturated_{name}(F x) {{ return np_saturated(x, {ends}); }}\n"


# Types that the compiler lacks where it is given no headers: floats of 16 bits, and complex numbers.
_HALF = """
#ifdef __CUDACC__
__device__ inline unsigned short half_bits(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ inline unsigned short half_bits(double x) {
    unsigned short bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x));
    return bits;
}
__device__ inline float half_value(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#endif
class float16 {
    unsigned short data;
public:
    __device__ float16() {}
    __device__ float16(float x) : data(half_bits(x)) {}
    explicit __device__ float16(double x) : data(half_bits(x)) {}
    __device__ operator float() const { return half_value(data); }
};
""" + _bits_of("float16")
# The upper half of a float, of two that are as near the even one: half a unit is added to the bits, and what goes over
# is carried. A NaN, whose bits might be carried too far, keeps its sign alone. So it is on the processor.
_BFLOAT16 = (
    """
class bfloat16 {
    unsigned short data;
public:
    __device__ bfloat16() {}
    __device__ operator float() const { return np_bits<float>((unsigned int)data << 16); }
};
"""
    + _bits_of("bfloat16")
    + """
__device__ inline bfloat16 np_bfloat16(float x) {
    const unsigned int bits = np_bits<unsigned int>(x), upper = bits >> 16;
    const unsigned int rounded = (bits + 0x7fff + (upper & 1)) >> 16;
    return bits_bfloat16((unsigned short)(x != x ? (upper & 0x8000) | 0x7fc0 : rounded));
}
"""
)
_COMPLEX = """
template <class T> class complex {
    T re, im;
public:
    __device__ complex() {}
    __device__ complex(T re, T im) : re(re), im(im) {}
    __device__ T real() const { return re; }
    __device__ T imag() const { return im; }
};
typedef complex<float> complex64;
typedef complex<double> complex128;
template <class T> __device__ inline T np_real(const complex<T>& z) { return z.real(); }
template <class T> __device__ inline T np_imag(const complex<T>& z) { return z.imag(); }
"""


def preamble(text: str) -> str:
    """Definitions that a kernel's text needs, without the elementary functions."""
    half = _HALF if re.search("(?<!b)float16", text) else ""
    bfloat16 = _BFLOAT16 if "bfloat16" in text else ""
    return PREAMBLE + half + bfloat16 + (_COMPLEX if "complex" in text else "")


PREAMBLE = (
    "".join(f"typedef {c} {name};\n" for name, c in C_TYPES.items())
    + _DEFINITIONS
    + "".join(map(_bits_of, C_TYPES))
    + "".join(_saturated(name) for name in C_TYPES if "int" in name)
)

KERNEL_DTYPES = frozenset(("bool", *C_TYPES, "float16", "bfloat16", "complex64", "complex128"))
"""The dtypes that kernels compute with, by NumPy's names."""
