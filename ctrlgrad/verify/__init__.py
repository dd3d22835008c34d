"""Judges of the library's derivatives that share no rule with it: finite differences, and JAX."""

from ctrlgrad.verify.check import check_grads
from ctrlgrad.verify.report import GradientReport

__all__ = ["GradientReport", "check_grads"]
