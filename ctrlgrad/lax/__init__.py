"""The names of `jax.lax`, so that a JAX program runs after a change of its imports.

    >>> from ctrlgrad import lax, numpy as jnp
    >>> lax.fori_loop(0, 3, lambda i, x: lax.mul(x, 2.0), jnp.ones(2))
    array([8., 8.])

Functions have the arguments and results of JAX's. Dtypes promote as in NumPy, so operands may have different dtypes.
The modules: `elements` (elementwise functions), `reductions` (reductions, scans, sorts and products), `indexing`
(slices, gathers and scatters), `windows` (reductions over windows, convolutions), `linalg` (factorisations and Fourier
transforms), and `parallel` (collectives).
"""

import ctrlgrad.numpy as _cnp
from ctrlgrad.frontend.branches import cond as cond
from ctrlgrad.frontend.branches import switch as switch
from ctrlgrad.frontend.functions import publish
from ctrlgrad.frontend.loops import associative_scan as associative_scan
from ctrlgrad.frontend.loops import fori_loop as fori_loop
from ctrlgrad.frontend.loops import map as map
from ctrlgrad.frontend.loops import scan as scan
from ctrlgrad.frontend.loops import while_loop as while_loop
from ctrlgrad.lax import linalg as linalg
from ctrlgrad.lax.elements import *
from ctrlgrad.lax.indexing import *
from ctrlgrad.lax.parallel import *
from ctrlgrad.lax.reductions import *
from ctrlgrad.lax.windows import *
from ctrlgrad.scipy import special as _special
from ctrlgrad.scipy.gamma_functions import igamma_grad_a as igamma_grad_a
from ctrlgrad.scipy.gamma_functions import random_gamma_grad as random_gamma_grad
from ctrlgrad.transforms.grad import stop_gradient as stop_gradient
from ctrlgrad.transforms.implicit import custom_linear_solve as custom_linear_solve
from ctrlgrad.transforms.implicit import custom_root as custom_root

FftType, fft = linalg.FftType, linalg.fft
add, sub, mul, neg, pow = _cnp.add, _cnp.subtract, _cnp.multiply, _cnp.negative, _cnp.power
max, min, abs, sign, nextafter = _cnp.maximum, _cnp.minimum, _cnp.abs, _cnp.sign, _cnp.nextafter
eq, ne, lt, le, gt, ge = _cnp.equal, _cnp.not_equal, _cnp.less, _cnp.less_equal, _cnp.greater, _cnp.greater_equal
exp, exp2, expm1, log, log1p, reciprocal = _cnp.exp, _cnp.exp2, _cnp.expm1, _cnp.log, _cnp.log1p, _cnp.reciprocal
sqrt, cbrt, square, ceil, floor, rem = _cnp.sqrt, _cnp.cbrt, _cnp.square, _cnp.ceil, _cnp.floor, _cnp.fmod
sin, cos, tan, sinh, cosh, tanh = _cnp.sin, _cnp.cos, _cnp.tan, _cnp.sinh, _cnp.cosh, _cnp.tanh
asin, acos, atan, atan2 = _cnp.asin, _cnp.acos, _cnp.atan, _cnp.atan2
asinh, acosh, atanh, logistic = _cnp.asinh, _cnp.acosh, _cnp.atanh, _cnp.sigmoid
is_finite, complex, conj, real, imag = _cnp.isfinite, _cnp.make_complex, _cnp.conj, _cnp.real, _cnp.imag
bitwise_and, bitwise_or, bitwise_xor = _cnp.bitwise_and, _cnp.bitwise_or, _cnp.bitwise_xor
bitwise_not, shift_left, shift_right_arithmetic = _cnp.bitwise_not, _cnp.left_shift, _cnp.right_shift
empty, full, full_like, stack, unstack, tile = (
    _cnp.empty,
    _cnp.full,
    _cnp.full_like,
    _cnp.stack,
    _cnp.unstack,
    _cnp.tile,
)
broadcast_shapes, select, rev, erf_inv = _cnp.broadcast_shapes, _cnp.where, _cnp.flip, _cnp.erfinv
betainc, digamma, lgamma, polygamma = _special.betainc, _special.digamma, _special.gammaln, _special.polygamma
erf, erfc, zeta, igamma, igammac = _special.erf, _special.erfc, _special.zeta, _special.gammainc, _special.gammaincc
bessel_i0e, bessel_i1e = _special.i0e, _special.i1e

publish(__name__, more=["linalg"], is_facade=True)
