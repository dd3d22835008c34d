"""Functions that use every differentiable op, with the arguments at which `test_rules.py` checks them."""

from rule_cases.arrays import CASES as ARRAYS
from rule_cases.case import DIFFERENCES, JAX, Case
from rule_cases.complex import CASES as COMPLEX
from rule_cases.elementwise import CASES as ELEMENTWISE
from rule_cases.matrices import CASES as MATRICES

CASES: dict[str, Case] = {**ELEMENTWISE, **ARRAYS, **COMPLEX, **MATRICES}

__all__ = ["CASES", "DIFFERENCES", "JAX", "Case"]
