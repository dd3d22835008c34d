"""Elementwise ops: each at generic points, with every operand broadcast, and at kinks."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from rule_cases.case import DIFFERENCES, JAX, Case, inside, normal, positive

_ANYWHERE = """negative square exp expm1 exp2 sin cos tan tanh sinh cosh arctan arcsinh sigmoid abs reciprocal arcsin
arccos arctanh erfinv"""
CASES: dict[str, Case] = {}
CASES |= {name: Case(getattr(cnp, name), (inside(1, 3),)) for name in _ANYWHERE.split()}
CASES |= {name: Case(getattr(cnp, name), (positive(1, 3),)) for name in "log log1p log2 log10 sqrt".split()}  # noqa: SIM905
CASES["arccosh"] = Case(cnp.arccosh, (positive(1, 3) + 1,))
CASES["cast"] = Case(lambda x: x.astype(np.float64) * x.astype(np.int64), (positive(1, 3) + 1,))
CASES["nothing"] = Case(lambda x: cnp.sum(cnp.exp(x[:0])) + x[0] ** 2, (normal(1, 2),))

_TWO = "add subtract multiply divide maximum minimum arctan2 logaddexp hypot copysign remainder"
for _name in _TWO.split():
    _fn = getattr(cnp, _name)
    CASES[_name] = Case(_fn, (positive(2, 2, 3), positive(3, 2, 3) + 0.3))
    CASES[f"{_name} broadcast"] = Case(_fn, (positive(2, 2, 1), positive(3, 3) + 0.3))
    CASES[f"{_name} unknown"] = Case(_fn, (positive(2, 2, 1), positive(3, 3) + 0.3), unknown=True)
CASES["power"] = Case(lambda x, y: x**y, (positive(2, 2, 1), normal(3, 3)))
# JAX gives nan.
CASES["power at zero"] = Case(lambda x: x ** np.array([0.0, 1.0, 2.0, 3.0]), (np.zeros(4),), DIFFERENCES)
CASES["where"] = Case(lambda x, y: cnp.where(x > y, x * y, y * y), (positive(2, 2, 1), positive(3, 3)))
CASES["stop_gradient"] = Case(lambda x: x[0] * cnp.sin(x) + 0 * cg.stop_gradient(x), (normal(2, 3),))

_TIED = np.array([1.0, 2.0, 3.0])
CASES["maximum at ties"] = Case(cnp.maximum, (_TIED, np.array([1.0, 5.0, 3.0])), JAX)
CASES["minimum at ties"] = Case(cnp.minimum, (_TIED, np.array([1.0, 5.0, 3.0])), JAX)
